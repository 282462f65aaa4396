"""The beginning of a connection to a broker: which requests it takes, and the login.

PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628), in Kafka's SaslHandshake and SaslAuthenticate
(KIP-152). Kafka takes the bytes of user and password as they are: it does not normalize them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from logkeep_engine.contract.cluster import SaslMechanism
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import INT32, Call, Reader, pack_string

R = TypeVar("R")

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
BEFORE_LOGIN = {API_VERSIONS: (0, 0), SASL_HANDSHAKE: (1, 1), SASL_AUTHENTICATE: (0, 0)}
"""The versions in which a broker is asked before it has reported its own."""

_HASHES = {SaslMechanism.SCRAM_SHA_256: "sha256", SaslMechanism.SCRAM_SHA_512: "sha512"}
_ITERATIONS = range(4096, 1_000_001)
"""Kafka takes no fewer. More would keep this process busy for a broker that lies."""


class LoginDenied(Exception):
    """The broker does not know the user, or the password is another one."""


class LoginNotTaken(Exception):
    """The broker's listener does not take such a login."""


class WrongBroker(Exception):
    """The server does not know the user's password: it is not the broker."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in, and how. `secret` is the password, or the token. Its repr shows no secret."""

    mechanism: SaslMechanism
    username: str
    secret: str
    extensions: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Login({self.mechanism.value})"

    @property
    def who(self) -> str:
        """Who logs in, for messages."""
        if self.mechanism is SaslMechanism.AWS_MSK_IAM:
            return f"the identity of AWS with the access key {self.username!r}"
        if self.mechanism is SaslMechanism.OAUTHBEARER:
            return f"the token of client {self.username!r}" if self.username else "the token"
        return f"user {self.username!r}"


class _Sender(Protocol):
    def send(self, call: Call[R]) -> Awaitable[R]:
        """Send a request; the answer comes later."""


async def log_in(wire: _Sender, login: Login, version: int = 0) -> float:
    """Log in on a connection that was just opened, or again on one whose session ends.

    Returns the seconds after which the broker wants another login, 0 if it wants none: it says so from `version` 1 of
    SaslAuthenticate on (KIP-368). Raises LoginDenied, LoginNotTaken, WrongBroker, and OSError where the connection
    breaks.
    """
    code, enabled = await wire.send(_handshake(login.mechanism))
    if code != Code.NONE:
        others = f"; it takes {', '.join(enabled)}" if enabled else ""
        raise LoginNotTaken(f"{Code.name_of(code)} for {login.mechanism.on_the_wire}{others}")
    seconds = 0.0

    async def say(data: bytes) -> bytes:
        nonlocal seconds
        code, reason, answer, lifetime_ms = await wire.send(_authenticate(data, version))
        if code != Code.NONE:
            raise LoginDenied(_without(login.secret, reason) or Code.name_of(code))
        seconds = max(0, lifetime_ms) / 1000
        return answer

    if login.mechanism is SaslMechanism.PLAIN:
        await say(b"\0" + login.username.encode() + b"\0" + login.secret.encode())
    elif login.mechanism.has_token:
        await _show_token(login, say)
    else:
        await _scram(login, say)
    return seconds


async def _show_token(login: Login, say: Callable[[bytes], Awaitable[bytes]]) -> None:
    parts = [f"auth=Bearer {login.secret}", *(f"{name}={value}" for name, value in login.extensions)]
    # No channel binding, and no other identity than the token's own.
    refused = await say(b"n,,\x01" + "".join(f"{part}\x01" for part in parts).encode() + b"\x01")
    if not refused:
        return
    await say(b"\x01")  # a broker first says in JSON why it takes no token, and ends the login when it has been heard
    raise LoginDenied(_without(login.secret, refused.decode(errors="replace")))


def _without(secret: str, text: str) -> str:
    """Return what a broker says without the password or the token, which it may repeat."""
    return text.replace(secret, "…") if secret else text


async def _scram(login: Login, say: Callable[[bytes], Awaitable[bytes]]) -> None:
    # The nonce must have no comma, which ends an attribute.
    algorithm, nonce = _HASHES[login.mechanism], secrets.token_urlsafe(24)

    def mac(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, algorithm)

    # No channel binding, and no other identity than the user's own: `n,,`, which is `biws` in base64.
    # "=" goes first: each comma brings a new one.
    first = f"n={login.username.replace('=', '=3D').replace(',', '=2C')},r={nonce}".encode()
    challenge = await say(b"n,," + first)
    fields = _fields(challenge)
    try:
        salt, iterations = base64.b64decode(fields["s"], validate=True), int(fields["i"])
        shared = fields["r"]
    except (KeyError, ValueError, binascii.Error) as error:
        raise WrongBroker(f"its challenge cannot be read: {error}") from error
    if not shared.startswith(nonce) or shared == nonce:  # the server must add its own part (RFC 5802)
        raise WrongBroker("its challenge is not for this login")
    if iterations not in _ITERATIONS:
        raise WrongBroker(f"it requires {iterations} iterations")
    salted = hashlib.pbkdf2_hmac(algorithm, login.secret.encode(), salt, iterations)
    bare = f"c=biws,r={shared}".encode()
    said = b",".join((first, challenge, bare))
    client_key = mac(salted, b"Client Key")
    proof = bytes(
        a ^ b for a, b in zip(client_key, mac(hashlib.new(algorithm, client_key).digest(), said), strict=True)
    )
    last = _fields(await say(bare + b",p=" + base64.b64encode(proof)))
    expected = base64.b64encode(mac(mac(salted, b"Server Key"), said))
    if not hmac.compare_digest(last.get("v", "").encode(errors="replace"), expected):
        raise WrongBroker(last.get("e", "its signature is another one"))


def _fields(message: bytes) -> Mapping[str, str]:
    """Return the attributes of a message of SCRAM: a letter, `=`, and the value."""
    # Only the first "=" divides: values in base64 end with others.
    items = (part.partition("=") for part in message.decode(errors="replace").split(","))
    return {name: value for name, _, value in items}


def api_versions() -> Call[Mapping[int, tuple[int, int]]]:
    """Return the lowest and the highest version of each request that the broker takes, by its number."""

    def answer(read: Reader) -> Mapping[int, tuple[int, int]]:
        if (code := read.int16()) != Code.NONE:
            raise ValueError(f"{Code.name_of(code)} for the versions of requests")
        rows = read.array(lambda: (read.int16(), read.int16(), read.int16()))
        return {key: (lowest, highest) for key, lowest, highest in rows}

    # Version 0 is one that every broker takes.
    return Call(API_VERSIONS, 0, (), answer)


def _handshake(mechanism: SaslMechanism) -> Call[tuple[int, list[str]]]:
    return Call(
        SASL_HANDSHAKE, 1, (pack_string(mechanism.on_the_wire),), lambda read: (read.int16(), read.array(read.string))
    )


def _authenticate(data: bytes, version: int) -> Call[tuple[int, str, bytes, int]]:
    def answer(read: Reader) -> tuple[int, str, bytes, int]:
        code, reason = read.int16(), read.string()
        return code, reason, bytes(read.slice(read.int32())), read.int64() if version else 0

    return Call(SASL_AUTHENTICATE, version, (INT32.pack(len(data)) + data,), answer)

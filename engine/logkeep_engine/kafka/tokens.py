"""Tokens that a login shows in place of a password, and how long one is used.

    source = token_source(sasl, os.environ)
    source.login()      # fetches a token, or gives the one that this process holds

A token is fetched anew when a quarter of its time is left: none ends on the way to a broker, and a session that it has
begun is renewed with another one. Where that fails, the old one is shown as long as it holds. All connections of a
process share one.
"""

from __future__ import annotations

import base64
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import OAuth, Sasl
from logkeep_engine.contract.nesting import loads
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused
from logkeep_engine.kafka.login import Login
from logkeep_engine.kafka.secrets import SASL, Secret, file_of, user_and_password

_USED_FOR = 0.75  # of its time
_AGAIN = 5.0  # seconds after which what gave no token is asked again, while there is an old one
_SHORTEST = 1.0  # seconds that a token is used at least, also one that says nothing of its end


class TokenUnavailable(OSError):
    """A token cannot be had now. That may pass."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, the name of whose it is, and for how many seconds it holds; None if nobody has said so."""

    text: str = field(repr=False)
    of: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Held:
    login: Login
    fresh_until: float
    ends: float


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The spec's account of a token, with the secrets for it. `ca_file`: whom to trust as the token endpoint."""

    sasl: Sasl
    username: Secret = field(repr=False)
    password: Secret = field(repr=False)
    assertion: Secret | None = field(default=None, repr=False)
    ca_file: str | None = None

    def login(self) -> Login:
        """Return a login with a token that holds. Raises KafkaLoginRefused, CredentialsMissing, TokenUnavailable."""
        with _held.fetching:
            if (found := self.held()) is not None:
                return found
            try:
                token = self._fetch()
            except (TokenUnavailable, KafkaLoginRefused, CredentialsMissing):  # a changed secret is renewed, too
                old, now = _held.of.get(self), time.monotonic()
                if old is None or now >= old.ends:
                    raise
                _held.of[self] = replace(old, fresh_until=min(old.ends, now + _AGAIN))
                return old.login
            extensions = self.sasl.oauth.extensions if self.sasl.oauth is not None else ()
            login = Login(self.sasl.mechanism, token.of, token.text, tuple((one.name, one.value) for one in extensions))
            # Tokens name their times in whole seconds, cut off.
            now, seconds = time.monotonic(), max(0.0, (token.seconds or 0.0) - 1)
            _held.of[self] = _Held(login, now + max(_USED_FOR * seconds, _SHORTEST), now + seconds)
            return login

    def held(self) -> Login | None:
        """Return the login that this process holds, if its token is still to be used."""
        found = _held.of.get(self)
        return found.login if found is not None and time.monotonic() < found.fresh_until else None

    def drop(self, login: Login) -> None:
        """Forget a token that was not taken."""
        found = _held.of.get(self)
        if found is not None and found.login == login:
            _held.of.pop(self, None)

    def _fetch(self) -> Token:
        if self.sasl.aws is not None:
            from logkeep_engine.kafka.aws_token import sign

            return sign(self.sasl.aws, self.username.read(), self.password.read())
        oauth = self.sasl.oauth
        assert oauth is not None
        if oauth.token_endpoint is None:
            assert self.assertion is not None
            text = self.assertion.read()
            return Token(text, "", seconds_left(text))
        from logkeep_engine.kafka.token_endpoint import ask

        assertion = self.assertion.read() if self.assertion is not None else None
        return ask(oauth, self.username.read(), self.password.read(), assertion, self.ca_file)


class _OfProcess:
    """The tokens of this process. A child that was forked has those of its parent, and not its lock."""

    def __init__(self) -> None:
        self.of: dict[TokenSource, _Held] = {}
        self.fetching = threading.Lock()

    def unlock(self) -> None:
        self.fetching = threading.Lock()


_held = _OfProcess()
os.register_at_fork(after_in_child=_held.unlock)


def token_source(sasl: Sasl, environ: Mapping[str, str]) -> TokenSource:
    """Return the source of the tokens that `sasl` describes. Raises CredentialsMissing naming the variable and the
    field if it needs a secret that `environ` does not have."""
    assertion = ca_file = None
    if sasl.oauth is not None:
        assertion = _assertion(sasl.oauth, environ)
        if sasl.oauth.tls is not None or environ.get(names.ENV_KAFKA_TOKEN_CA_FILE):
            ca_file = file_of(environ, names.ENV_KAFKA_TOKEN_CA_FILE, f"{SASL}.oauth.tls")
    return TokenSource(sasl, *user_and_password(sasl, environ), assertion, ca_file)


def _assertion(oauth: OAuth, environ: Mapping[str, str]) -> Secret | None:
    if oauth.service_account_token is None:
        return None
    name = names.ENV_KAFKA_TOKEN_FILE
    where = f"{SASL}.oauth.serviceAccountToken"
    return Secret(where, name, path=file_of(environ, name, where))


def seconds_left(token: str) -> float | None:
    """Return for how many seconds a token holds, by its own account; None if it is none that says so. Who takes it
    checks it: nothing is decided by this but when to fetch another one. Raises KafkaLoginRefused for one that has
    ended."""
    ends = seconds_of(_claims(token).get("exp"))
    if ends is None:
        return None
    left = ends - time.time()
    if left <= 0:
        raise KafkaLoginRefused(
            f"{SASL}.oauth: the token has ended {-left:.0f} s ago.",
            hint="Check that what renews it runs, and the clocks of both machines.",
        )
    return left


def _claims(token: str) -> Mapping[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return document(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:  # that is no Base64
        return {}


def document(text: bytes) -> Mapping[str, Any]:
    """Return what a provider of tokens has written as JSON; nothing if it is no object."""
    try:
        found = loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def seconds_of(value: object) -> float | None:
    """Return a number of seconds, which some write in quotes; None if it is none."""
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None

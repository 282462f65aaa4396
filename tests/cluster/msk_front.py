"""A front that logs clients in as Amazon MSK does by IAM, before a real broker.

It ends OAUTHBEARER itself: a token is the URL of a request, signed by SigV4 for the service kafka-cluster. It computes
the signature again with the secrets that it knows, by RFC and by hand, and passes on everything else. A session holds
as long as its token, or `session` seconds: then the connection is closed, unless the client has logged in again.
Clients with another name than Logkeep's need no login: tests look at the broker with theirs.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import socketserver
import struct
import time
from calendar import timegm
from urllib.parse import parse_qsl, quote, urlsplit

from tests.cluster.on_loopback import OnLoopback

_HANDSHAKE, _AUTHENTICATE, _API_VERSIONS = 17, 36, 18
_DENIED = 58


class MskFront(OnLoopback, socketserver.ThreadingTCPServer):
    """Listens on a port of loopback while in its context. `target` is the broker. `secrets`: the secret of each access
    key, `tokens` the session tokens of those that have one. `ahead`: how many seconds its clock is ahead. `logins`: the
    access key of every login, and how many logins its connection had before."""

    allow_reuse_address = True

    def __init__(self, port: int, region: str = "eu-north-1") -> None:
        super().__init__(("127.0.0.1", port), _Connection)
        self.region = region
        self.target = ""
        self.secrets: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        self.well()

    def well(self) -> None:
        """Forget what was seen, with a clock that is right."""
        self.ahead = 0.0
        self.session: float | None = None
        self.logins: list[tuple[str, int]] = []

    def check(self, token: str) -> tuple[str, float]:
        """The access key that has signed, and until when it holds. Raises ValueError with the reason."""
        url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
        said = dict(parse_qsl(url.query, keep_blank_values=True))
        if (url.scheme, url.netloc, url.path) != ("https", f"kafka.{self.region}.amazonaws.com", "/"):
            raise ValueError(f"the request is for {url.netloc}")
        if said["Action"] != "kafka-cluster:Connect" or said["X-Amz-SignedHeaders"] != "host":
            raise ValueError("the request is for something else")
        key, _, scope = said["X-Amz-Credential"].partition("/")
        if scope != f"{said['X-Amz-Date'][:8]}/{self.region}/kafka-cluster/aws4_request":
            raise ValueError(f"the scope is {scope}")
        if said.get("X-Amz-Security-Token", "") != self.tokens.get(key, ""):
            raise ValueError("the session token is another one")
        if key not in self.secrets or not hmac.compare_digest(said["X-Amz-Signature"], self._sign(url.netloc, said)):
            raise ValueError("the signature is another one")
        ends = timegm(time.strptime(said["X-Amz-Date"], "%Y%m%dT%H%M%SZ")) + int(said["X-Amz-Expires"])
        if ends <= time.time() + self.ahead:
            raise ValueError("the request has expired")
        return key, ends - self.ahead

    def _sign(self, host: str, said: dict[str, str]) -> str:
        key, _, scope = said["X-Amz-Credential"].partition("/")
        unsigned = {name: value for name, value in said.items() if name not in ("X-Amz-Signature", "User-Agent")}
        query = "&".join(f"{quote(name, '')}={quote(value, '')}" for name, value in sorted(unsigned.items()))
        empty = hashlib.sha256(b"").hexdigest()
        request = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{empty}"
        text = f"AWS4-HMAC-SHA256\n{said['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        found = f"AWS4{self.secrets[key]}".encode()
        for part in scope.split("/"):
            found = hmac.digest(found, part.encode(), "sha256")
        return hmac.new(found, text.encode(), "sha256").hexdigest()


class _Connection(socketserver.BaseRequestHandler):
    server: MskFront

    def handle(self) -> None:
        host, _, port = self.server.target.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as broker:
            self._serve(broker)

    def _serve(self, broker: socket.socket) -> None:
        ends, logins, refused = 0.0, 0, ""
        while True:
            frame = _read(self.request)
            key, version, number, length = struct.unpack_from(">hhih", frame)
            body = frame[10 + max(0, length) :]
            if key == _HANDSHAKE:
                (size,) = struct.unpack_from(">h", body)
                code = 0 if body[2 : 2 + size] == b"OAUTHBEARER" else 33
                self._answer(number, struct.pack(">hi", code, 1) + _string("OAUTHBEARER"))
            elif key == _AUTHENTICATE and refused:  # it has heard why
                self._answer(
                    number, struct.pack(">h", _DENIED) + _string(f"[{refused}]: Access denied") + bytes(4 + 8 * version)
                )
                return
            elif key == _AUTHENTICATE:
                try:
                    who, ends = self._check(body[4:])
                except (ValueError, KeyError) as error:
                    refused = str(error)
                    text = json.dumps({"status": "invalid_token"}).encode()
                    self._answer(number, struct.pack(">hhi", 0, -1, len(text)) + text + bytes(8 * version))
                    continue
                self.server.logins.append((who, logins))
                logins += 1
                left = struct.pack(">q", int((ends - time.time()) * 1000)) if version else b""
                self._answer(number, struct.pack(">hhi", 0, -1, 0) + left)
            elif key == _API_VERSIONS or time.time() < ends or frame[10 : 10 + length] != b"logkeep":
                broker.sendall(struct.pack(">i", len(frame)) + frame)
                answer = _read(broker)
                self.request.sendall(struct.pack(">i", len(answer)) + answer)
            else:
                return  # a broker says nothing, either

    def _check(self, said: bytes) -> tuple[str, float]:
        head, auth, *rest = said.split(b"\x01")
        if head != b"n,," or not auth.startswith(b"auth=Bearer ") or rest != [b"", b""]:
            raise ValueError("this is not what RFC 7628 says")
        who, ends = self.server.check(auth.removeprefix(b"auth=Bearer ").decode())
        session = self.server.session
        return who, ends if session is None else min(ends, time.time() + session)

    def _answer(self, number: int, body: bytes) -> None:
        self.request.sendall(struct.pack(">ii", 4 + len(body), number) + body)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _read(source: socket.socket) -> bytes:
    """A frame without its size. Raises OSError if the other side has gone."""
    (size,) = struct.unpack(">i", _exactly(source, 4))
    return _exactly(source, size)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise ConnectionError("the other side has gone")
        found += more
    return bytes(found)

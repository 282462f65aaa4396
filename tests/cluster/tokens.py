"""An issuer of tokens: a token endpoint of OpenID Connect and the keys (JWKS) by which brokers check its tokens."""

import base64
import json
import secrets
import ssl
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.cluster.on_loopback import OnLoopback
from tests.cluster.pki import Certificate

AUDIENCE = "kafka"


class TokenServer(OnLoopback, ThreadingHTTPServer):
    """Listens on loopback while in its context. It gives tokens of the grant client_credentials to the clients that it
    knows, by their secret in the header or in the body, or by an assertion that it has made itself (`assertion`).

    `seconds`: how long new tokens hold. `issued`: all tokens. `asked`: the forms of all requests. `answer`: what every
    request for a token gets in place of one, a status and a document. `forges`: new tokens are signed by another key
    than brokers know. With `certificate` it speaks TLS.
    """

    def __init__(self, certificate: Certificate | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.cert, certificate.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self._key, self._other = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
        self.issuer = self.url  # by which brokers know it
        self.clients = {"backup": secrets.token_urlsafe(12)}
        self.well()

    def well(self) -> None:
        """Do again what an issuer should, and forget what it was asked."""
        self.seconds: float = 3600
        self.audience = AUDIENCE
        self.issued: list[str] = []
        self.asked: list[Mapping[str, str]] = []
        self.answer: tuple[int, Mapping[str, Any] | str] | None = None
        self.forges = False

    @property
    def url(self) -> str:
        """The beginning of its addresses."""
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    @property
    def endpoint(self) -> str:
        """The address that gives tokens."""
        return f"{self.url}/realms/kafka/token"

    def token(self, subject: str, seconds: float, audience: str | None = None) -> str:
        """A signed token (RFC 7519)."""
        now = time.time()
        # In whole seconds, as Kafka reads them.
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "sub": subject,
            "aud": audience or self.audience,
            "scope": "kafka",
        }
        claims |= {"iat": int(now), "exp": int(now + seconds), "jti": secrets.token_hex(8)}
        signed = ".".join(_encode(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims))
        key = self._other if self.forges else self._key
        return f"{signed}.{_encode(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        """The keys that brokers ask for."""
        public = self._key.public_key().public_numbers()
        numbers = {"n": public.n.to_bytes(256, "big"), "e": public.e.to_bytes(3, "big")}
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1"}
        return {"keys": [key | {name: _encode(value) for name, value in numbers.items()}]}

    def respond(self, form: Mapping[str, str], authorization: str) -> tuple[int, Mapping[str, Any] | str]:
        """The answer to a request for a token."""
        self.asked.append(form)
        if self.answer is not None:
            return self.answer
        client, secret = form.get("client_id", ""), form.get("client_secret", "")
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":")
            client, secret = map(unquote_plus, pair)
        known = self.clients.get(client) == secret or form.get("client_assertion") in self.issued
        if not known or form.get("grant_type") != "client_credentials":
            return 401, {"error": "invalid_client", "error_description": "Invalid client or Invalid client credentials"}
        if form.get("scope", "kafka") != "kafka":
            return 400, {"error": "invalid_scope", "error_description": f"Invalid scopes: {form['scope']}"}
        token = self.token(client, self.seconds)
        self.issued.append(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.seconds)}


class _Answer(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        self._send(200, self.server.keys())

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        form = {name: values[0] for name, values in body.items()}
        self._send(*self.server.respond(form, self.headers.get("Authorization", "")))

    def _send(self, status: int, content: Mapping[str, Any] | str) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

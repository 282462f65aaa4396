"""A real server of Google Cloud Storage's interface: fake-gcs-server over memory, and an issuer of tokens.

The server takes every token. The issuer (`python -m tests.cluster.gcs`) gives one only to who has signed with the key
of the account, so that the engine's own way from a key to a token is taken.
"""

import json
import secrets
import shutil
import sys
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster import system, tools
from tests.cluster.process import Process
from tests.cluster.state import State

_ISSUED = "a token was issued"
ROOT = Path(__file__).parents[2]


class GcsServer:
    """Starts on entering the context, on a free port. With `netns` it listens inside that network namespace."""

    def __init__(self, host: str = "127.0.0.1", netns: str | None = None) -> None:
        self.host = host
        self._netns = netns

    def __enter__(self) -> Self:
        self._state = State.create("gcs")
        try:
            self.port, self._issuer_port = system.free_ports(2, self.host, self._netns)
            name = system.host_port(system.name_of_address(self.host), self.port)
            where = ("-host", self.host, "-port", str(self.port), "-public-host", name)
            kept = ("-scheme", "http", "-backend", "memory", "-external-url", f"http://{name}", "-log-level", "warn")
            self.process = Process(self._state, "gcs", [tools.fake_gcs(), *where, *kept], netns=self._netns)
            public = self._state.path / "account.pem"
            public.write_bytes(
                self._key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
            issuer: list[str | Path] = [
                sys.executable,
                "-m",
                "tests.cluster.gcs",
                self.host,
                str(self._issuer_port),
                public,
            ]
            environ = {"PYTHONPATH": str(ROOT)}
            self._issuer = Process(self._state, "issuer", issuer, env=environ, netns=self._netns)
            for process, port in ((self.process, self.port), (self._issuer, self._issuer_port)):
                process.start()
                process.wait_ready(lambda port=port: system.accepts(self.host, port))  # type: ignore[misc]
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._issuer.kill()
        self.process.kill()
        self._state.destroy(grace=0)

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://{system.host_port(system.name_of_address(self.host), self.port)}"

    @property
    def issued(self) -> int:
        """How many tokens were issued."""
        return self._issuer.log.read_text().count(_ISSUED)

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def account_key(self, key: rsa.RSAPrivateKey | None = None) -> str:
        """The key of the service account as Google gives it, in JSON; with another key, one that nobody takes."""
        pem = (key or self._key).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "project_id": "logkeep",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "logkeep@logkeep.iam.gserviceaccount.com",
            "token_uri": f"http://{system.host_port(self.host, self._issuer_port)}/token",
        }
        return json.dumps(account)

    def create_bucket(self, name: str, *, versions: bool = False) -> str:
        """Create a bucket and return its name."""
        bucket = self._client.bucket(name)
        bucket.versioning_enabled = versions
        self._client.create_bucket(bucket)
        return name

    def objects(self, bucket: str) -> list[str]:
        """The names of all objects, of those that a list without versions shows."""
        return [blob.name for blob in self._client.list_blobs(bucket)]

    @cached_property
    def _client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials  # slow to import, and only this needs it
        from google.cloud.storage import Client

        options = {"api_endpoint": self.endpoint}
        return Client(project="logkeep", credentials=AnonymousCredentials(), client_options=options)

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        shutil.copy(self.process.log, folder / f"{self._state.path.name}.log")


def serve_tokens(host: str, port: int, public: bytes) -> None:
    """Give a token to everyone who has signed with the key that belongs to this public one, in PEM."""
    from google.auth import jwt

    class Issuer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            try:
                jwt.decode(body["assertion"][0], certs=public, audience=None)
            except Exception:
                self._answer(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
                return
            print(_ISSUED, flush=True)
            self._answer(200, {"access_token": secrets.token_hex(8), "expires_in": 3600, "token_type": "Bearer"})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    ThreadingHTTPServer((host, port), Issuer).serve_forever()


if __name__ == "__main__":
    serve_tokens(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_bytes())

"""`storage.credentials.workloadIdentity`: the identity of the pod, and never what else lies in its environment."""

from __future__ import annotations

import json
import pickle
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from logkeep_engine.contract.names import OWN_KEYS, STATE_KEYS, Keys
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.errors import CredentialsMissing
from logkeep_engine.storage import open_storage

OF_THE_POD = "ASIAOFTHEPOD"
OF_THE_ENVIRONMENT = "AKIAOFTHEENVIRONMENT"
EMPTY = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
    b"<KeyCount>0</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)


class Server(ThreadingHTTPServer):
    """An object store and the agent of EKS Pod Identity in one; `keys` are those that requests were signed with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: list[str] = []
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/credentials":
            self.server.tokens.append(self.headers.get("Authorization"))
            answer = {
                "AccessKeyId": OF_THE_POD, "SecretAccessKey": "secret", "Token": "token",
                "Expiration": "2099-01-01T00:00:00Z",
            }  # fmt: skip
            self._answer(json.dumps(answer).encode(), "application/json")
        else:
            self._signed()
            self._answer(EMPTY, "application/xml")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._signed()
        self._answer(b"", "text/plain", ETag='"1"')

    def _signed(self) -> None:
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        self.server.keys.append(found.group(1) if found else "")

    def _answer(self, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def static_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that some other tool has put into the pod's environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OF_THE_ENVIRONMENT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)


def spec(endpoint: str = "http://127.0.0.1:1") -> StorageSpec:
    return StorageSpec.model_validate(
        {"uri": "s3://bucket/prefix", "endpoint": endpoint, "credentials": {"workloadIdentity": {}}}
    )


@pytest.mark.parametrize("half", [{}, {"AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}])
def test_a_pod_without_an_identity_is_refused(half: dict[str, str]) -> None:
    static = {"AWS_ACCESS_KEY_ID": OF_THE_ENVIRONMENT, "AWS_SECRET_ACCESS_KEY": "secret"}
    with pytest.raises(CredentialsMissing, match="workloadIdentity asks for the pod's own identity") as refused:
        open_storage(spec(), static | half)
    assert "AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE" in str(refused.value)
    assert OF_THE_ENVIRONMENT not in str(refused.value)


@pytest.mark.parametrize("keys", [OWN_KEYS, STATE_KEYS], ids=lambda keys: keys.field)
def test_requests_are_signed_by_the_identity_and_by_nothing_else(
    server: Server, monkeypatch: pytest.MonkeyPatch, keys: Keys
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "of-the-service-account")
    storage = open_storage(spec(server.url), secret_keys=keys)
    for opened in (storage, pickle.loads(pickle.dumps(storage))):  # as a task gets it
        server.keys.clear()
        opened.check()
        opened.put("a", b"x")
        assert server.keys == [OF_THE_POD, OF_THE_POD]
    assert set(server.tokens) == {"of-the-service-account"}


def test_an_identity_that_gives_nothing_is_no_reason_to_look_elsewhere(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "")  # half of it: botocore finds no identity
    environ = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    with pytest.raises(CredentialsMissing):
        open_storage(spec(server.url), environ).check()
    assert server.keys == []


def test_a_task_without_the_keys_of_the_state_does_not_take_those_of_the_archive(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has both; an executor may have been made without the Secret of the state."""
    place = {"uri": "s3://bucket", "endpoint": server.url, "credentials": {"secretRef": {"name": "writer"}}}
    driver = {STATE_KEYS.access: "AKIAOFTHESTATE", STATE_KEYS.secret: "secret"}
    storage = open_storage(StorageSpec.model_validate(place), driver, secret_keys=STATE_KEYS)
    storage.check()
    assert server.keys == ["AKIAOFTHESTATE"]
    task = pickle.loads(pickle.dumps(storage))
    with pytest.raises(CredentialsMissing, match=f"{STATE_KEYS.access} and {STATE_KEYS.secret} are not in the env"):
        task.put("a", b"x")
    assert server.keys == ["AKIAOFTHESTATE"]

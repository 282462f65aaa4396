"""`storage.tls`: the certificate authorities that a store is trusted by."""

from __future__ import annotations

import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.names import OWN_KEYS, STATE_KEYS, Keys
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.errors import CredentialsMissing, StorageRefused
from logkeep_engine.storage import open_storage
from tests.cluster.pki import Authority

EMPTY = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
    b"<KeyCount>0</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)
EMPTY_AZURE = (
    b'<?xml version="1.0"?><EnumerationResults ServiceEndpoint="https://store/" ContainerName="bucket"><Prefix/>'
    b"<Blobs/><NextMarker/></EnumerationResults>"
)
LOGIN = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AZURE_STORAGE_KEY": "a2V5"}


class Handler(BaseHTTPRequestHandler):
    """An empty bucket."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        body = EMPTY_AZURE if "comp=list" in self.path else EMPTY
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def endpoint(authority: Authority) -> Iterator[str]:
    own = authority.issue("store", "/CN=store", "DNS:localhost,IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def spec(endpoint: str, **more: Any) -> StorageSpec:
    return StorageSpec.model_validate({"uri": "s3://bucket/prefix", "endpoint": endpoint} | more)


KINDS = ["s3", "az"]


TLS = {"tls": {"caConfigMapRef": {"name": "bundle"}}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [OWN_KEYS, STATE_KEYS], ids=lambda keys: keys.field)
def test_a_store_is_trusted_by_the_authorities_that_the_spec_names(
    endpoint: str, authority: Authority, monkeypatch: pytest.MonkeyPatch, keys: Keys, kind: str
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    place = spec(endpoint, uri=f"{kind}://bucket/prefix", **TLS)
    storage = open_storage(place, {**LOGIN, keys.ca_file: str(authority.cert)}, secret_keys=keys)
    for opened in (storage, pickle.loads(pickle.dumps(storage))):  # as a task gets it
        opened.check()
        assert list(opened.list("")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_them_the_store_is_not_trusted(endpoint: str, authority: Authority, kind: str) -> None:
    environ = {**LOGIN, OWN_KEYS.ca_file: str(authority.cert)}  # of another resource: nothing refers to it
    with pytest.raises(StorageRefused, match="TLS failed"):
        open_storage(spec(endpoint, uri=f"{kind}://bucket/prefix"), environ).check()


@pytest.mark.parametrize("keys", [OWN_KEYS, STATE_KEYS], ids=lambda keys: keys.field)
def test_authorities_that_have_not_arrived_are_named(tmp_path: Path, keys: Keys) -> None:
    place = spec("https://store:9000", **TLS)
    with pytest.raises(CredentialsMissing, match=rf"{keys.field}\.tls .*{keys.ca_file} is not in the environment"):
        open_storage(place, LOGIN, secret_keys=keys)
    missing = str(tmp_path / "ca.crt")
    with pytest.raises(CredentialsMissing, match=f"names {missing}, which is not a file"):
        open_storage(place, {**LOGIN, keys.ca_file: missing}, secret_keys=keys)

"""Storage on a server of Google Cloud Storage's interface: the contract of every storage, and what failures are
called."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from logkeep_engine.errors import BucketMissing, CredentialsMissing, ObjectExists, StorageRefused, StorageUnavailable
from logkeep_engine.storage import PART_BYTES, Storage, UnseenObject, open_uri, retry
from tests.cluster.gcs import GcsServer
from tests.unit.storage.contract import StorageContract


@pytest.fixture
def gcs_bucket(gcs: GcsServer, unique: str) -> str:
    return gcs.create_bucket(unique)


def open_gcs(server: GcsServer, bucket: str, key: str | None = None, endpoint: str | None = None) -> Storage:
    environ = {"LOGKEEP_GOOGLE_KEY": server.account_key() if key is None else key}
    return open_uri(f"gs://{bucket}/an/archive", endpoint or server.endpoint, environ=environ)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", 0.5)


class TestContract(StorageContract):
    @pytest.fixture
    def storage(self, gcs: GcsServer, gcs_bucket: str) -> Storage:
        return open_gcs(gcs, gcs_bucket)

    @pytest.fixture
    def files(self, gcs: GcsServer, gcs_bucket: str) -> Callable[[], int]:
        return lambda: len(gcs.objects(gcs_bucket))

    @pytest.fixture
    def worker_environment(self, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGKEEP_GOOGLE_KEY", gcs.account_key())


def test_a_missing_bucket_is_named(gcs: GcsServer) -> None:
    storage = open_gcs(gcs, "no-such-bucket")
    for act in (storage.check, storage.list, lambda: storage.put("a", b""), lambda: storage.create("a", b"")):
        with pytest.raises(BucketMissing, match=r"Bucket 'no-such-bucket' does not exist at http://0x7f\.1"):
            act()
    with pytest.raises(BucketMissing), storage.writer("stream") as writer:
        writer.write(bytes(PART_BYTES + 1))


def test_a_token_comes_from_the_key_of_the_account(gcs: GcsServer, gcs_bucket: str) -> None:
    before = gcs.issued
    open_gcs(gcs, gcs_bucket).put("a", b"1")
    assert gcs.issued == before + 1
    strange = gcs.account_key(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    with pytest.raises(StorageRefused, match="Google refused the credentials") as refused:
        open_gcs(gcs, gcs_bucket, strange).put("a", b"2")
    assert "PRIVATE KEY" not in str(refused.value)


@pytest.mark.parametrize("key", ["hunter2", '{"private_key": "hunter2"}', "[]"])
def test_a_key_that_is_none_is_refused_and_not_repeated(gcs: GcsServer, gcs_bucket: str, key: str) -> None:
    with pytest.raises(CredentialsMissing, match="LOGKEEP_GOOGLE_KEY is not the key of a service account") as refused:
        open_gcs(gcs, gcs_bucket, key).check()
    assert "hunter2" not in str(refused.value)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_answer_may_come_back(gcs: GcsServer, gcs_bucket: str) -> None:
    with pytest.raises(StorageUnavailable, match=r"no answer from http://127\.0\.0\.1:1 \("):
        open_gcs(gcs, gcs_bucket, endpoint="http://127.0.0.1:1").check()


def test_older_generations_are_seen_and_deleted(gcs: GcsServer, unique: str) -> None:
    storage = open_gcs(gcs, gcs.create_bucket(unique, versions=True))
    storage.put("a/b", b"secret")
    old = storage.version("a/b")
    assert old is not None
    storage.put("a/b", b"new")
    assert storage.unseen("a/") == (UnseenObject("a/b", old, is_version=True),)
    assert storage.delete_unseen(storage.unseen("a/")) == ()
    assert storage.unseen("") == ()
    assert storage.read("a/b") == b"new"


def test_nothing_is_cold(gcs: GcsServer, gcs_bucket: str) -> None:
    storage = open_gcs(gcs, gcs_bucket)
    storage.put("a", b"1")
    assert storage.cold(storage.list()) == ()


def test_an_upload_that_meets_another_object_is_refused_at_its_end(gcs: GcsServer, gcs_bucket: str) -> None:
    storage = open_gcs(gcs, gcs_bucket)
    writer = storage.writer("stream", replaces=None)
    writer.write(bytes(PART_BYTES + 1))  # the upload begins while the name is free
    storage.create("stream", b"another's")
    with pytest.raises(ObjectExists):
        writer.commit()
    writer.abort()
    assert storage.read("stream") == b"another's"

"""Storage on a server of Azure Blob Storage's interface: the contract of every storage, and what failures are
called."""

import gzip
import os
from base64 import b64encode
from collections.abc import Callable

import pytest

from logkeep_engine.errors import BucketMissing, ObjectCold, ObjectExists, StorageRefused, StorageUnavailable
from logkeep_engine.storage import PART_BYTES, ColdObject, Storage, open_uri, retry
from tests.cluster.azure import AzureServer
from tests.unit.storage.contract import ODD_NAMES, StorageContract


@pytest.fixture
def container(azure: AzureServer, unique: str) -> str:
    return azure.create_container(unique)


def open_azure(server: AzureServer, container: str, key: str | None = None, endpoint: str | None = None) -> Storage:
    environ = {"AZURE_STORAGE_KEY": key or server.key}
    return open_uri(f"az://{container}/an/archive", endpoint or server.endpoint, environ=environ)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", 0.5)


class TestContract(StorageContract):
    odd_names = tuple(name for name in ODD_NAMES if name not in ("a\\b", "..a/b.."))

    @pytest.fixture
    def storage(self, azure: AzureServer, container: str) -> Storage:
        return open_azure(azure, container)

    @pytest.fixture
    def files(self, azure: AzureServer, container: str) -> Callable[[], int]:
        return lambda: len(azure.objects(container))

    @pytest.fixture
    def worker_environment(self, azure: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_KEY", azure.key)


@pytest.mark.parametrize("path", ["a\\b", "topics/orders./x", "a."])
def test_a_name_that_azure_changes_is_refused(azure: AzureServer, container: str, path: str) -> None:
    storage = open_azure(azure, container)
    for act in (
        storage.check_path,
        lambda at: storage.put(at, b""),
        lambda at: storage.create(at, b""),
        storage.writer,
    ):
        with pytest.raises(StorageRefused, match="holds no name with a backslash"):
            act(path)


def test_the_account_must_be_named() -> None:
    with pytest.raises(StorageRefused, match=r"az://backups/kafka: the URL of the account is missing"):
        open_uri("az://backups/kafka")


def test_a_missing_container_is_named(azure: AzureServer) -> None:
    storage = open_azure(azure, "no-such-container")
    for act in (
        storage.check,
        storage.list,
        lambda: storage.put("a", b""),
        lambda: storage.create("a", b""),
        lambda: storage.read("a"),
    ):
        with pytest.raises(BucketMissing, match=r"Container 'no-such-container' does not exist at http://0x7f\.1"):
            act()


def test_a_wrong_key_is_refused(azure: AzureServer, container: str) -> None:
    wrong = b64encode(os.urandom(32)).decode()
    with pytest.raises(StorageRefused, match=r"AuthorizationFailure|AuthenticationFailed") as refused:
        open_azure(azure, container, wrong).check()
    assert wrong not in str(refused.value)
    assert "Check AZURE_STORAGE_KEY" in refused.value.hint


@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_answer_may_come_back(azure: AzureServer, container: str) -> None:
    with pytest.raises(StorageUnavailable, match=r"no answer from http://0x7f\.1:1 \("):
        open_azure(azure, container, endpoint="http://0x7f.1:1").check()


def test_what_a_killed_writer_has_sent_is_seen_and_deleted(azure: AzureServer, container: str) -> None:
    storage = open_azure(azure, container)
    storage.put("a/whole", b"1")
    storage.writer("a/killed").write(bytes(PART_BYTES + 1))
    while not (unseen := storage.unseen("a/")):
        pass
    assert [item.path for item in unseen] == ["a/killed"]
    assert storage.delete_unseen(unseen) == ()
    assert storage.unseen("a/") == ()
    assert [info.path for info in storage.list()] == ["a/whole"]


def test_an_upload_that_meets_another_object_is_refused_at_its_end(azure: AzureServer, container: str) -> None:
    storage = open_azure(azure, container)
    writer = storage.writer("stream", replaces=None)
    writer.write(bytes(PART_BYTES + 1))
    storage.put("stream", b"another's")
    with pytest.raises(ObjectExists):
        writer.commit()
    writer.abort()
    assert storage.read("stream") == b"another's"


def test_an_object_that_is_called_packed_is_read_as_it_lies(azure: AzureServer, container: str) -> None:
    packed = gzip.compress(b"1" * 10_000)
    azure.upload_encoded(container, "an/archive/a", packed)
    storage = open_azure(azure, container)
    assert storage.read("a") == packed
    assert storage.read_range("a", 5, 20) == packed[5:20]


def test_an_object_of_the_archive_tier_is_cold_until_it_is_retrieved(azure: AzureServer, container: str) -> None:
    storage = open_azure(azure, container)
    storage.put("topics/a", b"1")
    storage.put("topics/b", b"2")
    azure.archive(container, "an/archive/topics/a")
    with pytest.raises(ObjectCold, match="topics/a is in the archive tier"):
        storage.read("topics/a")
    (cold,) = storage.cold(storage.list())
    assert (cold.info.path, cold.retrieving) == ("topics/a", False)
    storage.retrieve(ColdObject(cold.info, retrieving=False), 1, "Standard")
    assert storage.cold(storage.list()) == ()
    assert storage.read("topics/a") == b"1"

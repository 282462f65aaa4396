"""The erasures that a KafkaBackup asks for are done once, by the keys of their Secrets."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.backup.erasing import erase_asked
from logkeep_engine.contract.erasures import Erasure
from logkeep_engine.errors import ErasureFailed
from logkeep_engine.storage import LocalStorage
from tests.runners import HereRunner
from tests.unit.erasure.erasing import archive_batches, batch_of, seen

ALICE, BOB = b"alice-alice", b"bob-bob"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage((tmp_path / "archive").as_uri())
    archive_batches(storage, [[batch_of(0, [ALICE, BOB, None])]])
    return storage


def erasure(name: str, topic: str = "orders", **fields: object) -> Erasure:
    return Erasure.model_validate({"name": name, "topic": topic, "keysSecretRef": {"name": "customers"}, **fields})


def secret(folder: Path, name: str, content: bytes) -> None:
    """Mount the keys of an erasure."""
    (folder / name).mkdir()
    (folder / name / "keys").write_bytes(content)


def run(storage: LocalStorage, folder: Path, *erasures: Erasure) -> str:
    return erase_asked(Archive.open(storage), erasures, HereRunner, "done", str(folder))


def test_erasure_is_done_once_and_its_secret_may_go_then(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", ALICE + b"\n")
    told = run(storage, tmp_path, erasure("ticket-1", askedBy="ticket 1"))
    assert told == "done; erasure ticket-1 took 1 record out of 1 segment of topic orders"
    assert [item[2] for item in seen(storage)] == [BOB, None]
    (tmp_path / "ticket-1" / "keys").unlink()
    assert run(storage, tmp_path, erasure("ticket-1")) == "done"
    assert b'"askedBy":"ticket 1"' in storage.read("runs/erasure-ticket-1/erasure.json")


def test_one_that_fails_holds_up_no_other_and_is_tried_again(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-2", b"Ym9iLWJvYg==")
    asked = [erasure("ticket-1"), erasure("ticket-2", encoding="base64")]
    with pytest.raises(ErasureFailed, match="ticket-1: there is no key keys of a Secret customers") as caught:
        run(storage, tmp_path, *asked)
    assert caught.value.exit_code == 1
    assert [item[2] for item in seen(storage)] == [ALICE, None]
    secret(tmp_path, "ticket-1", ALICE)
    assert "ticket-1" in run(storage, tmp_path, *asked)
    assert [item[2] for item in seen(storage)] == [None]


def test_refusal_is_not_tried_again_by_the_job(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", ALICE)
    with pytest.raises(ErasureFailed, match=r"ticket-1: The archive at .* has no topic 'customers'") as caught:
        run(storage, tmp_path, erasure("ticket-1", topic="customers"))
    assert caught.value.exit_code == 2


def test_key_is_not_in_a_message(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", b"bm90\nnot base64 at all!\n")
    with pytest.raises(ErasureFailed) as caught:
        run(storage, tmp_path, erasure("ticket-1", encoding="base64"))
    assert "ticket-1: key keys of Secret customers: line 2 is not base64" in str(caught.value)
    assert "at all" not in str(caught.value)

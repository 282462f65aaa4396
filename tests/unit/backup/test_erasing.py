"""The erasures that a KafkaBackup asks for are done once, by the keys of their Secrets."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.backup.run.erasing import AskedErasures
from logkeep_engine.contract.erasures import Erasure
from logkeep_engine.contract.names import ENV_ERASURES_DIR, ENV_POD_NAMESPACE
from logkeep_engine.errors import ArchiveFenced, DataLoss, ErasureFailed, LogkeepError
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


def asked(folder: Path, *erasures: Erasure) -> AskedErasures:
    return AskedErasures(erasures, HereRunner, {ENV_ERASURES_DIR: str(folder)})


def run(storage: LocalStorage, folder: Path, *erasures: Erasure) -> tuple[str, ...]:
    return asked(folder, *erasures).perform(Archive.open(storage))


def test_erasure_is_done_once_and_its_secret_may_go_then(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", ALICE + b"\n")
    reported = run(storage, tmp_path, erasure("ticket-1", askedBy="ticket 1"))
    assert reported == ("erasure ticket-1 took 1 record out of 1 segment of topic orders",)
    assert [item[2] for item in seen(storage)] == [BOB, None]
    (tmp_path / "ticket-1" / "keys").unlink()
    assert run(storage, tmp_path, erasure("ticket-1")) == ()
    assert b'"askedBy":"ticket 1"' in storage.read("runs/erasure-ticket-1/erasure.json")


def test_one_that_fails_holds_up_no_other_and_is_tried_again(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-2", b"Ym9iLWJvYg==")
    wanted = [erasure("ticket-1"), erasure("ticket-2", encoding="base64"), erasure("ticket-3")]
    with pytest.raises(ErasureFailed, match="The backup itself has succeeded, but not all") as caught:
        run(storage, tmp_path, *wanted)
    for reported in ("erasure ticket-2 took 1 record", "ticket-1/keys: No such file", "ticket-3/keys: No such file"):
        assert reported in str(caught.value)
    assert caught.value.exit_code == 1
    assert [item[2] for item in seen(storage)] == [ALICE, None]
    secret(tmp_path, "ticket-1", ALICE)
    secret(tmp_path, "ticket-3", b"nobody")
    assert ["ticket-1" in reported for reported in run(storage, tmp_path, *wanted)] == [True, False]
    assert [item[2] for item in seen(storage)] == [None]


def test_without_a_secret_the_message_has_the_command_that_does_it(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is mounted, as on a laptop."""
    wanted = AskedErasures([erasure("ticket-1")], HereRunner, {})
    with pytest.raises(ErasureFailed, match="ticket-1: LOGKEEP_ERASURES_DIR is not set") as caught:
        wanted.perform(Archive.open(storage))
    command = f"logkeep erase {storage.uri} --topic orders --run-id erasure-ticket-1 --keys-file FILE"
    assert f"`{command}`" in str(caught.value)
    assert "to ticket-1/keys in the folder that LOGKEEP_ERASURES_DIR names" in str(caught.value)
    monkeypatch.setenv(ENV_POD_NAMESPACE, "team")
    with pytest.raises(ErasureFailed, match="ticket-1: there is no key keys of Secret customers") as of_pod:
        wanted.perform(Archive.open(storage))
    assert f"`{command}`" in str(of_pod.value)


def test_run_of_another_kind_that_has_its_id_is_no_erasure(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", ALICE)
    with begin_run(Archive.open(storage), "erasure-ticket-1") as writer:
        writer.end(RunOutcome.SUCCEEDED)
    with pytest.raises(ErasureFailed, match="run erasure-ticket-1 of the archive is not an erasure, but a KafkaBackup"):
        run(storage, tmp_path, erasure("ticket-1"))


def after(
    storage: LocalStorage,
    wanted: AskedErasures,
    error: BaseException,
    *,
    outcome: RunOutcome | None = RunOutcome.FAILED,
    tried_all: bool = True,
) -> tuple[str, ...]:
    with begin_run(Archive.open(storage), "night-2") as writer:
        if outcome is not None:
            writer.end(outcome)
        reported = wanted.after(error, writer, tried_all=tried_all)
        if outcome is None:  # nobody waits for a run that has not ended
            writer.end(RunOutcome.FAILED)
    return reported


@pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.SUCCEEDED])
def test_run_that_fails_in_the_end_does_not_put_them_off(
    storage: LocalStorage, tmp_path: Path, outcome: RunOutcome
) -> None:
    secret(tmp_path, "ticket-1", ALICE)
    wanted = asked(tmp_path, erasure("ticket-1"), erasure("ticket-2"))
    failure, reported = after(storage, wanted, DataLoss("offsets are lost"), outcome=outcome)
    assert failure.startswith("not done: spec.erasures: ticket-2: ")
    assert reported == "erasure ticket-1 took 1 record out of 1 segment of topic orders"
    assert [item[2] for item in seen(storage)] == [BOB, None]


@pytest.mark.parametrize(
    ("error", "tried_all", "outcome"),
    [
        (LogkeepError("no broker answers"), False, RunOutcome.FAILED),
        (LogkeepError("its end could not be stored"), True, None),
        (ArchiveFenced("another run writes"), True, RunOutcome.SUCCEEDED),
        (KeyboardInterrupt(), True, RunOutcome.FAILED),
    ],
)
def test_after_other_failures_they_wait_and_the_run_says_so(
    storage: LocalStorage, tmp_path: Path, error: BaseException, tried_all: bool, outcome: RunOutcome | None
) -> None:
    secret(tmp_path, "ticket-1", ALICE)
    wanted = asked(tmp_path, erasure("ticket-1"))
    (reported,) = after(storage, wanted, error, outcome=outcome, tried_all=tried_all)
    assert reported.startswith("spec.erasures: ticket-1: not done, since the run failed first. ")
    assert [item[2] for item in seen(storage)] == [ALICE, BOB, None]
    (reported,) = wanted.after(error, None, tried_all=False)
    assert "not done, since the run failed first, unless the archive records them as done" in reported
    run(storage, tmp_path, erasure("ticket-1"))
    assert after(storage, wanted, error, outcome=outcome, tried_all=tried_all) == (), "nothing waits"


def test_refusal_is_not_tried_again_by_the_job(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", ALICE)
    with pytest.raises(ErasureFailed, match=r"ticket-1: The archive at .* has no topic 'customers'") as caught:
        run(storage, tmp_path, erasure("ticket-1", topic="customers"))
    assert caught.value.exit_code == 2


def test_key_is_not_in_a_message(storage: LocalStorage, tmp_path: Path) -> None:
    secret(tmp_path, "ticket-1", b"bm90\nnot base64 at all!\n")
    with pytest.raises(ErasureFailed) as caught:
        run(storage, tmp_path, erasure("ticket-1", encoding="base64"))
    assert "ticket-1/keys: line 2 is not base64" in str(caught.value)
    assert "at all" not in str(caught.value)

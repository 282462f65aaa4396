"""One run continues with a restore: that which has taken it over last. The others are told."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog import run_note
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import RestoreBusy
from logkeep_engine.restore.claim import fence
from logkeep_engine.restore.claim import takeover as taking_over
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.planning import resuming
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic, produce
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    topic_settings,
)
from tests.kafka.test_cluster_state import control_plane
from tests.kafka.test_forgotten_producers import PRODUCE, Posted, at_requests
from tests.kafka.test_restore_alive import Held
from tests.kafka.test_restore_shape import DiesAfter, numbered
from tests.runners import Job


@pytest.fixture
def dead(kafka: KafkaBroker, unique: str, tmp_path: Path) -> dict[str, Any]:
    """The spec that resumes a run which has died after its first partition."""
    create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "-1"})
    for partition in range(2):
        produce(kafka.bootstrap, unique, numbered(100, partition=partition))
    back_up(backup_spec(kafka, tmp_path, unique))
    with pytest.raises(ConnectionAbortedError):
        bring_back(restore_spec(kafka, tmp_path), runner=DiesAfter(1))
    return restore_spec(kafka, tmp_path, ifTopicExists="Resume")


def test_a_run_that_was_taken_over_does_not_continue(
    kafka: KafkaBroker, unique: str, tmp_path: Path, dead: dict[str, Any]
) -> None:
    held, found = Held(), list[RunResult]()
    second = threading.Thread(
        target=lambda: found.append(bring_back(dead, "restore-2", runner=ThreadRunner(before=held)))
    )
    second.start()
    try:
        assert held.reached.wait(240)
        with pytest.raises(RestoreBusy, match="Run restore-2 has taken over run restore-1, and continues in its place"):
            bring_back(restore_spec(kafka, tmp_path))
    finally:
        held.released.set()
        second.join()
    assert [(result.outcome, result.records) for result in found] == [("Succeeded", 200)]
    with pytest.raises(RestoreBusy, match="Run restore-2 has taken over"):
        bring_back(restore_spec(kafka, tmp_path))
    assert bring_back(dead, "restore-3").earlier_run == "restore-2"


def test_one_of_two_that_resume_at_once_continues(
    kafka: KafkaBroker, unique: str, dead: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, found = threading.Barrier(2), dict[str, Any]()
    watch = taking_over.refuse_alive

    def together(state: RestoreState) -> Any:
        note = watch(state)
        both.wait(240)
        return note

    def resume(name: str) -> None:
        try:
            found[name] = bring_back(dead, name).records
        except RestoreBusy as error:
            found[name] = error.code

    monkeypatch.setattr(taking_over, "refuse_alive", together)
    threads = [threading.Thread(target=resume, args=(f"restore-{number}",)) for number in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.values(), key=str) == [200, "RestoreBusy"]
    assert [len(committed(kafka, f"{unique}-copy", partition)) for partition in range(2)] == [100, 100]


def test_a_run_that_took_over_and_died_before_it_had_a_plan_is_taken_over_in_its_turn(
    kafka: KafkaBroker, unique: str, dead: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiesBehindIt(taking_over.RunClaim):
        def make(self) -> None:
            super().make()
            raise ConnectionAbortedError

    with monkeypatch.context() as patched:
        patched.setattr(resuming, "RunClaim", DiesBehindIt)
        with pytest.raises(ConnectionAbortedError):
            bring_back(dead, "restore-2")
    with pytest.raises(ConnectionAbortedError):
        bring_back(dead, "restore-3", runner=DiesAfter(0))
    with pytest.raises(RestoreBusy, match="Run restore-3 has taken over run restore-2"):
        bring_back(dead, "restore-2")
    assert bring_back(dead, "restore-4").records == 200
    assert [len(committed(kafka, f"{unique}-copy", partition)) for partition in range(2)] == [100, 100]


def test_a_claim_is_dropped_if_the_driver_has_started_meanwhile(
    kafka: KafkaBroker, tmp_path: Path, dead: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = taking_over.refuse_alive

    def starts_then(state: RestoreState) -> Any:
        note = watch(state)
        with run_note.RunNote(state.storage, state.run_id):
            pass
        return note

    with monkeypatch.context() as patched:
        patched.setattr(taking_over, "refuse_alive", starts_then)
        with pytest.raises(
            RestoreBusy, match="Run restore-1 has started this restore, and its driver is still running"
        ):
            bring_back(dead, "restore-2")
    assert not (tmp_path / "runs" / "restore-1" / "taken-over.json").exists()
    assert bring_back(restore_spec(kafka, tmp_path)).records == 200


@pytest.mark.parametrize(
    ("other", "told"),
    [("restore-1", "Run restore-1 was started again"), ("restore-2", "Run restore-2 has taken over run restore-1")],
)
def test_a_driver_that_sleeps_while_another_one_continues_its_run_ends_when_it_wakes_up(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, told: str
) -> None:
    """It shows nothing meanwhile, and its last task is done when it wakes up."""
    create_topic(kafka.bootstrap, unique, 1, {"retention.ms": "123456789"})
    produce(kafka.bootstrap, unique, numbered(100))
    back_up(backup_spec(kafka, tmp_path, unique))
    monkeypatch.setattr(run_note, "BEAT_SECONDS", 1e6)
    monkeypatch.setattr(taking_over, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(fence, "TRUSTED_SECONDS", 0.0)
    asleep, awake, found = threading.Event(), threading.Event(), list[Any]()

    class Sleeps(ThreadRunner):
        def perform(self, job: Job) -> None:
            super().perform(job)
            if job.name == "restore_partitions":
                asleep.set()
                assert awake.wait(300)

    def begin() -> None:
        try:
            found.append(bring_back(restore_spec(kafka, tmp_path), runner=Sleeps()))
        except RestoreBusy as error:
            found.append(error)

    first = threading.Thread(target=begin)
    first.start()
    copy = f"{unique}-copy"
    try:
        assert asleep.wait(240)
        resume = {"ifTopicExists": "Resume"} if other != "restore-1" else {}
        assert bring_back(restore_spec(kafka, tmp_path, **resume), other).records == 100
        with control_plane(kafka) as control:
            control.alter_topic_configs(copy, {"retention.ms": "77777777"})
    finally:
        awake.set()
        first.join()
    (error,) = found
    assert isinstance(error, RestoreBusy), error
    assert error.message.startswith(told)
    assert topic_settings(kafka, copy)["retention.ms"] == "77777777"
    result = json.loads((tmp_path / "runs/restore-1/result.json").read_text())
    assert (result["outcome"], result["errorCode"]) == (("Failed", "RestoreBusy") if resume else ("Succeeded", ""))
    assert len(committed(kafka, copy)) == 100


def test_tasks_of_a_run_that_was_taken_over_send_nothing(
    kafka: KafkaBroker, unique: str, tmp_path: Path, dead: dict[str, Any]
) -> None:
    held, found = Held(), list[Any]()

    def begin() -> None:
        try:
            found.append(bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=held)))
        except RestoreBusy as error:
            found.append(error)

    first = threading.Thread(target=begin)
    first.start()
    try:
        assert held.reached.wait(240)
        (tmp_path / "runs/restore-1/taken-over.json").write_text('{"format": 1, "by": "restore-2"}')
    finally:
        held.released.set()
        first.join()
    (error,) = found
    assert isinstance(error, RestoreBusy), error
    assert sum(len(committed(kafka, f"{unique}-copy", partition)) for partition in range(2)) == 100


def test_batches_that_are_ready_when_a_run_is_taken_over_are_not_sent(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that has slept has some. A broker that has forgotten their producer in the meantime would take them once
    more, after those of the other run."""
    create_topic(kafka.bootstrap, unique, 1, {"retention.ms": "-1"})
    for _ in range(8):
        produce(kafka.bootstrap, unique, [replace(record, value=bytes(100_000)) for record in numbered(5)])
    back_up(backup_spec(kafka, tmp_path, unique))

    there: list[int] = []

    async def sleeps(posted: Posted) -> Any:
        """All other batches are made ready meanwhile."""
        answer = await posted()
        await asyncio.sleep(1)
        there.append(len(await asyncio.to_thread(committed, kafka, f"{unique}-copy")))
        (tmp_path / "runs/restore-1/taken-over.json").write_text('{"format": 1, "by": "restore-2"}')
        monkeypatch.setattr(fence, "TASK_SECONDS", 0.0)
        return answer

    def begin(item: Any) -> None:
        if type(item) is tuple:
            at_requests(monkeypatch, PRODUCE, (0,), sleeps)

    with pytest.raises(RestoreBusy, match="Run restore-2 has taken over run restore-1"):
        bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=begin))
    assert [len(committed(kafka, f"{unique}-copy"))] == there
    assert 0 < there[0] < 40

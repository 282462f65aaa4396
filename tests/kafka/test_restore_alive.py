"""A restore whose driver continues is not resumed by another one."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.archive.catalog import run_note
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import RestoreBusy
from logkeep_engine.restore.claim import takeover
from logkeep_engine.storage import LocalStorage
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.data.topics import create_topic, produce
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, committed, restore_spec, start_driver
from tests.kafka.test_restore_shape import DiesAfter, numbered
from tests.runners import Job


@pytest.fixture
def begun(kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
    """An archived topic."""
    create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "-1"})
    for partition in range(2):
        produce(kafka.bootstrap, unique, numbered(100, partition=partition))
    back_up(backup_spec(kafka, tmp_path, unique))
    return unique


class Held:
    """Holds a driver before its first partition, until it is released."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, item: Any) -> None:
        if type(item) is tuple:
            self.reached.set()
            assert self.released.wait(300)


def test_a_restore_whose_driver_continues_is_not_resumed(
    kafka: KafkaBroker, begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_note, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 240.0)  # it looks until it sees a change
    held, found = Held(), []
    first = threading.Thread(
        target=lambda: found.append(bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=held)))
    )
    first.start()
    try:
        assert held.reached.wait(240)
        resume = restore_spec(kafka, tmp_path, ifTopicExists="Resume")
        with pytest.raises(
            RestoreBusy, match="Run restore-1 has started this restore, and its driver is still running; nothing"
        ):
            bring_back(resume, "restore-2")
        dry = bring_back({**resume, "dryRun": True}, "dry-1")
        assert dry.dry_run is not None
        assert [refusal.reason for refusal in dry.dry_run.refusals] == ["RestoreBusy"]
    finally:
        held.released.set()
        first.join()
    (result,) = found
    assert (result.outcome, result.records) == ("Succeeded", 200)
    assert bring_back(resume, "restore-3").earlier_run == "restore-1"
    assert [len(committed(kafka, f"{begun}-copy", partition)) for partition in range(2)] == [100, 100]


class Cancelled(ThreadRunner):
    """SIGTERM comes while the last partition is on its way."""

    def perform(self, job: Job) -> None:
        raise KeyboardInterrupt


def test_a_restore_that_has_failed_or_was_cancelled_is_resumed_at_once(
    kafka: KafkaBroker, begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(seconds: float) -> None:
        raise AssertionError("it watches a run that has said that it has ended")

    put, stored = LocalStorage.put, list[str]()

    def noted(self: LocalStorage, path: str, data: bytes) -> None:
        name = path.rpartition("/")[2]
        if name == "result.json" or (name == "alive.json" and json.loads(data)["ended"]):
            stored.append(name)
        put(self, path, data)

    monkeypatch.setattr(LocalStorage, "put", noted)
    with pytest.raises(ConnectionAbortedError):
        bring_back(restore_spec(kafka, tmp_path), runner=DiesAfter(1))
    with pytest.raises(KeyboardInterrupt):
        bring_back(restore_spec(kafka, tmp_path), runner=Cancelled())
    result = RunResult.from_json((tmp_path / "runs/restore-1/result.json").read_bytes())
    assert (result.outcome, result.error_code, result.exit_code) == ("Failed", "Interrupted", ExitCode.INTERRUPTED)
    assert result.message == "The run was interrupted. Start the same run again and it continues where it stopped."
    assert json.loads((tmp_path / "runs/restore-1/alive.json").read_text())["ended"] is True
    clock = SimpleNamespace(sleep=watch, monotonic=time.monotonic)  # others may sleep
    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time", clock)
    assert bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Resume"), "restore-2").records == 200
    assert stored == ["result.json", "alive.json"] * 3, "it says that it has ended before its result is there"


def test_a_restore_whose_driver_was_stopped_is_resumed_and_ends_when_it_continues(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: the last note of the driver says that it continues, and changes no more, as with SIGKILL. It has
    too much to send to be done before or behind that."""
    create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "123456789"})
    for partition in range(2):
        records = [replace(record, value=os.urandom(40_000)) for record in numbered(100, partition=partition)]
        produce(kafka.bootstrap, unique, records)
    back_up(backup_spec(kafka, tmp_path, unique))
    folder = tmp_path / "driver"
    folder.mkdir()
    request = folder / "request.json"
    spec = restore_spec(kafka, tmp_path, limits={"bytesPerSecond": "64Ki"})
    request.write_text(
        RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="restore-1", spec=spec).to_json()
    )
    driver = start_driver(request)
    try:
        noted = tmp_path / "runs" / "restore-1" / "restore-plan.json", tmp_path / "runs" / "restore-1" / "alive.json"
        wait_until(lambda: all(path.exists() for path in noted) or driver.poll() is not None, 300, "the plan")
        os.killpg(driver.pid, signal.SIGSTOP)
        monkeypatch.setattr(takeover, "WATCH_SECONDS", 2.0)
        resume = restore_spec(kafka, tmp_path, ifTopicExists="Resume")
        assert bring_back(resume, "restore-2").records == 200
        os.killpg(driver.pid, signal.SIGCONT)
        assert driver.wait(300) == ExitCode.INCOMPLETE, (folder / "driver.log").read_text()[-3000:]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    result = RunResult.from_json((tmp_path / "runs/restore-1/result.json").read_bytes())
    assert (result.error_code, result.message.partition(",")[0]) == (
        "RestoreBusy",
        "Run restore-2 has taken over run restore-1",
    )
    assert [len(committed(kafka, f"{unique}-copy", partition)) for partition in range(2)] == [100, 100]

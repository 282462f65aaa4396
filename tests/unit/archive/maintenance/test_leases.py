"""Runs that read an archive keep what was removed since they began, as long as they show that they continue."""

import os
import time
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog import run_note
from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.archive.maintenance.leases import LAPSE_MS, RunningReader, reading, running_readers
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage import LocalStorage
from tests.cluster.process import wait_until


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path.as_uri())


def now() -> int:
    return int(time.time() * 1000)


def test_a_run_is_there_from_its_first_note_to_its_last_and_says_what_it_knows(storage: LocalStorage) -> None:
    with RunNote(storage, "restore-1") as note:
        assert running_readers(storage, now()) == [RunningReader("restore-1", NO_COMMIT)]
        note.knows(7)
        (reader,) = running_readers(storage, now())
        assert reader == RunningReader("restore-1", 7)
        assert [reader.needs(commit) for commit in (6, 7, 8)] == [False, False, True]
    assert running_readers(storage, now()) == []


def test_a_reader_that_has_not_said_what_it_knows_may_need_everything() -> None:
    assert RunningReader("restore-1", NO_COMMIT).needs(0)


def test_a_run_that_was_killed_counts_until_its_lease_lapses(storage: LocalStorage) -> None:
    RunNote(storage, "killed").write(ended=False)
    (info,) = storage.list("runs/")
    last = int(info.modified * 1000)
    assert [len(running_readers(storage, last + later)) for later in (0, LAPSE_MS - 1, LAPSE_MS)] == [1, 1, 0]


def test_a_note_that_nobody_can_read_counts_as_a_reader_that_needs_everything(storage: LocalStorage) -> None:
    storage.put("runs/one/alive.json", b'{"format":1,"wri')
    storage.put("runs/two/alive.json", b"[]")
    storage.put("runs/three/alive.json", b'{"format":1,"ended":false,"commit":"new"}')
    storage.put("runs/three/heartbeat.json", b"{}")
    found = running_readers(storage, now())
    assert found == [RunningReader(run_id, NO_COMMIT) for run_id in ("one", "three", "two")]


def test_a_note_is_rewritten_while_its_run_continues(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_note, "BEAT_SECONDS", 0.01)
    with RunNote(storage, "restore-1"):
        first = storage.read("runs/restore-1/alive.json")
        wait_until(lambda: storage.read("runs/restore-1/alive.json") != first, 60, "another beat")


def test_a_run_that_only_reads_leaves_no_note_behind(storage: LocalStorage) -> None:
    with reading(storage, "convert-1", 4):
        assert running_readers(storage, now()) == [RunningReader("convert-1", 4)]
    assert storage.list("runs/") == []


def test_where_nothing_may_be_written_a_run_reads_without_a_lease(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StorageRefused("no right to write")

    monkeypatch.setattr(storage, "put", refused)
    with reading(storage, "convert-1", 4):
        assert running_readers(storage, now()) == []


def test_the_clock_of_this_machine_does_not_matter(storage: LocalStorage, tmp_path: Path) -> None:
    RunNote(storage, "restore-1").write(ended=False)
    year = 365 * 86_400
    os.utime(tmp_path / "runs/restore-1/alive.json", (time.time() + year,) * 2)  # the store is a year ahead
    assert running_readers(storage, now() + year * 1000) == [RunningReader("restore-1", NO_COMMIT)]

"""A clock is believed if the store's and the catalog's times agree with it."""

import os
import time
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.clock import MAX_JUMP, MAX_SKEW, checked_now
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ClockDoubtful, StorageUnavailable
from logkeep_engine.storage import LocalStorage, Storage
from tests.unit.archive.build import begin

HOUR = 3600
DAY_MS = 24 * HOUR * 1000


class Elsewhere(LocalStorage):
    """A store whose clock is `ahead` seconds ahead."""

    ahead = 0.0

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        written = time.time() + self.ahead
        os.utime(self._path(path), (written, written))


@pytest.fixture
def storage(tmp_path: Path) -> Elsewhere:
    return Elsewhere(f"file://{tmp_path}/archive")


def ended(storage: Storage, run_id: str) -> Writer:
    with begin(storage, run_id) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    return writer


def test_the_slower_of_two_clocks_that_agree_is_taken(storage: Elsewhere) -> None:
    writer = ended(storage, "one")
    assert abs(checked_now(writer) / 1000 - time.time()) < 60
    storage.ahead = -HOUR / 2
    assert abs(checked_now(writer) / 1000 - time.time() + HOUR / 2) < 60


@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR, 365 * 24 * HOUR])
def test_a_store_with_another_time_is_reported(storage: Elsewhere, ahead: int) -> None:
    storage.ahead = ahead
    with pytest.raises(ClockDoubtful, match="the store's clock says 20"):
        checked_now(ended(storage, "one"))
    assert MAX_SKEW < 2 * HOUR * 1000


def test_a_jump_since_the_run_before_is_believed_by_the_next_run(storage: Elsewhere) -> None:
    ended(storage, "one")
    writer = ended(storage, "two")
    before = writer.state.runs["one"]
    assert before.end_time is not None
    writer.state.runs["one"] = replace(before, end_time=before.end_time - MAX_JUMP - HOUR * 1000)
    with pytest.raises(ClockDoubtful, match="the previous run was at 20"):
        checked_now(writer)
    checked_now(ended(storage, "three"))


def moved(writer: Writer, run_id: str, back: int) -> None:
    """The run was `back` days ago."""
    run = writer.state.runs[run_id]
    assert run.end_time is not None
    writer.state.runs[run_id] = replace(run, end_time=run.end_time - back * DAY_MS)


def test_backups_every_three_months_are_no_jumps(storage: Elsewhere) -> None:
    """Nothing was ever removed for its age: each run was more than 35 days after the one before."""
    ended(storage, "one")
    ended(storage, "two")
    writer = ended(storage, "three")
    moved(writer, "one", 182)
    moved(writer, "two", 92)
    checked_now(writer)
    moved(writer, "two", 40)  # now 132 days ago, fifty days behind the one before
    with pytest.raises(ClockDoubtful, match="the previous run was at 20"):
        checked_now(writer)


def test_store_that_does_not_list_the_heartbeat_yet_is_reported(
    storage: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ended(storage, "one")
    monkeypatch.setattr(storage, "list", lambda prefix="": [])
    with pytest.raises(StorageUnavailable, match="is not listed: the store's time is unknown"):
        checked_now(writer)


def test_one_more_heartbeat_is_all_that_is_written(storage: Elsewhere) -> None:
    writer = ended(storage, "one")
    before = {info.path for info in storage.list()}
    checked_now(writer)
    assert {info.path for info in storage.list()} == before
    assert names.run_file("one", "heartbeat.json") in before

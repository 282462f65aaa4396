"""A run that has succeeded stays a point to restore, whatever becomes of it when its Job begins it again."""

from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunEntry, RunOutcome
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.points import KeepRules, kept_points
from logkeep_engine.archive.maintenance.retaining import empty_holds
from logkeep_engine.archive.reading import view
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.restore.model.point import choose
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk

KEY = (ORDERS.topic_id, 0)
HELD = Hold(HoldKind.RUN, "run-1", HoldOrigin.COMMAND)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def again(storage: Storage) -> ArchiveState:
    """The state of an archive whose run has succeeded with 100 offsets, and was begun again to fail with 20 more."""
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.hold([HELD])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage) as writer:
        writer.commit(receipts=[chunk(storage, 100, 120, epoch=2)])
        writer.end(RunOutcome.FAILED, "the cluster is gone", partial=True)
        return writer.state


def point_of(state: ArchiveState, run_id: str, archive: Archive) -> int:
    seen = view.at_end_of(archive, state, run_id)
    assert seen is not None
    return seen.state.segments[KEY][-1].next_offset


def test_a_success_is_the_point_of_a_run_that_was_begun_again_in_vain(storage: Storage, again: ArchiveState) -> None:
    archive = Archive.open(storage)
    assert again.runs["run-1"].outcome is RunOutcome.FAILED
    assert [(point.run_id, point.epoch, point.is_held) for point in kept_points(again, KeepRules())] == [
        ("run-1", 1, True)
    ]
    assert point_of(again, "run-1", archive) == 100
    assert choose(archive, PointSpec(run="run-1")).state.segments[KEY][-1].next_offset == 100
    reported = describe(archive.info, again).runs[0]
    assert (reported.outcome, reported.message.partition(" at ")[0]) == ("Failed", "it had succeeded")
    assert reported.message.endswith("the cluster is gone")


def test_a_run_that_continues_again_or_was_taken_over_then_has_its_point_still(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage):  # killed
        pass
    with begin(storage, "run-2") as writer:
        assert writer.state.runs["run-1"].outcome is RunOutcome.TAKEN_OVER
        assert [run.run_id for run in writer.state.successes()] == ["run-1"]
        assert point_of(writer.state, "run-1", writer.archive) == 100


def test_a_hold_that_keeps_nothing_is_reported_and_one_on_a_run_that_succeeded_once_is_not(again: ArchiveState) -> None:
    assert empty_holds(again) == []
    again.retention_holds = (HELD, Hold(HoldKind.RUN, "run-9", HoldOrigin.SPEC))
    text = "the hold on run run-9 protects nothing: the archive has no successful backup with this id"
    assert empty_holds(again) == [text]
    again.runs["run-9"] = RunEntry("run-9", 3, "KafkaBackup", 0, 1, RunOutcome.FAILED)
    assert empty_holds(again) == [text]
    again.runs["run-9"] = RunEntry("run-9", 3, "KafkaBackup", 0)
    assert empty_holds(again) == []


def test_a_later_success_takes_the_place_of_the_earlier_one(storage: Storage, again: ArchiveState) -> None:
    with begin(storage) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        state = writer.state
    assert [(point.epoch, point.time) for point in kept_points(state, KeepRules())] == [
        (3, state.runs["run-1"].end_time)
    ]
    assert point_of(state, "run-1", Archive.open(storage)) == 120
    assert state.runs["run-1"].succeeded_epoch == 0


def test_a_checkpoint_tells_the_success(again: ArchiveState) -> None:
    _, loaded = checkpoint.load(checkpoint.dump(again, "a"), "c")
    assert list(loaded.runs.values()) == list(again.runs.values())
    run = again.runs["run-1"]
    assert loaded.same_facts(again)
    loaded.runs["run-1"] = replace(run, succeeded_epoch=0, succeeded_time=0)
    assert not loaded.same_facts(again)
    loaded.runs["run-1"] = replace(run, succeeded_epoch=7)
    assert not loaded.same_facts(again)
    loaded.runs["run-1"] = replace(run, message="another")
    assert not loaded.same_facts(again)

"""The positions that groups had before: written once, never replaced by what the run itself has written."""

from pathlib import Path

import pytest

from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.positions.changes import OF_RESTORE, ChangeLog, PositionChange, copy_changes
from logkeep_engine.storage import open_uri


def position(offset: int, partition: int = 0, group: str = "g") -> GroupPosition:
    return GroupPosition(group, "orders", partition, offset, -1, "é")


@pytest.fixture
def state(tmp_path: Path) -> RestoreState:
    return RestoreState(open_uri(tmp_path.as_uri()), "run-1")


def test_what_a_restore_writes_first_stays(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    first = [PositionChange(None, position(5)), PositionChange(position(3, 1), position(6, 1))]
    assert log.keep_for_restore(first) == OF_RESTORE
    # The run starts again: one position is what it has set itself, another one is new.
    log.keep_for_restore([PositionChange(position(5), position(5)), PositionChange(None, position(7, 2))])
    kept = log.newest()
    assert kept is not None
    assert list(kept.changes) == [*first, PositionChange(None, position(7, 2))]


def test_changes_are_taken_back_the_newest_first(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    assert log.newest() is None
    log.keep_for_restore([PositionChange(None, position(5))])
    assert [log.keep([PositionChange(position(5), position(6))]) for _ in range(2)] == [1, 2]
    found = []
    while (kept := log.newest()) is not None:
        found.append(kept.number)
        log.note_rolled_back(kept.number)
    assert found == [2, 1, OF_RESTORE]
    assert log.keep([PositionChange(position(6), position(7))]) == 3


def test_what_a_later_start_changes_after_a_rollback_can_be_taken_back_too(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    log.keep_for_restore([PositionChange(None, position(5)), PositionChange(None, position(6, 1))])
    log.note_rolled_back(OF_RESTORE)
    log.keep_for_restore([])
    assert log.newest() is None
    again = [PositionChange(None, position(5))]  # the group has committed the other one by itself
    log.keep_for_restore(again)
    kept = log.newest()
    assert kept is not None
    assert (kept.number, list(kept.changes)) == (OF_RESTORE, again)
    log.note_rolled_back(OF_RESTORE)
    assert log.newest() is None


def test_another_run_takes_over_what_was_not_taken_back(state: RestoreState) -> None:
    log, other = ChangeLog(state, "cluster"), state.of_run("run-2")
    log.keep_for_restore([PositionChange(position(1), position(5))])
    log.keep([PositionChange(position(5), position(6))])
    log.note_rolled_back(1)
    ChangeLog(other, "cluster").keep([PositionChange(position(7), position(8))])  # of a start that was cut
    copy_changes(state, other)
    ChangeLog(other, "cluster").keep_for_restore([PositionChange(position(5), position(5))])
    kept = ChangeLog(other, "cluster").newest()
    assert kept is not None
    assert (kept.number, kept.changes) == (OF_RESTORE, (PositionChange(position(1), position(5)),))
    log.note_rolled_back(OF_RESTORE)
    copy_changes(state, other)
    assert ChangeLog(other, "cluster").newest() is None


def test_a_restore_without_changes_writes_nothing(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    log.keep_for_restore([])
    log.note_made(OF_RESTORE, [])
    assert log.newest() is None


def test_what_was_refused_is_not_taken_back(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    log.keep_for_restore([PositionChange(None, position(5)), PositionChange(None, position(5, 1))])
    log.note_made(OF_RESTORE, [("g", "orders", 1)])
    kept = log.newest()
    assert kept is not None
    assert kept.changes == (PositionChange(None, position(5)),)
    assert kept.changes[0].undone() == PositionChange(position(5), None)


def test_what_was_never_written_down_is_dropped_without_a_trace(state: RestoreState) -> None:
    log = ChangeLog(state, "cluster")
    log.note_made(OF_RESTORE, [("g", "orders", 1)])
    assert log.newest() is None


def test_another_cluster_and_an_altered_document_are_refused(state: RestoreState) -> None:
    ChangeLog(state, "cluster").keep_for_restore([PositionChange(None, position(5))])
    with pytest.raises(ArchiveMismatch, match="positions of Kafka cluster cluster, not of other"):
        ChangeLog(state, "other").newest()
    path = state.file("group-changes/0000.json")
    good = state.storage.read(path)
    state.storage.put(path, good.replace(b'"format":1', b'"format":2'))
    with pytest.raises(ArchiveMismatch, match="change of positions of format 2"):
        ChangeLog(state, "cluster").newest()
    for wrong in (b"[]", good[:-5], good.replace(b'"g","orders"', b'"g"')):
        state.storage.put(path, wrong)
        with pytest.raises(ArchiveDamaged, match=r"0000\.json: not a change of positions"):
            ChangeLog(state, "cluster").newest()

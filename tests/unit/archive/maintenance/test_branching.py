"""Branches in an archive of files: crashes around the one commit, checks, retention, descriptions and restores."""

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Receipt, RemovedSegment, RunOutcome, branch_id
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.removal import purge, remove_expired
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.contract.restored_topics import RestoreTopics
from logkeep_engine.errors import SpecError
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.model.selection import select_topics, with_branches
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, Batch, begin, chunk, write_segment
from tests.unit.log.batches import batch, marker

ID = ORDERS.topic_id
KEY = (ID, 0)
ONE, TWO = branch_id(ID, 1), branch_id(ID, 2)
FORK = Fork(*KEY, 30, 60, ONE)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def archived(storage: Storage, *receipts: Receipt) -> Archive:
    """Segments [0, 20), [20, 40), [40, 60) of partition 0, archived by run-1."""
    with begin(storage) as writer:
        pieces = receipts or tuple(chunk(storage, start, start + 20) for start in (0, 20, 40))
        writer.commit(topics=[ORDERS], receipts=pieces)
        writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def bases(entries: Any) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.next_offset) for entry in entries]


def grow(storage: Storage, run_id: str = "run-2", fork: Fork = FORK, end: int = 80) -> ArchiveState:
    """A run that finds the fork and archives the log as it is now."""
    with begin(storage, run_id) as writer:
        branch_off(writer, [fork])
        writer.commit(receipts=[chunk(storage, fork.offset, end, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage).load()


def test_old_end_stays_and_the_log_continues_from_the_fork(storage: Storage) -> None:
    archived(storage)
    state = grow(storage)
    assert bases(state.segments[KEY]) == [(0, 20), (20, 30), (30, 80)]
    assert bases(state.branches[KEY][0].segments) == [(20, 40), (40, 60)]
    assert bases(state.with_branch(ID, ONE).segments[KEY]) == [(0, 20), (20, 40), (40, 60)]
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans, report.segments) == ([], [], 4)


class Killed(BaseException):
    """Nobody catches it."""


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
def test_kill_around_the_commit_leaves_the_one_or_the_other_state_whole(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    before = archived(storage).load()
    branch = Writer.branch

    def killed(writer: Writer, *facts: Any) -> int:
        if after:
            branch(writer, *facts)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "branch", killed)
        with pytest.raises(Killed), begin(storage, "run-2") as writer:
            branch_off(writer, [FORK])
    state = Archive.open(storage).load()
    report = verify(Archive.open(storage))
    assert report.faults == []
    if after:
        assert bases(state.segments[KEY]) == [(0, 20), (20, 30)]
        assert (bases(state.with_branch(ID, ONE).segments[KEY]), report.orphans) == (bases(before.segments[KEY]), [])
    else:
        assert (state.segments, state.branches) == (before.segments, {})
        assert report.orphans == []
    assert bases(grow(storage).segments[KEY]) == [(0, 20), (20, 30), (30, 80)]
    assert len(Archive.open(storage).load().branches[KEY]) == 1
    assert verify(Archive.open(storage)).faults == []


def test_holes_of_an_old_end_are_lost(storage: Storage) -> None:
    archived(storage, chunk(storage, 0, 20), chunk(storage, 50, 60))
    with begin(storage, "run-2") as writer:
        branch_off(writer, [FORK])
        writer.end(RunOutcome.SUCCEEDED)
    (branch,) = writer.state.branches[KEY]
    assert [(gap.start, gap.end) for gap in branch.held.gaps] == [(30, 50)]
    assert "cut off" in branch.held.gaps[0].reason


def test_fork_of_gaps_alone_is_a_branch_without_segments(storage: Storage) -> None:
    archived(storage, chunk(storage, 0, 20), Receipt(gaps=(Gap(*KEY, 20, 60, "cut off"),)))
    state = grow(storage, fork=Fork(*KEY, 20, 60, ONE))
    assert state.accounted_for(*KEY) == [(0, 80)]
    assert (KEY in state.gaps, len(state.branches[KEY][0].segments)) == (False, 0)
    assert verify(Archive.open(storage)).faults == []


def test_second_fork_below_the_first_keeps_both_old_ends(storage: Storage) -> None:
    archived(storage)
    grow(storage)
    state = grow(storage, "run-3", Fork(*KEY, 10, 80, TWO), 50)
    assert state.branch_ids(ID) == [ONE, TWO]
    assert bases(state.segments[KEY]) == [(0, 10), (10, 50)]
    assert bases(state.with_branch(ID, TWO).segments[KEY]) == [(0, 20), (20, 30), (30, 80)]
    assert bases(state.with_branch(ID, ONE).segments[KEY]) == [(0, 20), (20, 40), (40, 60)]
    assert verify(Archive.open(storage)).faults == []


@pytest.mark.parametrize("compression", list(Compression))
def test_line_that_continues_has_the_batches_and_the_aborted_transactions_below_the_fork(
    storage: Storage, compression: Compression
) -> None:
    """Producer 7 has aborted below the fork; 8 and 9 after it, of whom 9 has no records below."""
    batches = [
        batch(0, 5, producer_id=7, transactional=True),
        batch(5, 5, producer_id=8, transactional=True),
        marker(10, 7, commit=False),
        batch(11, 9),
        batch(20, 5, producer_id=9, transactional=True),
        marker(25, 8, commit=False),
        marker(26, 9, commit=False),
    ]
    index = [AbortedTxn(7, 0, 10, 0), AbortedTxn(8, 5, 25, 5), AbortedTxn(9, 20, 26, 20)]
    entry = write_segment(storage, batches, aborted=index, compression=compression)
    archived(storage, Receipt((Coverage(*KEY, 0, 27),), (entry,)))
    state = grow(storage, fork=Fork(*KEY, 20, 27, ONE), end=30)
    assert bases(state.segments[KEY]) == [(0, 20), (20, 30)]
    reader = open_partition(storage, "orders", state.segments[KEY], state.kept(*KEY))
    assert [header.base_offset for _, headers in reader.batches() for _, header in headers] == [0, 5, 10, 11, 20]
    assert consumed(state, storage) == [*range(11, 30)]
    assert consumed(state.with_branch(ID, ONE), storage) == [*range(11, 20)]


def consumed(state: ArchiveState, storage: Storage) -> list[int]:
    """The offsets that a consumer of committed records sees."""
    reader = open_partition(storage, "orders", state.segments[KEY], state.kept(*KEY))
    return [record.offset for records in reader.records() for record in records]


def test_batch_across_the_fork_gives_the_records_on_its_side(storage: Storage) -> None:
    entry = write_segment(storage, [Batch(0).encode(), Batch(10).encode()])
    archived(storage, Receipt((Coverage(*KEY, 0, 20),), (entry,)))
    state = grow(storage, fork=Fork(*KEY, 15, 20, ONE), end=30)
    assert consumed(state, storage) == [*range(30)]


def test_damage_of_an_old_end_is_a_fault(storage: Storage) -> None:
    archived(storage)
    state = grow(storage)
    storage.delete([state.branches[KEY][0].segments[1].stem("orders") + ".log"])
    (fault,) = verify(Archive.open(storage)).faults
    assert "00000000000000000040" in fault.object


def test_old_end_is_described_beside_what_the_topic_holds(storage: Storage) -> None:
    archive = archived(storage)
    (topic,) = describe(archive.info, grow(storage)).topics
    assert topic.records == 80
    (branch,) = topic.to_json()["branches"]
    assert {name: branch[name] for name in ("id", "partition", "start", "end", "records", "segments")} == {
        "id": ONE,
        "partition": 0,
        "start": 30,
        "end": 60,
        "records": 40,
        "segments": 2,
    }


def test_retention_takes_old_ends_as_it_takes_the_newest(storage: Storage) -> None:
    archived(storage)
    grow(storage)
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        # Older than the record at offset 60: all of the old end, and what lies below the fork.
        removed = remove_expired(writer, RetentionLimits(max_age=1000), TIME + 60 + 1000)
        purge(writer)
        assert removed.segments == 3
    state = Archive.open(storage).load()
    assert state.same_facts(writer.state)
    (branch,) = state.branches[KEY]
    assert (len(branch.segments), branch.held.removed, branch.end) == (0, [(30, 60)], 60)
    assert (bases(state.segments[KEY]), state.removed[KEY]) == ([(30, 80)], [(0, 30)])
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans) == ([], [])
    assert describe(writer.archive.info, state).topics[0].branches[0].records == 0


def test_removal_of_an_old_end_that_was_killed_is_finished_by_the_next_run(storage: Storage) -> None:
    archived(storage)
    grow(storage)
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 40, 0)])
    (waiting,) = Archive.open(storage).load().unpurged
    assert waiting.segments.count == 1
    with begin(storage, "run-4") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        purge(writer)
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans) == ([], [])


def test_segment_that_a_line_does_not_have_cannot_be_removed(storage: Storage) -> None:
    archived(storage)
    grow(storage)
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        for wrong in (RemovedSegment(*KEY, 10, 0), RemovedSegment(*KEY, 20, 2)):
            with pytest.raises(ValueError, match="no segment"):
                writer.remove([wrong])


def test_restore_takes_the_newest_log_and_an_old_end_if_it_is_named(storage: Storage) -> None:
    archived(storage)
    state = grow(storage)
    everything = RestoreTopics()
    newest = select_topics(with_branches(state, {}), everything, {})
    assert bases(with_branches(state, {}).segments[KEY])[-1] == (30, 80)
    assert f"the newest log is restored, not the old ends {ONE} (partition 0 offsets 30 to 59)" in newest.warnings[0]
    chosen = {"orders": ONE}
    view = with_branches(state, chosen)
    old = select_topics(view, everything, chosen)
    assert bases(view.segments[KEY])[-1] == (40, 60)
    assert [choice.source.topic_id for choice in old.choices] == [ID]
    assert "the earlier log, branch" in old.warnings[0]


def test_branch_that_there_is_not_is_refused_with_those_that_are(storage: Storage) -> None:
    archived(storage)
    state = grow(storage)
    chosen = {"orders": TWO}
    with pytest.raises(SpecError, match=f"no branch of the topic with the id {TWO}") as caught:
        select_topics(with_branches(state, chosen), RestoreTopics(), chosen)
    assert f"the branches {ONE} (partition 0 offsets 30 to 59)" in caught.value.hint

"""Snapshots of compacted partitions: in commits, in checkpoints, beside branches, and what no writer can commit."""

import copy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logkeep_engine.archive.catalog import checkpoint, commits, documents, tables
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry, SnapshotFiles
from logkeep_engine.archive.catalog.facts import Branching, Commit, CommitKind, Gap, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.facts import branch_id as branch_of
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.catalog.test_branches import archive, begun, commit
from tests.unit.archive.catalog.test_state import BLAKE3_DIGEST, entry

ID = ORDERS.topic_id
KEY = (ID, 0)
BRANCH = branch_of(ID, 1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}")


def part(base: int, following: int, end: int, number: int = 0, *, epoch: int = 1) -> SegmentEntry:
    found = entry(base, following, epoch=epoch, digest=BLAKE3_DIGEST)
    return replace(found, files=SnapshotFiles(index_bytes=8, end=end, leader_epoch=3, part=number))


def snapshot(end: int, *cuts: int, epoch: int = 1) -> SnapshotEntry:
    """A snapshot of the offsets from 0 on, in parts."""
    bounds = [0, *cuts, end]
    parts = tuple(part(bounds[at], bounds[at + 1], end, at, epoch=epoch) for at in range(len(bounds) - 1))
    return SnapshotEntry(*KEY, end, 3, 1000 + end, parts)


def ends(state: ArchiveState) -> list[int]:
    return [item.end for item in state.snapshots.get(KEY, ())]


def reloaded(state: ArchiveState) -> ArchiveState:
    return checkpoint.load(checkpoint.dump(state, "a"), "c")[1]


def test_a_snapshot_comes_back_from_a_commit_and_a_checkpoint_as_it_was() -> None:
    state = begun()
    archive(state, 0, 50, 3)
    before = copy.deepcopy(state)
    commit(state, snapshots=(snapshot(50, 20, 30),))
    assert not state.same_facts(before)
    assert state.snapshots[KEY][0].entry(KEY) == snapshot(50, 20, 30)
    assert state.segments == before.segments
    assert state.runs["run-1"].records == before.runs["run-1"].records
    assert reloaded(state).same_facts(state)


def test_a_removed_snapshot_leaves_its_parts_to_be_deleted() -> None:
    state = begun()
    archive(state, 0, 50, 3)
    commit(state, snapshots=(snapshot(50, 20),))
    archive(state, 50, 60, 3)
    commit(state, snapshots=(snapshot(60),))
    commit(state, removed_snapshots=(RemovedSnapshot(*KEY, 50),), removed=(RemovedSegment(*KEY, 0),))
    assert ends(state) == [60]
    names = [item.stem("orders") for item in state.unpurged[0].segments[KEY]]
    assert sorted(names) == sorted(
        [*(item.stem("orders") for item in snapshot(50, 20).parts), entry(0, 10).stem("orders")]
    )
    assert reloaded(state).same_facts(state)
    with pytest.raises(ValueError, match="there is no snapshot 50"):
        commit(state, removed_snapshots=(RemovedSnapshot(*KEY, 50),))
    commit(state, purged=tuple(item.commit for item in state.unpurged))
    assert reloaded(state).same_facts(state)


def test_snapshots_that_end_after_a_fork_go_with_the_branch() -> None:
    state = begun()
    for end in (20, 50):
        archive(state, end - 20 if end == 20 else 20, end, 3)
        commit(state, snapshots=(snapshot(end),))
    before = copy.deepcopy(state)
    commit(state, branchings=(Branching(*KEY, BRANCH, 30),))
    assert (ends(state), [item.end for item in state.branches[KEY][0].held.snapshots]) == ([20], [50])
    assert reloaded(state).same_facts(state)
    archive(state, 30, 40, 4)
    commit(state, snapshots=(snapshot(40),))
    view = state.with_branch(ID, BRANCH)
    assert (ends(view), ends(state), ends(before)) == ([20, 50], [20, 40], [20, 50])
    commit(state, removed_snapshots=(RemovedSnapshot(*KEY, 50, 0),))
    assert (ends(state), state.branches[KEY][0].held.snapshots) == ([20, 40], [])
    assert state.unpurged[0].segments[KEY][0].files.end == 50
    assert ends(view) == [20, 50]


def test_a_view_without_partitions_has_none_of_their_snapshots() -> None:
    state = begun()
    archive(state, 0, 50, 3)
    commit(state, snapshots=(snapshot(50),))
    assert (ends(state.without([KEY])), ends(state)) == ([], [50])


def test_any_history_of_snapshots_is_the_same_from_commits_and_from_a_checkpoint_in_between() -> None:
    for seed in range(60):
        random, state, other = Random(seed), begun(), begun()
        end, branches = 0, 0
        for _ in range(12):
            changes: list[dict[str, Any]] = []
            held = ends(state)
            kind = random.randrange(4)
            if kind == 0 or not end:
                more = end + random.randrange(1, 30)
                for one in (state, other):
                    archive(one, end, more, 3)
                end = more
            elif kind == 1 and (not held or held[-1] < end):
                cuts = sorted(random.sample(range(1, end), min(end - 1, random.randrange(3))))
                changes.append({"snapshots": (snapshot(end, *cuts),)})
            elif kind == 2 and held:
                chosen = random.choice(held)
                lines = [
                    at for at, own in enumerate(state.own_facts(KEY)) for one in own.snapshots if one.end == chosen
                ]
                changes.append({"removed_snapshots": (RemovedSnapshot(*KEY, chosen, lines[0]),)})
            elif kind == 3 and end > 1:
                branches += 1
                fork = random.randrange(1, end)
                changes.append({"branchings": (Branching(*KEY, branch_of(ID, branches), fork),)})
                end = fork
            for change in changes:
                commit(state, **change)
                commit(other, **change)
            number, other = other.commit, reloaded(other)
            other.commit = number
        assert state.same_facts(other)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"parts": ()}, "with 0 parts"),
        ({"end": 0}, "leader epoch 3"),
        ({"leader_epoch": -1}, "leader epoch -1"),
        ({"parts": (part(0, 50, 40),)}, "another part 0"),
        ({"parts": (part(0, 20, 50, 1),)}, "another part 0"),
        ({"parts": (part(0, 20, 50), part(19, 50, 50, 1))}, "parts that overlap"),
        ({"parts": (part(0, 51, 50),)}, "offsets up to 51"),
        ({"parts": (entry(0, 50),)}, "another part 0"),
        ({"partition": 1}, "another part 0"),
    ],
)
def test_what_is_no_snapshot_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(snapshot(50), **wrong)


def test_parts_without_their_snapshot_are_damage() -> None:
    data = commits.dump_commit(Commit(1, "a", "t", CommitKind.DATA, "r", 1, 0, snapshots=(snapshot(50),)))
    assert commits.load_commit(data, "c").snapshots == (snapshot(50),)
    document = documents.parse(data, "c")
    document["snapshots"]["rows"] = []
    with pytest.raises(ValueError, match="parts of a snapshot that is not there"):
        tables.snapshots_in(document, "c")


def test_a_snapshot_is_committed_after_the_end_of_a_run_only_and_where_the_archive_ends(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 50)])
        with pytest.raises(ValueError, match="has not ended with success"):
            writer.snapshot([snapshot(50)])
        writer.end(RunOutcome.SUCCEEDED)
        for wrong, why in (
            (snapshot(40), "the archive of the partition ends at 50"),
            (snapshot(50, epoch=2), "it was not written at epoch 1"),
            (replace(snapshot(50), partition=1, parts=(replace(part(0, 50, 50), partition=1),)), "0 ranges"),
        ):
            with pytest.raises(ValueError, match=why):
                writer.snapshot([wrong])
        writer.snapshot([snapshot(50, 20)])
        with pytest.raises(ValueError, match="there is a snapshot 50"):
            writer.snapshot([snapshot(50)])
        with pytest.raises(ValueError, match="there is no snapshot"):
            writer.remove([], [RemovedSnapshot(*KEY, 40)])
        writer.checkpoint()
        writer.remove([], [RemovedSnapshot(*KEY, 50)])
    found = Archive.open(storage).load()
    assert (ends(found), found.unpurged[0].segments.count) == ([], 2)


@pytest.mark.parametrize("missing", ["hole", "gap"])
def test_a_partition_with_a_hole_gets_no_snapshot_and_one_with_a_gap_does(storage: Storage, missing: str) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20), chunk(storage, 30, 50)])
        if missing == "gap":
            gap = chunk(storage, 20, 30)
            writer.commit(receipts=[replace(gap, coverage=(), segments=(), gaps=(Gap(ID, 0, 20, 30, "retention"),))])
        writer.end(RunOutcome.SUCCEEDED)
        if missing == "gap":
            writer.snapshot([snapshot(50)])
        else:
            with pytest.raises(ValueError, match="accounts for 2 ranges"):
                writer.snapshot([snapshot(50)])

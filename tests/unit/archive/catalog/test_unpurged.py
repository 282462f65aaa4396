"""Removals of earlier versions, of which checkpoints do not tell the commits: whoever deletes their objects says so in
a way that every reader of the catalog understands, whatever checkpoint it has begun with."""

from copy import deepcopy

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import NOT_KNOWN, Unpurged, all_unpurged
from logkeep_engine.storage import Storage
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit, storage

__all__ = ["storage"]


def removed(state: ArchiveState, base: int, *, at: int = 5) -> int:
    commit(state, removed=(RemovedSegment(*KEY, base),), at=at)
    return state.commit


def as_an_earlier_version_tells(state: ArchiveState) -> ArchiveState:
    """The state as a checkpoint of layout 5 has it."""
    old = deepcopy(state)
    old.unpurged = (Unpurged(state.commit, NOT_KNOWN, all_unpurged(state.unpurged)),)
    return old


def numbers(state: ArchiveState) -> list[int]:
    return [item.commit for item in state.unpurged]


def read_again(state: ArchiveState) -> ArchiveState:
    return checkpoint.load(checkpoint.dump(state, "a"), "c")[1]


def states() -> tuple[ArchiveState, ArchiveState, ArchiveState, int]:
    """The fold of all commits, a state that begins with an earlier version's checkpoint, the same from a later
    checkpoint of this version, and the last commit that removes something."""
    folded = begun()
    archive(folded, 0, 100, 1)
    removed(folded, 0)
    removed(folded, 10)
    old = as_an_earlier_version_tells(folded)
    for state in (folded, old):
        commit(state, topics=(ORDERS,))
    later = read_again(old)
    last, *_ = [removed(state, 20) for state in (folded, old, later)]
    return folded, old, later, last


def test_a_checkpoint_keeps_the_number_of_a_removal_that_nobody_knows() -> None:
    folded, old, later, last = states()
    assert numbers(old) == numbers(later) == [4, last]
    assert numbers(folded) == [3, 4, last]
    assert [item.is_known for item in later.unpurged] == [False, True]
    assert folded.same_facts(old)
    assert old.same_facts(later)


@pytest.mark.parametrize("up_to", [4, 3])
def test_what_was_removed_up_to_a_commit_is_purged_for_every_reader(up_to: int) -> None:
    folded, old, later, last = states()
    for state in (folded, old, later):
        commit(state, purged_up_to=up_to)
    assert numbers(folded) == [4, last][up_to == 4 :]
    assert numbers(old) == numbers(later) == [4, last][up_to == 4 :]  # of a part of it nobody knows what it is


def test_a_removal_that_one_reader_knows_and_another_does_not_breaks_neither() -> None:
    folded, old, _, last = states()
    for state in (folded, old):
        commit(state, purged_commits=(3,))
        commit(state, purged_commits=(last,))
    assert (numbers(folded), numbers(old)) == ([4], [4])
    with pytest.raises(ValueError, match="the commits 9 have removed no segments"):
        commit(old, purged_commits=(9,))


def test_a_writer_that_began_with_an_earlier_versions_checkpoint_leaves_an_archive_that_is_read_from_any(
    storage: Storage,
) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10), chunk(storage, 10, 20), chunk(storage, 20, 30)])
        writer.end(RunOutcome.SUCCEEDED)
        for base in (0, 10):
            writer.remove([RemovedSegment(*KEY, base)])
        writer.state.unpurged = as_an_earlier_version_tells(writer.state).unpurged
        unknown = writer.state.commit
        writer.remove([RemovedSegment(*KEY, 20)])
        writer.checkpoint()
        writer.purged([unknown])
    opened = Archive.open(storage)
    folded = ArchiveState()
    for item in opened.read_commits(range(opened.listing().last + 1)):
        folded.apply(item)
    assert numbers(folded) == numbers(opened.load()) == numbers(writer.state) == [unknown + 1]

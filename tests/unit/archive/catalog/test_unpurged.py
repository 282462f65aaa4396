"""A removal is known by its commit until another commit says that its objects are deleted."""

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.facts import RemovedSegment
from logkeep_engine.archive.catalog.state import ArchiveState
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit


def removed(state: ArchiveState, base: int) -> int:
    commit(state, removed=(RemovedSegment(*KEY, base),))
    return state.commit


def numbers(state: ArchiveState) -> list[int]:
    return [item.commit for item in state.unpurged]


def test_what_commits_have_removed_is_purged_by_their_numbers() -> None:
    state = begun()
    archive(state, 0, 100, 1)
    first, second, third = (removed(state, base) for base in (0, 10, 20))
    read_again = checkpoint.load(checkpoint.dump(state, "a"), "c")[1]
    for one in (state, read_again):
        assert numbers(one) == [first, second, third]
        commit(one, purged=(second,))
        assert numbers(one) == [first, third]
        commit(one, purged=(third, first))
        assert numbers(one) == []
    assert state.same_facts(read_again)


def test_a_commit_that_has_removed_nothing_is_refused() -> None:
    state = begun()
    archive(state, 0, 100, 1)
    first = removed(state, 0)
    with pytest.raises(ValueError, match=f"the commits {first - 1}, 9 have removed no segments to be deleted"):
        commit(state, purged=(9, first, first - 1))
    commit(state, purged=(first,))
    with pytest.raises(ValueError, match="have removed no segments"):
        commit(state, purged=(first,))

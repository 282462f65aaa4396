"""A removal is known by its commit until another commit says that its objects are deleted."""

from dataclasses import replace
from hashlib import sha256

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.commits import dump_commit, load_commit
from logkeep_engine.archive.catalog.facts import Commit, CommitKind, PurgedPack, RemovedSegment
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import LogkeepError
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


def test_a_pack_in_which_nothing_removed_lies_is_refused() -> None:
    state = begun()
    archive(state, 0, 100, 1)
    removed(state, 0)
    with pytest.raises(ValueError, match=r"no removed segment is in pack packs/0000000001-2-0-3\.pack"):
        commit(state, purged_packs=(PurgedPack(1, 2, 0, 3),))


def test_the_packs_of_a_commit_are_read_as_they_were_written() -> None:
    written = replace(Commit(2, "a", "t", CommitKind.DATA, "run-1", 1, 5), purged=(1,), previous="0" * 64)
    written = replace(written, purged_packs=(PurgedPack(1, 2, 0, 3), PurgedPack(1, 2, 1, 0)))
    read = load_commit(dump_commit(written), "a commit")
    assert read.purged_packs == written.purged_packs
    assert read.is_maintenance
    assert replace(read, purged=()).is_maintenance
    bad = dump_commit(written).replace(b"[1,2,1,0]", b"[1,2,1,-1]")
    body = bad[: bad.rindex(b',"sha256"')]
    bad = body + b',"sha256":"%b"}' % sha256(body + b"}").hexdigest().encode()
    with pytest.raises(LogkeepError, match="-1"):
        load_commit(bad, "a commit")

"""Old ends of logs that were cut off: left by one commit, kept whole by any number of later ones, found again."""

import copy
from collections.abc import Iterator
from random import Random

import pytest

from logkeep_engine.archive.catalog import checkpoint, commits
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Commit,
    CommitKind,
    Coverage,
    Gap,
    GroupEntry,
    Receipt,
    RunOutcome,
    branch_id,
    is_branch_id,
)
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.names import check_topic_id
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.catalog.test_state import entry

ID = ORDERS.topic_id
KEY = (ID, 0)


def commit(state: ArchiveState, *, at: int = 0, **facts: object) -> None:
    """One more commit of run-1, as a document and back."""
    known = {"previous": state.sha256, **facts}
    draft = Commit(state.commit + 1, "a", "t", CommitKind.DATA, "run-1", 1, at, **known)  # type: ignore[arg-type]
    state.apply(commits.load_commit(commits.dump_commit(draft), "c"))


def begun() -> ArchiveState:
    state = ArchiveState()
    state.apply(Commit(0, "a", "t", CommitKind.BEGIN, "run-1", 1, 0, run_kind="KafkaBackup"))
    commit(state, topics=(ORDERS,))
    return state


def archive(state: ArchiveState, start: int, end: int, epoch: int) -> None:
    """A segment for each ten offsets."""
    commit(
        state,
        coverage=(Coverage(*KEY, start, end),),
        segments=tuple(entry(at, min(at + 10, end)) for at in range(start, end, 10)),
        epochs=(LeaderEpoch(*KEY, epoch, start),),
        leaders=(LeaderSeen(*KEY, epoch),),
    )


def bounds(state: ArchiveState) -> list[tuple[int, int]]:
    return [(item.base_offset, item.next_offset) for item in state.segments.get(KEY, ())]


def test_old_end_leaves_the_archive_and_comes_back_with_what_lies_in_front_of_it() -> None:
    state = begun()
    archive(state, 0, 50, 3)
    before = copy.deepcopy(state)
    one = branch_id(ID, 1)
    commit(state, branchings=(Branching(*KEY, one, 25),), leaders=(LeaderSeen(*KEY, 4),))
    assert bounds(state) == [(0, 10), (10, 20), (20, 25)]
    assert (state.coverage[KEY], state.epochs[KEY], state.leaders[KEY]) == ([(0, 25)], [(3, 0)], 4)
    assert [(item.base_offset, item.next_offset) for item in state.branches[KEY][0].segments] == [
        (20, 30),
        (30, 40),
        (40, 50),
    ]
    assert state.branches[KEY][0].end == 50
    archive(state, 25, 70, 4)
    view = state.with_branch(ID, one)
    for name in ("segments", "coverage", "gaps", "removed", "epochs", "leaders"):
        assert getattr(view, name) == getattr(before, name), name
    assert bounds(state)[-1] == (65, 70)  # the view is another one
    assert state.runs["run-1"].records == before.runs["run-1"].records + sum(
        item.records for item in state.segments[KEY] if item.base_offset >= 25
    )


def histories(count: int) -> Iterator[tuple[ArchiveState, list[tuple[str, ArchiveState]]]]:
    """An archive after many forks at any offsets, and what it was before each."""
    for seed in range(count):
        random = Random(seed)
        state, before = begun(), []
        end, epoch = 0, 0
        for number in range(1, random.randrange(2, 6)):
            more = end + random.randrange(1, 60)
            if random.random() < 0.3:
                commit(state, gaps=(Gap(*KEY, end, more, "retention"),))
            else:
                archive(state, end, more, epoch)
            epoch += random.randrange(1, 3)
            fork = random.randrange(more)
            before.append((branch_id(ID, number), copy.deepcopy(state)))
            commit(
                state,
                branchings=(Branching(*KEY, branch_id(ID, number), fork),),
                leaders=(LeaderSeen(*KEY, epoch),),
            )
            end = fork
        archive(state, end, end + 15, epoch)
        yield state, before


def test_every_branch_of_any_history_is_what_the_archive_was_then() -> None:
    for state, before in histories(300):
        assert state.branch_ids(ID) == [name for name, _ in before]
        for name, then in before:
            view = state.with_branch(ID, name)
            assert _offsets(view) == _offsets(then)
            assert view.accounted_for(*KEY) == then.accounted_for(*KEY)
            assert view.lineage(*KEY) == then.lineage(*KEY)


def _offsets(state: ArchiveState) -> list[int]:
    """The offsets that are in segments."""
    return [at for item in state.segments.get(KEY, ()) for at in range(item.base_offset, item.next_offset)]


def test_groups_that_have_read_the_later_log_stand_at_the_fork_of_a_branch() -> None:
    """Their positions were taken for offsets of the old end: records of it were passed over."""
    state = begun()
    archive(state, 0, 50, 3)
    one = branch_id(ID, 1)
    commit(state, branchings=(Branching(*KEY, one, 25),), leaders=(LeaderSeen(*KEY, 4),))
    archive(state, 25, 90, 4)
    positions = {"later": (60, 4), "before": (20, 3), "old": (40, 3), "unknown": (40, -1), "other": (60, 4)}
    state.groups = tuple(
        GroupEntry(group, "orders", ID, 1 if group == "other" else 0, offset, epoch)
        for group, (offset, epoch) in positions.items()
    )
    found = {group.group_id: group.offset for group in state.with_branch(ID, one).groups}
    assert found == {"later": 25, "before": 20, "old": 40, "unknown": 25, "other": 60}
    assert [group.offset for group in state.groups] == [60, 20, 40, 40, 60]


def test_checkpoint_holds_branches() -> None:
    for state, _ in histories(50):
        _, loaded = checkpoint.load(checkpoint.dump(state, "a"), "c")
        assert loaded.same_facts(state)
        assert not loaded.same_facts(begun())


def test_branch_ids_look_like_topic_ids_and_are_told_from_them() -> None:
    ids = [branch_id(topic, number) for topic in (ID, "b" * 22) for number in (1, 2, 9999)]
    assert len(set(ids)) == 6
    for text in ids:
        check_topic_id(text)
        assert is_branch_id(text)
    assert not is_branch_id(ID)
    with pytest.raises(ValueError, match="10000 branches"):
        branch_id(ID, 10_000)
    with pytest.raises(ValueError, match="branch aaaa"):
        Branching(*KEY, ID, 0)


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_writer_refuses_a_branch_twice(storage: Storage) -> None:
    one = Branching(*KEY, branch_id(ID, 1), 25)
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 50)])
        number = writer.branch([one])
        assert writer.state.commit == number
        with pytest.raises(ValueError, match="already"):
            writer.branch([one])
        writer.end(RunOutcome.SUCCEEDED)
    assert Archive.open(storage).load().same_facts(writer.state)


def test_only_what_is_new_of_leader_epochs_is_committed_and_a_leader_never_goes_back(storage: Storage) -> None:
    with begin(storage) as writer:
        seen = [LeaderEpoch(*KEY, 3, 0), LeaderEpoch(*KEY, 4, 30)]
        first = chunk(storage, 0, 50)
        first = Receipt(first.coverage, first.segments, epochs=tuple(seen))
        number = writer.commit(topics=[ORDERS], receipts=[first], leaders=[LeaderSeen(*KEY, 4)]).number
        assert number is not None
        assert writer.archive.read_commit(number).epochs == tuple(seen)
        assert writer.commit(leaders=[LeaderSeen(*KEY, 4), LeaderSeen(*KEY, 3)]).number is None
        second = chunk(storage, 50, 60)
        second = Receipt(second.coverage, second.segments, epochs=(LeaderEpoch(*KEY, 4, 50),))
        number = writer.commit(receipts=[second]).number
        assert number is not None
        assert writer.archive.read_commit(number).epochs == ()
        assert b"epochs" not in storage.read(f"catalog/{number:020d}.json")
        writer.end(RunOutcome.SUCCEEDED)
    assert writer.state.lineage(*KEY).epochs == ((3, 0), (4, 30))

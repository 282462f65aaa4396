"""The state of compacted partitions: which snapshot it begins with, and from when on states are exact."""

import copy
from dataclasses import replace
from random import Random

import pytest

from logkeep_engine.archive.catalog.facts import Branching, RemovedSegment
from logkeep_engine.archive.catalog.facts import branch_id as branch_of
from logkeep_engine.archive.catalog.snapshots import NO_TIME, RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import (
    ExactFrom,
    exact_by_snapshots,
    not_exact,
    snapshots_then,
    with_snapshots,
)
from tests.unit.archive.build import ORDERS
from tests.unit.archive.catalog.test_branches import archive, begun, commit
from tests.unit.archive.catalog.test_snapshots import snapshot
from tests.unit.archive.catalog.test_state import entry

ID = ORDERS.topic_id
KEY = (ID, 0)
BRANCH = branch_of(ID, 1)


def compacted(*ends: int, end: int = 100, policy: str = "compact") -> ArchiveState:
    """A log of segments of ten offsets each, with snapshots of these ends. A snapshot's time is 1000 and its end."""
    state = begun()
    commit(state, topics=(replace(ORDERS, configs={"cleanup.policy": policy}),))
    at = 0
    for stop in sorted({*ends, end}):
        archive(state, at, stop, 3)
        at = stop
        if stop in ends:
            commit(state, snapshots=(snapshot(stop, *range(10, stop, 20)),))
    return state


def without_log(state: ArchiveState, *bases: int) -> ArchiveState:
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in bases))
    return state


def first(state: ArchiveState) -> tuple[int, int]:
    """The end of the snapshot with which the partition begins (0: none), and the base offset of the log after it."""
    found = list(state.segments.get(KEY, ()))
    parts = [item for item in found if item.files.end]
    assert found == parts + [item for item in found if not item.files.end]
    log = [item.base_offset for item in found if not item.files.end]
    assert {item.files.end for item in parts} <= {parts[0].files.end if parts else 0}
    return parts[0].files.end if parts else 0, log[0] if log else -1


@pytest.mark.parametrize(
    ("end", "begins"),
    [(None, (60, 60)), (100, (60, 60)), (60, (60, 60)), (59, (30, 30)), (30, (30, 30)), (29, (0, 0)), (0, (0, 0))],
)
def test_a_state_begins_with_the_newest_snapshot_at_or_below_a_point(end: int | None, begins: tuple[int, int]) -> None:
    state = compacted(30, 60)
    view = with_snapshots(state, {} if end is None else {KEY: end})
    assert first(view) == begins
    assert (view.coverage, view.kept(*KEY)) == (state.coverage, [(0, 100)])
    assert with_snapshots(view, {} if end is None else {KEY: end}).segments == view.segments
    assert first(state) == (0, 0)


def test_a_snapshot_with_later_records_does_not_serve_a_time() -> None:
    assert first(with_snapshots(compacted(30, 60), before=1060)) == (30, 30)
    assert first(with_snapshots(compacted(30, 60), before=1061)) == (60, 60)
    assert first(with_snapshots(compacted(30, 60), before=1030)) == (0, 0)


def test_the_log_alone_is_seen_where_it_is_whole_if_that_is_wanted() -> None:
    state = compacted(30, 60)
    assert with_snapshots(state, where_needed=True) is state
    view = with_snapshots(without_log(state, 0, 10), where_needed=True)
    assert (first(view), view.kept(*KEY), view.removed[KEY]) == ((30, 30), [(0, 100)], [])
    assert state.removed[KEY] == [(0, 20)]


def test_removed_log_below_a_snapshot_is_not_missing_and_points_from_there_on_are_exact() -> None:
    state = without_log(compacted(30, 60), 0, 10, 20)
    for end, begins in ((None, (60, 60)), (60, (60, 60)), (59, (30, 30)), (30, (30, 30))):
        ends = {} if end is None else {KEY: end}
        assert (first(with_snapshots(state, ends)), list(not_exact(state, ends))) == (begins, [])
    assert list(not_exact(state, {KEY: 29})) == [KEY]
    assert exact_by_snapshots(state, KEY) == ExactFrom(30, 1030)
    without_log(state, 30)
    assert list(not_exact(state, {KEY: 35})) == [KEY]
    assert (list(not_exact(state, {KEY: 30})), exact_by_snapshots(state, KEY)) == ([], ExactFrom(60, 1060))
    assert (first(with_snapshots(state)), list(not_exact(state))) == ((60, 60), [])
    assert list(not_exact(state, before=1060)) == [KEY]
    without_log(state, 60)
    assert (list(not_exact(state)), exact_by_snapshots(state, KEY)) == ([KEY], None)
    assert first(with_snapshots(state)) == (0, 40)


def test_what_is_whole_is_exact_from_its_beginning() -> None:
    assert exact_by_snapshots(compacted(30), KEY) == ExactFrom(0, NO_TIME)
    assert exact_by_snapshots(begun(), KEY) == ExactFrom(0, NO_TIME)


@pytest.mark.parametrize("policy", ["compact,delete", "delete"])
def test_a_point_below_the_snapshots_of_a_topic_that_deletes_is_not_exact_either(policy: str) -> None:
    """The archive kept the keys of removed records, but not as they were then."""
    state = without_log(compacted(30, 60, policy=policy), 0, 10)
    assert [list(not_exact(state, {KEY: end})) for end in (25, 30)] == [[KEY], []]
    assert [list(not_exact(state, before=time)) for time in (1030, 1031)] == [[KEY], []]
    assert exact_by_snapshots(state, KEY) == ExactFrom(30, 1030)
    assert list(not_exact(state)) == []
    then = copy.deepcopy(state)
    then.snapshots = {}
    assert [list(not_exact(then, {}, None, later)) for later in (None, state)] == [[], [KEY]]


def test_records_that_retention_removes_of_a_topic_that_deletes_too_are_not_missing() -> None:
    state = without_log(compacted(30, 60, policy="compact,delete"), 0, 10)
    assert first(with_snapshots(state)) == (60, 60)
    without_log(state, *range(20, 70, 10))
    assert first(with_snapshots(state)) == (0, 70)
    assert list(not_exact(state)) == list(not_exact(state, {KEY: 25})) == []
    assert exact_by_snapshots(state, KEY) == ExactFrom(0, NO_TIME)


def test_a_topic_that_is_no_longer_compacted_is_seen_as_a_log_where_that_is_whole() -> None:
    state = compacted(30, 60, policy="delete")
    assert with_snapshots(state) is state
    assert first(with_snapshots(without_log(state, 0))) == (30, 30)


def test_a_log_that_was_cut_off_below_all_snapshots_says_so_and_the_branch_has_them() -> None:
    state = without_log(compacted(60), 0)
    commit(state, branchings=(Branching(*KEY, BRANCH, 50),))
    archive(state, 50, 70, 4)
    assert list(not_exact(state)) == [KEY]
    branch = state.with_branch(ID, BRANCH)
    assert (first(with_snapshots(branch)), list(not_exact(branch))) == ((60, 60), [])


def test_an_earlier_state_has_the_snapshots_that_are_there_now_of_what_it_holds() -> None:
    state = compacted(30, end=50)
    then = copy.deepcopy(state)
    commit(state, snapshots=(snapshot(50),))
    archive(state, 50, 80, 3)
    commit(state, snapshots=(snapshot(80),))
    commit(state, removed_snapshots=(RemovedSnapshot(*KEY, 30),))
    assert [item.end for item in snapshots_then(then, state)[KEY]] == [50]
    commit(state, branchings=(Branching(*KEY, BRANCH, 40),), segments=())
    archive(state, 40, 45, 4)
    commit(state, snapshots=(snapshot(45),))
    assert [item.end for item in snapshots_then(then, state)[KEY]] == [50], "45 is of another log"
    assert [item.end for item in snapshots_then(then.with_branch(ID, "none"), state)[KEY]] == [50]
    now = copy.deepcopy(state)
    assert [item.end for item in snapshots_then(now, state)[KEY]] == [45]
    branch = now.with_branch(ID, BRANCH)
    assert [item.end for item in snapshots_then(branch, state)[KEY]] == [50, 80]


def test_a_state_of_any_history_has_each_offset_from_a_snapshot_or_from_the_log() -> None:
    for seed in range(300):
        random = Random(seed)
        ends = sorted(random.sample(range(10, 100, 10), random.randrange(4)))
        state = compacted(*ends)
        bases = [item.base_offset for item in state.segments[KEY]]
        gone = random.sample(bases, random.randrange(len(bases)))
        if gone:
            without_log(state, *gone)
        point = random.choice([None, *range(0, 101, 5)])
        limits = {} if point is None else {KEY: point}
        view, stop = with_snapshots(state, limits), 100 if point is None else point
        held = {at for item in view.segments.get(KEY, ()) for at in range(item.base_offset, item.next_offset)}
        whole = set(range(stop)) <= held
        assert whole == (not list(not_exact(state, limits))), seed
        exact = exact_by_snapshots(state, KEY)
        if exact is not None and stop >= exact.offset:
            assert whole, seed


def test_a_segment_of_the_log_is_what_it_was() -> None:
    assert list(with_snapshots(compacted(30)).segments[KEY])[2:][0] == entry(30, 40)

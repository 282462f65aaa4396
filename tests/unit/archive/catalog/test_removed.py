"""Whatever the order in which it went, and in however many commits: what retention has removed stays known."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.facts import Coverage, RemovedSegment
from logkeep_engine.archive.catalog.state import ArchiveState
from tests.examples import scaled
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit
from tests.unit.archive.catalog.test_state import entry


def remove(state: ArchiveState, *bases: int) -> None:
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in bases))


def test_what_went_first_stays_removed_when_several_segments_before_it_go_at_once() -> None:
    state = begun()
    archive(state, 0, 60, 3)
    remove(state, 30, 40)
    remove(state, 0, 10, 20)
    assert state.removed[KEY] == [(0, 50)]
    assert state.kept(*KEY) == [(50, 60)]


@st.composite
def removals(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Segments of an archived range with offsets between them that compaction has taken, the order in which they go,
    and how many go with each commit."""
    widths = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=9))
    segments, at = [], 0
    for missing, width in widths:
        segments.append((at + missing, at + missing + width))
        at += missing + width
    order = draw(st.permutations([base for base, _ in segments]))
    return segments, order, draw(st.lists(st.integers(1, 4), min_size=len(order), max_size=len(order)))


@settings(max_examples=scaled(1000))
@given(removals())
def test_removed_ranges_are_those_of_a_set_of_offsets(case: tuple[list[tuple[int, int]], list[int], list[int]]) -> None:
    segments, order, counts = case
    state, end = begun(), segments[-1][1]
    commit(state, coverage=(Coverage(*KEY, 0, end),), segments=tuple(entry(*bounds) for bounds in segments))
    gone: set[int] = set()
    at = 0
    for count in counts:
        if not (now := order[at : at + count]):
            break
        at += count
        remove(state, *now)
        gone |= {offset for base, stop in segments if base in now for offset in range(base, stop)}
        removed = state.removed[KEY]
        left = {offset for base, stop in segments for offset in range(base, stop)} - gone
        within = {offset for start, stop in removed for offset in range(start, stop)}
        assert gone <= within
        assert not left & within
        assert left <= {offset for start, stop in state.kept(*KEY) for offset in range(start, stop)}
        assert all(before[1] < after[0] for before, after in pairwise(removed))
        assert len(removed) == _runs_of(segments, gone)
    assert state.removed[KEY] == [(segments[0][0], end)]


def _runs_of(segments: list[tuple[int, int]], gone: set[int]) -> int:
    """How often a segment is gone after one that is there, or behind none."""
    there = [False, *(base in gone for base, _ in segments)]
    return sum(after and not before for before, after in pairwise(there))

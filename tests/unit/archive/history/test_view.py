"""Views against brute force: what each offset of a view is follows from the owner of that offset alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.extent import LogExtents, StateExtents
from logkeep_engine.archive.catalog.lines import FOREVER, Line, Lines, Owned
from logkeep_engine.archive.history.view import History, LineFacts, MissingKind, MissingRange, Point, States, view
from logkeep_engine.archive.ranges import Range, add_range
from tests.examples import scaled

END = 24
Label = tuple[str, int, int] | str


@dataclass(frozen=True)
class Listed:
    """A table of extents, with the name of what has them."""

    name: str
    spans: tuple[Range, ...]

    def __len__(self) -> int:
        return len(self.spans)

    def span(self, index: int) -> Range:
        return self.spans[index]

    def position(self, offset: int) -> int:
        return sum(start < offset for start, _ in self.spans)


@st.composite
def spans(draw: st.DrawFn, end: int = END) -> tuple[Range, ...]:
    """Ranges that do not overlap."""
    bounds = sorted(draw(st.sets(st.integers(0, end), max_size=8)))
    return tuple(item for item in pairwise(bounds) if draw(st.booleans()))


@st.composite
def all_lines(draw: st.DrawFn) -> Lines:
    """Logs that were cut off, and read again, one on the other."""
    lines = [Line()]
    for number in range(1, draw(st.integers(1, 5))):
        base, offset = draw(st.integers(0, number - 1)), draw(st.integers(0, END))
        if draw(st.booleans()):
            lines.append(Line(base, offset))
        else:
            lines.append(Line(base, draw(st.integers(0, offset)), offset, again=True))
    return Lines(lines)


@st.composite
def histories(draw: st.DrawFn) -> History[Listed]:
    lines = draw(all_lines())
    logs, facts = [], []
    for number in range(len(lines.lines)):
        held = draw(spans())
        middle = draw(st.integers(0, END))
        # One line may have its extents in two tables, as a log has that is a branch from an offset on.
        for part, (low, high) in enumerate(((0, middle), (middle, FOREVER))):
            table = Listed(f"log {number}.{part}", held)
            logs.append(LogExtents(number, low, high, table))
        archived: list[Range] = []
        for item in (*held, *draw(spans())):
            add_range(archived, *item)
        removed: list[Range] = []
        for item in draw(spans()):
            if not any(low < item[1] and item[0] < high for low, high in held):
                add_range(removed, *item)
                add_range(archived, *item)
        lost = [
            MissingRange(*item, MissingKind.LOST, "deleted")
            for item in draw(spans())
            if not any(low < item[1] and item[0] < high for low, high in archived)
        ]
        facts.append(LineFacts(archived, removed, lost))
    states = []
    for end in sorted(draw(st.sets(st.integers(1, END), max_size=4))):
        parts = Listed(f"state {end}", draw(spans(end)))
        states.append(StateExtents(draw(st.integers(0, len(lines.lines) - 1)), end, draw(st.integers(0, 9)), parts))
    return History(lines, draw(st.permutations(logs)), states, facts)


@st.composite
def points(draw: st.DrawFn, history: History[Listed]) -> Point:
    line = draw(st.integers(0, len(history.lines.lines) - 1))
    end = draw(st.integers(0, END) | st.just(FOREVER))
    return Point(line, end, draw(st.none() | st.integers(0, 9)), draw(st.sampled_from(States)))


def owner(lines: Lines, number: int, offset: int) -> int:
    line = lines.lines[number]
    return number if line.start <= offset < line.end else owner(lines, line.base, offset)


def holds(ranges: Iterable[Range], offset: int) -> bool:
    return any(low <= offset < high for low, high in ranges)


def removed(history: History[Listed], number: int, end: int) -> set[int]:
    return {at for at in range(min(end, END)) if holds(history.facts[owner(history.lines, number, at)].removed, at)}


def state(history: History[Listed], point: Point) -> StateExtents[Listed] | None:
    gone = removed(history, point.line, point.end)
    found = [
        item
        for item in history.states
        if item.end <= point.end
        and (point.before is None or item.time < point.before)
        and not any(at >= item.end for at in gone)
        and all(owner(history.lines, item.line, at) == owner(history.lines, point.line, at) for at in range(item.end))
    ]
    if point.states is States.WHERE_NEEDED:
        found = [item for item in found if gone and item.end > min(gone)][:1]
    return found[-1] if found else None


def expected(history: History[Listed], point: Point) -> dict[int, Label]:
    """Say what each offset below the point is, asked for one by one."""
    begun = state(history, point)
    found: dict[int, Label] = {}
    for at in range(min(point.end, END)):
        number = owner(history.lines, point.line, at)
        facts = history.facts[number]
        if begun is not None and at < begun.end:
            inside = [(low, high) for low, high in begun.table.spans if low <= at < high]
            found[at] = (begun.table.name, *inside[0]) if inside else "nothing"
            continue
        held = [
            (log.table.name, low, high)
            for log in history.logs
            if log.line == number and log.start <= at < log.end
            for low, high in log.table.spans
            if low <= at < high
        ]
        if held:
            found[at] = held[0]
        elif holds(facts.removed, at):
            found[at] = "removed"
        elif holds(facts.archived, at):
            found[at] = "nothing"
        else:
            found[at] = "lost" if holds([(item.start, item.end) for item in facts.lost], at) else "unknown"
    return found


def shown(history: History[Listed], point: Point) -> tuple[dict[int, Label], list[Range]]:
    """Return what a view says of each offset, and its ranges as they come."""
    seen = view(history, point)
    found: dict[int, Label] = {}
    ranges: list[Range] = []
    for slices in seen.slices:
        cut = slices.cut()
        for index, (low, high) in slices.spans():
            assert cut.get(index, slices.table.span(index)) == (low, high)
            ranges.append((low, high))
            found |= dict.fromkeys(range(low, high), (slices.table.name, *slices.table.span(index)))
    for missing in seen.missing:
        assert not found.keys() & set(range(missing.start, missing.end))
        found |= dict.fromkeys(range(missing.start, missing.end), missing.kind.value)
    return found, ranges


@settings(max_examples=scaled(1000), deadline=None)
@given(st.data())
def test_each_offset_of_a_view_is_that_of_its_owner(data: st.DataObject) -> None:
    history = data.draw(histories())
    point = data.draw(points(history))
    found, ranges = shown(history, point)
    wanted = {at: label for at, label in expected(history, point).items() if label != "nothing"}
    # A view ends with the last offset for which there is anything: nothing is known to be missing after it.
    last = max((at for at, label in expected(history, point).items() if label != "unknown"), default=-1)
    assert found == {at: label for at, label in wanted.items() if at <= last}
    assert all(low < high for low, high in ranges)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


@settings(max_examples=scaled(500), deadline=None)
@given(st.data())
def test_lines_agree_up_to_the_first_offset_that_others_own(data: st.DataObject) -> None:
    lines = data.draw(all_lines())
    one, other = (data.draw(st.integers(0, len(lines.lines) - 1)) for _ in range(2))
    apart = [at for at in range(END + 1) if owner(lines, one, at) != owner(lines, other, at)]
    assert lines.agree(one, other) == (apart[0] if apart else FOREVER)
    for number in (one, other):
        assert [lines.owner(number, at) for at in range(END + 1)] == [owner(lines, number, at) for at in range(END + 1)]


def test_a_path_says_who_owns_what() -> None:
    """The log was cut off at 10, and read again up to 7."""
    lines = Lines((Line(), Line(0, 10), Line(1, 2, 7, again=True)))
    assert lines.path(2) == [Owned(0, 0, 2), Owned(2, 2, 7), Owned(0, 7, 10), Owned(1, 10, FOREVER)]
    assert lines.path(2, 5) == [Owned(0, 0, 2), Owned(2, 2, 5)]
    assert lines.path(2, 0) == []
    assert lines.agree(0, 1) == 10
    assert lines.agree(1, 2) == 2


@pytest.mark.parametrize(
    "lines", [(), (Line(0),), (Line(start=3),), (Line(), Line()), (Line(), Line(1)), (Line(), Line(0, 5, 4))]
)
def test_lines_stand_on_those_before_them(lines: tuple[Line, ...]) -> None:
    with pytest.raises(ValueError, match="line"):
        Lines(lines)

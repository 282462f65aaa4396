"""The one way to ask what an archive has of a partition. Pure.

    seen = view(history, Point(line=0, end=1000))
    for slices in seen.slices: ...                   # what there is
    for missing in seen.missing: ...                 # and what there is not

What counts is cut by offsets, never by whole extents. Slices and missing ranges do not overlap. What lies in neither is
accounted for, and has no record: compaction had taken it from the log before it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Generic

from logkeep_engine.archive.catalog.extent import LogExtents, Slices, StateExtents, Table
from logkeep_engine.archive.catalog.lines import FOREVER, Lines, Owned
from logkeep_engine.archive.ranges import Range, add_range, inside, without


class States(Enum):
    """Whether a state may stand for the log below its end: `NEWEST` does, `WHERE_NEEDED` the first one that stands for
    what is removed of the log does, if something is."""

    NEWEST = "newest"
    WHERE_NEEDED = "where needed"


@dataclass(frozen=True, slots=True)
class Point:
    """The part of a line that lies below the offset `end`. Only states of records before the time `before` (ms)
    count."""

    line: int
    end: int = FOREVER
    before: int | None = None
    states: States = States.WHERE_NEEDED


class MissingKind(StrEnum):
    """Why there is nothing. `LOST`: it was gone in the cluster before it was archived. `REMOVED`: retention has removed
    it. `UNKNOWN`: the archive does not account for it."""

    LOST = "lost"
    REMOVED = "removed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets [start, end) that the archive lacks. `reason` is the one that a gap gives."""

    start: int
    end: int
    kind: MissingKind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LineFacts:
    """The facts of offsets that a line owns: merged and sorted ranges that were `archived`, those of them that are
    `removed`, and ranges that were `lost` before."""

    archived: Sequence[Range] = ()
    removed: Sequence[Range] = ()
    lost: Sequence[MissingRange] = ()


@dataclass(frozen=True, slots=True)
class History(Generic[Table]):
    """All that an archive has of a partition. `facts` are by the number of the line. `states` have rising ends."""

    lines: Lines
    logs: Sequence[LogExtents[Table]]
    states: Sequence[StateExtents[Table]] = ()
    facts: Sequence[LineFacts] = field(default=(LineFacts(),))


@dataclass(frozen=True, slots=True)
class View(Generic[Table]):
    """All that there is below a point, in the order of the offsets. `state` is what stands for all offsets below its
    end; None: the log does. Where retention has removed a part of the log and no state stands for it, it is not
    `whole`."""

    slices: tuple[Slices[Table], ...]
    missing: tuple[MissingRange, ...]
    state: StateExtents[Table] | None
    whole: bool


def view(history: History[Table], point: Point) -> View[Table]:
    """Return what the archive has of a partition below a point."""
    path = history.lines.path(point.line, point.end)
    state = state_of(history, point)
    floor = 0 if state is None else state.end
    slices = slices_of(history, path, state)
    missing = tuple(_missing(history, path, floor))
    return View(slices, missing, state, not any(item.kind is MissingKind.REMOVED for item in missing))


def slices_of(
    history: History[Table], path: Iterable[Owned], state: StateExtents[Table] | None
) -> tuple[Slices[Table], ...]:
    """Return what there is on a path, with a state in place of all that lies below its end."""
    if state is None:
        return tuple(_logs(history, path, 0))
    return (Slices(state.table, 0, len(state.table), 0, state.end), *_logs(history, path, state.end))


def state_of(history: History[Table], point: Point) -> StateExtents[Table] | None:
    """Return the state with which a view begins; None: with the log."""
    if not history.states:
        return None
    found = list(usable(history, point))
    if point.states is States.NEWEST:
        return found[-1] if found else None
    removed = removed_of(history, history.lines.path(point.line, point.end))
    return next((item for item in found if item.end > removed[0][0]), None) if removed else None


def usable(history: History[Table], point: Point) -> Iterator[StateExtents[Table]]:
    """Yield the states that may stand for a part of the log below a point: each is of the same log below its end, and
    the log after it is whole. The oldest first."""
    removed = removed_of(history, history.lines.path(point.line, point.end))
    for state in history.states:
        is_below = state.end <= point.end and (point.before is None or state.time < point.before)
        is_whole = not removed or removed[-1][1] <= state.end
        if is_below and is_whole and history.lines.agree(state.line, point.line) >= state.end:
            yield state


def removed_of(history: History[Table], path: Iterable[Owned]) -> list[Range]:
    """Return the ranges of a path that are removed."""
    found: list[Range] = []
    for item in path:
        for start, end in inside(history.facts[item.owner].removed, item.start, item.end):
            add_range(found, start, end)
    return found


def _logs(history: History[Table], path: Iterable[Owned], floor: int) -> Iterator[Slices[Table]]:
    """Yield the extents of a path from the offset `floor` on."""
    for item in path:
        found = []
        for log in history.logs:
            start, end = max(log.start, item.start, floor), min(log.end, item.end)
            if log.line == item.owner and start < end:
                found.append(Slices.within(log.table, start, end))
        yield from sorted(filter(len, found), key=_first)


def _first(slices: Slices[Table]) -> int:
    return slices.start


def _missing(history: History[Table], path: Sequence[Owned], floor: int) -> Iterator[MissingRange]:
    """Yield what is missing of a path from the offset `floor` on, up to the last offset for which there is anything."""
    found: list[MissingRange] = []
    known: list[Range] = []
    for item in path:
        facts = history.facts[item.owner]
        start, end = max(item.start, floor), item.end
        found += (MissingRange(*part, MissingKind.REMOVED) for part in inside(facts.removed, start, end))
        for lost in facts.lost:
            for part in inside([(lost.start, lost.end)], start, end):
                found.append(MissingRange(*part, MissingKind.LOST, lost.reason))
        for ranges in (facts.archived, facts.removed, [(lost.start, lost.end) for lost in facts.lost]):
            for part in inside(ranges, start, end):
                add_range(known, *part)
    if known:
        found += (MissingRange(*part, MissingKind.UNKNOWN) for part in without(floor, known[-1][1], known))
    yield from sorted(found, key=_start)


def _start(item: MissingRange) -> int:
    return item.start

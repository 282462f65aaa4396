"""The history of a partition, of what the catalog's state has of it.

A log that was cut off went on as a new line: the first branch is what was archived of line 0 from the fork on, and so
forth. What the state shows as the partition itself is the last line, or the branch that it follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logkeep_engine.archive.catalog.branches import Branch, PartitionFacts
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import PackedSegments, SegmentTable
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.extent import LogExtents, Slices, StateExtents
from logkeep_engine.archive.history.lines import Line, Lines
from logkeep_engine.archive.history.missing import MissingKind, MissingRange
from logkeep_engine.archive.history.view import History, LineFacts, inside
from logkeep_engine.archive.ranges import Range, add_range

PartitionHistory = History[PackedSegments]


def history_of(state: ArchiveState, key: Partition) -> PartitionHistory:
    """The history of a partition; `shown_line` is the line that the state shows."""
    branches = _earlier_ends(state, key)
    lines = Lines((Line(), *(Line(base, branch.offset) for base, branch in enumerate(branches))))
    table = state.segments[key] if key in state.segments else PackedSegments(key, b"")
    shown = (state.held(key), table, 0)
    held = [*((branch.held, branch.segments, branch.offset) for branch in branches), shown]
    logs: list[LogExtents[PackedSegments]] = []
    facts = [_FactsOfLine() for _ in held]
    states: list[StateExtents[PackedSegments]] = []
    for number, (found, segments, since) in enumerate(held):
        states += (StateExtents(number, item.end, item.time, item.parts(key)) for item in found.snapshots)
        for piece in lines.path(number):
            start = max(piece.start, since)
            if start < piece.end:
                logs.append(LogExtents(piece.owner, start, piece.end, segments))
                facts[piece.owner].add(found, start, piece.end)
    states.sort(key=_end)
    return History(lines, logs, states, [item.facts() for item in facts])


def shown_line(state: ArchiveState, key: Partition) -> int:
    """The number of the line that the state shows as the partition itself."""
    return len(_earlier_ends(state, key))


def _earlier_ends(state: ArchiveState, key: Partition) -> Sequence[Branch]:
    """The branches that the line which the state shows has parted from."""
    branches = state.branches.get(key, ())
    followed = {branch.id for branch in state.followed if branch.key == key}
    return branches[: next((at for at, branch in enumerate(branches) if branch.id in followed), len(branches))]


class _FactsOfLine:
    """The facts of what a line owns, from all that have a part of it."""

    def __init__(self) -> None:
        self._archived: list[Range] = []
        self._removed: list[Range] = []
        self._lost: list[MissingRange] = []

    def add(self, held: PartitionFacts, start: int, end: int) -> None:
        """Add what of these facts lies in [start, end)."""
        for mine, its in ((self._archived, held.coverage), (self._removed, held.removed)):
            for part in inside(its, start, end):
                add_range(mine, *part)
        for gap in held.gaps:
            for part in inside([(gap.start, gap.end)], start, end):
                self._lost.append(MissingRange(*part, MissingKind.LOST, gap.reason))

    def facts(self) -> LineFacts:
        return LineFacts(self._archived, self._removed, self._lost)


def put_slices(segments: SegmentTable, key: Partition, slices: Iterable[Slices[PackedSegments]]) -> None:
    """Let a table of segments have these slices of a partition instead of what it has."""
    rows, cuts, before = bytearray(), dict[int, Range](), 0
    for some in slices:
        rows += some.table.between(some.first, some.last)
        inner = {at: cut for at, cut in some.table.cuts.items() if some.first <= at < some.last} | some.cut()
        cuts |= {before + at - some.first: cut for at, cut in inner.items()}
        before += len(some)
    segments.replace_rows(key, rows, cuts)


def _end(state: StateExtents[PackedSegments]) -> int:
    return state.end

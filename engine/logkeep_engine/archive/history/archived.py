"""The history of a partition, of what the catalog's state has of it."""

from __future__ import annotations

from collections.abc import Iterable

from logkeep_engine.archive.catalog.extent import LogExtents, Slices, StateExtents
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.held_lines import PartitionFacts, cuts_within, lines_of
from logkeep_engine.archive.catalog.lines import FOREVER, Lines
from logkeep_engine.archive.catalog.packed import PackedSegments, SegmentTable
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.missing import MissingKind, MissingRange
from logkeep_engine.archive.history.view import History, LineFacts
from logkeep_engine.archive.ranges import Range

PartitionHistory = History[PackedSegments]


def history_of(state: ArchiveState, key: Partition) -> PartitionHistory:
    """Return the history of a partition; `state.line_number` tells which line the state shows."""
    own = state.own_facts(key)
    logs = [LogExtents(number, 0, FOREVER, facts.table(key)) for number, facts in enumerate(own)]
    states = sorted(states_of(state, key), key=_end)
    return History(lines_in(state, key), logs, states, list(map(_facts, own)))


def lines_in(state: ArchiveState, key: Partition) -> Lines:
    """Return the lines of a partition."""
    return lines_of(state.lines[key]) if key in state.lines else Lines()


def states_of(state: ArchiveState, key: Partition) -> list[StateExtents[PackedSegments]]:
    """Return the snapshots of all lines of a partition."""
    return [
        StateExtents(number, item.end, item.time, item.parts(key))
        for number, facts in enumerate(state.own_facts(key))
        for item in facts.snapshots
    ]


def _facts(own: PartitionFacts) -> LineFacts:
    lost = [MissingRange(gap.start, gap.end, MissingKind.LOST, gap.reason) for gap in own.gaps]
    return LineFacts(own.coverage, own.removed, lost)


def put_slices(segments: SegmentTable, key: Partition, slices: Iterable[Slices[PackedSegments]]) -> None:
    """Let a table of segments have these slices of a partition instead of what it has."""
    rows, cuts, before = bytearray(), dict[int, Range](), 0
    for some in slices:
        rows += some.table.between(some.first, some.last)
        cuts |= {before + at - some.first: cut for at, cut in cuts_within(some).items()}
        before += len(some)
    segments.replace_rows(key, rows, cuts)


def _end(state: StateExtents[PackedSegments]) -> int:
    return state.end

"""The state of compacted partitions: the newest snapshot at or below a point, and the log after it. Pure.

    seen = with_snapshots(state)                                   # for who restores or reads the newest state
    seen = with_snapshots(state, {(topic_id, 0): 1000})            # or that before an offset
    for key in not_exact(state, {(topic_id, 0): 1000}): ...        # retention has removed the log there

A snapshot stands for all offsets below its end. So its parts take the place of the segments below the end, be they
there still or not, and nothing counts as removed there. Of a segment across the end the part after it counts. A state
is exact if each record after the snapshot is there. Where retention has removed a part of the log between a snapshot
and the point, that snapshot is of no use, and neither are those before it.

A topic that is no longer compacted is seen as a log, as far as that is whole: snapshots were made of it before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, takewhile
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from logkeep_engine.archive.catalog.extent import LogExtents, Slices, StateExtents
from logkeep_engine.archive.catalog.facts import Gap, Partition, RunEntry
from logkeep_engine.archive.catalog.generations import NOWHERE, Generation, generation_of, is_dense
from logkeep_engine.archive.catalog.held_lines import PartitionFacts, cuts_within, lines_of
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lines import FOREVER, Lines
from logkeep_engine.archive.catalog.packed import PackedSegments, SegmentTable
from logkeep_engine.archive.catalog.snapshots import NO_TIME
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import totals_of
from logkeep_engine.archive.history.view import (
    History,
    LineFacts,
    MissingKind,
    MissingRange,
    Point,
    States,
    slices_of,
    state_of,
    usable,
)
from logkeep_engine.archive.ranges import Range, inside, together, without
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP

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


_NO_ENDS: Mapping[Partition, int] = MappingProxyType({})


class ExactFrom(NamedTuple):
    """States of a partition are exact if they end at `offset` or later, and if they have all records up to `time` (ms;
    NO_TIME: there are none)."""

    offset: int
    time: int


def with_snapshots(
    state: ArchiveState,
    ends: Mapping[Partition, int] = _NO_ENDS,
    before: int | None = None,
    *,
    where_needed: bool = False,
) -> ArchiveState:
    """Return the same archive with snapshots in place of older segments.

    `ends`: the offsets before which the states of partitions are needed, where that is not the archived end. `before`:
    a time (ms); only snapshots of records before it are taken. `where_needed`: only where the log is not whole.
    """
    chosen: dict[Partition, tuple[PartitionHistory, StateExtents[PackedSegments]]] = {}
    for key in state.snapshots:
        history = history_of(state, key)
        found = state_of(history, _point(state, key, ends.get(key), before, where_needed=where_needed))
        if found is not None:
            chosen[key] = history, found
    if not chosen:
        return state
    view = state.shared()
    view.segments, view.removed = state.segments.copy(), dict(state.removed)
    for key, (history, found) in chosen.items():
        path = history.lines.path(state.line_number(key))
        put_slices(view.segments, key, slices_of(history, path, found))
        view.removed[key] = list(inside(state.removed.get(key, ()), found.end, FOREVER))
    return view


def snapshot_of(
    state: ArchiveState,
    key: Partition,
    end: int | None = None,
    before: int | None = None,
    *,
    where_needed: bool = False,
) -> HeldSnapshot | None:
    """Return the snapshot with which the state of a partition begins, see `with_snapshots`; None: with the log."""
    if key not in state.snapshots:
        return None
    found = state_of(history_of(state, key), _point(state, key, end, before, where_needed=where_needed))
    return None if found is None else next(item for item in state.snapshots[key] if item.end == found.end)


def _point(state: ArchiveState, key: Partition, end: int | None, before: int | None, *, where_needed: bool) -> Point:
    wanted = States.WHERE_NEEDED if where_needed or not state.topics[key[0]].is_compacted else States.NEWEST
    return Point(state.line_number(key), FOREVER if end is None else end, before, wanted)


def _usable(
    state: ArchiveState, key: Partition, end: int | None, before: int | None
) -> Iterator[StateExtents[PackedSegments]]:
    """Yield the snapshots at or below a point after which the log is whole up to the point, the oldest first."""
    if key in state.snapshots:
        yield from usable(history_of(state, key), _point(state, key, end, before, where_needed=False))


def _is_removed(state: ArchiveState, key: Partition, start: int, end: int | None) -> bool:
    return any(inside(state.removed.get(key, ()), start, FOREVER if end is None else end))


def not_exact(
    state: ArchiveState,
    ends: Mapping[Partition, int] = _NO_ENDS,
    before: int | None = None,
    later: ArchiveState | None = None,
) -> Iterator[Partition]:
    """Yield the partitions whose states are not exact: retention has removed a part of the log, and no snapshot stands
    for it. Of a topic that also deletes, removed records are missing only where a snapshot of a later point has what
    their keys had become: the archive kept these keys. `later`: a later state of the archive, which has such
    snapshots."""
    for key in state.removed:
        end = ends.get(key)
        if not _is_removed(state, key, 0, end) or any(_usable(state, key, end, before)):
            continue
        if state.topics[key[0]].is_compacted_only or any(_usable(later or state, key, None, None)):
            yield key


def exact_by_snapshots(state: ArchiveState, key: Partition) -> ExactFrom | None:
    """Return the first points of a partition from which on all are exact, as far as snapshots show; None: not even the
    newest is."""
    if known_generation(state, key).exact_from == NOWHERE:
        return None
    is_removed = bool(state.removed.get(key))
    first = next(_usable(state, key, None, None), None) if is_removed else None
    if first is not None:
        return ExactFrom(first.end, first.time)
    if is_removed and state.topics[key[0]].is_compacted_only:
        return None
    accounted = state.accounted_for(*key)
    return ExactFrom(accounted[0][0] if accounted else 0, NO_TIME)


def is_exact_below(state: ArchiveState, key: Partition, end: int) -> bool:
    """Return whether what the archive has of a partition below an offset is a state of its log that is exact at a later
    offset of another log, too: no record is missing that had been overwritten from there on, nor one that was
    removed."""
    known = known_generation(state, key)
    if end < known.exact and not is_dense(state, key, end):
        return False
    return not _is_removed(state, key, 0, end) or any(_usable(state, key, end, None))


def first_exact(state: ArchiveState, key: Partition) -> ExactFrom | None:
    """Return the first points of a partition from which on all are exact, by its generation, too; None: not even the
    newest is."""
    found = exact_by_snapshots(state, key)
    known = known_generation(state, key)
    if found is None or known.exact <= found.offset or is_dense(state, key, known.exact):
        return found
    return ExactFrom(known.exact, max(found.time, last_time(state, key, known.exact)))


def known_generation(state: ArchiveState, key: Partition) -> Generation:
    """Return the generations of a partition. The first one of a compacted topic is exact from the end of the first
    backup of the partition on: points below it lack what brokers had compacted before."""
    known = generation_of(state, key)
    if known.number != 1 or known.exact >= 0 or not state.topics[key[0]].was_compacted:
        return known
    end = _end_of_first_backup(state, key)
    return replace(known, exact=end) if _lacks_offsets(state, key, end) else known


def _end_of_first_backup(state: ArchiveState, key: Partition) -> int:
    """Return the end of what the first backup has archived of a partition, with those before it that have not
    succeeded, on the line that its log was then; -1 if there is none. Once retention has removed its log, snapshots
    show from where on points are exact, and all end there or later."""
    own = state.own_facts(key)[0]
    entries = own.table(key)
    if not entries or own.removed:
        return -1
    first = entries[0].archived_first
    run = next((run for run in _ended(state) if run.epoch >= first), None)
    if run is None or run.kind != BACKUP:  # a conversion brings what earlier backups have archived
        return -1
    return max(entry.next_offset for entry in takewhile(lambda entry: entry.archived_first <= run.epoch, entries))


def _ended(state: ArchiveState) -> list[RunEntry]:
    """Return the runs that have succeeded, and the last one if it has not: it may have archived something, too."""
    found = state.successes()
    last = max((run for run in state.runs.values() if not run.is_maintenance), key=attrgetter("epoch"), default=None)
    return found if last is None or (found and found[-1].epoch >= last.epoch) else [*found, last]


def _lacks_offsets(state: ArchiveState, key: Partition, end: int) -> bool:
    """Tell whether an offset is missing below `end`, on the line that the log was first, where nothing was lost. An
    erasure may have taken it: whether offsets were missing before in what it has rewritten is unknown."""
    own = state.own_facts(key)[0]
    accounted, there = own.accounted, list(_lost(own.gaps))
    reached = accounted[0][0] if accounted else 0
    for entry in own.table(key):
        if entry.base_offset >= end:
            break
        stop = entry.next_offset if entry.gaps else entry.base_offset
        if without(reached, stop, there):
            return True
        reached = entry.next_offset
    return False


def _lost(gaps: Iterable[Gap]) -> Iterator[Range]:
    return ((gap.start, gap.end) for gap in gaps)


class SparseRange(NamedTuple):
    """Offsets [start, end) that one backup has archived after records of them had been overwritten: a state that ends
    between `start` and `end` lacks these. Times (ms) at which it does are later than `before`, and up to `last`, the
    highest one of records below `end`. `before` is the highest time of records below `start`, or the lowest one of a
    batch in the range: what is missing may be as late as its neighbours. NO_TIME: there are none."""

    start: int
    end: int
    before: int
    last: int


def sparse_ranges(state: ArchiveState, key: Partition) -> Iterator[SparseRange]:
    """Yield the ranges of a compacted partition in which no state is exact, each from the first offset at which records
    may be missing to the end of the backup that has read it. An erasure may have taken them: it is unknown what was
    missing before. What a conversion has brought is not looked at: the ends of the backups of its source are not
    known."""
    entries = state.segments.get(key)
    if entries is None or not state.topics[key[0]].was_compacted:
        return
    accounted, runs = state.accounted_for(*key), _ended(state)
    there = together(state.removed.get(key, ()), _lost(state.gaps.get(key, ())))
    epochs = [run.epoch for run in runs]
    reached = accounted[0][0]
    last = before = NO_TIME
    for at, group in groupby(entries, lambda entry: bisect_left(epochs, entry.archived_first)):
        start = None
        for entry in group:
            if start is None and without(reached, entry.next_offset if entry.gaps else entry.base_offset, there):
                start, before = reached, last
            if start is not None:
                before = min(before, entry.times.min_base_timestamp)
            reached, last = entry.next_offset, max(last, entry.times.max_timestamp)
        if start is not None and at < len(runs) and runs[at].kind == BACKUP:
            yield SparseRange(start, reached, before, last)


def last_time(state: ArchiveState, key: Partition, end: int) -> int:
    """Return the time (ms) of the latest record of a partition that may lie below an offset; NO_TIME: there is none."""
    if key not in state.segments:
        return NO_TIME
    entries = state.segments[key]
    return totals_of(entries.between(0, entries.position(end))).last


def inexact_below(state: ArchiveState) -> dict[Partition, int]:
    """Return the offsets below which what `with_snapshots` shows `where_needed` is not exact, by partition; NOWHERE: at
    none it is. Partitions that are exact everywhere are left out."""
    found = {}
    compacted = {key for key in state.segments if state.topics[key[0]].was_compacted}
    for key in {*state.next_generations, *state.removed, *compacted}:
        generation = known_generation(state, key).exact_from
        snapshot = snapshot_of(state, key, where_needed=True)
        exact = max(0 if is_dense(state, key, generation) else generation, 0 if snapshot is None else snapshot.end)
        if exact > 0:
            found[key] = exact
    return found | dict.fromkeys(not_exact(state), NOWHERE)


def snapshots_then(earlier: ArchiveState, later: ArchiveState) -> dict[Partition, list[HeldSnapshot]]:
    """Return the snapshots that a later state has of the lines that the earlier one shows: most are made when a run has
    ended, and some are there no more."""
    found = {}
    for key in {*later.snapshots, *later.lines}:
        lines, number = lines_in(later, key), earlier.line_number(key)
        accounted = earlier.accounted_for(*key)
        held = [
            item
            for line, own in enumerate(later.own_facts(key))
            for item in own.snapshots
            if accounted and item.end <= accounted[-1][1] and lines.agree(line, number) >= item.end
        ]
        if held:
            found[key] = sorted(held, key=attrgetter("end"))
    return found

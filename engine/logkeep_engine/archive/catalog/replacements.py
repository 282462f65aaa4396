"""Replaces segments by what an erasure has left of them, by copies of them, or by what they were merged into. No I/O.

The objects of a replaced segment are deleted, and an older state of the archive still names them. What has taken the
place of a segment takes it in older states, too: `ArchiveState.following`. Only segments that have lost records stay
in a list of their own, `ArchiveState.replaced`: a reconciliation with the cluster must know them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import is_
from typing import NamedTuple, Protocol

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.extent import Slices
from logkeep_engine.archive.catalog.facts import NOTHING_LEFT, Partition, ReplacedSegment
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.kinds import NUMBER
from logkeep_engine.archive.catalog.packed import (
    ROW_BYTES,
    PackedSegments,
    SegmentTable,
    identity_of,
    offsets_of,
    pack,
    sums_of,
)
from logkeep_engine.archive.ranges import Range, add_range, inside, together, without

Identity = tuple[int, int, int, int]


class Replacement(NamedTuple):
    """A segment that was replaced, by its `packed.identity_of`, and the row of the one in its place (b"": nothing is
    left of it)."""

    segment: Identity
    row: bytes


class Exchange(NamedTuple):
    """A segment, or a part of a snapshot, and what is left of it: another in its place, or None. Neighbours have the
    same one in their places if they were merged. `line`: the number of the line on which it lies."""

    entry: SegmentEntry
    left: SegmentEntry | None
    line: int = 0


class Erased(NamedTuple):
    """The records and bytes that segments have lost, how many segments that were, and of which partitions."""

    records: int
    bytes: int
    segments: int
    keys: frozenset[Partition]


class HoldsSegments(Protocol):
    """The part of a state that has segments."""

    segments: SegmentTable
    lines: dict[Partition, list[HeldLine]]
    snapshots: dict[Partition, list[HeldSnapshot]]
    replaced: dict[Partition, list[Replacement]]

    def own_facts(self, key: Partition) -> list[PartitionFacts]: ...

    def put_own(self, key: Partition, line: int, own: PartitionFacts) -> None: ...

    def copy_tables(self) -> None: ...

    def show(self, key: Partition) -> None: ...

    def hold(self, key: Partition, held: PartitionFacts) -> None: ...


def erased_ranges(state: HoldsSegments, key: Partition, end: int) -> list[Range]:
    """Return the ranges of offsets in which segments were replaced, so that records of the cluster may be missing
    there. `end`: where the archive ends. If it is unknown where a segment ended, its range continues to the next one.
    What a generation has read again since is none of them.

    A part of a snapshot counts where no segment is left: elsewhere the segments say the same, more exactly. What lies
    between it and the part before was overwritten by records that may be erased.
    """
    log = [entry for entry in state.segments.get(key, ()) if entry.layout is not Layout.SNAPSHOT]
    bases = [entry.base_offset for entry in log]
    there = together(((entry.base_offset, entry.next_offset) for entry in log), ())
    found: list[Range] = []
    for (base, epoch, _, snapshot), row in state.replaced.get(key, ()):
        left = PackedSegments(key, row)[0] if row else None
        stop = base + 1 if left is None else max(left.next_offset, base + 1)
        if _is_read_again(log, bases, base, stop, epoch if left is None else left.epoch):
            continue
        if snapshot:
            for part in without(_end_before(state, key, snapshot, base), stop, there):
                add_range(found, *part)
            continue
        if left is None or left.layout is not Layout.KAFKA:
            # What is left of a segment begins with its first record, so it is not the next one.
            following = bisect_right(bases, base if left is None else max(base, left.base_offset))
            stop = bases[following] if following < len(bases) else max(end, stop)
        add_range(found, base, stop)
    return found


def _end_before(state: HoldsSegments, key: Partition, snapshot: int, base: int) -> int:
    """Return the end of what a snapshot has before the part with this base offset; 0: nothing."""
    parts = next((held.parts(key) for held in state.snapshots.get(key, ()) if held.end == snapshot), None)
    if parts is None:
        return base
    at = parts.position(base)
    return parts[at - 1].next_offset if at else 0


def _is_read_again(log: Sequence[SegmentEntry], bases: Sequence[int], start: int, stop: int, epoch: int) -> bool:
    """Return whether all segments of these offsets were archived after an epoch, and there is one. One that was moved
    since was not."""
    first = max(0, bisect_right(bases, start) - 1)
    found = log[first : bisect_left(bases, stop)]
    epochs = [entry.archived_first for entry in found if entry.next_offset > start]
    return bool(epochs) and min(epochs) > epoch


def put_in_place(
    state: HoldsSegments,
    replaced: Iterable[ReplacedSegment],
    segments: Sequence[SegmentEntry],
    unname: Callable[[Partition, bytes], None],
) -> Erased:
    """Put segments in place of others, and tell `unname` the rows of these. Returns what has lost records: copies
    and merged segments have all of them. Raises ValueError for one that is not there, or is of another partition, for
    one that has more than what it replaces, and for one in place of several that does not have all of them."""
    places: dict[tuple[Partition, int, int], dict[int, list[int]]] = {}
    left: set[int] = set()
    for item in replaced:
        place = (item.topic_id, item.partition), item.line, item.snapshot
        if not NOTHING_LEFT <= item.by < len(segments):
            raise ValueError(
                f"segment {item.base_offset} of {place[0]} is replaced by number {item.by} of {len(segments)} segments"
            )
        by = -1 - item.base_offset if item.by == NOTHING_LEFT else item.by
        items = places.setdefault(place, {})
        if by in left and by not in items:
            raise ValueError(f"segment {item.base_offset} of {place[0]} is replaced by one that is elsewhere, too")
        items.setdefault(by, []).append(item.base_offset)
        if item.by != NOTHING_LEFT:
            left.add(by)
    if replaced and len(left) < len(segments):
        raise ValueError(f"{len(segments) - len(left)} of {len(segments)} segments replace nothing")
    records = size = erased = 0
    keys: set[Partition] = set()
    for (key, line, snapshot), items in places.items():
        table = _Rows(key, _rows_of(state, key, line, snapshot))
        for by, bases in items.items():
            row = b"" if by < 0 else pack(segments[by])
            if row and (segments[by].topic_id, segments[by].partition) != key:
                raise ValueError(f"segment {bases[0]} of {key} is replaced by one of another partition")
            gone = table.put(bases, row)
            for one in gone:
                unname(key, one)
            before, after = sums_of(b"".join(gone)), sums_of(row)
            if not row or before[0] > after[0]:
                state.replaced.setdefault(key, []).append(Replacement(identity_of(gone[0]), row))
                keys.add(key)
                records, size, erased = records + before[0] - after[0], size + before[1] - after[1], erased + 1
        _put(state, key, line, snapshot, b"".join(table.rows))
    return Erased(records, size, erased, frozenset(keys))


class _Rows:
    """The rows of a line or of a snapshot while some of them are replaced. They are joined once: a
    commit may replace thousands."""

    def __init__(self, key: Partition, rows: bytes | bytearray) -> None:
        self._key, self._packed = key, PackedSegments(key, rows)
        self.rows = [bytes(rows[at : at + ROW_BYTES]) for at in range(0, len(rows), ROW_BYTES)]

    def put(self, bases: Sequence[int], row: bytes) -> list[bytes]:
        """Put a row in place of those with these base offsets; returns these. Raises ValueError for one that is not
        there, for a row that has more than they, and for several that it does not have as they are: neighbours, with
        all records."""
        gone: list[bytes] = []
        for base in sorted(bases):
            at = self._packed.position(base)
            old = self.rows[at] if at < len(self.rows) else b""
            if not old or offsets_of(old)[0] != base:
                raise ValueError(f"there is no segment {base} of {self._key} to replace")
            self.rows[at] = b"" if gone else row
            gone.append(old)
        spans, sums = list(map(offsets_of, gone)), sums_of(b"".join(gone))
        if len(gone) > 1:
            are_neighbours = all(one[1] == other[0] for one, other in pairwise(spans))
            if not are_neighbours or (*offsets_of(row), *sums_of(row)) != (spans[0][0], spans[-1][1], *sums):
                raise ValueError(f"segment {spans[0][0]} of {self._key} lacks a part of what it replaces")
        elif row and (without(*offsets_of(row), spans) or sums_of(row)[0] > sums[0]):
            raise ValueError(f"segment {spans[0][0]} of {self._key} has more than what it replaces")
        return gone


def drafted(
    state: HoldsSegments, exchanges: Iterable[Exchange]
) -> tuple[tuple[ReplacedSegment, ...], list[SegmentEntry]]:
    """Return the facts of a commit of these exchanges: the segments that are replaced, and those that take their place.
    Raises ValueError for a segment that the archive does not have."""
    replaced: list[ReplacedSegment] = []
    segments: list[SegmentEntry] = []
    numbers: dict[SegmentEntry, int] = {}
    for item in exchanges:
        entry = item.entry
        key = (entry.topic_id, entry.partition)
        end = entry.files.end if entry.layout is Layout.SNAPSHOT else 0
        if pack(entry) not in _rows_at(key, _rows_of(state, key, item.line, end), entry.base_offset):
            raise ValueError(f"there is no segment {entry.base_offset} of {key} of epoch {entry.epoch}")
        by = NOTHING_LEFT
        if item.left is not None:
            first, last = entry.archived_first, entry.archived_last
            by = numbers.setdefault(item.left, len(segments))
            if by == len(segments):
                segments.append(replace(item.left, first_epoch=first, last_epoch=last))
            else:
                known = segments[by]
                first, last = min(first, known.first_epoch), max(last, known.last_epoch)
                segments[by] = replace(known, first_epoch=first, last_epoch=last)
        replaced.append(ReplacedSegment(*key, item.line, entry.base_offset, by, end))
    return tuple(replaced), segments


def _rows_of(state: HoldsSegments, key: Partition, line: int, snapshot: int) -> bytes | bytearray:
    """Return the rows of a line, or of its snapshot with this end; none if there is no such line or snapshot."""
    lines = state.own_facts(key)
    if not 0 <= line < len(lines):
        return b""
    own = lines[line]
    return next((held.rows for held in own.snapshots if held.end == snapshot), b"") if snapshot else own.rows


def _rows_at(key: Partition, rows: bytes | bytearray, base: int) -> list[bytes]:
    """Return the row of the segment with this base offset; none if there is none."""
    at = PackedSegments(key, rows).position(base) * ROW_BYTES
    row = bytes(rows[at : at + ROW_BYTES])
    return [row] if row and offsets_of(row)[0] == base else []


def _put(state: HoldsSegments, key: Partition, line: int, snapshot: int, rows: bytes) -> None:
    """Put `rows` in place of those of a line of the partition, or of its snapshot with this end."""
    own = state.own_facts(key)[line]
    if snapshot:
        own.snapshots = [replace(held, rows=rows) if held.end == snapshot else held for held in own.snapshots]
    else:
        own.rows = rows
    state.put_own(key, line, own)


def follow(view: HoldsSegments, later: HoldsSegments) -> None:
    """Give an older state, which shares its facts with others, what a later one has in place of its segments. Lines
    and the ranges of their segments never change, so the later state has it at the same offsets: all of a segment, or,
    where several were merged, the part of them that was there."""
    view.copy_tables()
    view.replaced, view.lines = later.replaced, dict(view.lines)
    for key in sorted({*view.segments, *view.snapshots, *view.lines}):
        own, now = view.own_facts(key), later.own_facts(key)
        found = [_followed(one, other) for one, other in zip(own, now, strict=False)]
        if all(map(is_, found, own)):
            continue
        if key in view.lines:
            view.lines[key] = [replace(line, held=one) for line, one in zip(view.lines[key], found, strict=True)]
            view.show(key)
        else:
            view.hold(key, found[0])


def _followed(own: PartitionFacts, now: PartitionFacts) -> PartitionFacts:
    """Return what lies on a line with what it has become since; the same object if nothing has changed."""
    snapshots = list(_snapshots(own.snapshots, {item.end: item.rows for item in now.snapshots}))
    if now.rows.startswith(own.rows):
        return own if snapshots == own.snapshots else replace(own, snapshots=snapshots)
    rows, cuts = bytearray(), dict[int, Range]()
    before, after = own.table(), now.table()
    for at in range(len(before)):
        start, end = before.span(at)
        some = Slices.within(after, start, end)
        if not len(some) and any(inside(now.removed, start, end)):
            some = Slices(before, at, at + 1, start, end)
        for number, part in some.spans():
            after_row = some.table.row(number)
            low, high = part
            last = len(rows) // ROW_BYTES - 1
            if last in cuts and cuts[last][1] == low and rows[-ROW_BYTES:] == after_row:
                low = cuts.pop(last)[0]
            else:
                rows += after_row
                last += 1
            if (low, high) != offsets_of(after_row):
                cuts[last] = low, high
    return replace(own, rows=bytes(rows), cuts=cuts, snapshots=snapshots)


def _snapshots(held: Iterable[HeldSnapshot], latest: Mapping[int, bytes]) -> Iterator[HeldSnapshot]:
    """Yield snapshots with the rows that those of the same ends have now, and those that are gone as they were."""
    for item in held:
        rows = latest.get(item.end, item.rows)
        yield item if rows == item.rows else replace(item, rows=rows)


def replacements_out(replacements: Sequence[Replacement]) -> tuple[list[list[int]], bytes]:
    """Return the replacements as a checkpoint has them: the identity and the number of rows of each, and the rows."""
    return [[*item.segment, 1 if item.row else 0] for item in replacements], b"".join(item.row for item in replacements)


def replacements_in(items: Iterable[Sequence[int]], take: Callable[[int], bytes]) -> list[Replacement]:
    """Read the replacements of a checkpoint; `take` returns its next rows. Raises ValueError for anything else."""
    found: list[Replacement] = []
    for base, epoch, attempt, end, count in items:
        NUMBER.check((base, epoch, attempt, end, count), "a number of a replacement")
        if count not in (0, 1):
            raise ValueError(f"segment {base} of epoch {epoch} was replaced by {count} segments")
        found.append(Replacement((base, epoch, attempt, end), take(count)))
    return found

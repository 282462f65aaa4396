"""Segments that an erasure has replaced: what took the place of each, so that older states find it. No I/O.

The objects of a replaced segment are gone, and an older state of the archive still names them. What the erasure has
left of a segment stands in its place there, too: `ArchiveState.following`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
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
    packs_of,
    sums_of,
)
from logkeep_engine.archive.ranges import Range, add_range, together, without

Identity = tuple[int, int, int, int]


class Replacement(NamedTuple):
    """A segment that was replaced, by its `packed.identity_of`, and the row of the one in its place (b"": nothing is
    left of it)."""

    segment: Identity
    row: bytes


class Exchange(NamedTuple):
    """A segment, or a part of a snapshot, and what is left of it: another in its place, or None. `line`: the number of
    the line on which it lies."""

    entry: SegmentEntry
    left: SegmentEntry | None
    line: int = 0


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


def first_epochs(replaced: Iterable[Replacement]) -> Callable[[SegmentEntry], int]:
    """A function that tells at which epoch the records of a segment of the partition were archived first: an erasure
    that has written the segment anew has archived nothing."""
    found: dict[Identity, int] = {}
    for item in replaced:
        if item.row:
            found[identity_of(item.row)] = found.get(item.segment, item.segment[1])

    def epoch_of(entry: SegmentEntry) -> int:
        end = entry.files.end if entry.layout is Layout.SNAPSHOT else 0
        return found.get((entry.base_offset, entry.epoch, entry.attempt, end), entry.epoch)

    return epoch_of


def erased_ranges(state: HoldsSegments, key: Partition, end: int) -> list[Range]:
    """The ranges of offsets in which segments were replaced, so that records of the cluster may be missing there.
    `end`: where the archive ends. If nobody knows where a segment ended, its range goes on to the next one. What a
    generation has read again since is none of them.

    A part of a snapshot counts where no segment is left: elsewhere the segments tell the same, more exactly.
    """
    log = [entry for entry in state.segments.get(key, ()) if entry.layout is not Layout.SNAPSHOT]
    bases = [entry.base_offset for entry in log]
    there = together(((entry.base_offset, entry.next_offset) for entry in log), ())
    found: list[Range] = []
    for (base, epoch, _, snapshot), row in state.replaced.get(key, ()):
        left = PackedSegments(key, row)[0] if row else None
        if left is not None and left.layout is Layout.PACK:
            continue  # a copy: what is written anew has objects of its own
        stop = base + 1 if left is None else max(left.next_offset, base + 1)
        if _is_read_again(log, bases, base, stop, epoch if left is None else left.epoch):
            continue
        if snapshot:
            for part in without(base, stop, there):
                add_range(found, *part)
            continue
        if left is None or left.layout is not Layout.KAFKA:
            behind = bisect_right(bases, base)
            stop = bases[behind] if behind < len(bases) else max(end, stop)
        add_range(found, base, stop)
    return found


def _is_read_again(log: Sequence[SegmentEntry], bases: Sequence[int], start: int, stop: int, epoch: int) -> bool:
    """Whether all segments of these offsets were archived behind an epoch, and there is one."""
    first = max(0, bisect_right(bases, start) - 1)
    found = log[first : bisect_left(bases, stop)]
    epochs = [entry.epoch for entry in found if entry.next_offset > start]
    return bool(epochs) and min(epochs) > epoch


def put_in_place(
    state: HoldsSegments,
    replaced: Iterable[ReplacedSegment],
    segments: Sequence[SegmentEntry],
    unname: Callable[[Partition, bytes], None],
) -> tuple[int, int, int]:
    """Put segments in the place of others, and tell `unname` the rows of these. Returns how many records and bytes
    fewer they have, and how many segments were written anew, copies in packs not among them. Raises ValueError for one
    that is not there, or is of another partition."""
    records = size = anew = 0
    tables: dict[tuple[Partition, int, int], _Rows] = {}
    for item in replaced:
        key = (item.topic_id, item.partition)
        row = b"" if item.by == NOTHING_LEFT else pack(segments[item.by])
        if row and (segments[item.by].topic_id, segments[item.by].partition) != key:
            raise ValueError(f"segment {item.base_offset} of {key} is replaced by one of another partition")
        place = (key, item.line, item.snapshot)
        if place not in tables:
            tables[place] = _Rows(key, _rows_of(state, item))
        gone = tables[place].put(item.base_offset, row)
        unname(key, gone)
        state.replaced.setdefault(key, []).append(Replacement(identity_of(gone), row))
        before, after = sums_of(gone), sums_of(row)
        records, size = records + before[0] - after[0], size + before[1] - after[1]
        anew += not packs_of(row)
    for (key, line, snapshot), table in tables.items():
        _put(state, key, line, snapshot, b"".join(table.rows))
    return records, size, anew


class _Rows:
    """The rows of a line or of a snapshot while some of them are replaced. They are joined once: a
    commit may replace thousands."""

    def __init__(self, key: Partition, rows: bytes | bytearray) -> None:
        self._key, self._packed = key, PackedSegments(key, rows)
        self.rows = [bytes(rows[at : at + ROW_BYTES]) for at in range(0, len(rows), ROW_BYTES)]

    def put(self, base: int, row: bytes) -> bytes:
        """Put a row in the place of the one with this base offset; returns that one. Raises ValueError if there is
        none."""
        at = self._packed.position(base)
        gone = self.rows[at] if at < len(self.rows) else b""
        if not gone or offsets_of(gone)[0] != base:
            raise ValueError(f"there is no segment {base} of {self._key} to replace")
        self.rows[at] = row
        return gone


def drafted(
    state: HoldsSegments, exchanges: Iterable[Exchange]
) -> tuple[tuple[ReplacedSegment, ...], list[SegmentEntry]]:
    """The facts of a commit of these exchanges: the segments that are replaced, and those that take their place. Raises
    ValueError for a segment that the archive does not have."""
    replaced: list[ReplacedSegment] = []
    segments: list[SegmentEntry] = []
    for item in exchanges:
        entry = item.entry
        key = (entry.topic_id, entry.partition)
        end = entry.files.end if entry.layout is Layout.SNAPSHOT else 0
        by = NOTHING_LEFT if item.left is None else len(segments)
        found = ReplacedSegment(*key, item.line, entry.base_offset, by, end)
        if pack(entry) not in _rows_at(key, _rows_of(state, found), entry.base_offset):
            raise ValueError(f"there is no segment {entry.base_offset} of {key} of epoch {entry.epoch}")
        replaced.append(found)
        segments += () if item.left is None else (item.left,)
    return tuple(replaced), segments


def _rows_of(state: HoldsSegments, item: ReplacedSegment) -> bytes | bytearray:
    """The rows among which the segment is; none if there is no such line or snapshot."""
    lines = state.own_facts((item.topic_id, item.partition))
    if not 0 <= item.line < len(lines):
        return b""
    own = lines[item.line]
    return next((held.rows for held in own.snapshots if held.end == item.snapshot), b"") if item.snapshot else own.rows


def _rows_at(key: Partition, rows: bytes | bytearray, base: int) -> list[bytes]:
    """The row of the segment with this base offset; none if there is none."""
    at = PackedSegments(key, rows).position(base) * ROW_BYTES
    row = bytes(rows[at : at + ROW_BYTES])
    return [row] if row and offsets_of(row)[0] == base else []


def _put(state: HoldsSegments, key: Partition, line: int, snapshot: int, rows: bytes) -> None:
    """Put `rows` in the place of those of a line of the partition, or of its snapshot with this end."""
    own = state.own_facts(key)[line]
    if snapshot:
        own.snapshots = [replace(held, rows=rows) if held.end == snapshot else held for held in own.snapshots]
    else:
        own.rows = rows
    state.put_own(key, line, own)


def follow(view: HoldsSegments, replaced: Mapping[Partition, list[Replacement]]) -> None:
    """Give an older state, which shares its facts with others, what a later one has in the place of its segments."""
    view.copy_tables()
    view.replaced, view.lines = dict(replaced), dict(view.lines)
    for key, items in replaced.items():
        latest = {item.segment: item.row for item in items}
        if key in view.lines:
            view.lines[key] = [replace(line, held=_latest_facts(line.held, latest)) for line in view.lines[key]]
            view.show(key)
            continue
        if key in view.segments:
            view.segments.replace_rows(key, _latest(view.segments.rows(key), latest))
        if key in view.snapshots:
            view.snapshots[key] = list(_snapshots(view.snapshots[key], latest))


def _latest_facts(own: PartitionFacts, latest: Mapping[Identity, bytes]) -> PartitionFacts:
    return replace(own, rows=_latest(own.rows, latest), snapshots=list(_snapshots(own.snapshots, latest)))


def _snapshots(held: Iterable[HeldSnapshot], latest: Mapping[Identity, bytes]) -> Iterator[HeldSnapshot]:
    return (replace(item, rows=_latest(item.rows, latest)) for item in held)


def _latest(rows: bytes | bytearray, latest: Mapping[Identity, bytes]) -> bytes:
    found = bytearray()
    for at in range(0, len(rows), ROW_BYTES):
        row = bytes(rows[at : at + ROW_BYTES])
        while row and (identity := identity_of(row)) in latest:
            row = latest[identity]
        found += row
    return bytes(found)


def replacements_out(replacements: Sequence[Replacement]) -> tuple[list[list[int]], bytes]:
    """The replacements as a checkpoint has them: the identity and the number of rows of each, and the rows."""
    return [[*item.segment, 1 if item.row else 0] for item in replacements], b"".join(item.row for item in replacements)


def replacements_in(items: Iterable[Sequence[int]], take: Callable[[int], bytes]) -> list[Replacement]:
    """The replacements of a checkpoint; `take` gives so many of its next rows. Raises ValueError for what is none."""
    found: list[Replacement] = []
    for base, epoch, attempt, end, count in items:
        NUMBER.check((base, epoch, attempt, end, count), "a number of a replacement")
        if count not in (0, 1):
            raise ValueError(f"segment {base} of epoch {epoch} was replaced by {count} segments")
        found.append(Replacement((base, epoch, attempt, end), take(count)))
    return found

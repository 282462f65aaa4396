"""Sums over segments as they lie packed in memory. An entry of each would take twenty times as long."""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.entry import FILES, Layout
from logkeep_engine.archive.catalog.packed import LAYOUT_AT, PACK_ID, ROW_BYTES, PackedSegments, PackId, sums_of

Rows = bytes | bytearray

_ROW = struct.Struct(fields.ROW_LAYOUT)
_EPOCH, _RECORDS, _BYTES = fields.at("epoch"), fields.at("records"), fields.at("bytes")
_FIRST, _LAST = fields.at("times.min_base_timestamp"), fields.at("times.max_timestamp")
_STORED, _TXNINDEX = fields.at("files.stored_bytes"), fields.at("files.txnindex_bytes")
_OBJECTS = [FILES[layout].least_objects for layout in sorted(Layout)]
# epoch, bytes, storedBytes, the bytes of three indexes, firstEpoch, layout
_SIZES = struct.Struct(f"<16xq16xq16xq8x3I16xI{ROW_BYTES - 114}xBx")
_WITH_INDEXES = frozenset(map(int, (Layout.KAFKA, Layout.PACK)))


@dataclass(slots=True)
class SegmentTotals:
    """The sums of some segments. `own_objects` are those that no other segment shares, indexes included; the others are
    `packs`. `stored_bytes` are those of the objects that hold logs or records, of packs only those of the logs. `first`
    and `last` are times in ms since the epoch, from the earliest first time of a batch to the latest of a record; -1 if
    there is none. `epochs` are those at which the segments were written."""

    segments: int = 0
    own_objects: int = 0
    records: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    first: int = -1
    last: int = -1
    epochs: set[int] = field(default_factory=set)
    packs: set[PackId] = field(default_factory=set)

    @property
    def objects(self) -> int:
        """The number of all objects."""
        return self.own_objects + len(self.packs)

    def add_rows(self, rows: Rows, start: int = 0) -> None:
        """Add the rows from the one with the number `start` on."""
        packed = bytes(rows[start * ROW_BYTES :])
        for row in _ROW.iter_unpack(packed):
            size, first, stored = row[_BYTES], row[_FIRST], row[_STORED]
            self.records += row[_RECORDS]
            self.bytes += size
            layout = row[LAYOUT_AT]
            self.own_objects += _OBJECTS[layout]
            if layout == Layout.KAFKA:
                self.stored_bytes += stored or size
                self.own_objects += row[_TXNINDEX] > 0
            elif layout == Layout.PACK:
                self.stored_bytes += stored or size
                self.packs.add(PACK_ID(row))
            else:  # these places hold other numbers
                self.stored_bytes += size
            if first >= 0 and (first < self.first or self.first < 0):
                self.first = first
            if row[_LAST] > self.last:
                self.last = row[_LAST]
            self.epochs.add(row[_EPOCH])
        self.segments += len(packed) // ROW_BYTES

    def add(self, other: SegmentTotals) -> None:
        """Add the sums of other segments."""
        self.segments += other.segments
        self.own_objects += other.own_objects
        self.packs |= other.packs
        self.records += other.records
        self.bytes += other.bytes
        self.stored_bytes += other.stored_bytes
        self.first = min((first for first in (self.first, other.first) if first >= 0), default=-1)
        self.last = max(self.last, other.last)
        self.epochs |= other.epochs


def totals_of_segments(segments: PackedSegments) -> SegmentTotals:
    """Return the sums of segments. Of one that is cut no more records count than it has offsets; its objects are those
    of the whole."""
    found = totals_of(segments.packed)
    for at, (start, end) in segments.cuts.items():
        records = sums_of(segments.row(at))[0]
        found.records -= records - min(records, end - start)
    return found


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The bytes of the `logs` of some segments, or of their records, and of all their objects."""

    logs: int = 0
    objects: int = 0

    def __add__(self, other: SegmentBytes) -> SegmentBytes:
        return SegmentBytes(self.logs + other.logs, self.objects + other.objects)


def bytes_of(rows: Rows, epochs: Container[int] = ()) -> tuple[SegmentBytes, SegmentBytes]:
    """Return the bytes of packed rows, and of those of them that were first archived at one of these epochs."""
    logs = objects = some_logs = some_objects = 0
    for epoch, size, stored, index, times, transactions, first, layout in _SIZES.iter_unpack(bytes(rows)):
        whole = size + index
        if layout in _WITH_INDEXES:  # in other layouts these places hold other numbers
            whole += times + transactions + (stored - size if stored else 0)
        logs += size
        objects += whole
        if (first or epoch) in epochs:
            some_logs += size
            some_objects += whole
    return SegmentBytes(logs, objects), SegmentBytes(some_logs, some_objects)


def totals_of(rows: Rows, start: int = 0) -> SegmentTotals:
    """Return the sums of packed rows, from the one with the number `start` on."""
    found = SegmentTotals()
    found.add_rows(rows, start)
    return found

"""Digests of the records of archived segments: what a restored topic is compared with, see docs/design/0011.

A segment's digests are of its committed records as a consumer sees them, in stretches, each with its offsets. A stretch
has at least STRETCH_RECORDS records or STRETCH_BYTES bytes, except the last one. So a difference is found by reading
one stretch again, and of a segment that is only needed in part the other stretches still serve.

The digests are bound to what they were made from: to the digest of the segment's bytes, and to the transactions that
were left out. If either has changed, they are stale, and are made again when needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.partition import is_batched, open_partition, sound
from logkeep_engine.digest import Digest
from logkeep_engine.log.batch import Headers
from logkeep_engine.log.rows import RecordDigest, Rows, as_rows, note_committed
from logkeep_engine.log.transactions import Span, Spans
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext

STRETCH_RECORDS = 1 << 16
STRETCH_BYTES = 16 << 20
MOST_BUCKETS = 256

Buckets = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """Counts of records by their times: buckets of (time >> shift, records, bytes). -1: no time."""

    shift: int = 0
    buckets: Buckets = ()

    @classmethod
    def of(cls, digest: RecordDigest) -> RecordTimes:
        """Return the times of the records that were noted in a digest."""
        shift, buckets = digest.times
        return cls(shift, tuple(buckets))

    @classmethod
    def together(cls, parts: Iterable[RecordTimes], most: int = MOST_BUCKETS) -> RecordTimes:
        """Return the times of all parts, in at most `most` buckets."""
        shift, counts = 0, dict[int, tuple[int, int]]()
        for part in parts:
            if part.shift > shift:
                counts, shift = _coarser(counts, part.shift - shift), part.shift
            for number, records, size in part.buckets:
                own = counts.get(number >> (shift - part.shift), (0, 0))
                counts[number >> (shift - part.shift)] = (own[0] + records, own[1] + size)
            while len(counts) > most:
                counts, shift = _coarser(counts, 1), shift + 1
        return cls(shift, tuple((number, *counts[number]) for number in sorted(counts)))


def _coarser(counts: Mapping[int, tuple[int, int]], by: int) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for number, (records, size) in counts.items():
        own = found.get(number >> by, (0, 0))
        found[number >> by] = (own[0] + records, own[1] + size)
    return found


@dataclass(frozen=True, slots=True)
class StretchDigest:
    """The digest of the `records` at offsets [start, end): the two values of a `RecordDigest`, and the lowest and the
    highest time. Without records the values are those of nothing, and both times are -1."""

    start: int
    end: int
    records: int
    value: bytes
    offsets_value: bytes
    lowest: int
    highest: int

    @classmethod
    def of(cls, start: int, end: int, digest: RecordDigest) -> StretchDigest:
        """Return the digest of what was noted of these offsets."""
        lowest, highest = digest.span or (-1, -1)
        return cls(start, end, digest.count, digest.value, digest.offsets_value, lowest, highest)


_STRETCH = struct.Struct(">qqq16s16sqq")


def packed_stretches(stretches: Iterable[StretchDigest]) -> bytes:
    """Return the digests in 72 bytes each: a driver holds those of all partitions."""
    return b"".join(
        _STRETCH.pack(item.start, item.end, item.records, item.value, item.offsets_value, item.lowest, item.highest)
        for item in stretches
    )


def unpacked_stretches(data: bytes) -> tuple[StretchDigest, ...]:
    """Return the digests that were packed."""
    return tuple(StretchDigest(*fields) for fields in _STRETCH.iter_unpack(data))


@dataclass(frozen=True, slots=True)
class SegmentDigests:
    """The digests of one segment's records. `digest` is that of the segment's bytes. `aborted` are the transactions
    that were left out, as far as they lie in the segment."""

    base_offset: int
    next_offset: int
    digest: Digest
    aborted: tuple[Span, ...]
    stretches: tuple[StretchDigest, ...]
    times: RecordTimes

    def fits(self, entry: SegmentEntry, aborted: Spans) -> bool:
        """Return whether these are the digests of the segment as it is, if these transactions are left out. Digests of
        other numbers of records than the catalog has are not."""
        own = (self.base_offset, self.next_offset, self.digest, self.aborted)
        if own != (entry.base_offset, entry.next_offset, entry.digest, within(aborted, entry)):
            return False
        records = sum(stretch.records for stretch in self.stretches)
        # The catalog counts the records of aborted transactions, too, and those of a whole segment.
        is_part = bool(self.aborted) or entry.uncut is not entry
        return records <= entry.records if is_part else records == entry.records


def fitting(
    kept: Mapping[int, SegmentDigests], entries: Iterable[SegmentEntry], aborted: Spans
) -> dict[int, SegmentDigests]:
    """Return the digests among those that were kept that are of these segments as they are, by their base offsets."""
    found = ((entry, kept.get(entry.base_offset)) for entry in entries)
    return {entry.base_offset: own for entry, own in found if own is not None and own.fits(entry, aborted)}


@dataclass(frozen=True, slots=True)
class DigestWork:
    """Segments of one partition of which digests are needed, and the transactions to leave out. Pickles without
    secrets."""

    storage: Storage
    topic: str
    segments: tuple[SegmentEntry, ...]
    aborted: tuple[Span, ...]


def make_digests(work: DigestWork, context: TaskContext) -> tuple[SegmentDigests, ...]:
    """Runs on an executor. Raises ArchiveDamaged if a segment is not what the catalog says."""
    aborted = Spans(work.aborted)
    return tuple(digests_of(work.storage, work.topic, entry, aborted) for entry in work.segments)


def digests_of(storage: Storage, topic: str, entry: SegmentEntry, aborted: Spans) -> SegmentDigests:
    """Return the digests of a segment, which is read to its end for them. Raises ArchiveDamaged."""
    builder = StretchBuilder(entry.base_offset)
    reader = open_partition(storage, topic, (entry,), aborted=())
    if is_batched(entry.layout):
        with sound(storage, topic, entry):
            for stretch, headers in reader.batches():
                builder.add_batches(stretch, headers, aborted)
    else:
        for records in reader.records():
            builder.add_records(as_rows(records))
    stretches, times = builder.finish(entry.next_offset)
    own = within(aborted, entry)
    return SegmentDigests(entry.base_offset, entry.next_offset, entry.digest, own, stretches, times)


class StretchBuilder:
    """Makes the digests of records that come in the order of their offsets, from offset `start` on."""

    def __init__(self, start: int) -> None:
        self._start = self._at = start
        self._size = 0
        self._current = RecordDigest(offsets=False)
        self._whole = RecordDigest(offsets=False)
        self._done: list[StretchDigest] = []

    def add_batches(self, stretch: memoryview, headers: Headers, aborted: Spans) -> None:
        """Note the batches of a stretch but for the aborted ones. Raises as `rows.note_batches`."""
        if len(headers) > 1 and headers.next_offset - headers[0][1].base_offset > STRETCH_RECORDS:
            middle = len(headers) // 2  # of small records, a stretch that is read has very many
            self.add_batches(stretch, headers[:middle], aborted)
            self.add_batches(stretch, headers[middle:], aborted)
            return
        note_committed(self._current, stretch, headers, aborted)
        self._ended(headers.next_offset, headers.size)

    def add_records(self, rows: Rows) -> None:
        """Note records."""
        self._current.note(rows)
        _, buckets = self._current.times
        self._size = sum(size for _, _, size in buckets)
        self._ended(rows.last_offset + 1, 0)

    def finish(self, end: int) -> tuple[tuple[StretchDigest, ...], RecordTimes]:
        """Return all stretches, of which the last ends at offset `end`, and the times of all records."""
        self._at = end
        self._cut()
        return tuple(self._done), RecordTimes.of(self._whole)

    def _ended(self, at: int, size: int) -> None:
        self._at, self._size = at, self._size + size
        if self._current.count >= STRETCH_RECORDS or self._size >= STRETCH_BYTES:
            self._cut()

    def _cut(self) -> None:
        if self._current.count or not self._done:
            self._done.append(StretchDigest.of(self._start, self._at, self._current))
            self._whole.follow(self._current)
        elif self._at > self._start:
            self._done[-1] = replace(self._done[-1], end=self._at)
        self._start, self._size, self._current = self._at, 0, RecordDigest(offsets=False)


def reaching_into(aborted: Spans, entries: Sequence[SegmentEntry]) -> tuple[Span, ...]:
    """Return the transactions that reach into segments that follow one another, as they are."""
    first, last = entries[0].base_offset, entries[-1].next_offset - 1
    return tuple(span for span in aborted.rows() if span[1] <= last and span[2] >= first)


def within(aborted: Spans, entry: SegmentEntry) -> tuple[Span, ...]:
    """Return the transactions as far as they lie in the segment."""
    first, last = entry.base_offset, entry.next_offset - 1
    return tuple(
        sorted(
            (producer, max(start, first), min(end, last))
            for producer, start, end in aborted.rows()
            if start <= last and end >= first
        )
    )

"""Segments: the files a broker would hold, made from batches as they come by.

`SegmentBuilder` takes stretches of whole batches and makes the offset, time and transaction index that a broker (4.1)
makes of the same batches, and the facts the catalog keeps of a segment. Indexes can always be made again from the
log: `IndexBuilder`, and `transactions.TransactionTracker` for the third.

Source of facts: apache/kafka `LogSegment.java` (append, recover, onBecomeInactiveSegment), `OffsetIndex.java`,
`TimeIndex.java`, `TransactionIndex.java`, `AbortedTxn.java`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import logkeep_kernel as kernel

from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import Headers
from logkeep_engine.log.compression import Codec

IndexBuilder = kernel.IndexBuilder

INDEX_INTERVAL_BYTES = 4096
"""Kafka's default `index.interval.bytes`."""

MAX_RELATIVE_OFFSET = 2**31 - 1
"""How far an offset may lie above its segment's base offset: indexes hold 31 bits of it."""

OFFSET_ENTRY_BYTES = 8  # relative offset and position, four bytes each
TIME_ENTRY_BYTES = 12  # timestamp (8) and relative offset (4)

_OFFSET_ENTRY = struct.Struct(">ii")  # offset relative to the segment's base, position in the log
_TIME_ENTRY = struct.Struct(">qi")  # timestamp, relative offset
_TXN_ENTRY = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
_TXN_VERSION = 0
_INT32_MAX = 2**31 - 1
_NO_TIMESTAMP = -1
_Content = bytes  # `SegmentSummary` has a field `bytes`, which hides the type
_APPEND_TIME = 0x08  # bit 3: the broker has set the times
_TRANSACTIONAL = 0x10  # bit 4
_CONTROL = 0x20  # bit 5: markers and the like, not data


class OffsetEntry(NamedTuple):
    """The batch that starts at `position` of the log ends with `offset`."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """No record up to `offset` is later than `timestamp` (ms); the batch that ends with `offset` has a record of that
    time. Some older brokers name that record, which may be any of the batch.
    """

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An aborted transaction, in the index of the segment that holds its abort marker.

    `first_offset` is the base offset of its first batch in the partition, `last_offset` that of the marker.
    `last_stable_offset` is what the broker's was after the marker: the first offset of the oldest transaction still
    open, else `last_offset` + 1. A reader stops its search at the first entry whose last stable offset reaches the
    end of what it reads, so a lower value costs it some entries more, and a higher one could hide an aborted
    transaction: when in doubt, write less.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The facts of a finished segment. Timestamps are ms, -1 where no batch has one."""

    base_offset: int
    next_offset: int
    """The last batch's last offset + 1; `base_offset` in an empty segment."""
    records: int
    """Records of all batches but the control batches."""
    batches: int
    bytes: int
    min_base_timestamp: int
    """The lowest time of a batch's first record. Not the lowest time of all records: headers do not know that. The
    max timestamp stands in for batches whose base timestamp says something else (log-append time, delete horizon);
    batches without records do not count.
    """
    max_timestamp: int
    codecs: dict[str, int]
    """Batches per codec name, lower case."""
    transactional: bool
    control: bool
    gaps: bool
    """Some offset in [base_offset, next_offset) has no record: between or inside batches, or before the first."""
    append_time: bool
    legacy: bool
    """Messages of magic 0 or 1 are among the batches."""
    max_batch_bytes: int
    index: _Content = field(repr=False)
    timeindex: _Content = field(repr=False)
    txnindex: _Content = field(repr=False)


class SegmentBuilder:
    """Writes one segment to `sink` as stretches of batches arrive; memory grows with the indexes only. A digest of the
    bytes is the caller's.

    After an error of `append` or of the sink the segment is of no use.
    """

    def __init__(
        self,
        base_offset: int,
        sink: Callable[[memoryview | bytes], object],
        *,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> None:
        self._base_offset = base_offset
        self._sink = sink
        self._facts = kernel.SegmentFacts(base_offset, index_interval_bytes)
        self._aborted = bytearray()
        self._last_aborted = -1

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._facts.size

    @property
    def records(self) -> int:
        """Records so far, those of control batches left out."""
        return self._facts.records

    @property
    def bytes_left(self) -> int:
        """How many bytes more a broker could hold in the same segment: it indexes positions by 31 bits."""
        return _INT32_MAX - self._facts.size

    @property
    def last_possible_offset(self) -> int:
        """The highest offset that a broker could hold in the same segment: it indexes offsets by 31 bits."""
        return self._base_offset + _INT32_MAX

    @property
    def dense(self) -> bool:
        """Whether no offset is missing between its batches, or before the first."""
        return self._facts.dense

    @property
    def next_offset(self) -> int:
        """The lowest base offset the next batch may have."""
        return self._facts.next_offset

    def append(self, stretch: memoryview, headers: Headers) -> None:
        """Add the batches that lie back to back in `stretch`; `headers` is what `runs` said of them, positions from any
        start.

        Raises `CorruptBatch` when offsets do not rise, or with a codec that does not exist; `ValueError` when `headers`
        do not describe exactly `stretch`, or they go past `bytes_left` or `last_possible_offset`. CRCs are the
        caller's.
        """
        if headers.size != len(stretch):
            raise ValueError(f"{len(stretch)} bytes with headers of {headers.size}")
        refused = self._facts.add(headers)
        if refused is not None:
            raise self._refusal(headers, *refused)
        if headers:
            self._sink(stretch)

    def frame(self, batch: bytes) -> None:
        """Add a batch that lies in the object and is not a part of the log, as the header and the footer of a snapshot
        are. Of all facts it changes those about bytes only: sizes, and the positions of what follows."""
        self._facts.frame(len(batch))
        self._sink(batch)

    def _refusal(self, headers: Headers, why: str, number: int, expected: int) -> CorruptBatch | ValueError:
        if why == "falls":
            return CorruptBatch(
                f"The batch at offset {headers[number][1].base_offset} follows offset {expected - 1}; "
                "offsets only rise.",
                hint="The log on the broker is damaged, or batches were put in the wrong order.",
            )
        last = headers.next_offset - 1
        if why == "far":
            return ValueError(f"offset {last} or its position is too far from {self._base_offset}")
        first = headers[0][1].base_offset
        return CorruptBatch(f"A batch of offsets {first} to {last} has a codec that does not exist.")

    def add_aborted(self, txn: AbortedTxn) -> None:
        """Note a transaction whose abort marker is in this segment, in the order of the markers. Raises `ValueError`
        otherwise.
        """
        if txn.last_offset <= self._last_aborted or txn.last_offset < self._base_offset:
            raise ValueError(f"the abort marker at offset {txn.last_offset} is out of order or below the segment")
        self._last_aborted = txn.last_offset
        self._aborted += pack_txn_entry(txn)

    def finish(self) -> SegmentSummary:
        """Return the facts and the indexes of the segment as it is, closed."""
        facts = self._facts
        index, timeindex = facts.finish()
        least, attributes, codecs = facts.min_base_timestamp, facts.attributes, facts.codecs
        return SegmentSummary(
            base_offset=self._base_offset,
            next_offset=facts.next_offset,
            records=facts.records,
            batches=facts.batches,
            bytes=facts.size,
            min_base_timestamp=_NO_TIMESTAMP if least is None else least,
            max_timestamp=facts.max_timestamp,
            codecs={codec.name.lower(): codecs[codec] for codec in Codec if codecs[codec]},
            transactional=bool(attributes & _TRANSACTIONAL),
            control=bool(attributes & _CONTROL),
            gaps=not (facts.dense and facts.filled),
            append_time=bool(attributes & _APPEND_TIME),
            legacy=facts.legacy,
            max_batch_bytes=facts.max_batch_bytes,
            index=index,
            timeindex=timeindex,
            txnindex=bytes(self._aborted),
        )


def read_offset_index(data: bytes, base_offset: int = 0) -> list[OffsetEntry]:
    """Entries of an `.index`, offsets made absolute with the segment's base offset. Raises `CorruptIndex` on a
    partial entry.
    """
    _check_whole(data, _OFFSET_ENTRY.size, "offset index")
    return [OffsetEntry(base_offset + relative, position) for relative, position in _OFFSET_ENTRY.iter_unpack(data)]


def read_time_index(data: bytes, base_offset: int = 0) -> list[TimeEntry]:
    """Entries of a `.timeindex`, offsets made absolute with the segment's base offset. Raises `CorruptIndex` on a
    partial entry.
    """
    _check_whole(data, _TIME_ENTRY.size, "time index")
    return [TimeEntry(timestamp, base_offset + relative) for timestamp, relative in _TIME_ENTRY.iter_unpack(data)]


def find_offset(index: bytes, base_offset: int, offset: int) -> OffsetEntry | None:
    """Return the last entry of an `.index` at or below `offset`: the batch that holds it is there or after. None: from
    the start. Raises `CorruptIndex` on a partial entry.
    """
    _check_whole(index, _OFFSET_ENTRY.size, "offset index")

    def offset_of(number: int) -> int:
        return base_offset + int(_OFFSET_ENTRY.unpack_from(index, number * _OFFSET_ENTRY.size)[0])

    following = bisect_right(range(len(index) // _OFFSET_ENTRY.size), offset, key=offset_of)
    if not following:
        return None
    relative, position = _OFFSET_ENTRY.unpack_from(index, (following - 1) * _OFFSET_ENTRY.size)
    return OffsetEntry(base_offset + relative, position)


def find_time(timeindex: bytes, base_offset: int, timestamp: int) -> TimeEntry | None:
    """Return the last entry of a `.timeindex` below `timestamp` (ms): no record up to its offset has that time or a
    later one. None: from the start. Raises `CorruptIndex` on a partial entry.
    """
    _check_whole(timeindex, _TIME_ENTRY.size, "time index")

    def time_of(number: int) -> int:
        return int(_TIME_ENTRY.unpack_from(timeindex, number * _TIME_ENTRY.size)[0])

    following = bisect_left(range(len(timeindex) // _TIME_ENTRY.size), timestamp, key=time_of)
    if not following:
        return None
    found, relative = _TIME_ENTRY.unpack_from(timeindex, (following - 1) * _TIME_ENTRY.size)
    return TimeEntry(found, base_offset + relative)


def read_txn_index(data: bytes) -> list[AbortedTxn]:
    """Entries of a `.txnindex`; its offsets are absolute. Raises `CorruptIndex` on a partial entry or an unknown
    version.
    """
    _check_whole(data, _TXN_ENTRY.size, "transaction index")
    entries = []
    for version, producer_id, first, last, stable in _TXN_ENTRY.iter_unpack(data):
        if version != _TXN_VERSION:
            raise CorruptIndex(f"An entry of a transaction index has version {version}; only {_TXN_VERSION} is known.")
        entries.append(AbortedTxn(producer_id, first, last, stable))
    return entries


def without_preallocated(data: bytes, entry_bytes: int) -> bytes:
    """Return the entries of an offset or time index that a broker had open: after them it has reserved zeros."""
    if len(data) % entry_bytes:
        return data
    written = len(data.rstrip(b"\0")) + entry_bytes - 1
    return data[: written - written % entry_bytes]


def pack_txn_entry(txn: AbortedTxn) -> bytes:
    """Return an entry of a `.txnindex`."""
    return _TXN_ENTRY.pack(_TXN_VERSION, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)


def _check_whole(data: bytes, entry_size: int, what: str) -> None:
    if len(data) % entry_size:
        raise CorruptIndex(
            f"The {what} has {len(data)} bytes, not a multiple of {entry_size}.",
            hint="It can be rebuilt from the log.",
        )

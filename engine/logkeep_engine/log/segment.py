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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import LOG_OVERHEAD, BatchHeader
from logkeep_engine.log.compression import Codec

INDEX_INTERVAL_BYTES = 4096
"""Kafka's default `index.interval.bytes`."""

MAX_RELATIVE_OFFSET = 2**31 - 1
"""How far an offset may lie above its segment's base offset: indexes hold 31 bits of it."""

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_OFFSET_ENTRY = struct.Struct(">ii")  # offset relative to the segment's base, position in the log
_TIME_ENTRY = struct.Struct(">qi")  # timestamp, relative offset
_TXN_ENTRY = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
_TXN_VERSION = 0
_INT32_MAX = 2**31 - 1
_NO_TIMESTAMP = -1
_Content = bytes  # `SegmentSummary` has a field `bytes`, which hides the type
_CODEC = 0x07
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


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
class Indexes:
    """Contents of `.index` and `.timeindex`."""

    index: bytes
    timeindex: bytes


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
    sha256: str
    """The digest of the `.log`, hexadecimal; "" if it was not asked for."""
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
    """Writes one segment to `sink` as stretches of batches arrive; memory grows with the indexes only. `hashed` False:
    the caller computes the SHA-256 itself.

    After an error of `append` or of the sink the segment is of no use.
    """

    def __init__(
        self,
        base_offset: int,
        sink: Callable[[memoryview | bytes], object],
        *,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        hashed: bool = True,
    ) -> None:
        self._base_offset = base_offset
        self._sink = sink
        self._digest = sha256() if hashed else None
        self._indexes = IndexBuilder(base_offset, index_interval_bytes)
        self._aborted = bytearray()
        self._last_aborted = -1
        self._next_offset = base_offset
        self._size = 0
        self._batches = 0
        self._records = 0
        self._offsets_without_record = False
        self._dense = True
        self._all_attributes = 0
        self._codecs = [0] * (_CODEC + 1)
        self._min_base_timestamp: int | None = None
        self._max_timestamp = _NO_TIMESTAMP
        self._legacy = False
        self._max_batch_bytes = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    @property
    def records(self) -> int:
        """Records so far, those of control batches left out."""
        return self._records

    @property
    def bytes_left(self) -> int:
        """How many bytes more a broker could hold in the same segment: it indexes positions by 31 bits."""
        return _INT32_MAX - self._size

    @property
    def last_possible_offset(self) -> int:
        """The highest offset that a broker could hold in the same segment: it indexes offsets by 31 bits."""
        return self._base_offset + _INT32_MAX

    @property
    def dense(self) -> bool:
        """Whether no offset is missing between its batches, or before the first."""
        return self._dense

    @property
    def next_offset(self) -> int:
        """The lowest base offset the next batch may have."""
        return self._next_offset

    def append(self, stretch: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> None:
        """Add the batches that lie back to back in `stretch`; `headers` is what `walk` said of them, positions from any
        start.

        Raises `CorruptBatch` when offsets do not rise, or with a codec that does not exist; `ValueError` when `headers`
        do not describe exactly `stretch`, or they go past `bytes_left` or `last_possible_offset`. CRCs are the
        caller's.
        """
        if not headers:
            if len(stretch):
                raise ValueError(f"{len(stretch)} bytes without headers")
            return
        next_offset = self._next_offset
        # Millions of tiny batches pass here: what the loop changes is in local names.
        minimum, maximum = self._min_base_timestamp, self._max_timestamp
        codecs, all_attributes, records, longest = self._codecs, self._all_attributes, 0, self._max_batch_bytes
        start = following = headers[0][0]
        for pos, header in headers:
            base, length, _, magic, _, attributes, delta, base_time, max_time, _, _, _, count = header
            if pos != following:
                raise ValueError(f"the batch at offset {base} is at {pos}, its predecessor ends at {following}")
            following = pos + LOG_OVERHEAD + length
            if base != next_offset:
                if base < next_offset:
                    raise CorruptBatch(
                        f"The batch at offset {base} follows offset {next_offset - 1}; offsets only rise.",
                        hint="The log on the broker is damaged, or batches were put in the wrong order.",
                    )
                self._offsets_without_record = True
                self._dense = False
            next_offset = base + delta + 1
            if count <= delta:
                self._offsets_without_record = True
            codecs[attributes & _CODEC] += 1
            all_attributes |= attributes
            if not attributes & _CONTROL:
                records += count
            if length > longest:
                longest = length
            if max_time > maximum:
                maximum = max_time
            if count:
                first_time = max_time if attributes & (_APPEND_TIME | _DELETE_HORIZON) else base_time
                if minimum is None or first_time < minimum:
                    minimum = first_time
            if magic < 2:
                self._legacy = True
        if following - start != len(stretch):
            raise ValueError(f"{len(stretch)} bytes with headers of {following - start}")
        if next_offset - 1 - self._base_offset > _INT32_MAX or self._size + len(stretch) > _INT32_MAX:
            raise ValueError(f"offset {next_offset - 1} or its position is too far from {self._base_offset}")
        if any(codecs[len(Codec) :]):
            first = headers[0][1].base_offset
            raise CorruptBatch(f"A batch of offsets {first} to {next_offset - 1} has a codec that does not exist.")
        self._next_offset = next_offset
        self._min_base_timestamp, self._max_timestamp = minimum, maximum
        self._all_attributes, self._max_batch_bytes = all_attributes, longest
        self._records += records
        self._write(stretch, headers)

    def _write(self, stretch: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> None:
        self._batches += len(headers)
        self._indexes.extend(headers)
        self._size += len(stretch)
        if self._digest is not None:
            self._digest.update(stretch)
        self._sink(stretch)

    def add_aborted(self, txn: AbortedTxn) -> None:
        """Note a transaction whose abort marker is in this segment, in the order of the markers. Raises `ValueError`
        otherwise.
        """
        if txn.last_offset <= self._last_aborted or txn.last_offset < self._base_offset:
            raise ValueError(f"the abort marker at offset {txn.last_offset} is out of order or below the segment")
        self._last_aborted = txn.last_offset
        self._aborted += pack_txn_entry(txn)

    def finish(self) -> SegmentSummary:
        """The facts and the indexes of the segment as it is, closed."""
        indexes = self._indexes.finish()
        return SegmentSummary(
            base_offset=self._base_offset,
            next_offset=self._next_offset,
            records=self._records,
            batches=self._batches,
            bytes=self._size,
            min_base_timestamp=_NO_TIMESTAMP if self._min_base_timestamp is None else self._min_base_timestamp,
            max_timestamp=self._max_timestamp,
            sha256=self._digest.hexdigest() if self._digest is not None else "",
            codecs={codec.name.lower(): self._codecs[codec] for codec in Codec if self._codecs[codec]},
            transactional=bool(self._all_attributes & _TRANSACTIONAL),
            control=bool(self._all_attributes & _CONTROL),
            gaps=self._offsets_without_record,
            append_time=bool(self._all_attributes & _APPEND_TIME),
            legacy=self._legacy,
            max_batch_bytes=self._max_batch_bytes + LOG_OVERHEAD if self._batches else 0,
            index=indexes.index,
            timeindex=indexes.timeindex,
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
    """The last entry of an `.index` at or below `offset`: the batch that holds it is there or behind. None: from the
    start. Raises `CorruptIndex` on a partial entry.
    """
    _check_whole(index, _OFFSET_ENTRY.size, "offset index")

    def offset_of(number: int) -> int:
        return base_offset + int(_OFFSET_ENTRY.unpack_from(index, number * _OFFSET_ENTRY.size)[0])

    behind = bisect_right(range(len(index) // _OFFSET_ENTRY.size), offset, key=offset_of)
    if not behind:
        return None
    relative, position = _OFFSET_ENTRY.unpack_from(index, (behind - 1) * _OFFSET_ENTRY.size)
    return OffsetEntry(base_offset + relative, position)


def find_time(timeindex: bytes, base_offset: int, timestamp: int) -> TimeEntry | None:
    """The last entry of a `.timeindex` below `timestamp` (ms): no record up to its offset has that time or a later one.
    None: from the start. Raises `CorruptIndex` on a partial entry.
    """
    _check_whole(timeindex, _TIME_ENTRY.size, "time index")

    def time_of(number: int) -> int:
        return int(_TIME_ENTRY.unpack_from(timeindex, number * _TIME_ENTRY.size)[0])

    behind = bisect_left(range(len(timeindex) // _TIME_ENTRY.size), timestamp, key=time_of)
    if not behind:
        return None
    found, relative = _TIME_ENTRY.unpack_from(timeindex, (behind - 1) * _TIME_ENTRY.size)
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
    """The entries of an offset or time index that a broker had open: behind them it has reserved zeros."""
    if len(data) % entry_bytes:
        return data
    written = len(data.rstrip(b"\0")) + entry_bytes - 1
    return data[: written - written % entry_bytes]


def pack_txn_entry(txn: AbortedTxn) -> bytes:
    """An entry of a `.txnindex`."""
    return _TXN_ENTRY.pack(_TXN_VERSION, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)


def _check_whole(data: bytes, entry_size: int, what: str) -> None:
    if len(data) % entry_size:
        raise CorruptIndex(
            f"The {what} has {len(data)} bytes, not a multiple of {entry_size}.",
            hint="It can be made again from the log.",
        )


class IndexBuilder:
    """Makes offset and time index. Decides batch by batch, as a broker since 4.1 does, and as every broker does when
    it recovers a log.

    Before 4.1 a broker decided append by append: its indexes may be sparser where an append had several batches.
    Either serves.
    """

    def __init__(self, base_offset: int, interval: int) -> None:
        self._base_offset = base_offset
        self._interval = interval
        self._index = bytearray()
        self._timeindex = bytearray()
        self._position = 0
        self._since_last_entry = 0
        self._max_timestamp = _NO_TIMESTAMP
        self._offset_of_max = base_offset
        self._indexed_timestamp = _NO_TIMESTAMP

    def extend(self, log: Iterable[tuple[int, BatchHeader]]) -> None:
        interval = self._interval
        position, since, latest = self._position, self._since_last_entry, self._max_timestamp
        for _, header in log:
            if header[8] > latest:
                latest = self._max_timestamp = header[8]
                self._offset_of_max = header[0] + header[6]
            if since > interval:
                self._index += _OFFSET_ENTRY.pack(header[0] + header[6] - self._base_offset, position)
                self._note_time()
                since = 0
            size = LOG_OVERHEAD + header[1]
            position += size
            since += size
        self._position, self._since_last_entry = position, since

    def finish(self) -> Indexes:
        self._note_time()
        return Indexes(bytes(self._index), bytes(self._timeindex))

    def _note_time(self) -> None:
        if self._max_timestamp > self._indexed_timestamp:
            self._timeindex += _TIME_ENTRY.pack(self._max_timestamp, self._offset_of_max - self._base_offset)
            self._indexed_timestamp = self._max_timestamp

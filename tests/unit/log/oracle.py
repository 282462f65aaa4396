"""The walk over batches, batch by batch in Python: slow and plain. The kernel must find the same."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_crc, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import decode

Placed = tuple[int, BatchHeader]

_HEADER = struct.Struct(">qiiBIhiqqqhii")
_PREFIX = 17
_INT32_MAX = 2**31 - 1


def walk(buf: bytes, start: int = 0) -> Iterator[Placed]:
    """(position, header) of every whole batch; raises CorruptBatch where the bytes cannot be a batch."""
    position = start
    while len(buf) - position >= _PREFIX:
        length, magic = struct.unpack_from(">8xi4xB", buf, position)
        least = {0: 14, 1: 22, 2: HEADER_SIZE - LOG_OVERHEAD}.get(magic)
        (base_offset,) = struct.unpack_from(">q", buf, position)
        where = f"The batch at offset {base_offset}, position {position}, has"
        if least is None:
            raise CorruptBatch(f"{where} magic {magic}, which does not exist.")
        if length < least:
            raise CorruptBatch(f"{where} length {length}; with magic {magic} it is at least {least}.")
        if position + LOG_OVERHEAD + length > len(buf):
            return
        if magic == 2:
            header = BatchHeader(*_HEADER.unpack_from(buf, position))
            for name, value in (("last offset delta", header.last_offset_delta), ("record count", header.record_count)):
                if value < 0:
                    raise CorruptBatch(f"{where} the negative {name} {value}.")
            header = with_times(header, buf[position : position + header.size])
        else:
            header = parse_header(buf, position)
        yield position, header
        position += header.size


def with_times(header: BatchHeader, batch: bytes) -> BatchHeader:
    """The header with the highest time of the records, where it cannot have that."""
    first = 0 if header.has_delete_horizon else max(header.base_timestamp, 0)
    if header.max_timestamp >= first or not header.record_count or header.is_log_append_time:
        return header
    try:
        return header._replace(max_timestamp=max(record.timestamp for record in decode(batch)))
    except (CorruptBatch, BatchTooLarge):
        return header


def walk_checked(buf: bytes, until: int, start: int = 0) -> Iterator[Placed]:
    """Like `walk`, with each CRC checked, up to the first batch that begins at `until` or above."""
    for position, header in walk(buf, start):
        if header.base_offset >= until:
            return
        check_crc(buf, position, header)
        yield position, header


def whole_batches(buf: bytes, limit: int) -> int:
    """Bytes of the batches that fit into `limit`, by the lengths alone."""
    end = min(limit, len(buf))
    position = 0
    following: int = LOG_OVERHEAD + struct.unpack_from(">8xi", buf)[0]
    while following < end:
        position = following
        following = position + LOG_OVERHEAD + struct.unpack_from(">8xi", buf, position)[0]
    return following if following == end or not position else position


def last_whole(buf: bytes) -> int:
    """Where the last whole batch begins, or one that cannot be, by the lengths alone."""
    at = last = 0
    while at + LOG_OVERHEAD <= len(buf):
        (length,) = struct.unpack_from(">8xi", buf, at)
        if length < 14:
            return at
        if at + LOG_OVERHEAD + length > len(buf):
            return last
        last = at
        at += LOG_OVERHEAD + length
    return last


def in_order(headers: Sequence[Placed], expected: int, end: int) -> int:
    for number, (_, header) in enumerate(headers):
        if header.base_offset < expected or header.next_offset > end:
            return number
        expected = header.next_offset
    return len(headers)


def plain(headers: Sequence[Placed], at: int, end: int, room: int, epoch: int) -> int:
    """See `kernel.Headers.plain`."""
    for number, (_, header) in enumerate(headers):
        room -= header.size
        known = header.leader_epoch == epoch and header.attributes & 7 <= max(Codec)
        if header.base_offset < at or header.next_offset > end or room < 0 or not known or header.attributes & 0x30:
            return number
        at = header.next_offset
    return len(headers)


def first_gap(headers: Sequence[Placed], at: int) -> int:
    for number, (_, header) in enumerate(headers):
        if header.base_offset > at:
            return number
        at = header.next_offset
    return len(headers)


class IndexBuilder:
    """Offset and time index, by the rules of Kafka's `LogSegment`."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self._base_offset = base_offset
        self._interval = interval
        self._index = bytearray()
        self._timeindex = bytearray()
        self._position = 0
        self._since = 0
        self._max_timestamp = -1
        self._offset_of_max = base_offset
        self._indexed_timestamp = -1

    def extend(self, log: Iterable[Placed]) -> None:
        for _, header in log:
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp = header.max_timestamp
                self._offset_of_max = header.last_offset
            if self._since > self._interval:
                self._index += struct.pack(">ii", header.last_offset - self._base_offset, self._position)
                self._note_time()
                self._since = 0
            self._position += header.size
            self._since += header.size

    def finish(self) -> tuple[bytes, bytes]:
        self._note_time()
        return bytes(self._index), bytes(self._timeindex)

    def _note_time(self) -> None:
        if self._max_timestamp > self._indexed_timestamp:
            self._timeindex += struct.pack(">qi", self._max_timestamp, self._offset_of_max - self._base_offset)
            self._indexed_timestamp = self._max_timestamp


@dataclass
class SegmentFacts:
    """The facts that headers give of a segment, and its indexes. `refused` if a run could not be added: of no use
    then."""

    base_offset: int
    interval: int
    records: int = 0
    batches: int = 0
    size: int = 0
    min_base_timestamp: int | None = None
    max_timestamp: int = -1
    max_batch_bytes: int = 0
    codecs: list[int] = field(default_factory=lambda: [0] * 8)
    attributes: int = 0
    dense: bool = True
    filled: bool = True
    legacy: bool = False

    def __post_init__(self) -> None:
        self.next_offset = self.base_offset
        self.indexes = IndexBuilder(self.base_offset, self.interval)

    def add(self, headers: Sequence[Placed]) -> tuple[str, int, int] | None:
        for number, (_, header) in enumerate(headers):
            if header.base_offset < self.next_offset:
                return "falls", number, self.next_offset
            self._add(header)
        if self.next_offset - 1 - self.base_offset > _INT32_MAX or self.size > _INT32_MAX:
            return "far", 0, 0
        if any(self.codecs[len(Codec) :]):
            return "codec", 0, 0
        self.indexes.extend(headers)
        return None

    def _add(self, header: BatchHeader) -> None:
        self.dense = self.dense and header.base_offset == self.next_offset
        self.filled = self.filled and header.record_count > header.last_offset_delta
        self.next_offset = header.next_offset
        self.codecs[header.attributes & 7] += 1
        self.attributes |= header.attributes
        self.records += 0 if header.is_control else header.record_count
        self.batches += 1
        self.size += header.size
        self.max_batch_bytes = max(self.max_batch_bytes, header.size)
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if header.record_count:
            replaced = header.is_log_append_time or header.has_delete_horizon
            first = header.max_timestamp if replaced else header.base_timestamp
            self.max_timestamp = max(self.max_timestamp, first)
            self.min_base_timestamp = min(first, first if self.min_base_timestamp is None else self.min_base_timestamp)
        self.legacy = self.legacy or header.magic < 2

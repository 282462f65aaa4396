"""Records: what is inside a batch, unpacked and packed again.

Only for what cannot be done with whole batches (a point in time inside a batch, a batch with gaps, log-append time,
old messages, batches too small to be sent alone): about a hundred times slower than moving batches. `Packer` is the
way that leaves keys, values and headers packed: several times faster than `decode` and `encode`.

Source of facts: apache/kafka `DefaultRecord.java`, `DefaultRecordBatch.java`, `ControlRecordType.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log import legacy
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, pack_header, parse_header, seal
from logkeep_engine.log.compression import Codec, compress, decompress

Headers = tuple[tuple[bytes, bytes | None], ...]

_MAGIC = 2
_TRANSACTIONAL = 0x10
_SMALLEST_RECORD = 6  # attributes, four varints for times and lengths, header count
_LONGEST_VARINT = 10
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_UINT64 = 2**64 - 1


class Record(NamedTuple):
    """One record. `timestamp` is ms since the epoch, -1 if there is none (magic 0).

    Headers keep their order and their duplicates; a header key is UTF-8 as it was sent. A tuple, since a pass makes
    one for every record.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class ControlType(IntEnum):
    """The type of a control batch: transaction markers in data topics, the others in the metadata log."""

    OTHER = -1
    """A type newer than these, or a marker that compaction has emptied: its transaction has no records left."""
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def decode(buf: Buffer, pos: int = 0) -> list[Record]:
    """The records of the batch at `pos`, of any magic and codec, with the offsets and times a consumer sees.

    In a log-append-time batch that is the batch's max timestamp for every record. The CRC is not checked. Raises
    `CorruptBatch` with the batch's base offset when the batch is cut short or its inside does not fit together.
    """
    view = memoryview(buf)
    header = parse_header(view, pos)
    if header.magic < _MAGIC:
        return [Record(*message) for message in legacy.read(view, pos).messages]
    packed = view[pos + HEADER_SIZE : pos + header.size]
    if len(packed) != header.size - HEADER_SIZE:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is cut short: {len(view) - pos} of {header.size} bytes."
        )
    if header.record_count == 0:
        return []
    try:
        return _unpack(decompress(header.codec, packed), header)
    except IndexError:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: a record is cut short.") from None
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem


def encode(
    records: Sequence[Record],
    *,
    codec: Codec,
    base_offset: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    leader_epoch: int = -1,
    dense: bool = False,
) -> bytes:
    """One batch of magic 2 and create time.

    Records keep their offsets, which must rise from `base_offset` on (offsets left out are gaps, which a broker
    refuses from producers); with `dense` they are numbered from `base_offset` without gaps, whatever offsets they
    bring. Raises `ValueError` when there are no records, or offsets do not rise or lie further than an int32 from
    `base_offset`.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    body = bytearray()
    if dense:
        for delta, record in enumerate(records):
            _pack(body, record, delta, record.timestamp - base_timestamp)
        last_delta = len(records) - 1
    else:
        last_delta = -1
        for record in records:
            delta = record.offset - base_offset
            if not last_delta < delta <= _INT32_MAX:
                raise ValueError(
                    f"offset {record.offset} cannot follow {base_offset + last_delta} in a batch from {base_offset}"
                )
            _pack(body, record, delta, record.timestamp - base_timestamp)
            last_delta = delta
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=_MAGIC,
        crc=0,
        attributes=codec | (_TRANSACTIONAL if transactional else 0),
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _sealed(compress(codec, body), header)


def _sealed(packed: bytes, header: BatchHeader) -> bytes:
    """The batch of these records and this header; its length and CRC are set here."""
    batch = bytearray(pack_header(header._replace(batch_length=HEADER_SIZE - 12 + len(packed))))
    batch += packed
    seal(batch)
    return bytes(batch)


def unpack(batch: memoryview, header: BatchHeader) -> bytes | memoryview:
    """The packed records of one whole batch of magic 2, decompressed: what `Packer.add` takes. Raises `CorruptBatch`.

    Uncompressed they are a view on `batch`.
    """
    packed = batch[HEADER_SIZE:]
    if header.codec is Codec.NONE:
        return packed
    try:
        return decompress(header.codec, packed)
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem


class Packer:
    """Gathers the records of batches of magic 2 into one batch of create time, without gaps, in the order of `add`.

    Of a record only its length, time and offset are read and written anew; keys, values and headers are copied as they
    are, packed. Every record keeps the time a consumer sees (the batch's max timestamp in a log-append-time batch).
    """

    def __init__(self) -> None:
        self._body = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = 0
        self.count = 0

    def add(self, packed: bytes | memoryview, header: BatchHeader) -> list[tuple[int, int]]:
        """Take the records of a batch over; returns the runs (first source offset, count) of their offsets.

        `packed` is what `unpack` gives. Raises `CorruptBatch` if it does not hold as many records as `header` says, one
        behind the other. Then the packer is of no use any more.
        """
        data = bytes(packed)
        try:
            return self._add(data, header)
        except IndexError:
            raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: a record is cut short.") from None
        except CorruptBatch as problem:
            raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem

    def _add(self, data: bytes, header: BatchHeader) -> list[tuple[int, int]]:
        source_base, source_time = header.base_offset, header.base_timestamp
        append_time = header.max_timestamp if header.is_log_append_time else None
        far = abs(source_time) > _INT64_MAX - 64
        total = len(data)
        body, small = self._body, _SMALL_VARINTS
        table = len(small)
        delta = self.count
        runs: list[tuple[int, int]] = []
        first = following = source_base
        at = 0
        for _ in range(header.record_count):
            # As in `_unpack`: a call for each number would take most of the time.
            number = data[at]
            if number < 0x80:
                length = (number >> 1) ^ -(number & 1)
                at += 1
            else:
                length, at = _varint(data, at)
            start, end = at, at + length
            if length < _SMALLEST_RECORD or end > total:
                raise CorruptBatch(f"a record of {length} bytes at {at} of {total}")
            at += 1  # attributes
            number = data[at]
            if number < 0x80:
                timestamp = source_time + ((number >> 1) ^ -(number & 1))
                at += 1
            else:
                timestamp, at = _varint(data, at)
                timestamp += source_time
                if not -_INT64_MAX <= timestamp <= _INT64_MAX:
                    timestamp = _wrap(timestamp)
            number = data[at]
            if number < 0x80:
                offset = source_base + ((number >> 1) ^ -(number & 1))
                at += 1
            else:
                offset, at = _varint(data, at)
                offset += source_base
            if at > end:
                raise CorruptBatch(f"the record at offset {offset} does not fill its length")
            if append_time is not None:
                timestamp = append_time
            elif far:
                timestamp = _wrap(timestamp)
            if delta == 0:
                self._base_timestamp = self._max_timestamp = timestamp
            elif timestamp > self._max_timestamp:
                self._max_timestamp = timestamp
            if offset != following:
                if following > first:
                    runs.append((first, following - first))
                first = offset
            following = offset + 1
            later = timestamp - self._base_timestamp
            time_bytes = small[later] if 0 <= later < table else _long_varint(later)
            offset_bytes = small[delta] if delta < table else _long_varint(delta)
            length = 1 + len(time_bytes) + len(offset_bytes) + end - at
            body += small[length] if length < table else _long_varint(length)
            body += data[start : start + 1] + time_bytes + offset_bytes
            body += data[at:end]
            at = end
            delta += 1
        if at != total:
            raise CorruptBatch(f"{total - at} bytes are left over after {header.record_count} records")
        runs.append((first, following - first))
        self.count = delta
        return runs

    def batch(self, codec: Codec, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """All records taken over, at least one, as one batch from offset 0."""
        return _sealed(
            compress(codec, self._body),
            BatchHeader(
                base_offset=0,
                batch_length=0,
                leader_epoch=-1,
                magic=_MAGIC,
                crc=0,
                attributes=codec,
                last_offset_delta=self.count - 1,
                base_timestamp=self._base_timestamp,
                max_timestamp=self._max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=self.count,
            ),
        )


def control_type(buf: Buffer, pos: int = 0) -> ControlType:
    """What the control batch at `pos` says. Raises `CorruptBatch` if it cannot be read, `ValueError` if it is a data
    batch.
    """
    header = parse_header(buf, pos)
    if not header.is_control:
        raise ValueError(f"the batch at offset {header.base_offset} is not a control batch")
    markers = decode(buf, pos)
    if not markers:
        return ControlType.OTHER
    key = markers[0].key
    if key is None or len(key) < 4:
        raise CorruptBatch(
            f"The control batch at offset {header.base_offset} is damaged: its key is not version and type."
        )
    code: int = struct.unpack_from(">hh", key)[1]
    return ControlType(code) if code in ControlType.__members__.values() else ControlType.OTHER


def _unpack(data: bytes, header: BatchHeader) -> list[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    total = len(data)
    if header.record_count > total:
        raise CorruptBatch(f"{header.record_count} records cannot be in {total} bytes")
    records: list[Record] = []
    at = 0
    for _ in range(header.record_count):
        # Numbers below 64 fill one byte: those are read in place, since a call for each would take most of the time.
        number = data[at]
        if number < 0x80:
            length = (number >> 1) ^ -(number & 1)
            at += 1
        else:
            length, at = _varint(data, at)
        end = at + length
        if length < _SMALLEST_RECORD or end > total:
            raise CorruptBatch(f"a record of {length} bytes at {at} of {total}")
        at += 1  # attributes: unused
        number = data[at]
        if number < 0x80:
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            at += 1
        else:
            timestamp, at = _varint(data, at)
            timestamp = _wrap(base_timestamp + timestamp)
        number = data[at]
        if number < 0x80:
            offset = base_offset + ((number >> 1) ^ -(number & 1))
            at += 1
        else:
            offset, at = _varint(data, at)
            offset += base_offset
        number = data[at]
        if number < 0x80:
            length = (number >> 1) ^ -(number & 1)
            at += 1
        else:
            length, at = _varint(data, at)
        key = None
        if length >= 0:
            start, at = at, at + length
            if at > end:
                raise CorruptBatch(f"the key of the record at offset {offset} is longer than the record")
            key = data[start:at]
        number = data[at]
        if number < 0x80:
            length = (number >> 1) ^ -(number & 1)
            at += 1
        else:
            length, at = _varint(data, at)
        value = None
        if length >= 0:
            start, at = at, at + length
            if at > end:
                raise CorruptBatch(f"the value of the record at offset {offset} is longer than the record")
            value = data[start:at]
        headers: Headers = ()
        if data[at] == 0:
            at += 1
        else:
            headers, at = _unpack_headers(data, at, end, offset)
        if at != end:
            raise CorruptBatch(f"the record at offset {offset} does not fill its length")
        records.append(Record(offset, timestamp if append_time is None else append_time, key, value, headers))
    if at != total:
        raise CorruptBatch(f"{total - at} bytes are left over after {header.record_count} records")
    if abs(base_timestamp) > _INT64_MAX - 64:  # where even the small deltas, which are not wrapped above, may overflow
        return [record._replace(timestamp=_wrap(record.timestamp)) for record in records]
    return records


def _unpack_headers(data: bytes, at: int, end: int, offset: int) -> tuple[Headers, int]:
    count, at = _varint(data, at)
    if not 0 <= count <= end - at:
        raise CorruptBatch(f"the record at offset {offset} cannot have {count} headers")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        length, at = _varint(data, at)
        if not 0 <= length <= end - at:
            raise CorruptBatch(f"a header key of the record at offset {offset} cannot have {length} bytes")
        key = data[at : at + length]
        at += length
        length, at = _varint(data, at)
        if length > end - at:
            raise CorruptBatch(f"a header value of the record at offset {offset} cannot have {length} bytes")
        value = None
        if length >= 0:
            value = data[at : at + length]
            at += length
        headers.append((key, value))
    return tuple(headers), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(zigzag number at `at`, position after it)."""
    number = shift = 0
    for step in range(_LONGEST_VARINT):
        byte = data[at + step]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number &= _UINT64
            return (number >> 1) ^ -(number & 1), at + step + 1
        shift += 7
    raise CorruptBatch(f"a number of more than {_LONGEST_VARINT} bytes at {at}")


def _wrap(number: int) -> int:
    """As Java's long: the distance of two far timestamps overflows, and back again."""
    return ((number + _INT64_MAX + 1) & _UINT64) - _INT64_MAX - 1


def _pack(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)  # attributes
    if not -_INT64_MAX <= timestamp_delta <= _INT64_MAX:
        timestamp_delta = _wrap(timestamp_delta)
    _pack_varint(body, timestamp_delta)
    _pack_varint(body, offset_delta)
    _pack_field(body, record.key)
    _pack_field(body, record.value)
    _pack_varint(body, len(record.headers))
    for key, value in record.headers:
        _pack_field(body, key)
        _pack_field(body, value)
    _pack_varint(out, len(body))
    out += body


def _pack_field(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # -1
    else:
        _pack_varint(out, len(field))
        out += field


def _pack_varint(out: bytearray, number: int) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _long_varint(number: int) -> bytes:
    out = bytearray()
    _pack_varint(out, number if -_INT64_MAX <= number <= _INT64_MAX else _wrap(number))
    return bytes(out)


_SMALL_VARINTS = [_long_varint(number) for number in range(8192)]
"""The numbers that fill two bytes at most: looked up, since almost all numbers of a batch are among them."""

"""Records: what is inside a batch, unpacked and packed again.

Only for what cannot be done with whole batches (a point in time inside a batch, a batch with gaps, log-append time,
old messages): about a hundred times slower than moving batches. `packer` has the way that leaves keys, values and
headers packed.

Source of facts: apache/kafka `DefaultRecord.java`, `DefaultRecordBatch.java`, `ControlRecordType.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, TypeVar

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log import legacy
from logkeep_engine.log.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, Buffer, pack_header, parse_header, seal
from logkeep_engine.log.compression import Codec, compress, decompress, too_large
from logkeep_engine.log.memory import listed_most, unpacked_most
from logkeep_engine.log.varints import INT64_MAX, pack_varint, varint, wrap

R = TypeVar("R")
Headers = tuple[tuple[bytes, bytes | None], ...]

_MAGIC = 2
_TRANSACTIONAL = 0x10  # bit 4
SMALLEST_RECORD = 6  # attributes, four varints for times and lengths, header count
_MANY_HEADERS_FROM = 4096
_INT32_MAX = 2**31 - 1


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
    """Return the records of the batch at `pos`, of any magic and codec, with the offsets and times a consumer sees.

    In a log-append-time batch that is the batch's max timestamp for every record. The CRC is not checked. Raises
    `CorruptBatch` with the batch's base offset when the batch is cut short or its inside does not fit together, and
    `BatchTooLarge` for more bytes or records than a task's memory allows.
    """
    return listed(iterate(buf, pos), parse_header(buf, pos))


def iterate(buf: Buffer, pos: int = 0) -> Iterator[Record]:
    """Yield the same one after another, however many they are: a fault shows after the records before it."""
    view = memoryview(buf)
    header = parse_header(view, pos)
    if header.magic < _MAGIC:
        yield from (Record(*message) for message in legacy.read(view, pos).messages)
        return
    if len(view) - pos < header.size:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is cut short: {len(view) - pos} of {header.size} bytes."
        )
    if header.record_count == 0:
        return
    yield from _named(bytes(unpack(view[pos : pos + header.size], header)), header)


def _named(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the packed records of a batch one after another; an error names the batch."""
    try:
        yield from _each(data, header)
    except IndexError:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: a record is cut short.") from None
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem


def damage_of(packed: bytes | memoryview, header: BatchHeader) -> CorruptBatch:
    """Return the error for the packed records of a batch of which it is known that they do not fit together, or that
    their offsets do not lie in their batch."""
    try:
        for _ in _named(bytes(packed), header):
            pass
    except CorruptBatch as damage:
        return damage
    return CorruptBatch(
        f"The batch at offset {header.base_offset} is damaged: its records do not have offsets from "
        f"{header.base_offset} to {header.last_offset}."
    )


def listed(found: Iterable[R], header: BatchHeader) -> list[R]:
    """Return all records of a batch at once. Raises `BatchTooLarge` for more of them than a task's memory allows."""
    most = listed_most()
    records = list(islice(found, most + 1))
    if len(records) > most:
        raise BatchTooLarge(
            f"The batch at offset {header.base_offset} has {header.record_count} records, at most {most} are taken "
            "apart at once."
        )
    return records


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
    return made_batch(
        codec,
        body,
        count=len(records),
        times=(base_timestamp, max(record.timestamp for record in records)),
        last_offset_delta=last_delta,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        transactional=transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def made_batch(
    codec: Codec,
    body: bytes | bytearray,
    *,
    count: int,
    times: tuple[int, int],
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    transactional: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Return a batch of create time of `count` packed records. `times` are its base and max timestamp (ms). Without
    `last_offset_delta` its offsets have no gap."""
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=_MAGIC,
        crc=0,
        attributes=codec | (_TRANSACTIONAL if transactional else 0),
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=times[0],
        max_timestamp=times[1],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return sealed(compress(codec, body), header)


def sealed(packed: bytes, header: BatchHeader) -> bytes:
    """Return the batch of these records and this header; its length and CRC are set here."""
    batch = bytearray(pack_header(header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(packed))))
    batch += packed
    seal(batch)
    return bytes(batch)


def unpack(batch: memoryview, header: BatchHeader, *, limit: int | None = None) -> bytes | memoryview:
    """Return the packed records of one whole batch of magic 2, decompressed: what `packer.Packer.add` takes.

    Uncompressed they are a view on `batch`. Raises `CorruptBatch`, and `BatchTooLarge` if they are more than `limit`
    bytes (`memory.unpacked_most()` without it).
    """
    packed = batch[HEADER_SIZE:]
    try:
        codec = header.codec
        if codec is Codec.NONE:
            most = unpacked_most() if limit is None else limit
            if len(packed) > most:
                raise too_large(codec, packed, most)
            return packed
        return decompress(codec, packed, limit=limit)
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem
    except BatchTooLarge as problem:
        raise of_batch(problem, header) from problem


def of_batch(problem: BatchTooLarge, header: BatchHeader) -> BatchTooLarge:
    """Return the error of `compression`, with the batch it speaks of."""
    return BatchTooLarge(f"The batch at offset {header.base_offset} is too large to be unpacked: {problem.message}.")


def weights(packed: memoryview, header: BatchHeader, per_header: int) -> Iterator[int]:
    """Yield the memory that each packed record of a batch takes as an object: about its bytes, and `per_header` for
    each header.

    Only of records that are long enough to have many the headers are counted. Raises CorruptBatch or IndexError where
    the records do not fit together.
    """
    total = len(packed)
    at = 0
    for _ in range(header.record_count):
        length, at = varint(packed, at)
        end = at + length
        if length < SMALLEST_RECORD or end > total:
            raise CorruptBatch(f"a record of {length} bytes at {at} of {total}")
        yield length if length < _MANY_HEADERS_FROM else length + per_header * _header_count(packed, at)
        at = end


def _header_count(packed: memoryview, at: int) -> int:
    """Return the size of the record whose attributes are at `at`."""
    at += 1
    for _ in range(2):  # time and offset
        _, at = varint(packed, at)
    for _ in range(2):  # key and value
        length, at = varint(packed, at)
        at += max(length, 0)
    return max(0, varint(packed, at)[0])


def control_type(buf: Buffer, pos: int = 0) -> ControlType:
    """Return the type of the control batch at `pos`. Raises `CorruptBatch` if it cannot be read, `ValueError` if it is
    a data batch.
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


def _each(data: bytes, header: BatchHeader) -> Iterator[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    total = len(data)
    if header.record_count > total:
        raise CorruptBatch(f"{header.record_count} records cannot be in {total} bytes")
    far = abs(base_timestamp) > INT64_MAX - 64  # where even the small deltas, which are not wrapped below, may overflow
    at = 0
    for _ in range(header.record_count):
        # Numbers below 64 fill one byte: those are read in place, since a call for each would take most of the time.
        number = data[at]
        if number < 0x80:
            length = (number >> 1) ^ -(number & 1)  # zigzag: the lowest bit is the sign
            at += 1
        else:
            length, at = varint(data, at)
        end = at + length
        if length < SMALLEST_RECORD or end > total:
            raise CorruptBatch(f"a record of {length} bytes at {at} of {total}")
        at += 1  # attributes: unused
        number = data[at]
        if number < 0x80:
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            at += 1
        else:
            timestamp, at = varint(data, at)
            timestamp = wrap(base_timestamp + timestamp)
        number = data[at]
        if number < 0x80:
            offset = base_offset + ((number >> 1) ^ -(number & 1))
            at += 1
        else:
            offset, at = varint(data, at)
            offset += base_offset
        key, at = _field(data, at, end, "key", offset)
        value, at = _field(data, at, end, "value", offset)
        headers: Headers = ()
        if data[at] == 0:
            at += 1
        else:
            headers, at = _unpack_headers(data, at, end, offset)
        if at != end:
            raise CorruptBatch(f"the record at offset {offset} does not fill its length")
        if append_time is not None:
            timestamp = append_time
        yield Record(offset, wrap(timestamp) if far else timestamp, key, value, headers)
    if at != total:
        raise CorruptBatch(f"{total - at} bytes are left over after {header.record_count} records")


def _field(data: bytes, at: int, end: int, name: str, offset: int) -> tuple[bytes | None, int]:
    """Return the key or the value at `at`, and where it ends."""
    number = data[at]
    if number < 0x80:
        length = (number >> 1) ^ -(number & 1)
        at += 1
    else:
        length, at = varint(data, at)
    if length < 0:
        return None, at
    start, at = at, at + length
    if at > end:
        raise CorruptBatch(f"the {name} of the record at offset {offset} is longer than the record")
    return data[start:at], at


def _unpack_headers(data: bytes, at: int, end: int, offset: int) -> tuple[Headers, int]:
    count, at = varint(data, at)
    if not 0 <= count <= end - at:
        raise CorruptBatch(f"the record at offset {offset} cannot have {count} headers")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        length, at = varint(data, at)
        if not 0 <= length <= end - at:
            raise CorruptBatch(f"a header key of the record at offset {offset} cannot have {length} bytes")
        key = data[at : at + length]
        at += length
        length, at = varint(data, at)
        if length > end - at:
            raise CorruptBatch(f"a header value of the record at offset {offset} cannot have {length} bytes")
        value = None
        if length >= 0:
            value = data[at : at + length]
            at += length
        headers.append((key, value))
    return tuple(headers), at


def _pack(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)  # attributes
    if not -INT64_MAX <= timestamp_delta <= INT64_MAX:
        timestamp_delta = wrap(timestamp_delta)
    pack_varint(body, timestamp_delta)
    pack_varint(body, offset_delta)
    _pack_field(body, record.key)
    _pack_field(body, record.value)
    pack_varint(body, len(record.headers))
    for key, value in record.headers:
        _pack_field(body, key)
        _pack_field(body, value)
    pack_varint(out, len(body))
    out += body


def _pack_field(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # -1
    else:
        pack_varint(out, len(field))
        out += field

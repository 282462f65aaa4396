"""Records out of batches and into batches at the speed of compiled code.

    for position, header in walk_checked(log, until):
        if not header.is_control:
            records = decode_records(log[position : position + header.size], header)

`decode_slices` gives the same in short lists, which is the faster way to pass over many.

The parser and the builder are those of aiokafka (`aiokafka.record`), which make and take record objects in C: about ten
times as fast as `records.decode` and `records.encode`, which say what is right, and do the work wherever the compiled
code cannot (header keys that are not UTF-8, a first timestamp of -1) or gives up. Compression is that of `compression`.

Beware: the compiled parser reads a number before it looks where it ends, so it gets a few zero bytes behind the batch.

Source of facts: aiokafka `record/_crecords/default_records.pyx` and `cutil.pyx` (0.14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter, le

import cramjam
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from logkeep_engine.collector import paused
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log import legacy, records
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, pack_header, parse_header, seal
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.consumed import LogRecord, PlainRecord

__all__ = ["PlainRecord", "check_offsets", "decode_records", "decode_slices", "encode_records"]

_MAGIC = 2
_CODEC_AT = 22
_CODEC = 0x07
_CREATE_TIME = 0
_APPEND_TIME = 1
_APPEND_TIME_BIT = 0x08
_INT32_MAX = 2**31 - 1

_PADDING = bytes(16)
"""More than the longest number (10 bytes) and the one byte that a cut header can send the parser past the end."""

_SCRATCH_BYTES = 1 << 20
_SCRATCH_MAX = 8 << 20
_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
"""Decompressors that stop at the end of the room they are given."""

_MANY = 500
"""Records of a batch from which on the collector rests: it would walk them all, several times, while they are made."""

_SLICE = 128
"""Records of a slice: few enough to stay in the processor's cache, and not to wake the collector while two live."""

_offset = attrgetter("offset")


def decode_records(batch: Buffer, header: BatchHeader | None = None) -> Sequence[LogRecord]:
    """The records of one whole batch, of any magic and codec, with the offsets and times a consumer sees.

    A record without a timestamp has -1. Every record of a log-append-time batch has the batch's max timestamp. The
    records of a control batch are its markers: look at `header.is_control`. The CRC is not checked. `header`, if it is
    at hand, is that of the batch. Raises `CorruptBatch` with the base offset when the batch is cut short or its inside
    does not fit together.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC:
        return _decode_legacy(view, header)
    if header.record_count == 0 or header.size > len(view):
        return _decode_plain(view, header)
    scratch = _spare.take()
    try:
        return _parse(_compiled(view, header, scratch), header.record_count)
    except Exception:  # whatever it was, the plain decoder knows what the bytes mean, or why they mean nothing
        return _decode_plain(view, header)
    finally:
        _spare.give(scratch)


def decode_slices(batch: Buffer, header: BatchHeader | None = None) -> Iterator[Sequence[LogRecord]]:
    """What `decode_records` returns, in lists of at most 128 records: for who takes one record after the other and lets
    go of it, about half as fast again, and a batch of many is never in memory as a whole.

    Raises as `decode_records`, maybe after the records before the fault were handed out. Good for one pass in one
    thread; `batch` must not change meanwhile.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC or header.record_count <= _SLICE or header.size > len(view):
        records = decode_records(view, header)
        if records:
            yield records
        return
    scratch = _spare.take()
    taken = 0
    found: Iterator[LogRecord] | None = None
    try:
        while True:
            try:
                if found is None:
                    found = chain(_compiled(view, header, scratch))  # its own iterator can be asked for only once
                some: Sequence[LogRecord] = list(islice(found, _SLICE))
            except Exception:  # as in decode_records
                some = _decode_plain(view, header)[taken:]
                found = iter(())
            if not some:
                return
            taken += len(some)
            yield some
    finally:
        _spare.give(scratch)


def check_offsets(records: Sequence[LogRecord], header: BatchHeader, last: int | None = None) -> int:
    """The offset of the last of these records of a batch. `last` is that of the record before them, None at the start.

    Raises `CorruptBatch` if they do not lie in their batch one after another.
    """
    offsets: list[int] = [header.base_offset - 1 if last is None else last, *map(_offset, records)]
    if any(map(le, islice(offsets, 1, None), offsets)) or offsets[-1] > header.last_offset:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is damaged: its records do not have rising offsets from "
            f"{header.base_offset} to {header.last_offset}."
        )
    return offsets[-1]


class _Scratch:
    """Memory that batches are decompressed into, one after another: fresh pages would cost as much as the
    decompression. The parser copies what it takes."""

    def __init__(self) -> None:
        self.buffer = bytearray(_SCRATCH_BYTES)


class _Spare(threading.local):
    """The scratch of a thread, lent to one batch at a time: a second one, while the first is in use, gets a new one."""

    _idle: _Scratch | None = None

    def take(self) -> _Scratch:
        scratch, self._idle = self._idle, None
        return scratch or _Scratch()

    def give(self, scratch: _Scratch) -> None:
        self._idle = scratch


_spare = _Spare()


def _compiled(view: memoryview, header: BatchHeader, scratch: _Scratch) -> DefaultRecordBatch:
    plain = _decompressed(view[: header.size], header, scratch)
    if header.record_count > len(plain) - HEADER_SIZE:
        raise ValueError("more records than bytes")
    return DefaultRecordBatch(plain)


def _decompressed(batch: memoryview, header: BatchHeader, scratch: _Scratch) -> memoryview:
    """The batch as if it had never been compressed, with _PADDING behind the view; good until the next call."""
    into = _INTO.get(header.attributes & _CODEC)
    packed = batch[HEADER_SIZE:]
    if into is not None:
        buffer = scratch.buffer
        room = memoryview(buffer)[HEADER_SIZE : -len(_PADDING)]
        try:
            end = HEADER_SIZE + into(packed, room)
        except cramjam.DecompressionError:
            pass  # there is too little room, or it is damaged
        else:
            buffer[:HEADER_SIZE] = _plain_head(batch)
            buffer[end : end + len(_PADDING)] = _PADDING
            return memoryview(buffer)[:end]
    whole = b"".join((_plain_head(batch), records.unpack(batch, header), _PADDING))
    if into is not None and len(scratch.buffer) < len(whole) <= _SCRATCH_MAX:
        scratch.buffer = bytearray(len(whole))
    return memoryview(whole)[: -len(_PADDING)]


def _plain_head(batch: memoryview) -> bytearray:
    head = bytearray(batch[:HEADER_SIZE])
    head[_CODEC_AT] &= ~_CODEC
    return head


def _parse(compiled: DefaultRecordBatch, record_count: int) -> list[LogRecord]:
    if record_count < _MANY:
        return list(compiled)
    with paused():
        return list(compiled)


def _decode_plain(view: memoryview, header: BatchHeader) -> list[PlainRecord]:
    kind = _APPEND_TIME if header.is_log_append_time else _CREATE_TIME
    return [
        PlainRecord(
            record.offset,
            record.timestamp,
            kind,
            record.key,
            record.value,
            [(key.decode("utf-8", "surrogateescape"), value) for key, value in record.headers],
        )
        for record in records.decode(view)
    ]


def _decode_legacy(view: memoryview, header: BatchHeader) -> list[PlainRecord]:
    kind = None
    if header.magic:
        kind = _APPEND_TIME if header.attributes & _APPEND_TIME_BIT else _CREATE_TIME
    return [
        PlainRecord(offset, timestamp, kind, key, value)
        for offset, timestamp, key, value in legacy.read(view, 0).messages
    ]


def encode_records(
    source: Sequence[LogRecord],
    *,
    codec: Codec,
    base_offset: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    dense: bool = False,
) -> bytes:
    """One batch of magic 2 and create time; a record without a timestamp gets -1.

    Offsets, `dense` and what is raised are those of `records.encode`. Headers keep their order, their duplicates and
    their nulls; the escaped bytes of a key that is not UTF-8 become those bytes again.
    """
    if not source:
        raise ValueError("a batch needs at least one record")
    builder = DefaultRecordBatchBuilder(
        magic=_MAGIC,
        compression_type=Codec.NONE,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=_INT32_MAX,
    )
    if source[0].timestamp not in (None, -1):  # the builder takes -1 for "no record yet"
        try:
            return _build(builder, source, codec, base_offset, dense)
        except (TypeError, UnicodeEncodeError, OverflowError):  # what only the plain encoder takes, or explains
            pass
    return records.encode(
        [_plain(record) for record in source],
        codec=codec,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        dense=dense,
    )


def _build(
    builder: DefaultRecordBatchBuilder, source: Sequence[LogRecord], codec: Codec, base_offset: int, dense: bool
) -> bytes:
    append = builder.append
    last_delta = -1
    for record in source:
        delta = last_delta + 1 if dense else record.offset - base_offset
        if not last_delta < delta <= _INT32_MAX:
            raise ValueError(
                f"offset {record.offset} cannot follow {base_offset + last_delta} in a batch from {base_offset}"
            )
        timestamp = record.timestamp
        headers = record.headers
        append(
            delta,
            -1 if timestamp is None else timestamp,
            record.key,
            record.value,
            headers if type(headers) is list else list(headers),
        )
        last_delta = delta
    built = builder.build()
    header = parse_header(built)
    if header.record_count != len(source):
        raise OverflowError(f"{len(source)} records do not fit into a batch")
    if codec is not Codec.NONE:
        built = built[:HEADER_SIZE] + compress(codec, built[HEADER_SIZE:])
    built[:HEADER_SIZE] = pack_header(
        header._replace(
            base_offset=base_offset, batch_length=len(built) - (header.size - header.batch_length), attributes=codec
        )
    )
    seal(built)
    return bytes(built)


def _plain(record: LogRecord) -> records.Record:
    return records.Record(
        record.offset,
        -1 if record.timestamp is None else record.timestamp,
        record.key,
        record.value,
        tuple((key.encode("utf-8", "surrogateescape"), value) for key, value in record.headers),
    )

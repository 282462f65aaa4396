"""Records out of batches and into batches at the speed of compiled code.

    for position, header in walk_checked(log, until):
        if not header.is_control:
            records = decode_records(log[position : position + header.size], header)

The parser and the builder are those of aiokafka (`aiokafka.record`), which make and take record objects in C: about ten
times as fast as `records.decode` and `records.encode`, which say what is right, and do the work wherever the compiled
code cannot (header keys that are not UTF-8, a first timestamp of -1) or gives up. Compression is that of `compression`.

Beware: the compiled parser reads a number before it looks where it ends, so it gets a few zero bytes behind the batch.

Source of facts: aiokafka `record/_crecords/default_records.pyx` and `cutil.pyx` (0.14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import cramjam
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from logkeep_engine.collector import paused
from logkeep_engine.log import legacy, records
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, pack_header, parse_header, seal
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.consumed import LogRecord, PlainRecord

__all__ = ["PlainRecord", "decode_records", "encode_records"]

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
    try:
        plain = _decompressed(view[: header.size], header)
        if header.record_count > len(plain) - HEADER_SIZE:
            return _decode_plain(view, header)
        return _parse(plain, header.record_count)
    except Exception:  # whatever it was, the plain decoder knows what the bytes mean, or why they mean nothing
        return _decode_plain(view, header)


class _Scratch(threading.local):
    """Memory of one thread that batches are decompressed into, one after another: fresh pages would cost as much as the
    decompression. The parser copies what it takes."""

    def __init__(self) -> None:
        self.buffer = bytearray(_SCRATCH_BYTES)


_scratch = _Scratch()


def _decompressed(batch: memoryview, header: BatchHeader) -> memoryview:
    """The batch as if it had never been compressed, with _PADDING behind the view; good until the next call."""
    into = _INTO.get(header.attributes & _CODEC)
    packed = batch[HEADER_SIZE:]
    if into is not None:
        buffer = _scratch.buffer
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
    if into is not None and len(_scratch.buffer) < len(whole) <= _SCRATCH_MAX:
        _scratch.buffer = bytearray(len(whole))
    return memoryview(whole)[: -len(_PADDING)]


def _plain_head(batch: memoryview) -> bytearray:
    head = bytearray(batch[:HEADER_SIZE])
    head[_CODEC_AT] &= ~_CODEC
    return head


def _parse(plain: memoryview, record_count: int) -> list[LogRecord]:
    if record_count < _MANY:
        return list(DefaultRecordBatch(plain))
    with paused():
        return list(DefaultRecordBatch(plain))


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

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

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter, le

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from logkeep_engine.collector import paused
from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log import legacy, records
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, pack_header, parse_header, seal
from logkeep_engine.log.compression import Codec, compress, decompress_into
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.memory import HEAD, SMALL_BYTES, TAIL, ScratchMemory, lent, listed_most

__all__ = ["PlainRecord", "check_offsets", "decode_records", "decode_slices", "encode_records"]

_MAGIC = 2
_CODEC_AT = 22
_CODEC = 0x07
_CREATE_TIME = 0
_APPEND_TIME = 1
_APPEND_TIME_BIT = 0x08
_INT32_MAX = 2**31 - 1

_MANY = 500
"""From so many records of a batch on the collector rests. It would walk them all several times while they are made."""

_SLICE = 128
"""Records of a slice. So few stay in the processor's cache, and two slices do not wake the collector."""

_SLICE_BYTES = 1 << 20
"""No slice of a large batch has more, unless it is one record."""

_WEIGHT_OF_HEADER = 64
"""The bytes that even the smallest header takes as an object."""

_offset = attrgetter("offset")


def decode_records(
    batch: Buffer, header: BatchHeader | None = None, *, limit: int | None = None
) -> Sequence[LogRecord]:
    """The records of one whole batch, of any magic and codec, with the offsets and times a consumer sees.

    A record without a timestamp has -1. Every record of a log-append-time batch has the batch's max timestamp. The
    records of a control batch are its markers: look at `header.is_control`. The CRC is not checked. `header`, if it is
    at hand, is that of the batch. Raises `CorruptBatch` with the base offset when the batch is cut short or its inside
    does not fit together, and `BatchTooLarge` if it unpacks to more than `limit` bytes (`memory.unpacked_most()`
    without it), or to more records than may be made at once.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC:
        return _decode_legacy(view, header)
    if header.record_count == 0 or header.size > len(view):
        return list(_decode_plain(view, header))
    with lent() as work:
        plain = _decompressed(view, header, work, limit)
        _slice_sizes(plain, header, work)  # refuses what is small in the batch and large as objects
        if header.record_count <= listed_most():
            try:
                return _parse(_compiled(plain, header), header.record_count)
            except Exception:  # whatever it was, the plain decoder knows what the bytes mean, or why they mean nothing
                pass
    return records.listed(_decode_plain(view, header), header)


def decode_slices(
    batch: Buffer, header: BatchHeader | None = None, *, limit: int | None = None
) -> Iterator[Sequence[LogRecord]]:
    """Like `decode_records`, in lists of at most 128 records. Take it to pass over many records, one after the other:
    it is about half as fast again, and a batch of many records is never in memory as a whole.

    Raises as `decode_records`, but takes any number of records: BatchTooLarge before the first list, and CorruptBatch
    maybe after the records before the fault were handed out. Good for one pass in one thread; `batch` must not change
    meanwhile.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC or header.record_count <= _SLICE or header.size > len(view):
        found = decode_records(view, header, limit=limit)
        if found:
            yield found
        return
    taken = 0
    with lent() as work:
        plain = _decompressed(view, header, work, limit)
        sizes = _slice_sizes(plain, header, work)
        try:
            for some in _compiled_slices(plain, header, sizes):
                taken += len(some)
                yield some
                del some
            return
        except _Unreadable:
            pass
    rest = islice(_decode_plain(view, header), taken, None)
    while some := list(islice(rest, _SLICE)):
        yield some


class _Unreadable(Exception):
    """The compiled parser cannot read on."""


def _compiled_slices(
    plain: memoryview, header: BatchHeader, sizes: Iterable[int] | None
) -> Iterator[Sequence[LogRecord]]:
    try:
        found: Iterator[LogRecord] = chain(_compiled(plain, header))  # its own iterator can be asked for only once
    except Exception as problem:  # as in decode_records
        raise _Unreadable from problem
    for size in repeat(_SLICE) if sizes is None else chain(sizes, repeat(_SLICE)):
        try:
            some = list(islice(found, size))
        except Exception as problem:
            raise _Unreadable from problem
        if not some:
            return
        yield some
        del some


def _slice_sizes(plain: memoryview, header: BatchHeader, work: ScratchMemory) -> list[int] | None:
    """How many records go into each slice of a large batch, so that no slice has many bytes; None for a small batch,
    and for one that is damaged. Raises BatchTooLarge for a record whose headers take too much as objects.
    """
    if len(plain) <= SMALL_BYTES:
        return None
    sizes: list[int] = []
    count = held = 0
    try:
        for weight in records.weights(plain[HEADER_SIZE:], header, _WEIGHT_OF_HEADER):
            if weight > work.most:
                raise BatchTooLarge(
                    f"The batch at offset {header.base_offset} has a record that would take {weight} bytes with its "
                    f"headers, at most {work.most} are unpacked at once."
                )
            if count and (count == _SLICE or held + weight > _SLICE_BYTES):
                sizes.append(count)
                count = held = 0
            count += 1
            held += weight
    except (CorruptBatch, IndexError):
        return None
    return [*sizes, count]


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


def _compiled(plain: memoryview, header: BatchHeader) -> DefaultRecordBatch:
    if header.record_count > len(plain) - HEADER_SIZE:
        raise ValueError("more records than bytes")
    return DefaultRecordBatch(plain)


def _decompressed(view: memoryview, header: BatchHeader, work: ScratchMemory, limit: int | None) -> memoryview:
    """The batch as if it had never been compressed, with zeros behind the view; good as long as the workspace is."""
    packed = view[HEADER_SIZE : header.size]
    begin = HEAD - HEADER_SIZE
    try:
        end = HEAD + decompress_into(header.codec, packed, work.space(work.most if limit is None else limit))
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem
    except BatchTooLarge as problem:
        raise records.of_batch(problem, header) from problem
    work.view[begin:HEAD] = _plain_head(view)
    work.view[end : end + TAIL] = bytes(TAIL)  # a header that was cut short can send the parser 11 bytes past the end
    return work.view[begin:end]


def _plain_head(batch: memoryview) -> bytearray:
    head = bytearray(batch[:HEADER_SIZE])
    head[_CODEC_AT] &= ~_CODEC
    return head


def _parse(compiled: DefaultRecordBatch, record_count: int) -> list[LogRecord]:
    if record_count < _MANY:
        return list(compiled)
    with paused():
        return list(compiled)


def _decode_plain(view: memoryview, header: BatchHeader) -> Iterator[PlainRecord]:
    kind = _APPEND_TIME if header.is_log_append_time else _CREATE_TIME
    for record in records.iterate(view):
        yield PlainRecord(
            record.offset,
            record.timestamp,
            kind,
            record.key,
            record.value,
            [(key.decode("utf-8", "surrogateescape"), value) for key, value in record.headers],
        )


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

"""Records out of batches and into batches, as objects. The kernel does the work.

    for position, header in walk_checked(log, until):
        if not header.is_control:
            records = decode_records(log[position : position + header.size], header)

`decode_slices` gives the same in short lists, which is the way to pass over many. Who needs no objects takes `rows`.

`records` takes apart what the kernel does not take: it says what is wrong with a batch, and reads one whose records are
whole but do not lie in their batch one after another. Messages of magic 0 and 1 are `legacy`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter, le

from logkeep_kernel import Rows, batch_rows, packed_rows, rows_of

from logkeep_engine.collector import paused
from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log import legacy, records
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, parse_header
from logkeep_engine.log.compression import Codec, decompress_into, too_large
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.memory import SMALL_BYTES, ScratchMemory, lent, listed_most, unpacked_most

__all__ = [
    "PlainRecord",
    "as_rows",
    "check_offsets",
    "decode_records",
    "decode_slices",
    "encode_records",
    "packed_batch",
]

MOST_ROWS = 1 << 15
"""Rows of a part of a large batch: a row takes about 50 bytes."""

_MAGIC = 2
_CREATE_TIME = 0
_APPEND_TIME = 1
_APPEND_TIME_BIT = 0x08  # bit 3: the broker has set the times

_MANY = 500
"""From this many records of a batch on the collector rests. It would walk them all several times while they are
made."""

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
    """Return the records of one whole batch, of any magic and codec, with the offsets and times a consumer sees.

    A record without a timestamp has None or -1. Every record of a log-append-time batch has the batch's max timestamp.
    The records of a control batch are its markers: look at `header.is_control`. The CRC is not checked. `header`, if it
    is at hand, is that of the batch. Raises `CorruptBatch` with the base offset when the batch is cut short or its
    inside does not fit together, and `BatchTooLarge` if it unpacks to more than `limit` bytes
    (`memory.unpacked_most()` without it), or to more records than may be made at once.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC:
        return _decode_legacy(view, header)
    if header.record_count == 0 or header.size > len(view):
        return list(_decode_plain(view, header))
    with lent() as work:
        plain = plain_records(view, header, work, limit)
        found = batch_rows(plain, header, MOST_ROWS)
        if found is not None:
            return _listed(found, plain, header, work)
    return records.listed(_decode_plain(view, header), header)


def _listed(found: Iterable[Rows], plain: memoryview, header: BatchHeader, work: ScratchMemory) -> list[LogRecord]:
    parts = _checked(found, plain, header, work)
    if header.record_count < _MANY:
        return records.listed(chain.from_iterable(parts), header)
    with paused():
        return records.listed(chain.from_iterable(parts), header)


def decode_slices(
    batch: Buffer, header: BatchHeader | None = None, *, limit: int | None = None
) -> Iterator[Sequence[LogRecord]]:
    """Like `decode_records`, in lists of at most 128 records. Take it to pass over many records, one after the other:
    a batch of many records is never in memory as a whole.

    Raises as `decode_records`, but takes any number of records: BatchTooLarge before the first list, or after those
    before a record with too many headers, and CorruptBatch maybe after the records before the fault were handed out.
    Good for one pass in one thread; `batch` must not change in the meantime.
    """
    view = memoryview(batch)
    if header is None:
        header = parse_header(view)
    if header.magic < _MAGIC or header.record_count <= _SLICE or header.size > len(view):
        found = decode_records(view, header, limit=limit)
        if found:
            yield found
        return
    with lent() as work:
        plain = plain_records(view, header, work, limit)
        parts = batch_rows(plain, header, MOST_ROWS)
        if parts is not None:
            for rows in _checked(parts, plain, header, work):
                yield from _slices(rows)
            return
    rest = _decode_plain(view, header)
    while some := list(islice(rest, _SLICE)):
        yield some


def _slices(rows: Rows) -> Iterator[list[PlainRecord]]:
    at = 0
    while some := rows.listed(at, _SLICE, _SLICE_BYTES):
        at += len(some)
        yield some
        del some


def _checked(parts: Iterable[Rows], plain: memoryview, header: BatchHeader, work: ScratchMemory) -> Iterator[Rows]:
    """Yield the parts of a batch. Raises BatchTooLarge for a record whose headers take too much as objects."""
    for rows in parts:
        if len(plain) > SMALL_BYTES and rows.facts(_WEIGHT_OF_HEADER)[-1] > work.most:
            weight = max(records.weights(plain, header, _WEIGHT_OF_HEADER))
            raise BatchTooLarge(
                f"The batch at offset {header.base_offset} has a record that would take {weight} bytes with its "
                f"headers, at most {work.most} are unpacked at once."
            )
        yield rows


def listed_rows(batch: memoryview, header: BatchHeader) -> Rows:
    """Return all records of one whole batch of any magic and codec at once, as rows that are good as long as `batch`
    is. Their offsets may fall. Raises as `decode_records`.
    """
    if header.magic == _MAGIC and 0 < header.record_count <= listed_most() and header.size <= len(batch):
        plain = records.unpack(batch[: header.size], header)
        found = batch_rows(plain, header, header.record_count)
        if found is not None:
            return next(found)
    return rows_of(decode_records(batch, header))


def plain_records(batch: memoryview, header: BatchHeader, work: ScratchMemory, limit: int | None) -> memoryview:
    """Return the packed records of one whole batch of magic 2, decompressed: in `work`, or where they are. Raises
    CorruptBatch and BatchTooLarge, which name the batch."""
    packed = batch[HEADER_SIZE : header.size]
    try:
        if header.codec is Codec.NONE:
            most = unpacked_most() if limit is None else limit
            if len(packed) > most:
                raise too_large(Codec.NONE, packed, most)
            return packed
        space = work.space(work.most if limit is None else limit)
        return space[: decompress_into(header.codec, packed, space)]
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem
    except BatchTooLarge as problem:
        raise records.of_batch(problem, header) from problem


def check_offsets(records: Sequence[LogRecord], header: BatchHeader, last: int | None = None) -> int:
    """Return the offset of the last of these records of a batch. `last` is that of the record before them, None at the
    start.

    Raises `CorruptBatch` if they do not lie in their batch one after another.
    """
    offsets: list[int] = [header.base_offset - 1 if last is None else last, *map(_offset, records)]
    if any(map(le, islice(offsets, 1, None), offsets)) or offsets[-1] > header.last_offset:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is damaged: its records do not have rising offsets from "
            f"{header.base_offset} to {header.last_offset}."
        )
    return offsets[-1]


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


def as_rows(found: Sequence[LogRecord]) -> Rows:
    """Return the records as rows; rows stay as they are."""
    return found if isinstance(found, Rows) else rows_of(found)


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

    Headers keep their order, their duplicates and their nulls; the escaped bytes of a key that is not UTF-8 become
    those bytes again. Raises as `packed_batch`.
    """
    batch, _, _ = packed_batch(
        [as_rows(source)],
        codec=codec,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        dense=dense,
    )
    return batch


def packed_batch(
    parts: Sequence[Rows],
    *,
    codec: Codec,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    dense: bool = True,
    transactional: bool = False,
    leader_epoch: int = -1,
) -> tuple[bytes, list[tuple[int, int]], int]:
    """Return the records as one batch of magic 2 and create time; their offsets as (first, count) of each run without a
    gap; and how many had the time of the append.

    They are numbered from `base_offset` without gaps, whatever offsets they bring; without `dense` they keep these,
    which must rise from there on (offsets left out are gaps, which a broker refuses from producers). Raises ValueError
    when there are no records, or offsets do not rise or lie further than an int32 from `base_offset`.
    """
    count = sum(map(len, parts))
    if not count:
        raise ValueError("a batch needs at least one record")
    body, base_timestamp, max_timestamp, append_times, source = packed_rows(parts, None if dense else base_offset)
    last_offset = next(rows.last_offset for rows in reversed(parts) if len(rows))
    batch = records.made_batch(
        codec,
        body,
        count=count,
        times=(base_timestamp, max_timestamp),
        last_offset_delta=count - 1 if dense else last_offset - base_offset,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        transactional=transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return batch, source, append_times

"""Records as rows of the kernel: the places of keys, values and headers, without an object for each record.

    for rows in rows_of_batch(batch, header):
        segment.append(rows)

A `Rows` is a sequence of `LogRecord`, which makes an object of a record when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from logkeep_kernel import RecordDigest, Rows, batch_rows, packed_rows, rows_of

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Headers
from logkeep_engine.log.codec import check_offsets, decode_records, decode_slices
from logkeep_engine.log.compression import Codec, compress, decompress, decompress_into, too_large
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.memory import SMALL_BYTES, lent, unpacked_most
from logkeep_engine.log.records import of_batch, sealed

__all__ = ["Rows", "as_rows", "kept_rows", "note_batches", "packed_batch", "rows_of_batch"]

_MOST = 1 << 15
"""Rows of a part of a large batch: a row takes about 50 bytes."""


def as_rows(records: Sequence[LogRecord]) -> Rows:
    """The records as rows; rows stay as they are."""
    return records if isinstance(records, Rows) else rows_of(records)


def rows_of_batch(batch: memoryview, header: BatchHeader, *, limit: int | None = None) -> Generator[Rows]:
    """The records of one whole batch of any magic and codec, in parts of bounded size, with rising offsets that lie in
    the batch. The CRC is not checked.

    The rows are good until the next ones are asked for, since the memory below them is used again. All of the batch is
    looked through before the first ones are handed out. Raises as `codec.decode_records` and `codec.check_offsets`.
    """
    if header.magic < 2 or header.size > len(batch):
        records = decode_records(batch, header, limit=limit)
        if records:
            check_offsets(records, header)
            yield rows_of(records)
        return
    if header.record_count == 0:
        return
    packed = batch[HEADER_SIZE : header.size]
    try:
        if header.codec is Codec.NONE:
            most = unpacked_most() if limit is None else limit
            if len(packed) > most:
                raise too_large(Codec.NONE, packed, most)
            yield from _rows(packed, batch, header)
            return
        with lent() as work:
            space = work.space(work.most if limit is None else limit)
            size = decompress_into(header.codec, packed, space)
            yield from _rows(space[:size], batch, header)
    except _Explained as explained:
        raise explained.problem from None
    except CorruptBatch as problem:
        raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem
    except BatchTooLarge as problem:
        raise of_batch(problem, header) from problem


def kept_rows(batch: memoryview, header: BatchHeader) -> Iterator[Rows]:
    """The records of one whole batch of any magic and codec, in rows that stay good. The CRC is not checked.

    Raises as `codec.decode_slices` and `codec.check_offsets`, after the records before the fault.
    """
    if header.magic == 2 and header.size <= len(batch) and header.record_count:
        packed = batch[HEADER_SIZE : header.size]
        try:
            plain = decompress(header.codec, packed, limit=SMALL_BYTES)
            found = batch_rows(plain, header, _MOST)
        except (BatchTooLarge, CorruptBatch):
            found = None
        if found is not None:
            yield from found
            return
    last: int | None = None
    for records in decode_slices(batch, header):
        last = check_offsets(records, header, last)
        yield rows_of(records)


def note_batches(digest: RecordDigest, stretch: memoryview, headers: Headers) -> None:
    """Note the records of these batches of a stretch in the digest. Control batches are left out; aborted ones are for
    the caller to leave out, who hands in the headers between them. No CRC is checked.

    Raises as `rows_of_batch`. The digest has the records of all batches before the damaged one then, and none of it.
    """
    while headers:
        taken = digest.note_batches(stretch, headers, SMALL_BYTES)
        if taken < len(headers):
            at, header = headers[taken]
            for rows in rows_of_batch(stretch[at : at + header.size], header):
                digest.note(rows)
        headers = headers[taken + 1 :]


class _Explained(Exception):
    def __init__(self, problem: CorruptBatch | BatchTooLarge) -> None:
        super().__init__(problem)
        self.problem = problem


def _rows(plain: memoryview, batch: memoryview, header: BatchHeader) -> Generator[Rows]:
    found = batch_rows(plain, header, _MOST)
    if found is None:
        raise _Explained(_problem_of(batch, header))
    yield from found


def _problem_of(batch: memoryview, header: BatchHeader) -> CorruptBatch | BatchTooLarge:
    """The words for records that the kernel does not take."""
    try:
        last: int | None = None
        for records in decode_slices(batch, header):
            last = check_offsets(records, header, last)
    except (CorruptBatch, BatchTooLarge) as problem:
        return problem
    return CorruptBatch(f"The batch at offset {header.base_offset} is damaged: its records do not fit together.")


def packed_batch(
    parts: Sequence[Rows], *, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int
) -> tuple[bytes, list[tuple[int, int]], int]:
    """The records as one batch of magic 2 and create time, numbered from 0 on; their offsets as (first, count) of each
    run without a gap; and how many had the time of the append. There is at least one record."""
    body, base_timestamp, max_timestamp, append_times, source = packed_rows(parts)
    count = sum(map(len, parts))
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return sealed(compress(codec, body), header), source, append_times

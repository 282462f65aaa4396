"""Records as rows of the kernel: the places of keys, values and headers, without an object for each record.

    for rows in rows_of_batch(batch, header):
        segment.append(rows)

A `Rows` is a sequence of `LogRecord`, which makes an object of a record on request.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from logkeep_kernel import RecordDigest, Rows, batch_rows, record_digests, rows_of

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Headers
from logkeep_engine.log.codec import (
    MOST_ROWS,
    as_rows,
    check_offsets,
    decode_records,
    decode_slices,
    listed_rows,
    packed_batch,
    plain_records,
)
from logkeep_engine.log.compression import decompress
from logkeep_engine.log.memory import SMALL_BYTES, lent
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL, Spans

__all__ = [
    "RecordDigest",
    "Rows",
    "as_rows",
    "kept_rows",
    "listed_rows",
    "note_batches",
    "note_committed",
    "packed_batch",
    "record_digests",
    "rows_of_batch",
    "without_aborted",
]


def rows_of_batch(batch: memoryview, header: BatchHeader, *, limit: int | None = None) -> Generator[Rows]:
    """Yield the records of one whole batch of any magic and codec, in parts of bounded size, with rising offsets that
    lie in the batch. The CRC is not checked.

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
    with lent() as work:
        plain = plain_records(batch, header, work, limit)
        found = batch_rows(plain, header, MOST_ROWS)
        if found is None:
            raise _problem_of(batch, header)
        yield from found


def kept_rows(batch: memoryview, header: BatchHeader) -> Iterator[Rows]:
    """Yield the records of one whole batch of any magic and codec, in rows that stay good. The CRC is not checked.

    Raises as `codec.decode_slices` and `codec.check_offsets`, after the records before the fault.
    """
    if header.magic == 2 and header.size <= len(batch) and header.record_count:
        packed = batch[HEADER_SIZE : header.size]
        try:
            plain = decompress(header.codec, packed, limit=SMALL_BYTES)
            found = batch_rows(plain, header, MOST_ROWS)
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


def note_committed(digest: RecordDigest, stretch: memoryview, headers: Headers, aborted: Spans) -> None:
    """Note the records that a consumer of committed records sees. No CRC is checked. Raises as `note_batches`."""
    for part in without_aborted(headers, aborted):
        note_batches(digest, stretch, part)


def without_aborted(headers: Headers, aborted: Spans) -> Iterator[Headers]:
    """Yield the batches but for those of aborted transactions."""
    at = 0
    for number in headers.with_bits(TRANSACTIONAL_OR_CONTROL):
        if headers[number][1] in aborted:
            yield headers[at:number]
            at = number + 1
    yield headers[at:] if at else headers


def _problem_of(batch: memoryview, header: BatchHeader) -> CorruptBatch | BatchTooLarge:
    """Return the words for records that the kernel does not take."""
    try:
        last: int | None = None
        for records in decode_slices(batch, header):
            last = check_offsets(records, header, last)
    except (CorruptBatch, BatchTooLarge) as problem:
        return problem
    return CorruptBatch(f"The batch at offset {header.base_offset} is damaged: its records do not fit together.")

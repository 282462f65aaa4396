"""Batches rebuilt from record objects in Python: the oracle of `filter.rebuilt`."""

from collections.abc import Iterator, Sequence

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing, source_rows


def rebuilt(
    batch: memoryview,
    header: BatchHeader,
    *,
    index: int,
    producer_id: int,
    most: int,
    done: int = 0,
) -> Iterator[Outgoing]:
    """The batches to send for one archived batch of any magic that is rebuilt: one, or several if one is too large.

    `index` is the number of records sent before it. The stream's first `done` records come with source offsets only. No
    batch has more than `most` bytes before compression, unless one record has. Raises CorruptBatch if the records are
    not what the header says.
    """
    records = decode(batch)
    if header.magic >= 2 and len(records) != header.record_count:
        raise CorruptBatch(
            f"batch at offset {header.base_offset} holds {len(records)} records, its header says {header.record_count}"
        )
    for group, built in _groups_of(records, header, index, producer_id, most):
        yield Outgoing(
            index=index,
            count=len(group),
            size=len(built),
            data=(built,) if index + len(group) > done else None,
            source=tuple(source_rows([record.offset for record in group])),
            append_times=len(group) if header.is_log_append_time else 0,
        )
        index += len(group)


def _groups_of(
    records: Sequence[Record], header: BatchHeader, index: int, producer_id: int, most: int
) -> Iterator[tuple[Sequence[Record], bytes]]:
    """The records in groups of at most `most` bytes before compression, unless one record has more."""
    start = size = 0
    for at, record in enumerate(records):
        taken = largest_size(record)
        if at > start and size + taken > most:
            yield records[start:at], _encoded(records[start:at], header, index + start, producer_id)
            start, size = at, 0
        size += taken
    if records:
        yield records[start:], _encoded(records[start:], header, index + start, producer_id)


def largest_size(record: Record) -> int:
    """The most bytes that a record takes in a batch before compression, wherever in the batch it is."""
    key, value, headers = record.key, record.value, record.headers
    size = _LARGEST_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 2 * _LONGEST_LENGTH + 4 * _characters(name) + len(content or b"")
    return size


def _characters(name: bytes) -> int:
    """The characters of a header's name; of bytes that are not UTF-8 each is one. Each may take four bytes."""
    return len(name.decode(errors="surrogateescape"))


_LONGEST_LENGTH = 5
_LARGEST_OVERHEAD = 1 + 10 + 5 * _LONGEST_LENGTH  # attributes; time; offset and the lengths of record, key and value


def _encoded(records: Sequence[Record], header: BatchHeader, index: int, producer_id: int) -> bytes:
    return encode(
        records,
        codec=header.codec,
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=PRODUCER_EPOCH,
        base_sequence=index % SEQUENCE_SPACE,
        dense=True,
    )

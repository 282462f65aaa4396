"""This module reads the records of a source's segments, in whatever format: the records that a consumer of committed
records would see.

Control batches, records of aborted transactions, and everything that belongs to batches is left out, and counted as a
loss of record-shaped formats. Every byte is checked on the way, as strictly as `verify` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Never, cast

from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import PartitionReader, decoded, open_partition
from logkeep_engine.convert.loss import LossCount
from logkeep_engine.convert.source import ForeignSegment, ForeignSlice, SourceSegment
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptSegment, ObjectMissing
from logkeep_engine.formats import osodevops
from logkeep_engine.formats.base import LogRecord, LossKind
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage

_CODEC = 0x07  # bits 0 to 2 of a batch's attributes
_TRANSACTIONAL = 0x10  # bit 4
_CONTROL = 0x20  # bit 5: markers and the like, not data
_HINT = "Restore the object from a copy. What was converted before it is kept; the same --run-id continues."


def read_records(
    storage: Storage,
    topic: str,
    partition: int,
    segment: SourceSegment,
    aborted: Sequence[AbortedTxn] = (),
    count: LossCount | None = None,
) -> Iterator[Sequence[LogRecord]]:
    """Return the records of one segment in lists of bounded size. Raises ArchiveDamaged, which names the object, at the
    first damage: records that were handed out before are worth nothing then."""
    if isinstance(segment, ForeignSlice):
        whole = read_records(storage, topic, partition, segment.segment, aborted, count)
        return _between(whole, segment.start, segment.end)
    if isinstance(segment, ForeignSegment):
        return _of_tool(storage, topic, partition, segment)
    reader = open_partition(storage, topic, (segment,), aborted=aborted)
    if reader.batched:
        return decoded(storage, topic, segment, _counted(reader, count), Spans.of(aborted), hint=_HINT)
    return reader.records()


def _between(lists: Iterable[Sequence[LogRecord]], start: int, end: int) -> Iterator[Sequence[LogRecord]]:
    """Yield the records with offsets in [start, end). All are read, since the whole segment is checked."""
    for records in lists:
        low, high = (bisect_left(records, offset, key=_offset) for offset in (start, end))
        if low < high:
            yield records[low:high]


def _offset(record: LogRecord) -> int:
    return record.offset


def _counted(reader: PartitionReader[Never], count: LossCount | None) -> Iterator[Stretch]:
    for stretch in reader.batches():
        if count is not None:
            count_batches(stretch, count)
        yield stretch
        del stretch


def count_batches(stretch: Stretch, count: LossCount) -> None:
    """Count what a record-shaped format loses of these batches."""
    headers = stretch[1]
    control = frozenset(headers.with_bits(_CONTROL))
    count.add(LossKind.BATCH_BOUNDS, len(headers) - len(control), headers[0][1].base_offset)
    lost = {
        LossKind.COMPRESSION: headers.with_bits(_CODEC),
        LossKind.PRODUCER: [number for number in headers.with_producer() if number not in control],
        LossKind.TRANSACTIONS: headers.with_bits(_TRANSACTIONAL | _CONTROL),
    }
    for kind, numbers in lost.items():
        if numbers:
            count.add(kind, len(numbers), headers[numbers[0]][1].base_offset)


def _of_tool(storage: Storage, topic: str, partition: int, segment: ForeignSegment) -> Iterator[Sequence[LogRecord]]:
    count, last = 0, segment.base_offset - 1
    try:
        with storage.reader(segment.path) as reader:
            blocks = iter(reader.read_block, b"")
            for records in osodevops.read_segment(blocks):
                if count == 0 and records[0].offset != segment.base_offset:
                    raise CorruptSegment(
                        f"its first record has offset {records[0].offset}, the manifest says {segment.base_offset}"
                    )
                count += len(records)
                last = records[-1].offset
                yield cast(Sequence[LogRecord], records)
        # A segment may end early and be whole as far as it goes: the manifest alone says how many there were.
        if (count, last + 1) != (segment.records, segment.next_offset):
            raise CorruptSegment(
                f"it holds {count} records up to offset {last}, the manifest says {segment.records} up to "
                f"{segment.next_offset - 1}"
            )
    except BatchTooLarge as error:
        raise error.within(f"{storage.uri}/{segment.path} (topic {topic} partition {partition})") from error
    except (CorruptSegment, ObjectMissing) as error:
        raise _damaged(storage, topic, partition, segment.path, last + 1, error) from error


def _damaged(
    storage: Storage,
    topic: str,
    partition: int,
    path: str,
    offset: int,
    error: CorruptSegment | ObjectMissing,
) -> ArchiveDamaged:
    what = "the object is missing" if isinstance(error, ObjectMissing) else error.message.rstrip(".")
    damage = Damage(f"{storage.uri}/{path}", topic, partition, offset, what)
    return ArchiveDamaged(f"{damage}.", hint=_HINT)

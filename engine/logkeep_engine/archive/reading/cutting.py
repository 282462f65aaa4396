"""Cuts what a segment holds, batches and records, to a range of offsets.

A batch across a bound gives the records on its side. They are a batch of their own then, with the offsets, times,
producer and leader epoch that they had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from logkeep_engine.log.batch import BatchHeader, Stretch, headers_of, parse_header, with_append_time
from logkeep_engine.log.codec import check_offsets, listed_rows, packed_batch
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.rows import Rows

Cut = Callable[[memoryview, BatchHeader], bytes | bytearray | None]
_offset = attrgetter("offset")


def stretches_within(
    stretches: Iterable[Stretch], start: int, end: int, cut: Cut, *, to_the_end: bool
) -> Iterator[Stretch]:
    """Yield the batches with offsets in [start, end). `cut` makes a batch of those records of another one that lie in
    it, or None. `to_the_end`: all is read, since only all of it can be checked."""
    for stretch, headers in stretches:
        first, last = headers.first_reaching(start), headers.first_reaching(end)
        across = [
            at for at in dict.fromkeys((first, last)) if at < len(headers) and _is_across(headers[at], start, end)
        ]
        if first in across:
            yield from _alone(cut, stretch, *headers[first])
            first += 1
        inside = headers[first:last]
        if inside:
            yield stretch[inside.start : inside.end], inside.relative()
        if first <= last and last in across:
            yield from _alone(cut, stretch, *headers[last])
        if last < len(headers) and not to_the_end:
            return
        del stretch, headers, inside


def _is_across(item: tuple[int, BatchHeader], start: int, end: int) -> bool:
    header = item[1]
    return header.base_offset < start < header.next_offset or header.base_offset < end < header.next_offset


def _alone(cut: Cut, stretch: memoryview, position: int, header: BatchHeader) -> Iterator[Stretch]:
    batch = cut(stretch[position : position + header.size], header)
    if batch is not None:
        yield memoryview(batch), headers_of([(0, parse_header(batch))])


def cut_batch(batch: memoryview, header: BatchHeader, start: int, end: int) -> bytes | bytearray | None:
    """Return a batch of those records that lie in [start, end), whose CRC was checked; None if there are none. Raises
    CorruptBatch if the records are not what the header says, and BatchTooLarge for one that cannot be unpacked."""
    if header.is_control:
        return bytes(batch) if start <= header.base_offset < end else None
    every = listed_rows(batch, header)
    check_offsets(every, header)
    rows = every.between(start, end)
    if not len(rows):
        return None
    modern = header.magic >= 2
    first = rows.first_offset
    made, _, _ = packed_batch(
        [rows],
        codec=header.codec,
        base_offset=first,
        dense=False,
        producer_id=header.producer_id if modern else -1,
        producer_epoch=header.producer_epoch if modern else -1,
        base_sequence=_sequence(header, first) if modern else -1,
        transactional=modern and header.is_transactional,
        leader_epoch=header.leader_epoch if modern else -1,
    )
    return with_append_time(made) if header.is_log_append_time else made


def _sequence(header: BatchHeader, first: int) -> int:
    """Return the sequence of the record at offset `first`."""
    if header.base_sequence < 0:
        return header.base_sequence
    return (header.base_sequence + first - header.base_offset) & 0x7FFFFFFF


def records_within(lists: Iterable[Sequence[LogRecord]], start: int, end: int) -> Iterator[Sequence[LogRecord]]:
    """Yield the records with offsets in [start, end). All is read, since only all of it can be checked."""
    for records in lists:
        found = between(records, start, end)
        if found:
            yield found


def between(records: Sequence[LogRecord], start: int, end: int) -> Sequence[LogRecord]:
    """Return those of these records with offsets in [start, end)."""
    if not records or (records[0].offset >= start and records[-1].offset < end):
        return records
    if isinstance(records, Rows):
        return records.between(start, end)
    return records[bisect_left(records, start, key=_offset) : bisect_left(records, end, key=_offset)]

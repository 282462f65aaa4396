"""This module makes rows of an archive: records as the segments have them, columns as Arrow has them.

Arrow arrays are made column by column, of about `MAX_RECORDS` records or `MAX_BYTES` of keys, values and headers,
whatever is reached first. Records of one large batch are taken apart as they are needed, never all at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Never, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import PartitionReader, first_since, open_partition, sound
from logkeep_engine.collector import paused
from logkeep_engine.log.batch import BatchHeader, Codec, Stretch
from logkeep_engine.log.codec import check_offsets, decode_slices
from logkeep_engine.log.consumed import LogRecord, index_since
from logkeep_engine.log.transactions import Spans, unseen
from logkeep_engine.log.varints import INT64_MAX
from logkeep_engine.spark.source_plan import SegmentRead
from logkeep_engine.storage import Storage

MAX_RECORDS = 10_000
MAX_BYTES = 8 << 20

_FARTHEST_TIME = INT64_MAX // 1000  # ms, which Spark has as us
_CODECS = {codec: codec.name.lower() for codec in Codec}

_offset, _time, _time_type = attrgetter("offset"), attrgetter("timestamp"), attrgetter("timestamp_type")
_key, _value, _headers = attrgetter("key"), attrgetter("value"), attrgetter("headers")

T = TypeVar("T")


class BatchOrigin(NamedTuple):
    """The facts that all records of one batch share. `compression`, `producer_id` and `transactional` are None where
    the archive does not know them."""

    topic: str
    partition: int
    compression: str | None = None
    producer_id: int | None = None
    transactional: bool | None = None


Rows = tuple[Sequence[LogRecord], BatchOrigin]


def read_rows(storage: Storage, read: SegmentRead) -> Iterator[Rows]:
    """Yield the records of a read, at least one at a time. Raises ArchiveDamaged at the first damage, and what the
    storage raises."""
    reader = open_partition(storage, read.topic, (read.entry,), aborted=read.aborted)
    found = _of_batches(storage, read, reader) if reader.batched else _of_records(read, reader)
    with sound(storage, read.topic, read.entry):
        for records, origin in found:
            if records:
                yield records, origin


def arrow_batches(parts: Iterable[Rows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Arrow batches with the columns that `schema` names, in its order and types."""
    some = _cut(parts)
    while True:
        with paused():  # it would walk these records, and all that PySpark has loaded, again and again
            pending = _gathered(some)
            made = _batch(pending, schema) if pending else None
            del pending
        if made is None:
            return
        yield made


def _cut(parts: Iterable[Rows]) -> Iterator[tuple[Rows, int]]:
    """Yield the rows with their number of bytes. Rows that are too many for one Arrow batch are split."""
    for records, origin in parts:
        size = _bytes_of(records)
        if len(records) <= MAX_RECORDS and size <= MAX_BYTES:
            yield (records, origin), size
            continue
        for some in _split(records):
            yield (some, origin), _bytes_of(some)


def _split(records: Sequence[LogRecord]) -> Iterator[Sequence[LogRecord]]:
    start = size = 0
    for at, record in enumerate(records):
        if at - start == MAX_RECORDS or size >= MAX_BYTES:
            yield records[start:at]
            start, size = at, 0
        size += _bytes_of((record,))
    yield records[start:]


def _gathered(parts: Iterator[tuple[Rows, int]]) -> list[Rows]:
    """Take as many rows as make an Arrow batch."""
    found: list[Rows] = []
    count = size = 0
    for part, more in parts:
        found.append(part)
        count += len(part[0])
        size += more
        if count >= MAX_RECORDS or size >= MAX_BYTES:
            break
    return found


# ---- reading


def _of_batches(storage: Storage, read: SegmentRead, reader: PartitionReader[Never]) -> Iterator[Rows]:
    start, end = _offsets(storage, read)
    if start >= end:
        return
    aborted = Spans.of(read.aborted)
    for header, batch in _batches(reader.batches(start)):
        if header.base_offset >= end:
            return
        if unseen(header, aborted) is None and (read.since is None or header.max_timestamp >= read.since):
            origin = _origin(read, header)
            found = decode_slices(batch, header)
            if header.base_offset < start or header.next_offset > end:
                found = _narrowed(found, header, start, end)
            for records in found:
                yield records, origin


def _batches(stretches: Iterator[Stretch]) -> Iterator[tuple[BatchHeader, memoryview]]:
    with _closing(stretches):
        for stretch, headers in stretches:
            for position, header in headers:
                yield header, stretch[position : position + header.size]


def _offsets(storage: Storage, read: SegmentRead) -> Range:
    """Return the offsets [start, end) that are read of a segment of batches."""

    def place(time: int) -> int:
        found = first_since(storage, read.topic, read.entry, time)
        return read.entry.next_offset if found is None else found

    start, end = read.start, read.end
    if read.first_time is not None:
        start = max(start, place(read.first_time))
    if read.end_time is not None and start < end:
        end = min(end, place(read.end_time))
    return start, end


def _narrowed(
    slices: Iterable[Sequence[LogRecord]], header: BatchHeader, start: int, end: int
) -> Iterator[Sequence[LogRecord]]:
    """Yield the records with offsets in [start, end). Raises CorruptBatch for offsets that do not rise, since none can
    be searched for among them."""
    last: int | None = None
    for records in slices:
        last = check_offsets(records, header, last)
        yield _between(records, start, end)


def _origin(read: SegmentRead, header: BatchHeader) -> BatchOrigin:
    return BatchOrigin(
        read.topic,
        read.entry.partition,
        _CODECS[header.codec],
        header.producer_id,
        header.magic >= 2 and header.is_transactional,
    )


def _of_records(read: SegmentRead, reader: PartitionReader[Never]) -> Iterator[Rows]:
    origin = BatchOrigin(read.topic, read.entry.partition)
    waiting, end_time = read.first_time, read.end_time
    timed = waiting is not None or end_time is not None  # no index knows times: they are looked for from the start on
    found = reader.records(0 if timed else read.start)
    with _closing(found):
        for records in found:
            some: Sequence[LogRecord] = records
            if some[0].offset >= read.end:
                return
            if waiting is not None:
                some = some[index_since(some, waiting) :]
                if not some:
                    continue
                waiting = None
            last = len(some) if end_time is None else index_since(some, end_time)
            yield _between(some[:last], read.start, read.end), origin
            if last < len(some):
                return


@contextmanager
def _closing(items: Iterator[T]) -> Iterator[None]:
    """Close the reader when it is left early, so that it gives its threads back."""
    try:
        yield
    finally:
        if isinstance(items, Generator):
            items.close()


def _between(records: Sequence[LogRecord], start: int, end: int) -> Sequence[LogRecord]:
    if not records or (records[0].offset >= start and records[-1].offset < end):
        return records
    return records[bisect_left(records, start, key=_offset) : bisect_left(records, end, key=_offset)]


# ---- columns


def _bytes_of(records: Sequence[LogRecord]) -> int:
    size = sum(map(len, filter(None, map(_value, records)))) + sum(map(len, filter(None, map(_key, records))))
    for key, value in chain.from_iterable(filter(None, map(_headers, records))):
        size += len(key) + len(value or b"")
    return size


def _batch(parts: Sequence[Rows], schema: pa.Schema) -> pa.RecordBatch:
    records = list(chain.from_iterable(records for records, _ in parts))
    columns = [
        _PER_RECORD[field.name](records, field.type)
        if field.name in _PER_RECORD
        else _repeated(parts, _PER_BATCH[field.name], field.type, len(records))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(parts: Sequence[Rows], of: Callable[[BatchOrigin], Any], kind: pa.DataType, count: int) -> pa.Array:
    values = [of(origin) for _, origin in parts]
    if all(value == values[0] for value in values):
        return pa.repeat(pa.scalar(values[0], kind), count)
    runs = ([value] * len(records) for value, (records, _) in zip(values, parts, strict=True))
    return pa.array(list(chain.from_iterable(runs)), kind)


def _plain(of: Callable[[LogRecord], Any]) -> Callable[[Sequence[LogRecord], pa.DataType], pa.Array]:
    return lambda records, kind: pa.array(list(map(of, records)), kind)


def _timestamps(records: Sequence[LogRecord], kind: pa.DataType) -> pa.Array:
    """Return the timestamps as Arrow has them. A record without one has null; a time that Spark cannot hold becomes the
    farthest one that it can."""
    times = pa.array(list(map(_time, records)), pa.int64())
    times = pc.if_else(pc.equal(times, -1), None, times)
    # With `skip_nulls`, the default, a record that has no time would get the farthest one.
    near = pc.max_element_wise(
        pc.min_element_wise(times, _FARTHEST_TIME, skip_nulls=False), -_FARTHEST_TIME, skip_nulls=False
    )
    return pc.multiply(near, 1000).cast(kind)


def _timestamp_types(records: Sequence[LogRecord], kind: pa.DataType) -> pa.Array:
    return pc.fill_null(pa.array(list(map(_time_type, records)), kind), -1)


def _header_lists(records: Sequence[LogRecord], kind: pa.ListType) -> pa.Array:
    """Return the headers as Arrow has them. A record without headers has null, as in Spark's Kafka source."""
    lists = list(map(_headers, records))
    if not any(lists):
        return pa.nulls(len(lists), kind)
    at = 0
    bounds: list[int | None] = []
    for headers in lists:
        bounds.append(at if headers else None)
        at += len(headers)
    pairs = list(chain.from_iterable(lists))
    fields = kind.value_type
    keys = pa.array([_text(key) for key, _ in pairs], fields.field("key").type)
    values = pa.array([value for _, value in pairs], fields.field("value").type)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(fields))
    return pa.ListArray.from_arrays(pa.array([*bounds, at], pa.int32()), structs, type=kind)


def _text(key: str) -> str:
    """Return the key of a header. If it is not UTF-8 it has escapes that Arrow cannot hold: they are replaced."""
    return key if key.isascii() else key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_PER_RECORD: dict[str, Callable[[Sequence[LogRecord], Any], pa.Array]] = {
    "key": _plain(_key),
    "value": _plain(_value),
    "offset": _plain(_offset),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _header_lists,
}
_PER_BATCH: dict[str, Callable[[BatchOrigin], Any]] = {
    "topic": attrgetter("topic"),
    "partition": attrgetter("partition"),
    "compression": attrgetter("compression"),
    "producerId": attrgetter("producer_id"),
    "transactional": attrgetter("transactional"),
}

"""Records out of reads of segments, and the Arrow columns they become."""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.reading.partition import first_since
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import FormatOptions
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import HEADER_SIZE, Codec
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source_options import COLUMNS
from logkeep_engine.spark.source_plan import SegmentRead
from logkeep_engine.spark.source_rows import (
    MAX_BYTES,
    MAX_RECORDS,
    BatchOrigin,
    Rows,
    arrow_batches,
    read_rows,
)
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, write_segment
from tests.unit.log.batches import NOON, batch, marker, with_header

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "boolean": BooleanType(),
}
SCHEMA = StructType([StructField(name, TYPES.get(kind, HEADERS)) for name, kind in COLUMNS.items()])


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(tmp_path.as_uri())


def read(entry: SegmentEntry, start: int | None = None, end: int | None = None, **changes: Any) -> SegmentRead:
    low = entry.base_offset if start is None else start
    return SegmentRead("orders", entry, low, entry.next_offset if end is None else end, **changes)


def offsets(storage: Storage, wanted: SegmentRead) -> list[int]:
    return [record.offset for records, _ in read_rows(storage, wanted) for record in records]


def rows(parts: Sequence[Rows], *columns: str) -> list[dict[str, Any]]:
    schema = StructType([SCHEMA[name] for name in columns or COLUMNS])
    return [row for found in arrow_batches(parts, to_arrow_schema(schema)) for row in found.to_pylist()]


def timed(base: int, *times: int) -> bytes:
    """A batch of records of these times after noon."""
    records = [Record(base + at, NOON + time, None, b"v") for at, time in enumerate(times)]
    return encode(records, codec=Codec.NONE, base_offset=base)


def emptied(whole: bytes) -> bytes:
    """A batch as compaction leaves it: its offsets and its time."""
    head = whole[:8] + struct.pack(">i", HEADER_SIZE - 12) + whole[12:HEADER_SIZE]
    return with_header(head, record_count=0)


@pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 1), (7, 33), (20, 40), (59, 60), (30, 30)])
def test_batches_are_read_from_and_to_any_offset(storage: Storage, start: int, end: int) -> None:
    entry = write_segment(storage, [batch(at, 10, codec=Codec.LZ4, value=b"v" * 2000) for at in range(0, 60, 10)])
    assert offsets(storage, read(entry, start, end)) == list(range(start, end))


@pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO])
@pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 1), (7, 33), (59, 60)])
def test_records_are_read_from_and_to_any_offset(storage: Storage, layout: Layout, start: int, end: int) -> None:
    entry = record_segment(storage, layout, [PlainRecord(at, NOON + at, 0, None, b"v") for at in range(60)])
    assert offsets(storage, read(entry, start, end)) == list(range(start, end))


def record_segment(storage: Storage, layout: Layout, records: Sequence[PlainRecord]) -> SegmentEntry:
    sink = RecordSink(storage, layout, "orders", ORDERS.topic_id, 0, 1, 0, 1 << 20, FormatOptions())
    assert sink.append(records, 0) == len(records)
    return sink.finish()


def test_markers_and_aborted_records_are_not_seen(storage: Storage) -> None:
    log = [
        batch(0, 5, producer_id=1, transactional=True),
        batch(5, 5, producer_id=2, transactional=True),
        marker(10, 2, commit=False),
        batch(11, 3),
        batch(14, 2, producer_id=2, transactional=True),
        marker(16, 1, commit=True),
        marker(17, 2, commit=True),
    ]
    entry = write_segment(storage, log, aborted=[AbortedTxn(2, 5, 10, 0)])
    found = list(read_rows(storage, read(entry, aborted=(AbortedTxn(2, 5, 10, 5),))))
    assert [(records[0].offset, len(records), origin[3:]) for records, origin in found] == [
        (0, 5, (1, True)),
        (11, 3, (-1, False)),
        (14, 2, (2, True)),
    ]


TIMES = [(0, 10, 20), (15, 40, 30), (5, 50, 60), (70,)]
"""The times of the records of four batches: offsets 0 to 9."""


def test_starting_time_begins_with_the_first_such_record(storage: Storage) -> None:
    entry = write_segment(storage, timed_batches())
    assert offsets(storage, read(entry, first_time=NOON + 35)) == [4, 5, 6, 7, 8, 9]
    assert offsets(storage, read(entry, first_time=NOON)) == list(range(10))
    assert offsets(storage, read(entry, first_time=NOON + 71)) == []
    assert offsets(storage, read(entry, 8, first_time=NOON + 35)) == [8, 9]


def test_ending_time_ends_before_the_first_such_record(storage: Storage) -> None:
    entry = write_segment(storage, timed_batches())
    assert offsets(storage, read(entry, end_time=NOON + 35)) == [0, 1, 2, 3]
    assert offsets(storage, read(entry, end_time=NOON)) == []
    assert offsets(storage, read(entry, end_time=NOON + 71)) == list(range(10))
    assert offsets(storage, read(entry, first_time=NOON + 12, end_time=NOON + 55)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO])
def test_times_bound_records_as_they_bound_batches(storage: Storage, layout: Layout) -> None:
    times = [time for batch_of in TIMES for time in batch_of]
    entry = record_segment(storage, layout, [PlainRecord(at, NOON + t, 0, None, b"") for at, t in enumerate(times)])
    assert offsets(storage, read(entry, first_time=NOON + 35)) == [4, 5, 6, 7, 8, 9]
    assert offsets(storage, read(entry, first_time=NOON + 71)) == []
    assert offsets(storage, read(entry, end_time=NOON + 35)) == [0, 1, 2, 3]
    assert offsets(storage, read(entry, first_time=NOON + 12, end_time=NOON + 55)) == [2, 3, 4, 5, 6, 7]


HIGH_EARLY = [(0, 100), (10, 20), (10, 60), (30,)]
"""Offsets 0 to 6: the first record of time 50 is that at 1, and later ones are older."""


@pytest.mark.parametrize("layout", [Layout.KAFKA, Layout.RECORDS, Layout.AVRO])
def test_a_time_is_a_place_in_the_log_wherever_the_piece_starts(storage: Storage, layout: Layout) -> None:
    if layout is Layout.KAFKA:
        entry = write_segment(storage, [timed(0, 0, 100), timed(2, 10, 20), timed(4, 10, 60), timed(6, 30)])
    else:
        times = [time for batch_of in HIGH_EARLY for time in batch_of]
        entry = record_segment(storage, layout, [PlainRecord(at, NOON + t, 0, None, b"") for at, t in enumerate(times)])
    assert offsets(storage, read(entry, first_time=NOON + 50)) == [1, 2, 3, 4, 5, 6]
    assert offsets(storage, read(entry, 2, first_time=NOON + 50)) == [2, 3, 4, 5, 6]
    assert offsets(storage, read(entry, end_time=NOON + 50)) == [0]
    assert offsets(storage, read(entry, 2, end_time=NOON + 50)) == []
    assert offsets(storage, read(entry, 5, 6, first_time=NOON + 15, end_time=NOON + 101)) == [5]


def test_a_time_that_only_a_batch_without_records_has_is_looked_for_after_it(storage: Storage) -> None:
    entry = write_segment(storage, [timed(0, 0, 10), emptied(timed(2, 90)), timed(3, 20, 30), timed(5, 60)])
    assert offsets(storage, read(entry, first_time=NOON + 50)) == [5]
    assert offsets(storage, read(entry, end_time=NOON + 50)) == [0, 1, 3, 4]
    assert first_since(storage, "orders", entry, NOON + 50) == 5
    assert first_since(storage, "orders", entry, NOON + 90) is None


def test_markers_and_aborted_records_have_a_time_as_for_a_broker(storage: Storage) -> None:
    log = [
        batch(0, 1, timestamp=NOON - 90, producer_id=1, transactional=True),
        marker(1, 1, commit=True),  # at noon
        batch(2, 1, timestamp=NOON - 80),
        batch(3, 1, timestamp=NOON + 70, producer_id=2, transactional=True),
        marker(4, 2, commit=False),
        batch(5, 1, timestamp=NOON - 60),
    ]
    entry = write_segment(storage, log, aborted=[AbortedTxn(2, 3, 4, 3)])
    aborted = (AbortedTxn(2, 3, 4, 3),)
    assert offsets(storage, read(entry, aborted=aborted, end_time=NOON - 50)) == [0]
    assert offsets(storage, read(entry, aborted=aborted, first_time=NOON - 50)) == [2, 5]
    assert offsets(storage, read(entry, aborted=aborted, first_time=NOON + 70)) == [5]


def test_records_without_a_time_are_before_every_moment_from_1970_on(storage: Storage) -> None:
    entry = record_segment(
        storage, Layout.RECORDS, [PlainRecord(0, None, None, None, b""), PlainRecord(1, 5, 0, b"", b"")]
    )
    assert offsets(storage, read(entry, first_time=0)) == [1]
    assert offsets(storage, read(entry, first_time=-5)) == [0, 1]


def test_batches_older_than_a_filter_are_passed_over(storage: Storage) -> None:
    entry = write_segment(storage, timed_batches())
    assert offsets(storage, read(entry, since=NOON + 45)) == [6, 7, 8, 9]


def timed_batches() -> list[bytes]:
    made, base = [], 0
    for times in TIMES:
        made.append(timed(base, *times))
        base += len(times)
    return made


def test_a_damaged_segment_is_refused(storage: Storage, tmp_path: Path) -> None:
    entry = write_segment(storage, [batch(0, 10), batch(10, 10)])
    log = next(tmp_path.rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="topic orders partition 0 offset 10"):
        offsets(storage, read(entry))


def test_records_that_do_not_fit_a_batch_whose_crc_holds_are_refused(storage: Storage) -> None:
    broken = with_header(batch(0, 10), record_count=11, last_offset_delta=10)
    entry = write_segment(storage, [broken])
    with pytest.raises(ArchiveDamaged, match=r"\.log \(topic orders partition 0\): The batch at offset 0 is damaged"):
        offsets(storage, read(entry))


def test_a_batch_whose_offsets_do_not_rise_is_not_searched(storage: Storage) -> None:
    two = encode([Record(0, NOON, None, b"a"), Record(2, NOON, None, b"b")], codec=Codec.NONE, base_offset=0)
    entry = write_segment(storage, [with_header(two, last_offset_delta=1)])
    with pytest.raises(ArchiveDamaged, match=r"offset 0 is damaged: its records do not have rising offsets"):
        offsets(storage, read(entry, 1))


def test_a_batch_of_many_records_is_handed_out_in_parts(storage: Storage) -> None:
    entry = write_segment(storage, [batch(0, 3000, codec=Codec.ZSTD)])
    found = list(read_rows(storage, read(entry, 10, 2990)))
    assert [record.offset for records, _ in found for record in records] == list(range(10, 2990))
    assert max(len(records) for records, _ in found) < 500


def test_every_column_has_the_type_and_value_of_sparks_kafka_source() -> None:
    records = [
        PlainRecord(7, NOON, 0, b"k", b"v", [("a", b"1"), ("a", None), ("", b"")]),
        PlainRecord(8, NOON + 1, 1, None, None, ()),
        PlainRecord(9, -1, 0, b"", b"", [("\udcff", b"x")]),
        PlainRecord(12, None, None, b"k", b"v", []),
    ]
    moment = datetime.fromtimestamp(NOON / 1000, UTC)
    common = {"topic": "orders", "partition": 3, "compression": "zstd", "producerId": 5, "transactional": True}
    assert rows([(records, BatchOrigin("orders", 3, "zstd", 5, True))]) == [
        {
            **common,
            "key": b"k",
            "value": b"v",
            "offset": 7,
            "timestamp": moment,
            "timestampType": 0,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
        },
        {
            **common,
            "key": None,
            "value": None,
            "offset": 8,
            "timestamp": moment.replace(microsecond=1000),
            "timestampType": 1,
            "headers": None,
        },
        {
            **common,
            "key": b"",
            "value": b"",
            "offset": 9,
            "timestamp": None,
            "timestampType": 0,
            "headers": [{"key": "\ufffd", "value": b"x"}],
        },
        {**common, "key": b"k", "value": b"v", "offset": 12, "timestamp": None, "timestampType": -1, "headers": None},
    ]


def test_what_an_archive_of_records_has_lost_is_null() -> None:
    found = rows([([PlainRecord(1, NOON, 0, None, b"v")], BatchOrigin("orders", 0))])
    assert [found[0][name] for name in ("compression", "producerId", "transactional")] == [None, None, None]


def test_batches_of_several_origins_share_arrow_batches() -> None:
    parts = [
        (
            [PlainRecord(at, NOON, 0, None, b"v")],
            BatchOrigin("orders", at % 2, ("none", "lz4")[at % 2], at, at % 3 == 0),
        )
        for at in range(6)
    ]
    found = rows(parts, "offset", "partition", "compression", "producerId", "transactional")
    assert [tuple(row.values()) for row in found] == [
        (at, at % 2, ("none", "lz4")[at % 2], at, at % 3 == 0) for at in range(6)
    ]


def test_only_the_wanted_columns_are_made_in_the_wanted_order() -> None:
    found = rows([([PlainRecord(1, NOON, 0, b"k", b"v")], BatchOrigin("orders", 0))], "value", "offset")
    assert [list(row.items()) for row in found] == [[("value", b"v"), ("offset", 1)]]


def test_arrow_batches_are_bounded_by_records_and_by_bytes() -> None:
    small = [PlainRecord(at, NOON, 0, None, b"v") for at in range(2 * MAX_RECORDS + 5)]
    large = [PlainRecord(at, NOON, 0, None, bytes(3 << 20)) for at in range(7)]
    schema = to_arrow_schema(StructType([SCHEMA["offset"]]))
    origin = BatchOrigin("orders", 0)
    assert [found.num_rows for found in arrow_batches([(small, origin)], schema)] == [MAX_RECORDS, MAX_RECORDS, 5]
    assert [found.num_rows for found in arrow_batches(([[one], origin] for one in large), schema)] == [3, 3, 1]  # type: ignore[misc]
    assert list(arrow_batches([], schema)) == []


def test_headers_count_as_bytes_of_an_arrow_batch() -> None:
    large = [PlainRecord(at, NOON, 0, None, None, [("stack", bytes(1 << 20)), ("", None)]) for at in range(20)]
    assert [found.num_rows for found in offsets_of([[one] for one in large])] == [8, 8, 4]


def test_records_of_one_batch_are_split_by_bytes() -> None:
    """A batch that decompresses to a lot, as one list."""
    sizes = [1, 2 * MAX_BYTES, *([1 << 20] * 12)]
    records = [PlainRecord(at, NOON, 0, None, bytes(size)) for at, size in enumerate(sizes)]
    found = offsets_of([records])
    assert [made.num_rows for made in found] == [2, 8, 4]
    assert [offset for made in found for offset in made.column(0).to_pylist()] == list(range(14))


def offsets_of(lists: Sequence[Sequence[PlainRecord]]) -> list[pa.RecordBatch]:
    schema = to_arrow_schema(StructType([SCHEMA["offset"]]))
    return list(arrow_batches([(records, BatchOrigin("orders", 0)) for records in lists], schema))


def test_times_beyond_sparks_are_its_farthest() -> None:
    records = [PlainRecord(0, 2**63 - 1, 0, None, None), PlainRecord(1, -(2**63), 0, None, None)]
    (found,) = arrow_batches([(records, BatchOrigin("orders", 0))], to_arrow_schema(StructType([SCHEMA["timestamp"]])))
    farthest = (2**63 - 1) // 1000 * 1000
    assert found.column(0).cast(pa.int64()).to_pylist() == [farthest, -farthest]

"""The data source as PySpark's workers use it, without a JVM: schema, filters, plan, rows."""

import os
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThanOrEqual, LessThan
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import pyspark_logkeep
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.removal import purge, remove_expired
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, ArchiveMissing, SpecError, StorageRefused
from logkeep_engine.log.batch import Codec
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source import LogkeepReader, LogkeepSource, SegmentReads
from logkeep_engine.storage import LocalStorage, Storage, open_uri
from tests.examples import scaled
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, archive_of, begin, changed, chunk, write_segment
from tests.unit.log.batches import NOON, batch, hidden, marker, with_header
from tests.unit.spark.test_source_rows import emptied, record_segment, timed

OFFSETS = StructType([StructField("offset", LongType())])


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri((tmp_path / "archive").as_uri())


def reader(storage: Storage, schema: StructType = OFFSETS, **options: str) -> LogkeepReader:
    return LogkeepSource({"path": storage.uri, **options}).reader(schema)


def offsets(found: LogkeepReader) -> list[int]:
    """Through the pickling that takes reader and partitions to the executors."""
    found, partitions = pickle.loads(pickle.dumps((found, found.partitions())))
    return [row["offset"] for part in partitions for rows in found.read(part) for row in rows.to_pylist()]


def transactional(storage: Storage, log: Sequence[bytes], aborted: Sequence[AbortedTxn], outcome: RunOutcome) -> None:
    entry = write_segment(storage, log, aborted=aborted)
    with begin(storage) as writer:
        coverage = Coverage(ORDERS.topic_id, 0, entry.base_offset, entry.next_offset)
        writer.commit(topics=[ORDERS], receipts=[Receipt((coverage,), (entry,))])
        writer.end(outcome)


def test_pyspark_finds_it_by_the_name_of_a_package() -> None:
    assert pyspark_logkeep.DefaultSource is LogkeepSource
    assert LogkeepSource.name() == "logkeep"


def test_the_schema_is_that_of_the_wanted_columns() -> None:
    ddl = LogkeepSource({"path": "file:///a", "columns": "offset,headers"}).schema()
    assert ddl == "offset bigint, headers array<struct<key:string,value:binary>>"
    with pytest.raises(SpecError, match="Option colums"):
        LogkeepSource({"path": "file:///a", "colums": "offset"}).schema()


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("value", StringType()), "schema: column value is of type binary, not string"),
        (StructField("size", LongType()), "schema: there is no column 'size'"),
    ],
)
def test_a_schema_of_the_user_s_that_cannot_be_filled_is_refused(field: StructField, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        LogkeepSource({"path": "file:///a"}).reader(StructType([field]))


def test_everything_that_is_planned_is_read(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 50), chunk(storage, 50, 80))
    assert offsets(reader(storage)) == list(range(80))
    assert offsets(reader(storage, maxPartitionBytes="1")) == list(range(80))
    value_and_offset = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
    found = reader(storage, value_and_offset)
    (rows,) = found.read(*found.partitions())
    assert rows.to_pylist()[3] == {"value": b"value 3", "offset": 3}


def test_filters_are_taken_and_the_others_handed_back(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 50), chunk(storage, 50, 80))
    found = reader(storage, maxPartitionBytes="1")
    taken, left = GreaterThanOrEqual(("offset",), 62), EqualTo(("value",), b"x")
    assert list(found.pushFilters([taken, left])) == [left]
    assert offsets(found) == list(range(62, 80))
    assert len(found.partitions()) == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize("together", [True, False])
def test_times_of_records_count_where_headers_hide_them(storage: Storage, codec: Codec, together: bool) -> None:
    year = 31_536_000_000
    log = [hidden(batch(0, 40, codec=codec)), hidden(batch(40, 40, codec=codec, timestamp=NOON + year))]
    parts = [log] if together else [log[:1], log[1:]]
    entries = tuple(write_segment(storage, part) for part in parts)
    archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, 80),), entries))
    entry = entries[-1]
    assert (entry.times.min_base_timestamp, entry.times.max_timestamp) == (
        NOON + (0 if together else year),
        NOON + year + 39,
    )
    middle = datetime.fromtimestamp((NOON + year // 2) / 1000, UTC)
    assert offsets(reader(storage, startingTimestamp=middle.isoformat())) == list(range(40, 80))
    assert offsets(reader(storage, endingTimestamp=middle.isoformat())) == list(range(40))
    filtered = reader(storage)
    assert list(filtered.pushFilters([GreaterThanOrEqual(("timestamp",), middle)])) != []  # Spark looks again
    assert offsets(filtered) == list(range(40, 80))


def test_spark_does_not_see_that_filters_can_be_pushed(storage: Storage) -> None:
    """Spark would refuse the reader if its pushdown is off, which is the default."""
    method: Any = reader(storage).pushFilters
    assert method.__func__ is DataSourceReader.pushFilters


def test_nothing_to_read_is_one_empty_partition(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 50))
    (part,) = reader(storage, startingOffset="70").partitions()
    assert isinstance(part, SegmentReads)
    assert part.reads == ()
    assert offsets(reader(storage, startingOffset="70")) == []


def test_archives_that_are_not_there_or_of_another_format_are_refused(storage: Storage) -> None:
    with pytest.raises(ArchiveMissing, match="There is no archive at"):
        reader(storage).partitions()
    archive_of(storage, chunk(storage, 0, 50))
    with pytest.raises(ArchiveMismatch, match=r"Option format: the archive at .* is of format Kafka, not Avro"):
        reader(storage, format="Avro").partitions()
    assert offsets(reader(storage, format="Kafka")) == list(range(50))


def test_where_nothing_may_be_written_a_reader_has_no_lease(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise StorageRefused("no right to write")

    archive_of(storage, chunk(storage, 0, 50))
    monkeypatch.setattr(LocalStorage, "put", refused)
    assert offsets(reader(storage)) == list(range(50))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "alive.json could not be written: no right to write" in warning


def test_what_retention_removed_is_a_hole(storage: Storage, tmp_path: Path) -> None:
    day = 86_400_000
    times = (NOON, NOON - 9 * day, NOON)
    entries = [write_segment(storage, [batch(10 * at, 10, timestamp=time)]) for at, time in enumerate(times)]
    archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, 30),), tuple(entries)))
    before = reader(storage)
    planned = before.partitions()
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert remove_expired(writer, RetentionLimits(max_age=day), NOON + 1000).segments == 1
        note = f"reading.spark-{writer.state.commit - 3}"
        assert purge(writer).readers == (note,)
    read = [row["offset"] for rows in before.read(planned[0]) for row in rows.to_pylist()]
    assert read == list(range(30)), "the reader's lease keeps what it reads"
    assert offsets(reader(storage)) == [*range(10), *range(20, 30)]
    assert offsets(reader(storage, startingOffset="15")) == list(range(20, 30))
    for info in storage.list("runs/reading."):
        os.utime(tmp_path / "archive" / info.path, (1, 1))
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert purge(writer).segments == 1
    assert list(storage.list("runs/reading.")) == [], "leases that have lapsed are forgotten"
    with pytest.raises(ArchiveDamaged, match=r"00000000000000000010.*: the object is missing"):
        list(before.read(planned[0]))


def test_what_an_unfinished_run_has_archived_is_not_seen_yet(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 50))
    with begin(storage, "run-2") as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 50, 80, epoch=2)])
        assert offsets(reader(storage)) == list(range(50))
        writer.end(RunOutcome.SUCCEEDED)
    assert offsets(reader(storage)) == list(range(80))


def test_an_imported_folder_is_read_where_it_lies(storage: Storage, tmp_path: Path) -> None:
    written = record_segment(storage, Layout.RECORDS, [PlainRecord(at, NOON + at, 0, None, b"v") for at in range(10)])
    root = tmp_path / "archive"
    (root / "topics" / "orders").rename(root / "orders")
    (root / "topics").rmdir()
    record_archive(storage, [changed(written, layout=Layout.RECORDS_AT_ROOT)], imported=True)
    assert offsets(reader(storage)) == list(range(10))
    assert offsets(reader(storage, startingTimestamp=str(NOON + 4), endingOffset="7")) == [4, 5, 6]


def record_archive(storage: Storage, entries: Sequence[SegmentEntry], *, imported: bool = False) -> None:
    name = FormatName.AVRO if entries[0].layout is Layout.AVRO else FormatName.RECORDS
    archive = Archive.create_or_open(storage, "-" if imported else CLUSTER, name, imported=imported)
    with begin_run(archive, "run-1", wait=FAST) as writer:
        coverage = Coverage(ORDERS.topic_id, 0, entries[0].base_offset, entries[-1].next_offset)
        writer.commit(topics=[ORDERS], receipts=[Receipt((coverage,), tuple(entries))])
        writer.end(RunOutcome.SUCCEEDED)


LOG = [
    batch(0, 3, producer_id=1, transactional=True),
    batch(3, 3, producer_id=2, transactional=True),
    marker(6, 1, commit=False),
    batch(7, 3),
]


def test_aborted_transactions_are_left_out(storage: Storage) -> None:
    log = [*LOG, marker(10, 2, commit=True)]
    transactional(storage, log, [AbortedTxn(1, 0, 6, 3)], RunOutcome.SUCCEEDED)
    assert offsets(reader(storage)) == [3, 4, 5, 7, 8, 9]


def test_what_no_index_calls_aborted_is_committed_also_without_a_successful_backup(storage: Storage) -> None:
    """It lay below the last stable offset when it was fetched."""
    transactional(storage, LOG, [AbortedTxn(1, 0, 6, 3)], RunOutcome.FAILED)
    assert offsets(reader(storage)) == [3, 4, 5, 7, 8, 9]


@pytest.mark.parametrize("outcome", [RunOutcome.SUCCEEDED, RunOutcome.FAILED])
def test_a_marker_is_believed_more_than_the_index(storage: Storage, outcome: RunOutcome) -> None:
    log = [*LOG, marker(10, 2, commit=True)]
    transactional(storage, log, [AbortedTxn(2, 3, 5, 3)], outcome)
    assert offsets(reader(storage)) == [3, 4, 5, 7, 8, 9]


Batch = list[tuple[int, bool]]
"""The time after noon of each of the segment's records, and whether compaction has left the record."""

HIGH_EARLY: list[list[Batch]] = [[[(time, True) for time in found] for found in ((0, 99), (10, 20), (10, 60), (30,))]]

batches = st.lists(st.tuples(st.integers(0, 99), st.sampled_from([True, True, True, False])), min_size=1, max_size=4)
times = st.none() | st.integers(0, 100)


@pytest.mark.parametrize("layout", [Layout.KAFKA, Layout.RECORDS, Layout.AVRO])
@settings(max_examples=scaled(40), deadline=None)
@given(
    segments=st.lists(st.lists(batches, min_size=1, max_size=3), min_size=1, max_size=4),
    bounds=st.tuples(st.integers(0, 20), st.integers(1, 30)),
    since=times,
    until=times,
)
@example(HIGH_EARLY, (2, 9), 50, None)
@example(HIGH_EARLY, (2, 9), None, 50)
@example([[[(0, True), (90, False)], [(10, True)]], [[(20, True)], [(60, True)]]], (0, 9), 50, None)
@example([[[(10, True)], [(90, False)]], [[(20, True), (60, True)]]], (0, 9), None, 50)
def test_times_and_offsets_bound_the_rows_each_in_its_own_right(
    tmp_path_factory: pytest.TempPathFactory,
    layout: Layout,
    segments: list[list[Batch]],
    bounds: tuple[int, int],
    since: int | None,
    until: int | None,
) -> None:
    """Whether the offsets come as options or as filters that Spark has pushed down."""
    storage = open_uri(tmp_path_factory.mktemp("archive").as_uri())
    log = [item for segment in segments for found in segment for item in found]
    write_archive(storage, layout, segments)
    low, high = bounds[0], bounds[0] + bounds[1]
    if since is not None and until is not None:
        since, until = min(since, until), max(since, until) + 1
    options = {
        name: str(NOON + time)
        for name, time in (("startingTimestamp", since), ("endingTimestamp", until))
        if time is not None
    }

    def place(time: int) -> int:
        return next((at for at, (found, left) in enumerate(log) if left and found >= time), len(log))

    first = low if since is None else max(low, place(since))
    end = high if until is None else min(high, place(until))
    expected = [at for at, (_, left) in enumerate(log) if left and first <= at < end]
    assert offsets(reader(storage, OFFSETS, startingOffset=str(low), endingOffset=str(high), **options)) == expected
    found = reader(storage, OFFSETS, **options)
    pushed: list[Filter] = [GreaterThanOrEqual(("offset",), low), LessThan(("offset",), high)]
    assert list(found.pushFilters(pushed)) == []
    assert offsets(found) == expected


def write_archive(storage: Storage, layout: Layout, segments: list[list[Batch]]) -> None:
    base = 0
    entries = []
    for segment in segments:
        starts = [base + sum(map(len, segment[:at])) for at in range(len(segment))]
        if layout is Layout.KAFKA:
            entries.append(write_segment(storage, list(map(compacted, starts, segment))))
        elif records := [
            PlainRecord(start + at, NOON + time, 0, None, b"v")
            for start, items in zip(starts, segment, strict=True)
            for at, (time, left) in enumerate(items)
            if left
        ]:
            entries.append(record_segment(storage, layout, records))
        base = starts[-1] + len(segment[-1])
    if layout is Layout.KAFKA:
        archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, base),), tuple(entries)))
    elif entries:
        record_archive(storage, entries)
    else:
        archive_of(storage)


def compacted(base: int, items: Batch) -> bytes:
    left = [Record(base + at, NOON + time, None, b"v") for at, (time, there) in enumerate(items) if there]
    if not left:
        return emptied(timed(base, *(time for time, _ in items)))
    return with_header(encode(left, codec=Codec.NONE, base_offset=base), last_offset_delta=len(items) - 1)

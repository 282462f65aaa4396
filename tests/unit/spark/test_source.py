"""The data source as PySpark's workers use it, without a JVM: schema, filters, plan, rows."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import pyspark_logkeep
from logkeep_engine.archive.model import Coverage, Outcome, Receipt
from logkeep_engine.errors import ArchiveMismatch, ArchiveMissing, SpecError
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source import LogkeepReader, LogkeepSource, Pieces
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, archive_of, begin, chunk, write_segment
from tests.unit.log.batches import batch, marker

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


def transactional(storage: Storage, log: Sequence[bytes], aborted: Sequence[AbortedTxn], outcome: Outcome) -> None:
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


def test_spark_does_not_see_that_filters_can_be_pushed(storage: Storage) -> None:
    """Where its pushdown is off, which is its default, it would refuse the reader."""
    method: Any = reader(storage).pushFilters
    assert method.__func__ is DataSourceReader.pushFilters


def test_nothing_to_read_is_one_empty_partition(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 50))
    (part,) = reader(storage, startingOffset="70").partitions()
    assert isinstance(part, Pieces)
    assert part.pieces == ()
    assert offsets(reader(storage, startingOffset="70")) == []


def test_archives_that_are_not_there_or_of_another_format_are_refused(storage: Storage) -> None:
    with pytest.raises(ArchiveMissing, match="There is no archive at"):
        reader(storage).partitions()
    archive_of(storage, chunk(storage, 0, 50))
    with pytest.raises(ArchiveMismatch, match=r"Option format: the archive at .* is of format Kafka, not Avro"):
        reader(storage, format="Avro").partitions()
    assert offsets(reader(storage, format="Kafka")) == list(range(50))


LOG = [
    batch(0, 3, producer_id=1, transactional=True),
    batch(3, 3, producer_id=2, transactional=True),
    marker(6, 1, commit=False),
    batch(7, 3),
]


def test_aborted_transactions_are_left_out(storage: Storage) -> None:
    log = [*LOG, marker(10, 2, commit=True)]
    transactional(storage, log, [AbortedTxn(1, 0, 6, 3)], Outcome.SUCCEEDED)
    assert offsets(reader(storage)) == [3, 4, 5, 7, 8, 9]


def test_undecided_transactions_of_an_archive_without_a_successful_backup_are_left_out(storage: Storage) -> None:
    transactional(storage, LOG, [AbortedTxn(1, 0, 6, 3)], Outcome.FAILED)
    assert offsets(reader(storage)) == [7, 8, 9]

"""Archives of a real broker as data frames: the rows are what a committed consumer reads, whatever the format."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from logkeep_engine.archive import names
from logkeep_engine.spark.source import PUSHDOWN, register
from tests import examples
from tests.data.compare import read_committed
from tests.kafka.backing_up import Backups, Topics, numbers

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine; an interrupted call would spoil the session for others

FIRST = 1_372_896_000_000
"""2013-07-04T00:00:00Z."""

Row = tuple[Any, ...]


@pytest.fixture
def spark(sql_session: SparkSession) -> Iterator[SparkSession]:
    """A session that pushes filters down."""
    register(sql_session)
    yield sql_session
    sql_session.conf.unset(PUSHDOWN)


def read(spark: SparkSession, backups: Backups, **options: str) -> DataFrame:
    place = dict(backups.storage_spec)
    given = {name: place[name] for name in ("endpoint", "region") if name in place}
    return spark.read.format("logkeep").options(**given, **options).load(place["uri"])


def consumed(topics: Topics, topic: str, partitions: int) -> list[Row]:
    found = []
    for number in range(partitions):
        for message in read_committed(topics.broker.bootstrap, topic, number):
            kind, time = message.timestamp()
            headers = [tuple(header) for header in message.headers() or ()] or None
            moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time)
            found.append((topic, number, message.offset(), message.key(), message.value(), moment, kind - 1, headers))
    return found


def rows(frame: DataFrame) -> list[Row]:
    """The rows in their order, in the form of `consumed`."""
    columns = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
    found = []
    for row in frame.select(*columns).collect():
        topic, partition, offset, key, value, time, kind, headers = row
        pairs = None if headers is None else [(item.key, _bytes(item.value)) for item in headers]
        found.append((topic, partition, offset, _bytes(key), _bytes(value), time.astimezone(UTC), kind, pairs))
    return sorted(found, key=lambda row: row[:3])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def fill(topics: Topics, topic: str) -> None:
    """Codecs, headers, tombstones, and transactions that were committed and aborted."""
    topics.create(topic, 2, retention_ms="-1")
    topics.produce(topic, numbers(700), codec="lz4", key=lambda number: b"%d" % number)
    topics.produce(topic, numbers(300), codec="zstd", partition=1)
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    for number in range(50):
        headers: list[tuple[str, str | bytes | None]] = [("n", b"%d" % number), ("n", None), ("ü", b"")]
        value = None if number % 5 == 0 else b"v"
        producer.produce(topic, value, b"k", partition=1, timestamp=FIRST + number * 1000, headers=headers)
    assert producer.flush(120) == 0
    topics.transaction(topic, numbers(20), commit=True)
    topics.transaction(topic, numbers(30), commit=False)
    topics.produce(topic, numbers(10))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("where", "format_name"),
    [("backups", "Kafka"), ("s3_backups", "Avro"), ("backups", "Records"), ("s3_backups", "Kafka")][
        : examples.number(3, deep=4)
    ],
)
def test_rows_are_what_a_committed_consumer_reads(
    where: str,
    format_name: str,
    spark: SparkSession,
    topics: Topics,
    unique: str,
    request: pytest.FixtureRequest,
) -> None:
    backups: Backups = request.getfixturevalue(where)
    fill(topics, unique)
    assert backups.run(unique, format=format_name).outcome == "Succeeded"
    frame = read(spark, backups, topics=unique, format=format_name)
    expected = consumed(topics, unique, 2)
    assert rows(frame) == expected
    found = {
        tuple(row) for row in frame.selectExpr("compression", "producerId >= 0", "transactional").distinct().collect()
    }
    if format_name == "Kafka":
        assert found == {("lz4", False, False), ("zstd", False, False), ("none", False, False), ("none", True, True)}
    else:
        assert found == {(None, None, None)}
    chosen = frame.filter(f"partition = 1 and offset >= 310 and timestamp < timestamp_millis({FIRST + 20_000})")
    assert rows(chosen) == [row for row in expected if row[1] == 1 and 310 <= row[2] < 320]


def test_filters_decide_what_is_read(
    spark: SparkSession, backups: Backups, topics: Topics, unique: str, tmp_path: Path
) -> None:
    """Objects that a query does not need are taken away: it does not miss them."""
    other = f"{unique}-other"
    topics.create(unique, 2)
    topics.create(other)
    for topic, partition in ((unique, 0), (unique, 1), (other, 0)):
        topics.produce(topic, numbers(3500, size=1000), partition=partition, batch=50)
    assert backups.run(f"{unique}.*", segment={"maxBytes": "1Mi", "packBelow": "0"}).outcome == "Succeeded"
    segments = {
        (topic, number): backups.segments(topic, number) for topic, number in ((unique, 0), (unique, 1), (other, 0))
    }
    assert read(spark, backups).rdd.getNumPartitions() == 1
    assert 4 <= read(spark, backups, minPartitions="4").rdd.getNumPartitions() < 9
    frame = read(spark, backups, maxPartitionBytes="1")
    assert frame.rdd.getNumPartitions() == sum(map(len, segments.values())) >= 9
    last = segments[unique, 1][-1]
    kept = (tmp_path / "archive" / (last.stem(unique) + names.LOG)).resolve()
    for log in (tmp_path / "archive" / "topics").rglob(f"*{names.LOG}"):
        if log.resolve() != kept:
            log.unlink()
    chosen = frame.filter(f"topic = '{unique}' and partition in (1) and offset >= {last.base_offset}")
    assert chosen.rdd.getNumPartitions() == 1
    assert chosen.count() == last.records
    since = datetime.fromtimestamp(segments[unique, 1][-2].times.max_timestamp / 1000 + 1, UTC)
    later = frame.filter(f"topic = '{unique}' and partition > 0").filter(frame.timestamp > since)
    assert later.rdd.getNumPartitions() == 1
    options = read(spark, backups, topics=unique, partitions="1", startingOffset=str(last.base_offset))
    assert options.count() == last.records
    with pytest.raises(PySparkException, match="the object is missing"):
        frame.filter(f"topic = '{unique}' and partition = 1").count()
    assert frame.filter("topic = 'of another archive'").count() == 0


def test_a_session_that_was_unconfigured_reads_the_same_rows(
    sql_session: SparkSession, backups: Backups, topics: Topics, unique: str
) -> None:
    """PySpark finds the format by itself, and applies the filters itself."""
    topics.create(unique)
    topics.produce(unique, numbers(100))
    backups.run(unique)
    fresh = sql_session.newSession()
    assert fresh.conf.get(PUSHDOWN) == "false"
    frame = fresh.read.format("logkeep").load(backups.storage_spec["uri"])
    assert frame.filter("offset >= 40 and offset < 50").count() == 10


def test_times_of_the_options_are_places_in_the_log(
    spark: SparkSession, backups: Backups, topics: Topics, unique: str
) -> None:
    """Spark's Kafka source reads so too: from the first record of the start time to the first of the end time."""
    topics.create(unique, retention_ms="-1")
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap, "linger.ms": 20})
    for number, second in enumerate((0, 10, 5, 20, 15, 30, 25, 40)):
        producer.produce(unique, b"%d" % number, partition=0, timestamp=FIRST + second * 1000)
    assert producer.flush(120) == 0
    backups.run(unique)
    frame = read(
        spark, backups, startingTimestamp=str(FIRST + 6000), endingTimestamp="2013-07-04T00:00:26Z", columns="offset"
    )
    assert frame.columns == ["offset"]
    assert sorted(row.offset for row in frame.collect()) == [1, 2, 3, 4]


@pytest.mark.parametrize("format_name", ["Kafka", "Records"])
@pytest.mark.parametrize(
    ("option", "expected"), [("startingTimestamp", [2, 3, 4, 5, 6]), ("endingTimestamp", [])], ids=["start", "end"]
)
def test_a_time_stays_at_its_place_where_a_filter_on_the_offset_begins_after_it(
    option: str,
    expected: list[int],
    format_name: str,
    spark: SparkSession,
    backups: Backups,
    topics: Topics,
    unique: str,
) -> None:
    """The first record of second 50 or later has offset 1. Pushed down or not, the filter leaves the same rows."""
    topics.create(unique, retention_ms="-1")
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    for batch in ((0, 100), (10, 20), (10, 60), (30,)):
        for second in batch:
            producer.produce(unique, b"v", partition=0, timestamp=FIRST + second * 1000)
        assert producer.flush(120) == 0
    backups.run(unique, format=format_name)
    unconfigured = spark.newSession()
    assert unconfigured.conf.get(PUSHDOWN) == "false"
    for session in (spark, unconfigured):
        frame = read(session, backups, **{option: str(FIRST + 50_000)}).filter("offset >= 2")
        assert sorted(row.offset for row in frame.collect()) == expected


def test_a_schema_of_fewer_columns_is_honoured_and_of_other_types_refused(
    spark: SparkSession, backups: Backups, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, [b"a", b"b"])
    backups.run(unique)
    reader = spark.read.format("logkeep")
    frame = reader.schema("value binary, topic string").load(backups.storage_spec["uri"])
    assert [(bytes(row.value), row.topic) for row in frame.collect()] == [(b"a", unique), (b"b", unique)]
    with pytest.raises(PySparkException, match="schema: column value is of type binary, not string"):
        reader.schema("value string").load(backups.storage_spec["uri"]).count()


def test_what_cannot_be_read_is_refused_by_name(
    spark: SparkSession, backups: Backups, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, [b"a"])
    backups.run(unique)
    for options, complaint in (
        ({"topic": unique}, "Option topic: there is no such option"),
        ({"partitions": "x"}, "Option partitions: 'x' is not a partition"),
        ({"endpoint": "http://127.0.0.1:1"}, "Option endpoint: it has no effect on a folder: it is for s3:"),
        ({"topics": "no-such-topic"}, f"Option topics: the archive has no topic no-such-topic. It has {unique}"),
        ({"format": "Avro"}, "Option format: the archive at .* is of format Kafka, not Avro"),
    ):
        with pytest.raises(PySparkException, match=complaint):
            read(spark, backups, **options).count()
    with pytest.raises(PySparkException, match=r"There is no archive at .*nowhere"):
        spark.read.format("logkeep").load(f"file://{tmp_path}/nowhere").count()


def test_credentials_are_taken_from_the_environment_and_never_from_options(
    spark: SparkSession, s3_backups: Backups
) -> None:
    assert os.environ["AWS_SECRET_ACCESS_KEY"]
    with pytest.raises(PySparkException, match="Credentials come from the environment") as caught:
        read(spark, s3_backups, secretKey="hunter2").count()
    assert "hunter2" not in str(caught.value)

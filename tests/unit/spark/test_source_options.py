"""The options of `format("logkeep")`, and what it refuses."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.errors import SpecError
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.spark.source_options import COLUMNS, SourceOptions, WantedRecords

JULY_4 = 1_372_896_000_000


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"path": "file:///archive"} | options)


def test_an_uri_alone_reads_everything() -> None:
    assert parse() == SourceOptions("file:///archive")
    assert parse().columns == tuple(COLUMNS)


def test_options_are_known_in_any_case_as_spark_hands_them_over() -> None:
    options = parse(
        path="s3://bucket/prefix",
        ENDPOINT="http://localhost:9000",
        region="eu-west-1",
        topics="orders, payments",
        topicid="aaaaaaaaaaaaaaaaaaaaa_",
        partitions="0,4-7, 9",
        startingoffset="5",
        endingOffset="50",
        startingTimestamp=str(JULY_4),
        endingtimestamp="2013-07-05T02:00:00+02:00",
        format="records",
        columns="offset,value",
        maxPartitionBytes="64Mi",
        minpartitions="200",
    )
    assert options == SourceOptions(
        "s3://bucket/prefix",
        endpoint="http://localhost:9000",
        region="eu-west-1",
        topics=("orders", "payments"),
        topic_id="aaaaaaaaaaaaaaaaaaaaa_",
        partitions=((0, 1), (4, 8), (9, 10)),
        starting_offset=5,
        ending_offset=50,
        starting_timestamp=JULY_4,
        ending_timestamp=JULY_4 + 86_400_000,
        format=FormatName.RECORDS,
        columns=("offset", "value"),
        max_partition_bytes=64 << 20,
        min_partitions=200,
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": ""}, "Option path: the archive's URI is missing"),
        ({"topic": "orders"}, "Option topic: there is no such option. There are path, .*topicPattern"),
        ({"topics": "a", "topicPattern": "b"}, "Options topics and topicPattern: only one"),
        ({"topics": "a,,b"}, "Option topics: 'a,,b' has an empty name"),
        ({"topicPattern": "a("}, r"Option topicPattern: 'a\(' is not a valid regular expression"),
        ({"partitions": "1-"}, "Option partitions: '1-' is not a partition"),
        ({"partitions": "3-1"}, "Option partitions: '3-1' is not a partition"),
        ({"startingOffset": "-1"}, "Option startingOffset: '-1' is not an offset"),
        ({"endingOffset": "latest"}, "Option endingOffset: 'latest' is not an offset"),
        ({"startingOffset": "9", "endingOffset": "9"}, "Option endingOffset: 9 is not after startingOffset 9"),
        ({"startingTimestamp": "yesterday"}, "Option startingTimestamp: 'yesterday' is not a time"),
        ({"endingTimestamp": "2013-07-04T00:00:00"}, "Option endingTimestamp: .* is not a time. .* with its zone"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "Option endingTimestamp: 8 is not after"),
        ({"format": "parquet"}, "Option format: 'parquet' is not a format. There are Kafka, Records, Avro"),
        ({"columns": "offset,size"}, "Option columns: there is no column 'size'"),
        ({"columns": "offset,offset"}, "Option columns: a column is named twice"),
        ({"maxPartitionBytes": "1 MB"}, "Option maxPartitionBytes: '1 MB' is not a size"),
        ({"maxPartitionBytes": "0"}, "Option maxPartitionBytes: '0' is not a size"),
        (
            {"minPartitions": "0"},
            "Option minPartitions: '0' is not a number of partitions. Write a number of 1 or more",
        ),
        ({"minPartitions": "many"}, "Option minPartitions: 'many' is not a number of partitions"),
        (
            {"endpoint": "http://localhost:9000"},
            "Option endpoint: it has no effect on a folder: it is for s3://, gs://, az://. Leave it out",
        ),
        (
            {"region": "eu-west-1"},
            "Option region: it has no effect on a folder: it is for s3://. .* s3://bucket/prefix",
        ),
        ({"s3": "requesterPays=true"}, "Option s3: it has no effect on a folder: it is for s3://. Leave it out"),
        (
            {"path": "gs://bucket/prefix", "region": "eu-west-1"},
            "Option region: it has no effect on gs://: it is for s3",
        ),
        (
            {"path": "az://bucket/prefix", "s3": "requesterPays=true"},
            "Option s3: it has no effect on az://: it is for s3",
        ),
        ({"path": "s3://bucket/prefix", "s3": "payer=me"}, "Option s3: payer: unknown field"),
        ({"path": "s3://bucket/prefix", "endpoint": ""}, "Option endpoint: it is empty. Leave it out"),
        ({"path": "s3://bucket/prefix", "region": " "}, "Option region: it is empty. Leave it out"),
        ({"topicId": ""}, "Option topicId: it is empty. Leave it out"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option_s_name(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        parse(**options)


@pytest.mark.parametrize("name", ["secretKey", "AWS_ACCESS_KEY_ID", "accesskey", "fs.s3a.session.token", "credentials"])
def test_credentials_as_options_are_refused_without_being_shown(name: str) -> None:
    with pytest.raises(SpecError, match="Credentials come from the environment") as caught:
        parse(**{name: "hunter2"})
    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("names", [[], ["offset", "offset"], ["offset", "size"]])
def test_schemas_of_other_columns_are_refused(names: list[str]) -> None:
    with pytest.raises(SpecError, match="schema: "):
        parse().with_schema(names)


def offset(kind: type[Filter], value: object) -> Filter:
    return kind(("offset",), value)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("item", "expected", "taken"),
    [
        (offset(EqualTo, 7), (7, 8), True),
        (offset(EqualNullSafe, 7), (7, 8), True),
        (offset(GreaterThan, 7), (8, MAX_OFFSET), True),
        (offset(GreaterThanOrEqual, 7), (7, MAX_OFFSET), True),
        (offset(LessThan, 7), (0, 7), True),
        (offset(LessThanOrEqual, 7), (0, 8), True),
        (offset(In, (9, 7, 8)), (7, 10), True),
        (offset(In, (7, 9)), (7, 10), False),
        (IsNotNull(("offset",)), (0, MAX_OFFSET), True),
        (IsNull(("offset",)), (0, MAX_OFFSET), False),
        (Not(offset(EqualTo, 7)), (0, MAX_OFFSET), False),
        (offset(EqualTo, None), (0, MAX_OFFSET), False),
        (offset(In, (7, None)), (0, MAX_OFFSET), False),
        (offset(EqualTo, True), (0, MAX_OFFSET), False),
    ],
)
def test_filters_on_the_offset_are_taken_where_they_are_a_range(
    item: Filter, expected: tuple[int, int], taken: bool
) -> None:
    wanted, whole = WantedRecords().narrowed(item)
    assert ((wanted.start, wanted.end), whole) == (expected, taken)


def test_filters_on_the_offset_narrow_one_another() -> None:
    wanted, _ = WantedRecords().narrowed(offset(GreaterThan, 3))
    wanted, _ = wanted.narrowed(offset(LessThan, 90))
    wanted, _ = wanted.narrowed(offset(GreaterThan, 1))
    assert (wanted.start, wanted.end) == (4, 90)


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (EqualTo(("topic",), "orders"), ["orders"]),
        (EqualNullSafe(("topic",), "orders"), ["orders"]),
        (Not(EqualTo(("topic",), "orders")), ["payments", "returns"]),
        (In(("topic",), ("orders", "returns", "x")), ["orders", "returns"]),
        (GreaterThan(("topic",), "orders"), ["payments", "returns"]),
        (GreaterThanOrEqual(("topic",), "orders"), ["orders", "payments", "returns"]),
        (LessThan(("topic",), "payments"), ["orders"]),
        (LessThanOrEqual(("topic",), "payments"), ["orders", "payments"]),
        (StringStartsWith(("topic",), "p"), ["payments"]),
        (StringEndsWith(("topic",), "s"), ["orders", "payments", "returns"]),
        (StringContains(("topic",), "e"), ["orders", "payments", "returns"]),
        (Not(StringContains(("topic",), "u")), ["orders", "payments"]),
        (IsNotNull(("topic",)), ["orders", "payments", "returns"]),
    ],
)
def test_filters_on_the_topic_are_taken(item: Filter, found: list[str]) -> None:
    wanted, taken = WantedRecords().narrowed(item)
    assert taken
    assert [name for name in ("orders", "payments", "returns") if wanted.topic(name)] == found
    assert wanted.partition(0)


def test_filters_on_the_partition_are_taken() -> None:
    wanted, taken = WantedRecords().narrowed(In(("partition",), (1, 2)))
    assert taken
    wanted, taken = wanted.narrowed(Not(EqualTo(("partition",), 1)))
    assert taken
    assert [number for number in range(4) if wanted.partition(number)] == [2]


@pytest.mark.parametrize(
    "item",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("topic",), None),
        In(("topic",), ("a", None)),
        IsNull(("topic",)),
        EqualTo(("partition",), 1.5),
        EqualTo(("headers", "key"), "topic"),
    ],
)
def test_other_filters_are_left_to_spark(item: Filter) -> None:
    assert WantedRecords().narrowed(item) == (WantedRecords(), False)


def test_filters_on_the_time_say_what_need_not_be_read_and_are_left_to_spark() -> None:
    noon = datetime(2013, 7, 4, 12, 0, 0, 1999, tzinfo=UTC)
    at = JULY_4 + 12 * 3_600_000 + 1  # rounded down, so that nothing wanted is left out
    column = ("timestamp",)
    for item, since, until in (
        (GreaterThan(column, noon), at, None),
        (GreaterThanOrEqual(column, noon), at, None),
        (LessThan(column, noon), None, at),
        (LessThanOrEqual(column, noon), None, at),
        (EqualTo(column, noon), at, at),
        (EqualNullSafe(column, noon), at, at),
        (In(column, (noon, noon.replace(hour=13))), at, at + 3_600_000),
        (In(column, (noon, None)), None, None),
        (GreaterThan(column, noon.replace(tzinfo=None)), None, None),
        (Not(EqualTo(column, noon)), None, None),
        (IsNotNull(column), None, None),
    ):
        wanted, taken = WantedRecords().narrowed(item)
        assert (wanted.since, wanted.until, taken) == (since, until, False), item
    wanted = WantedRecords(since=at - 5, until=at + 5).narrowed(GreaterThan(column, noon))[0]
    wanted = wanted.narrowed(LessThan(column, noon))[0]
    assert (wanted.since, wanted.until) == (at, at)

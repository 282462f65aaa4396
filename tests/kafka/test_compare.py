"""The comparison that tests and the demo trust finds every way in which two topics can differ."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from tests.cluster.kafka import KafkaBroker
from tests.data.compare import compare_topics
from tests.data.topics import NO_RETENTION, Record, create_topic, end_transaction, produce, send

RECORDS = [
    Record(b"a", b"1", 1_600_000_000_000, [("h", b"x"), ("h", b"y")], 0),
    Record(b"b", None, 1_600_000_000_001, [("n", None)], 0),
    Record(None, b"3", 1_600_000_000_002, [], 1),
    Record(b"c", b"4", 1_600_000_000_003, [], 1),
]


def _write(kafka: KafkaBroker, topic: str, records: list[Record], partitions: int = 3) -> str:
    create_topic(kafka.bootstrap, topic, partitions, NO_RETENTION)
    produce(kafka.bootstrap, topic, records)
    return topic


def test_equal_topics_are_equal_whatever_the_batches_and_the_codec(kafka: KafkaBroker, unique: str) -> None:
    source = _write(kafka, f"{unique}-a", RECORDS)
    create_topic(kafka.bootstrap, f"{unique}-b", 3, NO_RETENTION)
    for record in RECORDS:
        produce(kafka.bootstrap, f"{unique}-b", [record], compression="zstd")

    found = compare_topics(kafka.bootstrap, source, f"{unique}-b")

    assert found.equal
    assert (found.records, found.partitions, found.offsets_equal) == (4, 3, True)
    assert found.bytes == len(b"a1hxhy") + len(b"bn") + len(b"3") + len(b"c4")


def _changed(index: int, **fields: object) -> Callable[[list[Record]], list[Record]]:
    def change(records: list[Record]) -> list[Record]:
        records[index] = replace(records[index], **fields)  # type: ignore[arg-type]
        return records

    return change


@pytest.mark.parametrize(
    ("change", "field", "partition", "position"),
    [
        (_changed(0, key=b"z"), "key", 0, 0),
        (_changed(3, value=b"5"), "value", 1, 1),
        (_changed(1, value=b""), "value", 0, 1),
        (_changed(1, timestamp=1_600_000_000_009), "timestamp", 0, 1),
        (_changed(0, headers=[("h", b"y"), ("h", b"x")]), "headers", 0, 0),
        (_changed(1, headers=[("n", b"")]), "headers", 0, 1),
        (lambda records: records[:-1], "record", 1, 1),
        (lambda records: [*records, records[-1]], "record", 1, 2),
        (lambda records: [records[1], records[0], *records[2:]], "key", 0, 0),
        (_changed(2, partition=2), "key", 1, 0),
    ],
    ids=[
        "key",
        "value",
        "tombstone",
        "timestamp",
        "header-order",
        "null-header",
        "missing",
        "twice",
        "order",
        "partition",
    ],
)
def test_every_difference_is_found_with_its_place(
    kafka: KafkaBroker,
    unique: str,
    change: Callable[[list[Record]], list[Record]],
    field: str,
    partition: int,
    position: int,
) -> None:
    source = _write(kafka, f"{unique}-a", RECORDS)
    target = _write(kafka, f"{unique}-b", change(list(RECORDS)))

    difference = compare_topics(kafka.bootstrap, source, target).difference

    assert difference
    assert (difference.partition, difference.position) == (partition, position), difference
    assert difference.field == field, difference


def test_another_number_of_partitions_is_a_difference(kafka: KafkaBroker, unique: str) -> None:
    source = _write(kafka, f"{unique}-a", RECORDS, partitions=3)
    target = _write(kafka, f"{unique}-b", RECORDS, partitions=4)

    found = compare_topics(kafka.bootstrap, source, target)

    assert str(found.difference).endswith("number of partitions was 3, is 4")


def test_aborted_records_are_not_compared_and_markers_show_in_the_offsets(kafka: KafkaBroker, unique: str) -> None:
    source, target = f"{unique}-a", _write(kafka, f"{unique}-b", RECORDS)
    create_topic(kafka.bootstrap, source, 3, NO_RETENTION)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    producer.init_transactions(60)
    producer.begin_transaction()
    send(producer, source, RECORDS[:1] * 3)
    end_transaction(kafka.bootstrap, producer, [(source, 0)], commit=False)
    producer.begin_transaction()
    send(producer, source, RECORDS)
    end_transaction(kafka.bootstrap, producer, [(source, 0), (source, 1)])

    found = compare_topics(kafka.bootstrap, source, target)

    assert found.equal, found
    assert found.records == 4
    assert not found.offsets_equal

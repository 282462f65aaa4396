"""Compares two topics as a committed reader sees them: record by record, partition by partition.

A record is equal when key, value, headers (order, repeats and nulls), timestamp and its place in the partition are.
Offsets are looked at but need not be equal: transaction markers and compaction leave gaps that a restored topic lacks.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.data.topics import Config

_SILENCE = 60.0
"""Seconds without a record or the end of the partition after which a reader gives up."""


@dataclass(frozen=True)
class Difference:
    """The first difference. `position` counts the committed records from 0; a side without a record has no offset."""

    partition: int
    position: int
    source_offset: int | None
    target_offset: int | None
    field: str
    source: object
    target: object

    def __str__(self) -> str:
        place = f"partition {self.partition}, record {self.position}"
        offsets = f"offset {self.source_offset} in the source, {self.target_offset} in the target"
        return f"{place} ({offsets}): {self.field} was {_short(self.source)}, is {_short(self.target)}"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two topics. `records` counts equal ones, `bytes` their keys, values and headers."""

    source: str
    target: str
    partitions: int
    records: int
    bytes: int
    offsets_equal: bool
    difference: Difference | None

    @property
    def equal(self) -> bool:
        """Whether every record is there, once, in order, and nothing else."""
        return self.difference is None

    def __str__(self) -> str:
        if self.difference:
            return f"{self.source} and {self.target} differ: {self.difference}"
        return f"{self.source} and {self.target}: {self.records} records in {self.partitions} partitions are equal"


def compare_topics(
    bootstrap: str, source: str, target: str, *, target_bootstrap: str | None = None, config: Config | None = None
) -> Comparison:
    """Read both topics to their ends and compare; stops at the first difference."""
    target_bootstrap = target_bootstrap or bootstrap
    here, there = partition_count(bootstrap, source, config), partition_count(target_bootstrap, target, config)
    records = size = 0
    offsets_equal = True
    difference = None
    if here != there:
        difference = Difference(-1, 0, None, None, "number of partitions", here, there)
    for partition in range(here):
        if difference:
            break
        pairs = zip_longest(
            read_committed(bootstrap, source, partition, config),
            read_committed(target_bootstrap, target, partition, config),
        )
        for position, (left, right) in enumerate(pairs):
            if left is None or right is None or not _same(left, right):
                difference = _explain(partition, position, left, right)
                break
            records += 1
            size += _size(left)
            if left.offset() != right.offset():
                offsets_equal = False
    return Comparison(source, target, here, records, size, offsets_equal and difference is None, difference)


def partition_count(bootstrap: str, topic: str, config: Config | None = None) -> int:
    """How many partitions the topic has. Raises KafkaException if there is no such topic."""
    consumer = _consumer(bootstrap, config)
    try:
        found = consumer.list_topics(topic, timeout=20).topics[topic]
        if found.error:
            raise KafkaException(found.error)
        return len(found.partitions)
    finally:
        consumer.close()


def read_committed(bootstrap: str, topic: str, partition: int, config: Config | None = None) -> Iterator[Message]:
    """The committed records of a partition from its start to its end as it is now."""
    return read_all_committed(bootstrap, [(topic, partition)], config)


def read_all_committed(
    bootstrap: str, places: Collection[tuple[str, int]], config: Config | None = None
) -> Iterator[Message]:
    """The committed records of partitions, by topic and number, each from its start to its end as it is now. Those of
    a partition are in their order.
    """
    left, topics = set(places), {topic for topic, _ in places}
    consumer = _consumer(bootstrap, config)
    try:
        for topic in topics if len(topics) == 1 else [None]:  # None: all topics
            consumer.list_topics(topic, timeout=20)  # with a leader unknown the first fetch would wait half a second
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        heard = time.monotonic()
        while left:
            messages = consumer.consume(2000, timeout=0.05)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE:
                raise TimeoutError(f"{sorted(left)}: neither records nor the end within {_SILENCE:.0f} s")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((str(message.topic()), int(message.partition() or 0)))
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()


def _consumer(bootstrap: str, config: Config | None) -> Consumer:
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "group.id": "compare",
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 32_768,
        "fetch.wait.max.ms": 50,
        **(config or {}),
    }
    return Consumer(settings)


def _same(left: Message, right: Message) -> bool:
    return bool(
        left.value() == right.value()
        and left.key() == right.key()
        and left.timestamp()[1] == right.timestamp()[1]
        and left.headers() == right.headers()
    )


def _size(message: Message) -> int:
    size = len(message.key() or b"") + len(message.value() or b"")
    headers = message.headers()
    if isinstance(headers, list):
        size += sum(len(key.encode()) + len(value or b"") for key, value in headers)
    return size


def _explain(partition: int, position: int, left: Message | None, right: Message | None) -> Difference:
    offsets = (left.offset() if left else None, right.offset() if right else None)
    if left is None or right is None:
        lines = ["nothing" if side is None else f"a record with key {side.key()!r}" for side in (left, right)]
        return Difference(partition, position, *offsets, "record", *lines)
    views = {
        "key": (left.key(), right.key()),
        "value": (left.value(), right.value()),
        "timestamp": (left.timestamp()[1], right.timestamp()[1]),
        "headers": (left.headers(), right.headers()),
    }
    name, (one, other) = next((name, pair) for name, pair in views.items() if pair[0] != pair[1])
    return Difference(partition, position, *offsets, name, one, other)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"

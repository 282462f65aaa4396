"""Making topics, filling them and committing group positions: what tests and the demo share."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tests.cluster.process import wait_until

_NOT_READY = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
    }
)

NO_RETENTION = {"retention.ms": "-1"}
"""For records that carry times of long ago: a broker deletes them by those, not by the time they came."""

Config = Mapping[str, str | int]
"""librdkafka settings on top of `bootstrap.servers`, such as those for SASL."""


@dataclass(frozen=True)
class Record:
    """One record to write. `timestamp` is in ms since the epoch; headers keep their order and may repeat a key."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, str | bytes | None]] = field(default_factory=list)
    partition: int = -1


def create_topic(bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic with one replica; returns when it can be used. Raises KafkaException if it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    for done in admin.create_topics([new], operation_timeout=20).values():
        done.result(30)
    wait_until_led(bootstrap, topic, range(partitions))


def wait_until_led(bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
    """Wait for new partitions: the controller answers before the broker knows of them and leads them."""
    places = [(topic, number) for number in partitions]

    def led() -> bool:
        fresh = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})  # which has seen no other partitions
        try:
            return set(high_watermarks(fresh, places).values()) <= {0}
        except KafkaException:
            return False

    wait_until(led, 60, f"the partitions of {topic}")


def high_watermarks(admin: AdminClient, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """One past the last record or marker, in open transactions too. Raises KafkaException if a partition is unknown."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for topic, number in places}
    found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=30)
    return {(place.topic, place.partition): done.result(60).offset for place, done in found.items()}


def end_transaction(
    bootstrap: str, producer: Producer, places: Iterable[tuple[str, int]], *, commit: bool = True
) -> None:
    """End the transaction that has written to these partitions. The coordinator answers when the outcome is
    certain. This waits for the markers too: without them a committed reader does not see the end of a partition.
    """
    if producer.flush(60):
        raise TimeoutError("the records of a transaction were not acknowledged within 60 s")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    before = high_watermarks(admin, set(places))
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)

    def marked() -> bool:
        after = high_watermarks(admin, before)
        return all(after[place] > offset for place, offset in before.items())

    wait_until(marked, 60, "the markers of a transaction")


def wait_until_decided(bootstrap: str, topic: str) -> None:
    """Wait until brokers have decided all transactions that wrote to a topic. All of them must have ended."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})

    def decided() -> bool:
        try:
            ends = end_offsets(bootstrap, topic)  # before the watermarks: these may grow meanwhile
            found = high_watermarks(admin, [(topic, number) for number in ends])
        except KafkaException:  # of a leader that is new
            return False
        return found == {(topic, number): end for number, end in ends.items()}

    wait_until(decided, 60, f"the markers of the transactions in {topic}")


def delete_topics(bootstrap: str, topics: Iterable[str]) -> None:
    """Delete topics, with their data. There may be none."""
    if names := list(topics):
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        for done in admin.delete_topics(names, operation_timeout=20).values():
            done.result(30)


def produce(
    bootstrap: str, topic: str, records: Iterable[Record], *, compression: str = "none", config: Config | None = None
) -> int:
    """Write records in order and return how many, when the broker has acknowledged all. Raises on any refusal."""
    several = "," in bootstrap  # one broker leads all; and an idempotent producer waits half a second for its id
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "compression.type": compression,
        "enable.idempotence": "true" if several else "false",
        "log_level": 3,
        "linger.ms": 20,
        "batch.size": 1 << 18,
        "queue.buffering.max.messages": 200_000,
        "partitioner": "murmur2_random",
        **(config or {}),
    }
    producer = Producer(settings)
    count = send(producer, topic, records)
    flush(producer, topic)
    return count


def send(producer: Producer, topic: str, records: Iterable[Record]) -> int:
    """Hand records to a producer, waiting where its queue is full; returns how many."""
    count = 0
    for record in records:
        while True:
            try:
                producer.produce(
                    topic,
                    key=record.key,
                    value=record.value,
                    timestamp=record.timestamp,
                    headers=record.headers,
                    partition=record.partition,
                    on_delivery=_refuse,
                )
                break
            except BufferError:
                producer.poll(0.5)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    return count


def flush(producer: Producer, topic: str) -> None:
    """Wait until everything handed over is acknowledged."""
    left = producer.flush(120)
    if left:
        raise TimeoutError(f"{left} records of {topic} were not acknowledged within 120 s")


def _refuse(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


def random_records(partitions: int, megabytes: int, *, record_bytes: int = 20_000, start: int = 0) -> Iterator[Record]:
    """Records that no codec makes smaller, evenly over the partitions; the key is the number, counted from `start`."""
    for number in range(start, start + megabytes * 1_000_000 // record_bytes):
        yield Record(
            key=b"%010d" % number,
            value=os.urandom(record_bytes),
            timestamp=1_700_000_000_000 + number,
            headers=[("number", b"%d" % number), ("parity", b"even" if number % 2 == 0 else None)],
            partition=number % partitions,
        )


def commit_positions(
    bootstrap: str, group: str, positions: Mapping[tuple[str, int], int], *, metadata: str = ""
) -> None:
    """Commit a consumer group's offsets without being a member of it, as a consumer that has left would have."""
    commit(
        bootstrap,
        group,
        [TopicPartition(topic, number, offset, metadata=metadata) for (topic, number), offset in positions.items()],
    )


def commit(bootstrap: str, group: str, positions: Sequence[TopicPartition]) -> None:
    """Commit positions, as `commit_positions` does. The first commit of a new broker makes `__consumer_offsets`; until
    the coordinators have their partitions of it they refuse, and librdkafka gives up on some of that. This waits for
    them, at most 60 s."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": "false"})
    until = time.monotonic() + 60
    try:
        while True:
            try:
                for done in consumer.commit(offsets=list(positions), asynchronous=False) or []:
                    if done.error:
                        raise KafkaException(done.error)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_READY or time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return
    finally:
        consumer.close()


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """Where a committed reader stops in each partition: below the oldest open transaction, else the high watermark."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        found = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        places = {number: TopicPartition(topic, number) for number in found}
        return {number: consumer.get_watermark_offsets(place, timeout=20)[1] for number, place in places.items()}
    finally:
        consumer.close()


def topic_names(bootstrap: str) -> set[str]:
    """All topics but Kafka's own."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    found = admin.list_topics(timeout=20).topics
    return {name for name in found if not name.startswith("__")}

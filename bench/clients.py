"""Record clients: librdkafka through confluent-kafka here, Java's own performance tools as commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.topics import Topic, Values
from tests.cluster import tools

CONSUME = 10_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def consume(bootstrap: str, topic: Topic, visible: int) -> int:
    """Read every committed record of a topic with librdkafka, 10,000 a call; returns how many there were."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8 << 20,
            "fetch.max.bytes": 64 << 20,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 512 << 10,
        }
    )
    consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
    seen = 0
    while seen < visible:
        messages = consumer.consume(min(CONSUME, visible - seen), timeout=30)  # it waits until it has so many
        if not messages:
            raise RuntimeError(f"librdkafka saw {seen} of {visible} records of {topic.name}")
        for message in messages:
            problem = message.error()
            if problem is not None:
                raise RuntimeError(str(problem))
        seen += len(messages)
    consumer.close()
    return seen


def produce(bootstrap: str, topic: Topic, target: str) -> int:
    """Write as many records as the topic has with librdkafka, idempotent, in the topic's compression."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": _CODECS[topic.codec],
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    source = Values(topic)
    values = [source.next() for _ in range(20_000)]
    for number in range(topic.records):
        while True:
            try:
                producer.produce(target, values[number % len(values)], partition=number % topic.partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("librdkafka did not send everything")
    return topic.records


def java(main_class: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's own tools, with the options its scripts give it."""
    logging = [f"-Dlog4j2.configurationFile={tools.FILES / 'log4j2.properties'}", "-Dlogkeep.log.level=ERROR"]
    jars = f"{tools.kafka_jars()}/*"
    return ["java", "-Xmx512m", "-server", "-XX:+UseG1GC", *logging, "-cp", jars, main_class, *arguments]


def java_consumer(bootstrap: str, topic: Topic, visible: int) -> list[str]:
    """ConsumerPerformance over all records of a topic."""
    return java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic.name, "--messages", str(visible)),
        *("--timeout", "30000", "--fetch-size", str(8 << 20), "--hide-header"),
    )


def java_producer(bootstrap: str, topic: Topic, target: str, payloads: Path) -> list[str]:
    """ProducerPerformance: as many records as the topic has, of the values in `payloads`."""
    size: Sequence[str] = ("--payload-file", str(payloads))
    if topic.random_bytes == topic.record_bytes:
        size = ("--record-size", str(topic.record_bytes))
    properties = (
        f"bootstrap.servers={bootstrap}",
        f"compression.type={_CODECS[topic.codec]}",
        f"batch.size={1 << 20}",
        "linger.ms=20",
        f"buffer.memory={128 << 20}",
        f"max.request.size={8 << 20}",
    )
    return java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", target, "--num-records", str(topic.records), "--throughput", "-1"),
        *size,
        *("--producer-props", *properties),
    )


def payload_file(topic: Topic, path: Path) -> Path:
    """20,000 values of the topic, one a line, for ProducerPerformance."""
    source = Values(topic)
    path.write_bytes(b"\n".join(source.next() for _ in range(20_000)) + b"\n")
    return path

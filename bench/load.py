"""Fills topics with the benchmark's batches, through a raw connection: gigabytes in seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic

from bench import topics
from bench.topics import Template, Topic
from bench.wire import CONCURRENT_TRANSACTIONS, PRODUCE, Wire, WireError, produce_body
from tests.cluster.process import wait_until

IN_FLIGHT = 5
_REQUEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a topic. `wire_bytes` are its batches as a fetch brings them, markers of transactions left out. A
    committed reader sees the `visible` records.

    `visible` records are those a committed reader sees.
    """

    topic: Topic
    wire_bytes: int
    visible: int
    ends: tuple[int, ...]
    seconds: float


def create(bootstrap: str, name: str, partitions: int) -> None:
    """Create a topic that takes any time and forgets nothing. Waits until it can be written to."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"max.message.bytes": str(16 << 20), "retention.ms": "-1", "segment.bytes": str(1 << 30)}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)

    def led() -> bool:
        with Wire(bootstrap) as wire:
            try:
                return all(wire.list_offset(name, number, -1) == 0 for number in range(partitions))
            except WireError:  # the broker has not heard yet that it leads it
                return False

    wait_until(led, 60, f"leaders of {name}")


def delete(bootstrap: str, *names: str) -> None:
    """Delete topics, those that exist; returns when they are gone from the cluster."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    there = [name for name in names if name in admin.list_topics(timeout=30).topics]
    if there:
        for future in admin.delete_topics(there).values():
            future.result(60)
        wait_until(lambda: not set(there) & set(admin.list_topics(timeout=30).topics), 60, f"deletion of {there}")


def load(bootstrap: str, topic: Topic) -> Loaded:
    """Create and fill a topic."""
    started = time.monotonic()
    create(bootstrap, topic.name, topic.partitions)
    templates = topics.pool(topic)
    with Wire(bootstrap) as wire:
        if topic.transactions:
            size, visible = _transactions(wire, topic, templates)
        else:
            size, visible = _plain(wire, topic, templates), topic.records
        ends = tuple(wire.list_offset(topic.name, number, -1) for number in range(topic.partitions))
    return Loaded(topic, size, visible, ends, time.monotonic() - started)


def _plain(wire: Wire, topic: Topic, templates: Sequence[Template]) -> int:
    """One batch for each of several partitions in a request: a broker takes no more than one of a partition."""
    total = 0
    flying = 0
    sources = [topics.batches(topic, templates, number) for number in range(topic.partitions)]
    for group in groups(sources):
        total += sum(len(batch) for _, batch in group)
        wire.send(PRODUCE, 8, *produce_body(topic.name, group))
        flying += 1
        # The first goes alone: until a broker knows a producer id it would take a second batch before the first.
        while flying >= IN_FLIGHT or (flying and total == sum(len(batch) for _, batch in group)):
            wire.take_produce()
            flying -= 1
    for _ in range(flying):
        wire.take_produce()
    return total


def groups(sources: Sequence[Iterator[bytearray]]) -> Iterator[list[tuple[int, bytearray]]]:
    """Requests' worth of (partition, batch), one of each source that has any left and at most 16 MiB together."""
    left = dict(enumerate(sources))
    while left:
        group: list[tuple[int, bytearray]] = []
        size = 0
        for number in list(left):
            batch = next(left[number], None)
            if batch is None:
                del left[number]
                continue
            group.append((number, batch))
            size += len(batch)
            if size >= _REQUEST_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def _transactions(wire: Wire, topic: Topic, templates: Sequence[Template]) -> tuple[int, int]:
    """(bytes, visible records). One transaction after the other over all partitions; every fifth is aborted."""
    name = f"bench-{topic.name}"
    producer = _begin(wire, name)
    sources = [topics.batches(topic, templates, number, producer=producer) for number in range(topic.partitions)]
    size = visible = number = 0
    open_records = 0
    numbers = range(topic.partitions)
    for group in groups(sources):
        if open_records == 0:
            _retried(wire, lambda: wire.add_partitions(name, producer, topic.name, numbers))
        wire.send(PRODUCE, 8, *produce_body(topic.name, group, transactional_id=name))
        wire.take_produce()
        size += sum(len(batch) for _, batch in group)
        open_records += sum(int.from_bytes(batch[57:61], "big") for _, batch in group)
        if open_records >= topic.transactions:
            number += 1
            visible += _end(wire, name, producer, open_records, number)
            open_records = 0
    if open_records:
        visible += _end(wire, name, producer, open_records, number + 1)
    # The last marker is written after the answer.
    _retried(wire, lambda: wire.add_partitions(name, producer, topic.name, numbers))
    _retried(wire, lambda: wire.end_transaction(name, producer, commit=True))
    time.sleep(0.5)
    return size, visible


def _begin(wire: Wire, name: str) -> tuple[int, int]:
    wait_until(lambda: wire.find_transactions(name), 60, "the transaction coordinator")
    producer = (-1, -1)

    def ready() -> bool:
        nonlocal producer
        code, producer_id, epoch = wire.init_producer_id(name)
        producer = (producer_id, epoch)
        return code == 0

    wait_until(ready, 60, "a transactional producer id")
    return producer


def _end(wire: Wire, name: str, producer: tuple[int, int], records: int, number: int) -> int:
    """Visible records of the transaction that ends."""
    commit = number % 5 != 0
    code = wire.end_transaction(name, producer, commit=commit)
    if code:
        raise WireError(f"the end of a transaction: error {code}")
    return records if commit else 0


def _retried(wire: Wire, call: object) -> None:
    assert callable(call)
    while code := call():
        if code != CONCURRENT_TRANSACTIONS:  # the markers of the one before are still being written
            raise WireError(f"a transaction: error {code}")
        time.sleep(0.002)

"""Points of restores, and what of a source lies within them, found by reading the whole log of the source."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.log.batch import walk
from tests.ledger.ledger import Fate, Found, Sent
from tests.ledger.producers import PARTITIONS

POINTS = ("", "asOf", "timestamp", "offsets")


@dataclass(frozen=True)
class Point:
    """The wish of a restore: everything, or what lies before `time` (ms) or the `ends` of partitions."""

    kind: str = ""
    time: int = -1
    ends: Mapping[int, int] = field(default_factory=dict)

    def spec(self, topic: str) -> dict[str, Any]:
        """The fields of the resource that say so."""
        if not self.kind:
            return {}
        if self.kind == "offsets":
            items = [{"topic": topic, "partition": at, "offset": end} for at, end in self.ends.items()]
            return {"point": {"offsets": items}, "allowEmpty": True}
        return {"point": {self.kind: iso(self.time)}, "allowEmpty": True}

    def __str__(self) -> str:
        return self.kind or "all records"


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def chosen(choice: random.Random, kind: str, bootstrap: str, topic: str, ledger: Sequence[Sent]) -> Point:
    """A point of a kind somewhere among the records of a source that has come to its end."""
    if not kind:
        return Point()
    if kind == "offsets":
        ends = end_offsets(bootstrap, topic)
        some = choice.sample(sorted(ends), choice.randint(1, len(ends)))
        return Point(kind, ends={number: choice.randint(0, ends[number]) for number in some})
    times = sorted(item.timestamp for item in ledger)
    place = choice.uniform(0.1, 1.2)
    at = times[int(place * (len(times) - 1))] if place < 1 else int(time.time() * 1000)
    if kind == "timestamp":
        return Point(kind, at)
    return Point(kind, at, _ends_as_of(bootstrap, topic, at))


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """One past the last offset of each partition."""
    return _offsets(bootstrap, topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def _ends_as_of(bootstrap: str, topic: str, moment: int) -> dict[int, int]:
    found = _offsets(bootstrap, topic, OffsetSpec.for_timestamp(moment))
    return {number: end for number, end in found.items() if end >= 0}


def _offsets(bootstrap: str, topic: str, spec: OffsetSpec) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    asked = {TopicPartition(topic, number): spec for number in range(PARTITIONS)}
    found = admin.list_offsets(asked, request_timeout=30)
    return {place.partition: done.result(60).offset for place, done in found.items()}


def ends_of_logs(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """Where the leaders' logs end, also where they do not tell consumers yet."""

    async def ask() -> dict[int, int]:
        async with RawClient(_connection(bootstrap)) as client:
            return {number: (await client.epoch_end(topic, number)).end_offset for number in range(partitions)}

    return asyncio.run(ask())


def positions_of(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The positions of a consumer group in a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    places = asked[group].result(60).topic_partitions
    return {place.partition: place.offset for place in places if place.topic == topic and place.offset >= 0}


def transactions_in(bootstrap: str, topic: str) -> dict[int, dict[int, tuple[int, int]]]:
    """The transaction of each offset that was written in one, by partition: its producer id, and where its marker is.

    Brokers write a marker after all batches of a transaction, and a producer has one open at a time.
    """
    return asyncio.run(_transactions_in(bootstrap, topic))


async def _transactions_in(bootstrap: str, topic: str) -> dict[int, dict[int, tuple[int, int]]]:
    found: dict[int, dict[int, tuple[int, int]]] = {}
    async with RawClient(_connection(bootstrap)) as client:
        for partition in range(PARTITIONS):
            begun: dict[int, list[int]] = {}
            of = found.setdefault(partition, {})
            end = await client.end_offset(topic, partition, committed=True)
            async with aclosing(client.stream(topic, partition, 0, end, committed=False)) as stream:
                async for fetched in stream:
                    for _, header in walk(fetched.data):
                        if header.is_control:
                            marker = (header.producer_id, header.base_offset)
                            of.update(dict.fromkeys(begun.pop(header.producer_id, []), marker))
                        elif header.is_transactional:
                            last = header.base_offset + header.last_offset_delta
                            begun.setdefault(header.producer_id, []).extend(range(header.base_offset, last + 1))
    return found


def _connection(bootstrap: str) -> KafkaConnection:
    return connection_from(ClusterSpec(bootstrap_servers=tuple(bootstrap.split(","))), {})


def within(
    point: Point, records: Sequence[Found], partition: int, transactions: Mapping[int, tuple[int, int]]
) -> list[Found]:
    """The committed records of a partition that a restore to the point brings: transactions whole or not at all."""
    if point.kind == "timestamp":
        latest: dict[tuple[int, int], int] = {}
        for record in records:
            if record.offset in transactions:
                name = transactions[record.offset]
                latest[name] = max(record.timestamp, latest.get(name, -1))
        return [
            record
            for record in records
            if (latest[transactions[record.offset]] if record.offset in transactions else record.timestamp) < point.time
        ]
    end = point.ends.get(partition)
    if end is None:
        return list(records)
    return [record for record in records if max(record.offset, *transactions.get(record.offset, (0,))[1:], 0) < end]


def promised(point: Point, ledger: Iterable[Sent]) -> frozenset[bytes]:
    """The keys of the records that must be there by what producers were told alone, and when."""
    latest: dict[tuple[str, int, int], int] = {}
    ledger = list(ledger)
    for item in ledger:
        if item.transaction >= 0:
            name = (item.producer, item.transaction, item.partition)
            latest[name] = max(item.timestamp, latest.get(name, -1))

    def is_in(item: Sent) -> bool:
        if not point.kind:
            return True
        if point.kind == "timestamp":
            return latest.get((item.producer, item.transaction, item.partition), item.timestamp) < point.time
        if item.transaction >= 0:  # the marker decides, and no producer is told where it lies
            return False
        if point.kind == "offsets":
            return 0 <= item.offset < point.ends.get(item.partition, item.offset + 1)
        return 0 <= item.acknowledged < point.time  # what is of that time or later was written after it

    return frozenset(item.key for item in ledger if item.fate is Fate.COMMITTED and is_in(item))

"""Committed positions of consumer groups, on the engine's own connections.

librdkafka looks each position of an answer up in the list of those before it: a group that reads 50,000 partitions
takes it 5 s, one that reads 100,000 takes 25 s. Here it is a fraction of a second.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.kafka.brokers import BrokerPool, Limits, Trouble
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.kafka.protocol import Call, Code, Reader

_AT_ONCE = 50
_KIND_GROUP = 0


@dataclass(frozen=True, slots=True)
class Position:
    """`offset` is the next record to read. `leader_epoch` is -1 if the group did not say."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Positions:
    """All positions of a group, or the protocol's error code of the answer; what cannot be reached is
    COORDINATOR_NOT_AVAILABLE."""

    code: int
    throttle_ms: int = 0
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class _Coordinator:
    code: int
    throttle_ms: int
    node: int


async def committed_positions(connection: Connection, groups: Sequence[str]) -> dict[str, Positions]:
    """What the coordinator of each group says. Raises BrokerUnavailable and BrokerRefused as `BrokerPool` does."""
    found: dict[str, Positions] = {}
    async with BrokerPool(connection, Limits()) as pool:
        for at in range(0, len(groups), _AT_ONCE):
            part = groups[at : at + _AT_ONCE]
            answers = await asyncio.gather(*(_ask(pool, group) for group in part))
            found |= dict(zip(part, answers, strict=True))
    return found


async def _ask(pool: BrokerPool, group: str) -> Positions:
    try:
        coordinator = await pool.send(pool.any_node(), 0, find_coordinator(group))
        if coordinator.code != Code.NONE:
            return Positions(coordinator.code)
        return await pool.send(coordinator.node, 0, fetch_positions(group))
    except Trouble:
        return Positions(Code.COORDINATOR_NOT_AVAILABLE)


def find_coordinator(group: str) -> Call[_Coordinator]:
    """The broker that keeps the positions of `group`."""

    def answer(read: Reader) -> _Coordinator:
        throttle, code = read.int32(), read.int16()
        read.string()
        return _Coordinator(code, throttle, read.int32())

    return Call(10, 1, (_string(group) + struct.pack(">b", _KIND_GROUP),), answer)


def fetch_positions(group: str) -> Call[Positions]:
    """All positions of `group`, of the topics that this user may describe."""

    def answer(read: Reader) -> Positions:
        throttle = read.int32()
        positions: list[Position] = []
        for _ in range(read.int32()):
            topic = read.string()
            for _ in range(read.int32()):
                partition, offset, epoch = read.int32(), read.int64(), read.int32()
                # librdkafka's clients commit the zero byte at the end of a C string, too, and do not read it.
                metadata, code = read.string().partition("\0")[0], read.int16()
                if offset >= 0 and code == Code.NONE:
                    positions.append(Position(topic, partition, offset, epoch, metadata))
        return Positions(read.int16(), throttle, tuple(positions))

    every_topic = struct.pack(">i", -1)
    return Call(9, 5, (_string(group) + every_topic,), answer)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw

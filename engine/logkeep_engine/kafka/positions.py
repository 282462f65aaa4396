"""Committed positions of consumer groups, read and set on the engine's own connections.

librdkafka looks each position of an answer up in the list of those before it: a group that reads 50,000 partitions
takes it 5 s, one that reads 100,000 takes 25 s. Here it is a fraction of a second.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.encoding import Call, Reader, pack_string
from logkeep_engine.kafka.retry import RetriableError

_AT_ONCE = 50
GROUP, TRANSACTION = 0, 1  # what a coordinator keeps (FindCoordinatorRequest.CoordinatorType)
# A coordinator writes the positions of a request as one batch, which must fit the max.message.bytes of
# __consumer_offsets (1 MiB by default).
_COMMIT_BYTES = 256 << 10
_POSITION_BYTES = 100  # what a written position takes besides the names in it and its metadata


@dataclass(frozen=True, slots=True)
class FetchedPosition:
    """`offset` is the next record to read. `leader_epoch` is -1 if the group did not say."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class FetchedPositions:
    """All positions of a group, or the protocol's error code of the answer; what cannot be reached is
    COORDINATOR_NOT_AVAILABLE. `negative` are commits of an offset below 0: some clients commit -1 or -2, and all take
    them for no position."""

    code: int
    throttle_ms: int = 0
    positions: tuple[FetchedPosition, ...] = ()
    negative: tuple[FetchedPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The protocol's error code of each position of a request, by topic and partition."""

    codes: dict[tuple[str, int], int]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The node that keeps what was asked for, or an error code."""

    code: int
    throttle_ms: int
    node: int


async def committed_positions(
    connection: KafkaConnection, groups: Sequence[str], fetch: Callable[[str], Call[FetchedPositions]]
) -> dict[str, FetchedPositions]:
    """Return the positions of each group, as its coordinator answers to `fetch`. Raises BrokerUnavailable and
    BrokerRefused as `BrokerPool` does.
    """
    found: dict[str, FetchedPositions] = {}
    async with BrokerPool(connection, connection.limits) as pool:
        for at in range(0, len(groups), _AT_ONCE):
            part = groups[at : at + _AT_ONCE]
            answers = await asyncio.gather(*(_ask(pool, group, fetch) for group in part))
            found |= dict(zip(part, answers, strict=True))
    return found


async def _ask(pool: BrokerPool, group: str, fetch: Callable[[str], Call[FetchedPositions]]) -> FetchedPositions:
    try:
        coordinator = await pool.send(pool.any_node(), 0, find_coordinator(group))
        if coordinator.code != Code.NONE:
            return FetchedPositions(coordinator.code)
        return await pool.send(coordinator.node, 0, fetch(group))
    except RetriableError:
        return FetchedPositions(Code.COORDINATOR_NOT_AVAILABLE)


ChangeRequest = Callable[[str, Sequence[FetchedPosition]], Call[CommitAnswer]]
"""Makes the request that changes some positions of a group: `commit_request`, `delete_request`."""


async def change_positions(
    connection: KafkaConnection,
    wanted: Mapping[str, Sequence[FetchedPosition]],
    change: ChangeRequest,
    permit: Callable[[], None],
) -> dict[str, dict[tuple[str, int], int]]:
    """Change positions of groups without members; returns the protocol's error code of each, by group.
    `permit` is asked now and then, and raises if no more may be changed.

    What cannot be reached is COORDINATOR_NOT_AVAILABLE; a group with members is UNKNOWN_MEMBER_ID or NON_EMPTY_GROUP.
    The same change made again is harmless. Raises BrokerUnavailable and BrokerRefused as `BrokerPool` does.
    """
    found: dict[str, dict[tuple[str, int], int]] = {}
    groups = list(wanted)
    async with BrokerPool(connection, connection.limits) as pool:
        for at in range(0, len(groups), _AT_ONCE):
            part = groups[at : at + _AT_ONCE]
            await asyncio.to_thread(permit)  # it reads from the storage
            answers = await asyncio.gather(*(_change(pool, group, wanted[group], change) for group in part))
            found |= dict(zip(part, answers, strict=True))
    return found


async def _change(
    pool: BrokerPool, group: str, positions: Sequence[FetchedPosition], change: ChangeRequest
) -> dict[tuple[str, int], int]:
    codes = {(item.topic, item.partition): int(Code.COORDINATOR_NOT_AVAILABLE) for item in positions}
    try:
        coordinator = await pool.send(pool.any_node(), 0, find_coordinator(group))
        if coordinator.code != Code.NONE:
            return dict.fromkeys(codes, coordinator.code)
        for part in _requests(group, positions):
            codes |= (await pool.send(coordinator.node, 0, change(group, part))).codes
    except RetriableError:
        pass  # what was answered for is known, the rest has the code of what may be asked again
    return codes


def _requests(group: str, positions: Sequence[FetchedPosition]) -> Iterator[list[FetchedPosition]]:
    part: list[FetchedPosition] = []
    size = 0
    for item in positions:
        needs = _POSITION_BYTES + len(group) + len(item.topic) + len(item.metadata.encode())
        if part and size + needs > _COMMIT_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += needs
    if part:
        yield part


def find_coordinator(name: str, kind: int = GROUP) -> Call[Coordinator]:
    """Return the broker that keeps the positions of the group `name`, or the transactions of that id."""

    def answer(read: Reader) -> Coordinator:
        throttle, code = read.int32(), read.int16()
        read.string()
        return Coordinator(code, throttle, read.int32())

    return Call(10, 1, (pack_string(name) + struct.pack(">b", kind),), answer)


def fetch_positions(group: str) -> Call[FetchedPositions]:
    """Return all positions of `group`, of the topics that this user may describe. An error for one position is an error
    for all: it is unknown whether that position is there.
    """

    def answer(read: Reader) -> FetchedPositions:
        throttle = read.int32()
        positions: list[FetchedPosition] = []
        negative: list[FetchedPosition] = []
        problem = int(Code.NONE)
        for _ in range(read.int32()):
            topic = read.string()
            for _ in range(read.int32()):
                partition, offset, epoch = read.int32(), read.int64(), read.int32()
                # librdkafka's clients commit the zero byte at the end of a C string, too, and do not read it.
                metadata, code = read.string().partition("\0")[0], read.int16()
                problem = problem or code
                found = positions if offset >= 0 else negative
                found.append(FetchedPosition(topic, partition, offset, epoch, metadata))
        problem = read.int16() or problem
        if problem:
            return FetchedPositions(problem, throttle)
        return FetchedPositions(problem, throttle, tuple(positions), tuple(negative))

    every_topic = struct.pack(">i", -1)
    return Call(9, 5, (pack_string(group) + every_topic,), answer)  # the first version with leader epochs (KIP-320)


def by_topic(positions: Sequence[FetchedPosition]) -> dict[str, list[FetchedPosition]]:
    """Return the positions by topic, as requests have them."""
    topics: dict[str, list[FetchedPosition]] = {}
    for item in positions:
        topics.setdefault(item.topic, []).append(item)
    return topics


def commit_request(group: str, positions: Sequence[FetchedPosition]) -> Call[CommitAnswer]:
    """Set positions of `group` without being a member: the coordinator refuses if it has members."""
    topics = by_topic(positions)
    no_generation, no_member = struct.pack(">i", -1), pack_string("")
    body = [pack_string(group), no_generation, no_member, struct.pack(">i", len(topics))]
    for topic, items in topics.items():
        body += [pack_string(topic), struct.pack(">i", len(items))]
        for item in items:
            body += [struct.pack(">iqi", item.partition, item.offset, item.leader_epoch), pack_string(item.metadata)]

    def answer(read: Reader) -> CommitAnswer:
        throttle = read.int32()
        return CommitAnswer(_codes(read), throttle)

    return Call(8, 6, (b"".join(body),), answer)  # the first version with leader epochs (KIP-320)


def delete_request(group: str, positions: Sequence[FetchedPosition]) -> Call[CommitAnswer]:
    """Delete positions of `group`: the coordinator refuses if a member reads the topic."""
    topics = by_topic(positions)
    body = [pack_string(group), struct.pack(">i", len(topics))]
    for topic, items in topics.items():
        body += [pack_string(topic), struct.pack(">i", len(items))]
        body += [struct.pack(">i", item.partition) for item in items]

    def answer(read: Reader) -> CommitAnswer:
        code, throttle = read.int16(), read.int32()
        codes = _codes(read)
        if code != Code.NONE:
            # An error of the group holds for all of its positions, and the answer then names none.
            codes = {(item.topic, item.partition): code for item in positions}
        return CommitAnswer(codes, throttle)

    return Call(47, 0, (b"".join(body),), answer)


def _codes(read: Reader) -> dict[tuple[str, int], int]:
    codes: dict[tuple[str, int], int] = {}
    for _ in range(read.int32()):
        topic = read.string()
        for _ in range(read.int32()):
            partition = read.int32()
            codes[topic, partition] = read.int16()
    return codes

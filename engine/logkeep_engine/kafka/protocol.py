"""The few requests of Kafka's protocol that the data plane needs, encoded and decoded without copying batches.

`Wire.send` takes a `Call` and does framing and correlation. The request classes of libraries do not suit moving
archives. They copy a batch about six times on its way out and once on its way in, know no topic ids, hide the broker's
reason for a refused batch, and ask for topics to be created when they only need to know them.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.encoding import INT32, NO_TAGS, Buffer, Call, Reader, pack_array, pack_string, pack_uvarint

EARLIEST = -2
LATEST = -1
EARLIEST_LOCAL = -4

_NOTHING = memoryview(b"")


# ---- Metadata


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    code: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    code: int
    partitions: dict[int, PartitionMetadata]


@dataclass(frozen=True, slots=True)
class Metadata:
    throttle_ms: int
    brokers: dict[int, tuple[str, int]]
    topics: dict[str, TopicMetadata]
    cluster_id: str = ""


def metadata(topics: Sequence[str]) -> Call[Metadata]:
    """Leaders of `topics` and addresses of all brokers; never creates a topic."""
    # The three flags: create no topic, and report no rights on the cluster or on topics, which brokers would look up.
    body = pack_array(pack_string(topic) for topic in topics) + b"\x00\x00\x00"

    def partition(read: Reader) -> tuple[int, PartitionMetadata]:
        code, number, leader, epoch = read.int16(), read.int32(), read.int32(), read.int32()
        for _ in range(3):  # replicas, in sync, offline
            read.array(read.int32)
        return number, PartitionMetadata(code, leader, epoch)

    def topic(read: Reader) -> tuple[str, TopicMetadata]:
        code, name = read.int16(), read.string()
        read.int8()
        partitions = dict(read.array(lambda: partition(read)))
        read.int32()
        return name, TopicMetadata(code, partitions)

    def broker(read: Reader) -> tuple[int, tuple[str, int]]:
        number, host, port = read.int32(), read.string(), read.int32()
        read.nullable_string()
        return number, (host, port)

    def answer(read: Reader) -> Metadata:
        throttle = read.int32()
        brokers = dict(read.array(lambda: broker(read)))
        cluster_id = read.string()
        read.int32()
        return Metadata(throttle, brokers, dict(read.array(lambda: topic(read))), cluster_id)

    return Call(3, 8, (body,), answer)  # the last version without tags; leader epochs came with 7 (KIP-320)


# ---- Fetch


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """`code` is the partition's error, or the request's.

    `answered` is False if a throttled broker left the partition out. `aborted` is empty where the broker gave null.
    `frame` holds the memory of `records`.
    """

    throttle_ms: int
    code: int
    answered: bool = False
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    preferred_read_replica: int = -1
    records: memoryview = _NOTHING
    frame: AnswerFrame | None = None


def fetch(
    topic: str,
    topic_id: str | None,
    partition: int,
    leader_epoch: int,
    offset: int,
    *,
    max_bytes: int,
    max_wait_ms: int,
    min_bytes: int,
    committed: bool,
) -> Call[FetchAnswer]:
    """One partition, outside a fetch session. By topic id if given (version 13), else by name (version 10).

    Version 10, not 11 or 12: from 11 on a broker's replica selector may send the reader to a follower.
    """
    # Session epoch -1: no session (KIP-227). Each fetch asks for one partition, so a session would save nothing.
    head = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, int(committed), 0, -1)
    if topic_id is None:
        entry = struct.pack(">iiiqqi", 1, partition, leader_epoch, offset, -1, max_bytes)
        body = head + pack_array([pack_string(topic) + entry]) + pack_array([])
        return Call(1, 10, (body,), lambda read: _fetch_answer(read, with_ids=False))
    # The two -1 are for followers: the epoch of what they fetched last, and their log start.
    entry = struct.pack(">iiqiqi", partition, leader_epoch, offset, -1, -1, max_bytes) + NO_TAGS
    one, empty = b"\x02", b"\x01"  # compact lengths are one more than the number of items (KIP-482)
    body = head + one + parse_topic_id(topic_id).bytes + one + entry + NO_TAGS + empty + empty + NO_TAGS
    return Call(1, 13, (body,), lambda read: _fetch_answer(read, with_ids=True), flexible=True)


def parse_topic_id(text: str) -> uuid.UUID:
    """Return the id as Kafka prints it: 16 bytes in URL-safe base64 without padding. Raises ValueError."""
    # Kafka leaves the padding out, and Python does not do without.
    return uuid.UUID(bytes=urlsafe_b64decode(text + "=="))


def _fetch_answer(read: Reader, *, with_ids: bool) -> FetchAnswer:
    throttle, code = read.int32(), read.int16()
    read.int32()
    topics = read.uvarint() - 1 if with_ids else read.int32()
    if topics < 1:
        return FetchAnswer(throttle, code)
    if with_ids:
        read.uuid()
        partitions = read.uvarint() - 1
    else:
        read.string()
        partitions = read.int32()
    if partitions < 1:
        return FetchAnswer(throttle, code)
    read.int32()
    partition_code = read.int16()
    high_watermark, stable, start = read.int64(), read.int64(), read.int64()
    preferred = -1
    if with_ids:
        aborted = read.compact_array(lambda: _aborted(read))
        preferred = read.int32()
        size = read.uvarint() - 1
    else:
        aborted = read.array(lambda: (read.int64(), read.int64()))
        size = read.int32()
    return FetchAnswer(
        throttle,
        code or partition_code,
        True,
        high_watermark,
        stable,
        start,
        tuple(aborted),
        preferred,
        read.slice(size),
        read.keep(),
    )


def _aborted(read: Reader) -> tuple[int, int]:
    entry = (read.int64(), read.int64())
    read.tags()
    return entry


# ---- Produce


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """The broker's answer to the batch of one partition."""

    code: int
    base_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProduceAnswers:
    """By topic and partition; one that the broker left out is not there."""

    throttle_ms: int
    partitions: dict[tuple[str, int], ProduceAnswer]


def produce(
    batches: Sequence[tuple[str, int, Sequence[Buffer]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Call[ProduceAnswers]:
    """One batch, in pieces, to each of several (topic, partition) of one leader. Transactional batches need the id of
    their transaction.
    """
    by_topic: dict[str, list[tuple[int, Sequence[Buffer]]]] = {}
    for topic, partition, pieces in batches:
        by_topic.setdefault(topic, []).append((partition, pieces))
    body: list[Buffer] = [pack_string(transactional_id) + struct.pack(">hii", acks, timeout_ms, len(by_topic))]
    for topic, parts in by_topic.items():
        body.append(pack_string(topic) + INT32.pack(len(parts)))
        for partition, pieces in parts:
            body.append(struct.pack(">ii", partition, sum(len(piece) for piece in pieces)))
            body.extend(pieces)

    def problem(read: Reader) -> str:
        read.int32()
        return read.string()

    def partition_answer(read: Reader) -> tuple[int, ProduceAnswer]:
        partition, code, base_offset = read.int32(), read.int16(), read.int64()
        read.int64()
        read.int64()
        problems = read.array(lambda: problem(read))
        message = read.nullable_string()
        reasons = dict.fromkeys(text for text in (message, *problems[:3]) if text)
        return partition, ProduceAnswer(code, base_offset, "; ".join(reasons))

    def topic_answer(read: Reader) -> tuple[str, list[tuple[int, ProduceAnswer]]]:
        return read.string(), read.array(lambda: partition_answer(read))

    def answer(read: Reader) -> ProduceAnswers:
        found = {
            (topic, partition): result
            for topic, results in read.array(lambda: topic_answer(read))
            for partition, result in results
        }
        return ProduceAnswers(read.int32(), found)

    return Call(0, 8, tuple(body), answer)  # the first version that gives reasons (KIP-467), the last without tags


# ---- ListOffsets, InitProducerId, DeleteRecords, DescribeLogDirs


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    throttle_ms: int
    code: int
    timestamp: int
    offset: int


def list_offset(
    topic: str, partition: int, leader_epoch: int, timestamp: int, *, committed: bool
) -> Call[OffsetAnswer]:
    """The offset at `timestamp` (ms), or at EARLIEST or LATEST; with `committed` LATEST is the last stable offset."""
    entry = struct.pack(">iiiq", 1, partition, leader_epoch, timestamp)
    body = struct.pack(">ib", -1, int(committed)) + pack_array([pack_string(topic) + entry])

    def answer(read: Reader) -> OffsetAnswer:
        throttle = read.int32()
        read.int32()
        read.string()
        read.int32()
        read.int32()
        return OffsetAnswer(throttle, read.int16(), read.int64(), read.int64())

    return Call(2, 5, (body,), answer)


def earliest_local_offset(topic: str, partition: int, leader_epoch: int) -> Call[OffsetAnswer]:
    """Return where the log begins on the broker's own disk. Version 8: brokers without it have no tiered storage."""
    name = topic.encode()
    entry = struct.pack(">iiq", partition, leader_epoch, EARLIEST_LOCAL) + NO_TAGS
    one = b"\x02"
    body = struct.pack(">ib", -1, 0) + one + pack_uvarint(len(name) + 1) + name + one + entry + NO_TAGS + NO_TAGS

    def answer(read: Reader) -> OffsetAnswer:
        throttle = read.int32()
        read.uvarint()
        read.slice(read.uvarint() - 1)
        read.uvarint()
        read.int32()
        return OffsetAnswer(throttle, read.int16(), read.int64(), read.int64())

    return Call(2, 8, (body,), answer, flexible=True)


@dataclass(frozen=True, slots=True)
class ProducerIdAnswer:
    throttle_ms: int
    code: int
    producer_id: int
    producer_epoch: int


def init_producer_id() -> Call[ProducerIdAnswer]:
    """Return a new producer id without a transactional id."""
    # The second is a time-out of transactions, which means nothing without a transactional id.
    body = pack_string(None) + INT32.pack(60_000)
    return Call(22, 1, (body,), lambda read: ProducerIdAnswer(read.int32(), read.int16(), read.int64(), read.int16()))


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    """`code` is that of the partition."""

    throttle_ms: int
    code: int


def delete_records(topic: str, partition: int, before: int) -> Call[DeleteAnswer]:
    """Let the log of a partition start at offset `before`."""
    entry = struct.pack(">iiq", 1, partition, before)
    # The broker waits this long for followers to move their log start: less than `Limits.request`, so it answers first.
    body = pack_array([pack_string(topic) + entry]) + INT32.pack(30_000)

    def answer(read: Reader) -> DeleteAnswer:
        throttle = read.int32()
        read.int32()
        read.string()
        read.int32()
        read.int32()
        read.int64()
        return DeleteAnswer(throttle, read.int16())

    return Call(21, 1, (body,), answer)


@dataclass(frozen=True, slots=True)
class LogDirsAnswer:
    """`sizes`: bytes of the replicas this broker holds. `codes`: one a log folder; none at all means not authorised."""

    throttle_ms: int
    codes: tuple[int, ...]
    sizes: dict[tuple[str, int], int]


def describe_log_dirs(partitions: Mapping[str, Sequence[int]]) -> Call[LogDirsAnswer]:
    """Return how large the replicas of `partitions` are that the broker asked holds."""
    body = pack_array(
        pack_string(topic) + pack_array(INT32.pack(number) for number in numbers)
        for topic, numbers in partitions.items()
    )

    def answer(read: Reader) -> LogDirsAnswer:
        throttle = read.int32()
        codes: list[int] = []
        sizes: dict[tuple[str, int], int] = {}
        for _ in range(read.int32()):
            codes.append(read.int16())
            read.string()
            for _ in range(read.int32()):
                topic = read.string()
                for _ in range(read.int32()):
                    number, size, _, is_future = read.int32(), read.int64(), read.int64(), read.int8()
                    if not is_future:  # the copy being moved to another folder of the same broker
                        sizes[topic, number] = size
        return LogDirsAnswer(throttle, tuple(codes), sizes)

    return Call(35, 1, (body,), answer)

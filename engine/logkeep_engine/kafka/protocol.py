"""The few requests of Kafka's protocol that the data plane needs, encoded and decoded without copying batches.

A `Call` is handed to `Wire.send`, which does framing and correlation. aiokafka's own request classes
copy a batch about six times on its way out and once on its way in, know no topic ids, hide the broker's reason for a
refused batch, and ask for topics to be created when they only want to know them: none of that suits moving archives.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from logkeep_engine.kafka.buffers import Frame

R = TypeVar("R")
T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

EARLIEST = -2
LATEST = -1
EARLIEST_LOCAL = -4


class Code(IntEnum):
    """Error codes of the protocol that are told apart (`org.apache.kafka.common.protocol.Errors`)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103

    @classmethod
    def name_of(cls, code: int) -> str:
        """The protocol's name, or the number for a code this module does not tell apart."""
        return cls(code).name if code in cls._value2member_map_ else f"error {code}"


RETRIABLE = frozenset(
    {
        Code.UNKNOWN_SERVER_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
GONE = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID})


class VersionMissing(Exception):
    """The broker does not speak the version of a request that this engine sends."""


class Reader:
    """Reads the protocol's types from a frame; slices share its memory.

    Raises struct.error or IndexError at its end.
    """

    __slots__ = ("_at", "_frame", "_view", "kept")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._view = frame.view
        self._at = 0
        self.kept = False

    def keep(self) -> Frame:
        """The frame, for an answer that holds a slice; whoever gets the answer releases it."""
        self.kept = True
        return self._frame

    def _take(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return int(value)

    def int8(self) -> int:
        return self._take(_INT8)

    def int16(self) -> int:
        return self._take(_INT16)

    def int32(self) -> int:
        return self._take(_INT32)

    def int64(self) -> int:
        return self._take(_INT64)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Several fields at once."""
        values = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return values

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def slice(self, length: int) -> memoryview:
        if length > len(self._view) - self._at:
            raise IndexError(f"{length} bytes announced, {len(self._view) - self._at} there")
        part = self._view[self._at : self._at + max(length, 0)]
        self._at += max(length, 0)
        return part

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else str(self.slice(length), "utf-8")

    def string(self) -> str:
        return self.nullable_string() or ""

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(self.slice(16)))

    def array(self, item: Callable[[], T]) -> list[T]:
        """A null array is an empty one."""
        return [item() for _ in range(self.int32())]

    def compact_array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.uvarint() - 1)]

    def compact_string(self) -> str:
        """A null string is an empty one."""
        return str(self.slice(self.uvarint() - 1), "utf-8")

    def compact_int32s(self) -> tuple[int, ...]:
        count = max(0, self.uvarint() - 1)
        values = struct.unpack_from(f">{count}i", self._view, self._at)
        self._at += 4 * count
        return values

    def tags(self) -> None:
        """Skip tagged fields."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.slice(self.uvarint())


_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{letter}") for letter in "bhiq")
_NO_TAGS = b"\x00"
_NOTHING = memoryview(b"")


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return _INT32.pack(len(parts)) + b"".join(parts)


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@dataclass(frozen=True, slots=True, repr=False)
class Call(Generic[R]):
    """One request of a fixed version and how to read its answer. `read` begins behind the response's header."""

    api_key: int
    version: int
    body: tuple[Buffer, ...]
    read: Callable[[Reader], R]
    flexible: bool = False

    def __repr__(self) -> str:
        return f"Call(api_key={self.api_key}, version={self.version})"

    def check_version(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """`versions`: lowest and highest by request, as a broker tells them. Raises VersionMissing."""
        lowest, highest = versions.get(self.api_key, (-1, -1))
        if not lowest <= self.version <= highest:
            raise VersionMissing(
                f"request {self.api_key} version {self.version}, the broker takes {lowest} to {highest}"
            )

    def encode(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The frame on the wire, in parts; those of the body are not copied."""
        head = struct.pack(">hhi", self.api_key, self.version, correlation_id) + _string(client_id)
        if self.flexible:
            head += _NO_TAGS
        size = len(head) + sum(len(part) for part in self.body)
        return [_INT32.pack(size) + head, *self.body]

    def decode(self, reader: Reader) -> R:
        """The answer, from behind its correlation id.

        Raises struct.error, IndexError or ValueError if the bytes are something else.
        """
        if self.flexible:
            reader.tags()
        return self.read(reader)


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
    body = _array(_string(topic) for topic in topics) + b"\x00\x00\x00"

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

    return Call(3, 8, (body,), answer)


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
    frame: Frame | None = None


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
    head = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, int(committed), 0, -1)
    if topic_id is None:
        entry = struct.pack(">iiiqqi", 1, partition, leader_epoch, offset, -1, max_bytes)
        body = head + _array([_string(topic) + entry]) + _array([])
        return Call(1, 10, (body,), lambda read: _fetch_answer(read, with_ids=False))
    entry = struct.pack(">iiqiqi", partition, leader_epoch, offset, -1, -1, max_bytes) + _NO_TAGS
    one, empty = b"\x02", b"\x01"
    body = head + one + parse_topic_id(topic_id).bytes + one + entry + _NO_TAGS + empty + empty + _NO_TAGS
    return Call(1, 13, (body,), lambda read: _fetch_answer(read, with_ids=True), flexible=True)


def parse_topic_id(text: str) -> uuid.UUID:
    """The id as Kafka prints it: 16 bytes in URL-safe base64 without padding. Raises ValueError."""
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
    """What became of one partition's batch."""

    code: int
    base_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProduceAnswers:
    """By topic and partition; one that the broker left out is not there."""

    throttle_ms: int
    partitions: dict[tuple[str, int], ProduceAnswer]


def produce(
    batches: Sequence[tuple[str, int, Sequence[Buffer]]], *, acks: int, timeout_ms: int
) -> Call[ProduceAnswers]:
    """One batch, in pieces, to each of several (topic, partition) of one leader, outside a transaction."""
    by_topic: dict[str, list[tuple[int, Sequence[Buffer]]]] = {}
    for topic, partition, pieces in batches:
        by_topic.setdefault(topic, []).append((partition, pieces))
    body: list[Buffer] = [struct.pack(">hhii", -1, acks, timeout_ms, len(by_topic))]
    for topic, parts in by_topic.items():
        body.append(_string(topic) + _INT32.pack(len(parts)))
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

    return Call(0, 8, tuple(body), answer)


# ---- ListOffsets, InitProducerId, DescribeLogDirs


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
    body = struct.pack(">ib", -1, int(committed)) + _array([_string(topic) + entry])

    def answer(read: Reader) -> OffsetAnswer:
        throttle = read.int32()
        read.int32()
        read.string()
        read.int32()
        read.int32()
        return OffsetAnswer(throttle, read.int16(), read.int64(), read.int64())

    return Call(2, 5, (body,), answer)


def earliest_local_offset(topic: str, partition: int, leader_epoch: int) -> Call[OffsetAnswer]:
    """Where the log begins on the broker's own disk. Version 8: brokers without it have no tiered storage."""
    name = topic.encode()
    entry = struct.pack(">iiq", partition, leader_epoch, EARLIEST_LOCAL) + _NO_TAGS
    one = b"\x02"
    body = struct.pack(">ib", -1, 0) + one + _uvarint(len(name) + 1) + name + one + entry + _NO_TAGS + _NO_TAGS

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
    """A new producer id without a transactional id."""
    body = _string(None) + _INT32.pack(60_000)
    return Call(22, 1, (body,), lambda read: ProducerIdAnswer(read.int32(), read.int16(), read.int64(), read.int16()))


@dataclass(frozen=True, slots=True)
class LogDirsAnswer:
    """`sizes`: bytes of the replicas this broker holds. `codes`: one a log folder; none at all means not authorised."""

    throttle_ms: int
    codes: tuple[int, ...]
    sizes: dict[tuple[str, int], int]


def describe_log_dirs(partitions: Mapping[str, Sequence[int]]) -> Call[LogDirsAnswer]:
    """How large the replicas of `partitions` are that the broker asked holds."""
    body = _array(
        _string(topic) + _array(_INT32.pack(number) for number in numbers) for topic, numbers in partitions.items()
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

"""Requests about many partitions at once: who leads them, where they begin and end, where a leader epoch ended.

The data plane asks for one partition and needs an answer now (`protocol`); these are for planning and for proving,
where one request is to do for thousands. `survey.Survey` sends them to the right brokers, again where it has to.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.kafka.encoding import Call, Reader, pack_string, pack_uvarint

Where = tuple[str, int]

METADATA = 3  # the key of the request
METADATA_VERSIONS = (8, 12)
"""The lowest version that is understood here, and the highest. From 10 on answers have topic ids."""

_FLEXIBLE_METADATA = 9  # the first version with tagged fields
_WITH_IDS = 10  # the first version with topic ids
_NO_ID = bytes(16)
NO_TOPIC_ID = "A" * 22
"""All zeros, as Kafka prints it: the topic id of a topic that has none."""
NOT_REPORTED = -(2**31)
_READ, _DELETE, _DESCRIBE = 1 << 3, 1 << 6, 1 << 8  # org.apache.kafka.common.acl.AclOperation
_PARTITION = struct.Struct(">hiii")
_OFFSETS_PARTITION = struct.Struct(">iiq")
_OFFSETS_ANSWER = struct.Struct(">ihqqi")
_EPOCH_PARTITION = struct.Struct(">iii")
_EPOCH_ANSWER = struct.Struct(">hiiq")


# ---- Metadata


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as a broker knows it; `leader` -1 if it has none."""

    code: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as a broker knows it. `code` is the protocol's error code; a topic that was asked for by an unknown id
    has no name. `topic_id` as Kafka prints it; all zeros from a broker that has no topic ids. `operations`: what the
    user may do with it, a bit for each `AclOperation` (KIP-430).
    """

    code: int
    name: str
    topic_id: str
    internal: bool
    partitions: dict[int, PartitionView]
    operations: int = NOT_REPORTED

    @property
    def readable(self) -> bool:
        """False if the broker says that the user may not read it. A user who may read a topic may describe it, and one
        who may not does not see it: an answer without that right is none.
        """
        return self._may(_READ)

    @property
    def deletable(self) -> bool:
        """False if the broker says that the user may not delete it."""
        return self._may(_DELETE)

    def _may(self, operation: int) -> bool:
        reported = self.operations != NOT_REPORTED and bool(self.operations & _DESCRIBE)
        return not reported or bool(self.operations & operation)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as one broker knows it. `brokers` are those that it takes for living: address by id.
    `cluster_id` "": it does not know. `controller` -1: it knows none. In a cluster without ZooKeeper it is any broker,
    which hands orders on. `operations`: what the user may do with the cluster, a bit for each `AclOperation`.
    """

    throttle_ms: int
    brokers: dict[int, tuple[str, int]]
    topics: tuple[TopicView, ...]
    cluster_id: str = ""
    controller: int = -1
    operations: int = NOT_REPORTED


def describe_topics(names: Sequence[str] | None, *, version: int = METADATA_VERSIONS[1]) -> Call[ClusterView]:
    """Return the topics of these names; `names` None asks for all, and for what the user may do with each. Creates
    none."""
    flexible = version >= _FLEXIBLE_METADATA
    items = [_topic(name, version) for name in names or ()]
    every = names is None
    if flexible:
        head = b"\x00" if every else pack_uvarint(len(items) + 1)
    else:
        head = struct.pack(">i", -1 if every else len(items))
    # No creation of topics, no authorized operations of the cluster (up to version 10).
    flags = bytes(2 if version <= 10 else 1) + bytes([every]) + (b"\x00" if flexible else b"")
    body = head + b"".join(items) + flags
    return Call(METADATA, version, (body,), lambda read: _cluster_view(read, version), flexible)


def describe_operations() -> Call[ClusterView]:
    """Return the cluster without its topics, with what the user may do with it: version 8, of Kafka 2.3 (KIP-430)."""
    no_topics, no_creation, of_cluster, of_topics = struct.pack(">i", 0), b"\x00", b"\x01", b"\x00"
    body = no_topics + no_creation + of_cluster + of_topics
    return Call(METADATA, METADATA_VERSIONS[0], (body,), _plain_cluster_view)


def _topic(name: str, version: int) -> bytes:
    raw = name.encode()
    if version < _FLEXIBLE_METADATA:
        return struct.pack(">h", len(raw)) + raw
    number = b"" if version < _WITH_IDS else _NO_ID
    return number + pack_uvarint(len(raw) + 1) + raw + b"\x00"


def _cluster_view(read: Reader, version: int) -> ClusterView:
    if version < _FLEXIBLE_METADATA:
        return _plain_cluster_view(read)
    throttle = read.int32()
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(read.uvarint() - 1):
        node, host, port = read.int32(), read.compact_string(), read.int32()
        read.compact_string()
        read.tags()
        brokers[node] = (host, port)
    cluster_id, controller = read.compact_string(), read.int32()
    # Most partitions have the replicas of some other: one tuple for all of them saves memory.
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    topics = []
    for _ in range(read.uvarint() - 1):
        code, name = read.int16(), read.compact_string()
        topic_id = read.slice(16).tobytes() if version >= _WITH_IDS else _NO_ID
        internal = bool(read.int8())
        partitions: dict[int, PartitionView] = {}
        for _ in range(read.uvarint() - 1):
            failed, number, leader, epoch = read.unpack(_PARTITION)
            replicas, in_sync = read.compact_int32s(), read.compact_int32s()
            read.compact_int32s()
            read.tags()
            partitions[number] = PartitionView(
                failed, leader, epoch, seen.setdefault(replicas, replicas), seen.setdefault(in_sync, in_sync)
            )
        operations = read.int32()
        read.tags()
        topics.append(TopicView(code, name, printed_topic_id(topic_id), internal, partitions, operations))
    return ClusterView(throttle, brokers, tuple(topics), cluster_id, controller)


def _plain_cluster_view(read: Reader) -> ClusterView:
    throttle = read.int32()
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(read.int32()):
        node, host, port = read.int32(), read.string(), read.int32()
        read.nullable_string()
        brokers[node] = (host, port)
    cluster_id, controller = read.string(), read.int32()
    topics = []
    for _ in range(read.int32()):
        code, name, internal = read.int16(), read.string(), bool(read.int8())
        partitions: dict[int, PartitionView] = {}
        for _ in range(read.int32()):
            failed, number, leader, epoch = read.unpack(_PARTITION)
            replicas, in_sync = tuple(read.array(read.int32)), tuple(read.array(read.int32))
            read.array(read.int32)
            partitions[number] = PartitionView(failed, leader, epoch, replicas, in_sync)
        topics.append(TopicView(code, name, printed_topic_id(_NO_ID), internal, partitions, operations=read.int32()))
    return ClusterView(throttle, brokers, tuple(topics), cluster_id, controller, read.int32())


def printed_topic_id(topic_id: bytes) -> str:
    """Return the id as Kafka prints it: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


# ---- DescribeCluster


@dataclass(frozen=True, slots=True)
class Registered:
    """The brokers that the controller knows: whether it takes each for dead, by id."""

    throttle_ms: int
    code: int
    fenced: dict[int, bool]


def describe_cluster() -> Call[Registered]:
    """Return all registered brokers, also those that are down: version 2, of Kafka 4.0 (KIP-1073)."""
    brokers = 1

    def broker(read: Reader) -> tuple[int, bool]:
        number = read.int32()
        read.compact_string()
        read.int32()
        read.compact_string()
        fenced = bool(read.int8())
        read.tags()
        return number, fenced

    def answer(read: Reader) -> Registered:
        throttle, code = read.int32(), read.int16()
        read.compact_string()
        read.int8()
        read.compact_string()
        read.int32()
        return Registered(throttle, code, dict(read.compact_array(lambda: broker(read))))

    return Call(60, 2, (struct.pack(">bbb", 0, brokers, 1) + b"\x00",), answer, True)


# ---- ListOffsets


@dataclass(frozen=True, slots=True)
class Offset:
    """The answer for one partition. `offset` is negative if the broker knows none. `timestamp` is that of the record
    there, if the question was about a time."""

    code: int
    offset: int
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Offsets:
    throttle_ms: int
    partitions: dict[Where, Offset]


def list_offsets(wanted: Mapping[str, Sequence[tuple[int, int, int]]], *, committed: bool) -> Call[Offsets]:
    """Return the offset of each (partition, leader epoch, time) of some topics, which one broker leads. The time is
    EARLIEST, LATEST or ms since the epoch, for the first record that is not older; with `committed` LATEST is the last
    stable offset."""
    parts = [struct.pack(">ibi", -1, int(committed), len(wanted))]
    for topic, partitions in wanted.items():
        parts.append(pack_string(topic) + struct.pack(">i", len(partitions)))
        parts += [_OFFSETS_PARTITION.pack(*item) for item in partitions]

    def answer(read: Reader) -> Offsets:
        throttle = read.int32()
        found: dict[Where, Offset] = {}
        for _ in range(read.int32()):
            topic = read.string()
            for _ in range(read.int32()):
                number, code, timestamp, offset, _ = read.unpack(_OFFSETS_ANSWER)
                found[topic, number] = Offset(code, offset, timestamp)
        return Offsets(throttle, found)

    return Call(2, 5, (b"".join(parts),), answer)


# ---- OffsetForLeaderEpoch


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest epoch up to the one that was asked for of which the leader's log has batches, and one past its last
    offset there; both -1 if the log knows no epochs. For the leader's own epoch it is the log's end, which does not
    wait for followers as the high watermark does."""

    code: int
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class EpochEnds:
    throttle_ms: int
    partitions: dict[Where, EpochEnd]


def epoch_ends(wanted: Mapping[str, Sequence[tuple[int, int, int]]]) -> Call[EpochEnds]:
    """Return where leader epochs have ended: of each (partition, leader's epoch, epoch asked for) of some topics, which
    one broker leads. Another leader's epoch is fenced. Needs the ACL DESCRIBE on the topics."""
    parts = [struct.pack(">ii", -1, len(wanted))]
    for topic, partitions in wanted.items():
        parts.append(pack_string(topic) + struct.pack(">i", len(partitions)))
        parts += [_EPOCH_PARTITION.pack(*item) for item in partitions]

    def answer(read: Reader) -> EpochEnds:
        throttle = read.int32()
        found: dict[Where, EpochEnd] = {}
        for _ in range(read.int32()):
            topic = read.string()
            for _ in range(read.int32()):
                code, number, epoch, end = read.unpack(_EPOCH_ANSWER)
                found[topic, number] = EpochEnd(code, epoch, end)
        return EpochEnds(throttle, found)

    return Call(23, 3, (b"".join(parts),), answer)

"""Decoding of Kafka's own message schemas: the records of `__consumer_offsets` and `__transaction_state`.

    document = decode(OFFSET_COMMIT_VALUE, version, data)

A schema is a tuple of fields; a field is there in versions [since, until], and from a schema's first flexible version
on, lengths are varints and tagged fields follow. Source of facts: apache/kafka `group-coordinator/` and
`transaction-coordinator/src/main/resources/common/message/*.json`, KIP-482, KIP-915. Names are those of the JSON that
Kafka's dump tool prints.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logkeep_engine.errors import UndecodableRecord

_LATEST = 2**15 - 1
_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_UUID_BYTES = 16
_LONGEST_VARINT = 5


@dataclass(frozen=True, slots=True)
class Field:
    """`type` is the name of a primitive ("?" behind it: nullable), or the fields of a struct; `array`: many of them.
    `nullable`: the struct, or the array as a whole, may be null.

    With a `tag` it is among the tagged fields, and not in the document unless it was written.
    """

    name: str
    type: str | tuple[Field, ...]
    since: int = 0
    until: int = _LATEST
    array: bool = False
    nullable: bool = False
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """The value of one kind of record in versions 0 to `latest`; `flexible` is the first version of that encoding."""

    fields: tuple[Field, ...]
    latest: int = 0
    flexible: int = 0


def decode(schema: Schema, version: int, data: memoryview) -> dict[str, Any]:
    """The fields of `data`, which begins behind its version.

    Uuids and bytes are text (base64), as Kafka's own JSON has them. Bytes behind the last field are ignored: a newer
    Kafka may have appended something. Raises UndecodableRecord if the version is not known or the bytes end too soon.
    """
    if not 0 <= version <= schema.latest:
        raise UndecodableRecord(
            f"version {version} is not known, only 0 to {schema.latest}", hint="It was written by a newer Kafka."
        )
    reader = _Reader(data, version, version >= schema.flexible)
    return reader.struct(schema.fields)


class _Reader:
    def __init__(self, data: memoryview, version: int, flexible: bool) -> None:
        self._data = data
        self._at = 0
        self._version = version
        self._flexible = flexible

    def struct(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for field in fields:
            if field.tag is None and field.since <= self._version <= field.until:
                document[field.name] = self._field(field)
        if self._flexible:
            tagged = {field.tag: field for field in fields if field.tag is not None and field.since <= self._version}
            for _ in range(self._varint()):
                tag, size = self._varint(), self._varint()
                part = self._take(size)
                if (field := tagged.get(tag)) is not None:  # type: ignore[assignment]
                    document[field.name] = _Reader(part, self._version, True)._field(field)
        return document

    def _field(self, field: Field) -> Any:
        if not field.array:
            return self._value(field)
        count = self._length()
        if count < 0 and field.nullable:
            return None
        if count < 0:
            raise UndecodableRecord(f"{field.name} is null, which it cannot be")
        if count > len(self._data) - self._at:
            raise UndecodableRecord(f"{field.name} cannot have {count} elements in {len(self._data) - self._at} bytes")
        return [self._value(field) for _ in range(count)]

    def _value(self, field: Field) -> Any:
        kind = field.type
        if not isinstance(kind, str):
            if field.nullable and not field.array and self._number("int8") < 0:
                return None
            return self.struct(kind)
        if kind in _NUMBERS:
            return self._number(kind)
        if kind == "uuid":
            return base64.urlsafe_b64encode(self._take(_UUID_BYTES)).decode().rstrip("=")
        size = self._length(short=kind.startswith("string"))
        if size < 0:
            if not kind.endswith("?"):
                raise UndecodableRecord(f"{field.name} is null, which it cannot be")
            return None
        part = bytes(self._take(size))
        return part.decode("utf-8", "replace") if kind.startswith("string") else base64.b64encode(part).decode()

    def _length(self, *, short: bool = False) -> int:
        if self._flexible:
            return self._varint() - 1
        return self._number("int16" if short else "int32")

    def _number(self, kind: str) -> int:
        layout = _NUMBERS[kind]
        return int(layout.unpack(self._take(layout.size))[0])

    def _varint(self) -> int:
        number = 0
        for step in range(_LONGEST_VARINT):
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << (7 * step)
            if byte < 0x80:
                return number
        raise UndecodableRecord(f"a length of more than {_LONGEST_VARINT} bytes")

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._data):
            raise UndecodableRecord(f"it is cut short: {end - len(self._data)} bytes are missing")
        part = self._data[self._at : end]
        self._at = end
        return part


@dataclass(frozen=True, slots=True)
class RecordKind:
    """A kind of record: what its key holds (keys are never flexible), and its value."""

    name: str
    key: tuple[Field, ...]
    value: Schema


_GROUP = (Field("groupId", "string"),)
_MEMBER = (Field("groupId", "string"), Field("memberId", "string"))
_COMMIT_KEY = (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))
_PARTITIONS_OF_ID = (Field("topicId", "uuid"), Field("partitions", "int32", array=True))
_PARTITIONS_OF_TOPIC = (
    Field("topicId", "uuid"),
    Field("topicName", "string"),
    Field("partitions", "int32", array=True),
)
_TASKS = (Field("subtopologyId", "string"), Field("partitions", "int32", array=True))
_PAIR = (Field("key", "string"), Field("value", "string"))
_TOPIC_INFO = (
    Field("name", "string"),
    Field("partitions", "int32"),
    Field("replicationFactor", "int16"),
    Field("topicConfigs", _PAIR, array=True),
)

_OFFSET_COMMIT = Schema(
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0),
    ),
    latest=4,
    flexible=4,
)
_GROUP_METADATA = Schema(
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string?"),
        Field("leader", "string?"),
        Field("currentStateTimestamp", "int64", since=2),
        Field(
            "members",
            (
                Field("memberId", "string"),
                Field("groupInstanceId", "string?", since=3),
                Field("clientId", "string"),
                Field("clientHost", "string"),
                Field("rebalanceTimeout", "int32", since=1),
                Field("sessionTimeout", "int32"),
                Field("subscription", "bytes"),
                Field("assignment", "bytes"),
            ),
            array=True,
        ),
    ),
    latest=4,
    flexible=4,
)
_PARTITION_METADATA = Schema(
    (
        Field(
            "topics",
            (
                Field("topicId", "uuid"),
                Field("topicName", "string"),
                Field("numPartitions", "int32"),
                Field(
                    "partitionMetadata",
                    (Field("partition", "int32"), Field("racks", "string", array=True)),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_CONSUMER_MEMBER = Schema(
    (
        Field("instanceId", "string?"),
        Field("rackId", "string?"),
        Field("clientId", "string"),
        Field("clientHost", "string"),
        Field("subscribedTopicNames", "string", array=True),
        Field("subscribedTopicRegex", "string?"),
        Field("rebalanceTimeoutMs", "int32"),
        Field("serverAssignor", "string?"),
        Field(
            "classicMemberMetadata",
            (
                Field("sessionTimeoutMs", "int32"),
                Field("supportedProtocols", (Field("name", "string"), Field("metadata", "bytes")), array=True),
            ),
            nullable=True,
            tag=0,
        ),
    )
)
_STREAMS_MEMBER = Schema(
    (
        Field("instanceId", "string?"),
        Field("rackId", "string?"),
        Field("clientId", "string"),
        Field("clientHost", "string"),
        Field("rebalanceTimeoutMs", "int32"),
        Field("topologyEpoch", "int32"),
        Field("processId", "string"),
        Field("userEndpoint", (Field("host", "string"), Field("port", "uint16")), nullable=True),
        Field("clientTags", _PAIR, array=True),
    )
)
_STREAMS_TOPOLOGY = Schema(
    (
        Field("epoch", "int32"),
        Field(
            "subtopologies",
            (
                Field("subtopologyId", "string"),
                Field("sourceTopics", "string", array=True),
                Field("sourceTopicRegex", "string", array=True),
                Field("stateChangelogTopics", _TOPIC_INFO, array=True),
                Field("repartitionSinkTopics", "string", array=True),
                Field("repartitionSourceTopics", _TOPIC_INFO, array=True),
                Field(
                    "copartitionGroups",
                    (
                        Field("sourceTopics", "int16", array=True),
                        Field("sourceTopicRegex", "int16", array=True),
                        Field("repartitionSourceTopics", "int16", array=True),
                    ),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_MEMBER_EPOCHS = (Field("memberEpoch", "int32"), Field("previousMemberEpoch", "int32"), Field("state", "int8"))
_ASSIGNMENT_EPOCH = Schema((Field("assignmentEpoch", "int32"),))
_TARGET = Schema((Field("topicPartitions", _PARTITIONS_OF_ID, array=True),))
_ACTIVE_STANDBY_WARMUP = tuple(
    Field(name, _TASKS, array=True) for name in ("activeTasks", "standbyTasks", "warmupTasks")
)

GROUP_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    1: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    2: RecordKind("GroupMetadata", (Field("group", "string"),), _GROUP_METADATA),
    3: RecordKind(
        "ConsumerGroupMetadata", _GROUP, Schema((Field("epoch", "int32"), Field("metadataHash", "int64", tag=0)))
    ),
    4: RecordKind("ConsumerGroupPartitionMetadata", _GROUP, _PARTITION_METADATA),
    5: RecordKind("ConsumerGroupMemberMetadata", _MEMBER, _CONSUMER_MEMBER),
    6: RecordKind("ConsumerGroupTargetAssignmentMetadata", _GROUP, _ASSIGNMENT_EPOCH),
    7: RecordKind("ConsumerGroupTargetAssignmentMember", _MEMBER, _TARGET),
    8: RecordKind(
        "ConsumerGroupCurrentMemberAssignment",
        _MEMBER,
        Schema(
            (
                *_MEMBER_EPOCHS,
                Field("assignedPartitions", _PARTITIONS_OF_ID, array=True),
                Field("partitionsPendingRevocation", _PARTITIONS_OF_ID, array=True),
            )
        ),
    ),
    9: RecordKind("ShareGroupPartitionMetadata", _GROUP, _PARTITION_METADATA),
    10: RecordKind(
        "ShareGroupMemberMetadata",
        _MEMBER,
        Schema(
            (
                Field("rackId", "string?"),
                Field("clientId", "string"),
                Field("clientHost", "string"),
                Field("subscribedTopicNames", "string", array=True),
            )
        ),
    ),
    11: RecordKind("ShareGroupMetadata", _GROUP, Schema((Field("epoch", "int32"), Field("metadataHash", "int64")))),
    12: RecordKind("ShareGroupTargetAssignmentMetadata", _GROUP, _ASSIGNMENT_EPOCH),
    13: RecordKind("ShareGroupTargetAssignmentMember", _MEMBER, _TARGET),
    14: RecordKind(
        "ShareGroupCurrentMemberAssignment",
        _MEMBER,
        Schema((*_MEMBER_EPOCHS, Field("assignedPartitions", _PARTITIONS_OF_ID, array=True))),
    ),
    15: RecordKind(
        "ShareGroupStatePartitionMetadata",
        _GROUP,
        Schema(
            (
                Field("initializingTopics", _PARTITIONS_OF_TOPIC, array=True),
                Field("initializedTopics", _PARTITIONS_OF_TOPIC, array=True),
                Field("deletingTopics", (Field("topicId", "uuid"), Field("topicName", "string")), array=True),
            )
        ),
    ),
    16: RecordKind(
        "ConsumerGroupRegularExpression",
        (Field("groupId", "string"), Field("regularExpression", "string")),
        Schema(
            (Field("topics", "string", array=True), Field("version", "int64"), Field("timestamp", "int64")),
        ),
    ),
    17: RecordKind("StreamsGroupMetadata", _GROUP, Schema((Field("epoch", "int32"), Field("metadataHash", "int64")))),
    19: RecordKind("StreamsGroupMemberMetadata", _MEMBER, _STREAMS_MEMBER),
    20: RecordKind("StreamsGroupTargetAssignmentMetadata", _GROUP, _ASSIGNMENT_EPOCH),
    21: RecordKind("StreamsGroupTargetAssignmentMember", _MEMBER, Schema(_ACTIVE_STANDBY_WARMUP)),
    22: RecordKind(
        "StreamsGroupCurrentMemberAssignment",
        _MEMBER,
        Schema(
            (
                *_MEMBER_EPOCHS,
                *_ACTIVE_STANDBY_WARMUP,
                Field("activeTasksPendingRevocation", _TASKS, array=True),
                Field("standbyTasksPendingRevocation", _TASKS, array=True),
                Field("warmupTasksPendingRevocation", _TASKS, array=True),
            )
        ),
    ),
    23: RecordKind("StreamsGroupTopology", _GROUP, _STREAMS_TOPOLOGY),
}
"""Records of `__consumer_offsets` by the type that their key begins with."""

TRANSACTION_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind(
        "TransactionLog",
        (Field("transactionalId", "string"),),
        Schema(
            (
                Field("producerId", "int64"),
                Field("previousProducerId", "int64", since=1, tag=0),
                Field("nextProducerId", "int64", since=1, tag=1),
                Field("producerEpoch", "int16"),
                Field("nextProducerEpoch", "int16", since=1, tag=3),
                Field("transactionTimeoutMs", "int32"),
                Field("transactionStatus", "int8"),
                Field(
                    "transactionPartitions",
                    (Field("topic", "string"), Field("partitionIds", "int32", array=True)),
                    array=True,
                    nullable=True,
                ),
                Field("transactionLastUpdateTimestampMs", "int64"),
                Field("transactionStartTimestampMs", "int64"),
                Field("clientTransactionVersion", "int16", since=1, tag=2),
            ),
            latest=1,
            flexible=1,
        ),
    )
}
"""Records of `__transaction_state` by the version that their key begins with."""

_TOPIC_PARTITIONS = (Field("topic", "string"), Field("partitions", "int32", array=True))
SUBSCRIPTION = Schema(
    (
        Field("topics", "string", array=True),
        Field("userData", "bytes?"),
        Field("ownedPartitions", _TOPIC_PARTITIONS, since=1, array=True),
        Field("generationId", "int32", since=2),
        Field("rackId", "string?", since=3),
    ),
    latest=3,
    flexible=_LATEST,
)
"""The subscription that a consumer sends to its group (`ConsumerProtocolSubscription`)."""

ASSIGNMENT = Schema(
    (Field("assignedPartitions", _TOPIC_PARTITIONS, array=True), Field("userData", "bytes?")),
    latest=3,
    flexible=_LATEST,
)
"""The assignment that the group's leader gives to a consumer (`ConsumerProtocolAssignment`)."""

_VOTER = (Field("voterId", "int32"), Field("voterDirectoryId", "uuid", since=1))
LEADER_CHANGE = Schema(
    (
        Field("version", "int16"),
        Field("leaderId", "int32"),
        Field("voters", _VOTER, array=True),
        Field("grantingVoters", _VOTER, array=True),
    ),
    latest=1,
)
SNAPSHOT_HEADER = Schema((Field("version", "int16"), Field("lastContainedLogTimestamp", "int64")))
SNAPSHOT_FOOTER = Schema((Field("version", "int16"),))
KRAFT_VERSION = Schema((Field("version", "int16"), Field("kRaftVersion", "int16")))
KRAFT_VOTERS = Schema(
    (
        Field("version", "int16"),
        Field(
            "voters",
            (
                Field("voterId", "int32"),
                Field("voterDirectoryId", "uuid"),
                Field(
                    "endpoints",
                    (Field("name", "string"), Field("host", "string"), Field("port", "uint16")),
                    array=True,
                ),
                Field(
                    "kRaftVersionFeature",
                    (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")),
                ),
            ),
            array=True,
        ),
    )
)
"""Control records of the metadata log, whose version is also their first field (apache/kafka
`clients/src/main/resources/common/message`).
"""

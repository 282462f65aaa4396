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
_LONGEST_VARINT = 5  # 32 bits, 7 a byte


@dataclass(frozen=True, slots=True)
class MessageField:
    """`type` is the name of a primitive ("?" after it: nullable), or the fields of a struct; `array`: many of them.
    `nullable`: the struct, or the array as a whole, may be null.

    With a `tag` it is among the tagged fields, and not in the document unless it was written.
    """

    name: str
    type: str | tuple[MessageField, ...]
    since: int = 0
    until: int = _LATEST
    array: bool = False
    nullable: bool = False
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """The value of one kind of record in versions 0 to `latest`; `flexible` is the first version of that encoding."""

    fields: tuple[MessageField, ...]
    latest: int = 0
    flexible: int = 0


def decode(schema: Schema, version: int, data: memoryview) -> dict[str, Any]:
    """Return the fields of `data`, which begins after its version.

    Uuids and bytes are text (base64), as Kafka's own JSON has them. Bytes after the last field are ignored: a newer
    Kafka may have appended something. Raises UndecodableRecord if the version is not known or the bytes end too soon.
    """
    if not 0 <= version <= schema.latest:
        raise UndecodableRecord(
            f"version {version} is unknown, only 0 to {schema.latest}", hint="It was written by a newer Kafka."
        )
    reader = _Reader(data, version, version >= schema.flexible)
    return reader.struct(schema.fields)


class _Reader:
    def __init__(self, data: memoryview, version: int, flexible: bool) -> None:
        self._data = data
        self._at = 0
        self._version = version
        self._flexible = flexible

    def struct(self, fields: tuple[MessageField, ...]) -> dict[str, Any]:
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

    def _field(self, field: MessageField) -> Any:
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

    def _value(self, field: MessageField) -> Any:
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
    key: tuple[MessageField, ...]
    value: Schema


_GROUP = (MessageField("groupId", "string"),)
_MEMBER = (MessageField("groupId", "string"), MessageField("memberId", "string"))
_COMMIT_KEY = (MessageField("group", "string"), MessageField("topic", "string"), MessageField("partition", "int32"))
_PARTITIONS_OF_ID = (MessageField("topicId", "uuid"), MessageField("partitions", "int32", array=True))
_PARTITIONS_OF_TOPIC = (
    MessageField("topicId", "uuid"),
    MessageField("topicName", "string"),
    MessageField("partitions", "int32", array=True),
)
_TASKS = (MessageField("subtopologyId", "string"), MessageField("partitions", "int32", array=True))
_PAIR = (MessageField("key", "string"), MessageField("value", "string"))
_TOPIC_INFO = (
    MessageField("name", "string"),
    MessageField("partitions", "int32"),
    MessageField("replicationFactor", "int16"),
    MessageField("topicConfigs", _PAIR, array=True),
)

_OFFSET_COMMIT = Schema(
    (
        MessageField("offset", "int64"),
        MessageField("leaderEpoch", "int32", since=3),
        MessageField("metadata", "string"),
        MessageField("commitTimestamp", "int64"),
        MessageField("expireTimestamp", "int64", since=1, until=1),
        MessageField("topicId", "uuid", since=4, tag=0),
    ),
    latest=4,
    flexible=4,
)
_GROUP_METADATA = Schema(
    (
        MessageField("protocolType", "string"),
        MessageField("generation", "int32"),
        MessageField("protocol", "string?"),
        MessageField("leader", "string?"),
        MessageField("currentStateTimestamp", "int64", since=2),
        MessageField(
            "members",
            (
                MessageField("memberId", "string"),
                MessageField("groupInstanceId", "string?", since=3),
                MessageField("clientId", "string"),
                MessageField("clientHost", "string"),
                MessageField("rebalanceTimeout", "int32", since=1),
                MessageField("sessionTimeout", "int32"),
                MessageField("subscription", "bytes"),
                MessageField("assignment", "bytes"),
            ),
            array=True,
        ),
    ),
    latest=4,
    flexible=4,
)
_PARTITION_METADATA = Schema(
    (
        MessageField(
            "topics",
            (
                MessageField("topicId", "uuid"),
                MessageField("topicName", "string"),
                MessageField("numPartitions", "int32"),
                MessageField(
                    "partitionMetadata",
                    (MessageField("partition", "int32"), MessageField("racks", "string", array=True)),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_CONSUMER_MEMBER = Schema(
    (
        MessageField("instanceId", "string?"),
        MessageField("rackId", "string?"),
        MessageField("clientId", "string"),
        MessageField("clientHost", "string"),
        MessageField("subscribedTopicNames", "string", array=True),
        MessageField("subscribedTopicRegex", "string?"),
        MessageField("rebalanceTimeoutMs", "int32"),
        MessageField("serverAssignor", "string?"),
        MessageField(
            "classicMemberMetadata",
            (
                MessageField("sessionTimeoutMs", "int32"),
                MessageField(
                    "supportedProtocols",
                    (MessageField("name", "string"), MessageField("metadata", "bytes")),
                    array=True,
                ),
            ),
            nullable=True,
            tag=0,
        ),
    )
)
_STREAMS_MEMBER = Schema(
    (
        MessageField("instanceId", "string?"),
        MessageField("rackId", "string?"),
        MessageField("clientId", "string"),
        MessageField("clientHost", "string"),
        MessageField("rebalanceTimeoutMs", "int32"),
        MessageField("topologyEpoch", "int32"),
        MessageField("processId", "string"),
        MessageField("userEndpoint", (MessageField("host", "string"), MessageField("port", "uint16")), nullable=True),
        MessageField("clientTags", _PAIR, array=True),
    )
)
_STREAMS_TOPOLOGY = Schema(
    (
        MessageField("epoch", "int32"),
        MessageField(
            "subtopologies",
            (
                MessageField("subtopologyId", "string"),
                MessageField("sourceTopics", "string", array=True),
                MessageField("sourceTopicRegex", "string", array=True),
                MessageField("stateChangelogTopics", _TOPIC_INFO, array=True),
                MessageField("repartitionSinkTopics", "string", array=True),
                MessageField("repartitionSourceTopics", _TOPIC_INFO, array=True),
                MessageField(
                    "copartitionGroups",
                    (
                        MessageField("sourceTopics", "int16", array=True),
                        MessageField("sourceTopicRegex", "int16", array=True),
                        MessageField("repartitionSourceTopics", "int16", array=True),
                    ),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_MEMBER_EPOCHS = (
    MessageField("memberEpoch", "int32"),
    MessageField("previousMemberEpoch", "int32"),
    MessageField("state", "int8"),
)
_ASSIGNMENT_EPOCH = Schema((MessageField("assignmentEpoch", "int32"),))
_TARGET = Schema((MessageField("topicPartitions", _PARTITIONS_OF_ID, array=True),))
_ACTIVE_STANDBY_WARMUP = tuple(
    MessageField(name, _TASKS, array=True) for name in ("activeTasks", "standbyTasks", "warmupTasks")
)

GROUP_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    1: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    2: RecordKind("GroupMetadata", (MessageField("group", "string"),), _GROUP_METADATA),
    3: RecordKind(
        "ConsumerGroupMetadata",
        _GROUP,
        Schema((MessageField("epoch", "int32"), MessageField("metadataHash", "int64", tag=0))),
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
                MessageField("assignedPartitions", _PARTITIONS_OF_ID, array=True),
                MessageField("partitionsPendingRevocation", _PARTITIONS_OF_ID, array=True),
            )
        ),
    ),
    9: RecordKind("ShareGroupPartitionMetadata", _GROUP, _PARTITION_METADATA),
    10: RecordKind(
        "ShareGroupMemberMetadata",
        _MEMBER,
        Schema(
            (
                MessageField("rackId", "string?"),
                MessageField("clientId", "string"),
                MessageField("clientHost", "string"),
                MessageField("subscribedTopicNames", "string", array=True),
            )
        ),
    ),
    11: RecordKind(
        "ShareGroupMetadata", _GROUP, Schema((MessageField("epoch", "int32"), MessageField("metadataHash", "int64")))
    ),
    12: RecordKind("ShareGroupTargetAssignmentMetadata", _GROUP, _ASSIGNMENT_EPOCH),
    13: RecordKind("ShareGroupTargetAssignmentMember", _MEMBER, _TARGET),
    14: RecordKind(
        "ShareGroupCurrentMemberAssignment",
        _MEMBER,
        Schema((*_MEMBER_EPOCHS, MessageField("assignedPartitions", _PARTITIONS_OF_ID, array=True))),
    ),
    15: RecordKind(
        "ShareGroupStatePartitionMetadata",
        _GROUP,
        Schema(
            (
                MessageField("initializingTopics", _PARTITIONS_OF_TOPIC, array=True),
                MessageField("initializedTopics", _PARTITIONS_OF_TOPIC, array=True),
                MessageField(
                    "deletingTopics", (MessageField("topicId", "uuid"), MessageField("topicName", "string")), array=True
                ),
            )
        ),
    ),
    16: RecordKind(
        "ConsumerGroupRegularExpression",
        (MessageField("groupId", "string"), MessageField("regularExpression", "string")),
        Schema(
            (
                MessageField("topics", "string", array=True),
                MessageField("version", "int64"),
                MessageField("timestamp", "int64"),
            ),
        ),
    ),
    17: RecordKind(
        "StreamsGroupMetadata", _GROUP, Schema((MessageField("epoch", "int32"), MessageField("metadataHash", "int64")))
    ),
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
                MessageField("activeTasksPendingRevocation", _TASKS, array=True),
                MessageField("standbyTasksPendingRevocation", _TASKS, array=True),
                MessageField("warmupTasksPendingRevocation", _TASKS, array=True),
            )
        ),
    ),
    23: RecordKind("StreamsGroupTopology", _GROUP, _STREAMS_TOPOLOGY),
}
"""Records of `__consumer_offsets` by the type that their key begins with."""

TRANSACTION_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind(
        "TransactionLog",
        (MessageField("transactionalId", "string"),),
        Schema(
            (
                MessageField("producerId", "int64"),
                MessageField("previousProducerId", "int64", since=1, tag=0),
                MessageField("nextProducerId", "int64", since=1, tag=1),
                MessageField("producerEpoch", "int16"),
                MessageField("nextProducerEpoch", "int16", since=1, tag=3),
                MessageField("transactionTimeoutMs", "int32"),
                MessageField("transactionStatus", "int8"),
                MessageField(
                    "transactionPartitions",
                    (MessageField("topic", "string"), MessageField("partitionIds", "int32", array=True)),
                    array=True,
                    nullable=True,
                ),
                MessageField("transactionLastUpdateTimestampMs", "int64"),
                MessageField("transactionStartTimestampMs", "int64"),
                MessageField("clientTransactionVersion", "int16", since=1, tag=2),
            ),
            latest=1,
            flexible=1,
        ),
    )
}
"""Records of `__transaction_state` by the version that their key begins with."""

_TOPIC_PARTITIONS = (MessageField("topic", "string"), MessageField("partitions", "int32", array=True))
SUBSCRIPTION = Schema(
    (
        MessageField("topics", "string", array=True),
        MessageField("userData", "bytes?"),
        MessageField("ownedPartitions", _TOPIC_PARTITIONS, since=1, array=True),
        MessageField("generationId", "int32", since=2),
        MessageField("rackId", "string?", since=3),
    ),
    latest=3,
    flexible=_LATEST,
)
"""The subscription that a consumer sends to its group (`ConsumerProtocolSubscription`)."""

ASSIGNMENT = Schema(
    (MessageField("assignedPartitions", _TOPIC_PARTITIONS, array=True), MessageField("userData", "bytes?")),
    latest=3,
    flexible=_LATEST,
)
"""The assignment that the group's leader gives to a consumer (`ConsumerProtocolAssignment`)."""

_VOTER = (MessageField("voterId", "int32"), MessageField("voterDirectoryId", "uuid", since=1))
LEADER_CHANGE = Schema(
    (
        MessageField("version", "int16"),
        MessageField("leaderId", "int32"),
        MessageField("voters", _VOTER, array=True),
        MessageField("grantingVoters", _VOTER, array=True),
    ),
    latest=1,
)
SNAPSHOT_HEADER = Schema((MessageField("version", "int16"), MessageField("lastContainedLogTimestamp", "int64")))
SNAPSHOT_FOOTER = Schema((MessageField("version", "int16"),))
KRAFT_VERSION = Schema((MessageField("version", "int16"), MessageField("kRaftVersion", "int16")))
KRAFT_VOTERS = Schema(
    (
        MessageField("version", "int16"),
        MessageField(
            "voters",
            (
                MessageField("voterId", "int32"),
                MessageField("voterDirectoryId", "uuid"),
                MessageField(
                    "endpoints",
                    (MessageField("name", "string"), MessageField("host", "string"), MessageField("port", "uint16")),
                    array=True,
                ),
                MessageField(
                    "kRaftVersionFeature",
                    (MessageField("minSupportedVersion", "int16"), MessageField("maxSupportedVersion", "int16")),
                ),
            ),
            array=True,
        ),
    )
)
"""Control records of the metadata log, whose version is also their first field (apache/kafka
`clients/src/main/resources/common/message`).
"""

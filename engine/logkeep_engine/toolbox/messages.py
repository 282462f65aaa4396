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
class SchemaField:
    """`type` is the name of a primitive ("?" behind it: nullable), or the fields of a struct; `array`: many of them.
    `nullable`: the struct, or the array as a whole, may be null.

    With a `tag` it is among the tagged fields, and not in the document unless it was written.
    """

    name: str
    type: str | tuple[SchemaField, ...]
    since: int = 0
    until: int = _LATEST
    array: bool = False
    nullable: bool = False
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """The value of one kind of record in versions 0 to `latest`; `flexible` is the first version of that encoding."""

    fields: tuple[SchemaField, ...]
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

    def struct(self, fields: tuple[SchemaField, ...]) -> dict[str, Any]:
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

    def _field(self, field: SchemaField) -> Any:
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

    def _value(self, field: SchemaField) -> Any:
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
    key: tuple[SchemaField, ...]
    value: Schema


_GROUP = (SchemaField("groupId", "string"),)
_MEMBER = (SchemaField("groupId", "string"), SchemaField("memberId", "string"))
_COMMIT_KEY = (SchemaField("group", "string"), SchemaField("topic", "string"), SchemaField("partition", "int32"))
_PARTITIONS_OF_ID = (SchemaField("topicId", "uuid"), SchemaField("partitions", "int32", array=True))
_PARTITIONS_OF_TOPIC = (
    SchemaField("topicId", "uuid"),
    SchemaField("topicName", "string"),
    SchemaField("partitions", "int32", array=True),
)
_TASKS = (SchemaField("subtopologyId", "string"), SchemaField("partitions", "int32", array=True))
_PAIR = (SchemaField("key", "string"), SchemaField("value", "string"))
_TOPIC_INFO = (
    SchemaField("name", "string"),
    SchemaField("partitions", "int32"),
    SchemaField("replicationFactor", "int16"),
    SchemaField("topicConfigs", _PAIR, array=True),
)

_OFFSET_COMMIT = Schema(
    (
        SchemaField("offset", "int64"),
        SchemaField("leaderEpoch", "int32", since=3),
        SchemaField("metadata", "string"),
        SchemaField("commitTimestamp", "int64"),
        SchemaField("expireTimestamp", "int64", since=1, until=1),
        SchemaField("topicId", "uuid", since=4, tag=0),
    ),
    latest=4,
    flexible=4,
)
_GROUP_METADATA = Schema(
    (
        SchemaField("protocolType", "string"),
        SchemaField("generation", "int32"),
        SchemaField("protocol", "string?"),
        SchemaField("leader", "string?"),
        SchemaField("currentStateTimestamp", "int64", since=2),
        SchemaField(
            "members",
            (
                SchemaField("memberId", "string"),
                SchemaField("groupInstanceId", "string?", since=3),
                SchemaField("clientId", "string"),
                SchemaField("clientHost", "string"),
                SchemaField("rebalanceTimeout", "int32", since=1),
                SchemaField("sessionTimeout", "int32"),
                SchemaField("subscription", "bytes"),
                SchemaField("assignment", "bytes"),
            ),
            array=True,
        ),
    ),
    latest=4,
    flexible=4,
)
_PARTITION_METADATA = Schema(
    (
        SchemaField(
            "topics",
            (
                SchemaField("topicId", "uuid"),
                SchemaField("topicName", "string"),
                SchemaField("numPartitions", "int32"),
                SchemaField(
                    "partitionMetadata",
                    (SchemaField("partition", "int32"), SchemaField("racks", "string", array=True)),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_CONSUMER_MEMBER = Schema(
    (
        SchemaField("instanceId", "string?"),
        SchemaField("rackId", "string?"),
        SchemaField("clientId", "string"),
        SchemaField("clientHost", "string"),
        SchemaField("subscribedTopicNames", "string", array=True),
        SchemaField("subscribedTopicRegex", "string?"),
        SchemaField("rebalanceTimeoutMs", "int32"),
        SchemaField("serverAssignor", "string?"),
        SchemaField(
            "classicMemberMetadata",
            (
                SchemaField("sessionTimeoutMs", "int32"),
                SchemaField(
                    "supportedProtocols", (SchemaField("name", "string"), SchemaField("metadata", "bytes")), array=True
                ),
            ),
            nullable=True,
            tag=0,
        ),
    )
)
_STREAMS_MEMBER = Schema(
    (
        SchemaField("instanceId", "string?"),
        SchemaField("rackId", "string?"),
        SchemaField("clientId", "string"),
        SchemaField("clientHost", "string"),
        SchemaField("rebalanceTimeoutMs", "int32"),
        SchemaField("topologyEpoch", "int32"),
        SchemaField("processId", "string"),
        SchemaField("userEndpoint", (SchemaField("host", "string"), SchemaField("port", "uint16")), nullable=True),
        SchemaField("clientTags", _PAIR, array=True),
    )
)
_STREAMS_TOPOLOGY = Schema(
    (
        SchemaField("epoch", "int32"),
        SchemaField(
            "subtopologies",
            (
                SchemaField("subtopologyId", "string"),
                SchemaField("sourceTopics", "string", array=True),
                SchemaField("sourceTopicRegex", "string", array=True),
                SchemaField("stateChangelogTopics", _TOPIC_INFO, array=True),
                SchemaField("repartitionSinkTopics", "string", array=True),
                SchemaField("repartitionSourceTopics", _TOPIC_INFO, array=True),
                SchemaField(
                    "copartitionGroups",
                    (
                        SchemaField("sourceTopics", "int16", array=True),
                        SchemaField("sourceTopicRegex", "int16", array=True),
                        SchemaField("repartitionSourceTopics", "int16", array=True),
                    ),
                    array=True,
                ),
            ),
            array=True,
        ),
    )
)
_MEMBER_EPOCHS = (
    SchemaField("memberEpoch", "int32"),
    SchemaField("previousMemberEpoch", "int32"),
    SchemaField("state", "int8"),
)
_ASSIGNMENT_EPOCH = Schema((SchemaField("assignmentEpoch", "int32"),))
_TARGET = Schema((SchemaField("topicPartitions", _PARTITIONS_OF_ID, array=True),))
_ACTIVE_STANDBY_WARMUP = tuple(
    SchemaField(name, _TASKS, array=True) for name in ("activeTasks", "standbyTasks", "warmupTasks")
)

GROUP_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    1: RecordKind("OffsetCommit", _COMMIT_KEY, _OFFSET_COMMIT),
    2: RecordKind("GroupMetadata", (SchemaField("group", "string"),), _GROUP_METADATA),
    3: RecordKind(
        "ConsumerGroupMetadata",
        _GROUP,
        Schema((SchemaField("epoch", "int32"), SchemaField("metadataHash", "int64", tag=0))),
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
                SchemaField("assignedPartitions", _PARTITIONS_OF_ID, array=True),
                SchemaField("partitionsPendingRevocation", _PARTITIONS_OF_ID, array=True),
            )
        ),
    ),
    9: RecordKind("ShareGroupPartitionMetadata", _GROUP, _PARTITION_METADATA),
    10: RecordKind(
        "ShareGroupMemberMetadata",
        _MEMBER,
        Schema(
            (
                SchemaField("rackId", "string?"),
                SchemaField("clientId", "string"),
                SchemaField("clientHost", "string"),
                SchemaField("subscribedTopicNames", "string", array=True),
            )
        ),
    ),
    11: RecordKind(
        "ShareGroupMetadata", _GROUP, Schema((SchemaField("epoch", "int32"), SchemaField("metadataHash", "int64")))
    ),
    12: RecordKind("ShareGroupTargetAssignmentMetadata", _GROUP, _ASSIGNMENT_EPOCH),
    13: RecordKind("ShareGroupTargetAssignmentMember", _MEMBER, _TARGET),
    14: RecordKind(
        "ShareGroupCurrentMemberAssignment",
        _MEMBER,
        Schema((*_MEMBER_EPOCHS, SchemaField("assignedPartitions", _PARTITIONS_OF_ID, array=True))),
    ),
    15: RecordKind(
        "ShareGroupStatePartitionMetadata",
        _GROUP,
        Schema(
            (
                SchemaField("initializingTopics", _PARTITIONS_OF_TOPIC, array=True),
                SchemaField("initializedTopics", _PARTITIONS_OF_TOPIC, array=True),
                SchemaField(
                    "deletingTopics", (SchemaField("topicId", "uuid"), SchemaField("topicName", "string")), array=True
                ),
            )
        ),
    ),
    16: RecordKind(
        "ConsumerGroupRegularExpression",
        (SchemaField("groupId", "string"), SchemaField("regularExpression", "string")),
        Schema(
            (
                SchemaField("topics", "string", array=True),
                SchemaField("version", "int64"),
                SchemaField("timestamp", "int64"),
            ),
        ),
    ),
    17: RecordKind(
        "StreamsGroupMetadata", _GROUP, Schema((SchemaField("epoch", "int32"), SchemaField("metadataHash", "int64")))
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
                SchemaField("activeTasksPendingRevocation", _TASKS, array=True),
                SchemaField("standbyTasksPendingRevocation", _TASKS, array=True),
                SchemaField("warmupTasksPendingRevocation", _TASKS, array=True),
            )
        ),
    ),
    23: RecordKind("StreamsGroupTopology", _GROUP, _STREAMS_TOPOLOGY),
}
"""Records of `__consumer_offsets` by the type that their key begins with."""

TRANSACTION_RECORDS: Mapping[int, RecordKind] = {
    0: RecordKind(
        "TransactionLog",
        (SchemaField("transactionalId", "string"),),
        Schema(
            (
                SchemaField("producerId", "int64"),
                SchemaField("previousProducerId", "int64", since=1, tag=0),
                SchemaField("nextProducerId", "int64", since=1, tag=1),
                SchemaField("producerEpoch", "int16"),
                SchemaField("nextProducerEpoch", "int16", since=1, tag=3),
                SchemaField("transactionTimeoutMs", "int32"),
                SchemaField("transactionStatus", "int8"),
                SchemaField(
                    "transactionPartitions",
                    (SchemaField("topic", "string"), SchemaField("partitionIds", "int32", array=True)),
                    array=True,
                    nullable=True,
                ),
                SchemaField("transactionLastUpdateTimestampMs", "int64"),
                SchemaField("transactionStartTimestampMs", "int64"),
                SchemaField("clientTransactionVersion", "int16", since=1, tag=2),
            ),
            latest=1,
            flexible=1,
        ),
    )
}
"""Records of `__transaction_state` by the version that their key begins with."""

_TOPIC_PARTITIONS = (SchemaField("topic", "string"), SchemaField("partitions", "int32", array=True))
SUBSCRIPTION = Schema(
    (
        SchemaField("topics", "string", array=True),
        SchemaField("userData", "bytes?"),
        SchemaField("ownedPartitions", _TOPIC_PARTITIONS, since=1, array=True),
        SchemaField("generationId", "int32", since=2),
        SchemaField("rackId", "string?", since=3),
    ),
    latest=3,
    flexible=_LATEST,
)
"""The subscription that a consumer sends to its group (`ConsumerProtocolSubscription`)."""

ASSIGNMENT = Schema(
    (SchemaField("assignedPartitions", _TOPIC_PARTITIONS, array=True), SchemaField("userData", "bytes?")),
    latest=3,
    flexible=_LATEST,
)
"""The assignment that the group's leader gives to a consumer (`ConsumerProtocolAssignment`)."""

_VOTER = (SchemaField("voterId", "int32"), SchemaField("voterDirectoryId", "uuid", since=1))
LEADER_CHANGE = Schema(
    (
        SchemaField("version", "int16"),
        SchemaField("leaderId", "int32"),
        SchemaField("voters", _VOTER, array=True),
        SchemaField("grantingVoters", _VOTER, array=True),
    ),
    latest=1,
)
SNAPSHOT_HEADER = Schema((SchemaField("version", "int16"), SchemaField("lastContainedLogTimestamp", "int64")))
SNAPSHOT_FOOTER = Schema((SchemaField("version", "int16"),))
KRAFT_VERSION = Schema((SchemaField("version", "int16"), SchemaField("kRaftVersion", "int16")))
KRAFT_VOTERS = Schema(
    (
        SchemaField("version", "int16"),
        SchemaField(
            "voters",
            (
                SchemaField("voterId", "int32"),
                SchemaField("voterDirectoryId", "uuid"),
                SchemaField(
                    "endpoints",
                    (SchemaField("name", "string"), SchemaField("host", "string"), SchemaField("port", "uint16")),
                    array=True,
                ),
                SchemaField(
                    "kRaftVersionFeature",
                    (SchemaField("minSupportedVersion", "int16"), SchemaField("maxSupportedVersion", "int16")),
                ),
            ),
            array=True,
        ),
    )
)
"""Control records of the metadata log, whose version is also their first field (apache/kafka
`clients/src/main/resources/common/message`).
"""

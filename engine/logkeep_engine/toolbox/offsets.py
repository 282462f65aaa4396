"""The records of Kafka's coordinators: committed offsets and groups (`__consumer_offsets`), transactions
(`__transaction_state`).

    record = decode_offset_record(key, value)
    if record.commit: print(record.commit.group, record.commit.offset)
    for record in state_of(records): ...      # the last of every key, without what was deleted
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logkeep_engine.errors import UndecodableRecord
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS, TRANSACTION_STATE
from logkeep_engine.toolbox import messages

_TYPE = struct.Struct(">h")
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Kafka's TransactionState, by its id."""


class StateTopic(StrEnum):
    """The two topics of the coordinators."""

    OFFSETS = CONSUMER_OFFSETS
    TRANSACTIONS = TRANSACTION_STATE


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A group's position in a partition. `offset` None: it was deleted (or has expired).

    Times are ms since the epoch; None where the record's version does not have the field.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int | None
    expire_timestamp: int | None
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record of a coordinator's topic. `type` is the number its key begins with, `kind` its name ("Unknown": a newer
    Kafka has written it; then `key` and `value` hold the bytes in hex).

    `value` None: a tombstone, and `version` is None too. No coordinator writes an empty value: it is what archives of
    format Avro with the published schema make of a tombstone. The names of the fields are those of Kafka's schemas.
    """

    kind: str
    type: int
    key: Mapping[str, Any]
    version: int | None
    value: Mapping[str, Any] | None

    @property
    def commit(self) -> OffsetCommit | None:
        """The committed position; None if it is another kind of record."""
        if self.kind != "OffsetCommit":
            return None
        value = self.value or {}
        return OffsetCommit(
            group=self.key["group"],
            topic=self.key["topic"],
            partition=self.key["partition"],
            offset=value.get("offset"),
            leader_epoch=value.get("leaderEpoch"),
            metadata=value.get("metadata", ""),
            commit_timestamp=value.get("commitTimestamp"),
            expire_timestamp=value.get("expireTimestamp"),
            topic_id=value.get("topicId"),
        )

    @property
    def owner(self) -> str:
        """The group, or the transactional id."""
        for name in ("group", "groupId", "transactionalId"):
            if name in self.key:
                return str(self.key[name])
        return ""

    @property
    def identity(self) -> str:
        """Equal for records of one key. Types 0 and 1 are the same kind of key in an old and a new version."""
        return f"{self.kind} {json.dumps(self.key, sort_keys=True)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "type": self.type,
            "key": dict(self.key),
            "version": self.version,
            "value": None if self.value is None else dict(self.value),
        }


def decode_offset_record(key: bytes | None, value: bytes | None) -> StateRecord:
    """Return a record of `__consumer_offsets`. Raises UndecodableRecord if it has no key, is cut short, or has a value
    of a version that is not known.
    """
    record = _decode(messages.GROUP_RECORDS, key, value)
    if record.kind == "GroupMetadata" and record.value is not None and record.value["protocolType"] == "consumer":
        for member in record.value["members"]:
            member["subscription"] = _protocol(messages.SUBSCRIPTION, member["subscription"])
            member["assignment"] = _protocol(messages.ASSIGNMENT, member["assignment"])
    return record


def decode_transaction_record(key: bytes | None, value: bytes | None) -> StateRecord:
    """Return a record of `__transaction_state`. Its `transactionStatus` is the name of the transaction's state, as
    Kafka's own tool prints it from 4.4 on. Raises UndecodableRecord as `decode_offset_record`.
    """
    record = _decode(messages.TRANSACTION_RECORDS, key, value)
    if record.kind != "Unknown" and isinstance(record.value, dict):
        status = record.value["transactionStatus"]
        known = 0 <= status < len(TRANSACTION_STATES)
        record.value["transactionStatus"] = TRANSACTION_STATES[status] if known else f"Unknown({status})"
    return record


def decode_state_record(topic: StateTopic, key: bytes | None, value: bytes | None) -> StateRecord:
    """Return a record of either topic."""
    decode = decode_offset_record if topic is StateTopic.OFFSETS else decode_transaction_record
    return decode(key, value)


def state_topic(topic: str) -> StateTopic | None:
    """Return the topic of the coordinators that has this name, None for any other."""
    return StateTopic(topic) if topic in StateTopic.__members__.values() else None


def state_of(records: Iterable[StateRecord]) -> Iterator[StateRecord]:
    """Yield the last record of every key, without those that were deleted, in the order in which the keys came up."""
    last: dict[str, StateRecord] = {}
    for record in records:
        if record.value is None:
            last.pop(record.identity, None)
        else:
            last[record.identity] = record
    yield from last.values()


def _decode(kinds: Mapping[int, messages.RecordKind], key: bytes | None, value: bytes | None) -> StateRecord:
    if key is None or len(key) < _TYPE.size:
        raise UndecodableRecord("it has no key with a type", hint="Is this a topic of Kafka's coordinators?")
    (number,) = _TYPE.unpack_from(key)
    kind = kinds.get(number)
    if kind is None:
        held = {"hex": value.hex()} if value else None
        return StateRecord("Unknown", number, {"hex": key.hex()}, None, held)
    keys = messages.decode(messages.Schema(kind.key, flexible=1), 0, memoryview(key)[_TYPE.size :])
    if not value:
        return StateRecord(kind.name, number, keys, None, None)
    if len(value) < _TYPE.size:
        raise UndecodableRecord(f"the value of a {kind.name} record is cut short: {len(value)} bytes")
    (version,) = _TYPE.unpack_from(value)
    try:
        document = messages.decode(kind.value, version, memoryview(value)[_TYPE.size :])
    except UndecodableRecord as error:
        raise UndecodableRecord(f"the value of a {kind.name} record: {error.message}", hint=error.hint) from error
    return StateRecord(kind.name, number, keys, version, document)


def _protocol(schema: messages.Schema, encoded: str) -> Any:
    """Return a member's subscription or assignment; as it was, if the member made it in a way of its own."""
    data = base64.b64decode(encoded)
    if len(data) < _TYPE.size:
        return encoded
    (version,) = _TYPE.unpack_from(data)
    try:
        # A newer version only appends fields.
        return messages.decode(schema, min(version, schema.latest), memoryview(data)[_TYPE.size :])
    except UndecodableRecord:
        return encoded

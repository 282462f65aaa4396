"""Records of Kafka's coordinators: every version as Kafka's own classes (4.1.1) write it, and what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import UndecodableRecord
from logkeep_engine.toolbox.offsets import (
    TRANSACTION_STATES,
    StateRecord,
    decode_offset_record,
    decode_transaction_record,
    state_of,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "kafka-4.1.1-coordinator-records.json").read_text("utf-8"))
COMMIT_KEY = bytes.fromhex("000100016700017400000003")  # group g, topic t, partition 3


def commit(offset: int) -> bytes:
    """Version 3: offset, leader epoch, metadata, commit timestamp."""
    return b"\x00\x03" + offset.to_bytes(8) + (7).to_bytes(4) + b"\x00\x02hi" + (1000).to_bytes(8)


def group_with(members: bytes) -> bytes:
    """Version 1 of a group's metadata."""
    return b"\x00\x01" + b"\x00\x08consumer" + bytes(4) + b"\xff\xff" * 2 + members


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda item: f"{item['kind']}-v{item['version']}")
def test_every_version_is_read_as_kafka_reads_it(golden: dict[str, Any]) -> None:
    decode = decode_transaction_record if golden["kind"] == "TransactionLog" else decode_offset_record
    found = decode(bytes.fromhex(golden["key"]), bytes.fromhex(golden["value"]))
    assert found.kind == golden["kind"].removeprefix("Legacy")
    assert (found.type, found.version) == (golden["type"], golden["version"])
    assert found.key == golden["key_json"]
    assert found.value is not None
    expected = dict(golden["value_json"])
    if golden["kind"] == "TransactionLog":  # which a tool before 4.4 prints as a number
        expected["transactionStatus"] = TRANSACTION_STATES[expected["transactionStatus"]]
    assert found.value == expected


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda item: f"{item['kind']}-v{item['version']}")
def test_a_value_cut_anywhere_is_said(golden: dict[str, Any]) -> None:
    decode = decode_transaction_record if golden["kind"] == "TransactionLog" else decode_offset_record
    key, value = bytes.fromhex(golden["key"]), bytes.fromhex(golden["value"])
    for cut in range(1, len(value)):
        with pytest.raises(UndecodableRecord):
            decode(key, value[:cut])


def test_a_commit_has_its_parts() -> None:
    found = decode_offset_record(COMMIT_KEY, commit(42)).commit
    assert found is not None
    assert (found.group, found.topic, found.partition, found.offset) == ("g", "t", 3, 42)
    assert (found.leader_epoch, found.metadata, found.commit_timestamp, found.expire_timestamp) == (7, "hi", 1000, None)


@pytest.mark.parametrize("tombstone", [None, b""], ids=["null", "as strict Avro has it"])
def test_a_tombstone_deletes_the_commit(tombstone: bytes | None) -> None:
    deleted = decode_offset_record(COMMIT_KEY, tombstone)
    assert (deleted.version, deleted.value) == (None, None)
    assert deleted.commit is not None
    assert deleted.commit.offset is None
    kept = decode_offset_record(COMMIT_KEY, commit(42))
    assert list(state_of([kept, deleted])) == []
    assert list(state_of([deleted, kept])) == [kept]


def test_the_last_commit_counts_also_after_one_of_the_old_key() -> None:
    old = decode_offset_record(b"\x00\x00" + COMMIT_KEY[2:], commit(1))
    new = decode_offset_record(COMMIT_KEY, commit(2))
    assert [record.commit.offset for record in state_of([old, new]) if record.commit] == [2]


def test_a_kind_that_is_not_known_is_kept_as_it_is() -> None:
    found = decode_offset_record(b"\x00\x63rest", b"value")
    assert found == StateRecord("Unknown", 99, {"hex": "006372657374"}, None, {"hex": "76616c7565"})
    assert decode_offset_record(b"\x00\x63rest", b"").value is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"v", "it has no key with a type"),
        (b"\x00", b"v", "it has no key with a type"),
        (COMMIT_KEY, b"\x00", "the value of a OffsetCommit record is cut short: 1 bytes"),
        (COMMIT_KEY, b"\x00\x09" + bytes(20), "version 9 is unknown, only 0 to 4"),
        (COMMIT_KEY[:-1], commit(1), "it is cut short: 1 bytes are missing"),
        (b"\x00\x02\x00\x01g", group_with(b"\xff" * 4), "GroupMetadata record: members is null, which it cannot be"),
    ],
)
def test_what_cannot_be_read_is_named(key: bytes | None, value: bytes, message: str) -> None:
    with pytest.raises(UndecodableRecord) as caught:
        decode_offset_record(key, value)
    assert message in caught.value.message


def test_a_subscription_of_its_own_stays_as_it_is() -> None:
    """Members of other protocols put their own bytes there."""
    member = b"\x00\x01m\x00\x01c\x00\x01h" + bytes(8) + b"\x00\x00\x00\x02\xff\xff" + b"\x00\x00\x00\x01\xff"
    found = decode_offset_record(b"\x00\x02\x00\x01g", group_with(b"\x00\x00\x00\x01" + member))
    assert found.value is not None
    assert found.value["members"][0]["subscription"] == "//8="
    assert found.value["members"][0]["assignment"] == "/w=="


def test_the_state_of_a_transaction_has_its_name() -> None:
    key = b"\x00\x00\x00\x02tx"
    value = b"\x00\x00" + (5).to_bytes(8) + (1).to_bytes(2) + (60).to_bytes(4) + b"%c" + b"\xff" * 4 + bytes(16)
    for status, name in ((1, "Ongoing"), (5, "CompleteAbort"), (77, "Unknown(77)")):
        found = decode_transaction_record(key, value.replace(b"%c", bytes([status])))
        assert found.owner == "tx"
        assert found.value is not None
        assert found.value["transactionStatus"] == name
        assert found.value["transactionPartitions"] is None

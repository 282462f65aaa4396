"""The cluster reads what the engine asks, and the engine reads what the cluster answers."""

import uuid
from typing import Any

import pytest

from logkeep_engine.kafka import positions, protocol
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.encoding import Call, Reader
from tests.simulation.protocol import Api, Asked, Body, decode_request, encode_answer, encode_element

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def asked_by(call: Call[Any]) -> Asked:
    return decode_request(b"".join(call.encode(7, "tests"))[4:])


def read_by(call: Call[Any], body: Body) -> object:
    frame = encode_answer(asked_by(call), body)
    lent = Buffers().lend(len(frame))
    lent.view[:] = frame
    reader = Reader(lent)
    assert reader.int32() == 7
    return call.decode(reader)


@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
def test_fetch(topic_id: str | None) -> None:
    call = protocol.fetch(
        "orders", topic_id, 3, 5, 100, max_bytes=10, max_wait_ms=20, min_bytes=1, committed=True
    )  # fmt: skip

    asked = asked_by(call)

    assert (asked.api, asked.version, asked.client_id) == (Api.FETCH, 10 if topic_id is None else 13, "tests")
    (topic,) = asked.body["topics"]
    assert topic.get("topic") == ("orders" if topic_id is None else None)
    assert topic.get("topic_id") == (None if topic_id is None else uuid.UUID(int=2))
    (part,) = topic["partitions"]
    assert (part["partition"], part["current_leader_epoch"], part["fetch_offset"]) == (3, 5, 100)

    answer = read_by(
        call,
        {
            "throttle_time_ms": 9,
            "responses": [
                {
                    "topic": "orders",
                    "topic_id": uuid.UUID(int=2),
                    "partitions": [
                        {
                            "partition_index": 3,
                            "high_watermark": 120,
                            "last_stable_offset": 110,
                            "log_start_offset": 50,
                            "aborted_transactions": [{"producer_id": 8, "first_offset": 90}],
                            "records": b"batches",
                        }
                    ],
                }
            ],
        },
    )

    assert isinstance(answer, protocol.FetchAnswer)
    assert (answer.throttle_ms, answer.high_watermark, answer.last_stable_offset) == (9, 120, 110)
    assert (answer.aborted, bytes(answer.records)) == (((8, 90),), b"batches")


def test_metadata() -> None:
    call = protocol.metadata(["orders"])
    assert asked_by(call).body["topics"] == [{"name": "orders"}]

    part = {"partition_index": 0, "leader_id": 2, "leader_epoch": 4, "replica_nodes": [2, 1], "isr_nodes": [2]}
    answer = read_by(
        call,
        {
            "brokers": [{"node_id": 2, "host": "127.0.0.1", "port": 9092, "rack": None}],
            "topics": [encode_element(asked_by(call), "topics", {"name": "orders", "partitions": [part]})],
        },
    )

    assert isinstance(answer, protocol.Metadata)
    assert answer.brokers == {2: ("127.0.0.1", 9092)}
    assert answer.topics["orders"].partitions == {0: protocol.PartitionMetadata(0, 2, 4)}


def test_positions() -> None:
    call = positions.commit_request("readers", [positions.FetchedPosition("orders", 1, 42, 3, "")])
    body = asked_by(call).body
    assert body["group_id"] == "readers"
    assert body["topics"][0]["partitions"][0]["committed_offset"] == 42

    answer = read_by(call, {"topics": [{"name": "orders", "partitions": [{"partition_index": 1, "error_code": 25}]}]})

    assert isinstance(answer, positions.CommitAnswer)
    assert answer.codes == {("orders", 1): 25}


def test_a_request_without_a_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="request 17 has no layout"):
        decode_request(b"\x00\x11\x00\x00\x00\x00\x00\x01\xff\xff")

"""Requests are the bytes that an independent implementation writes, answers are read as it writes them."""

import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol import fetch as their_fetch
from aiokafka.protocol import offset as their_offset
from aiokafka.protocol import produce as their_produce

from logkeep_engine.kafka import protocol

TOPIC_ID = "5_P8takQSISgc5IHIqwiYw"


def body(call: protocol.Call[Any]) -> bytes:
    return call.encode()


def test_fetch_by_name_is_version_10() -> None:
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    theirs = their_fetch.FetchRequest_v10(-1, 50, 1, 1000, 1, 0, -1, [("orders", [(3, 7, 42, -1, 1000)])], [])
    assert (call.api_key, call.version, call.flexible) == (1, 10, False)
    assert body(call) == theirs.encode()


def test_fetch_by_id_is_version_13() -> None:
    call = protocol.fetch("orders", TOPIC_ID, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=False)
    assert (call.version, call.flexible) == (13, True)
    assert body(call) == (
        struct.pack(">iiiibii", -1, 50, 1, 1000, 0, 0, -1)
        + b"\x02"
        + protocol.parse_topic_id(TOPIC_ID).bytes
        + b"\x02"
        + struct.pack(">iiqiqi", 3, 7, 42, -1, -1, 1000)
        + b"\x00\x00\x01\x01\x00"
    )


def test_topic_id_is_read_as_kafka_prints_it() -> None:
    assert protocol.parse_topic_id("AAAAAAAAAAAAAAAAAAAAAQ").int == 1


def test_fetch_answer_shares_the_memory_of_the_response() -> None:
    theirs = their_fetch.FetchResponse_v10(9, 0, 0, [("orders", [(3, 0, 100, 90, 5, [(77, 60)], b"batches")])])
    raw = b"\x00\x00\x00\x01" + theirs.encode()
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    data = BytesIO(raw)
    assert call.parse_response_header(data).correlation_id == 1
    answer = call.decode(data)
    assert (answer.throttle_ms, answer.code, answer.answered) == (9, 0, True)
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (100, 90, 5)
    assert answer.aborted == ((77, 60),)
    assert bytes(answer.records) == b"batches"
    assert answer.records.obj is raw


def test_throttled_fetch_answer_without_partitions_is_no_answer() -> None:
    theirs = their_fetch.FetchResponse_v10(1500, 0, 0, [])
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    answer = call.decode(BytesIO(theirs.encode()))
    assert (answer.answered, answer.throttle_ms) == (False, 1500)


def test_answer_that_ends_early_is_an_error() -> None:
    theirs = their_fetch.FetchResponse_v10(0, 0, 0, [("orders", [(3, 0, 100, 90, 5, [], b"batches")])])
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    with pytest.raises(IndexError, match="7 bytes announced, 6 there"):
        call.decode(BytesIO(theirs.encode()[:-1]))


def test_produce_is_version_8() -> None:
    call = protocol.produce("orders", 3, b"batch", acks=-1, timeout_ms=2000)
    assert body(call) == their_produce.ProduceRequest_v8(None, -1, 2000, [("orders", [(3, b"batch")])]).encode()


def test_produce_answer_carries_the_brokers_reason() -> None:
    theirs = their_produce.ProduceResponse_v8([("orders", [(3, 87, -1, -1, -1, [(0, "no key")], "bad")])], 12)
    answer = protocol.produce("orders", 3, b"", acks=-1, timeout_ms=1).decode(BytesIO(theirs.encode()))
    assert answer == protocol.ProduceAnswer(12, 87, -1, "bad; no key")


def test_list_offset_answer_is_version_5() -> None:
    theirs = their_offset.OffsetResponse_v5(0, [("orders", [(3, 0, -1, 42, 7)])])
    answer = protocol.list_offset("orders", 3, 7, -1, committed=True).decode(BytesIO(theirs.encode()))
    assert (answer.code, answer.offset) == (0, 42)


def test_version_a_broker_does_not_speak_is_refused() -> None:
    call = protocol.produce("orders", 3, b"", acks=-1, timeout_ms=1)
    assert call.prepare({0: (3, 13)}) is call
    with pytest.raises(protocol.VersionMissing, match="version 8, the broker takes 0 to 7"):
        call.prepare({0: (0, 7)})


def test_request_shows_no_content_in_logs() -> None:
    assert repr(protocol.produce("orders", 3, b"secret", acks=-1, timeout_ms=1)) == "Call(api_key=0, version=8)"

"""Requests are the bytes that an independent implementation writes, answers are read as it writes them."""

import struct
from typing import Any, TypeVar

import pytest
from aiokafka.protocol import fetch as their_fetch
from aiokafka.protocol import offset as their_offset
from aiokafka.protocol import produce as their_produce

from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.encoding import Call, Reader, VersionMissing

R = TypeVar("R")

TOPIC_ID = "5_P8takQSISgc5IHIqwiYw"


def body(call: Call[Any]) -> bytes:
    return b"".join(call.body)


def read(call: Call[R], raw: bytes) -> R:
    """The answer from bytes after the response's correlation id."""
    return call.decode(Reader(AnswerFrame.of(raw)))


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
    frame = AnswerFrame.of(theirs.encode())
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    reader = Reader(frame)
    answer = call.decode(reader)
    assert (answer.throttle_ms, answer.code, answer.answered) == (9, 0, True)
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (100, 90, 5)
    assert answer.aborted == ((77, 60),)
    assert bytes(answer.records) == b"batches"
    assert answer.records.obj is frame.view.obj
    assert reader.kept
    assert answer.frame is frame


def test_throttled_fetch_answer_without_partitions_is_no_answer() -> None:
    theirs = their_fetch.FetchResponse_v10(1500, 0, 0, [])
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    answer = read(call, theirs.encode())
    assert (answer.answered, answer.throttle_ms) == (False, 1500)


def test_answer_that_ends_early_is_an_error() -> None:
    theirs = their_fetch.FetchResponse_v10(0, 0, 0, [("orders", [(3, 0, 100, 90, 5, [], b"batches")])])
    call = protocol.fetch("orders", None, 3, 7, 42, max_bytes=1000, max_wait_ms=50, min_bytes=1, committed=True)
    with pytest.raises(IndexError, match="7 bytes announced, 6 there"):
        read(call, theirs.encode()[:-1])


def test_produce_is_version_8() -> None:
    call = protocol.produce(
        [("orders", 3, (b"bat", b"ch")), ("bills", 0, (b"one",)), ("orders", 4, (b"two",))], acks=-1, timeout_ms=2000
    )
    topics = [("orders", [(3, b"batch"), (4, b"two")]), ("bills", [(0, b"one")])]
    assert body(call) == their_produce.ProduceRequest_v8(None, -1, 2000, topics).encode()


def test_produce_answer_carries_the_brokers_reason_for_each_partition() -> None:
    theirs = their_produce.ProduceResponse_v8(
        [("orders", [(3, 87, -1, -1, -1, [(0, "no key")], "bad"), (4, 0, 77, -1, 0, [], None)])], 12
    )
    answers = read(protocol.produce([("orders", 3, (b"",))], acks=-1, timeout_ms=1), theirs.encode())
    assert answers.throttle_ms == 12
    assert answers.partitions == {
        ("orders", 3): protocol.ProduceAnswer(87, -1, "bad; no key"),
        ("orders", 4): protocol.ProduceAnswer(0, 77, ""),
    }


def test_list_offset_answer_is_version_5() -> None:
    theirs = their_offset.OffsetResponse_v5(0, [("orders", [(3, 0, -1, 42, 7)])])
    answer = read(protocol.list_offset("orders", 3, 7, -1, committed=True), theirs.encode())
    assert (answer.code, answer.offset) == (0, 42)


def test_version_a_broker_does_not_speak_is_refused() -> None:
    call = protocol.produce([("orders", 3, (b"",))], acks=-1, timeout_ms=1)
    call.check_version({0: (3, 13)})
    with pytest.raises(VersionMissing, match="version 8, the broker accepts 0 to 7"):
        call.check_version({0: (0, 7)})


def test_frame_of_a_request_has_its_size_and_header_and_does_not_copy_batches() -> None:
    batch = b"batch" * 1000
    call = protocol.produce([("orders", 3, (batch,))], acks=-1, timeout_ms=1)
    head, *rest = call.encode(77, "me")
    assert head == struct.pack(">ihhih", 10 + 2 + sum(len(part) for part in rest), 0, 8, 77, 2) + b"me"
    assert any(part is batch for part in rest)
    by_id = protocol.fetch("", TOPIC_ID, 3, 7, 42, max_bytes=1, max_wait_ms=1, min_bytes=1, committed=True)
    assert by_id.encode(77, "me")[0][4:] == struct.pack(">hhih", 1, 13, 77, 2) + b"me\x00"


def test_request_shows_no_content_in_logs() -> None:
    assert repr(protocol.produce([("orders", 3, (b"secret",))], acks=-1, timeout_ms=1)) == "Call(api_key=0, version=8)"

"""Answers about positions of consumer groups."""

import pytest
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import Reader
from logkeep_engine.kafka.positions import FetchedPosition, FetchedPositions, fetch_positions


def answered(codes: list[int], group_code: int = 0, first: int = 10) -> FetchedPositions:
    """A group's answer with a position for each code, of partitions 0, 1 and so on; version 5 adds the leader epoch."""
    partitions = b"".join(
        partition.to_bytes(4, "big")
        + (first + partition).to_bytes(8, "big", signed=True)
        + (7).to_bytes(4, "big")
        + b"\x00\x01m"
        + code.to_bytes(2, "big")
        for partition, code in enumerate(codes)
    )
    plain = OffsetFetchResponse_v3(0, [("orders", [])], group_code).encode()
    raw = plain[:-6] + len(codes).to_bytes(4, "big") + partitions + plain[-2:]
    return fetch_positions("billing").decode(Reader(AnswerFrame.of(raw)))


def test_positions_are_read() -> None:
    expected = (FetchedPosition("orders", 0, 10, 7, "m"), FetchedPosition("orders", 1, 11, 7, "m"))
    assert answered([0, 0]) == FetchedPositions(Code.NONE, 0, expected)


def test_negative_numbers_are_no_positions_and_are_reported() -> None:
    """Some clients commit -1 and -2, for "the end" and "the beginning"."""
    negative = (FetchedPosition("orders", 0, -2, 7, "m"), FetchedPosition("orders", 1, -1, 7, "m"))
    expected = FetchedPositions(Code.NONE, 0, (FetchedPosition("orders", 2, 0, 7, "m"),), negative)
    assert answered([0, 0, 0], first=-2) == expected


@pytest.mark.parametrize("codes", [[0, Code.UNKNOWN_TOPIC_OR_PARTITION], [Code.UNKNOWN_TOPIC_OR_PARTITION, 0]])
def test_a_position_with_an_error_is_no_missing_position(codes: list[int]) -> None:
    """A restore would set it, and a backup would leave it out."""
    assert answered(codes) == FetchedPositions(Code.UNKNOWN_TOPIC_OR_PARTITION)


def test_an_error_of_the_group_comes_first() -> None:
    assert answered([0], group_code=Code.NOT_COORDINATOR).code == Code.NOT_COORDINATOR

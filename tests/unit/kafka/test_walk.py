"""Where the next fetch begins, from the bytes of the last."""

import struct

import pytest

from logkeep_engine.errors import CorruptBatch, OffsetOutOfRange
from logkeep_engine.kafka.fetched import _walk, next_offset
from tests.kafka.raw import batch


def at(offset: int, values: int) -> bytes:
    return struct.pack(">q", offset) + batch([b"x"] * values)[8:]


def legacy(offset: int) -> bytes:
    """A message of magic 1 without key and value."""
    return struct.pack(">qiIbbqii", offset, 22, 0, 1, 0, 0, -1, -1)


def test_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    first, second = at(10, 5), at(15, 3)
    data = memoryview(first + second[:-1])
    assert _walk(data, "t", 0) == [(0, 15)]
    assert next_offset(data, "t", 0, 12) == 15
    assert next_offset(memoryview(first + second), "t", 0, 12) == 18


def test_partial_header_at_the_end_is_left_too() -> None:
    assert _walk(memoryview(at(10, 5) + at(15, 3)[:16]), "t", 0) == [(0, 15)]


def test_legacy_messages_are_counted_by_their_own_offset() -> None:
    assert [end for _, end in _walk(memoryview(legacy(7) + legacy(9) + at(10, 2)), "t", 0)] == [8, 10, 12]


def test_nothing_means_the_same_offset_again() -> None:
    assert next_offset(memoryview(b""), "t", 0, 12) == 12


@pytest.mark.parametrize("data", [at(10, 5)[:40], at(3, 5)], ids=["no complete batch", "all before"])
def test_bytes_that_lead_nowhere_are_an_error_not_a_loop(data: bytes) -> None:
    with pytest.raises(CorruptBatch, match=r"'t' partition 4.*at offset 12 hold no complete batch"):
        next_offset(memoryview(data), "t", 4, 12)


def test_impossible_length_is_an_error_not_a_loop() -> None:
    with pytest.raises(CorruptBatch, match="claims to be -5 bytes long"):
        _walk(memoryview(struct.pack(">qi", 10, -5) + bytes(60)), "t", 0)


def test_offset_out_of_range_keeps_its_bounds_over_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(OffsetOutOfRange("gone", hint="do", log_start=5, log_end=9)))
    assert (str(error), error.log_start, error.log_end) == ("gone. do", 5, 9)

"""Whatever is wrong with a log, the rest of the log is found, and the message says what is wrong and where."""

from collections.abc import Iterator

import pytest

from logkeep_engine.log.batch import Buffer
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.toolbox.scan import MAX_BATCH_BYTES, Batch, scan
from tests.unit.log.batches import batch, positions

LOG = [batch(i * 10, 10, codec=Codec(i % 5), value=b"\x02x" * 15) for i in range(20)]
WHOLE = b"".join(LOG)
STARTS = positions(LOG)


def look(data: bytes, block: int = 1000, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> list[Batch | DamagedBytes]:
    blocks: Iterator[Buffer | DamagedBytes] = (data[at : at + block] for at in range(0, len(data), block))
    return list(scan(blocks, len(data), max_batch_bytes=max_batch_bytes))


def offsets(found: list[Batch | DamagedBytes]) -> list[int]:
    return [item.header.base_offset for item in found if isinstance(item, Batch) and not item.problem]


def damages(found: list[Batch | DamagedBytes]) -> list[DamagedBytes]:
    return [item for item in found if isinstance(item, DamagedBytes)]


def without(*numbers: int) -> list[int]:
    return [i * 10 for i in range(len(LOG)) if i not in numbers]


@pytest.mark.parametrize("block", [1, 61, 1000, 10**6])
def test_a_good_log_is_all_batches(block: int) -> None:
    found = look(WHOLE, block)
    assert offsets(found) == without()
    assert [item.position for item in found] == STARTS


@pytest.mark.parametrize("number", [0, 7, 19])
def test_any_flipped_byte_costs_its_batch_only(number: int) -> None:
    start = STARTS[number]
    for at in range(start + 8, start + len(LOG[number])):
        if at - start in range(12, 16):
            continue  # the leader epoch: nothing covers it
        data = bytearray(WHOLE)
        data[at] ^= 0x55
        found = look(bytes(data))
        assert offsets(found) == without(number), at - start
        problems = [item for item in found if isinstance(item, DamagedBytes) or item.problem]
        assert [item.position for item in problems] == [start]


def test_a_batch_whose_crc_is_wrong_is_shown_with_its_header() -> None:
    data = bytearray(WHOLE)
    data[STARTS[3] + 70] ^= 1
    (bad,) = [item for item in look(bytes(data)) if isinstance(item, Batch) and item.problem]
    assert not bad.intact
    assert bad.header.base_offset == 30
    assert bad.problem.startswith("The batch at offset 30 is damaged: its CRC is ")


def test_garbage_between_batches_is_passed_over() -> None:
    found = look(WHOLE[: STARTS[4]] + b"\x02" * 3000 + WHOLE[STARTS[4] :])
    assert offsets(found) == without()
    (garbage,) = damages(found)
    assert (garbage.position, garbage.size, garbage.offset) == (STARTS[4], 3000, 40)


def test_a_log_cut_anywhere_in_its_last_batch_says_so() -> None:
    for cut in range(STARTS[19] + 1, len(WHOLE)):
        found = look(WHOLE[:cut])
        assert offsets(found) == without(19)
        (end,) = damages(found)
        assert (end.position, end.size, end.offset) == (STARTS[19], cut - STARTS[19], 190)
        assert "cut short" in end.what


def test_zeros_that_a_broker_reserved_are_one_damage() -> None:
    found = look(WHOLE + bytes(5000))
    assert offsets(found) == without()
    (end,) = damages(found)
    assert (end.position, end.size) == (len(WHOLE), 5000)
    assert end.what == "no batch begins there (magic 0, length 0)"


def test_a_batch_that_falls_back_is_a_problem_once() -> None:
    data = b"".join([LOG[0], LOG[5], LOG[2], LOG[3]])
    found = look(data)
    assert [item.problem for item in found if isinstance(item, Batch)] == [
        "",
        "",
        "The batch at offset 20 is after offset 59",
        "",
    ]


def test_a_batch_too_far_above_the_base_offset_is_a_problem_and_what_follows_is_not() -> None:
    far = batch(2**31, 2)
    found = look(b"".join([LOG[0], far, LOG[1], LOG[2]]))
    assert [item.problem for item in found if isinstance(item, Batch)] == [
        "",
        "The batch at offset 2147483648 is too far above the segment's base offset 0",
        "",
        "",
    ]
    assert offsets(look(batch(2**31 - 1))) == [2**31 - 1]


LARGE = batch(10, 50)


@pytest.mark.parametrize("block", [61, 10**6])
def test_a_batch_above_the_limit_is_one_if_its_crc_holds(block: int) -> None:
    """Brokers take what max.message.bytes allows, up to a whole segment."""
    found = look(LOG[0] + LARGE + batch(60, 2), block, max_batch_bytes=len(LARGE) - 1)
    assert offsets(found) == [0, 10, 60]
    assert not damages(found)


def test_a_batch_above_the_limit_whose_crc_is_wrong_is_damage() -> None:
    """Its length may be what is wrong."""
    torn = bytearray(LARGE)
    torn[-1] ^= 1
    found = look(LOG[0] + torn + batch(60, 2), max_batch_bytes=len(LARGE) - 1)
    assert offsets(found) == [0, 60]
    assert damages(found) == [DamagedBytes(f"a batch that claims {len(LARGE)} bytes", len(LARGE), len(LOG[0]), 10)]


def test_after_one_such_length_no_other_is_tried() -> None:
    """A log of many would be read as many times."""
    torn = bytearray(LARGE)
    torn[-1] ^= 1
    for sure, kept in ((False, [0, 10, 120]), (True, [0, 120])):
        data = b"".join([LOG[0], LARGE, torn, batch(60, 50), batch(120, 2)])
        found = list(scan(iter([data]), len(data), max_batch_bytes=len(LARGE) - 1, sure=sure))
        assert offsets(found) == kept


def test_where_the_end_of_the_log_is_unknown_a_length_above_the_limit_is_damage() -> None:
    blocks: list[Buffer | DamagedBytes] = [LOG[0], DamagedBytes("gone", -1), LARGE + batch(60, 2)]
    found = list(scan(iter(blocks), len(WHOLE), max_batch_bytes=len(LARGE) - 1))
    assert offsets(found) == [0, 60]
    assert [item.what for item in damages(found)] == ["gone", f"a batch that claims {len(LARGE)} bytes"]


def test_a_hole_is_said_and_what_is_behind_it_is_read() -> None:
    blocks: list[Buffer | DamagedBytes] = [
        WHOLE[: STARTS[3]],
        DamagedBytes("gone", STARTS[6] - STARTS[3]),
        WHOLE[STARTS[6] :],
    ]
    found = list(scan(iter(blocks), len(WHOLE)))
    assert offsets(found) == without(3, 4, 5)
    assert damages(found) == [DamagedBytes("gone", STARTS[6] - STARTS[3], STARTS[3], 30)]
    assert [item.position for item in found if isinstance(item, Batch)] == [
        STARTS[i] for i in range(20) if not 3 <= i < 6
    ]


def test_a_hole_of_unknown_size_does_not_end_the_log() -> None:
    blocks: list[Buffer | DamagedBytes] = [WHOLE[: STARTS[3]], DamagedBytes("gone", -1), WHOLE[STARTS[6] :]]
    found = list(scan(iter(blocks), len(WHOLE)))
    assert offsets(found) == without(3, 4, 5)
    assert [item.size for item in damages(found)] == [-1]

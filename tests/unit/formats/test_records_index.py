"""The index of a segment of the Records format: it is read and made to the byte, and every fault in it is reported."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptIndex
from logkeep_engine.formats.records import read_blocks
from logkeep_engine.formats.records_index import (
    ENTRY_BYTES,
    IndexCheck,
    IndexState,
    build_index,
    check_index,
    pack_entries,
    position_before,
    read_index,
)
from tests.unit.formats.records_golden import FIRST, POSITIONS, RECORDS, SECOND, golden

INDEX = golden(f"{FIRST}_index")
OFFSETS = [record.offset for record in RECORDS]


def entry(number: int) -> slice:
    return slice(1 + number * ENTRY_BYTES, 1 + (number + 1) * ENTRY_BYTES)


def test_golden_index_is_read_as_its_table_says() -> None:
    index = read_index(INDEX)
    assert len(index) == 6
    assert [index.entry(number) for number in range(6)] == [
        (offset, start, end - start) for offset, start, end in zip(OFFSETS, POSITIONS, POSITIONS[1:], strict=False)
    ]
    assert (index.last_offset, index.end) == (2**32, 230)


def test_golden_index_is_made_from_its_segment() -> None:
    for name in (FIRST, SECOND):
        blocks = read_blocks([golden(f"{name}_records")])
        assert build_index(([r.offset for r in b.records], b.positions) for b in blocks) == golden(f"{name}_index")


def test_index_of_no_records_is_read() -> None:
    index = read_index(b"\x01")
    assert (len(index), index.last_offset, index.end) == (0, -1, 1)
    assert position_before(index, 0) is None


def test_index_cut_inside_an_entry_is_refused() -> None:
    for cut in range(1, len(INDEX)):
        whole, rest = divmod(cut - 1, ENTRY_BYTES)
        if not rest:
            assert len(read_index(INDEX[:cut])) == whole
            continue
        with pytest.raises(CorruptIndex) as caught:
            read_index(INDEX[:cut])
        assert str(caught.value) == (
            f"The index is cut short: {rest} of 24 bytes of entry {whole}. Rebuild the index from the segment."
        )


def test_other_version_of_the_index_is_refused_by_name() -> None:
    with pytest.raises(CorruptIndex) as caught:
        read_index(b"\x03" + INDEX[1:])
    assert str(caught.value) == (
        "The index begins with 0x03, which is version 3 of the Records format; only version 1 can be read. A newer "
        "version of the tool wrote it: read it with that version."
    )
    with pytest.raises(CorruptIndex, match="The index is empty"):
        read_index(b"")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(-1, 1, 24)], "Entry 0 of the index has offset -1 after -1: offsets must rise."),
        ([(0, 1, 24), (0, 25, 24)], "Entry 1 of the index has offset 0 after 0: offsets must rise."),
        ([(5, 1, 24), (4, 25, 24)], "Entry 1 of the index has offset 4 after 5: offsets must rise."),
        (
            [(0, 0, 24)],
            "Entry 0 of the index (offset 0) has 24 bytes at position 0, not at 1, where the record before it ends.",
        ),
        (
            [(0, 1, 24), (1, 26, 24)],
            "Entry 1 of the index (offset 1) has 24 bytes at position 26, not at 25, where the record before it ends.",
        ),
        (
            [(0, 1, 0), (1, 1, 24)],
            "Entry 0 of the index (offset 0) has 0 bytes; a record has 24 or more.",
        ),
        (
            [(0, 1, 24), (1, 25, 23)],
            "Entry 1 of the index (offset 1) has 23 bytes; a record has 24 or more.",
        ),
    ],
)
def test_entry_that_cannot_be_is_refused(entries: list[tuple[int, int, int]], message: str) -> None:
    with pytest.raises(CorruptIndex) as caught:
        read_index(b"\x01" + b"".join(struct.pack(">3q", *numbers) for numbers in entries))
    assert str(caught.value) == f"{message} Rebuild the index from the segment."


def test_check_tells_what_is_wrong_and_how_much_is_right() -> None:
    assert check_index(INDEX, INDEX) == IndexCheck(IndexState.GOOD, 6)
    assert check_index(None, INDEX) == IndexCheck(IndexState.MISSING, 0, "The index is missing.")
    assert check_index(b"\x01", INDEX) == IndexCheck(IndexState.SHORT, 0, "The index has 0 of 6 entries.")
    assert check_index(INDEX[:73], INDEX) == IndexCheck(IndexState.SHORT, 3, "The index has 3 of 6 entries.")
    assert check_index(INDEX[:80], INDEX) == IndexCheck(
        IndexState.SHORT, 3, "The index has 3 of 6 entries and 7 bytes of the next."
    )
    assert check_index(INDEX + bytes(3), INDEX) == IndexCheck(
        IndexState.LONG, 6, "The index has 3 bytes more than its segment's 6 records need."
    )
    assert check_index(b"\x02" + INDEX[1:], INDEX).state is IndexState.WRONG
    assert "version 2" in check_index(b"\x02" + INDEX[1:], INDEX).what
    assert "empty" in check_index(b"", INDEX).what


def test_check_names_the_first_wrong_entry_whatever_byte_is_flipped() -> None:
    for at in range(1, len(INDEX)):
        damaged = bytearray(INDEX)
        damaged[at] ^= 1
        number = (at - 1) // ENTRY_BYTES
        found = check_index(bytes(damaged), INDEX)
        said = struct.unpack(">3q", damaged[entry(number)])
        length = POSITIONS[number + 1] - POSITIONS[number]
        assert found == IndexCheck(
            IndexState.WRONG,
            number,
            f"Entry {number} of the index says offset {said[0]}, position {said[1]}, {said[2]} bytes; the record has "
            f"offset {OFFSETS[number]}, position {POSITIONS[number]}, {length} bytes.",
        )


def test_wrong_entry_that_is_cut_short_is_reported() -> None:
    damaged = INDEX[:50] + b"\xff"
    assert check_index(damaged, INDEX) == IndexCheck(
        IndexState.WRONG,
        2,
        "Entry 2 of the index is cut short; the record has offset 2, position 75, 26 bytes.",
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(24, 99)), max_size=50), st.integers(0, 500))
def test_position_found_is_that_of_the_record_before_the_first_one_not_before_the_offset(
    steps: list[tuple[int, int]], wanted: int
) -> None:
    offsets: list[int] = []
    positions = [1]
    for step, length in steps:
        offsets.append((offsets[-1] if offsets else 0) + step)
        positions.append(positions[-1] + length)
    index = read_index(b"\x01" + pack_entries(offsets, positions))
    expected = next((max(0, at - 1) for at, offset in enumerate(offsets) if offset >= wanted), None)
    assert position_before(index, wanted) == (None if expected is None else positions[expected])

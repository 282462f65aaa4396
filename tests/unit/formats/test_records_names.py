"""Names of the Records format and the index of a partition, to the byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptIndex
from logkeep_engine.formats.records_names import (
    FileKind,
    FileName,
    RecordsName,
    consumer_offsets_name,
    pack_partition_index,
    parse_name,
    partition_index_name,
    read_partition_index,
    segments_of,
)
from tests.unit.formats.records_golden import golden, golden_folder

PARTITION_INDEX = golden("index_partition_000")
SEGMENTS = [RecordsName(0, 0), RecordsName(0, 10**10)]
REBUILD = "Rebuild the partition's index from the names of its segments."


def test_numbers_are_padded_and_grow_beyond_their_width() -> None:
    assert RecordsName(3, 1000).records == "segment_partition_003_from_offset_0000001000_records"
    assert RecordsName(3, 1000).index == "segment_partition_003_from_offset_0000001000_index"
    assert RecordsName(1000, 10**10).records == "segment_partition_1000_from_offset_10000000000_records"
    assert partition_index_name(7) == "index_partition_007"
    assert partition_index_name(12345) == "index_partition_12345"
    assert consumer_offsets_name(7) == "consumer_offsets_partition_007"


def test_every_file_of_the_golden_folder_has_a_name_of_the_format() -> None:
    assert [parse_name(name) for name in golden_folder()] == [
        FileName(FileKind.CONSUMER_OFFSETS, 0),
        FileName(FileKind.PARTITION_INDEX, 0),
        FileName(FileKind.INDEX, 0, 0),
        FileName(FileKind.RECORDS, 0, 0),
        FileName(FileKind.INDEX, 0, 10**10),
        FileName(FileKind.RECORDS, 0, 10**10),
    ]


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_names_are_parsed_back(partition: int, offset: int) -> None:
    segment = RecordsName(partition, offset)
    assert parse_name(segment.records) == FileName(FileKind.RECORDS, partition, offset)
    assert parse_name(segment.index) == FileName(FileKind.INDEX, partition, offset)
    assert parse_name(partition_index_name(partition)) == FileName(FileKind.PARTITION_INDEX, partition)
    assert parse_name(consumer_offsets_name(partition)) == FileName(FileKind.CONSUMER_OFFSETS, partition)


@pytest.mark.parametrize(
    "name",
    [
        "segment_partition_00_from_offset_0000000000_records",
        "segment_partition_000_from_offset_000000000_records",
        "segment_partition_0001_from_offset_0000000000_records",
        "segment_partition_000_from_offset_0000000000",
        "segment_partition_000_from_offset_0000000000_records.tmp",
        "segment_partition_000_from_offset_0000000000_records\n",
        "segment_partition_٠٠٠_from_offset_0000000000_records",
        f"segment_partition_000_from_offset_{2**63}_records",
        f"segment_partition_{2**31}_from_offset_0000000000_index",
        "index_partition_00",
        "index_partition_0001",
        f"index_partition_{2**31}",
        "consumer_offsets_partition_000.bak",
        "archive.json",
        "",
    ],
)
def test_other_names_are_not_the_formats(name: str) -> None:
    assert parse_name(name) is None


def test_numbers_out_of_range_have_no_name() -> None:
    for partition, offset in [(-1, 0), (2**31, 0), (0, -1), (0, 2**63)]:
        with pytest.raises(ValueError, match=r"is not the number of a partition|no segment can start"):
            RecordsName(partition, offset)
    for name in (partition_index_name, consumer_offsets_name):
        with pytest.raises(ValueError, match="-1 is not the number of a partition"):
            name(-1)


def test_name_with_more_zeros_is_that_of_a_segment_that_an_erasure_has_written() -> None:
    name = "segment_partition_000_from_offset_00000000001_records"
    assert parse_name(name) == FileName(FileKind.RECORDS, 0, 1, width=11)
    (segment,) = segments_of([name])[0]
    assert read_partition_index(pack_partition_index([segment])) == [segment]
    assert segment.records == name


def test_golden_partition_index_is_read_and_written_to_the_byte() -> None:
    assert read_partition_index(PARTITION_INDEX) == SEGMENTS
    assert pack_partition_index(SEGMENTS).hex(" ") == PARTITION_INDEX.hex(" ")
    assert read_partition_index(pack_partition_index([])) == []


def test_partition_index_is_made_again_from_the_names_of_a_folder() -> None:
    assert pack_partition_index(segments_of(golden_folder())[0]) == PARTITION_INDEX


def test_segments_are_in_the_order_of_their_offsets_not_of_their_names() -> None:
    listing = [
        RecordsName(0, 9 * 10**9),
        RecordsName(0, 10**10),
        RecordsName(11, 5),
        RecordsName(2, 7),
        RecordsName(2, 3),
    ]
    names = sorted(name for segment in listing for name in (segment.records, segment.index))
    assert segments_of([*names, "index_partition_000", "lost+found"]) == {
        0: [RecordsName(0, 9 * 10**9), RecordsName(0, 10**10)],
        2: [RecordsName(2, 3), RecordsName(2, 7)],
        11: [RecordsName(11, 5)],
    }


def test_partition_index_after_old_segments_were_deleted_names_what_is_left() -> None:
    left = [name for name in golden_folder() if "offset_0000000000" not in name]
    assert read_partition_index(pack_partition_index(segments_of(left)[0])) == SEGMENTS[1:]


def test_partition_index_needs_rising_segments_of_one_partition() -> None:
    for wrong in (list(reversed(SEGMENTS)), [SEGMENTS[0], SEGMENTS[0]], [SEGMENTS[0], RecordsName(1, 5)]):
        with pytest.raises(ValueError, match="cannot follow"):
            pack_partition_index(wrong)


def test_partition_index_cut_at_every_byte_is_refused() -> None:
    ends = (1, 1 + 4 + 44 + 8, len(PARTITION_INDEX))
    for cut in range(1, len(PARTITION_INDEX)):
        if cut in ends:
            assert len(read_partition_index(PARTITION_INDEX[:cut])) == ends.index(cut)
            continue
        with pytest.raises(CorruptIndex, match=f"cut short after {sum(end <= cut for end in ends) - 1} entries"):
            read_partition_index(PARTITION_INDEX[:cut])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"",
            "The index of the partition is empty: not even its first byte, the version, is there. Recover the folder "
            "first.",
        ),
        (
            b"\x02" + PARTITION_INDEX[1:],
            "The index of the partition begins with 0x02, which is version 2 of the Records format; only version 1 can "
            "be read. A newer version of the tool wrote it: read it with that version.",
        ),
        (
            PARTITION_INDEX[:1] + b"\xff" * 4 + PARTITION_INDEX[5:],
            "The index of the partition is cut short after 0 entries: the next one has a name of -1 bytes and 109 "
            f"bytes are left. {REBUILD}",
        ),
        (
            PARTITION_INDEX.replace(b"segment_partition_000_from_offset_1", b"segment_partition_000_from_offset_2"),
            "The index of the partition says that segment_partition_000_from_offset_20000000000 starts from offset "
            f"10000000000. {REBUILD}",
        ),
        (
            PARTITION_INDEX.replace(b"segment", b"sediment"[:7]),
            "The index of the partition names b'sedimen_partition_000_from_offset_0000000000', which is not a segment. "
            f"{REBUILD}",
        ),
        (
            PARTITION_INDEX + PARTITION_INDEX[1:],
            "The index of the partition names segment_partition_000_from_offset_0000000000 after "
            f"segment_partition_000_from_offset_10000000000: offsets must rise. {REBUILD}",
        ),
        (
            PARTITION_INDEX.replace(b"000_from_offset_1", b"001_from_offset_1"),
            "The index of the partition names segment_partition_001_from_offset_10000000000 of another partition than "
            f"segment_partition_000_from_offset_0000000000. {REBUILD}",
        ),
    ],
)
def test_partition_index_that_cannot_be_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptIndex) as caught:
        read_partition_index(data)
    assert str(caught.value) == message

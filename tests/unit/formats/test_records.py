"""Segments of the Records format are read and written to the byte; what cannot be right is refused with its place."""

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.base import OF_BATCHES, LogRecord, SegmentFacts
from logkeep_engine.formats.counted import CountedRecords
from logkeep_engine.formats.records import (
    BLOCK_BYTES,
    RecordBlock,
    RecordsEncoder,
    read_blocks,
)
from logkeep_engine.formats.records_index import build_index, position_before, read_index
from logkeep_engine.formats.records_names import MAGIC
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.memory import stored_record_most
from tests.examples import scaled
from tests.unit.formats.records_golden import FIRST, LATER, NOON, POSITIONS, RECORDS, SECOND, golden
from tests.unit.formats.records_oracle import pack_record
from tests.unit.formats.records_reading import read_segment

SEGMENT = golden(f"{FIRST}_records")
INDEX = golden(f"{FIRST}_index")

lengths_of_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4)
escaped_keys = st.binary(max_size=6).map(lambda key: key.decode("utf-8", "surrogateescape"))
timestamps = st.sampled_from([(None, None), (None, 0)]) | st.tuples(
    st.integers(-(2**63), 2**63 - 1).filter(lambda timestamp: timestamp != -1), st.sampled_from([0, 1])
)


@st.composite
def rising_records(draw: st.DrawFn) -> list[PlainRecord]:
    """Records as any topic can hold them, with gaps."""
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 20))):
        timestamp, kind = draw(timestamps)
        names = draw(lengths_of_headers) + [(name, b"x") for name in draw(st.lists(escaped_keys, max_size=1))]
        key, value = draw(st.none() | st.binary(max_size=30)), draw(st.none() | st.binary(max_size=200))
        records.append(PlainRecord(offset, timestamp, kind, key, value, tuple(names)))
        offset += draw(st.integers(1, 3))
    return records


class Files:
    """The files that an encoder writes."""

    def __init__(self, limit_bytes: int = 2**40) -> None:
        self._data, self._index = bytearray(), bytearray()
        self.encoder = RecordsEncoder(self._data.extend, self._index.extend, limit_bytes)

    @property
    def data(self) -> bytearray:
        self.encoder.hand_on()
        return self._data

    @property
    def index(self) -> bytearray:
        self.encoder.hand_on()
        return self._index


def encoded(records: Sequence[LogRecord]) -> tuple[bytes, bytes, SegmentFacts]:
    files = Files()
    assert files.encoder.append(records) == len(records)
    return bytes(files.data), bytes(files.index), files.encoder.finish()


def read(data: bytes, piece: int = 2**30, start_offset: int = 0, position: int = 0) -> list[PlainRecord]:
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    runs = read_segment(pieces, start_offset=start_offset, position=position, size=position + len(data))
    return [record for run in runs for record in run]


# ---- the golden segment


def test_golden_segment_is_read_as_its_table_says() -> None:
    assert read(SEGMENT) == RECORDS
    assert read(golden(f"{SECOND}_records")) == LATER


def test_golden_segment_and_index_are_written_to_the_byte() -> None:
    data, index, facts = encoded(RECORDS)
    assert data.hex(" ") == SEGMENT.hex(" ")
    assert index.hex(" ") == INDEX.hex(" ")
    assert facts == SegmentFacts(
        base_offset=0,
        next_offset=2**32 + 1,
        records=6,
        blocks=1,
        bytes=230,
        index_bytes=145,
        min_timestamp=0,
        max_timestamp=2**63 - 1,
        gaps=True,
        append_time=True,
        largest_record=len("h" + "a1" + "a") + len("é".encode()) + 2,
    )


def test_every_record_lies_where_the_index_says() -> None:
    (block,) = read_blocks([SEGMENT])
    assert (list(block.records), block.positions, block.end) == (RECORDS, POSITIONS, POSITIONS[-1])
    assert RecordBlock(block.records[2:], block.origin).positions == POSITIONS[2:]
    assert RecordBlock(block.records[2:4], block.origin).end == POSITIONS[4]
    for record, start, end in zip(RECORDS, POSITIONS, POSITIONS[1:], strict=False):
        assert pack_record(record) == SEGMENT[start:end]


def test_reader_starts_where_the_index_points_for_an_offset() -> None:
    index = read_index(INDEX)
    for offset, first in [(0, 0), (1, 1), (3, 3), (5, 3), (7, 5), (2**32, 5)]:
        position = position_before(index, offset)
        assert position == POSITIONS[max(0, first - 1)]
        assert read(SEGMENT[position:], position=position, start_offset=offset) == RECORDS[first:]
        assert read(SEGMENT, start_offset=offset) == RECORDS[first:]
    assert position_before(index, 2**32 + 1) is None
    assert read(SEGMENT, start_offset=2**32 + 1) == []


def test_blocks_of_any_size_give_the_same_records() -> None:
    for piece in range(1, len(SEGMENT) + 1):
        assert read(SEGMENT, piece) == RECORDS


def test_buffer_of_a_block_may_be_filled_again() -> None:
    def blocks() -> Iterator[memoryview]:
        buffer = bytearray(10)
        for at in range(0, len(SEGMENT), len(buffer)):
            part = SEGMENT[at : at + len(buffer)]
            buffer[: len(part)] = part
            yield memoryview(buffer)[: len(part)]

    assert [record for run in read_segment(blocks()) for record in run] == RECORDS


# ---- writing


def test_null_create_time_is_type_minus_two_whether_it_is_none_or_minus_one() -> None:
    for timestamp in (None, -1):
        packed = pack_record(PlainRecord(5, timestamp, 0, b"", b""))
        assert packed == SEGMENT[POSITIONS[3] : POSITIONS[4]]


def test_create_time_of_minus_one_from_another_writer_is_read_as_null() -> None:
    packed = struct.pack(">qiqiiii", 5, 0, -1, 0, 0, 0, 0)[:-4]
    assert read(b"\x01" + packed) == [PlainRecord(5, None, 0, b"", b"")]


def test_append_time_that_is_missing_keeps_its_type() -> None:
    record = PlainRecord(5, None, 1, b"k", b"v")
    assert read(b"\x01" + pack_record(record)) == [record]


def test_time_before_1970_is_kept() -> None:
    record = PlainRecord(5, -2, 0, b"k", b"v")
    assert read(b"\x01" + pack_record(record)) == [record]


def test_header_key_that_is_not_utf8_keeps_its_bytes() -> None:
    packed = pack_record(PlainRecord(0, NOON, 0, None, None, (("\udcffA", b"1"),)))
    assert b"\x00\x00\x00\x02\xffA" in packed
    assert pack_record(read(b"\x01" + packed)[0]) == packed


def test_segment_is_full_after_the_record_that_takes_it_over_the_threshold() -> None:
    for limit in range(len(SEGMENT) + 1):
        files = Files(limit)
        taken = files.encoder.append(RECORDS)
        expected = next((count for count, end in enumerate(POSITIONS) if count and end > limit), len(RECORDS))
        assert taken == expected
        assert files.encoder.size == POSITIONS[taken] == len(files.data)
        assert files.encoder.full is (POSITIONS[taken] > limit)
        assert files.encoder.append(RECORDS, taken) == (0 if files.encoder.full else len(RECORDS) - taken)


def test_one_record_a_segment_is_legal() -> None:
    at, segments = 0, []
    while at < len(RECORDS):
        files = Files(1)
        at += files.encoder.append(RECORDS, at)
        assert files.encoder.finish().records == 1
        segments.append(bytes(files.data))
    assert [record for segment in segments for record in read(segment)] == RECORDS


def test_records_given_one_by_one_make_the_same_files() -> None:
    files = Files()
    for at in range(len(RECORDS)):
        assert files.encoder.append(RECORDS[: at + 1], at) == 1
    assert (bytes(files.data), bytes(files.index)) == (SEGMENT, INDEX)
    assert files.encoder.finish() == encoded(RECORDS)[2]


@pytest.mark.parametrize("late", [RECORDS[-1], RECORDS[3], RECORDS[3]._replace(offset=4)])
def test_offset_that_does_not_rise_is_refused(late: PlainRecord) -> None:
    files = Files()
    files.encoder.append(RECORDS)
    with pytest.raises(CorruptSegment) as caught:
        files.encoder.append([late])
    assert str(caught.value) == f"The record at offset {late.offset} comes after offset 4294967296: offsets must rise."
    assert (bytes(files.data), bytes(files.index)) == (SEGMENT, INDEX)


def test_record_that_no_format_can_hold_is_refused_before_anything_of_it_is_written() -> None:
    for record, message in [
        (PlainRecord(-1, None, None, None, None), "a record cannot have offset -1"),
        (PlainRecord(3, NOON, 2, None, None), "the record at offset 3 has the timestamp type 2; 0, 1 and None exist"),
    ]:
        with pytest.raises(ValueError, match=message):
            pack_record(record)
    files = Files()
    with pytest.raises(ValueError, match="timestamp type 2"):
        files.encoder.append([RECORDS[0], PlainRecord(3, NOON, 2, None, None)])
    assert (bytes(files.data), bytes(files.index)) == (b"\x01", b"\x01")


def test_segment_without_a_record_cannot_be_finished() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        Files().encoder.finish()


def test_facts_without_timestamps_say_so() -> None:
    facts = encoded([PlainRecord(7, None, None, b"k", b"v"), PlainRecord(8, None, 0, b"k", b"v")])[2]
    assert (facts.min_timestamp, facts.max_timestamp, facts.append_time, facts.gaps) == (-1, -1, False, False)


# ---- reading what is damaged


def test_other_version_is_refused_by_name() -> None:
    with pytest.raises(CorruptSegment) as caught:
        read(b"\x02" + SEGMENT[1:])
    assert str(caught.value) == (
        "The segment begins with 0x02, which is version 2 of the Records format; only version 1 can be read. A newer "
        "version of the tool wrote it: read it with that version."
    )


def test_first_byte_that_is_no_version_is_refused() -> None:
    for first in (0x00, 0x20, 0x7B, 0xFF):
        with pytest.raises(CorruptSegment) as caught:
            read(bytes([first]) + SEGMENT[1:])
        assert str(caught.value) == (
            f"The segment begins with 0x{first:02x} instead of 0x01. It is damaged, or not a file of the Records "
            "format."
        )


def test_empty_segment_is_refused() -> None:
    with pytest.raises(CorruptSegment, match="The segment is empty: not even its first byte, the version, is there"):
        read(b"")


def test_segment_of_no_records_is_read() -> None:
    assert read(b"\x01") == []


def test_segment_cut_at_every_byte_gives_the_records_before_and_says_which_is_cut() -> None:
    for cut in range(1, len(SEGMENT)):
        whole = sum(end <= cut for end in POSITIONS[1:])
        got: list[PlainRecord] = []
        if cut == POSITIONS[whole]:
            assert read(SEGMENT[:cut]) == RECORDS[:whole]
            continue
        with pytest.raises(CorruptSegment) as caught:
            got.extend(record for run in read_segment([SEGMENT[:cut]]) for record in run)
        assert got == RECORDS[:whole]
        assert f"cut short: the record at position {POSITIONS[whole]} needs at least" in str(caught.value)
        assert str(caught.value).endswith(f"and {cut - POSITIONS[whole]} are left.")


def test_segment_of_another_size_than_known_is_refused() -> None:
    with pytest.raises(CorruptSegment, match=r"^The segment has 197 bytes, not 230\.$"):
        list(read_segment([SEGMENT[:197]], size=230))
    with pytest.raises(CorruptSegment, match=r"^The segment has 230 bytes, not 197\.$"):
        list(read_segment([SEGMENT], size=197))


LIES = [
    (8, 2, "The record of offset 0 at position 1 has the timestamp type 2; -2, -1, 0 and 1 exist."),
    (8, -3, "The record of offset 0 at position 1 has the timestamp type -3; -2, -1, 0 and 1 exist."),
    (20, -2, "The record of offset 0 at position 1 has a key of -2 bytes."),
    (26, -2, "The record of offset 0 at position 1 has a value of -2 bytes."),
    (32, -1, "The record of offset 0 at position 1 has -1 headers."),
    (124 + 33, -1, "The record of offset 6 at position 125 has a header key of -1 bytes."),
    (124 + 38, -2, "The record of offset 6 at position 125 has a header value of -2 bytes."),
]


@pytest.mark.parametrize(("at", "number", "message"), LIES)
def test_number_that_cannot_be_is_refused_with_its_record(at: int, number: int, message: str) -> None:
    damaged = bytearray(SEGMENT)
    damaged[1 + at : 5 + at] = struct.pack(">i", number)
    with pytest.raises(CorruptSegment) as caught:
        read(bytes(damaged))
    assert str(caught.value) == message


@pytest.mark.parametrize("at", [20, 26, 32, 124 + 33, 124 + 38])
def test_length_that_lies_is_found_before_more_than_a_block_is_read(at: int) -> None:
    damaged = bytearray(SEGMENT)
    damaged[1 + at : 5 + at] = struct.pack(">i", 2**31 - 1)
    size = 2**40
    read_bytes = 0

    def blocks() -> Iterator[bytes]:
        nonlocal read_bytes
        read_bytes = len(damaged)
        yield bytes(damaged)
        while True:
            read_bytes += BLOCK_BYTES
            yield bytes(BLOCK_BYTES)

    with pytest.raises(CorruptSegment, match="cut short"):
        for _ in read_segment(blocks(), size=2**31):
            pass
    assert read_bytes <= 2 * BLOCK_BYTES < size


def test_offsets_that_do_not_rise_are_refused() -> None:
    packed = pack_record(RECORDS[0])
    with pytest.raises(CorruptSegment) as caught:
        read(SEGMENT + packed)
    assert str(caught.value) == (
        "The record at position 230 has offset 0 and follows offset 4294967296: offsets must rise."
    )
    with pytest.raises(CorruptSegment, match=r"^The record at position 1 has offset -1\.$"):
        read(b"\x01" + b"\xff" * 8 + packed[8:])


def test_flipped_byte_is_refused_or_seen_by_the_index_or_changes_one_record_only() -> None:
    """Nothing in the format protects a key or a value; a flip in a length can end where another record ends."""
    for at in range(1, len(SEGMENT)):
        damaged = bytearray(SEGMENT)
        damaged[at] ^= 0x40
        try:
            blocks = list(read_blocks([bytes(damaged)], size=len(damaged)))
        except CorruptSegment:
            continue
        if build_index(([r.offset for r in b.records], b.positions) for b in blocks) == INDEX:
            got = [record for block in blocks for record in block.records]
            assert sum(one != other for one, other in zip(got, RECORDS, strict=True)) == 1, at


# ---- round trips


@given(rising_records(), st.integers(1, 500))
@example([PlainRecord(0, None, None, None, None)], 1)
@settings(max_examples=scaled(150, light=25), deadline=None)
def test_records_come_back_from_their_bytes(records: list[PlainRecord], piece: int) -> None:
    data, index, facts = encoded(records)
    assert read(data, piece) == records
    assert index == build_index(([r.offset for r in b.records], b.positions) for b in read_blocks([data]))
    assert [entry[2] for entry in map(read_index(index).entry, range(len(records)))] == [
        len(pack_record(record)) for record in records
    ]
    assert facts.largest_record == max(
        len(r.key or b"")
        + len(r.value or b"")
        + sum(len(name.encode("utf-8", "surrogateescape")) + len(value or b"") for name, value in r.headers)
        for r in records
    )
    times = [r.timestamp for r in records if r.timestamp is not None]
    assert facts.min_timestamp == min(times, default=-1)
    assert facts.max_timestamp == max([-1, *times])


def test_a_segment_of_times_before_1970_says_what_a_reader_counts() -> None:
    records = [PlainRecord(0, -5, 0, None, b"a"), PlainRecord(1, -86_400_000, 0, None, b"b")]
    _, _, facts = encoded(records)
    counted = CountedRecords()
    counted.note(records)
    assert (facts.min_timestamp, facts.max_timestamp) == (counted.min_timestamp, counted.max_timestamp)
    assert (facts.min_timestamp, facts.max_timestamp) == (-86_400_000, -1)


@given(st.lists(rising_records(), min_size=1, max_size=3), st.integers(1, 600))
@settings(max_examples=scaled(60), deadline=None)
def test_encoding_does_not_depend_on_how_records_are_handed_over(runs: list[list[PlainRecord]], limit: int) -> None:
    records: list[PlainRecord] = []
    for run in runs:
        shift = records[-1].offset + 1 if records else 0
        records += [record._replace(offset=record.offset + shift) for record in run]
    together, alone = Files(limit), Files(limit)
    taken = together.encoder.append(records)
    assert sum(alone.encoder.append([record]) for record in records) == taken
    assert (together.data, together.index) == (alone.data, alone.index)
    assert together.encoder.finish() == alone.encoder.finish()


def test_many_records_of_like_and_unlike_lengths_come_back() -> None:
    """Shapes of records are remembered, up to a number of them; a MiB at a time is read."""
    records = [
        PlainRecord(at, NOON + at, at % 2, None if at % 3 else b"k" * (at % 7), bytes(at % 2500), ())
        for at in range(6000)
    ]
    records += [PlainRecord(at, NOON, 0, b"key", bytes(100)) for at in range(6000, 20000)]
    data = encoded(records)[0]
    runs = list(read_segment([data], size=len(data)))
    assert [record for run in runs for record in run] == records
    assert len(runs) == len(data) // BLOCK_BYTES + 1


def test_record_larger_than_many_blocks_is_read() -> None:
    records = [PlainRecord(0, NOON, 0, b"k", bytes(5 * BLOCK_BYTES)), PlainRecord(1, NOON, 0, b"k", b"v")]
    data = encoded(records)[0]
    assert read(data, 1000) == records


def test_what_is_lost_belongs_to_batches() -> None:
    assert sorted(OF_BATCHES) == ["batch bounds", "compression", "producer ids and sequences", "transactions"]


def test_record_that_is_too_large_is_refused_before_it_is_gathered() -> None:
    size = stored_record_most() + 1
    head = struct.pack(">qiqi", 5, 0, NOON, -1) + struct.pack(">i", size)
    given = 0

    def blocks() -> Iterator[bytes]:
        nonlocal given
        yield MAGIC + head
        while given < size:
            given += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(
        BatchTooLarge, match=f"The record at position 1 of the segment has .* at most {size - 1} are read"
    ):
        list(read_segment(blocks()))
    assert given <= 2 << 20

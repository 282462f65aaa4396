"""The content of a batch, held against Kafka's own classes (golden file) and aiokafka's codec."""

import json
import random
import struct
from pathlib import Path

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, Codec, check_crc, parse_header, walk
from logkeep_engine.log.compression import compress, decompress
from logkeep_engine.log.packer import Packer
from logkeep_engine.log.records import ControlType, Record, control_type, decode, encode, unpack
from tests.examples import scaled
from tests.unit.log.batches import NOON, batch, marker, rewrite, with_header

GOLDEN = json.loads((Path(__file__).parent / "golden" / "kafka-4.1.1-batches.json").read_text())
GOLDEN_RECORDS = [
    Record(41, NOON, b"k0", b"value number zero zero zero zero zero zero zero"),
    Record(42, NOON + 2000, None, b"no key"),
    Record(43, NOON + 1000, b"k2", None),
    Record(44, NOON + 1500, b"", b""),
]

nullable = st.none() | st.binary(max_size=80) | st.binary(min_size=1, max_size=4).map(lambda piece: piece * 900)
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), st.none() | st.binary(max_size=70)), max_size=4)
timestamps = st.integers(-1, 2**45) | st.integers(NOON - 100, NOON + 100)


@st.composite
def record_lists(draw: st.DrawFn, gaps: bool = True) -> list[Record]:
    count = draw(st.integers(1, 12))
    offset = draw(st.integers(0, 2**50))
    found = []
    for _ in range(count):
        found.append(Record(offset, draw(timestamps), draw(nullable), draw(nullable), tuple(draw(headers))))
        offset += draw(st.sampled_from([1, 2, 63, 64, 65, 8192, 2**21, 2**26]) if gaps else st.just(1))
    return found


@given(records=record_lists(), codec=st.sampled_from(Codec), lead=st.integers(0, 100))
def test_records_come_back_as_they_were(records: list[Record], codec: Codec, lead: int) -> None:
    base_offset = max(0, records[0].offset - lead)
    packed = encode(records, codec=codec, base_offset=base_offset, producer_id=9, producer_epoch=2, base_sequence=5)
    header = parse_header(packed)
    check_crc(packed, 0, header)
    assert decode(packed) == records
    assert decode(memoryview(b"abc" + packed + b"xyz"), 3) == records
    assert (header.base_offset, header.last_offset, header.record_count) == (
        base_offset,
        records[-1].offset,
        len(records),
    )
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 9, 2, 5)
    assert header.max_timestamp == max(record.timestamp for record in records)


@given(records=record_lists(gaps=False), codec=st.sampled_from(Codec))
@settings(max_examples=scaled(50))
def test_aiokafka_reads_what_we_write(records: list[Record], codec: Codec) -> None:
    packed = encode(records, codec=codec, base_offset=records[0].offset)
    reader = DefaultRecordBatch(packed)
    assert reader.validate_crc()
    found = [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((k.encode(), v) for k, v in r.headers)) for r in reader
    ]
    assert found == records


@given(records=record_lists(gaps=False), codec=st.sampled_from(Codec))
@settings(max_examples=scaled(50))
def test_we_read_what_aiokafka_writes(records: list[Record], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for i, record in enumerate(records):
        pairs = [(key.decode(), value) for key, value in record.headers]
        assert builder.append(i, abs(record.timestamp), record.key, record.value, pairs) is not None
    packed = bytes(builder.build())
    check_crc(packed, 0, parse_header(packed))
    expected = [record._replace(offset=i, timestamp=abs(record.timestamp)) for i, record in enumerate(records)]
    assert decode(packed) == expected  # aiokafka takes -1 for "not set yet": it cannot write it as a first timestamp


@pytest.mark.parametrize("name", GOLDEN)
def test_every_format_codec_and_timestamp_type_of_kafka_is_read(name: str) -> None:
    log = bytes.fromhex(GOLDEN[name])
    magic, codec, kind = name.split("-")
    found = []
    for pos, header in walk(log):
        check_crc(log, pos, header)
        records = decode(log, pos)
        assert (header.magic, header.codec.name.lower()) == (int(magic[-1]), codec)
        assert header.is_log_append_time is (kind == "append")
        assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
        assert header.record_count == len(records)
        assert header.max_timestamp == max(record.timestamp for record in records)
        found += records
    times = {"magic0-create": -1, "magic1-append": NOON + 9000, "magic2-append": NOON + 9000}
    fixed = times.get(f"{magic}-{kind}")
    assert found == [record if fixed is None else record._replace(timestamp=fixed) for record in GOLDEN_RECORDS]


@pytest.mark.parametrize("name", [name for name in GOLDEN if not name.startswith("magic2")])
def test_damaged_messages_of_magic_0_and_1_are_noticed(name: str) -> None:
    log = bytes.fromhex(GOLDEN[name])
    (_, header), *_ = walk(log)
    for at in range(12, header.size):
        damaged = bytearray(log)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBatch):
            check_crc(damaged, 0, parse_header(damaged))
    for cut in range(header.size):
        with pytest.raises(CorruptBatch):
            decode(log[:cut])
    with pytest.raises(CorruptBatch, match="Decode and encode it"):
        rewrite(log[: header.size], base_offset=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)


def test_wrapper_of_magic_1_without_an_offset_keeps_relative_offsets() -> None:
    log = bytearray.fromhex(GOLDEN["magic1-gzip-create"])
    log[:8] = bytes(8)  # as old versions of librdkafka sent it
    assert [record.offset for record in decode(log)] == [0, 1, 2, 3]


def test_dense_renumbers_and_drops_gaps() -> None:
    records = [Record(10, NOON, None, b"a"), Record(900, NOON, None, b"b"), Record(5, NOON, None, b"c")]
    packed = encode(records, codec=Codec.NONE, base_offset=70, dense=True)
    assert [(r.offset, r.value) for r in decode(packed)] == [(70, b"a"), (71, b"b"), (72, b"c")]
    assert not parse_header(packed).has_gaps


@pytest.mark.parametrize("offsets", [[], [5, 5], [6, 5], [4], [5, 5 + 2**31]])
def test_offsets_that_a_batch_cannot_hold_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one record|cannot follow"):
        encode([Record(offset, NOON, None, None) for offset in offsets], codec=Codec.NONE, base_offset=5)


def test_farthest_times_survive() -> None:
    records = [Record(i, time, None, None) for i, time in enumerate([2**63 - 1, -(2**63), 0, -1])]
    assert decode(encode(records, codec=Codec.NONE, base_offset=0)) == records


def test_log_append_time_gives_every_record_the_time_of_the_append() -> None:
    appended = with_header(batch(0, 3), attributes=0x08, max_timestamp=NOON + 999)
    assert [record.timestamp for record in decode(appended)] == [NOON + 999] * 3


def test_batch_emptied_by_compaction_has_no_records() -> None:
    emptied = with_header(
        batch(20)[:8] + struct.pack(">i", 49) + batch(20)[12:HEADER_SIZE], last_offset_delta=6, record_count=0
    )
    assert decode(emptied) == []
    assert parse_header(emptied).has_gaps


def test_control_batches_say_their_type() -> None:
    assert control_type(marker(3, 1, commit=True)) is ControlType.COMMIT
    assert control_type(marker(3, 1, commit=False)) is ControlType.ABORT
    newer = encode([Record(0, NOON, struct.pack(">hh", 0, 99), b"")], codec=Codec.NONE, base_offset=0)
    assert control_type(with_header(newer, attributes=0x20)) is ControlType.OTHER
    empty = batch(0)[:8] + struct.pack(">i", 49) + batch(0)[12:HEADER_SIZE]
    assert control_type(with_header(empty, attributes=0x30, record_count=0)) is ControlType.OTHER
    with pytest.raises(ValueError, match="offset 8 is not a control batch"):
        control_type(batch(8))
    with pytest.raises(CorruptBatch, match=r"offset 8.*key"):
        control_type(with_header(batch(8), attributes=0x20))


@pytest.mark.parametrize("codec", Codec)
def test_batch_cut_at_any_byte_is_refused(codec: Codec) -> None:
    whole = batch(31, 20, codec=codec)
    for cut in range(len(whole)):
        with pytest.raises(CorruptBatch, match=r"offset 31|cut short"):
            decode(whole[:cut])


@pytest.mark.parametrize("codec", Codec)
def test_garbage_never_does_worse_than_corrupt_batch(codec: Codec) -> None:
    chance = random.Random(7)
    whole = batch(31, 40, codec=codec, value=b"some value")
    refused = unnamed = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(HEADER_SIZE, len(whole))] = chance.randrange(256)
        try:
            decode(damaged)
        except CorruptBatch as problem:
            refused += "offset 31" in problem.message
            unnamed += "offset 31" not in problem.message
    assert refused > 0
    assert unnamed == 0


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("10" + "000000" + "0202" + "00", "cut short|does not fill|bytes at"),
        ("0e" + "000000" + "7e" + "00000000", "key of the record at offset 50"),
        ("0e" + "000000" + "01" + "7e" + "0000", "value of the record at offset 50"),
        ("0e" + "000000" + "0101" + "01" + "00", "cannot have -1 headers"),
        ("0e" + "000000" + "0101" + "7e" + "00", "cannot have 63 headers"),
        ("10" + "000000" + "0101" + "02" + "0100", "header key .* cannot have -1 bytes"),
        ("10" + "000000" + "0101" + "02" + "0010", "header value .* cannot have 8 bytes"),
        ("0c" + "000000" + "0101" + "00" + "00", "1 bytes are left over"),
        ("0e" + "000000" + "0101" + "0000", "does not fill its length"),
        ("04" + "0000", "record of 2 bytes"),
        ("ff" * 11, "more than 10 bytes"),
    ],
)
def test_records_that_do_not_fit_together_are_refused(body: str, complaint: str) -> None:
    packed = bytes.fromhex(body)
    head = batch(50)
    made = head[:8] + struct.pack(">i", 49 + len(packed)) + head[12:HEADER_SIZE] + packed
    with pytest.raises(CorruptBatch, match=f"The batch at offset 50 is damaged: .*({complaint})"):
        decode(made)


@given(data=st.binary(max_size=200) | st.binary(min_size=1, max_size=9).map(lambda piece: piece * 20_000))
@settings(max_examples=scaled(40))
def test_codecs_give_back_what_they_got(data: bytes) -> None:
    for codec in Codec:
        assert decompress(codec, memoryview(compress(codec, data))) == data


def test_snappy_is_written_framed_and_read_raw_framed_and_in_several_streams() -> None:
    data = bytes(range(256)) * 300
    framed = compress(Codec.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    raw = bytes(cramjam.snappy.compress_raw(data))
    for form, expected in ((framed, data), (raw, data), (framed + framed, data * 2)):
        assert decompress(Codec.SNAPPY, memoryview(form)) == expected


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\x0f" + b"\x00a",  # a raw block that claims 4 GiB
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"\x7f\xff\xff\xff" + b"abc",
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"\xff\xff\xff\xff" + b"abc",
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"\x00\x00",
        b"",
    ],
)
def test_snappy_lengths_that_cannot_be_are_refused(block: bytes) -> None:
    with pytest.raises(CorruptBatch, match="snappy"):
        decompress(Codec.SNAPPY, memoryview(block))


def test_lz4_blocks_are_independent_as_javas_reader_demands() -> None:
    frame = compress(Codec.LZ4, b"abc" * 100_000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_zstd_frame_that_claims_a_huge_content_allocates_nothing() -> None:
    frame = bytes.fromhex("28b52ffd" + "e0" + "ffffffffffffff0f" + "010000")  # content size 2**60
    with pytest.raises(CorruptBatch, match="zstd"):
        decompress(Codec.ZSTD, memoryview(frame))


def packed_again(batches: list[bytes], codec: Codec) -> bytes:
    packer = Packer()
    for data in batches:
        header = parse_header(data)
        packer.add(unpack(memoryview(data), header), header)
    return packer.batch(codec, producer_id=5, producer_epoch=1, base_sequence=77)


class TestPacker:
    @pytest.mark.parametrize("codec", list(Codec))
    def test_makes_the_batch_that_decoding_and_encoding_makes(self, codec: Codec) -> None:
        batches = [batch(at, 1 + at % 5, codec=codec, value=b"v" * (at % 200)) for at in range(0, 1000, 10)]
        records = [record for data in batches for record in decode(data)]
        expected = encode(
            records, codec=codec, base_offset=0, producer_id=5, producer_epoch=1, base_sequence=77, dense=True
        )
        assert packed_again(batches, codec) == expected

    def test_takes_more_records_than_fit_two_byte_numbers(self) -> None:
        large = [batch(at, 3000, timestamp=NOON - at * 1000) for at in range(0, 30_000, 3000)]
        made = packed_again(large, Codec.NONE)
        expected = [record for data in large for record in decode(data)]
        assert [record[1:] for record in decode(made)] == [record[1:] for record in expected]

    def test_tells_where_the_records_come_from(self) -> None:
        made = [Record(at, NOON, None, b"") for at in (100, 101, 105, 106, 110)]
        data = encode(made, codec=Codec.NONE, base_offset=98)
        header = parse_header(data)
        packer = Packer()
        packer.add(unpack(memoryview(data), header), header)
        assert packer.rows == ((100, 2), (105, 2), (110, 1))

    def test_damage_is_reported_or_does_not_show_in_the_lengths(self) -> None:
        """Whatever the bytes are, only CorruptBatch is raised, and what is made is a batch of as many records."""
        data = batch(7, 5, value=b"x" * 70)
        header = parse_header(data)
        lines: list[str] = []
        for at in range(HEADER_SIZE, len(data)):
            for bit in (0x01, 0x40, 0x80, 0xFF):
                damaged = bytearray(data)
                damaged[at] ^= bit
                packer = Packer()
                try:
                    packer.add(memoryview(damaged)[HEADER_SIZE:], header)
                except CorruptBatch as error:
                    lines.append(error.message)
                else:
                    assert packer.count == 5
        assert len(lines) > 20
        assert all("offset 7 is damaged" in message for message in lines)
        with pytest.raises(CorruptBatch, match="a record is cut short"):
            Packer().add(data[HEADER_SIZE:], header._replace(record_count=6))

    def test_damaged_compressed_records_are_reported(self) -> None:
        data = bytearray(batch(7, 5, codec=Codec.ZSTD))
        data[HEADER_SIZE] ^= 0xFF
        with pytest.raises(CorruptBatch, match="offset 7 is damaged: its zstd data cannot be decompressed"):
            unpack(memoryview(data), parse_header(data))

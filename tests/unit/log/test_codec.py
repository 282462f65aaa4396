"""Objects by the kernel, held against the plain codec: the same records, the same bytes, the same refusals."""

import random
import struct
from collections.abc import Callable, Generator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, zip_longest

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log import records
from logkeep_engine.log.batch import HEADER_SIZE, Codec, check_crc, parse_header, walk
from logkeep_engine.log.codec import check_offsets, decode_records, decode_slices, encode_records
from logkeep_engine.log.compression import compress
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.records import Record
from tests.examples import scaled
from tests.unit.log.batches import NOON, batch, marker, with_header
from tests.unit.log.test_records import GOLDEN, GOLDEN_RECORDS

nullable = st.none() | st.binary(max_size=80) | st.binary(min_size=1, max_size=4).map(lambda piece: piece * 900)
header_keys = st.text(max_size=5).map(str.encode) | st.binary(max_size=4)
headers = st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=70)), max_size=4)
times = st.integers(-1, 2**45) | st.integers(NOON - 100, NOON + 100) | st.integers(-(2**63), 2**63 - 1) | st.just(-1)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    offset = draw(st.integers(0, 2**50))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        found.append(Record(offset, draw(times), draw(nullable), draw(nullable), tuple(draw(headers))))
        offset += draw(st.sampled_from([1, 1, 1, 2, 63, 64, 65, 8192, 2**21, 2**26]))
    return found


def seen(found: Sequence[LogRecord]) -> list[PlainRecord]:
    return [
        PlainRecord(
            record.offset,
            -1 if record.timestamp is None else record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            list(record.headers),
        )
        for record in found
    ]


def as_seen(source: Sequence[Record], kind: int | None = 0) -> list[PlainRecord]:
    """The records as a consumer sees them."""
    return [
        PlainRecord(
            record.offset,
            record.timestamp,
            kind,
            record.key,
            record.value,
            [(key.decode("utf-8", "surrogateescape"), value) for key, value in record.headers],
        )
        for record in source
    ]


@given(
    source=record_lists(),
    codec=st.sampled_from(Codec),
    flags=st.sampled_from([0, 0x08, 0x10, 0x20, 0x30, 0x18, 0x40]),
    lead=st.integers(0, 100),
)
@example([Record(7, NOON, None, None), Record(8, -1, None, None)], Codec.LZ4, 0, 0)
@example([Record(7, -1, b"", b"")], Codec.NONE, 0x08, 0)
@example([Record(7, NOON, b"", b"", ((b"\xff", b"x"), (b"\xff", None)))], Codec.ZSTD, 0, 0)
def test_both_decoders_see_the_same_records(source: list[Record], codec: Codec, flags: int, lead: int) -> None:
    base_offset = max(0, source[0].offset - lead)
    made = with_header(records.encode(source, codec=codec, base_offset=base_offset), attributes=flags | codec)
    expected = as_seen(records.decode(made), kind=1 if flags & 0x08 else 0)
    assert seen(decode_records(made)) == expected
    assert seen(decode_records(memoryview(made + b"rest"), parse_header(made))) == expected


@given(source=record_lists(), codec=st.sampled_from(Codec), dense=st.booleans(), lead=st.integers(0, 100))
@example([Record(7, -1, None, b"a"), Record(8, NOON, b"b", None)], Codec.NONE, True, 0)
@example([Record(7, NOON, None, b"a"), Record(8, -1, b"b", None)], Codec.NONE, False, 3)
def test_both_encoders_make_the_same_bytes(source: list[Record], codec: Codec, dense: bool, lead: int) -> None:
    base_offset = max(0, source[0].offset - lead)
    plain = partial(records.encode, codec=codec, dense=dense, base_offset=base_offset)
    fast = partial(encode_records, codec=codec, dense=dense, base_offset=base_offset)
    expected = plain(source, producer_id=2**40, producer_epoch=7, base_sequence=2**30)
    assert fast(as_seen(source), producer_id=2**40, producer_epoch=7, base_sequence=2**30) == expected
    check_crc(expected, 0, parse_header(expected))
    again = decode_records(expected)
    if not dense:
        assert seen(again) == as_seen(source)
    assert fast(again) == plain(records.decode(expected))


def test_a_batch_of_many_records_passes_both_ways() -> None:
    source = [Record(i, NOON + i % 7, b"%d" % i, b"v" * (i % 50), ((b"n", b"%d" % i),)) for i in range(20_000)]
    made = records.encode(source, codec=Codec.LZ4, base_offset=0)
    found = decode_records(made)
    assert seen(found) == as_seen(source)
    assert encode_records(found, codec=Codec.LZ4, base_offset=0) == made


def test_missing_timestamps_keep_their_type() -> None:
    source = [Record(0, NOON, None, b"v"), Record(1, -1, None, b"v"), Record(2, NOON + 1, None, b"v")]
    found = decode_records(records.encode(source, codec=Codec.NONE, base_offset=0))
    assert [(r.timestamp, r.timestamp_type) for r in found] == [(NOON, 0), (None, 0), (NOON + 1, 0)]


def test_header_keys_that_are_not_text_survive_both_ways() -> None:
    source = [Record(0, NOON, b"k", b"v", ((b"\xff\xfe", b"1"), (b"a", None), (b"\xff\xfe", b"2"), (b"", b"")))]
    made = records.encode(source, codec=Codec.NONE, base_offset=0)
    (found,) = decode_records(made)
    assert list(found.headers) == [("\udcff\udcfe", b"1"), ("a", None), ("\udcff\udcfe", b"2"), ("", b"")]
    assert encode_records([found], codec=Codec.NONE, base_offset=0) == made


@pytest.mark.parametrize("name", GOLDEN)
def test_every_format_codec_and_timestamp_type_of_kafka_is_read(name: str) -> None:
    log = bytes.fromhex(GOLDEN[name])
    magic, _, stamped = name.split("-")
    found = [record for pos, header in walk(log) for record in decode_records(log[pos : pos + header.size])]
    slices = [part for pos, header in walk(log) for part in decode_slices(log[pos : pos + header.size])]
    assert seen([*chain.from_iterable(slices)]) == seen(found)
    fixed = {"magic0-create": (-1, None), "magic1-append": (NOON + 9000, 1), "magic2-append": (NOON + 9000, 1)}
    time, kind = fixed.get(f"{magic}-{stamped}", (None, 0))
    expected = as_seen(GOLDEN_RECORDS, kind)
    assert seen(found) == [record if time is None else record._replace(timestamp=time) for record in expected]


def test_markers_are_the_records_of_a_control_batch() -> None:
    (found,) = decode_records(marker(3, 1, commit=True))
    assert (found.offset, found.key) == (3, struct.pack(">hh", 0, 1))


def test_batch_emptied_by_compaction_has_no_records() -> None:
    emptied = batch(20)[:8] + struct.pack(">i", 49) + batch(20)[12:HEADER_SIZE]
    assert list(decode_records(with_header(emptied, last_offset_delta=6, record_count=0))) == []
    assert list(decode_slices(with_header(emptied, last_offset_delta=6, record_count=0))) == []


@pytest.mark.parametrize("offsets", [[], [5, 5], [6, 5], [4], [5, 5 + 2**31]])
def test_offsets_that_a_batch_cannot_hold_are_refused(offsets: list[int]) -> None:
    source = [PlainRecord(offset, NOON, 0, None, None) for offset in offsets]
    with pytest.raises(ValueError, match=r"at least one record|cannot follow"):
        encode_records(source, codec=Codec.NONE, base_offset=5)


@pytest.mark.parametrize("codec", Codec)
def test_batch_cut_at_any_byte_is_refused(codec: Codec) -> None:
    whole = batch(31, 20, codec=codec)
    for cut in range(len(whole)):
        with pytest.raises(CorruptBatch, match=r"offset 31|cut short"):
            decode_records(whole[:cut])


@pytest.mark.parametrize("codec", Codec)
def test_damage_is_refused_by_both_or_by_none(codec: Codec) -> None:
    chance = random.Random(7)
    source = [Record(31 + i, NOON + i, b"k%d" % i, b"some value", ((b"h", b"x"),)) for i in range(40)]
    whole = records.encode(source, codec=codec, base_offset=31)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(HEADER_SIZE, len(whole))] = chance.randrange(256)
        plain = outcome(records.decode, damaged)
        compiled = outcome(decode_records, damaged)
        assert (plain is None) == (compiled is None)
        refused += plain is None
    assert refused > 100


@given(body=st.binary(max_size=60) | st.binary(max_size=30).map(lambda tail: bytes.fromhex("1000000001010202") + tail))
@settings(max_examples=scaled(400, light=60))
def test_no_bytes_do_worse_than_corrupt_batch(body: bytes) -> None:
    made = with_body(body)
    for count in (1, 2, 63, 2**31 - 1):
        struct.pack_into(">i", made, 57, count)
        assert (outcome(records.decode, made) is None) == (outcome(decode_records, made) is None)


FAR = "feffffffffffffffff01"  # 2**63 - 1, zigzag
NEAR = "c2ffffffffffffffff01"  # 2**63 - 31


@pytest.mark.parametrize("length", [FAR, NEAR, "feffffff0f", "feffffff1f", "80808080808001", "ff" * 10, "ff" * 30])
@pytest.mark.parametrize("before", ["", "000000", "00000001", "0000000101", "000000010102", "0000000101020261"])
def test_lengths_that_lie_are_refused(before: str, length: str) -> None:
    for record in (before + length, before + length + "00" * 40):
        body = bytes.fromhex(record)
        for framed in (bytes([len(body) * 2 & 0x7F]) + body, body):
            with pytest.raises(CorruptBatch, match="The batch at offset 50 is damaged"):
                decode_records(with_body(framed))


@pytest.mark.parametrize("size", [4096, 131072, 1 << 20])
def test_a_header_that_runs_over_the_end_of_its_memory_is_refused(size: int) -> None:
    """Large blocks of memory end where a page may end: one byte further is a crash."""
    for spare in range(64):
        tail = bytes.fromhex("7e" + "00" + "ff" * 9)  # 63 headers: an empty key, then a length that does not end
        value = bytes(size - HEADER_SIZE - 33 - 16 - len(tail) - spare)
        body = bytearray(b"\x00\x00\x00\x01")
        for shift in range(0, 63, 7):
            number = (len(value) * 2) >> shift
            body.append(number & 0x7F | (0x80 if number >> 7 else 0))
            if not number >> 7:
                break
        with pytest.raises(CorruptBatch, match="The batch at offset 50 is damaged"):
            decode_records(with_body(b"\x02" + bytes(body) + value + tail))


def with_body(body: bytes) -> bytearray:
    head = batch(50)
    return bytearray(head[:8] + struct.pack(">i", 49 + len(body)) + head[12:HEADER_SIZE] + body)


def outcome(decode: Callable[[bytes], Sized], data: bytearray) -> int | None:
    """The number of records; None if the batch is refused by name."""
    try:
        return len(decode(bytes(data)))
    except CorruptBatch as problem:
        return None if "The batch at offset" in problem.message else -1


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_batches_larger_than_the_memory_they_are_decompressed_into_are_read_as_well(codec: Codec) -> None:
    sizes = [10, 3 << 20, 20, 2 << 20, 9 << 20, 30]
    batches = [
        encode_records([PlainRecord(0, NOON, 0, b"key", b"v" * size, [])], codec=codec, base_offset=0) for size in sizes
    ]
    found = [decode_records(batch) for batch in batches]
    assert [len(records[0].value or b"") for records in found] == sizes
    assert {records[0].key for records in found} == {b"key"}


def test_threads_that_decode_at_once_do_not_share_memory() -> None:
    batches = [
        encode_records(
            [PlainRecord(at, NOON, 0, None, b"%d" % number * 50, []) for at in range(200)],
            codec=Codec.LZ4,
            base_offset=0,
        )
        for number in range(8)
    ]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: decode_records(batches[number % 8]), range(400)))
    assert [{record.value for record in records} for records in found] == [
        {b"%d" % (number % 8) * 50} for number in range(400)
    ]


def many(count: int, codec: Codec, *odd: int, mark: bytes = b"") -> bytes:
    """A batch of records with values of their own; those at `odd` have a header key that is not UTF-8."""
    return records.encode(
        [
            Record(100 + at, NOON, None, mark + b"%d" % at, ((b"\xff", None),) if at in odd else ())
            for at in range(count)
        ],
        codec=codec,
        base_offset=100,
    )


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1, 127, 128, 129, 256, 1000])
@pytest.mark.parametrize("odd", [(), (0,), (128,), (300, 999)])
def test_slices_are_the_records_in_short_lists(codec: Codec, count: int, odd: tuple[int, ...]) -> None:
    made = many(count, codec, *odd)
    slices = list(decode_slices(made))
    assert all(slices)
    assert seen([*chain.from_iterable(slices)]) == seen(decode_records(made))
    assert odd or max(map(len, slices)) <= 128


def test_slices_of_two_batches_in_turn_do_not_share_memory() -> None:
    one, two = (many(1000, Codec.LZ4, mark=mark) for mark in (b"one", b"two"))
    pairs = list(zip_longest(decode_slices(one), decode_slices(two)))
    assert seen([*chain.from_iterable(mine for mine, _ in pairs)]) == seen(decode_records(one))
    assert seen([*chain.from_iterable(other for _, other in pairs)]) == seen(decode_records(two))


def test_slices_that_nobody_wants_any_more_give_their_memory_back() -> None:
    made = many(1000, Codec.ZSTD)
    for _ in range(3):
        slices = decode_slices(made)
        assert len(next(slices)) == 128
        assert isinstance(slices, Generator)
        slices.close()
    assert sum(map(len, decode_slices(made))) == 1000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_damage_after_the_first_slice_is_refused_as_that_of_the_whole(codec: Codec) -> None:
    plain = many(1000, Codec.NONE)
    body = bytearray(plain[HEADER_SIZE:])
    body[len(body) // 2] ^= 0x40
    head = plain[:8] + struct.pack(">i", 49) + plain[12:HEADER_SIZE]
    damaged = rewrapped(head, bytes(body), codec)
    with pytest.raises(CorruptBatch) as whole:
        decode_records(damaged)
    taken: list[LogRecord] = []
    with pytest.raises(CorruptBatch) as sliced:
        taken.extend(chain.from_iterable(decode_slices(damaged)))
    assert sliced.value.message == whole.value.message
    assert 0 < len(taken) < 1000
    assert seen(taken) == seen(decode_records(plain))[: len(taken)]


def rewrapped(head: bytes, body: bytes, codec: Codec) -> bytearray:
    packed = compress(codec, body)
    made = bytearray(head[:8] + struct.pack(">i", 49 + len(packed)) + head[12:] + packed)
    made[22] = codec
    return made


def test_offsets_that_do_not_rise_within_their_batch_are_refused() -> None:
    made = many(3, Codec.NONE)
    header = parse_header(made)
    found = decode_records(made)
    assert check_offsets(found, header) == 102
    assert check_offsets(found[1:], header, 100) == 102
    assert check_offsets([], header) == 99
    for wrong, before in ((found[::-1], None), ([found[0], found[0]], None), (found, 100)):
        with pytest.raises(CorruptBatch, match="do not have rising offsets from 100 to 102"):
            check_offsets(wrong, header, before)
    for shifted in (header._replace(base_offset=101), header._replace(last_offset_delta=1)):
        with pytest.raises(CorruptBatch, match="do not have rising offsets"):
            check_offsets(found, shifted)

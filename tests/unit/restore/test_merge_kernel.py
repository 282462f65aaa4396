"""The kernel's stream of batches is that of the Python before it: bounds, source offsets and records are the same, in
one attempt as in the next, and damage is found."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, check_crc, parse_header
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.memory import unpacked_most
from logkeep_engine.log.records import Record, decode, encode, unpack
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.merge import SMALL_BYTES, BatchStream
from tests.examples import scaled
from tests.unit.log import hostile
from tests.unit.log.batches import NOON, batch, marker, with_header
from tests.unit.restore.merge_in_python import in_python

_NONE = Spans()
_TRANSACTIONAL, _APPEND_TIME, _HORIZON = 0x10, 0x08, 0x40


@dataclass(frozen=True)
class Stream:
    """Batches of an archive, and what is asked of them."""

    batches: list[bytes]
    aborted: Spans
    max_bytes: int
    done: int
    cuts: frozenset[int]
    """Where a stretch ends."""


def only(*batches: bytes) -> Stream:
    return Stream(list(batches), _NONE, 1 << 20, 0, frozenset())


def by_kernel(stream: Stream) -> list[Outgoing]:
    made = BatchStream(producer_id=9, max_bytes=stream.max_bytes, aborted=stream.aborted, done=stream.done)
    found: list[Outgoing] = []
    stretch = b""
    for number, data in enumerate(stream.batches):
        stretch += data
        if number in stream.cuts:
            found += made.add(memoryview(stretch))
            stretch = b""
    found += made.add(memoryview(stretch))
    return [*found, *made.finish()]


def by_python(stream: Stream) -> list[Outgoing]:
    return in_python(stream.batches, aborted=stream.aborted, max_bytes=stream.max_bytes, done=stream.done)


def bounds(items: Sequence[Outgoing]) -> list[tuple[object, ...]]:
    """All but what a compressor makes of it."""
    return [(item.index, item.count, item.source, item.append_times, item.data is None) for item in items]


def inside(item: Outgoing) -> tuple[object, ...]:
    """The header without length and CRC, and the records before compression."""
    data = b"".join(item.data or ())
    if not data:
        return ()
    header = parse_header(data)
    check_crc(data, 0, header)
    assert len(data) == header.size == item.size
    return header._replace(batch_length=0, crc=0), bytes(unpack(memoryview(data), header))


def check_same(ours: Sequence[Outgoing], theirs: Sequence[Outgoing]) -> None:
    assert bounds(ours) == bounds(theirs)
    assert [inside(item) for item in ours] == [inside(item) for item in theirs]


_TIMES = st.one_of(st.integers(NOON - 100, NOON + 9000), st.integers(-1, 70), st.integers(-(2**63) + 1, 2**63 - 1))
_BYTES = st.none() | st.binary(max_size=80) | st.sampled_from([b"text, again and again " * 40])
_HEADERS = st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=70)), max_size=2)
_Drawn = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
_RECORD = st.tuples(st.integers(0, 3) | st.sampled_from([0, 9000]), _TIMES, _BYTES, _BYTES, _HEADERS)


@st.composite
def _batches(draw: st.DrawFn) -> list[bytes]:
    offset = draw(st.sampled_from([0, 7, 2**40]))
    made: list[bytes] = []
    for _ in range(draw(st.integers(1, 14))):
        codec = draw(st.sampled_from(list(Codec)))
        producer = draw(st.integers(1, 2))
        kind = draw(st.sampled_from(["few", "few", "few", "few", "large", "many", "old", "marker", "empty", "bomb"]))
        if kind == "marker":
            made.append(marker(offset, producer, commit=draw(st.booleans())))
        elif kind == "old":
            made.append(hostile.wrapper(1, Codec.GZIP, [b"old %d" % offset] * draw(st.integers(1, 3))))
        elif kind == "empty":
            made.append(with_header(batch(offset), base_offset=offset, record_count=0, last_offset_delta=3))
            offset += 3
        elif kind == "many":
            made.append(batch(offset, draw(st.integers(64, 66)), codec=codec))
            offset += 66
        elif kind == "large":
            size = draw(st.integers(SMALL_BYTES - 90, SMALL_BYTES))
            noise = random.Random(offset).randbytes(size)
            made.append(batch(offset, codec=codec, value=noise))
        elif kind == "bomb":
            gapped = batch(offset, draw(st.integers(1, 9)), codec=Codec.ZSTD, value=bytes(150_000))
            delta = 8 + draw(st.integers(0, 1))
            made.append(with_header(gapped, base_offset=offset, attributes=Codec.ZSTD, last_offset_delta=delta))
            offset += delta
        else:
            records = []
            for gap, time, key, value, headers in draw(st.lists(_RECORD, min_size=1, max_size=5)):
                offset += gap
                records.append(Record(offset, time, key, value, tuple(headers)))
                offset += 1
            data = encode(records, codec=codec, base_offset=records[0].offset)
            bits = draw(st.sampled_from([0, 0, _TRANSACTIONAL, _APPEND_TIME, _HORIZON]))
            if bits:
                data = with_header(data, base_offset=records[0].offset, producer_id=producer, attributes=codec | bits)
            made.append(data)
        offset += 1
    return made


@st.composite
def _streams(draw: st.DrawFn) -> Stream:
    batches = draw(_batches())
    spans = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 40), st.integers(0, 20)), max_size=4)
    return Stream(
        batches,
        Spans((producer, first, first + more) for producer, first, more in draw(spans)),
        draw(st.integers(80, 3000) | st.integers(10_000, 1 << 20)),
        draw(st.integers(0, 40)),
        draw(st.frozensets(st.integers(0, len(batches)))),
    )


@settings(max_examples=scaled(250), deadline=None)
@given(_streams())
def test_the_kernel_finds_the_same_batches(stream: Stream) -> None:
    check_same(by_kernel(stream), by_python(stream))


@settings(max_examples=scaled(15), deadline=None)
@given(_batches(), st.integers(200, 800), st.integers(100, 20_000))
def test_the_kernel_finds_the_same_batches_in_long_streams(some: list[bytes], times: int, max_bytes: int) -> None:
    small = [data for data in some if len(data) < 1000][:4]
    stream = Stream(small * times, _NONE, max_bytes, 0, frozenset(range(0, 4 * times, 97)))
    check_same(by_kernel(stream), by_python(stream))


def test_without_compression_not_a_byte_is_different() -> None:
    batches = [batch(at, 1 + at % 5, timestamp=NOON - at) for at in range(0, 30_000, 10)]
    stream = only(*batches)
    ours, theirs = by_kernel(stream), by_python(stream)
    assert len(ours) > 3
    assert [b"".join(item.data or ()) for item in ours] == [b"".join(item.data or ()) for item in theirs]


# ---- damage


def _sound(data: bytes) -> bool:
    """Whether the records of a batch can be read, and their offsets lie in it."""
    header = parse_header(data)
    try:
        records = decode(data)
    except (CorruptBatch, BatchTooLarge):
        return False
    return all(header.base_offset <= record.offset <= header.last_offset for record in records)


@settings(max_examples=scaled(1000), deadline=None)
@given(
    st.sampled_from(list(Codec)),
    st.lists(_RECORD, min_size=1, max_size=4),
    st.data(),
    st.booleans(),
)
def test_damage_in_what_is_packed_is_found(
    codec: Codec, drawn: list[_Drawn], data: st.DataObject, before_compression: bool
) -> None:
    records = [Record(at, time, key, value, tuple(held)) for at, (_, time, key, value, held) in enumerate(drawn)]
    plain = encode(records, codec=Codec.NONE, base_offset=0)[HEADER_SIZE:]
    packed = bytearray(plain if before_compression else compress(codec, plain))
    for _ in range(data.draw(st.integers(1, 2))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    del packed[data.draw(st.integers(1, len(packed)) | st.just(len(packed))) :]
    wrong = hostile.sealed(codec, compress(codec, packed) if before_compression else bytes(packed), count=len(records))
    stream = only(wrong, batch(50, codec=codec))
    ours: list[Outgoing] = []
    text = ""
    try:
        ours = by_kernel(stream)
    except CorruptBatch as error:
        text = error.message
    if text:
        assert text.startswith("The batch at offset 0 is damaged: ")
        assert not _sound(wrong)
    else:
        check_same(ours, by_python(stream))
        assert len(ours) > 1 or _sound(wrong)


def _with_deltas(*deltas: int) -> bytes:
    body = b"".join(b"\x0c\x00\x00" + bytes([delta]) + b"\x01\x01\x00" for delta in deltas)
    return hostile.sealed(Codec.NONE, body, count=len(deltas))


@pytest.mark.parametrize("deltas", [(0, 1), (0, 3), (0, 4), (2, 1)], ids=str)
def test_offsets_outside_of_their_batch_are_damage(deltas: tuple[int, int]) -> None:
    stream = only(_with_deltas(*deltas), batch(2))
    outside = [delta for delta in deltas if delta % 2 or delta > 2]  # zigzag: 1 is -1, 4 is 2
    if not outside:
        assert [item.count for item in by_kernel(stream)] == [3]
        return
    with pytest.raises(CorruptBatch, match="do not have offsets from 0 to 1"):
        by_kernel(stream)


def test_an_lz4_frame_with_a_wrong_checksum_is_damage() -> None:
    frame = bytearray(compress(Codec.LZ4, encode([Record(0, NOON, b"k", b"v")], codec=Codec.NONE, base_offset=0)[61:]))
    frame[6] ^= 1
    stream = only(hostile.sealed(Codec.LZ4, bytes(frame)), batch(1, codec=Codec.LZ4))
    with pytest.raises(CorruptBatch, match="offset 0 is damaged: its lz4 data cannot be decompressed"):
        by_kernel(stream)


@pytest.mark.parametrize("flip", [34, 35, 40])
def test_a_zstd_frame_that_holds_more_than_it_says_is_damage(flip: int) -> None:
    text = b"text, again and again " * 40
    frame = bytearray(compress(Codec.ZSTD, encode([Record(0, NOON, text, text)], codec=Codec.NONE, base_offset=0)[61:]))
    frame[5] ^= flip  # of the size that it says
    stream = only(hostile.sealed(Codec.ZSTD, bytes(frame)), batch(1, codec=Codec.ZSTD))
    with pytest.raises(CorruptBatch, match="offset 0 is damaged: its zstd data cannot be decompressed"):
        by_kernel(stream)


def test_a_codec_that_does_not_exist_is_damage() -> None:
    stream = only(with_header(batch(0), attributes=5), batch(1))
    with pytest.raises(CorruptBatch, match="codec 5, which does not exist"):
        by_kernel(stream)


def test_records_in_several_lz4_frames_go_with_the_others() -> None:
    plain = encode([Record(0, NOON, b"k", b"v")], codec=Codec.NONE, base_offset=0)[HEADER_SIZE:]
    more = compress(Codec.LZ4, plain[:4]) + compress(Codec.LZ4, plain[4:])
    stream = only(hostile.sealed(Codec.LZ4, more), batch(1, codec=Codec.LZ4))
    items = by_kernel(stream)
    assert [item.count for item in items] == [2]
    check_same(items, by_python(stream))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_takes_no_memory(codec: Codec) -> None:
    bomb = hostile.zeros(codec)
    rebuilt = with_header(bomb, attributes=codec | _APPEND_TIME)
    with pytest.raises(BatchTooLarge):
        by_kernel(only(rebuilt))
    made = BatchStream(producer_id=9, max_bytes=1 << 20, aborted=_NONE)
    found: list[Outgoing] = []

    def feed() -> None:
        for data in (batch(0, codec=codec), bomb, batch(2, codec=codec)):
            found.extend(made.add(memoryview(data)))
        found.extend(made.finish())

    assert hostile.peak_of(feed) < 8 << 20
    assert [item.count for item in found] == [1, 1, 1]
    assert unpacked_most() < hostile.ZEROS

"""Which batches go together, and that the records are the same."""

import random
from collections.abc import Iterable, Sequence

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.compression import Codec, compress, surely_fit
from logkeep_engine.log.memory import unpacked_most
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.seekable import frame_bound, store_frame
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.merge import MERGED_BYTES, MERGED_UNPACKED, SMALL_BYTES, SMALL_RECORDS, BatchStream
from tests.examples import scaled
from tests.unit.log import hostile
from tests.unit.log.batches import NOON, batch, with_header
from tests.unit.restore import merge_in_python

NONE = Spans()


def stream(batches: Iterable[bytes], *, done: int = 0, max_bytes: int = 1 << 20) -> list[Outgoing]:
    made = BatchStream(producer_id=9, max_bytes=max_bytes, aborted=NONE, done=done)
    found: list[Outgoing] = []
    for data in batches:
        found += made.add(memoryview(data))
    return [*found, *made.finish()]


def whole(item: Outgoing) -> bytes:
    assert item.data is not None
    return b"".join(item.data)


def shown(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [tuple(record[1:]) for record in records]


def some(*offsets: int, codec: Codec = Codec.NONE, size: int = 10) -> bytes:
    made = [Record(at, NOON + 7 * at, b"k%d" % at, b"v" * size, ((b"h", None),)) for at in offsets]
    return encode(made, codec=codec, base_offset=offsets[0])


def run_of(count: int, *, codec: Codec = Codec.NONE, size: int = 10) -> list[bytes]:
    return [some(at, codec=codec, size=size) for at in range(count)]


def check(items: Sequence[Outgoing], batches: Sequence[bytes]) -> None:
    """The items are batches a broker takes, numbered through, with the records and source offsets of `batches`."""
    index = 0
    records: list[Record] = []
    for item in items:
        header = parse_header(whole(item))
        check_crc(whole(item), 0, header)
        assert (item.index, item.count, item.size) == (index, header.record_count, len(whole(item)))
        assert (header.base_offset, header.producer_id, header.base_sequence) == (0, 9, index)
        assert not header.has_gaps
        found = decode(whole(item))
        assert [record.offset for record in found] == list(range(item.count))
        assert header.max_timestamp == max(record.timestamp for record in found)
        records += found
        index += item.count
    expected = [record for data in batches for record in decode(data)]
    assert shown(records) == shown(expected)
    offsets = [at for item in items for first, count in item.source for at in range(first, first + count)]
    assert offsets == [record.offset for record in expected]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_one_record_go_together_in_their_codec(codec: Codec) -> None:
    batches = run_of(100, codec=codec)
    (one,) = items = stream(batches)
    check(items, batches)
    assert parse_header(whole(one)).codec is codec
    assert one.source == ((0, 100),)


def test_bounds_depend_on_the_archived_bytes_alone() -> None:
    batches = run_of(3000)
    items = stream(batches)
    check(items, batches)
    assert len(items) == -(-sum(map(len, batches)) // MERGED_BYTES)
    for item in items[:-1]:
        archived = batches[item.index : item.index + item.count + 1]
        assert sum(map(len, archived[:-1])) <= MERGED_BYTES < sum(map(len, archived))


def test_large_batches_and_batches_of_many_records_are_not_touched() -> None:
    large = batch(10, 2, value=b"x" * SMALL_BYTES)
    many = batch(20, SMALL_RECORDS + 1)
    batches = [some(1), some(2), large, some(15), many, some(60)]
    items = stream(batches)
    check(items, batches)
    assert [item.count for item in items] == [2, 2, 1, SMALL_RECORDS + 1, 1]
    assert [whole(items[at])[61:] for at in (1, 3)] == [large[61:], many[61:]]


def test_a_small_batch_with_nobody_to_go_with_stays_as_it_is() -> None:
    batches = [some(0, 1), batch(10, 2, value=b"x" * SMALL_BYTES)]
    items = stream(batches)
    assert [whole(item)[61:] for item in items] == [data[61:] for data in batches]


def test_codecs_are_not_mixed() -> None:
    batches = [*run_of(3), *run_of(3, codec=Codec.LZ4), *run_of(2)]
    items = stream(batches)
    check(items, batches)
    assert [(item.count, parse_header(whole(item)).codec) for item in items] == [
        (3, Codec.NONE),
        (3, Codec.LZ4),
        (2, Codec.NONE),
    ]


def test_gaps_and_append_times_go_with_their_neighbours() -> None:
    stamped = with_header(some(10, 11, 12), attributes=0x08, max_timestamp=NOON + 999)
    cleaned = with_header(some(20, 21), attributes=0x40)
    batches = [some(3, 4, 9), stamped, cleaned, some(22)]
    (one,) = items = stream(batches)
    check(items, batches)
    assert one.append_times == 3
    assert one.source == ((3, 2), (9, 4), (20, 3))


def test_what_becomes_too_large_is_cut() -> None:
    # Packed by a better compressor than ours: the limit is the archived size, so together they do not fit.
    batches = [some(*range(at, at + 20, 2), size=300) for at in range(0, 60, 20)]
    items = stream(batches, max_bytes=1500)
    check(items, batches)
    assert len(items) > 3
    assert all(item.size <= 1500 for item in items)


def test_what_unpacks_to_much_is_not_gathered_without_end() -> None:
    bomb = [some(at, codec=Codec.ZSTD, size=MERGED_UNPACKED // 3) for at in range(7)]
    assert all(len(data) < SMALL_BYTES for data in bomb)
    items = stream(bomb)
    check(items, bomb)
    assert [item.count for item in items] == [2, 2, 2, 1]


def test_what_is_there_already_has_the_same_bounds_and_sizes() -> None:
    batches = [*run_of(1500), batch(2000, SMALL_RECORDS + 1), some(3000, 3005)]
    fresh = stream(batches)
    assert len(fresh) > 3
    for done in (0, fresh[0].count, fresh[2].index, 1500 + SMALL_RECORDS + 1):
        again = stream(batches, done=done)
        assert [(a.index, a.count, a.size, a.source) for a in again] == [
            (a.index, a.count, a.size, a.source) for a in fresh
        ]
        assert [item.data is None for item in again] == [item.index + item.count <= done for item in fresh]


def test_records_that_do_not_fit_together_are_damage() -> None:
    short = some(1, 2)
    for wrong in (
        with_header(short, record_count=1, last_offset_delta=0),
        with_header(short, record_count=3, last_offset_delta=2),
    ):
        with pytest.raises(CorruptBatch, match="offset 1 is damaged"):
            stream([wrong, some(5)])


_TIMES = st.one_of(st.integers(-1, 1 << 20), st.integers(-(2**63) + 1, 2**63 - 1))
_RECORD = st.tuples(_TIMES, st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Codec)),
            st.lists(_RECORD, min_size=1, max_size=5),
            st.integers(0, 3),
            st.sampled_from([0, 0x08]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(80, 2000),
)
def test_any_batches_keep_their_records(
    made: list[tuple[Codec, list[tuple[int, bytes | None, bytes | None]], int, int]], max_bytes: int
) -> None:
    offset = 0
    batches = []
    for codec, found, gap, attributes in made:
        records = []
        for time, key, value in found:
            records.append(Record(offset, time, key, value, ((b"h", value), (b"h", b""))))
            offset += 1 + gap
        data = encode(records, codec=codec, base_offset=records[0].offset)
        batches.append(with_header(data, attributes=attributes | codec) if attributes else data)
    check(stream(batches, max_bytes=max_bytes), batches)


# ---- another version of a compressor


def _worse(codec: Codec, data: bytes | bytearray) -> bytes:
    """A compressor that every client can read, and that makes larger batches."""
    match codec:
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=0))
        case Codec.ZSTD:
            out = bytearray(frame_bound(len(data)))
            return bytes(out[: store_frame(data, out)])
        case _:
            return compress(codec, data)


def _bounds(items: Sequence[Outgoing]) -> list[tuple[object, ...]]:
    return [(item.index, item.count, item.source) for item in items]


def _compacted(codec: Codec) -> list[bytes]:
    """Batches with gaps: alone too large for the topic before compression, together, and of one record."""
    records = [Record(at, NOON + at, b"key-%d" % at, b"some text, again and again " * 20) for at in range(0, 400, 2)]
    pieces = [records[:60], records[60:62], records[62:64], records[64:65], records[65:]]
    return [encode(piece, codec=codec, base_offset=piece[0].offset) for piece in pieces]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_bounds_are_the_same_with_another_compressor(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = _compacted(codec)
    here = stream(batches, max_bytes=12_000)
    monkeypatch.setattr(merge_in_python, "compress", _worse)
    there = merge_in_python.in_python(batches, aborted=NONE, max_bytes=12_000)
    for items in (here, there):
        check(items, batches)
    assert _bounds(here) == _bounds(there)
    assert [item.size for item in here] != [item.size for item in there]
    assert max(item.size for item in there) <= 12_000


@given(st.integers(1, 200_000), st.sampled_from(list(Codec)), st.integers(0, 1 << 30))
@settings(max_examples=scaled(60), deadline=None)
def test_what_surely_fits_does(limit: int, codec: Codec, seed: int) -> None:
    size = surely_fit(limit)
    assert size == 1 or len(compress(codec, random.Random(seed).randbytes(size))) <= limit
    assert limit < 200 or size > limit * 0.98 - 200


def test_old_messages_are_cut_by_their_size_before_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = hostile.wrapper(1, Codec.GZIP, [b"some text, again and again " * 20] * 100)
    here = stream([wrapper], max_bytes=6000)
    monkeypatch.setattr("logkeep_engine.log.records.compress", _worse)
    there = stream([wrapper], max_bytes=6000)
    check(here, [wrapper])
    assert _bounds(here) == _bounds(there)
    assert len(here) > 5
    assert max(item.size for item in there) <= 6000


# ---- batches that unpack to very much


def _gapped(size: int, *, count: int = 1, codec: Codec = Codec.ZSTD) -> bytes:
    """Records of `size` zeros, after each a gap."""
    made = [Record(2 * at, NOON, None, bytes(size)) for at in range(count)]
    return with_header(encode(made, codec=codec, base_offset=0), attributes=codec, last_offset_delta=2 * count)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_what_unpacks_to_too_much_goes_as_it_is(codec: Codec) -> None:
    # Small for the merge: of a few records, and of a few kilobytes, but in lz4, which has no batch like that.
    bomb = hostile.zeros(codec, (1 if codec is Codec.LZ4 else 7) * MERGED_UNPACKED, base_offset=1)
    assert len(bomb) < SMALL_BYTES
    batches = [some(0, codec=codec), bomb, some(2, codec=codec), some(3, codec=codec)]
    found: list[Outgoing] = []
    assert hostile.peak_of(lambda: found.extend(stream(batches))) < 4 * MERGED_UNPACKED
    assert [item.count for item in found] == [1, 1, 2]
    assert whole(found[1])[61:] == bomb[61:]
    check(found, batches)


def test_a_batch_with_gaps_is_cut_without_lying_in_memory_meanwhile() -> None:
    batch = _gapped(1 << 16, count=300)
    made = BatchStream(producer_id=9, max_bytes=1 << 20, aborted=NONE)
    items: list[Outgoing] = []

    def cut() -> None:
        left = made.add(memoryview(batch))
        items.append(next(left))
        assert hostile.peak_of(lambda: None) < 1 << 20
        items.extend(left)

    assert hostile.peak_of(cut) < 2.5 * unpacked_most()
    check(items, [batch])
    assert len(items) == 20


def test_it_is_cut_in_several_goes_where_it_does_not_shrink() -> None:
    random_bytes = random.Random(7).randbytes(1 << 18)
    records = [Record(2 * at, NOON, None, random_bytes) for at in range(40)]
    batch = encode(records, codec=Codec.ZSTD, base_offset=0)
    assert len(batch) < 1 << 20, "as a whole it is the same again and again"
    fresh = stream([batch])
    check(fresh, [batch])
    assert sum(item.size for item in fresh) > 3 << 20
    again = stream([batch], done=fresh[3].index)
    assert [(a.index, a.count, a.size, a.source) for a in again] == [
        (a.index, a.count, a.size, a.source) for a in fresh
    ]
    assert again[3:] == fresh[3:]


def test_what_must_be_rebuilt_and_is_too_large_is_refused() -> None:
    batch = _gapped(hostile.ZEROS)

    def refused() -> None:
        with pytest.raises(BatchTooLarge, match="The batch at offset 0 is too large to be unpacked"):
            stream([batch])

    assert hostile.peak_of(refused) < unpacked_most() + (8 << 20)


def test_damage_in_a_large_batch_is_damage() -> None:
    batch = _gapped(1 << 16, count=40)
    for wrong in (39, 41):
        with pytest.raises(CorruptBatch, match="offset 0 is damaged"):
            stream([with_header(batch, attributes=Codec.ZSTD, record_count=wrong, last_offset_delta=100)])

"""Data that unpacks to more than a task may take is refused before it takes it, whatever it claims of itself."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain

import pytest

from logkeep_engine.contract.names import ENV_TASK_MEMORY
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, SpecError
from logkeep_engine.log import records
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import decode_records, decode_slices
from logkeep_engine.log.compression import Codec, compress, decompress, decompress_into
from logkeep_engine.log.memory import TASK_BYTES, lent, listed_most, task_bytes, unpacked_most
from tests.unit.log import hostile
from tests.unit.log.batches import NOON

MEGABYTE = 1 << 20
KINDS: dict[str, Callable[[int], bytes]] = {
    "gzip": lambda size: hostile.zeros(Codec.GZIP, size),
    "xerial": lambda size: hostile.zeros(Codec.SNAPPY, size),
    "snappy": lambda size: hostile.zeros(Codec.SNAPPY, size, raw_snappy=True),
    "lz4": lambda size: hostile.zeros(Codec.LZ4, size),
    "zstd": lambda size: hostile.zeros(Codec.ZSTD, size),
    "zstd-unsized": hostile.zeros_of_no_size,
    "none": lambda size: hostile.zeros(Codec.NONE, size),
}
WAYS: dict[str, Callable[[bytes], object]] = {
    "decode": records.decode,
    "decode_records": decode_records,
    "decode_slices": lambda batch: sum(map(len, decode_slices(batch))),
    "unpack": lambda batch: records.unpack(memoryview(batch), parse_header(batch)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_64_mebibytes_takes_no_more_than_the_bound(kind: str) -> None:
    batch = KINDS[kind](hostile.ZEROS)
    for way, read in WAYS.items():

        def refused(read: Callable[[bytes], object] = read) -> None:
            with pytest.raises(BatchTooLarge, match=r"^The batch at offset 0 is too large to be unpacked: .* than 223"):
                read(batch)

        assert hostile.peak_of(refused) < unpacked_most() + 8 * MEGABYTE, way
    with pytest.raises(BatchTooLarge) as refusal:
        decode_records(batch)
    assert "LOGKEEP_TASK_MEMORY" in refusal.value.hint
    assert ("it says 671088" in refusal.value.message) == (kind in ("snappy", "zstd", "none"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_fits_exactly_is_unpacked_and_one_byte_more_is_not(kind: str) -> None:
    beside = len(records.unpack(memoryview(plain := KINDS["none"](2 * MEGABYTE)), parse_header(plain))) - 2 * MEGABYTE
    fits, not_quite = KINDS[kind](3 * MEGABYTE), KINDS[kind](3 * MEGABYTE + 1)
    limit = 3 * MEGABYTE + beside
    (found,) = decode_records(fits, limit=limit)
    assert found.value == bytes(3 * MEGABYTE)
    with pytest.raises(BatchTooLarge):
        decode_records(not_quite, limit=limit)


@pytest.mark.parametrize("size", [64 * MEGABYTE, 1 << 31, 1 << 40])
def test_what_a_batch_claims_takes_nothing(size: int) -> None:
    for kind, batch in hostile.claims(size).items():

        def refused(batch: bytes = batch) -> None:
            with suppress(CorruptBatch, BatchTooLarge):
                assert not decode_records(batch), "there is no record in it"

        assert hostile.peak_of(refused) < 2 * MEGABYTE, kind


def test_many_small_records_are_listed_up_to_a_number_and_passed_over_without_one() -> None:
    count = listed_most() + 1
    batch = hostile.many(Codec.ZSTD, count)

    def passed() -> None:
        assert sum(map(len, decode_slices(batch))) == count

    assert hostile.peak_of(passed) < unpacked_most()
    for read in (decode_records, records.decode):
        with pytest.raises(BatchTooLarge, match=f"has {count} records, at most {listed_most()}"):
            read(batch)


def test_records_that_the_compiled_parser_cannot_read_are_passed_over_in_as_little() -> None:
    count = 200_000
    batch = hostile.many(Codec.ZSTD, count, header_key=b"\xff")

    def passed() -> None:
        found = decode_slices(batch)
        assert list(next(found)[0].headers) == [("\udcff", None)]
        assert sum(map(len, found)) == count - 128

    assert hostile.peak_of(passed) < unpacked_most()


def test_a_record_of_millions_of_headers_is_refused_before_they_are_made() -> None:
    batch = hostile.many_headers(Codec.ZSTD, 8 * MEGABYTE)

    def refused() -> None:
        for read in (decode_records, lambda data: list(decode_slices(data))):
            with pytest.raises(BatchTooLarge, match=r"a record that would take 5536\d+ bytes with its headers"):
                read(batch)

    assert hostile.peak_of(refused) < unpacked_most()


def test_slices_of_a_large_batch_have_few_bytes() -> None:
    source = [records.Record(at, NOON, None, bytes([at]) * (140 << 10)) for at in range(140)]
    batch = records.encode(source, codec=Codec.ZSTD, base_offset=0)
    slices = list(decode_slices(batch))
    assert [record.value for record in chain.from_iterable(slices)] == [record.value for record in source]
    assert max(map(len, slices)) == 7


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_wrapper_of_old_messages_is_refused_as_well(magic: int, codec: Codec) -> None:
    wrapper = hostile.wrapper(magic, codec, [bytes(hostile.ZEROS)])

    def refused() -> None:
        for read in (parse_header, decode_records):
            with pytest.raises(BatchTooLarge, match="The message at offset 0 is too large to be unpacked"):
                read(wrapper)

    assert hostile.peak_of(refused) < unpacked_most() + 8 * MEGABYTE


def test_a_wrapper_of_very_many_old_messages_is_refused() -> None:
    wrapper = hostile.wrapper(1, Codec.GZIP, [b""] * (listed_most() + 1))
    with pytest.raises(BatchTooLarge, match=f"it holds more than {listed_most()} messages") as refusal:
        parse_header(wrapper)
    assert "every format" in refusal.value.hint


def test_gzip_of_several_members_is_bounded_as_a_whole() -> None:
    packed = b"".join(compress(Codec.GZIP, bytes(MEGABYTE)) for _ in range(64))
    with lent() as room, pytest.raises(BatchTooLarge):
        decompress_into(Codec.GZIP, memoryview(packed), room.space(room.most))
    assert decompress(Codec.GZIP, memoryview(packed[: len(packed) // 64 * 3])) == bytes(3 * MEGABYTE)


def test_threads_have_rooms_of_their_own_and_so_has_who_unpacks_inside_of_another() -> None:
    batches = [hostile.zeros(Codec.ZSTD, MEGABYTE + at, base_offset=at) for at in range(8)]

    def read(at: int) -> Sequence[int]:
        outer = decode_slices(records.encode(_rising(300), codec=Codec.ZSTD, base_offset=0))
        first = next(outer)
        inner = decode_records(batches[at])
        rest = list(chain.from_iterable(outer))
        return [len(first) + len(rest), rest[-1].offset, len(inner[0].value or b"")]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(8))) == [[300, 299, MEGABYTE + at] for at in range(8)]


def test_a_room_gives_back_what_a_large_batch_took() -> None:
    packed = memoryview(compress(Codec.ZSTD, bytes(20 * MEGABYTE)))

    def unpacked() -> None:
        with lent() as room:
            decompress_into(Codec.ZSTD, packed, room.space(room.most))
        hostile.peak_of(lambda: None)  # the peak begins again

    assert hostile.peak_of(unpacked) < 8 * MEGABYTE


@pytest.mark.parametrize(
    ("text", "size"), [("", TASK_BYTES), ("256Mi", TASK_BYTES), ("1Gi", 1 << 30), (str(300 << 20), 300 << 20)]
)
def test_the_environment_may_give_a_task_more(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(ENV_TASK_MEMORY, text)
    assert (task_bytes(), unpacked_most()) == (size, size // 12)
    batch = hostile.zeros(Codec.ZSTD, 40 * MEGABYTE)
    if size >= 1 << 30:
        assert len(decode_records(batch)[0].value or b"") == 40 * MEGABYTE
    else:
        with pytest.raises(BatchTooLarge):
            decode_records(batch)


@pytest.mark.parametrize("text", ["much", "255Mi", "0", "-1", "1.5Gi", "512 Mi"])
def test_what_is_no_figure_of_memory_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENV_TASK_MEMORY, text)
    with pytest.raises(SpecError, match=f"LOGKEEP_TASK_MEMORY: '{text}' is not a number of bytes from 256Mi on"):
        task_bytes()


def _rising(count: int) -> list[records.Record]:
    return [records.Record(at, NOON, None, b"v") for at in range(count)]

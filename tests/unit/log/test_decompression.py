"""The kernel unpacks what cramjam unpacks, and refuses the same."""

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.compression import Codec, compress, decompress_into
from tests.examples import scaled
from tests.unit.log import decompression as oracle

contents = st.binary(max_size=300) | st.binary(min_size=1, max_size=9).map(lambda piece: piece * 20_000)
PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
SKIPPED = b"\x5a\x2a\x4d\x18\x04\x00\x00\x00abcd"  # a frame that holds no data, of lz4 and of zstd


def outcome(read: object, codec: Codec, data: bytes, room: int) -> bytes | type[Exception]:
    assert callable(read)
    out = memoryview(bytearray(room))
    try:
        return bytes(out[: read(codec, memoryview(data), out)])
    except (BatchTooLarge, CorruptBatch) as problem:
        return type(problem)


def check_same(codec: Codec, data: bytes, room: int) -> bytes | type[Exception]:
    found = outcome(decompress_into, codec, data, room)
    assert found == outcome(oracle.decompress_into, codec, data, room)
    return found


@given(data=contents, codec=st.sampled_from(Codec), less=st.integers(-2, 2))
@settings(max_examples=scaled(200), deadline=None)
def test_what_was_compressed_comes_back_if_there_is_room(data: bytes, codec: Codec, less: int) -> None:
    room = max(0, len(data) - less)
    assert check_same(codec, compress(codec, data), room) == (data if room >= len(data) else BatchTooLarge)


@given(parts=st.lists(contents, max_size=3), codec=st.sampled_from(PACKED), rest=st.binary(max_size=8))
@example([b"a", b"b"], Codec.LZ4, b"")
@example([], Codec.GZIP, b"")
@example([], Codec.ZSTD, b"")
@example([b"a"], Codec.LZ4, bytes(4))
@example([], Codec.SNAPPY, b"\x82SNAPPY\x00")
@example([b"a"], Codec.SNAPPY, b"\x82SNAPPY\x00")
@settings(max_examples=scaled(200), deadline=None)
def test_several_pieces_one_after_the_other_are_read(parts: list[bytes], codec: Codec, rest: bytes) -> None:
    check_same(codec, b"".join(compress(codec, part) for part in parts) + rest, 1 << 20)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_frames_without_data_are_passed_over(codec: Codec) -> None:
    packed = compress(codec, b"some data")
    for data in (SKIPPED + packed, packed + SKIPPED, packed + SKIPPED * 2 + packed):
        assert check_same(codec, data, 100) == b"some data" * data.count(packed)
    assert check_same(codec, packed + SKIPPED[:-1], 100) is CorruptBatch


@given(data=contents, codec=st.sampled_from(PACKED), change=st.data())
@settings(max_examples=scaled(400), deadline=None)
def test_no_damage_gives_other_bytes_than_the_oracle_finds(data: bytes, codec: Codec, change: st.DataObject) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(change.draw(st.integers(0, 2))):
        packed[change.draw(st.integers(0, len(packed) - 1))] = change.draw(st.integers(0, 255))
    del packed[change.draw(st.just(len(packed)) | st.integers(0, len(packed))) :]
    found = outcome(decompress_into, codec, bytes(packed), len(data) + 100)
    expected = outcome(oracle.decompress_into, codec, bytes(packed), len(data) + 100)
    if isinstance(found, bytes) and isinstance(expected, bytes):
        assert found == expected


@pytest.mark.parametrize(
    ("linked", "checksum", "size"), [(True, True, 1 << 19), (False, True, 9_000), (True, False, 70_000)]
)
def test_lz4_frames_of_every_kind_are_read(linked: bool, checksum: bool, size: int) -> None:
    data = bytes(range(256)) * 700
    frame, packed = cramjam.lz4.Compressor(level=4, content_checksum=checksum, block_linked=linked), b""
    for at in range(0, len(data), size):
        frame.compress(data[at : at + size])
        packed += bytes(frame.flush())
    assert check_same(Codec.LZ4, packed + bytes(frame.finish()), len(data)) == data

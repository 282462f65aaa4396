"""Seekable zstd: golden bytes, foreign readers, every cut and flip."""

import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from itertools import accumulate, pairwise, product
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptFrame
from logkeep_engine.log.seekable import (
    FRAME_BYTES,
    FRAME_MAGIC,
    SeekableWriter,
    SeekTable,
    ZstdFrame,
    compress_frame,
    decompress_frame,
    frame_bound,
    frame_end,
    store_frame,
    table_bytes,
)
from tests.examples import covered

SEED = random.Random(5)


def batch(size: int, *, random_bytes: bool = False) -> bytes:
    """A batch as the writer sees it: base offset, length, and so many bytes in all (at least 17)."""
    body = SEED.randbytes(size - 17) if random_bytes else (b"value %d " % size * (size // 8))[: size - 17]
    return struct.pack(">qi4xB", 0, size - 12, 2) + body


def write(*runs: bytes, frame_bytes: int = FRAME_BYTES) -> bytes:
    out = bytearray()
    writer = SeekableWriter(out.extend, frame_bytes=frame_bytes)
    for run in runs:
        assert writer.write(run) == len(run)
    assert writer.finish() == len(out)
    writer.close()
    return bytes(out)


def table(data: bytes) -> SeekTable:
    return SeekTable.parse(data, len(data))


def read(data: bytes) -> bytes:
    out = bytearray()
    for frame in table(data).frames:
        part = bytearray(frame.size)
        decompress_frame(data[frame.at : frame.at + frame.stored], memoryview(part))
        out += part
    return bytes(out)


def stored(data: bytes) -> bytes:
    out = bytearray(frame_bound(len(data)))
    return bytes(out[: store_frame(data, out)])


def test_the_seek_table_is_that_of_the_published_format() -> None:
    packed = SeekTable.of([(3, 10), (4, 20)]).pack()
    assert packed == bytes.fromhex(
        "5e2a4d18 19000000"  # skippable frame of 25 bytes
        "03000000 0a000000 04000000 14000000"  # compressed size, size
        "02000000 00 b1ea928f"  # frames, no checksums, magic
    )
    assert table_bytes(packed) == len(packed)
    assert SeekTable.parse(packed, 7 + len(packed)).frames == (ZstdFrame(0, 3, 0, 10), ZstdFrame(3, 4, 10, 20))


def test_a_table_with_checksums_is_read_too() -> None:
    body = struct.pack("<III", 3, 10, 0xDEADBEEF) + struct.pack("<IBI", 1, 0x80, 0x8F92EAB1)
    tail = struct.pack("<II", 0x184D2A5E, len(body)) + body
    assert SeekTable.parse(tail, 3 + len(tail)).frames == (ZstdFrame(0, 3, 0, 10),)


def test_what_the_first_version_wrote_is_read() -> None:
    """Frames of about 1000 bytes of log; any later version and any zstd must give back the same."""
    (golden,) = (Path(__file__).parents[2] / "formats" / "seekable-zstd").glob("*.log.zst")
    data, log = golden.read_bytes(), golden.with_suffix("").read_bytes()
    assert (len(table(data).frames), read(data)) == (3, log)
    assert bytes(cramjam.zstd.decompress(data)) == log


def test_bytes_that_do_not_shrink_are_stored_in_raw_blocks() -> None:
    data = bytes(range(256)) * 600  # more than one block of 128 KiB
    frame = stored(data)
    assert frame[:12] == bytes.fromhex("28b52ffd a0 00580200 000010")
    assert len(frame) == 9 + 2 * 3 + len(data)
    assert bytes(cramjam.zstd.decompress(frame)) == data


@pytest.mark.parametrize(
    "sizes", [[100], [17], [400_000] * 9, [FRAME_BYTES] * 3, [70] * 40_000, [3 << 20, 100, 2 << 20]]
)
@pytest.mark.parametrize("random_bytes", [False, True])
def test_frames_hold_whole_batches_of_at_most_a_frame_or_one_that_is_larger(
    sizes: list[int], random_bytes: bool
) -> None:
    batches = [batch(size, random_bytes=random_bytes) for size in sizes]
    log = b"".join(batches)
    data = write(log)
    bounds = {0, *accumulate(sizes)}
    frames = table(data).frames
    assert {frame.start for frame in frames} < bounds
    assert all(frame.size <= FRAME_BYTES or frame.size in sizes for frame in frames)
    # No frame could have been joined with the next.
    assert all(one.size + two.size > FRAME_BYTES or len(log) < FRAME_BYTES for one, two in pairwise(frames[:-1]))
    assert read(data) == log
    assert bytes(cramjam.zstd.decompress(data)) == log


@given(
    runs=st.lists(st.lists(st.integers(17, 900), min_size=1, max_size=20), min_size=1, max_size=8),
    frame_bytes=st.integers(20, 3000),
    random_bytes=st.booleans(),
)
def test_any_runs_come_back(runs: list[list[int]], frame_bytes: int, random_bytes: bool) -> None:
    parts = [b"".join(batch(size, random_bytes=random_bytes) for size in sizes) for sizes in runs]
    data = write(*parts, frame_bytes=frame_bytes)
    log = b"".join(parts)
    assert read(data) == log
    assert bytes(cramjam.zstd.decompress(data)) == log
    found = table(data)
    for position in range(0, len(log), 97):
        frame = found.frames[found.index_at(position)]
        assert frame.start <= position < frame.start + frame.size
    assert found.index_at(len(log)) == len(found.frames)


def test_a_foreign_reader_gives_back_the_log(tmp_path: Path) -> None:
    log = b"".join(batch(50_000, random_bytes=at % 3 == 0) for at in range(60))
    path = tmp_path / "a.log.zst"
    path.write_bytes(write(log))
    if shutil.which("zstd") is not None:
        subprocess.run(["zstd", "-d", "-q", str(path)], check=True)
        assert (tmp_path / "a.log").read_bytes() == log
    stream = cramjam.zstd.Decompressor()
    stream.decompress(path.read_bytes())
    assert bytes(stream.flush()) == log


def test_after_a_frame_that_does_not_shrink_the_next_are_stored_and_now_and_then_tried() -> None:
    noise = [batch(FRAME_BYTES, random_bytes=True) for _ in range(40)]
    text = [batch(FRAME_BYTES) for _ in range(40)]
    sizes = [frame.stored for frame in table(write(*noise, *text)).frames]
    assert all(size >= FRAME_BYTES for size in sizes[:40])
    assert sum(size < FRAME_BYTES // 10 for size in sizes[40:]) >= 20
    assert len(write(*noise)) < 40 * (FRAME_BYTES + 64)


def test_text_is_compressed_and_nothing_is_lost_when_a_sink_fails() -> None:
    log = batch(FRAME_BYTES * 3)
    assert len(write(log)) < len(log) / 10

    def full(data: object) -> None:
        raise OSError("disk full")

    writer = SeekableWriter(full)
    with pytest.raises(OSError, match="disk full"):
        writer.write(log * 7)
    writer.close()
    writer.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[:-1], "does not end with a seek table"),
        (lambda data: data[-5:], "too short for a seek table"),
        (lambda data: data[:-5] + b"\x04" + data[-4:], "does not end with a seek table"),
        (lambda data: data[:-9] + b"\x09" + data[-8:], "does not begin where it should|cut short"),
        (lambda data: data[:-9] + b"\xff\xff\xff\x7f" + data[-5:], "of 2147483647 frames is cut short"),
        (lambda data: data[1:], "describes an object of"),
        (lambda data: data[:-13] + bytes([data[-13] ^ 1]) + data[-12:], ""),
        (lambda data: data[:-17] + bytes([data[-17] ^ 1]) + data[-16:], "describes an object of"),
    ],
)
def test_a_seek_table_that_cannot_be_is_refused(change: Callable[[bytes], bytes], what: str) -> None:
    log = batch(1000) * 3
    data = change(write(log, frame_bytes=1000))
    if not what:  # a size within the log is held against the catalog, not against the object
        assert table(data).size != len(log)
        return
    with pytest.raises(CorruptFrame, match=what):
        table(data)


def test_a_damaged_frame_never_gives_more_or_less_than_its_size() -> None:
    log = batch(5000)
    out = bytearray(frame_bound(len(log)))
    frame = bytes(out[: compress_frame(log, out)])
    for size in (0, 1, 4999, 5001, 6000):
        with pytest.raises(CorruptFrame):
            decompress_frame(frame, memoryview(bytearray(size)))
    for end in range(len(frame)):
        with pytest.raises(CorruptFrame):
            decompress_frame(frame[:end], memoryview(bytearray(5000)))
    for garbage in (b"", b"x", frame[1:], SEED.randbytes(3000)):
        with pytest.raises(CorruptFrame):
            decompress_frame(garbage, memoryview(bytearray(5000)))
    bomb = bytes(cramjam.zstd.compress(bytes(50 << 20)))
    with pytest.raises(CorruptFrame):
        decompress_frame(bomb, memoryview(bytearray(5000)))


SIZES = [1, 255, 256, 300, 65_535, 66_000, 200_000, FRAME_BYTES, 3 << 20]


@pytest.mark.deep
@pytest.mark.parametrize(("size", "packed"), covered(SIZES, [*product(["text", "noise", "zeros"], [-5, 1, 3, 0])]))
def test_where_a_frame_ends_is_reported_without_a_table(size: int, packed: tuple[str, int]) -> None:
    kind, level = packed
    text = (b"some text %d " % size * (size // 12 + 1))[:size]
    data = {"text": text, "noise": SEED.randbytes(size), "zeros": bytes(size)}[kind]
    out = bytearray(frame_bound(size))
    length = compress_frame(data, out, level) if level else store_frame(data, out)
    frame = bytes(out[:length])
    assert length <= frame_bound(size)
    assert frame_end(b"###" + frame + b"tail", 3) == (3 + len(frame), size)
    for cut in {0, 3, 4, 5, 8, len(frame) // 2, len(frame) - 1} & set(range(len(frame))):
        if cut >= len(FRAME_MAGIC):
            assert frame_end(frame[:cut], 0) is None


def test_no_frame_is_found_where_none_is() -> None:
    with pytest.raises(CorruptFrame, match="none begins there"):
        frame_end(b"x" * 100, 0)
    with pytest.raises(CorruptFrame, match="does not exist"):
        frame_end(FRAME_MAGIC + b"\xa0" + bytes(4) + b"\x07\x00\x00", 0)

"""Logs in seekable zstd: independent frames, then a table of their sizes.

    writer = SeekableWriter(out.write)      # any number of writes of whole batches, then finish()
    table = SeekTable.parse(tail, size)     # from the end of the object
    frame = table.frames[table.index_at(position)]      # position in the log -> the frame that holds it

Plain `zstd -d` gives back the log: to it the table is a frame to skip. Every frame begins with a batch and holds whole
batches, at most FRAME_BYTES of them, or one batch that is larger. So one offset is read by index, frame, one range.

The format's own checksums (of each frame, in the table) are not written: the CRC of every batch and the SHA-256 of the
log see more. Source of facts: facebook/zstd `contrib/seekable_format/zstd_seekable_compression_format.md` (0.1.0),
`doc/zstd_compression_format.md`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import cramjam

from logkeep_engine.errors import CorruptFrame
from logkeep_engine.log.batch import Buffer, whole_batches

FRAME_BYTES = 1 << 20
"""Log bytes of a frame, unless one batch is larger."""

LEVEL = 2
"""Measured on frames of 1 MiB: within a hundredth of level 3's size on uncompressed batches, on JSON smaller, at 1.4
times its speed. Level 1 is faster still, but archives grow past those of tools that compress with level 3; the
negative levels are no faster on text, and lz4 batches do not shrink with them.
"""

_WORTH = 0.97
"""A frame that does not shrink to this part of its size is not worth compressing: the frames after it stay raw."""

_PROBE_EVERY = 16
"""After this many frames stored raw, one is compressed again, to see whether it pays now."""

_THREADS = 2
_AHEAD_BYTES = 4 * FRAME_BYTES

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame."""

_SKIPPABLE_MAGIC = 0x184D2A5E  # a frame that decoders of zstd skip
_TABLE_MAGIC = 0x8F92EAB1  # the last four bytes of an object in the seekable format
_CHECKSUMS = 0x80  # bit 7 of the descriptor: each entry has a checksum
_RESERVED = 0x7C  # bits 2 to 6 of the descriptor must be 0
_SKIPPABLE = struct.Struct("<II")  # magic, bytes that follow
_ENTRY = struct.Struct("<II")  # compressed size, size
_ENTRY_WITH_CHECKSUM = struct.Struct("<III")
_FOOTER = struct.Struct("<IBI")  # frames, descriptor, magic

_SINGLE_SEGMENT_4 = 0xA0  # frame header descriptor: no window descriptor, content size in 4 bytes, no checksum
_RAW_FRAME_HEADER = struct.Struct("<4sBI")
_BLOCK_MAX = 128 << 10  # the largest block of zstd
_BLOCK_HEADER = 3


@dataclass(frozen=True, slots=True)
class ZstdFrame:
    """Bytes [at, at + stored) of the object hold bytes [start, start + size) of the log."""

    at: int
    stored: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class SeekTable:
    """The frames of an object, in order, without a gap."""

    frames: tuple[ZstdFrame, ...]

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> Self:
        """From (compressed size, size) of each frame."""
        frames = []
        at = start = 0
        for stored, size in sizes:
            frames.append(ZstdFrame(at, stored, start, size))
            at += stored
            start += size
        return cls(tuple(frames))

    @classmethod
    def parse(cls, tail: Buffer, object_size: int) -> Self:
        """Return the table at the end of an object; `tail` are its last bytes, at least `table_bytes` of them.

        Raises CorruptFrame if there is none, or if it does not describe an object of this size.
        """
        entry, count = _footer(tail)
        size = _SKIPPABLE.size + count * entry.size + _FOOTER.size
        if len(tail) < size:
            raise CorruptFrame(f"its seek table of {count} frames is cut short")
        view = memoryview(tail)[len(tail) - size :]
        magic, length = _SKIPPABLE.unpack_from(view)
        if magic != _SKIPPABLE_MAGIC or length != size - _SKIPPABLE.size:
            raise CorruptFrame(f"its seek table of {count} frames does not begin where it should")
        table = cls.of([fields[:2] for fields in entry.iter_unpack(view[_SKIPPABLE.size : -_FOOTER.size])])
        if table.stored + size != object_size:
            raise CorruptFrame(
                f"its seek table describes an object of {table.stored + size} bytes, this one has {object_size}"
            )
        return table

    def pack(self) -> bytes:
        """Return the skippable frame that ends the object."""
        entries = b"".join(_ENTRY.pack(frame.stored, frame.size) for frame in self.frames)
        head = _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(entries) + _FOOTER.size)
        return head + entries + _FOOTER.pack(len(self.frames), 0, _TABLE_MAGIC)

    @property
    def stored(self) -> int:
        """Bytes of all frames in the object."""
        return self.frames[-1].at + self.frames[-1].stored if self.frames else 0

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self.frames[-1].start + self.frames[-1].size if self.frames else 0

    def index_at(self, position: int) -> int:
        """Number of the frame that holds the log's byte at `position`; the number of frames if it lies after them."""
        if position >= self.size:
            return len(self.frames)
        return bisect_right(self.frames, position, key=lambda frame: frame.start) - 1


def table_bytes(tail: Buffer) -> int:
    """Return the size of the seek table, by the object's last 9 bytes or more. Raises CorruptFrame if it does not end
    there."""
    entry, count = _footer(tail)
    return _SKIPPABLE.size + count * entry.size + _FOOTER.size


def _footer(tail: Buffer) -> tuple[struct.Struct, int]:
    if len(tail) < _FOOTER.size:
        raise CorruptFrame("it is too short for a seek table")
    count, descriptor, magic = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
    if magic != _TABLE_MAGIC or descriptor & _RESERVED:
        raise CorruptFrame("it does not end with a seek table")
    return _ENTRY_WITH_CHECKSUM if descriptor & _CHECKSUMS else _ENTRY, count


# ---- one frame


def compress_frame(data: Buffer, out: bytearray, level: int = LEVEL) -> int:
    """Compress `data` as one frame into `out`, and return the frame's size. `out` has `frame_bound(len(data))` bytes or
    more.
    """
    return int(cramjam.zstd.compress_into(data, out, level=level))


def store_frame(data: Buffer, out: bytearray) -> int:
    """Like `compress_frame`, but the frame holds the bytes as they are: raw blocks."""
    view = memoryview(data)
    _RAW_FRAME_HEADER.pack_into(out, 0, FRAME_MAGIC, _SINGLE_SEGMENT_4, len(view))
    at = _RAW_FRAME_HEADER.size
    for start in range(0, len(view), _BLOCK_MAX):
        block = view[start : start + _BLOCK_MAX]
        last = start + len(block) == len(view)
        # bit 0: the last block; bits 1 and 2: its kind, 0 for raw; the rest: its size
        out[at : at + _BLOCK_HEADER] = (len(block) << 3 | last).to_bytes(_BLOCK_HEADER, "little")
        at += _BLOCK_HEADER
        out[at : at + len(block)] = block
        at += len(block)
    return at


def frame_bound(size: int) -> int:
    """No frame of `size` log bytes is larger: ZSTD_COMPRESSBOUND, which also holds for raw blocks."""
    return size + (size >> 8) + 128


def decompress_frame(frame: Buffer, out: memoryview) -> None:
    """Fill `out` with what the frame holds. Raises CorruptFrame unless it is exactly that much.

    Never writes or allocates more than `out`, whatever the frame claims.
    """
    try:
        written = cramjam.zstd.decompress_into(frame, out)
    except cramjam.DecompressionError as problem:
        raise CorruptFrame(f"its zstd data cannot be decompressed: {problem}") from problem
    if written != len(out):
        raise CorruptFrame(f"it holds {written} bytes of log, the seek table says {len(out)}")


def frame_end(data: Buffer, at: int) -> tuple[int, int] | None:
    """(end, log bytes) of the zstd frame at `at`, from the headers of its blocks; None: `data` ends before the frame.

    For objects without a seek table. Log bytes are -1 if the frame does not declare them. Raises CorruptFrame if no
    frame is there.
    """
    try:
        return _frame_end(data, at)
    except IndexError:
        return None


def _frame_end(data: Buffer, at: int) -> tuple[int, int] | None:
    if data[at : at + len(FRAME_MAGIC)] != FRAME_MAGIC:
        raise CorruptFrame("none begins there")
    descriptor = data[at + 4]  # RFC 8878, 3.1.1.1
    single, checksum = bool(descriptor & 0x20), bool(descriptor & 0x04)
    content_bytes = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    # past the magic number, the descriptor, the window byte that a single segment lacks, and the id of the dictionary
    position = at + 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    content = int.from_bytes(data[position : position + content_bytes], "little") if content_bytes else -1
    content += 256 if content_bytes == 2 else 0  # a size in two bytes is stored less 256
    position += content_bytes
    last = False
    while not last:
        header = int.from_bytes(data[position : position + _BLOCK_HEADER], "little")
        if len(data) - position < _BLOCK_HEADER:
            return None
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3 or size > _BLOCK_MAX:  # kind 3 is reserved
            raise CorruptFrame("a zstd block has a kind or size that does not exist")
        position += _BLOCK_HEADER + (1 if kind == 1 else size)  # kind 1: one byte, repeated
    position += 4 if checksum else 0  # the low half of xxHash64 of the content
    return (position, content) if position <= len(data) else None


# ---- writing


class SeekableWriter:
    """Compresses a log as it arrives, in threads of its own, and hands the frames to `sink` in order.

    `sink` is called in the caller's thread and copies what it is given, as `storage.ObjectWriter.write` does. Memory:
    about 8 MiB, or a few times the largest batch if that is more. Not safe for several threads. `close` at the end,
    whatever happened.
    """

    def __init__(self, sink: Callable[[memoryview | bytes], object], *, frame_bytes: int = FRAME_BYTES) -> None:
        self._sink = sink
        self._frame_bytes = frame_bytes
        self._slot: _Slot | None = None
        self._free: list[_Slot] = []
        self._ahead: deque[tuple[_Slot, Future[int]]] = deque()
        self._ahead_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._sizes: list[tuple[int, int]] = []
        self._started = 0
        self._worthwhile = True

    def write(self, data: Buffer) -> int:
        """Add whole batches that lie back to back."""
        rest = memoryview(data)
        while rest:
            slot = self._slot = self._slot or self._take_slot()
            room = self._frame_bytes - slot.filled
            take = len(rest) if len(rest) <= room else whole_batches(rest, max(room, 1))
            if take > room and slot.filled:
                self._end_frame()
                continue
            slot.add(rest[:take])
            rest = rest[take:]
            if rest:
                self._end_frame()
        return len(data)

    def finish(self) -> int:
        """Write what is left and the seek table, and return the size of the object in bytes."""
        last, self._slot = self._slot, None
        while self._ahead:
            self._write_oldest()
        if last is not None and last.filled:  # here, since most small segments have no other frame: no thread for them
            self._write_frame(last, last.compress())
        table = SeekTable.of(self._sizes)
        packed = table.pack()
        self._sink(packed)
        return table.stored + len(packed)

    def close(self) -> None:
        """Let go of threads and memory. Harmless when called twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._ahead.clear()
        self._free.clear()
        self._slot = None

    def _take_slot(self) -> _Slot:
        return self._free.pop() if self._free else _Slot(self._frame_bytes)

    def _end_frame(self) -> None:
        slot, self._slot = self._slot, None
        assert slot is not None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="logkeep-zstd")
        compress = self._worthwhile or self._started % _PROBE_EVERY == 0
        self._started += 1
        self._ahead.append((slot, self._pool.submit(slot.compress if compress else slot.store)))
        self._ahead_bytes += slot.filled
        while self._ahead and (self._ahead_bytes > _AHEAD_BYTES or self._ahead[0][1].done()):
            self._write_oldest()

    def _write_oldest(self) -> None:
        slot, done = self._ahead.popleft()
        stored = done.result()
        self._ahead_bytes -= slot.filled
        if not slot.stored:
            self._worthwhile = stored < _WORTH * slot.filled
        self._write_frame(slot, stored)
        slot.filled = 0
        self._free.append(slot)

    def _write_frame(self, slot: _Slot, stored: int) -> None:
        self._sizes.append((stored, slot.filled))
        self._sink(memoryview(slot.out)[:stored])


class _Slot:
    """The log bytes of a frame in the making, and memory for the frame. It is used again: fresh memory costs more than
    copying.
    """

    def __init__(self, size: int) -> None:
        self.filled = 0
        self.stored = False
        self.out = bytearray(frame_bound(size))
        self._data = bytearray(size)

    def add(self, data: memoryview) -> None:
        end = self.filled + len(data)
        if end > len(self._data):
            self._data += bytes(end - len(self._data))
            self.out = bytearray(frame_bound(end))
        self._data[self.filled : end] = data
        self.filled = end

    def compress(self) -> int:
        self.stored = False
        return compress_frame(memoryview(self._data)[: self.filled], self.out)

    def store(self) -> int:
        self.stored = True
        return store_frame(memoryview(self._data)[: self.filled], self.out)

"""The bytes of an archived log, block by block, whether it is stored as it is or in seekable zstd.

    for item in read_log(storage, topic, entry): ...      # LogBlock | DamagedBytes

Blocks are read, and decompressed, ahead of the caller in threads. They lie in buffers that are used again as soon as
no view of them is left (fresh pages cost more than the work on them), so a caller may keep a view as long as it likes.
Storage errors, a missing object among them, are raised to the caller.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.files import SegmentFile
from logkeep_engine.errors import CorruptFrame, ObjectMissing
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.seekable import (
    FRAME_BYTES,
    FRAME_MAGIC,
    SeekTable,
    ZstdFrame,
    decompress_frame,
    frame_bound,
    frame_end,
    table_bytes,
)
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

_TAIL_BYTES = 32 << 10  # holds the seek table of any log below 2 GiB whose frames are of FRAME_BYTES
_HEADROOM_MAX = 1 << 20
_BUFFERS_MAX = 4
_IDLE_BYTES = 64 << 20

_TABLE_BEGIN = SeekTable(()).pack()[:4]

T = TypeVar("T")


@dataclass(slots=True)
class LogBlock:
    """Bytes [start, end) of `buffer` are the next of the log; what lies before `start` is free for the caller."""

    buffer: bytearray
    start: int
    end: int

    def after(self, rest: memoryview) -> memoryview:
        """Return the block with `rest` in front of it."""
        start = self.start - len(rest)
        if start < 0:
            return memoryview(bytes(rest) + memoryview(self.buffer)[self.start : self.end])
        view = memoryview(self.buffer)[start : self.end]
        view[: len(rest)] = rest
        return view


def read_log(
    storage: Storage, topic: str, entry: SegmentEntry, *, start: int = 0, block: int = DEFAULT_BLOCK
) -> Iterator[LogBlock | DamagedBytes]:
    """Return the log of `entry` from position `start` on. Memory: three blocks, and two of the object if it is
    compressed.

    The bytes are those of the object, be they more or fewer than the catalog says.
    """
    file = SegmentFile(storage, topic, entry, entry.log_suffix)
    if entry.files.stored_bytes:
        return _Compressed(file, entry, block).items(start)
    left = entry.bytes - start
    return _ahead(_plain(file, start, _Ring(min(block, left + 1), _headroom(entry))), left >= block)


def log_bytes(
    storage: Storage, topic: str, entry: SegmentEntry, start: int = 0, *, block: int = DEFAULT_BLOCK
) -> Iterator[memoryview | DamagedBytes]:
    """Yield the bytes of `read_log`, for who looks for batches in them himself. A missing object is damage here too."""
    try:
        for item in read_log(storage, topic, entry, start=start, block=block):
            if isinstance(item, LogBlock):
                yield memoryview(item.buffer)[item.start : item.end]
            else:
                yield item
            del item
    except ObjectMissing:
        yield DamagedBytes("the object is missing", entry.bytes - start)


def _plain(file: SegmentFile, start: int, ring: _Ring) -> Iterator[LogBlock | DamagedBytes]:
    at = start
    try:
        while True:
            item = ring.take()
            view = memoryview(item.buffer)[item.start : item.end]
            wanted = len(view)
            count = file.read_into(at, view)
            del view
            at += count
            item.end = item.start + count
            if count:
                yield item
            del item
            if count < wanted:
                return
    finally:
        ring.close()


class _Compressed:
    """A log in seekable zstd."""

    def __init__(self, file: SegmentFile, entry: SegmentEntry, block: int) -> None:
        self._file = file
        self._entry = entry
        self._block = block
        self._frame_max = max(FRAME_BYTES, entry.max_batch_bytes)
        self._ring = _Ring(min(block, entry.bytes), _headroom(entry))
        self._stored = _Ring(frame_bound(block), 0)

    def items(self, start: int) -> Iterator[LogBlock | DamagedBytes]:
        try:
            table, whole = self._open()
        except CorruptFrame as wrong:
            yield DamagedBytes(wrong.message, 0)
            yield from _skip(_ahead(self._without_table(), True), start)
            return
        first = table.index_at(start)
        groups = self._groups(table, first)
        stored: Iterator[tuple[tuple[ZstdFrame, ...], memoryview]]
        if whole is not None:
            view = memoryview(whole)
            stored = ((group, view[group[0].at : group[-1].at + group[-1].stored]) for group in groups)
        else:
            stored = _ahead(((group, self._fetch(group)) for group in groups), len(groups) > 1)
        try:
            with closing(_ahead(self._decompressed(stored), len(groups) > 1)) as source:
                yield from _skip(source, start - table.frames[first].start if groups else 0)
        finally:
            self._stored.close()
            self._ring.close()

    def _open(self) -> tuple[SeekTable, bytes | None]:
        """Return the table, and the whole object if it is small enough to be read at once. Raises CorruptFrame."""
        entry = self._entry
        stored = entry.files.stored_bytes
        start = 0 if stored < self._block else stored - min(stored, _TAIL_BYTES)
        # Read one byte more than there should be, so that an object that is too long is noticed.
        tail = self._file.read_range(start, stored + 1)
        if len(tail) != stored - start:
            less = "fewer" if len(tail) < stored - start else "more"
            raise CorruptFrame(f"the object has {less} bytes than the {stored} that the catalog says")
        if start and len(tail) < table_bytes(tail) <= stored:
            tail = self._file.read_range(stored - table_bytes(tail), stored)
        table = SeekTable.parse(tail, stored)
        if table.size != entry.bytes:
            raise CorruptFrame(f"its seek table describes {table.size} bytes of log, the catalog says {entry.bytes}")
        for frame in table.frames:
            if not 0 < frame.size <= self._frame_max or not 0 < frame.stored <= frame_bound(frame.size):
                raise CorruptFrame(f"its seek table has a frame of {frame.stored} bytes for {frame.size} bytes of log")
        return table, None if start else tail

    def _groups(self, table: SeekTable, first: int) -> list[tuple[ZstdFrame, ...]]:
        """Frames that make up a block together."""
        groups: list[tuple[ZstdFrame, ...]] = []
        group: list[ZstdFrame] = []
        size = 0
        for frame in table.frames[first:]:
            if group and size + frame.size > self._block:
                groups.append(tuple(group))
                group, size = [], 0
            group.append(frame)
            size += frame.size
        return [*groups, tuple(group)] if group else groups

    def _fetch(self, group: tuple[ZstdFrame, ...]) -> memoryview:
        size = group[-1].at + group[-1].stored - group[0].at
        view = memoryview(self._stored.take(size).buffer)[:size]
        return view[: self._file.read_into(group[0].at, view)]

    def _decompressed(
        self, groups: Iterator[tuple[tuple[ZstdFrame, ...], memoryview]]
    ) -> Iterator[LogBlock | DamagedBytes]:
        for group, stored in groups:
            item = self._ring.take(sum(frame.size for frame in group))
            item.end = item.start
            for frame in group:
                at = frame.at - group[0].at
                target = memoryview(item.buffer)[item.end : item.end + frame.size]
                try:
                    decompress_frame(stored[at : at + frame.stored], target)
                except CorruptFrame as wrong:
                    if item.end > item.start:
                        yield item
                    where = f"the zstd frame at byte {frame.at} of the object, {frame.stored} bytes, is damaged"
                    yield DamagedBytes(f"{where}: {wrong.message}", frame.size)
                    item = LogBlock(item.buffer, item.end + frame.size, item.end + frame.size)
                else:
                    item.end += frame.size
            if item.end > item.start:
                yield item
            del item, target, stored

    def _without_table(self) -> Iterator[LogBlock | DamagedBytes]:
        """Frame by frame like plain `zstd -d`. Where that would give up, this continues with the next frame."""
        ring = _Ring(FRAME_BYTES, _headroom(self._entry))
        data = b""
        at = 0  # the position of data[0] in the object
        size = 0  # bytes of the log so far
        lost = False  # no frame was found since the last damage
        for fresh in chain(self._file.blocks(self._block), (b"",)):
            final = not fresh
            data += fresh
            position = 0
            while position < len(data) and size < self._entry.bytes:
                try:
                    item, end = self._frame(ring, data, position, final)
                except CorruptFrame as wrong:
                    if data.startswith(_TABLE_BEGIN, position):
                        return
                    if not lost:
                        where = f"no whole zstd frame at byte {at + position} of the object"
                        yield DamagedBytes(f"{where}: {wrong.message}", -1)
                    lost = True
                    found = data.find(FRAME_MAGIC, position + 1)
                    position = found if found >= 0 else max(position + 1, len(data) - len(FRAME_MAGIC) + 1)
                    continue
                if item is None:
                    break
                size += item.end - item.start
                position, lost = end, False
                yield item
                del item
            data = data[position:]
            at += position

    def _frame(self, ring: _Ring, data: bytes, position: int, final: bool) -> tuple[LogBlock | None, int]:
        """Return the frame at `position` and where it ends; (None, 0): more bytes are needed."""
        if len(data) - position < len(FRAME_MAGIC) and not final:
            return None, 0
        if data[position : position + len(FRAME_MAGIC)] != FRAME_MAGIC:
            raise CorruptFrame("none begins there")
        found = frame_end(data, position)
        if found is None:
            if final or len(data) - position > frame_bound(self._frame_max):
                raise CorruptFrame("it is cut short")
            return None, 0
        end, size = found
        if not 0 < size <= self._frame_max:
            raise CorruptFrame(f"it claims to hold {size} bytes")
        item = ring.take(size)
        item.end = item.start + size
        decompress_frame(memoryview(data)[position:end], memoryview(item.buffer)[item.start : item.end])
        return item, end


def _skip(items: Iterator[LogBlock | DamagedBytes], count: int) -> Iterator[LogBlock | DamagedBytes]:
    """`items` without the first `count` bytes of the log."""
    for item in items:
        if isinstance(item, DamagedBytes):
            count = max(0, count - item.size) if item.size >= 0 else 0
        if isinstance(item, LogBlock) and count:
            skipped = min(count, item.end - item.start)
            item.start += skipped
            count -= skipped
            if item.start == item.end:
                continue
        yield item
        del item


class _Idle:
    """Buffers of logs that have been read, for the logs that this process reads next. Callers may still have views of
    a buffer here; a buffer is taken only when no view of it is left.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> bytearray | None:
        with self._lock:
            for index in range(len(self._buffers)):
                if len(self._buffers[index]) >= size and _references(self._buffers, index) == _UNUSED:
                    return self._buffers.pop(index)
        return None

    def give(self, buffers: list[bytearray]) -> None:
        with self._lock:
            self._buffers += buffers
            while sum(map(len, self._buffers)) > _IDLE_BYTES:
                del self._buffers[0]


_idle = _Idle()


class _Ring:
    """Buffers of `headroom` + `size` bytes. They are used again when neither they nor views of them are referred to any
    more: a memoryview refers to its buffer, and so do slices of it."""

    def __init__(self, size: int, headroom: int) -> None:
        self._headroom = headroom
        self._size = size
        self._buffers: list[bytearray] = []

    def take(self, size: int = 0) -> LogBlock:
        """Room for `size` bytes, by default all that a buffer has."""
        wanted = self._headroom + max(size, self._size)
        for index in range(len(self._buffers)):
            if _references(self._buffers, index) == _UNUSED and len(self._buffers[index]) >= wanted:
                return LogBlock(self._buffers[index], self._headroom, wanted)
        if len(self._buffers) == _BUFFERS_MAX:
            del self._buffers[0]  # its views keep it alive; it is not used again
        self._buffers.append(_idle.take(wanted) or bytearray(wanted))
        return LogBlock(self._buffers[-1], self._headroom, wanted)

    def close(self) -> None:
        """This log takes no more buffers: the next log may have them."""
        buffers, self._buffers = self._buffers, []
        _idle.give(buffers)


def _headroom(entry: SegmentEntry) -> int:
    """Room in front of a block for the part of a batch that the block before cut off."""
    return min(entry.max_batch_bytes, _HEADROOM_MAX)


def _references(buffers: list[bytearray], index: int) -> int:
    return sys.getrefcount(buffers[index])


_UNUSED = _references([bytearray(1)], 0)


def _ahead(items: Iterator[T], worthwhile: bool) -> Generator[T, None, None]:
    """Yield the same items. If it is `worthwhile`, a thread makes each item while the caller works on the one
    before."""
    if not worthwhile:
        yield from items
        return
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="logkeep-read") as pool:
        item: T | object = next(items, end)
        while item is not end:
            following = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
            del item
            item = following.result()
            del following

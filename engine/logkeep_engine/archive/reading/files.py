"""The bytes of the files of a segment, be they objects of their own or parts of a pack.

log = SegmentFile(storage, topic, entry, entry.log_suffix)
data = read_file(storage, topic, entry, names.INDEX)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.storage import Storage, StorageAround

NEIGHBOURS_BYTES = 1 << 20
"""This many bytes of a pack are read at once at least."""
_BLOCKS, _MOST_BLOCKS = 16, 128
"""Neighbours that are not merged yet lie in up to 15 packs, so a reader of several partitions comes back to each."""


class SegmentFile:
    """A file of a segment, to be read by its own positions. Of an object of its own more bytes can be read than the
    catalog says, which shows that it is too long; what lies after a part of a pack is not a part of the file."""

    def __init__(self, storage: Storage, topic: str, entry: SegmentEntry, suffix: str) -> None:
        self._storage = storage
        self._place = entry.place(topic, suffix)
        self._bounded = entry.pack_files is not None

    def read_range(self, start: int, end: int) -> bytes:
        """Bytes [start, end), fewer where the file is shorter. Raises ObjectMissing."""
        if self._bounded:
            end = min(end, self._place.size)
            start = min(start, end)
        return self._storage.read_range(self._place.path, self._place.start + start, self._place.start + end)

    def read_into(self, start: int, target: memoryview) -> int:
        """Fill `target` with the bytes from `start` on, and say how many there were. Raises ObjectMissing."""
        if self._bounded:
            target = target[: max(0, self._place.size - start)]
        return self._storage.read_into(self._place.path, self._place.start + start, target)

    def blocks(self, block: int) -> Iterator[bytes]:
        """Yield all bytes, block by block. Raises ObjectMissing."""
        if self._bounded:
            for start in range(0, self._place.size, block):
                yield self.read_range(start, start + block)
            return
        with self._storage.reader(self._place.path, block=block) as reader:
            yield from iter(reader.read_block, b"")


def read_file(storage: Storage, topic: str, entry: SegmentEntry, suffix: str) -> bytes:
    """Return a small file as a whole. Raises ObjectMissing, and ObjectTooLarge for an object that is larger than
    any."""
    place = entry.place(topic, suffix)
    if entry.pack_files is None:
        return storage.read(place.path)
    return storage.read_range(place.path, place.start, place.end)


class NeighbouringReads(StorageAround):
    """`storage` for one reader of many segments: what it reads of a pack comes with what lies after it, so that
    segments that lie near to each other, and their indexes, take few requests. It keeps this many `blocks` for that, of
    a MiB each."""

    def __init__(self, storage: Storage, blocks: int = _BLOCKS) -> None:
        super().__init__(storage)
        self._most = min(max(blocks, _BLOCKS), _MOST_BLOCKS)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        if end is None or end - start > NEIGHBOURS_BYTES or not path.startswith(names.PACKS):
            return self.under.read_range(path, start, end)
        with self._lock:
            for (of, at), data in self._blocks.items():
                if of == path and at <= start and end <= at + len(data):
                    self._blocks.move_to_end((of, at))
                    return data[start - at : end - at]
        data = self.under.read_range(path, start, start + NEIGHBOURS_BYTES)
        with self._lock:
            self._blocks[path, start] = data
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)
        return data[: end - start]

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        if path.startswith(names.PACKS):
            return super().read_into(path, start, target)
        return self.under.read_into(path, start, target)

"""Finds source offsets in an offset map, whatever its size: a large one is searched where it lies, not loaded.

The rows of a map are lines that rise, so the row of an offset is found by halving the object: some twenty small reads
for a hundred million rows. What was read says at each step whether the object is what it should be. A map of at most
WHOLE_BYTES is read and checked as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from logkeep_engine.archive.catalog.signed_documents import OpenedDocument, opened
from logkeep_engine.contract.nesting import WRONG, loads
from logkeep_engine.restore.model.offset_map import (
    HEADER_MAX_BYTES,
    FoundOffset,
    OffsetMap,
    OffsetPlace,
    PartitionSummary,
    damaged_map,
    read_offset_map,
    read_summary,
)
from logkeep_engine.storage import Storage

WHOLE_BYTES = 1 << 20
_BLOCK = 64 << 10
_ROW_BYTES = 128  # no row is longer: three numbers of at most 20 digits
_BLOCKS_KEPT = 8
_END = b"\n]}\n"


class OffsetFinder(Protocol):
    """Says where source offsets lie in the target."""

    def find(self, source_offset: int) -> FoundOffset:
        """Do what `OffsetMap.find` does."""
        ...


def open_offset_map(storage: Storage, path: str) -> OffsetMap | StoredOffsetMap:
    """Return the offset map at this path. Raises ObjectMissing, ArchiveMismatch (newer format), ArchiveDamaged; `find`
    raises ArchiveDamaged too."""
    name = f"{storage.uri}/{path}"
    head = storage.read_range(path, 0, WHOLE_BYTES + 1)
    if len(head) <= WHOLE_BYTES:
        return read_offset_map(head, name)
    found = opened(storage, path)
    head = found.read(0, HEADER_MAX_BYTES)
    return StoredOffsetMap(found, name, read_summary(head, name), head.index(b"\n") + 1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that begin in one block."""

    sources: Sequence[int]
    rows: Sequence[tuple[int, int, int]]


class StoredOffsetMap:
    """A map whose rows are in the storage, from the byte `start` on. Not thread-safe."""

    def __init__(self, found: OpenedDocument, name: str, summary: PartitionSummary, start: int) -> None:
        self._read = found.read
        self._name = name
        self._start = start
        self._end = found.size - len(_END) + 1  # after the newline of the last row
        self._firsts: dict[int, int] = {}
        self._kept: OrderedDict[int, _Rows] = OrderedDict()
        self.summary = summary
        if self._read(found.size - len(_END), found.size) != _END:
            raise damaged_map(self._name, ValueError("the end is missing"))

    def find(self, source_offset: int) -> FoundOffset:
        """Do what `OffsetMap.find` does."""
        low, high = 0, self._blocks  # the row is in the last block that begins at or before the offset
        while high - low > 1:
            middle = (low + high) // 2
            if self._first(middle) <= source_offset:
                low = middle
            else:
                high = middle
        rows = self._rows(low).rows
        at = bisect_right(self._rows(low).sources, source_offset) - 1
        if at >= 0:
            source, target, count = rows[at]
            if source_offset < source + count:
                return FoundOffset(target + source_offset - source, OffsetPlace.RECORD, source_offset)
        if at + 1 < len(rows):
            return FoundOffset(rows[at + 1][1], OffsetPlace.GAP, rows[at + 1][0])
        if high < self._blocks:
            source, target, _ = self._rows(high).rows[0]
            return FoundOffset(target, OffsetPlace.GAP, source)
        return FoundOffset(self.summary.target_end, OffsetPlace.END, None)

    @property
    def _blocks(self) -> int:
        """The number of blocks in which a row begins: the shortest row is `[0,0,1]` with its newline."""
        whole = -(-(self._end - self._start) // _BLOCK)
        # Rows are far shorter than a block, so only the last block can hold the end of one and nothing more.
        return whole if whole < 2 or self._begins_in(whole - 1) else whole - 1

    def _begins_in(self, block: int) -> bool:
        if block not in self._firsts:
            rows = self._parsed(block, _BLOCK).rows
            if not rows:
                return False
            self._firsts[block] = rows[0][0]
        return True

    def _first(self, block: int) -> int:
        """Return the source offset of the first row that begins in a block."""
        if block not in self._firsts:
            rows = self._parsed(block, _ROW_BYTES).rows
            if not rows:
                raise damaged_map(self._name, ValueError(f"no row after byte {self._start + block * _BLOCK}"))
            self._firsts[block] = rows[0][0]
        return self._firsts[block]

    def _rows(self, block: int) -> _Rows:
        found = self._kept.get(block)
        if found is None:
            found = self._kept[block] = self._parsed(block, _BLOCK)
            if not found.rows:
                raise damaged_map(self._name, ValueError(f"no row after byte {self._start + block * _BLOCK}"))
            if len(self._kept) > _BLOCKS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(block)
        return found

    def _parsed(self, block: int, length: int) -> _Rows:
        """Return the rows that begin in the first `length` bytes of a block. Raises ArchiveDamaged."""
        begin = self._start + block * _BLOCK
        stop = min(begin + length, self._end)
        data = self._read(begin - 1, min(stop + _ROW_BYTES, self._end))  # with the byte before: is it a newline?
        first = data.find(b"\n") + 1
        last = data.find(b"\n", stop - begin) + 1 or len(data)
        text = data[first:last].rstrip(b",\n") if first else b""
        try:
            rows = [(source, target, count) for source, target, count in loads(b"[" + text + b"]")]
            sources = [row[0] for row in rows]
            if not all(type(value) is int for row in rows for value in row):
                raise ValueError("a row is not of numbers")
            for (source, target, count), (after, further, _) in pairwise(rows):
                if count < 1 or source + count > after or target + count > further:
                    raise ValueError(f"the row of offset {after} does not follow that of {source}")
        except WRONG as error:
            raise damaged_map(self._name, error) from error
        return _Rows(sources, rows)

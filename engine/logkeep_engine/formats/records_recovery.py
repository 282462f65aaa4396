"""Recovery of a segment of the Records format that a crash left.

The original tool writes the record, then its index entry, then notes the committed position. So a crash (kill -9, loss
of power) at any byte leaves a segment that is right up to the last commit, and after it perhaps whole records without
an index entry, a torn record, a torn index entry. `recover_segment` keeps the whole records and cuts the others.

After a crash, the tool may continue: it appends after a torn record, so that the index jumps over some bytes in the
middle. What the index jumps over is taken out. Records that it does not know are kept if they fit between its
neighbours.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from logkeep_engine.errors import CorruptIndex, CorruptSegment
from logkeep_engine.formats.records import BLOCK_BYTES, RecordBlock, read_blocks
from logkeep_engine.formats.records_index import (
    ENTRY_BYTES,
    IndexCheck,
    IndexState,
    SegmentIndex,
    check_index,
    pack_entries,
    read_index,
)
from logkeep_engine.formats.records_names import (
    MAGIC,
    magic_problem,
)
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.recovery import sync_folder


@dataclass(frozen=True, slots=True)
class SegmentRecovery:
    """The facts of a segment, and the bytes that are, or would be, taken out of it.

    `cuts` are bytes that are not a record, or one that the segment has elsewhere. `size` is that of the file as it was
    found, `valid_bytes` that of the file without the `cuts`. `index` tells how the
    index stood to what is left. `unindexed` counts records that are kept and were not in the index. Offsets of the
    `records` lie in [first_offset, next_offset); both are -1 if there is none.
    """

    records: int
    first_offset: int
    next_offset: int
    size: int
    valid_bytes: int
    cuts: tuple[DamagedBytes, ...]
    unindexed: int
    index: IndexCheck

    @property
    def clean(self) -> bool:
        """Nothing is wrong: the files are left as they are."""
        return not self.cuts and self.valid_bytes == self.size and self.index.state is IndexState.GOOD


def recover_segment(records: Path, index: Path, *, dry_run: bool = False) -> SegmentRecovery:
    """Cut what is not a record out of a segment and make its index again; durable on return.

    With `dry_run` nothing is changed. Raises `CorruptSegment` for another version, with nothing changed. A crash in
    between leaves a segment that can be recovered again.
    """
    old_index = index.read_bytes() if index.exists() else None
    with records.open("rb") as file:
        found = examine_segment(file, old_index)
    if dry_run or found.recovery.clean:
        return found.recovery
    if len(found.kept) > 1:
        _write_parts(records, found.kept)
    else:
        _truncate(records, found.recovery.valid_bytes)
    if found.recovery.index.state is not IndexState.GOOD:
        _write_whole(index, found.index)
    sync_folder(records.parent)
    return found.recovery


@dataclass(frozen=True, slots=True)
class Examined:
    """`kept` are the parts [start, end) of the file that stay, `index` is the index of what is left."""

    recovery: SegmentRecovery
    kept: list[tuple[int, int]]
    index: bytes


def examine_segment(file: BinaryIO, old_index: bytes | None) -> Examined:
    """Return the result that `recover_segment` would have for an open file and the bytes of its index (None: it has
    none). Nothing is changed. Raises `CorruptSegment` for another version.
    """
    size = file.seek(0, os.SEEK_END)
    if not size:  # killed between making the file and writing its first byte
        nothing = SegmentRecovery(0, -1, -1, 0, 1, (), 0, check_index(old_index, MAGIC))
        return Examined(nothing, [(0, 1)], MAGIC)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        problem = magic_problem(data[:1], "segment")
        if problem:
            raise CorruptSegment(problem[0], hint=problem[1])
        walk = _Walk(data, size, _known(old_index))
        walk.run()
    made = bytearray(MAGIC)
    made += pack_entries(walk.offsets, walk.positions)
    indexed = set(walk.known.numbers[0::3])
    return Examined(
        SegmentRecovery(
            records=len(walk.offsets),
            first_offset=walk.offsets[0] if walk.offsets else -1,
            next_offset=walk.last + 1 if walk.offsets else -1,
            size=size,
            valid_bytes=walk.positions[-1],
            cuts=tuple(walk.cuts),
            unindexed=sum(offset not in indexed for offset in walk.offsets),
            index=check_index(old_index, bytes(made)),
        ),
        walk.kept,
        bytes(made),
    )


class _Walk:
    """Goes through a segment along its index.

    A record is taken if it is whole and its offset rises. Where the index says that another record begins inside it, or
    that the next has its offset or a lower one, what the index jumps over is cut out, provided that a record is where
    the index says. So is what is not a record, up to the next place of the index where one is.
    """

    def __init__(self, data: mmap.mmap, size: int, known: SegmentIndex) -> None:
        self._data = data
        self._size = size
        self.known = known
        self._starts = known.numbers[1::3]
        self.offsets = array("q")
        self.positions = array("q", [len(MAGIC)])
        self.kept: list[tuple[int, int]] = [(0, len(MAGIC))]
        self.cuts: list[DamagedBytes] = []
        self.last = -1

    def run(self) -> None:
        at = len(MAGIC)
        while at < self._size:
            try:
                at = self._take_run(at)
            except CorruptSegment as problem:
                at = self.kept[-1][1]
                onward = self._next_known(at + 1)
                end = self._size if onward is None else self._starts[onward]
                self._cut(end, problem.message)
                at = end

    def _take_run(self, at: int) -> int:
        """Take records from `at` on to the end, or to a place where the index jumps; returns where to continue."""
        blocks = self._blocks(at)
        for block in read_blocks(blocks, position=at, size=self._size, after=self.last):
            taken, onward = self._agreed(block)
            if taken:
                self._take(block, taken)
            if onward is not None:
                return onward
        return self._size

    def _agreed(self, block: RecordBlock) -> tuple[int, int | None]:
        """Return how many records of a block to take, and where the index jumps to after them."""
        positions = block.positions
        number = bisect_left(self._starts, positions[0])
        count = len(block.records)
        said = self._starts[number : number + count + 1]
        if len(said) >= count and said == array("q", positions[: len(said)]):
            return count, None
        last = self.last
        for taken, record in enumerate(block.records):
            start, end = positions[taken : taken + 2]
            number = bisect_right(self._starts, start)
            if number == len(self._starts):
                return count, None
            offset, position, _ = self.known.entry(number)
            unknown = number == 0 or self._starts[number - 1] != start
            if (end > position or (unknown and record.offset >= offset)) and offset > last and self._is_record(number):
                if not taken:
                    self._cut(position, f"The index continues with offset {offset} at position {position}.")
                return taken, start if taken else position
            last = record.offset
        return count, None

    def _take(self, block: RecordBlock, count: int) -> None:
        positions = block.positions
        start, end = positions[0], positions[count]
        shift = self.positions[-1] - start
        self.offsets.extend(block.records[:count].offsets())
        self.positions.extend(position + shift for position in positions[1 : count + 1])
        self.last = self.offsets[-1]
        if self.kept[-1][1] == start:
            self.kept[-1] = (self.kept[-1][0], end)
        else:
            self.kept.append((start, end))

    def _cut(self, end: int, reason: str) -> None:
        start = self.cuts[-1].end if self.cuts and self.cuts[-1].end > self.kept[-1][1] else self.kept[-1][1]
        self.cuts.append(DamagedBytes(reason, end - start, start))

    def _next_known(self, at: int) -> int | None:
        """Return the next entry of the index, from position `at` on, where there is the record that it says."""
        for number in range(bisect_left(self._starts, at), len(self._starts)):
            if self.known.entry(number)[0] > self.last and self._is_record(number):
                return number
        return None

    def _is_record(self, number: int) -> bool:
        offset, position, length = self.known.entry(number)
        if position + length > self._size:
            return False
        try:
            (block,) = read_blocks([self._data[position : position + length]], position=position)
        except (CorruptSegment, ValueError):
            return False
        return len(block.records) == 1 and block.records[0].offset == offset

    def _blocks(self, at: int) -> Iterator[bytes]:
        for start in range(at, self._size, BLOCK_BYTES):
            yield self._data[start : start + BLOCK_BYTES]


def _known(data: bytes | None) -> SegmentIndex:
    """Return the part of an index that may be right: whole entries as long as offsets and positions rise."""
    if data is None or not data.startswith(MAGIC):
        return SegmentIndex(array("q"))
    whole = data[: 1 + (len(data) - 1) // ENTRY_BYTES * ENTRY_BYTES]
    try:
        return read_index(whole)
    except CorruptIndex:
        numbers = array("q")
        offset, end = -1, len(MAGIC)
        for entry in struct.iter_unpack(">3q", whole[1:]):
            if entry[0] <= offset or entry[1] < end or entry[2] < 1:
                break
            numbers.extend(entry)
            offset, end = entry[0], entry[1] + entry[2]
        return SegmentIndex(numbers)


# ---- files


def _write_whole(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _write_parts(path: Path, parts: Sequence[tuple[int, int]]) -> None:
    """Leave only these parts of a file; the file is replaced by a new one."""
    fresh = path.with_name(f"{path.name}.tmp")
    with path.open("rb") as old, fresh.open("wb") as file:
        for start, end in parts:
            for at in range(start, end, BLOCK_BYTES):
                file.write(os.pread(old.fileno(), min(BLOCK_BYTES, end - at), at))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        if size == len(MAGIC):  # it may not be there yet
            file.write(MAGIC)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())

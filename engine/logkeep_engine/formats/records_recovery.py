"""A partition's folder of the Records format that grows, and what a crash leaves in it.

    with RecordsFolder(Path("backup/orders"), partition=0, segment_bytes=1 << 30) as folder:
        folder.append(records)           # again and again; what is there already changes nothing
        position = folder.commit()       # all before this offset is on disk for good

Written is the record, then its index entry, then whoever appends notes the committed position. So a crash (kill -9,
loss of power) at any byte leaves a segment that is right up to the last commit, and behind it perhaps whole records
without an index entry, a torn record, a torn index entry. Opening the folder keeps the first, cuts the others.

`recover_segment` does that for any segment, also for one that the original tool went on writing after a crash: it
appends behind a torn record, so that the index jumps over some bytes in the middle. What the index jumps over is taken
out; records that it does not know are kept if they fit between its neighbours.

One writer a partition at a time: a second one is told `ArchiveBusy`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from logkeep_engine.errors import ArchiveBusy, CorruptIndex, CorruptSegment
from logkeep_engine.formats.records import BLOCK_BYTES, RecordBlock, pack_record, read_blocks
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
    SegmentName,
    magic_problem,
    pack_partition_index,
    partition_index_name,
    segments_of,
)
from logkeep_engine.log.consumed import LogRecord

_start_offset = attrgetter("start_offset")


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes [start, end) of a segment that are no record, or one that the segment has elsewhere."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentRecovery:
    """What a segment holds and what is, or would be, taken out of it.

    `size` is that of the file as it was found, `valid_bytes` that of the file without the `cuts`. `index` tells how the
    index stood to what is left. `unindexed` counts records that are kept and were not in the index. Offsets of the
    `records` lie in [first_offset, next_offset); both are -1 if there is none.
    """

    records: int
    first_offset: int
    next_offset: int
    size: int
    valid_bytes: int
    cuts: tuple[Cut, ...]
    unindexed: int
    index: IndexCheck

    @property
    def clean(self) -> bool:
        """Nothing is wrong: the files are left as they are."""
        return not self.cuts and self.valid_bytes == self.size and self.index.state is IndexState.GOOD


def recover_segment(records: Path, index: Path, *, dry_run: bool = False) -> SegmentRecovery:
    """Cut what is no record out of a segment and make its index again; durable on return.

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
    _sync_folder(records.parent)
    return found.recovery


def remake_partition_index(folder: Path, partition: int) -> bool:
    """Write the index of a partition from the segments that are there; tells whether it was another one before."""
    segments = segments_of(os.listdir(folder)).get(partition, [])
    path = folder / partition_index_name(partition)
    made = pack_partition_index(segments)
    if path.exists() and path.read_bytes() == made:
        return False
    _write_whole(path, made)
    _sync_folder(folder)
    return True


class SegmentAppender:
    """A segment that grows: the files `name.records` and `name.index` of a folder. They are made, or recovered, here.

    `recovered` tells what was found; None if the segment is new.
    """

    def __init__(self, folder: Path, name: SegmentName) -> None:
        self.name = name
        records, index = folder / name.records, folder / name.index
        fresh = not records.exists()
        self._lock = _lock(records)
        try:
            found = recover_segment(records, index)
            if os.fstat(self._lock).st_ino != records.stat().st_ino:  # recovery replaced the file that is locked
                os.close(self._lock)
                self._lock = _lock(records)
            self._entries = read_index(index.read_bytes()).numbers
            self._data: RawIOBase = records.open("r+b", buffering=0)
            self._index: RawIOBase = index.open("r+b", buffering=0)
        except BaseException:
            os.close(self._lock)
            raise
        self.recovered = None if fresh else found
        self._size = self._data.seek(0, os.SEEK_END)
        self._index.seek(0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes of the file with the records."""
        return self._size

    @property
    def last_offset(self) -> int:
        """Of the last record; -1 if there is none."""
        return SegmentIndex(self._entries).last_offset

    def append(self, records: Sequence[LogRecord], start: int, limit_bytes: int) -> int:
        """Take records from index `start` on as long as their offsets rise, up to and including the one that takes the
        file over `limit_bytes`; returns how many.
        """
        packed: list[bytes] = []
        offsets: list[int] = []
        positions = [self._size]
        last = self.last_offset
        for record in records[start:]:
            if record.offset <= last or (last >= 0 and positions[-1] > limit_bytes):
                break
            last = record.offset
            packed.append(pack_record(record))
            offsets.append(last)
            positions.append(positions[-1] + len(packed[-1]))
        if packed:
            entries = pack_entries(offsets, positions)
            _write_all(self._data, b"".join(packed))
            self._size = positions[-1]
            _write_all(self._index, entries)
            self._entries.extend(struct.unpack(f">{3 * len(offsets)}q", entries))
        return len(packed)

    def expect(self, offset: int, packed: bytes) -> None:
        """Raises `CorruptSegment` unless the segment has this record."""
        number = bisect_left(range(len(self._entries) // 3), offset, key=lambda at: self._entries[3 * at])
        if number == len(self._entries) // 3 or self._entries[3 * number] != offset:
            raise CorruptSegment(
                f"The record at offset {offset} comes after offset {self.last_offset}, and {self.name} has none of "
                "that offset: offsets must rise.",
                hint="Write into another folder, if the topic was deleted and created again.",
            )
        _, position, length = SegmentIndex(self._entries).entry(number)
        if os.pread(self._data.fileno(), length, position) != packed:
            raise CorruptSegment(
                f"{self.name} has another record at offset {offset} already.",
                hint="Write into another folder, if the topic was deleted and created again.",
            )

    def commit(self) -> int:
        """Make durable what was appended; returns the offset after the last record (0 if there is none)."""
        os.fsync(self._data.fileno())
        os.fsync(self._index.fileno())
        return self.last_offset + 1

    def close(self) -> None:
        """What is not committed stays in the files, but may be lost with the machine."""
        self._data.close()
        self._index.close()
        os.close(self._lock)


class RecordsFolder:
    """A partition of a topic's folder that grows by segments of about `segment_bytes`.

    As in the original tool, the first segment is named by offset 0 and the next ones by their first records. Opening it
    recovers the last segment and makes the partition's index again, if it is not that of the segments that are there.
    """

    def __init__(self, folder: Path, partition: int, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._partition = partition
        self._limit = segment_bytes
        self._names = segments_of(os.listdir(folder)).get(partition) or [SegmentName(partition, 0)]
        self._current = SegmentAppender(folder, self._names[-1])
        self._older: SegmentAppender | None = None
        self._last_offset = self._current.last_offset
        if self._last_offset < 0 and len(self._names) > 1:
            self._last_offset = self._names[-1].start_offset - 1
        remake_partition_index(folder, partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def recovered(self) -> SegmentRecovery | None:
        """What was found in the last segment; None if it is new."""
        return self._current.recovered

    @property
    def next_offset(self) -> int:
        """The offset after the last record, where to go on; 0 if there is none."""
        return self._last_offset + 1

    def append(self, records: Sequence[LogRecord]) -> None:
        """Write records down, into as many segments as it takes. Their offsets rise; those that are there already
        change nothing. Raises `CorruptSegment` if another record has an offset, or one comes too late.
        """
        at = 0
        while at < len(records):
            record = records[at]
            if record.offset <= self._last_offset:
                self._segment_of(record.offset).expect(record.offset, pack_record(record))
                at += 1
                continue
            if self._current.last_offset >= 0 and self._current.size > self._limit:
                self._rotate(record.offset)
            at += self._current.append(records, at, self._limit)
            self._last_offset = self._current.last_offset

    def commit(self) -> int:
        """Make durable what was appended; returns the committed position, the offset after the last record."""
        self._current.commit()
        return self.next_offset

    def close(self) -> None:
        """Close the files. What is not committed stays in them, but may be lost with the machine."""
        self._current.close()
        if self._older is not None:
            self._older.close()
            self._older = None

    def _rotate(self, offset: int) -> None:
        self._current.commit()
        self._current.close()
        name = SegmentName(self._partition, offset)
        self._current = SegmentAppender(self._folder, name)
        self._names.append(name)
        remake_partition_index(self._folder, self._partition)

    def _segment_of(self, offset: int) -> SegmentAppender:
        """The segment that has the record of an offset that is there already. Raises `CorruptSegment`."""
        number = bisect_right(self._names, offset, key=_start_offset) - 1
        if number < 0 or not (self._folder / self._names[number].records).exists():
            raise CorruptSegment(
                f"The record at offset {offset} comes after offset {self._last_offset}, and the segment that could "
                "have it is not in the folder.",
                hint=f"Go on from offset {self.next_offset}.",
            )
        name = self._names[number]
        if name == self._current.name:
            return self._current
        if self._older is None or self._older.name != name:
            if self._older is not None:
                self._older.close()
            self._older = SegmentAppender(self._folder, name)
        return self._older


# ---- what a file holds


@dataclass(frozen=True, slots=True)
class Examined:
    """`kept` are the parts [start, end) of the file that stay, `index` is the index of what is left."""

    recovery: SegmentRecovery
    kept: list[tuple[int, int]]
    index: bytes


def examine_segment(file: BinaryIO, old_index: bytes | None) -> Examined:
    """What `recover_segment` would make of an open file and the bytes of its index (None: it has none); nothing is
    changed. Raises `CorruptSegment` for another version.
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
    the index says. So is what is no record, up to the next place of the index where one is.
    """

    def __init__(self, data: mmap.mmap, size: int, known: SegmentIndex) -> None:
        self._data = data
        self._size = size
        self.known = known
        self._starts = known.numbers[1::3]
        self.offsets = array("q")
        self.positions = array("q", [len(MAGIC)])
        self.kept: list[tuple[int, int]] = [(0, len(MAGIC))]
        self.cuts: list[Cut] = []
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
        """Take records from `at` on to the end, or to a place where the index jumps; returns where to go on."""
        blocks = self._blocks(at)
        for block in read_blocks(blocks, position=at, size=self._size, after=self.last):
            taken, onward = self._agreed(block)
            if taken:
                self._take(block, taken)
            if onward is not None:
                return onward
        return self._size

    def _agreed(self, block: RecordBlock) -> tuple[int, int | None]:
        """How many records of a block to take, and where the index jumps to behind them."""
        number = bisect_left(self._starts, block.positions[0])
        count = len(block.records)
        said = self._starts[number : number + count + 1]
        if len(said) >= count and said == array("q", block.positions[: len(said)]):
            return count, None
        last = self.last
        for taken, record in enumerate(block.records):
            start, end = block.positions[taken : taken + 2]
            number = bisect_right(self._starts, start)
            if number == len(self._starts):
                return count, None
            offset, position, _ = self.known.entry(number)
            unknown = number == 0 or self._starts[number - 1] != start
            if (end > position or (unknown and record.offset >= offset)) and offset > last and self._is_record(number):
                if not taken:
                    self._cut(position, f"The index goes on with offset {offset} at position {position}.")
                return taken, start if taken else position
            last = record.offset
        return count, None

    def _take(self, block: RecordBlock, count: int) -> None:
        start, end = block.positions[0], block.positions[count]
        shift = self.positions[-1] - start
        self.offsets.extend(record.offset for record in block.records[:count])
        self.positions.extend(position + shift for position in block.positions[1 : count + 1])
        self.last = self.offsets[-1]
        if self.kept[-1][1] == start:
            self.kept[-1] = (self.kept[-1][0], end)
        else:
            self.kept.append((start, end))

    def _cut(self, end: int, reason: str) -> None:
        start = self.cuts[-1].end if self.cuts and self.cuts[-1].end > self.kept[-1][1] else self.kept[-1][1]
        self.cuts.append(Cut(start, end, reason))

    def _next_known(self, at: int) -> int | None:
        """The next entry of the index, from position `at` on, where there is the record that it says."""
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
    """What may be right of an index: whole entries as long as offsets and positions rise."""
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


def _lock(path: Path) -> int:
    """A lock on a file, which is made if it is not there; held until the descriptor is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ArchiveBusy(
            f"Another process is writing {path.name} in {path.parent}.", hint="Let it end, or stop it, and start again."
        ) from None
    return descriptor


def _write_all(file: RawIOBase, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

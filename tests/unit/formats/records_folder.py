"""A partition's folder of the Records format that grows, as the original tool makes it grow.

    with RecordsFolder(Path("backup/orders"), partition=0, segment_bytes=1 << 30) as folder:
        folder.append(records)           # again and again; what is there already changes nothing
        position = folder.commit()       # all before this offset is on disk for good

The record is written first, then its index entry, then whoever appends notes the committed position. Opening the folder
recovers its last segment. One writer a partition at a time: a second one is told `ArchiveBusy`.
"""

from __future__ import annotations

import fcntl
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from io import RawIOBase
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

from logkeep_engine.errors import ArchiveBusy, CorruptSegment
from logkeep_engine.formats.records_index import SegmentIndex, pack_entries, read_index
from logkeep_engine.formats.records_names import RecordsName, pack_partition_index, partition_index_name, segments_of
from logkeep_engine.formats.records_recovery import SegmentRecovery, recover_segment
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.recovery import replace_file, sync_folder
from tests.unit.formats.records_oracle import pack_record

_start_offset = attrgetter("start_offset")


def remake_partition_index(folder: Path, partition: int) -> bool:
    """Write the index of a partition from the segments that are there; tells whether it was another one before."""
    segments = segments_of(os.listdir(folder)).get(partition, [])
    path = folder / partition_index_name(partition)
    made = pack_partition_index(segments)
    if path.exists() and path.read_bytes() == made:
        return False
    replace_file(path, made, folder.stat())
    sync_folder(folder)
    return True


class SegmentAppender:
    """A segment that grows: the files `name.records` and `name.index` of a folder. They are made, or recovered, here.

    `recovered` tells what was found; None if the segment is new.
    """

    def __init__(self, folder: Path, name: RecordsName) -> None:
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
        """The offset of the last record; -1 if there is none."""
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
        """Close the files. Records that are not committed stay in them, but may be lost with the machine."""
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
        self._names = segments_of(os.listdir(folder)).get(partition) or [RecordsName(partition, 0)]
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
        """The recovery of the last segment; None if it is new."""
        return self._current.recovered

    @property
    def next_offset(self) -> int:
        """The offset after the last record, where to continue; 0 if there is none."""
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
        name = RecordsName(self._partition, offset)
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

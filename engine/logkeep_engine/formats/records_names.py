"""Names of the files in a topic's folder of the Records format, and the index of a partition, which lists them.

    segment_partition_003_from_offset_0000001000_records    the records
    segment_partition_003_from_offset_0000001000_index      where each of them lies
    index_partition_003                                     the segments of the partition, by start offset
    consumer_offsets_partition_003                          the positions of consumer groups

Numbers are padded to 3 and 10 digits and grow beyond. So names do not sort as their numbers do: sort what was parsed. A
segment that was rewritten after an erasure has a longer number, with more zeros.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from logkeep_engine.errors import CorruptIndex
from logkeep_engine.log.batch import MAX_OFFSET

MAGIC = b"\x01"
"""The first byte of a segment, of its index and of a partition's index: version 1."""

RECORDS_WIDTH = 10
"""Digits of the offset in the name of a segment."""
_MAX_PARTITION = 2**31 - 1
_SEGMENT = re.compile(r"segment_partition_([0-9]{3,10})_from_offset_([0-9]{10,40})(?:_(records|index))?", re.ASCII)
_OF_PARTITION = re.compile(r"(index|consumer_offsets)_partition_([0-9]{3,10})", re.ASCII)
_FOLDER = re.compile(r"generation=[1-9][0-9]*", re.ASCII)
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_start_offset = attrgetter("start_offset")
_REBUILD = "Rebuild the partition's index from the names of its segments."


class FileKind(StrEnum):
    """The kind of a file in a topic's folder."""

    RECORDS = "records"
    INDEX = "index"
    PARTITION_INDEX = "index of the partition"
    CONSUMER_OFFSETS = "consumer offsets"


@dataclass(frozen=True, slots=True)
class RecordsName:
    """A segment of a partition, named by the offset it starts from: its first record has this offset or a later one.
    The offset has at least `width` digits. `folder` is that of a generation in the topic's folder, with a slash after
    it."""

    partition: int
    start_offset: int
    width: int = RECORDS_WIDTH
    folder: str = ""

    def __post_init__(self) -> None:
        _check_partition(self.partition)
        if not 0 <= self.start_offset <= MAX_OFFSET:
            raise ValueError(f"no segment can start from offset {self.start_offset}")

    def __str__(self) -> str:
        """Return the name without suffix, as a partition's index has it."""
        return f"{self.folder}segment_partition_{self.partition:03d}_from_offset_{self.start_offset:0{self.width}d}"

    @property
    def records(self) -> str:
        """The file with the records."""
        return f"{self}_records"

    @property
    def index(self) -> str:
        """The file with the positions of the records."""
        return f"{self}_index"


@dataclass(frozen=True, slots=True)
class FileName:
    """The parts of a file's name. `start_offset` is None for the files that a partition has once. `width`: it has more
    digits than the format gives it, this many; 0: it has not."""

    kind: FileKind
    partition: int
    start_offset: int | None = None
    width: int = 0


def partition_index_name(partition: int) -> str:
    """Return the file with the index of a partition."""
    _check_partition(partition)
    return f"index_partition_{partition:03d}"


def consumer_offsets_name(partition: int) -> str:
    """Return the file with the positions of consumer groups in a partition."""
    _check_partition(partition)
    return f"consumer_offsets_partition_{partition:03d}"


def parse_name(name: str) -> FileName | None:
    """Read the name of a file (without folder). None for a file that does not belong to the format.

    A partition with more zeros than its width asks for is not the format's.
    """
    match = _SEGMENT.fullmatch(name)
    if match and match[3]:
        partition, start_offset = int(match[1]), int(match[2])
        if partition > _MAX_PARTITION or start_offset > MAX_OFFSET:
            return None
        segment = RecordsName(partition, start_offset, len(match[2]))
        width = 0 if str(RecordsName(partition, start_offset)) == str(segment) else segment.width
        if name == segment.records:
            return FileName(FileKind.RECORDS, partition, start_offset, width)
        return FileName(FileKind.INDEX, partition, start_offset, width) if name == segment.index else None
    match = _OF_PARTITION.fullmatch(name)
    if match is None or int(match[2]) > _MAX_PARTITION:
        return None
    partition = int(match[2])
    if name == partition_index_name(partition):
        return FileName(FileKind.PARTITION_INDEX, partition)
    return FileName(FileKind.CONSUMER_OFFSETS, partition) if name == consumer_offsets_name(partition) else None


def segments_of(names: Iterable[str]) -> dict[int, list[RecordsName]]:
    """Return the segments among the names of a folder, by partition, in the order of their offsets."""
    found: dict[int, list[RecordsName]] = {}
    for name in names:
        file = parse_name(name)
        if file is not None and file.kind is FileKind.RECORDS and file.start_offset is not None:
            segment = RecordsName(file.partition, file.start_offset, file.width or RECORDS_WIDTH)
            found.setdefault(file.partition, []).append(segment)
    return {partition: sorted(found[partition], key=_start_offset) for partition in sorted(found)}


def pack_partition_index(segments: Iterable[RecordsName]) -> bytes:
    """Return the index of a partition with these segments, whose offsets must rise. Raises ValueError if they do not.

    It must name exactly the segments that are there: make it again from `segments_of` after segments were deleted.
    """
    packed = bytearray(MAGIC)
    last: RecordsName | None = None
    for segment in segments:
        if last is not None and not (last.partition == segment.partition and last.start_offset < segment.start_offset):
            raise ValueError(f"{segment} cannot follow {last} in the index of a partition")
        name = str(segment).encode()
        packed += _LENGTH.pack(len(name)) + name + _OFFSET.pack(segment.start_offset)
        last = segment
    return bytes(packed)


def read_partition_index(data: bytes) -> list[RecordsName]:
    """Return the segments that the index of a partition names, strictly: raises `CorruptIndex` for what no writer can
    have written as a whole.
    """
    check_magic(data, "index of the partition", CorruptIndex)
    segments: list[RecordsName] = []
    at = 1
    while at < len(data):
        if at + 4 > len(data):
            raise CorruptIndex(f"The index of the partition is cut short after {len(segments)} entries.", hint=_REBUILD)
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + 4 + length + 8
        if length < 0 or end > len(data):
            raise CorruptIndex(
                f"The index of the partition is cut short after {len(segments)} entries: the next one has a name of "
                f"{length} bytes and {len(data) - at - 4} bytes are left.",
                hint=_REBUILD,
            )
        segment = _named(bytes(data[at + 4 : at + 4 + length]), _OFFSET.unpack_from(data, end - 8)[0])
        if segments and segment.start_offset <= segments[-1].start_offset:
            raise CorruptIndex(
                f"The index of the partition names {segment} after {segments[-1]}: offsets must rise.", hint=_REBUILD
            )
        if segments and segment.partition != segments[0].partition:
            raise CorruptIndex(
                f"The index of the partition names {segment} of another partition than {segments[0]}.", hint=_REBUILD
            )
        segments.append(segment)
        at = end
    return segments


def check_magic(data: bytes | memoryview, what: str, error: type[CorruptIndex]) -> None:
    """Raises `error` unless `data`, the start of a file, begins with version 1's first byte."""
    problem = magic_problem(data, what)
    if problem:
        raise error(problem[0], hint=problem[1])


def magic_problem(data: bytes | memoryview, what: str) -> tuple[str, str] | None:
    """(what is wrong with the first byte of a file, what to do), or None if it is that of version 1."""
    if not len(data):
        return (f"The {what} is empty: not even its first byte, the version, is there.", "Recover the folder first.")
    version = data[0]
    if version == MAGIC[0]:
        return None
    if MAGIC[0] < version < 0x20:
        return (
            f"The {what} begins with 0x{version:02x}, which is version {version} of the Records format; only version 1 "
            "can be read.",
            "A newer version of the tool wrote it: read it with that version.",
        )
    return (
        f"The {what} begins with 0x{version:02x} instead of 0x01.",
        "It is damaged, or not a file of the Records format.",
    )


def _named(name: bytes, start_offset: int) -> RecordsName:
    folder, slash, own = name.decode("utf-8", "replace").rpartition("/")
    match = _SEGMENT.fullmatch(own)
    if slash and not _FOLDER.fullmatch(folder):
        match = None
    if match is None or match[3] or int(match[1]) > _MAX_PARTITION or int(match[2]) > MAX_OFFSET:
        raise CorruptIndex(f"The index of the partition names {name!r}, which is not a segment.", hint=_REBUILD)
    width = max(RECORDS_WIDTH, len(match[2])) if match[2].startswith("0") else RECORDS_WIDTH
    segment = RecordsName(int(match[1]), int(match[2]), width, folder + slash)
    if segment.start_offset != start_offset or str(segment).encode() != name:
        raise CorruptIndex(
            f"The index of the partition says that {name.decode()} starts from offset {start_offset}.", hint=_REBUILD
        )
    return segment


def _check_partition(partition: int) -> None:
    if not 0 <= partition <= _MAX_PARTITION:
        raise ValueError(f"{partition} is not the number of a partition")

"""The index of a segment of the Records format: offset, file position and length of every record.

It holds nothing that the segment does not say itself, so it can be made again at any time. Version 1's first byte, then
24 bytes an entry: three int64, big-endian. Entries follow one another without holes, from position 1 on.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import add, eq, lt, sub

from logkeep_engine.errors import CorruptIndex
from logkeep_engine.formats.records_names import MAGIC, check_magic

ENTRY_BYTES = 24

_FIRST_POSITION = len(MAGIC)
_SMALLEST = 24  # bytes of a record
_REBUILD = "Rebuild the index from the segment."


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """Entries of an index. `numbers` has three for each: offset, position, length."""

    numbers: array[int]

    def __len__(self) -> int:
        return len(self.numbers) // 3

    def entry(self, number: int) -> tuple[int, int, int]:
        """(offset, file position, byte length) of a record, counted from 0."""
        offset, position, length = self.numbers[3 * number : 3 * number + 3]
        return offset, position, length

    @property
    def end(self) -> int:
        """File position after the last record."""
        return self.numbers[-2] + self.numbers[-1] if self.numbers else _FIRST_POSITION

    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 if there is none."""
        return self.numbers[-3] if self.numbers else -1


class IndexState(StrEnum):
    """How an index stands to its segment."""

    GOOD = "good"
    MISSING = "missing"
    SHORT = "short"
    LONG = "long"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """`entries` are right, counted from the first; `what` says what is wrong with the next, or is empty."""

    state: IndexState
    entries: int
    what: str = ""


def pack_entries(offsets: Sequence[int], positions: Sequence[int]) -> bytes:
    """Index entries of records that follow one another; `positions` has one more, the end of the last record."""
    numbers = [0] * (3 * len(offsets))
    numbers[0::3] = offsets
    numbers[1::3] = positions[:-1]
    numbers[2::3] = map(sub, positions[1:], positions)
    return struct.pack(f">{len(numbers)}q", *numbers)


def read_index(data: bytes) -> SegmentIndex:
    """Return the entries of an index, strictly: whole, offsets rise, no holes. Raises `CorruptIndex`.

    Whether they are right only the segment can say: `check_index`.
    """
    check_magic(data, "index", CorruptIndex)
    if (len(data) - 1) % ENTRY_BYTES:
        raise CorruptIndex(
            f"The index is cut short: {(len(data) - 1) % ENTRY_BYTES} of {ENTRY_BYTES} bytes of entry "
            f"{(len(data) - 1) // ENTRY_BYTES}.",
            hint=_REBUILD,
        )
    index = _entries(data)
    offsets, positions, lengths = index.numbers[0::3], index.numbers[1::3], index.numbers[2::3]
    ends = array("q", [_FIRST_POSITION, *map(add, positions, lengths)])
    rising = offsets[:1] >= array("q", [0])[: len(offsets)] and all(map(lt, offsets, offsets[1:]))
    if not rising or not all(map(eq, ends, positions)) or min(lengths, default=_SMALLEST) < _SMALLEST:
        raise CorruptIndex(_first_damage(index), hint=_REBUILD)
    return index


def position_before(index: SegmentIndex, offset: int) -> int | None:
    """File position of the record before the first one with this offset or a later one, or of that one if there is none
    before it; None if all records are before the offset. An entry whose offset was altered hides its
    record, so readers begin there and look at the records themselves."""
    number = _first_since(index, offset)
    return index.entry(max(0, number - 1))[1] if number < len(index) else None


def _first_since(index: SegmentIndex, offset: int) -> int:
    """Return the number of the first entry with this offset or a later one."""
    return bisect_left(range(len(index)), offset, key=lambda at: index.numbers[3 * at])


def check_index(data: bytes | None, expected: bytes) -> IndexCheck:
    """Compare an index (None: there is none) with the one made from the segment, which is right."""
    whole = len(expected) // ENTRY_BYTES
    if data is None:
        return IndexCheck(IndexState.MISSING, 0, "The index is missing.")
    if data == expected:
        return IndexCheck(IndexState.GOOD, whole)
    try:
        check_magic(data, "index", CorruptIndex)
    except CorruptIndex as problem:
        return IndexCheck(IndexState.WRONG, 0, problem.message)
    have = (len(data) - 1) // ENTRY_BYTES
    if expected.startswith(data):
        within = (len(data) - 1) % ENTRY_BYTES
        torn = f" and {within} bytes of the next" if within else ""
        return IndexCheck(IndexState.SHORT, have, f"The index has {have} of {whole} entries{torn}.")
    if data.startswith(expected):
        more = f"{len(data) - len(expected)} bytes more than its segment's {whole} records need"
        return IndexCheck(IndexState.LONG, whole, f"The index has {more}.")
    right = _common_entries(data, expected)
    want = struct.unpack_from(">3q", expected, 1 + right * ENTRY_BYTES)
    got = data[1 + right * ENTRY_BYTES :][:ENTRY_BYTES]
    said = "is cut short"
    if len(got) == ENTRY_BYTES:
        said = "says offset {}, position {}, {} bytes".format(*struct.unpack(">3q", got))
    return IndexCheck(
        IndexState.WRONG,
        right,
        f"Entry {right} of the index {said}; the record has offset {want[0]}, position {want[1]}, {want[2]} bytes.",
    )


def build_index(placed: Iterable[tuple[Sequence[int], Sequence[int]]]) -> bytes:
    """Return an index from (offsets, positions) of stretches of records, as `pack_entries` takes them."""
    packed = bytearray(MAGIC)
    for offsets, positions in placed:
        packed += pack_entries(offsets, positions)
    return bytes(packed)


def _entries(data: bytes) -> SegmentIndex:
    numbers = array("q", data[1:])
    if sys.byteorder == "little":
        numbers.byteswap()
    return SegmentIndex(numbers)


def _first_damage(index: SegmentIndex) -> str:
    last, end = -1, _FIRST_POSITION
    for number in range(len(index)):
        offset, position, length = index.entry(number)
        if offset <= last:
            return f"Entry {number} of the index has offset {offset} after {last}: offsets must rise."
        if length < _SMALLEST:
            return (
                f"Entry {number} of the index (offset {offset}) has {length} bytes; a record has {_SMALLEST} or more."
            )
        if position != end:
            return (
                f"Entry {number} of the index (offset {offset}) has {length} bytes at position {position}, not at "
                f"{end}, where the record before it ends."
            )
        last, end = offset, position + length
    return "No writer makes such an index."


def _common_entries(one: bytes, other: bytes) -> int:
    """Return how many whole entries both begin with."""
    low, high = 0, min(len(one), len(other)) // ENTRY_BYTES + 1
    while high - low > 1:
        middle = (low + high) // 2
        end = 1 + middle * ENTRY_BYTES
        if len(one) >= end and len(other) >= end and one[:end] == other[:end]:
            low = middle
        else:
            high = middle
    return low

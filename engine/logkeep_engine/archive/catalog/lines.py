"""The lines of a partition: ways through its offsets. Pure.

Line 0 is its own everywhere. Any other has a base line and a range of its own; outside of that it is its base. If the
log was cut off and continued with other records, the new log owns all from the fork on. If it was read again from its
start, the new reading owns what lies below the offset at which the old one continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.ranges import Range

FOREVER = (1 << 63) - 1
"""The end of what has none: no offset is as high."""


@dataclass(frozen=True, slots=True)
class Line:
    """A way through the offsets of a partition: its own in [start, end), else that of the line `base`. `again`: the log
    of its base was read again there."""

    base: int = -1
    start: int = 0
    end: int = FOREVER
    again: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """Offsets [start, end) of a path, which the line `owner` owns."""

    owner: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lines:
    """All lines of a partition, by their numbers. The base of each is one before it; line 0 has none."""

    lines: Sequence[Line] = (Line(),)

    def __post_init__(self) -> None:
        for number, line in enumerate(self.lines):
            if not (line.base < number and (line.base >= 0) == (number > 0) and 0 <= line.start <= line.end):
                raise ValueError(f"line {number} is {line}")
        if not self.lines or (self.lines[0].start, self.lines[0].end) != (0, FOREVER):
            raise ValueError("line 0 is not its own everywhere")

    def owner(self, number: int, offset: int) -> int:
        """Return the line that owns an offset of a line."""
        line = self.lines[number]
        while not line.start <= offset < line.end:
            number = line.base
            line = self.lines[number]
        return number

    def path(self, number: int, end: int = FOREVER) -> list[Owned]:
        """Return the owners of the offsets of a line below `end`, in order."""
        wanted: list[Range] = [(0, min(end, FOREVER))] if end > 0 else []
        found: list[Owned] = []
        while wanted:
            line = self.lines[number]
            left: list[Range] = []
            for low, high in wanted:
                start, stop = max(low, line.start), min(high, line.end)
                if start >= stop:
                    left.append((low, high))
                    continue
                found.append(Owned(number, start, stop))
                left += [(low, start)] if low < start else []
                left += [(stop, high)] if stop < high else []
            wanted, number = left, line.base
        return sorted(found, key=_start)

    def agree(self, one: int, other: int) -> int:
        """Return the offset up to which two lines have the same owners."""
        if one == other:
            return FOREVER
        mine, its = self.path(one), self.path(other)
        for a, b in zip(mine, its, strict=False):
            if a.owner != b.owner:
                return a.start  # the same as that of `b`: all before were equal
            if a.end != b.end:
                return min(a.end, b.end)
        return FOREVER


def _start(item: Owned) -> int:
    return item.start

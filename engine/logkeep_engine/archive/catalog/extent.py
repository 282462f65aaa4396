"""Extents: ranges of offsets whose bytes an archive has, and what of them counts. Pure.

A view asks a table of extents by number, and makes no object of any. So the table may be packed rows: a million of them
cost two bisections a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from logkeep_engine.archive.ranges import Range


class ExtentTable(Protocol):
    """Extents that do not overlap, by number in the order of their offsets."""

    def __len__(self) -> int: ...

    def span(self, index: int) -> Range:
        """Return the offsets [start, end) of an extent."""
        ...

    def position(self, offset: int) -> int:
        """Return the number of extents that begin below `offset`."""
        ...


Table = TypeVar("Table", bound=ExtentTable)


@dataclass(frozen=True, slots=True)
class LogExtents(Generic[Table]):
    """Extents of the log, as a reader saw it: in [start, end) these are those of a line."""

    line: int
    start: int
    end: int
    table: Table


@dataclass(frozen=True, slots=True)
class StateExtents(Generic[Table]):
    """A state that stands for all offsets below `end` of the line on which it was made: a snapshot. `time` (ms) is the
    highest time of a record below the end."""

    line: int
    end: int
    time: int
    table: Table


@dataclass(frozen=True, slots=True)
class Slices(Generic[Table]):
    """The extents of a table from number `first` on, up to number `last`: the parts of them that lie in [start, end)
    count. All but the first and the last are whole."""

    table: Table
    first: int
    last: int
    start: int
    end: int

    @classmethod
    def within(cls, table: Table, start: int, end: int) -> Slices[Table]:
        """Return the extents of a table that have an offset in [start, end)."""
        first = table.position(start)
        if first and table.span(first - 1)[1] > start:
            first -= 1
        return cls(table, first, max(first, table.position(end)), start, end)

    def __len__(self) -> int:
        return self.last - self.first

    def spans(self) -> Iterator[tuple[int, Range]]:
        """Yield the number of each extent, and the offsets of it that count."""
        for index in range(self.first, self.last):
            yield index, self._part(self.table.span(index))

    def cut(self) -> dict[int, Range]:
        """Return the offsets that count of the extents that are not whole, by number."""
        found = {}
        for index in {self.first, self.last - 1} if len(self) else ():
            span = self.table.span(index)
            part = self._part(span)
            if part != span:
                found[index] = part
        return found

    def _part(self, span: Range) -> Range:
        return max(span[0], self.start), min(span[1], self.end)

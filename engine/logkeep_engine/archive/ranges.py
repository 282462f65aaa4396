"""Merged sorted ranges of offsets. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]
"""Offsets [start, end)."""


def add_range(ranges: list[Range], start: int, end: int) -> None:
    """Add [start, end) to merged sorted ranges; touching and overlapping ones become one."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
        return
    first = bisect_left(ranges, start, key=_end)
    last = first
    while last < len(ranges) and ranges[last][0] <= end:
        start = min(start, ranges[last][0])
        end = max(end, ranges[last][1])
        last += 1
    ranges[first:last] = [(start, end)]


def together(below: Iterable[Range], above: Iterable[Range]) -> list[Range]:
    """Return the ranges of both, merged and sorted."""
    ranges: list[Range] = []
    for start, end in (*below, *above):
        add_range(ranges, start, end)
    return ranges


def without(start: int, end: int, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of [start, end) that lie in none of these merged sorted ranges."""
    left: list[Range] = []
    at = start
    for index in range(bisect_right(ranges, start, key=_end), len(ranges)):
        low, high = ranges[index]
        if low >= end:
            break
        if low > at:
            left.append((at, low))
        at = high
    if at < end:
        left.append((at, end))
    return left


def inside(ranges: Iterable[Range], start: int, end: int) -> Iterator[Range]:
    """Yield the parts of ranges that lie in [start, end)."""
    for low, high in ranges:
        if max(low, start) < min(high, end):
            yield max(low, start), min(high, end)


def cut(ranges: Sequence[Range], offset: int) -> tuple[list[Range], list[Range]]:
    """Return the parts of these ranges below `offset`, and those from it on."""
    below = [(start, min(end, offset)) for start, end in ranges if start < offset]
    above = [(max(start, offset), end) for start, end in ranges if end > offset]
    return below, above


def _end(item: Range) -> int:
    return item[1]

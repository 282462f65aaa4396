"""Compares all records of two sides, partition by partition.

    comparison = StreamComparison(ArchiveSide(source), live)
    for found in comparison: print(found)
    comparison.counts

What a consumer sees with `read_committed` is compared: neither control records nor records of aborted transactions. A
partition that only one side has counts if it has such a record. Key, value, headers and timestamp must be equal;
offsets only if asked for, since a restore may give others. Without offsets both sides are walked in step, and where
they part, the next records that are equal again are looked for among a window of records, and if there are none, among
a larger one. Memory: the blocks that a side reads, and a digest for each record of the window, whatever the size of
records and partitions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from logkeep_engine.compare.aligning import (
    A_AND_B,
    AHEAD,
    Alignment,
    Difference,
    DifferenceKind,
    ListedRecords,
    align,
    by_offset,
    joined,
)
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.consumed import LogRecord, differing_fields
from logkeep_engine.log.rows import Rows, as_rows

_FAR = 64  # times the window

Partition = tuple[str, int]
ReadFrom = Callable[[int], Iterator[Rows]]
"""Reads the records of a partition from an offset on."""

_KINDS = dict.fromkeys((DifferenceKind.ADDED, DifferenceKind.TWICE), "only in B") | {DifferenceKind.LOST: "only in A"}


@dataclass(frozen=True, slots=True)
class PlacedDifference:
    """A difference and its partition. One without offsets is that of a whole partition, which one side lacks."""

    topic: str
    partition: int
    found: Difference

    @property
    def kind(self) -> str:
        """The word for it where no side is an archive and none its copy."""
        return _KINDS.get(self.found.kind, "different")

    def __str__(self) -> str:
        whole = self.found.source_offset is None and self.found.target_offset is None
        text = f"the partition is {self.kind}" if whole else self.found.describe(A_AND_B)
        return f"{self.topic}-{self.partition}: {text}"

    def to_json(self) -> dict[str, Any]:
        """Return the difference as the command prints it."""
        found = self.found.to_json(self.kind, "offsetA", "offsetB")
        return {"topic": self.topic, "partition": self.partition, **found}


@dataclass(slots=True)
class Counts:
    """Records that were compared; partitions that only one side has count in the fields for partitions."""

    partitions: int = 0
    partitions_only_a: int = 0
    partitions_only_b: int = 0
    equal: int = 0
    different: int = 0
    only_a: int = 0
    only_b: int = 0

    @property
    def same(self) -> bool:
        return not (self.partitions_only_a or self.partitions_only_b or self.different or self.only_a or self.only_b)

    def add(self, found: Alignment) -> None:
        """Count the records of both sides that were aligned."""
        self.equal += found.passed
        for item in found.differences:
            if item.target_offset is None:
                self.only_a += item.records
                self.equal -= item.records
            elif item.source_offset is None:
                self.only_b += item.records
            else:
                changed = 2 if item.kind is DifferenceKind.SWAPPED else 1
                self.different += changed
                self.equal -= changed

    def to_json(self) -> dict[str, int]:
        return {
            "partitions": self.partitions,
            "partitionsOnlyInA": self.partitions_only_a,
            "partitionsOnlyInB": self.partitions_only_b,
            "equal": self.equal,
            "different": self.different,
            "onlyInA": self.only_a,
            "onlyInB": self.only_b,
        }


class Side(Protocol):
    """One of two sides that are compared: partitions by name and number, and their committed records from an offset on,
    which are good until the next ones are asked for."""

    def partitions(self) -> Sequence[Partition]: ...

    def rows(self, topic: str, partition: int, start: int = 0) -> Iterator[Rows]: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a comparison. `rename`: topic of A to topic of B. `ignore`: "headers", "timestamp". `window`: this
    many records of each side are looked at after a difference, and more if nothing common is among them. `shown`: this
    many differences are looked at for the fields that differ."""

    offsets: bool = False
    ignore: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    window: int = AHEAD
    shown: int = sys.maxsize


class StreamComparison(Iterator[PlacedDifference]):
    """The differences, found while they are asked for; `counts` are complete at the end."""

    def __init__(self, a: Side, b: Side, rules: Rules | None = None) -> None:
        self.counts = Counts()
        self._rules = rules or Rules()
        self._looked_at = 0
        self._found = self._compare(a, b)

    def __next__(self) -> PlacedDifference:
        return next(self._found)

    def _compare(self, a: Side, b: Side) -> Iterator[PlacedDifference]:
        renamed = {(self._rules.rename.get(topic, topic), number): topic for topic, number in a.partitions()}
        there = set(b.partitions())
        for name, number in sorted({*renamed, *there}):
            topic = renamed.get((name, number), name)
            if (name, number) not in there:
                if any(a.rows(topic, number)):
                    self.counts.partitions_only_a += 1
                    yield PlacedDifference(topic, number, Difference(DifferenceKind.LOST, None, None))
            elif (name, number) not in renamed:
                if any(b.rows(name, number)):
                    self.counts.partitions_only_b += 1
                    yield PlacedDifference(topic, number, Difference(DifferenceKind.ADDED, None, None))
            else:
                self.counts.partitions += 1
                one, other = partial(a.rows, topic, number), partial(b.rows, name, number)
                for found in joined(self._differences(one, other)):
                    yield PlacedDifference(topic, number, self._with_fields(found, one, other))

    def _differences(self, one: ReadFrom, other: ReadFrom) -> Iterator[Difference]:
        a, b = _Window(one(0), self._rules.ignore), _Window(other(0), self._rules.ignore)
        near, far = self._rules.window, _FAR * self._rules.window
        window = near
        while a.fill(2 * window) | b.fill(2 * window):
            found = self._aligned(a, b, window, pair_up=window == far)
            self.counts.add(found)
            yield from found.differences
            a.forget(found.passed)
            b.forget(found.taken)
            if found.apart is not None:
                window = far
            elif not found.differences:
                window = near

    def _with_fields(self, item: Difference, one: ReadFrom, other: ReadFrom) -> Difference:
        """Return the difference with the fields that differ. Both records are read again for it: nothing else keeps
        one."""
        if item.kind is not DifferenceKind.CHANGED or self._looked_at >= self._rules.shown:
            return item
        self._looked_at += 1
        left, right = _record_at(one, item.source_offset), _record_at(other, item.target_offset)
        if left is None or right is None:
            return item
        return replace(item, fields=differing_fields(left, right, self._rules.ignore))

    def _aligned(self, a: _Window, b: _Window, window: int, *, pair_up: bool) -> Alignment:
        """Return the next records of both sides, as far as what follows them is known."""
        if self._rules.offsets or not a.digests or not b.digests:
            return by_offset(a, b, min(a.until, b.until))
        both = min(len(a), len(b))
        if a.digests[:both] == b.digests[:both]:
            return Alignment((), both, passed=both)
        records, ahead = len(a) - (0 if a.ended else window), 0 if b.ended else window
        return align(a, b, records, most=sys.maxsize, pair_up=pair_up, ahead=ahead)


class _Window(ListedRecords):
    """The next records of a side."""

    def __init__(self, parts: Iterator[Rows], ignore: frozenset[str]) -> None:
        super().__init__()
        self._parts = parts
        self._ignore = ignore
        self.ended = False

    @property
    def until(self) -> int:
        """The offset up to which all records are here, or were."""
        return MAX_OFFSET if self.ended else self.offsets[-1] + 1

    def fill(self, count: int) -> bool:
        """Have `count` records here, or all that are left. Returns whether there is one."""
        while len(self) < count and not self.ended:
            rows = next(self._parts, None)
            self.ended = rows is None
            if rows:
                self.add(_compared(rows, self._ignore))
        return bool(self.digests)


def _record_at(read: ReadFrom, offset: int | None) -> LogRecord | None:
    """Return the record at an offset, None if it is gone."""
    if offset is None:
        return None
    for rows in read(offset):
        if found := rows.between(offset, offset + 1):
            return found[0]
        if rows:
            return None
    return None


def _compared(rows: Rows, ignore: frozenset[str]) -> Rows:
    """Return the records without what is not compared."""
    blank: dict[str, Any] = {name: value for name, value in (("headers", ()), ("timestamp", None)) if name in ignore}
    return as_rows([record._replace(**blank) for record in rows]) if blank else rows

"""Finds the records that differ between two sides, by the digests of single records, and says how. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from logkeep_engine.log.rows import Rows, record_digests

AHEAD = 1000
"""This many records after a stretch are looked at, too: the last ones of the stretch may be missing."""

_DIGEST = 16


class DifferenceKind(StrEnum):
    """Says what has become of a record of the source, or where a record of the target comes from."""

    CHANGED = "Changed"
    LOST = "Lost"
    ADDED = "Added"
    TWICE = "Twice"
    SWAPPED = "Swapped"
    MOVED = "Moved"
    """It is the same, at another offset than it must have."""


class Sides(NamedTuple):
    """The words for both sides: an offset of each, and each as a whole."""

    source_offset: str
    target_offset: str
    source: str
    target: str


RESTORED = Sides("source offset {}", "target offset {}", "the archive", "the target")
A_AND_B = Sides("offset {} of A", "offset {} of B", "A", "B")


@dataclass(frozen=True, slots=True)
class Difference:
    """`records` records that follow one another, from these offsets on. An offset is None where a side has no such
    record. `fields` are the parts that differ, empty as long as they were not looked at."""

    kind: DifferenceKind
    source_offset: int | None
    target_offset: int | None
    records: int = 1
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.describe(RESTORED)

    def describe(self, sides: Sides) -> str:
        """Return the difference in a sentence."""
        one = self.records == 1
        source, target = sides.source_offset.format(self.source_offset), sides.target_offset.format(self.target_offset)
        many = "" if one else f" and the {self.records - 1} after it"
        match self.kind:
            case DifferenceKind.CHANGED:
                return f"{source} and {target} differ" + (f" in {', '.join(self.fields)}" if self.fields else "")
            case DifferenceKind.LOST:
                return f"{source}{many} {'is' if one else 'are'} not in {sides.target}"
            case DifferenceKind.TWICE:
                return f"{target}{many} repeat{'s a record' if one else ' records'} of {sides.source}"
            case DifferenceKind.ADDED:
                return f"{target}{many} {'is' if one else 'are'} not in {sides.source}"
            case DifferenceKind.SWAPPED:
                return f"{source} and the next record have changed places, at {target}"
            case DifferenceKind.MOVED:
                return f"{source} lies at {target}"

    def to_json(self, kind: str = "", source: str = "sourceOffset", target: str = "targetOffset") -> dict[str, Any]:
        """Return the difference in a document, with these names for the offsets of both sides."""
        return {
            "kind": kind or self.kind.value,
            source: self.source_offset,
            target: self.target_offset,
            "records": self.records,
            "fields": list(self.fields),
        }

    def with_next(self, item: Difference) -> Difference | None:
        """This one and the next as one, where only one side has the records and they follow one another."""
        offset, following = self.target_offset, item.target_offset
        if self.kind is DifferenceKind.LOST:
            offset, following = self.source_offset, item.source_offset
        elif self.kind not in (DifferenceKind.ADDED, DifferenceKind.TWICE):
            return None
        if item.kind is not self.kind or offset is None or following != offset + self.records:
            return None
        return replace(self, records=self.records + item.records)


def joined(found: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the same with those that follow one another as one, where only one side has the records."""
    last: Difference | None = None
    for item in found:
        both = last.with_next(item) if last is not None else None
        if last is not None and both is None:
            yield last
        last = both or item
    if last is not None:
        yield last


class ListedRecords:
    """The offsets and the digests of records that follow one another. The records themselves are not kept."""

    def __init__(self, parts: Iterable[Rows] = ()) -> None:
        self.offsets = array("q")
        self.digests: list[bytes] = []
        for rows in parts:
            self.add(rows)

    def __len__(self) -> int:
        return len(self.offsets)

    def follow(self, other: ListedRecords) -> None:
        """Add others that follow."""
        self.offsets.extend(other.offsets)
        self.digests += other.digests

    def forget(self, count: int) -> None:
        """Forget the first `count` records."""
        del self.offsets[:count], self.digests[:count]

    def add(self, rows: Rows) -> None:
        """Add records that follow."""
        self.offsets.extend(rows.offsets())
        self.digests += digests_of_each(rows)


def digests_of_each(rows: Rows) -> list[bytes]:
    """Return the digest of each record."""
    found = record_digests(rows, offsets=False)
    return [found[at : at + _DIGEST] for at in range(0, len(found), _DIGEST)]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The differences of a stretch. `taken` records of the target belong to it, and `passed` ones of the source were
    looked at. `apart` is the number of the source's record from which on nothing is common to both lists: after `taken`
    the target continues with something else. None if the stretch was aligned to its end, or until there were enough
    differences."""

    differences: tuple[Difference, ...]
    taken: int
    apart: int | None = None
    passed: int = 0


def align(
    source: ListedRecords,
    target: ListedRecords,
    records: int,
    *,
    most: int,
    offsets: bool = False,
    pair_up: bool = True,
    ahead: int = 0,
) -> Alignment:
    """Align the first `records` of the source, or all if there are fewer, with the target, until `most` differences are
    found, or fewer than `ahead` records of the target are left. Both lists continue after them, by AHEAD records where
    there are this many. Records that stand for each other where nothing more is common have changed, or with `pair_up`
    False it ends there.

    What this costs grows with the number of records, and not with that of the differences.
    """
    records = min(records, len(source))
    found: list[Difference] = []
    known = set(source.digests)
    places = _Places(target.digests)
    left = right = 0

    def add(kind: DifferenceKind, left: int | None, right: int | None, count: int = 1) -> None:
        one = None if left is None else source.offsets[left]
        other = None if right is None else target.offsets[right]
        item = Difference(kind, one, other, count)
        both = found[-1].with_next(item) if found else None
        if both is not None:
            found[-1] = both
        elif len(found) < most:
            found.append(item)

    while left < records and len(target) - right >= ahead and len(found) < most:
        if _same(source, left, target, right):
            if offsets and source.offsets[left] != target.offsets[right]:
                add(DifferenceKind.MOVED, left, right)
            left, right = left + 1, right + 1
        elif left + 1 < records and _same(source, left, target, right + 1) and _same(source, left + 1, target, right):
            add(DifferenceKind.SWAPPED, left, right)
            left, right = left + 2, right + 2
        else:
            skipped = _apart(source.digests, left, places, right)
            if skipped is None and right < len(target) and not pair_up:
                return Alignment(tuple(found), right, left, left)
            skip_left, skip_right = skipped or (len(source) - left, len(target) - right)
            if skip_left > records - left:  # what is after that belongs to the next stretch
                skip_left = records - left
                skip_right = min(skip_left, skip_right)
            paired = min(skip_left, skip_right)
            for at in range(paired):
                add(DifferenceKind.CHANGED, left + at, right + at)
            if skip_left > paired:
                add(DifferenceKind.LOST, left + paired, None, skip_left - paired)
            for at in range(right + paired, right + skip_right):
                add(DifferenceKind.TWICE if target.digests[at] in known else DifferenceKind.ADDED, None, at)
            left, right = left + skip_left, right + skip_right
    return Alignment(tuple(found), right, passed=left)


def by_offset(source: ListedRecords, target: ListedRecords, stop: int) -> Alignment:
    """Align the records below offset `stop` that stand for each other because they have the same offset."""
    passed, taken = bisect_left(source.offsets, stop), bisect_left(target.offsets, stop)
    one = dict(zip(source.offsets[:passed], source.digests, strict=False))
    other = dict(zip(target.offsets[:taken], target.digests, strict=False))
    found = []
    for offset in sorted(one.keys() | other.keys()) if one != other else ():
        if offset not in other:
            found.append(Difference(DifferenceKind.LOST, offset, None))
        elif offset not in one:
            found.append(Difference(DifferenceKind.ADDED, None, offset))
        elif one[offset] != other[offset]:
            found.append(Difference(DifferenceKind.CHANGED, offset, offset))
    return Alignment(tuple(found), taken, passed=passed)


def _same(source: ListedRecords, left: int, target: ListedRecords, right: int) -> bool:
    if left >= len(source) or right >= len(target):
        return False
    return source.digests[left] == target.digests[right]


class _Places:
    """The places of digests in a list."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        self.count = len(digests)
        self._places: dict[bytes, list[int]] = {}
        for number, digest in enumerate(digests):
            self._places.setdefault(digest, []).append(number)

    def first(self, digest: bytes, start: int) -> int | None:
        """Return the first place of a digest from number `start` on."""
        found = self._places.get(digest, ())
        at = bisect_left(found, start)
        return found[at] if at < len(found) else None


def _apart(one: Sequence[bytes], left: int, other: _Places, right: int) -> tuple[int, int] | None:
    """Return the numbers of records of each side to pass over until both continue with equal ones, None if nothing more
    is common to both. The search goes no farther than it passes over."""
    best: tuple[int, int] | None = None
    nearest = len(one) - left + other.count - right
    for number in range(len(one) - left):
        if number >= nearest:
            break
        place = other.first(one[left + number], right)
        if place is not None and number + place - right < nearest:
            best, nearest = (number, place - right), number + place - right
    return best

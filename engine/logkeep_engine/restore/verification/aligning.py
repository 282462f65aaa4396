"""Finds the records that differ between a stretch of the archive and what the target has for it. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from logkeep_engine.log.rows import Rows, record_digests

AHEAD = 1000
"""So many records behind a stretch are looked at, too: the last ones of the stretch may be missing."""

_DIGEST = 16


class RecordDifferenceKind(StrEnum):
    """Says what has become of a record of the archive, or where a record of the target comes from."""

    CHANGED = "Changed"
    LOST = "Lost"
    ADDED = "Added"
    TWICE = "Twice"
    SWAPPED = "Swapped"
    MOVED = "Moved"
    """It is the same, at another offset than it must have."""


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """`records` records that follow one another, from these offsets on. An offset is None where a side has no such
    record. `fields` are the parts that differ, empty as long as nobody has looked at them."""

    kind: RecordDifferenceKind
    source_offset: int | None
    target_offset: int | None
    records: int = 1
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        one = self.records == 1
        source, target = f"source offset {self.source_offset}", f"target offset {self.target_offset}"
        many = "" if one else f" and the {self.records - 1} after it"
        match self.kind:
            case RecordDifferenceKind.CHANGED:
                return f"{source} and {target} differ" + (f" in {', '.join(self.fields)}" if self.fields else "")
            case RecordDifferenceKind.LOST:
                return f"{source}{many} {'is' if one else 'are'} not in the target"
            case RecordDifferenceKind.TWICE:
                return f"{target}{many} repeat{'s a record' if one else ' records'} of the archive"
            case RecordDifferenceKind.ADDED:
                return f"{target}{many} {'is' if one else 'are'} not in the archive"
            case RecordDifferenceKind.SWAPPED:
                return f"{source} and the next record have changed places, at {target}"
            case RecordDifferenceKind.MOVED:
                return f"{source} lies at {target}"


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

    def add(self, rows: Rows) -> None:
        """Add records that follow."""
        self.offsets.extend(rows.offsets())
        self.digests += digests_of_each(rows)


def digests_of_each(rows: Rows) -> list[bytes]:
    """The digest of each record."""
    found = record_digests(rows, offsets=False)
    return [found[at : at + _DIGEST] for at in range(0, len(found), _DIGEST)]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The differences of a stretch. `taken` records of the target belong to it. `apart` is the number of the archived
    record from which on nothing is common to both lists: after `taken` the target continues with something else. None
    if the stretch was aligned to its end, or until there were enough differences."""

    differences: tuple[RecordDifference, ...]
    taken: int
    apart: int | None = None


def align(
    archived: ListedRecords,
    target: ListedRecords,
    records: int,
    *,
    most: int,
    offsets: bool = False,
    pair_up: bool = True,
) -> Alignment:
    """Align the first `records` archived ones, or all if there are fewer, with the target, until `most` differences are
    found. Both lists continue after them, by AHEAD records where there are so many. Records that stand for each other
    where nothing more is common have changed, or with `pair_up` False it ends there.

    What this costs grows with the number of records, and not with that of the differences.
    """
    records = min(records, len(archived))
    found = _Found(most)
    known = set(archived.digests)
    places = _Places(target.digests)
    left = right = 0
    while left < records and not found.full:
        if _same(archived, left, target, right):
            if offsets and archived.offsets[left] != target.offsets[right]:
                found.add(_difference(RecordDifferenceKind.MOVED, archived, left, target, right))
            left, right = left + 1, right + 1
        elif left + 1 < records and _are_swapped(archived, left, target, right):
            found.add(_difference(RecordDifferenceKind.SWAPPED, archived, left, target, right))
            left, right = left + 2, right + 2
        else:
            behind = _apart(archived.digests, left, places, right)
            if behind is None and right < len(target) and not pair_up:
                return Alignment(tuple(found.differences), right, left)
            skip_left, skip_right = behind or (len(archived) - left, len(target) - right)
            if skip_left > records - left:  # what is after that belongs to the next stretch
                skip_left = records - left
                skip_right = min(skip_left, skip_right)
            paired = min(skip_left, skip_right)
            for at in range(paired):
                found.add(_difference(RecordDifferenceKind.CHANGED, archived, left + at, target, right + at))
            left, right = left + paired, right + paired
            if skip_left > paired:
                count = skip_left - paired
                found.add(RecordDifference(RecordDifferenceKind.LOST, archived.offsets[left], None, count))
                left += count
            for at in range(right, right + skip_right - paired):
                kind = RecordDifferenceKind.TWICE if target.digests[at] in known else RecordDifferenceKind.ADDED
                found.add(RecordDifference(kind, None, target.offsets[at]))
            right += skip_right - paired
    return Alignment(tuple(found.differences), right)


def joined(found: Iterable[RecordDifference]) -> list[RecordDifference]:
    """The same with those that follow one another as one, where only one side has the records."""
    together = _Found()
    for item in found:
        together.add(item)
    return together.differences


class _Found:
    """The differences that were found. Those that follow one another are one, where only one side has the records."""

    def __init__(self, most: int | None = None) -> None:
        self.differences: list[RecordDifference] = []
        self._most = most

    @property
    def full(self) -> bool:
        return self._most is not None and len(self.differences) >= self._most

    def add(self, item: RecordDifference) -> None:
        last = self.differences[-1] if self.differences else None
        if last is not None and item.kind == last.kind and _follows(last, item):
            self.differences[-1] = replace(last, records=last.records + item.records)
        elif not self.full:
            self.differences.append(item)


def _follows(last: RecordDifference, item: RecordDifference) -> bool:
    if last.kind is RecordDifferenceKind.LOST and last.source_offset is not None:
        return item.source_offset == last.source_offset + last.records
    if last.kind in (RecordDifferenceKind.ADDED, RecordDifferenceKind.TWICE) and last.target_offset is not None:
        return item.target_offset == last.target_offset + last.records
    return False


def _same(archived: ListedRecords, left: int, target: ListedRecords, right: int) -> bool:
    if left >= len(archived) or right >= len(target):
        return False
    return archived.digests[left] == target.digests[right]


def _are_swapped(archived: ListedRecords, left: int, target: ListedRecords, right: int) -> bool:
    return _same(archived, left, target, right + 1) and _same(archived, left + 1, target, right)


def _difference(
    kind: RecordDifferenceKind, archived: ListedRecords, left: int, target: ListedRecords, right: int
) -> RecordDifference:
    return RecordDifference(kind, archived.offsets[left], target.offsets[right])


class _Places:
    """The places of digests in a list."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        self.count = len(digests)
        self._places: dict[bytes, list[int]] = {}
        for number, digest in enumerate(digests):
            self._places.setdefault(digest, []).append(number)

    def first(self, digest: bytes, start: int) -> int | None:
        """The first place of a digest from number `start` on."""
        found = self._places.get(digest, ())
        at = bisect_left(found, start)
        return found[at] if at < len(found) else None


def _apart(one: Sequence[bytes], left: int, other: _Places, right: int) -> tuple[int, int] | None:
    """The numbers of records of each side to pass over until both continue with equal ones, None if nothing more is
    common to both. The search goes no farther than it passes over."""
    best: tuple[int, int] | None = None
    nearest = len(one) - left + other.count - right
    for number in range(len(one) - left):
        if number >= nearest:
            break
        place = other.first(one[left + number], right)
        if place is not None and number + place - right < nearest:
            best, nearest = (number, place - right), number + place - right
    return best

"""Finds the records that differ between a stretch of the archive and what the target has for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.rows import Rows, record_digests

WINDOW = 1000
"""Records of each side among which equal ones are looked for behind a difference."""

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
    record. `fields` are the parts that differ."""

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
                return f"{source} and {target} differ in {', '.join(self.fields)}"
            case RecordDifferenceKind.LOST:
                return f"{source}{many} {'is' if one else 'are'} not in the target"
            case RecordDifferenceKind.TWICE:
                return f"{target}{many} repeat{'s' if one else ''} a record of the archive"
            case RecordDifferenceKind.ADDED:
                return f"{target}{many} {'is' if one else 'are'} not in the archive"
            case RecordDifferenceKind.SWAPPED:
                return f"{source} and the next record have changed places, at {target}"
            case RecordDifferenceKind.MOVED:
                return f"{source} lies at {target}"


class ListedRecords:
    """Records with the digest of each, in order."""

    def __init__(self, parts: Iterable[Rows] = ()) -> None:
        self.parts: list[Rows] = []
        self.offsets: list[int] = []
        self.digests: list[bytes] = []
        self._starts: list[int] = []
        for rows in parts:
            self.add(rows)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, rows: Rows) -> None:
        """Add records that follow. The rows must stay good."""
        found = record_digests(rows, offsets=False)
        self._starts.append(len(self.offsets))
        self.parts.append(rows)
        self.offsets += rows.offsets()
        self.digests += [found[at : at + _DIGEST] for at in range(0, len(found), _DIGEST)]

    def record(self, number: int) -> LogRecord:
        """A record as an object."""
        at = next(at for at in range(len(self._starts) - 1, -1, -1) if self._starts[at] <= number)
        return self.parts[at][number - self._starts[at]]

    def first(self, count: int) -> list[Rows]:
        """The first `count` records."""
        found = []
        for start, rows in zip(self._starts, self.parts, strict=True):
            if start < count:
                found.append(rows[: count - start])
        return found


@dataclass(frozen=True, slots=True)
class Alignment:
    """The differences of a stretch. `taken` records of the target belong to it."""

    differences: tuple[RecordDifference, ...]
    taken: int


def align(archived: ListedRecords, target: ListedRecords, records: int, *, offsets: bool = False) -> Alignment:
    """Align the first `records` archived ones with the target. Both lists go on behind them, by WINDOW records where
    there are so many, since the last record of a stretch may be missing."""
    found: list[RecordDifference] = []
    known = set(archived.digests)
    left = right = 0
    while left < records:
        if _same(archived, left, target, right):
            if offsets and archived.offsets[left] != target.offsets[right]:
                found.append(_difference(RecordDifferenceKind.MOVED, archived, left, target, right))
            left, right = left + 1, right + 1
        elif left + 1 < records and _are_swapped(archived, left, target, right):
            found.append(_difference(RecordDifferenceKind.SWAPPED, archived, left, target, right))
            left, right = left + 2, right + 2
        else:
            skip_left, skip_right = _apart(archived.digests, left, target.digests, right)
            skip_left = min(skip_left, records - left)
            paired = min(skip_left, skip_right)
            found += (_changed(archived, left + at, target, right + at) for at in range(paired))
            left, right = left + paired, right + paired
            if skip_left > paired:
                count = skip_left - paired
                found.append(RecordDifference(RecordDifferenceKind.LOST, archived.offsets[left], None, count))
                left += count
            for at in range(right, right + skip_right - paired):
                kind = RecordDifferenceKind.TWICE if target.digests[at] in known else RecordDifferenceKind.ADDED
                found.append(RecordDifference(kind, None, target.offsets[at]))
            right += skip_right - paired
    return Alignment(tuple(joined(found)), right)


def joined(found: Iterable[RecordDifference]) -> Iterator[RecordDifference]:
    """The same with those that follow one another as one, where only one side has the records."""
    last: RecordDifference | None = None
    for item in found:
        if last is not None and item.kind == last.kind and _follows(last, item):
            last = RecordDifference(last.kind, last.source_offset, last.target_offset, last.records + item.records)
            continue
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last


def differing(one: LogRecord, other: LogRecord) -> tuple[str, ...]:
    """The fields in which two records differ."""
    found = []
    if one.key != other.key:
        found.append("key")
    if one.value != other.value:
        found.append("value")
    if list(one.headers) != list(other.headers):
        found.append("headers")
    if _time(one) != _time(other):
        found.append("timestamp")
    return tuple(found)


def _time(record: LogRecord) -> int:
    return -1 if record.timestamp is None else record.timestamp


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


def _changed(archived: ListedRecords, left: int, target: ListedRecords, right: int) -> RecordDifference:
    fields = differing(archived.record(left), target.record(right))
    return RecordDifference(RecordDifferenceKind.CHANGED, archived.offsets[left], target.offsets[right], 1, fields)


def _apart(one: Sequence[bytes], left: int, other: Sequence[bytes], right: int) -> tuple[int, int]:
    """The numbers of records of each side to pass over until both go on with equal ones; at least one of either."""
    ahead = one[left : left + WINDOW]
    where: dict[bytes, int] = {}
    behind = other[right : right + WINDOW]
    for number, digest in enumerate(behind):
        where.setdefault(digest, number)
    best, nearest = (len(ahead), len(behind)), len(ahead) + len(behind)
    for number, digest in enumerate(ahead):
        if number >= nearest:
            break
        found = where.get(digest)
        if found is not None and number + found < nearest:
            best, nearest = (number, found), number + found
    return best

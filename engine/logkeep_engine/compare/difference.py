"""A difference between two sides, as everyone who compares records names it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple


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
    record. `fields` are the parts that differ, empty as long as nobody has looked at them."""

    kind: DifferenceKind
    source_offset: int | None
    target_offset: int | None
    records: int = 1
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.told(RESTORED)

    def told(self, sides: Sides) -> str:
        """The difference in a sentence."""
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
        """The difference in a document, with these names for the offsets of both sides."""
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
    """The same with those that follow one another as one, where only one side has the records."""
    last: Difference | None = None
    for item in found:
        both = last.with_next(item) if last is not None else None
        if last is not None and both is None:
            yield last
        last = both or item
    if last is not None:
        yield last

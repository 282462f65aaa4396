"""The questions to an archive, and the differences that come of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model.reference import Bounds, Key, Line, Rec, last_values


@dataclass(frozen=True)
class Fault:
    """A difference: what is wrong (`kind`), in what (`reader`), at which point, and the details. `features`: what has
    happened to the archive before."""

    kind: str
    reader: str
    point: str
    text: str
    features: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.reader} of {self.point}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Asked:
    """A point to ask for: what it is called, how it is asked for, and the lines that it is of. `topic_ids`: the topics
    that are chosen, each with an incarnation, or "" for the one that is taken by itself; empty: all topics. `run`: it
    is the end of one. `kept`: it must be there. `expects`: the incarnation that must be taken, by topic."""

    name: str
    lines: dict[Key, Line]
    point: dict[str, Any] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    kept: bool = True
    run: bool = False
    expects: Mapping[str, str] = field(default_factory=dict)
    moment: int = -1
    since: int | None = None
    before: int | None = None
    is_branch: bool = False
    ends: dict[Key, int] = field(default_factory=dict)
    skips_damage: bool = False

    def bounds(self, key: Key, line: Line) -> Bounds:
        """Tell the part of a line that the point is of."""
        point = self.point or {}
        if "asOf" in point:
            return Bounds(line.first_since(self.moment))
        if "window" in point:
            return Bounds(since=self.since, before=self.before)
        if "timestamp" in point:
            return Bounds(before=self.moment)
        ends = {item["partition"]: item["offset"] for item in point.get("offsets", ())}
        end = ends.get(key[1], self.ends.get(key))
        return Bounds(None if end is not None and end >= line.end else end)  # else all that is archived belongs to it

    def bounded(self) -> Iterator[tuple[Key, Line, Bounds]]:
        """The lines that it is of, and the part of each."""
        chosen = {topic_id for topic_id in self.topic_ids.values() if topic_id}
        for key, line in self.lines.items():
            if not chosen or key[0] in chosen or self.is_branch:
                yield key, line, self.bounds(key, line)


def must_have(asked: Asked, gone: set[tuple[Key, int]], has_states: Callable[[str], bool]) -> bool:
    """Whether a reader must find a record. `has_states`: whether of the incarnation of an id the last records of keys
    count."""
    for key, line, bounds in asked.bounded():
        some: list[Rec] = bounds.of(line.read.values(), line.read.values())
        if any((key, rec.offset) not in gone for rec in (last_values(some).values() if has_states(key[0]) else some)):
            return True
    return False

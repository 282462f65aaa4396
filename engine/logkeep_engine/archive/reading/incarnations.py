"""The choice between incarnations of a topic: a topic that was deleted and created again has another id, and the
archive keeps both.

By default the newest incarnation with records is taken. Records of aborted transactions do not count. A user who
deleted a topic by mistake, and created it again, needs the old records back, and the new incarnation is empty. But a
producer may have begun a transaction in the new one, and aborted it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.values import so_many

Shows = Callable[[TopicEntry], bool]
"""Asks if consumers of committed records see a record of an incarnation that has records (see `visible.shows`)."""


def as_counted(topic: TopicEntry) -> bool:
    """Take the catalog's word, which counts records of aborted transactions too."""
    return True


@dataclass(frozen=True, slots=True)
class HeldIncarnation:
    """How much of an incarnation the archive holds. Times are ms since the epoch, -1 if there is no record."""

    topic_id: str
    records: int
    first: int
    last: int

    def __str__(self) -> str:
        if not self.records:
            return f"{self.topic_id} (no records)"
        return f"{self.topic_id} ({so_many(self.records, 'record')}{_between(self.first, self.last)})"


def incarnations(topics: Iterable[TopicEntry]) -> dict[str, list[TopicEntry]]:
    """Return the incarnations of each name, in the order in which the archive saw them first. The names are sorted."""
    found: dict[str, list[TopicEntry]] = {}
    for topic in topics:
        found.setdefault(topic.name, []).append(topic)
    return {name: found[name] for name in sorted(found)}


def taken(state: ArchiveState, found: Sequence[TopicEntry], shows: Shows = as_counted) -> TopicEntry:
    """Return the incarnation of a name that is taken by default. Only where there are several is `shows` asked."""
    if len(found) == 1:
        return found[0]
    newest: TopicEntry | None = None
    for topic in reversed(found):
        if any(entry.records for entry in _entries(state, topic)):
            if shows(topic):
                return topic
            newest = newest or topic
    return newest or found[-1]


def taken_topics(
    state: ArchiveState,
    topics: Iterable[TopicEntry] | None = None,
    shows: Shows = as_counted,
    wanted: Callable[[str], bool] = bool,
) -> dict[str, TopicEntry]:
    """Return the incarnation of each name that is taken by default, of `topics` or all that the archive has. `shows` is
    asked for the names that are `wanted`: it may read."""
    by_name = incarnations(state.topics.values() if topics is None else topics)
    return {name: taken(state, found, shows if wanted(name) else as_counted) for name, found in by_name.items()}


def held(state: ArchiveState, topic: TopicEntry) -> HeldIncarnation:
    """Return how much the archive has of it."""
    entries = _entries(state, topic)
    return HeldIncarnation(
        topic.topic_id,
        sum(entry.records for entry in entries),
        min((entry.times.min_base_timestamp for entry in entries if entry.times.min_base_timestamp >= 0), default=-1),
        max((entry.times.max_timestamp for entry in entries), default=-1),
    )


def _entries(state: ArchiveState, topic: TopicEntry) -> list[SegmentEntry]:
    return [
        entry for partition in range(topic.partitions) for entry in state.segments.get((topic.topic_id, partition), ())
    ]


def _between(first: int, last: int) -> str:
    """Empty for times that no calendar has: producers may write any number."""
    begin, end = moment(first), moment(last)
    return f" from {begin} to {end}" if begin and end else ""

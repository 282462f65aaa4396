"""Refuses points at which the archive does not know the state of a compacted topic. Pure.

A generation that was read from a compacted log is exact from an offset on (see `archive.catalog.generations`). Below
it, records are missing that had been overwritten when the log was read. The generation before may be exact there, but
its segments go when the next one becomes active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import Generation, generation_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import iso
from logkeep_engine.errors import SpecError

Identity = tuple[int, int, int]


def identity(entry: SegmentEntry) -> Identity:
    """The numbers that tell a segment of a partition from all others."""
    return entry.base_offset, entry.epoch, entry.attempt


def refuse_inexact(
    archived: ArchiveState, topics: Iterable[TopicEntry], ends: Mapping[Partition, int], before: int | None = None
) -> None:
    """Raises SpecError if a partition of these topics ends where its generation is not exact: at the offset in `ends`,
    or at records of the time `before` (ms) or later."""
    found = [
        (topic, key, known)
        for topic, key, known in _generations(archived, topics)
        if (ends.get(key, known.exact) < known.exact or _has_since(archived, key, known.exact, before))
        and not _is_dense(archived, key, known.exact)
    ]
    if found:
        topic, key, known = found[0]
        where = f"offset {ends[key]}" if before is None else iso(before)
        raise SpecError(
            f"spec.point: topic {topic.name!r} partition {key[1]} is compacted, and generation {known.number} of it is "
            f"exact from offset {known.exact} on, not at {where}: records are missing there that had been "
            f"overwritten when the log was read{_and_more(len(found))}",
            hint=_hint(known for _, _, known in found),
        )


def last_with(archived: ArchiveState, later: ArchiveState, topics: Iterable[TopicEntry], run_id: str) -> int:
    """The last commit that has the generations which were active at the end of a run. `archived` is the state at that
    end, `later` the newest. Objects of a generation that is not active any more are there for a while: whoever says
    that he knows the catalog up to that commit keeps them.

    Raises SpecError if some are deleted."""
    found, last = [], later.commit
    for topic, key, known in _generations(later, topics):
        entries = archived.segments.get(key, ())
        if generation_of(archived, key).number == known.number or not entries:
            continue
        wanted = {identity(entry) for entry in entries}
        wanted -= {identity(entry) for entry in later.segments.get(key, ())}
        for item in later.unpurged:
            unnamed = {identity(entry) for entry in item.segments.get(key, ())}
            if wanted & unnamed:
                wanted -= unnamed
                last = min(last, item.commit - 1)
        if wanted:
            found.append((topic, key, known))
    if found:
        topic, key, known = found[0]
        raise SpecError(
            f"spec.point.run: at the end of run {run_id}, topic {topic.name!r} partition {key[1]} had generation "
            f"{generation_of(archived, key).number}, which is gone since generation {known.number} became active"
            f"{_and_more(len(found))}",
            hint=_hint(known for _, _, known in found),
        )
    return max(last, archived.commit)


def _generations(
    state: ArchiveState, topics: Iterable[TopicEntry]
) -> Iterator[tuple[TopicEntry, Partition, Generation]]:
    chosen = {topic.topic_id: topic for topic in topics}
    for key, known in sorted(state.generations.items()):
        if key[0] in chosen:
            yield chosen[key[0]], key, known


def _has_since(state: ArchiveState, key: Partition, end: int, before: int | None) -> bool:
    """Whether records below offset `end` may have that time (ms) or a later one."""
    entries = state.segments.get(key, ())
    return before is not None and any(
        entry.times.max_timestamp >= before for entry in entries if entry.base_offset < end
    )


def _is_dense(state: ArchiveState, key: Partition, end: int) -> bool:
    """Whether no offset is missing below `end`, so that compaction has taken nothing."""
    entries = [entry for entry in state.segments.get(key, ()) if entry.base_offset < end]
    accounted = state.accounted_for(*key)
    reached = [accounted[0][0] if accounted else 0, *(entry.next_offset for entry in entries)]
    whole = not any(entry.gaps for entry in entries) and reached[-1] >= end
    return whole and reached[:-1] == [entry.base_offset for entry in entries]


def _and_more(count: int) -> str:
    return f"; and {count - 1} more partitions" if count > 1 else ""


def _hint(found: Iterable[Generation]) -> str:
    since = max(known.since for known in found)
    return f"Points of what is restored are exact from {iso(since)} on: choose a later one, or leave spec.point out."

"""Refuses a point within a transaction by which brokers may have compacted before a run came.

A run ends at the last stable offset. A transaction below it is decided, though its marker may lie behind: another one
holds that offset back. From then on brokers compact by its records, so the archive may lack what they have replaced. A
point between the end of the run and the marker has nothing of the transaction, and would lack these keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import is_dense
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.errors import SpecError
from logkeep_engine.log.transactions import Span
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.straddling import straddling
from logkeep_engine.storage import Storage


def refuse_unsettled(storage: Storage, archived: ArchiveState, topics: Iterable[TopicEntry], point: PointPlan) -> None:
    """Raises SpecError for a point that leaves out a transaction of which an earlier run than that of the point has
    archived records, where offsets are missing. `archived` is without snapshots. Raises what the storage raises."""
    cut = [
        (topic, (topic.topic_id, number))
        for topic in topics
        if topic.was_compacted
        for number in range(topic.partitions)
        if point.clip((topic.topic_id, number)) is not None
        and any(entry.transactional for entry in archived.segments.get((topic.topic_id, number), ()))
    ]
    seen = with_snapshots(archived, point.ends, point.before) if cut else archived
    for topic, key in cut:
        found = _first_unsettled(storage, archived, seen, topic, key, point)
        if found is not None:
            producer, first, last = found
            raise SpecError(
                f"spec.point: topic {topic.name!r} partition {key[1]} is compacted, and the point lies within the "
                f"transaction of producer {producer} that begins at offset {first}, and an earlier run has archived "
                "records of it: what they had replaced may be missing",
                hint=f"Choose a later point than offset {last}, one up to offset {first}, or the end of a run "
                "(spec.point.run).",
            )


def _first_unsettled(
    storage: Storage, archived: ArchiveState, seen: ArchiveState, topic: TopicEntry, key: Partition, point: PointPlan
) -> Span | None:
    entries = list(seen.segments.get(key, ()))
    ends = _ends_of_runs(entries)
    ends = ends[bisect_left(ends, True, key=lambda end: not is_dense(archived, key, end)) :]
    if not ends:
        return None
    partition = ArchivedPartition(storage, topic.name, entries, archived.kept(*key))
    for span in straddling(partition, point.clip(key)).left_out:
        if any(span[1] < end <= span[2] + 1 for end in ends):
            return span
    return None


def _ends_of_runs(entries: Sequence[SegmentEntry]) -> list[int]:
    """Return the offsets at which what runs have archived ends, in their order."""
    return [
        entry.files.end or entry.next_offset
        for entry, following in zip_longest(entries, entries[1:])
        if following is None or entry.archived_last != following.archived_first
    ]

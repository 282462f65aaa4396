"""Refuses a point within a transaction by which brokers may have compacted before a run came.

A run ends at the last stable offset. A transaction below it is decided, though its marker may lie behind: another one
holds that offset back. From then on brokers compact by its records, so the archive may lack what they have replaced. A
point between the end of the run and the marker has nothing of the transaction, and would lack these keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import is_dense
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.errors import SpecError
from logkeep_engine.log.transactions import Span
from logkeep_engine.restore.plan import PointPlan
from logkeep_engine.restore.straddling import ArchivedPartition, straddling
from logkeep_engine.storage import Storage


def refuse_unsettled(storage: Storage, archived: ArchiveState, topics: Iterable[TopicEntry], point: PointPlan) -> None:
    """Raises SpecError for a point that leaves out a transaction of which an earlier run than that of the point has
    archived records, where offsets are missing. `archived` is without snapshots. Raises what the storage raises."""
    for topic in topics:
        for number in range(topic.partitions if topic.was_compacted else 0):
            found = _first_unsettled(storage, archived, topic, (topic.topic_id, number), point)
            if found is not None:
                producer, first, last = found
                raise SpecError(
                    f"spec.point: topic {topic.name!r} partition {number} is compacted, and the point lies within the "
                    f"transaction of producer {producer} that begins at offset {first}, of which an earlier run has "
                    "archived records: what they had replaced may be missing",
                    hint=f"Choose a later point than offset {last}, one up to offset {first}, or the end of a run "
                    "(spec.point.run).",
                )


def _first_unsettled(
    storage: Storage, archived: ArchiveState, topic: TopicEntry, key: Partition, point: PointPlan
) -> Span | None:
    clip = point.clip(key)
    if clip is None or not any(entry.transactional for entry in archived.segments.get(key, ())):
        return None
    entries = list(with_snapshots(archived, point.ends, point.before).segments.get(key, ()))
    ends = [end for end in _ends_of_runs(entries) if not is_dense(archived, key, end)]
    if not ends:
        return None
    for span in straddling(ArchivedPartition(storage, topic.name, entries, archived.kept(*key)), clip).left_out:
        if any(span[1] < end <= span[2] + 1 for end in ends):
            return span
    return None


def _ends_of_runs(entries: Sequence[SegmentEntry]) -> Iterator[int]:
    """Yield the offsets at which other runs than those before have archived what follows."""
    for entry, following in pairwise(entries):
        if entry.archived_last != following.archived_first:
            yield entry.next_offset if not entry.files.end else entry.files.end
    if entries:
        yield entries[-1].files.end or entries[-1].next_offset

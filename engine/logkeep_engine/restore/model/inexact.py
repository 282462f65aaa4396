"""Refuses points at which the archive does not know the state of a compacted topic. Pure.

A generation that was read from a compacted log is exact from an offset on (see `archive.catalog.generations`), the
first one from the end of the first backup on. Below it, records are missing that had been overwritten when the log was
read. The generation before may be exact there, but its segments go when the next one becomes active. A log that was cut
off below that offset is exact nowhere, but in its branch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import NOWHERE, Generation, generation_of, is_dense
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import known_generation, last_time, sparse_ranges, with_snapshots
from logkeep_engine.archive.history.earlier import last_with_generations
from logkeep_engine.archive.moments import iso
from logkeep_engine.errors import SpecError
from logkeep_engine.log.transactions import Span
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.straddling import straddling
from logkeep_engine.storage import Storage

# ---- unsettled

# Refuses a point within a transaction by which brokers may have compacted before a run came.
#
# A run ends at the last stable offset. A transaction below it is decided, though its marker may lie after it: another
# one holds that offset back. From then on brokers compact by its records, so the archive may lack what they have
# replaced. A point between the end of the run and the marker has nothing of the transaction, and would lack these
# keys.


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


def refuse_inexact(
    archived: ArchiveState, topics: Iterable[TopicEntry], ends: Mapping[Partition, int], before: int | None = None
) -> None:
    """Raises SpecError if a partition of these topics ends where its generation is not exact: at the offset in `ends`,
    or at records of the time `before` (ms) or later. So it does for a point between two backups, if the later one has
    found records overwritten there. An end below which no offset is missing is exact, such as that in front of the
    first record."""
    refuse_exact_nowhere(archived, topics)
    found = [
        (topic, key, known, latest)
        for topic, key, known in _generations(archived, topics)
        if known.exact_from != NOWHERE
        for latest in [last_time(archived, key, known.exact)]
        if (ends.get(key, known.exact) < known.exact or (before is not None and latest >= before))
        and not is_dense(archived, key, min(ends.get(key, known.exact), known.exact))
    ]
    if found:
        topic, key, known, _ = found[0]
        where = f"offset {ends[key]}" if before is None else iso(before)
        raise SpecError(
            f"spec.point: topic {topic.name!r} partition {key[1]} is compacted, and generation {known.number} of it is "
            f"exact from offset {known.exact} on, not at {where}: records are missing there that had been "
            f"overwritten when the log was read, or were erased since{_and_more(len(found))}",
            hint=f"Points later than {iso(max(latest for *_, latest in found))} are exact: choose one, or an "
            "offset, or the end of a run (spec.point.run); or leave spec.point out.",
        )
    _refuse_between_backups(archived, topics, ends, before)


def _refuse_between_backups(
    archived: ArchiveState, topics: Iterable[TopicEntry], ends: Mapping[Partition, int], before: int | None
) -> None:
    """Raises SpecError if a partition ends inside of what one backup has archived after records of it had been
    overwritten."""
    for topic in topics:
        for key in (key for key in archived.segments if key[0] == topic.topic_id):
            for sparse in sparse_ranges(archived, key):
                at_offset = sparse.start < ends.get(key, sparse.end) < sparse.end
                if not at_offset and (before is None or not sparse.before < before <= sparse.last):
                    continue
                where = f"offset {ends[key]}" if before is None else iso(before)
                raise SpecError(
                    f"spec.point: topic {topic.name!r} partition {key[1]} is compacted, and what a backup has read of "
                    f"it from offset {sparse.start} on is exact from offset {sparse.end} on, not at {where}: records "
                    "are missing there that had been overwritten when the log was read, or were erased since",
                    hint=f"Choose the end of a run (spec.point.run), a point later than {iso(sparse.last)}, or offset "
                    f"{sparse.start} or less for this partition; or leave spec.point out.",
                )


_NOWHERE_HINT = (
    "Choose the end of a run before the log was cut off (spec.point.run), or its branch (spec.source.topicIds). Or "
    "leave spec.point out: that restores everything that is there."
)


def refuse_exact_nowhere(archived: ArchiveState, topics: Iterable[TopicEntry]) -> None:
    """Raises SpecError for a partition of these topics of which no point is exact."""
    for reason in exact_nowhere(archived, topics):
        raise SpecError(f"spec.point: {reason}", hint=_NOWHERE_HINT)


def exact_nowhere(archived: ArchiveState, topics: Iterable[TopicEntry]) -> Iterator[str]:
    """Tells the partitions of these topics of which no point is exact."""
    for topic, key, known in _generations(archived, topics):
        if known.exact_from != NOWHERE:
            continue
        why = "the archive that it was converted from was not exact anywhere either"
        if known.exact != NOWHERE:
            why = (
                f"its log was cut off below offset {known.exact}, and so were the records that had overwritten what "
                f"generation {known.number} lacks"
            )
        yield f"topic {topic.name!r} partition {key[1]} is compacted, and no point of it is exact: {why}"


def last_with(archived: ArchiveState, later: ArchiveState, topics: Iterable[TopicEntry], run_id: str) -> int:
    """Return the last commit that has the generations which were active at the end of a run. `archived` is the state at
    that end, `later` the newest. Objects of a generation that is not active any more are there for a while: a reader
    that declares to know the catalog up to that commit keeps them.

    Raises SpecError if some are deleted."""
    last, gone = last_with_generations(archived, later, (topic.topic_id for topic in topics))
    if gone:
        key, known = gone[0], [generation_of(later, key) for key in gone]
        raise SpecError(
            f"spec.point.run: at the end of run {run_id}, topic {later.topics[key[0]].name!r} partition {key[1]} had "
            f"generation {generation_of(archived, key).number}, which has been gone since generation {known[0].number} "
            f"became active{_and_more(len(gone))}",
            hint=_hint(known),
        )
    return last


def _generations(
    state: ArchiveState, topics: Iterable[TopicEntry]
) -> Iterator[tuple[TopicEntry, Partition, Generation]]:
    chosen = {topic.topic_id: topic for topic in topics}
    for key in sorted({*state.next_generations, *state.segments}):
        if key[0] in chosen:
            yield chosen[key[0]], key, known_generation(state, key)


def _and_more(count: int) -> str:
    return f"; and {count - 1} more partitions" if count > 1 else ""


def _hint(found: Iterable[Generation]) -> str:
    since = max(known.since for known in found)
    return f"Points of what is restored are exact from {iso(since)} on: choose a later one, or leave spec.point out."

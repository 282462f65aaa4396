"""The plan of a Spark read: which ranges of which segments it needs, and how they are spread over Spark's partitions.

The plan is made from the catalog alone: no object is listed. Objects are read only for what the catalog cannot say: the
transaction indexes of partitions with transactions, and, for options of time, whether a compacted segment holds such a
record. The caller hands in functions for both; else `plan` is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.incarnations import Shows, as_counted, taken_topics
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.contract.patterns import Pattern
from logkeep_engine.errors import NoTopicMatches
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source_options import SourceOptions, WantedRecords

OPEN_COST = 4 << 20
"""The bytes that could be read in the time that it takes to open a segment, as Spark counts for files."""


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """A read of one segment: its records with offsets in [start, end), without those of `aborted` transactions.

    With `first_time` (ms), the read begins with the first record of that time or later; with `end_time` it ends before
    the first such record. Batches whose records are all older than `since` need not be looked at.
    """

    topic: str
    entry: SegmentEntry
    start: int
    end: int
    first_time: int | None = None
    end_time: int | None = None
    since: int | None = None
    aborted: tuple[AbortedTxn, ...] = ()


Aborted = Callable[[TopicEntry, Sequence[SegmentEntry]], Sequence[AbortedTxn]]
"""A function that finds the aborted transactions of these segments of one partition: its segments from the first wanted
one on."""

Holds = Callable[[TopicEntry, SegmentEntry, int], bool]
"""A function that says whether a segment of batches has a record of this time (ms) or later."""


def plan(
    state: ArchiveState,
    options: SourceOptions,
    wanted: WantedRecords,
    aborted: Aborted,
    holds: Holds,
    shows: Shows = as_counted,
) -> list[list[SegmentRead]]:
    """The reads of each Spark partition, in the order of topics, partitions and offsets; [] if there is nothing.

    Raises NoTopicMatches if the archive has none of the topics that the options name.
    """
    reads = [
        read
        for topic in select_topics(state, options, shows)
        if wanted.topic(topic.name)
        for partition in range(topic.partitions)
        if _selected(partition, options) and wanted.partition(partition)
        for read in _reads(state, topic, partition, options, wanted, aborted, holds)
    ]
    costs = [_cost(read, options.max_partition_bytes) for read in reads]
    return list(_grouped(zip(reads, costs, strict=True), _limit(options, sum(costs))))


def select_topics(state: ArchiveState, options: SourceOptions, shows: Shows) -> list[TopicEntry]:
    """Return the topics to read, by name. Each is the incarnation that a restore would take too, the newest that has
    records, or it is the one that the options name."""
    if options.topic_id is not None:
        return [_incarnation(state, options.topic_id, options)]
    found = taken_topics(state, shows=shows, wanted=partial(_is_named, options))
    if options.topics is not None:
        missing = sorted(set(options.topics) - set(found))
        if missing:
            raise NoTopicMatches(f"Option topics: the archive has no topic {', '.join(missing)}.", hint=_have(found))
    named = [found[name] for name in sorted(found) if _is_named(options, name)]
    if options.topic_pattern is not None and not named:
        raise NoTopicMatches(
            f"Option topicPattern: no topic of the archive matches {options.topic_pattern!r} as a whole.",
            hint=_have(found),
        )
    return named


def _is_named(options: SourceOptions, name: str) -> bool:
    if options.topics is not None:
        return name in options.topics
    return options.topic_pattern is None or Pattern(options.topic_pattern).matches(name)


def _incarnation(state: ArchiveState, topic_id: str, options: SourceOptions) -> TopicEntry:
    topic = state.topics.get(topic_id)
    if topic is None:
        known = sorted(f"{entry.name}: {entry.topic_id}" for entry in state.topics.values())
        hint = f"It has {', '.join(known[:20])}." if known else "It has no topic yet."
        raise NoTopicMatches(f"Option topicId: the archive has no topic with the id {topic_id}.", hint=hint)
    named = options.topics is None or topic.name in options.topics
    if not named or not Pattern(options.topic_pattern or ".*").matches(topic.name):
        raise NoTopicMatches(f"Option topicId: {topic_id} is the id of topic {topic.name}, which is not asked for.")
    return topic


def _have(names: Iterable[str]) -> str:
    known = sorted(names)
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return f"It has {', '.join(known[:20])}{more}." if known else "It has no topic yet."


def _selected(partition: int, options: SourceOptions) -> bool:
    return options.partitions is None or any(first <= partition < end for first, end in options.partitions)


def _reads(
    state: ArchiveState,
    topic: TopicEntry,
    partition: int,
    options: SourceOptions,
    wanted: WantedRecords,
    aborted: Aborted,
    holds: Holds,
) -> list[SegmentRead]:
    entries = state.segments.get((topic.topic_id, partition), ())
    chosen = list(_narrowed(topic, entries, options, wanted, holds))
    if any(read.entry.transactional for read in chosen):
        first = chosen[0].entry.base_offset
        transactions = aborted(topic, [entry for entry in entries if entry.next_offset > first])
        return list(_without(chosen, transactions))
    return chosen


def _narrowed(
    topic: TopicEntry, entries: Iterable[SegmentEntry], options: SourceOptions, wanted: WantedRecords, holds: Holds
) -> Iterator[SegmentRead]:
    start = max(wanted.start, options.starting_offset or 0)
    end = min(wanted.end, MAX_OFFSET if options.ending_offset is None else options.ending_offset)
    first_time, end_time = options.starting_timestamp, options.ending_timestamp
    for entry in entries:
        if entry.base_offset >= end:
            return
        begins = ends = None
        if first_time is not None:
            if not _reaches(topic, entry, first_time, holds):
                continue
            begins, first_time = first_time, None  # everything after it follows its first record of that time
        if end_time is not None and _reaches(topic, entry, end_time, holds):
            ends = end_time
        if entry.records and entry.next_offset > start and _may_match(entry, wanted):
            low, high = max(start, entry.base_offset), min(end, entry.next_offset)
            yield SegmentRead(topic.name, entry, low, high, begins, ends, wanted.since)
        if ends is not None:
            return


def _reaches(topic: TopicEntry, entry: SegmentEntry, time: int, holds: Holds) -> bool:
    """Return whether a segment has a record of this time or later. A batch that compaction has emptied keeps its time,
    and leaves missing offsets: then the catalog's time may be that of no record."""
    if entry.times.max_timestamp < time:
        return False
    return not is_batched(entry.layout) or not entry.gaps or holds(topic, entry, time)


def _may_match(entry: SegmentEntry, wanted: WantedRecords) -> bool:
    """Return whether a record of the segment can have a wanted time. For segments of batches the catalog knows the
    highest time, and not the lowest."""
    if wanted.since is not None and entry.times.max_timestamp < wanted.since:
        return False
    return wanted.until is None or is_batched(entry.layout) or entry.times.min_base_timestamp <= wanted.until


def _without(reads: Sequence[SegmentRead], transactions: Iterable[AbortedTxn]) -> Iterator[SegmentRead]:
    """The reads, in the order of offsets, with the transactions that reach into them."""
    waiting = sorted(transactions, key=lambda txn: txn.first_offset, reverse=True)
    open_ones: list[AbortedTxn] = []
    for read in reads:
        while waiting and waiting[-1].first_offset < read.entry.next_offset:
            open_ones.append(waiting.pop())
        open_ones = [txn for txn in open_ones if txn.last_offset >= read.entry.base_offset]
        yield replace(read, aborted=tuple(open_ones)) if open_ones else read


def _cost(read: SegmentRead, limit: int) -> int:
    """Return the cost of a read in bytes, where a Spark partition may cost `limit`."""
    return (read.entry.files.stored_bytes or read.entry.bytes) + min(OPEN_COST, limit // 32)


def _limit(options: SourceOptions, total: int) -> int:
    """Return the limit of the cost of a Spark partition, so that there are as many partitions as requested."""
    wanted = options.min_partitions or 1
    return min(options.max_partition_bytes, max(1, ceil(total / wanted)))


def _grouped(reads: Iterable[tuple[SegmentRead, int]], limit: int) -> Iterator[list[SegmentRead]]:
    """Group neighbours up to `limit`. A segment is never split."""
    group: list[SegmentRead] = []
    size = 0
    for read, cost in reads:
        if group and size + cost > limit:
            yield group
            group, size = [], 0
        group.append(read)
        size += cost
    if group:
        yield group

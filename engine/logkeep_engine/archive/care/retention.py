"""Finds the segments of an archive that are too old, or too much. Pure: `removal` removes them.

By age, a segment is removed when its newest record is older than the limit. Each segment counts by itself: if records
are not in the order of their times, a segment may go before an earlier one. By size, the oldest segments of all topics
are removed until the rest is not larger than the limit. A segment is as old as its newest record, or as the end of the
run that archived it if that was earlier.

What follows a segment with transactions in its partition goes after it, whatever the times: a transaction's records may
lie in one segment and its marker in a later one, and records without their marker are taken for committed (or, where
transactions are followed from batch to batch, for undecided).

Never removed: what no commit names yet (it is in no state), and segments of topics that are compacted only
(`cleanup.policy=compact`), where the oldest record may be the last of its key, as Kafka keeps them too. A segment
whose records have no time is as old as the end of the run that archived it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, RemovedSegment, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState

_NO_TIME = -1


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`max_age` in ms; `max_bytes` of all objects of all segments that may be removed, indexes included. None: no
    limit."""

    max_age: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment to remove. `bytes` is the size of its objects."""

    segment: RemovedSegment
    bytes: int


def expired(state: ArchiveState, limits: RetentionLimits, now: int) -> list[Expired]:
    """The segments to remove at `now` (ms since the epoch): first those that are too old, then those that are too much,
    each oldest first.

    A removal that ends early, after any of them, leaves no transaction without its marker either.
    """
    if limits.max_age is None and limits.max_bytes is None:
        return []
    gone: list[_Removable] = []
    left = sorted(_removable(state, now))
    if limits.max_age is not None:
        too_old = bisect_left(left, (now - limits.max_age,))
        gone, left = left[:too_old], left[too_old:]
    if limits.max_bytes is not None:
        gone += _too_much(left, limits.max_bytes)
    return [
        Expired(RemovedSegment(item.topic_id, item.partition, item.base_offset, item.branch_id), item.bytes)
        for item in gone
    ]


class _Removable(NamedTuple):
    """A tuple, not an entry: there may be a million. In the order in which they go that are too old: by `time`, those
    of one partition by offset. `size_time` counts instead for those that are too much."""

    time: int
    topic_id: str
    partition: int
    base_offset: int
    bytes: int
    size_time: int
    branch_id: str


def _too_much(segments: Iterable[_Removable], max_bytes: int) -> Iterator[_Removable]:
    oldest_first = sorted(segments, key=lambda item: (item.size_time, *item))
    left = sum(item.bytes for item in oldest_first)
    for item in oldest_first:
        if left <= max_bytes:
            return
        left -= item.bytes
        yield item


def _removable(state: ArchiveState, now: int) -> Iterator[_Removable]:
    archived_times = _ArchivedTimes(state, now)
    for (topic_id, partition), branch_id, entries in _tables(state):
        if compacted_only(state.topics[topic_id]):
            continue
        held = held_by_size = _NO_TIME
        for entry in entries:
            archived = archived_times.of(entry)
            newest = archived if entry.times.max_timestamp < 0 else entry.times.max_timestamp
            time, size_time = max(newest, held), max(min(newest, archived), held_by_size)
            if entry.transactional:  # markers are, too
                held, held_by_size = time, size_time
            size = object_bytes(entry)
            yield _Removable(time, topic_id, partition, entry.base_offset, size, size_time, branch_id)


def _tables(state: ArchiveState) -> Iterator[tuple[Partition, str, Iterable[SegmentEntry]]]:
    """The segments of each partition, and of each of its branches, which are no less to be kept, and no longer."""
    for key, entries in state.segments.items():
        yield key, "", entries
    for key, branches in state.branches.items():
        for branch in branches:
            yield key, branch.id, branch.segments


def compacted_only(topic: TopicEntry) -> bool:
    """Kafka keeps the last record of every key of the topic for ever."""
    policy = {word.strip() for word in topic.configs.get("cleanup.policy", "").split(",")}
    return "compact" in policy and "delete" not in policy


def object_bytes(entry: SegmentEntry) -> int:
    """The bytes of all objects of a segment."""
    return sum(entry.files.sizes(entry).values())


class _ArchivedTimes:
    """When segments were archived, at the latest, from their epochs: a run's is that of its last attempt."""

    def __init__(self, state: ArchiveState, now: int) -> None:
        runs = sorted((run.epoch, now if run.end_time is None else run.end_time) for run in state.runs.values())
        self._epochs = [epoch for epoch, _ in runs]
        self._ends = [end for _, end in runs]
        self._now = now

    def of(self, entry: SegmentEntry) -> int:
        at = bisect_left(self._epochs, entry.epoch)
        return self._ends[at] if at < len(self._ends) else self._now

"""Which segments of an archive are too old, or too much. Pure: `removal` carries it out.

By age a segment goes when its newest record is older than the limit; each by its own record, so in a partition whose
records are not in the order of their times one may go before another that precedes it. By size the oldest go, by the
time of their newest record, whatever topic they are of, until the rest is not larger than the limit.

Never removed: what no commit names yet (it is in no state), and segments of topics that are compacted only
(`cleanup.policy=compact`), where the oldest record may be the last of its key, as Kafka keeps them too. A segment
whose records have no time is as old as the end of the run that archived it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from logkeep_engine.archive.model import ArchiveState, RemovedSegment, SegmentEntry, TopicEntry


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`max_age` in ms; `max_bytes` of all objects of all segments that may be removed, indexes included. None: no
    limit."""

    max_age: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """`bytes` of its objects."""

    segment: RemovedSegment
    bytes: int


def expired(state: ArchiveState, limits: RetentionLimits, now: int) -> list[Expired]:
    """What is to be removed at `now` (ms since the epoch), oldest first."""
    if limits.max_age is None and limits.max_bytes is None:
        return []
    # Tuples, not entries: there may be a million.
    oldest_first = sorted(_removable(state, now))
    left = sum(size for *_, size in oldest_first)
    found = []
    for time, topic_id, partition, base, size in oldest_first:
        too_old = limits.max_age is not None and time < now - limits.max_age
        too_much = limits.max_bytes is not None and left > limits.max_bytes
        if not too_old and not too_much:
            break
        found.append(Expired(RemovedSegment(topic_id, partition, base), size))
        left -= size
    return found


def _removable(state: ArchiveState, now: int) -> Iterator[tuple[int, str, int, int, int]]:
    """(time, topic id, partition, base offset, bytes) of each segment."""
    archived = _ArchivedTimes(state, now)
    for (topic_id, partition), entries in state.segments.items():
        if compacted_only(state.topics[topic_id]):
            continue
        for entry in entries:
            time = entry.max_timestamp if entry.max_timestamp >= 0 else archived.of(entry)
            yield time, topic_id, partition, entry.base_offset, object_bytes(entry)


def compacted_only(topic: TopicEntry) -> bool:
    """Whether Kafka keeps the last record of every key of the topic for ever."""
    policy = {word.strip() for word in topic.configs.get("cleanup.policy", "").split(",")}
    return "compact" in policy and "delete" not in policy


def object_bytes(entry: SegmentEntry) -> int:
    """Of all objects of a segment."""
    return (entry.stored_bytes or entry.bytes) + entry.index_bytes + entry.timeindex_bytes + entry.txnindex_bytes


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

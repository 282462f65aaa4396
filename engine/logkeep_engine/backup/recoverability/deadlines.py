"""The times from which on a cluster may delete records that are not archived. Pure.

A partition's deadline is the time of its oldest record that is not archived, plus the time for which the cluster keeps
a record. That is the shortest of three: `retention.ms`; the time in which the log grows by `retention.bytes`; and the
age of a record that the archive has and the log has no more. The last one shows what no configuration shows, such as an
application that deletes records as soon as it has read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import totals_of
from logkeep_engine.contract.facts.archive import Cause, TopicDeadline
from logkeep_engine.contract.facts.values import MAX_TIME, time_of
from logkeep_engine.log.cleanup import NO_LIMITS, LogLimits

LEAST_SECONDS = 1.0  # a shorter time shows no rate


@dataclass(frozen=True, slots=True)
class WatchedPartition:
    """A partition, with its log start if that is known. `oldest` is the time in ms since the epoch of the oldest record
    that is not archived, or an earlier one."""

    topic: str
    key: Partition
    limits: LogLimits
    oldest: int
    log_start: int | None = None


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times in ms since the epoch: now, the beginning of this run, and that of the one before with its epoch, if there
    was one."""

    now: int
    begun: int
    before: int | None = None
    epoch_before: int = 0


def deadlines(watched: Iterable[WatchedPartition], state: ArchiveState, times: RunTimes) -> list[TopicDeadline]:
    """Return the deadline of each topic that has one, which is the soonest of its partitions. The soonest is first."""
    soonest: dict[str, tuple[float, TopicDeadline]] = {}
    for partition in watched:
        found = _deadline(partition, state, times)
        if found is not None and (partition.topic not in soonest or found[0] < soonest[partition.topic][0]):
            soonest[partition.topic] = found
    return [found for _, found in sorted(soonest.values(), key=lambda item: (item[0], item[1].topic))]


def _deadline(partition: WatchedPartition, state: ArchiveState, times: RunTimes) -> tuple[float, TopicDeadline] | None:
    """Return the deadline of a partition, also in seconds since the epoch with their fractions."""
    if partition.limits == NO_LIMITS:
        return None
    windows = list(_windows(partition, state, times))
    if not windows:
        return None
    seconds, cause = min(windows, key=lambda window: window[0])
    oldest = max(partition.oldest, 0) / 1000
    if oldest + seconds > MAX_TIME:
        return None
    found = TopicDeadline(
        topic=partition.topic,
        partition=partition.key[1],
        deadline=time_of(oldest + seconds),
        oldest_time=time_of(oldest),
        window_seconds=int(seconds),
        cause=cause,
    )
    return oldest + seconds, found


def _windows(partition: WatchedPartition, state: ArchiveState, times: RunTimes) -> Iterable[tuple[float, Cause]]:
    """Yield how many seconds the cluster keeps a record, by each of the causes."""
    limits = partition.limits
    if limits.ms is not None:
        yield limits.ms / 1000, Cause.TIME
    entries = state.segments.get(partition.key)
    if entries is None or partition.log_start is None:
        return
    first_kept = entries.position(partition.log_start)
    if limits.bytes is not None and (rate := _bytes_per_second(entries, first_kept, times)) > 0:
        yield limits.bytes / rate, Cause.SIZE
    # The segment that ends at the log's start, or before: all of its records were deleted.
    for entry in reversed(entries[max(0, first_kept - 2) : first_kept]):
        if entry.next_offset <= partition.log_start and entry.times.max_timestamp >= 0:
            age = max(times.now - entry.times.max_timestamp, 0) / 1000
            if limits.ms is None or age * 1000 < limits.ms:
                yield age, Cause.DELETED
            return


def _bytes_per_second(entries: PackedSegments, first_kept: int, times: RunTimes) -> float:
    """Return the bytes a second that come in: those since the run before, or those of the log as a whole, whichever is
    more. Batches are archived as they lie in the log; formats of records have about as many bytes."""
    whole = totals_of(entries.packed, max(0, first_kept - 1))
    rates = [whole.bytes / _seconds(whole.first, times.begun)] if whole.first >= 0 else []
    if times.before is not None:
        new = 0
        for at in range(len(entries) - 1, -1, -1):
            entry = entries[at]
            if entry.archived_first <= times.epoch_before:
                break
            new += entry.bytes
        rates.append(new / _seconds(times.before, times.begun))
    return max(rates, default=0.0)


def _seconds(start: int, end: int) -> float:
    return max((end - start) / 1000, LEAST_SECONDS)

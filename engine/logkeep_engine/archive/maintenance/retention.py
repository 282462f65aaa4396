"""Finds what of an archive is too old, or too much, or needed by no point that is kept. Pure: `removal` removes it.

By age, a segment is removed when its newest record is older than the limit. Each segment counts by itself: if records
are not in the order of their times, a segment may go before an earlier one. By size, the oldest segments of all topics
are removed until the rest is not larger than the limit. A segment is as old as its newest record, or as the end of the
run that archived it if that was earlier. A segment whose records have no time is as old as that run.

A kept point (`points`) is the state at the end of a run, as the limits left it then. So a segment stays that the point
had, and that was not too old and not too much when its run ended. Limits are not weakened by points: a point of 30 days
ago with `maxAge: 7d` keeps what was 7 days old then. Without limits a point keeps all that it had.

What follows a segment with transactions in its partition goes after it, whatever the times and the points: a
transaction's records may lie in one segment and its marker in a later one, and records without their marker are taken
for committed (or, where transactions are followed from batch to batch, for undecided).

Of topics that are compacted only (`cleanup.policy=compact`) the oldest record may be the last of its key. There the
newest snapshot at or below every kept point is the floor: it stands for the segments below it, and only these may go.
With a limit of age the floor is also older than that, so every point within it can be restored. Other snapshots go if
no kept point needs them. The newest one, the floor, and what each kept point begins with stay. Without a snapshot
nothing of the partition goes. If its log was cut off, the floor also lies at or below where it was, and the branch
stays.

A log that was read again has taken the place of what lay on the line before it (see `archive.catalog.lines`). That
goes, with rules or without, as soon as no kept point is from before.

A point that was compacted only when its run ended, though its topic is that no longer, keeps all that it has. Limits
would take last records of keys from it.

Nothing goes that no commit names yet (it is in no state), nor of topics and runs with a hold. Nothing goes either of
topics that are spared, and they do not count in the limit of size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logkeep_engine.archive.catalog.facts import Partition, RemovedSegment
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.holds import Hold, topic_hold
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.points import LAST_ONLY, KeepRules, KeptPoint, kept_points
from logkeep_engine.archive.maintenance.retention_items import (
    FOR_EVER,
    NO_TIME,
    ArchivedTimes,
    Item,
    Lane,
    LineItems,
    PartitionLines,
)

MAX_AGE, MAX_BYTES, NO_POINT = "maxAge", "maxBytes", "no kept point needs it"
"""The rules by which something goes."""
WITHIN, COMPACTED, TRANSACTIONS = "within the limits", "compacted", "transactions before it"
UNLIMITED = "spec.retention has no limit"
UNCHOSEN = "spec.topics does not choose it"
"""The reasons for which something stays, in addition to holds and kept points."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`max_age` in ms; `max_bytes` of all objects of all segments that may be removed, indexes included. None: no
    limit."""

    max_age: int | None = None
    max_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        return self != RetentionLimits()


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment or a snapshot to remove. `bytes` is the size of its objects."""

    segment: RemovedSegment | RemovedSnapshot
    bytes: int


class RetentionDecision(NamedTuple):
    """Tells what becomes of an item, and by which rule, or for which reason."""

    item: Item
    goes: bool
    why: str


def expired(
    state: ArchiveState,
    limits: RetentionLimits,
    now: int,
    keep: KeepRules = LAST_ONLY,
    spared: Collection[str] = (),
) -> list[Expired]:
    """Return the segments and snapshots to remove at `now` (ms since the epoch): first those that are too old, then
    those that are too much, each oldest first. `spared`: ids of topics that lose nothing.

    A removal that ends early, after any of them, leaves no transaction without its marker either.
    """
    # Without rules, that goes which other lines have taken the place of.
    found = judged(state, limits, now, keep, spared, None if limits.is_set or keep.is_set else state.lines.keys())
    return [Expired(item.to_remove(), item.bytes) for item, goes, _ in found if goes]


def judged(
    state: ArchiveState,
    limits: RetentionLimits,
    now: int,
    keep: KeepRules = LAST_ONLY,
    spared: Collection[str] = (),
    keys: Collection[Partition] | None = None,
) -> list[RetentionDecision]:
    """Judge everything in the archive, or in the partitions `keys`. Those that go come first, in the order of
    `expired`."""
    points = kept_points(state, keep)
    judging = sorted({*state.segments, *state.snapshots, *state.lines} if keys is None else keys)
    items = sorted(_spare(_items(state, judging, points, limits, now), spared))
    free = [item for item in items if not item.stays]
    candidates = list(_candidates(free, limits, now, keep))
    why_not = _Reasons(state, points, limits, free)
    found = [(item, rule, why_not.of(item)) for item, rule in candidates]
    open_transactions = _first_left_transactions(item for item, _, reason in found if reason)
    goes: list[RetentionDecision] = []
    stays: list[RetentionDecision] = [RetentionDecision(item, False, item.stays) for item in items if item.stays]
    for item, rule, reason in found:
        left = open_transactions.get(item.lane, item.offset)
        before_it = TRANSACTIONS if left < item.offset and not item.is_snapshot else ""
        why = reason or before_it
        (stays if why else goes).append(RetentionDecision(item, not why, why or rule))
    there = {item for item, _ in candidates}
    kept = WITHIN if limits.is_set else UNLIMITED
    stays += [RetentionDecision(item, False, kept) for item in free if item not in there]
    return goes + stays


def _candidates(free: Sequence[Item], limits: RetentionLimits, now: int, keep: KeepRules) -> Iterator[tuple[Item, str]]:
    """Find what goes by the limits; if there are none, what may go at all of topics that are compacted only."""
    yield from ((item, NO_POINT) for item in free if item.until < FOR_EVER)
    free = left = [item for item in free if item.until == FOR_EVER]
    if limits.max_age is not None:
        too_old = bisect_left(free, (now - limits.max_age,))
        left = free[too_old:]
        yield from ((item, MAX_AGE) for item in free[:too_old])
    if limits.max_bytes is not None:
        yield from ((item, MAX_BYTES) for item in _too_much(left, limits.max_bytes, _bytes_of))
    if not limits.is_set and keep.is_set:
        yield from ((item, NO_POINT) for item in free)


def _too_much(items: Iterable[Item], max_bytes: int, bytes_of: Callable[[Item], int]) -> Iterator[Item]:
    oldest_first = sorted(items, key=_size_order)
    left = sum(map(bytes_of, oldest_first))
    for item in oldest_first:
        if left <= max_bytes:
            return
        left -= bytes_of(item)
        yield item


def _bytes_of(item: Item) -> int:
    return item.bytes


def _size_order(item: Item) -> tuple[int, Item]:
    return item.size_time, item


def _first_left_transactions(left: Iterable[Item]) -> dict[Lane, int]:
    """Return the first segments with transactions that stay although a limit is over, by `Item.lane`."""
    found: dict[Lane, int] = {}
    for item in left:
        if item.transactional:
            found[item.lane] = min(item.offset, found.get(item.lane, item.offset))
    return found


class _Reasons:
    """Tells why something stays although a limit is over for it."""

    def __init__(
        self, state: ArchiveState, points: Sequence[KeptPoint], limits: RetentionLimits, free: Sequence[Item]
    ) -> None:
        self._points, self._limits = points, limits
        self._holds: dict[str, Hold | None] = {
            topic_id: topic_hold(state.retention_holds, topic.name) for topic_id, topic in state.topics.items()
        }
        self._topics = state.topics
        self._fits: dict[int, set[Item]] = {}
        self._free = free

    def of(self, item: Item) -> str:
        """Return the reason, "" if there is none."""
        hold = self._holds[item.topic_id]
        if hold is not None:
            return str(hold)
        if item.until < FOR_EVER:
            # No later point has it, and so nothing has counted in its limits since.
            points = self._points[item.first : item.until]
            return str(points[-1]) if points else ""
        for at in range(item.first, len(self._points)):
            point = self._points[at]
            if point.is_held or (point.is_kept and not item.is_snapshot and self._needs(at, item)):
                return str(point)
        return ""

    def _needs(self, at: int, item: Item) -> bool:
        """Return whether the limits left the segment to an earlier point, or may not take it from that."""
        limits, point = self._limits, self._points[at]
        if point.epoch <= self._topics[item.topic_id].compacted_until:
            return True
        if item.below_floor:
            return False  # a snapshot stands for it
        if limits.max_age is not None and item.time < point.time - limits.max_age:
            return False
        return limits.max_bytes is None or item in self._fitting(at, limits.max_bytes)

    def _fitting(self, at: int, max_bytes: int) -> set[Item]:
        """Return the segments that were not too much at the end of the run of a point. Those below a floor do not
        count: it may have been another one then."""
        if at not in self._fits:
            oldest = NO_TIME if self._limits.max_age is None else self._points[at].time - self._limits.max_age
            logs = (item for item in self._free if not item.below_floor and not item.is_snapshot)
            had = [item for item in logs if item.first <= at < item.until and item.time >= oldest]
            # Of a merged segment the point had a part, or several, whose sizes are unknown: 0 takes nothing from it.
            sizes = {item: item.bytes if item.whole <= at else 0 for item in had}
            self._fits[at] = set(had) - set(_too_much(had, max_bytes, sizes.__getitem__))
        return self._fits[at]


def _items(
    state: ArchiveState, keys: Iterable[Partition], points: Sequence[KeptPoint], limits: RetentionLimits, now: int
) -> Iterator[Item]:
    archived_times = ArchivedTimes(state, now)
    epochs = [point.epoch for point in points]
    for key in keys:
        topic = state.topics[key[0]]
        lines = PartitionLines(state, key, epochs)
        branched = state.has_branches(key)
        for number in lines.in_use:
            table = LineItems(lines, number, archived_times)
            is_current = number == lines.in_use[0]
            if not topic.is_compacted_only:
                yield from table.segments("" if limits.is_set else UNLIMITED, None)
                yield from table.snapshots(table.held if branched else table.in_use(None))
            elif not is_current:
                yield from table.segments(COMPACTED, None)
                yield from table.snapshots(table.held)
            else:
                floor = table.floor(None if limits.max_age is None else now - limits.max_age, generation_of(state, key))
                yield from table.segments(COMPACTED, floor)
                yield from table.snapshots([*table.in_use(floor), *lines.newest_of_branches()])
        yield from lines.superseded(archived_times)


def _spare(items: Iterable[Item], spared: Collection[str]) -> Iterator[Item]:
    return (item._replace(stays=item.stays or UNCHOSEN) if item.topic_id in spared else item for item in items)

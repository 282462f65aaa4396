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
no kept point needs them. The newest one, the floor, and what each kept point begins with stay. Without a snapshot, or
with branches, nothing of the partition goes.

A point that was compacted only when its run ended, though its topic is that no longer, keeps all that it has. Limits
would take last records of keys from it.

Nothing goes that no commit names yet (it is in no state), nor of topics and runs with a hold. Nothing goes either of
topics that are spared, and they do not count in the limit of size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from logkeep_engine.archive.care.points import LAST_ONLY, KeepRules, KeptPoint, kept_points
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, RemovedSegment, TopicEntry
from logkeep_engine.archive.catalog.generations import Generation, generation_of
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.holds import Hold, topic_hold
from logkeep_engine.archive.catalog.replacements import first_epochs
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range

_NO_TIME = -1
MAX_AGE, MAX_BYTES, NO_POINT = "maxAge", "maxBytes", "no kept point needs it"
"""The rules by which something goes."""
WITHIN, COMPACTED, NEEDED, TRANSACTIONS = "within the limits", "compacted", "snapshot in use", "transactions before it"
UNCHOSEN = "spec.topics does not choose it"
"""The reasons for which something stays, beside holds and kept points."""


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


class Item(NamedTuple):
    """A segment or a snapshot. A tuple, not an entry: there may be a million. In the order in which they go that are
    too old: by `time`, those of one partition by offset. `size_time` counts instead for those that are too much.

    `offset` is the base offset of a segment, or the end of a snapshot. `first` is the index of the first kept point
    that has it. A segment `below_floor` is one of a compacted topic for which a snapshot stands. With a reason in
    `stays` it is not looked at.
    """

    time: int
    topic_id: str
    partition: int
    offset: int
    bytes: int
    size_time: int
    branch_id: str
    first: int
    is_snapshot: bool
    transactional: bool
    below_floor: bool
    stays: str

    def to_remove(self) -> RemovedSegment | RemovedSnapshot:
        """The fact of a commit that removes it."""
        kind = RemovedSnapshot if self.is_snapshot else RemovedSegment
        return kind(self.topic_id, self.partition, self.offset, self.branch_id)


class Judged(NamedTuple):
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
    """The segments and snapshots to remove at `now` (ms since the epoch): first those that are too old, then those that
    are too much, each oldest first. `spared`: ids of topics that lose nothing.

    A removal that ends early, after any of them, leaves no transaction without its marker either.
    """
    if not limits.is_set and not keep.is_set:
        return []
    found = judged(state, limits, now, keep, spared)
    return [Expired(item.to_remove(), item.bytes) for item, goes, _ in found if goes]


def judged(
    state: ArchiveState,
    limits: RetentionLimits,
    now: int,
    keep: KeepRules = LAST_ONLY,
    spared: Collection[str] = (),
) -> list[Judged]:
    """Judge everything in the archive. Those that go come first, in the order of `expired`."""
    points = kept_points(state, keep)
    items = sorted(_spare(_items(state, points, limits, now), spared))
    free = [item for item in items if not item.stays]
    candidates = list(_candidates(free, limits, now, keep))
    why_not = _Reasons(state, points, limits, free)
    found = [(item, rule, why_not.of(item)) for item, rule in candidates]
    open_transactions = _first_left_transactions(item for item, _, reason in found if reason)
    goes: list[Judged] = []
    stays: list[Judged] = [Judged(item, False, item.stays) for item in items if item.stays]
    for item, rule, reason in found:
        left = open_transactions.get((item.topic_id, item.partition, item.branch_id), item.offset)
        behind = TRANSACTIONS if left < item.offset and not item.is_snapshot else ""
        why = reason or behind
        (stays if why else goes).append(Judged(item, not why, why or rule))
    there = {item for item, _ in candidates}
    stays += [Judged(item, False, WITHIN) for item in free if item not in there]
    return goes + stays


def _candidates(free: Sequence[Item], limits: RetentionLimits, now: int, keep: KeepRules) -> Iterator[tuple[Item, str]]:
    """Find what goes by the limits; if there are none, what may go at all of topics that are compacted only."""
    left = free
    if limits.max_age is not None:
        too_old = bisect_left(free, (now - limits.max_age,))
        left = free[too_old:]
        yield from ((item, MAX_AGE) for item in free[:too_old])
    if limits.max_bytes is not None:
        yield from ((item, MAX_BYTES) for item in _too_much(left, limits.max_bytes))
    if not limits.is_set and keep.is_set:
        yield from ((item, NO_POINT) for item in free)


def _too_much(items: Iterable[Item], max_bytes: int) -> Iterator[Item]:
    oldest_first = sorted(items, key=_size_order)
    left = sum(item.bytes for item in oldest_first)
    for item in oldest_first:
        if left <= max_bytes:
            return
        left -= item.bytes
        yield item


def _size_order(item: Item) -> tuple[int, Item]:
    return item.size_time, item


def _first_left_transactions(left: Iterable[Item]) -> dict[tuple[str, int, str], int]:
    """The first segments with transactions that stay although a limit is over, by partition and branch."""
    found: dict[tuple[str, int, str], int] = {}
    for item in left:
        if item.transactional:
            key = (item.topic_id, item.partition, item.branch_id)
            found[key] = min(item.offset, found.get(key, item.offset))
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
        """The reason, "" if there is none."""
        hold = self._holds[item.topic_id]
        if hold is not None:
            return str(hold)
        for at in range(item.first, len(self._points)):
            point = self._points[at]
            if point.is_held or (point.is_kept and not item.is_snapshot and self._needs(at, item)):
                return str(point)
        return ""

    def _needs(self, at: int, item: Item) -> bool:
        """Whether the limits left the segment to an earlier point, or may not take it from that."""
        limits, point = self._limits, self._points[at]
        if point.epoch <= self._topics[item.topic_id].compacted_until:
            return True
        if item.below_floor:
            return False  # a snapshot stands for it
        if limits.max_age is not None and item.time < point.time - limits.max_age:
            return False
        return limits.max_bytes is None or item in self._fitting(at, limits.max_bytes)

    def _fitting(self, at: int, max_bytes: int) -> set[Item]:
        """The segments that were not too much at the end of the run of a point. Those below a floor do not count: it
        may have been another one then."""
        if at not in self._fits:
            oldest = _NO_TIME if self._limits.max_age is None else self._points[at].time - self._limits.max_age
            logs = (item for item in self._free if not item.below_floor and not item.is_snapshot)
            had = [item for item in logs if item.first <= at and item.time >= oldest]
            self._fits[at] = set(had) - set(_too_much(had, max_bytes))
        return self._fits[at]


def _items(state: ArchiveState, points: Sequence[KeptPoint], limits: RetentionLimits, now: int) -> Iterator[Item]:
    archived_times = _ArchivedTimes(state, now)
    epochs = [point.epoch for point in points]
    for key, branch_id, entries, snapshots in _tables(state):
        epoch_of = first_epochs(state.replaced.get(key, ()))
        topic = state.topics[key[0]]
        gone = state.removed.get(key, ()) if not branch_id and _was_compacted_only(topic) else ()
        table = _Table(key, branch_id, list(entries), list(snapshots), epochs, archived_times, epoch_of, gone)
        if not topic.is_compacted_only:
            yield from table.segments("" if limits.is_set else WITHIN, None)
            yield from table.snapshots(table.held if state.branches.get(key) else table.in_use(None))
        elif state.branches.get(key):
            yield from table.segments(COMPACTED, None)
            yield from table.snapshots(table.held)
        else:
            floor = table.floor(None if limits.max_age is None else now - limits.max_age, generation_of(state, key))
            yield from table.segments(COMPACTED, floor)
            yield from table.snapshots(table.in_use(floor))


def _spare(items: Iterable[Item], spared: Collection[str]) -> Iterator[Item]:
    return (item._replace(stays=item.stays or UNCHOSEN) if item.topic_id in spared else item for item in items)


def _was_compacted_only(topic: TopicEntry) -> bool:
    """Whether points of the topic may be of a time when it was compacted only."""
    return topic.is_compacted_only or topic.compacted_until > 0


class _Table:
    """The segments and snapshots of a partition, or of one of its branches."""

    def __init__(
        self,
        key: Partition,
        branch_id: str,
        entries: Sequence[SegmentEntry],
        held: Sequence[HeldSnapshot],
        epochs: Sequence[int],
        archived: _ArchivedTimes,
        epoch_of: Callable[[SegmentEntry], int],
        gone: Sequence[Range] = (),
    ) -> None:
        """`gone`: what was removed below floors, each of which lay at or below all points that were kept then."""
        self.key, self.branch_id, self.entries, self.held = key, branch_id, entries, held
        self._archived, self._epoch_of, self._epochs = archived, epoch_of, epochs
        ends = [0] * len(epochs)
        of_segments = ((epoch_of(entry), entry.next_offset) for entry in entries)
        of_snapshots = ((self._epoch(item), item.end) for item in held)
        for epoch, end in (*of_segments, *of_snapshots):
            at = bisect_left(epochs, epoch)
            if at < len(ends):
                ends[at] = max(ends[at], end)
        self._seen = list(accumulate(ends, max))
        """The ends of the partition at the kept points, as far as what is left shows them."""
        removed = max((end for _, end in gone), default=0)
        self.ends = [max(end, removed) for end in self._seen]
        """The same. Nothing may be left that is as old as a point: then it ends where the log now begins, and a later
        run has made the snapshot that stands for it."""

    def floor(self, oldest: int | None, known: Generation) -> HeldSnapshot | None:
        """The newest snapshot at or below all kept points, which is older than `oldest`. A generation that is being
        read takes the place of all snapshots when it becomes active, and goes on with the log, which stays from its end
        on. There is none as long as a point of before the active generation is kept that has a part of the log: of that
        point no snapshot is that was made since."""
        if any(self._seen[: bisect_left(self._epochs, known.epoch)]):
            return None
        passive = known.passive
        lowest = min((seen or end for seen, end in zip(self._seen, self.ends, strict=True) if end), default=0)
        if passive is not None:
            lowest = min(lowest, passive.end)
        found = [item for item in self.held if item.end <= lowest and (oldest is None or self._made(item) < oldest)]
        return found[-1] if found else None

    def in_use(self, floor: HeldSnapshot | None) -> list[HeldSnapshot]:
        """The snapshots that stay: the newest, the floor, and those with which kept points begin."""
        found = [*self.held[-1:], *([floor] if floor is not None else [])]
        for end in (*self._seen, *self.ends):
            found += [item for item in self.held if item.end <= end][-1:]
        return found

    def segments(self, stays: str, floor: HeldSnapshot | None) -> Iterator[Item]:
        """The segments. Those that do not end at the floor or below stay, if there is a reason."""
        held = held_by_size = _NO_TIME
        for entry in self.entries:
            archived = self._archived.of(self._epoch_of(entry))
            newest = archived if entry.times.max_timestamp < 0 else entry.times.max_timestamp
            time, size_time = max(newest, held), max(min(newest, archived), held_by_size)
            if entry.transactional:  # markers are, too
                held, held_by_size = time, size_time
            below = floor is not None and entry.next_offset <= floor.end
            yield Item(
                time,
                *self.key,
                entry.base_offset,
                object_bytes(entry),
                size_time,
                self.branch_id,
                bisect_right(self.ends, entry.base_offset),
                False,
                entry.transactional,
                below,
                "" if below else stays,
            )

    def snapshots(self, in_use: Sequence[HeldSnapshot]) -> Iterator[Item]:
        """The snapshots, which are as old as the runs that have made them. Those in use stay."""
        for item in self.held:
            made = self._made(item)
            yield Item(
                made,
                *self.key,
                item.end,
                sum(map(object_bytes, item.parts(self.key))),
                made,
                self.branch_id,
                bisect_left(self.ends, item.end),
                True,
                False,
                False,
                NEEDED if item in in_use else "",
            )

    def _made(self, item: HeldSnapshot) -> int:
        return self._archived.of(self._epoch(item))

    def _epoch(self, item: HeldSnapshot) -> int:
        return self._epoch_of(item.parts(self.key)[0])


def _tables(
    state: ArchiveState,
) -> Iterator[tuple[Partition, str, Iterable[SegmentEntry], Iterable[HeldSnapshot]]]:
    """The segments and snapshots of each partition, and of each of its branches, which are no less to be kept, and no
    longer."""
    for key in sorted({*state.segments, *state.snapshots}):
        yield key, "", state.segments.get(key, ()), state.snapshots.get(key, ())
    for key, branches in state.branches.items():
        for branch in branches:
            yield key, branch.id, branch.segments, branch.held.snapshots


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

    def of(self, epoch: int) -> int:
        at = bisect_left(self._epochs, epoch)
        return self._ends[at] if at < len(self._ends) else self._now

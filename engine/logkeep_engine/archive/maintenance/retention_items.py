"""The items that retention looks at: segments and snapshots of all lines of a partition, and who needs each. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, RemovedSegment, TopicEntry
from logkeep_engine.archive.catalog.generations import Generation
from logkeep_engine.archive.catalog.held_lines import HeldLine, lines_in_use, lines_of, segments_of, snapshots_of
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState

NO_TIME = -1
FOR_EVER = 1 << 62
NEEDED = "snapshot in use"
Lane = tuple[str, int, int]


class Item(NamedTuple):
    """A segment or a snapshot. A tuple, not an entry: there may be a million. In the order in which they go that are
    too old: by `time`, those of one partition by offset. `size_time` counts instead for those that are too much.

    `offset` is the base offset of a segment, or the end of a snapshot, on this `line`. `first` is the index of the
    first kept point that has something of it, `whole` that of the first which has all of it as one, and `until` that
    after the last, if another line has taken its place since (else FOR_EVER). A segment `below_floor` is one of a
    compacted topic for which a snapshot stands. With a reason in `stays` it is not looked at.
    """

    time: int
    topic_id: str
    partition: int
    offset: int
    bytes: int
    size_time: int
    line: int
    first: int
    whole: int
    until: int
    is_snapshot: bool
    transactional: bool
    below_floor: bool
    stays: str

    @property
    def lane(self) -> Lane:
        """Where transactions are followed: the partition, or what other lines have taken the place of on a line."""
        return self.topic_id, self.partition, -1 if self.until == FOR_EVER else self.line

    def to_remove(self) -> RemovedSegment | RemovedSnapshot:
        """Return the fact of a commit that removes it."""
        kind = RemovedSnapshot if self.is_snapshot else RemovedSegment
        return kind(self.topic_id, self.partition, self.offset, self.line)


def _was_compacted_only(topic: TopicEntry) -> bool:
    """Return whether points of the topic may be of a time when it was compacted only."""
    return topic.is_compacted_only or topic.compacted_until > 0


class PartitionLines:
    """The lines of a partition, and who needs what lies on them. Segments and snapshots that several lines in use have
    are given to the first of these."""

    def __init__(self, state: ArchiveState, key: Partition, epochs: Sequence[int]) -> None:
        self.key, self.epochs = key, epochs
        self.held = state.lines.get(key) or [HeldLine(Line(), state.held(key))]
        self.lines = lines_of(self.held)
        self.in_use = lines_in_use(self.held)
        self.gone = state.removed.get(key, ()) if _was_compacted_only(state.topics[key[0]]) else ()
        """The ranges that were removed below floors, each of which lay at or below all points that were kept then."""
        self._given: set[tuple[int, int]] = set()
        self._given_snapshots: set[tuple[int, int]] = set()

    def take(self, line: int, entry: SegmentEntry) -> bool:
        """Return whether the segment still belongs to no other."""
        before = len(self._given)
        self._given.add((line, entry.base_offset))
        return len(self._given) > before

    def take_snapshot(self, line: int, item: HeldSnapshot) -> bool:
        """Return whether the snapshot still belongs to no other."""
        before = len(self._given_snapshots)
        self._given_snapshots.add((line, item.end))
        return len(self._given_snapshots) > before

    def snapshots_of(self, number: int) -> list[tuple[int, HeldSnapshot]]:
        """The snapshots of a line by their ends, each with the number of the line on which it lies."""
        return snapshots_of(self.held, self.lines, number)

    def has_points_before(self, epoch: int) -> bool:
        """Return whether a kept point of before an epoch has something of the partition, be it on another line."""
        before = bisect_left(self.epochs, epoch)
        if not before:
            return False
        rows = (entry for line in self.held for entry in PackedSegments(self.key, line.held.rows))
        return any(entry.archived_first <= self.epochs[before - 1] for entry in rows) or any(
            self._first_with(number, item) < before
            for number, line in enumerate(self.held)
            for item in line.held.snapshots
        )

    def serves_all(self, line: int, item: HeldSnapshot) -> bool:
        """Return whether a snapshot is one of all lines in use."""
        return all(self.lines.agree(line, number) >= item.end for number in self.in_use)

    def newest_of_branches(self) -> list[HeldSnapshot]:
        """Return the newest snapshot of each branch."""
        return [item for number in self.in_use[1:] for _, item in self.snapshots_of(number)[-1:]]

    def first_point(self, line: int) -> int:
        """Return the index of the first kept point that can have something of a line."""
        return bisect_left(self.epochs, self.held[line].epoch)

    def superseded(self, archived: ArchivedTimes) -> Iterator[Item]:
        """Yield what no line in use has: another line has taken its place."""
        for number, line in enumerate(self.held):
            for entry in PackedSegments(self.key, line.held.rows):
                if self.take(number, entry):
                    until = self._until(
                        any(
                            piece.owner == number and piece.start < entry.next_offset and entry.base_offset < piece.end
                            for piece in self.lines.path(later)
                        )
                        for later in range(len(self.held))
                    )
                    made, last = entry.archived_first, entry.archived_last
                    newest = archived.of(last) if entry.times.max_timestamp < 0 else entry.times.max_timestamp
                    first = bisect_left(self.epochs, made)
                    yield self._item(number, entry.base_offset, object_bytes(entry), newest, first, until, entry)
            for item in line.held.snapshots:
                if self.take_snapshot(number, item):
                    until = self._until(self.lines.agree(number, later) >= item.end for later in range(len(self.held)))
                    parts = item.parts(self.key)
                    time, size = archived.of(parts[0].archived_first), sum(map(object_bytes, parts))
                    yield self._item(number, item.end, size, time, self._first_with(number, item), until)

    def _first_with(self, number: int, item: HeldSnapshot) -> int:
        """Return the index of the first kept point that may begin with a snapshot: one may be older than that, if the
        log ended there already. What is left of the log tells."""
        below = (
            entry for entry in PackedSegments(self.key, self.held[number].held.rows) if entry.base_offset < item.end
        )
        return max([self.first_point(number), *(bisect_left(self.epochs, entry.archived_first) for entry in below)])

    def _until(self, has: Iterable[bool]) -> int:
        """Return the index after the last kept point that has something, by whether each line has it."""
        last = max((number for number, found in enumerate(has) if found), default=0)
        return bisect_left(self.epochs, self.held[last + 1].epoch) if last + 1 < len(self.held) else len(self.epochs)

    def _item(
        self, line: int, offset: int, size: int, time: int, first: int, until: int, entry: SegmentEntry | None = None
    ) -> Item:
        return Item(
            time,
            *self.key,
            offset,
            size,
            time,
            line,
            first,
            until,
            until,
            entry is None,
            entry is not None and entry.transactional,
            False,
            "",
        )


class LineItems:
    """The segments and snapshots of a line in use."""

    def __init__(self, lines: PartitionLines, number: int, archived: ArchivedTimes) -> None:
        self._lines, self._archived = lines, archived
        self._entries = list(segments_of(lines.key, lines.held, number))
        self._snapshots = lines.snapshots_of(number)
        self.held = [item for _, item in self._snapshots]
        epochs = lines.epochs
        of_snapshots = [(self._epoch(item), item.end) for item in self.held]
        log = [entry for _, entry in self._entries]
        self._seen = _highest(epochs, [*((entry.archived_first, entry.next_offset) for entry in log), *of_snapshots])
        """The ends of the partition at the kept points, as far as what is left shows them. Of a segment that was merged
        a point may have a part: then it ends there or below."""
        begun = ((entry.archived_first, entry.base_offset) for entry in log)
        whole = ((entry.archived_last, entry.next_offset) for entry in log)
        self._least = _highest(epochs, [*begun, *whole, *of_snapshots])
        """And the ends at or above which they are."""
        removed = max((end for _, end in lines.gone), default=0) if number == lines.in_use[0] else 0
        self.ends = [max(end, removed) for end in self._seen]
        """The same. Nothing may be left that is as old as a point: then it ends where the log now begins, and a later
        run has made the snapshot that stands for it."""

    def floor(self, oldest: int | None, known: Generation) -> HeldSnapshot | None:
        """Return the newest snapshot at or below all kept points, and of all lines in use, which is older than
        `oldest`. A generation that is being read takes the place of all snapshots when it becomes active, and continues
        with the log, which stays from its end on. There is none as long as a point of before the active generation is
        kept that has a part of the log: of that point no snapshot is that was made since."""
        if self._lines.has_points_before(known.epoch):
            return None
        passive = known.passive
        points = zip(self._least, self._seen, self.ends, strict=True)
        lowest = min((least if seen else end for least, seen, end in points if end), default=0)
        if passive is not None:
            lowest = min(lowest, passive.end)
        found = [
            item
            for line, item in self._snapshots
            if item.end <= lowest
            and (oldest is None or self._made(item) < oldest)
            and self._lines.serves_all(line, item)
        ]
        return found[-1] if found else None

    def in_use(self, floor: HeldSnapshot | None) -> list[HeldSnapshot]:
        """Return the snapshots that stay: the newest, the floor, and those with which kept points begin."""
        found = [*self.held[-1:], *([floor] if floor is not None else [])]
        for least, end in (*zip(self._least, self._seen, strict=True), *zip(self.ends, self.ends, strict=True)):
            below = [item for item in self.held if item.end <= end]
            found += [item for item in below if item.end > least] + [item for item in below if item.end <= least][-1:]
        return found

    def segments(self, stays: str, floor: HeldSnapshot | None) -> Iterator[Item]:
        """Yield the segments. Those that do not end at the floor or below stay, if there is a reason."""
        held = held_by_size = NO_TIME
        for line, entry in self._entries:
            archived = self._archived.of(entry.archived_last)
            newest = archived if entry.times.max_timestamp < 0 else entry.times.max_timestamp
            time, size_time = max(newest, held), max(min(newest, archived), held_by_size)
            if entry.transactional:  # markers are, too
                held, held_by_size = time, size_time
            if not self._lines.take(line, entry):
                continue
            below = floor is not None and entry.next_offset <= floor.end
            yield Item(
                time,
                *self._lines.key,
                entry.base_offset,
                object_bytes(entry),
                size_time,
                line,
                max(bisect_right(self.ends, entry.base_offset), self._lines.first_point(line)),
                self._first_with_whole(entry),
                FOR_EVER,
                False,
                entry.transactional,
                below,
                "" if below else stays,
            )

    def _first_with_whole(self, entry: SegmentEntry) -> int:
        """Return the index of the first point that has all of a segment, as it is now: one that was merged since was
        several, and some of them may have been within the limits."""
        found = bisect_left(self._least, entry.next_offset)
        is_as_archived = entry.archived_first == entry.archived_last == entry.epoch
        return found if is_as_archived else max(found, bisect_right(self._lines.epochs, entry.epoch))

    def snapshots(self, in_use: Sequence[HeldSnapshot]) -> Iterator[Item]:
        """Yield the snapshots, which are as old as the runs that have made them. Those in use stay."""
        for line, item in self._snapshots:
            if not self._lines.take_snapshot(line, item):
                continue
            made = self._made(item)
            yield Item(
                made,
                *self._lines.key,
                item.end,
                sum(map(object_bytes, item.parts(self._lines.key))),
                made,
                line,
                max(bisect_left(self.ends, item.end), self._lines.first_point(line)),
                FOR_EVER,
                FOR_EVER,
                True,
                False,
                False,
                NEEDED if item in in_use else "",
            )

    def _made(self, item: HeldSnapshot) -> int:
        return self._archived.of(self._epoch(item))

    def _epoch(self, item: HeldSnapshot) -> int:
        return item.parts(self._lines.key)[0].archived_first


def _highest(epochs: Sequence[int], offsets: Iterable[tuple[int, int]]) -> list[int]:
    """Return the highest of these offsets that each of the epochs has; 0: it has none."""
    found = [0] * len(epochs)
    for epoch, offset in offsets:
        at = bisect_left(epochs, epoch)
        if at < len(found):
            found[at] = max(found[at], offset)
    return list(accumulate(found, max))


def object_bytes(entry: SegmentEntry) -> int:
    """Return the bytes of all objects of a segment."""
    return sum(entry.files.sizes(entry).values())


class ArchivedTimes:
    """When segments were archived, at the latest, from their epochs: a run's is that of its last attempt."""

    def __init__(self, state: ArchiveState, now: int) -> None:
        runs = sorted((run.epoch, now if run.end_time is None else run.end_time) for run in state.runs.values())
        self._epochs = [epoch for epoch, _ in runs]
        self._ends = [end for _, end in runs]
        self._now = now

    def of(self, epoch: int) -> int:
        at = bisect_left(self._epochs, epoch)
        return self._ends[at] if at < len(self._ends) else self._now

"""The partitions of an archive and what it holds of them: segments, archived ranges, gaps, leader epochs. No I/O.

Most partitions have one line, and the tables hold what lies on it. Of those that have several (see `held_lines`) the
tables show what one of these has, put together when something is added.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Partition, Receipt, TopicEntry
from logkeep_engine.archive.catalog.held_lines import (
    Branch,
    HeldLine,
    PartitionFacts,
    branches_of,
    lines_of,
    shown_facts,
)
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot, with_snapshot
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, LeaderEpoch, LeaderSeen, Lineage, add_epoch
from logkeep_engine.archive.catalog.lines import FOREVER, Line, Lines
from logkeep_engine.archive.catalog.packed import SegmentBatch, SegmentTable, keyed_row, offsets_of, with_row
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.ranges import Range, add_range, without

T = TypeVar("T")


class HeldPartitions:
    """The topics of an archive and what it holds of their partitions, see `ArchiveState`."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicEntry] = {}
        self.segments = SegmentTable()
        self.coverage: dict[Partition, list[Range]] = {}
        self.gaps: dict[Partition, list[Gap]] = {}
        self.removed: dict[Partition, list[Range]] = {}
        self.epochs: dict[Partition, list[EpochStart]] = {}
        self.leaders: dict[Partition, int] = {}
        self.snapshots: dict[Partition, list[HeldSnapshot]] = {}
        self.lines: dict[Partition, list[HeldLine]] = {}
        self.shown: dict[Partition, int] = {}

    def partitions(self) -> list[Partition]:
        """Return every partition with a segment, coverage or gap, sorted."""
        return sorted({*self.segments, *self.coverage, *self.gaps})

    def accounted_for(self, topic_id: str, partition: int) -> list[Range]:
        """Return the ranges for which the archive accounts, merged and sorted: archived ranges and gaps."""
        key = (topic_id, partition)
        ranges = list(self.coverage.get(key, ()))
        for gap in self.gaps.get(key, ()):
            add_range(ranges, gap.start, gap.end)
        return ranges

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        """Return the end of the first range for which the archive accounts; None if there is none."""
        ranges = self.accounted_for(topic_id, partition)
        return ranges[0][1] if ranges else None

    def uncovered(self, topic_id: str, partition: int, start: int, end: int) -> list[Range]:
        """Return the ranges in [start, end) for which the archive does not account. The time that this takes depends on
        what lies in [start, end), and not on what else the partition has."""
        key = (topic_id, partition)
        left = without(start, end, self.coverage.get(key, ()))
        if key not in self.gaps:
            return left
        return [part for low, high in left for part in self._outside_gaps(key, low, high)]

    def _outside_gaps(self, key: Partition, start: int, end: int) -> list[Range]:
        ranges: list[Range] = []
        for gap in self.gaps_in(*key, start, end):
            add_range(ranges, gap.start, gap.end)
        return without(start, end, ranges)

    def gaps_in(self, topic_id: str, partition: int, start: int, end: int) -> list[Gap]:
        """Return the recorded gaps that share an offset with [start, end)."""
        gaps = self.gaps.get((topic_id, partition), ())
        # Gaps do not overlap: only the last gap that starts before may reach inside.
        first = max(0, bisect_left(gaps, start, key=_start) - 1)
        inside = gaps[first : bisect_left(gaps, end, key=_start)]
        return [gap for gap in inside if gap.end > start]

    def kept(self, topic_id: str, partition: int) -> list[Range]:
        """Ranges of offsets whose records the archive has, wherever compaction left some: what is archived, without
        what retention has removed."""
        removed = self.removed.get((topic_id, partition), ())
        return [part for covered in self.coverage.get((topic_id, partition), ()) for part in without(*covered, removed)]

    def removed_between(self, topic_id: str, partition: int) -> list[Range]:
        """Return the ranges that retention has removed between segments that are left."""
        key = (topic_id, partition)
        entries = self.segments.get(key)
        if entries is None:
            return []
        first, last = entries[0].base_offset, entries[-1].base_offset
        return [item for item in self.removed.get(key, ()) if first < item[0] < last]

    def last_before(self, topic_id: str, partition: int, offset: int) -> SegmentEntry | None:
        """Return the segment with the highest base offset below `offset`."""
        entries = self.segments.get((topic_id, partition))
        at = entries.position(offset) if entries is not None else 0
        return entries[at - 1] if entries is not None and at else None

    def held_until(self, topic_id: str, partition: int, offset: int) -> int:
        """Return the end of the segment that begins last before `offset`, which retention may have removed; 0: there is
        none."""
        before = self.last_before(topic_id, partition, offset)
        removed = self.removed.get((topic_id, partition), [])
        at = bisect_left(removed, offset, key=_start_of)
        return max(before.next_offset if before is not None else 0, removed[at - 1][1] if at else 0)

    def lineage(self, topic_id: str, partition: int) -> Lineage:
        """Return the leaders that have written what the archive accounts for of a partition, as far as they are
        known."""
        key = (topic_id, partition)
        ranges = self.accounted_for(*key)
        end = ranges[-1][1] if ranges else 0
        epochs = tuple(self.epochs.get(key, ()))
        return Lineage(epochs, self.held_until(*key, end), end, self.leaders.get(key, UNKNOWN))

    def line_number(self, key: Partition) -> int:
        """Return the number of the line of a partition that the state shows."""
        return self.shown.get(key, max(0, len(self.lines.get(key, ())) - 1))

    def shown_lines(self, key: Partition) -> Sequence[HeldLine]:
        """Return the line of a partition that the state shows, and those on which it stands, in order; none if it has
        one."""
        return self.lines.get(key, [])[: self.line_number(key) + 1]

    def own_facts(self, key: Partition) -> list[PartitionFacts]:
        """Return all that lies on each line of a partition, by its number."""
        return [line.held for line in self.lines[key]] if key in self.lines else [self.held(key)]

    @property
    def branches(self) -> dict[Partition, list[Branch]]:
        """The branches of each partition that has some, in the order in which they were made."""
        return {key: list(branches_of(key, self.lines[key])) for key in self.lines if self.has_branches(key)}

    def has_branches(self, key: Partition) -> bool:
        """Return whether the log of a partition was cut off."""
        return any(line.branch_id for line in self.lines.get(key, ()))

    def has_branch(self, key: Partition, branch_id: str) -> bool:
        """Return whether a partition has the branch of this id."""
        return any(line.branch_id == branch_id for line in self.lines.get(key, ()))

    def old_ends(self, key: Partition) -> list[EpochStart]:
        """Return the last leader epoch of each branch of a partition, and the offset at which the branch begins."""
        return [(branch.lineage.newest, branch.offset) for branch in branches_of(key, self.lines.get(key, ()))]

    def branch_ids(self, topic_id: str) -> list[str]:
        """Return the branches of all partitions of a topic, in the order in which they were made."""
        found = (line.branch_id for (owner, _), some in self.lines.items() if owner == topic_id for line in some)
        return sorted({branch_id for branch_id in found if branch_id})

    def copy_tables(self) -> None:
        """Let a `shared` state change what it shows of partitions."""
        self.segments = self.segments.copy()
        for name in OF_PARTITIONS:
            setattr(self, name, dict(getattr(self, name)))

    def show(self, key: Partition) -> None:
        """Put together what is shown of a partition with several lines."""
        self.hold(key, shown_facts(self.lines[key], self.line_number(key)))

    def held(self, key: Partition) -> PartitionFacts:
        """Return all that the archive has of a partition, as it is shown: without a passive generation."""
        return PartitionFacts(
            self.segments.rows(key),
            self.coverage.get(key, []),
            self.gaps.get(key, []),
            self.removed.get(key, []),
            self.epochs.get(key, []),
            self.leaders.get(key, UNKNOWN),
            self.snapshots.get(key, []),
            self.segments.cuts(key),
        )

    def hold(self, key: Partition, held: PartitionFacts) -> None:
        """Put `held` in place of all of that."""
        self.segments.replace_rows(key, held.rows, held.cuts)
        _set(self.coverage, key, held.coverage)
        _set(self.gaps, key, held.gaps)
        _set(self.removed, key, held.removed)
        _set(self.epochs, key, held.epochs)
        _set(self.snapshots, key, held.snapshots)
        self.leaders.pop(key, None)
        if held.leader != UNKNOWN:
            self.leaders[key] = held.leader

    def add_line(self, key: Partition, line: HeldLine) -> None:
        """Let a line be the current one of a partition. Its base is the one that was."""
        held = self.lines.get(key) or [HeldLine(Line(), self.held(key))]
        line.line = replace(line.line, base=len(held) - 1)
        self.lines[key] = [*held, line]
        self.show(key)

    def holds(self, receipt: Receipt) -> bool:
        """True if the archive accounts for every offset of the receipt already."""
        return bool(receipt.ranges) and all(not self.uncovered(*item) for item in receipt.ranges)

    def add_facts(
        self,
        topics: Iterable[TopicEntry],
        coverage: Iterable[Coverage],
        segments: Iterable[SegmentEntry],
        gaps: Iterable[Gap],
    ) -> None:
        """Add facts that were checked before they were committed."""
        for topic in topics:
            self.topics[topic.topic_id] = topic
        of_lines = _FactsOfLines(self)
        for item in coverage:
            key = (item.topic_id, item.partition)
            if key in self.lines:
                add_range(of_lines.at(key, item.start).coverage, item.start, item.end)
            else:
                add_range(self.coverage.setdefault(key, []), item.start, item.end)
        rows = segments.rows() if isinstance(segments, SegmentBatch) else map(keyed_row, segments)
        for key, row in rows:
            if key in self.lines:
                of_lines.add_row(key, row)
            else:
                self.segments.add_row(key, row)
        for gap in gaps:
            key = (gap.topic_id, gap.partition)
            held = of_lines.at(key, gap.start).gaps if key in self.lines else self.gaps.setdefault(key, [])
            insort(held, gap, key=_start)
        of_lines.show()

    def add_lineage(self, epochs: Iterable[LeaderEpoch], leaders: Iterable[LeaderSeen]) -> None:
        """Add leader epochs, and the leaders on whose logs a run begins."""
        of_lines = _FactsOfLines(self)
        for item in epochs:
            key = (item.topic_id, item.partition)
            known = of_lines.at(key, item.start).epochs if key in self.lines else self.epochs.setdefault(key, [])
            add_epoch(known, item.epoch, item.start)
        for seen in leaders:
            key = (seen.topic_id, seen.partition)
            if key in self.lines:
                of_lines.at(key, FOREVER - 1).leader = seen.epoch
            else:
                self.leaders[key] = seen.epoch
        of_lines.show()

    def add_snapshot(self, entry: SnapshotEntry) -> None:
        """Add a snapshot of the current line. Raises ValueError if it does not end after those that the line has."""
        key, more = entry.key, HeldSnapshot.of(entry)
        found = with_snapshot(self.snapshots.get(key, ()), more)
        if key in self.lines:
            self.lines[key][-1].held.snapshots.append(more)
        self.snapshots[key] = found

    def own(self, key: Partition, line: int) -> PartitionFacts:
        """Return what lies on a line. Raises ValueError if there is no such line."""
        own = self.own_facts(key)
        if not 0 <= line < len(own):
            raise ValueError(f"topic id {key[0]} partition {key[1]} has no line {line}")
        return own[line]

    def put_own(self, key: Partition, line: int, own: PartitionFacts) -> None:
        """Let this lie on a line of a partition."""
        if key in self.lines:
            self.lines[key][line].held = own
            self.show(key)
        else:
            self.hold(key, own)


class _FactsOfLines:
    """Adds facts to the lines of partitions that have several: each to the line that owns its offset."""

    def __init__(self, state: HeldPartitions) -> None:
        self._state = state
        self._owners: dict[Partition, Lines] = {}

    def at(self, key: Partition, offset: int) -> PartitionFacts:
        """Return what lies on the line that owns an offset of the current one."""
        held = self._state.lines[key]
        lines = self._owners.get(key)
        if lines is None:
            lines = self._owners[key] = lines_of(held)
        return held[lines.owner(len(held) - 1, offset)].held

    def add_row(self, key: Partition, row: bytes) -> None:
        """Add a segment that is packed."""
        own = self.at(key, offsets_of(row)[0])
        own.rows = with_row(own.rows, row)

    def show(self) -> None:
        """Let the state show what was added."""
        for key in self._owners:
            self._state.show(key)


OF_PARTITIONS = ("coverage", "gaps", "removed", "epochs", "leaders", "snapshots")


def _set(table: dict[Partition, list[T]], key: Partition, items: list[T]) -> None:
    if items:
        table[key] = items
    else:
        table.pop(key, None)


def _start(gap: Gap) -> int:
    return gap.start


def _start_of(item: Range) -> int:
    return item[0]

"""Spreads large partitions over tasks. It plans the tasks of `ranges` and puts their answers together. No I/O.

    alone, large = divided(work, ...)        # which partitions are a task, and which are spread
    spreading = Spreading()
    runner.run(spreading.add(work, ranges_of(work, max_bytes)), ...)      # each answer goes to `take`
    runner.run(spreading.shares(), ...)
    runner.run(spreading.copies(), ...)
    spreading.objects                        # which are no longer needed

Rounds begin when all tasks of the one before have answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.packed import sums_of_segments
from logkeep_engine.compaction.partition import NO_PROGRESS, CompactionWork, PartitionCompacted, snapshot_of
from logkeep_engine.compaction.ranges import (
    KeyRange,
    KeyShare,
    KeysMapped,
    KeysMerged,
    RangeCopied,
    RangeCopy,
    bucket_sizes,
)
from logkeep_engine.log.compaction import KeyLookup
from logkeep_engine.log.key_comparison import new_secret
from logkeep_engine.log.memory import task_bytes
from logkeep_engine.tasks import Demand, Expect

LEAST_BYTES = 4 << 30
"""A partition with fewer bytes is compacted by one task."""

RANGE_BYTES = 1 << 30
_LARGEST = 1 << 30
_OFFSETS = 2**31 - 2  # a part has positions of offsets in 31 bits, and one more batch

WithRanges = tuple[CompactionWork, list[tuple[SegmentEntry, ...]]]
"""A partition that is spread, and its ranges."""

RangeTask = KeyRange | KeyShare | RangeCopy
RangeAnswer = KeysMapped | KeysMerged | RangeCopied


def _sums_of(work: CompactionWork) -> tuple[int, int]:
    """Return the records and the bytes that the compaction of a partition reads once."""
    records, size = sums_of_segments(work.dirty)
    clean, clean_size = (0, 0) if work.last is None else sums_of_segments(work.last.parts)
    return records + clean, size + clean_size


def entries_of(work: CompactionWork) -> tuple[SegmentEntry, ...]:
    """Return the parts of the last snapshot and the segments after it."""
    return (*(() if work.last is None else work.last.parts), *work.dirty)


def ranges_of(work: CompactionWork, max_bytes: int) -> list[tuple[SegmentEntry, ...]]:
    """Return the ranges of a partition; none if it cannot be spread. A range has at most `max_bytes`, unless
    one segment has more, and no more records than a task has marks for."""
    entries = entries_of(work)
    if any(entry.legacy or entry.bytes > _LARGEST for entry in entries):
        return []  # what is left of one may not fit into a part
    ranges: list[list[SegmentEntry]] = []
    size = records = 0
    for entry in entries:
        size += entry.bytes
        records += entry.records
        far = bool(ranges) and entry.next_offset - ranges[-1][0].base_offset > _OFFSETS
        if not ranges or far or size > min(max_bytes, RANGE_BYTES) or records > most_records():
            ranges.append([])
            size, records = entry.bytes, entry.records
        ranges[-1].append(entry)
    return [tuple(some) for some in ranges]


def most_records() -> int:
    """This many records have marks in an eighth of a task's memory: two bits each."""
    return task_bytes() // 2


def divided(
    work: Sequence[CompactionWork], max_bytes: int, slots: int, expect: Expect | None
) -> tuple[list[CompactionWork], list[WithRanges]]:
    """Return the partitions that are a task, and those that are spread: `slots` tasks run at once, or what `expect`
    answers. The second pass of a task reads as much as the first, so bytes show how long one takes."""
    sums = {item.number: _sums_of(item) for item in work}
    total = sum(size for _, size in sums.values())

    def is_above(item: CompactionWork, most_bytes: float) -> bool:
        records, size = sums[item.number]
        return size > most_bytes or records > most_records()

    large = [(item, ranges_of(item, max_bytes)) for item in work if is_above(item, LEAST_BYTES)]
    large = [(item, ranges) for item, ranges in large if len(ranges) > 1]
    if expect is not None:
        slots = expect(Demand(len(work) + sum(len(ranges) - 1 for _, ranges in large), total))
    spread = [(item, ranges) for item, ranges in large if is_above(item, total / max(1, slots))]
    numbers = {item.number for item, _ in spread}
    return [replace(item, may_give_up=True) for item in work if item.number not in numbers], spread


@dataclass(slots=True)
class _Spread:
    """A partition whose tasks are under way."""

    work: CompactionWork
    ranges: list[KeyRange]
    mapped: dict[int, KeysMapped] = field(default_factory=dict)
    merged: dict[int, KeysMerged] = field(default_factory=dict)
    copied: dict[int, RangeCopied] = field(default_factory=dict)

    @property
    def leader_epoch(self) -> int:
        last = self.work.last
        return max(0 if last is None else last.leader_epoch, *(item.leader_epoch for item in self.mapped.values()))

    def in_order(self) -> tuple[KeysMapped, ...]:
        return tuple(self.mapped[item.part] for item in self.ranges)

    def shares(self) -> Iterator[KeyShare]:
        mapped = self.in_order()
        sizes = bucket_sizes(mapped)
        most = KeyLookup.most_keys()
        below = 0
        # Each share holds what begins in it, so it may have one bucket more than `most` keys.
        for share, (_, some) in enumerate(groupby(accumulate(sizes), lambda end: (end - 1) // most)):
            first, below = below, below + len(list(some))
            yield KeyShare(self.work.number, self.work, share, first, below, mapped)

    def copies(self) -> Iterator[RangeCopy]:
        epoch = self.leader_epoch
        for item in self.ranges:
            at = item.part
            replaced = ((done.path, done.at[at + 1], done.at[at]) for _, done in sorted(self.merged.items()))
            yield RangeCopy(item, self.mapped[at], tuple(replaced), epoch)

    def compacted(self) -> PartitionCompacted:
        done = [self.copied[item.part] for item in self.ranges]
        snapshot = snapshot_of(self.work, self.leader_epoch, [item.part for item in done])
        records, tombstones = sum(item.records for item in done), sum(item.tombstones for item in done)
        return PartitionCompacted(self.work.number, snapshot, records, tombstones)


class Spreading:
    """The large partitions of a run."""

    def __init__(self) -> None:
        self._spread: dict[int, _Spread] = {}
        self.objects: list[str] = []

    def add(
        self, work: CompactionWork, ranges: Sequence[tuple[SegmentEntry, ...]], first: int | None = None
    ) -> list[KeyRange]:
        """Spread a partition. Returns the tasks that map the keys of its ranges; their progress has numbers from
        `first` on, if it is reported."""
        secret = new_secret()  # one for all of its tasks, which compare the hashes that they make of keys
        numbers = [NO_PROGRESS if first is None else first + part for part in range(len(ranges))]
        made = [
            KeyRange(number, work, part, len(ranges), entries, secret)
            for part, (number, entries) in enumerate(zip(numbers, ranges, strict=True))
        ]
        self._spread[work.number] = _Spread(work, made)
        return made

    def shares(self) -> list[KeyShare]:
        """Return the tasks that merge the keys."""
        return [item for spread in self._spread.values() for item in spread.shares()]

    def copies(self) -> list[RangeCopy]:
        """Return the tasks that copy ranges."""
        return [item for spread in self._spread.values() for item in spread.copies()]

    def take(self, task: RangeTask, answer: RangeAnswer) -> PartitionCompacted | None:
        """Note the answer of a task. The last one of a partition makes its snapshot."""
        if isinstance(answer, (KeysMapped, KeysMerged)):
            # Also of a partition that was given up: its objects are to be deleted as well.
            self.objects.append(answer.path)
        spread = self._spread.get(work_of(task).number)
        if spread is None:  # given up: answers of its other tasks still come
            return None
        match task, answer:
            case KeyRange(), KeysMapped():
                spread.mapped[task.part] = answer
            case KeyShare(), KeysMerged():
                spread.merged[task.share] = answer
            case RangeCopy(), RangeCopied():
                spread.copied[task.range.part] = answer
        return spread.compacted() if len(spread.copied) == len(spread.ranges) else None

    def give_up(self, task: RangeTask) -> bool:
        """Forget the partition of a task that failed. False: it is forgotten already."""
        return self._spread.pop(work_of(task).number, None) is not None


def work_of(task: CompactionWork | RangeTask) -> CompactionWork:
    """Return the partition of a task."""
    match task:
        case CompactionWork():
            return task
        case RangeCopy():
            return task.range.whole
        case _:
            return task.whole

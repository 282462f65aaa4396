"""The facts an archive keeps, and the state they add up to. No I/O.

Every fact checks itself when it is made and raises ValueError for what cannot be. `ArchiveState` is the fold of commits
0..n: it grows by `apply`, and nothing else changes it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from logkeep_engine.archive import names

if TYPE_CHECKING:
    from logkeep_engine.log.segment import SegmentSummary

Partition = tuple[str, int]  # (topic id, partition number)
Range = tuple[int, int]  # offsets [start, end)


class Outcome(StrEnum):
    """How a run ended. `TakenOver`: it was begun, never ended, and another run went on."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TAKEN_OVER = "TakenOver"


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An immutable object of whole record batches of one partition. Offsets of the batches lie in [base_offset,
    next_offset).

    `records` counts data records (no control records), `bytes` is the size of the `.log` object, `sha256` its hash in
    hex. Times are ms since the epoch: `min_base_timestamp` is the lowest first time of a batch, which may not be the
    lowest time of a record. `codecs` counts batches by codec name. `gaps`: offsets are missing inside or between
    batches. `legacy`: batches of magic 0 or 1. `*_bytes` are the sizes of the index objects; a `.txnindex` of 0 bytes
    has no object. It cannot be rebuilt from the log, so its hash is kept too ("" if it has none). `stored_bytes` is the
    size of the `.log.zst` object that holds the log in seekable zstd; 0: it lies in a `.log` as it is. `bytes` and
    `sha256` are those of the log itself in both cases.
    """

    topic_id: str
    partition: int
    epoch: int
    attempt: int
    base_offset: int
    next_offset: int
    records: int
    batches: int
    bytes: int
    min_base_timestamp: int
    max_timestamp: int
    sha256: str
    codecs: Mapping[str, int] = field(hash=False)
    transactional: bool
    control: bool
    gaps: bool
    append_time: bool
    legacy: bool
    max_batch_bytes: int
    index_bytes: int
    timeindex_bytes: int
    txnindex_bytes: int
    txnindex_sha256: str = ""
    stored_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset < self.next_offset or self.batches < 1 or self.bytes < 1 or self.partition < 0:
            raise ValueError(
                f"segment of partition {self.partition} with offsets [{self.base_offset}, {self.next_offset}), "
                f"{self.batches} batches, {self.bytes} bytes"
            )

    @classmethod
    def of(
        cls,
        summary: SegmentSummary,
        *,
        topic_id: str,
        partition: int,
        epoch: int,
        attempt: int,
        stored_bytes: int = 0,
    ) -> Self:
        """The entry of a finished segment."""
        return cls(
            topic_id=topic_id,
            partition=partition,
            epoch=epoch,
            attempt=attempt,
            base_offset=summary.base_offset,
            next_offset=summary.next_offset,
            records=summary.records,
            batches=summary.batches,
            bytes=summary.bytes,
            min_base_timestamp=summary.min_base_timestamp,
            max_timestamp=summary.max_timestamp,
            sha256=summary.sha256,
            codecs=dict(summary.codecs),
            transactional=summary.transactional,
            control=summary.control,
            gaps=summary.gaps,
            append_time=summary.append_time,
            legacy=summary.legacy,
            max_batch_bytes=summary.max_batch_bytes,
            index_bytes=len(summary.index),
            timeindex_bytes=len(summary.timeindex),
            txnindex_bytes=len(summary.txnindex),
            txnindex_sha256=hashlib.sha256(summary.txnindex).hexdigest() if summary.txnindex else "",
            stored_bytes=stored_bytes,
        )

    @property
    def log_suffix(self) -> str:
        """Of the object that holds the log."""
        return names.LOG_ZST if self.stored_bytes else names.LOG

    def stem(self, topic: str) -> str:
        """The path of its objects without the suffix; `topic` is the name of `topic_id`."""
        return names.segment_stem(topic, self.topic_id, self.partition, self.base_offset, self.epoch, self.attempt)

    def objects(self, topic: str) -> dict[str, int]:
        """Path and size in bytes of each of its objects."""
        stem = self.stem(topic)
        sizes = {
            self.log_suffix: self.stored_bytes or self.bytes,
            names.INDEX: self.index_bytes,
            names.TIMEINDEX: self.timeindex_bytes,
            names.TXNINDEX: self.txnindex_bytes,
        }
        return {stem + suffix: size for suffix, size in sizes.items() if size or suffix != names.TXNINDEX}


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One incarnation of a topic as last seen. `configs`: what is set on the topic itself, not the broker's
    defaults."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        names.check_topic(self.name)
        names.check_topic_id(self.topic_id)
        if self.partitions < 1:
            raise ValueError(f"topic {self.name} with {self.partitions} partitions")


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A consumer group's committed position: the next offset it would read. `leader_epoch` -1: not known."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The offsets [start, end) of a partition are archived: what was there is in segments."""

    topic_id: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        _check_range(self.topic_id, self.partition, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets [start, end) of a partition were gone before they could be archived. Lies outside of any coverage."""

    topic_id: str
    partition: int
    start: int
    end: int
    reason: str

    def __post_init__(self) -> None:
        _check_range(self.topic_id, self.partition, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task has done. Committed whole or not at all."""

    coverage: tuple[Coverage, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def ranges(self) -> list[tuple[str, int, int, int]]:
        """(topic id, partition, start, end) of everything it settles, archived or lost."""
        settled: list[Coverage | Gap] = [*self.coverage, *self.gaps]
        return [(item.topic_id, item.partition, item.start, item.end) for item in settled]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of this archive. `attempts` counts starts of its driver, `epoch` is that of the last. Times are ms since
    the epoch."""

    run_id: str
    epoch: int
    kind: str
    begin_time: int
    end_time: int | None = None
    outcome: Outcome = Outcome.RUNNING
    message: str = ""
    records: int = 0
    bytes: int = 0
    segments: int = 0
    attempts: int = 1


class CommitKind(StrEnum):
    BEGIN = "Begin"
    DATA = "Data"
    END = "End"


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of the archive's history. `token` is unique to the call that wrote it; `time` is ms since the epoch, for
    people.

    Begin: `run_kind`, `taken_over` (ids of the runs that were begun and never ended). Data: `topics`, `receipts`'
    facts. End: `outcome`, `message`, and `groups`, which replace those of earlier runs if the run succeeded.
    """

    number: int
    archive_id: str
    token: str
    kind: CommitKind
    run_id: str
    epoch: int
    time: int
    run_kind: str = ""
    taken_over: tuple[str, ...] = ()
    topics: tuple[TopicEntry, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    outcome: Outcome = Outcome.RUNNING
    message: str = ""


class ArchiveState:
    """What commits 0..`commit` add up to. `commit` is -1 and `epoch` 0 for a new archive; a run's first epoch is 1.

    topics    by topic id, in the order in which incarnations were first seen
    segments  by (topic id, partition), by base offset
    coverage  by (topic id, partition), merged and sorted ranges that are archived
    gaps      by (topic id, partition), sorted, as recorded
    groups    of the last run that succeeded
    runs      by run id, in the order in which they began
    """

    def __init__(self) -> None:
        self.commit = -1
        self.epoch = 0
        self.topics: dict[str, TopicEntry] = {}
        self.segments: dict[Partition, list[SegmentEntry]] = {}
        self.coverage: dict[Partition, list[Range]] = {}
        self.gaps: dict[Partition, list[Gap]] = {}
        self.groups: tuple[GroupEntry, ...] = ()
        self.runs: dict[str, RunEntry] = {}

    @property
    def running(self) -> list[RunEntry]:
        """Runs that began and did not end."""
        return [run for run in self.runs.values() if run.outcome is Outcome.RUNNING]

    def partitions(self) -> list[Partition]:
        """Every partition with a segment, coverage or gap, sorted."""
        return sorted({*self.segments, *self.coverage, *self.gaps})

    def settled(self, topic_id: str, partition: int) -> list[Range]:
        """Merged sorted ranges that are archived or recorded as lost."""
        key = (topic_id, partition)
        ranges = list(self.coverage.get(key, ()))
        for gap in self.gaps.get(key, ()):
            add_range(ranges, gap.start, gap.end)
        return ranges

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        """Where an archive that goes on continues: the end of what is settled without a hole from its first offset;
        None: nothing is."""
        ranges = self.settled(topic_id, partition)
        return ranges[0][1] if ranges else None

    def uncovered(self, topic_id: str, partition: int, start: int, end: int) -> list[Range]:
        """The parts of [start, end) that are neither archived nor recorded as lost."""
        left: list[Range] = []
        at = start
        for low, high in self.settled(topic_id, partition):
            if high <= at:
                continue
            if low >= end:
                break
            if low > at:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
        return left

    def why_not(self, receipt: Receipt, epoch: int) -> str | None:
        """Why a receipt cannot be committed by the writer of `epoch`, or None. A receipt that is there already is
        another matter."""
        if not receipt.coverage and not receipt.gaps:
            return "it settles no offsets"
        seen: dict[Partition, list[Range]] = {}
        for topic_id, partition, start, end in receipt.ranges:
            where = f"topic id {topic_id} partition {partition} offsets [{start}, {end})"
            if topic_id not in self.topics:
                return f"{where}: no commit names the topic"
            if self.uncovered(topic_id, partition, start, end) != [(start, end)]:
                return f"{where} are settled in part by an earlier commit"
            own = seen.setdefault((topic_id, partition), [])
            if _overlaps(own, start, end):
                return f"{where} twice in one receipt"
            add_range(own, start, end)
        own_segments: dict[Partition, list[SegmentEntry]] = {}
        for entry in receipt.segments:
            where = f"topic id {entry.topic_id} partition {entry.partition} segment {entry.base_offset}"
            if entry.epoch != epoch:
                return f"{where} was written at epoch {entry.epoch}, not {epoch}"
            if not any(
                (item.topic_id, item.partition) == (entry.topic_id, entry.partition)
                and item.start <= entry.base_offset < item.end
                for item in receipt.coverage
            ):
                return f"{where} does not begin inside the receipt's coverage"
            key = (entry.topic_id, entry.partition)
            for others in (self.segments.get(key, []), own_segments.setdefault(key, [])):
                other = _overlapping(others, entry)
                if other is not None:
                    return f"{where} overlaps segment [{other.base_offset}, {other.next_offset})"
            insort(own_segments[key], entry, key=_base_offset)
        return None

    def holds(self, receipt: Receipt) -> bool:
        """True if every offset of the receipt is settled already."""
        return bool(receipt.ranges) and all(not self.uncovered(*item) for item in receipt.ranges)

    def apply(self, commit: Commit) -> None:
        """Add the next commit. Raises ValueError if it cannot follow."""
        if commit.number != self.commit + 1:
            raise ValueError(f"commit {commit.number} cannot follow commit {self.commit}")
        if commit.kind is CommitKind.BEGIN:
            self._begin(commit)
            self.commit = commit.number
            return
        run = self.runs.get(commit.run_id)
        if run is None or run.epoch != commit.epoch or self.epoch != commit.epoch:
            raise ValueError(
                f"commit {commit.number} is of run {commit.run_id} at epoch {commit.epoch}, which is not the writer"
            )
        self.add_facts(commit.topics, commit.coverage, commit.segments, commit.gaps)
        run = replace(
            run,
            records=run.records + sum(entry.records for entry in commit.segments),
            bytes=run.bytes + sum(entry.bytes for entry in commit.segments),
            segments=run.segments + len(commit.segments),
        )
        if commit.kind is CommitKind.END:
            run = replace(run, end_time=commit.time, outcome=commit.outcome, message=commit.message)
            if commit.outcome is Outcome.SUCCEEDED:
                self.groups = commit.groups
        self.runs[run.run_id] = run
        self.commit = commit.number

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
        for item in coverage:
            add_range(self.coverage.setdefault((item.topic_id, item.partition), []), item.start, item.end)
        for entry in segments:
            insort(self.segments.setdefault((entry.topic_id, entry.partition), []), entry, key=_base_offset)
        for gap in gaps:
            insort(self.gaps.setdefault((gap.topic_id, gap.partition), []), gap, key=_start)

    def _begin(self, commit: Commit) -> None:
        if commit.epoch <= self.epoch:
            raise ValueError(f"commit {commit.number} begins at epoch {commit.epoch}, which is not above {self.epoch}")
        self.epoch = commit.epoch
        for run_id in commit.taken_over:
            self.runs[run_id] = replace(
                self.runs[run_id],
                outcome=Outcome.TAKEN_OVER,
                end_time=commit.time,
                message=f"run {commit.run_id} went on at epoch {commit.epoch}",
            )
        earlier = self.runs.get(commit.run_id)
        if earlier is None:
            self.runs[commit.run_id] = RunEntry(commit.run_id, commit.epoch, commit.run_kind, commit.time)
        else:
            self.runs[commit.run_id] = replace(
                earlier,
                epoch=commit.epoch,
                end_time=None,
                outcome=Outcome.RUNNING,
                message="",
                attempts=earlier.attempts + 1,
            )


def add_range(ranges: list[Range], start: int, end: int) -> None:
    """Add [start, end) to merged sorted ranges; touching and overlapping ones become one."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
        return
    first = bisect_left(ranges, start, key=_end)
    last = first
    while last < len(ranges) and ranges[last][0] <= end:
        start = min(start, ranges[last][0])
        end = max(end, ranges[last][1])
        last += 1
    ranges[first:last] = [(start, end)]


def _overlaps(ranges: Sequence[Range], start: int, end: int) -> bool:
    return any(low < end and start < high for low, high in ranges)


def _overlapping(entries: Sequence[SegmentEntry], entry: SegmentEntry) -> SegmentEntry | None:
    """A neighbour in entries sorted by base offset that shares an offset with `entry`."""
    at = bisect_left(entries, entry.base_offset, key=_base_offset)
    if at < len(entries) and entries[at].base_offset < entry.next_offset:
        return entries[at]
    if at and entries[at - 1].next_offset > entry.base_offset:
        return entries[at - 1]
    return None


def _check_range(topic_id: str, partition: int, start: int, end: int) -> None:
    if not 0 <= start < end or partition < 0:
        raise ValueError(f"topic id {topic_id} partition {partition}: [{start}, {end}) is not a range of offsets")


def _base_offset(entry: SegmentEntry) -> int:
    return entry.base_offset


def _start(gap: Gap) -> int:
    return gap.start


def _end(item: Range) -> int:
    return item[1]

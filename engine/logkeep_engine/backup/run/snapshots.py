"""Makes snapshots of compacted partitions when a run has ended with success.

    writer.end(RunOutcome.SUCCEEDED, groups=groups)
    made = make_snapshots(writer, spec, reporter, runner_factory, expect)

The catalog says which partitions are due, before a byte is read: the dirty section has this many bytes, and they are so
large a share of what the snapshot would be made of (KIP-630's words). Each snapshot becomes visible with a commit
after the end of the run, so a point of the archive lies at its end. Nothing depends on a snapshot: the log is whole
without, and so a failure is reported and fails no run. The next run makes what this one has not.

A partition is a task. One for which all other tasks would wait, or with more keys or records than a task can do with,
is spread over tasks (`compaction.spreading`).

A kill before a commit leaves objects under names that are used only once, and `verify` lists them as orphans. The next
start of the run, or the next run, makes the snapshot again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import NOWHERE
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.history.compacted import known_generation, not_exact, snapshot_of
from logkeep_engine.archiving import COMMIT_SECONDS
from logkeep_engine.compaction.partition import (
    NO_PROGRESS,
    AbortAhead,
    CompactionSetting,
    CompactionWork,
    PartitionCompacted,
    TooManyKeys,
    compact_partition,
)
from logkeep_engine.compaction.ranges import (
    KeyRange,
    KeyShare,
    RangeCopied,
    RangeCopy,
    copy_range,
    map_keys,
    merge_keys,
)
from logkeep_engine.compaction.spreading import (
    RangeAnswer,
    RangeTask,
    Spreading,
    WithRanges,
    divided,
    ranges_of,
    work_of,
)
from logkeep_engine.contract.compacted import CompactedTopics, Snapshots
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, LogkeepError, ObjectCold
from logkeep_engine.limits import NO_LIMITS
from logkeep_engine.log.cleanup import delete_retention
from logkeep_engine.report import ProgressRange, Reporter
from logkeep_engine.tasks import Expect, TaskContext, TaskRunner

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SnapshotsMade:
    """How many partitions have got a snapshot, and why others have not, which were due."""

    count: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"made snapshots of {self.count} partition{'s' if self.count > 1 else ''}" if self.count else ""


def make_snapshots(
    writer: Writer,
    spec: KafkaBackupSpec,
    reporter: Reporter,
    runner_factory: Callable[[], TaskRunner],
    expect: Expect | None,
) -> SnapshotsMade:
    """Make the snapshots that are due, after the run of the writer has ended with success. Raises nothing that the
    storage, a task or another run may be the cause of."""
    made = SnapshotsMade()
    if spec.how_compacted is not CompactedTopics.SNAPSHOT:
        return made
    work = list(due(writer.state, spec.snapshots or Snapshots(), made.notes))
    if not work:
        return made
    try:
        setting = CompactionSetting(
            storage=writer.archive.storage,
            epoch=writer.epoch,
            now=writer.state.runs[writer.run_id].begin_time,  # so that all attempts make the same
            max_bytes=spec.segment.max_bytes_int,
            digest=spec.segment.digest,
        )
        _Making(writer, setting, reporter, made).perform(
            *divided(work, setting.max_bytes, spec.spark.executor.slots, expect), runner_factory
        )
    except LogkeepError as error:
        log.warning("%s", error)
        made.notes.append(f"snapshots could not be made, the next run makes them: {error.message}")
    reporter.phase("Finishing")
    log.info("made %d snapshots of %d that were due", made.count, len(work))
    return made


Task = CompactionWork | RangeTask
Answer = PartitionCompacted | RangeAnswer | LogkeepError | TooManyKeys


def due(state: ArchiveState, limits: Snapshots, notes: list[str]) -> Iterator[CompactionWork]:
    """Yield the partitions that shall have a new snapshot now. `notes` gets those that cannot have one, and why."""
    gone = set(not_exact(state))
    number = 0
    for key in sorted(state.segments):
        topic = state.topics.get(key[0])
        if topic is None or not topic.is_compacted:
            continue
        last = snapshot_of(state, key)
        entries = state.segments[key]
        dirty = entries if last is None else entries.since(last.end)  # a merge may lie across the end
        size = dirty.sums()[1] - _cut_off(dirty)
        whole = size + (0 if last is None else last.parts(key).sums()[1])
        if size < limits.max_record_bytes_int or size < limits.min_cleanable_ratio * whole or not size:
            continue
        why = _why_not(state, key, gone)
        if why:
            notes.append(f"topic {topic.name} partition {key[1]} gets no snapshot: {why}")
            continue
        yield CompactionWork(
            number=number,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=key[1],
            last=None if last is None else last.entry(key),
            dirty=dirty,
            kept=tuple(state.kept(*key)),
            end=state.accounted_for(*key)[-1][1],
            delete_retention=delete_retention(topic.configs),
        )
        number += 1


def _cut_off(dirty: Sequence[SegmentEntry]) -> int:
    """Estimate the bytes of the first segment that lie before its slice, by its offsets: a merge has put them there."""
    first = dirty[0] if dirty else None
    if first is None or first.uncut is first:
        return 0
    whole = first.uncut
    return whole.bytes * (first.base_offset - whole.base_offset) // (whole.next_offset - whole.base_offset)


def _why_not(state: ArchiveState, key: Partition, gone: set[Partition]) -> str:
    """Return the reason why a partition that is due cannot have a snapshot, empty if it can."""
    accounted = state.accounted_for(*key)
    if known_generation(state, key).exact_from == NOWHERE:
        return "its log was cut off, and so were the records that had overwritten what the archive lacks"
    if key in gone:
        return "retention has removed a part of its log, and no snapshot holds the keys of that part"
    if len(accounted) != 1:
        return f"offsets from {accounted[0][1]} on are neither archived nor recorded as lost"
    last = state.last_before(*key, accounted[0][1])
    if last is not None and last.next_offset > accounted[0][1]:
        return f"the segment {last.base_offset} extends past its archived end {accounted[0][1]}"
    return ""


class _Making:
    """Makes snapshots, and commits about once a second what is done; at the end the rest, also if an error ends it."""

    def __init__(self, writer: Writer, setting: CompactionSetting, reporter: Reporter, made: SnapshotsMade) -> None:
        self._writer = writer
        self._setting = setting
        self._reporter = reporter
        self._made = made
        self._spreading = Spreading()
        self._alone: set[int] = set()
        self._given_up: list[CompactionWork] = []
        self._waiting: list[SnapshotEntry] = []
        self._committed = time.monotonic()

    def perform(
        self, work: Sequence[CompactionWork], large: Sequence[WithRanges], runner_factory: Callable[[], TaskRunner]
    ) -> None:
        """Do the work: each partition in one task, and the large ones, with their ranges, in several."""
        spreading = self._spreading
        self._alone = {item.number for item in work}
        ranges: list[KeyRange] = []
        for item, its in large:
            ranges += spreading.add(item, its, len(work) + len(large) + len(ranges))
        planned = [ProgressRange(item.number, item.topic, item.partition, _start(item), item.end) for item in work]
        planned += map(_progress_of, ranges)
        self._reporter.planned(planned, topics=len({item.topic for item in planned}))
        self._reporter.phase("Snapshotting")
        runner = runner_factory()
        try:
            self._run(runner, [*ranges, *work])
            for item in self._given_up:
                parts = ranges_of(item, self._setting.max_bytes)
                self._run(runner, spreading.add(item, parts) if parts else [replace(item, may_give_up=False)])
            self._run(runner, spreading.shares())
            self._run(runner, spreading.copies())
        finally:
            self._commit()
            self._tidy()

    def _run(self, runner: TaskRunner, tasks: Sequence[Task]) -> None:
        def on_result(index: int, answer: Any) -> None:
            self._take(tasks[index], answer)

        if tasks:
            runner.run(tasks, partial(do_or_tell, self._setting), on_result, self._reporter.update, NO_LIMITS)

    def _take(self, task: Task, answer: Answer) -> None:
        if isinstance(answer, TooManyKeys):
            self._given_up.append(work_of(task))
            return
        if isinstance(answer, LogkeepError):
            log.warning("%s", answer)
            item = work_of(task)
            if isinstance(task, CompactionWork) or self._spreading.give_up(task):
                self._made.notes.append(
                    f"topic {item.topic} partition {item.partition} gets no snapshot: {answer.message}"
                )
            return
        done = answer if isinstance(answer, PartitionCompacted) else self._take_of_range(task, answer)
        if done is not None:
            self._waiting.append(done.snapshot)
            if done.number in self._alone:
                self._reporter.done(done.number, done.records, sum(part.bytes for part in done.snapshot.parts))
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self._commit()

    def _take_of_range(self, task: Task, answer: RangeAnswer) -> PartitionCompacted | None:
        assert not isinstance(task, CompactionWork)
        if isinstance(answer, RangeCopied) and isinstance(task, RangeCopy) and task.range.number != NO_PROGRESS:
            self._reporter.done(task.range.number, answer.records, answer.part.bytes)
        return self._spreading.take(task, answer)

    def _commit(self) -> None:
        if self._waiting:
            some, self._waiting = tuple(self._waiting), []
            self._writer.snapshot(some)
            self._made.count += len(some)
        self._committed = time.monotonic()

    def _tidy(self) -> None:
        """Delete what the tasks of large partitions have exchanged. What is left then does no harm."""
        if not self._spreading.objects:
            return
        try:
            self._setting.storage.delete(self._spreading.objects)
        except LogkeepError as error:
            log.warning("%d objects of hashes of keys are left: %s", len(self._spreading.objects), error)


def _start(work: CompactionWork) -> int:
    return min(work.dirty[0].base_offset, work.end - 1)


def _progress_of(item: KeyRange) -> ProgressRange:
    first, last = item.entries[0].base_offset, item.entries[-1].next_offset
    return ProgressRange(item.number, item.whole.topic, item.whole.partition, first, last)


def do_or_tell(setting: CompactionSetting, task: Task, context: TaskContext) -> Answer:
    """Do a task. An error that no other attempt can change is the answer, so that the other partitions get their
    snapshots."""
    try:
        match task:
            case KeyRange():
                return map_keys(setting, task, context)
            case KeyShare():
                return merge_keys(setting, task, context)
            case RangeCopy():
                return copy_range(setting, task, context)
            case _:
                return compact_partition(setting, task, context)
    except (AbortAhead, ArchiveDamaged, BatchTooLarge, ObjectCold, TooManyKeys) as error:
        return error.with_traceback(None)  # which would hold what the task has in memory

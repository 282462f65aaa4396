"""Makes snapshots of compacted partitions when a run has ended with success.

    writer.end(RunOutcome.SUCCEEDED, groups=groups)
    told = make_snapshots(writer, spec, reporter, runner_factory, expect)

The catalog says which partitions are due, before a byte is read: the dirty section has so many bytes, and they are so
large a share of what the snapshot would be made of (KIP-630's words). Each snapshot becomes visible with a commit
behind the end of the run, so a point of the archive lies at its end. Nothing depends on a snapshot: the log is whole
without, and so a failure is told and fails no run. The next run makes what this one has not.

A kill before a commit leaves objects under names that nobody else uses, and `verify` lists them as orphans. The next
start of the run, or the next run, makes the snapshot anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from logkeep_engine.archive.catalog.compacted import not_exact, snapshot_of
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import NOWHERE, generation_of
from logkeep_engine.archive.catalog.packed import ROW_BYTES, PackedSegments
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archiving import COMMIT_SECONDS
from logkeep_engine.compaction.partition import (
    CompactionSetting,
    CompactionWork,
    PartitionCompacted,
    compact_partition,
)
from logkeep_engine.contract.compacted import CompactedTopics, Snapshots
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, LogkeepError
from logkeep_engine.limits import NO_LIMITS
from logkeep_engine.report import ProgressRange, Reporter
from logkeep_engine.tasks import Demand, Expect, TaskContext, TaskRunner

log = logging.getLogger(__name__)

_DAY_MS = 86_400_000  # the brokers' default of `delete.retention.ms`


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
    reporter.planned(
        (ProgressRange(item.number, item.topic, item.partition, _start(item), item.end) for item in work),
        topics=len({item.topic for item in work}),
    )
    reporter.phase("Snapshotting")
    try:
        if expect is not None:
            expect(Demand(len(work), sum(entry.bytes for item in work for entry in item.dirty)))
        _run(writer, spec, reporter, runner_factory(), work, made)
    except LogkeepError as error:
        log.warning("%s", error)
        made.notes.append(f"snapshots could not be made, the next run makes them: {error.message}")
    reporter.phase("Finishing")
    log.info("made %d snapshots of %d that were due", made.count, len(work))
    return made


def due(state: ArchiveState, limits: Snapshots, notes: list[str]) -> Iterator[CompactionWork]:
    """The partitions that shall have a new snapshot now. `notes` gets those that cannot have one, and why."""
    gone = set(not_exact(state))
    number = 0
    for key in sorted(state.segments):
        topic = state.topics.get(key[0])
        if topic is None or not topic.is_compacted:
            continue
        last = snapshot_of(state, key)
        entries = state.segments[key]
        first = 0 if last is None else entries.position(last.end)
        dirty = PackedSegments(key, entries.packed[first * ROW_BYTES :])
        size = dirty.sums()[1]
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
            dirty=tuple(dirty),
            kept=tuple(state.kept(*key)),
            end=state.accounted_for(*key)[-1][1],
            delete_retention=delete_retention(topic),
        )
        number += 1


def _why_not(state: ArchiveState, key: Partition, gone: set[Partition]) -> str:
    """The reason why a partition that is due cannot have a snapshot, empty if it can."""
    accounted = state.accounted_for(*key)
    if generation_of(state, key).exact_from == NOWHERE:
        return "its log was cut off, and with it went records that had overwritten what the archive lacks"
    if key in gone:
        return "retention has removed a part of its log of which no snapshot holds the keys"
    if len(accounted) != 1:
        return f"offsets from {accounted[0][1]} on are neither archived nor recorded as lost"
    last = state.last_before(*key, accounted[0][1])
    if last is not None and last.next_offset > accounted[0][1]:
        return f"the segment {last.base_offset} reaches over its archived end {accounted[0][1]}"
    return ""


def delete_retention(topic: TopicEntry) -> int:
    """How long tombstones of a topic stay (ms), as far as the topic itself says so."""
    text = topic.configs.get("delete.retention.ms", "")
    return int(text) if text.isdecimal() else _DAY_MS


def _start(work: CompactionWork) -> int:
    return min(work.dirty[0].base_offset, work.end - 1)


def _run(
    writer: Writer,
    spec: KafkaBackupSpec,
    reporter: Reporter,
    runner: TaskRunner,
    work: Sequence[CompactionWork],
    made: SnapshotsMade,
) -> None:
    """Do the work, and commit about once a second what is done; at the end the rest, also if an error ends it."""
    setting = CompactionSetting(
        storage=writer.archive.storage,
        epoch=writer.epoch,
        now=writer.state.runs[writer.run_id].begin_time,  # so that all attempts make the same
        max_bytes=spec.segment.max_bytes_int,
        digest=spec.segment.digest,
    )
    waiting: list[SnapshotEntry] = []
    committed = time.monotonic()

    def commit() -> None:
        nonlocal committed
        if waiting:
            some = tuple(waiting)
            waiting.clear()
            writer.snapshot(some)
            made.count += len(some)
        committed = time.monotonic()

    def on_result(index: int, done: PartitionCompacted | LogkeepError) -> None:
        item = work[index]
        if isinstance(done, LogkeepError):
            log.warning("%s", done)
            made.notes.append(f"topic {item.topic} partition {item.partition} gets no snapshot: {done.message}")
            return
        waiting.append(done.snapshot)
        reporter.done(item.number, done.records, sum(part.bytes for part in done.snapshot.parts))
        if time.monotonic() - committed >= COMMIT_SECONDS:
            commit()

    try:
        runner.run(work, partial(compact_or_tell, setting), on_result, reporter.update, NO_LIMITS)
    finally:
        commit()


def compact_or_tell(
    setting: CompactionSetting, work: CompactionWork, context: TaskContext
) -> PartitionCompacted | LogkeepError:
    """Make the snapshot of a partition. An error that no other attempt can change is the answer, so that the other
    partitions get theirs."""
    try:
        return compact_partition(setting, work, context)
    except (ArchiveDamaged, BatchTooLarge) as error:
        return error

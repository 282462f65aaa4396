"""One task of a conversion: read the segments of some chunks, write them in the target's format, and report them in
receipts.

    read (read.py) -> records -> segments (write.py)        batches to batches: copied as they are

There is no receipt unless all segments of the task were whole. Small segments of format Kafka share objects. Memory:
some batches or records, a small segment, and the blocks of reader and writer, whatever the size of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from logkeep_engine.archive.catalog.entry import KafkaFiles, SegmentEntry, SnapshotFiles
from logkeep_engine.archive.catalog.facts import Coverage, Receipt
from logkeep_engine.archive.reading.partition import NeighbouringReads, open_partition
from logkeep_engine.archive.writing.log_writer import Packing
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.contract.archive_format import DEFAULT_PACK_BELOW, Compatibility, FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.values import parse_quantity
from logkeep_engine.convert.loss import LossCount
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.convert.read import count_batches, read_records
from logkeep_engine.convert.source import SourceSegment, is_kafka
from logkeep_engine.convert.write import TargetSetting, copy_segment, open_target
from logkeep_engine.formats.base import LogRecord, Loss, LossKind
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import REPORT_SECONDS, PartitionUpdate, TaskContext, TaskProgress, in_groups

TASK_BYTES = 32 << 20
TASK_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class ConvertSetting:
    """The settings that all tasks of a run share. It pickles without secrets."""

    source: Storage
    target: TargetSetting


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """A chunk and its segments. `aborted` are the aborted transactions that may reach into it."""

    chunk: ConvertChunk
    topic: str
    segments: tuple[SourceSegment, ...]
    aborted: tuple[AbortedTxn, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvertTask:
    """Some chunks. No two tasks of an attempt at a run that write have the same `number`: packs are named by it."""

    number: int
    chunks: tuple[ChunkWork, ...]


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """The answer of a task about one chunk. `receipt` is None if it only looked at the chunk."""

    number: int
    receipt: Receipt | None
    losses: tuple[Loss, ...]


def in_tasks(chunks: Iterable[ChunkWork], chunk_bytes: int) -> list[ConvertTask]:
    """Share chunks out to tasks, in their order: small ones together, so that their segments share objects and what is
    read of the source comes with its neighbours. Large ones are alone."""
    groups = in_groups(chunks, lambda work: work.chunk.bytes, min(TASK_BYTES, chunk_bytes), TASK_CHUNKS)
    return [ConvertTask(number, tuple(group)) for number, group in enumerate(groups)]


def convert_chunks(setting: ConvertSetting, task: ConvertTask, context: TaskContext) -> tuple[ChunkDone, ...]:
    """Write the segments of the chunks in the target's format. They are visible when this returns. Raises
    ArchiveDamaged if a segment of the source is damaged."""
    target = setting.target
    packs = TaskPacks(target.storage, target.epoch, task.number, context.attempt)
    packing = Packing(packs, parse_quantity(DEFAULT_PACK_BELOW)) if target.format is FormatName.KAFKA else None
    near, progress = _near(setting), TaskProgress(context, after=REPORT_SECONDS)
    try:
        done = tuple(_convert(near, work, context.attempt, packing, progress) for work in task.chunks)
        packs.commit()  # before the receipts leave the task: a commit names only what is there
        return done
    finally:
        packs.abort()


def examine_chunks(setting: ConvertSetting, task: ConvertTask, context: TaskContext) -> tuple[ChunkDone, ...]:
    """Write nothing; say what the target's format would lose of the chunks. Everything is read."""
    near, progress = _near(setting), TaskProgress(context, after=REPORT_SECONDS)
    return tuple(_examine(near, work, progress) for work in task.chunks)


def count_chunks(setting: ConvertSetting, task: ConvertTask, _: TaskContext) -> tuple[ChunkDone, ...]:
    """Count what a record-shaped format has lost of the batches of chunks that were converted before. Records stay
    packed."""
    near = _near(setting)
    return tuple(_count(near, work) for work in task.chunks)


def _near(setting: ConvertSetting) -> ConvertSetting:
    return replace(setting, source=NeighbouringReads(setting.source))


def _convert(
    setting: ConvertSetting, work: ChunkWork, attempt: int, packing: Packing | None, progress: TaskProgress
) -> ChunkDone:
    count = LossCount(work.topic, work.chunk.partition)
    reported = _ChunkProgress(work, progress)
    entries = [
        entry
        # Neighbours only: the offsets of a target must rise.
        for copied, segments in groupby(work.segments, partial(is_copied, setting.target.format))
        for entry in (
            _copy(setting, work, segments, attempt, packing, reported)
            if copied
            else _through_records(setting, work, segments, attempt, packing, count, reported)
        )
    ]
    chunk = work.chunk
    covered = Coverage(chunk.topic_id, chunk.partition, chunk.start, chunk.end)
    return ChunkDone(chunk.number, Receipt((covered,), tuple(entries)), count.losses())


def _examine(setting: ConvertSetting, work: ChunkWork, progress: TaskProgress) -> ChunkDone:
    count = LossCount(work.topic, work.chunk.partition)
    reported = _ChunkProgress(work, progress)
    look = _looker(setting.target, count)
    for segment in work.segments:
        if is_copied(setting.target.format, segment):
            continue
        for records in read_records(setting.source, work.topic, work.chunk.partition, segment, work.aborted, count):
            look(records)
            reported.note(records[-1].offset + 1, len(records), 0)
    return ChunkDone(work.chunk.number, None, count.losses())


def _count(setting: ConvertSetting, work: ChunkWork) -> ChunkDone:
    count = LossCount(work.topic, work.chunk.partition)
    for segment in work.segments:
        if is_kafka(segment):
            assert isinstance(segment, SegmentEntry)
            for run in open_partition(setting.source, work.topic, (segment,)).batches():
                count_batches(run, count)
    return ChunkDone(work.chunk.number, None, count.losses())


def loses_of_records(target: TargetSetting) -> bool:
    """Return whether the target's format can lose something that a record carries."""
    return target.format is FormatName.AVRO and target.options.compatibility is Compatibility.STRICT


def _copy(
    setting: ConvertSetting,
    work: ChunkWork,
    segments: Iterable[SourceSegment],
    attempt: int,
    packing: Packing | None,
    progress: _ChunkProgress,
) -> tuple[SegmentEntry, ...]:
    entries = []
    for segment in segments:
        assert isinstance(segment, SegmentEntry)
        entry = copy_segment(setting.target, setting.source, work.topic, segment, work.chunk, attempt, packing)
        if entry is None:
            continue
        entries.append(entry)
        progress.note(entry.next_offset, entry.records, sum(item.bytes for item in entries))
    return tuple(entries)


def _through_records(
    setting: ConvertSetting,
    work: ChunkWork,
    segments: Iterable[SourceSegment],
    attempt: int,
    packing: Packing | None,
    count: LossCount,
    progress: _ChunkProgress,
) -> tuple[SegmentEntry, ...]:
    target = open_target(setting.target, work.topic, work.chunk, attempt, packing)
    look = _looker(setting.target, count)
    try:
        for segment in segments:
            for records in read_records(setting.source, work.topic, work.chunk.partition, segment, work.aborted, count):
                look(records)
                target.append(records)
                progress.note(records[-1].offset + 1, len(records), target.size)
        return target.finish()
    finally:
        target.abort()


def _looker(target: TargetSetting, count: LossCount) -> Callable[[Sequence[LogRecord]], None]:
    """Return a function that counts what the target cannot hold of records."""
    if target.format is FormatName.KAFKA:
        return lambda records: _untyped(records, count)
    if not loses_of_records(target):
        return lambda records: None
    from logkeep_engine.formats.avro import losses

    def look(records: Sequence[LogRecord]) -> None:
        found: Mapping[LossKind, tuple[int, int]] = losses(records)
        for kind, (number, offset) in found.items():
            count.add(kind, number, offset)

    return look


def _untyped(records: Sequence[LogRecord], count: LossCount) -> None:
    """Count records without a type of timestamp. A batch cannot say that there is no type: create time without a
    timestamp stands for it, as it does where a broker brings old messages to a newer format."""
    untyped = [record.offset for record in records if record.timestamp_type is None]
    if untyped:
        count.add(LossKind.TIMESTAMP_TYPE, len(untyped), untyped[0])


def is_copied(target: FormatName, segment: SourceSegment) -> bool:
    """Tell whether the batches of a segment, or of a slice of one, go into the target as they are. Else a transaction
    would lose its marker, and seem to be open in what the target has of it already."""
    return (
        target is FormatName.KAFKA
        and isinstance(segment, SegmentEntry)
        and isinstance(segment.files, KafkaFiles | SnapshotFiles)
    )


class _ChunkProgress:
    """The progress of one chunk. Nothing is reported of a task that takes less than a second."""

    def __init__(self, work: ChunkWork, progress: TaskProgress) -> None:
        self._work = work
        self._progress = progress
        self._records = 0

    def note(self, at: int, records: int, size: int) -> None:
        """Note that offset `at` is reached with `records` more; `size` bytes are written so far."""
        self._records += records
        chunk = self._work.chunk
        self._progress.tell(PartitionUpdate(self._work.topic, chunk.partition, chunk.number, at, self._records, size))

"""One task of a conversion: read the segments of one chunk, write them in the target's format, and report it in a
receipt.

    read (read.py) -> records -> segments (write.py)        batches to batches: copied as they are

The receipt has nothing of a chunk unless all of its segments were whole. Memory: some batches or records, and the
blocks of reader and writer, whatever the size of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Receipt
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.contract.spec import Compatibility, FormatName
from logkeep_engine.convert.loss import LossCount
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.convert.read import count_batches, read_records
from logkeep_engine.convert.source import SourceSegment, is_kafka
from logkeep_engine.convert.write import TargetSetting, copy_segment, open_target
from logkeep_engine.formats.base import LogRecord, Loss, LossKind
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import REPORT_SECONDS, PartitionUpdate, TaskContext, TaskProgress


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
class ChunkDone:
    """The answer of a task. `receipt` is None if the task only looked at the chunk."""

    number: int
    receipt: Receipt | None
    losses: tuple[Loss, ...]


def convert_chunk(setting: ConvertSetting, work: ChunkWork, context: TaskContext) -> ChunkDone:
    """Write the segments of a chunk in the target's format. Raises ArchiveDamaged if a segment of the source is
    damaged."""
    count = LossCount(work.topic, work.chunk.partition)
    progress = _ChunkProgress(work, context)
    entries = [
        entry
        for copied, segments in groupby(work.segments, partial(is_copied, setting.target.format))
        for entry in (
            _copy(setting, work, segments, context, progress)
            if copied
            else _through_records(setting, work, segments, context, count, progress)
        )
    ]
    chunk = work.chunk
    covered = Coverage(chunk.topic_id, chunk.partition, chunk.start, chunk.end)
    return ChunkDone(chunk.number, Receipt((covered,), tuple(entries)), count.losses())


def examine_chunk(setting: ConvertSetting, work: ChunkWork, context: TaskContext) -> ChunkDone:
    """Write nothing; say what the target's format would lose of a chunk. Everything is read."""
    count = LossCount(work.topic, work.chunk.partition)
    progress = _ChunkProgress(work, context)
    look = _looker(setting.target, count)
    for segment in work.segments:
        if is_copied(setting.target.format, segment):
            continue
        for records in read_records(setting.source, work.topic, work.chunk.partition, segment, work.aborted, count):
            look(records)
            progress.note(records[-1].offset + 1, len(records), 0)
    return ChunkDone(work.chunk.number, None, count.losses())


def count_chunk(setting: ConvertSetting, work: ChunkWork, context: TaskContext) -> ChunkDone:
    """Count what a record-shaped format has lost of the batches of a chunk that was converted before. Records stay
    packed."""
    count = LossCount(work.topic, work.chunk.partition)
    for segment in work.segments:
        if is_kafka(segment):
            assert isinstance(segment, SegmentEntry)
            for run in open_partition(setting.source, work.topic, (segment,)).batches():
                count_batches(run, count)
    return ChunkDone(work.chunk.number, None, count.losses())


def loses_of_records(target: TargetSetting) -> bool:
    """Whether the target's format can lose something that a record carries."""
    return target.format is FormatName.AVRO and target.options.compatibility is Compatibility.STRICT


def _copy(
    setting: ConvertSetting,
    work: ChunkWork,
    segments: Iterable[SourceSegment],
    context: TaskContext,
    progress: _ChunkProgress,
) -> tuple[SegmentEntry, ...]:
    entries = []
    for segment in segments:
        assert isinstance(segment, SegmentEntry)
        entry = copy_segment(setting.target, setting.source, work.topic, segment, work.chunk, context.attempt)
        entries.append(entry)
        progress.note(entry.next_offset, entry.records, sum(item.bytes for item in entries))
    return tuple(entries)


def _through_records(
    setting: ConvertSetting,
    work: ChunkWork,
    segments: Iterable[SourceSegment],
    context: TaskContext,
    count: LossCount,
    progress: _ChunkProgress,
) -> tuple[SegmentEntry, ...]:
    target = open_target(setting.target, work.topic, work.chunk, context.attempt)
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
    """A function that counts what the target cannot hold of records."""
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
    """Whether the batches of a segment go into the target as they are. Those of a snapshot do not: a transaction has no
    marker there, and would seem to continue in the log after it. Nor does a slice of a log with transactions, whose
    markers may lie outside of it."""
    if target is not FormatName.KAFKA or not isinstance(segment, SegmentEntry) or segment.layout is not Layout.KAFKA:
        return False
    return segment.uncut is segment or not segment.transactional


class _ChunkProgress:
    """The progress of one chunk. Nothing is told of a chunk that takes less than a second."""

    def __init__(self, work: ChunkWork, context: TaskContext) -> None:
        self._work = work
        self._progress = TaskProgress(context, after=REPORT_SECONDS)
        self._records = 0

    def note(self, at: int, records: int, size: int) -> None:
        """Note that offset `at` is reached with `records` more; `size` bytes are written so far."""
        self._records += records
        chunk = self._work.chunk
        self._progress.tell(PartitionUpdate(self._work.topic, chunk.partition, chunk.number, at, self._records, size))

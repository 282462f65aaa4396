"""One task of a restore: one archived partition into one target partition, in order, every committed record once.

The way of a batch: storage → CRC checked → `filter` (left out, addressed anew, or built anew) → produce requests, five
under way. The task always looks first at what its producer id has in the target already and goes on from there, so it
does not matter whether this is the first attempt, a retry, or the first task of a driver that was started again; and
while another attempt still writes, the broker compares sequences, so that no batch gets in twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.model import SegmentEntry
from logkeep_engine.archive.segments import read_segment, read_transactions
from logkeep_engine.errors import (
    ArchiveDamaged,
    CorruptBatch,
    ProduceRefused,
    TargetChanged,
    TopicExists,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.log.batch import BatchHeader, Buffer, walk
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.filter import (
    SEQUENCE_SPACE,
    AbortedRanges,
    Action,
    Landed,
    LandedReader,
    Outgoing,
    decide,
    outgoing,
)
from logkeep_engine.restore.offset_map import OffsetMapBuilder, PartitionSummary
from logkeep_engine.restore.salvage import Survey, Whole, salvage
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import PartitionUpdate, TaskContext

_AHEAD_BYTES = 2 << 20  # batches made ready in one go, in a thread, while the ones before are being sent
_AHEAD_COUNT = 512
_REPORT_SECONDS = 1.0
# A task finds its place anew when another attempt writes too, or the log was cut off. Each time it must have moved.
_RESUMES = 20


@dataclass(frozen=True, slots=True)
class RestoreTask:
    """One work item; pickles without secrets. `number` is the part's number for the reporter.

    `start` is the target's end offset before the run; `fresh`: this driver made the plan, so nothing can be there
    before attempt 0.
    """

    number: int
    storage: Storage
    connection: Connection
    source: str
    topic_id: str
    partition: int
    target: str
    created: bool
    fresh: bool
    max_batch_bytes: int
    producer_id: int
    start: int
    segments: tuple[SegmentEntry, ...]
    survey: Survey | None
    map_path: str

    @property
    def where(self) -> str:
        return f"topic {self.target!r} partition {self.partition}"


def restore_partition(task: RestoreTask, context: TaskContext) -> PartitionSummary:
    """Restore one partition and write its offset map. Safe to repeat, and to run twice at once.

    Raises ArchiveDamaged if an object is not what the catalog (or the survey) says, TargetChanged or TopicExists if
    somebody else writes to a created topic, and what the clients raise.
    """
    return asyncio.run(_restore(task, context))


async def _restore(task: RestoreTask, context: TaskContext) -> PartitionSummary:
    progress = _Progress(task, context)
    async with RawClient(task.connection) as client:
        landed = await _landed(client, task, task.fresh and context.attempt == 0)
        for _ in range(_RESUMES):
            attempt = _Attempt(task, landed, progress)
            try:
                return await attempt.run(client)
            except (ProduceRefused, _PositionUnknown) as error:
                # Another attempt of this very task has written more than this one knows of: go on behind it.
                seen = await _landed(client, task, fresh=False)
                if isinstance(error, ProduceRefused) and seen.records <= attempt.acknowledged:
                    raise
                landed = seen
            finally:
                attempt.close()
    raise TargetChanged(
        f"{task.where}: the restore had to find its place {_RESUMES} times.",
        hint="Another process writes with the same producer id: is the same run going on elsewhere?",
    )


class _PositionUnknown(Exception):
    """The broker has a batch already and does not say where."""


class _Progress:
    """Tells the driver how far the task is, at most once a second."""

    def __init__(self, task: RestoreTask, context: TaskContext) -> None:
        self._task = task
        self._context = context
        self._due = 0.0

    def tell(self, at: int, records: int, size: int) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _REPORT_SECONDS
        task = self._task
        self._context.report([PartitionUpdate(task.target, task.partition, task.number, at, records, size)])


class _Attempt:
    """One pass over the archived partition, from its first byte: what is in the target already is only counted."""

    def __init__(self, task: RestoreTask, landed: Landed, progress: _Progress) -> None:
        self._task = task
        self._landed = landed
        self._progress = progress
        self._map = OffsetMapBuilder()
        self._pending: deque[Outgoing] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="logkeep-restore")
        self._made = 0  # records of the stream that have been made ready or skipped
        self._append_time = 0
        self._bytes = 0
        self._end = task.start
        self.acknowledged = landed.records

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._map.close()

    async def run(self, client: RawClient) -> PartitionSummary:
        task = self._task
        self._take_over()
        offsets = client.produce_many(task.target, task.partition, self._to_send())
        async for offset in offsets:
            self._acknowledge(self._pending.popleft(), offset)
        if self._made < self._landed.records:
            raise TargetChanged(
                f"{task.where}: {self._landed.records} records of this run are there, the archive gives {self._made}.",
                hint="The archive or the plan was changed while the restore went on: begin a new restore.",
            )
        summary = PartitionSummary(
            source_topic=task.source,
            source_topic_id=task.topic_id,
            source_partition=task.partition,
            target_topic=task.target,
            target_partition=task.partition,
            records=self._made,
            bytes=self._bytes,
            target_start=task.start,
            target_end=self._end,
            append_time_records=self._append_time,
        )
        with task.storage.writer(task.map_path) as writer:
            for block in self._map.blocks(summary):
                writer.write(block)
        return summary

    def _take_over(self) -> None:
        """Note where the records that are there already lie."""
        at = 0
        for index, target, count in self._landed.runs:
            if index > at:
                self._map.gone(index - at)
            self._map.target(target, count)
            at = index + count
            self._end = max(self._end, target + count)

    async def _to_send(self) -> AsyncIterator[Buffer]:
        loop = asyncio.get_running_loop()
        stream = stream_of(self._task, self._landed.records)

        def take() -> list[Outgoing]:
            taken: list[Outgoing] = []
            size = 0
            for item in stream:
                taken.append(item)
                size += item.size if item.data is not None else 0
                if size >= _AHEAD_BYTES or len(taken) >= _AHEAD_COUNT:
                    break
            return taken

        ahead = loop.run_in_executor(self._pool, take)
        while items := await ahead:
            ahead = loop.run_in_executor(self._pool, take)
            for item in items:
                self._note(item)
                if item.data is not None:
                    self._pending.append(item)
                    yield item.data

    def _note(self, item: Outgoing) -> None:
        if item.index < self._landed.records < item.index + item.count:
            raise TargetChanged(
                f"{self._task.where}: {self._landed.records} records of this run are there, which is inside a batch "
                "of this plan "
                f"({item.index} to {item.index + item.count - 1}).",
                hint="The archive or the plan was changed while the restore went on: begin a new restore.",
            )
        for offset, count in item.source:
            self._map.source(offset, count)
        self._made = item.index + item.count
        self._bytes += item.size
        self._append_time += item.count if item.append_time else 0
        if item.data is None:
            self._progress.tell(item.source_end, self._made, self._bytes)

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        task = self._task
        if task.created:
            expected = task.start + item.index
            if offset not in (expected, -1):
                raise TargetChanged(
                    f"{task.where}: a batch landed at offset {offset} instead of {expected}: somebody else writes "
                    "to the topic.",
                    hint="Stop the other producers, delete the topic and restore again.",
                )
            offset = expected
        elif offset < 0:
            raise _PositionUnknown
        self._map.target(offset, item.count)
        self._end = max(self._end, offset + item.count)
        self.acknowledged = item.index + item.count
        self._progress.tell(item.source_end, self.acknowledged, self._bytes)


# ---- the stream of batches: a function of the archive and the plan


def stream_of(task: RestoreTask, done: int) -> Iterator[Outgoing]:
    """What is sent for the partition, in order; of the first `done` records only source offsets and sizes."""
    aborted = AbortedRanges(_aborted(task))
    index = 0
    for segment in task.segments:
        for batch, header in _batches(task, segment):
            action = decide(header, aborted)
            if action not in (Action.RAW, Action.REBUILD):
                continue
            try:
                for item in outgoing(
                    batch,
                    header,
                    action,
                    index=index,
                    producer_id=task.producer_id,
                    max_bytes=task.max_batch_bytes,
                    done=done,
                ):
                    index = item.index + item.count
                    yield item
            except CorruptBatch as error:
                raise ArchiveDamaged(
                    f"{_log_path(task, segment)}: {error.message}",
                    hint="The batch's CRC holds, so it was archived like this: please report it.",
                ) from error


def _aborted(task: RestoreTask) -> Sequence[AbortedTxn]:
    if task.survey is not None and task.survey.aborted is not None:
        return task.survey.aborted
    return [txn for segment in task.segments for txn in read_transactions(task.storage, task.source, segment)]


def _batches(task: RestoreTask, segment: SegmentEntry) -> Iterator[tuple[memoryview, BatchHeader]]:
    if task.survey is not None and segment.base_offset in task.survey.damaged:
        yield from _salvaged(task, segment, task.survey)
        return
    for run, headers in read_segment(task.storage, task.source, segment):
        for at, header in headers:
            yield run[at : at + header.size], header


def _salvaged(task: RestoreTask, segment: SegmentEntry, survey: Survey) -> Iterator[tuple[memoryview, BatchHeader]]:
    known = {(item.start, item.end) for item in survey.lost}
    for item in salvage(task.storage, task.source, segment):
        if isinstance(item, Whole):
            yield item.batch, item.header
        elif (item.start, item.end) not in known:
            raise ArchiveDamaged(
                f"{_log_path(task, segment)}: offsets {item.start} to {item.end - 1} could be read when the restore "
                "was planned: "
                f"{item.reason}",
                hint="The archive was damaged further meanwhile: begin a new restore.",
            )


def _log_path(task: RestoreTask, segment: SegmentEntry) -> str:
    return f"{task.storage.uri}/{segment.stem(task.source)}{names.LOG}"


# ---- what is there already


async def _landed(client: RawClient, task: RestoreTask, fresh: bool) -> Landed:
    """What the task's producer id has in the target partition."""
    end = await client.end_offset(task.target, task.partition)
    if end <= task.start:
        return Landed(0, ())
    if task.created:
        return await _landed_dense(client, task, end)
    return await _landed_among_others(client, task, end, fresh)


async def _landed_dense(client: RawClient, task: RestoreTask, end: int) -> Landed:
    """A topic that this run created holds our batches and nothing else: the last one tells, and must fit."""
    fetched = await client.fetch(task.target, task.partition, end - 1, max_bytes=1, max_wait_ms=0, committed=False)
    last = [header for _, header in walk(fetched.data) if header.base_offset < end]
    if not last or last[0].magic < 2 or last[0].producer_id != task.producer_id:
        raise TopicExists(
            f"{task.where} holds records that this restore has not written.",
            hint="The topic was created, or written to, by somebody else meanwhile. Delete it and restore again "
            "under another run id.",
        )
    records = end - task.start
    after = (last[0].base_sequence + last[0].last_offset_delta + 1) % SEQUENCE_SPACE
    if after != records % SEQUENCE_SPACE:
        raise TargetChanged(
            f"{task.where} has {records} records, but the last one was sent as number {after}: somebody else wrote "
            "to the topic.",
            hint="Stop the other producers, delete the topic and restore again.",
        )
    return Landed(records, ((0, task.start, records),))


async def _landed_among_others(client: RawClient, task: RestoreTask, end: int, fresh: bool) -> Landed:
    """Walk the target from where it ended before the run, batch by batch."""
    position = max(task.start, await client.start_offset(task.target, task.partition))
    beginning_is_gone = position > task.start and not fresh
    reader = LandedReader(task.producer_id)
    empty = 0
    while position < end and empty < 3:
        fetched = await client.fetch(task.target, task.partition, position, committed=False, max_wait_ms=100)
        empty = 0 if fetched.next_offset > position else empty + 1
        for _, header in walk(fetched.data):
            if position <= header.base_offset < end:
                reader.add(header)
        position = fetched.next_offset
    landed = reader.landed()
    if beginning_is_gone and not landed.records:
        raise TargetChanged(
            f"{task.where}: retention has removed everything up to offset {position}; it cannot be seen what this "
            "run has written before.",
            hint="Set retention.ms=-1 on the topic while restoring into it, and begin a new restore under another "
            "run id.",
        )
    return landed

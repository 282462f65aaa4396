"""One task of a restore: archived partitions into target partitions, each in order, every committed record once.

The way of a batch: storage → CRC checked → `filter` and `merge` (left out, addressed anew, or built anew) → produce
requests, five under way a partition. Archived records become batches first (`records`). For every partition the task
looks first at what its producer id has in the target already and goes on from there, so it does not matter whether this
is the first attempt, a retry, or the first task of a driver that was started again; and while another attempt still
writes, the broker compares sequences, so that no batch gets in twice.

Several partitions are on their way at once, over the same few connections, one event loop and one pool of threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from logkeep_engine.archive.model import SegmentEntry
from logkeep_engine.archive.record_segments import read_records
from logkeep_engine.archive.segments import read_segment, read_transactions
from logkeep_engine.errors import (
    ArchiveDamaged,
    CorruptBatch,
    ObjectMissing,
    ProduceRefused,
    TargetChanged,
    TopicExists,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.kafka.produce import Batch
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader, walk
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.filter import SEQUENCE_SPACE, AbortedRanges, Action, Landed, LandedReader, Outgoing, decide
from logkeep_engine.restore.merge import BatchStream
from logkeep_engine.restore.offset_map import HEADER_MAX_BYTES, OffsetMapBuilder, PartitionSummary, read_summary
from logkeep_engine.restore.records import Batching, RecordStream
from logkeep_engine.restore.salvage import Lost, Survey, Whole, salvage
from logkeep_engine.storage import DEFAULT_BLOCK, Storage
from logkeep_engine.tasks import PartitionUpdate, TaskContext

_AHEAD_BYTES = 2 << 20  # batches made ready in one go, in a thread, while the ones before are being sent
_AHEAD_COUNT = 512
_REPORT_SECONDS = 1.0
# A task finds its place anew when another attempt writes too, or the log was cut off. Each time it must have moved.
_RESUMES = 20
_THREADS = 8
# What the partitions that are on their way at once may take together: the blocks read of each, and what is made ready.
_MEMORY = 128 << 20
_MEMORY_EACH = 3 * DEFAULT_BLOCK + 4 * _AHEAD_BYTES
_MEMORY_LEAST = 1 << 20
# Records as objects: small ones take several times their bytes.
_COPIES_OF_RECORDS = 8
_MEMORY_OF_RECORDS = 2 * _MEMORY_EACH


@dataclass(frozen=True, slots=True)
class RestoreTask:
    """What is to be done for one partition; pickles without secrets. `number` is the part's number for the reporter.

    `start` is the target's end offset before the run; `fresh`: this driver made the plan, so nothing can be there
    before attempt 0. `merge`: small batches go together, see `BatchStream`. `batching`: the archive holds records,
    which become batches like this.
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
    merge: bool
    producer_id: int
    start: int
    segments: tuple[SegmentEntry, ...]
    survey: Survey | None
    map_path: str
    batching: Batching | None = None

    @property
    def where(self) -> str:
        return f"topic {self.target!r} partition {self.partition}"

    @property
    def bytes(self) -> int:
        """Archived."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def memory(self) -> int:
        if self.batching is not None:
            return max(_MEMORY_LEAST, min(_COPIES_OF_RECORDS * self.bytes, _MEMORY_OF_RECORDS))
        return max(_MEMORY_LEAST, min(2 * self.bytes, _MEMORY_EACH))


def restore_partitions(tasks: tuple[RestoreTask, ...], context: TaskContext) -> tuple[PartitionSummary, ...]:
    """Restore some partitions of one cluster and write their offset maps. Safe to repeat, and to run twice at once.

    What an earlier attempt has finished is not looked at again. Raises ArchiveDamaged if an object is not what the
    catalog (or the survey) says, TargetChanged or TopicExists if somebody else writes to a created topic, and what the
    clients raise: the first error of any partition.
    """
    with ThreadPoolExecutor(min(_THREADS, 2 * len(tasks)), thread_name_prefix="logkeep-restore") as pool:
        return asyncio.run(_restore_all(tasks, context, pool))


async def _restore_all(
    tasks: Sequence[RestoreTask], context: TaskContext, pool: ThreadPoolExecutor
) -> tuple[PartitionSummary, ...]:
    progress = _Progress(context)
    room = _Room(_MEMORY)
    async with RawClient(tasks[0].connection) as client:

        async def one(task: RestoreTask) -> PartitionSummary:
            async with room.taken(task.memory):
                known = (
                    await asyncio.get_running_loop().run_in_executor(pool, _finished, task) if context.attempt else None
                )
                return known or await _restore(task, client, pool, progress, context)

        running = [asyncio.ensure_future(one(task)) for task in tasks]
        try:
            return tuple(await asyncio.gather(*running))
        finally:
            for partition in running:
                partition.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _finished(task: RestoreTask) -> PartitionSummary | None:
    """What an earlier attempt has done with the partition, if it has brought it to its end."""
    try:
        head = task.storage.read_range(task.map_path, 0, HEADER_MAX_BYTES)
    except ObjectMissing:
        return None
    return read_summary(head, f"{task.storage.uri}/{task.map_path}")


async def _restore(
    task: RestoreTask, client: RawClient, pool: ThreadPoolExecutor, progress: _Progress, context: TaskContext
) -> PartitionSummary:
    throttle = context.throttle
    landed = await _landed(client, task, throttle, fresh=task.fresh and context.attempt == 0)
    for _ in range(_RESUMES):
        attempt = _Attempt(task, landed, progress, pool, throttle)
        try:
            return await attempt.run(client)
        except (ProduceRefused, _PositionUnknown) as error:
            # Another attempt of this very task has written more than this one knows of: go on behind it.
            seen = await _landed(client, task, throttle, fresh=False)
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


class _Room:
    """So many bytes, shared by those who come in turn."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._given_back = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room, and take it; whoever wants more than all has it alone."""
        size = min(size, self._size)
        async with self._given_back:
            await self._given_back.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            async with self._given_back:
                self._given_back.notify_all()


class _Progress:
    """Tells the driver how far the partitions are, at most once a second."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._due = 0.0
        self._updates: dict[int, PartitionUpdate] = {}

    def tell(self, task: RestoreTask, at: int, records: int, size: int) -> None:
        now = time.monotonic()
        self._updates[task.number] = PartitionUpdate(task.target, task.partition, task.number, at, records, size)
        if now < self._due:
            return
        self._due = now + _REPORT_SECONDS
        self._context.report(list(self._updates.values()))
        self._updates.clear()


class _Attempt:
    """One pass over the archived partition, from its first byte: what is in the target already is only counted."""

    def __init__(
        self, task: RestoreTask, landed: Landed, progress: _Progress, pool: ThreadPoolExecutor, throttle: Throttle
    ) -> None:
        self._task = task
        self._landed = landed
        self._progress = progress
        self._map = OffsetMapBuilder()
        self._pending: deque[Outgoing] = deque()
        self._pool = pool
        self._throttle = throttle
        self._made = 0  # records of the stream that have been made ready or skipped
        self._append_times = 0
        self._bytes = 0
        self._end = task.start
        self.acknowledged = landed.records

    def close(self) -> None:
        self._map.close()

    async def run(self, client: RawClient) -> PartitionSummary:
        task = self._task
        self._take_over()
        async with (
            aclosing(self._to_send()) as batches,
            aclosing(client.produce_many(task.target, task.partition, batches, floor=self._end)) as offsets,
        ):
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
            append_time_records=self._append_times,
        )
        await asyncio.get_running_loop().run_in_executor(self._pool, self._write_map, summary)
        return summary

    def _write_map(self, summary: PartitionSummary) -> None:
        with self._task.storage.writer(self._task.map_path) as writer:
            for block in self._map.blocks(summary):
                writer.write(block)

    def _take_over(self) -> None:
        """Note where the records that are there already lie."""
        at = 0
        for index, target, count in self._landed.runs:
            if index > at:
                self._map.gone(index - at)
            self._map.target(target, count)
            at = index + count
            self._end = max(self._end, target + count)

    async def _to_send(self) -> AsyncGenerator[Batch, None]:
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

        ahead = self._pool.submit(take)
        try:
            while items := await asyncio.wrap_future(ahead):
                ahead = self._pool.submit(take)
                for item in items:
                    self._note(item)
                    if item.data is not None:
                        await self._throttle.pace(item.size)
                        self._pending.append(item)
                        yield item.data
        finally:
            if not ahead.cancel():
                await asyncio.gather(asyncio.wrap_future(ahead), return_exceptions=True)
            stream.close()

    def _note(self, item: Outgoing) -> None:
        if item.index < self._landed.records < item.index + item.count:
            raise TargetChanged(
                f"{self._task.where}: {self._landed.records} records of this run are there, which is inside a batch "
                f"of this plan ({item.index} to {item.index + item.count - 1}).",
                hint="The archive or the plan was changed while the restore went on: begin a new restore.",
            )
        for offset, count in item.source:
            self._map.source(offset, count)
        self._made = item.index + item.count
        self._bytes += item.size
        self._append_times += item.append_times
        if item.data is None:
            self._progress.tell(self._task, item.source_end, self._made, self._bytes)

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
        self._progress.tell(task, item.source_end, self.acknowledged, self._bytes)


# ---- the stream of batches: a function of the archive and the plan


def stream_of(task: RestoreTask, done: int) -> Generator[Outgoing, None, None]:
    """What is sent for the partition, in order; of the first `done` records only source offsets and sizes."""
    if task.batching is not None:
        yield from _stream_of_records(task, task.batching, done)
        return
    aborted = AbortedRanges(_aborted(task))
    stream = BatchStream(producer_id=task.producer_id, max_bytes=task.max_batch_bytes, done=done, merge=task.merge)
    for segment in task.segments:
        try:
            for batch, header in _batches(task, segment):
                action = decide(header, aborted)
                if action is Action.RAW or action is Action.REBUILD:
                    yield from stream.add(batch, header, action)
        except CorruptBatch as error:
            raise ArchiveDamaged(
                f"{_log_path(task, segment)}: {error.message}",
                hint="The batch's CRC holds, so it was archived like this: please report it.",
            ) from error
    try:
        yield from stream.finish()
    except CorruptBatch as error:
        raise ArchiveDamaged(
            f"{_log_path(task, task.segments[-1])}: {error.message}",
            hint="The batch's CRC holds, so it was archived like this: please report it.",
        ) from error


def _stream_of_records(task: RestoreTask, batching: Batching, done: int) -> Generator[Outgoing, None, None]:
    stream = RecordStream(
        batching,
        source=f"the archived topic {task.source!r} partition {task.partition}",
        target=task.where,
        producer_id=task.producer_id,
        limit=task.max_batch_bytes,
        done=done,
    )
    damaged = frozenset(task.survey.damaged if task.survey is not None else ())
    for segment in task.segments:
        if segment.base_offset in damaged:
            continue
        for records in read_records(task.storage, task.source, segment):
            yield from stream.add(records)
    yield from stream.finish()


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
    known = _known(survey)
    for item in salvage(task.storage, task.source, segment):
        if isinstance(item, Whole):
            yield memoryview(bytes(item.batch)), item.header
        elif (item.start, item.end) not in known:
            raise _damaged_further(task, segment, item)


def _known(survey: Survey) -> set[tuple[int, int]]:
    return {(item.start, item.end) for item in survey.lost}


def _damaged_further(task: RestoreTask, segment: SegmentEntry, item: Lost) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"{_log_path(task, segment)}: offsets {item.start} to {item.end - 1} could be read when the restore "
        "was planned: "
        f"{item.reason}",
        hint="The archive was damaged further meanwhile: begin a new restore.",
    )


def _log_path(task: RestoreTask, segment: SegmentEntry) -> str:
    return f"{task.storage.uri}/{segment.stem(task.source)}{segment.log_suffix}"


# ---- what is there already


async def _landed(client: RawClient, task: RestoreTask, throttle: Throttle, *, fresh: bool) -> Landed:
    """What the task's producer id has in the target partition."""
    end = await client.end_offset(task.target, task.partition)
    if end <= task.start:
        return Landed(0, ())
    if task.created:
        return await _landed_dense(client, task, end)
    return await _landed_among_others(client, task, end, throttle, fresh=fresh)


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


async def _landed_among_others(
    client: RawClient, task: RestoreTask, end: int, throttle: Throttle, *, fresh: bool
) -> Landed:
    """Walk the target from where it ended before the run, batch by batch."""
    position = max(task.start, await client.start_offset(task.target, task.partition))
    beginning_is_gone = position > task.start and not fresh
    reader = LandedReader(task.producer_id)
    async with aclosing(client.stream(task.target, task.partition, position, end, committed=False)) as stream:
        async for fetched in stream:
            await throttle.pace(len(fetched.data))
            for _, header in walk(fetched.data):
                if position <= header.base_offset < end:
                    reader.add(header)
            fetched.release()
    landed = reader.landed()
    if beginning_is_gone and not landed.records:
        raise TargetChanged(
            f"{task.where}: retention has removed everything up to offset {position}; it cannot be seen what this "
            "run has written before.",
            hint="Set retention.ms=-1 on the topic while restoring into it, and begin a new restore under another "
            "run id.",
        )
    return landed

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
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged, open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptBatch,
    ObjectMissing,
    ProduceRefused,
    TargetChanged,
)
from logkeep_engine.kafka.brokers import Leader
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.produce import Batch
from logkeep_engine.limits import Throttle
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.filter import Outgoing
from logkeep_engine.restore.landed import Landed, Mark, TargetPartition, is_there, look
from logkeep_engine.restore.merge import BatchStream, Rule
from logkeep_engine.restore.offset_map import HEADER_MAX_BYTES, OffsetMapBuilder, PartitionSummary, read_summary
from logkeep_engine.restore.older import OlderStream
from logkeep_engine.restore.outgoing_ahead import AHEAD_BYTES, OutgoingAhead
from logkeep_engine.restore.records import Batching, RecordStream
from logkeep_engine.storage import DEFAULT_BLOCK, Storage
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress

# A task finds its place anew when another attempt writes too, or the log was cut off. Each time it must have moved.
_RESUMES = 20
_THREADS = 8
# The bytes that the partitions on their way at once may take together: blocks that were read, and batches made ready.
_MEMORY = 128 << 20
_MEMORY_EACH = 3 * DEFAULT_BLOCK + 4 * AHEAD_BYTES
_MEMORY_LEAST = 1 << 20
# Small records take several times their bytes as objects.
_COPIES_OF_RECORDS = 8
# A large record lies in the block that was read, as an object, in a batch, and compressed.
_COPIES_OF_THE_LARGEST = 5
_MEMORY_OF_RECORDS = 2 * _MEMORY_EACH
# Batches up to this size, on average, go together with those of other partitions. Larger ones gain nothing by it, and
# the broker writes those of several connections side by side.
_SMALL_BATCH = 64 << 10


@dataclass(frozen=True, slots=True)
class RestoreTask:
    """The work for one partition; pickles without secrets. `number` stands for the partition in progress reports.
    `storage` holds the archive, `state` the state of the run.

    `start` is the target's end offset before the run. `fresh`: this driver made the plan, so the run has written
    nothing before task attempt 0. `rule` finds the bounds of batches. With `batching` the archive holds records, which
    become batches of that size. `compacts`: the target may remove records while the run goes on.
    """

    number: int
    storage: Storage
    state: Storage
    connection: KafkaConnection
    source: str
    topic_id: str
    partition: int
    target: str
    created: bool
    fresh: bool
    max_batch_bytes: int
    rule: Rule
    producer_id: int
    start: int
    segments: tuple[SegmentEntry, ...]
    survey: DamageSurvey | None
    map_path: str
    batching: Batching | None = None
    compacts: bool = False

    @property
    def place(self) -> TargetPartition:
        return TargetPartition(self.target, self.partition, self.producer_id, self.start, self.created, self.compacts)

    @property
    def where(self) -> str:
        return f"topic {self.target!r} partition {self.partition}"

    @property
    def bytes(self) -> int:
        """The bytes of the archived segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def small(self) -> bool:
        """Whether the archived batches are small on average. It follows from the plan, as `produce_many` wants it."""
        return self.batching is None and self.bytes <= _SMALL_BATCH * sum(segment.batches for segment in self.segments)

    @property
    def memory(self) -> int:
        if self.batching is not None:
            largest = max((segment.max_batch_bytes for segment in self.segments), default=0)
            some = min(_COPIES_OF_RECORDS * self.bytes, _MEMORY_OF_RECORDS)
            return max(_MEMORY_LEAST, some, _COPIES_OF_THE_LARGEST * largest)
        return max(_MEMORY_LEAST, min(2 * self.bytes, _MEMORY_EACH))


def restore_partitions(tasks: tuple[RestoreTask, ...], context: TaskContext) -> tuple[PartitionSummary, ...]:
    """Restore some partitions of one cluster and write their offset maps. Safe to repeat, and to run twice at once.

    Partitions that an earlier attempt has finished are not looked at again. Raises ArchiveDamaged if an object is not
    what the catalog (or the survey) says, TargetChanged or TopicExists if somebody else writes to a created topic, and
    what the clients raise: the first error of any partition.
    """
    with ThreadPoolExecutor(min(_THREADS, 2 * len(tasks)), thread_name_prefix="logkeep-restore") as pool:
        return asyncio.run(_restore_all(tasks, context, pool))


async def _restore_all(
    tasks: Sequence[RestoreTask], context: TaskContext, pool: ThreadPoolExecutor
) -> tuple[PartitionSummary, ...]:
    progress = TaskProgress(context)
    budget = _MemoryBudget(_MEMORY)
    async with RawClient(tasks[0].connection) as client:

        async def one(task: RestoreTask) -> PartitionSummary:
            async with budget.taken(task.memory):
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
    """The summary of the partition, if an earlier attempt has finished it."""
    try:
        head = task.state.read_range(task.map_path, 0, HEADER_MAX_BYTES)
    except ObjectMissing:
        return None
    return read_summary(head, f"{task.state.uri}/{task.map_path}")


async def _restore(
    task: RestoreTask, client: RawClient, pool: ThreadPoolExecutor, progress: TaskProgress, context: TaskContext
) -> PartitionSummary:
    throttle = context.throttle
    landed, ahead = await _begin(task, client, pool, throttle, fresh=task.fresh and context.attempt == 0)
    for _ in range(_RESUMES):
        attempt = _Attempt(task, landed, progress, pool, throttle)
        ahead = ahead or OutgoingAhead(stream_of(task, landed.records), pool)
        try:
            return await attempt.run(client, ahead)
        except (ProduceRefused, _LookAgain) as error:
            # Either another attempt of this very task has written more than this one knows: go on behind it. Or a
            # leader has lost records that the one before it had acknowledged: send them again.
            seen = await look(client, task.place, throttle, fresh=False)
            if isinstance(error, ProduceRefused) and seen.records == attempt.acknowledged:
                seen.close()
                raise
            landed = seen
        finally:
            await ahead.stop()
            ahead = None
            attempt.close()
    raise TargetChanged(
        f"{task.where}: the restore had to find its place {_RESUMES} times.",
        hint="Another process writes with the same producer id: is the same run going on elsewhere?",
    )


async def _begin(
    task: RestoreTask, client: RawClient, pool: ThreadPoolExecutor, throttle: Throttle, *, fresh: bool
) -> tuple[Landed, OutgoingAhead | None]:
    """Find out what is in the target. Where the run should have written nothing yet (`fresh`), its first batches are
    made ready meanwhile; they are dropped if it has.
    """
    if not fresh:
        return await look(client, task.place, throttle, fresh=False), None
    ahead = OutgoingAhead(stream_of(task, 0), pool)
    try:
        landed = await look(client, task.place, throttle, fresh=True)
    except BaseException:
        await ahead.stop()
        raise
    if landed.records:
        await ahead.stop()
        return landed, None
    return landed, ahead


class _LookAgain(Exception):
    """The task no longer knows what is in the target, and must read it back."""


class _MemoryBudget:
    """A number of bytes that partitions share, in the order in which they ask."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._given_back = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until so many bytes are left, and take them. A partition that wants more than all gets all."""
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


class _Attempt:
    """One pass over the archived partition, from its first byte. Records that are in the target already are only
    counted.
    """

    def __init__(
        self, task: RestoreTask, landed: Landed, progress: TaskProgress, pool: ThreadPoolExecutor, throttle: Throttle
    ) -> None:
        self._task = task
        self._landed = landed
        self._progress = progress
        self._map = OffsetMapBuilder()
        self._pending: deque[Outgoing] = deque()
        self._pool = pool
        self._throttle = throttle
        self._made = 0  # records of the stream that have been made ready or skipped
        self._all_made = False
        self._append_times = 0
        self._bytes = 0
        self._there = iter(landed.rows)
        self._placed = 0
        self._mark = landed.mark
        self._end = task.start if landed.mark is None else landed.mark.end
        self._epoch = -1
        self.acknowledged = landed.records

    def close(self) -> None:
        self._map.close()
        self._landed.close()

    async def run(self, client: RawClient, ahead: OutgoingAhead) -> PartitionSummary:
        task = self._task

        async def confirm(leader: Leader) -> None:
            await self._confirm(client, leader)

        async with (
            aclosing(self._to_send(ahead)) as batches,
            aclosing(
                client.produce_many(
                    task.target, task.partition, batches, floor=self._end, confirm=confirm, small=task.small
                )
            ) as offsets,
        ):
            async for offset in offsets:
                self._acknowledge(self._pending.popleft(), offset)
        if not self._all_made:  # however it came: fewer records than the archive has are no success
            raise RuntimeError(f"{task.where}: the batches ended before the archive did")
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
            target_epoch=-1 if self._mark is None else self._mark.epoch,
        )
        await asyncio.get_running_loop().run_in_executor(self._pool, self._write_map, summary)
        return summary

    def _write_map(self, summary: PartitionSummary) -> None:
        with self._task.state.writer(self._task.map_path) as writer:
            for block in self._map.blocks(summary):
                writer.write(block)

    async def _confirm(self, client: RawClient, leader: Leader) -> None:
        """Check that a leader has all that earlier leaders had acknowledged, before it gets more. Raises _LookAgain."""
        task = self._task
        if self._mark is not None:
            whole = await is_there(client, task.place, self._mark, at_least=leader.epoch)
        else:
            whole = task.start == 0 or await client.log_end(task.target, task.partition) >= task.start
        if not whole:
            raise _LookAgain
        self._epoch = leader.epoch

    def _take_over(self, records: int) -> None:
        """Note the target offsets of the first `records`, which are there already."""
        while self._placed < records:
            index, offset, count = next(self._there)
            if index > self._placed:
                self._map.gone(index - self._placed)
            self._map.target(offset, count)
            self._placed = index + count

    async def _to_send(self, ahead: OutgoingAhead) -> AsyncGenerator[Batch, None]:
        async for items in ahead.take():
            for item in items:
                self._note(item)
                if item.data is not None:
                    await self._throttle.pace(item.size)
                    self._pending.append(item)
                    yield item.data
        self._all_made = True

    def _note(self, item: Outgoing) -> None:
        if item.index < self._landed.records < item.index + item.count:
            raise TargetChanged(
                f"{self._task.where}: {self._landed.records} records of this run are there, which is inside a batch "
                f"of this plan ({item.index} to {item.index + item.count - 1}).",
                hint="The archive or the plan was changed while the restore went on: begin a new restore.",
            )
        for offset, count in item.source:
            self._map.source(offset, count)
        if item.index < self._landed.records:
            self._take_over(item.index + item.count)
        self._made = item.index + item.count
        self._bytes += item.size
        self._append_times += item.append_times
        if item.data is None:
            self._progress.tell(_update(self._task, item.source_end, self._made, self._bytes))

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        """Note where the broker has put a batch. Raises _LookAgain if it cannot lie there."""
        task = self._task
        if task.created:
            expected = task.start + item.index
            if offset not in (expected, -1):
                raise _LookAgain
            offset = expected
        elif offset < self._end:
            raise _LookAgain
        self._map.target(offset, item.count)
        self._end = offset + item.count
        self._mark = Mark(self._epoch, self._end)
        self.acknowledged = item.index + item.count
        self._progress.tell(_update(task, item.source_end, self.acknowledged, self._bytes))


# ---- the stream of batches: a function of the archive and the plan


def _update(task: RestoreTask, at: int, records: int, size: int) -> PartitionUpdate:
    return PartitionUpdate(task.target, task.partition, task.number, at, records, size)


def stream_of(task: RestoreTask, done: int) -> Generator[Outgoing, None, None]:
    """The batches to send for the partition, in order. The first `done` records come with source offsets and sizes
    only.
    """
    if task.batching is not None:
        yield from _stream_of_records(task, task.batching, done)
        return
    stream = _batch_stream(task, done)
    for segment in task.segments:
        with _sound(task, segment):
            for stretch in _stretches(task, segment):
                yield from stream.add(stretch)
    if task.segments:
        with _sound(task, task.segments[-1]):
            yield from stream.finish()


def _batch_stream(task: RestoreTask, done: int) -> BatchStream | OlderStream:
    aborted = Spans.of(_aborted(task))
    size = task.max_batch_bytes
    if task.rule is Rule.BY_UNPACKED_SIZE:
        return BatchStream(producer_id=task.producer_id, max_bytes=size, aborted=aborted, done=done)
    return OlderStream(producer_id=task.producer_id, max_bytes=size, aborted=aborted, done=done, rule=task.rule)


@contextmanager
def _sound(task: RestoreTask, segment: SegmentEntry) -> Iterator[None]:
    """Says of a batch that cannot be restored where it lies."""
    try:
        yield
    except BatchTooLarge as error:
        raise error.within(_place(task)) from error
    except CorruptBatch as error:
        raise ArchiveDamaged(
            f"{_log_path(task, segment)}: {error.message}",
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
        rule=task.rule,
    )
    damaged = frozenset(task.survey.damaged if task.survey is not None else ())
    whole = [segment for segment in task.segments if segment.base_offset not in damaged]
    for records in open_partition(task.storage, task.source, whole, aborted=()).records():
        yield from stream.add(records)
    yield from stream.finish()


def _aborted(task: RestoreTask) -> Sequence[AbortedTxn]:
    if task.survey is not None and task.survey.aborted is not None:
        return task.survey.aborted
    return list(open_partition(task.storage, task.source, task.segments).transaction_index())


def _stretches(task: RestoreTask, segment: SegmentEntry) -> Iterator[memoryview]:
    """Views on whole batches that lie back to back."""
    if task.survey is not None and segment.base_offset in task.survey.damaged:
        yield from _salvaged(task, segment, task.survey)
        return
    for stretch, _ in open_partition(task.storage, task.source, (segment,)).batches():
        yield stretch


def _salvaged(task: RestoreTask, segment: SegmentEntry, survey: DamageSurvey) -> Iterator[memoryview]:
    known = _known(survey)
    for item in open_damaged(task.storage, task.source, (segment,)).batches():
        if not isinstance(item, Damage):
            stretch, headers = item
            for at, header in headers:
                yield memoryview(bytes(stretch[at : at + header.size]))
        elif item.lost is not None and item.lost not in known:
            raise _damaged_further(task, segment, item.lost, item.what)


def _known(survey: DamageSurvey) -> set[Range]:
    return {(item.start, item.end) for item in survey.lost}


def _damaged_further(task: RestoreTask, segment: SegmentEntry, lost: Range, reason: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"{_log_path(task, segment)}: offsets {lost[0]} to {lost[1] - 1} could be read when the restore "
        "was planned: "
        f"{reason}",
        hint="The archive was damaged further meanwhile: begin a new restore.",
    )


def _place(task: RestoreTask) -> str:
    return f"archived topic {task.source!r} partition {task.partition}"


def _log_path(task: RestoreTask, segment: SegmentEntry) -> str:
    return f"{task.storage.uri}/{segment.stem(task.source)}{segment.log_suffix}"

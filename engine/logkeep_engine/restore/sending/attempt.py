"""One pass over an archived partition: its batches go to the target, and the offset map is written.

What the run has to do for the partition is a `RestoreTask`. An `Attempt` begins where the target is (`landed`), and
ends with the summary of the partition, or with what has happened meanwhile: then the task looks again, and makes
another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka.brokers import Leader
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.produce import Batch
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.model.offset_map import OffsetMapBuilder, OffsetNotes, PartitionSummary
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.written import Mark, TargetPartition, WrittenRecords, is_there
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.outgoing_ahead import AHEAD_BYTES, OutgoingBatches
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.restore.streams.same import Extent
from logkeep_engine.restore.streams.straddling import ArchivedPartition
from logkeep_engine.storage import DEFAULT_BLOCK, Storage
from logkeep_engine.tasks import PartitionUpdate, ProgressSink

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
    `storage` holds the archive, `state` the state of the run `run_id`.

    `start` is the target's end offset before the run. `fresh`: this driver made the plan, so the run has written
    nothing before task attempt 0. With `batching` the archive holds records, which become batches of that size.
    `compacts`: the target may remove records while the run lasts. With `clip` only what is in it is restored; then
    `kept` are the ranges of offsets that the segments stand for. With an `extent` every record goes to its source
    offset.
    """

    number: int
    storage: Storage
    state: Storage
    run_id: str
    connection: KafkaConnection
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
    survey: DamageSurvey | None
    map_path: str
    batching: Batching | None = None
    compacts: bool = False
    clip: Clip | None = None
    kept: tuple[Range, ...] = ()
    extent: Extent | None = None
    to: int | None = None

    @property
    def own(self) -> RestoreState:
        """The state of the run."""
        return RestoreState(self.state, self.run_id)

    @property
    def target_partition(self) -> int:
        """The partition of the target: that of the same number, or `to`."""
        return self.partition if self.to is None else self.to

    @property
    def place(self) -> TargetPartition:
        return TargetPartition(
            self.target, self.target_partition, self.producer_id, self.start, self.created, self.compacts
        )

    @property
    def archived(self) -> ArchivedPartition:
        damaged = self.survey is not None and bool(self.survey.damaged)
        return ArchivedPartition(self.storage, self.source, self.segments, self.kept, damaged)

    @property
    def begins(self) -> int:
        """The target offset from which on the run's records lie, when all is done."""
        return self.start if self.extent is None else self.extent.start

    @property
    def where(self) -> str:
        return f"topic {self.target!r} partition {self.target_partition}"

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


class PositionLost(Exception):
    """The task no longer knows what is in the target, and must read it back."""


class Attempt:
    """One pass over the archived partition, from its first byte. Records that are in the target already are only
    counted.
    """

    def __init__(
        self,
        task: RestoreTask,
        landed: WrittenRecords,
        progress: ProgressSink,
        pool: ThreadPoolExecutor,
        throttle: Throttle,
        *,
        contested: bool = False,
        left_out: LeftOut | None = None,
    ) -> None:
        """`contested`: an earlier attempt may still write. `left_out` counts what the stream leaves out."""
        self._task = task
        self._left_out = left_out or LeftOut()
        self._contested = contested and not task.created
        self._landed = landed
        self._progress = progress
        self._map: OffsetNotes = OffsetMapBuilder()
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
        self._client: RawClient
        self.acknowledged = landed.records

    @property
    def _small(self) -> bool:
        """Whether batches go together with those of other partitions."""
        return self._task.small

    def knew(self, landed: WrittenRecords) -> bool:
        """Whether this attempt knows of all that has landed."""
        return landed.records == self.acknowledged

    def close(self) -> None:
        self._map.close()
        self._landed.close()

    async def run(self, client: RawClient, ahead: OutgoingBatches) -> PartitionSummary:
        task = self._task
        self._client = client

        async def confirm(leader: Leader) -> None:
            await self._confirm(client, leader)

        async with (
            aclosing(self._to_send(ahead)) as batches,
            aclosing(
                client.produce_many(
                    task.target,
                    task.target_partition,
                    batches,
                    floor=self._end,
                    confirm=confirm,
                    small=self._small,
                    contested=self._contested,
                )
            ) as offsets,
        ):
            async for offset in offsets:
                self._acknowledge(self._pending.popleft(), offset)
        if self._contested:
            await self._check_nothing_behind()
        if not self._all_made:  # however it came: fewer records than the archive has are no success
            raise RuntimeError(f"{task.where}: the batches ended before the archive did")
        if self._made < self._landed.records:
            raise TargetChanged(
                f"{task.where}: {self._landed.records} records of this run are there, the archive gives {self._made}.",
                hint="The archive or the plan was changed while the restore was running: begin a new restore.",
            )
        summary = PartitionSummary(
            source_topic=task.source,
            source_topic_id=task.topic_id,
            source_partition=task.partition,
            target_topic=task.target,
            target_partition=task.target_partition,
            records=self._made,
            bytes=self._bytes,
            target_start=task.start,
            target_end=self._end,
            append_time_records=self._append_times,
            target_epoch=-1 if self._mark is None else self._mark.epoch,
            aborted_records=self._left_out.aborted,
        )
        await asyncio.get_running_loop().run_in_executor(self._pool, self._write_map, summary)
        return summary

    def _write_map(self, summary: PartitionSummary) -> None:
        with self._task.state.writer(self._task.map_path) as writer:
            for block in self._map.blocks(summary):
                writer.write(block)

    async def _check_nothing_behind(self) -> None:
        """Check that nothing of this run lies after its last record. In front of the others, `produce_many` looks.

        Where nobody else writes to the topic, offsets tell it.
        """
        task = self._task
        end = await self._client.log_end(task.target, task.target_partition)
        if await self._client.written_by(
            task.target, task.target_partition, task.producer_id, start=self._end, end=end
        ):
            raise PositionLost

    async def _confirm(self, client: RawClient, leader: Leader) -> None:
        """Check that a leader has all that earlier leaders had acknowledged, before it gets more. Raises LookAgain."""
        task = self._task
        if self._mark is not None:
            whole = await is_there(client, task.place, self._mark, at_least=leader.epoch)
        else:
            whole = task.start == 0 or await client.log_end(task.target, task.target_partition) >= task.start
        if task.created and self._epoch >= 0:  # nothing is under way, and nobody else writes
            whole = whole and await client.log_end(task.target, task.target_partition) == self._end
        if not whole:
            raise PositionLost
        self._epoch = leader.epoch

    def _take_over(self, records: int) -> None:
        """Note the target offsets of the first `records`, which are there already."""
        while self._placed < records:
            index, offset, count = next(self._there)
            if index > self._placed:
                self._map.gone(index - self._placed)
            self._map.target(offset, count)
            self._placed = index + count

    async def _to_send(self, ahead: OutgoingBatches) -> AsyncGenerator[Batch, None]:
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
                hint="The archive or the plan was changed while the restore was running: begin a new restore.",
            )
        for offset, count in item.source:
            self._map.source(offset, count)
        if item.index < self._landed.records:
            self._take_over(item.index + item.count)
        self._made = item.index + item.count
        self._bytes += item.size
        self._append_times += item.append_times
        if item.data is None:
            self._progress.tell(update_of(self._task, item.source_end, self._made, self._bytes))

    def _place(self, item: Outgoing) -> int:
        """Where a batch must land in a topic to which nobody else writes."""
        return self._task.start + item.index

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        """Note where the broker has put a batch. Raises LookAgain if it cannot lie there."""
        task = self._task
        if task.created:
            expected = self._place(item)
            if offset not in (expected, -1):
                raise PositionLost
            offset = expected
        elif offset < self._end:
            raise PositionLost
        self._map.target(offset, item.count)
        self._end = offset + item.count
        self._mark = Mark(self._epoch, self._end)
        self.acknowledged = item.index + item.count
        self._progress.tell(update_of(task, item.source_end, self.acknowledged, self._bytes))


def update_of(task: RestoreTask, at: int, records: int, size: int) -> PartitionUpdate:
    """The progress of a partition: how far its source offsets, records and bytes have come."""
    return PartitionUpdate(task.target, task.target_partition, task.number, at, records, size)

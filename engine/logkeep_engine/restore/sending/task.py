"""One task of a restore: archived partitions into target partitions, each in order, every committed record once.

The way of a batch: storage → CRC checked → `filter` and `merge` (left out, readdressed, or rebuilt) → an `Outlet` →
produce requests, five under way a target partition. Archived records become batches first (`records`). An archived
partition has one outlet, or one for each partition of a divided topic, by which its batches are dealt out.

For every partition the task looks first at what its producer ids have in the target already and continues from there,
so it does not matter whether this is the first attempt, a retry, or the first task of a driver that was started again;
and while another attempt still writes, the broker compares sequences, so that no batch gets in twice. If one outlet
must look again, all of the archived partition do, and the pass over the archive begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from logkeep_engine.archive.reading.partition import NeighbouringReads
from logkeep_engine.errors import ProduceRefused, TargetChanged
from logkeep_engine.kafka.produce import MAX_IN_FLIGHT
from logkeep_engine.restore.model.offset_map import PartitionSummary, map_blocks
from logkeep_engine.restore.sending.outlet import Outlet
from logkeep_engine.restore.sending.padding import look_for_end
from logkeep_engine.restore.sending.restore_task import WINDOW_BYTES, RestoreTask
from logkeep_engine.restore.sending.side_by_side import Shared, side_by_side, stopped
from logkeep_engine.restore.sending.stream import TaskStream
from logkeep_engine.restore.sending.window import Window
from logkeep_engine.restore.sending.written import Look, PositionLost, TargetPartition, WrittenRecords, look
from logkeep_engine.restore.streams.outgoing_ahead import OutgoingAhead
from logkeep_engine.tasks import PartitionUpdate, TaskContext

# A task finds its place again when another attempt writes too, or the log was cut off. Each time it must have moved.
RESUMES = 20
_LOOKS_AT_ONCE = 4

Written = Sequence[WrittenRecords]
"""The records in the target partitions of a task, in the order of its outlets."""


def restore_partitions(tasks: tuple[RestoreTask, ...], context: TaskContext) -> tuple[PartitionSummary, ...]:
    """Restore some partitions of one cluster and write their offset maps. Safe to repeat, and to run twice at once.

    Partitions that an earlier attempt has finished are not looked at again. Raises ArchiveDamaged if an object is not
    what the catalog (or the survey) says, TargetChanged or TopicExists if another client writes to a created topic,
    RestoreBusy if another run has taken over this one, and what the clients raise: the first error of any partition.
    """
    storage = NeighbouringReads(tasks[0].archived.storage)  # they are of one archive
    tasks = tuple(replace(task, archived=replace(task.archived, storage=storage)) for task in tasks)
    shared_look = _SharedLook([task for task in tasks if task.topic.divided])

    async def restore(task: RestoreTask, shared: Shared) -> PartitionSummary:
        return await _restore(task, shared, shared_look)

    return side_by_side(tasks, context, restore)


async def _restore(task: RestoreTask, shared: Shared, shared_look: _SharedLook) -> PartitionSummary:
    fresh = task.fresh and shared.context.attempt == 0
    written, sending = await _begin(task, shared, shared_look, fresh=fresh)
    resumes, best = 0, _reached(written)
    while resumes < RESUMES:
        if sending is None:
            sending = _Pass(task, shared, written)
        try:
            return await sending.run(written, contested=not fresh)
        except (ProduceRefused, PositionLost) as error:
            # Either another attempt of this very task has written more than this one knows: continue after it. Or a
            # leader has lost records that the one before it had acknowledged: send them again.
            seen = await _look([task], shared)
            if isinstance(error, ProduceRefused) and sending.knew(seen):
                _close(seen)
                raise
            written, fresh = seen, False
            resumes = 0 if _reached(written) > best else resumes + 1
            best = max(best, _reached(written))
        finally:
            await sending.stop()
            sending = None
    raise TargetChanged(
        f"{task.where}: the restore lost its position {RESUMES} times without making progress.",
        hint="Another process writes with the same producer id: is the same run active elsewhere?",
    )


def _reached(written: Written) -> int:
    return sum(item.end for item in written)


def _close(written: Written) -> None:
    for item in written:
        item.close()


async def _begin(
    task: RestoreTask, shared: Shared, shared_look: _SharedLook, *, fresh: bool
) -> tuple[Written, _Pass | None]:
    """Find out what is in the target. Where the run should have written nothing yet (`fresh`), the first batches are
    made ready in the meantime; they are dropped if it has.
    """
    if not fresh:
        return await shared_look.written(task, shared), None
    sending = _Pass(task, shared)
    try:
        # The logs of a divided topic grow by other outlets: where they end is asked for when they are written to.
        divided = task.topic.divided
        written = (
            [WrittenRecords()] * len(task.topic.partitions) if divided else await _look([task], shared, fresh=True)
        )
    except BaseException:
        await sending.stop()
        raise
    if any(item.records for item in written):
        await sending.stop()
        return written, None
    return written, sending


async def _look(tasks: Sequence[RestoreTask], shared: Shared, *, fresh: bool = False) -> list[WrittenRecords]:
    """Find out what the target partitions of these tasks hold, in the order of their outlets. Each of them is read
    once. Several tasks are of divided topics."""
    targets = [task.target_of(part) for task in tasks for part in task.topic.partitions]
    if tasks[0].part.extent is not None:
        return [await look_for_end(shared.client, targets[0], fresh=fresh)]
    wanted: dict[tuple[str, int], list[TargetPartition]] = {}
    for target in targets:
        wanted.setdefault((target.topic, target.partition), []).append(target)
    slots = asyncio.Semaphore(_LOOKS_AT_ONCE)

    async def one(same: Sequence[TargetPartition]) -> dict[int, WrittenRecords]:
        target, ids = same[0], tuple(item.producer_id for item in same)
        # Records of others in a divided topic are found when all are counted.
        ours = frozenset(ids) if target.alone else None
        async with slots:
            read = Look(tasks[0].connection, target, ids, ours, rows=not target.divided)
            return await look(shared.client, read, shared.context.throttle, fresh=fresh)

    found: dict[int, WrittenRecords] = {}
    for some in await asyncio.gather(*map(one, wanted.values())):
        found |= some
    return [found[target.producer_id] for target in targets]


class _SharedLook:
    """One look at the targets of all tasks of divided topics, those left out that are done. So a work item that is
    repeated reads each partition of its targets once."""

    def __init__(self, tasks: Sequence[RestoreTask]) -> None:
        self._tasks = tasks
        self._looking = asyncio.Lock()
        self._found: dict[int, list[WrittenRecords]] | None = None

    async def written(self, task: RestoreTask, shared: Shared) -> Written:
        """Return what the targets of a task hold: by a look of the driver, by that at the first call, or by one of its
        own."""
        if task.known and shared.context.attempt == 0:
            return task.known
        if task.topic.divided and shared.context.attempt:
            async with self._looking:
                if self._found is None:
                    self._found = await self._look(shared)
            if task.number in self._found:
                return self._found[task.number]
        return await _look([task], shared)

    async def _look(self, shared: Shared) -> dict[int, list[WrittenRecords]]:
        loop = asyncio.get_running_loop()
        done = await asyncio.gather(*(loop.run_in_executor(shared.pool, task.finished) for task in self._tasks))
        left = [task for task, known in zip(self._tasks, done, strict=True) if known is None]
        found = iter(await _look(left, shared) if left else ())
        return {task.number: list(islice(found, len(task.topic.partitions))) for task in left}


class _Pass:
    """One pass over an archived partition. Its first batches are made ready at once. Needs `stop` at the end."""

    def __init__(self, task: RestoreTask, shared: Shared, written: Written = ()) -> None:
        self._task = task
        self._shared = shared
        done = written[0].records if written and not task.topic.divided else 0
        self._stream = TaskStream(task, done)
        self._ahead = OutgoingAhead(self._stream.batches(), shared.pool)
        self._outlets: list[Outlet] = []
        self._failed = 0
        self._at = self._records = self._bytes = 0

    async def run(self, written: Written, *, contested: bool) -> PartitionSummary:
        """Deal out all batches, until all are acknowledged, and write the offset map. Raises the error of the dealing,
        or that of an outlet."""
        task, shared = self._task, self._shared
        # As many again are ready as are under way, so that each answer is followed by the next batch.
        window = Window(WINDOW_BYTES if task.topic.divided else 2 * MAX_IN_FLIGHT)
        self._outlets = [
            Outlet(task, part, item, shared.client, shared.context.throttle, window, self._tell, contested=contested)
            for part, item in zip(task.topic.partitions, written, strict=True)
        ]
        running = [asyncio.create_task(outlet.run()) for outlet in self._outlets]
        dealing = asyncio.create_task(self._deal())
        try:
            await asyncio.wait([dealing, *running], return_when=asyncio.FIRST_EXCEPTION)
            for number, outlet in enumerate(running):
                if outlet.done() and outlet.exception() is not None:
                    self._failed = number
                    outlet.result()
            dealing.result()
        finally:
            await stopped([dealing, *running])
        summary = self._summary()
        await asyncio.get_running_loop().run_in_executor(shared.pool, self._write, summary)
        return summary

    def knew(self, written: Written) -> bool:
        """Return whether the outlet that has failed knew of all that it had written."""
        return self._outlets[self._failed].knew(written[self._failed])

    async def stop(self) -> None:
        """Make no more batches."""
        await self._ahead.stop()
        for outlet in self._outlets:
            outlet.close()

    async def _deal(self) -> None:
        try:
            async for items in self._ahead.take():
                await self._shared.fence.check()
                for item in items:
                    await self._outlets[item.outlet].take(item)
            for outlet in self._outlets:
                await outlet.finish()
        finally:
            # A cancellation is not an error that would end the others.
            for outlet in self._outlets:
                outlet.end()

    def _tell(self, at: int, records: int, size: int) -> None:
        """Report how far the outlets have come: they are one partition in the report."""
        task = self._task
        self._at, self._records, self._bytes = max(self._at, at), self._records + records, self._bytes + size
        shown = task.topic.number_of(task.part)
        self._shared.progress.tell(
            PartitionUpdate(task.topic.target, shown, task.number, self._at, self._records, self._bytes)
        )

    def _summary(self) -> PartitionSummary:
        archived, stream = self._task.archived, self._stream
        outlets = tuple(outlet.summary() for outlet in self._outlets)
        records = sum(outlet.records for outlet in outlets)
        if records != stream.records:  # however it came: fewer records than the archive has are not a success
            raise RuntimeError(f"{self._task.where}: {records} of {stream.records} records were sent")
        return PartitionSummary(
            source_topic=archived.topic,
            source_topic_id=archived.topic_id,
            source_partition=archived.partition,
            target_topic=self._task.topic.target,
            records=records,
            bytes=sum(outlet.bytes for outlet in self._outlets),
            outlets=outlets,
            append_time_records=stream.append_times,
            aborted_records=stream.left_out.aborted,
        )

    def _write(self, summary: PartitionSummary) -> None:
        with self._task.state.storage.writer(self._task.map_path) as writer:
            for block in map_blocks(summary, self._outlets[0].offsets):
                writer.write(block)

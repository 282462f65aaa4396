"""One task of a divided topic: archived partitions, each with all of its pairs in one pass over the archive.

Every pair is an attempt of its own (`attempt`), with its producer id, its window of batches under way and its place in
the target. What they share is the pass: batches are dealt out as they come, and no more are made while those that are
not acknowledged take more than a few MiB. If one pair has to look again, all of them do, and the pass begins again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.errors import ObjectMissing, ProduceRefused, TargetChanged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.model.offset_map import PartitionSummary
from logkeep_engine.restore.sending.attempt import Attempt, PositionLost, RestoreTask
from logkeep_engine.restore.sending.division.places import PairPlace, PlacesTask, places_of
from logkeep_engine.restore.sending.division.stream import DividedStream, RoutedBatch, most_bytes
from logkeep_engine.restore.sending.division.summary import DividedSummary, PairSummary
from logkeep_engine.restore.sending.side_by_side import Shared, side_by_side, stopped
from logkeep_engine.restore.sending.task import RESUMES
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.outgoing_ahead import OutgoingAhead, OutgoingBatches
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress

_WINDOW_BYTES = 16 << 20
"""The bytes of batches that were made and are not acknowledged, of all pairs of an archived partition."""

_LOOKS_AT_ONCE = 4

_PAIR_MEMORY = 16 << 10
"""The bytes of a pair without its batches: a window of requests, and the tasks of an event loop."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The part of an archived partition that goes to the partition `target`, whose log ended at `start` before the run.
    `known`: what the driver has found there; None: it has not looked."""

    target: int
    producer_id: int
    start: int
    known: PairPlace | None = None


@dataclass(frozen=True, slots=True)
class DividedTask:
    """The work for one archived partition; pickles without secrets. `archived` says what is read, and its target
    topic. There is a pair for each partition of the target, in their order; the `partitioner` says which record is of
    which."""

    archived: RestoreTask
    pairs: tuple[Pair, ...]
    partitioner: Partitioner

    @property
    def memory(self) -> int:
        """The bytes that it takes, about."""
        making = len(self.pairs) * most_bytes(len(self.pairs), self.archived.max_batch_bytes)
        under_way = min(making, 2 * self.archived.bytes) + min(_WINDOW_BYTES, self.archived.bytes)
        return self.archived.memory + under_way + len(self.pairs) * _PAIR_MEMORY

    def of_pair(self, pair: Pair) -> RestoreTask:
        """The work for one pair. Others write to its target, too: the other pairs."""
        return replace(
            self.archived, producer_id=pair.producer_id, start=pair.start, to=pair.target, created=False, extent=None
        )


def restore_divided(tasks: tuple[DividedTask, ...], context: TaskContext) -> tuple[DividedSummary, ...]:
    """Restore some archived partitions of divided topics, and write down what was done. Safe to repeat, and to run
    twice at once. Raises as `task.restore_partitions`.
    """
    look = _SharedLook(tasks)

    async def restore(task: DividedTask, shared: Shared) -> DividedSummary:
        return await _Division(task, shared, look).restore()

    return side_by_side(
        tasks,
        tasks[0].archived.connection,
        tasks[0].archived.own,
        context,
        memory=lambda task: task.memory,
        finished=_finished,
        restore=restore,
    )


def _finished(task: DividedTask) -> DividedSummary | None:
    """The facts of the partition, if an earlier attempt has finished it."""
    state, path = task.archived.state, task.archived.map_path
    try:
        return DividedSummary.from_json(state.read(path), f"{state.uri}/{path}")
    except ObjectMissing:
        return None


class _SharedLook:
    """One look for the places of all pairs of these archived partitions, those left out that are done. So a task that
    is repeated reads each partition of its targets once."""

    def __init__(self, tasks: Sequence[DividedTask]) -> None:
        self._tasks = tasks
        self._looking = asyncio.Lock()
        self._found: dict[int, PairPlace] | None = None

    async def places(self, shared: Shared) -> dict[int, PairPlace]:
        """The places by producer id, as they were at the first call."""
        async with self._looking:
            if self._found is None:
                loop = asyncio.get_running_loop()
                done = await asyncio.gather(
                    *(loop.run_in_executor(shared.pool, _finished, task) for task in self._tasks)
                )
                left = [task for task, known in zip(self._tasks, done, strict=True) if known is None]
                self._found = await _look(left, shared)
            return self._found


async def _look(tasks: Sequence[DividedTask], shared: Shared) -> dict[int, PairPlace]:
    """The places of all pairs of these archived partitions, by producer id. Each partition of a target is read once."""
    slots = asyncio.Semaphore(_LOOKS_AT_ONCE)

    async def one(read: PlacesTask) -> dict[int, PairPlace]:
        async with slots:
            return await places_of(shared.client, read, shared.context.throttle)

    found: dict[int, PairPlace] = {}
    for places in await asyncio.gather(*(one(read) for read in _reads(tasks))):
        found |= places
    return found


def _reads(tasks: Iterable[DividedTask]) -> list[PlacesTask]:
    """The looks for what the pairs have written. Records of others are found when all are counted."""
    wanted: dict[tuple[str, int], list[RestoreTask]] = {}
    for task in tasks:
        for pair in task.pairs:
            wanted.setdefault((task.archived.target, pair.target), []).append(task.of_pair(pair))
    return [
        PlacesTask(pairs[0].connection, pairs[0].place, tuple(pair.producer_id for pair in pairs), None)
        for pairs in wanted.values()
    ]


class _Division:
    """The restore of one archived partition."""

    def __init__(self, task: DividedTask, shared: Shared, look: _SharedLook) -> None:
        self._task = task
        self._shared = shared
        self._shared_look = look
        self._first = shared.context.attempt == 0
        self._fresh = task.archived.fresh and self._first

    async def restore(self) -> DividedSummary:
        task, resumes, best = self._task, 0, -1
        places = await self._begin()
        while resumes < RESUMES:
            dealing = _Pass(task, places, self._shared, fresh=self._fresh)
            try:
                summary = await dealing.run()
            except (ProduceRefused, PositionLost) as error:
                # See `task`: another attempt writes too, or a leader has lost records.
                places, self._fresh = await self._look(), False
                if isinstance(error, ProduceRefused) and dealing.knew(places):
                    raise
                landed = sum(place.records for place in places)
                resumes = 0 if landed > best else resumes + 1
                best = max(best, landed)
            else:
                data, archived = summary.to_json(), task.archived
                await asyncio.get_running_loop().run_in_executor(
                    self._shared.pool, archived.state.put, archived.map_path, data
                )
                return summary
        raise TargetChanged(
            f"topic {task.archived.target!r}, what comes from partition {task.archived.partition} of "
            f"{task.archived.source!r}: the restore had to find its place {RESUMES} times without getting further.",
            hint="Another process writes with the same producer ids: is the same run active elsewhere?",
        )

    async def _begin(self) -> list[PairPlace]:
        if self._fresh:
            return [PairPlace()] * len(self._task.pairs)
        if self._first:
            known = {pair.producer_id: pair.known for pair in self._task.pairs if pair.known is not None}
        else:
            known = await self._shared_look.places(self._shared)
        if all(pair.producer_id in known for pair in self._task.pairs):
            return [known[pair.producer_id] for pair in self._task.pairs]
        return await self._look()

    async def _look(self) -> list[PairPlace]:
        found = await _look([self._task], self._shared)
        return [found[pair.producer_id] for pair in self._task.pairs]


class _Pass:
    """One pass over an archived partition, with an attempt for each of its pairs."""

    def __init__(self, task: DividedTask, places: Sequence[PairPlace], shared: Shared, *, fresh: bool) -> None:
        self._task = task
        self._client = shared.client
        self._fence = shared.fence
        self._pool = pool = shared.pool
        self._places = places
        self._failed = 0
        self._window = _Window(_WINDOW_BYTES)
        self._sums = _PassProgress(task.archived, shared.progress)
        self._outlets = [_Outlet() for _ in task.pairs]
        self._stream = DividedStream(task.archived, [pair.producer_id for pair in task.pairs], task.partitioner)
        contested = not fresh and not task.archived.created
        throttle = shared.context.throttle
        self._attempts = [
            PairAttempt(task.of_pair(pair), place, self._sums, pool, throttle, self._window, contested=contested)
            for pair, place in zip(task.pairs, places, strict=True)
        ]

    def knew(self, places: Sequence[PairPlace]) -> bool:
        """Whether the pair that has failed knew of all that it had written."""
        return self._attempts[self._failed].knew(places[self._failed].landed())

    async def run(self) -> DividedSummary:
        """Deal out all batches, until all are acknowledged. Raises the error of the dealing, or that of a pair."""
        ahead = OutgoingAhead(self._stream.batches(), self._pool)
        pairs = [
            asyncio.create_task(attempt.run(self._client, outlet))
            for attempt, outlet in zip(self._attempts, self._outlets, strict=True)
        ]
        dealing = asyncio.create_task(self._deal(ahead))
        try:
            done, _ = await asyncio.wait([dealing, *pairs], return_when=asyncio.FIRST_EXCEPTION)
            for number, pair in enumerate(pairs):
                if pair in done and pair.exception() is not None:
                    self._failed = number
                    pair.result()
            dealing.result()
            return self._summary([pair.result() for pair in pairs])
        finally:
            await stopped([dealing, *pairs])
            await ahead.stop()
            for attempt in self._attempts:
                attempt.close()

    async def _deal(self, ahead: OutgoingAhead[RoutedBatch]) -> None:
        async for items in ahead.take():
            await self._fence.check()
            for item in items:
                batch = item.batch
                if batch.index + batch.count <= self._places[item.target].records:
                    batch = replace(batch, data=None)
                else:
                    await self._window.take(batch.weight)
                self._outlets[item.target].put(batch)
        for outlet in self._outlets:
            outlet.end()

    def _summary(self, pairs: Sequence[PartitionSummary]) -> DividedSummary:
        archived, stream = self._task.archived, self._stream
        records = sum(pair.records for pair in pairs)
        if records != stream.records:
            raise RuntimeError(f"{records} of {stream.records} records of {archived.source!r} were divided")
        return DividedSummary(
            source_topic=archived.source,
            source_topic_id=archived.topic_id,
            source_partition=archived.partition,
            target_topic=archived.target,
            target_partition=archived.partition,
            records=records,
            bytes=sum(pair.bytes for pair in pairs),
            target_start=0,
            target_end=0,
            append_time_records=stream.append_times,
            aborted_records=stream.left_out.aborted,
            pairs=tuple(map(_pair_summary, pairs)),
        )


def _pair_summary(pair: PartitionSummary) -> PairSummary:
    if not pair.records:
        return PairSummary(pair.target_partition, 0, 0, -1)
    return PairSummary(pair.target_partition, pair.records, pair.target_end, pair.target_epoch)


class PairAttempt(Attempt):
    """The batches of one pair on their way to its target."""

    def __init__(
        self,
        task: RestoreTask,
        place: PairPlace,
        progress: _PassProgress,
        pool: ThreadPoolExecutor,
        throttle: Throttle,
        window: _Window,
        *,
        contested: bool,
    ) -> None:
        super().__init__(task, place.landed(), progress, pool, throttle, contested=contested)
        self._map.close()
        self._map = _NoMap()
        self._window = window
        self._looked_to = place.end if contested else None

    @property
    def _small(self) -> bool:
        return False

    async def run(self, client: RawClient, ahead: OutgoingBatches) -> PartitionSummary:
        if self._mark is None:
            # What others have written before is not looked at again when an answer gets lost. Behind the look for its
            # place an attempt that was taken for dead may have written these very batches.
            end = self._looked_to
            if end is None:
                end = await client.log_end(self._task.target, self._task.target_partition)
            self._end = max(self._end, end)
        return await super().run(client, ahead)

    def _take_over(self, records: int) -> None:
        self._placed = records

    def _write_map(self, summary: PartitionSummary) -> None:
        pass

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        super()._acknowledge(item, offset)
        self._window.give_back(item.weight)


class _NoMap:
    """Takes offsets that nobody keeps."""

    def source(self, offset: int, count: int) -> None:
        pass

    def target(self, offset: int, count: int) -> None:
        pass

    def gone(self, count: int) -> None:
        pass

    def blocks(self, summary: PartitionSummary) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        pass


class _Outlet:
    """The batches that were dealt to one pair."""

    def __init__(self) -> None:
        self._ready: deque[Outgoing] = deque()
        self._ended = False
        self._more = asyncio.Event()

    def put(self, batch: Outgoing) -> None:
        self._ready.append(batch)
        self._more.set()

    def end(self) -> None:
        self._ended = True
        self._more.set()

    async def take(self) -> AsyncIterator[list[Outgoing]]:
        """The batches, in their order."""
        while True:
            while self._ready:
                yield [self._ready.popleft()]
            if self._ended:
                return
            self._more.clear()
            await self._more.wait()


class _Window:
    """So many bytes may be under way. One batch that is larger may be under way alone."""

    def __init__(self, size: int) -> None:
        self._left = self._size = size
        self._given_back = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._left < min(size, self._size):
            self._given_back.clear()
            await self._given_back.wait()
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size
        self._given_back.set()


class _PassProgress:
    """Adds up the progress of the pairs: they are one partition in what is told."""

    def __init__(self, archived: RestoreTask, progress: TaskProgress) -> None:
        self._archived = archived
        self._progress = progress
        self._pairs: dict[int, tuple[int, int]] = {}
        self._records = self._bytes = self._at = 0

    def tell(self, update: PartitionUpdate) -> None:
        """Report what a pair has come to."""
        records, size = self._pairs.get(update.partition, (0, 0))
        self._pairs[update.partition] = update.records, update.bytes
        self._records += update.records - records
        self._bytes += update.bytes - size
        self._at = max(self._at, update.at)
        archived = self._archived
        self._progress.tell(
            PartitionUpdate(archived.target, archived.partition, archived.number, self._at, self._records, self._bytes)
        )

"""Reads restored partitions back and compares them with the archive's digests. Runs on executors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from logkeep_engine.archive.maintenance.record_digests import STRETCH_RECORDS, RecordTimes, unpacked_stretches
from logkeep_engine.compare.aligning import AHEAD, Alignment, Difference, DifferenceKind, ListedRecords, align, joined
from logkeep_engine.compare.stretches import StretchComparison
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, OffsetOutOfRange
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.consumed import differing_fields
from logkeep_engine.log.rows import RecordDigest
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.verification.sources import RestoredRecords, TargetReader
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress

T = TypeVar("T")

MAX_DIFFERENCES = 20
"""This many differences of a partition are named. Then it is read no further."""

MAX_REASONS = 20
"""This many reasons of a partition are named."""

_AT_ONCE = 4
_ROUNDS = 3  # a log may be cut off while it is read
_MOST_LISTED = 4  # times the records of a stretch
_STRETCHES_SEARCHED = 64


class Verdict(StrEnum):
    """The finding of a verification."""

    VERIFIED = "Verified"
    NOT_VERIFIED = "NotVerified"
    """Nothing was found to differ, but not all was compared, or the target does not stay what it is."""
    DIFFERENT = "Different"


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """A partition to verify: the work of its restore, and the digests of what it must hold, packed. Pickles without
    secrets.

    `caveats` are reasons that the driver knows for which it cannot be called verified. `compacts`: the target may
    compact now. `offsets`: the offsets must be those of the source.
    """

    restored: RestoreTask
    expected: bytes
    caveats: tuple[str, ...] = ()
    compacts: bool = False
    offsets: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedPartition:
    """The findings about one partition. `expected` records are the archive's, `records` the target's.

    `stretches` is the number of compared stretches, and `differing` are the source offsets of those that differ.
    `offsets` are those of the source, from the first to the end, and `compared_until` is where the comparison ended.
    """

    source: str
    target: str
    partition: int
    verdict: Verdict
    expected: int
    records: int
    bytes: int
    reasons: tuple[str, ...]
    times: RecordTimes
    differences: tuple[Difference, ...] = ()
    stretches: int = 0
    differing: tuple[tuple[int, int], ...] = ()
    offsets: tuple[int, int] = (0, 0)
    compared_until: int = 0

    @property
    def where(self) -> tuple[str, int]:
        return self.target, self.partition


def verify_partitions(tasks: tuple[VerifyTask, ...], context: TaskContext) -> tuple[VerifiedPartition, ...]:
    """Verify some partitions of one cluster. Raises what the clients and the storage raise."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-verify") as pool:
        return asyncio.run(_verify_all(tasks, context, pool))


async def _verify_all(
    tasks: tuple[VerifyTask, ...], context: TaskContext, pool: ThreadPoolExecutor
) -> tuple[VerifiedPartition, ...]:
    progress = TaskProgress(context)
    places, alone = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
    async with RawClient(tasks[0].restored.connection) as client:

        async def one(task: VerifyTask) -> VerifiedPartition:
            async with places:
                return await _Verification(task, client, pool, progress, context, alone).run()

        running = [asyncio.ensure_future(one(task)) for task in tasks]
        try:
            return tuple(await asyncio.gather(*running))
        finally:
            for partition in running:
                partition.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class _Verification:
    """The verification of one partition."""

    def __init__(
        self,
        task: VerifyTask,
        client: RawClient,
        pool: ThreadPoolExecutor,
        progress: TaskProgress,
        context: TaskContext,
        alone: asyncio.Lock,
    ) -> None:
        restored = task.restored
        self._task = task
        self._restored = restored
        self._wanted = RestoredRecords(restored.archived)
        self._client = client
        self._pool = pool
        self._progress = progress
        self._throttle = context.throttle
        self._alone = alone
        self._expected = unpacked_stretches(task.expected)
        self._begin()

    def _begin(self) -> None:
        """Forget what was found: the target is read from its beginning."""
        task, restored = self._task, self._restored
        self._reader = TargetReader(
            self._client,
            restored.topic.target,
            restored.part.target,
            restored.part.producer_id,
            self._throttle,
            created=restored.topic.created,
        )
        self._comparison = StretchComparison(self._expected, restored.part.first, offsets=task.offsets)
        self._reasons = list(task.caveats)
        self._differences: list[Difference] = []
        self._differing: list[tuple[int, int]] = []
        self._lost_until = -1
        self._located = 0  # the number of the stretch after the last one that was passed over

    async def run(self) -> VerifiedPartition:
        for _ in range(_ROUNDS):
            self._begin()
            if await self._read_through():
                return self._found()
        self._reasons.append("the target was cut off each time that it was read: its leader has lost records")
        return self._found()

    async def _read_through(self) -> bool:
        """Compare the target from its beginning to its end. False if its log was cut off in the meantime: then what was
        found may be of records that are gone."""
        target, partition = self._restored.topic.target, self._restored.part.target
        reader = self._reader
        before, begins = await reader.epoch(), await reader.start()
        if self._has_lost_beginning(begins):
            return True
        reader.stable = await reader.stable_end()
        end = await self._client.end_offset(target, partition, committed=False)
        extent = self._restored.part.extent
        # A marker that was written twice may be after the end; records there are found by the comparison.
        if extent is not None and (begins != extent.start or end < extent.end):
            self._reasons.append(
                f"the target's log goes from offset {begins} to {end}, not from {extent.start} to {extent.end}"
            )
        try:
            await self._compare(end)
        except OffsetOutOfRange:
            return False
        after = await self._client.log_end(target, partition)
        if after < end or await reader.is_cut_off(before, end):
            return False
        self._has_lost_beginning(await reader.start())
        if after > end:
            self._reasons.append(f"others write to the target: it has grown from offset {end} to {after}")
        return True

    def _has_lost_beginning(self, begins: int) -> bool:
        lost = begins > self._restored.part.first
        if lost:
            self._reasons.append(f"the target's log begins at offset {begins}: everything before it is gone")
        return lost

    async def _of_target(self, asked: Awaitable[T]) -> T:
        """Say of a batch that cannot be read that it is the target's."""
        where = f"The target, {self._restored.where}"
        try:
            return await asked
        except BatchTooLarge as error:
            raise error.within(where) from error
        except CorruptBatch as error:
            raise CorruptBatch(
                f"{where}: {error.message}",
                hint=error.hint or "Its leader's disk holds a damaged batch: move the leadership to another replica.",
            ) from error

    async def _compare(self, end: int) -> None:
        comparison = self._comparison
        while not await self._of_target(self._stretches_equal(end)) or not comparison.is_whole:
            if comparison.stretch is None:
                raise AssertionError("nothing is left, and something differs")
            async with self._alone:
                continues = await self._locate(end)
            if not continues or len(self._differences) >= MAX_DIFFERENCES:
                return
        reader = self._reader
        only_others = reader.others >= comparison.extra and reader.others_from >= comparison.extra_from
        if comparison.extra and not only_others:
            await self._locate_after(end)

    async def _stretches_equal(self, end: int) -> bool:
        """Read on, until a stretch differs or nothing is left."""
        async with aclosing(self._reader.batches(self._comparison.began, end)) as stretches:
            async for data, headers in stretches:
                same = await self._off_loop(self._comparison.feed, data, headers)
                self._tell()
                if not same:
                    return False
        return True

    async def _locate(self, end: int) -> bool:
        """Find what differs in the current stretch, and pass over it. False if nothing of the target is after it."""
        comparison, stretch = self._comparison, self._comparison.stretch
        assert stretch is not None
        if stretch.end <= self._lost_until:
            self._add([Difference(DifferenceKind.LOST, stretch.start, None, stretch.records)])
            self._differing.append((stretch.start, stretch.end))
            comparison.passed(RecordDigest(offsets=False), comparison.began)
            return True
        begins, named = await self._begins()
        archived, records = await self._listed(begins, stretch.end, stretch.records)
        most = max(records, stretch.records) + AHEAD
        while True:
            target = await self._of_target(self._reader.listed(comparison.began, end, most))
            continues = len(target) == most
            found = await self._aligned(archived, records, target, end)
            if found.taken < len(target) or not continues or most >= _MOST_LISTED * max(records, stretch.records):
                break
            most *= 2
        self._differing.append((stretch.start, stretch.end))
        if not found.differences or records != stretch.records:
            self._reasons.append(_wrong_digests(named if records > stretch.records else stretch.start, stretch.end))
        self._add([await self._with_fields(item) for item in found.differences])
        nothing_left = found.taken >= len(target)
        if found.taken < len(target):
            following = target.offsets[found.taken]
        else:
            following = target.offsets[-1] + 1 if continues else end
        passed = await self._of_target(self._reader.noted(comparison.began, following))
        comparison.passed(passed, following)
        self._located = comparison.at
        if nothing_left and not comparison.is_whole:
            if not continues:
                self._add_lost_after()
            return False
        return True

    async def _begins(self) -> tuple[int, int]:
        """Return the source offset from which on archived records were not compared, and that of the first stretch
        whose digests may be wrong if these are more than digests claim. What a stretch that was found equal has beyond
        its digests is among them, and so is what lies in stretches without a claim."""
        before, until = self._comparison.before, self._comparison.passed_until
        if before is None or self._located == self._comparison.at:
            return until, until
        archived = await self._archived(self._wanted.listed, before.start, MAX_OFFSET, before.records + 1)
        if len(archived) > before.records and archived.offsets[-1] < until:
            return archived.offsets[-1], before.start
        return until, until

    async def _listed(self, start: int, stop: int, claimed: int) -> tuple[ListedRecords, int]:
        """Return the archived records from source offset `start` on, and how many of them lie below `stop`: as many as
        are `claimed`, if the digests are right. AHEAD more follow if there are this many."""
        most = claimed + AHEAD
        while True:
            archived = await self._archived(self._wanted.listed, start, MAX_OFFSET, most)
            records = sum(offset < stop for offset in archived.offsets)
            if len(archived) < most or records + AHEAD <= most or records > _MOST_LISTED * STRETCH_RECORDS:
                return archived, records
            most *= 2

    async def _aligned(self, archived: ListedRecords, records: int, target: ListedRecords, end: int) -> Alignment:
        """Return the differences of the current stretch, which has the first `records` of the archived ones. If more
        was added than is listed, the target is listed without it."""

        async def aligned(*, pair_up: bool) -> Alignment:
            offsets = self._task.offsets
            return await self._off_loop(
                lambda: align(archived, target, records, most=MAX_DIFFERENCES, offsets=offsets, pair_up=pair_up)
            )

        found = await aligned(pair_up=False)
        if found.apart is None:
            return found
        later = target.digests[found.taken : found.taken + AHEAD]
        lost_until = await self._found_in_archive(archived.offsets[-1] + 1, frozenset(later))
        if lost_until is not None:
            self._lost_until = lost_until
            first, count = archived.offsets[found.apart], records - found.apart
            lost = Difference(DifferenceKind.LOST, first, None, count)
            return Alignment((*found.differences, lost), found.taken)
        wanted = frozenset(archived.digests[found.apart : found.apart + AHEAD])
        first, most = target.offsets[found.taken], _STRETCHES_SEARCHED * STRETCH_RECORDS
        place = await self._of_target(self._reader.first_of(first, end, wanted, most))
        if place is None:
            self._note_bounds(archived.offsets[-1] + 1, first, end)
            return await aligned(pair_up=True)
        more, following = place
        rest = await self._of_target(self._reader.listed(following, end, records - found.apart + AHEAD))
        del target.offsets[found.taken :], target.digests[found.taken :]
        target.follow(rest)
        found = await aligned(pair_up=True)
        added = Difference(DifferenceKind.ADDED, None, first, more)
        return replace(found, differences=(added, *found.differences))

    def _note_bounds(self, source: int, target: int, end: int) -> None:
        """Note that more lies after what was searched for something that both sides have."""
        most = _STRETCHES_SEARCHED * STRETCH_RECORDS
        if len(self._stretches_after(source)) > _STRETCHES_SEARCHED or end - target > most:
            self._reasons.append(
                f"after the archive's offset {source - 1} and the target's offset {target} nothing was found that "
                f"both have, and no more than about {most} records were searched for it: records that are called "
                "changed there may have been lost, or added"
            )

    def _stretches_after(self, start: int) -> list[int]:
        """The ends of the stretches that reach after a source offset."""
        return [item.end for item in self._expected if item.end > start]

    async def _found_in_archive(self, start: int, digests: frozenset[bytes]) -> int | None:
        """Return the source offset of the first record with one of these digests in the next stretches, None if there
        is none."""
        later = self._stretches_after(start)[:_STRETCHES_SEARCHED]
        if not later:
            return None
        found = await self._archived(self._wanted.first_of, start, later[-1], digests, MAX_OFFSET)
        return found and found[1]

    async def _with_fields(self, found: Difference) -> Difference:
        """Return the difference with the fields that differ. Both records are read again for it: nothing else keeps
        one."""
        source, target = found.source_offset, found.target_offset
        if found.kind is not DifferenceKind.CHANGED or source is None or target is None:
            return found
        archived = await self._archived(self._wanted.record_at, source)
        there = await self._of_target(self._reader.record_at(target))
        if archived is None or there is None:
            return found
        return replace(found, fields=differing_fields(archived, there))

    def _add(self, found: list[Difference]) -> None:
        """Add differences. Lost records of several stretches are one difference."""
        self._differences = list(joined([*self._differences, *found]))

    async def _off_loop(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args))

    async def _archived(self, ask: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """Ask for records of the archive. Their reader waits for the storage, and so it has a thread."""
        return await self._off_loop(lambda: asyncio.run(ask(*args)))

    def _add_lost_after(self) -> None:
        """The target has ended: all that was not compared is missing."""
        stretch, missing = self._comparison.stretch, self._comparison.missing
        assert stretch is not None
        self._add([Difference(DifferenceKind.LOST, stretch.start, None, missing)])
        self._differing.append((stretch.start, self._end))

    async def _locate_after(self, end: int) -> None:
        """Find out what the records are that lie after all stretches in which there should be some."""
        comparison = self._comparison
        first, left = comparison.extra_from, comparison.extra
        begins, named = await self._begins()
        archived, records = await self._listed(begins, self._end, 0)
        if records:
            self._reasons.append(_wrong_digests(named, self._end))
            target = await self._of_target(self._reader.listed(first, end, records + AHEAD))
            found = await self._aligned(archived, records, target, end)
            self._add([await self._with_fields(item) for item in found.differences])
            left -= found.taken
            first = target.offsets[found.taken] if found.taken < len(target) else end
        if left > 0:
            later = await self._of_target(self._reader.listed(first, end, 1))
            self._add([await self._what_is_after(later, first, left)])

    async def _what_is_after(self, found: ListedRecords, first: int, count: int) -> Difference:
        """This many records from a target offset on, after all that the archive has."""
        archived = ListedRecords()
        for last in self._expected[-1:]:
            archived = await self._archived(self._wanted.listed, last.start, MAX_OFFSET, last.records)
        again = bool(found.digests) and found.digests[0] in archived.digests
        kind = DifferenceKind.TWICE if again else DifferenceKind.ADDED
        return Difference(kind, None, first, count)

    def _tell(self) -> None:
        task, records = self._restored, self._comparison.records
        update = PartitionUpdate(
            task.topic.target, task.part.target, task.number, self._reached, records, self._reader.bytes
        )
        self._progress.tell(update)

    @property
    def _reached(self) -> int:
        """The source offset up to which the comparison has come."""
        stretch = self._comparison.stretch
        return self._end if stretch is None else stretch.start

    @property
    def _end(self) -> int:
        """The source offset after all that is expected."""
        return self._expected[-1].end if self._expected else 0

    def _found(self) -> VerifiedPartition:
        task, comparison, reader = self._restored, self._comparison, self._reader
        reasons = list(self._reasons)
        if reader.others:
            others = so_many(reader.others, "record")
            reasons.append(f"others have written {others} to the target, from offset {reader.others_from} on")
        if self._task.compacts:
            reasons.append("the target has cleanup.policy=compact: records may be removed from it at any time")
        only_lost = all(found.kind is DifferenceKind.LOST for found in self._differences)
        if self._differences and not (self._task.compacts and only_lost):
            verdict = Verdict.DIFFERENT
        elif self._differences or reasons or not comparison.is_whole:
            verdict = Verdict.NOT_VERIFIED
        else:
            verdict = Verdict.VERIFIED
        return VerifiedPartition(
            source=task.archived.topic,
            target=task.topic.target,
            partition=task.part.target,
            verdict=verdict,
            expected=sum(stretch.records for stretch in self._expected),
            records=comparison.records,
            bytes=reader.bytes,
            reasons=shortened(reasons, MAX_REASONS),
            differences=tuple(self._differences[:MAX_DIFFERENCES]),
            stretches=comparison.at,
            differing=tuple(self._differing[:MAX_DIFFERENCES]),
            times=comparison.times,
            offsets=(self._expected[0].start if self._expected else 0, self._end),
            compared_until=self._reached,
        )


def _wrong_digests(start: int, stop: int) -> str:
    return (
        f"the digests of the archive's offsets {start} to {stop - 1} are not those of its records: delete them, and "
        "verify again"
    )


def shortened(texts: Sequence[str], most: int) -> tuple[str, ...]:
    """At most this many texts, and how many more there are."""
    more = len(texts) - most
    return tuple(texts) if more <= 0 else (*texts[:most], f"and {more} more")

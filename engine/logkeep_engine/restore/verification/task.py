"""Reads restored partitions back and compares them with the archive's digests. Runs on executors."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum

from logkeep_engine.archive.care.record_digests import RecordTimes, StretchDigest
from logkeep_engine.errors import OffsetOutOfRange
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.restore.attempt import RestoreTask
from logkeep_engine.restore.verification.aligning import (
    WINDOW,
    Alignment,
    ListedRecords,
    RecordDifference,
    RecordDifferenceKind,
    align,
)
from logkeep_engine.restore.verification.comparing import StretchComparison
from logkeep_engine.restore.verification.target import TargetReader
from logkeep_engine.restore.verification.wanted import RestoredRecords
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress

MAX_DIFFERENCES = 20
"""So many differences of a partition are named. Then it is read no further."""

_AT_ONCE = 4


class Verdict(StrEnum):
    """The finding of a verification."""

    VERIFIED = "Verified"
    NOT_VERIFIED = "NotVerified"
    """Nothing was found to differ, but not all was compared, or the target does not stay what it is."""
    DIFFERENT = "Different"


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """A partition to verify: the work of its restore, and the digests of what it must hold. Pickles without secrets.

    `caveats` are reasons that the driver knows for which it cannot be called verified. `compacts`: the target may
    compact now. `offsets`: the offsets must be those of the source.
    """

    restored: RestoreTask
    expected: tuple[StretchDigest, ...]
    caveats: tuple[str, ...] = ()
    compacts: bool = False
    offsets: bool = False

    @property
    def records(self) -> int:
        return sum(stretch.records for stretch in self.expected)


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
    differences: tuple[RecordDifference, ...]
    stretches: int
    differing: tuple[tuple[int, int], ...]
    times: RecordTimes
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
        self._wanted = RestoredRecords(restored)
        self._client = client
        self._pool = pool
        self._progress = progress
        self._alone = alone
        self._reader = TargetReader(
            client,
            restored.target,
            restored.target_partition,
            restored.producer_id,
            context.throttle,
            created=restored.created,
        )
        self._comparison = StretchComparison(task.expected, restored.begins, offsets=task.offsets)
        self._reasons = list(task.caveats)
        self._differences: list[RecordDifference] = []
        self._differing: list[tuple[int, int]] = []

    async def run(self) -> VerifiedPartition:
        target, partition = self._restored.target, self._restored.target_partition
        begins = await self._client.start_offset(target, partition)
        if begins > self._restored.begins:
            self._reasons.append(f"the target's log begins at offset {begins}: what was before it is gone")
            return self._found()
        end = await self._client.end_offset(target, partition, committed=True)
        extent = self._restored.extent
        # A marker that was written twice may be behind the end; records there are found by the comparison.
        if extent is not None and (begins != extent.start or end < extent.end):
            self._reasons.append(
                f"the target's log goes from offset {begins} to {end}, and not from {extent.start} to {extent.end}"
            )
        try:
            await self._compare(end)
        except OffsetOutOfRange as error:
            self._reasons.append(f"the target was cut off while it was read: {error.message}")
            return self._found()
        after = await self._client.end_offset(target, partition)
        if after > end:
            self._reasons.append(f"others write to the target: it has grown from offset {end} to {after}")
        return self._found()

    async def _compare(self, end: int) -> None:
        comparison = self._comparison
        while not await self._stretches_equal(end) or not comparison.is_whole:
            if comparison.stretch is None:
                raise AssertionError("nothing is left, and something differs")
            async with self._alone:
                following = await self._locate(end)
            if following is None or len(self._differences) >= MAX_DIFFERENCES:
                return
        others = self._reader.others
        only_others = others.records >= comparison.extra and others.first >= comparison.extra_from
        if comparison.extra and not only_others:
            found = await self._reader.listed(comparison.extra_from, end, 1)
            self._differences.append(await self._what_is_behind(found))

    async def _stretches_equal(self, end: int) -> bool:
        """Read on, until a stretch differs or nothing is left."""
        loop, comparison = asyncio.get_running_loop(), self._comparison
        async with aclosing(self._reader.stretches(comparison.began, end)) as stretches:
            async for data, headers in stretches:
                same = await loop.run_in_executor(self._pool, comparison.feed, data, headers)
                self._tell()
                if not same:
                    return False
        return True

    async def _locate(self, end: int) -> int | None:
        """Find what differs in the current stretch, and pass over it. Returns the target's offset behind it, None if
        nothing is behind it."""
        comparison, stretch = self._comparison, self._comparison.stretch
        assert stretch is not None
        loop = asyncio.get_running_loop()
        most = stretch.records + WINDOW
        archived = await loop.run_in_executor(self._pool, self._wanted.listed, stretch.start, most)
        target = await self._reader.listed(comparison.began, end, most)
        found: Alignment = await loop.run_in_executor(
            self._pool, lambda: align(archived, target, stretch.records, offsets=self._task.offsets)
        )
        self._differing.append((stretch.start, stretch.end))
        if not found.differences:
            self._reasons.append(
                f"the digests of the archive's offsets {stretch.start} to {stretch.end - 1} are not those of its "
                "records: delete them, and verify again"
            )
        self._differences += found.differences
        nothing_left = found.taken >= len(target)
        following = end if nothing_left else target.offsets[found.taken]
        comparison.passed(target.first(found.taken), following)
        if nothing_left and not comparison.is_whole:
            self._lost_behind()
            return None
        return following

    def _lost_behind(self) -> None:
        """The target has ended: all that was not compared is missing."""
        stretch, missing = self._comparison.stretch, self._comparison.missing
        assert stretch is not None
        self._differences.append(RecordDifference(RecordDifferenceKind.LOST, stretch.start, None, missing))
        self._differing.append((stretch.start, self._end))

    async def _what_is_behind(self, found: ListedRecords) -> RecordDifference:
        """Records behind all that the archive has."""
        comparison = self._comparison
        loop = asyncio.get_running_loop()
        archived = ListedRecords()
        for last in self._task.expected[-1:]:
            archived = await loop.run_in_executor(self._pool, self._wanted.listed, last.start, last.records)
        again = bool(found.digests) and found.digests[0] in archived.digests
        kind = RecordDifferenceKind.TWICE if again else RecordDifferenceKind.ADDED
        return RecordDifference(kind, None, comparison.extra_from, comparison.extra)

    def _tell(self) -> None:
        task, records = self._restored, self._comparison.records
        update = PartitionUpdate(
            task.target, task.target_partition, task.number, self._reached, records, self._reader.bytes
        )
        self._progress.tell(update)

    @property
    def _reached(self) -> int:
        """The source offset up to which the comparison has come."""
        stretch = self._comparison.stretch
        return self._end if stretch is None else stretch.start

    @property
    def _end(self) -> int:
        """The source offset behind all that is expected."""
        return self._task.expected[-1].end if self._task.expected else 0

    def _found(self) -> VerifiedPartition:
        task, comparison, others = self._restored, self._comparison, self._reader.others
        reasons = list(self._reasons)
        if others.records:
            what = f"{others.records} record{'s' if others.records > 1 else ''}"
            reasons.append(f"others have written {what} to the target, from offset {others.first} on")
        if self._task.compacts:
            reasons.append("the target has cleanup.policy=compact: records may be removed from it at any time")
        only_lost = all(found.kind is RecordDifferenceKind.LOST for found in self._differences)
        if self._differences and not (self._task.compacts and only_lost):
            verdict = Verdict.DIFFERENT
        elif self._differences or reasons or not comparison.is_whole:
            verdict = Verdict.NOT_VERIFIED
        else:
            verdict = Verdict.VERIFIED
        return VerifiedPartition(
            source=task.source,
            target=task.target,
            partition=task.target_partition,
            verdict=verdict,
            expected=self._task.records,
            records=comparison.records,
            bytes=self._reader.bytes,
            reasons=tuple(reasons),
            differences=tuple(self._differences[:MAX_DIFFERENCES]),
            stretches=comparison.at,
            differing=tuple(self._differing),
            times=comparison.times,
            offsets=(self._task.expected[0].start if self._task.expected else 0, self._end),
            compared_until=self._reached,
        )

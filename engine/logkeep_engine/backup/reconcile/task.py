"""Compares the keys of archived partitions with those of the live ones. Runs on executors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import is_batched, open_partition, sound
from logkeep_engine.backup.reconcile.comparing import CleanerTooFast, ComparedKeys, compare_keys
from logkeep_engine.compare.sources import MAY_HAPPEN_TO_ONE, LiveRecords
from logkeep_engine.errors import (
    ArchiveDamaged,
    OffsetOutOfRange,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.committed import CommittedBatches
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import walk
from logkeep_engine.log.key_comparison import MOST_OFFSETS, KeyCounts, KeyNotes
from logkeep_engine.log.memory import task_bytes
from logkeep_engine.log.rows import as_rows, without_aborted
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress

_MAP_SHARE = 2, 3  # of a task's memory; fetches and blocks of objects take the rest
_ROUNDS = 3  # the log's start may move while it is read
_TOO_FAST = (
    "the cluster's cleaner has removed records of each stretch of the log before it was read, so it is unknown which "
    "keys have gone in the meantime: compare again when fewer records are written"
)
_CUT_OFF = "the log was cut off while it was read (unclean leader election): compare again"


class KeyVerdict(StrEnum):
    """The finding about a partition, or about all of them."""

    SAME = "Same"
    STALE_KEYS = "StaleKeys"
    NOT_COMPARED = "NotCompared"
    KEYS_MISSING = "KeysMissing"


@dataclass(frozen=True, slots=True)
class ReconcileTask:
    """A partition to compare; pickles without secrets. `kept` are the ranges of offsets that the segments stand for,
    and `accounted` those for which the archive accounts, without what its retention has removed. `end` is where the
    archive ends. At most `most` offsets of each kind are reported."""

    number: int
    connection: KafkaConnection
    storage: Storage
    topic: str
    topic_id: str
    partition: int
    segments: tuple[SegmentEntry, ...]
    kept: tuple[Range, ...]
    accounted: tuple[Range, ...]
    end: int
    most: int

    @property
    def bytes(self) -> int:
        """Archived bytes."""
        return sum(entry.bytes for entry in self.segments)


@dataclass(frozen=True, slots=True)
class ReconciledPartition:
    """The findings about a partition, whose archive ends at offset `archived_end`. `failed`: why it could not be
    compared, or not to its end."""

    topic: str
    topic_id: str
    partition: int
    archived_end: int
    keys: ComparedKeys | None = None
    failed: str = ""

    @property
    def key(self) -> Partition:
        return self.topic_id, self.partition

    @property
    def counts(self) -> KeyCounts:
        return self.keys.counts if self.keys is not None else KeyCounts()

    @property
    def verdict(self) -> KeyVerdict:
        if self.keys is None:
            return KeyVerdict.NOT_COMPARED
        if self.counts.wrong:
            return KeyVerdict.KEYS_MISSING
        return KeyVerdict.STALE_KEYS if self.counts.stale else KeyVerdict.SAME


def reconcile_partitions(tasks: tuple[ReconcileTask, ...], context: TaskContext) -> tuple[ReconciledPartition, ...]:
    """Compare some partitions of one cluster, one after the other. What happens to one is in its findings; raises what
    the clients and the storage raise in addition to that."""
    return asyncio.run(_reconcile_all(tasks, context))


async def _reconcile_all(tasks: tuple[ReconcileTask, ...], context: TaskContext) -> tuple[ReconciledPartition, ...]:
    progress = TaskProgress(context)
    async with RawClient(tasks[0].connection) as client:
        return tuple([await _Reconciliation(task, client, progress, context.throttle).run() for task in tasks])


class _NotComparable(Exception):
    """The leader's log is not the one that was archived, or has offsets that no comparison holds."""


class _Reconciliation:
    """The comparison of one partition."""

    def __init__(self, task: ReconcileTask, client: RawClient, progress: TaskProgress, throttle: Throttle) -> None:
        self._task = task
        self._client = client
        self._progress = progress
        self._throttle = throttle
        self._share = (0, 1)

    async def run(self) -> ReconciledPartition:
        task, found, failed = self._task, None, ""
        try:
            found = await self._compared_in_rounds()
        except _NotComparable as error:
            failed = str(error)
        except CleanerTooFast:
            failed = _TOO_FAST
        except (ArchiveDamaged, *MAY_HAPPEN_TO_ONE) as error:
            failed = f"{error.message} {error.hint}".strip()
        return ReconciledPartition(task.topic, task.topic_id, task.partition, task.end, found, failed)

    async def _compared_in_rounds(self) -> ComparedKeys:
        for _ in range(_ROUNDS - 1):
            try:
                return await self._compared()
            except OffsetOutOfRange:  # retention was faster than the read
                continue
        return await self._compared()

    async def _compared(self) -> ComparedKeys:
        task = self._task
        live = _Live(self._client, task, self._throttle, self._tell)
        before = await live.epoch()
        stable = await live.stable_end()
        if stable < task.end:
            raise _NotComparable(
                f"its log ends at offset {stable}, but the archive at {task.end}: the cluster has lost records"
            )
        if stable > MOST_OFFSETS:
            raise _NotComparable(
                f"its log ends at offset {stable}, and the keys of offsets from {MOST_OFFSETS} on cannot be compared"
            )
        found = await compare_keys(
            partial(_note_archived, task),
            live,
            task.end,
            task.accounted,
            map_bytes=task_bytes() * _MAP_SHARE[0] // _MAP_SHARE[1],
            most=task.most,
            on_share=self._begin_share,
        )
        if await live.is_cut_off(before, min(found.end, before.end_offset)):
            raise _NotComparable(_CUT_OFF)
        return found

    def _begin_share(self, number: int, shares: int) -> None:
        self._share = (number, shares)

    def _tell(self, at: int, size: int) -> None:
        """Report how far the live log was read: a share counts as its part of the offsets."""
        task, (number, shares) = self._task, self._share
        at = (min(at, task.end) + number * task.end) // shares
        self._progress.tell(PartitionUpdate(task.topic, task.partition, task.number, at, 0, size))


def _note_archived(task: ReconcileTask, keys: KeyNotes) -> None:
    """Note the archived records of a partition."""
    whole = open_partition(task.storage, task.topic, task.segments, task.kept)
    aborted = Spans.of(whole.transactions.aborted)
    for entry in task.segments:
        reader = open_partition(task.storage, task.topic, (entry,), aborted=())
        if not is_batched(entry.layout):
            for records in reader.records():
                keys.note(as_rows(records), live=False)
            continue
        with sound(task.storage, task.topic, entry):
            for stretch, headers in reader.batches():
                for part in without_aborted(headers, aborted):
                    keys.note_batches(stretch, part, live=False)


class _Live(LiveRecords):
    """The log of a partition as its leader has it, see `comparing.LiveLog`."""

    def __init__(
        self, client: RawClient, task: ReconcileTask, throttle: Throttle, on_read: Callable[[int, int], None]
    ) -> None:
        super().__init__(client, task.topic, task.partition, throttle, topic_id=task.topic_id)
        self._on_read = on_read

    async def note(self, keys: KeyNotes, start: int, end: int) -> bool:
        seen = CommittedBatches()
        dense: int | None = start
        async with aclosing(self.fetched(start, end)) as answers:
            async for fetched in answers:
                dense = _dense_to(fetched.data, dense, end)
                for headers in seen.of(fetched, end):
                    await asyncio.to_thread(keys.note_batches, fetched.data, headers, live=True)
                self._on_read(fetched.next_offset, self.bytes)
        return dense is not None and dense >= end


def _dense_to(data: memoryview, at: int | None, end: int) -> int | None:
    """Return the offset up to which all are there that these batches cover from `at` on; None if one is missing."""
    if at is None:
        return None
    for _, header in walk(data):
        if header.next_offset <= at:
            continue
        if at >= end:
            break
        if header.base_offset > at or header.has_gaps:
            return None
        at = header.next_offset
    return at

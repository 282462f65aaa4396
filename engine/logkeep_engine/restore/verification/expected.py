"""Gets the digests of what a restore brings: those that are kept, and new ones where there are none that fit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.maintenance.kept_digests import AT_ONCE, DigestsInWork, DigestsPlace, keep_as_made
from logkeep_engine.archive.maintenance.record_digests import (
    RecordTimes,
    SegmentDigests,
    StretchBuilder,
    digests_of,
    fitting,
    packed_stretches,
    reaching_into,
    within,
)
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.log.batch import runs
from logkeep_engine.log.transactions import Span, Spans
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.verification.sources import RestoredRecords
from logkeep_engine.tasks import TaskContext, in_groups

_READ_BYTES = 256 << 20  # archived bytes that one task reads
_PER_SLOT = 4
_SEGMENTS_AT_ONCE = 4096  # the driver holds the digests of this many with all that is known of them


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """Segments of a partition of which a restore needs digests that were not kept. Pickles without secrets."""

    archived: ArchivedPartition
    segments: tuple[SegmentEntry, ...]
    aborted: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ExpectedRecords:
    """The digests of what a restore brings to a partition, in order (`packed_stretches`), and the times of these
    records."""

    stretches: bytes
    times: RecordTimes
    made: int
    """This many segments had to be read for it."""


def expected_records(context: RestoreContext, tasks: Sequence[RestoreTask], buckets: int) -> list[ExpectedRecords]:
    """Return the digests for each task, with the times in this many buckets. Those that had to be made are kept. Raises
    ArchiveDamaged."""
    found: list[ExpectedRecords] = []
    for some in in_groups(tasks, lambda task: len(task.archived.segments), _SEGMENTS_AT_ONCE):
        found += _expected(context, some, buckets)
    return found


def _expected(context: RestoreContext, tasks: Sequence[RestoreTask], buckets: int) -> list[ExpectedRecords]:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        partitions = list(pool.map(lambda task: _Partition(context, task.archived), tasks))
    missing = [entry for partition in partitions for entry in partition.missing]
    if missing:
        size = sum(entry.bytes for entry in missing)
        most = min(_READ_BYTES, size // (_PER_SLOT * context.slots(len(missing), size, limited=False)))
        work, of = [], []
        for partition in partitions:
            for segments in in_groups(partition.missing, lambda entry: entry.bytes, most):
                aborted = reaching_into(partition.aborted, segments)
                work.append(ExpectedWork(partition.archived, tuple(segments), aborted))
                of.append(partition.digests)
        keep_as_made(of, lambda on_result: context.run_tasks(work, make_expected, on_result))
    _clip(context, partitions)
    return [partition.expected(buckets) for partition in partitions]


@dataclass(frozen=True, slots=True)
class ClippedWork:
    """The segments of a partition of which a restore to a point may bring a part only, with their digests. They are one
    work item, since what is known of the transactions of a partition is read for all of them. Pickles without secrets.
    """

    archived: ArchivedPartition
    digests: tuple[SegmentDigests, ...]


@dataclass(frozen=True, slots=True)
class ClippedDigests:
    """The digests of what a restore to a point brings of these segments, of which this many were `read` for it."""

    digests: tuple[SegmentDigests, ...]
    read: int


def clip_expected(work: ClippedWork, context: TaskContext) -> ClippedDigests:
    """Runs on an executor. Raises ArchiveDamaged."""
    records = RestoredRecords(work.archived)
    known = [records.known_of(digests) for digests in work.digests]
    found = [own or records.of(digests) for own, digests in zip(known, work.digests, strict=True)]
    return ClippedDigests(tuple(found), known.count(None))


def _clip(context: RestoreContext, partitions: Sequence[_Partition]) -> None:
    """Have the digests of parts made."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        cut = list(zip(partitions, pool.map(_Partition.cut, partitions), strict=True))
    of = [partition for partition, some in cut if some]
    work = [ClippedWork(partition.archived, some) for partition, some in cut if some]

    def on_result(index: int, found: ClippedDigests) -> None:
        of[index].clipped.update((digests.base_offset, digests) for digests in found.digests)
        of[index].read += found.read

    context.run_tasks(work, clip_expected, on_result)


def make_expected(work: ExpectedWork, context: TaskContext) -> tuple[SegmentDigests, ...]:
    """Runs on an executor. Raises ArchiveDamaged if a segment is not what the catalog, or the survey, says."""
    archived, aborted = work.archived, Spans(work.aborted)
    return tuple(
        _of_damaged(archived, entry, aborted)
        if entry.base_offset in archived.damaged
        else digests_of(archived.storage, archived.topic, entry, aborted)
        for entry in work.segments
    )


def _of_damaged(archived: ArchivedPartition, entry: SegmentEntry, aborted: Spans) -> SegmentDigests:
    """Return the digests of what is left of a damaged segment."""
    builder = StretchBuilder(entry.base_offset)
    if is_batched(entry.layout):
        for stretch in archived.stretches(entry):
            for headers in runs(stretch, checked=False):
                builder.add_batches(stretch, headers, aborted)
    stretches, times = builder.finish(entry.next_offset)
    return SegmentDigests(entry.base_offset, entry.next_offset, entry.digest, within(aborted, entry), stretches, times)


class _Partition:
    """The digests of one partition, as far as they are known."""

    def __init__(self, context: RestoreContext, archived: ArchivedPartition) -> None:
        self.archived = archived
        self._wanted = RestoredRecords(archived)
        self.aborted = self._wanted.aborted
        clip = archived.clip
        self._entries = [entry for entry in archived.segments if clip is None or clip.reaches(entry)]
        place = DigestsPlace(context.state.storage, archived.topic, archived.topic_id, archived.partition)
        kept = place.load()
        damaged = archived.damaged
        sound = [entry for entry in archived.segments if entry.base_offset not in damaged]  # also beyond a point
        known = fitting(kept, sound, self.aborted)
        if not context.state.beside:
            others = DigestsPlace(context.archive.storage, archived.topic, archived.topic_id, archived.partition).load()
            known = fitting(others, sound, self.aborted) | known
        self.missing = [entry for entry in self._entries if entry.base_offset not in known]
        # Other segments may be wanted by another restore. Those that retention has removed are dropped.
        first = min((start for start, _ in archived.kept), default=0)
        stays = {base: found for base, found in kept.items() if found.next_offset > first}
        self.digests = DigestsInWork(place, stays, known, (entry.base_offset for entry in self.missing), damaged)
        self.clipped: dict[int, SegmentDigests] = {}
        """The digests of parts, by the base offsets of segments."""
        self.read = len(self.missing)

    def cut(self) -> tuple[SegmentDigests, ...]:
        """Return the digests of segments of which an executor must find what is needed. What is known without it is
        noted."""
        known = [self.digests.known[entry.base_offset] for entry in self._entries]
        if self._wanted.asks_segments:
            return tuple(known)
        left = []
        for digests in known:
            wanted = self._wanted.known_of(digests)
            if wanted is None:
                left.append(digests)
            else:
                self.clipped[digests.base_offset] = wanted
        return tuple(left)

    def expected(self, buckets: int) -> ExpectedRecords:
        """Return all of it, in the order of the segments."""
        known = {**self.digests.known, **self.clipped}
        found = [known[entry.base_offset] for entry in self._entries]
        return ExpectedRecords(
            packed_stretches(stretch for digests in found for stretch in digests.stretches),
            RecordTimes.together((digests.times for digests in found), buckets),
            self.read,
        )

"""Gets the digests of what a restore brings: those that are kept, and new ones where there are none that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from logkeep_engine.archive.care.kept_digests import DigestsPlace
from logkeep_engine.archive.care.record_digests import (
    RecordTimes,
    SegmentDigests,
    StretchBuilder,
    StretchDigest,
    digests_of,
    within,
)
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.log.batch import runs
from logkeep_engine.log.transactions import Span, Spans
from logkeep_engine.restore.attempt import RestoreTask
from logkeep_engine.restore.context import RestoreContext
from logkeep_engine.restore.task import stretches_of
from logkeep_engine.restore.verification.wanted import RestoredRecords
from logkeep_engine.tasks import TaskContext

_READ_BYTES = 256 << 20  # archived bytes that one task reads
_PER_SLOT = 4
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """Segments of a partition of which a restore needs digests that nobody has kept. Pickles without secrets."""

    task: RestoreTask
    segments: tuple[SegmentEntry, ...]
    aborted: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ExpectedRecords:
    """The digests of what a restore brings to a partition, in order, and the times of these records."""

    stretches: tuple[StretchDigest, ...]
    times: RecordTimes
    made: int
    """So many segments had to be read for it."""


def expected_records(context: RestoreContext, tasks: Sequence[RestoreTask]) -> list[ExpectedRecords]:
    """The digests for each task. Those that had to be made are kept. Raises ArchiveDamaged."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        partitions = list(pool.map(lambda task: _Partition(context, task), tasks))
    missing = [(partition, entry) for partition in partitions for entry in partition.missing]
    size = sum(entry.bytes for _, entry in missing)
    most = _READ_BYTES
    if missing:
        most = min(most, size // (_PER_SLOT * context.slots(len(missing), size, limited=False)))
    work, of = [], []
    for partition in partitions:
        for segments in _groups(partition.missing, most):
            work.append(ExpectedWork(partition.task, segments, tuple(partition.aborted.rows())))
            of.append(partition)

    def on_result(index: int, found: tuple[SegmentDigests, ...]) -> None:
        of[index].add(found)

    context.run_tasks(work, make_expected, on_result)
    _clip(context, partitions)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        list(pool.map(_Partition.keep, partitions))
    return [partition.expected() for partition in partitions]


@dataclass(frozen=True, slots=True)
class ClippedWork:
    """A segment of which a restore to a point brings a part only, with its digests. Pickles without secrets."""

    task: RestoreTask
    digests: SegmentDigests


def clip_expected(work: ClippedWork, context: TaskContext) -> SegmentDigests:
    """Runs on an executor: the digests of that part. Raises ArchiveDamaged."""
    return RestoredRecords(work.task).of(work.digests)


def _clip(context: RestoreContext, partitions: Sequence[_Partition]) -> None:
    """Have the digests of parts made."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        cut = list(pool.map(_Partition.cut, partitions))
    of = [partition for partition, some in zip(partitions, cut, strict=True) for _ in some]
    work = [ClippedWork(partition.task, digests) for partition, digests in zip(of, chain(*cut), strict=True)]

    def on_result(index: int, digests: SegmentDigests) -> None:
        of[index].clipped[digests.base_offset] = digests

    context.run_tasks(work, clip_expected, on_result)


def make_expected(work: ExpectedWork, context: TaskContext) -> tuple[SegmentDigests, ...]:
    """Runs on an executor. Raises ArchiveDamaged if a segment is not what the catalog, or the survey, says."""
    task, aborted = work.task, Spans(work.aborted)
    return tuple(
        _of_damaged(task, entry, aborted)
        if _is_damaged(task, entry)
        else digests_of(task.storage, task.source, entry, aborted)
        for entry in work.segments
    )


def _of_damaged(task: RestoreTask, entry: SegmentEntry, aborted: Spans) -> SegmentDigests:
    """The digests of what is left of a damaged segment."""
    builder = StretchBuilder(entry.base_offset)
    if is_batched(entry.layout):
        for stretch in stretches_of(task, entry):
            for headers in runs(stretch, checked=False):
                builder.add_batches(stretch, headers, aborted)
    stretches, times = builder.finish(entry.next_offset)
    return SegmentDigests(entry.base_offset, entry.next_offset, entry.digest, within(aborted, entry), stretches, times)


def _is_damaged(task: RestoreTask, entry: SegmentEntry) -> bool:
    return task.survey is not None and entry.base_offset in task.survey.damaged


class _Partition:
    """The digests of one partition, as far as they are known."""

    def __init__(self, context: RestoreContext, task: RestoreTask) -> None:
        self.task = task
        self._wanted = RestoredRecords(task)
        self.aborted = self._wanted.aborted
        self._place = DigestsPlace(context.state.storage, task.source, task.topic_id, task.partition)
        self._kept = self._place.load()
        others: Mapping[int, SegmentDigests] = {}
        if not context.state.beside:
            others = DigestsPlace(context.archive.storage, task.source, task.topic_id, task.partition).load()
        self._known: dict[int, SegmentDigests] = {}
        for entry in task.segments:  # also of those beyond a point: they are kept
            for kept in (self._kept, others):
                found = kept.get(entry.base_offset)
                if found is not None and not _is_damaged(task, entry) and found.fits(entry, self.aborted):
                    self._known[entry.base_offset] = found
        clip = task.clip
        self._entries = [entry for entry in task.segments if clip is None or clip.reaches(entry)]
        self.missing = [entry for entry in self._entries if entry.base_offset not in self._known]
        self.clipped: dict[int, SegmentDigests] = {}
        """The digests of parts, by the base offsets of segments."""

    def add(self, digests: Sequence[SegmentDigests]) -> None:
        """Take digests that were made."""
        self._known.update((found.base_offset, found) for found in digests)

    def cut(self) -> list[SegmentDigests]:
        """The digests of segments of which only a part is wanted."""
        known = [self._known[entry.base_offset] for entry in self._entries]
        return [digests for digests in known if not self._wanted.is_whole(digests)]

    def keep(self) -> None:
        """Keep what was made, beside what is kept of segments that this restore does not know. Those that retention has
        removed are dropped."""
        damaged = {entry.base_offset for entry in self.task.segments if _is_damaged(self.task, entry)}
        made = {entry.base_offset for entry in self.missing} - damaged
        if not made:
            return
        first = self.task.segments[0].base_offset
        old = {base: found for base, found in self._kept.items() if base >= first}
        new = {base: found for base, found in self._known.items() if base not in damaged}
        self._place.keep({**old, **new}.values())

    def expected(self) -> ExpectedRecords:
        """All of it, in the order of the segments."""
        known = {**self._known, **self.clipped}
        found = [known[entry.base_offset] for entry in self._entries]
        return ExpectedRecords(
            tuple(stretch for digests in found for stretch in digests.stretches),
            RecordTimes.together(digests.times for digests in found),
            len(self.missing) + len(self.clipped),
        )


def _groups(entries: Sequence[SegmentEntry], most: int) -> Iterator[tuple[SegmentEntry, ...]]:
    group: list[SegmentEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.bytes > most:
            yield tuple(group)
            group, size = [], 0
        group.append(entry)
        size += entry.bytes
    if group:
        yield tuple(group)

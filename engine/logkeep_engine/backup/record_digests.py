"""Makes digests of the records that a run has archived, if the resource asks for it, after the run's end.

A verification makes the digests that it lacks, so a run is no failure for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.care.kept_digests import DigestsPlace
from logkeep_engine.archive.care.record_digests import DigestWork, SegmentDigests, make_digests
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext

_TASK_BYTES = 256 << 20

MakeDigests = Callable[[DigestWork, TaskContext], tuple[SegmentDigests, ...]]
OnDigests = Callable[[int, tuple[SegmentDigests, ...]], None]
RunTasks = Callable[[Sequence[DigestWork], MakeDigests, OnDigests], None]

__all__ = ["DigestWork", "MakeDigests", "OnDigests", "make_missing"]


@dataclass(slots=True)
class _Partition:
    """A partition of which digests are missing, and those that are kept or made."""

    place: DigestsPlace
    work: list[DigestWork]
    known: dict[int, SegmentDigests]


def make_missing(storage: Storage, state: ArchiveState, epoch: int, run_tasks: RunTasks) -> int:
    """Make the digests that lack in the partitions of which the run of this epoch has archived something, and keep
    them. Returns of how many segments. Raises ArchiveDamaged, and what the storage raises.
    """
    partitions = [
        found
        for key in list(state.segments)
        if any(entry.epoch == epoch for entry in state.segments[key]) and (found := _missing(storage, state, key)).work
    ]
    of = [partition for partition in partitions for _ in partition.work]

    def on_result(index: int, found: tuple[SegmentDigests, ...]) -> None:
        of[index].known.update((digests.base_offset, digests) for digests in found)

    work = [item for partition in partitions for item in partition.work]
    if work:
        run_tasks(work, make_digests, on_result)
    for partition in partitions:
        partition.place.keep(partition.known.values())
    return sum(len(item.segments) for item in work)


def _missing(storage: Storage, state: ArchiveState, key: Partition) -> _Partition:
    topic, entries = state.topics[key[0]].name, tuple(state.segments[key])
    place = DigestsPlace(storage, topic, *key)
    aborted = Spans.of(open_partition(storage, topic, entries, state.kept(*key)).transactions.aborted)
    kept = place.load()
    known = {
        entry.base_offset: kept[entry.base_offset]
        for entry in entries
        if entry.base_offset in kept and kept[entry.base_offset].fits(entry, aborted)
    }
    wanted = [entry for entry in entries if entry.base_offset not in known]
    rows = tuple(aborted.rows())
    return _Partition(place, [DigestWork(storage, topic, some, rows) for some in _groups(wanted)], known)


def _groups(entries: Sequence[SegmentEntry]) -> Iterator[tuple[SegmentEntry, ...]]:
    group: list[SegmentEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.bytes > _TASK_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(entry)
        size += entry.bytes
    if group:
        yield tuple(group)

"""The tasks of an erasure: some segments of a partition each, looked through and rewritten without the keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.held_tables import tables_of
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.moving import ATTEMPTS
from logkeep_engine.archive.maintenance.rewriting import (
    RewritePlace,
    Rewritten,
    SnapshotFrame,
    count_records,
    without_keys,
)
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.keys import WantedKeys
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskProgress, in_groups

TASK_BYTES = 256 << 20
TASK_SEGMENTS = 256


@dataclass(frozen=True, slots=True)
class ErasureSetting:
    """The settings that all tasks of an erasure share. Each gets them once, whatever the number of keys."""

    place: RewritePlace
    keys: WantedKeys


@dataclass(frozen=True, slots=True)
class ErasureWork:
    """Some segments, packed, of a line of the partition. `time`: the segments are all parts of a snapshot of that
    time."""

    number: int
    topic: str
    key: Partition
    line: int
    rows: bytes
    time: int | None = None

    @property
    def segments(self) -> PackedSegments:
        return PackedSegments(self.key, self.rows)


@dataclass(frozen=True, slots=True)
class ErasureDone:
    """The segments that a task has written, and the `faults` of segments that it could not read to their end."""

    rewritten: tuple[Rewritten, ...]
    faults: tuple[str, ...]


def erase_task(setting: ErasureSetting, work: ErasureWork, context: TaskContext) -> ErasureDone:
    """Rewrite the segments that hold a key. Raises what the storage raises."""
    progress = TaskProgress(context)
    keys = setting.keys.kernel()
    rewritten: list[Rewritten] = []
    faults: list[str] = []
    records = size = 0
    # Lines may have segments of the same base offset: their names must differ.
    attempt = work.line * ATTEMPTS + context.attempt
    last = len(work.segments) - 1
    for number, entry in enumerate(work.segments):
        frame = None if work.time is None else SnapshotFrame(work.time, number == last)
        try:
            found = without_keys(setting.place, keys, work.topic, entry, attempt, frame)
        # The run fails for it at the end, when all other segments are without the keys.
        except ArchiveDamaged as error:
            faults.append(error.message)
        else:
            rewritten += () if found is None else (found,)
        records, size = records + entry.records, size + entry.bytes
        progress.tell(PartitionUpdate(work.topic, entry.partition, work.number, entry.next_offset, records, size))
    return ErasureDone(tuple(rewritten), tuple(faults))


@dataclass(frozen=True, slots=True)
class KeysCounted:
    """The segments of a task that hold a key, with what a rewriting would read and write; `records` of them are those
    of the keys."""

    segments: int
    records: int
    bytes: int
    faults: tuple[str, ...]


def count_task(setting: ErasureSetting, work: ErasureWork, context: TaskContext) -> KeysCounted:
    """Count what `erase_task` would take out, and write nothing. Raises what the storage raises."""
    progress = TaskProgress(context)
    keys = setting.keys.kernel()
    segments = records = size = seen = read = 0
    faults: list[str] = []
    for entry in work.segments:
        try:
            found = count_records(setting.place.storage, keys, work.topic, entry)
        except ArchiveDamaged as error:
            faults.append(error.message)
        else:
            segments, records = segments + bool(found), records + found
            size += entry.bytes if found else 0
        seen, read = seen + entry.records, read + entry.bytes
        progress.tell(PartitionUpdate(work.topic, entry.partition, work.number, entry.next_offset, seen, read))
    return KeysCounted(segments, records, size, tuple(faults))


def works_of(state: ArchiveState, topic: str, topic_ids: Iterable[str]) -> list[ErasureWork]:
    """Return the tasks for all segments of these incarnations of a topic, on all lines."""
    wanted = set(topic_ids)
    found: list[ErasureWork] = []
    for key, line, segments in tables_of(state):
        if key[0] in wanted:
            for rows in _groups(segments):
                found.append(ErasureWork(len(found), topic, key, line, rows))
    for key in sorted(key for key in {*state.segments, *state.snapshots, *state.lines} if key[0] in wanted):
        for line, own in enumerate(state.own_facts(key)):
            for snapshot in own.snapshots:
                # Whole, whatever its size: its last part gets a footer.
                found.append(ErasureWork(len(found), topic, key, line, snapshot.rows, snapshot.time))
    return found


def _groups(segments: PackedSegments) -> Iterator[bytes]:
    sizes: Sequence[int] = [entry.bytes for entry in segments]
    for group in in_groups(range(len(segments)), sizes.__getitem__, TASK_BYTES, TASK_SEGMENTS):
        yield segments.between(group[0], group[-1] + 1)

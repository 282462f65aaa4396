"""One task of a compaction: makes a snapshot of a partition out of its last one and of the log behind that.

    clean section  (the parts of the last snapshot)      \\
                                                          > passes of `log.compaction` > parts of the new one
    dirty section  (the segments from its end on)        /

The dirty section is read twice, the clean one once, unless the keys do not fit into the memory of a task. Memory: the
map of the keys, some batches, a bit for each record, and the blocks of reader and writer.

A kill at any moment leaves objects under names that no other attempt and no other run uses. Only the commit that names
the parts makes a snapshot of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.snapshots import NO_TIME, SnapshotEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import open_partition, sound
from logkeep_engine.archive.writing.log_writer import SnapshotPlace, SnapshotSegment
from logkeep_engine.contract.spec import DigestAlgorithm
from logkeep_engine.log.batch import Headers, runs
from logkeep_engine.log.compaction import Compactor
from logkeep_engine.log.snapshot import FOOTER_BYTES, empty_batch, footer_batch, header_batch
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import REPORT_SECONDS, PartitionUpdate, TaskContext, TaskProgress


@dataclass(frozen=True, slots=True)
class CompactionSetting:
    """The settings that all tasks of a run share. It pickles without secrets.

    `epoch` is the run's. Tombstones go whose delete horizon is `now` (ms) or lies before it. A part of a snapshot has
    at most `max_bytes`, unless one batch has more.
    """

    storage: Storage
    epoch: int
    now: int
    max_bytes: int
    digest: DigestAlgorithm


@dataclass(frozen=True, slots=True)
class CompactionWork:
    """A partition to compact: its last snapshot (None: it has none), and the segments from the end of that on, in
    order, with the ranges of offsets (`kept`) that they stand for. `end` is where they end, and all transactions below
    have ended there. Tombstones without a delete horizon get that of `delete_retention` (ms) from now on. `number` is
    that of the work in its run, for progress."""

    number: int
    topic: str
    topic_id: str
    partition: int
    last: SnapshotEntry | None
    dirty: tuple[SegmentEntry, ...]
    kept: tuple[Range, ...]
    end: int
    delete_retention: int


@dataclass(frozen=True, slots=True)
class PartitionCompacted:
    """The answer of a task: the snapshot, and how many of its records are tombstones."""

    number: int
    snapshot: SnapshotEntry
    records: int
    tombstones: int


def compact_partition(setting: CompactionSetting, work: CompactionWork, context: TaskContext) -> PartitionCompacted:
    """Write the snapshot of a partition. Raises ArchiveDamaged if a segment or a part of the last snapshot is damaged,
    and BatchTooLarge for a batch that a task's memory does not allow to be looked into."""
    return _Compaction(setting, work, context).run()


class _Compaction:
    """One attempt at a partition."""

    def __init__(self, setting: CompactionSetting, work: CompactionWork, context: TaskContext) -> None:
        self._setting = setting
        self._work = work
        self._context = context
        self._progress = TaskProgress(context, after=REPORT_SECONDS)
        self._passed = 0
        self._leader_epoch = work.last.leader_epoch if work.last is not None else 0
        self._clean = work.last.parts if work.last is not None else ()
        aborted = open_partition(setting.storage, work.topic, work.dirty, work.kept).transactions.aborted
        self._compactor = Compactor(
            now=setting.now, horizon=setting.now + work.delete_retention, aborted=Spans.of(aborted)
        )

    def run(self) -> PartitionCompacted:
        """Note the keys, then copy what survives."""
        work, compactor = self._work, self._compactor
        while compactor.begin():
            self._pass(work.dirty, self._note_dirty)
            if compactor.is_divided:
                self._pass(self._clean, lambda stretch, _: compactor.note(False, stretch))
        compactor.begin_copy()
        with _Parts(self._setting, work, self._context.attempt, self._leader_epoch) as parts:
            self._pass(self._clean, lambda stretch, _: parts.write_all(compactor.copy(False, stretch)))
            self._pass(work.dirty, lambda stretch, _: parts.write_all(compactor.copy(True, stretch)))
            snapshot = parts.finish()
        return PartitionCompacted(work.number, snapshot, compactor.records, compactor.tombstones)

    def _note_dirty(self, stretch: memoryview, headers: Headers) -> None:
        self._leader_epoch = max(self._leader_epoch, headers[-1][1].leader_epoch)
        self._compactor.note(True, stretch)

    def _pass(self, section: Sequence[SegmentEntry], take: Callable[[memoryview, Headers], None]) -> None:
        """Let all batches of a section be taken, in order. A fault of one names its object."""
        storage, topic = self._setting.storage, self._work.topic
        for entry in section:
            with sound(storage, topic, entry):
                for stretch, headers in open_partition(storage, topic, (entry,)).batches():
                    take(stretch, headers)
                    self._tell(headers.next_offset, len(stretch))
                    del stretch, headers  # so that their buffer is free

    def _tell(self, at: int, size: int) -> None:
        self._passed += size
        work, records = self._work, self._compactor.records
        self._progress.tell(PartitionUpdate(work.topic, work.partition, work.number, at, records, self._passed))


class _Parts:
    """The parts of a snapshot, one after the other."""

    def __init__(self, setting: CompactionSetting, work: CompactionWork, attempt: int, leader_epoch: int) -> None:
        self._setting = setting
        self._place = SnapshotPlace(
            work.topic, work.topic_id, work.partition, setting.epoch, attempt, work.end, leader_epoch
        )
        times = [entry.times.max_timestamp for entry in work.dirty]
        self._time = max([NO_TIME if work.last is None else work.last.time, *times])
        self._open: SnapshotSegment | None = None
        self._parts: list[SegmentEntry] = []

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.abort()

    def write_all(self, copied: Iterable[memoryview]) -> None:
        """Append what was copied: whole batches."""
        for batches in copied:
            self.write(batches)

    def write(self, view: memoryview) -> None:
        """Append whole batches."""
        for headers in runs(view, checked=False):
            rest = headers
            while rest:
                taken = self._fitting(rest)
                if self._open is None or taken == 0:
                    self._close()
                    self._open = self._begin(rest[0][1].base_offset)
                    taken = max(1, self._fitting(rest))
                some, rest = rest[:taken], rest[taken:]
                self._open.builder.append(view[some.start : some.end], some)

    def finish(self) -> SnapshotEntry:
        """Write the footer. The snapshot is in the storage then."""
        place = self._place
        if self._open is None and not self._parts:
            self.write(memoryview(empty_batch(place.end - 1, self._time, place.leader_epoch)))
        assert self._open is not None
        builder = self._open.builder
        builder.frame(footer_batch(builder.next_offset, self._time, place.leader_epoch))
        self._close()
        return SnapshotEntry(
            place.topic_id, place.partition, place.end, place.leader_epoch, self._time, tuple(self._parts)
        )

    def _fitting(self, headers: Headers) -> int:
        """How many of the batches fit into the open part."""
        if self._open is None:
            return 0
        builder = self._open.builder
        room = min(self._setting.max_bytes - builder.size, builder.bytes_left) - FOOTER_BYTES
        near = headers.in_order(builder.next_offset, builder.last_possible_offset - 1)

        def end_of(number: int) -> int:
            at, header = headers[number]
            return at + header.size - headers.start

        return bisect_right(range(near), room, key=end_of)

    def _begin(self, base_offset: int) -> SnapshotSegment:
        number = len(self._parts)
        part = SnapshotSegment(self._setting.storage, self._place, number, base_offset, self._setting.digest)
        if not number:
            part.builder.frame(header_batch(base_offset, self._time, self._place.leader_epoch))
        return part

    def _close(self) -> None:
        if self._open is not None:
            self._parts.append(self._open.finish())
            self._open = None

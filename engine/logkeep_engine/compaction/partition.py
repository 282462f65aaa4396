"""One task of a compaction: makes a snapshot of a partition out of its last one and of the log after that.

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
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.errors import BatchTooLarge, LogkeepError
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
    order, with the ranges of offsets (`kept`) that they stand for. `end` is where they end: what lies below is decided,
    though markers may lie at `end` or after it. Tombstones without a delete horizon get that of `delete_retention` (ms)
    from now on. `number` is that of the work in its run, for progress. A task that `may_give_up` does so if it would
    need many passes."""

    number: int
    topic: str
    topic_id: str
    partition: int
    last: SnapshotEntry | None
    dirty: Sequence[SegmentEntry]
    kept: tuple[Range, ...]
    end: int
    delete_retention: int
    may_give_up: bool = False


MOST_PASSES = 4
NO_PROGRESS = -1


class AbortAhead(LogkeepError):
    """A transaction was aborted by a marker that is not archived. A snapshot has no aborted records, so it would decide
    for a log that is cut off before the marker, too, in which the transaction may yet be committed."""


class TooManyKeys(Exception):
    """The keys of a partition would take more than MOST_PASSES passes: several tasks are faster."""


@dataclass(frozen=True, slots=True)
class PartitionCompacted:
    """The answer of a task: the snapshot, and how many of its records are tombstones."""

    number: int
    snapshot: SnapshotEntry
    records: int
    tombstones: int


def compact_partition(setting: CompactionSetting, work: CompactionWork, context: TaskContext) -> PartitionCompacted:
    """Write the snapshot of a partition. Raises ArchiveDamaged if a segment or a part of the last snapshot is damaged,
    BatchTooLarge for a batch that a task's memory does not allow to be looked into, AbortAhead, and TooManyKeys if it
    may."""
    return _Compaction(setting, work, context).run()


class _Compaction:
    """One attempt at a partition."""

    def __init__(self, setting: CompactionSetting, work: CompactionWork, context: TaskContext) -> None:
        self._setting = setting
        self._work = work
        self._attempt = context.attempt
        self._leader_epoch = work.last.leader_epoch if work.last is not None else 0
        self._clean, self._dirty = sections_of(work)
        aborted, undecided = transactions_of(setting, work)
        horizon = setting.now + work.delete_retention
        self._compactor = Compactor(now=setting.now, horizon=horizon, aborted=aborted, undecided=undecided)
        self._pass = SectionPass(setting, work, context, work.number, self._compactor)

    def run(self) -> PartitionCompacted:
        """Note the keys, then copy what survives."""
        work, compactor = self._work, self._compactor
        while compactor.begin():
            self._pass.over(self._dirty, self._note_dirty)
            # A clean section has each key once, so it is noted only if the keys come in shares.
            if compactor.is_divided:
                self._pass.over(self._clean, lambda stretch, _: compactor.note(False, stretch))
        compactor.begin_copy()
        place = place_of(self._setting, work, self._attempt, self._leader_epoch)
        with Parts(self._setting, place, time_of(work)) as parts:
            self._pass.over(self._clean, lambda stretch, _: parts.write_all(compactor.copy(False, stretch)))
            self._pass.over(self._dirty, lambda stretch, _: parts.write_all(compactor.copy(True, stretch)))
            made = parts.finish(work.end - 1)
        snapshot = snapshot_of(work, self._leader_epoch, made)
        return PartitionCompacted(work.number, snapshot, compactor.records, compactor.tombstones)

    def _note_dirty(self, stretch: memoryview, headers: Headers) -> None:
        # Leader epochs rise along a log: the last batch has the highest.
        self._leader_epoch = max(self._leader_epoch, headers[-1][1].leader_epoch)
        self._compactor.note(True, stretch)
        if self._work.may_give_up and self._compactor.shares > MOST_PASSES:
            raise TooManyKeys


def sections_of(work: CompactionWork) -> tuple[Sequence[SegmentEntry], Sequence[SegmentEntry]]:
    """Return the clean and the dirty section. A snapshot with batches of a transaction that was open at its end has
    keys twice: it is noted as a part of the log."""
    parts = () if work.last is None else work.last.parts
    if any(part.transactional for part in parts):
        return (), (*parts, *work.dirty)
    return parts, work.dirty


def transactions_of(setting: CompactionSetting, work: CompactionWork) -> tuple[Spans, Spans]:
    """Return the transactions of both sections that were aborted, and those whose markers lie at the end or after it.
    Raises AbortAhead if one is both."""
    _, dirty = sections_of(work)
    found = open_partition(setting.storage, work.topic, dirty, work.kept).transactions
    aborted, undecided = Spans.of(found.aborted), found.outcomes.open
    for producer, first in undecided.items():
        if aborted.holds(producer, first):
            raise AbortAhead(
                f"the marker of the transaction of producer {producer} that begins at offset {first}, and was aborted, "
                "is not archived yet; a later run makes the snapshot"
            )
    return aborted, Spans((producer, first, work.end - 1) for producer, first in undecided.items())


def place_of(setting: CompactionSetting, work: CompactionWork, attempt: int, leader_epoch: int) -> SnapshotPlace:
    """Return the place of the snapshot that an attempt makes."""
    return SnapshotPlace(work.topic, work.topic_id, work.partition, setting.epoch, attempt, work.end, leader_epoch)


def time_of(work: CompactionWork) -> int:
    """Return the highest timestamp below the end of the snapshot."""
    times = [entry.times.max_timestamp for entry in work.dirty]
    return max([NO_TIME if work.last is None else work.last.time, *times])


def snapshot_of(work: CompactionWork, leader_epoch: int, parts: Sequence[SegmentEntry]) -> SnapshotEntry:
    """Return the snapshot that these parts are."""
    return SnapshotEntry(work.topic_id, work.partition, work.end, leader_epoch, time_of(work), tuple(parts))


class SectionPass:
    """Passes over batches of a partition, and reports how far they are. `number` identifies the progress; NO_PROGRESS
    reports nothing."""

    def __init__(
        self,
        setting: CompactionSetting,
        work: CompactionWork,
        context: TaskContext,
        number: int,
        compactor: Compactor,
    ) -> None:
        self._storage = setting.storage
        self._work = work
        self._number = number
        self._progress = TaskProgress(context, after=REPORT_SECONDS)
        self._compactor = compactor
        self._passed = 0

    def over(self, section: Sequence[SegmentEntry], take: Callable[[memoryview, Headers], None]) -> None:
        """Let all batches of a section be taken, in order. A fault of one names its object."""
        storage, topic = self._storage, self._work.topic
        for entry in section:
            with sound(storage, topic, entry):
                for stretch, headers in open_partition(storage, topic, (entry,)).batches():
                    take(stretch, headers)
                    self._tell(headers.next_offset, len(stretch))
                    del stretch, headers  # so that their buffer is free

    def _tell(self, at: int, size: int) -> None:
        self._passed += size
        if self._number == NO_PROGRESS:
            return
        work, records = self._work, self._compactor.records
        self._progress.tell(PartitionUpdate(work.topic, work.partition, self._number, at, records, self._passed))


class Parts:
    """Parts of a snapshot, one after the other: all of them, or the part of number `only`. With `ends` the last one has
    the footer."""

    def __init__(
        self,
        setting: CompactionSetting,
        place: SnapshotPlace,
        time: int,
        *,
        only: int | None = None,
        ends: bool = True,
    ) -> None:
        self._setting = setting
        self._place = place
        self._time = time
        self._only = only
        self._ends = ends
        self._open: SnapshotSegment | None = None
        self._parts: list[SegmentEntry] = []

    def __enter__(self) -> Parts:
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
        # Their CRCs were checked when they were read, or have just been made.
        for headers in runs(view, checked=False):
            rest = headers
            while rest:
                taken = self._fitting(rest)
                if self._open is None or taken == 0:
                    self._close()
                    self._open = self._begin(rest[0][1].base_offset)
                    taken = max(1, self._fitting(rest))  # a batch that is larger than a part still gets one
                some, rest = rest[:taken], rest[taken:]
                self._open.builder.append(view[some.start : some.end], some)

    def finish(self, last_offset: int) -> list[SegmentEntry]:
        """Write the footer. The parts are in the storage then. If nothing is left, there is one with an empty batch at
        `last_offset`."""
        place = self._place
        if self._open is None and not self._parts:
            self.write(memoryview(empty_batch(last_offset, self._time, place.leader_epoch)))
        assert self._open is not None
        builder = self._open.builder
        if self._ends:
            builder.frame(footer_batch(builder.next_offset, self._time, place.leader_epoch))
        self._close()
        return self._parts

    def _fitting(self, headers: Headers) -> int:
        """Return how many of the batches fit into the open part."""
        if self._open is None:
            return 0
        builder = self._open.builder
        room = min(self._setting.max_bytes - builder.size, builder.bytes_left) - FOOTER_BYTES
        # Any part may be the last: its footer takes an offset, too, and the bytes above.
        near = headers.in_order(builder.next_offset, builder.last_possible_offset - 1)

        def end_of(number: int) -> int:
            at, header = headers[number]
            return at + header.size - headers.start

        return bisect_right(range(near), room, key=end_of)

    def _begin(self, base_offset: int) -> SnapshotSegment:
        number = len(self._parts)
        if self._only is not None:
            if number:
                raise BatchTooLarge(
                    f"What is left of the offsets from {self._parts[0].base_offset} on takes more than one part.",
                    hint="Leave the log of the topic as it is (compactedTopics: Log), and report this.",
                )
            number = self._only
        part = SnapshotSegment(self._setting.storage, self._place, number, base_offset, self._setting.digest)
        if not number:
            part.builder.frame(header_batch(base_offset, self._time, self._place.leader_epoch))
        return part

    def _close(self) -> None:
        if self._open is not None:
            self._parts.append(self._open.finish())
            self._open = None

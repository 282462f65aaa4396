"""The sources of a verification: the records of an archived partition that a restore brings, and those of the target.

Which records a restore brings follows from its rules (`restore.streams.merge`, `kernel/core/src/clip.rs`), but not from
the code that rebuilds batches: a fault in that code is a difference.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.maintenance.record_digests import SegmentDigests, StretchBuilder
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import is_batched, open_damaged, open_partition
from logkeep_engine.compare.sources import ComparedRecords, LiveRecords
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import MAX_OFFSET, BatchHeader, Headers
from logkeep_engine.log.rows import Rows, as_rows, rows_of_batch
from logkeep_engine.log.transactions import Span, Spans, unseen
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.straddling import Straddling, straddling


class RestoredRecords(ComparedRecords):
    """The records of one partition. What is needed for them is read when it is asked for, and once."""

    def __init__(self, archived: ArchivedPartition) -> None:
        self._archived = archived
        self._damaged = archived.damaged

    @cached_property
    def aborted(self) -> Spans:
        """The aborted transactions of the archive."""
        archived = self._archived
        surveyed = archived.survey is not None and archived.survey.aborted is not None
        transactional = surveyed or any(entry.transactional for entry in archived.segments)
        return Spans.of(archived.aborted() if transactional else ())

    @cached_property
    def across(self) -> Straddling:
        """The transactions across the bounds of what is restored."""
        return straddling(self._archived, self._archived.clip)

    @cached_property
    def _left_out(self) -> Spans:
        return Spans([*self.aborted.rows(), *self.across.left_out])

    @cached_property
    def _whole(self) -> Spans:
        return Spans(self.across.whole)

    @property
    def asks_segments(self) -> bool:
        """Whether `known_of` may read segments: to know to which side of a time each transaction belongs."""
        clip = self._archived.clip
        return clip is not None and clip.timed and any(entry.transactional for entry in self._archived.segments)

    def known_of(self, digests: SegmentDigests) -> SegmentDigests | None:
        """Return the digests of the wanted records of a segment, where all of its records are wanted, or none. None:
        only some may be, so the segment must be read."""
        clip = self._archived.clip
        if clip is None:
            return digests
        if clip.end is not None and digests.next_offset > clip.end:
            return None
        inside = [item for item in digests.stretches if item.records]
        if clip.timed and inside:
            times = self._archived.segments[
                bisect_left(self._archived.segments, digests.base_offset, key=_base_offset)
            ].times
            # Of a transaction's batch the header decides, and that may tell a later time than the records.
            if clip.before is not None and min(item.lowest for item in inside) >= clip.before:
                return _without_records(digests)
            if clip.since is not None and times.max_timestamp < clip.since:
                return None if _reach_into(digests, self.across.whole) else _without_records(digests)
            early = clip.since is not None and any(item.lowest < clip.since for item in inside)
            late = clip.before is not None and times.max_timestamp >= clip.before
            if early or late:
                return None
        return None if _reach_into(digests, self.across.left_out) else digests

    def of(self, digests: SegmentDigests) -> SegmentDigests:
        """Return the digests of the wanted records of a segment, which is read once. Raises ArchiveDamaged."""
        builder = StretchBuilder(digests.base_offset)
        for rows in self.read(digests.base_offset, digests.next_offset):
            if rows:
                builder.add_records(rows)
        stretches, times = builder.finish(digests.next_offset)
        return replace(digests, stretches=stretches, times=times)

    async def rows(self, start: int, stop: int = MAX_OFFSET) -> AsyncGenerator[Rows, None]:
        """Yield the records with offsets in [start, stop). It never waits, so it is for an event loop of its own.
        Raises ArchiveDamaged."""
        for rows in self.read(start, stop):
            yield rows

    def read(self, start: int, stop: int = MAX_OFFSET) -> Iterator[Rows]:
        """Yield the records with offsets in [start, stop). They are good until the next ones are asked for. Raises
        ArchiveDamaged."""
        archived, clip = self._archived, self._archived.clip
        stop = stop if clip is None else min(stop, clip.stop)
        if start >= stop:
            return
        first = bisect_right(self._archived.segments, start, key=_next_offset)
        last = bisect_left(self._archived.segments, stop, key=_base_offset)
        entries = archived.segments[first:last]
        if clip is not None:
            entries = tuple(entry for entry in entries if clip.reaches(entry))
        batched = all(is_batched(entry.layout) for entry in entries)
        if not batched:
            entries = tuple(entry for entry in entries if entry.base_offset not in self._damaged)
            for records in open_partition(archived.storage, archived.topic, entries, aborted=()).records(start):
                rows = as_rows(records)
                if rows.first_offset >= stop:
                    return
                yield self._clipped(rows).between(start, stop)
            return
        opened = open_damaged if self._damaged else open_partition
        for item in opened(archived.storage, archived.topic, entries).batches(start):
            if isinstance(item, Damage):
                continue
            data, headers = item
            for at, header in headers:
                if header.base_offset >= stop:
                    return
                if header.next_offset > start:
                    yield from (rows.between(start, stop) for rows in self._of_batch(data, at, header))
            if headers.next_offset >= stop:
                return

    def _of_batch(self, data: memoryview, at: int, header: BatchHeader) -> Iterator[Rows]:
        if unseen(header, self._left_out):
            return
        clip = self._archived.clip
        by_record = header.magic < 2 or not header.is_transactional
        if clip is not None and clip.timed and not by_record:
            early = clip.since is not None and header.max_timestamp < clip.since
            late = clip.before is not None and header.max_timestamp >= clip.before
            if (early or late) and not self._whole.holds(header.producer_id, header.base_offset):
                return
        for rows in rows_of_batch(data[at : at + header.size], header):
            if by_record:
                yield self._clipped(rows)
            else:
                yield rows.between(0, MAX_OFFSET if clip is None else clip.stop)

    def _clipped(self, rows: Rows) -> Rows:
        clip = self._archived.clip
        return rows if clip is None else clip.of_rows(rows)


class TargetReader(LiveRecords):
    """Reads one partition. In a topic that the run has created (`created`), all records are compared, and those of
    other producers are counted next to that: there are `others`, from offset `others_from` on. In a topic that was
    there before, only the run's own are compared.

    `stable` is the last stable offset, where a transaction of others may be open. No restored record is part of one. So
    the run's own records are read after it, too; what others have there is not compared, since it is unknown
    yet whether it will be seen.
    """

    def __init__(
        self, client: RawClient, topic: str, partition: int, producer_id: int, throttle: Throttle, *, created: bool
    ) -> None:
        super().__init__(client, topic, partition, throttle)
        self._producer_id = producer_id
        self._created = created
        self.others = 0
        self.others_from = -1
        self._seen_until = -1

    def compared(self, headers: Headers, start: int, *, committed: bool) -> Iterator[Headers]:
        """Yield the batches that are compared, with those of others or without. Those are counted, once."""
        at = 0
        for number, (_, header) in enumerate(headers):
            if header.next_offset <= start:
                at = number + 1
            elif header.magic < 2 or header.producer_id != self._producer_id:
                if header.base_offset > self._seen_until:
                    self.others_from = max(header.base_offset, start) if not self.others else self.others_from
                    self.others += max(header.record_count, 1)
                    self._seen_until = header.last_offset
                if not (self._created and committed):
                    if number > at:
                        yield headers[at:number]
                    at = number + 1
        if at < len(headers):
            yield headers[at:]


def _without_records(digests: SegmentDigests) -> SegmentDigests:
    stretches, times = StretchBuilder(digests.base_offset).finish(digests.next_offset)
    return replace(digests, stretches=stretches, times=times)


def _reach_into(digests: SegmentDigests, spans: Iterable[Span]) -> bool:
    return any(first < digests.next_offset and last >= digests.base_offset for _, first, last in spans)


def _base_offset(entry: SegmentEntry) -> int:
    return entry.base_offset


def _next_offset(entry: SegmentEntry) -> int:
    return entry.next_offset

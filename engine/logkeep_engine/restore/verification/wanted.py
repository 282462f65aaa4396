"""The records of an archived partition that a restore brings, read one by one.

Which ones these are follows from the rules of a restore (`restore.merge`, `kernel/core/src/clip.rs`), but not from the
code that rebuilds batches: a fault in that code is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from logkeep_engine.archive.care.record_digests import RecordTimes, SegmentDigests, StretchDigest
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import is_batched, open_damaged, open_partition
from logkeep_engine.log.batch import MAX_OFFSET, BatchHeader
from logkeep_engine.log.rows import RecordDigest, Rows, as_rows, kept_rows
from logkeep_engine.log.transactions import Spans, unseen
from logkeep_engine.restore.attempt import RestoreTask
from logkeep_engine.restore.straddling import Straddling, straddling
from logkeep_engine.restore.task import aborted_of
from logkeep_engine.restore.verification.aligning import ListedRecords


class RestoredRecords:
    """The records of one partition. What is needed for them is read when it is asked for."""

    def __init__(self, task: RestoreTask) -> None:
        self._task = task
        self._damaged = frozenset(task.survey.damaged if task.survey is not None else ())

    @cached_property
    def aborted(self) -> Spans:
        """The aborted transactions of the archive."""
        task = self._task
        surveyed = task.survey is not None and task.survey.aborted is not None
        transactional = surveyed or any(entry.transactional for entry in task.segments)
        return Spans.of(aborted_of(task) if transactional else ())

    @cached_property
    def _across(self) -> Straddling:
        return straddling(self._task.archived, self._task.clip)

    @cached_property
    def _left_out(self) -> Spans:
        return Spans([*self.aborted.rows(), *self._across.left_out])

    @cached_property
    def _whole(self) -> Spans:
        return Spans(self._across.whole)

    def is_whole(self, digests: SegmentDigests) -> bool:
        """Whether all committed records of a segment are wanted, by what its digests say."""
        clip = self._task.clip
        if clip is None:
            return True
        if clip.end is not None and digests.next_offset > clip.end:
            return False
        if clip.timed:
            if any(entry.transactional for entry in self._task.segments):
                return False  # the time of a transaction is not that of each of its records
            inside = [item for item in digests.stretches if item.records]
            early = clip.since is not None and any(item.lowest < clip.since for item in inside)
            late = clip.before is not None and any(item.highest >= clip.before for item in inside)
            return not (early or late)
        return not any(
            first < digests.next_offset and last >= digests.base_offset for _, first, last in self._across.left_out
        )

    def of(self, digests: SegmentDigests) -> SegmentDigests:
        """The digests of the wanted records of a segment, in the same stretches. Raises ArchiveDamaged."""
        found, whole = [], RecordDigest(offsets=False)
        for stretch in digests.stretches:
            digest = RecordDigest(offsets=False)
            for rows in self.rows(stretch.start, stretch.end):
                digest.note(rows)
            found.append(StretchDigest.of(stretch.start, stretch.end, digest))
            whole.follow(digest)
        return replace(digests, stretches=tuple(found), times=RecordTimes.of(whole))

    def listed(self, start: int, count: int) -> ListedRecords:
        """The first `count` records from source offset `start` on. Raises ArchiveDamaged."""
        found = ListedRecords()
        for rows in self.rows(start):
            if rows:
                found.add(rows[: count - len(found)])
            if len(found) >= count:
                break
        return found

    def rows(self, start: int, stop: int = MAX_OFFSET) -> Iterator[Rows]:
        """The records with offsets in [start, stop). Raises ArchiveDamaged."""
        task, clip = self._task, self._task.clip
        stop = stop if clip is None else min(stop, clip.stop)
        entries = [entry for entry in task.segments if entry.next_offset > start and entry.base_offset < stop]
        if clip is not None:
            entries = [entry for entry in entries if clip.reaches(entry)]
        batched = all(is_batched(entry.layout) for entry in entries)
        if not batched:
            entries = [entry for entry in entries if entry.base_offset not in self._damaged]
            for records in open_partition(task.storage, task.source, entries, aborted=()).records(start):
                yield self._clipped(as_rows(records)).between(start, stop)
            return
        opened = open_damaged if self._damaged else open_partition
        for item in opened(task.storage, task.source, entries).batches(start):
            if isinstance(item, Damage):
                continue
            data, headers = item
            for at, header in headers:
                if header.base_offset >= stop:
                    return
                if header.next_offset > start:
                    yield from (rows.between(start, stop) for rows in self._of_batch(data, at, header))

    def _of_batch(self, data: memoryview, at: int, header: BatchHeader) -> Iterator[Rows]:
        if unseen(header, self._left_out):
            return
        clip = self._task.clip
        by_record = header.magic < 2 or not header.is_transactional
        if clip is not None and clip.timed and not by_record:
            early = clip.since is not None and header.max_timestamp < clip.since
            late = clip.before is not None and header.max_timestamp >= clip.before
            if (early or late) and not self._whole.holds(header.producer_id, header.base_offset):
                return
        for rows in kept_rows(memoryview(bytes(data[at : at + header.size])), header):
            if by_record:
                yield self._clipped(rows)
            else:
                yield rows.between(0, MAX_OFFSET if clip is None else clip.stop)

    def _clipped(self, rows: Rows) -> Rows:
        clip = self._task.clip
        return rows if clip is None else clip.of_rows(rows)

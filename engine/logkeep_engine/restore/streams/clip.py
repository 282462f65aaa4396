"""The part of an archived partition that a restore to a point brings back. Pure.

A clip follows from the plan alone, and so do the batches that are made within it: every attempt makes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.rows import Rows


@dataclass(frozen=True, slots=True)
class Clip:
    """The wanted records of a partition: offsets below `end`, times (ms) from `since` on and below `before`. None: no
    bound. Of a transaction all records are needed, or none.
    """

    end: int | None = None
    since: int | None = None
    before: int | None = None

    @property
    def timed(self) -> bool:
        """Whether records are left out by their time."""
        return self.since is not None or self.before is not None

    def reaches(self, entry: SegmentEntry) -> bool:
        """Return whether the segment may hold a wanted record, by the catalog alone.

        The lowest time of a segment is not known: of a batch it is that of the first record, and older ones may follow.
        In segments of records, those without a time do not count; they are older than any time. In a transaction older
        batches may be wanted with newer ones.
        """
        if self.end is not None and entry.base_offset >= self.end:
            return False
        batched = is_batched(entry.layout)
        if self.since is not None and entry.times.max_timestamp < self.since and not (batched and entry.transactional):
            return False
        if batched or self.before is None or self.since is None:
            return True
        return entry.times.min_base_timestamp < self.before

    def most_of(self, entry: SegmentEntry) -> int:
        """Return the most records of a segment that are needed, by the catalog alone."""
        return entry.records if self.end is None else min(entry.records, max(0, self.end - entry.base_offset))

    def counts(self, entry: SegmentEntry) -> bool:
        """Return whether `most_of` is the number of wanted records: of transactions some may have been aborted, and a
        segment with gaps does not tell on which side of the end they lie."""
        dense = entry.records == entry.next_offset - entry.base_offset
        return not (self.timed or entry.transactional) and (dense or entry.next_offset <= self.stop)

    def of_rows(self, rows: Rows) -> Rows:
        """Return the wanted ones of these records."""
        if self.end is not None and len(rows) and rows.last_offset >= self.end:
            rows = rows.between(0, self.end)
        return rows.of_times(self.since, self.before) if self.timed else rows

    @property
    def stop(self) -> int:
        """The first offset that is not wanted, or the highest there is."""
        return MAX_OFFSET if self.end is None else self.end


def clipped(archived: ArchiveState, clip_of: Callable[[Partition], Clip | None]) -> ArchiveState:
    """Return the archive without the segments of which nothing is needed. A partition with transactions keeps all: how
    one ended may stand in a later segment."""
    view = archived.shared()
    view.segments = archived.segments.copy()
    for key in archived.segments:
        clip = clip_of(key)
        if clip is None:
            continue
        entries = list(archived.segments[key])
        if any(entry.transactional for entry in entries):
            continue
        left = [at for at, entry in enumerate(entries) if clip.reaches(entry)]
        if len(left) < len(entries):
            view.segments.keep(key, left)
    return view

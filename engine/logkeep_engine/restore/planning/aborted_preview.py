"""Counts the records of aborted transactions that a restore will leave out, for its dry run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.left_out import AbortedRecords, LeftOut


@dataclass(frozen=True, slots=True)
class AbortedPreview:
    """The numbers of records by archived partition; None: to count them, `bytes` of the archive are to be read, which
    is too much."""

    counts: Mapping[Partition, int] | None
    bytes: int


def preview_aborted(partitions: Iterable[ArchivedPartition], most: int) -> AbortedPreview:
    """Count the records of aborted transactions in the segments that have some, if these have at most this many bytes.
    Raises ArchiveDamaged."""
    found: dict[Partition, int] = {}
    work: list[tuple[ArchivedPartition, Spans, list[SegmentEntry]]] = []
    for archived in partitions:
        found[archived.key] = 0
        aborted = Spans.of(archived.aborted()) if any(entry.transactional for entry in archived.segments) else Spans()
        reached = AbortedRecords(aborted, archived.clip, LeftOut())
        wanted = [entry for entry in archived.segments if archived.clip is None or archived.clip.reaches(entry)]
        wanted = [entry for entry in wanted if reached.reach(entry.base_offset, entry.next_offset)]
        if wanted:
            work.append((archived, aborted, wanted))
    size = sum(entry.bytes for _, _, wanted in work for entry in wanted)
    if size > most:
        return AbortedPreview(None, size)
    for archived, aborted, wanted in work:
        left_out = LeftOut()
        counted = AbortedRecords(aborted, archived.clip, left_out)
        for entry in wanted:
            for _ in archived.stretches(entry, counted):
                pass
        found[archived.key] = left_out.aborted
    return AbortedPreview(found, size)

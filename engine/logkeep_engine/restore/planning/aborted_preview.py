"""Counts the records of aborted transactions that a restore will leave out, for its dry run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.sending.task import aborted_of, stretches_of
from logkeep_engine.restore.streams.left_out import AbortedRecords, LeftOut


@dataclass(frozen=True, slots=True)
class AbortedPreview:
    """The numbers of records by archived partition; None: to count them, `bytes` of the archive are to be read, which
    is too much."""

    counts: Mapping[Partition, int] | None
    bytes: int


def preview_aborted(tasks: Iterable[RestoreTask], most: int) -> AbortedPreview:
    """Count the records of aborted transactions in the segments that have some, if these have at most so many bytes.
    Raises ArchiveDamaged."""
    found: dict[Partition, int] = {}
    work: list[tuple[RestoreTask, Spans, list[SegmentEntry]]] = []
    for task in tasks:
        found[task.topic_id, task.partition] = 0
        aborted = Spans.of(aborted_of(task)) if any(entry.transactional for entry in task.segments) else Spans()
        reached = AbortedRecords(aborted, task.clip, LeftOut())
        wanted = [entry for entry in task.segments if task.clip is None or task.clip.reaches(entry)]
        wanted = [entry for entry in wanted if reached.reach(entry.base_offset, entry.next_offset)]
        if wanted:
            work.append((task, aborted, wanted))
    size = sum(entry.bytes for _, _, wanted in work for entry in wanted)
    if size > most:
        return AbortedPreview(None, size)
    for task, aborted, wanted in work:
        left_out = LeftOut()
        counted = AbortedRecords(aborted, task.clip, left_out)
        for entry in wanted:
            for _ in stretches_of(task, entry, counted):
                pass
        found[task.topic_id, task.partition] = left_out.aborted
    return AbortedPreview(found, size)

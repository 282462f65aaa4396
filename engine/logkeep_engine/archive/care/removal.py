"""Removes segments from an archive: first from the catalog, then their objects.

    writer.end(RunOutcome.SUCCEEDED, groups=groups)
    removed = remove_expired(writer, RetentionLimits(max_age=30 * 86_400_000), now)

Readers see the archive as the last successful run has left it, without what was removed right after its end. So a kill
between the end and the commit leaves everything. One after the commit leaves objects that nothing names any more and
the catalog's word that they may be there: the next run that succeeds deletes them before it removes others. No name of
theirs is ever used again, since the catalog still accounts for their offsets. So a deletion that comes late, even by a
run that another has overtaken, deletes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from logkeep_engine.archive.care.retention import Expired, RetentionLimits, expired
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.writing.record_files import write_partition_indexes
from logkeep_engine.contract.spec import FormatName

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000  # a commit, and four requests of S3's DeleteObjects


@dataclass(frozen=True, slots=True)
class Removed:
    """The segments that were removed, and the `bytes` of their objects."""

    segments: int
    bytes: int


def remove_expired(writer: Writer, limits: RetentionLimits, now: int) -> Removed:
    """Remove the segments that `retention` finds too old or too much at `now` (ms since the epoch), and the rest of a
    removal that an earlier run has begun.

    Raises storage errors, and ArchiveFenced if another run has taken over; what is left then is for the next run.
    """
    finish_removal(writer)
    found = expired(writer.state, limits, now)
    for batch in _batches(found):
        writer.remove(item.segment for item in batch)
        finish_removal(writer)
    removed = Removed(len(found), sum(item.bytes for item in found))
    if found:
        log.info("retention removed %d segments, %d bytes", removed.segments, removed.bytes)
    return removed


def finish_removal(writer: Writer) -> None:
    """Delete the objects of segments that are removed, if some may be there still."""
    state, storage = writer.state, writer.archive.storage
    if not state.unpurged:
        return
    if writer.archive.info.segments is FormatName.RECORDS:
        write_partition_indexes(storage, state, list(state.unpurged))
    storage.delete(
        path
        for (topic_id, _), entries in state.unpurged.items()
        for entry in entries
        for path in (*entry.objects(state.topics[topic_id].name), *entry.beside(state.topics[topic_id].name))
    )
    writer.purged()


def _batches(found: list[Expired]) -> Iterator[list[Expired]]:
    for start in range(0, len(found), SEGMENTS_AT_ONCE):
        yield found[start : start + SEGMENTS_AT_ONCE]

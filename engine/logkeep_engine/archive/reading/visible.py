"""Does a topic of the archive have records that a consumer of committed records sees?

The catalog counts all records, also those of aborted transactions. Where only transactions have written, the outcomes
and the headers of batches up to the first that was committed tell it.
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.incarnations import Shows
from logkeep_engine.archive.reading.partition import is_batched, open_partition
from logkeep_engine.errors import ArchiveDamaged, CorruptBatch
from logkeep_engine.log.transactions import Spans, unseen
from logkeep_engine.storage import Storage


def shows(storage: Storage, state: ArchiveState) -> Shows:
    """Return a function that answers for the topics of this archive. It raises what the storage raises. A damaged topic
    counts as seen: its user sees the damage, and no older incarnation is taken instead.
    """

    def ask(topic: TopicEntry) -> bool:
        try:
            return _shows(storage, state, topic)
        except (ArchiveDamaged, CorruptBatch):
            return True

    return ask


def _shows(storage: Storage, state: ArchiveState, topic: TopicEntry) -> bool:
    partitions: list[tuple[int, Sequence[SegmentEntry]]] = [
        (number, state.segments.get((topic.topic_id, number), [])) for number in range(topic.partitions)
    ]
    if any(entry.records and not may_be_aborted(entry) for _, entries in partitions for entry in entries):
        return True
    for number, entries in partitions:
        if not any(entry.records for entry in entries):
            continue
        reader = open_partition(storage, topic.name, entries, state.kept(topic.topic_id, number))
        aborted = Spans.of(reader.transactions.aborted)
        if any(unseen(header, aborted) is None for _, headers in reader.batches() for _, header in headers):
            return True
    return False


def may_be_aborted(entry: SegmentEntry) -> bool:
    """Tell whether the records of a segment may be of aborted transactions. Formats of records keep none of these."""
    return is_batched(entry.layout) and entry.transactional

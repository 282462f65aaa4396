"""The `.txnparts` of a segment: it says which transactions are in the log. It saves reading the log."""

from __future__ import annotations

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.files import read_file
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.storage import Storage


def known_parts(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentTransactions | None:
    """Return the content of a segment's `.txnparts` object, None if it has none, or an altered one."""
    data = read_parts(storage, topic, entry)
    return None if data is None else SegmentTransactions.from_json(data, entry)


def read_parts(storage: Storage, topic: str, entry: SegmentEntry) -> bytes | None:
    """Return the `.txnparts` of a segment, None if it has none."""
    files = entry.pack_files
    paths = entry.beside(topic)
    try:
        if files is not None:
            return read_file(storage, topic, entry, names.TXNPARTS) if files.txnparts_bytes else None
        return storage.read(paths[0]) if paths else None
    except ObjectMissing:
        return None


def fetched_epoch(storage: Storage, topic: str, entry: SegmentEntry) -> int:
    """Return the epoch of the run that fetched the segment from a cluster. A copy of a segment has a later one
    itself."""
    known = known_parts(storage, topic, entry)
    return entry.archived_last if known is None else known.epoch

"""Parts of snapshots behind the door. They hold batches as segments of Kafka's layout do, and `segments` passes over
the header and the footer of a snapshot.

A snapshot has no markers, and no record of a transaction that was aborted. Batches say that they are of a transaction
only where its marker lies at the end of the snapshot or after it: the log after the snapshot has the rest.
"""

from __future__ import annotations

from dataclasses import replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.batch_layout import BatchLayout, transactions_of
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.storage import Storage


class SnapshotLayout(BatchLayout):
    """Reads the layout SNAPSHOT, see `layouts.LayoutReader`."""

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """Return the transactions that are open where the snapshot ends. No object next to a part says so, its batches
        do. The offsets that the snapshot lacks hide no marker: it would have ended them."""
        found = transactions_of(storage, topic, entry, on_damage)
        parts = tuple(replace(known, part=replace(known.part, dense=True)) for known in found.parts)
        return replace(found, next_offset=entry.files.end, parts=parts, dense=True)

"""Parts of snapshots behind the door. They hold batches as segments of Kafka's layout do, and `segments` passes over
the header and the footer of a snapshot.

A snapshot has no markers, and no record of a transaction that was aborted. Batches of others keep their producers and
say so, as everywhere in Kafka.
"""

from __future__ import annotations

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.batch_layout import BatchLayout
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.storage import Storage


class SnapshotLayout(BatchLayout):
    """Reads the layout SNAPSHOT, see `layouts.LayoutReader`."""

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """None: all of them were committed."""
        return SegmentTransactions.without(entry)

"""The registry of layouts: which reader opens a segment.

A new format is a module with a `LayoutReader` and a line in `READERS`. Readers of an archive go through
`reading.partition`, and do not ask for the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.batch_layout import BatchLayout, transactions_of
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.archive.reading.record_layout import RecordLayout
from logkeep_engine.archive.reading.record_reader import AVRO, RECORDS, RecordFormat
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage

# ---- snapshot layout

# The reader of parts of snapshots. They hold batches as segments of Kafka's layout do, and `segments` passes over
# the header and the footer of a snapshot.
#
# A snapshot has no markers, and no record of a transaction that was aborted. Batches say that they are of a
# transaction only where its marker lies at the end of the snapshot or after it: the log after the snapshot has the
# rest.


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


class LayoutReader(Protocol):
    """Reads one segment at a time. It has no state.

    Without `on_damage` the reader raises ArchiveDamaged at the first damage. With it, the reader reports each damage
    and continues after it.
    """

    @property
    def batched(self) -> bool:
        """The segments hold Kafka's batches."""
        ...

    @property
    def records_format(self) -> RecordFormat | None:
        """How the bytes hold records, for those who check bytes or read objects that no catalog names; None: they hold
        batches."""
        ...

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Stretch]:
        """Stretches of whole batches, from the batch that holds offset `start` or the first after it. Raises TypeError
        if the segments are not `batched`."""
        ...

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        """Records in lists of bounded size, from offset `start` on: those that a consumer of committed records sees."""
        ...

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """Tell what the segment says of transactions, its index included."""
        ...

    def transaction_index(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> Sequence[AbortedTxn] | None:
        """Return the aborted transactions that an index of the segment names, in its order; None if it is damaged and
        `on_damage` was told. Callers do not ask a segment whose `Files` have no `txnindex_bytes`."""
        ...

    def first_since(self, storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
        """Return the offset of the first record of that time (ms) or later, None if there is none. Markers and records
        of aborted transactions are records too, as they are for a broker. Raises ArchiveDamaged for damage of what it
        reads on the way."""
        ...


_BATCHES = BatchLayout()
_RECORDS = RecordLayout(RECORDS)

READERS: dict[Layout, LayoutReader] = {
    Layout.KAFKA: _BATCHES,
    Layout.PACK: _BATCHES,
    Layout.RECORDS: _RECORDS,
    Layout.RECORDS_AT_ROOT: _RECORDS,
    Layout.AVRO: RecordLayout(AVRO),
    Layout.SNAPSHOT: SnapshotLayout(),
}


def reader_of(entry: SegmentEntry) -> LayoutReader:
    """Return the reader of the segment's layout."""
    return READERS[entry.layout]

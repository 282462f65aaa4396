"""Segments of the Records and the Avro format behind the door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.archive.reading.record_reader import read_records
from logkeep_engine.archive.reading.segments import Run
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage


class RecordLayout:
    """Reads the layouts RECORDS, RECORDS_AT_ROOT and AVRO, see `layouts.LayoutReader`. They hold records of committed
    transactions only, and no batches."""

    batched = False

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Run]:
        """None: a caller asks `batched` first."""
        raise TypeError(f"a segment of layout {entry.layout!r} has no batches")

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        """The records from `start` on; there are no `aborted` ones among them."""
        return read_records(storage, topic, entry, start_offset=start, on_damage=on_damage)

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """Nothing: markers are not archived."""
        return SegmentTransactions.without(entry)

"""The readers of segments of the Records and the Avro format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.archive.reading.record_reader import RecordFormat, RecordReading
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.consumed import LogRecord, index_since
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import DEFAULT_BLOCK, Storage


class RecordLayout:
    """Reads the layouts RECORDS, RECORDS_AT_ROOT and AVRO, see `layouts.LayoutReader`. They hold records of committed
    transactions only, and no batches."""

    batched = False

    def __init__(self, records_format: RecordFormat) -> None:
        self.records_format = records_format

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Stretch]:
        """None: a caller asks `batched` first."""
        raise TypeError(f"a segment of layout {entry.layout!r} has no batches")

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        """Yield the records from `start` on; there are no `aborted` ones among them.

        With `on_damage`, the reader reports damage after it has handed out the records before it. Nothing in these
        formats protects single records: if the object's digest is wrong, it is unknown which of them is altered. A
        whole segment is compared with its digest and count at the end. A part, which an index allows to read alone,
        cannot be compared.
        """
        reading = RecordReading(storage, topic, entry, on_damage, self.records_format)
        for rows, _ in reading.parts(start, DEFAULT_BLOCK):  # their positions are not needed
            found = rows if rows.first_offset >= start else rows.between(start, entry.next_offset)
            if found:
                yield found

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """Nothing: markers are not archived."""
        return SegmentTransactions.without(entry)

    def transaction_index(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> Sequence[AbortedTxn]:
        """Nothing: records of aborted transactions are not archived."""
        return ()

    def first_since(self, storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
        """Return the offset of the first record of that time or later. No index knows times: records are read up to
        it."""
        if entry.times.max_timestamp < time:
            return None
        for records in self.records(storage, topic, entry, 0, None, Spans()):
            at = index_since(records, time)
            if at < len(records):
                return records[at].offset
        return None

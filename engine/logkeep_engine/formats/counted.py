"""Facts about the records of a segment, from any writer: a reader counts them while it passes over the records."""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.formats.base import LogRecord, SegmentFacts
from logkeep_engine.log.rows import as_rows


class CountedRecords:
    """The facts of a segment, from its records in their order.

    Offsets are -1 before the first record, times -1 as long as no record has one. `largest` is the most bytes of key,
    value and headers of a record; `header_bytes` are added for each header.
    """

    def __init__(self, *, header_bytes: int = 0) -> None:
        self._header_bytes = header_bytes
        self._lowest: int | None = None
        self.count = 0
        self.first = self.last = -1
        self.max_timestamp = -1
        self.append_time = False
        self.largest = 0

    @property
    def min_timestamp(self) -> int:
        return -1 if self._lowest is None else self._lowest

    def note(self, records: Sequence[LogRecord]) -> None:
        """Count what follows."""
        if not records:
            return
        found = as_rows(records).facts(self._header_bytes)
        first, self.last, lowest, highest, append_time, largest = found
        if not self.count:
            self.first = first
        self.count += len(records)
        if lowest is not None:
            self._lowest = lowest if self._lowest is None else min(self._lowest, lowest)
            self.max_timestamp = max(self.max_timestamp, highest)
        self.append_time = self.append_time or append_time
        self.largest = max(self.largest, largest)

    def facts(self, *, size: int, blocks: int, index_bytes: int) -> SegmentFacts | None:
        """With what the objects say; None if there was no record."""
        if not self.count:
            return None
        return SegmentFacts(
            base_offset=self.first,
            next_offset=self.last + 1,
            records=self.count,
            blocks=blocks,
            bytes=size,
            index_bytes=index_bytes,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            gaps=self.last - self.first + 1 != self.count,
            append_time=self.append_time,
            largest_record=self.largest,
        )

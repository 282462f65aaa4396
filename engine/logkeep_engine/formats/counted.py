"""Facts about the records of a segment, whoever wrote it: a reader counts them while it passes over the records."""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.formats.base import LogRecord, SegmentFacts, TimestampKind


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
        if not self.count:
            self.first = records[0].offset
        self.last = records[-1].offset
        self.count += len(records)
        times = [record.timestamp for record in records if record.timestamp is not None and record.timestamp != -1]
        if times:
            lowest = min(times)
            self._lowest = lowest if self._lowest is None else min(self._lowest, lowest)
            self.max_timestamp = max(self.max_timestamp, *times)
        self.append_time = self.append_time or any(record.timestamp_type == TimestampKind.APPEND for record in records)
        self.largest = max(self.largest, *map(self._content, records))

    def facts(self, *, size: int, sha256: str, blocks: int, index_bytes: int) -> SegmentFacts | None:
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
            sha256=sha256,
            gaps=self.last - self.first + 1 != self.count,
            append_time=self.append_time,
            largest_record=self.largest,
        )

    def _content(self, record: LogRecord) -> int:
        size = len(record.key or b"") + len(record.value or b"")
        if record.headers:
            size += sum(self._header_bytes + len(name) + len(value or b"") for name, value in record.headers)
        return size

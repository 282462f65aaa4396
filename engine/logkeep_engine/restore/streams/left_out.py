"""Counts the records of aborted transactions, which no restore brings. Pure, but for what the streams read."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from logkeep_engine.archive.ranges import Range, add_range
from logkeep_engine.log.batch import BatchHeader, Headers
from logkeep_engine.log.transactions import TRANSACTIONAL, Spans, Unseen, unseen
from logkeep_engine.restore.streams.clip import Clip


@dataclass(slots=True)
class LeftOut:
    """The number of the records of aborted transactions that a stream has passed so far."""

    aborted: int = 0


class AbortedRecords:
    """Counts the records of these transactions that lie within a clip, batch by batch."""

    def __init__(self, aborted: Spans, clip: Clip | None, found: LeftOut) -> None:
        self._aborted, self._clip, self._found = aborted, clip, found
        self._ranges: list[Range] = []
        for _, first, last in aborted.rows():
            add_range(self._ranges, first, last + 1)

    def reach(self, start: int, end: int) -> bool:
        """Return whether one of the transactions may have a batch among these offsets."""
        at = bisect_right(self._ranges, start, key=_end)
        return at < len(self._ranges) and self._ranges[at][0] < end

    def note(self, headers: Headers) -> None:
        """Count the records of batches that lie back to back."""
        if not len(headers) or not self.reach(headers[0][1].base_offset, headers.next_offset):
            return
        for number in headers.with_bits(TRANSACTIONAL):
            header = headers[number][1]
            if unseen(header, self._aborted) is Unseen.ABORTED and self._wants(header):
                self._found.aborted += header.record_count

    def _wants(self, header: BatchHeader) -> bool:
        clip = self._clip
        if clip is None:
            return True
        early = clip.since is not None and header.max_timestamp < clip.since
        late = clip.before is not None and header.max_timestamp >= clip.before
        return header.base_offset < clip.stop and not early and not late


def _end(item: Range) -> int:
    return item[1]

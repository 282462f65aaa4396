"""Compares the records of a target partition with the digests of an archived one, stretch by stretch. Pure.

The records of both are taken in order, and the n-th of one side stands for the n-th of the other. So the target is cut
where the archive's stretches end, by the numbers of their records, also inside a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.archive.maintenance.record_digests import RecordTimes, StretchDigest
from logkeep_engine.log.batch import BatchHeader, Headers
from logkeep_engine.log.rows import RecordDigest, note_batches, rows_of_batch


class StretchComparison:
    """The comparison of one partition. It takes the batches of the target in order, from offset `start` on.

    `offsets`: they must be equal, too. `at` is the first stretch that is not compared yet, and `began` the target's
    offset from which on its records lie. `extra` are the records after all stretches, from offset `extra_from` on.
    """

    def __init__(self, expected: Sequence[StretchDigest], start: int, *, offsets: bool = False) -> None:
        self._first = min((stretch.start for stretch in expected), default=0)
        self._expected = [stretch for stretch in expected if stretch.records]
        self._offsets = offsets
        self._current = RecordDigest(offsets=False)
        self._whole = RecordDigest(offsets=False)
        self.at = 0
        self.began = self._position = start
        self.extra = 0
        self.extra_from = -1

    @property
    def stretch(self) -> StretchDigest | None:
        """The stretch that is compared now, None after the last one."""
        return self._expected[self.at] if self.at < len(self._expected) else None

    @property
    def before(self) -> StretchDigest | None:
        """The stretch that was compared last, None if none was."""
        return self._expected[self.at - 1] if self.at else None

    @property
    def passed_until(self) -> int:
        """The source offset after all stretches that are compared."""
        return self._expected[self.at - 1].end if self.at else self._first

    @property
    def is_whole(self) -> bool:
        """Whether all stretches were compared."""
        return self.at == len(self._expected)

    @property
    def records(self) -> int:
        """The number of records of the target that were taken into account."""
        return self._whole.count

    @property
    def times(self) -> RecordTimes:
        """The times of these records."""
        return RecordTimes.of(self._whole)

    @property
    def missing(self) -> int:
        """The number of records that the stretches have which are not compared yet."""
        return sum(stretch.records for stretch in self._expected[self.at :])

    def feed(self, data: memoryview, headers: Headers) -> bool:
        """Take batches that follow. False: the stretch `at` differs, and the batches from `began` on are needed again,
        when it was passed over. Raises as `rows.note_batches`.
        """
        number = 0
        while number < len(headers):
            taken = self._fitting(headers, number)
            if taken > number:
                note_batches(self._current, data, headers[number:taken])
                self._position = headers[taken - 1][1].next_offset
                number = taken
                if not self._ended():
                    return False
            else:
                position, header = headers[number]
                if not self._take_apart(data[position : position + header.size], header):
                    return False
                number += 1
        return True

    def passed(self, records: RecordDigest, following: int) -> None:
        """Pass over the stretch `at`, for which the target has these records. The next one begins at offset
        `following` there."""
        self.at += 1
        self._whole.follow(records)
        self.began = self._position = following
        self._current = RecordDigest(offsets=False)

    def _fitting(self, headers: Headers, first: int) -> int:
        """Return the number after the batches from `first` on that belong to the current stretch as a whole."""
        stretch = self.stretch
        left = -1 if stretch is None else stretch.records - self._current.count
        number = first
        for _, header in headers[first:]:
            if header.magic < 2 or header.base_offset < self._position:
                break
            left -= header.record_count
            if left < 0 and stretch is not None:
                break
            if stretch is None:
                self._note_extra(header.record_count, header.base_offset)
            number += 1
        return number

    def _take_apart(self, batch: memoryview, header: BatchHeader) -> bool:
        """Take a batch in which a stretch ends, or of which only the end is needed."""
        for rows in rows_of_batch(batch, header):
            left = rows.between(self._position, header.next_offset) if header.base_offset < self._position else rows
            while left:
                stretch = self.stretch
                most = len(left) if stretch is None else stretch.records - self._current.count
                part, left = left[:most], left[most:]
                if stretch is None:
                    self._note_extra(len(part), part.first_offset)
                self._current.note(part)
                self._position = part.last_offset + 1
                if not self._ended():
                    return False
        self._position = header.next_offset
        return True

    def _note_extra(self, records: int, offset: int) -> None:
        if records and self.extra_from < 0:
            self.extra_from = offset
        self.extra += records

    def _ended(self) -> bool:
        """Compare the current stretch if it has all of its records."""
        stretch = self.stretch
        if stretch is not None:
            if self._current.count < stretch.records:
                return True
            same = self._current.value == stretch.value
            if not same or (self._offsets and self._current.offsets_value != stretch.offsets_value):
                return False
            self.at += 1
        self._whole.follow(self._current)
        self.began = self._position
        self._current = RecordDigest(offsets=False)
        return True

"""The transactions across a point: they are restored whole or not at all.

Where a partition ends at an offset, a transaction is restored if its marker lies before that offset. Where records are
left out by their times, the time of a transaction is that of its latest record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.partition import open_damaged, open_partition, segment_transactions
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.transactions import TRANSACTIONAL, Ending, Span, TransactionFollower
from logkeep_engine.restore.clip import Clip
from logkeep_engine.storage import Storage


@dataclass(slots=True)
class Straddling:
    """The transactions across the point: those to leave out, and those that are restored although some of their batches
    are older than what is wanted."""

    left_out: list[Span] = field(default_factory=list)
    whole: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """The segments of a partition, and the ranges of offsets that they stand for. `damaged`: the user allows to go on
    behind damage."""

    storage: Storage
    topic: str
    entries: Sequence[SegmentEntry]
    kept: Sequence[Range]
    damaged: bool = False


def straddling(partition: ArchivedPartition, clip: Clip | None) -> Straddling:
    """The transactions across the bounds of a clip. Raises ArchiveDamaged, unless `partition.damaged`."""
    found = Straddling()
    if clip is None or not any(entry.transactional for entry in partition.entries):
        return found
    if clip.end is not None:
        found.left_out += _open_at(partition, clip.end)
    if clip.timed:
        times = _times_of(partition, clip)
        found.left_out += times.left_out
        found.whole += times.whole
    return found


def _open_at(partition: ArchivedPartition, end: int) -> list[Span]:
    """The transactions that have begun before offset `end`, and whose markers lie at `end` or behind it. Where records
    are missing before `end`, the marker is taken to be among them."""
    begun: dict[int, int] = {}
    before: SegmentEntry | None = None
    told: OnDamage | None = (lambda damage: None) if partition.damaged else None
    for entry in partition.entries:
        if entry.base_offset >= end:
            break
        if before is not None and _is_hole(before.next_offset, entry.base_offset, partition.kept):
            begun.clear()  # the markers lie there
        before = entry
        if entry.next_offset > end:
            _follow(partition, entry, end, begun)
            continue
        facts = segment_transactions(partition.storage, partition.topic, entry, told)
        ended = {known.part.producer_id: known.part for known in facts.parts}  # the last part of each decides
        if facts.holed:
            begun = {producer: first for producer, first in begun.items() if producer in ended}
        for producer_id, part in ended.items():
            first = begun.pop(producer_id, None)
            if part.ending is Ending.OPEN:
                begun[producer_id] = first if part.begun and first is not None else part.first
    if before is not None and _is_hole(before.next_offset, end, partition.kept):
        begun.clear()
    return [(producer_id, first, end - 1) for producer_id, first in begun.items()]


def _is_hole(start: int, end: int, kept: Sequence[Range]) -> bool:
    return start < end and not any(low <= start and end <= high for low, high in kept)


def _follow(partition: ArchivedPartition, entry: SegmentEntry, end: int, begun: dict[int, int]) -> None:
    """Go on with the batches of a segment that begin before `end`."""
    follower = TransactionFollower()
    for stretch, headers in _stretches(partition, (entry,)):
        for number in headers.with_bits(TRANSACTIONAL):
            position, header = headers[number]
            if header.base_offset >= end:
                break
            part = follower.observe(stretch, position, header)
            if part is not None:
                begun.pop(header.producer_id, None)
    for part in follower.open_parts():
        begun.setdefault(part.producer_id, part.first)


@dataclass(slots=True)
class _Open:
    first: int
    last: int
    lowest: int
    highest: int


class _TimesOfTransactions:
    """Follows transactions and the times of their batches. A batch's header has the highest time of its records."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._open: dict[int, _Open] = {}
        self.found = Straddling()

    def note(self, stretch: Stretch) -> None:
        """Note the next batches."""
        _, headers = stretch
        for number in headers.with_bits(TRANSACTIONAL):
            _, header = headers[number]
            if header.is_control:
                self._end(header.producer_id)
                continue
            if not header.record_count:
                continue
            known = self._open.get(header.producer_id)
            time = header.max_timestamp
            if known is None:
                self._open[header.producer_id] = _Open(header.base_offset, header.last_offset, time, time)
            else:
                known.last = header.last_offset
                known.lowest, known.highest = min(known.lowest, time), max(known.highest, time)

    def end(self) -> None:
        """Note that the markers of the open transactions are not archived."""
        for producer_id in list(self._open):
            self._end(producer_id)

    def _end(self, producer_id: int) -> None:
        known = self._open.pop(producer_id, None)
        if known is None:
            return
        span = (producer_id, known.first, known.last)
        before, since = self._clip.before, self._clip.since
        if before is not None and known.highest >= before:
            if known.lowest < before:
                self.found.left_out.append(span)
        elif since is not None and known.lowest < since <= known.highest:
            self.found.whole.append(span)


def _times_of(partition: ArchivedPartition, clip: Clip) -> Straddling:
    """The transactions with batches on both sides of a time."""
    follower = _TimesOfTransactions(clip)
    entries = [entry for entry in partition.entries if entry.transactional]
    if not _may_straddle(entries, clip):
        return follower.found
    before: SegmentEntry | None = None
    for entry in partition.entries:
        if before is not None and _is_hole(before.next_offset, entry.base_offset, partition.kept):
            follower.end()
        before = entry
        if entry.transactional:
            for stretch in _stretches(partition, (entry,)):
                follower.note(stretch)
    follower.end()
    return follower.found


def _may_straddle(entries: Sequence[SegmentEntry], clip: Clip) -> bool:
    """Whether a transaction may have batches on both sides of a time, by the catalog alone."""
    return any(
        any(entry.times.max_timestamp >= time for entry in entries)
        and any(entry.times.min_base_timestamp < time for entry in entries)
        for time in (clip.since, clip.before)
        if time is not None
    )


def _stretches(partition: ArchivedPartition, entries: Sequence[SegmentEntry]) -> Iterable[Stretch]:
    if not partition.damaged:
        yield from open_partition(partition.storage, partition.topic, entries).batches()
        return
    for item in open_damaged(partition.storage, partition.topic, entries).batches():
        if not isinstance(item, Damage):
            yield item

"""The transactions across a point: they are restored whole or not at all.

Where a partition ends at an offset, a transaction is restored if its marker lies before that offset. Where records are
left out by their times, the time of a transaction is that of its latest record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.partition import facts_in, is_hole, open_after, open_damaged, open_partition
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.transactions import TRANSACTIONAL, Span, TransactionFollower
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.clip import Clip

_READERS = 16


@dataclass(slots=True)
class Straddling:
    """The transactions across the point: those to leave out, and those that are restored although some of their batches
    are older than what is needed."""

    left_out: list[Span] = field(default_factory=list)
    whole: list[Span] = field(default_factory=list)


def straddling(partition: ArchivedPartition, clip: Clip | None) -> Straddling:
    """Return the transactions across the bounds of a clip. Raises ArchiveDamaged, unless `partition.damaged`."""
    found = Straddling()
    if clip is None or not any(entry.transactional for entry in partition.segments):
        return found
    if clip.end is not None:
        found.left_out += _open_at(partition, clip.end)
    if clip.timed:
        times = _times_of(partition, clip)
        found.left_out += times.left_out
        found.whole += times.whole
    return found


def _open_at(partition: ArchivedPartition, end: int) -> list[Span]:
    """Return the transactions that have begun before offset `end`, and whose markers lie at `end` or after it. Where
    records are missing before `end`, the marker is taken to be among them."""
    entries = [entry for entry in partition.segments if entry.base_offset < end]
    whole = entries[:-1] if entries and entries[-1].next_offset > end else entries
    *_, begun = ({}, *_open_after(partition, whole))
    last = whole[-1].next_offset if whole else 0
    for entry in entries[len(whole) :]:
        if whole and is_hole(last, entry.base_offset, partition.kept):
            begun = {}
        _follow(partition, entry, end, begun)
        last = entry.next_offset
    if entries and is_hole(last, end, partition.kept):
        begun = {}
    return [(producer_id, first, end - 1) for producer_id, first in begun.items()]


def _open_after(partition: ArchivedPartition, entries: Sequence[SegmentEntry]) -> Iterator[dict[int, int]]:
    """Yield the transactions that are open at the end of each segment: the offset at which each begins, by producer
    id."""
    storage, topic = partition.storage, partition.topic
    reported: OnDamage | None = (lambda damage: None) if partition.damaged else None

    places = {entry.base_offset: at for at, entry in enumerate(partition.segments)}

    def facts(entry: SegmentEntry) -> SegmentTransactions:
        return facts_in(storage, topic, partition.segments, places[entry.base_offset], reported)

    begun: dict[int, int] = {}
    last: int | None = None
    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        for entry, found in zip(entries, pool.map(facts, entries), strict=True):
            if last is not None and is_hole(last, entry.base_offset, partition.kept):
                begun = {}  # the markers lie there
            begun = open_after(begun, found)
            last = entry.next_offset
            yield begun


def _follow(partition: ArchivedPartition, entry: SegmentEntry, end: int, begun: dict[int, int]) -> None:
    """Continue with the batches of a segment that begin before `end`."""
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
    """Return the transactions with batches on both sides of a time. Only segments that may have some are read."""
    follower = _TimesOfTransactions(clip)
    entries = [entry for entry in partition.segments if entry.transactional]
    last = -1
    for at in _segments_across(partition, entries, clip):
        if at > last + 1 or (at and is_hole(entries[at - 1].next_offset, entries[at].base_offset, partition.kept)):
            follower.end()
        last = at
        for stretch in _stretches(partition, (entries[at],)):
            follower.note(stretch)
    follower.end()
    return follower.found


def _segments_across(partition: ArchivedPartition, entries: Sequence[SegmentEntry], clip: Clip) -> list[int]:
    """The numbers of the segments with transactions across a bound of the clip, from their beginnings to their ends.

    The catalog tells whether a segment has batches before a time, and whether it has some from it on. A transaction
    lies in several segments if it is open at the end of one.
    """
    sides = [
        [(entry.times.min_base_timestamp < time, entry.times.max_timestamp >= time) for entry in entries]
        for time in (clip.since, clip.before)
        if time is not None
    ]
    if not any(any(side[0] for side in of_time) and any(side[1] for side in of_time) for of_time in sides):
        return []
    begun = list(_open_after(partition, entries))
    wanted = {at for of_time in sides for at, side in enumerate(of_time) if all(side)}
    for of_time in sides:
        for at, (side, following) in enumerate(pairwise(of_time)):
            if side != following and begun[at]:
                wanted |= {at, at + 1}
    for at in sorted(wanted):
        wanted.update(_reaching_into(entries, begun, at))
    return sorted(wanted)


def _reaching_into(entries: Sequence[SegmentEntry], begun: Sequence[dict[int, int]], at: int) -> Iterator[int]:
    """Yield the segments before and after one that have the rest of its transactions."""
    first = min(begun[at - 1].values(), default=entries[at].base_offset) if at else 0
    before = at
    while before > 0 and entries[before - 1].next_offset > first:
        before -= 1
        yield before
    left, after_it = set(begun[at].items()), at
    while left and after_it + 1 < len(entries):
        after_it += 1
        yield after_it
        left &= set(begun[after_it].items())


def _stretches(partition: ArchivedPartition, entries: Sequence[SegmentEntry]) -> Iterable[Stretch]:
    if not partition.damaged:
        yield from open_partition(partition.storage, partition.topic, entries).batches()
        return
    for item in open_damaged(partition.storage, partition.topic, entries).batches():
        if not isinstance(item, Damage):
            yield item

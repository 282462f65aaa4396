"""Tells whether what tasks have done can be added to an archive. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from logkeep_engine.archive.catalog.facts import Partition, PassiveFacts, Receipt, RemovedSegment, TopicEntry
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen, news
from logkeep_engine.archive.catalog.packed import PackedSegments, SegmentTable
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range, add_range, without


class ReceiptCheck:
    """Tells whether receipts can follow a state one after another, as if those before were committed. The state itself
    stays as it is and is not copied. `topics` are topics that the state does not have yet."""

    def __init__(self, state: ArchiveState, topics: Iterable[TopicEntry]) -> None:
        self._state = state
        self._accepted = ArchiveState()
        self._accepted.add_facts(topics, (), (), ())
        self._passive: ReceiptCheck | None = None
        self.taken: list[Receipt] = []
        self.taken_aside: list[Receipt] = []
        """Those of passive generations, of the receipts that were taken for committed."""

    def _of(self, receipt: Receipt) -> ReceiptCheck:
        """Return the check of what is held aside, for a receipt of a passive generation; else this one."""
        if not receipt.generation:
            return self
        if self._passive is None:
            topics = (*self._state.topics.values(), *self._accepted.topics.values())
            self._passive = ReceiptCheck(self._state.of_generation(receipt.generation), topics)
        return self._passive

    def add(self, receipt: Receipt) -> None:
        """Take the receipt for committed from now on."""
        (self.taken_aside if receipt.generation else self.taken).append(receipt)
        self._of(receipt)._add(receipt)

    def _add(self, receipt: Receipt) -> None:
        self._accepted.add_facts((), receipt.coverage, receipt.segments, receipt.gaps)

    def holds(self, receipt: Receipt) -> bool:
        """True if the archive accounts for every offset of the receipt already."""
        return self._of(receipt)._holds(receipt)

    def _holds(self, receipt: Receipt) -> bool:
        return bool(receipt.ranges) and not any(
            self._accepted.uncovered(topic_id, partition, *part)
            for topic_id, partition, start, end in receipt.ranges
            for part in self._state.uncovered(topic_id, partition, start, end)
        )

    def why_not(self, receipt: Receipt, epoch: int) -> str | None:
        """Return the reason why the writer of `epoch` cannot commit a receipt, or None. `holds` tells whether the
        archive has the receipt already."""
        if not receipt.coverage and not receipt.gaps:
            return "it accounts for no offsets"
        own = self._of(receipt)
        return (
            self._why_not_generation(receipt) or own._why_not_ranges(receipt) or own._why_not_segments(receipt, epoch)
        )

    def _why_not_generation(self, receipt: Receipt) -> str | None:
        if not receipt.generation:
            return None
        for topic_id, partition, start, end in receipt.ranges:
            where = f"topic id {topic_id} partition {partition} offsets [{start}, {end})"
            passive = passive_of(self._state, (topic_id, partition))
            if passive is None or passive.number != receipt.generation:
                return f"{where}: generation {receipt.generation} is not being read"
            if start < passive.start or end > passive.end:
                return f"{where} are not in generation {receipt.generation}, [{passive.start}, {passive.end})"
        return "a generation has no gaps" if receipt.gaps else None

    def _why_not_ranges(self, receipt: Receipt) -> str | None:
        own: dict[Partition, list[Range]] = {}
        for topic_id, partition, start, end in receipt.ranges:
            where = f"topic id {topic_id} partition {partition} offsets [{start}, {end})"
            if topic_id not in self._state.topics and topic_id not in self._accepted.topics:
                return f"{where}: no commit names the topic"
            for state in (self._state, self._accepted):
                if state.uncovered(topic_id, partition, start, end) != [(start, end)]:
                    return f"{where}: an earlier commit accounts for some of them"
            ranges = own.setdefault((topic_id, partition), [])
            if without(start, end, ranges) != [(start, end)]:
                return f"{where} twice in one receipt"
            add_range(ranges, start, end)
        return None

    def _why_not_segments(self, receipt: Receipt, epoch: int) -> str | None:
        covered: dict[Partition, list[Range]] = {}
        for item in receipt.coverage:
            add_range(covered.setdefault((item.topic_id, item.partition), []), item.start, item.end)
        own = SegmentTable()
        for entry in receipt.segments:
            key = (entry.topic_id, entry.partition)
            where = f"topic id {entry.topic_id} partition {entry.partition} segment {entry.base_offset}"
            if entry.epoch != epoch:
                return f"{where} was written at epoch {entry.epoch}, not {epoch}"
            if without(entry.base_offset, entry.base_offset + 1, covered.get(key, ())):
                return f"{where} does not begin inside the receipt's coverage"
            for table in (self._state.segments, self._accepted.segments, own):
                other = table.overlapping(entry)
                if other is not None:
                    return f"{where} overlaps segment [{other.base_offset}, {other.next_offset})"
            try:
                own.add(entry)
            except ValueError as error:
                return f"{where}: {error}"
        return None


def check_snapshot(state: ArchiveState, snapshot: SnapshotEntry, epoch: int) -> None:
    """Raises ValueError for a snapshot that the writer of `epoch` cannot commit."""
    where = f"topic id {snapshot.topic_id} partition {snapshot.partition}: snapshot {snapshot.end}"
    accounted = state.accounted_for(*snapshot.key)
    if len(accounted) != 1:
        raise ValueError(f"{where}: the archive accounts for {len(accounted)} ranges of the partition, not for one")
    start, end = accounted[0]
    if end != snapshot.end:
        raise ValueError(f"{where}: the archive of the partition ends at {end}")
    if snapshot.parts[0].base_offset < start:
        raise ValueError(f"{where}: its first offset {snapshot.parts[0].base_offset} is below {start}")
    last = state.last_before(*snapshot.key, end)
    if last is not None and last.next_offset > end:
        raise ValueError(f"{where}: segment [{last.base_offset}, {last.next_offset}) crosses its end")
    if any(part.epoch != epoch for part in snapshot.parts):
        raise ValueError(f"{where}: it was not written at epoch {epoch}")
    held = state.snapshots.get(snapshot.key)
    if held and held[-1].end >= end:
        raise ValueError(f"{where}: there is a snapshot {held[-1].end}")


def check_removal(
    state: ArchiveState, segments: Iterable[RemovedSegment], snapshots: Iterable[RemovedSnapshot]
) -> None:
    """Raises ValueError for a segment or a snapshot that the state does not have."""
    for item in segments:
        key = (item.topic_id, item.partition)
        lines = state.own_facts(key)
        entries = PackedSegments(key, lines[item.line].rows if item.line < len(lines) else b"")
        at = entries.position(item.base_offset)
        if at == len(entries) or entries.span(at)[0] != item.base_offset:
            raise ValueError(f"there is no segment {item}")
    for old in snapshots:
        lines = state.own_facts((old.topic_id, old.partition))
        held = lines[old.line].snapshots if old.line < len(lines) else ()
        if all(found.end != old.end for found in held):
            raise ValueError(f"there is no snapshot {old}")


def read_aside(state: ArchiveState, receipts: Sequence[Receipt]) -> PassiveFacts:
    """Return the facts that these receipts add to passive generations."""
    if not receipts:
        return PassiveFacts()
    return PassiveFacts(
        tuple(item for receipt in receipts for item in receipt.coverage),
        tuple(item for receipt in receipts for item in receipt.segments),
        tuple(new_epochs(state.of_generation(receipts[0].generation), receipts, ())),
    )


def partition_of(item: LeaderEpoch | LeaderSeen) -> Partition:
    """Return the partition of a leader epoch."""
    return item.topic_id, item.partition


def new_epochs(
    state: ArchiveState, receipts: Iterable[Receipt], epochs: Iterable[LeaderEpoch]
) -> Iterator[LeaderEpoch]:
    """Yield the leader epochs, of those in the receipts and in `epochs`, that the archive does not know yet."""
    found: dict[Partition, list[LeaderEpoch]] = {}
    for item in chain(epochs, *(receipt.epochs for receipt in receipts)):
        found.setdefault(partition_of(item), []).append(item)
    for key, items in found.items():
        yield from news(state.epochs.get(key, ()), sorted(items, key=attrgetter("epoch", "start")))

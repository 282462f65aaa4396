"""The one door to what an archive holds of a partition, whatever its format.

    reader = open_partition(storage, "orders", entries, state.kept(topic_id, 0))
    for stretch, headers in reader.batches(start=100): ...  # Kafka's batches, only where `batched`
    for records in reader.records(start=100): ...           # of every format, committed ones only
    reader.transactions.aborted

`open_partition` raises ArchiveDamaged at the first damage. `open_damaged` continues after damage and hands it out in
its place: its readers see `Damage` among the batches and records. The entries may be all segments of a partition, some
that follow one another, or one, and slices of segments (`SegmentEntry.cut`): of a slice what lies in it is handed out,
and a batch across its bounds is cut. From its beginning a slice is read with all of its segment, whose digest is
compared at the end, as that of a segment is. Reading raises what the storage raises.

The other functions answer what is asked of one segment: the first record of a time (`first_since`), where records lie
(`placed_records`), the bytes of a log in any state (`log_bytes`). `__all__` is the whole door. No module outside of
`archive.reading` may import from its other modules (pyproject.toml, `[tool.importlinter]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Never, Protocol, TypeVar

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.batch_layout import decoded, first_in, sound
from logkeep_engine.archive.reading.cutting import cut_batch, records_within, stretches_within
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.files import NeighbouringReads, read_file
from logkeep_engine.archive.reading.layouts import READERS, reader_of
from logkeep_engine.archive.reading.log_reader import log_bytes
from logkeep_engine.archive.reading.outcomes import (
    aborted_in,
    facts_in,
    left_at,
    segment_transactions,
    transaction_index,
)
from logkeep_engine.archive.reading.parts import fetched_epoch, read_parts
from logkeep_engine.archive.reading.record_reader import RecordFormat, RecordObject, RecordReading
from logkeep_engine.archive.reading.transactions import TransactionOutcomes, is_hole, open_after
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.formats.records import RecordBlock
from logkeep_engine.log.batch import BatchHeader, Stretch
from logkeep_engine.log.consumed import LogRecord, index_since
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

__all__ = [
    "NeighbouringReads",
    "PartitionReader",
    "RecordObject",
    "Transactions",
    "decoded",
    "facts_in",
    "fetched_epoch",
    "first_since",
    "is_batched",
    "is_hole",
    "is_indexed",
    "left_at",
    "log_bytes",
    "open_after",
    "open_damaged",
    "open_partition",
    "placed_records",
    "read_file",
    "read_parts",
    "record_format",
    "segment_transactions",
    "sound",
]

D_co = TypeVar("D_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transactions:
    """The `aborted` transactions of a partition, and how they are known. Undecided transactions count as aborted.
    `damage`: the objects that a reader after damage could not read for them."""

    aborted: Sequence[AbortedTxn]
    outcomes: TransactionOutcomes
    damage: tuple[Damage, ...] = ()


class PartitionReader(Protocol[D_co]):
    """Reads a partition. `D_co` is what it hands out of damage: `Damage`, or nothing (Never) if it raises."""

    @property
    def batched(self) -> bool:
        """All segments hold Kafka's batches."""
        ...

    def batches(self, start: int = 0) -> Iterator[Stretch | D_co]:
        """Stretches of whole batches, from the batch that holds offset `start` or the first after it. A stretch is a
        view on batches that lie back to back, and their headers with positions in the view."""
        ...

    def records(self, start: int = 0) -> Iterator[Sequence[LogRecord] | D_co]:
        """Records in lists of bounded size, from offset `start` on: those that a consumer of committed records sees."""
        ...

    @property
    def transactions(self) -> Transactions:
        """How the transactions ended. After damage, a transaction is undecided if neither its marker nor an index is
        left."""
        ...

    def transaction_index(self) -> Iterator[AbortedTxn | D_co]:
        """Return the aborted transactions that the indexes of the segments name. A marker may say otherwise:
        `transactions` knows that."""
        ...


def open_partition(
    storage: Storage,
    topic: str,
    entries: Sequence[SegmentEntry],
    kept: Sequence[Range] = (),
    aborted: Sequence[AbortedTxn] | None = None,
) -> PartitionReader[Never]:
    """Return a reader that raises ArchiveDamaged at the first damage. It reads nothing yet.

    `kept` are the ranges of offsets that the entries stand for. `aborted`: the transactions to leave out of the
    records, if the caller knows them; by default the reader looks them up when records are read.
    """
    return _Strict(storage, topic, tuple(entries), tuple(kept), aborted)


def open_damaged(
    storage: Storage,
    topic: str,
    entries: Sequence[SegmentEntry],
    kept: Sequence[Range] = (),
    aborted: Sequence[AbortedTxn] | None = None,
) -> PartitionReader[Damage]:
    """Return a reader that continues after damage and hands it out in its place, else like that of `open_partition`."""
    return _Tolerant(storage, topic, tuple(entries), tuple(kept), aborted)


def first_since(storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
    """Return the offset of the first record of that time (ms) or later in a segment, None if there is none.

    Markers and records of aborted transactions are records too, as they are for a broker. Raises ArchiveDamaged for
    damage on the way.
    """
    whole = entry.uncut
    found = reader_of(whole).first_since(storage, topic, whole, time)
    if found is not None and found < entry.base_offset:  # and what lies in the slice may be older than that
        return _first_since_in(open_partition(storage, topic, (entry,), aborted=()), storage, topic, entry, time)
    return None if found is None or found >= entry.next_offset else found


def _first_since_in(
    reader: PartitionReader[Never], storage: Storage, topic: str, entry: SegmentEntry, time: int
) -> int | None:
    if reader.batched:
        return first_in(storage, topic, entry, reader.batches(), time)
    return next(
        (found[at].offset for found in reader.records() for at in [index_since(found, time)] if at < len(found)), None
    )


def is_batched(layout: Layout) -> bool:
    """Segments of this layout hold Kafka's batches; else they hold records."""
    return READERS[layout].batched


def is_indexed(layout: Layout) -> bool:
    """An index of records lies next to each segment of this layout."""
    found = READERS[layout].records_format
    return found is not None and found.indexed


def record_format(layout: Layout) -> RecordFormat:
    """Return how objects of this layout hold records, for who reads a file as it lies there: nothing is compared with a
    catalog."""
    found = READERS[layout].records_format
    if found is None:
        raise TypeError(f"objects of layout {layout!r} are not read alone")
    return found


def placed_records(storage: Storage, topic: str, entry: SegmentEntry) -> Iterator[RecordBlock | Damage]:
    """Return all records of a segment; if its layout `is_indexed`, a block knows the positions of each and of their
    end."""

    def read(on_damage: OnDamage) -> Iterator[RecordBlock]:
        return RecordReading(storage, topic, entry, on_damage, record_format(entry.layout)).parts(0, DEFAULT_BLOCK)

    return _in_place(read)


@dataclass(frozen=True)
class _Partition:
    """The entries of a partition, for both readers."""

    storage: Storage
    topic: str
    entries: tuple[SegmentEntry, ...]
    kept: tuple[Range, ...]
    aborted: Sequence[AbortedTxn] | None

    @property
    def batched(self) -> bool:
        return all(reader_of(entry).batched for entry in self.entries)

    def _batches_of(self, entry: SegmentEntry, start: int, on_damage: OnDamage | None) -> Iterator[Stretch]:
        whole = entry.uncut
        if whole is entry:
            return reader_of(entry).batches(self.storage, self.topic, entry, start, on_damage)
        report, every = _within_slice(entry, on_damage), start <= entry.base_offset
        begin = whole.base_offset if every else start  # the catalog has a digest of all of it, and none of the slice
        found = reader_of(whole).batches(self.storage, self.topic, whole, begin, report)
        cut = partial(self._cut, entry, report)
        return stretches_within(found, entry.base_offset, entry.next_offset, cut, to_the_end=every)

    def _cut(
        self, entry: SegmentEntry, on_damage: OnDamage | None, batch: memoryview, header: BatchHeader
    ) -> bytes | bytearray | None:
        """Return a batch of the records of another one that lie in the slice `entry`."""
        try:
            with sound(self.storage, self.topic, entry):
                return cut_batch(batch, header, entry.base_offset, entry.next_offset)
        except ArchiveDamaged as error:
            if on_damage is None:
                raise
            path = f"{self.storage.uri}/{entry.stem(self.topic)}{entry.log_suffix}"
            what, lost = error.message.rstrip("."), (header.base_offset, header.next_offset)
            on_damage(Damage(path, self.topic, entry.partition, header.base_offset, what, lost))
            return None

    def _records_of(
        self, aborted: Spans, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Sequence[LogRecord]]:
        reader, whole = reader_of(entry), entry.uncut
        if whole is entry:
            return reader.records(self.storage, self.topic, entry, start, on_damage, aborted)
        report = _within_slice(entry, on_damage)
        if reader.batched:
            stretches = self._batches_of(entry, start, on_damage)
            found = decoded(self.storage, self.topic, entry, stretches, aborted, report)
        else:  # nothing but a digest of all protects single records
            found = reader.records(self.storage, self.topic, whole, whole.base_offset, report, aborted)
        return records_within(found, max(start, entry.base_offset), entry.next_offset)

    def _from(self, start: int) -> Iterator[SegmentEntry]:
        return (entry for entry in self.entries if entry.next_offset > start)


def _within_slice(entry: SegmentEntry, on_damage: OnDamage | None) -> OnDamage | None:
    """Tells `on_damage` what damage takes from a slice."""

    def tell(damage: Damage) -> None:
        assert on_damage is not None
        if damage.lost is None:
            on_damage(damage)
            return
        low, high = max(damage.lost[0], entry.base_offset), min(damage.lost[1], entry.next_offset)
        if low < high:
            on_damage(replace(damage, lost=(low, high)))

    return None if on_damage is None else tell


class _Strict(_Partition):
    """Raises at the first damage."""

    @cached_property
    def transactions(self) -> Transactions:
        return Transactions(*aborted_in(self.storage, self.topic, self.entries, self.kept))

    def batches(self, start: int = 0) -> Iterator[Stretch]:
        for entry in self._from(start):
            yield from self._batches_of(entry, start, None)

    def records(self, start: int = 0) -> Iterator[Sequence[LogRecord]]:
        aborted = Spans.of(self.transactions.aborted if self.aborted is None else self.aborted)
        for entry in self._from(start):
            yield from self._records_of(aborted, entry, start, None)

    def transaction_index(self) -> Iterator[AbortedTxn]:
        yield from transaction_index(self.storage, self.topic, self.entries)


class _Tolerant(_Partition):
    """Continues after damage."""

    @cached_property
    def transactions(self) -> Transactions:
        reported: set[Damage] = set()
        found = aborted_in(self.storage, self.topic, self.entries, self.kept, reported.add)
        return Transactions(*found, tuple(sorted(reported, key=str)))

    def batches(self, start: int = 0) -> Iterator[Stretch | Damage]:
        for entry in self._from(start):
            yield from _in_place(partial(self._batches_of, entry, start))

    def records(self, start: int = 0) -> Iterator[Sequence[LogRecord] | Damage]:
        aborted = Spans.of(self.transactions.aborted if self.aborted is None else self.aborted)
        for entry in self._from(start):
            yield from _in_place(partial(self._records_of, aborted, entry, start))

    def transaction_index(self) -> Iterator[AbortedTxn | Damage]:
        yield from _in_place(lambda report: iter(transaction_index(self.storage, self.topic, self.entries, report)))


def _in_place(read: Callable[[OnDamage], Iterator[T]]) -> Iterator[T | Damage]:
    """Yield the items that `read` gives of a segment, and between them the damage that it reports."""
    lines: list[Damage] = []
    for item in read(lines.append):
        yield from lines
        lines.clear()
        yield item
        del item  # so that a buffer is free as soon as the caller's views are gone
    yield from lines

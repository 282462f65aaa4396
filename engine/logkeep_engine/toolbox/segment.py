"""One segment of a log: its batches and damage, its records, its indexes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import (
    RecordObject,
    is_batched,
    log_bytes,
    open_damaged,
    open_partition,
    read_file,
    record_format,
)
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptBatch,
    CorruptIndex,
    CorruptSegment,
    ObjectMissing,
)
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records import RecordBlock
from logkeep_engine.formats.records_index import position_before, read_index
from logkeep_engine.log.batch import BatchHeader, Buffer, Stretch
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.damage import DamagedBytes, OnDamagedBytes
from logkeep_engine.log.segment import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    AbortedTxn,
    find_offset,
    find_time,
    read_txn_index,
    without_preallocated,
)
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.log_bytes import BLOCK, file_blocks, frames
from logkeep_engine.toolbox.scan import MAX_BATCH_BYTES, Batch, scan

CHECKPOINT = ".checkpoint"
MOVED_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)\.[0-9a-f]{32}-(?:delete|future|stray)")
"""Folders that a broker has put aside."""


@dataclass(frozen=True)
class ToolboxSegment:
    """One segment of a partition. `topic` "" and `partition` -1: its name and folder do not say.

    `stem` is its path in `storage` without `suffix`; `size` is the number of bytes of the log or the object with the
    records; `entry` is what the catalog says, None outside of an archive; `topic_id` tells incarnations of a topic
    apart. `base_offset` of an object of the Avro format is the number in its name, which other tools count from 0.
    """

    storage: Storage = field(repr=False)
    layout: Layout
    topic: str
    partition: int
    base_offset: int
    stem: str
    suffix: str
    size: int
    entry: SegmentEntry | None = field(default=None, repr=False)
    topic_id: str = ""

    @property
    def path(self) -> str:
        """The path of the log or the records in the storage."""
        return self.stem + self.suffix

    @property
    def name(self) -> str:
        """The name for the user: a path, or a URI if it is not a local file."""
        return display(self.storage, self.path)

    @property
    def folder(self) -> str:
        """Its folder in `storage`. The same partition may lie there twice: from two brokers, or moved away. "" in an
        archive, whose catalog says what belongs together.
        """
        return "" if self.entry is not None else self.path.rpartition("/")[0]

    @property
    def moved(self) -> bool:
        """Its folder, below what the user named, is one that a broker has put aside (-delete, -future, -stray)."""
        return bool(MOVED_FOLDER.fullmatch(self.folder.rpartition("/")[2]))

    @property
    def has_batches(self) -> bool:
        return is_batched(self.layout)

    @property
    def is_checkpoint(self) -> bool:
        """It is a snapshot of a metadata log, or a part of one of a compacted partition: batches, but no segment of the
        log next to it, and without indexes of times."""
        return self.suffix == CHECKPOINT

    def beside(self, suffix: str) -> bytes | None:
        """Return an index of the segment, None if it is not there."""
        try:
            if self.entry is not None and self.entry.pack_files is not None:
                there = suffix in self.entry.pack_files.all_sizes(self.entry)
                return read_file(self.storage, self.topic, self.entry, suffix) if there else None
            return self.storage.read(self.stem + suffix)
        except ObjectMissing:
            return None

    # ---- batches

    def scan(self, start: int = 0) -> Iterator[Batch | DamagedBytes]:
        """Return the batches from position `start` of the log on, and what is damaged. Kafka's layout only."""
        largest = self.entry.max_batch_bytes if self.entry is not None else MAX_BATCH_BYTES
        return scan(
            self._blocks(start),
            self.size,
            start=start,
            base_offset=self._lowest(),
            max_batch_bytes=largest,
            sure=self.entry is not None,
        )

    def _lowest(self) -> int:
        """Return the lowest offset that a batch of it may have. The name of a snapshot does not say it."""
        if self.is_checkpoint and self.entry is None:
            first = self.storage.read_range(self.path, 0, 8)
            return int.from_bytes(first, "big", signed=True) if len(first) == 8 else 0
        return max(self.base_offset, 0) - (0 if self.entry is None else self.entry.files.margin)

    def scan_from(self, offset: int) -> Iterator[Batch | DamagedBytes]:
        """Return the items of `scan` from the batch that holds `offset` or the first after it. The offset index leads
        there, if it is that of the log.
        """
        position = self._hint(offset)
        items = self.scan(position)
        for item in items:
            if isinstance(item, DamagedBytes) or item.header.next_offset > offset:
                return chain([item], items)
        return iter(())

    def scan_from_time(self, timestamp: int) -> Iterator[Batch | DamagedBytes]:
        """Return the items of `scan` from a batch before which no record has this time (ms) or a later one."""
        data = without_preallocated(self.beside(names.TIMEINDEX) or b"", TIME_ENTRY_BYTES)
        if len(data) % TIME_ENTRY_BYTES:
            return self.scan()
        found = find_time(data, self.base_offset, timestamp)
        return self.scan() if found is None else self.scan_from(found.offset + 1)

    def aborted(self) -> list[AbortedTxn]:
        """Return the entries of its `.txnindex`. Raises CorruptIndex, in an archive also if it is not the catalog's."""
        try:
            if self.entry is not None:
                return list(open_partition(self.storage, self.topic, (self.entry,)).transaction_index())
            return read_txn_index(self.beside(names.TXNINDEX) or b"")
        except ArchiveDamaged as error:
            raise CorruptIndex(error.message, hint=error.hint) from error
        except CorruptIndex as error:
            raise CorruptIndex(f"{display(self.storage, self.stem + names.TXNINDEX)}: {error.message}") from error

    def _hint(self, offset: int) -> int:
        """Position of the last batch that the index knows at or below `offset`; 0 if it is not where the index says."""
        data = without_preallocated(self.beside(names.INDEX) or b"", OFFSET_ENTRY_BYTES)
        if len(data) % OFFSET_ENTRY_BYTES:
            return 0
        hint = find_offset(data, self.base_offset, offset)
        if hint is None or not 0 < hint.position < self.size:
            return 0
        first = next(self.scan(hint.position), None)
        right = isinstance(first, Batch) and first.intact and first.header.last_offset == hint.offset
        return hint.position if right else 0

    def _blocks(self, start: int) -> Iterator[Buffer | DamagedBytes]:
        if self.entry is not None:
            return log_bytes(self.storage, self.topic, self.entry, start, block=BLOCK)
        if self.suffix == names.LOG_ZST:
            return frames(self.storage, self.path, start)
        return file_blocks(self.storage, self.path, start)

    # ---- records

    def found(self, on_damage: OnDamagedBytes) -> Iterator[tuple[BatchHeader | None, Sequence[LogRecord]]]:
        """Yield its records with the header of their batch; None: the format holds no batches. Control records are left
        out, records of aborted transactions are not.

        An archive is read through its door, a log folder by the walker.
        """
        if self.entry is None:
            for where, records in self.placed(on_damage=on_damage):
                yield (where.header if isinstance(where, Batch) else None), records
            return
        reader = open_damaged(self.storage, self.topic, (self.entry,), aborted=())
        if not reader.batched:
            for part in reader.records():
                if isinstance(part, Damage):
                    on_damage(_bytes_of(part))
                else:
                    yield None, part
            return
        for item in reader.batches():
            if isinstance(item, Damage):
                on_damage(_bytes_of(item))
            else:
                yield from _records_of(item, on_damage)

    def records(self, start_offset: int = 0, on_damage: OnDamagedBytes | None = None) -> Iterator[Sequence[LogRecord]]:
        """Yield its records from `start_offset` on, without control records. Records of aborted transactions are among
        them.

        Damage ends the reading with CorruptBatch or CorruptSegment, unless `on_damage` takes note of it.
        """
        for _, records in self.placed(start_offset, on_damage):
            yield records

    def placed(
        self, start_offset: int = 0, on_damage: OnDamagedBytes | None = None
    ) -> Iterator[tuple[Batch | RecordBlock | None, Sequence[LogRecord]]]:
        """Yield the records of `records`, with their batch, or their place in the file."""
        if self.has_batches:
            yield from self._of_batches(start_offset, on_damage)
            return
        at = start_offset
        try:
            for where, found in self._of_records(start_offset):
                begin = bisect_left(found, start_offset, key=lambda record: record.offset)
                if begin == len(found):
                    continue
                at = found[-1].offset + 1
                if begin and where is not None:
                    yield RecordBlock(where.records[begin:], where.origin), found[begin:]
                else:
                    yield where, found
        except CorruptSegment as error:
            if on_damage is None:
                raise CorruptSegment(f"{self.name}: {error.message}", hint=error.hint) from error
            on_damage(DamagedBytes(error.message.rstrip("."), offset=at))

    def _of_batches(
        self, start_offset: int, on_damage: OnDamagedBytes | None
    ) -> Iterator[tuple[Batch, Sequence[LogRecord]]]:
        for item in self.scan_from(start_offset) if start_offset > self.base_offset else self.scan():
            if isinstance(item, DamagedBytes):
                damage = item
            elif item.problem:
                damage = damage_of(item, item.problem)
            elif item.header.is_control:
                continue
            else:
                try:
                    found = decode_records(item.data, item.header)
                except BatchTooLarge as error:
                    if on_damage is None:
                        raise error.within(self.name) from error
                    damage = damage_of(item, error.message.rstrip("."))
                except CorruptBatch as error:
                    damage = damage_of(item, error.message.rstrip("."))
                else:
                    begin = bisect_left(found, start_offset, key=lambda record: record.offset)
                    yield item, found[begin:] if begin else found
                    continue
            if on_damage is None:
                raise CorruptBatch(
                    f"{self.name}: {damage.what}, at position {damage.position}.",
                    hint="`logkeep log dump` shows what is left.",
                )
            on_damage(damage)

    def _of_records(self, start_offset: int) -> Iterator[tuple[RecordBlock | None, Sequence[LogRecord]]]:
        records_format = record_format(self.layout)
        position = self._records_hint(start_offset) if records_format.indexed else 0
        blocks = cast("Iterator[bytes]", file_blocks(self.storage, self.path, position))
        what = RecordObject(self.size, position, start_offset)
        for found in records_format.decode(blocks, what):
            yield found if records_format.indexed else None, found.records

    def _records_hint(self, start_offset: int) -> int:
        if start_offset <= self.base_offset or not (data := self.beside(names.RECORDS_INDEX)):
            return 0
        try:
            index = read_index(data)
        except CorruptIndex:
            return 0
        return (position_before(index, start_offset) or 0) if index.end == self.size else 0


def _records_of(stretch: Stretch, on_damage: OnDamagedBytes) -> Iterator[tuple[BatchHeader, Sequence[LogRecord]]]:
    data, headers = stretch
    for position, header in headers:
        if header.is_control:
            continue
        try:
            records = decode_records(data[position : position + header.size], header)
        except (BatchTooLarge, CorruptBatch) as error:
            on_damage(DamagedBytes(error.message.rstrip("."), header.size, offset=header.base_offset))
        else:
            yield header, records


def _bytes_of(damage: Damage) -> DamagedBytes:
    """Return the archive's reader names the position in `what`."""
    return DamagedBytes(damage.what, offset=-1 if damage.offset is None else damage.offset)


def damage_of(batch: Batch, what: str) -> DamagedBytes:
    """Return the damage that stands for a batch that cannot be used."""
    return DamagedBytes(what, batch.header.size, batch.position, batch.header.base_offset)

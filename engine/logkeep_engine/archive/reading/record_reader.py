"""Reading segments of the Records and the Avro format: records in order, held against the catalog.

for records in read_records(storage, topic, entry): ...
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import cast

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptIndex,
    CorruptSegment,
    ObjectMissing,
)
from logkeep_engine.formats import records as records_format
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records_index import position_before, read_index
from logkeep_engine.log.memory import give_back_what_is_large
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

_HINT = "Put the object back from a copy of the archive. A restore goes on without it with onDamagedArchive: Skip."
_offset = attrgetter("offset")


def read_records(
    storage: Storage,
    topic: str,
    entry: SegmentEntry,
    *,
    start_offset: int = 0,
    on_damage: OnDamage | None = None,
    block: int = DEFAULT_BLOCK,
) -> Iterator[list[LogRecord]]:
    """The records of a Records or Avro segment from `start_offset` on, in lists of bounded size.

    Without `on_damage` raises ArchiveDamaged at the first damage. With it, damage is told after the records before it
    were handed out. Nothing in these formats protects single records: if the object's SHA-256 is wrong, nobody knows
    which of them is altered. At the end, a whole segment is compared with its SHA-256 and count. A part, which the
    index of a Records segment allows to read alone, cannot be compared.
    """
    for records, _ in RecordReading(storage, topic, entry, on_damage).parts(start_offset, block):
        if records[0].offset >= start_offset:
            yield records
        elif records[-1].offset >= start_offset:
            yield records[bisect_left(records, start_offset, key=_offset) :]


class RecordReading:
    """One pass over a segment."""

    def __init__(self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None) -> None:
        give_back_what_is_large()
        self._storage = storage
        self._topic = topic
        self._entry = entry
        self._on_damage = on_damage
        self._path = entry.stem(topic) + entry.log_suffix
        self._expected = entry.base_offset
        self._digest = hashlib.sha256()
        self._size = 0

    def parts(self, start_offset: int, block: int) -> Iterator[tuple[list[LogRecord], Sequence[int]]]:
        """Records, from `start_offset` on or from before, and (Records format) the positions of each and the end."""
        entry = self._entry
        if start_offset >= entry.next_offset:
            return
        position = self._position(start_offset)
        whole = start_offset <= entry.base_offset
        count = 0
        try:
            with closing(self._blocks(position, block)) as blocks:
                for records, positions in self._decoded(blocks, position, start_offset):
                    self._check_offsets(records, whole)
                    self._expected = records[-1].offset + 1
                    count += len(records)
                    yield records, positions
        except ObjectMissing:
            self._report("the object is missing", self._rest())
        except CorruptSegment as error:
            self._report(error.message.rstrip("."), self._rest())
        except BatchTooLarge as error:
            where = f"{self._storage.uri}/{self._path} (topic {self._topic} partition {entry.partition})"
            raise error.within(where) from error
        else:
            self._finish(position, count if whole else None)

    def _decoded(
        self, blocks: Iterable[bytes], position: int, start_offset: int
    ) -> Iterator[tuple[list[LogRecord], Sequence[int]]]:
        entry = self._entry
        if entry.layout is Layout.AVRO:
            from logkeep_engine.formats.avro import read_object

            wanted = {"start_offset": start_offset, "size": entry.bytes}
            for records in read_object(blocks, topic=self._topic, partition=entry.partition, **wanted):
                yield cast(list[LogRecord], records), ()
        else:
            for part in records_format.read_blocks(blocks, position=position, size=entry.bytes):
                yield cast(list[LogRecord], part.records), part.positions

    def _check_offsets(self, records: Sequence[LogRecord], whole: bool) -> None:
        first, last, entry = records[0].offset, records[-1].offset, self._entry
        bad = first if first < self._expected else last if last >= entry.next_offset else None
        # The original tool of the Records format may name a segment by an offset before its first record.
        if bad is None and whole and entry.layout is Layout.AVRO and self._expected == entry.base_offset != first:
            bad = first
        if bad is not None:
            raise CorruptSegment(
                f"a record with offset {bad}, where offsets from {self._expected} to {entry.next_offset - 1} may follow"
            )

    def _position(self, start_offset: int) -> int:
        """Where in the object to begin: the index is only a hint, where it is missing or wrong all is read."""
        entry = self._entry
        if start_offset <= entry.base_offset or entry.layout is Layout.AVRO:
            return 0
        try:
            data = self._storage.read(entry.stem(self._topic) + names.RECORDS_INDEX)
            found = position_before(read_index(data), start_offset) if len(data) == entry.index_bytes else None
        except (ObjectMissing, CorruptIndex):
            return 0
        return found or 0

    def _blocks(self, position: int, block: int) -> Generator[bytes]:
        with self._storage.reader(self._path, block=min(block, self._entry.bytes + 1), start=position) as reader:
            while data := reader.read_block():
                self._size += len(data)
                if position == 0:
                    self._digest.update(data)
                yield data

    def _finish(self, position: int, count: int | None) -> None:
        entry = self._entry
        if position + self._size != entry.bytes:
            self._report(f"{position + self._size} bytes, the catalog says {entry.bytes}", self._rest())
        elif self._expected != entry.next_offset:
            what = f"its records end before offset {self._expected}, the catalog says {entry.next_offset}"
            self._report(what, self._rest())
        elif count is not None and count != entry.records:
            self._report(f"{count} records, the catalog says {entry.records}", None)
        elif position == 0 and (found := self._digest.hexdigest()) != entry.sha256:
            self._report(f"its SHA-256 is {found}, the catalog says {entry.sha256}: records were altered", None)

    def _rest(self) -> Range:
        return (self._expected, self._entry.next_offset)

    def _report(self, what: str, lost: Range | None) -> None:
        damage = damage_of(self._storage, self._topic, self._entry, self._path, what, self._expected)
        if self._on_damage is None:
            raise ArchiveDamaged(f"{damage}.", hint=_HINT)
        self._on_damage(replace(damage, lost=lost) if lost is not None and lost[0] < lost[1] else damage)


def damage_of(
    storage: Storage, topic: str, entry: SegmentEntry, path: str, what: str, offset: int | None = None
) -> Damage:
    """A damage of the object `path` of a segment, at `offset` or at its first."""
    at = entry.base_offset if offset is None else offset
    return Damage(f"{storage.uri}/{path}", topic, entry.partition, at, what)

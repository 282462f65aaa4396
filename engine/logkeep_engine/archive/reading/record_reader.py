"""Reading segments that hold records: records in order, compared with the catalog."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import OnDamage, damage_of
from logkeep_engine.digest import Hasher
from logkeep_engine.errors import (
    BatchTooLarge,
    CorruptIndex,
    CorruptSegment,
    ObjectMissing,
    ObjectTooLarge,
)
from logkeep_engine.formats.records import RecordBlock, read_blocks
from logkeep_engine.formats.records_index import position_before, read_index
from logkeep_engine.log.memory import give_back_what_is_large
from logkeep_engine.log.rows import Rows
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class RecordObject:
    """The facts that are known of an object with records before it is read: its `size`, and the `topic` and `partition`
    that it must say of itself, if it says them (None: any). Its bytes are read from `position` on, for the records from
    `start_offset` on."""

    size: int
    position: int = 0
    start_offset: int = 0
    topic: str | None = None
    partition: int | None = None


Decoded = Iterator[RecordBlock]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How the bytes of an object hold records.

    `decode` gives the records in the blocks of an object, in lists of bounded size, and raises CorruptSegment. If the
    format is `indexed`, an index next to the records leads to each of them: then a block knows the positions of its
    records, and a segment may be named by an offset before its first record.
    """

    indexed: bool
    decode: Callable[[Iterable[bytes], RecordObject], Decoded]


def _decode_records(blocks: Iterable[bytes], what: RecordObject) -> Decoded:
    """Return the records from the first in `blocks` on."""
    yield from read_blocks(blocks, position=what.position, size=what.size)


def _decode_avro(blocks: Iterable[bytes], what: RecordObject) -> Decoded:
    """Return the records from `start_offset` on, with either schema. An object is always read from its beginning."""
    from logkeep_engine.formats.avro import read_object  # fastavro takes its time

    for records in read_object(
        blocks, topic=what.topic, partition=what.partition, start_offset=what.start_offset, size=what.size
    ):
        yield RecordBlock(records, 0)


RECORDS = RecordFormat(indexed=True, decode=_decode_records)
AVRO = RecordFormat(indexed=False, decode=_decode_avro)


class RecordReading:
    """One pass over a segment."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        entry: SegmentEntry,
        on_damage: OnDamage | None,
        records_format: RecordFormat,
    ) -> None:
        give_back_what_is_large()
        self._storage = storage
        self._topic = topic
        self._entry = entry
        self._on_damage = on_damage
        self._format = records_format
        self._path = entry.stem(topic) + entry.log_suffix
        self._expected = entry.base_offset
        self._hasher = Hasher(entry.digest.algorithm)
        self._size = 0

    def parts(self, start_offset: int, block: int) -> Decoded:
        """Records, from `start_offset` on or from before."""
        entry = self._entry
        if start_offset >= entry.next_offset:
            return
        position = self._position(start_offset)
        whole = start_offset <= entry.base_offset
        count = 0
        try:
            with closing(self._blocks(position, block)) as blocks:
                what = RecordObject(entry.bytes, position, start_offset, self._topic, entry.partition)
                for found in self._format.decode(blocks, what):
                    self._check_offsets(found.records, whole)
                    self._expected = found.records.last_offset + 1
                    count += len(found.records)
                    yield found
        except ObjectMissing:
            self._report("the object is missing", self._rest())
        except CorruptSegment as error:
            self._report(error.message.rstrip("."), self._rest())
        except BatchTooLarge as error:
            where = f"{self._storage.uri}/{self._path} (topic {self._topic} partition {entry.partition})"
            raise error.within(where) from error
        else:
            self._finish(position, count if whole else None)

    def _check_offsets(self, rows: Rows, whole: bool) -> None:
        first, last, entry = rows.first_offset, rows.last_offset, self._entry
        bad = first if first < self._expected else last if last >= entry.next_offset else None
        # The original tool of the Records format may name a segment by an offset before its first record.
        if bad is None and whole and not self._format.indexed and self._expected == entry.base_offset != first:
            bad = first
        if bad is not None:
            raise CorruptSegment(
                f"a record with offset {bad}, where offsets from {self._expected} to {entry.next_offset - 1} may follow"
            )

    def _position(self, start_offset: int) -> int:
        """Return the position from which to read. The index is only a hint: if it is missing or wrong, all is read."""
        entry = self._entry
        if start_offset <= entry.base_offset or not self._format.indexed:
            return 0
        try:
            data = self._storage.read(entry.stem(self._topic) + names.RECORDS_INDEX)
            found = position_before(read_index(data), start_offset) if len(data) == entry.files.index_bytes else None
        except (ObjectMissing, ObjectTooLarge, CorruptIndex):
            return 0
        return found or 0

    def _blocks(self, position: int, block: int) -> Generator[bytes]:
        with self._storage.reader(self._path, block=min(block, self._entry.bytes + 1), start=position) as reader:
            while data := reader.read_block():
                self._size += len(data)
                if position == 0:
                    self._hasher.update(data)
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
        elif position == 0 and (found := self._hasher.digest()) != entry.digest:
            self._report(f"{entry.digest.difference(found)}: records were altered", None)

    def _rest(self) -> Range:
        return (self._expected, self._entry.next_offset)

    def _report(self, what: str, lost: Range | None) -> None:
        damage = damage_of(self._storage, self._topic, self._entry, self._path, what, self._expected)
        if self._on_damage is None:
            raise damage.error()
        self._on_damage(replace(damage, lost=lost) if lost is not None and lost[0] < lost[1] else damage)

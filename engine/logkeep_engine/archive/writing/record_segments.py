"""Segments of the Records and the Avro format in an archive: written, read, and held against the catalog.

    sink = RecordSink(storage, Layout.RECORDS, topic, topic_id, partition, epoch, attempt, limit_bytes, options)
    taken = sink.append(records); entry = sink.finish()
    for records in read_records(storage, topic, entry): ...

These formats say how objects are named, so no epoch is in a name, and a second attempt meets what a first one left. The
order is data, index, receipt, commit, and of what lies under a name already:

- Nothing: it is created, conditionally.
- The same bytes: nothing is written.
- Other bytes (the log was compacted since, or segments have another size now): they were never committed, since a
  range of offsets is committed once. They are replaced, but only as they were when this writer began to write its own
  object (`Storage.writer(replaces=...)`), and only after it has looked, later than that, that no newer run has begun.
  So a writer that outlived its run replaces nothing that its successor wrote: either it sees the successor in the
  catalog, or what it looked at is not there any more. Two cases are left, both of a log that was compacted between two
  attempts, and `verify` names what either would leave. An object that was there before both, that the successor found
  to be just what it needs, and that the old writer, between its look into the catalog and its request, was about to
  replace with something else. And two live attempts of one run, that is one epoch (a task that Spark gave up and that
  still goes on, beside the one that took its place): the old one may replace what the new one has written and the
  driver has not committed yet, and the receipt that is committed then speaks of other bytes.

A kill leaves: while data is written, nothing (S3: an unfinished upload); after the data, an object without index; after
the index, both; in all cases nothing that a commit names, and the next attempt finds them equal or replaces them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from typing import cast

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.segments import Fault, OnFault
from logkeep_engine.contract.spec import FormatOptions
from logkeep_engine.errors import (
    ArchiveDamaged,
    ArchiveFenced,
    BatchTooLarge,
    CorruptIndex,
    CorruptSegment,
    ObjectExists,
    ObjectMissing,
    StorageUnavailable,
)
from logkeep_engine.formats import records as records_format
from logkeep_engine.formats import records_names
from logkeep_engine.formats.avro_names import SEQUENCE_WIDTH
from logkeep_engine.formats.base import LogRecord, SegmentEncoder, SegmentFacts
from logkeep_engine.formats.counted import CountedRecords
from logkeep_engine.formats.records_index import pack_entries, position_before, read_index
from logkeep_engine.log.memory import give_back_what_is_large
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

BATCH_OVERHEAD = 200
"""More bytes than a batch with one record has beside the record's key, value and headers."""

_HINT = "Put the object back from a copy of the archive. A restore goes on without it with onDamagedArchive: Skip."

_offset = attrgetter("offset")


# ---- writing


class RecordSink:
    """One segment of `layout` (RECORDS or AVRO) in the making, which ends with the record that takes it over
    `limit_bytes`. Offsets of the records it is given must rise; one thread at a time.

    The name comes from the first record. Nothing is written before that, and nothing is visible before `finish`.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        topic: str,
        topic_id: str,
        partition: int,
        epoch: int,
        attempt: int,
        limit_bytes: int,
        options: FormatOptions,
    ) -> None:
        if layout not in (Layout.RECORDS, Layout.AVRO):
            raise ValueError(f"no segment of records is written in layout {layout.name}")
        self._storage = storage
        self._layout = layout
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._epoch = epoch
        self._attempt = attempt
        self._limit = limit_bytes
        self._options = options
        self._encoder: SegmentEncoder | None = None
        self._objects: list[_Object] = []

    @property
    def size(self) -> int:
        """Bytes of the data object so far, see `SegmentEncoder.size`."""
        return self._encoder.size if self._encoder is not None else 0

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        return self._encoder is not None and self._encoder.full

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the segment; returns how many."""
        if self._encoder is None:
            if start >= len(records):
                return 0
            self._encoder = self._begin(records[start].offset)
        return self._encoder.append(records, start)

    def finish(self) -> SegmentEntry:
        """Make the segment's objects visible, data first. At least one record was taken.

        Raises ArchiveFenced if what lies there already is a newer run's, and StorageUnavailable if another writer was
        at the same object at the same time.
        """
        if self._encoder is None:
            raise ValueError("a segment needs at least one record")
        facts = self._encoder.finish()
        entry = entry_of(
            facts,
            self._layout,
            topic_id=self._topic_id,
            partition=self._partition,
            epoch=self._epoch,
            attempt=self._attempt,
        )
        data, *indexes = self._objects
        data.settle(entry, entry.sha256)
        for index in indexes:
            index.settle(entry, index.sha256())
        return entry

    def abort(self) -> None:
        """Drop what was taken. Harmless after `finish`, and twice."""
        for item in self._objects:
            item.abort()

    def _begin(self, base_offset: int) -> SegmentEncoder:
        topic, partition = self._topic, self._partition
        if self._layout is Layout.AVRO:
            from logkeep_engine.formats.avro import AvroEncoder  # slow to import; the other formats do without

            stem = names.avro_stem(topic, partition, base_offset, width=SEQUENCE_WIDTH)
            data = self._object(stem + names.DATA)
            return AvroEncoder(data.write, self._limit, topic, partition, self._options)
        stem = names.records_stem(topic, partition, base_offset)
        data = self._object(stem + names.RECORDS)
        index = self._object(stem + names.RECORDS_INDEX)
        # A piece gives every record once: what the encoder would remember of each is not needed.
        return records_format.RecordsEncoder(data.write, index.write_hashed, self._limit, idempotent=False)

    def _object(self, path: str) -> _Object:
        item = _Object(self._storage, path)
        self._objects.append(item)
        return item


class RecordSegments:
    """The segments of a piece, one after another, each from `open_sink`."""

    def __init__(self, open_sink: Callable[[], RecordSink]) -> None:
        self._open_sink = open_sink
        self._sink: RecordSink | None = None
        self._entries: list[SegmentEntry] = []
        self._closed_bytes = 0

    @property
    def size(self) -> int:
        """Bytes of the data objects so far."""
        return self._closed_bytes + (self._sink.size if self._sink is not None else 0)

    def append(self, records: Sequence[LogRecord]) -> None:
        at = 0
        while at < len(records):
            if self._sink is None:
                self._sink = self._open_sink()
            at += self._sink.append(records, at)
            if self._sink.full:
                self._close()

    def finish(self) -> tuple[SegmentEntry, ...]:
        """Close the open segment, if any; all entries."""
        self._close()
        return tuple(self._entries)

    def abort(self) -> None:
        """Drop the open segment. Harmless after `finish`."""
        if self._sink is not None:
            self._sink.abort()
            self._sink = None

    def _close(self) -> None:
        if self._sink is None:
            return
        entry = self._sink.finish()
        self._sink = None
        self._entries.append(entry)
        self._closed_bytes += entry.bytes


def entry_of(
    facts: SegmentFacts,
    layout: Layout,
    *,
    topic_id: str,
    partition: int,
    epoch: int,
    attempt: int = 0,
    sequence: int | None = None,
    sequence_width: int = SEQUENCE_WIDTH,
) -> SegmentEntry:
    """The catalog's entry of a finished segment. `sequence` and `sequence_width` are those of an Avro object's name; by
    default the name is Logkeep's own."""
    avro = layout is Layout.AVRO
    return SegmentEntry(
        topic_id=topic_id,
        partition=partition,
        epoch=epoch,
        attempt=attempt,
        base_offset=facts.base_offset,
        next_offset=facts.next_offset,
        records=facts.records,
        batches=facts.blocks,
        bytes=facts.bytes,
        min_base_timestamp=facts.min_timestamp,
        max_timestamp=facts.max_timestamp,
        sha256=facts.sha256,
        codecs={},
        transactional=False,
        control=False,
        gaps=facts.gaps,
        append_time=facts.append_time,
        legacy=False,
        max_batch_bytes=facts.largest_record + BATCH_OVERHEAD,
        index_bytes=facts.index_bytes,
        timeindex_bytes=0,
        txnindex_bytes=0,
        layout=layout,
        sequence=(facts.base_offset if sequence is None else sequence) if avro else 0,
        sequence_width=sequence_width if avro else 0,
    )


class _Object:
    """One object of a segment on its way."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._found = storage.version(path)
        self._writer = storage.writer(path, replaces=self._found)
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._writer.write(data)

    def write_hashed(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._writer.write(data)

    def sha256(self) -> str:
        """Of what was written with `write_hashed`."""
        return self._digest.hexdigest()

    def settle(self, entry: SegmentEntry, sha256: str) -> None:
        """Have these bytes, of this hash, under the name; see the module's docstring."""
        if self._found is not None:
            if self._is_there(sha256):
                self._writer.abort()
                return
            _check_replaceable(self._storage, self._path, entry)
        try:
            self._writer.commit()
        except ObjectExists as error:
            # Another attempt with the same bytes, or this one, if the answer to its first request was lost.
            self._writer.abort()
            if not self._is_there(sha256):
                raise StorageUnavailable(
                    f"{self._storage.uri}/{self._path} was written by another writer at the same time.",
                    hint="It may pass; try again.",
                ) from error

    def abort(self) -> None:
        self._writer.abort()

    def _is_there(self, sha256: str) -> bool:
        try:
            return _sha256(self._storage, self._path)[0] == sha256
        except ObjectMissing:
            return False


def _check_replaceable(storage: Storage, path: str, entry: SegmentEntry) -> None:
    """Raises ArchiveFenced if a newer run has begun, StorageUnavailable if this run has committed the segment."""
    archive = Archive.open(storage)
    for number in sorted(archive.listing().commits, reverse=True):
        commit = archive.read_commit(number)
        if commit.epoch > entry.epoch:
            raise ArchiveFenced(
                f"Run {commit.run_id} has taken over the archive at {storage.uri} at epoch {commit.epoch}: "
                f"{path} is not replaced by a writer of epoch {entry.epoch}.",
                hint="What this run committed before is kept. Let the other run finish.",
            )
        if commit.epoch < entry.epoch:
            return
        key = (entry.topic_id, entry.partition, entry.base_offset)
        if any((item.topic_id, item.partition, item.base_offset) == key for item in commit.segments):
            raise StorageUnavailable(
                f"{storage.uri}/{path} is not replaced: another attempt of this task has committed it with other "
                "content (the log was compacted meanwhile).",
                hint="The same run started again goes on behind it.",
            )


# ---- reading


def read_records(
    storage: Storage,
    topic: str,
    entry: SegmentEntry,
    *,
    start_offset: int = 0,
    on_fault: OnFault | None = None,
    block: int = DEFAULT_BLOCK,
) -> Iterator[list[LogRecord]]:
    """The records of a Records or Avro segment from `start_offset` on, in lists of bounded size.

    Without `on_fault` raises ArchiveDamaged at the first fault. With it, a fault is told with the offsets that cannot
    be read for it, and what could be read was handed out: nothing in these formats protects single records, so after a
    fault in the object's SHA-256 nobody knows which of them is altered. A whole segment is held against its SHA-256 and
    count at the end; a part, which the index of a Records segment allows to read alone, cannot be.
    """
    for records, _ in _Reading(storage, topic, entry, on_fault).parts(start_offset, block):
        if records[0].offset >= start_offset:
            yield records
        elif records[-1].offset >= start_offset:
            yield records[bisect_left(records, start_offset, key=_offset) :]


def verify_record_segment(storage: Storage, topic: str, entry: SegmentEntry) -> list[Fault]:
    """The faults of the objects of a Records or Avro segment; [] if it is whole. Bounded memory."""
    faults: list[Fault] = []
    facts = CountedRecords()
    index = hashlib.sha256(records_names.MAGIC)
    reading = _Reading(storage, topic, entry, lambda fault, _: faults.append(fault))
    for records, positions in reading.parts(0, DEFAULT_BLOCK):
        facts.note(records)
        if positions:
            index.update(pack_entries([record.offset for record in records], positions))
    if not faults:
        path = entry.stem(topic) + entry.log_suffix
        faults.extend(_fault(storage, topic, entry, path, what) for what in _differences(facts, entry))
    if entry.layout is not Layout.AVRO:
        path = entry.stem(topic) + names.RECORDS_INDEX
        what = _wrong_index(storage, path, entry, None if faults else index.hexdigest())
        if what:
            faults.append(_fault(storage, topic, entry, path, what))
    return faults


class _Reading:
    """One pass over a segment."""

    def __init__(self, storage: Storage, topic: str, entry: SegmentEntry, on_fault: OnFault | None) -> None:
        give_back_what_is_large()
        self._storage = storage
        self._topic = topic
        self._entry = entry
        self._on_fault = on_fault
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
        fault = _fault(self._storage, self._topic, self._entry, self._path, what, self._expected)
        if self._on_fault is None:
            raise ArchiveDamaged(f"{fault}.", hint=_HINT)
        self._on_fault(fault, lost if lost is not None and lost[0] < lost[1] else None)


def _differences(found: CountedRecords, entry: SegmentEntry) -> Iterator[str]:
    # A segment of the Records format may be named by an offset before its first record.
    named = entry.base_offset if entry.layout is not Layout.AVRO else found.first
    first = min(found.first, named)
    facts = {
        "base_offset": first,
        "next_offset": found.last + 1,
        "records": found.count,
        "min_base_timestamp": found.min_timestamp,
        "max_timestamp": found.max_timestamp,
        "gaps": found.last - first + 1 != found.count,
    }
    for name, value in facts.items():
        expected = getattr(entry, name)
        if value != expected:
            yield f"{name} is {value}, the catalog says {expected}"
    # A strict Avro object does not say which times are append times.
    if found.append_time and not entry.append_time:
        yield "append_time is True, the catalog says False"
    if found.largest > entry.max_batch_bytes:
        yield f"a record has {found.largest} bytes, the catalog says at most {entry.max_batch_bytes}"


def _wrong_index(storage: Storage, path: str, entry: SegmentEntry, expected: str | None) -> str:
    """What is wrong with the index, "" if nothing is; `expected` is the SHA-256 of the right one, None: not known."""
    try:
        found, size = _sha256(storage, path)
    except ObjectMissing:
        return "the object is missing"
    if size != entry.index_bytes:
        return f"{size} bytes, the catalog says {entry.index_bytes}"
    return "it is not the index of the records" if expected not in (None, found) else ""


def _sha256(storage: Storage, path: str) -> tuple[str, int]:
    """Of an object, and its size. Raises ObjectMissing."""
    digest, size = hashlib.sha256(), 0
    with storage.reader(path) as reader:
        while data := reader.read_block():
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size


def _fault(storage: Storage, topic: str, entry: SegmentEntry, path: str, what: str, offset: int | None = None) -> Fault:
    at = entry.base_offset if offset is None else offset
    return Fault(f"{storage.uri}/{path}", topic, entry.partition, at, what)

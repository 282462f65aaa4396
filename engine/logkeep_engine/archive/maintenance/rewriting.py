"""Rewrites segments without the records of some keys. What is written is not in the archive before a commit names it.

    found = without_keys(place, keys, topic, entry, attempt)     # None: the segment has none of the keys
    writer.exchange([Exchange(entry, found.left)])

Offsets stay: where a record was, an offset is missing, as after compaction. Batches that lose nothing stay as they are.
A batch that loses all its records goes. If it is the last of its segment it stays without records, so that the segment
ends where it ended. A segment that loses all its batches goes.

A name is used once, so what is written has another name than what it replaces. In the Kafka format the epoch and the
attempt are in it. In the Records and the Avro format the number in the name gets one digit more: to readers of numbers
it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import IndexLeft, SegmentFollower
from logkeep_engine.archive.reading.partition import fetched_epoch, is_batched, open_partition, sound
from logkeep_engine.archive.writing.log_writer import LogSegment, SnapshotPlace, SnapshotSegment
from logkeep_engine.archive.writing.record_writer import RewrittenObjects, entry_of
from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, Compression, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.formats import records as records_format
from logkeep_engine.formats.avro_names import SEQUENCE_WIDTH
from logkeep_engine.formats.base import SegmentEncoder
from logkeep_engine.formats.records_names import RECORDS_WIDTH
from logkeep_engine.log.batch import BatchHeader, Headers, Stretch, headers_of, parse_header
from logkeep_engine.log.keys import Keys, emptied, remains
from logkeep_engine.log.rows import as_rows
from logkeep_engine.log.snapshot import footer_batch, header_batch
from logkeep_engine.storage import Storage

NAMES_BEFORE_REUSE = 20
_NO_LIMIT = 1 << 62  # what was one segment stays one, whatever its size


@dataclass(frozen=True, slots=True)
class RewritePlace:
    """Where segments are rewritten, and at which epoch. It pickles without secrets."""

    storage: Storage
    epoch: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment that was rewritten. `left` None: nothing is left of it. `records` are gone, which are those of the
    keys; `bytes` is how much smaller the log is, or the object with the records."""

    entry: SegmentEntry
    left: SegmentEntry | None
    records: int

    @property
    def bytes(self) -> int:
        return self.entry.bytes - (self.left.bytes if self.left is not None else 0)


@dataclass(frozen=True, slots=True)
class SnapshotFrame:
    """The frame of a part of a snapshot: the first has a header with the `time` of the snapshot, the
    `last` a footer."""

    time: int
    last: bool


def without_keys(
    place: RewritePlace, keys: Keys, topic: str, entry: SegmentEntry, attempt: int, frame: SnapshotFrame | None = None
) -> Rewritten | None:
    """Write a segment, or a part of a snapshot with its `frame`, again without the records of the keys. None if it has
    none of them: then nothing is written.

    All of it is read, and once more if it has one. Raises ArchiveDamaged, since it is unknown what damage hides, and
    what the storage raises.
    """
    if is_batched(entry.layout):
        return _LogRewriting(place, topic, entry, attempt, keys, frame).done()
    return _RecordsRewriting(place, topic, entry, attempt, keys).done()


def count_records(storage: Storage, keys: Keys, topic: str, entry: SegmentEntry) -> int:
    """Count the records of the keys in a segment, or in a part of a snapshot. Nothing is written. Raises what
    `without_keys` raises."""
    place = RewritePlace(storage, entry.epoch)
    if is_batched(entry.layout):
        return _LogRewriting(place, topic, entry, 0, keys, None).count()
    return _RecordsRewriting(place, topic, entry, 0, keys).count()


class _LogRewriting:
    """One segment of batches."""

    def __init__(
        self,
        place: RewritePlace,
        topic: str,
        entry: SegmentEntry,
        attempt: int,
        keys: Keys,
        frame: SnapshotFrame | None,
    ) -> None:
        self._place, self._topic, self._entry, self._attempt, self._keys = place, topic, entry, attempt, keys
        self._reader = open_partition(place.storage, topic, (entry,))
        self._frame = frame
        self._erased = 0

    def done(self) -> Rewritten | None:
        with sound(self._place.storage, self._topic, self._entry):
            if not any(self._has(stretch, headers) for stretch, headers in self._reader.batches()):
                return None
            left = self._write() if self._frame is None else self._write_part(self._frame)
            return Rewritten(self._entry, left, self._erased)

    def count(self) -> int:
        with sound(self._place.storage, self._topic, self._entry):
            for _ in self._left():
                pass
        return self._erased

    def _has(self, stretch: memoryview, headers: Headers) -> bool:
        return any(
            remains(stretch[position : position + header.size], header, self._keys) for position, header in headers
        )

    def _write(self) -> SegmentEntry | None:
        place, entry = self._place, self._entry
        segment = LogSegment(
            place.storage,
            Compression.ZSTD if entry.files.stored_bytes else Compression.PASSTHROUGH,
            self._topic,
            entry.topic_id,
            entry.partition,
            entry.base_offset,
            place.epoch,
            self._attempt,
            entry.digest.algorithm,
        )
        try:
            epoch = fetched_epoch(place.storage, self._topic, entry) if entry.transactional else place.epoch
            segment.transactions = SegmentFollower(entry.base_offset, epoch)
            index = IndexLeft(self._reader.transaction_index())
            for stretch, headers in self._left():
                segment.builder.append(stretch, headers)
                segment.transactions.note(stretch, headers)
                index.note(headers)
            if not segment.builder.size:
                segment.abort()
                return None
            return segment.finish(index.left())
        except BaseException:
            segment.abort()
            raise

    def _write_part(self, frame: SnapshotFrame) -> SegmentEntry:
        place, entry, files = self._place, self._entry, self._entry.files
        key, leader = (entry.topic_id, entry.partition), files.leader_epoch
        where = SnapshotPlace(self._topic, *key, place.epoch, self._attempt, files.end, leader)
        segment = SnapshotSegment(place.storage, where, files.part, entry.base_offset, entry.digest.algorithm)
        try:
            builder = segment.builder
            if not files.part:
                builder.frame(header_batch(entry.base_offset, frame.time, leader))
            for stretch, headers in self._left():
                builder.append(stretch, headers)
            if frame.last:
                builder.frame(footer_batch(builder.next_offset, frame.time, leader))
            return segment.finish()
        except BaseException:
            segment.abort()
            raise

    def _left(self) -> Iterator[Stretch]:
        """Yield the batches that are left, as they are or made again."""
        emptied_last: BatchHeader | None = None
        any_left = False
        for stretch, headers in self._reader.batches():
            start = 0
            for number, (position, header) in enumerate(headers):
                found = remains(stretch[position : position + header.size], header, self._keys)
                if found is None:
                    emptied_last = None
                    continue
                self._erased += found.erased
                if number > start:
                    any_left = True
                    yield _part(stretch, headers[start:number])
                start = number + 1
                emptied_last = None if found.batch else header
                if found.batch:
                    any_left = True
                    yield _one(found.batch)
            if start < len(headers):
                any_left = True
                yield _part(stretch, headers[start:])
        # A snapshot has all of its parts, however little is in them.
        if emptied_last is not None and (any_left or self._frame is not None):
            yield _one(emptied(emptied_last))  # empty, so that the segment ends at the same offset


def _part(stretch: memoryview, headers: Headers) -> Stretch:
    return stretch[headers.start : headers.end], headers.relative()


def _one(batch: bytes) -> Stretch:
    return memoryview(batch), headers_of([(0, parse_header(batch))])


class _RecordsRewriting:
    """One segment of records."""

    def __init__(self, place: RewritePlace, topic: str, entry: SegmentEntry, attempt: int, keys: Keys) -> None:
        self._place, self._topic, self._entry, self._attempt, self._keys = place, topic, entry, attempt, keys
        self._reader = open_partition(place.storage, topic, (entry,))

    def done(self) -> Rewritten | None:
        if not any(self._keys.found(as_rows(records)) for records in self._reader.records()):
            return None
        left = self._write()
        return Rewritten(self._entry, left, self._entry.records - (left.records if left is not None else 0))

    def count(self) -> int:
        return sum(len(self._keys.found(as_rows(records))) for records in self._reader.records())

    def _write(self) -> SegmentEntry | None:
        place, entry = self._place, self._entry
        width = next_width(entry)
        files: Any = entry.files  # of one of the layouts that have the field
        files = replace(files, sequence_width=width)
        named = replace(entry, epoch=place.epoch, attempt=self._attempt, files=files)
        objects = RewrittenObjects(place.storage, named.stem(self._topic), entry.digest.algorithm)
        try:
            encoder: SegmentEncoder | None = None
            for records in self._reader.records():
                rows, start = as_rows(records), 0
                for number in (*self._keys.found(rows), len(rows)):
                    if number > start:
                        encoder = encoder or self._encoder(objects)
                        encoder.append(rows[start:number])
                    start = number + 1
            if encoder is None:
                return None
            facts = encoder.finish()
            made = entry_of(
                facts,
                objects.digest,
                entry.layout,
                topic_id=entry.topic_id,
                partition=entry.partition,
                epoch=place.epoch,
                attempt=self._attempt,
                sequence=entry.files.sequence,
                sequence_width=width,
                generation=entry.files.generation,
            )
            if entry.layout is not Layout.AVRO:  # its name is its base offset
                gaps = made.gaps or made.base_offset != entry.base_offset
                made = replace(made, base_offset=entry.base_offset, gaps=gaps)
            objects.commit(made)
            return made
        except BaseException:
            objects.abort()
            raise

    def _encoder(self, objects: RewrittenObjects) -> SegmentEncoder:
        entry = self._entry
        if entry.layout is not Layout.AVRO:
            data, index = objects.add(names.RECORDS), objects.add(names.RECORDS_INDEX)
            return records_format.RecordsEncoder(data, index, _NO_LIMIT)
        from logkeep_engine.formats.avro import AvroEncoder  # slow to import; the other formats do without

        options = _avro_options(self._place.storage, entry.stem(self._topic) + names.DATA, entry.bytes)
        return AvroEncoder(objects.add(names.DATA), _NO_LIMIT, self._topic, entry.partition, options)


def next_width(entry: SegmentEntry) -> int:
    """Return the digits of the number in the next name of a segment of records. After NAMES_BEFORE_REUSE names the
    first of them comes again: then no run is left that would delete the object of that name."""
    first = (SEQUENCE_WIDTH if entry.layout is Layout.AVRO else RECORDS_WIDTH) + 1
    width = max(entry.files.sequence_width + 1, first)
    return width if width < first + NAMES_BEFORE_REUSE else first


def _avro_options(storage: Storage, path: str, size: int) -> FormatOptions:
    """Return the options with which an object is written like the one that is there."""
    from logkeep_engine.formats.avro_container import Container
    from logkeep_engine.formats.avro_schema import shape_of

    with storage.reader(path, block=min(_HEADER_BYTES, size)) as reader:
        container = Container(iter(reader.read_block, b""), size=size)
        shape = shape_of(container.schema)
    strict = not shape.lossless and shape.value < 0  # else a value may be null, for which strict has no place
    codec = _AVRO_CODECS.get(container.codec, AvroCodec.DEFLATE)
    return FormatOptions(compatibility=Compatibility.STRICT if strict else Compatibility.LOSSLESS, codec=codec)


_HEADER_BYTES = 64 << 10
_AVRO_CODECS = {
    "null": AvroCodec.NONE,
    "deflate": AvroCodec.DEFLATE,
    "snappy": AvroCodec.SNAPPY,
    "zstandard": AvroCodec.ZSTANDARD,
}

"""Writing segments of the Records and the Avro format into an archive.

    sink = RecordSink(storage, Layout.RECORDS, topic, topic_id, partition, epoch, attempt, limit_bytes, options)
    taken = sink.append(records); entry = sink.finish()

These formats say how objects are named, so no epoch is in a name, and a second attempt meets what a first one left. The
order is data, index, receipt, commit. The writer looks at what lies under a name already:

- Nothing lies there: the object is created, conditionally.
- The same bytes lie there: nothing is written.
- Other bytes lie there: the log was compacted since, or segments have another size now. They were never committed: a
  range of offsets is committed once. They are replaced, but only as they were when this writer began to write its own
  object (`Storage.writer(replaces=...)`), and only after it has seen, later than that, that no newer run has begun. So
  a writer that outlived its run replaces nothing that its successor wrote: either it sees the successor in the catalog,
  or what it looked at is no longer there.

Two cases are left, both of a log that was compacted between two attempts, and `verify` names what either would leave:

- An object was there before both writers, and the successor found it to be just what it needs. The old writer, between
  its look into the catalog and its request, was about to replace it with something else.
- Two attempts of one run, that is of one epoch, are alive: a task that Spark gave up continues next to the one that
  took its place. The old one may replace what the new one has written and the driver has not committed yet. The receipt
  that is committed then speaks of other bytes.

A kill while data is written leaves nothing (S3: an unfinished upload). A kill after the data leaves an object without
index, a kill after the index leaves both. No commit names them, and the next attempt finds them equal or replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import (
    AvroFiles,
    Files,
    Layout,
    RecordsAtRootFiles,
    RecordsFiles,
    SegmentEntry,
    SegmentTimes,
)
from logkeep_engine.archive.digests import digest_of
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, DigestAlgorithm, FormatOptions
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.errors import (
    ArchiveFenced,
    ObjectExists,
    ObjectMissing,
    StorageUnavailable,
)
from logkeep_engine.formats import records as records_format
from logkeep_engine.formats.avro_names import SEQUENCE_WIDTH
from logkeep_engine.formats.base import LogRecord, SegmentEncoder, SegmentFacts
from logkeep_engine.log.rows import as_rows
from logkeep_engine.storage import Storage

BATCH_OVERHEAD = 200
"""More bytes than a batch with one record has in addition to the record's key, value and headers."""


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
        digest: DigestAlgorithm = DEFAULT_DIGEST,
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
        self._digest = digest
        self._encoder: SegmentEncoder | None = None
        self._objects: list[_Object] = []
        self._generation = 0

    def within(self, generation: int) -> Self:
        """Write into the folder of this generation (0: into none), from the first record on."""
        self._generation = generation
        return self

    @property
    def size(self) -> int:
        """Bytes of the data object so far, see `SegmentEncoder.size`."""
        return self._encoder.size if self._encoder is not None else 0

    @property
    def full(self) -> bool:
        """True if the limit is passed: no more records are taken."""
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
        data, *indexes = self._objects
        entry = entry_of(
            facts,
            data.digest(),
            self._layout,
            topic_id=self._topic_id,
            partition=self._partition,
            epoch=self._epoch,
            attempt=self._attempt,
            generation=self._generation,
        )
        for item in (data, *indexes):
            item.commit(entry)
        return entry

    def abort(self) -> None:
        """Drop what was taken. Harmless after `finish`, and twice."""
        for item in self._objects:
            item.abort()

    def _begin(self, base_offset: int) -> SegmentEncoder:
        topic, partition, generation = self._topic, self._partition, self._generation
        if self._layout is Layout.AVRO:
            from logkeep_engine.formats.avro import AvroEncoder  # slow to import; the other formats do without

            stem = names.avro_stem(topic, partition, base_offset, width=SEQUENCE_WIDTH, generation=generation)
            data = self._object(stem + names.DATA)
            return AvroEncoder(data.write, self._limit, topic, partition, self._options)
        stem = names.records_stem(topic, partition, base_offset, generation=generation)
        data = self._object(stem + names.RECORDS)
        index = self._object(stem + names.RECORDS_INDEX)
        return records_format.RecordsEncoder(data.write, index.write, self._limit)

    def _object(self, path: str) -> _Object:
        item = _Object(self._storage, path, self._digest)
        self._objects.append(item)
        return item


class RewrittenObjects:
    """The objects of a segment that takes the place of another, at `stem`. `add` gives what writes to the object of a
    suffix, the one with the records first. Nothing is visible before `commit`, which raises as `RecordSink.finish`."""

    def __init__(self, storage: Storage, stem: str, digest: DigestAlgorithm) -> None:
        self._storage = storage
        self._stem = stem
        self._digest = digest
        self._objects: list[_Object] = []

    def add(self, suffix: str) -> Callable[[bytes], None]:
        """Open the object of this suffix."""
        self._objects.append(_Object(self._storage, self._stem + suffix, self._digest))
        return self._objects[-1].write

    @property
    def digest(self) -> Digest:
        """The digest of what the first object has."""
        return self._objects[0].digest()

    def commit(self, entry: SegmentEntry) -> None:
        """Make them visible, as those of this segment."""
        for item in self._objects:
            item.commit(entry)

    def abort(self) -> None:
        """Drop what was written. Harmless after `commit`, and twice."""
        for item in self._objects:
            item.abort()


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
        rows = as_rows(records)
        at = 0
        while at < len(rows):
            if self._sink is None:
                self._sink = self._open_sink()
            at += self._sink.append(rows, at)
            if self._sink.full:
                self._close()

    def finish(self) -> tuple[SegmentEntry, ...]:
        """Close the open segment, if there is one, and return all entries."""
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
    digest: Digest,
    layout: Layout,
    *,
    topic_id: str,
    partition: int,
    epoch: int,
    attempt: int = 0,
    sequence: int | None = None,
    sequence_width: int | None = None,
    generation: int = 0,
) -> SegmentEntry:
    """Return the catalog's entry of a finished segment. `sequence` and `sequence_width` are those of the object's name;
    by default the name is Logkeep's own."""
    files: Files
    if layout is Layout.AVRO:
        width = SEQUENCE_WIDTH if sequence_width is None else sequence_width
        files = AvroFiles(facts.base_offset if sequence is None else sequence, width, generation)
    elif layout is Layout.RECORDS_AT_ROOT:
        files = RecordsAtRootFiles(facts.index_bytes, sequence_width or 0)
    else:
        files = RecordsFiles(facts.index_bytes, sequence_width or 0, generation)
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
        max_batch_bytes=facts.largest_record + BATCH_OVERHEAD,
        digest=digest,
        times=SegmentTimes(facts.min_timestamp, facts.max_timestamp, facts.append_time),
        files=files,
        codecs={},
        gaps=facts.gaps,
    )


class _Object:
    """One object of a segment on its way."""

    def __init__(self, storage: Storage, path: str, digest: DigestAlgorithm) -> None:
        self._storage = storage
        self._path = path
        self._found = storage.version(path)
        self._writer = storage.writer(path, replaces=self._found)
        self._hasher = Hasher(digest)

    def write(self, data: bytes | memoryview) -> None:
        self._hasher.update(data)
        self._writer.write(data)

    def digest(self) -> Digest:
        """Return the digest of what was written."""
        return self._hasher.digest()

    def commit(self, entry: SegmentEntry) -> None:
        """Make these bytes visible under the name. The module's docstring says how."""
        if self._found is not None:
            if self._is_there():
                self._writer.abort()
                return
            _check_replaceable(self._storage, self._path, entry)
        try:
            self._writer.commit()
        except ObjectExists as error:
            # Another attempt with the same bytes, or this one, if the answer to its first request was lost.
            self._writer.abort()
            if not self._is_there():
                raise StorageUnavailable(
                    f"{self._storage.uri}/{self._path} was written by another writer at the same time.",
                    hint="This may be temporary; try again.",
                ) from error

    def abort(self) -> None:
        self._writer.abort()

    def _is_there(self) -> bool:
        written = self.digest()
        try:
            return digest_of(self._storage, self._path, written.algorithm)[0] == written
        except ObjectMissing:
            return False


def _check_replaceable(storage: Storage, path: str, entry: SegmentEntry) -> None:
    """Check that the object may be replaced. Raises ArchiveFenced if a newer run has begun, StorageUnavailable if this
    run has committed the segment."""
    archive = Archive.open(storage)
    for number in range(archive.listing().last, -1, -1):
        commit = archive.read_commit(number)
        if commit.epoch > entry.epoch:
            raise ArchiveFenced(
                f"Run {commit.run_id} has taken over the archive at {storage.uri} at epoch {commit.epoch}: "
                f"{path} is not replaced by a writer of epoch {entry.epoch}.",
            )
        if commit.epoch < entry.epoch:
            return
        key = _place(entry)
        if any(_place(item) == key for item in (*commit.segments, *commit.passive.segments)):
            raise StorageUnavailable(
                f"{storage.uri}/{path} is not replaced: another attempt of this task has committed it with other "
                "content (the log was compacted in the meantime).",
                hint="Start the same run again: it continues after it.",
            )


def _place(entry: SegmentEntry) -> tuple[str, int, int, int]:
    return entry.topic_id, entry.partition, entry.base_offset, entry.files.generation

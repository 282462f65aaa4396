"""The catalog's entry of one segment."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Self

from logkeep_engine.archive import names
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.digest import Digest

if TYPE_CHECKING:
    from logkeep_engine.log.segment import SegmentSummary


_WIDEST = 200
"""The most digits of a number in a name. Names of files have 255 characters."""


class Layout(IntEnum):
    """The set of objects that a segment has, and their names. A packed row has a byte for the number.

    `RECORDS_AT_ROOT`: an adopted folder of the Records format, whose topics' folders lie next to `archive.json`.
    `SNAPSHOT`: a part of the snapshot of a compacted partition (KIP-630).
    `PACK`: the files of the layout KAFKA, one after the other in an object that other segments share.
    """

    KAFKA = 0
    RECORDS = 1
    AVRO = 2
    RECORDS_AT_ROOT = 3
    SNAPSHOT = 4
    PACK = 5


LAYOUTS = {FormatName.KAFKA: Layout.KAFKA, FormatName.RECORDS: Layout.RECORDS, FormatName.AVRO: Layout.AVRO}
"""The layout in which Logkeep writes the segments of each format."""


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """The times of a segment, in ms since the epoch. `min_base_timestamp` is the lowest first time of a batch, which
    may not be the lowest time of a record; in a layout without batches it is the lowest time of a record.
    `append_time`: a batch has the time of its append."""

    min_base_timestamp: int
    max_timestamp: int
    append_time: bool = False


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where the bytes of a file of a segment lie: `size` of them, from byte `start` of the object at `path` on."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Files(ABC):
    """The objects of a segment, which its layout names. Each layout has its own subclass with the facts that only this
    layout has; the facts of other layouts are 0 or "".

    `stored_bytes` is the size of the `.log.zst` object that holds the log in seekable zstd; 0: the log lies in a `.log`
    as it is. The other `*_bytes` are the sizes of the index objects. `sequence` is the number in the name of an Avro
    object, with at least `sequence_width` digits. In the Records format the number is the base offset, and a width of 0
    is that of the format. `end`, `leader_epoch` and `part` are in the name of a part of a snapshot. The object may have
    batches in this many offsets (`margin`) below `base_offset` and from `next_offset` on, which are not part of the
    log. `generation` is in the folder name of a segment that was read for a generation, where its own name has no
    epoch. `pack_task` and `pack_number` are in the name of a pack, whose byte `position` is the first of the segment,
    and `txnparts_bytes` is the size of the `.txnparts` there.
    """

    __slots__ = ()
    layout: ClassVar[Layout]
    least_objects: ClassVar[int]  # of each segment; a transaction index comes besides
    margin: ClassVar[int] = 0
    index_bytes: int = 0
    timeindex_bytes: int = 0
    txnindex_bytes: int = 0
    txnindex_sha256: str = ""
    stored_bytes: int = 0
    sequence: int = 0
    sequence_width: int = 0
    end: int = 0
    leader_epoch: int = 0
    part: int = 0
    generation: int = 0
    pack_task: int = 0
    pack_number: int = 0
    position: int = 0
    txnparts_bytes: int = 0

    def may_be(self) -> bool:
        """Return whether names can have these numbers."""
        return self.sequence >= 0 and self.sequence_width <= _WIDEST

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The suffix of the object that holds the log, or the records."""

    @abstractmethod
    def stem(self, topic: str, entry: SegmentEntry) -> str:
        """Return the path of the objects without the suffix."""

    def folder(self, topic: str, entry: SegmentEntry) -> str:
        """Return the folder of the topic's objects, with all partitions."""
        return f"{names.TOPICS}{topic}/"

    @abstractmethod
    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        """Return the size in bytes of each file that the catalog names, by its suffix."""

    def place(self, topic: str, entry: SegmentEntry, suffix: str) -> FilePlace:
        """Return where the file with this suffix lies. Callers do not ask for one that the segment lacks."""
        return FilePlace(entry.stem(topic) + suffix, 0, self.sizes(entry)[suffix])

    def objects(self, topic: str, entry: SegmentEntry) -> dict[str, int]:
        """Path and size in bytes of each object."""
        stem = entry.stem(topic)
        return {stem + suffix: size for suffix, size in self.sizes(entry).items()}


@dataclass(frozen=True, slots=True)
class KafkaFiles(Files):
    """The log of a segment and its indexes. A `.txnindex` of 0 bytes has no object. It cannot be rebuilt from the log,
    so its hash is kept too ("" if it has none)."""

    layout = Layout.KAFKA
    least_objects = 3
    index_bytes: int = 0
    timeindex_bytes: int = 0
    txnindex_bytes: int = 0
    txnindex_sha256: str = ""
    stored_bytes: int = 0

    @property
    def suffix(self) -> str:
        return names.LOG_ZST if self.stored_bytes else names.LOG

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        place = (entry.topic_id, entry.partition, entry.base_offset, entry.epoch, entry.attempt)
        return names.segment_stem(topic, *place)

    def folder(self, topic: str, entry: SegmentEntry) -> str:
        return f"{names.TOPICS}{topic}/{entry.topic_id}/"

    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        sizes = {
            self.suffix: self.stored_bytes or entry.bytes,
            names.INDEX: self.index_bytes,
            names.TIMEINDEX: self.timeindex_bytes,
        }
        return {**sizes, names.TXNINDEX: self.txnindex_bytes} if self.txnindex_bytes else sizes


@dataclass(frozen=True, slots=True)
class PackFiles(KafkaFiles):
    """The same files in a pack: the log, and right after it its indexes. The name of the pack has the epoch and the
    attempt of the segment."""

    layout = Layout.PACK
    least_objects = 0  # the pack is an object of several segments
    pack_task: int = 0
    pack_number: int = 0
    position: int = 0
    txnparts_bytes: int = 0

    def pack(self, entry: SegmentEntry) -> str:
        """Return the path of the pack."""
        return names.pack_path(entry.epoch, self.pack_task, entry.attempt, self.pack_number)

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        """Return a name of the segment for people: the pack, and where the segment begins in it. It belongs to no
        object."""
        return f"{self.pack(entry)}:{self.position}"

    def folder(self, topic: str, entry: SegmentEntry) -> str:
        return names.PACKS

    def all_sizes(self, entry: SegmentEntry) -> dict[str, int]:
        """Return the sizes of all files, in the order in which they lie in the pack."""
        parts = {names.TXNPARTS: self.txnparts_bytes} if self.txnparts_bytes else {}
        return {**self.sizes(entry), **parts}

    def place(self, topic: str, entry: SegmentEntry, suffix: str) -> FilePlace:
        at = self.position
        for name, size in self.all_sizes(entry).items():
            if name == suffix:
                return FilePlace(self.pack(entry), at, size)
            at += size
        raise KeyError(suffix)

    def whole(self, entry: SegmentEntry) -> FilePlace:
        """Return where all files of the segment lie together."""
        return FilePlace(self.pack(entry), self.position, sum(self.all_sizes(entry).values()))

    def objects(self, topic: str, entry: SegmentEntry) -> dict[str, int]:
        """Return the pack, and how many bytes it has at least."""
        whole = self.whole(entry)
        return {whole.path: whole.end}


@dataclass(frozen=True, slots=True)
class RecordsFiles(Files):
    """The two objects of a segment of the Records format."""

    layout = Layout.RECORDS
    least_objects = 2
    index_bytes: int = 0
    sequence_width: int = 0
    generation: int = 0

    @property
    def suffix(self) -> str:
        return names.RECORDS

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        width, generation = self.sequence_width, self.generation
        return names.records_stem(topic, entry.partition, entry.base_offset, width=width, generation=generation)

    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        return {names.RECORDS: entry.bytes, names.RECORDS_INDEX: self.index_bytes}


@dataclass(frozen=True, slots=True)
class RecordsAtRootFiles(RecordsFiles):
    """The same objects in an adopted folder, which has no `topics/`."""

    layout = Layout.RECORDS_AT_ROOT

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        return names.records_stem(topic, entry.partition, entry.base_offset, root="", width=self.sequence_width)

    def folder(self, topic: str, entry: SegmentEntry) -> str:
        return f"{topic}/"


@dataclass(frozen=True, slots=True)
class AvroFiles(Files):
    """The one object of a segment of the Avro format."""

    layout = Layout.AVRO
    least_objects = 1
    sequence: int = 0
    sequence_width: int = 0
    generation: int = 0

    @property
    def suffix(self) -> str:
        return names.DATA

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        width, generation = self.sequence_width, self.generation
        return names.avro_stem(topic, entry.partition, self.sequence, width=width, generation=generation)

    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        return {names.DATA: entry.bytes}


@dataclass(frozen=True, slots=True)
class SnapshotFiles(Files):
    """A part of a snapshot, which has all of the partition below the offset `end`: batches, and the index of their
    offsets. `leader_epoch` is that of the last batch below `end`. Parts are numbered from 0. The first begins with the
    header of the snapshot, the last ends with its footer."""

    layout = Layout.SNAPSHOT
    least_objects = 2
    margin = 1
    index_bytes: int = 0
    end: int = 0
    leader_epoch: int = 0
    part: int = 0

    def may_be(self) -> bool:
        return self.end >= 0 and self.leader_epoch <= names.MAX_EPOCH

    @property
    def suffix(self) -> str:
        return names.CHECKPOINT

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        folder = names.snapshots_folder(topic, entry.topic_id, entry.partition, entry.epoch, entry.attempt)
        return folder + names.snapshot_name(self.end, self.leader_epoch, self.part)

    def folder(self, topic: str, entry: SegmentEntry) -> str:
        return f"{names.TOPICS}{topic}/{entry.topic_id}/"

    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        return {names.CHECKPOINT: entry.bytes, names.INDEX: self.index_bytes}


FILES: dict[Layout, type[Files]] = {
    kind.layout: kind for kind in (KafkaFiles, RecordsFiles, AvroFiles, RecordsAtRootFiles, SnapshotFiles, PackFiles)
}


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An immutable object of whole record batches of one partition. Offsets of the batches lie in [base_offset,
    next_offset).

    `records` counts data records (no control records). `bytes` is the size of the log, `digest` knows its bytes; both
    are those of the log itself, also where the object holds it compressed. `codecs` counts batches by codec name.
    `gaps`: offsets are missing inside or between batches. `legacy`: batches of magic 0 or 1.

    In the layouts without batches `bytes` and `digest` are those of the object with the records, `batches` counts Avro
    blocks (1 in the Records format), `max_batch_bytes` is an upper bound of the size of the largest record as a batch,
    and `codecs`, `transactional`, `control` and `legacy` say nothing.

    A segment that was written in place of others has the epochs of the runs that have archived its first and last
    records; all others have 0 there. `archived_first` and `archived_last` give both for any segment.
    """

    topic_id: str
    partition: int
    epoch: int
    attempt: int
    base_offset: int
    next_offset: int
    records: int
    batches: int
    bytes: int
    max_batch_bytes: int
    digest: Digest
    times: SegmentTimes
    files: Files
    codecs: Mapping[str, int] = field(hash=False)
    transactional: bool = False
    control: bool = False
    gaps: bool = False
    legacy: bool = False
    first_epoch: int = 0
    last_epoch: int = 0

    def __post_init__(self) -> None:
        wrong = self.attempt < 0 or not 0 <= self.epoch <= names.MAX_EPOCH or not self.files.may_be()
        if not 0 <= self.base_offset < self.next_offset or self.batches < 1 or self.bytes < 1 or self.partition < 0:
            wrong = True
        if wrong or not self.archived_first <= self.archived_last <= self.epoch:
            raise ValueError(
                f"segment of partition {self.partition} with offsets [{self.base_offset}, {self.next_offset}), "
                f"{self.batches} batches, {self.bytes} bytes, epoch {self.epoch} of records of epochs "
                f"{self.first_epoch} to {self.last_epoch}, attempt {self.attempt}, {self.files}"
            )

    @classmethod
    def of(
        cls,
        summary: SegmentSummary,
        digest: Digest,
        *,
        topic_id: str,
        partition: int,
        epoch: int,
        attempt: int,
        stored_bytes: int = 0,
    ) -> Self:
        """Return the entry of a finished segment."""
        return cls(
            topic_id=topic_id,
            partition=partition,
            epoch=epoch,
            attempt=attempt,
            base_offset=summary.base_offset,
            next_offset=summary.next_offset,
            records=summary.records,
            batches=summary.batches,
            bytes=summary.bytes,
            max_batch_bytes=summary.max_batch_bytes,
            digest=digest,
            times=SegmentTimes(summary.min_base_timestamp, summary.max_timestamp, summary.append_time),
            files=KafkaFiles(
                index_bytes=len(summary.index),
                timeindex_bytes=len(summary.timeindex),
                txnindex_bytes=len(summary.txnindex),
                txnindex_sha256=hashlib.sha256(summary.txnindex).hexdigest() if summary.txnindex else "",
                stored_bytes=stored_bytes,
            ),
            codecs=dict(summary.codecs),
            transactional=summary.transactional,
            control=summary.control,
            gaps=summary.gaps,
            legacy=summary.legacy,
        )

    @property
    def archived_first(self) -> int:
        """The epoch of the first run that has archived something of it."""
        return self.first_epoch or self.epoch

    @property
    def archived_last(self) -> int:
        """The epoch of the last run that has archived something of it."""
        return self.last_epoch or self.epoch

    @property
    def layout(self) -> Layout:
        """The layout of the segment's objects."""
        return self.files.layout

    @property
    def flags(self) -> tuple[bool, ...]:
        """The facts that are true or false, in the order of their bits in a packed row."""
        return (self.transactional, self.control, self.gaps, self.times.append_time, self.legacy)

    @property
    def log_suffix(self) -> str:
        """The suffix of the object that holds the log, or the records."""
        return self.files.suffix

    def stem(self, topic: str) -> str:
        """Return the path of its objects without the suffix; `topic` is the name of `topic_id`."""
        return self.files.stem(topic, self)

    def topic_folder(self, topic: str) -> str:
        """Return the folder of the objects of its topic, with all partitions."""
        return self.files.folder(topic, self)

    def objects(self, topic: str) -> dict[str, int]:
        """Path and size in bytes of each of its objects; of a pack, which has other segments too, the least size."""
        return self.files.objects(topic, self)

    def place(self, topic: str, suffix: str) -> FilePlace:
        """Return where its file with this suffix lies, be it an object of its own or a part of a pack."""
        return self.files.place(topic, self, suffix)

    @property
    def pack_files(self) -> PackFiles | None:
        """Its files if they lie in a pack."""
        return self.files if isinstance(self.files, PackFiles) else None

    def beside(self, topic: str) -> tuple[str, ...]:
        """Paths of objects that may lie next to those: they hold nothing that the log does not."""
        return (self.stem(topic) + names.TXNPARTS,) if self.layout is Layout.KAFKA and self.transactional else ()

    @property
    def uncut(self) -> SegmentEntry:
        """The segment as the catalog has it."""
        return self

    def cut(self, start: int, end: int) -> SegmentEntry:
        """Return the part of the segment that lies in [start, end); the segment itself if all of it does. Raises
        ValueError if nothing does."""
        whole, low, high = self.uncut, max(start, self.base_offset), min(end, self.next_offset)
        if (low, high) == (self.base_offset, self.next_offset):
            return self
        facts = {item.name: getattr(whole, item.name) for item in fields(SegmentEntry)}
        most = min(self.records, high - low)
        return SegmentSlice(**{**facts, "base_offset": low, "next_offset": high, "records": most}, whole=whole)


@dataclass(frozen=True, slots=True)
class SegmentSlice(SegmentEntry):
    """The part of a segment that counts in a view: the records with offsets in [base_offset, next_offset), also of
    batches that reach over these. Its objects are those of the `whole` segment, and so are digest and sizes: all of
    that is there to be read. It has `records` at most."""

    whole: SegmentEntry = field(kw_only=True)

    @property
    def uncut(self) -> SegmentEntry:
        return self.whole

    def stem(self, topic: str) -> str:
        return self.whole.stem(topic)

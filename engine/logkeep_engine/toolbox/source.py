"""Where the user points: segments of an archive, of a broker's log folders, of folders of the Records and Avro formats.

    source = open_source("s3://bucket/prefix", Selection(topics=("orders",)))
    for segment in source.segments:
        for item in segment.scan(): ...             # Kafka's layout: batches and damage
        for records in segment.records(): ...       # every layout

A source is the URI of an archive, or a path (URI or local) of one of its folders or objects, of a broker's data folder,
of a partition's folder (`orders-0`), of a topic's folder in the Records or Avro format, or of one file of these.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.incarnations import taken_topics
from logkeep_engine.archive.reading.layouts import READERS
from logkeep_engine.archive.reading.log_reader import Block, read_log
from logkeep_engine.archive.reading.segments import read_transactions
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptBatch,
    CorruptFrame,
    CorruptIndex,
    CorruptSegment,
    ObjectMissing,
    Refused,
    StorageRefused,
)
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records import RecordBlock, read_blocks
from logkeep_engine.formats.records_index import position_before, read_index
from logkeep_engine.formats.records_names import FileKind, parse_name
from logkeep_engine.log.batch import Buffer
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.damage import DamagedBytes, OnDamagedBytes
from logkeep_engine.log.seekable import SeekTable, decompress_frame, table_bytes
from logkeep_engine.log.segment import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    AbortedTxn,
    find_offset,
    find_time,
    read_txn_index,
    without_preallocated,
)
from logkeep_engine.storage import ObjectInfo, Storage, open_uri
from logkeep_engine.toolbox.scan import MAX_BATCH_BYTES, Batch, scan

CHECKPOINT = ".checkpoint"
SNAPSHOT = ".snapshot"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_BLOCK = 4 << 20
_LOG = re.compile(r"([0-9]{20})(?:\.[0-9]{10}(?:-[1-9][0-9]*)?)?(\.log|\.log\.zst)|([0-9]{20})-[0-9]{10}(\.checkpoint)")
_BESIDE_LOG = re.compile(r"([0-9]{20})(?:\.[0-9]{10}(?:-[1-9][0-9]*)?)?(\.index|\.timeindex|\.txnindex|\.snapshot)")
_LOG_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)")
_MOVED_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)\.[0-9a-f]{32}-(?:delete|future|stray)")
_ARCHIVED = re.compile(r".*/?topics/([^/]+)/[A-Za-z0-9_-]{22}/partition=([0-9]+)/(?:snapshots/)?[^/]+")
_DATA = re.compile(r"([a-zA-Z0-9._-]+)\+([0-9]+)-([0-9]+)\.data")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics and partitions of a source; empty: all of them."""

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    def __contains__(self, segment: Segment) -> bool:
        return (not self.topics or segment.topic in self.topics) and (
            not self.partitions or segment.partition in self.partitions
        )


@dataclass(frozen=True)
class Segment:
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
        """In the storage, of the log or the records."""
        return self.stem + self.suffix

    @property
    def name(self) -> str:
        """For the user: a path, or a URI if it is not a local file."""
        return display(self.storage, self.path)

    @property
    def folder(self) -> str:
        """Where it lies in `storage`, for the same partition may lie there twice: of two brokers, or moved away. "" in
        an archive, whose catalog says what belongs together.
        """
        return "" if self.entry is not None else self.path.rpartition("/")[0]

    @property
    def moved(self) -> bool:
        """Its folder, below what the user named, is one that a broker has put aside (-delete, -future, -stray)."""
        return bool(_MOVED_FOLDER.fullmatch(self.folder.rpartition("/")[2]))

    @property
    def has_batches(self) -> bool:
        return READERS[self.layout].batched

    @property
    def is_checkpoint(self) -> bool:
        """It is a snapshot of a metadata log: batches, but no segment of the log beside it, and without indexes."""
        return self.suffix == CHECKPOINT

    def beside(self, suffix: str) -> bytes | None:
        """An index of the segment, None if it is not there."""
        try:
            return self.storage.read(self.stem + suffix)
        except ObjectMissing:
            return None

    # ---- batches

    def scan(self, start: int = 0) -> Iterator[Batch | DamagedBytes]:
        """The batches from position `start` of the log on, and what is damaged. Kafka's layout only."""
        largest = self.entry.max_batch_bytes if self.entry is not None else MAX_BATCH_BYTES
        return scan(
            self._blocks(start),
            self.size,
            start=start,
            base_offset=max(self.base_offset, 0),
            max_batch_bytes=largest,
            sure=self.entry is not None,
        )

    def scan_from(self, offset: int) -> Iterator[Batch | DamagedBytes]:
        """As `scan`, from the batch that holds `offset` or the first behind it; goes by the offset index, if it is
        that of the log.
        """
        position = self._hint(offset)
        items = self.scan(position)
        for item in items:
            if isinstance(item, DamagedBytes) or item.header.next_offset > offset:
                return chain([item], items)
        return iter(())

    def scan_from_time(self, timestamp: int) -> Iterator[Batch | DamagedBytes]:
        """As `scan`, from a batch before which no record has this time (ms) or a later one."""
        data = without_preallocated(self.beside(names.TIMEINDEX) or b"", TIME_ENTRY_BYTES)
        if len(data) % TIME_ENTRY_BYTES:
            return self.scan()
        found = find_time(data, self.base_offset, timestamp)
        return self.scan() if found is None else self.scan_from(found.offset + 1)

    def aborted(self) -> list[AbortedTxn]:
        """The entries of its `.txnindex`. Raises CorruptIndex, in an archive also if it is not the catalog's."""
        try:
            if self.entry is not None:
                return read_transactions(self.storage, self.topic, self.entry)
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
            return _archived_blocks(self.storage, self.path, self.entry, start)
        if self.suffix == names.LOG_ZST:
            return _frames(self.storage, self.path, start)
        return _file_blocks(self.storage, self.path, start)

    # ---- records

    def records(self, start_offset: int = 0, on_damage: OnDamagedBytes | None = None) -> Iterator[Sequence[LogRecord]]:
        """Its records from `start_offset` on, without control records. Those of transactions are all there.

        Damage ends the reading with CorruptBatch or CorruptSegment, unless `on_damage` takes note of it.
        """
        for _, records in self.placed(start_offset, on_damage):
            yield records

    def placed(
        self, start_offset: int = 0, on_damage: OnDamagedBytes | None = None
    ) -> Iterator[tuple[Batch | RecordBlock | None, Sequence[LogRecord]]]:
        """As `records`, with the batch, or the place in the file, that they were found in."""
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
                    yield RecordBlock(where.records[begin:], where.positions[begin:]), found[begin:]
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
        if self.layout is Layout.AVRO:
            from logkeep_engine.formats import avro  # fastavro takes its time

            blocks = cast("Iterator[bytes]", _file_blocks(self.storage, self.path, 0))
            for found in avro.read_object(blocks, start_offset=start_offset, size=self.size):
                yield None, found
            return
        position = self._records_hint(start_offset)
        blocks = cast("Iterator[bytes]", _file_blocks(self.storage, self.path, position))
        for block in read_blocks(blocks, position=position, size=self.size):
            yield block, block.records

    def _records_hint(self, start_offset: int) -> int:
        if start_offset <= self.base_offset or not (data := self.beside(names.RECORDS_INDEX)):
            return 0
        try:
            index = read_index(data)
        except CorruptIndex:
            return 0
        return (position_before(index, start_offset) or 0) if index.end == self.size else 0


class LogKey(NamedTuple):
    """Which segments are one log: those of a partition of a topic's incarnation, in one folder (see `Segment`)."""

    topic: str
    topic_id: str
    partition: int
    folder: str


@dataclass(frozen=True)
class Source:
    """What was found: segments by topic, incarnation, partition, folder and offset; `single` if the user named one
    file, which may also be an index or another file beside a log.

    `archive` and `state` are those of the archive that it is, or lies in; `topics` are those of its topics that were
    named, in the catalog's order, also those without a segment.
    """

    storage: Storage = field(repr=False)
    segments: tuple[Segment, ...]
    archive: Archive | None = field(default=None, repr=False)
    state: ArchiveState | None = field(default=None, repr=False)
    single: str = ""
    topics: tuple[TopicEntry, ...] = ()

    def partitions(self, *, checkpoints: bool = False) -> dict[LogKey, list[Segment]]:
        """The segments of each log, in order. Snapshots of a metadata log are none, unless they are asked for, or the
        user named one.
        """
        found: dict[LogKey, list[Segment]] = {}
        for segment in self.segments:
            if checkpoints or not segment.is_checkpoint or segment.path == self.single:
                key = LogKey(segment.topic, segment.topic_id, segment.partition, segment.folder)
                found.setdefault(key, []).append(segment)
        return found

    @property
    def moved_folders(self) -> list[str]:
        """Folders that the broker has put aside, as the user would name them."""
        return sorted({display(segment.storage, segment.folder) for segment in self.segments if segment.moved})

    def in_place(self) -> Source:
        """Without them: what is in them is no longer, or not yet, the partition that their name says."""
        return replace(self, segments=tuple(segment for segment in self.segments if not segment.moved))

    def taken(self) -> Source:
        """Without all incarnations of a topic but the one that a restore would take."""
        found = {}
        if self.archive is not None and self.state is not None:
            found = taken_topics(self.state, self.topics, shows(self.archive.storage, self.state))
        last = {topic.name: found[topic.name].topic_id for topic in self.topics}
        segments = (item for item in self.segments if last.get(item.topic, item.topic_id) == item.topic_id)
        topics = (topic for topic in self.topics if last[topic.name] == topic.topic_id)
        return replace(self, segments=tuple(segments), topics=tuple(topics))


def open_source(
    where: str, selection: Selection | None = None, *, endpoint: str | None = None, region: str | None = None
) -> Source:
    """What lies at `where`. Raises Refused if there is nothing of a log, or not what `selection` names."""
    selection = selection or Selection()
    with os_errors(where):
        found = _find(_uri(where), endpoint, region)
    if not found.segments and not found.single and found.state is None:
        raise Refused(
            f"{where}: there is no archive and no log.",
            hint="Name an archive's URI, a broker's log folder such as orders-0, or a file such as "
            "00000000000000000000.log.",
        )
    chosen = tuple(segment for segment in found.segments if segment in selection)
    topics = tuple(topic for topic in found.topics if not selection.topics or topic.name in selection.topics)
    numbers = selection.partitions or (0,)
    there = chosen or any(0 <= number < topic.partitions for topic in topics for number in numbers)  # maybe empty
    if not there and selection != Selection() and (found.segments or not found.single):
        raise Refused(f"{where}: {_not_there(found, selection)}.", hint=_what_is_there(found))
    return replace(found, segments=chosen, topics=topics)


def local_path(storage: Storage, path: str) -> Path | None:
    """The file that an object is; None: it lies in an object store."""
    parts = urlsplit(storage.uri)
    return Path(unquote(parts.path), path) if parts.scheme == "file" else None


@contextmanager
def os_errors(name: str) -> Iterator[None]:
    """Turns an OSError of what is done to a file or folder into StorageRefused, with its name."""
    try:
        yield
    except OSError as error:
        hint = _OS_HINTS.get(error.errno or 0, "Check the path and the disk.")
        raise StorageRefused(f"{name}: {error.strerror or type(error).__name__}.", hint=hint) from error


_NOT_ALLOWED = "Run it as the user that the files belong to, or as root, on a file system that can be written to."
_NO_SPACE = "Make room: what is cut is copied first, and nothing is cut that was not copied."
_OS_HINTS = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.ENAMETOOLONG: "Name an archive, or a broker's log folder.",
}


def display(storage: Storage, path: str) -> str:
    """An object as the user would name it: a local path, or a URI."""
    parts = urlsplit(storage.uri)
    return f"{unquote(parts.path) if parts.scheme == 'file' else storage.uri}/{path}"


def damage_of(batch: Batch, what: str) -> DamagedBytes:
    """A batch that cannot be used, as the bytes that are lost."""
    return DamagedBytes(what, batch.header.size, batch.position, batch.header.base_offset)


# ---- finding


def _find(uri: str, endpoint: str | None, region: str | None) -> Source:
    storage = open_uri(uri, endpoint, region)  # refuses what is no storage URI before a part of it is used
    root, inside = _archive_root(uri, endpoint, region)
    if root is not None:
        return _in_archive(root, inside)
    if _is_file(uri, endpoint, region):
        return _one_file(uri, endpoint, region)
    storage.check()
    folder = unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2]
    segments = (_segment(storage, info, folder) for info in storage.list())
    return Source(storage, _sorted([segment for segment in segments if segment is not None]))


def _uri(where: str) -> str:
    return where.rstrip("/") if "://" in where else Path(where).absolute().as_uri()


def _archive_root(uri: str, endpoint: str | None, region: str | None) -> tuple[Archive | None, str]:
    """The archive that `uri` is or lies in, and the path inside."""
    parts = urlsplit(uri)
    pieces = [piece for piece in parts.path.split("/") if piece]
    # What lies above may be for others only; if it is `uri` itself, whoever reads it next says so.
    for depth in range(len(pieces), -1, -1):
        root = f"{parts.scheme}://{parts.netloc}/{'/'.join(pieces[:depth])}".rstrip("/")
        if parts.scheme == "file":
            if not Path(unquote(urlsplit(root).path), names.ARCHIVE).is_file():
                continue
        else:
            try:
                open_uri(root, endpoint, region).read(names.ARCHIVE)
            except (ObjectMissing, StorageRefused):
                continue
        return Archive.open(open_uri(root, endpoint, region)), unquote("/".join(pieces[depth:]))
    return None, ""


def _in_archive(archive: Archive, inside: str) -> Source:
    state = archive.load()
    segments = []
    single = ""
    for topic_id, partition in state.partitions():
        topic = state.topics.get(topic_id)
        for entry in state.segments.get((topic_id, partition), ()) if topic is not None else ():
            segment = of_entry(archive.storage, cast("TopicEntry", topic), entry)
            if not inside:
                segments.append(segment)
            elif inside in entry.objects(segment.topic):
                single = inside
                segments.append(segment)
            elif segment.path.startswith(f"{inside}/"):
                segments.append(segment)
    if inside and not segments:
        data = archive.storage.list(inside)
        info = next((info for info in data if info.path == inside), None)
        orphan = _segment(archive.storage, info, "") if info is not None else None
        single = inside if info is not None and (orphan is not None or _is_beside(inside)) else ""
        segments = [orphan] if orphan is not None else []
    there = {segment.topic_id for segment in segments}
    topics = tuple(
        topic
        for topic in state.topics.values()
        if not inside or topic.topic_id in there or _is_folder_of(topic, inside)
    )
    if inside and not (segments or single or topics):
        return Source(archive.storage, ())  # something else of an archive
    return Source(archive.storage, _sorted(segments), archive, state, single, topics)


def _is_folder_of(topic: TopicEntry, inside: str) -> bool:
    """Would segments of the topic lie in this folder of an archive? There may be none yet."""
    folder = names.TOPICS + topic.name
    above, _, last = inside.rpartition("/partition=")
    return inside in (names.TOPICS.rstrip("/"), folder, f"{folder}/{topic.topic_id}") or (
        above in (folder, f"{folder}/{topic.topic_id}") and last.isdecimal() and int(last) < topic.partitions
    )


def of_entry(storage: Storage, topic: TopicEntry, entry: SegmentEntry) -> Segment:
    """A segment that the catalog names."""
    return Segment(
        storage,
        entry.layout,
        topic.name,
        entry.partition,
        entry.base_offset,
        entry.stem(topic.name),
        entry.log_suffix,
        entry.bytes,
        entry,
        topic.topic_id,
    )


def _is_file(uri: str, endpoint: str | None, region: str | None) -> bool:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if not path.exists():
            raise Refused(f"{path}: there is no such file or folder.")
        return path.is_file()
    folder, _, name = uri.rpartition("/")
    if urlsplit(folder).netloc == "" or not name:
        return False
    try:
        open_uri(folder, endpoint, region).read_range(name, 0, 1)
    except (ObjectMissing, StorageRefused):
        return False
    return True


def _one_file(uri: str, endpoint: str | None, region: str | None) -> Source:
    folder, _, quoted = uri.rpartition("/")
    name = unquote(quoted)
    storage = open_uri(folder, endpoint, region)
    info = next((info for info in storage.list(name) if info.path == name), None)
    segment = _segment(storage, info, unquote(urlsplit(folder).path).strip("/")) if info is not None else None
    if segment is None and _is_beside(name):
        segment = _log_of(storage, name, unquote(urlsplit(folder).path).strip("/"))
        return Source(storage, (segment,) if segment is not None else (), single=name)
    if segment is None:
        raise Refused(
            f"{display(storage, name)} is no file of a log.",
            hint="Files of a log are named such as 00000000000000000000.log, .index, .timeindex, .txnindex; in the "
            "Records format segment_partition_000_from_offset_0000000000_records, in the Avro format orders+0-0.data.",
        )
    return Source(storage, (segment,), single=name)


def _is_beside(path: str) -> bool:
    name = path.rpartition("/")[2]
    file = parse_name(name)
    return (
        name == LEADER_EPOCHS
        or bool(_BESIDE_LOG.fullmatch(name))
        or (file is not None and file.kind is not FileKind.RECORDS)
    )


def _log_of(storage: Storage, name: str, folder: str) -> Segment | None:
    """The segment that an index belongs to."""
    match = _BESIDE_LOG.fullmatch(name)
    file = parse_name(name)
    if match is not None:
        stem = name.removesuffix(match[2])
        wanted = {stem + names.LOG, stem + names.LOG_ZST}
    elif file is not None and file.kind is FileKind.INDEX:
        wanted = {name.removesuffix(names.RECORDS_INDEX) + names.RECORDS}
    else:
        return None
    for info in storage.list(min(wanted, key=len)):
        if info.path in wanted:
            return _segment(storage, info, folder)
    return None


def _segment(storage: Storage, info: ObjectInfo, folder: str) -> Segment | None:
    """The segment whose log or records this object is; None: it is another object. `folder` is that of the storage."""
    path, size = info.path, info.size
    above, _, name = f"{folder}/{path}".strip("/").rpartition("/")
    if match := _LOG.fullmatch(name):
        suffix = match[2] or match[4]
        topic, partition = _log_folder(f"{above}/{name}", above.rpartition("/")[2])
        offset = int(match[1] or 0)
        length = _zstd_size(storage, path, size) if suffix == names.LOG_ZST else size
        return Segment(storage, Layout.KAFKA, topic, partition, offset, path.removesuffix(suffix), suffix, length)
    if match := _DATA.fullmatch(name):
        stem = path.removesuffix(names.DATA)
        return Segment(storage, Layout.AVRO, match[1], int(match[2]), int(match[3]), stem, names.DATA, size)
    file = parse_name(name)
    if file is not None and file.kind is FileKind.RECORDS and file.start_offset is not None:
        topic = above.rpartition("/")[2]
        stem = path.removesuffix(names.RECORDS)
        return Segment(storage, Layout.RECORDS, topic, file.partition, file.start_offset, stem, names.RECORDS, size)
    return None


def _log_folder(path: str, folder: str) -> tuple[str, int]:
    """Topic and partition of a log, from where it lies."""
    match = _ARCHIVED.fullmatch(path) or _LOG_FOLDER.fullmatch(folder) or _MOVED_FOLDER.fullmatch(folder)
    return (match[1], int(match[2])) if match is not None else ("", -1)


def _sorted(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    def place(segment: Segment) -> tuple[str, str, int, str, int]:
        return segment.topic, segment.topic_id, segment.partition, segment.folder, segment.base_offset

    return tuple(sorted(segments, key=place))


def _not_there(found: Source, selection: Selection) -> str:
    topics = {segment.topic for segment in found.segments} | {topic.name for topic in found.topics}
    missing = [topic for topic in selection.topics if topic not in topics]
    if missing:
        return f"there is no topic {missing[0]}"
    partitions = ", ".join(map(str, selection.partitions))
    return f"there is no partition {partitions}" + (f" of {', '.join(selection.topics)}" if selection.topics else "")


def _what_is_there(found: Source) -> str:
    named = {segment.topic or "(a log without a topic's name)" for segment in found.segments}
    topics = sorted(named | {topic.name for topic in found.topics})
    more = f" and {len(topics) - 20} more" if len(topics) > 20 else ""
    return f"There are: {', '.join(topics[:20]) or 'none'}{more}."


# ---- bytes


def _file_blocks(storage: Storage, path: str, start: int) -> Iterator[Buffer | DamagedBytes]:
    at = start
    while data := storage.read_range(path, at, at + _BLOCK):
        yield data
        at += len(data)
        if len(data) < _BLOCK:
            return


def _archived_blocks(storage: Storage, path: str, entry: SegmentEntry, start: int) -> Iterator[Buffer | DamagedBytes]:
    try:
        for item in read_log(storage, path, entry, start=start, block=_BLOCK):
            if isinstance(item, Block):
                yield memoryview(item.buffer)[item.start : item.end]
            else:
                yield item
            del item
    except ObjectMissing:
        yield DamagedBytes("the object is missing", entry.bytes - start)


def _seek_table(storage: Storage, path: str, size: int) -> SeekTable:
    tail = storage.read_range(path, max(0, size - (32 << 10)), size)
    if len(tail) < table_bytes(tail) <= size:
        tail = storage.read_range(path, size - table_bytes(tail), size)
    return SeekTable.parse(tail, size)


def _zstd_size(storage: Storage, path: str, size: int) -> int:
    try:
        return _seek_table(storage, path, size).size
    except CorruptFrame as error:
        raise Refused(
            f"{display(storage, path)} cannot be read: {error.message}.",
            hint="Inside its archive it can be read by the catalog; `zstd -d` may give back a part of it.",
        ) from error


def _frames(storage: Storage, path: str, start: int) -> Iterator[Buffer | DamagedBytes]:
    """The log of a `.log.zst` that no catalog tells of."""
    size = next(info.size for info in storage.list(path) if info.path == path)
    table = _seek_table(storage, path, size)
    for frame in table.frames[table.index_at(start) :]:
        plain = bytearray(frame.size)
        try:
            decompress_frame(storage.read_range(path, frame.at, frame.at + frame.stored), memoryview(plain))
        except CorruptFrame as error:
            yield DamagedBytes(
                f"the zstd frame at byte {frame.at} of the object is damaged: {error.message}", frame.size
            )
        else:
            yield memoryview(plain)[max(0, start - frame.start) :]

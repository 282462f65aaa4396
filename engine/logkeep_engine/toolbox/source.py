"""Finds the segments where the user points: in an archive, in a broker's log folders, in folders of the Records and
Avro formats.

    source = open_source("s3://bucket/prefix", LogSelection(topics=("orders",)))
    for segment in source.segments:
        for item in segment.scan(): ...             # Kafka's layout: batches and damage
        for records in segment.records(): ...       # every layout

A source is the URI of an archive, or a path (URI or local) of one of its folders or objects, of a broker's data folder,
of a partition's folder (`orders-0`), of a topic's folder in the Records or Avro format, or of one file of these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.reading.incarnations import taken_topics
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.contract.names import OPTION_KEYS
from logkeep_engine.contract.patterns import Pattern
from logkeep_engine.errors import (
    ObjectMissing,
    Refused,
    StorageRefused,
)
from logkeep_engine.formats.records_names import FileKind, parse_name
from logkeep_engine.storage import ObjectInfo, Storage, open_uri
from logkeep_engine.toolbox.files import display, os_errors
from logkeep_engine.toolbox.log_bytes import zstd_size
from logkeep_engine.toolbox.segment import MOVED_FOLDER, ToolboxSegment

SNAPSHOT = ".snapshot"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_LOG = re.compile(
    r"([0-9]{20})(?:\.[0-9]{10}(?:-[1-9][0-9]*)?)?(\.log|\.log\.zst)|([0-9]{20})-[0-9]{10}(?:\.[0-9]{5})?(\.checkpoint)"
)
_BESIDE_LOG = re.compile(r"([0-9]{20})(?:\.[0-9]{10}(?:-[1-9][0-9]*)?)?(\.index|\.timeindex|\.txnindex|\.snapshot)")
_LOG_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)")
_ARCHIVED = re.compile(r"(?s:.*)/?topics/([^/]+)/[A-Za-z0-9_-]{22}/partition=([0-9]+)/(?:snapshots/[0-9-]+/)?[^/]+")
_DATA = re.compile(r"([a-zA-Z0-9._-]+)\+([0-9]+)-([0-9]+)\.data")


@dataclass(frozen=True)
class LogSelection:
    """The topics, by patterns of whole names, and partitions that the user chooses of a source; empty: all of them.
    Raises PatternInvalid when it is used with what is no pattern."""

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    @cached_property
    def _patterns(self) -> tuple[Pattern, ...]:
        return tuple(map(Pattern, self.topics))

    def has_topic(self, name: str) -> bool:
        """Return whether the user wants this topic."""
        return not self.topics or any(pattern.matches(name) for pattern in self._patterns)

    def __contains__(self, segment: ToolboxSegment) -> bool:
        return self.has_topic(segment.topic) and (not self.partitions or segment.partition in self.partitions)


class LogKey(NamedTuple):
    """The key of segments that are one log: those of a partition of a topic's incarnation, in one folder."""

    topic: str
    topic_id: str
    partition: int
    folder: str


@dataclass(frozen=True)
class LogSource:
    """The segments that were found, by topic, incarnation, partition, folder and offset; `single` if the user named one
    file, which may also be an index or another file next to a log.

    `archive` and `state` are those of the archive that it is, or lies in; `topics` are those of its topics that were
    named, in the catalog's order, also those without a segment.
    """

    storage: Storage = field(repr=False)
    segments: tuple[ToolboxSegment, ...]
    archive: Archive | None = field(default=None, repr=False)
    state: ArchiveState | None = field(default=None, repr=False)
    single: str = ""
    topics: tuple[TopicEntry, ...] = ()

    def partitions(self, *, checkpoints: bool = False) -> dict[LogKey, list[ToolboxSegment]]:
        """Return the segments of each log, in order. Snapshots of a metadata log are none, unless they are asked for,
        or the user named one.
        """
        found: dict[LogKey, list[ToolboxSegment]] = {}
        for segment in self.segments:
            if checkpoints or not segment.is_checkpoint or segment.path == self.single:
                key = LogKey(segment.topic, segment.topic_id, segment.partition, segment.folder)
                found.setdefault(key, []).append(segment)
        return found

    @property
    def moved_folders(self) -> list[str]:
        """Folders that the broker has put aside, as the user would name them."""
        return sorted({display(segment.storage, segment.folder) for segment in self.segments if segment.moved})

    def in_place(self) -> LogSource:
        """Return the source without them: they hold no longer, or not yet, the partition that their name says."""
        return replace(self, segments=tuple(segment for segment in self.segments if not segment.moved))

    def taken(self) -> LogSource:
        """Return the source with only those incarnations of topics that a restore would take."""
        found = {}
        if self.archive is not None and self.state is not None:
            state = with_snapshots(self.state)  # of an older incarnation it may have no log any more
            found = taken_topics(state, self.topics, shows(self.archive.storage, state))
        last = {topic.name: found[topic.name].topic_id for topic in self.topics}
        segments = (item for item in self.segments if last.get(item.topic, item.topic_id) == item.topic_id)
        topics = (topic for topic in self.topics if last[topic.name] == topic.topic_id)
        return replace(self, segments=tuple(segments), topics=tuple(topics))


def open_source(
    where: str, selection: LogSelection | None = None, *, endpoint: str | None = None, region: str | None = None
) -> LogSource:
    """Find what lies at `where`. Raises Refused if there is nothing of a log, or not what `selection` names."""
    selection = selection or LogSelection()
    with os_errors(where):
        found = _find(_uri(where), endpoint, region)
    if not found.segments and not found.single and found.state is None:
        raise Refused(
            f"{where}: there is neither an archive nor a log.",
            hint="Name an archive's URI, a broker's log folder such as orders-0, or a file such as "
            "00000000000000000000.log.",
        )
    chosen = tuple(segment for segment in found.segments if segment in selection)
    topics = tuple(topic for topic in found.topics if selection.has_topic(topic.name))
    numbers = selection.partitions or (0,)
    there = chosen or any(0 <= number < topic.partitions for topic in topics for number in numbers)  # maybe empty
    if not there and selection != LogSelection() and (found.segments or not found.single):
        raise Refused(f"{where}: {_not_there(found, selection)}.", hint=_what_is_there(found))
    return replace(found, segments=chosen, topics=topics)


# ---- finding


def _find(uri: str, endpoint: str | None, region: str | None) -> LogSource:
    storage = _open(uri, endpoint, region)  # refuses what is not a storage URI before a part of it is used
    root, inside = _archive_root(uri, endpoint, region)
    if root is not None:
        return _in_archive(root, inside)
    if _is_file(uri, endpoint, region):
        return _one_file(uri, endpoint, region)
    storage.check()
    folder = unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2]
    segments = (_segment(storage, info, folder) for info in storage.list())
    return LogSource(storage, _sorted([segment for segment in segments if segment is not None]))


def _open(uri: str, endpoint: str | None, region: str | None) -> Storage:
    return open_uri(uri, endpoint, region, keys=OPTION_KEYS)


def _uri(where: str) -> str:
    return where.rstrip("/") if "://" in where else Path(where).absolute().as_uri()


def _archive_root(uri: str, endpoint: str | None, region: str | None) -> tuple[Archive | None, str]:
    """Return the archive that `uri` is or lies in, and the path inside."""
    parts = urlsplit(uri)
    pieces = [piece for piece in parts.path.split("/") if piece]
    # The user may have no right to read the folders above. If `uri` itself cannot be read, the next reader says so.
    for depth in range(len(pieces), -1, -1):
        root = f"{parts.scheme}://{parts.netloc}/{'/'.join(pieces[:depth])}".rstrip("/")
        if parts.scheme == "file":
            if not Path(unquote(urlsplit(root).path), names.ARCHIVE).is_file():
                continue
        else:
            try:
                _open(root, endpoint, region).read(names.ARCHIVE)
            except (ObjectMissing, StorageRefused):
                continue
        return Archive.open(_open(root, endpoint, region)), unquote("/".join(pieces[depth:]))
    return None, ""


def _in_archive(archive: Archive, inside: str) -> LogSource:
    state = archive.load()
    held = with_snapshots(state, where_needed=True).segments
    segments = []
    single = ""
    for topic_id, partition in state.partitions():
        topic = state.topics.get(topic_id)
        for entry in held.get((topic_id, partition), ()) if topic is not None else ():
            segment = of_entry(archive.storage, cast("TopicEntry", topic), entry)
            if not inside:
                segments.append(segment)
            elif inside in entry.objects(segment.topic):
                single = "" if entry.pack_files is not None else inside
                segments.append(segment)
            elif segment.path.startswith(f"{inside}/") or segment.path == inside:
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
        return LogSource(archive.storage, ())  # something else of an archive
    return LogSource(archive.storage, _sorted(segments), archive, state, single, topics)


def _is_folder_of(topic: TopicEntry, inside: str) -> bool:
    """Would segments of the topic lie in this folder of an archive? There may be none yet."""
    folder = names.TOPICS + topic.name
    above, _, last = inside.rpartition("/partition=")
    return inside in (names.TOPICS.rstrip("/"), folder, f"{folder}/{topic.topic_id}") or (
        above in (folder, f"{folder}/{topic.topic_id}") and last.isdecimal() and int(last) < topic.partitions
    )


def of_entry(storage: Storage, topic: TopicEntry, entry: SegmentEntry) -> ToolboxSegment:
    """Return a segment that the catalog names."""
    return ToolboxSegment(
        storage,
        entry.layout,
        topic.name,
        entry.partition,
        entry.uncut.base_offset,
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
            raise Refused(f"{path}: this file or folder does not exist.")
        return path.is_file()
    folder, _, name = uri.rpartition("/")
    if urlsplit(folder).netloc == "" or not name:
        return False
    try:
        _open(folder, endpoint, region).read_range(name, 0, 1)
    except (ObjectMissing, StorageRefused):
        return False
    return True


def _one_file(uri: str, endpoint: str | None, region: str | None) -> LogSource:
    folder, _, quoted = uri.rpartition("/")
    name = unquote(quoted)
    storage = _open(folder, endpoint, region)
    info = next((info for info in storage.list(name) if info.path == name), None)
    segment = _segment(storage, info, unquote(urlsplit(folder).path).strip("/")) if info is not None else None
    if segment is None and _is_beside(name):
        segment = _log_of(storage, name, unquote(urlsplit(folder).path).strip("/"))
        return LogSource(storage, (segment,) if segment is not None else (), single=name)
    if segment is None:
        raise Refused(
            f"{display(storage, name)} is not a file of a log.",
            hint="Files of a log are named such as 00000000000000000000.log, .index, .timeindex, .txnindex; in the "
            "Records format segment_partition_000_from_offset_0000000000_records, in the Avro format orders+0-0.data.",
        )
    return LogSource(storage, (segment,), single=name)


def _is_beside(path: str) -> bool:
    name = path.rpartition("/")[2]
    file = parse_name(name)
    return (
        name == LEADER_EPOCHS
        or bool(_BESIDE_LOG.fullmatch(name))
        or (file is not None and file.kind is not FileKind.RECORDS)
    )


def _log_of(storage: Storage, name: str, folder: str) -> ToolboxSegment | None:
    """Return the segment that an index belongs to."""
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


def _segment(storage: Storage, info: ObjectInfo, folder: str) -> ToolboxSegment | None:
    """Return the segment whose log or records this object is; None: it is another object. `folder` is that of the
    storage."""
    path, size = info.path, info.size
    above, _, name = f"{folder}/{path}".strip("/").rpartition("/")
    if match := _LOG.fullmatch(name):
        suffix = match[2] or match[4]
        topic, partition = _log_folder(f"{above}/{name}", above.rpartition("/")[2])
        offset = int(match[1] or 0)
        length = zstd_size(storage, path, size) if suffix == names.LOG_ZST else size
        return ToolboxSegment(
            storage, Layout.KAFKA, topic, partition, offset, path.removesuffix(suffix), suffix, length
        )
    if match := _DATA.fullmatch(name):
        stem = path.removesuffix(names.DATA)
        return ToolboxSegment(storage, Layout.AVRO, match[1], int(match[2]), int(match[3]), stem, names.DATA, size)
    file = parse_name(name)
    if file is not None and file.kind is FileKind.RECORDS and file.start_offset is not None:
        topic = above.rpartition("/")[2]
        stem = path.removesuffix(names.RECORDS)
        return ToolboxSegment(
            storage, Layout.RECORDS, topic, file.partition, file.start_offset, stem, names.RECORDS, size
        )
    return None


def _log_folder(path: str, folder: str) -> tuple[str, int]:
    """Topic and partition of a log, from where it lies."""
    match = _ARCHIVED.fullmatch(path) or _LOG_FOLDER.fullmatch(folder) or MOVED_FOLDER.fullmatch(folder)
    return (match[1], int(match[2])) if match is not None else ("", -1)


def _sorted(segments: Sequence[ToolboxSegment]) -> tuple[ToolboxSegment, ...]:
    def place(segment: ToolboxSegment) -> tuple[str, str, int, str, int]:
        begins = segment.base_offset if segment.entry is None else segment.entry.base_offset
        return segment.topic, segment.topic_id, segment.partition, segment.folder, begins

    return tuple(sorted(segments, key=place))


def _not_there(found: LogSource, selection: LogSelection) -> str:
    topics = {segment.topic for segment in found.segments} | {topic.name for topic in found.topics}
    missing = [text for text in selection.topics if not any(map(Pattern(text).matches, topics))]
    if missing:
        return f"there is no topic {missing[0]}"
    partitions = ", ".join(map(str, selection.partitions))
    return f"there is no partition {partitions}" + (f" of {', '.join(selection.topics)}" if selection.topics else "")


def _what_is_there(found: LogSource) -> str:
    named = {segment.topic or "(a log without a topic's name)" for segment in found.segments}
    topics = sorted(named | {topic.name for topic in found.topics})
    more = f" and {len(topics) - 20} more" if len(topics) > 20 else ""
    return f"There are: {', '.join(topics[:20]) or 'none'}{more}."

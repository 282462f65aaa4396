"""Sources that another tool wrote: a folder in the Records or the Avro format, or a backup of `osodevops/kafka-backup`.

    source = folder_source(storage, folder, checked, repair=False, contents=contents)   # `check_segments` has read all
    source = tool_source(storage)                         # from its manifest; segments are read when they are converted

Topics get ids of their own, made from their place and their name, so that the same topic gets the same id again. The
number of a topic's partitions is known from its files; its configuration and replication factor are not known.
"""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, Partition, TopicEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.writing.record_writer import entry_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.values import so_many
from logkeep_engine.convert.check import CheckedSegment
from logkeep_engine.convert.clipped import ClippedStorage
from logkeep_engine.convert.folder import Folder, FoundSegment, manifests
from logkeep_engine.convert.listed import missing_segments
from logkeep_engine.convert.source import NO_CLUSTER, ConvertSource, ForeignSegment
from logkeep_engine.errors import ArchiveDamaged, CorruptSegment, FolderRefused, ObjectMissing
from logkeep_engine.formats import osodevops
from logkeep_engine.formats.base import SegmentFacts
from logkeep_engine.formats.records_groups import read_consumer_offsets
from logkeep_engine.formats.records_index import IndexState
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.storage import Storage

UNKNOWN_REPLICATION = -1
_EPOCH = 1  # any: the run that adopts the segments puts its own in its place
_HINT = "Restore the object from a copy, or move it away. Nothing was written."
_REPAIR_HINT = "With --repair tails are cut off and indexes rebuilt; the originals are kept. Nothing was written."
_REBUILDABLE = (IndexState.MISSING, IndexState.SHORT)


@dataclass(frozen=True, slots=True)
class Repair:
    """An object of a folder that is not as it should be, and can be repaired. `cut_to` is the number of bytes of the
    segment that are kept, None if it is whole. `rebuild`: its index is made again. `replaces` are the objects that are
    kept under the run's folder before they are changed.

    `cut_to`: bytes of the segment that are kept, None: it is whole. `rebuild`: its index is made again. `replaces`:
    what is there now is kept under the run.
    """

    segment: FoundSegment
    what: str
    cut_to: int | None
    rebuild: bool
    replaces: tuple[str, ...]


@dataclass(frozen=True)
class Adopted:
    """A folder as a source, and the repairs that it needs before it can be one where it lies."""

    source: ConvertSource
    repairs: tuple[Repair, ...]


def topic_id(uri: str, topic: str) -> str:
    """Return an id for a topic that has none: a UUID of version 5 in base64url."""
    # Version 5 is made of the name alone, so another import finds the same topic.
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"{uri}/{topic}")
    return urlsafe_b64encode(made.bytes).decode().rstrip("=")


def folder_source(
    storage: Storage,
    folder: Folder,
    checked: Mapping[str, CheckedSegment],
    *,
    repair: bool,
    contents: Mapping[str, bytes],
) -> Adopted:
    """Make a source of a folder whose segments were `checked` (by path). `contents` are those of its files with
    positions of consumer groups and of its indexes of partitions, by path.

    Raises ArchiveDamaged, with all damage, if something cannot be repaired: segments that are damaged or missing, names
    that do not fit the content, segments that overlap.
    """
    uri = storage.uri
    segments = _judged(uri, folder, checked, repair=repair)
    entries = segments.entries
    found_groups, group_faults = _groups(uri, folder, contents)
    missing, missing_notes = missing_segments(uri, folder, contents)
    faults = segments.faults + group_faults + missing
    if faults:
        raise _damaged(faults, repair=repair)
    cuts = {item.segment.path: item.cut_to for item in segments.repairs if item.cut_to is not None}
    source = ConvertSource(
        storage=ClippedStorage(storage, cuts) if cuts else storage,
        identity=uri,
        format=folder.format,
        cluster_id=NO_CLUSTER,
        imported=True,
        topics=tuple(
            TopicEntry(name, topic_id(uri, name), count, UNKNOWN_REPLICATION)
            for name, count in sorted(folder.partitions.items())
        ),
        segments=entries,
        coverage={key: [(items[0].base_offset, items[-1].next_offset)] for key, items in entries.items()},
        groups=tuple(sorted(found_groups, key=lambda item: (item.group_id, item.topic, item.partition))),
        notes=(*_left_out(folder.others), *segments.notes, *missing_notes),
        catalogued=False,
    )
    return Adopted(source, tuple(segments.repairs))


@dataclass(slots=True)
class _Judged:
    """The segments of a folder, by partition and offset, with the damage and the notes that were found."""

    entries: dict[Partition, list[SegmentEntry]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _judged(uri: str, folder: Folder, checked: Mapping[str, CheckedSegment], *, repair: bool) -> _Judged:
    # Segments of the Records format come by their offsets: the last one of a partition stays.
    last = {(found.topic, found.partition): found.path for found in folder.segments}
    done = _Judged()
    for found in folder.segments:
        result = checked[found.path]
        is_last = last[found.topic, found.partition] == found.path
        fault, needed = _judge(uri, found, result, is_last=is_last, repair=repair)
        if fault:
            done.faults.append(fault)
            continue
        if needed is not None:
            done.repairs.append(needed)
            done.notes.append(f"{found.path}: {needed.what}")
        if result.facts is None or result.digest is None:
            done.notes.append(f"{found.path}: it has no record and is left out")
            continue
        entry = entry_of(
            _named(result.facts, found),
            result.digest,
            folder.layout,
            topic_id=topic_id(uri, found.topic),
            partition=found.partition,
            epoch=_EPOCH,
            sequence=found.number,
            sequence_width=found.width,
        )
        done.entries.setdefault((entry.topic_id, entry.partition), []).append(entry)
    names_of = {topic_id(uri, name): name for name in folder.partitions}
    for key, entries in done.entries.items():
        entries.sort(key=lambda entry: entry.base_offset)
        done.faults += _overlaps(uri, names_of[key[0]], entries)
    return done


def _damaged(faults: Sequence[str], *, repair: bool) -> ArchiveDamaged:
    curable = all(_TAIL in fault or fault.endswith(_INDEX) for fault in faults)
    hint = _REPAIR_HINT if curable and not repair else _HINT
    more = f" And {so_many(len(faults) - 1, 'more fault')}." if len(faults) > 1 else ""
    return ArchiveDamaged(f"{faults[0]}.{more}", hint=hint, faults=tuple(faults))


def _left_out(others: Sequence[str]) -> list[str]:
    if not others:
        return []
    count = f"{len(others)} objects are" if len(others) > 1 else "1 object is"
    return [f"{count} left out, first {others[0]}: it has no name of the format"]


def _named(facts: SegmentFacts, found: FoundSegment) -> SegmentFacts:
    """Return the facts of a segment by its name: the original tool of the Records format names the first segment of a
    partition by offset 0, whatever its first record is."""
    if not found.index_path or found.number == facts.base_offset:
        return facts
    return replace(facts, base_offset=found.number, gaps=True)


_TAIL = "torn tail"
_NO_END = f"it has a record of offset {MAX_OFFSET}, and no archive can end after that"
_INDEX = "it can be rebuilt from the records"
_RECOVER = "`logkeep log recover` may save them in a copy of the folder"
_LOST = "restore the segment from a copy, or remove its index to continue without them"


def _judge(
    uri: str, found: FoundSegment, checked: CheckedSegment, *, is_last: bool, repair: bool
) -> tuple[str, Repair | None]:
    """Returns the damage that cannot or may not be repaired, and the repairs."""
    where = f"{uri}/{found.path}"
    facts = checked.facts
    if facts is not None and facts.next_offset > MAX_OFFSET:
        return f"{where}: {_NO_END}", None
    if not found.index_path:  # Avro: a container has no tail that may be cut
        return f"{where}: {checked.damage}" if checked.damage else "", None
    if facts is not None and facts.base_offset < found.number:
        return f"{where}: its first record has offset {facts.base_offset}, which is below that of its name", None
    # An empty object is not damaged: the tool has made it and written nothing yet.
    if checked.damage and found.size:
        return _judge_tail(where, found, checked, is_last=is_last, repair=repair)
    # Only the index knows of them: to rebuild it would hide that records are gone.
    if checked.lost:
        has = "it has no record" if facts is None else f"its last record has offset {facts.next_offset - 1}"
        return f"{where}: {has}, and its index names {checked.lost} more; {_LOST}", None
    if facts is None or checked.index is IndexState.GOOD:
        return "", None
    if checked.index in _REBUILDABLE:
        replaced = () if found.index_size is None else (found.index_path,)
        return "", Repair(found, f"index rebuilt: {checked.index_what}", None, True, replaced)
    if not repair:
        return f"{uri}/{found.index_path}: {checked.index_what.rstrip('.')}; {_INDEX}", None
    return "", Repair(found, f"index rebuilt: {checked.index_what}", None, True, (found.index_path,))


def _judge_tail(
    where: str, found: FoundSegment, checked: CheckedSegment, *, is_last: bool, repair: bool
) -> tuple[str, Repair | None]:
    """Judge damage at the end of a segment. It is a torn tail only if no index entry says that a record was there."""
    missing = checked.index is IndexState.MISSING
    # Without an index only the last segment can have been torn by a crash of its writer.
    if checked.foreign or (missing and not is_last):
        return f"{where}: {checked.damage}", None
    if checked.index in (IndexState.LONG, IndexState.WRONG):
        return f"{where}: {checked.damage}; its index names records after that, {_RECOVER}", None
    # Without a whole record, the byte of the version stays.
    end = checked.facts.bytes if checked.facts is not None else 1
    what = f"a {_TAIL} of {found.size - end} bytes at position {end}, after the last complete record ({checked.damage})"
    if not repair:
        return f"{where}: {what}", None
    rebuild = checked.index is not IndexState.GOOD
    replaced = (found.path, found.index_path) if rebuild and not missing else (found.path,)
    return "", Repair(found, f"{what}: cut off", end, rebuild, replaced)


def _overlaps(uri: str, topic: str, entries: Sequence[SegmentEntry]) -> list[str]:
    faults = []
    for before, entry in pairwise(entries):
        if entry.base_offset < before.next_offset:
            here, there = entry.stem(topic) + entry.log_suffix, before.stem(topic) + before.log_suffix
            faults.append(
                f"{uri}/{here} holds offsets from {entry.base_offset} on, and {there} holds them up to "
                f"{before.next_offset - 1} already"
            )
    return faults


def _groups(uri: str, folder: Folder, contents: Mapping[str, bytes]) -> tuple[list[GroupEntry], list[str]]:
    found: list[GroupEntry] = []
    faults: list[str] = []
    for file in folder.groups:
        try:
            offsets = read_consumer_offsets(contents[file.path])
        except CorruptSegment as error:
            faults.append(f"{uri}/{file.path}: {error.message.rstrip('.')}")
            continue
        topic = topic_id(uri, file.topic)
        found += (GroupEntry(group, file.topic, topic, file.partition, offset) for group, offset in offsets.items())
    return found, faults


# ---- osodevops/kafka-backup


def tool_source(storage: Storage, paths: Sequence[str] | None = None) -> ConvertSource:
    """Return a backup of `osodevops/kafka-backup` at `storage`: its own folder, or the one above with one backup in it.

    Raises FolderRefused for several, and for a manifest that is not one or names segments that overlap;
    ObjectMissing if there is none.
    """
    if paths is None:
        paths = manifests(storage.list())
    if len(paths) != 1:
        held = ", ".join(path.rpartition("/")[0] for path in paths) or "none"
        raise FolderRefused(
            f"{storage.uri} holds {len(paths)} backups of osodevops/kafka-backup: {held}.",
            hint="Name the folder of one of them.",
        )
    (path,) = paths
    folder = path.rpartition("/")[0]
    name = f"{storage.uri}/{path}"
    try:
        manifest = osodevops.read_manifest(storage.read(path))
        snapshot = _read_or_none(storage, f"{folder}/{osodevops.GROUPS}" if folder else osodevops.GROUPS)
        positions = osodevops.read_groups(snapshot) if snapshot is not None else []
    except CorruptSegment as error:
        raise FolderRefused(f"{name}: {error.message}.", hint="Restore it from a copy.") from error
    # A key begins with the backup's id, which is the folder; the storage may be that folder itself.
    strip = "" if folder else f"{manifest.backup_id}/"
    return _source_of(storage, name, manifest, positions, strip)


def _source_of(
    storage: Storage,
    name: str,
    manifest: osodevops.Manifest,
    positions: Iterable[osodevops.ManifestPosition],
    strip: str,
) -> ConvertSource:
    uri = storage.uri
    topics: list[TopicEntry] = []
    segments: dict[Partition, list[ForeignSegment]] = {}
    coverage: dict[Partition, list[Range]] = {}
    gaps: list[Gap] = []
    for topic in manifest.topics:
        own_id = topic_id(uri, topic.name)
        highest = max((part.number + 1 for part in topic.partitions), default=1)
        try:
            topics.append(TopicEntry(topic.name, own_id, max(highest, topic.partition_count or 1), UNKNOWN_REPLICATION))
        except ValueError as error:
            raise FolderRefused(f"{name}: {error}.", hint="It cannot have been a topic of Kafka.") from error
        for part in topic.partitions:
            key = (own_id, part.number)
            found = _segments(name, topic.name, part, strip)
            if found:
                segments[key] = found
            coverage[key], lost = _ranges(name, topic.name, part, found)
            gaps += (Gap(*key, gap.start, gap.end, gap.reason.replace("_", " ")) for gap in lost)
    ids = {topic.name: topic.topic_id for topic in topics}
    return ConvertSource(
        storage=storage,
        identity=uri,
        format=None,
        cluster_id=NO_CLUSTER,
        imported=True,
        topics=tuple(topics),
        segments=segments,
        coverage={key: ranges for key, ranges in coverage.items() if ranges},
        gaps=tuple(gaps),
        groups=tuple(
            GroupEntry(position.group_id, position.topic, ids[position.topic], position.partition, position.offset)
            for position in positions
            if position.topic in ids  # a position in a topic that was not backed up has nothing to point to
        ),
        notes=(
            "The tool that wrote it keeps no types of timestamps (all are create times), one header of a name and no "
            "null header values, and archives transaction markers and records of aborted transactions as if they were "
            "data.",
        ),
        catalogued=False,
    )


def _segments(name: str, topic: str, part: osodevops.ManifestPartition, strip: str) -> list[ForeignSegment]:
    found = [
        ForeignSegment(
            segment.key.removeprefix(strip),
            segment.first_offset,
            segment.last_offset + 1,
            segment.records,
            max(1, segment.bytes),
        )
        for segment in sorted(part.segments, key=lambda segment: segment.first_offset)
    ]
    if found and found[-1].next_offset > MAX_OFFSET:
        raise FolderRefused(
            f"{name}: topic {topic!r} partition {part.number}: {found[-1].path}: {_NO_END}.", hint=_HINT
        )
    for before, segment in pairwise(found):
        if segment.base_offset < before.next_offset:
            raise FolderRefused(
                f"{name}: topic {topic!r} partition {part.number}: {segment.path} holds offsets from "
                f"{segment.base_offset} on, and {before.path} holds them up to {before.next_offset - 1} already.",
                hint="Take one of the two out of the manifest.",
            )
    return found


def _ranges(
    name: str, topic: str, part: osodevops.ManifestPartition, segments: Sequence[ForeignSegment]
) -> tuple[list[Range], list[osodevops.ManifestGap]]:
    """Return the ranges that are archived, and the gaps of the partition. A gap in which a segment has records is
    refused."""
    lost = sorted((gap for gap in part.gaps if gap.end > gap.start), key=lambda gap: gap.start)
    for gap in lost:
        for segment in segments:
            if segment.base_offset < gap.end and gap.start < segment.next_offset:
                raise FolderRefused(
                    f"{name}: topic {topic!r} partition {part.number}: offsets [{gap.start}, {gap.end}) are said to be "
                    f"lost, but {segment.path} holds [{segment.base_offset}, {segment.next_offset}).",
                    hint="The manifest contradicts itself: restore it from a copy.",
                )
    ranges: list[Range] = []
    if segments:
        at, end = segments[0].base_offset, segments[-1].next_offset
        for gap in lost:
            if at < gap.start < end:
                ranges.append((at, gap.start))
            if gap.start < end:
                at = max(at, gap.end)
        if at < end:
            ranges.append((at, end))
    return ranges, _merged(lost)


def _merged(gaps: Sequence[osodevops.ManifestGap]) -> list[osodevops.ManifestGap]:
    merged: list[osodevops.ManifestGap] = []
    for gap in gaps:
        if merged and gap.start < merged[-1].end:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end, gap.end))
        else:
            merged.append(gap)
    return merged


def _read_or_none(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except ObjectMissing:
        return None

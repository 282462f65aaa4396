"""Compares the indexes of segments with their logs, and makes them again.

    for index in survey(source):
        print(index.name, index.state, index.faults)
        if index.stale: rewrite(index)

`faults` are what a broker would stumble over: its own sanity checks (OffsetIndex, TimeIndex, TransactionIndex
`sanityCheck`), and that every entry is true. An index may be sparser than the one that is made here (brokers before
4.1) and still have no fault. In an archive every object must have its exact bytes: there a difference is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from logkeep_engine.archive import names
from logkeep_engine.archive.reading.partition import is_indexed
from logkeep_engine.archive.writing.record_files import name_of
from logkeep_engine.errors import CorruptSegment, ObjectMissing, Refused
from logkeep_engine.formats.records import read_blocks
from logkeep_engine.formats.records_index import build_index, check_index
from logkeep_engine.formats.records_names import (
    RECORDS_WIDTH,
    RecordsName,
    pack_partition_index,
    parse_name,
    partition_index_name,
)
from logkeep_engine.log.recovery import owner_of, replace_file, sync_folder
from logkeep_engine.log.segment import (
    INDEX_INTERVAL_BYTES,
)
from logkeep_engine.toolbox.files import display, local_path, os_errors
from logkeep_engine.toolbox.index import Index, IndexVerdict, index_of
from logkeep_engine.toolbox.log_indexes import indexes_of_logs
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource

BACKUP = ".bak"


def survey(source: LogSource, *, interval_bytes: int = INDEX_INTERVAL_BYTES) -> Iterator[Index]:
    """Yield every index of the segments of a source; reads all their logs. `interval_bytes` is the broker's
    `log.index.interval.bytes`; a Logkeep archive has the default.
    """
    if source.single and not source.segments:
        raise Refused(
            f"{display(source.storage, source.single)}: its log is not there.",
            hint="An index is made from the log next to it.",
        )
    if source.single and source.segments[0].is_checkpoint:
        raise Refused(
            f"{display(source.storage, source.single)}: a snapshot of the metadata log has no indexes.",
            hint="Name a .log, or its folder.",
        )
    for segments in source.partitions().values():
        logs = [segment for segment in segments if segment.has_batches]
        if logs:
            yield from indexes_of_logs(source, logs, interval_bytes)
        records = [segment for segment in segments if is_indexed(segment.layout)]
        if records:
            yield from _of_records(source, records)


def rewrite(index: Index) -> str:
    """Write the index as it should be, whole and durable. Outside of an archive the old one is kept next to it with
    `.bak` after its name, or `.bak.2` and so on if an earlier one has that name; returns that name ("" if there is
    none).
    """
    if index.made is None:
        raise Refused(f"{index.name}: its correct content is unknown.", hint="; ".join(index.faults))
    kept = ""
    if index.found is not None and not index.committed:
        kept = _free_name(index, index.found)
        _write(index, kept, index.found)
    if index.made or not index.may_be_absent:
        _write(index, index.path, index.made)
    else:
        index.storage.delete([index.path])
    return display(index.storage, kept) if kept else ""


def _free_name(index: Index, found: bytes) -> str:
    """Return a name for the copy of the old index: a name that is free, or that has the same bytes already."""
    for number in count(1):
        kept = index.path + BACKUP + (f".{number}" if number > 1 else "")
        try:
            if index.storage.read(kept) == found:
                return kept
        except ObjectMissing:
            return kept
    raise AssertionError


def _write(index: Index, path: str, content: bytes) -> None:
    """Write the file whole and durable. In a log folder, a broker of another user must be able to open it as before."""
    file, log = local_path(index.storage, path), local_path(index.storage, index.log)
    old = local_path(index.storage, index.path)
    if index.committed or file is None or log is None or old is None:
        index.storage.put(path, content)
        return
    with os_errors(display(index.storage, path)):
        replace_file(file, content, owner_of(old, log))
        sync_folder(file.parent)


def _of_records(source: LogSource, segments: Sequence[ToolboxSegment]) -> Iterator[Index]:
    for segment in segments:
        yield _records_index(source, segment)
    if source.single:
        return
    folder = _without_generation(segments[0]).rpartition("/")[0]
    path = f"{folder}/{partition_index_name(segments[0].partition)}".lstrip("/")
    made = pack_partition_index(map(_name_of, segments))
    try:
        found = source.storage.read(path)
    except ObjectMissing:
        found = None
    if found == made:
        yield index_of(source, segments[0], path, IndexVerdict.GOOD, (), found, made)
    elif found is None:
        yield index_of(source, segments[0], path, IndexVerdict.MISSING, (), found, made)  # a convenience, not needed
    else:
        what = "it does not name the segments that are there"
        yield index_of(source, segments[0], path, IndexVerdict.WRONG, (what,), found, made)


def _name_of(segment: ToolboxSegment) -> RecordsName:
    """Return the segment as the index of its partition names it. What an erasure has rewritten has more digits."""
    if segment.entry is not None:
        return name_of(segment.entry)
    file = parse_name(segment.path.rpartition("/")[2])
    return RecordsName(segment.partition, segment.base_offset, (file and file.width) or RECORDS_WIDTH)


def _without_generation(segment: ToolboxSegment) -> str:
    return segment.path if segment.entry is None else names.without_generation(segment.path)[0]


def _records_index(source: LogSource, segment: ToolboxSegment) -> Index:
    path = segment.stem + names.RECORDS_INDEX
    found = segment.beside(names.RECORDS_INDEX)
    try:
        with segment.storage.reader(segment.path) as reader:
            placed = read_blocks(iter(reader.read_block, b""), size=segment.size)
            made = build_index((block.records.offsets(), block.positions) for block in placed)
    except CorruptSegment as error:
        what = f"the segment is damaged: {error.message.rstrip('.')}"
        return index_of(source, segment, path, IndexVerdict.UNKNOWN, (what,), found, None)
    except ObjectMissing:
        return index_of(source, segment, path, IndexVerdict.UNKNOWN, ("the segment is not there",), found, None)
    if segment.entry is not None and len(made) != segment.entry.files.index_bytes:
        what = f"made from the segment it has {len(made)} bytes, the catalog says {segment.entry.files.index_bytes}"
        return index_of(source, segment, path, IndexVerdict.UNKNOWN, (f"{what}: the segment was altered",), found, None)
    check = check_index(found, made)
    if not check.what:
        return index_of(source, segment, path, IndexVerdict.GOOD, (), found, made)
    state = IndexVerdict.MISSING if found is None else IndexVerdict.WRONG
    return index_of(source, segment, path, state, (check.what.rstrip("."),), found, made)

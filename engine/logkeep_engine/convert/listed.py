"""This module holds the names in the indexes of partitions against the segments of a folder in the Records format.
Pure.

    faults, notes = missing_segments(uri, folder, contents)

The original tool makes a segment first and then names it, and needs the index made again after segments were deleted
(its `docs/Tooling.md`). So a segment that is named, is not there and lies between others was lost. Segments before the
first one were deleted by retention: the tool's `completed_segments.py` deletes the oldest and leaves the index as it
is. A segment after the last one may have begun while the folder was being copied or listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logkeep_engine.convert.folder import Folder, FoundFile
from logkeep_engine.errors import CorruptIndex
from logkeep_engine.formats.records_names import RecordsName, read_partition_index


def missing_segments(uri: str, folder: Folder, contents: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Return the damage and the notes that the indexes of partitions lead to; their `contents` are given by path. An
    index that cannot be read is a note only: the names of the segments say the same."""
    there: dict[tuple[str, int], list[int]] = {}
    for found in folder.segments:
        there.setdefault((found.topic, found.partition), []).append(found.number)
    faults: list[str] = []
    notes: list[str] = []
    for index in folder.partition_indexes:
        try:
            named = _read(index, contents[index.path])
        except CorruptIndex as error:
            notes.append(f"{index.path}: {error.message.rstrip('.')}; so a segment that is missing is not noticed")
            continue
        held = there.get((index.topic, index.partition), [])
        missing = _without(named, held)
        faults += (_lost(uri, index, segment) for segment in missing if _is_between(segment, held))
        notes += _note(index, [segment for segment in missing if not held or segment.start_offset > held[-1]])
    return faults, notes


def _read(index: FoundFile, content: bytes) -> list[RecordsName]:
    named = read_partition_index(content)
    # The names are of one partition: `read_partition_index` refuses others.
    if named and named[0].partition != index.partition:
        raise CorruptIndex(f"The index names segments of partition {named[0].partition}.")
    return named


def _without(named: Sequence[RecordsName], held: Sequence[int]) -> list[RecordsName]:
    offsets = frozenset(held)
    return [segment for segment in named if segment.start_offset not in offsets]


def _is_between(segment: RecordsName, held: Sequence[int]) -> bool:
    return bool(held) and held[0] < segment.start_offset < held[-1]


def _lost(uri: str, index: FoundFile, segment: RecordsName) -> str:
    folder, _, name = index.path.rpartition("/")
    return (
        f"{uri}/{folder}/{segment.records} is missing: {name} names it, and segments before and after it are there; "
        f"restore it from a copy, or remove {name} if it was deleted on purpose"
    )


def _note(index: FoundFile, later: Sequence[RecordsName]) -> list[str]:
    if not later:
        return []
    more = f" and {len(later) - 1} more" if len(later) > 1 else ""
    return [f"{index.path} names {later[0]}{more}, after all segments that are there: its records are not imported"]

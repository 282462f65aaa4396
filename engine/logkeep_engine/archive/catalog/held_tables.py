"""Everything of which an archive has objects: tables of segments, each with its kind. Pure.

    for table in held_tables(state): ...      # all but what was removed
    for table in removed_tables(state): ...   # its objects may still be there

Code that has to see every object goes through these, so that no kind is forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.extent import Slices
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.held_lines import lines_of, shown_facts
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range, add_range, without


class TableKind(Enum):
    """The things of which an archive has objects."""

    LOG = auto()
    """The segments on the current line of a partition, or on one on which that stands."""
    OLD = auto()
    """The rest of lines that are not current any more."""
    PASSIVE = auto()
    """A generation that is being read."""
    SNAPSHOT = auto()
    OLD_SNAPSHOT = auto()
    """A snapshot of what is not on the current line."""
    REMOVED = auto()


@dataclass(frozen=True, slots=True)
class HeldTable:
    """Segments of a partition, or the parts of one snapshot, in order; never none."""

    kind: TableKind
    key: Partition
    segments: PackedSegments


def held_tables(state: ArchiveState, topic_ids: Container[str] | None = None) -> Iterator[HeldTable]:
    """Return everything that has objects and was not removed, or what these topics have of it: one kind after the
    other, each by partition."""
    passive: Mapping[Partition, PackedSegments] = {} if state.passive is None else state.passive.segments
    keys = _keys({*state.segments, *state.snapshots, *state.lines}, topic_ids)
    found = [
        *((kind, key, some) for key in keys for kind, some in _logs(state, key)),
        *((TableKind.PASSIVE, key, passive[key]) for key in _keys(passive, topic_ids)),
        *((kind, key, some) for key in keys for kind, some in _snapshots(state, key)),
    ]
    return (HeldTable(*item) for item in found if len(item[-1]))


def tables_of(state: ArchiveState) -> Iterator[tuple[Partition, int, PackedSegments]]:
    """Yield the segments on each line of each partition: partition, number of the line, segments."""
    for key in sorted({*state.segments, *state.lines}):
        for line, own in enumerate(state.own_facts(key)):
            yield key, line, own.table(key)


def _logs(state: ArchiveState, key: Partition) -> Iterator[tuple[TableKind, PackedSegments]]:
    """Yield the segments of which the current line has something, whole, and then the rest of each line."""
    if key not in state.lines:
        if key in state.segments:
            yield TableKind.LOG, state.segments[key]
        return
    held = state.lines[key]
    tables = [PackedSegments(key, line.held.rows) for line in held]
    current, ranges = bytearray(), [list[Range]() for _ in held]
    for piece in lines_of(held).path(len(held) - 1):
        some = Slices.within(tables[piece.owner], piece.start, piece.end)
        current += some.table.between(some.first, some.last)
        add_range(ranges[piece.owner], some.first, some.last)
    yield TableKind.LOG, PackedSegments(key, current)
    for table, named in zip(tables, ranges, strict=True):
        for start, end in without(0, len(table), named):
            yield TableKind.OLD, PackedSegments(key, table.between(start, end))


def _snapshots(state: ArchiveState, key: Partition) -> Iterator[tuple[TableKind, PackedSegments]]:
    current = shown_facts(state.lines[key], len(state.lines[key]) - 1).snapshots if key in state.lines else None
    for own in state.own_facts(key):
        for item in own.snapshots:
            kind = TableKind.SNAPSHOT if current is None or item in current else TableKind.OLD_SNAPSHOT
            yield kind, item.parts(key)


def removed_tables(state: ArchiveState, topic_ids: Container[str] | None = None) -> Iterator[HeldTable]:
    """Yield the segments that commits have removed and that are not deleted yet, or those of these topics, in order."""
    for item in state.unpurged:
        for key, some in item.segments.items():
            if topic_ids is None or key[0] in topic_ids:
                yield HeldTable(TableKind.REMOVED, key, some)


def _keys(keys: Iterable[Partition], topic_ids: Container[str] | None) -> list[Partition]:
    return sorted(key for key in keys if topic_ids is None or key[0] in topic_ids)


def deleted(newest: ArchiveState, key: Partition, segments: Sequence[SegmentEntry]) -> int:
    """Return how many of these segments of a partition, or parts of its snapshots, are deleted by right: the archive
    has no object of them any more."""
    tables = (*held_tables(newest, {key[0]}), *removed_tables(newest, {key[0]}))
    return len(_unnamed(tables, key, segments))


def removed(newest: ArchiveState, key: Partition, segments: Sequence[SegmentEntry]) -> list[SegmentEntry]:
    """Return those of these segments, or parts of snapshots, that the archive does not have any more. Their objects may
    still be there."""
    return _unnamed(held_tables(newest, {key[0]}), key, segments)


def _unnamed(tables: Iterable[HeldTable], key: Partition, segments: Sequence[SegmentEntry]) -> list[SegmentEntry]:
    named = {entry for table in tables if table.key == key for entry in table.segments}
    return [entry for entry in (one.uncut for one in segments) if entry not in named]

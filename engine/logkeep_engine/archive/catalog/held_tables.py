"""All that an archive has objects of: tables of segments, each with its kind. Pure.

    for table in held_tables(state): ...      # all but what was removed
    for table in removed_tables(state): ...   # its objects may be there still

Whoever has to see every object goes through these, so that nobody forgets a kind.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from logkeep_engine.archive.catalog.branches import Branch
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState

T = TypeVar("T")


class TableKind(Enum):
    """The things of which an archive has objects."""

    LOG = auto()
    """The newest log of a partition."""
    BRANCH = auto()
    PASSIVE = auto()
    """A generation that is being read."""
    SNAPSHOT = auto()
    BRANCH_SNAPSHOT = auto()
    REMOVED = auto()


@dataclass(frozen=True, slots=True)
class HeldTable:
    """Segments of a partition, or the parts of one snapshot, in order; never none."""

    kind: TableKind
    key: Partition
    segments: PackedSegments


def held_tables(state: ArchiveState, topic_ids: Container[str] | None = None) -> Iterator[HeldTable]:
    """Everything that has objects and was not removed, or what these topics have of it: one kind behind the other, each
    by partition."""
    branches = all_branches(state, topic_ids)
    passive: Mapping[Partition, PackedSegments] = {} if state.passive is None else state.passive.segments
    found = [
        *((TableKind.LOG, key, some) for key, some in _items(state.segments, topic_ids)),
        *((TableKind.BRANCH, branch.key, branch.segments) for branch in branches),
        *((TableKind.PASSIVE, key, some) for key, some in _items(passive, topic_ids)),
        *(
            (TableKind.SNAPSHOT, key, item.parts(key))
            for key, held in _items(state.snapshots, topic_ids)
            for item in held
        ),
        *(
            (TableKind.BRANCH_SNAPSHOT, branch.key, item.parts(branch.key))
            for branch in branches
            for item in branch.held.snapshots
        ),
    ]
    return (HeldTable(*item) for item in found if len(item[-1]))


def removed_tables(state: ArchiveState, topic_ids: Container[str] | None = None) -> Iterator[HeldTable]:
    """The segments that commits have removed and nobody has deleted yet, or those of these topics, in order."""
    for item in state.unpurged:
        for key, some in item.segments.items():
            if topic_ids is None or key[0] in topic_ids:
                yield HeldTable(TableKind.REMOVED, key, some)


def all_branches(state: ArchiveState, topic_ids: Container[str] | None = None) -> list[Branch]:
    """The branches of all partitions, or of those of these topics, by partition."""
    return [branch for _, branches in _items(state.branches, topic_ids) for branch in branches]


def _items(tables: Mapping[Partition, T], topic_ids: Container[str] | None) -> list[tuple[Partition, T]]:
    keys = (key for key in tables if topic_ids is None or key[0] in topic_ids)
    return [(key, tables[key]) for key in sorted(keys)]


def deleted(newest: ArchiveState, key: Partition, segments: Sequence[SegmentEntry]) -> int:
    """How many of these segments of a partition, or parts of its snapshots, are deleted by right: the archive has no
    object of them any more."""
    tables = (*held_tables(newest, {key[0]}), *removed_tables(newest, {key[0]}))
    named = {entry for table in tables if table.key == key for entry in table.segments}
    return sum(entry not in named for entry in segments)

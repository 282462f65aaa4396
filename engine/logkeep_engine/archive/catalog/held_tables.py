"""All that an archive has objects of: tables of segments, each with its kind. Pure.

    for table in held_tables(state): ...      # all but what was removed
    for table in removed_tables(state): ...   # its objects may be there still

Whoever has to see every object goes through these, so that nobody forgets a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from logkeep_engine.archive.catalog.branches import Branch
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState


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


def held_tables(state: ArchiveState) -> Iterator[HeldTable]:
    """Everything that has objects and was not removed: one kind behind the other, each by partition."""
    found = [
        *((TableKind.LOG, key, some) for key, some in sorted(state.segments.items(), key=_key_of)),
        *((TableKind.BRANCH, branch.key, branch.segments) for branch in all_branches(state)),
        *((TableKind.PASSIVE, key, some) for key, some in _passive(state)),
        *((TableKind.SNAPSHOT, key, item.parts(key)) for key, held in sorted(state.snapshots.items()) for item in held),
        *(
            (TableKind.BRANCH_SNAPSHOT, branch.key, item.parts(branch.key))
            for branch in all_branches(state)
            for item in branch.held.snapshots
        ),
    ]
    return (HeldTable(*item) for item in found if len(item[-1]))


def removed_tables(state: ArchiveState) -> Iterator[HeldTable]:
    """The segments that commits have removed and nobody has deleted yet, in order."""
    for item in state.unpurged:
        for key, some in item.segments.items():
            yield HeldTable(TableKind.REMOVED, key, some)


def all_branches(state: ArchiveState) -> list[Branch]:
    """The branches of all partitions, by partition."""
    return [branch for _, branches in sorted(state.branches.items(), key=_key_of) for branch in branches]


def _passive(state: ArchiveState) -> list[tuple[Partition, PackedSegments]]:
    return [] if state.passive is None else sorted(state.passive.segments.items(), key=_key_of)


def _key_of(item: tuple[Partition, object]) -> Partition:
    return item[0]

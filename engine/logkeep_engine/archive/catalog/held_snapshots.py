"""Snapshots in memory and in checkpoints: their parts stay packed. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import PackedSegments, pack
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot of a partition, see `SnapshotEntry`. `rows` are those of its parts."""

    end: int
    leader_epoch: int
    time: int
    rows: bytes

    @classmethod
    def of(cls, entry: SnapshotEntry) -> Self:
        return cls(entry.end, entry.leader_epoch, entry.time, b"".join(map(pack, entry.parts)))

    def parts(self, key: Partition) -> PackedSegments:
        """Return the parts of the snapshot of this partition."""
        return PackedSegments(key, self.rows)

    def entry(self, key: Partition) -> SnapshotEntry:
        """Return the snapshot as a commit has it."""
        return SnapshotEntry(*key, self.end, self.leader_epoch, self.time, tuple(self.parts(key)))


def with_snapshot(held: Sequence[HeldSnapshot], more: HeldSnapshot) -> list[HeldSnapshot]:
    """Return the snapshots of a partition and one more after them. Raises ValueError if it is not after them."""
    found = [*held, more]
    if any(before.end >= after.end for before, after in pairwise(found)):
        raise ValueError(f"snapshot {more.end} after snapshot {held[-1].end}")
    return found


def without_snapshots(held: Sequence[HeldSnapshot], ends: set[int]) -> tuple[list[HeldSnapshot], list[HeldSnapshot]]:
    """The snapshots without those of these ends, and the latter. Raises ValueError if one is not there."""
    gone = [item for item in held if item.end in ends]
    if len(gone) != len(ends):
        raise ValueError(f"there is no snapshot {min(ends - {item.end for item in gone})} to remove")
    return [item for item in held if item.end not in ends], gone

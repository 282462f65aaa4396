"""Old ends of partitions whose logs were cut off in the cluster and went on otherwise. Pure.

When a run finds that a log parts from the archive at an offset, one commit moves what is archived from there on into a
branch: segments, coverage, gaps and leader epochs. A segment across that offset goes as a whole. A copy of its batches
below that offset, which was written before, takes its place. The archive of the partition goes on with the log as it is
now.

A branch is named by an id that looks like a topic's, `branch-<number of the topic's branches>-<letters of its own>`.
`rejoined` puts it back: what lies in front of it is that of the next branch of the partition, or of the newest lineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, Partition
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, Lineage
from logkeep_engine.archive.catalog.packed import ROW_BYTES, PackedSegments, split_rows
from logkeep_engine.archive.ranges import Range, cut, together


@dataclass(slots=True)
class PartitionFacts:
    """All that an archive has of one partition, or of some of its offsets."""

    rows: bytes | bytearray = b""
    coverage: list[Range] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    removed: list[Range] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=list)
    leader: int = UNKNOWN
    snapshots: list[HeldSnapshot] = field(default_factory=list)

    def cut(self, offset: int) -> tuple[PartitionFacts, PartitionFacts]:
        """The part that stays when the rest from `offset` on becomes a branch, and that rest. A segment across `offset`
        goes with the rest, and so does a snapshot that ends behind it: it has records of the rest, and lacks those
        that they have overwritten. The rest has all epochs, which are a history of both."""
        kept, gone = split_rows(self.rows, offset)
        below, above = cut(self.coverage, offset)
        before, behind = cut(self.removed, offset)
        stay = PartitionFacts(kept, below, [], before, [item for item in self.epochs if item[1] < offset])
        rest = PartitionFacts(gone, above, [], behind, list(self.epochs), self.leader)
        stay.snapshots = [item for item in self.snapshots if item.end <= offset]
        rest.snapshots = [item for item in self.snapshots if item.end > offset]
        for gap in self.gaps:
            if gap.start < offset:
                stay.gaps.append(replace(gap, end=min(gap.end, offset)))
            if gap.end > offset:
                rest.gaps.append(replace(gap, start=max(gap.start, offset)))
        return stay, rest


@dataclass(slots=True)
class Branch:
    """An old end of a partition. Everything in `held` lies at `offset` or above, but the first segment may begin
    below."""

    key: Partition
    id: str
    offset: int
    held: PartitionFacts

    @property
    def segments(self) -> PackedSegments:
        return PackedSegments(self.key, self.held.rows)

    @property
    def end(self) -> int:
        """One past the last offset for which the branch accounts."""
        ends = [end for _, end in (*self.held.coverage, *self.held.removed)] + [gap.end for gap in self.held.gaps]
        return max(ends, default=self.offset)

    @property
    def lineage(self) -> Lineage:
        """The leaders that have written the branch and what lies in front of it."""
        return Lineage(tuple(self.held.epochs), self.end, self.end, self.held.leader)


def rejoined(newest: PartitionFacts, later: Sequence[Branch]) -> PartitionFacts:
    """A partition as it was before the first of `later` parted from it: all its branches from that one on, in the order
    in which they were made."""
    held = newest
    for branch in reversed(later):
        held = _joined(held, branch)
    return held


def _joined(front: PartitionFacts, branch: Branch) -> PartitionFacts:
    own, segments = branch.held, branch.segments
    first = min(segments[0].base_offset, branch.offset) if len(segments) else branch.offset
    kept = PackedSegments(branch.key, front.rows).position(first)
    stay, _ = replace(front, rows=b"").cut(branch.offset)
    return PartitionFacts(
        bytes(front.rows[: kept * ROW_BYTES]) + bytes(own.rows),
        together(stay.coverage, own.coverage),
        [*stay.gaps, *own.gaps],
        together(stay.removed, own.removed),
        list(own.epochs),
        own.leader,
        [*stay.snapshots, *own.snapshots],
    )


def in_branch(group: GroupEntry, branch: Branch) -> GroupEntry:
    """The position of a group in the log as it was before the fork. Behind the fork only the leader epoch tells in
    which log a position lies."""
    if (group.topic_id, group.partition) != branch.key or group.offset <= branch.offset:
        return group
    if 0 <= group.leader_epoch <= branch.lineage.newest:
        return group
    return replace(group, offset=branch.offset)

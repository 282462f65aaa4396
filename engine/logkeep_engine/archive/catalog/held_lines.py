"""The lines of partitions, with what an archive holds of each (see `lines`). Pure.

A partition has one line, until its log is cut off in the cluster and continues otherwise, or is read again from its
start. Then one commit adds a line, which is current from that commit on. Nothing that is archived moves or is copied:
each segment stays on the line for which it was read. `shown_facts` puts together what a line has of the lines before
it, cut at the offsets where they part.

The line of a log that was cut off is a *branch* from then on. It has an id that looks like a topic's,
`branch-<number of the topic's branches>-<letters of its own>`, by which users choose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.extent import Slices
from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, Partition
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, Lineage, add_epoch
from logkeep_engine.archive.catalog.lines import FOREVER, Line, Lines
from logkeep_engine.archive.catalog.packed import NO_CUTS, ROW_BYTES, Cuts, PackedSegments
from logkeep_engine.archive.ranges import Range, add_range, inside, together, without

_ANY: Partition = ("", 0)  # entries are not made


@dataclass(slots=True)
class PartitionFacts:
    """All that an archive has of one partition, or of one line of it. `cuts`: what counts of the segments that are cut,
    in what was put together of several lines."""

    rows: bytes | bytearray = b""
    coverage: list[Range] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    removed: list[Range] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=list)
    leader: int = UNKNOWN
    snapshots: list[HeldSnapshot] = field(default_factory=list)
    cuts: Cuts = field(default_factory=lambda: NO_CUTS)

    def table(self, key: Partition = _ANY) -> PackedSegments:
        """Return the segments, those that are cut as slices."""
        return PackedSegments(key, self.rows, self.cuts)

    @property
    def accounted(self) -> list[Range]:
        """The ranges for which it accounts, merged and sorted: archived ranges and gaps."""
        ranges = list(self.coverage)
        for gap in self.gaps:
            add_range(ranges, gap.start, gap.end)
        return ranges

    def within(self, start: int, end: int) -> PartitionFacts:
        """Return the part of it that lies in [start, end), without leader epochs and snapshots."""
        some = Slices.within(self.table(), start, end)
        return PartitionFacts(
            some.table.between(some.first, some.last),
            list(inside(self.coverage, start, end)),
            list(_gaps_within(self.gaps, start, end)),
            list(inside(self.removed, start, end)),
            cuts={at - some.first: cut for at, cut in cuts_within(some).items()},
        )

    def followed_by(self, later: PartitionFacts) -> PartitionFacts:
        """It, and what lies at higher offsets, without leader epochs and snapshots."""
        before = len(self.rows) // ROW_BYTES
        return PartitionFacts(
            bytes(self.rows) + bytes(later.rows),
            together(self.coverage, later.coverage),
            [*self.gaps, *later.gaps],
            together(self.removed, later.removed),
            cuts={**self.cuts, **{before + at: cut for at, cut in later.cuts.items()}},
        )

    def remove(self, start: int, end: int) -> None:
        """Add a removed range, whose segments are gone. Two ranges become one if no segment lies between them and none
        will, so that they stay few."""
        at = next((at for at, item in enumerate(self.removed) if item[0] >= start), len(self.removed))
        # A neighbour may reach beyond: it was joined over segments that go with the same commit.
        if at and self._nothing_between(self.removed[at - 1][1], start):
            start = min(start, self.removed[at - 1][1])
        if at < len(self.removed) and self._nothing_between(end, self.removed[at][0]):
            end = max(end, self.removed[at][0])
        add_range(self.removed, start, end)

    def _nothing_between(self, start: int, end: int) -> bool:
        """Return whether no segment has its first offset in [start, end), and none will."""
        entries = self.table()
        return entries.position(end) <= entries.position(start) and not without(start, end, self.accounted)


def cuts_within(some: Slices[PackedSegments]) -> Cuts:
    """Return the offsets that count of those of these segments that are cut, by their numbers in their table."""
    return {at: cut for at, cut in some.table.cuts.items() if some.first <= at < some.last} | some.cut()


@dataclass(frozen=True, slots=True)
class Rereading:
    """The reading of a log from its start that has become a line: the generation `number` of the partition. It began at
    `began` and ended at `since` (ms), and the line is exact from the offset `exact` on."""

    number: int
    began: int
    since: int
    exact: int


@dataclass(slots=True)
class HeldLine:
    """A line, and what lies on it. A run of the epoch `epoch` has made it current (0: it was so from the start). The
    line of a log that was cut off has a `branch_id` since; that which continued is `dense` if no offset was missing
    below where they part. `again`: what is known of the reading of a line that was read again."""

    line: Line
    held: PartitionFacts
    epoch: int = 0
    branch_id: str = ""
    dense: bool = False
    again: Rereading | None = None


def lines_of(held: Sequence[HeldLine]) -> Lines:
    """Return the lines without what lies on them."""
    return Lines(tuple(item.line for item in held))


def shown_facts(held: Sequence[HeldLine], number: int) -> PartitionFacts:
    """Return all that the archive has of the line of this number: of each range of offsets, what lies on its owner."""
    lines = lines_of(held)
    path = lines.path(number)
    found = PartitionFacts()
    for piece in path:
        found = found.followed_by(held[piece.owner].held.within(piece.start, piece.end))
    found.epochs = _epochs(held, number)
    found.leader = held[path[-1].owner].held.leader
    found.snapshots = [state for _, state in snapshots_of(held, lines, number)]
    return found


def snapshots_of(held: Sequence[HeldLine], lines: Lines, number: int) -> list[tuple[int, HeldSnapshot]]:
    """The snapshots of a line by their ends, each with the number of the line on which it lies: those of lines that
    agree with it up to their ends."""
    found = [
        (at, state)
        for at, item in enumerate(held)
        for state in item.held.snapshots
        if lines.agree(at, number) >= state.end
    ]
    return sorted(found, key=_end)


def segments_of(key: Partition, held: Sequence[HeldLine], number: int) -> Iterator[tuple[int, SegmentEntry]]:
    """Yield the segments of which a line has something, whole and in order, each with the number of the line on which
    it lies."""
    for piece in lines_of(held).path(number):
        some = Slices.within(held[piece.owner].held.table(key), piece.start, piece.end)
        for at in range(some.first, some.last):
            yield piece.owner, some.table[at]


def lines_in_use(held: Sequence[HeldLine]) -> list[int]:
    """Return the numbers of the lines that users can choose: the current one, then the branches."""
    return [len(held) - 1, *(number for number, item in enumerate(held) if item.branch_id)]


def _epochs(held: Sequence[HeldLine], number: int) -> list[EpochStart]:
    """Return the leader epochs of a line. A log that was read again has those of its base."""
    item = held[number]
    found = _epochs(held, item.line.base) if number else []
    if found and item.line.again:
        return found
    if number:
        found = [epoch for epoch in found if epoch[1] < item.line.start]
    for epoch, start in item.held.epochs:
        add_epoch(found, epoch, start)
    return found


@dataclass(slots=True)
class Branch:
    """An old end of a partition: what the line `number` has from `offset` on, where its log was cut off. The first
    segment may begin below."""

    key: Partition
    id: str
    number: int
    offset: int
    held: PartitionFacts

    @property
    def segments(self) -> PackedSegments:
        return self.held.table(self.key)

    @property
    def end(self) -> int:
        """One past the last offset for which the branch accounts."""
        ranges = self.held.accounted
        return max(ranges[-1][1], self.offset) if ranges else self.offset

    @property
    def lineage(self) -> Lineage:
        """The leaders that have written the branch and what lies before it."""
        return Lineage(tuple(self.held.epochs), self.end, self.end, self.held.leader)


def branches_of(key: Partition, held: Sequence[HeldLine]) -> Iterator[Branch]:
    """Yield the branches of a partition, in the order in which they were made."""
    for number, item in enumerate(held):
        if item.branch_id:
            offset = fork_of(held, number)
            facts = shown_facts(held, number)
            rest = facts.within(offset, FOREVER)
            rest.epochs, rest.leader = facts.epochs, facts.leader
            rest.snapshots = [state for state in facts.snapshots if state.end > offset]
            rest.cuts = NO_CUTS
            yield Branch(key, item.branch_id, number, offset, rest)


def fork_of(held: Sequence[HeldLine], number: int) -> int:
    """Return the offset at which the log of a line was cut off."""
    return next(item.line.start for item in held if item.line.base == number and not item.line.again)


def in_branch(group: GroupEntry, branch: Branch) -> GroupEntry:
    """Return the position of a group in the log as it was before the fork. After the fork only the leader epoch says in
    which log a position lies."""
    if (group.topic_id, group.partition) != branch.key or group.offset <= branch.offset:
        return group
    if 0 <= group.leader_epoch <= branch.lineage.newest:
        return group
    return replace(group, offset=branch.offset)


def _gaps_within(gaps: Sequence[Gap], start: int, end: int) -> Iterator[Gap]:
    for gap in gaps:
        for low, high in inside([(gap.start, gap.end)], start, end):
            yield gap if (low, high) == (gap.start, gap.end) else replace(gap, start=low, end=high)


def _end(item: tuple[int, HeldSnapshot]) -> int:
    return item[1].end

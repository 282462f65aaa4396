"""The state that an archive's facts add up to. No I/O.

`ArchiveState` is the fold of commits 0..n: it grows by `apply`, and nothing else changes it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    NO_COMMIT,
    Branching,
    Commit,
    CommitKind,
    Coverage,
    Gap,
    GroupEntry,
    Partition,
    Receipt,
    RunEntry,
    RunOutcome,
    TopicEntry,
    why_not_on,
)
from logkeep_engine.archive.catalog.generations import (
    Generation,
    NextGeneration,
    change_generations,
    end_passive,
    generation_of,
    is_dense,
)
from logkeep_engine.archive.catalog.held_lines import (
    Branch,
    HeldLine,
    PartitionFacts,
    branches_of,
    in_branch,
    lines_of,
    shown_facts,
)
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot, with_snapshot, without_snapshots
from logkeep_engine.archive.catalog.holds import Hold
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, LeaderEpoch, LeaderSeen, Lineage, add_epoch
from logkeep_engine.archive.catalog.lines import FOREVER, Line, Lines
from logkeep_engine.archive.catalog.packed import (
    ROW_BYTES,
    SegmentBatch,
    SegmentTable,
    keyed_row,
    offsets_of,
    sums_of_segments,
    with_row,
    without_bases,
)
from logkeep_engine.archive.catalog.replacements import Replacement, follow, put_in_place
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.catalog.unpurged import Unpurged, without_commits
from logkeep_engine.archive.ranges import Range, add_range, without

T = TypeVar("T")

_COMPARED = (
    *("epoch", "segments", "coverage", "gaps", "removed", "epochs", "leaders", "retention_holds", "lines"),
    *("next_generations", "snapshots", "replaced", "groups"),
)


class ArchiveState:
    """The state that commits 0..`commit` add up to. `commit` is -1 and `epoch` 0 for a new archive; a run's first epoch
    is 1.

    topics    by topic id, in the order in which incarnations were first seen
    segments  by (topic id, partition), by base offset, packed: an entry is made when it is asked for
    coverage  by (topic id, partition), merged and sorted ranges that are archived
    gaps      by (topic id, partition), sorted, as recorded
    removed   by (topic id, partition), merged and sorted ranges that retention has removed; they stay in the coverage
    unpurged  removed segments whose objects may be there still, by the commits that have removed them, in order
    epochs    by (topic id, partition), sorted: leader epochs of what is archived, and where each begins
    leaders   by (topic id, partition): the epoch of the last leader whose log began with all that the
              archive accounted for then
    retention_holds  topics and runs of which nothing may be removed, sorted
    lines     by (topic id, partition), in order: the lines of partitions that have more than one. The last is current.
              All that is above shows what the current line has, or that of `shown`
    shown     by (topic id, partition): the number of the line that is shown, where that is not the current one
    replaced  by (topic id, partition), in order: segments that erasures have replaced, and by what
    next_generations  by (topic id, partition): the readings of compacted logs that become lines
    passive   what is archived of passive generations, which is in nothing above; see `of_generation`
    snapshots by (topic id, partition), by their ends: of compacted partitions
    groups    of the last run that succeeded
    runs      by run id, in the order in which they began
    sha256    the hash of commit `commit`, on which the next one stands, see `anchor`; "" without commits
    signed_since  the first commit that is signed, and with it all before and after; -1 if none is
    """

    def __init__(self) -> None:
        self.commit = -1
        self.epoch = 0
        self.topics: dict[str, TopicEntry] = {}
        self.segments = SegmentTable()
        self.coverage: dict[Partition, list[Range]] = {}
        self.gaps: dict[Partition, list[Gap]] = {}
        self.removed: dict[Partition, list[Range]] = {}
        self.unpurged: tuple[Unpurged, ...] = ()
        self.epochs: dict[Partition, list[EpochStart]] = {}
        self.leaders: dict[Partition, int] = {}
        self.retention_holds: tuple[Hold, ...] = ()
        self.lines: dict[Partition, list[HeldLine]] = {}
        self.shown: dict[Partition, int] = {}
        self.replaced: dict[Partition, list[Replacement]] = {}
        self.next_generations: dict[Partition, NextGeneration] = {}
        self.passive: ArchiveState | None = None
        self.snapshots: dict[Partition, list[HeldSnapshot]] = {}
        self.groups: tuple[GroupEntry, ...] = ()
        self.runs: dict[str, RunEntry] = {}
        self.sha256 = ""
        self.signed_since = NO_COMMIT

    @property
    def running(self) -> list[RunEntry]:
        """Runs that began and did not end."""
        return [run for run in self.runs.values() if run.outcome is RunOutcome.RUNNING]

    def successes(self) -> list[RunEntry]:
        """The runs that have succeeded and archived something, or could have, the oldest first: each as its last
        success has left it."""
        found = (run.success for run in self.runs.values() if not run.is_care)
        return sorted((run for run in found if run is not None), key=attrgetter("epoch"))

    def partitions(self) -> list[Partition]:
        """Every partition with a segment, coverage or gap, sorted."""
        return sorted({*self.segments, *self.coverage, *self.gaps})

    def same_facts(self, other: ArchiveState) -> bool:
        """True if both say the same of everything but the number of their last commit."""
        return (
            all(getattr(self, name) == getattr(other, name) for name in _COMPARED)
            and (self.sha256, self.signed_since) == (other.sha256, other.signed_since)
            and list(self.topics.values()) == list(other.topics.values())
            and self.unpurged == other.unpurged
            and all(self._passive_held(key) == other._passive_held(key) for key in self.next_generations)
            and list(self.runs.values()) == list(other.runs.values())
        )

    def accounted_for(self, topic_id: str, partition: int) -> list[Range]:
        """The ranges for which the archive accounts, merged and sorted: archived ranges and gaps."""
        key = (topic_id, partition)
        ranges = list(self.coverage.get(key, ()))
        for gap in self.gaps.get(key, ()):
            add_range(ranges, gap.start, gap.end)
        return ranges

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        """The end of the first range for which the archive accounts; None if there is none."""
        ranges = self.accounted_for(topic_id, partition)
        return ranges[0][1] if ranges else None

    def uncovered(self, topic_id: str, partition: int, start: int, end: int) -> list[Range]:
        """The ranges in [start, end) for which the archive does not account. The time that this takes depends on what
        lies in [start, end), and not on what else the partition has."""
        key = (topic_id, partition)
        left = without(start, end, self.coverage.get(key, ()))
        if key not in self.gaps:
            return left
        return [part for low, high in left for part in self._outside_gaps(key, low, high)]

    def _outside_gaps(self, key: Partition, start: int, end: int) -> list[Range]:
        ranges: list[Range] = []
        for gap in self.gaps_in(*key, start, end):
            add_range(ranges, gap.start, gap.end)
        return without(start, end, ranges)

    def gaps_in(self, topic_id: str, partition: int, start: int, end: int) -> list[Gap]:
        """The recorded gaps that share an offset with [start, end)."""
        gaps = self.gaps.get((topic_id, partition), ())
        # Gaps do not overlap: only the last gap that starts before may reach inside.
        first = max(0, bisect_left(gaps, start, key=_start) - 1)
        inside = gaps[first : bisect_left(gaps, end, key=_start)]
        return [gap for gap in inside if gap.end > start]

    def kept(self, topic_id: str, partition: int) -> list[Range]:
        """Ranges of offsets whose records the archive has, wherever compaction left some: what is archived, without
        what retention has removed."""
        removed = self.removed.get((topic_id, partition), ())
        return [part for covered in self.coverage.get((topic_id, partition), ()) for part in without(*covered, removed)]

    def groups_after(self, groups: Iterable[GroupEntry], topics: Iterable[TopicEntry]) -> list[GroupEntry]:
        """The positions of consumer groups after a run over `topics` that has found `groups`. Positions in all other
        topics stay as they were."""
        seen = {topic.topic_id for topic in topics}
        return [*groups, *(entry for entry in self.groups if entry.topic_id not in seen)]

    def removed_between(self, topic_id: str, partition: int) -> list[Range]:
        """The ranges that retention has removed between segments that are left."""
        key = (topic_id, partition)
        entries = self.segments.get(key)
        if entries is None:
            return []
        first, last = entries[0].base_offset, entries[-1].base_offset
        return [item for item in self.removed.get(key, ()) if first < item[0] < last]

    def last_before(self, topic_id: str, partition: int, offset: int) -> SegmentEntry | None:
        """The segment with the highest base offset below `offset`."""
        entries = self.segments.get((topic_id, partition))
        at = entries.position(offset) if entries is not None else 0
        return entries[at - 1] if entries is not None and at else None

    def held_until(self, topic_id: str, partition: int, offset: int) -> int:
        """The end of the segment that begins last before `offset`, which retention may have removed; 0: there is
        none."""
        before = self.last_before(topic_id, partition, offset)
        removed = self.removed.get((topic_id, partition), [])
        at = bisect_left(removed, offset, key=_start_of)
        return max(before.next_offset if before is not None else 0, removed[at - 1][1] if at else 0)

    def lineage(self, topic_id: str, partition: int) -> Lineage:
        """The leaders that have written what the archive accounts for of a partition, as far as they are known."""
        key = (topic_id, partition)
        ranges = self.accounted_for(*key)
        end = ranges[-1][1] if ranges else 0
        epochs = tuple(self.epochs.get(key, ()))
        return Lineage(epochs, self.held_until(*key, end), end, self.leaders.get(key, UNKNOWN))

    @property
    def generations(self) -> dict[Partition, Generation]:
        """The generations of the partitions of which one was begun."""
        return {key: generation_of(self, key) for key in self.next_generations}

    def line_number(self, key: Partition) -> int:
        """The number of the line of a partition that the state shows."""
        return self.shown.get(key, max(0, len(self.lines.get(key, ())) - 1))

    def shown_lines(self, key: Partition) -> Sequence[HeldLine]:
        """The line of a partition that the state shows, and those on which it stands, in order; none if it has one."""
        return self.lines.get(key, [])[: self.line_number(key) + 1]

    def own_facts(self, key: Partition) -> list[PartitionFacts]:
        """All that lies on each line of a partition, by its number."""
        return [line.held for line in self.lines[key]] if key in self.lines else [self.held(key)]

    @property
    def branches(self) -> dict[Partition, list[Branch]]:
        """The branches of each partition that has some, in the order in which they were made."""
        return {key: list(branches_of(key, self.lines[key])) for key in self.lines if self.has_branches(key)}

    def has_branches(self, key: Partition) -> bool:
        """Whether the log of a partition was cut off."""
        return any(line.branch_id for line in self.lines.get(key, ()))

    def has_branch(self, key: Partition, branch_id: str) -> bool:
        """Whether a partition has the branch of this id."""
        return any(line.branch_id == branch_id for line in self.lines.get(key, ()))

    def old_ends(self, key: Partition) -> list[EpochStart]:
        """The last leader epoch of each branch of a partition, and the offset at which the branch begins."""
        return [(branch.lineage.newest, branch.offset) for branch in branches_of(key, self.lines.get(key, ()))]

    def branch_ids(self, topic_id: str) -> list[str]:
        """The branches of all partitions of a topic, in the order in which they were made."""
        found = (line.branch_id for (owner, _), some in self.lines.items() if owner == topic_id for line in some)
        return sorted({branch_id for branch_id in found if branch_id})

    def shared(self) -> ArchiveState:
        """A state of the same facts. A fact that is to be another is replaced as a whole, never changed."""
        view = ArchiveState()
        view.__dict__.update(self.__dict__)
        return view

    def with_branch(self, topic_id: str, branch_id: str) -> ArchiveState:
        """The same archive with the partitions of a branch as they were before the log was cut off. All other
        partitions are as they are now. A group that has read on in a later log gets the offset where the two logs
        part."""
        view = self.shared()
        view.copy_tables()
        for key, held in self.lines.items():
            at = next((at for at, line in enumerate(held) if line.branch_id == branch_id), None)
            if key[0] == topic_id and at is not None:
                view.shown = {**view.shown, key: at}
                view.show(key)
                view.groups = view.in_branches(view.groups, {key})
        return view

    def copy_tables(self) -> None:
        """Let a `shared` state change what it shows of partitions."""
        self.segments = self.segments.copy()
        for name in _OF_PARTITIONS:
            setattr(self, name, dict(getattr(self, name)))

    def show(self, key: Partition) -> None:
        """Put together what is shown of a partition with several lines."""
        self.hold(key, shown_facts(self.lines[key], self.line_number(key)))

    def following(self, later: ArchiveState) -> ArchiveState:
        """The same archive with what a later state of it has in the place of segments that were replaced since. A
        segment of which nothing is left is not there."""
        view = self.shared()
        follow(view, later.replaced)
        return view

    def replaced_in(self, topic_ids: Iterable[str]) -> int:
        """How many segments of these topics erasures have replaced."""
        wanted = set(topic_ids)
        return sum(len(items) for (topic_id, _), items in self.replaced.items() if topic_id in wanted)

    def without(self, partitions: Collection[Partition]) -> ArchiveState:
        """The same archive as if it held nothing of some partitions."""
        view = self.shared()
        view.segments = self.segments.copy()
        for key in partitions:
            view.segments.replace_rows(key, b"")
        for name in (*_OF_PARTITIONS, "lines", "next_generations"):
            kept = {key: value for key, value in getattr(self, name).items() if key not in partitions}
            setattr(view, name, kept)
        view.groups = tuple(group for group in self.groups if (group.topic_id, group.partition) not in partitions)
        return view

    def of_generation(self, number: int) -> ArchiveState:
        """The state that has the segments, archived ranges and leader epochs of generation `number` while it is read: 0
        stands for what is active. Partitions of all passive generations share one."""
        if not number:
            return self
        if self.passive is None:
            self.passive = ArchiveState()
        return self.passive

    def _passive_held(self, key: Partition) -> PartitionFacts:
        return PartitionFacts() if self.passive is None else self.passive.held(key)

    def in_branches(
        self, groups: Iterable[GroupEntry], keys: Collection[Partition] | None = None
    ) -> tuple[GroupEntry, ...]:
        """Positions as they were archived, in the branches that this state shows, or shows of some partitions: see
        `with_branch`."""
        for key, number in self.shown.items():
            if keys is None or key in keys:
                branch = next(item for item in branches_of(key, self.lines[key]) if item.number == number)
                groups = [in_branch(group, branch) for group in groups]
        return tuple(groups)

    def held(self, key: Partition) -> PartitionFacts:
        """All that the archive has of a partition, as it is shown: without a passive generation."""
        return PartitionFacts(
            self.segments.rows(key),
            self.coverage.get(key, []),
            self.gaps.get(key, []),
            self.removed.get(key, []),
            self.epochs.get(key, []),
            self.leaders.get(key, UNKNOWN),
            self.snapshots.get(key, []),
            self.segments.cuts(key),
        )

    def hold(self, key: Partition, held: PartitionFacts) -> None:
        """Put `held` in the place of all of that."""
        self.segments.replace_rows(key, held.rows, held.cuts)
        _set(self.coverage, key, held.coverage)
        _set(self.gaps, key, held.gaps)
        _set(self.removed, key, held.removed)
        _set(self.epochs, key, held.epochs)
        _set(self.snapshots, key, held.snapshots)
        self.leaders.pop(key, None)
        if held.leader != UNKNOWN:
            self.leaders[key] = held.leader

    def add_line(self, key: Partition, line: HeldLine) -> None:
        """Let a line be the current one of a partition. Its base is the one that was."""
        held = self.lines.get(key) or [HeldLine(Line(), self.held(key))]
        line.line = replace(line.line, base=len(held) - 1)
        self.lines[key] = [*held, line]
        self.show(key)

    def _branch(self, commit: Commit, item: Branching) -> None:
        key = (item.topic_id, item.partition)
        end_passive(self, commit, key)
        ranges = self.accounted_for(*key)
        # The offsets that are missing there can never be archived any more.
        holes = without(item.offset, ranges[-1][1], ranges) if ranges else []
        self.add_facts((), (), (), (Gap(*key, *hole, REASON_CUT_OFF) for hole in holes))
        log = HeldLine(Line(start=item.offset), PartitionFacts(), commit.epoch, dense=is_dense(self, key, item.offset))
        self.add_line(key, log)
        self.lines[key][-2].branch_id = item.branch_id

    def holds(self, receipt: Receipt) -> bool:
        """True if the archive accounts for every offset of the receipt already."""
        return bool(receipt.ranges) and all(not self.uncovered(*item) for item in receipt.ranges)

    def apply(self, commit: Commit) -> None:
        """Add the next commit. Raises ValueError if it cannot follow."""
        if commit.number != self.commit + 1:
            raise ValueError(f"commit {commit.number} cannot follow commit {self.commit}")
        if commit.previous != self.sha256:
            raise ValueError(why_not_on(commit, self.sha256))
        if self.signed_since >= 0 and not commit.signer:
            raise ValueError(f"commit {commit.number} is not signed, and all are from commit {self.signed_since} on")
        if commit.kind is CommitKind.BEGIN:
            self._begin(commit)
            self._passed(commit)
            return
        run = self.runs.get(commit.run_id)
        if run is None or run.epoch != commit.epoch or self.epoch != commit.epoch:
            raise ValueError(
                f"commit {commit.number} is of run {commit.run_id} at epoch {commit.epoch}, which is not the writer"
            )
        for branching in commit.branchings:
            self._branch(commit, branching)
        self.add_facts(commit.topics, commit.coverage, () if commit.replaced else commit.segments, commit.gaps)
        self.add_lineage(commit.epochs, commit.leaders)
        self.unpurged = without_commits(self.unpurged, commit.purged)
        self._remove(commit)
        erased = put_in_place(self, commit.replaced, commit.segments, partial(self.unname, commit))
        for key in {(item.topic_id, item.partition) for item in commit.replaced}:
            end_passive(self, commit, key)
        for entry in commit.snapshots:
            self._add_snapshot(entry)
        self._remove_snapshots(commit)
        if commit.holds is not None:
            self.retention_holds = commit.holds
        change_generations(self, commit)
        new = (*sums_of_segments(commit.segments), len(commit.segments))
        records, size, segments = erased if commit.replaced else new
        more, more_size = sums_of_segments(commit.passive.segments)
        run = run.added(records + more, size + more_size, segments + len(commit.passive.segments))
        if commit.kind is CommitKind.END:
            run = run.ended(commit.outcome, commit.time, commit.message)
            if commit.ends_backup:
                self.groups = commit.groups
        self.runs[run.run_id] = run
        self._passed(commit)

    def _passed(self, commit: Commit) -> None:
        self.commit = commit.number
        self.sha256 = commit.sha256
        if commit.signer and self.signed_since < 0:
            self.signed_since = commit.number

    def add_facts(
        self,
        topics: Iterable[TopicEntry],
        coverage: Iterable[Coverage],
        segments: Iterable[SegmentEntry],
        gaps: Iterable[Gap],
    ) -> None:
        """Add facts that were checked before they were committed."""
        for topic in topics:
            self.topics[topic.topic_id] = topic
        of_lines = _FactsOfLines(self)
        for item in coverage:
            key = (item.topic_id, item.partition)
            if key in self.lines:
                add_range(of_lines.at(key, item.start).coverage, item.start, item.end)
            else:
                add_range(self.coverage.setdefault(key, []), item.start, item.end)
        rows = segments.rows() if isinstance(segments, SegmentBatch) else map(keyed_row, segments)
        for key, row in rows:
            if key in self.lines:
                of_lines.add_row(key, row)
            else:
                self.segments.add_row(key, row)
        for gap in gaps:
            key = (gap.topic_id, gap.partition)
            held = of_lines.at(key, gap.start).gaps if key in self.lines else self.gaps.setdefault(key, [])
            insort(held, gap, key=_start)
        of_lines.show()

    def add_lineage(self, epochs: Iterable[LeaderEpoch], leaders: Iterable[LeaderSeen]) -> None:
        """Add leader epochs, and the leaders on whose logs a run begins."""
        of_lines = _FactsOfLines(self)
        for item in epochs:
            key = (item.topic_id, item.partition)
            known = of_lines.at(key, item.start).epochs if key in self.lines else self.epochs.setdefault(key, [])
            add_epoch(known, item.epoch, item.start)
        for seen in leaders:
            key = (seen.topic_id, seen.partition)
            if key in self.lines:
                of_lines.at(key, FOREVER - 1).leader = seen.epoch
            else:
                self.leaders[key] = seen.epoch
        of_lines.show()

    def _add_snapshot(self, entry: SnapshotEntry) -> None:
        """Add a snapshot of the current line. Raises ValueError if it does not end after those that the line has."""
        key, more = entry.key, HeldSnapshot.of(entry)
        found = with_snapshot(self.snapshots.get(key, ()), more)
        if key in self.lines:
            self.lines[key][-1].held.snapshots.append(more)
        self.snapshots[key] = found

    def _own(self, key: Partition, line: int) -> PartitionFacts:
        """Return what lies on a line. Raises ValueError if there is no such line."""
        own = self.own_facts(key)
        if not 0 <= line < len(own):
            raise ValueError(f"topic id {key[0]} partition {key[1]} has no line {line}")
        return own[line]

    def put_own(self, key: Partition, line: int, own: PartitionFacts) -> None:
        """Let this lie on a line of a partition."""
        if key in self.lines:
            self.lines[key][line].held = own
            self.show(key)
        else:
            self.hold(key, own)

    def _remove(self, commit: Commit) -> None:
        """Take out segments. Raises ValueError for a segment that is not there."""
        bases: dict[tuple[Partition, int], set[int]] = {}
        for item in commit.removed:
            bases.setdefault(((item.topic_id, item.partition), item.line), set()).add(item.base_offset)
        for (key, line), wanted in bases.items():
            own = self._own(key, line)
            own.rows, gone = without_bases(own.rows, wanted)
            if len(gone) != len(wanted):
                missing = min(wanted - {offsets_of(row)[0] for row in gone})
                raise ValueError(f"there is no segment {missing} of topic id {key[0]} partition {key[1]} to remove")
            for row in gone:
                self.unname(commit, key, row)
                own.remove(*offsets_of(row))
            self.put_own(key, line, own)

    def unname(self, commit: Commit, key: Partition, row: bytes) -> None:
        """Note that the objects of a segment that the commit has taken out may be there still."""
        if not self.unpurged or self.unpurged[-1].commit != commit.number:
            self.unpurged = (*self.unpurged, Unpurged(commit.number, commit.time))
        self.unpurged[-1].segments.add_row(key, row)

    def _remove_snapshots(self, commit: Commit) -> None:
        """Take out snapshots. Raises ValueError for one that is not there."""
        ends: dict[tuple[Partition, int], set[int]] = {}
        for item in commit.removed_snapshots:
            ends.setdefault(((item.topic_id, item.partition), item.line), set()).add(item.end)
        for (key, line), wanted in ends.items():
            own = self._own(key, line)
            own.snapshots, gone = without_snapshots(own.snapshots, wanted)
            self.put_own(key, line, own)
            for part in gone:
                for at in range(0, len(part.rows), ROW_BYTES):
                    self.unname(commit, key, part.rows[at : at + ROW_BYTES])

    def _begin(self, commit: Commit) -> None:
        if commit.epoch <= self.epoch:
            raise ValueError(f"commit {commit.number} begins at epoch {commit.epoch}, which is not above {self.epoch}")
        self.epoch = commit.epoch
        for run_id in commit.taken_over:
            message = f"run {commit.run_id} went on at epoch {commit.epoch}"
            self.runs[run_id] = self.runs[run_id].ended(RunOutcome.TAKEN_OVER, commit.time, message)
        earlier = self.runs.get(commit.run_id)
        new = RunEntry(commit.run_id, commit.epoch, commit.run_kind, commit.time)
        self.runs[commit.run_id] = new if earlier is None else earlier.begun_again(commit.epoch)


class _FactsOfLines:
    """Adds facts to the lines of partitions that have several: each to the line that owns its offset."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        self._owners: dict[Partition, Lines] = {}

    def at(self, key: Partition, offset: int) -> PartitionFacts:
        """Return what lies on the line that owns an offset of the current one."""
        held = self._state.lines[key]
        lines = self._owners.get(key)
        if lines is None:
            lines = self._owners[key] = lines_of(held)
        return held[lines.owner(len(held) - 1, offset)].held

    def add_row(self, key: Partition, row: bytes) -> None:
        """Add a segment that is packed."""
        own = self.at(key, offsets_of(row)[0])
        own.rows = with_row(own.rows, row)

    def show(self) -> None:
        """Let the state show what was added."""
        for key in self._owners:
            self._state.show(key)


REASON_CUT_OFF = "the log was cut off in the cluster before these offsets were archived"
_OF_PARTITIONS = ("coverage", "gaps", "removed", "epochs", "leaders", "snapshots")


def _set(table: dict[Partition, list[T]], key: Partition, items: list[T]) -> None:
    if items:
        table[key] = items
    else:
        table.pop(key, None)


def _start(gap: Gap) -> int:
    return gap.start


def _start_of(item: Range) -> int:
    return item[0]

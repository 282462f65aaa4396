"""The state that an archive's facts add up to. No I/O.

`ArchiveState` is the fold of commits 0..n: it grows by `apply`, and nothing else changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter

from logkeep_engine.archive.catalog.facts import (
    NO_COMMIT,
    Branching,
    Commit,
    CommitKind,
    Gap,
    GroupEntry,
    Partition,
    RunEntry,
    RunOutcome,
    TopicEntry,
    why_not_on,
)
from logkeep_engine.archive.catalog.generations import (
    Generation,
    KeepsGenerations,
    NextGeneration,
    change_generations,
    end_passive,
    generation_of,
    is_dense,
)
from logkeep_engine.archive.catalog.held_lines import (
    HeldLine,
    PartitionFacts,
    branches_of,
    in_branch,
)
from logkeep_engine.archive.catalog.held_partitions import OF_PARTITIONS
from logkeep_engine.archive.catalog.held_snapshots import without_snapshots
from logkeep_engine.archive.catalog.holds import Hold
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.packed import (
    ROW_BYTES,
    offsets_of,
    sums_of_segments,
    without_bases,
)
from logkeep_engine.archive.catalog.replacements import Replacement, follow, put_in_place
from logkeep_engine.archive.catalog.unpurged import Unpurged, without_purged
from logkeep_engine.archive.ranges import without

_COMPARED = (
    *("epoch", "segments", "coverage", "gaps", "removed", "epochs", "leaders", "retention_holds", "lines"),
    *("next_generations", "snapshots", "replaced", "groups"),
)


class ArchiveState(KeepsGenerations):
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
    replaced  by (topic id, partition), in order: segments that have lost records, and what is left of them
    next_generations  by (topic id, partition): the readings of compacted logs that become lines
    passive   what is archived of passive generations, which is in nothing above; see `of_generation`
    snapshots by (topic id, partition), by their ends: of compacted partitions
    groups    of the last run that succeeded
    runs      by run id, in the order in which they began
    sha256    the hash of commit `commit`, on which the next one stands, see `anchor`; "" without commits
    signed_since  the first commit that is signed, and with it all before and after; -1 if none is
    """

    def __init__(self) -> None:
        super().__init__()
        self.commit = -1
        self.epoch = 0
        self.unpurged: tuple[Unpurged, ...] = ()
        self.retention_holds: tuple[Hold, ...] = ()
        self.replaced: dict[Partition, list[Replacement]] = {}
        self.next_generations: dict[Partition, NextGeneration] = {}
        self.passive: ArchiveState | None = None
        self.groups: tuple[GroupEntry, ...] = ()
        self.runs: dict[str, RunEntry] = {}
        self.sha256 = ""
        self.signed_since = NO_COMMIT

    @property
    def running(self) -> list[RunEntry]:
        """Runs that began and did not end."""
        return [run for run in self.runs.values() if run.outcome is RunOutcome.RUNNING]

    def successes(self) -> list[RunEntry]:
        """Return the runs that have succeeded and archived something, or could have, the oldest first: each as its last
        success has left it."""
        found = (run.success for run in self.runs.values() if not run.is_maintenance)
        return sorted((run for run in found if run is not None), key=attrgetter("epoch"))

    def with_known_facts(self, topic: TopicEntry) -> TopicEntry:
        """Return the topic with what the archive knows of it, and a run that sees it again does not say.

        It has all partitions that were seen once. Kafka removes none, but a number may come from an old state: a plan
        that was stored before another run, or a broker that is late. Readers look for no partition above the number.

        It also says up to which run it was compacted only (`TopicEntry.compacted_until`), since retention must know
        what the points of those runs are, and up to which it was compacted at all: what was overwritten then is in no
        point.
        """
        known = self.topics.get(topic.topic_id)
        if known is None:
            return topic
        compacted = cleaned = 0
        if not topic.is_compacted_only:
            points = (run.epoch for run in self.successes())
            compacted = max(points, default=0) if known.is_compacted_only else known.compacted_until
        if not topic.is_compacted:
            # Any run before this one counts, also a killed one: what was overwritten then, no later run archives.
            cleaned = self.epoch - 1 if known.is_compacted else known.cleaned_until
        partitions = max(topic.partitions, known.partitions)
        return replace(topic, partitions=partitions, compacted_until=compacted, cleaned_until=cleaned)

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

    def groups_after(self, groups: Iterable[GroupEntry], topics: Iterable[TopicEntry]) -> list[GroupEntry]:
        """Return the positions of consumer groups after a run over `topics` that has found `groups`. Positions in all
        other topics stay as they were."""
        seen = {topic.topic_id for topic in topics}
        return [*groups, *(entry for entry in self.groups if entry.topic_id not in seen)]

    @property
    def generations(self) -> dict[Partition, Generation]:
        """The generations of the partitions of which one was begun."""
        return {key: generation_of(self, key) for key in self.next_generations}

    def shared(self) -> ArchiveState:
        """Return a state of the same facts. A fact that is to be another is replaced as a whole, never changed."""
        view = ArchiveState()
        view.__dict__.update(self.__dict__)
        return view

    def with_branch(self, topic_id: str, branch_id: str) -> ArchiveState:
        """Return the same archive with the partitions of a branch as they were before the log was cut off. All other
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

    def following(self, later: ArchiveState) -> ArchiveState:
        """Return the same archive with what a later state of it has in place of segments that were replaced since: what
        is left of them, or what they were merged into. A segment of which nothing is left is not there."""
        view = self.shared()
        follow(view, later)
        return view

    def replaced_in(self, topic_ids: Iterable[str]) -> int:
        """Return how many segments of these topics erasures have replaced."""
        wanted = set(topic_ids)
        return sum(len(items) for (topic_id, _), items in self.replaced.items() if topic_id in wanted)

    def without(self, partitions: Collection[Partition]) -> ArchiveState:
        """Return the same archive as if it held nothing of some partitions."""
        view = self.shared()
        view.segments = self.segments.copy()
        for key in partitions:
            view.segments.replace_rows(key, b"")
        for name in (*OF_PARTITIONS, "lines", "next_generations"):
            kept = {key: value for key, value in getattr(self, name).items() if key not in partitions}
            setattr(view, name, kept)
        view.groups = tuple(group for group in self.groups if (group.topic_id, group.partition) not in partitions)
        return view

    def of_generation(self, number: int) -> ArchiveState:
        """Return the state that has the segments, archived ranges and leader epochs of generation `number` while it is
        read: 0 stands for what is active. Partitions of all passive generations share one."""
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

    def apply(self, commit: Commit) -> None:
        """Add the next commit. Raises ValueError if it cannot follow."""
        if commit.number != self.commit + 1:
            raise ValueError(f"commit {commit.number} cannot follow commit {self.commit}")
        if commit.previous != self.sha256:
            raise ValueError(why_not_on(commit, self.sha256))
        if self.signed_since >= 0 and not commit.signer:
            raise ValueError(f"commit {commit.number} is not signed, but all are from commit {self.signed_since} on")
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
        self.unpurged = without_purged(self.unpurged, commit.purged, commit.purged_packs)
        self._remove(commit)
        erased = put_in_place(self, commit.replaced, commit.segments, partial(self.unname, commit))
        for key in sorted(erased.keys):
            end_passive(self, commit, key)
        for entry in commit.snapshots:
            self.add_snapshot(entry)
        self._remove_snapshots(commit)
        if commit.holds is not None:
            self.retention_holds = commit.holds
        change_generations(self, commit)
        new = (*sums_of_segments(commit.segments), len(commit.segments))
        records, size, segments = erased[:3] if commit.replaced else new
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

    def _remove(self, commit: Commit) -> None:
        """Take out segments. Raises ValueError for a segment that is not there."""
        bases: dict[tuple[Partition, int], set[int]] = {}
        for item in commit.removed:
            bases.setdefault(((item.topic_id, item.partition), item.line), set()).add(item.base_offset)
        for (key, line), wanted in bases.items():
            own = self.own(key, line)
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
            own = self.own(key, line)
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
            message = f"run {commit.run_id} continued at epoch {commit.epoch}"
            self.runs[run_id] = self.runs[run_id].ended(RunOutcome.TAKEN_OVER, commit.time, message)
        earlier = self.runs.get(commit.run_id)
        new = RunEntry(commit.run_id, commit.epoch, commit.run_kind, commit.time)
        self.runs[commit.run_id] = new if earlier is None else earlier.begun_again(commit.epoch)


REASON_CUT_OFF = "the log was cut off in the cluster before these offsets were archived"

"""An archive in a folder, driven through the product's own doors, and the reference that it is compared with.

What the doors are called stands here and in `readers` alone. Partitions and topics are numbers, and there are no
brokers: the world reads the reference's logs as a run reads those of a cluster.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain, count
from typing import Any
from unittest.mock import patch

from logkeep_engine.archive.catalog import commits
from logkeep_engine.archive.catalog import writer as writing
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Receipt,
    RunOutcome,
    branch_id,
)
from logkeep_engine.archive.catalog.generations import generation_of, passive_of
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.history.earlier import identities_of
from logkeep_engine.archive.maintenance import merging
from logkeep_engine.archive.maintenance.leftovers import may_have_leftovers, remove_leftovers
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain, run_retention
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.names import ARCHIVE
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.archive.writing.record_files import write_consumer_offsets, write_partition_indexes
from logkeep_engine.backup.planning.generations import (
    GenerationPolicy,
    activation,
    open_changes,
    to_read,
    whole_generations,
)
from logkeep_engine.backup.planning.plan_builder import gaps_of_deleted
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.backup.run.merging import merge_segments
from logkeep_engine.backup.run.snapshots import make_snapshots
from logkeep_engine.contract.archive_format import FormatName, SegmentSpec
from logkeep_engine.contract.retention import RetentionHold
from logkeep_engine.contract.run import RunResult
from logkeep_engine.convert.plan import CHUNK_BYTES
from logkeep_engine.errors import ArchiveMissing, BackupUnfinished
from logkeep_engine.report import Reporter
from tests.model.reference import HOUR, Key, Line, Log, Positions, Reference
from tests.model.retention import Item, Limits, may_go
from tests.model.segments import SegmentPlace, segments_of
from tests.model.store import MemoryStore
from tests.model.topics import NAMES, Topic
from tests.unit.archive.build import CLUSTER
from tests.unit.backup.compacted_topic import spec_of
from tests.unit.convert.converting import convert
from tests.unit.erasure.erasing import Inside, Killed, erased

START = 20_000 * 24 * HOUR
QUICK = Timing(heartbeat=3600, watch=0, poll=0)
POLICIES = ("delete", "compact", "compact,delete")


class Pasted:
    """Prints itself as a short line of Python that can be pasted: what is as usual is left out."""

    def __repr__(self) -> str:
        said = [(item, getattr(self, item.name)) for item in fields(self)]  # type: ignore[arg-type]
        text = ", ".join(f"{item.name}={value!r}" for item, value in said if value != item.default)
        return f"{type(self).__name__}({text})"


@dataclass(frozen=True, repr=False)
class Settings(Pasted):
    """The settings that do not change in a history. Days where nothing else is said; 0: no limit."""

    policy: str = "delete"
    keep_runs: int = 0
    keep_days: int = 0
    max_age: int = 0
    max_bytes: int = 0
    grace: int = 0
    format: str = "Kafka"

    @property
    def format_name(self) -> FormatName:
        """The format of the archive."""
        return FormatName(self.format)

    @property
    def has_batches(self) -> bool:
        """Whether the archive has batches, and so transactions, branches, snapshots and several incarnations."""
        return self.format_name is FormatName.KAFKA

    @property
    def rules(self) -> RetentionRules:
        """The rules of retention."""
        limits = RetentionLimits(self.max_age * 24 * HOUR or None, self.max_bytes or None)
        return RetentionRules(limits, KeepRules(self.keep_runs, self.keep_days), self.grace * 24 * HOUR)


@dataclass
class Target:
    """The archive that conversions into one format have made. `died`: the run id of a killed one. `planned`: up
    to where it has set out to convert, once its plan is stored; `ends`: where it has ended, if that is earlier.
    `begun`: the records that runs without a success have brought."""

    store: MemoryStore
    runs: int = 0
    died: str = ""
    lines: dict[Key, Line] = field(default_factory=dict)
    planned: dict[Key, int] | None = None
    ends: dict[Key, int] = field(default_factory=dict)
    begun: dict[Key, Line] = field(default_factory=dict)

    def add_begun(self, seen: dict[Key, Line]) -> None:
        """Note what of these lines the archive has. An erasure in the source leaves it there."""
        if self.store.version(ARCHIVE) is None:
            return
        state = Archive.open(self.store).load()
        for key, line in seen.items():
            found = line.within(state.accounted_for(*key))
            found.add_erased(self.begun.get(key))
            self.begun[key] = found


class World:
    """The archive, its cluster and what both must be."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.time = START
        self.store = self._store("archive")
        self.reference = Reference()
        self.topics = [Topic(NAMES[0], settings.policy)]
        self.runs = 0
        self.last_run = ""
        self.untouched = ""
        self.died = ""
        self.forks: dict[Key, int] = {}
        self.packs: TaskPacks | None = None
        self.receipts: list[Receipt] = []
        self.targets: dict[str, Target] = {}
        self.restores: list[Any] = []
        self.erased: list[tuple[str, bytes]] = []
        self.kept: set[str] = set()
        self.features: set[str] = set()
        self.missed: list[tuple[Key, int, int]] = []
        self.wrongly_taken: list[str] = []
        self.removals = 0
        self.retained = False
        self.counts: Counter[str] = Counter()
        self.turns = count()

    def _store(self, name: str) -> MemoryStore:
        """A storage whose objects are as old as the world says."""
        return MemoryStore(f"file:///model/{name}", lambda: self.time / 1000)

    def had(self, names: Collection[str] = ()) -> frozenset[str]:
        """The things that have happened to the archive and to topics of these names, by which known faults are reported
        and refusals judged; without names, to all topics."""
        some = (topic.had() for topic in self.topics if not names or topic.name in names)
        return frozenset({*self.features, *chain(*some), *(["retention"] if self.settings.rules.is_set else [])})

    # ---- the cluster

    def topic(self, number: int) -> Topic:
        """A topic. A number that is too high is that of the last one."""
        return self.topics[min(number, len(self.topics) - 1)]

    def topic_of(self, topic_id: str) -> Topic:
        """The topic that has an incarnation of this id."""
        return next(topic for topic in self.topics if topic_id in topic.ids)

    def log(self, partition: int, topic: int = 0) -> tuple[Key, Log]:
        """A partition's log. A number that is too high is that of the last one."""
        chosen = self.topic(topic)
        key = (chosen.topic_id, min(partition, chosen.partitions - 1))
        return key, self.reference.logs.setdefault(key, Log(plain=not self.settings.has_batches))

    def logs(self) -> Iterator[tuple[Topic, Key, Log]]:
        """All logs that the cluster has now."""
        for number, topic in enumerate(self.topics):
            for partition in range(topic.partitions):
                yield topic, *self.log(partition, number)

    def positions(self) -> Positions:
        """The positions of a consumer group and a share group, which is slower."""
        ends = {key: log for _, key, log in self.logs()}
        found = {("billing", *key): log.end for key, log in ends.items()}
        return found | {("share", *key): max(log.start, log.end - 2) for key, log in ends.items()}

    def cut_off(self, key: Key, log: Log, batches: int) -> None:
        """Let the cluster lose the end of a log."""
        leader = log.leader
        if self.settings.has_batches:  # others end with an error
            log.cut_off(batches)
        if log.leader != leader:
            self.forks[key] = min(log.end, self.forks.get(key, log.end))

    def add_topic(self, policy: str) -> None:
        """Create another topic."""
        if len(self.topics) < len(NAMES):
            self.topics.append(Topic(NAMES[len(self.topics)], policy))

    def recreate(self, topic: Topic) -> None:
        """Delete a topic and create it again. Formats of records have one folder for all incarnations."""
        if self.settings.has_batches and self.runs and topic.incarnation + 1 < len(topic.ids):
            self.forks = {key: fork for key, fork in self.forks.items() if key[0] != topic.topic_id}
            topic.incarnation, topic.partitions = topic.incarnation + 1, 1

    # ---- runs

    @property
    def archive(self) -> Archive | None:
        """The archive, once there is one."""
        try:
            return Archive.open(self.store)
        except ArchiveMissing:
            return None

    def writes(self) -> int:
        """The number of changes to the archive and to what it was converted to."""
        return self.store.writes + sum(target.store.writes for target in self.targets.values())

    @contextmanager
    def dying(self, at: int | None) -> Iterator[None]:
        """Die at a write, if one is said."""
        self.store.left = at
        for target in self.targets.values():
            target.store.left = at
        try:
            yield
        except Killed:
            self.features.add("killed")
        finally:
            self.store.left = None
            for target in self.targets.values():
                target.store.left = None

    def back_up(self, asked: Any) -> None:
        """Run a backup as an action says."""
        if not (self.died and asked.again):
            self.runs += 1
        run_id = f"run-{self.runs}"
        pending: list[tuple[Key, int, int]] = []
        with self.dying(asked.dies), self._begun(run_id) as writer:
            self._archive(writer, asked, pending)
            if asked.end == "Failed":
                writer.end(RunOutcome.FAILED, "records were lost", partial=True)
            else:
                groups = [
                    GroupEntry(name, self.topic_of(topic_id).name, topic_id, partition, offset, share=name == "share")
                    for (name, topic_id, partition), offset in self.positions().items()
                ]
                if self.settings.format_name is FormatName.RECORDS:
                    written = sorted(writer.state.segments)
                    write_partition_indexes(self.store, writer.state, written)
                    write_consumer_offsets(self.store, writer.state, written, groups)
                writer.end(RunOutcome.SUCCEEDED, groups=groups)
                self._note(writer.state, pending)
                if may_have_leftovers(writer):
                    remove_leftovers(writer, {key for _, key, _ in self.logs()})
                self._care(writer, asked)
        self._settle(run_id, pending)

    @contextmanager
    def _begun(self, run_id: str) -> Iterator[Writer]:
        with begin_run(
            Archive.create_or_open(self.store, CLUSTER, self.settings.format_name), run_id, wait=QUICK
        ) as writer:
            # Segments of all topics and partitions share objects, but not in each third run.
            self.packs = TaskPacks(self.store, writer.epoch, 0, 0) if writer.epoch % 3 else None
            self.receipts.clear()
            yield writer

    def _take(self, writer: Writer, receipt: Receipt) -> None:
        """Commit a receipt. Those of other partitions wait for the first one of the last."""
        self.receipts.append(receipt)
        last = self.topics[-1]
        if receipt.ranges[0][:2] == (last.topic_id, last.partitions - 1):
            self._commit(writer)

    def _commit(self, writer: Writer) -> None:
        if self.receipts:
            if self.packs is not None:
                self.packs.commit()
            writer.commit(receipts=self.receipts)
            self.receipts.clear()

    def _archive(self, writer: Writer, asked: Any, pending: list[tuple[Key, int, int]]) -> None:
        writer.commit(topics=[topic.seen() for topic in self.topics])
        there = {topic.topic_id for topic in self.topics}
        deleted = [topic for topic in writer.state.topics.values() if topic.topic_id not in there]
        if gaps := tuple(gaps_of_deleted(writer.state, deleted, {})):
            self.missed += [((gap.topic_id, gap.partition), gap.start, gap.end) for gap in gaps]
            writer.commit(receipts=[Receipt(gaps=gaps)])
        for topic, key, log in self.logs():
            self._branch(writer, key)
            again, generation = self._generation(writer, topic, key, log, asked)
            if log.end:
                self._tail(writer, key, log, asked, pending)
            for low, high in again:
                self._read_again(writer, key, log, (low, high), generation, asked)
        self._commit(writer)
        self._activate(writer, asked, pending)

    def _branch(self, writer: Writer, key: Key) -> None:
        fork = self.forks.get(key)
        accounted = writer.state.accounted_for(*key)
        if fork is None or not accounted or accounted[-1][1] <= fork:
            return
        name = branch_id(key[0], len(writer.state.branch_ids(key[0])) + 1)
        changes = GenerationPolicy(None, self.time).changes(writer.state, key, 0, compacted=True, whole=False)
        writer.change_generations(open_changes(writer.state, changes))
        branch_off(writer, [Fork(*key, fork, accounted[-1][1], name)])
        self.topic_of(key[0]).features.add("branch")

    def _generation(
        self, writer: Writer, topic: Topic, key: Key, log: Log, asked: Any
    ) -> tuple[list[tuple[int, int]], int]:
        """Begin a generation, or continue with one: the ranges that are to be read, and its number."""
        state = writer.state
        whole = not log.start
        cycle = 0 if asked.generation else None
        policy = GenerationPolicy(cycle, self.time)
        changes = policy.changes(state, key, log.start, compacted="compact" in topic.policy, whole=whole)
        if changes or key in state.generations:
            topic.features.add("generation")
        number, again = to_read(state, key, changes)
        writer.change_generations(open_changes(state, changes))
        return again, number

    def _tail(
        self, writer: Writer, key: Key, log: Log, asked: Any, pending: list[tuple[Key, int, int]], end: int = -1
    ) -> None:
        """Archive what is missing, in pieces, the last of which may come first."""
        stop = log.end if end < 0 else end
        for low, high in writer.state.uncovered(*key, 0, stop):
            there = min(high, max(low, log.start))
            if low < there:
                self.missed.append((key, low, there))
                writer.commit(receipts=[Receipt(gaps=(Gap(*key, low, there, "deleted by retention"),))])
            for start, behind in _parts(log, there, high, asked):
                pending.append((key, start, behind))
                entries = self._segments(writer, key, log, start, behind, asked.segment)
                self._take(writer, Receipt((Coverage(*key, start, behind),), entries))

    def _read_again(
        self, writer: Writer, key: Key, log: Log, missing: tuple[int, int], generation: int, asked: Any
    ) -> None:
        low, high = missing
        if asked.generation == "part":
            high = next((batch.base for batch in log.batches if low < batch.base < high), low)
        if low < high:
            entries = self._segments(writer, key, log, low, high, asked.segment, generation)
            self._take(writer, Receipt((Coverage(*key, low, high),), entries, generation=generation))

    def _activate(self, writer: Writer, asked: Any, pending: list[tuple[Key, int, int]]) -> None:
        """Make generations active that are whole and have caught up: nothing was cleaned since the last piece."""
        logs = {key: log for _, key, log in self.logs()}
        for key in whole_generations(writer.state, {topic.topic_id for topic in self.topics}):
            log = logs[key]
            read = [(low, high) for where, low, high in pending if where == key]
            if not all(log.is_dense(low, high) for low, high in read):
                log.append([(b"catch-up", b"%d" % log.end)], self.time, None)
                self._tail(writer, key, log, asked, pending)
                self._commit(writer)
            passive = passive_of(writer.state, key)
            assert passive is not None
            writer.change_generations([activation(writer.state, key)])
            self.reference.line(key).read_again(log, passive.end)

    def _care(self, writer: Writer, asked: Any) -> None:
        if asked.snapshots and self.settings.has_batches:
            spec = spec_of(self.store.uri)
            made = make_snapshots(writer, spec, Reporter(writer.run_id), Inside, None)
            if made.count:
                self.features.add("snapshot")
        if asked.due:
            for topic, key, _ in self.logs():
                known = generation_of(writer.state, key)
                if topic.policy == "compact" and key in writer.state.coverage and key not in writer.state.branches:
                    topic.features.add("generation")
                    due = GenerationChange(*key, known.number, GenerationStep.DUE, 0, 0)
                    writer.change_generations([due])
        if asked.retains and self.settings.rules.is_set:
            with self._watched(writer.state):
                retain(writer, self.settings.rules)
        if asked.merges:
            merged = merge_segments(writer, SegmentSpec(merge_count=asked.merges), Inside, first_task=1)
            if merged.segments:
                self.features.add("merged")
                self.counts["merged segments"] += merged.segments

    def _segments(
        self, writer: Writer, key: Key, log: Log, low: int, high: int, size: int, generation: int = 0
    ) -> tuple[Any, ...]:
        """The segments of a range of a log, of so many batches each."""
        batches = [batch for batch in log.batches if low <= batch.base < high]
        groups = [batches[at : at + size] for at in range(0, len(batches), size)]
        place = SegmentPlace(self.store, self.settings.format_name, writer.epoch, self.packs)
        topic = self.topic_of(key[0]).entry
        return tuple(chain(*(segments_of(place, topic, key, log, group, generation) for group in groups)))

    def _settle(self, run_id: str, pending: list[tuple[Key, int, int]]) -> None:
        """Tell the reference what a run has come to, as far as it came."""
        archive = self.archive
        if archive is None:
            self.died = run_id
            return
        state = archive.load()
        self._note(state, pending)
        run = state.runs.get(run_id)
        self.died = run_id
        if run is not None and run.outcome is not RunOutcome.RUNNING:
            self.died = ""
            for _, key, log in self.logs():
                self.forks.pop(key, None)
                if key in state.coverage or key in self.reference.lines:
                    self.reference.line(key).stand(log, log.end)
            self.reference.ended(run_id, self.time, self.positions(), succeeded=run.outcome is RunOutcome.SUCCEEDED)
            for item in self._may_go(state):  # a point has what the limits left when it ended, also if nothing went
                line = self.reference.points[run_id].get((item.topic_id, item.partition))
                if line is not None and not (item.branch or item.is_snapshot or item.topic_id in _compacted(state)):
                    line.gone.update(range(item.start, item.end))
            self.last_run = self.untouched = run_id

    def _note(self, state: ArchiveState, pending: list[tuple[Key, int, int]]) -> None:
        """Tell the reference which branches and ranges are in the archive."""
        for key, branches in state.branches.items():
            for branch in branches:
                if key not in self.reference.branches.get(branch.id, {}):
                    self.reference.branch(key, branch.offset, branch.id)
                    self.forks.pop(key, None)
        for key, low, high in self.missed:
            if not state.uncovered(*key, low, high):
                self.reference.line(key).lost.update(range(low, high))
        self.missed.clear()
        for key, low, high in pending:
            if not state.uncovered(*key, low, high):
                self.reference.line(key).take(self.reference.logs[key], low, high)
                if high > self.forks.get(key, high):  # the archive has of the log as it is now
                    del self.forks[key]

    # ---- care

    @contextmanager
    def _watched(self, state: ArchiveState) -> Iterator[None]:
        """See what retention takes, and whether a rule lets it."""
        before, free = set(self._items(state)), self._may_go(state)
        try:
            yield
        finally:
            taken = before - set(self._items(self.state()))
            wrong = taken - free
            self.wrongly_taken += [f"{item} at {self.time} of {sorted(map(str, before))}" for item in wrong]
            for item in taken & free:
                if not item.is_snapshot and item.topic_id not in _compacted(state):
                    key = (item.topic_id, item.partition)
                    self.reference.took(key, item.branch, item.start, item.end)
                    if self.topic_of(item.topic_id).policy == "delete":  # no snapshot stands for what lies before it
                        for at in range(item.start):
                            if not self._is_there(item, at):
                                self.reference.took(key, item.branch, at, at + 1)
            self.removals += len(taken)
            self.untouched = "" if taken else self.untouched
            self.retained = True

    def _is_there(self, item: Item, offset: int) -> bool:
        entries = self.state().segments.get((item.topic_id, item.partition), ())
        return bool(item.branch) or any(entry.base_offset <= offset < entry.next_offset for entry in entries)

    def _may_go(self, state: ArchiveState) -> set[Item]:
        """Return what the limits let go now, and of compacted topics that for which a snapshot stands."""
        most = self.settings.max_bytes and max(1, self.settings.max_bytes - _bytes_below_branches(state))
        limits = Limits(self.settings.max_age * 24 * HOUR, most, _compacted(state))
        return may_go(sorted(self._items(state), key=str), limits, self.time)

    def _items(self, state: ArchiveState) -> Iterator[Item]:
        """The segments and snapshots that the newest state and its branches have."""
        times = {run.epoch: run.end_time or self.time for run in state.runs.values()}
        tables = [(key, "", state.segments.get(key, ()), state.snapshots.get(key, ())) for key in state.segments]
        tables += [
            (key, branch.id, branch.segments, branch.held.snapshots)
            for key, branches in state.branches.items()
            for branch in branches
        ]
        for key, branch, entries, snapshots in tables:
            for entry in entries:
                span, time = (entry.base_offset, entry.next_offset), entry.times.max_timestamp
                name = f"{entry.epoch}-{entry.attempt}"
                yield Item(*key, branch, *span, object_bytes(entry), time, entry.transactional, False, name)
            for held in snapshots:
                parts = list(held.parts(key))
                size, made = sum(map(object_bytes, parts)), times.get(parts[0].epoch, self.time)
                yield Item(*key, branch, 0, held.end, size, made, False, True, str(parts[0].epoch))

    def state(self) -> ArchiveState:
        """The newest state of the archive."""
        return Archive.open(self.store).load()

    def archived_names(self) -> set[str]:
        """The names of the topics that are in the archive."""
        return {topic.name for topic in self.state().topics.values()}

    def gone(self, key: Key, line: Line, asked: Any) -> set[int]:
        """The offsets that a reader of a line need not find: what retention had taken by its rules when a kept point
        ended, or else until now."""
        kept = asked.kept and asked.run
        return line.gone if kept else line.gone | self.reference.taken.get(key, set())

    def note_kept(self) -> None:
        """Note which runs were kept all the time since they have ended, or since something was first taken after that,
        and what retention had to leave."""
        kept, new = self.kept_runs(), self.untouched
        if self.retained and self.reference.successes:
            age = self.settings.max_age * 24 * HOUR
            self.reference.retained(kept, self.time - age if age else None)
        self.retained = False
        self.kept = {run for run in self.reference.points if run in kept and (run in self.kept or run == new)}

    def kept_runs(self) -> set[str]:
        """The runs whose points must stay."""
        return self.reference.kept(self.settings.keep_runs, self.settings.keep_days)

    def hold(self, number: int) -> None:
        """Hold one of the kept points, or release all."""
        points = sorted(self.kept_runs() | {run for run, _ in self.reference.successes[-1:]})
        held = points[number % len(points)] if points and number >= 0 else ""
        holds = [Hold(HoldKind.RUN, held, HoldOrigin.COMMAND)] if held else []
        self.reference.held = held
        self.runs += 1
        with begin_run(Archive.open(self.store), f"hold-{self.runs}", kind="Hold", wait=QUICK) as writer:
            writer.hold(holds)
            writer.end(RunOutcome.SUCCEEDED)

    def retain(self, dies: int | None) -> None:
        """Run retention alone."""
        self.runs += 1
        with suppress(BackupUnfinished), self.dying(dies), self._watched(self.state()):
            held = RetentionHold(runs=tuple(hold.name for hold in self.state().retention_holds))
            run_retention(Archive.open(self.store), f"retention-{self.runs}", self.settings.rules, held)

    def erase(self, topic: Topic, key: bytes, dies: int | None) -> RunResult:
        """Erase a key of a topic; one that was killed is done at once again."""
        self.runs += 1
        run_id = f"erase-{self.runs}"
        done: RunResult | None = None
        with self.dying(dies):
            done = erased(self.store, key, run_id=run_id, runner=Inside(), topic=topic.name)
        if done is None:
            done = erased(self.store, key, run_id=run_id, runner=Inside(), topic=topic.name)
        if done.outcome == "Succeeded":
            self.erased.append((topic.name, key))
            self.reference.erase(key, topic.ids)
            topic.features.add("erasure")
        return done

    def convert(self, format_name: str, dies: int | None, again: bool) -> RunResult | None:
        """Convert what restores see, or what was added since."""
        target = self.targets.setdefault(format_name, Target(self._store(format_name.lower())))
        if not (target.died and again):
            target.runs, target.planned = target.runs + 1, None
        run_id = f"convert-{target.runs}"
        size = 1 if target.runs % 2 else CHUNK_BYTES  # a task for each segment, or one for all
        done: RunResult | None = None
        target.died, before = run_id, target.lines
        seen = {key: line.copy() for key, line in self.reference.seen.items()}
        with self.dying(dies):
            found = convert(self.store, target.store, format_name, run_id=run_id, runner=Inside(), chunk_bytes=size)
            done = found.result
        if target.planned is None and target.store.version(f"runs/{run_id}/convert-plan.json") is not None:
            target.planned = {key: line.end for key, line in seen.items()}
        if done.outcome == "Succeeded" if done is not None else _has_succeeded(target.store, run_id):
            state = Archive.open(target.store).load()
            ends, begun = target.ends, target.begun
            target.died, target.lines, target.ends, target.begun = "", seen, {}, {}
            if target.planned is not None:  # a run that continues does not look for more partitions
                target.lines = {key: line for key, line in seen.items() if key in target.planned or key in before}
            for key, line in target.lines.items():
                line.add_erased(before.get(key), ends.get(key))
                line.add_erased(begun.get(key))
                accounted = state.accounted_for(*key) or [(0, 0)]
                # A run that continues has what it has planned, and what else it needs to be exact.
                if (target.planned or {}).get(key, line.end) <= accounted[-1][1] < line.end:
                    target.ends[key] = accounted[-1][1]
        else:
            target.add_begun(seen)
        return done


def _has_succeeded(store: MemoryStore, run_id: str) -> bool:
    """Whether a run that has died has noted its success in the archive before."""
    if store.version(ARCHIVE) is None:
        return False
    run = Archive.open(store).load().runs.get(run_id)
    return run is not None and run.outcome is RunOutcome.SUCCEEDED


def _compacted(state: ArchiveState) -> frozenset[str]:
    """The ids of topics that are compacted only."""
    topics = state.topics.items()
    return frozenset(name for name, topic in topics if topic.configs.get("cleanup.policy") == "compact")


def _bytes_below_branches(state: ArchiveState) -> int:
    """The bytes that branches have below their beginnings, and the log has no more since it was read again."""
    found = 0
    for key in state.branches:
        shown = [state.segments[key]] if key in state.segments else []
        counted = {
            one for table in (*shown, *(b.segments for b in state.branches[key])) for one in identities_of(table)
        }
        tables = [PackedSegments(key, own.rows) for own in state.own_facts(key)]
        rows = {one: entry for table in tables for one, entry in zip(identities_of(table), table, strict=True)}
        found += sum(object_bytes(entry) for one, entry in rows.items() if one not in counted)
    return found


def _parts(log: Log, low: int, high: int, asked: Any) -> list[tuple[int, int]]:
    """The pieces of a range, in the order in which they come into the archive."""
    middle = next((batch.base for batch in log.batches if low < batch.base and low + high <= 2 * batch.base), 0)
    parts = [(low, middle), (middle, high)] if asked.pieces > 1 and low < middle < high else [(low, high)]
    return [part for part in (reversed(parts) if asked.backwards else parts) if part[0] < part[1]]


def _submit(_: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
    """Do at once, in this thread, what a pool would do later in another."""
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **options))
    except BaseException as error:  # as a pool's thread does
        done.set_exception(error)
    return done


def all_chosen(sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Let so many neighbours be merged whatever their sizes are, which are seldom alike here."""
    if len(sizes) >= count:
        yield 0, len(sizes)


_load_commit = lru_cache(10_000)(commits.load_commit)
"""Commits never change, and neither does what is read of the same bytes."""


@contextmanager
def clock_of(world: World) -> Iterator[None]:
    """The world's time, for the product too. Who sleeps lets it pass, and nobody watches runs that have died. Pools
    have no threads, since starting them takes most of the time of a small archive."""

    player, really = threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() == player:
            world.time += max(1, int(seconds * 1000))
        else:  # a thread that another test has left: it would turn the clock while records are written
            really(seconds)

    with (
        patch.object(time, "sleep", sleep),
        patch.object(time, "time_ns", lambda: world.time * 1_000_000),
        patch.object(time, "time", lambda: world.time / 1000),
        patch.object(writing, "Timing", lambda: QUICK),
        patch.object(commits, "load_commit", _load_commit),
        patch.object(merging, "chosen", all_chosen),
        patch.object(ThreadPoolExecutor, "submit", _submit),
    ):
        yield

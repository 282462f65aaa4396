"""Random histories of an archive: runs that are killed anywhere, limits, kept points, holds, readers, wrong clocks.
What is named is there, what a reader reads is there, and kept points can be restored whole."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.points import KeepRules, kept_points
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain, run_retention
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.reading import view
from logkeep_engine.contract.retention import RetentionHold
from logkeep_engine.storage import LocalStorage
from tests.examples import scaled
from tests.unit.archive.build import CLUSTER, ORDERS, begin, changed
from tests.unit.archive.maintenance.test_retention import STATE, at

DAY = 86_400_000
START = 20_000 * DAY
YEAR = 365 * DAY
TOPICS = {ORDERS.topic_id: ORDERS, STATE.topic_id: STATE}


class Killed(BaseException):
    """A kill at a write."""


class Store(LocalStorage):
    """A folder with a clock of its own, whose writer is killed before or after one of its writes."""

    now = START
    left: int | None = None

    def _write(self, write: Callable[[], None], path: str | None) -> None:
        self._may_be_killed()
        write()
        if path is not None:
            os.utime(self._path(path), (self.now / 1000, self.now / 1000))
        self._may_be_killed()

    def _may_be_killed(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed

    def put(self, path: str, data: bytes) -> None:
        if "heartbeat" in path:  # beats of a thread: kills at them would not be the same each time
            super().put(path, data)
            os.utime(self._path(path), (self.now / 1000, self.now / 1000))
        else:
            self._write(lambda: super(Store, self).put(path, data), path)

    def create(self, path: str, data: bytes) -> None:
        self._write(lambda: super(Store, self).create(path, data), path)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._write(lambda one=path: super(Store, self).delete([one]), None)  # type: ignore[misc]


@dataclass(frozen=True)
class Left:
    """The archive as a run has left it: what the limits keep for its point of the one topic, and the log of the
    compacted one up to its end."""

    needed: set[SegmentEntry]
    log: set[SegmentEntry]
    end: int


class World:
    """The archive, its clocks, its readers, and what each run has left."""

    def __init__(self, folder: str, rules: RetentionRules) -> None:
        self.storage = Store(f"file://{folder}/archive")
        self.rules = rules
        self.time = START
        self.driver_ahead = 0
        self.ends = {ORDERS.topic_id: 0, STATE.topic_id: 0}
        self.runs = 0
        self.readers: list[tuple[RunNote, ArchiveState]] = []
        self.left_by: dict[str, Left] = {}
        self.archive = Archive.create_or_open(self.storage, CLUSTER)

    def now_ns(self) -> int:
        return int((self.time + self.driver_ahead) * 1_000_000)

    def pass_time(self, hours: int) -> None:
        self.time += hours * DAY // 24
        self.storage.now = self.time
        for note, _ in self.readers:
            note.beat()

    def back_up(
        self, kill_at: int | None, transactional: bool, age: int, snapshot: bool, hold: bool | None, idle: bool = False
    ) -> None:
        """A run, which is started again with the same id if it is killed. `idle`: the compacted topic has got no new
        record."""
        self.runs += 1
        run_id = f"run-{self.runs}"
        for left in (kill_at, None):
            self.storage.left = left
            try:
                self._attempt(run_id, transactional, age, snapshot, hold, idle)
            except Killed:
                continue
            finally:
                self.storage.left = None
            break
        self.check()

    def _attempt(
        self, run_id: str, transactional: bool, age: int, snapshot: bool, hold: bool | None, idle: bool
    ) -> None:
        writer = begin(self.storage, run_id)
        try:
            if hold is not None:
                writer.hold([Hold(HoldKind.RUN, run_id, HoldOrigin.SPEC)] if hold else [])
            written = [topic_id for topic_id in TOPICS if topic_id != STATE.topic_id or not idle]
            receipts = [self._receipt(writer, topic_id, transactional, age) for topic_id in written]
            writer.commit(topics=TOPICS.values(), receipts=[item for item in receipts if item is not None])
            writer.end(RunOutcome.SUCCEEDED)
            state = writer.state
            if snapshot and not any(item.end == state.coverage[STATE.topic_id, 0][-1][1] for item in _held(state)):
                writer.snapshot([self._snapshot(writer)])
            retain(writer, self.rules)
            self._note_left(run_id, writer.state)
        finally:
            writer.close()

    def _receipt(self, writer: Writer, topic_id: str, transactional: bool, age: int) -> Receipt | None:
        known = writer.state.coverage.get((topic_id, 0), [(0, 0)])[-1][1]
        if known != self.ends[topic_id] and known:
            self.ends[topic_id] = known
        base = self.ends[topic_id]
        if writer.before is not None and any(
            entry.epoch in range(writer.before.epoch, writer.epoch)
            for entry in writer.state.segments.get((topic_id, 0), ())
        ):
            return None  # the attempt before has archived it
        entry = at(base, self.time - age * DAY, topic_id=topic_id, epoch=writer.epoch, size=100)
        entry = replace(entry, transactional=transactional)
        self._store(entry)
        self.ends[topic_id] = base + 10
        return Receipt((Coverage(topic_id, 0, base, base + 10),), (entry,))

    def _snapshot(self, writer: Writer) -> SnapshotEntry:
        end = writer.state.coverage[STATE.topic_id, 0][-1][1]
        part = at(0, self.time, topic_id=STATE.topic_id, epoch=writer.epoch)
        part = changed(replace(part, next_offset=end), layout=Layout.SNAPSHOT, end=end, leader_epoch=0, part=0)
        self._store(part)
        return SnapshotEntry(STATE.topic_id, 0, end, 0, self.time, (part,))

    def _store(self, entry: SegmentEntry) -> None:
        for path in entry.objects(TOPICS[entry.topic_id].name):
            self.storage.put(path, b"x")

    def _note_left(self, run_id: str, state: ArchiveState) -> None:
        """Note what the limits leave to the point of this run, by their words."""
        limits = self.rules.limits
        end = state.runs[run_id].end_time or 0
        had = [
            entry
            for entry in state.segments.get((ORDERS.topic_id, 0), ())
            if limits.max_age is None or entry.times.max_timestamp >= end - limits.max_age
        ]
        if limits.max_bytes is not None:
            ages = _ages(state)
            had.sort(key=lambda entry: (ages[entry.base_offset], entry.base_offset))
            while sum(map(object_bytes, had)) > limits.max_bytes:
                had.pop(0)
        log = set(state.segments.get((STATE.topic_id, 0), ()))
        self.left_by[run_id] = Left(set(had), log, state.coverage[STATE.topic_id, 0][-1][1])

    def start_reader(self) -> None:
        note = RunNote(self.storage, f"restore-{len(self.readers)}-{self.runs}")
        note.beat()
        seen = view.choose(self.archive)
        note.knows(seen.state.commit)
        self.readers.append((note, seen.state))

    def end_reader(self) -> None:
        if self.readers:
            note, _ = self.readers.pop(0)
            note.write(ended=True)

    def check(self) -> None:
        state = self.archive.load()
        there = {info.path for info in self.storage.list("topics/")}
        assert _objects(state) <= there
        for _, seen in self.readers:
            assert _objects(seen) <= there
        for point in kept_points(state, self.rules.keep):
            if point.run_id in self.left_by and point.is_kept:
                self._check_point(state, self.left_by[point.run_id])

    def _check_point(self, state: ArchiveState, left: Left) -> None:
        assert left.needed <= set(state.segments.get((ORDERS.topic_id, 0), ()))
        log = set(state.segments.get((STATE.topic_id, 0), ()))
        begins = [item.end for item in _held(state) if item.end <= left.end]
        if any(entry.base_offset == 0 for entry in left.log):
            begins.append(0)
        wanted = [{entry for entry in left.log if entry.base_offset >= begin} for begin in begins]
        assert any(some <= log for some in wanted), "no snapshot and the log behind it give the point"


def _ages(state: ArchiveState) -> dict[int, int]:
    """The times by which segments are too much: none is older than transactions before it."""
    ends = sorted((run.epoch, run.end_time or 0) for run in state.runs.values())
    found, held = {}, 0
    for entry in state.segments.get((ORDERS.topic_id, 0), ()):
        archived = next(end for epoch, end in ends if epoch >= entry.epoch)
        found[entry.base_offset] = max(min(entry.times.max_timestamp, archived), held)
        if entry.transactional:
            held = found[entry.base_offset]
    return found


def _held(state: ArchiveState) -> list:  # type: ignore[type-arg]
    return state.snapshots.get((STATE.topic_id, 0), [])


def _objects(state: ArchiveState) -> set[str]:
    tables = [
        *state.segments.items(),
        *((key, item.parts(key)) for key, some in state.snapshots.items() for item in some),
    ]
    return {
        path for (topic_id, _), entries in tables for entry in entries for path in entry.objects(TOPICS[topic_id].name)
    }


@contextmanager
def world(rules: RetentionRules) -> Iterator[World]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        made = World(folder, rules)
        patch.setattr(time, "time_ns", made.now_ns)
        yield made


MAYBE = st.one_of(st.none(), st.integers(1, 6))
RULES = st.builds(
    lambda age, size, runs, daily, weekly, grace: RetentionRules(
        RetentionLimits(None if age is None else age * DAY, None if size is None else size * 100),
        KeepRules(runs or 0, daily or 0, weekly or 0),
        grace * DAY,
    ),
    MAYBE, MAYBE, MAYBE, MAYBE, MAYBE, st.integers(0, 2),
)  # fmt: skip
BACKUP = st.tuples(
    st.just("backup"),
    st.one_of(st.none(), st.integers(1, 60)),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([None, None, None, True, False]),
    st.sampled_from([False, False, True]),
)
STEP = st.one_of(
    BACKUP,
    BACKUP,
    st.tuples(st.just("time"), st.integers(1, 72)),
    st.tuples(st.just("reader"), st.booleans()),
    st.tuples(st.just("retention")),
    st.tuples(st.just("clock"), st.sampled_from([0, YEAR, -YEAR, 2 * DAY])),
)


@given(rules=RULES, steps=st.lists(STEP, min_size=8, max_size=24))
@settings(max_examples=scaled(10), deadline=None)
def test_nothing_that_is_named_read_or_kept_is_ever_lost(rules: RetentionRules, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    with world(rules) as made:
        made.back_up(None, False, 0, True, None)
        for what, *how in steps:
            if what == "backup":
                made.back_up(*how)
            elif what == "time":
                made.pass_time(*how)
            elif what == "reader":
                (made.start_reader if how[0] else made.end_reader)()
            elif what == "retention":
                run_retention(made.archive, f"care-{made.runs}-{made.time}-{len(steps)}", rules, RetentionHold())
            else:
                (made.driver_ahead,) = how
            made.check()


def test_a_weekly_point_outlives_the_idle_run_that_has_made_the_snapshot_at_its_end() -> None:
    with world(RetentionRules(RetentionLimits(), KeepRules(weekly=2), 0)) as made:
        made.back_up(None, False, 0, True, None)
        made.back_up(None, False, 0, False, None)
        made.pass_time(72)  # it is Monday now
        made.back_up(None, False, 0, True, None, idle=True)
        made.pass_time(24)
        made.back_up(None, False, 0, True, None)

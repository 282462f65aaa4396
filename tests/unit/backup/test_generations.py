"""Generations against a model: a log that is written and cleaned at any moment, and runs that read it.

A generation that became active gives every key the value that it had at the end that it caught up with. The policy and
the catalog are the product's; the log, its cleaner and the order of things are the model's.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, GenerationStep, PassiveFacts
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.ranges import Range
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.planning.generations import (
    GenerationPolicy,
    activation,
    generation_warnings,
    may_have_stale_keys,
    open_changes,
    to_read,
    whole_generations,
)
from logkeep_engine.log.cleanup import is_compacted
from tests.examples import number
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit
from tests.unit.archive.catalog.test_state import entry

Record = tuple[int, int | None]  # key, value (None: a tombstone)


class Model:
    """A log, and its archive. `history` has all that was ever written. Tombstones stay for `delete_retention` ms after
    the pass of the cleaner that saw them first."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.delete_retention = random.choice([0, 60])
        self.history: list[Record] = []
        self.log: dict[int, Record] = {}
        self.seen_dead: dict[int, int] = {}
        self.state = begun()
        self.objects: dict[tuple[int, int], dict[int, Record]] = {}
        self.reads = 1
        self.now = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            value = None if self.random.random() < 0.3 else self.random.randrange(1000)
            self.log[len(self.history)] = (self.random.randrange(5), value)
            self.history.append(self.log[len(self.history)])

    def clean(self) -> None:
        """The cleaner leaves what lies after some offset as it is. A tombstone goes when it is seen a second time, and
        that is late enough."""
        self.now += self.random.randrange(3)
        until = self.random.randint(0, len(self.history))
        last = {self.history[offset][0]: offset for offset in range(until)}
        for offset in [offset for offset in self.log if offset < until]:
            key, value = self.log[offset]
            is_over = offset in self.seen_dead and self.now - self.seen_dead[offset] >= self.delete_retention
            if last[key] != offset or (value is None and is_over):
                del self.log[offset]
            elif value is None:
                self.seen_dead.setdefault(offset, self.now)

    def meanwhile(self) -> None:
        if self.random.random() < 0.5:
            self.write(self.random.randrange(4))
        if self.random.random() < 0.4:
            self.clean()

    def read(self, part: Range, generation: int) -> bool:
        """Archive a chunk; returns whether no offset was missing."""
        found = {offset: self.log[offset] for offset in range(*part) if offset in self.log}
        self.reads += 1
        coverage = (Coverage(*KEY, *part),)
        segments: tuple[SegmentEntry, ...] = ()
        if found:
            segment = replace(entry(min(found), max(found) + 1), attempt=self.reads)
            self.objects[segment.base_offset, segment.attempt] = found
            segments = (segment,)
        if generation:
            commit(self.state, passive=PassiveFacts(coverage, segments))
        else:
            commit(self.state, coverage=coverage, segments=segments)
        return len(found) == part[1] - part[0]

    def run(self, *, dies: bool) -> bool:
        """A run; returns whether a generation became active."""
        self.now += 10
        changes = GenerationPolicy(15, self.now).changes(self.state, KEY, 0, compacted=True, whole=True)
        number_of, again = to_read(self.state, KEY, changes)
        if changes:
            commit(self.state, generations=tuple(open_changes(self.state, changes)), at=self.now)
            assert open_changes(self.state, changes) == []
        tail = self.state.uncovered(*KEY, 0, len(self.history)) if self.history else []
        pieces = [(part, number_of) for whole in again for part in self.cut(whole)]
        pieces += [(part, 0) for whole in tail for part in self.cut(whole)]
        self.random.shuffle(pieces)
        for piece in pieces[: len(pieces) // 2] if dies else pieces:
            self.read(*piece)
            self.meanwhile()
        for _ in range(0 if dies else 5):
            if not whole_generations(self.state, {KEY[0]}):
                break
            end = len(self.history)
            left = self.state.uncovered(*KEY, 0, end) if end else []
            self.meanwhile()
            dense = [self.read(part, 0) for part in left]
            if all(dense):
                commit(self.state, generations=(activation(self.state, KEY),), at=self.now)
                return True
        return False

    def cut(self, whole: Range) -> list[Range]:
        middle = self.random.randint(*whole)
        return [part for part in ((whole[0], middle), (middle, whole[1])) if part[0] < part[1]]

    @property
    def archived(self) -> dict[int, int]:
        found: dict[int, Record] = {}
        for item in self.state.segments.get(KEY, ()):
            found |= self.objects[item.base_offset, item.attempt]
        return values([found[offset] for offset in sorted(found)])


def values(records: list[Record]) -> dict[int, int]:
    """The last value of each key that is alive."""
    last = dict(records)
    return {key: value for key, value in last.items() if value is not None}


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(number(60, deep=2000)))
def test_a_generation_that_became_active_has_every_key_as_it_was_at_its_end(seed: int) -> None:
    model, activated = Model(Random(seed)), 0
    for _ in range(12):
        model.write(model.random.randrange(8))
        model.clean()
        dies = model.random.random() < 0.3
        if model.run(dies=dies):
            activated += 1
            known = model.state.generations[KEY]
            assert known.passive is None
            wanted, found = values(model.history[: known.exact]), model.archived
            if may_have_stale_keys(known, {"delete.retention.ms": str(model.delete_retention)}):
                found = {key: value for key, value in found.items() if key in wanted}
            assert found == wanted, seed
        ranges = model.state.coverage.get(KEY, [])
        assert not ranges or dies or ranges[0][0] == 0
    assert activated


def test_a_generation_is_due_when_the_active_one_began_longer_ago_than_the_cycle() -> None:
    state = begun()
    policy = GenerationPolicy(100, 1000)

    def steps(at: int, cycle: int | None = 100, log_start: int = 0, **facts: bool) -> list[tuple[GenerationStep, int]]:
        wanted = {"compacted": True, "whole": True, **facts}
        found = GenerationPolicy(cycle, at).changes(state, KEY, log_start, **wanted)
        return [(item.step, item.number) for item in found]

    assert [item.step for item in policy.changes(state, KEY, 5, compacted=True, whole=True)] == [GenerationStep.BEGIN]
    assert steps(1000, compacted=False) == steps(1000, None) == steps(1000, whole=False) == []
    archive(state, 0, 100, 1)
    assert generation_of(state, KEY).number == 1
    assert steps(100) == [], "the archive began at 0"
    assert steps(101) == [(GenerationStep.BEGIN, 2)]
    assert steps(101, log_start=100) == [], "nothing of it is left in the cluster"
    commit(state, generations=tuple(GenerationPolicy(100, 101).changes(state, KEY, 0, compacted=True, whole=True)))
    assert steps(1000) == [], "it is being read"
    assert steps(1000, None) == steps(1000, whole=False) == [(GenerationStep.DROP, 2)]
    assert steps(1000, log_start=10) == [(GenerationStep.DROP, 2), (GenerationStep.BEGIN, 3)]
    commit(state, generations=tuple(GenerationPolicy(None, 0).changes(state, KEY, 0, compacted=True, whole=True)))
    assert steps(1000) == [(GenerationStep.BEGIN, 3)]


@pytest.mark.parametrize(("configs", "warned"), [({"delete.retention.ms": "40"}, True), ({}, False)])
def test_a_run_warns_of_keys_that_were_deleted_while_a_generation_was_read(
    configs: dict[str, str], warned: bool
) -> None:
    state = begun()
    archive(state, 0, 100, 1)
    changes = GenerationPolicy(0, 1).changes(state, KEY, 0, compacted=True, whole=True)
    commit(state, generations=tuple(changes), at=1000)
    commit(state, passive=PassiveFacts((Coverage(*KEY, 0, 100),), (entry(0, 100, epoch=7),)))
    commit(state, generations=(activation(state, KEY),), at=1020)
    topic = replace(state.topics[KEY[0]], configs=configs)
    reported = generation_warnings(BackupPlan("run-2", (topic,), ()), state)
    assert [text.split(":")[0] for text in reported] == (["Topic 'orders' partition 0"] if warned else [])
    assert all("delete.retention.ms is not twice as long" in text for text in reported)


@pytest.mark.parametrize(
    ("policy", "compacted"), [("compact", True), ("compact,delete", True), ("delete, compact", True), ("delete", False)]
)
def test_topics_whose_policy_contains_compact_are_compacted(policy: str, compacted: bool) -> None:
    assert is_compacted({"cleanup.policy": policy}) is compacted
    assert not is_compacted({})

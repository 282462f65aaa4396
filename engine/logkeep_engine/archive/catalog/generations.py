"""Generations of compacted partitions (`compactedTopics: Generations`). Pure.

A run reads the log of a partition again from its start, up to the offset at which the active generation's first whole
range ends. That is the *passive* generation, and it is held aside. Everything from that offset on is archived once and
is part of both. When the passive generation is whole, one commit makes it active: it takes the place of what the active
one has below that offset. So there is a whole generation after every commit.

A generation becomes *exact* with that commit. A broker removes a record once a later one of its key is in the log. So a
reader of the log misses a record whose later one lies behind what he has read. The run that makes a generation active
has read on to the end that the log had after the last record below was read, and found no offset missing there. What
has taken the place of a missing record lies in what was read then. A generation is exact from that end on, and not
below it.

A log that is cut off below that end loses what has taken the place of missing records. The front that stays is exact
nowhere then, whatever is archived behind it; the branch is what it was.

A reconciliation that finds stale keys may say that the next generation is *due* (`backup.reconcile.healing`). One that
is being read goes then: it may have read the key before that was deleted. The catalog keeps that one is due until a
later one becomes active, whatever becomes of those that are begun meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from logkeep_engine.archive.catalog.branches import Branch, PartitionFacts
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    Commit,
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    Partition,
    TopicEntry,
)
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.packed import ROW_BYTES, SegmentTable, offsets_of
from logkeep_engine.archive.ranges import Range, together

PASSIVE = -1
"""Stands for all passive generations, see `ArchiveState.of_generation`."""
UNKNOWN_TIME = -1
NOWHERE = (1 << 63) - 1
"""The offset from which on a generation is exact that is exact nowhere: no point reaches it."""
_WHOLE = -1


@dataclass(frozen=True, slots=True)
class PassiveGeneration:
    """A generation that is being read: offsets [start, end) of the log. It was begun at `began` (ms)."""

    number: int
    began: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """The generations of a partition. `number` is that of the active one, 0 as long as the first is read; `began` (ms)
    is when the reading of it began, `since` when it became active, by a run of this `epoch`, and `exact` the offset
    from which on it is exact: -1 where that is not known. `last` is the highest number that was ever begun: no number
    is used twice. `parted`: how many branches the partition had when its log was cut off below `exact`, and records
    were missing there (-1: it was not). `due`: the active one has stale keys, and the next one shall take its place
    ahead of its time."""

    number: int
    began: int = UNKNOWN_TIME
    since: int = UNKNOWN_TIME
    exact: int = -1
    last: int = 0
    passive: PassiveGeneration | None = None
    parted: int = _WHOLE
    due: bool = False
    epoch: int = 0

    @property
    def exact_from(self) -> int:
        """The offset from which on points are exact; NOWHERE, or -1 if it is not known."""
        return self.exact if self.parted == _WHOLE else NOWHERE


class KeepsGenerations(Protocol):
    """The state of an archive, see `state`."""

    segments: SegmentTable
    branches: dict[Partition, list[Branch]]
    generations: dict[Partition, Generation]
    snapshots: dict[Partition, list[HeldSnapshot]]

    def accounted_for(self, topic_id: str, partition: int) -> list[Range]: ...

    def uncovered(self, topic_id: str, partition: int, start: int, end: int) -> list[Range]: ...

    def of_generation(self, number: int) -> KeepsGenerations: ...

    def held(self, key: Partition) -> PartitionFacts: ...

    def hold(self, key: Partition, held: PartitionFacts) -> None: ...

    def unname(self, commit: Commit, key: Partition, row: bytes) -> None: ...

    def add_facts(
        self,
        topics: Iterable[TopicEntry],
        coverage: Iterable[Coverage],
        segments: Iterable[SegmentEntry],
        gaps: Iterable[Gap],
    ) -> None: ...

    def add_lineage(self, epochs: Iterable[LeaderEpoch], leaders: Iterable[LeaderSeen]) -> None: ...


def generation_of(state: KeepsGenerations, key: Partition) -> Generation:
    """The generations of a partition. What was archived before there were generations is the first one."""
    known = state.generations.get(key)
    if known is not None:
        return known
    number = 1 if state.accounted_for(*key) else 0
    return Generation(number, last=number)


def passive_of(state: KeepsGenerations, key: Partition) -> PassiveGeneration | None:
    """The generation of a partition that is being read."""
    known = state.generations.get(key)
    return None if known is None else known.passive


def unread(state: KeepsGenerations, key: Partition, passive: PassiveGeneration) -> list[Range]:
    """The ranges of a passive generation that are not archived yet."""
    if passive.start >= passive.end:
        return []
    return state.of_generation(passive.number).uncovered(*key, passive.start, passive.end)


def before_branch(generations: dict[Partition, Generation], key: Partition, number: int) -> dict[Partition, Generation]:
    """All generations as the branch of this number (from 0) shows those of its partition: what was cut off with it, or
    later, is there."""
    known = generations.get(key)
    if known is None or number > known.parted:
        return generations
    return {**generations, key: replace(known, parted=_WHOLE)}


def is_dense(state: KeepsGenerations, key: Partition, end: int) -> bool:
    """Whether no offset is missing below `end`, so that compaction has taken nothing."""
    accounted = state.accounted_for(*key)
    reached = accounted[0][0] if accounted else 0
    for entry in state.segments.get(key, ()):
        if entry.base_offset >= end:
            break
        if entry.gaps or entry.base_offset != reached:
            return False
        reached = entry.next_offset
    return reached >= end


def _why_not(state: KeepsGenerations, change: GenerationChange, known: Generation) -> str | None:
    """The reason why a change cannot follow what is known of its partition, or None."""
    key = (change.topic_id, change.partition)
    where = f"generation {change.number} of topic id {key[0]} partition {key[1]}"
    if change.step is GenerationStep.BEGIN:
        if known.passive is not None:
            return f"{where}: generation {known.passive.number} is being read"
        return None if change.number > known.last else f"{where}: there was one of this number"
    if change.step is GenerationStep.DUE:
        return None if change.number == known.number else f"{where} is not the active one, which is {known.number}"
    passive = known.passive
    if passive is None or passive.number != change.number:
        return f"{where} is not being read"
    if change.step is GenerationStep.ACTIVATE:
        left = unread(state, key, passive)
        if left:
            return f"{where} lacks offsets [{left[0][0]}, {left[0][1]})"
        if _swapped(state, key, passive) is None:
            return f"{where} does not end where the active one continues, at offset {passive.end}"
    return None


def checked(state: KeepsGenerations, changes: Iterable[GenerationChange]) -> tuple[GenerationChange, ...]:
    """The changes, in their order. Raises ValueError if one cannot follow those before it."""
    wanted, known = tuple(changes), dict[Partition, Generation]()
    for change in wanted:
        key = (change.topic_id, change.partition)
        if change.step is GenerationStep.ACTIVATE and key in known:
            raise ValueError(f"{change} needs a commit of its own")
        before = known.get(key) or generation_of(state, key)
        if why := _why_not(state, change, before):
            raise ValueError(why)
        known[key] = _stepped(before, change, UNKNOWN_TIME, 0)
    return wanted


def change_generations(state: KeepsGenerations, commit: Commit) -> None:
    """Add what a commit says of generations. Raises ValueError if it cannot follow."""
    for change in commit.generations:
        if why := _why_not(state, change, generation_of(state, (change.topic_id, change.partition))):
            raise ValueError(why)
        _change(state, commit, change)
    facts = commit.passive
    if facts:
        passive = state.of_generation(PASSIVE)
        passive.add_facts((), facts.coverage, facts.segments, ())
        passive.add_lineage(facts.epochs, ())


def end_passive(state: KeepsGenerations, commit: Commit, key: Partition) -> None:
    """Drop the passive generation of a partition, if it has one. Records were erased, which a generation that is being
    read has, too; or the log was cut off, and with it what may have taken the place of records that were not read."""
    if passive_of(state, key) is not None:
        _drop(state, commit, key)


def part_generations(state: KeepsGenerations, commit: Commit, key: Partition, offset: int) -> None:
    """Note what becomes of the generations of a partition whose log is cut off at `offset`. Before it is."""
    end_passive(state, commit, key)
    known = state.generations.get(key)
    if known is not None and known.exact > offset and known.parted == _WHOLE and not is_dense(state, key, offset):
        state.generations[key] = replace(known, parted=len(state.branches.get(key, ())))


def _stepped(known: Generation, change: GenerationChange, time: int, epoch: int) -> Generation:
    """The generations of a partition after a change that a run of this epoch has made at `time` (ms)."""
    if change.step is GenerationStep.BEGIN:
        passive = PassiveGeneration(change.number, time, change.start, change.end)
        return replace(known, last=change.number, passive=passive)
    if change.step is GenerationStep.DROP:
        return replace(known, passive=None)
    if change.step is GenerationStep.DUE:
        return replace(known, passive=None, due=True)
    assert known.passive is not None
    return Generation(change.number, known.passive.began, time, change.end, known.last, epoch=epoch)


def _change(state: KeepsGenerations, commit: Commit, change: GenerationChange) -> None:
    key = (change.topic_id, change.partition)
    known = generation_of(state, key)
    if change.step in (GenerationStep.DROP, GenerationStep.DUE):
        end_passive(state, commit, key)
    state.generations[key] = _stepped(known, change, commit.time, commit.epoch)
    if change.step is not GenerationStep.ACTIVATE:
        return
    assert known.passive is not None
    swapped = _swapped(state, key, known.passive)
    assert swapped is not None
    whole, gone = swapped
    _retire(state, commit, key, gone)
    for snapshot in state.snapshots.get(key, ()):  # it is made of what goes
        _retire(state, commit, key, snapshot.rows)
    state.hold(key, whole)
    state.of_generation(change.number).hold(key, PartitionFacts())


def _swapped(
    state: KeepsGenerations, key: Partition, passive: PassiveGeneration
) -> tuple[PartitionFacts, bytes | bytearray] | None:
    """The partition with the passive generation in the place of what is active below its end, and the rows of the
    segments that go; None if something lies across that end."""
    front = state.of_generation(passive.number).held(key)
    stay, tail = state.held(key).cut(passive.end)
    across = any(offsets_of(bytes(tail.rows[:ROW_BYTES]))[0] < passive.end for _ in tail.rows[:1])
    if across or any(end > passive.end for _, end in front.coverage):
        return None
    whole = PartitionFacts(
        bytes(front.rows) + bytes(tail.rows),
        together(front.coverage, tail.coverage),
        tail.gaps,
        tail.removed,
        tail.epochs or front.epochs,
        tail.leader,
    )
    return whole, stay.rows


def _drop(state: KeepsGenerations, commit: Commit, key: Partition) -> None:
    passive = state.of_generation(PASSIVE)
    _retire(state, commit, key, passive.held(key).rows)
    passive.hold(key, PartitionFacts())
    state.generations[key] = replace(state.generations[key], passive=None)


def _retire(state: KeepsGenerations, commit: Commit, key: Partition, rows: bytes | bytearray) -> None:
    """Note that the objects of these segments are to be deleted."""
    for at in range(0, len(rows), ROW_BYTES):
        state.unname(commit, key, bytes(rows[at : at + ROW_BYTES]))

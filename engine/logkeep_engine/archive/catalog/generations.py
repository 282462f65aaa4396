"""Generations of compacted partitions (`compactedTopics: Generations`). Pure.

A run reads the log of a partition again from its start, up to the offset at which the current line's first whole range
ends. That is the *passive* generation, and it is held aside. Everything from that offset on is archived once and is
part of both. When the passive generation is whole, one commit makes it the current line (see `lines`): its own offsets
are those below that offset, and it is the line before from there on. So there is a whole generation after every commit,
and earlier points see what they saw.

A generation becomes *exact* with that commit. A broker removes a record once a later one of its key is in the log. So a
reader of the log misses a record whose later one lies after what was read. The run that makes a generation active has
read on to the end that the log had after the last record below was read, and found no offset missing there. What has
taken the place of a missing record lies in what was read then. A generation is exact from that end on, and not below
it.

A log that is cut off below that end loses what has taken the place of missing records. The line that continues is exact
nowhere then, whatever is archived on it; the branch is what it was. Nothing is missing where no offset is.

Another generation is *due* ahead of its time if a reconciliation has found stale keys (`backup.reconcile.healing`), or
if a log was cut off so that what continued is not exact. One that is being read is dropped then: it may have read a key
before that was deleted. The catalog keeps that one is due until a later one becomes active, whatever becomes of those
that are begun in the meantime.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

from logkeep_engine.archive.catalog.facts import Commit, GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts, Rereading
from logkeep_engine.archive.catalog.held_partitions import HeldPartitions
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.packed import ROW_BYTES
from logkeep_engine.archive.ranges import Range

PASSIVE = -1
"""Stands for all passive generations, see `ArchiveState.of_generation`."""
UNKNOWN_TIME = -1
NOWHERE = (1 << 63) - 1
"""The offset from which on a generation is exact that is exact nowhere: no point reaches it."""


@dataclass(frozen=True, slots=True)
class PassiveGeneration:
    """A generation that is being read: offsets [start, end) of the log. It was begun at `began` (ms)."""

    number: int
    began: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NextGeneration:
    """The reading of a partition's log that comes after the current line. `last` is the highest number that was ever
    begun: no number is used twice. `due`: it shall begin ahead of its time."""

    last: int
    passive: PassiveGeneration | None = None
    due: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """The generations of a partition. `number` is that of the active one, 0 as long as the first is read; `began` (ms)
    is when the reading of it began, `since` when it became active, by a run of this `epoch`, and `exact` the offset
    from which on it is exact: -1 where that is not known. `forks`: where its log was cut off since, and records were
    missing below. `last`, `passive` and `due` are those of `NextGeneration`."""

    number: int
    began: int = UNKNOWN_TIME
    since: int = UNKNOWN_TIME
    exact: int = -1
    last: int = 0
    passive: PassiveGeneration | None = None
    forks: tuple[int, ...] = ()
    due: bool = False
    epoch: int = 0

    @property
    def exact_from(self) -> int:
        """The offset from which on points are exact; NOWHERE, or -1 if it is not known."""
        return NOWHERE if any(offset < self.exact for offset in self.forks) else self.exact


class KeepsGenerations(HeldPartitions, ABC):
    """The part of a state that has generations, see `ArchiveState`."""

    next_generations: dict[Partition, NextGeneration]

    @abstractmethod
    def of_generation(self, number: int) -> KeepsGenerations: ...

    @abstractmethod
    def unname(self, commit: Commit, key: Partition, row: bytes) -> None: ...


def generation_of(state: KeepsGenerations, key: Partition) -> Generation:
    """Return the generations of a partition, as the line that the state shows has them. What was archived before there
    were generations is the first one."""
    coming = state.next_generations.get(key)
    forks: list[int] = []
    again, epoch = None, 0
    for line in reversed(state.shown_lines(key)):
        if line.again is not None:
            again, epoch = line.again, line.epoch
            break
        if line.line.base >= 0 and not line.dense:
            forks.append(line.line.start)
    if again is None:
        number = 1 if state.accounted_for(*key) else 0
        found = Generation(number, last=number)
    else:
        found = Generation(again.number, again.began, again.since, again.exact, again.number, epoch=epoch)
    found = replace(found, forks=tuple(reversed(forks)))
    return found if coming is None else replace(found, last=coming.last, passive=coming.passive, due=coming.due)


def passive_of(state: KeepsGenerations, key: Partition) -> PassiveGeneration | None:
    """Return the generation of a partition that is being read."""
    known = state.next_generations.get(key)
    return None if known is None else known.passive


def unread(state: KeepsGenerations, key: Partition, passive: PassiveGeneration) -> list[Range]:
    """Return the ranges of a passive generation that are not archived yet."""
    if passive.start >= passive.end:
        return []
    return state.of_generation(passive.number).uncovered(*key, passive.start, passive.end)


def is_dense(state: KeepsGenerations, key: Partition, end: int) -> bool:
    """Return whether no offset is missing below `end`, so that compaction has taken nothing."""
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
    """Return the reason why a change cannot follow what is known of its partition, or None."""
    key = (change.topic_id, change.partition)
    where = f"generation {change.number} of topic id {key[0]} partition {key[1]}"
    if change.step is GenerationStep.BEGIN:
        if known.passive is not None:
            return f"{where}: generation {known.passive.number} is being read"
        return None if change.number > known.last else f"{where}: there was one with this number"
    if change.step is GenerationStep.DUE:
        return None if change.number == known.number else f"{where} is not the active one, which is {known.number}"
    passive = known.passive
    if passive is None or passive.number != change.number:
        return f"{where} is not being read"
    if change.step is GenerationStep.ACTIVATE:
        left = unread(state, key, passive)
        if left:
            return f"{where} lacks offsets [{left[0][0]}, {left[0][1]})"
        if not _joins(state, key, passive):
            return f"{where} does not end where the active one continues, at offset {passive.end}"
    return None


def _joins(state: KeepsGenerations, key: Partition, passive: PassiveGeneration) -> bool:
    """Return whether nothing lies across the end of a passive generation, neither of it nor of what is active."""
    if any(end > passive.end for _, end in state.of_generation(passive.number).held(key).coverage):
        return False
    entries = state.segments.get(key, ())
    return not any(entry.base_offset < passive.end < entry.next_offset for entry in entries)


def checked(state: KeepsGenerations, changes: Iterable[GenerationChange]) -> tuple[GenerationChange, ...]:
    """Return the changes, in their order. Raises ValueError if one cannot follow those before it."""
    wanted, known = tuple(changes), dict[Partition, Generation]()
    for change in wanted:
        key = (change.topic_id, change.partition)
        if change.step is GenerationStep.ACTIVATE and key in known:
            raise ValueError(f"{change} needs its own commit")
        before = known.get(key) or generation_of(state, key)
        if why := _why_not(state, change, before):
            raise ValueError(why)
        after = _stepped(before, change, UNKNOWN_TIME)
        known[key] = replace(before, last=after.last, passive=after.passive, due=after.due)
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
    if passive_of(state, key) is None:
        return
    passive = state.of_generation(PASSIVE)
    rows = passive.held(key).rows
    for at in range(0, len(rows), ROW_BYTES):
        state.unname(commit, key, bytes(rows[at : at + ROW_BYTES]))
    passive.hold(key, PartitionFacts())
    state.next_generations[key] = replace(state.next_generations[key], passive=None)


def _stepped(known: Generation, change: GenerationChange, time: int) -> NextGeneration:
    """Tell what comes next in a partition after a change that a run has made at `time` (ms)."""
    coming = NextGeneration(known.last, known.passive, known.due)
    if change.step is GenerationStep.BEGIN:
        passive = PassiveGeneration(change.number, time, change.start, change.end)
        return replace(coming, last=change.number, passive=passive)
    if change.step is GenerationStep.DROP:
        return replace(coming, passive=None)
    return replace(coming, passive=None, due=change.step is GenerationStep.DUE)


def _change(state: KeepsGenerations, commit: Commit, change: GenerationChange) -> None:
    key = (change.topic_id, change.partition)
    known = generation_of(state, key)
    if change.step in (GenerationStep.DROP, GenerationStep.DUE):
        end_passive(state, commit, key)
    state.next_generations[key] = _stepped(known, change, commit.time)
    if change.step is not GenerationStep.ACTIVATE:
        return
    assert known.passive is not None
    passive = state.of_generation(PASSIVE)
    again = Rereading(change.number, known.passive.began, commit.time, change.end)
    # Nothing of the line before counts below, not even where the log has nothing any more: keys that were deleted
    # since would be alive again.
    own = passive.held(key)
    line = Line(start=0, end=known.passive.end if own.coverage else 0, again=True)
    state.add_line(key, HeldLine(line, own, commit.epoch, again=again))
    passive.hold(key, PartitionFacts())

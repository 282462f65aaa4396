"""Plans generations of compacted partitions, and says when one may become active. Pure.

When a partition's generation is due, a run plans to read its log again, from the log start to where the archive
continues (see `archive.catalog.generations`). The chunks of that are in the same plan as those of the log's end, and
are archived next to them. If the run does not come to their end, a later run reads what is left. Whatever happens, each
run archives the end of the log into the active generation, which the passive one will share.

A generation is due by its cycle, or since a reconciliation has found stale keys and was asked to heal them. Then it is
due in archives of all kinds, with a cycle or without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import (
    NOWHERE,
    Generation,
    PassiveGeneration,
    generation_of,
    passive_of,
    unread,
)
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import is_exact_below
from logkeep_engine.archive.ranges import Range
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.contract.values import human_duration, so_many
from logkeep_engine.log.cleanup import delete_retention


@dataclass(frozen=True, slots=True)
class GenerationPolicy:
    """When a partition gets a new generation: if that of the active one began more than `cycle` ms before `now` (ms),
    or if the archive says that one is due. Without a cycle no other gets one, and others that are being read are
    dropped."""

    cycle: int | None
    now: int

    def changes(
        self,
        state: ArchiveState,
        key: Partition,
        log_start: int,
        *,
        compacted: bool,
        whole: bool,
        fork: int | None = None,
    ) -> list[GenerationChange]:
        """Return the steps of the generations of a partition that a run begins with. `whole`: the archive has the
        beginning of the log. `fork`: the offset at which the log was found to be cut off, which the archive does not
        have yet."""
        known, changes = generation_of(state, key), list[GenerationChange]()
        if fork is not None:
            if known.passive is not None:  # the commit of the fork drops it
                changes.append(GenerationChange(*key, known.passive.number, GenerationStep.DROP))
            if (compacted or state.topics[key[0]].was_compacted) and whole:
                changes += self._after_fork(state, key, log_start, fork)
            return changes
        wanted = ((self.cycle is not None and compacted) or known.due) and whole
        passive = known.passive
        if passive is not None:
            if wanted and all(start >= log_start for start, _ in unread(state, key, passive)):
                return []
            changes.append(GenerationChange(*key, passive.number, GenerationStep.DROP))
        accounted = state.accounted_for(*key)
        if not wanted:
            return changes
        number = known.last + 1
        if not accounted:
            begin = GenerationChange(*key, number, GenerationStep.BEGIN, log_start, log_start)
            return [*changes, begin] if known.last == 0 else changes
        end = accounted[0][1]
        # What lies after a hole would not be read again. This run fills it.
        due = len(accounted) == 1 if known.due else self._is_due(state, known.began)
        if log_start < end and due:
            changes.append(GenerationChange(*key, number, GenerationStep.BEGIN, log_start, end))
        return changes

    def _after_fork(self, state: ArchiveState, key: Partition, log_start: int, fork: int) -> Iterator[GenerationChange]:
        """The log is read again at once if what is left of it in the archive is not exact."""
        accounted, known = state.accounted_for(*key), generation_of(state, key)
        if accounted and log_start < min(accounted[0][1], fork) and not is_exact_below(state, key, fork):
            end = min(accounted[0][1], fork)
            yield GenerationChange(*key, known.last + 1, GenerationStep.BEGIN, log_start, end)

    def _is_due(self, state: ArchiveState, began: int) -> bool:
        assert self.cycle is not None
        if began < 0:  # before there were generations
            began = min((run.begin_time for run in state.runs.values()), default=self.now)
        return self.now - began > self.cycle


def to_read(state: ArchiveState, key: Partition, changes: Collection[GenerationChange]) -> tuple[int, list[Range]]:
    """Return the number of the generation that a run with these changes has to read, and the ranges that are missing of
    it."""
    for change in changes:
        if change.step is GenerationStep.BEGIN:
            return change.number, [(change.start, change.end)] if change.start < change.end else []
    passive = passive_of(state, key)
    return (0, []) if passive is None or changes else (passive.number, unread(state, key, passive))


def open_changes(state: ArchiveState, changes: Collection[GenerationChange]) -> list[GenerationChange]:
    """Return the changes of a plan that no commit has yet: an earlier attempt may have begun them."""
    found = []
    dropped = set()
    for change in changes:
        key = (change.topic_id, change.partition)
        known = generation_of(state, key)
        if change.step is GenerationStep.BEGIN:
            if change.number > known.last and (known.passive is None or key in dropped):
                found.append(change)
        elif known.passive is not None and known.passive.number == change.number:
            found.append(change)
            dropped.add(key)
    return found


def whole_generations(state: ArchiveState, topic_ids: Collection[str]) -> list[Partition]:
    """Return the partitions of these topics whose passive generation is read to its end."""
    return [
        key
        for key, known in state.generations.items()
        if key[0] in topic_ids and known.passive is not None and not unread(state, key, known.passive)
    ]


def activation(state: ArchiveState, key: Partition) -> GenerationChange:
    """Return the step by which the passive generation of a partition becomes active: it is exact from the archived end
    on."""
    passive = passive_of(state, key)
    assert passive is not None
    accounted = state.accounted_for(*key)
    end = max(passive.end, accounted[-1][1] if accounted else 0)
    return GenerationChange(*key, passive.number, GenerationStep.ACTIVATE, passive.start, end)


def may_have_stale_keys(known: Generation, configs: Mapping[str, str]) -> bool:
    """Return whether keys may be alive in the active generation that were deleted while it was read: the broker may
    have removed a record that was read, and then its tombstone before that was. A cleaner's pass removes the first, and
    `delete.retention.ms` after the pass began the second may go. Half of that is left for the pass."""
    is_known = known.began >= 0 and known.since >= 0
    return is_known and 2 * (known.since - known.began) >= delete_retention(configs)


def _why_passive(state: ArchiveState, key: Partition, passive: PassiveGeneration) -> str:
    left = unread(state, key, passive)
    if left:
        return f"offsets {left[0][0]} to {left[-1][1] - 1} have not been read yet"
    return "its log was compacted faster than its end could be read"


def _slow_readings(plan: BackupPlan, state: ArchiveState) -> list[str]:
    lines, by_topic = [], dict[str, dict[int, Generation]]()
    for (topic_id, number), known in state.generations.items():
        by_topic.setdefault(topic_id, {})[number] = known
    for topic in plan.topics:
        found = by_topic.get(topic.topic_id, {})
        slow = {number: known for number, known in found.items() if may_have_stale_keys(known, topic.configs)}
        if slow:
            number, known = max(slow.items(), key=lambda item: item[1].since - item[1].began)
            lines.append(
                f"Topic {topic.name!r} partition {number}{_and_others(len(slow) - 1)}: generation {known.number} took "
                f"{human_duration((known.since - known.began) / 1000)} to read, and delete.retention.ms is not twice "
                "as long. A key that was deleted in the meantime may be alive in it: spec.reconcile or `logkeep "
                "reconcile` finds it. Raise delete.retention.ms, and the next generation has none."
            )
    return lines


def _and_others(count: int) -> str:
    return f" and {so_many(count, 'other')}" if count else ""


def generation_warnings(plan: BackupPlan, state: ArchiveState) -> list[str]:
    """Return the warnings for generations that a run could not make active, and for what a new one leaves behind."""
    names, reported = plan.topic_names, _slow_readings(plan, state)
    for (topic_id, partition), known in state.generations.items():
        if topic_id in names and known.passive is not None:
            passive = known.passive
            why = _why_passive(state, (topic_id, partition), passive)
            reported.append(
                f"Topic {names[topic_id]!r} partition {partition}: generation {passive.number} is not active yet: "
                f"{why}. The next run continues it; until then restores use generation {known.number}."
            )
        if topic_id in names and known.exact_from == NOWHERE:
            reported.append(
                f"Topic {names[topic_id]!r} partition {partition}: the log was cut off below offset {known.exact}, and "
                f"so were the records that had overwritten what generation {known.number} lacks. Keys may be missing "
                "at all points except those of earlier runs, until a later run has read the log again."
            )
    for change in plan.generations:
        if change.step is GenerationStep.BEGIN and change.start:
            first = state.accounted_for(change.topic_id, change.partition)
            if first and first[0][0] < change.start and change.topic_id in names:
                reported.append(
                    f"Topic {names[change.topic_id]!r} partition {change.partition}: the log begins at offset "
                    f"{change.start} now, so generation {change.number} has nothing below it."
                )
    return reported

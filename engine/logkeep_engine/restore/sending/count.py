"""Checks at the end of a run that the target still has all that the run has written. Success is not reported before.

An acknowledged record can be lost as long as leaders change: an unclean election, or a disk that failed. The leader of
each partition is asked for the leader epoch in which the last record was written (see `written.Mark`), which costs no
record to be read, however often leaders have changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BrokerUnavailable, TargetChanged, TopicGone
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.queries import NO_TOPIC_ID
from logkeep_engine.kafka.survey import Ended
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import OutletSummary, PartitionSummary
from logkeep_engine.restore.model.plan import NO_TASK, PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import COUNTED, COUNTED_NOTE, RestoreState, counted_ids
from logkeep_engine.restore.sending.evidence import lacking
from logkeep_engine.restore.sending.partitions import Summaries, restore_open_partitions
from logkeep_engine.restore.sending.written import Mark, TargetPartition
from logkeep_engine.restore.topics.targets import check_ids, check_same

log = logging.getLogger(__name__)

_ROUNDS = 5  # a partition may lose what was written once more while the rest is sent again
_COUNTED_IN = "in which this restore has counted its records"

Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class WrittenEnd:
    """The end of all that a run has written to a partition with one producer id, by its own account. `mark` is None if
    it has written nothing. `end`: where the log ends if no other writes.
    """

    target: TargetPartition
    mark: Mark | None
    end: int

    @property
    def where(self) -> Where:
        return self.target.topic, self.target.partition


def is_counted(state: RestoreState) -> bool:
    """Return whether an earlier start of the run has found all that it had written."""
    return bool(state.storage.list(state.file(COUNTED)))


def check_counted(context: RestoreContext, planned: Planned, summaries: Summaries) -> None:
    """Check that the created topics are still those in which an earlier start has counted its records, and that no
    target holds fewer than the archive gives it.

    Some brokers know no topic ids: then the leaders are asked once more for what was written. Raises TargetChanged,
    TopicGone, and BrokerUnavailable if it cannot be known.
    """
    known = counted_ids(context.state)
    check_ids(context.control, known, _COUNTED_IN)
    short = lacking(planned, context.control)
    if short:
        raise TargetChanged(
            f"an earlier start of this restore says that it has counted its records, but {short}",
            hint="The cluster has lost them since, or the state of the restore was altered: start a new "
            "restore under another run id.",
        )
    created = {topic.target for topic in planned.plan.topics if topic.created}
    if created <= known.keys():
        return
    now = _created_ids(context.control, planned.plan)
    items = [item for item in written(planned.plan, summaries) if item.target.topic not in known]
    missing = _without_mark(context.control, items, context.connection.limits.outage)
    if missing:
        raise TargetChanged(
            f"{missing[0].target} lacks records that an earlier start of this restore has counted there",
            hint="The topic was deleted and created again, or its leader has lost them: start a new restore under "
            "another run id.",
        )
    check_ids(context.control, now, _COUNTED_IN)
    _note_counted(context.state, summaries, {**now, **known})


def _created_ids(control: ControlPlane, plan: RestorePlan) -> dict[str, str]:
    """Return the ids of the topics that the run has created, as far as the brokers know ids."""
    names = [topic.target for topic in plan.topics if topic.created]
    found = control.topic_ids(names) if names else {}
    return {name: topic_id for name, topic_id in found.items() if topic_id not in ("", NO_TOPIC_ID)}


def _note_counted(state: RestoreState, summaries: Summaries, topic_ids: Mapping[str, str]) -> None:
    counted = {"partitions": len(summaries), "topicIds": dict(sorted(topic_ids.items()))}
    state.storage.put(state.file(COUNTED), COUNTED_NOTE.dumps(counted))


def count_all(context: RestoreContext, planned: Planned, summaries: Summaries) -> Summaries:
    """Check that all that was written is there, and note it.

    What the cluster has lost since is sent again. Returns the summaries of the partitions as they are then. Raises
    BrokerUnavailable if the cluster loses records every time.
    """
    state = context.state
    for _ in range(_ROUNDS):
        # Before the count, and compared after it: a topic that was created again in between has another id.
        ids = _created_ids(context.control, planned.plan)
        missing = lost(context.control, written(planned.plan, summaries), context.connection.limits.outage)
        if not missing:
            check_same(context.control, planned.plan)
            check_ids(context.control, ids, _COUNTED_IN)
            _note_counted(state, summaries, ids)
            return summaries
        log.warning("%s and %d more partitions have lost records since: sent again", missing[0], len(missing) - 1)
        # First of all: after a kill the next start would take these partitions for done.
        state.storage.delete(_notes_of(missing, planned.plan, state))
        summaries = restore_open_partitions(context, replace(planned, fresh=False))
    raise BrokerUnavailable(
        f"{missing[0]}: the cluster has lost records that it had acknowledged, {_ROUNDS} times.",
        hint="Check the brokers and unclean.leader.election.enable, then start the same run again.",
    )


def _notes_of(missing: Iterable[TargetPartition], plan: RestorePlan, state: RestoreState) -> list[str]:
    """Return the objects that say of what went to these partitions that it is done."""
    gone = {(target.topic, target.producer_id) for target in missing}
    return sorted(
        {
            state.map_path(topic.target, topic.number_of(part))
            for topic in plan.topics
            for part in topic.partitions
            if (topic.target, part.producer_id) in gone
        }
    )


def describe_deleted(control: ControlPlane, plan: RestorePlan, summaries: Summaries) -> Iterator[str]:
    """Yield the warnings about records that targets have deleted since they were restored. Only log starts show it,
    which compaction does not move."""
    begins = {(topic.target, part.target): part.first for topic in plan.topics for part in topic.partitions}
    ends: dict[Where, int] = {}
    for item in written(plan, summaries):
        if item.mark is not None:
            ends[item.where] = max(ends.get(item.where, 0), item.mark.end)
    answers = control.bounds(ends)
    gone: dict[str, int] = {}
    for where, bounds in answers.found.items():
        deleted = min(bounds.start, ends[where]) - begins[where]
        if deleted > 0:
            gone[where[0]] = gone.get(where[0], 0) + deleted
    for topic, count in sorted(gone.items()):
        yield (
            f"topic {topic} has deleted up to {so_many(count, 'record')} of this restore: its retention does not keep "
            "them, or it was changed in the meantime. spec.topics.retention: Hold keeps them"
        )
    if answers.silent:
        (topic, partition), reason = next(iter(answers.silent.items()))
        yield (
            f"it is unknown whether targets have deleted records of this restore, first in topic {topic} partition "
            f"{partition}: {reason}"
        )


def written(plan: RestorePlan, summaries: Mapping[Where, PartitionSummary]) -> list[WrittenEnd]:
    """The ends of all partitions to which the run has written, and of those of created topics that must be empty."""
    found: list[WrittenEnd] = []
    for topic in plan.topics:
        ends: dict[int, list[tuple[PartitionPlan, OutletSummary]]] = {}
        for partition, parts in topic.archived_partitions.items():
            for part, outlet in zip(parts, summaries[topic.target, partition].outlets, strict=True):
                ends.setdefault(part.target, []).append((part, outlet))
        for target in range(topic.partition_count) if topic.divided else (part.target for part in topic.partitions):
            found += _written_to(topic, target, ends.get(target, []))
    return found


def _written_to(
    topic: TopicPlan, target: int, outlets: Sequence[tuple[PartitionPlan, OutletSummary]]
) -> Iterator[WrittenEnd]:
    """The ends in one target partition. The log of a created one ends after the records of all producers."""
    writers = [(part, outlet) for part, outlet in outlets if outlet.end > outlet.start]
    end = sum(outlet.records for _, outlet in writers) + (outlets[0][0].start if outlets else 0)
    for part, outlet in writers:
        place = _target(topic, target, part.producer_id, part.start)
        yield WrittenEnd(place, Mark(outlet.epoch, outlet.end), outlet.end if part.extent is not None else end)
    if topic.created and not writers:
        yield WrittenEnd(_target(topic, target, NO_TASK, 0), None, 0)


def _target(topic: TopicPlan, partition: int, producer_id: int, start: int) -> TargetPartition:
    return TargetPartition(topic.target, partition, producer_id, start, topic.created, topic.compacts)


def lost(control: ControlPlane, items: Sequence[WrittenEnd], patience: float) -> list[TargetPartition]:
    """Return the partitions that lack something that was written, for each producer id.

    Raises TargetChanged if another client has written to a created topic, TopicGone, and BrokerUnavailable without an
    answer for `patience` seconds: such records are neither there nor lost.
    """
    gone = _without_mark(control, items, patience)
    short = {item.where for item in gone}
    alone = {item.where: item for item in items if item.target.created and item.where not in short}
    for where, ended in _ask(control, dict.fromkeys(alone), patience).items():
        if not _is_end(alone[where], ended.end_offset):
            gone += [item for item in items if item.where == where]  # the leader has changed between the two questions
    return [item.target for item in gone]


def _without_mark(control: ControlPlane, items: Sequence[WrittenEnd], patience: float) -> list[WrittenEnd]:
    """Return those whose last record is not in the log of the leader."""
    epochs = _epochs(control, items, patience)
    return [
        item for item in items if item.mark is not None and not item.mark.is_in(epochs[item.where, item.mark.epoch])
    ]


def _epochs(control: ControlPlane, items: Iterable[WrittenEnd], patience: float) -> dict[tuple[Where, int], Ended]:
    """Return where the epochs of all marks have ended. A partition is asked for one epoch at a time: mostly there is
    one."""
    left: dict[Where, set[int]] = {}
    for item in items:
        if item.mark is not None:
            left.setdefault(item.where, set()).add(item.mark.epoch)
    found = {}
    while left:
        wanted = {where: epochs.pop() for where, epochs in left.items()}
        for where, ended in _ask(control, wanted, patience).items():
            found[where, wanted[where]] = ended
        left = {where: epochs for where, epochs in left.items() if epochs}
    return found


def _is_end(item: WrittenEnd, end: int) -> bool:
    if end > item.end:
        raise TargetChanged(
            f"{item.target} ends at offset {end} instead of {item.end}: another producer wrote to it.",
            hint="Stop the other producers, delete the topic and restore again under another run id.",
        )
    return end == item.end


def _ask(control: ControlPlane, wanted: Mapping[Where, int | None], patience: float) -> dict[Where, Ended]:
    until = time.monotonic() + patience
    found: dict[Where, Ended] = {}
    left = dict(wanted)
    while left:
        answers = control.epoch_ends(left)
        for (topic, partition), reason in answers.unknown.items():
            raise TopicGone(
                f"topic {topic!r} partition {partition} is gone: {reason}",
                hint="It was deleted while it was being restored: start a new restore under another run id.",
            )
        found |= answers.found
        left = {where: epoch for where, epoch in left.items() if where in answers.silent}
        if left and time.monotonic() > until:
            (topic, partition), reason = next(iter(answers.silent.items()))
            raise BrokerUnavailable(
                f"It is unknown whether all records are in topic {topic!r} partition {partition}: {reason}. Tried "
                f"for {patience:.0f} s.",
                hint="Check that the partition has a leader, then start the same run again: it continues from here.",
            )
    return found

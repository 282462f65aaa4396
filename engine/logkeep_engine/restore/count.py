"""Checks at the end of a run that the target still has all that the run has written. Success is not told before.

An acknowledged record can be lost as long as leaders change: an unclean election, or a disk that failed. The leader of
each partition is asked for the leader epoch in which the last record was written (see `landed.Mark`), which costs no
record to be read, however often leaders have changed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from logkeep_engine.errors import BrokerUnavailable, TargetChanged, TopicGone
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.survey import Ended
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.landed import Mark, TargetPartition
from logkeep_engine.restore.offset_map import PartitionSummary
from logkeep_engine.restore.partitions import Summaries, restore_open_partitions
from logkeep_engine.restore.plan import NO_TASK, RestorePlan
from logkeep_engine.restore.state import COUNTED, RestoreState
from logkeep_engine.restore.targets import check_same

log = logging.getLogger(__name__)

_ROUNDS = 5  # a partition may lose what was written once more while the rest is sent again

Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Written:
    """The end of all that a run has written to a partition, by its own account. `mark` is None if it has written
    nothing.
    """

    target: TargetPartition
    mark: Mark | None

    @property
    def where(self) -> Where:
        return self.target.topic, self.target.partition

    @property
    def end(self) -> int:
        return self.target.start if self.mark is None else self.mark.end


def is_counted(state: RestoreState) -> bool:
    """Whether an earlier start of the run has found all that it had written."""
    return bool(state.storage.list(state.file(COUNTED)))


def count_all(context: RestoreContext, planned: Planned, summaries: Summaries) -> Summaries:
    """Check that all that was written is there, and note it.

    What the cluster has lost since is sent again. Returns the summaries of the partitions as they are then. Raises
    BrokerUnavailable if the cluster loses records every time.
    """
    state = context.state
    for _ in range(_ROUNDS):
        missing = lost(context.control, written(planned.plan, summaries), context.connection.limits.outage)
        if not missing:
            check_same(context.control, planned.plan)
            counted = json.dumps({"format": 1, "partitions": len(summaries)}).encode()
            state.storage.put(state.file(COUNTED), counted)
            return summaries
        log.warning("%s and %d more partitions have lost records since: sent again", missing[0], len(missing) - 1)
        state.storage.delete([state.map_path(target.topic, target.partition) for target in missing])
        summaries = restore_open_partitions(context, replace(planned, fresh=False))
    raise BrokerUnavailable(
        f"{missing[0]}: the cluster has lost records that it had acknowledged, {_ROUNDS} times.",
        hint="Check the brokers and unclean.leader.election.enable, then start the same run again.",
    )


def written(plan: RestorePlan, summaries: Mapping[Where, PartitionSummary]) -> list[Written]:
    """The ends of all partitions to which the run has written, and of those of created topics that must be empty."""
    found = []
    for topic in plan.topics:
        for part in topic.partitions:
            target = TargetPartition(
                topic.target, part.target, part.producer_id, part.start, topic.created, topic.compacts
            )
            summary = None if part.producer_id == NO_TASK else summaries[topic.target, part.target]
            if summary is not None and summary.target_end > summary.target_start:
                found.append(Written(target, Mark(summary.target_epoch, summary.target_end)))
            elif topic.created:
                found.append(Written(target, None))
    return found


def lost(control: ControlPlane, items: Sequence[Written], patience: float) -> list[TargetPartition]:
    """The partitions that lack something that was written.

    Raises TargetChanged if somebody else has written to a created topic, TopicGone, and BrokerUnavailable where nobody
    answers for `patience` seconds: such records are neither there nor lost.
    """
    epochs = _ask(control, {item.where: item.mark.epoch for item in items if item.mark is not None}, patience)
    gone = [item for item in items if item.mark is not None and not item.mark.is_in(epochs[item.where])]
    alone = {item.where: item for item in items if item.target.created and item not in gone}
    for where, ended in _ask(control, dict.fromkeys(alone), patience).items():
        if not _is_end(alone[where], ended.end_offset):
            gone.append(alone[where])  # the leader has changed between the two questions
    return [item.target for item in gone]


def _is_end(item: Written, end: int) -> bool:
    if end > item.end:
        raise TargetChanged(
            f"{item.target} ends at offset {end} instead of {item.end}: somebody else wrote to it.",
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
                hint="Somebody has deleted it while it was restored: begin a new restore under another run id.",
            )
        found |= answers.found
        left = {where: epoch for where, epoch in left.items() if where in answers.silent}
        if left and time.monotonic() > until:
            (topic, partition), reason = next(iter(answers.silent.items()))
            raise BrokerUnavailable(
                f"It cannot be seen whether all records are in topic {topic!r} partition {partition}: {reason}. Tried "
                f"for {patience:.0f} s.",
                hint="Check that the partition has a leader, then start the same run again: it goes on from here.",
            )
    return found

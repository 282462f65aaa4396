"""The driver's part in divided topics: their size, and what an earlier start has written to their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.written import Look, TargetPartition, WrittenRecords, read_back

MOST_PAIRS = 100_000
"""Pairs of one restore: each has a producer id, which the brokers remember for a day."""

_TARGETS_A_TASK = 16


def refuse_many_pairs(plan: RestorePlan) -> None:
    """Raises TargetUnsuitable for more pairs than a cluster should have to remember."""
    pairs = {topic.target: len(topic.partitions) for topic in plan.topics if topic.divided}
    if sum(pairs.values()) > MOST_PAIRS:
        largest = max(pairs, key=lambda name: pairs[name])
        raise TargetUnsuitable(
            f"spec.topics.partitionCount: {sum(pairs.values())} pairs of archived partitions and partitions of targets "
            f"would need a producer id each, at most {MOST_PAIRS} are taken; most of them are of topic {largest} "
            f"({pairs[largest]}); nothing was written",
            hint="Restore the topics in several restores, or into fewer partitions.",
        )


def with_known(context: RestoreContext, planned: Planned, tasks: Sequence[RestoreTask]) -> list[RestoreTask]:
    """Return the same tasks. Where an earlier start may have written, the targets of divided topics are read for them:
    each partition once."""
    divided = {(task.topic.target, task.part.partition) for task in tasks if task.topic.divided}
    if planned.fresh or not divided:
        return list(tasks)
    names = {target for target, _ in divided}
    looks = []
    for topic in planned.plan.topics:
        if topic.target in names:
            for target, parts in pairs_by_target(topic).items():
                wanted = [part.producer_id for part in parts if (topic.target, part.partition) in divided]
                place = TargetPartition(
                    topic.target, target, -1, parts[0].start, topic.created, topic.compacts, divided=True
                )
                ours = frozenset(part.producer_id for part in parts) if topic.created else None
                looks.append(Look(context.connection, place, tuple(wanted), ours))
    found: dict[int, WrittenRecords] = {}

    def on_result(_: int, some: tuple[dict[int, WrittenRecords], ...]) -> None:
        for item in some:
            found.update(item)

    groups = [tuple(looks[at : at + _TARGETS_A_TASK]) for at in range(0, len(looks), _TARGETS_A_TASK)]
    context.run_tasks(groups, read_back, on_result)
    return [
        replace(task, known=tuple(found[part.producer_id] for part in task.topic.partitions))
        if task.topic.divided
        else task
        for task in tasks
    ]


def pairs_by_target(topic: TopicPlan) -> dict[int, list[PartitionPlan]]:
    """Return the pairs of a divided topic, by partition of the target."""
    found: dict[int, list[PartitionPlan]] = {}
    for part in topic.partitions:
        found.setdefault(part.target, []).append(part)
    return found

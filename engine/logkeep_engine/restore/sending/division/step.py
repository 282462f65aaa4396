"""The driver's part in divided topics: tasks, what is done already, and the check at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.sending.division.partitioners import partitioner_of
from logkeep_engine.restore.sending.division.places import PairPlace, PlacesTask, read_places
from logkeep_engine.restore.sending.division.summary import DividedSummary
from logkeep_engine.restore.sending.division.task import DividedTask, Pair
from logkeep_engine.restore.sending.written import TargetPartition

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


def done_divided(state: RestoreState) -> dict[tuple[str, int], DividedSummary]:
    """The facts of the archived partitions that are divided and done, by target topic and archived partition."""
    storage = state.storage

    def read(path: str) -> DividedSummary:
        return DividedSummary.from_json(storage.read(path), f"{storage.uri}/{path}")

    done = state.read_all(state.divided_folder, read)
    return {(found.target_topic, found.target_partition): found for found in done}


def divided_tasks(
    context: RestoreContext, planned: Planned, work: Sequence[tuple[TopicPlan, RestoreTask]]
) -> list[DividedTask]:
    """The tasks of these archived partitions. Where an earlier start may have written, their targets are read first."""
    known: Mapping[int, PairPlace] = {} if planned.fresh else _places(context, planned, work)
    parts = {topic.target: topic.archived_partitions for topic in planned.plan.topics if topic.divided}
    return [
        DividedTask(
            archived,
            tuple(
                Pair(part.target, part.producer_id, part.start, known.get(part.producer_id))
                for part in parts[topic.target][archived.partition]
            ),
            partitioner_of(topic),
        )
        for topic, archived in work
    ]


def _places(
    context: RestoreContext, planned: Planned, work: Iterable[tuple[TopicPlan, RestoreTask]]
) -> dict[int, PairPlace]:
    """The places of the pairs of these archived partitions, by producer id: each target partition is read once."""
    open_ones = {(topic.target, archived.partition) for topic, archived in work}
    names = {target for target, _ in open_ones}
    reads = []
    for topic in planned.plan.topics:
        if topic.target in names:
            for target, parts in pairs_by_target(topic).items():
                wanted = [part.producer_id for part in parts if (topic.target, part.partition) in open_ones]
                place = TargetPartition(topic.target, target, -1, parts[0].start, topic.created, topic.compacts)
                ours = frozenset(part.producer_id for part in parts) if topic.created else None
                reads.append(PlacesTask(context.connection, place, tuple(wanted), ours))
    found: dict[int, PairPlace] = {}

    def on_result(_: int, places: tuple[dict[int, PairPlace], ...]) -> None:
        for item in places:
            found.update(item)

    groups = [tuple(reads[at : at + _TARGETS_A_TASK]) for at in range(0, len(reads), _TARGETS_A_TASK)]
    context.run_tasks(groups, read_places, on_result)
    return found


def pairs_by_target(topic: TopicPlan) -> dict[int, list[PartitionPlan]]:
    """The pairs of a divided topic, by partition of the target."""
    found: dict[int, list[PartitionPlan]] = {}
    for part in topic.partitions:
        found.setdefault(part.target, []).append(part)
    return found

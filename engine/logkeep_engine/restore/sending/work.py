"""The work of a restore for each archived partition, as its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.records import Batching


def with_task(planned: Planned) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    """Yield the archived partitions that have something to restore, each with the plan of its topic, whose partitions
    are its own. One that is divided comes once, with the first of its outlets."""
    for topic in planned.plan.topics:
        for parts in topic.archived_partitions.values():
            yield replace(topic, partitions=parts), parts[0]


def restore_task(
    context: RestoreContext, planned: Planned, topic: TopicPlan, partition: PartitionPlan, *, number: int = -1
) -> RestoreTask:
    """Return the work of one archived partition, by its plan of `with_task`. `number` is its number in the progress of
    the run."""
    key = topic.topic_id, partition.partition
    archived = ArchivedPartition(
        context.archive.storage,
        topic.source,
        tuple(planned.segments(topic, partition.partition)),
        tuple(planned.archived.kept(*key)),
        *key,
        planned.surveys.get(key),
        planned.clip(key),
        _batching(planned, topic),
    )
    return RestoreTask(number, archived, topic, context.state, context.connection, planned.fresh)


def _batching(planned: Planned, topic: TopicPlan) -> Batching | None:
    """Return the size of batches for a topic: they are not larger than the source's own producers could make them."""
    batching = planned.plan.batching
    if batching is None:
        return None
    own = int(planned.archived.topics[topic.topic_id].configs.get("max.message.bytes", batching.max_bytes))
    return replace(batching, max_bytes=min(own, batching.max_bytes))

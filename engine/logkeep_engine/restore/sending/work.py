"""The work of a restore for each archived partition, as its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.streams.records import Batching


def with_task(planned: Planned) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    """The archived partitions that have something to restore. One that is divided comes once, with the first of its
    pairs."""
    for topic in planned.plan.topics:
        for parts in topic.archived_partitions.values():
            yield topic, parts[0]


def number_of(topic: TopicPlan, partition: PartitionPlan) -> int:
    """The number by which the summary and the progress of a partition are known: that in the target, or in the archive
    where its records go to several."""
    return partition.partition if topic.divided else partition.target


def restore_task(
    context: RestoreContext, planned: Planned, topic: TopicPlan, partition: PartitionPlan, *, number: int = -1
) -> RestoreTask:
    """The work of one partition. `number` is its number in the progress of the run. Of a divided one it says what is
    read, and nothing of its pairs."""
    state = context.state
    return RestoreTask(
        number=number,
        storage=context.archive.storage,
        state=state.storage,
        run_id=state.run_id,
        connection=context.connection,
        source=topic.source,
        topic_id=topic.topic_id,
        partition=partition.partition,
        target=topic.target,
        created=topic.created,
        fresh=planned.fresh,
        max_batch_bytes=topic.max_batch_bytes,
        producer_id=partition.producer_id,
        start=partition.start,
        segments=tuple(planned.segments(topic, partition.partition)),
        survey=planned.surveys.get((topic.topic_id, partition.partition)),
        map_path=state.divided_path(topic.target, partition.partition)
        if topic.divided
        else state.map_path(topic.target, partition.target),
        batching=_batching(planned, topic),
        compacts=topic.compacts,
        clip=planned.clip((topic.topic_id, partition.partition)),
        kept=tuple(planned.archived.kept(topic.topic_id, partition.partition)),
        extent=partition.extent,
        to=partition.to,
    )


def _batching(planned: Planned, topic: TopicPlan) -> Batching | None:
    """The size of batches for a topic: they are not larger than the source's own producers could make them."""
    batching = planned.plan.batching
    if batching is None:
        return None
    own = int(planned.archived.topics[topic.topic_id].configs.get("max.message.bytes", batching.max_bytes))
    return replace(batching, max_bytes=min(own, batching.max_bytes))

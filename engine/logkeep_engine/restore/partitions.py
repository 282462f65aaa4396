"""The step of a restore that sends records: one task item for each partition, and an offset map when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.report import ProgressRange
from logkeep_engine.restore.attempt import RestoreTask
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.everything import schema_topic
from logkeep_engine.restore.offset_map import HEADER_MAX_BYTES, PartitionSummary, read_summary
from logkeep_engine.restore.plan import NO_TASK, PartitionPlan, TopicPlan, pack
from logkeep_engine.restore.records import Batching
from logkeep_engine.restore.selection import with_branches
from logkeep_engine.restore.state import RestoreState
from logkeep_engine.restore.task import restore_partitions

Summaries = dict[tuple[str, int], PartitionSummary]
"""By target topic and partition."""

_MAPS_AT_ONCE = 32


def restore_open_partitions(context: RestoreContext, planned: Planned) -> Summaries:
    """Restore the partitions that have no offset map yet, those with schemas before all others, and return the
    summaries of all."""
    done = {} if planned.fresh else done_partitions(context.state)
    tasks: list[RestoreTask] = []
    parts: list[ProgressRange] = []
    for topic, partition in with_task(planned):
        segments = planned.segments(topic, partition.partition)
        start, end = _range_of(partition, segments)
        part = ProgressRange(len(parts), topic.target, partition.target, start, end)
        summary = done.get((topic.target, partition.target))
        if summary is not None:
            part = replace(part, at=part.end, records=summary.records, bytes=summary.bytes)
        else:
            tasks.append(restore_task(context, planned, topic, partition, number=part.task))
        parts.append(part)
    idle = sum(len(topic.partitions) for topic in planned.plan.topics) - len(parts)
    context.reporter.planned(parts, topics=len(planned.plan.topics), idle=idle)
    context.reporter.phase("Running")
    numbers = {(task.target, task.target_partition): task.number for task in tasks}

    def on_result(_: int, summaries: tuple[PartitionSummary, ...]) -> None:
        for summary in summaries:
            where = summary.target_topic, summary.target_partition
            done[where] = summary
            context.reporter.done(numbers[where], summary.records, summary.bytes)

    sizes = [task.bytes for task in tasks]
    slots = context.slots(len(sizes), sum(sizes), limited=True) if tasks else 1
    first = schema_topic(context.spec)
    try:
        for some in (
            [task for task in tasks if task.source == first],
            [task for task in tasks if task.source != first],
        ):
            packed = pack([task.bytes for task in some], slots) if some else []
            context.run_tasks([tuple(some[at] for at in group) for group in packed], restore_partitions, on_result)
    except ArchiveDamaged as error:
        raise _explained(error, context, planned) from error
    return done


def _range_of(partition: PartitionPlan, segments: Sequence[SegmentEntry]) -> Range:
    """The offsets on which a task works."""
    extent = partition.extent
    return (0, extent.end) if extent is not None else (segments[0].base_offset, segments[-1].next_offset)


def with_task(planned: Planned) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    """The partitions that have something to restore."""
    for topic in planned.plan.topics:
        for partition in topic.partitions:
            if partition.producer_id != NO_TASK:
                yield topic, partition


def restore_task(
    context: RestoreContext, planned: Planned, topic: TopicPlan, partition: PartitionPlan, *, number: int = -1
) -> RestoreTask:
    """The work of one partition. `number` is its number in the progress of the run."""
    plan = planned.plan
    return RestoreTask(
        number=number,
        storage=context.archive.storage,
        state=context.state.storage,
        connection=context.connection,
        source=topic.source,
        topic_id=topic.topic_id,
        partition=partition.partition,
        target=topic.target,
        created=topic.created,
        fresh=planned.fresh,
        max_batch_bytes=topic.max_batch_bytes,
        rule=plan.rule,
        producer_id=partition.producer_id,
        start=partition.start,
        segments=tuple(planned.segments(topic, partition.partition)),
        survey=planned.surveys.get((topic.topic_id, partition.partition)),
        map_path=context.state.map_path(topic.target, partition.target),
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


def done_partitions(state: RestoreState) -> Summaries:
    """The summaries of the partitions of a run whose offset maps are there."""
    storage = state.storage
    paths = [info.path for info in storage.list(state.maps_folder)]

    def read(path: str) -> PartitionSummary:
        return read_summary(storage.read_range(path, 0, HEADER_MAX_BYTES), f"{storage.uri}/{path}")

    with ThreadPoolExecutor(_MAPS_AT_ONCE, thread_name_prefix="logkeep-maps") as pool:
        return {(found.target_topic, found.target_partition): found for found in pool.map(read, paths)}


def _explained(error: ArchiveDamaged, context: RestoreContext, planned: Planned) -> ArchiveDamaged:
    """The error, with other advice if retention has removed something of the plan since."""
    newest = with_branches(context.archive.load(), context.spec.source.topic_ids)
    gone = sum(
        any(
            start <= entry.base_offset < end
            for start, end in newest.removed.get((topic.topic_id, partition.partition), ())
        )
        for topic in planned.plan.topics
        for partition in topic.partitions
        for entry in planned.segments(topic, partition.partition)
    )
    if not gone:
        return error
    return ArchiveDamaged(
        error.message,
        hint=f"Retention has removed {gone} segments of what this restore brings since it was planned: it cannot "
        "come to its end. Delete what it has written, and begin another one with the backup suspended.",
        faults=error.faults,
    )

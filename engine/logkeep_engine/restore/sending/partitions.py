"""The step of a restore that sends records: one task item for each partition, and an offset map when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.held_tables import removed
from logkeep_engine.archive.ranges import Range
from logkeep_engine.errors import ArchiveDamaged, LogkeepError, SegmentsRemoved
from logkeep_engine.report import ProgressRange
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import PartitionSummary, stored_summary
from logkeep_engine.restore.model.plan import NO_TASK, PartitionPlan, pack, schema_topic
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.division.step import with_known
from logkeep_engine.restore.sending.evidence import refuse_other_maps
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.task import restore_partitions
from logkeep_engine.restore.sending.work import restore_task, with_task

Where = tuple[str, int]

Summaries = dict[Where, PartitionSummary]
"""By target topic and archived partition."""


def restore_open_partitions(context: RestoreContext, planned: Planned) -> Summaries:
    """Restore the partitions that have no offset map yet, those with schemas before all others, and return the
    summaries of all."""
    done = {} if planned.fresh else done_partitions(context.state)
    refuse_other_maps(planned, done.values(), context.state)
    tasks: list[RestoreTask] = []
    parts: dict[Where, ProgressRange] = {}
    for topic, partition in with_task(planned):
        segments = planned.segments(topic, partition.partition)
        start, end = _range_of(partition, segments)
        part = ProgressRange(len(parts), topic.target, topic.number_of(partition), start, end)
        where = topic.target, partition.partition
        if summary := done.get(where):
            part = replace(part, at=part.end, records=summary.records, bytes=summary.bytes)
        else:
            tasks.append(restore_task(context, planned, topic, partition, number=part.task))
        parts[where] = part
    undivided = [topic for topic in planned.plan.topics if not topic.divided]
    idle = sum(part.producer_id == NO_TASK for topic in undivided for part in topic.partitions)
    context.reporter.planned(list(parts.values()), topics=len(planned.plan.topics), idle=idle)
    context.reporter.phase("Running")

    def on_result(_: int, summaries: tuple[PartitionSummary, ...]) -> None:
        for summary in summaries:
            where = summary.target_topic, summary.source_partition
            done[where] = summary
            context.reporter.done(parts[where].task, summary.records, summary.bytes)

    first = schema_topic(context.spec)
    tasks = with_known(context, planned, tasks)
    try:
        _run(context, [task for task in tasks if task.archived.topic == first], on_result)
        _run(context, [task for task in tasks if task.archived.topic != first], on_result)
    except ArchiveDamaged as error:
        raise explained(error, context, planned) from error
    return done


def _run(
    context: RestoreContext,
    tasks: Sequence[RestoreTask],
    on_result: Callable[[int, tuple[PartitionSummary, ...]], None],
) -> None:
    """Run these tasks, several of them together. They write to the cluster."""
    if not tasks:
        return
    context.control.note_change()
    sizes = [task.archived.bytes for task in tasks]
    packed = pack(sizes, context.slots(len(sizes), sum(sizes), limited=True))
    context.run_tasks([tuple(tasks[at] for at in group) for group in packed], restore_partitions, on_result)


def _range_of(partition: PartitionPlan, segments: Sequence[SegmentEntry]) -> Range:
    """Return the offsets on which a task works."""
    extent = partition.extent
    return (0, extent.end) if extent is not None else (segments[0].base_offset, segments[-1].next_offset)


def done_partitions(state: RestoreState) -> Summaries:
    """Return the summaries of the partitions of a run whose offset maps are there."""
    done = state.read_all(state.maps_folder, lambda path: stored_summary(state.storage, path))
    return {(found.target_topic, found.source_partition): found for found in done}


def explained(error: ArchiveDamaged, context: RestoreContext, planned: Planned) -> LogkeepError:
    """Return the error, or another one if something of the plan was removed since, and deleted."""
    newest, storage = context.archive.load(), context.archive.storage
    gone = [
        (topic.source, entry)
        for topic, partition in with_task(planned)
        for entry in removed(
            newest, (topic.topic_id, partition.partition), planned.segments(topic, partition.partition)
        )
    ]
    # A run may have been killed after it has deleted them, and before the catalog says so.
    if all(any(storage.list(path)) for name, entry in gone for path in entry.objects(name)):
        return error
    return SegmentsRemoved(
        f"Retention has removed {len(gone)} segments of this restore since it was planned, and they are deleted: "
        f"it cannot finish. {error.message}",
        hint="Delete what it has written, and start another one with the backup suspended, or with a longer "
        "retention.grace.",
    )

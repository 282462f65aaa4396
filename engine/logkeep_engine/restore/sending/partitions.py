"""The step of a restore that sends records: one task item for each partition, and an offset map when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.held_tables import removed
from logkeep_engine.archive.ranges import Range
from logkeep_engine.errors import ArchiveDamaged, LogkeepError, SegmentsRemoved
from logkeep_engine.report import ProgressRange
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import HEADER_MAX_BYTES, PartitionSummary, read_summary
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan, pack, schema_topic
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.sending.division.step import divided_tasks, done_divided
from logkeep_engine.restore.sending.division.task import restore_divided
from logkeep_engine.restore.sending.evidence import refuse_other_maps
from logkeep_engine.restore.sending.task import restore_partitions
from logkeep_engine.restore.sending.work import number_of, restore_task, with_task
from logkeep_engine.tasks import TaskContext

T = TypeVar("T")
R = TypeVar("R")

Summaries = dict[tuple[str, int], PartitionSummary]
"""By target topic and partition; those of a divided topic by the archived partition."""


def restore_open_partitions(context: RestoreContext, planned: Planned) -> Summaries:
    """Restore the partitions that have no offset map yet, those with schemas before all others, and return the
    summaries of all."""
    done = {} if planned.fresh else done_partitions(context.state)
    refuse_other_maps(planned, done.values(), context.state)
    tasks: list[RestoreTask] = []
    divided: list[tuple[TopicPlan, RestoreTask]] = []
    parts: list[ProgressRange] = []
    for topic, partition in with_task(planned):
        segments = planned.segments(topic, partition.partition)
        start, end = _range_of(partition, segments)
        shown = number_of(topic, partition)
        part = ProgressRange(len(parts), topic.target, shown, start, end)
        summary = done.get((topic.target, shown))
        if summary is not None:
            part = replace(part, at=part.end, records=summary.records, bytes=summary.bytes)
        else:
            task = restore_task(context, planned, topic, partition, number=part.task)
            if topic.divided:
                divided.append((topic, task))
            else:
                tasks.append(task)
        parts.append(part)
    idle = sum(len(topic.partitions) for topic in planned.plan.topics if not topic.divided)
    idle -= sum(not topic.divided for topic, _ in with_task(planned))
    context.reporter.planned(parts, topics=len(planned.plan.topics), idle=idle)
    context.reporter.phase("Running")
    numbers = {(part.topic, part.partition): part.task for part in parts}

    def on_result(_: int, summaries: tuple[PartitionSummary, ...]) -> None:
        for summary in summaries:
            where = summary.target_topic, summary.target_partition
            done[where] = summary
            context.reporter.done(numbers[where], summary.records, summary.bytes)

    first = schema_topic(context.spec)
    try:
        for some in (
            [task for task in tasks if task.source == first],
            [task for task in tasks if task.source != first],
        ):
            _run(context, some, [task.bytes for task in some], restore_partitions, on_result)
        sizes = [task.bytes for _, task in divided]
        _run(context, divided_tasks(context, planned, divided), sizes, restore_divided, on_result)
    except ArchiveDamaged as error:
        raise explained(error, context, planned) from error
    return done


def _run(
    context: RestoreContext,
    tasks: Sequence[T],
    sizes: Sequence[int],
    function: Callable[[tuple[T, ...], TaskContext], R],
    on_result: Callable[[int, R], None],
) -> None:
    """Run a function over tasks of so many bytes, several of them together. They write to the cluster."""
    if tasks:
        context.control.note_change()
    packed = pack(sizes, context.slots(len(sizes), sum(sizes), limited=True)) if tasks else []
    context.run_tasks([tuple(tasks[at] for at in group) for group in packed], function, on_result)


def _range_of(partition: PartitionPlan, segments: Sequence[SegmentEntry]) -> Range:
    """The offsets on which a task works."""
    extent = partition.extent
    return (0, extent.end) if extent is not None else (segments[0].base_offset, segments[-1].next_offset)


def done_partitions(state: RestoreState) -> Summaries:
    """The summaries of the partitions of a run whose offset maps are there."""
    storage = state.storage

    def read(path: str) -> PartitionSummary:
        return read_summary(storage.read_range(path, 0, HEADER_MAX_BYTES), f"{storage.uri}/{path}")

    done = state.read_all(state.maps_folder, read)
    return {**{(found.target_topic, found.target_partition): found for found in done}, **done_divided(state)}


def explained(error: ArchiveDamaged, context: RestoreContext, planned: Planned) -> LogkeepError:
    """The error, or another one if something of the plan was removed since, and deleted."""
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
        f"Retention has removed {len(gone)} segments of what this restore brings since it was planned, and they are "
        f"deleted: it cannot finish. {error.message}",
        hint="Delete what it has written, and begin another one with the backup suspended, or with a longer "
        "retention.grace.",
    )

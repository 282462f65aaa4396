"""A restore to a point in which no record lies is refused, as every restore that would bring none.

The catalog alone cannot show it: which transactions lie within a point, and which records of a batch, only the records
say. So before a topic is created they are looked for, as far as that costs little. What was not found out then is found
out when all is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import NothingToRestore, TargetUnsuitable
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.rows import rows_of_batch
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.sending.partitions import Summaries
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.sending.work import restore_task, with_task
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.topics.emptiness import OUTSIDE, nothing_there
from logkeep_engine.tasks import TaskContext

# ---- keyless

# The search for records without a key: a compacted topic would refuse one in the middle of the restore, so they are
# looked for before anything is written.


def refuse_without_key(context: RestoreContext, planned: Planned) -> None:
    """Raises TargetUnsuitable if a record without a key would go to a compacted topic."""
    work = [
        restore_task(context, planned, topic, partition) for topic, partition in with_task(planned) if topic.compacts
    ]
    found: dict[int, int | None] = {}
    context.run_tasks(work, first_without_key, found.__setitem__)
    for index, offset in sorted(found.items()):
        if offset is not None:
            archived, target = work[index].archived, work[index].topic.target
            raise TargetUnsuitable(
                f"topic {target} is compacted and refuses records without a key: {archived.topic} partition "
                f"{archived.partition} has one at offset {offset}; nothing was written",
                hint=f"Restore under another name, or take compact out of cleanup.policy of {target} for the "
                "time of the restore.",
            )


def first_without_key(task: RestoreTask, context: TaskContext) -> int | None:
    """Runs on an executor: the source offset of the first record without a key of all that the task would send."""
    with closing(stream_of(task, 0)) as stream:
        for item in stream:
            found = _without_key(item)
            if found is not None:
                return found
    return None


def _without_key(item: Outgoing) -> int | None:
    batch = memoryview(b"".join(item.data or ()))
    number = passed = 0
    for rows in rows_of_batch(batch, parse_header(batch)):
        found = rows.first_without_key()
        if found is not None:
            number = passed + found
            break
        passed += len(rows)
    else:
        return None
    for first, count in item.source:
        if number < count:
            return first + number
        number -= count
    raise AssertionError(f"a batch of {item.count} records has source offsets of fewer")


LOOK_BYTES = 256 << 20
"""The bytes of the archive that are looked through for a record within the point, at most."""


def refuse_outside(context: RestoreContext, planned: Planned) -> None:
    """Raises NothingToRestore if a look at the archive shows that no record lies within the point."""
    refused_before = any(isinstance(error, NothingToRestore) for error in context.refusals.found)
    if planned.plan.point is None or context.spec.allow_empty or refused_before:
        return
    tasks = [restore_task(context, planned, topic, partition) for topic, partition in with_task(planned)]
    if not tasks or any(_holds_some(task.archived) for task in tasks):
        return
    left = LOOK_BYTES
    for task in sorted(tasks, key=lambda task: task.archived.bytes):
        left -= task.archived.bytes
        if left < 0:
            return  # the end of the restore shows it
        with closing(stream_of(task, 0)) as stream:
            if any(item.count for item in stream):
                return
    raise nothing_there(dict.fromkeys(sorted({task.archived.topic for task in tasks}), OUTSIDE))


def _holds_some(archived: ArchivedPartition) -> bool:
    """Return whether the catalog alone shows that a record lies within the point."""
    return any(
        segment.base_offset not in archived.damaged and _lies_within(archived.clip, segment)
        for segment in archived.segments
    )


def _lies_within(clip: Clip | None, segment: SegmentEntry) -> bool:
    """Return whether the newest record of the segment lies within the clip for sure."""
    if segment.transactional or not segment.records:
        return False
    if clip is None:
        return True
    newest = segment.times.max_timestamp
    return (
        (clip.end is None or segment.next_offset <= clip.end)
        and (clip.since is None or newest >= clip.since)
        and (clip.before is None or newest < clip.before)
    )


def refuse_without_records(context: RestoreContext, planned: Planned, summaries: Summaries) -> None:
    """Raises NothingToRestore if no record lay within the point, now that all of them were looked at."""
    plan = planned.plan
    if plan.point is None or context.spec.allow_empty or any(item.records for item in summaries.values()):
        return
    text = "no record of the archive is within spec.point"
    hint = "With spec.allowEmpty: true such a restore succeeds."
    if context.drill is not None:
        raise NothingToRestore(f"{text}: the drill proves nothing", hint=f"Drill another point. {hint}")
    if created := [topic.target for topic in plan.topics if topic.created]:
        text, hint = f"{text}; the topics that were created are empty: {shown(created)}", f"Delete them. {hint}"
    raise NothingToRestore(text, hint=f"Restore to another point. {hint}")


def describe_outside(plan: RestorePlan, summaries: Summaries) -> Iterator[str]:
    """Yield the warning about topics of which no record lay within the point, though the archive holds segments that
    might have had some. `emptiness` describes the others."""
    if plan.point is None:
        return
    records: dict[str, int] = {}
    for summary in summaries.values():
        records[summary.target_topic] = records.get(summary.target_topic, 0) + summary.records
    if empty := sorted(name for name, count in records.items() if not count):
        topics = so_many(len(empty), "topic")
        yield f"no record of {topics} is within spec.point: nothing was restored to {shown(empty)}"

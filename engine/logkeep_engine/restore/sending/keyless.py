"""The search for records without a key: a compacted topic would refuse one in the middle of the restore, so they are
looked for before anything is written.
"""

from __future__ import annotations

from contextlib import closing

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.rows import rows_of_batch
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.sending.work import restore_task, with_task
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.tasks import TaskContext


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

"""Records without a key, which a compacted topic refuses: they are looked for before anything is written to one."""

from __future__ import annotations

from contextlib import closing

from logkeep_engine.log.records import decode
from logkeep_engine.restore.filter import Outgoing
from logkeep_engine.restore.task import RestoreTask, stream_of
from logkeep_engine.tasks import TaskContext


def first_without_key(task: RestoreTask, context: TaskContext) -> int | None:
    """Runs on an executor: the source offset of the first record without a key of all that the task would send."""
    with closing(stream_of(task, 0)) as stream:
        for item in stream:
            found = _without_key(item)
            if found is not None:
                return found
    return None


def _without_key(item: Outgoing) -> int | None:
    records = decode(b"".join(item.data or ()))
    number = next((at for at, record in enumerate(records) if record.key is None), None)
    if number is None:
        return None
    for first, count in item.source:
        if number < count:
            return first + number
        number -= count
    raise AssertionError(f"a batch of {len(records)} records has source offsets of fewer")

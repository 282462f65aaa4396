"""The aborted transactions of a source: a format of records leaves them out, as a restore does.

source = look_through(source, runner_factory)      # finds them, in tasks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import Transactions, open_partition
from logkeep_engine.convert.source import ConvertSource
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext, TaskRunner, no_update


@dataclass(frozen=True, slots=True)
class OutcomesTask:
    """A partition whose transactions are to be found, see `archive.reading.outcomes`. It pickles without secrets."""

    storage: Storage
    topic: str
    segments: tuple[SegmentEntry, ...]
    kept: tuple[Range, ...]


def find_outcomes(task: OutcomesTask, context: TaskContext) -> Transactions:
    """Find how the transactions of a partition ended. This runs on an executor. Raises ArchiveDamaged if something of
    the partition cannot be read: the outcome is then unknown."""
    return open_partition(task.storage, task.topic, task.segments, task.kept).transactions


def look_through(source: ConvertSource, runner_factory: Callable[[], TaskRunner]) -> ConvertSource:
    """Return the source with the `aborted` transactions of its partitions. A note says where an index was not believed.
    Raises ArchiveDamaged."""
    keys, work = [], []
    for key in sorted(source.segments):
        entries = tuple(entry for entry in source.segments[key] if isinstance(entry, SegmentEntry))
        if any(entry.transactional for entry in entries):  # others cost no task
            keys.append(key)
            kept = tuple(source.coverage.get(key, ()))
            work.append(OutcomesTask(source.storage, source.topic_names[key[0]], entries, kept))
    if not work:
        return source
    aborted: dict[Partition, tuple[AbortedTxn, ...]] = {}
    notes: dict[Partition, str] = {}

    def on_result(index: int, found: Transactions) -> None:
        key, disagreements = keys[index], found.outcomes.disagreements
        aborted[key] = tuple(found.aborted)
        if disagreements:
            more = f"; and {len(disagreements) - 1} more transactions" if len(disagreements) > 1 else ""
            notes[key] = f"topic {source.topic_names[key[0]]!r} partition {key[1]}: {disagreements[0]}{more}"

    runner_factory().run(work, find_outcomes, on_result, no_update)
    return replace(source, aborted=aborted, notes=(*source.notes, *(notes[key] for key in sorted(notes))))

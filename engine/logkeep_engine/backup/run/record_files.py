"""Writes the files next to the segments of the Records format, at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logkeep_engine.archive.catalog.facts import GroupEntry, TopicEntry
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.leftovers import may_have_leftovers
from logkeep_engine.archive.writing.record_files import (
    every_partition,
    newest_topics,
    positions_by_partition,
    write_consumer_offsets,
    write_partition_indexes,
)
from logkeep_engine.backup.model.plan import BackupPlan


def write_record_files(
    writer: Writer, plan: BackupPlan, groups: Sequence[GroupEntry], before: Mapping[str, TopicEntry]
) -> None:
    """Bring the files next to the segments up to date (see `archive.writing.record_files`), at the end of a run of the
    Records format: those of partitions that the run has read, that are new, or where a group stands elsewhere now, and
    all of them if the run before did not finish. `groups` are the positions after the run, `before` the topics
    that were known when it began.

    Partitions without records have an index only. Raises ArchiveFenced if another run has taken over.
    """
    storage, state = writer.archive.storage, writer.state
    archived = set(state.segments)
    if may_have_leftovers(writer):
        changed = archived
        empty = set(every_partition(newest_topics(state))) - archived
    else:
        changed = {(chunk.topic_id, chunk.partition) for chunk in plan.chunks} & archived
        empty = set(every_partition(plan.topics)) - set(every_partition(before.values())) - archived
    were, are = positions_by_partition(state.groups), positions_by_partition(groups)
    moved = {key for key in archived if were.get(key) != are.get(key)}
    write_partition_indexes(storage, state, sorted(changed | empty))
    write_consumer_offsets(storage, state, sorted(changed | moved), groups)

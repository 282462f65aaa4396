"""Heals stale keys: another generation of a partition becomes due, and the next backup reads it.

    report = make_due(writer, report, compared)

Only the log itself can bring back a tombstone that the archive lacks, so all of the log is read again (see
`backup.planning.generations`). One commit says of which partitions, and the archive keeps it until their generations
are active, however often a backup dies in the meantime. A kill before that commit leaves nothing: the next
reconciliation finds the keys again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.backup.reconcile.report import ReconcileReport
from logkeep_engine.backup.reconcile.task import ReconciledPartition

CHANGED = "a new generation of it has become active since it was compared: compare again"
FIRST = "its first generation is not active yet: compare again after the next backup"
WRONG = "the archive lacks records that it must have: keep it as it is, and start a new one"


def to_heal(partitions: Iterable[ReconciledPartition]) -> list[ReconciledPartition]:
    """Return the partitions with stale keys."""
    return [item for item in partitions if item.counts.stale]


def make_due(writer: Writer, report: ReconcileReport, compared: ArchiveState) -> ReconcileReport:
    """Make new generations due of the partitions with stale keys, in one commit; returns the report that says so.
    `compared`: the state in which they were found. Raises what the writer does."""
    told, changes = {}, []
    for item in to_heal(report.partitions):
        key, state = item.key, writer.state
        told[key] = WRONG if item.counts.wrong else why_not(state, compared, key)
        known = generation_of(state, key)
        if not told[key] and not known.due:
            changes.append(GenerationChange(*key, known.number, GenerationStep.DUE))
    writer.change_generations(changes)
    return replace(report, healing=told)


def why_not(state: ArchiveState, compared: ArchiveState, key: Partition) -> str:
    """Return the reason why a partition that was compared cannot have a new generation; empty if it can."""
    number = generation_of(state, key).number
    if not number:
        return FIRST
    return CHANGED if number != generation_of(compared, key).number else ""

"""The steps of a backup once everything is archived, or was tried: its end in the archive, and what follows it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from logkeep_engine.archive.catalog.facts import GroupEntry, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.leftovers import may_have_leftovers
from logkeep_engine.archive.maintenance.retaining import retain
from logkeep_engine.archive.writing.record_files import (
    every_partition,
    newest_topics,
    positions_by_partition,
    write_consumer_offsets,
    write_partition_indexes,
)
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.model.selection import retention_rules
from logkeep_engine.backup.planning.divergence import diverged
from logkeep_engine.backup.planning.planner import unavailable
from logkeep_engine.backup.recoverability.coverage import unmatched_error
from logkeep_engine.backup.recoverability.watch import EndedBackup
from logkeep_engine.backup.run.archive_report import archive_report, retained_by
from logkeep_engine.backup.run.context import BackupContext
from logkeep_engine.backup.run.merging import merge_segments
from logkeep_engine.backup.run.summary import data_loss, disagreement_message, loss_facts, loss_message
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.contract.spec import OnDataLoss
from logkeep_engine.errors import LogkeepError

# ---- record files

# Writes the files next to the segments of the Records format, at the end of a run.


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


log = logging.getLogger(__name__)


def loss_of(context: BackupContext) -> list[LossFact]:
    """Return everything that this run, in all its attempts, found gone."""
    state = context.writer.state
    return loss_facts(context.plan, state, context.losses.open(state))


def end(context: BackupContext) -> None:
    """End the run in the archive as succeeded, or raise the error of a failed one.

    For the archive, a run that only misses topics which the cluster does not have is a success: restores take all of
    it, with the positions of groups. The next step raises that error.
    """
    plan, writer, spec = context.plan, context.writer, context.spec
    context.tried_all = True
    if context.failures:
        raise context.failures[0]
    if plan.unavailable:
        raise unavailable(plan.unavailable, MAX_LIST)
    forks = [*context.forks, *(fork for fork in plan.forks if not fork.branch_id)]
    if forks:
        raise diverged(forks, plan.topic_names, spec.format)
    loss = loss_of(context)
    if loss and spec.on_data_loss is OnDataLoss.FAIL:
        raise data_loss(loss)
    missed = unmatched_error(plan, spec)
    gone = {topic.topic_id for topic in plan.gone}  # the cluster has deleted the positions with the topic
    groups = writer.state.groups_after(plan.groups, [item for item in plan.topics if item.topic_id not in gone])
    if spec.format is FormatName.RECORDS:
        write_record_files(writer, plan, groups, context.topics_before)
    lines = (loss_message(loss), disagreement_message(context.disagreements), missed.message if missed else "")
    message = "; ".join(filter(None, lines))
    writer.end(RunOutcome.SUCCEEDED, message, groups, cluster_state=context.cluster_state)
    context.groups = len(plan.groups)


def snapshot(context: BackupContext) -> None:
    """Make the snapshots of compacted partitions that are due."""
    if not any(topic.is_compacted for topic in context.writer.state.topics.values()):
        return
    from logkeep_engine.backup.run.snapshots import make_snapshots  # a cluster may have no compacted topics

    made = make_snapshots(context.writer, context.spec, context.reporter, context.runner_factory, context.expect)
    context.notes += made.notes
    context.say(str(made))


def refuse_unmatched(context: BackupContext) -> None:
    """Raises PatternsUnmatched for topics that the cluster does not have. Retention waits then: they may be wanted from
    the archive."""
    missed = unmatched_error(context.plan, context.spec)
    if missed is not None:
        raise missed


def remove_old(context: BackupContext) -> None:
    """Remove what `spec.retention` does not keep."""
    try:
        done = context.retained = retain(context.writer, retention_rules(context.spec))
    except LogkeepError as error:
        context.note("retention could not be finished, the next run continues it", error)
        return
    context.notes += done.notes
    if done.removed.bytes:
        context.say(f"retention removed {done.removed}")


def merge_small(context: BackupContext) -> None:
    """Merge small segments, so that objects stay large."""
    try:
        segment = context.spec.segment
        merged = merge_segments(context.writer, segment, context.runner_factory, first_task=context.tasks)
    except LogkeepError as error:
        context.note("small segments could not be merged, the next run continues it", error)
        return
    context.notes += merged.notes
    context.say(str(merged))


def digest_records(context: BackupContext) -> None:
    """Make digests of what was archived, if asked. A verification makes those that lack, so nothing fails for them."""
    if not context.spec.segment.record_digests:
        return

    from logkeep_engine.backup.run.digests import make_missing  # few archives have digests

    try:
        made = make_missing(context)
        log.info("made digests of the records of %d segments", made)
    except LogkeepError as error:
        context.note("digests of records could not be made", error)


def describe(context: BackupContext) -> None:
    """Describe the archive as the run has left it. Nothing of that makes a run fail."""
    writer = context.writer
    ended = EndedBackup(context.run_id, writer.archive, writer.state, context.plan, context.not_archived)
    try:
        rules = retention_rules(context.spec)
        context.report = archive_report(ended, context.connection, retained_by(writer.state, rules, context.retained))
    except LogkeepError as error:
        context.note("the archive could not be described", error)


def look_for_stale_keys(context: BackupContext) -> None:
    """Look for stale keys in the archive as this run has left it."""
    from logkeep_engine.backup.reconcile.step import reconcile_backup

    report = reconcile_backup(
        context.writer, context.spec, context.connection, context.runner_factory, context.reporter, context.expect
    )
    context.reconciled = report.facts()
    report.raise_if_wrong()

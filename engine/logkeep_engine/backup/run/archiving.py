"""The steps of a backup that archive: what the cluster knows of its users, then all that the plan says.

Objects are written before the commit that names them. Chunks are fetched by topic id, so they cannot be another
incarnation's. Where a broker made the engine ask by name, the topic's id is looked up after its chunks were read and
before they are committed: ids never come back, so an unchanged id means the bytes are of that incarnation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from logkeep_engine.archive.catalog.facts import Branching, GenerationChange, GenerationStep
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.history.compacted import is_exact_below
from logkeep_engine.backup.model.plan import BackupPlan, Piece, open_gaps, pack
from logkeep_engine.backup.pieces.commit import BackupCommitter
from logkeep_engine.backup.pieces.losses import ArchivePieces, LossSearch, OnPieces, Work, loses_records, refuse_losses
from logkeep_engine.backup.pieces.task import BackupTask, PieceDone, archive_task
from logkeep_engine.backup.pieces.writer import setting_of
from logkeep_engine.backup.planning.divergence import compare_again
from logkeep_engine.backup.planning.generations import open_changes
from logkeep_engine.backup.run.cluster_state import archive_cluster_state
from logkeep_engine.backup.run.context import BackupContext
from logkeep_engine.contract.cluster_state import ClusterStateMode
from logkeep_engine.errors import ArchiveMismatch, BrokerRefused
from logkeep_engine.report import ProgressRange
from logkeep_engine.tasks import PartitionUpdate, no_update

# One commit continues the logs of all partitions that were cut off in the cluster as new lines of the archive (see
# `held_lines`), and nothing that is archived moves. Where what is left of a compacted log is not exact, because records
# that had overwritten others were cut off or retention has removed what a snapshot of the old log stands for, the same
# commit says that another generation is due: the log is read again.


def branch_off(writer: Writer, forks: Iterable[Fork]) -> None:
    """Make branches of the archived offsets from these forks on. A fork that has a branch is left out. Raises what
    `Writer.commit` raises."""
    state = writer.state
    # An earlier attempt may have done it.
    wanted = [fork for fork in forks if not state.has_branch((fork.topic_id, fork.partition), fork.branch_id)]
    if wanted:
        branchings = [Branching(fork.topic_id, fork.partition, fork.branch_id, fork.offset) for fork in wanted]
        writer.branch(branchings, _due(state, wanted))
        log.info("%d partitions were cut off in the cluster: their old ends are branches now", len(wanted))


def _due(state: ArchiveState, forks: Iterable[Fork]) -> Iterator[GenerationChange]:
    """Yield the generations that are due since what is left of a log that is compacted, or was, is not exact."""
    for fork in forks:
        key = (fork.topic_id, fork.partition)
        number = generation_of(state, key).number
        if number and state.topics[fork.topic_id].was_compacted and not is_exact_below(state, key, fork.offset):
            yield GenerationChange(*key, number, GenerationStep.DUE)


log = logging.getLogger(__name__)


def archive_users(context: BackupContext) -> None:
    """Archive what the cluster knows of its users, at the time of the plan, if the spec asks for it."""
    if context.spec.cluster_state is ClusterStateMode.ARCHIVE:
        archive, left_out = context.writer.archive, context.planner.left_out
        context.cluster_state, warnings = archive_cluster_state(context.run_id, archive, context.control, left_out)
        context.notes += warnings


def leave_out_what_has_changed(context: BackupContext) -> None:
    """In a later attempt, archive nothing of partitions whose logs may not be those of the plan any more."""
    writer = context.writer
    if writer.state.runs[context.run_id].attempts == 1:
        return
    branch_off(writer, context.plan.branches)
    compared = compare_again(context.control, context.plan, writer.state)
    context.forks = compared.forks
    context.not_archived = compared.left_out
    context.failures += compared.unanswered.values()


def archive_everything(context: BackupContext) -> None:
    """Archive all that the plan says. Partitions that gave no answer when the run was planned may answer now."""
    _archive_plan(context)
    while context.plan.unavailable and not context.failures and (more := _asked_again(context)) is not None:
        context.plan = more
        _archive_plan(context)


def activate_generations(context: BackupContext) -> None:
    """Make generations active that are whole, with what was written to their logs meanwhile."""

    def archive(wanted: BackupPlan) -> bool:
        context.plan = wanted
        _archive_plan(context)
        return not context.failures

    if not context.failures:
        context.plan = context.activating.perform(
            context.writer, context.planner, context.plan, context.not_archived, archive
        )


def _asked_again(context: BackupContext) -> BackupPlan | None:
    """Ask again for partitions that were unavailable. A refusal fails the run, which keeps all that it has
    archived."""
    try:
        return context.planner.ask_again(context.plan, context.writer.state)
    except (BrokerRefused, ArchiveMismatch) as error:
        context.fail(error)
        return None


def _archive_plan(context: BackupContext) -> None:
    """Archive all offsets of the plan for which the archive does not account yet."""
    plan, writer, losses = context.plan, context.writer, context.losses
    branch_off(writer, plan.branches)
    writer.change_generations(open_changes(writer.state, plan.generations))
    losses.topics = plan.names_with(writer.state)
    found, left = losses.prove([gap for gap in open_gaps(plan, writer.state) if not context.left_out(gap)])
    for _, error in left:
        context.fail(error)
    pieces = context.open_pieces()
    unchecked: Collection[int] = ()
    if loses_records(context.spec.format, context.spec.format_options):
        unchecked = _search_losses(context, pieces)
        refuse_losses(context.format_losses, context.spec)
    writer.commit(topics=plan.topics, receipts=found, leaders=plan.leaders)
    _announce(context, pieces)
    pieces = [piece for piece in pieces if piece.number not in unchecked]
    while pieces:
        _archive_pieces(context, pieces)
        # If a log has changed between two fetches, neighbours may have left offsets to each other. Each round accounts
        # for all of the first piece of a partition.
        over = context.failures or losses.open(writer.state)
        pieces = [] if over else context.open_pieces()


def _announce(context: BackupContext, pieces: Sequence[Piece]) -> None:
    """Tell the reporter what the run will do. Chunks of an earlier attempt count as done, so progress continues
    where it was."""
    plan, open_from = context.plan, dict[int, int]()
    for piece in pieces:
        open_from[piece.number] = min(piece.start, open_from.get(piece.number, piece.start))
    context.reporter.planned(
        (
            ProgressRange(
                number, chunk.topic, chunk.partition, chunk.start, chunk.end, at=open_from.get(number, chunk.end)
            )
            for number, chunk in enumerate(plan.chunks)
        ),
        topics=len(plan.topics),
        idle=plan.idle + len(plan.unavailable),
    )
    context.reporter.phase("Running")


def _search_losses(context: BackupContext, pieces: Sequence[Piece]) -> Collection[int]:
    """Look for what the format cannot hold of the records of this run. Returns the numbers of chunks that could not be
    looked through, and must not be archived: the run fails with their failures, when all else is done."""
    archive = context.writer.archive
    setting = setting_of(context.spec, archive.storage, context.connection, context.writer.epoch)
    search = LossSearch(archive, context.run_id, setting, context.slots(pieces))

    def run_tasks(work: Sequence[Work], function: ArchivePieces, on_result: OnPieces) -> None:
        context.reporter.phase("Checking")
        context.runner_factory().run(work, function, on_result, no_update, context.limits)

    found = search.search(pieces, len(context.plan.chunks), run_tasks)
    context.format_losses = found.losses
    context.failures += found.failures.values()
    return found.failures.keys()


def _archive_pieces(context: BackupContext, pieces: Sequence[Piece]) -> None:
    """Archive pieces in tasks, and commit what these return."""
    writer, spec = context.writer, context.spec
    setting = setting_of(spec, writer.archive.storage, context.connection, writer.epoch)
    shared = pack(pieces, context.slots(pieces), limited=spec.limits.bytes_per_second_int is not None)
    work = [BackupTask(number, some) for number, some in enumerate(shared, start=context.tasks)]
    context.tasks += len(work)
    committer = BackupCommitter(writer, context.control, context.losses, context.fail)
    by_number = {piece.number: piece for piece in pieces}
    left = Counter(piece.number for piece in pieces)

    def on_result(index: int, done: tuple[PieceDone, ...]) -> None:
        failures = committer.take(done)
        context.activating.unread |= committer.unread
        for result in done:
            context.repeated = context.repeated or result.repeated
            _note_disagreements(context, result, by_number[result.number])
            context.activating.saw(by_number[result.number], result)
            if (failure := failures.get(result.number)) is not None:
                context.fail(failure)
                continue
            left[result.number] -= 1
            if left[result.number] == 0:
                segments = result.receipt.segments if result.receipt else ()
                records, size = sum(entry.records for entry in segments), sum(entry.bytes for entry in segments)
                context.reporter.done(result.number, records, size)
        committer.commit_if_due()

    def on_update(update: PartitionUpdate) -> None:
        context.reporter.update(update)
        committer.commit_if_due()

    log.info("archiving %d chunks in %d tasks", len(pieces), len(work))
    with committer:
        context.runner_factory().run(work, partial(archive_task, setting), on_result, on_update, context.limits)


def _note_disagreements(context: BackupContext, done: PieceDone, piece: Piece) -> None:
    for item in done.disagreements:
        context.disagreements.append(f"T{piece.where[1:]}: {item}: the marker holds")
        log.warning("%s", context.disagreements[-1])

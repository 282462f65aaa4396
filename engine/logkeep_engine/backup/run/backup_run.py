"""A backup run from beginning to end: begin, plan, archive, commit, end.

The order makes it safe. Consumer groups are read before end offsets, so no position lies past the archived end.
The plan is stored before the first task, so a driver that starts again does the same chunks. Objects are written before
the commit that names them. Chunks are fetched by topic id, so they cannot be another incarnation's. Where a broker made
the engine ask by name, the topic's id is looked up after its chunks were read and before they are committed: ids never
come back, so an unchanged id means the bytes are of that incarnation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import claim_of
from logkeep_engine.archive.catalog.facts import ClusterStateEntry, Gap, Partition, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.maintenance.branching import branch_off
from logkeep_engine.archive.maintenance.retaining import RetentionDone, empty_holds, retain, with_spec_holds
from logkeep_engine.archiving import ArchivingRun
from logkeep_engine.backup.model.plan import (
    BackupPlan,
    Piece,
    demand_of,
    open_gaps,
    open_pieces,
    pack,
)
from logkeep_engine.backup.model.selection import retention_rules
from logkeep_engine.backup.pieces.commit import BackupCommitter
from logkeep_engine.backup.pieces.losses import (
    ArchivePieces,
    LossSearch,
    OnPieces,
    Work,
    format_warnings,
    loses_records,
    refuse_losses,
)
from logkeep_engine.backup.pieces.proof import LossBook
from logkeep_engine.backup.pieces.task import BackupTask, PieceDone, archive_task
from logkeep_engine.backup.pieces.writer import setting_of
from logkeep_engine.backup.planning.divergence import ComparedAgain, compare_again, diverged
from logkeep_engine.backup.planning.generations import generation_warnings, open_changes
from logkeep_engine.backup.planning.planner import BackupPlanner, unavailable
from logkeep_engine.backup.reconcile.step import reconcile_backup
from logkeep_engine.backup.recoverability.coverage import coverage, gone_warnings, selection_warnings, unmatched_error
from logkeep_engine.backup.recoverability.watch import EndedBackup
from logkeep_engine.backup.run.activating import Activating
from logkeep_engine.backup.run.archive_report import archive_report, retained_by
from logkeep_engine.backup.run.cluster_state import archive_cluster_state
from logkeep_engine.backup.run.dry_run import BackupDryRun
from logkeep_engine.backup.run.erasing import AskedErasures
from logkeep_engine.backup.run.merging import merge_segments
from logkeep_engine.backup.run.record_digests import DigestWork, MakeDigests, OnDigests, make_missing
from logkeep_engine.backup.run.record_files import write_record_files
from logkeep_engine.backup.run.snapshots import make_snapshots
from logkeep_engine.backup.run.summary import (
    data_loss,
    disagreement_message,
    done_already,
    log_warnings,
    loss_facts,
    loss_message,
)
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.cluster_state import ClusterStateMode
from logkeep_engine.contract.facts.archive import ArchiveReport
from logkeep_engine.contract.facts.outcome import LossFact, ReconcileFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST, RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, OnDataLoss
from logkeep_engine.errors import (
    ArchiveMismatch,
    BrokerRefused,
    ErasureFailed,
    LogkeepError,
)
from logkeep_engine.formats.base import Loss
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.limits import NO_LIMITS, RunLimits
from logkeep_engine.report import ProgressRange, Reporter, told_warnings
from logkeep_engine.storage import Storage, open_storage
from logkeep_engine.tasks import Expect, PartitionUpdate, TaskRunner, no_update

log = logging.getLogger(__name__)


def run_backup(
    request: RunRequest,
    spec: KafkaBackupSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: MutableMapping[str, str],
    timing: Timing | None = None,
    expect: Expect | None = None,
) -> RunResult:
    """Archive what is new in the topics of `spec`, and say how it went. `runner_factory` is called only if there is
    something to do, and before that `expect` gets the amount. `timing` is how runs watch each other.

    Never raises for what happens in a run: every error becomes a result with its exit code, and is noted in the archive
    if the run had begun there. The same `request.run_id` again continues with the same plan. A dry run writes nothing.
    The caller hands the result to the reporter.
    """
    if spec.dry_run:
        return BackupDryRun(request, spec, reporter, environ).perform()
    return BackupRun(request, spec, runner_factory, reporter, environ, timing, expect).perform()


class BackupRun(ArchivingRun):
    def __init__(
        self,
        request: RunRequest,
        spec: KafkaBackupSpec,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
        environ: MutableMapping[str, str],
        timing: Timing | None = None,
        expect: Expect | None = None,
    ) -> None:
        super().__init__(request.run_id, request.kind, reporter, request.requested_by)
        self._timing = timing
        self._spec = spec
        self._request = request
        self._runner_factory = runner_factory
        self._expect = expect
        self._environ = environ
        self._plan: BackupPlan | None = None
        self._topics_before: Mapping[str, TopicEntry] = {}
        self._failures: list[LogkeepError] = []
        self._forks: tuple[Fork, ...] = ()
        self._not_archived: set[Partition] = set()
        self._losses: tuple[Loss, ...] = ()
        self._losses_found: LossBook | None = None
        self._disagreements: list[str] = []
        self._repeated = False
        self._tasks = 0  # that were begun in this attempt
        self._activating = Activating()
        self._erasures = AskedErasures(spec.erasures, runner_factory, environ)
        self._groups = 0
        self._cluster_state: ClusterStateEntry | None = None
        self._message = ""
        self._connected: KafkaConnection | None = None
        self._report: ArchiveReport | None = None
        self._retained: RetentionDone | None = None
        self._reconciles = bool(request.reconcile)
        self._reconciled: ReconcileFacts | None = None

    def execute(self) -> None:
        self._reporter.phase("Planning")
        claim = claim_of(self._request)
        storage = open_storage(self._spec.storage, self._environ)
        storage.check()
        connection = self._connection()
        with ControlPlane(connection) as control:
            cluster_id = control.cluster_id()
            self._archive = Archive.create_or_open(storage, cluster_id, self._spec.format, claim=claim)
            connection = replace(connection, cluster_id=cluster_id)
            control.only(cluster_id)
            self._connected = connection
            writer = self._writer = begin_run(self._archive, self._run_id, wait=self._timing)
            self._notes += writer.warnings
            self._hold(writer)
            if self._had_succeeded:
                self._notes.append(done_already(self._run_id))
            self._topics_before = dict(writer.state.topics)
            attempt = writer.state.runs[self._run_id].attempts
            self._reporter.phase("Planning", attempt=attempt)
            log.info(
                "run %s writes the archive at %s at epoch %d, attempt %d",
                writer.run_id,
                storage.uri,
                writer.epoch,
                attempt,
            )
            planner = BackupPlanner(self._run_id, self._spec, self._archive, control, connection)
            planner.told = self._notes
            plan = planner.load_or_make(writer.state)
            losses = self._losses_found = LossBook(control, record=self._spec.on_data_loss is OnDataLoss.RECORD)
            self._plan = plan
            self._archive_cluster_state(writer, control, planner)
            if attempt > 1:
                branch_off(writer, plan.branches)
                self._leave_out(compare_again(control, plan, writer.state))
            self._archive_plan(plan, connection, control, writer, losses)
            # Partitions that gave no answer when the run was planned may answer now.
            while (
                plan.unavailable and not self._failures and (more := self._ask_again(planner, plan, writer)) is not None
            ):
                plan = self._plan = more
                self._archive_plan(plan, connection, control, writer, losses)

            def archive(wanted: BackupPlan) -> bool:
                self._plan = wanted
                self._archive_plan(wanted, connection, control, writer, losses)
                return not self._failures

            if not self._failures:
                plan = self._activating.perform(writer, planner, plan, self._not_archived, archive)
        self._reporter.phase("Finishing")
        self._conclude(plan, writer)
        if self._spec.segment.record_digests:
            self._make_digests(writer)
        self._describe(writer)
        if self._reconciles:
            self._reconcile(writer, connection)
        # The writer's state names what an erasure deletes, so nothing may follow that reads the archive by it.
        self._message = "; ".join(filter(None, (self._message, *self._erasures.perform(writer.archive))))

    def _reconcile(self, writer: Writer, connection: KafkaConnection) -> None:
        """Look for stale keys in the archive as this run has left it."""
        runner, reporter = self._runner_factory, self._reporter
        report = reconcile_backup(writer, self._spec, connection, runner, reporter, self._expect)
        self._reconciled = report.facts()
        report.raise_if_wrong()

    def _archive_cluster_state(self, writer: Writer, control: ControlPlane, planner: BackupPlanner) -> None:
        """Archive what the cluster knows of its users, at the time of the plan."""
        if self._spec.cluster_state is ClusterStateMode.ARCHIVE:
            self._cluster_state, warnings = archive_cluster_state(
                self._run_id, writer.archive, control, planner.left_out
            )
            self._notes += warnings

    def _make_digests(self, writer: Writer) -> None:
        """Make digests of what was archived. A verification makes those that lack, so nothing fails for them."""

        def run_tasks(work: Sequence[DigestWork], function: MakeDigests, on_result: OnDigests) -> None:
            self._runner_factory().run(work, function, on_result, self._reporter.update, NO_LIMITS)

        try:
            made = make_missing(writer.archive.storage, writer.state, writer.epoch, run_tasks)
            log.info("made digests of the records of %d segments", made)
        except LogkeepError as error:
            self._note("digests of records could not be made", error)

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note the failure, and describe the archive if the run has tried everything: a restore takes it then. At last
        do the erasures, if they were not begun."""
        super().give_up(error, result)
        writer = self._writer
        if isinstance(error, ErasureFailed):  # the archive was described before
            return
        ended = writer is not None and writer.state.runs[self._run_id].end_time is not None
        if isinstance(error, LogkeepError) and self._tried_all and writer is not None and ended:
            self._describe(writer)
        self._notes[:0] = self._erasures.after(error, writer, tried_all=self._tried_all)

    def _describe(self, writer: Writer) -> None:
        """Describe the archive as the run has left it. Nothing of that makes a run fail."""
        if self._plan is None or self._connected is None:
            return
        ended = EndedBackup(self._run_id, writer.archive, writer.state, self._plan, self._not_archived)
        try:
            rules = retention_rules(self._spec)
            self._report = archive_report(ended, self._connected, retained_by(writer.state, rules, self._retained))
        except LogkeepError as error:
            self._note("the archive could not be described", error)

    def _ask_again(self, planner: BackupPlanner, plan: BackupPlan, writer: Writer) -> BackupPlan | None:
        """Ask again for partitions that were unavailable. A refusal fails the run, which keeps all that it has
        archived.
        """
        try:
            return planner.ask_again(plan, writer.state)
        except (BrokerRefused, ArchiveMismatch) as error:
            self._fail(error)
            return None

    def _archive_plan(
        self, plan: BackupPlan, connection: KafkaConnection, control: ControlPlane, writer: Writer, losses: LossBook
    ) -> None:
        """Archive all offsets of the plan for which the archive does not account yet."""
        archive = writer.archive
        branch_off(writer, plan.branches)
        writer.change_generations(open_changes(writer.state, plan.generations))
        losses.topics = plan.names_with(writer.state)
        found, left = losses.prove([gap for gap in open_gaps(plan, writer.state) if not self._left_out(gap)])
        for _, error in left:
            self._fail(error)
        pieces = self._open_pieces(plan, writer)
        unchecked: Collection[int] = ()
        if loses_records(self._spec.format, self._spec.format_options):
            unchecked = self._search_losses(connection, writer, pieces, len(plan.chunks))
            refuse_losses(self._losses, self._spec)
        writer.commit(topics=plan.topics, receipts=found, leaders=plan.leaders)
        self._announce(plan, pieces)
        pieces = [piece for piece in pieces if piece.number not in unchecked]
        while pieces:
            self._archive_pieces(archive.storage, connection, control, writer, losses, pieces)
            # If a log has changed between two fetches, neighbours may have left offsets to each other. Each round
            # accounts for all of the first piece of a partition.
            over = self._failures or losses.open(writer.state)
            pieces = [] if over else self._open_pieces(plan, writer)

    def _leave_out(self, compared: ComparedAgain) -> None:
        """Archive nothing of partitions whose logs may not be those of the plan any more."""
        self._forks = compared.forks
        self._not_archived = compared.left_out
        self._failures += compared.unanswered.values()

    def _left_out(self, item: Gap | Piece) -> bool:
        return (item.topic_id, item.partition) in self._not_archived

    def _open_pieces(self, plan: BackupPlan, writer: Writer) -> list[Piece]:
        wanted = (piece for piece in open_pieces(plan, writer.state) if not self._left_out(piece))
        return [piece for piece in wanted if self._activating.wants(piece)]

    def _announce(self, plan: BackupPlan, pieces: Sequence[Piece]) -> None:
        """Tell the reporter what the run will do. Chunks of an earlier attempt count as done, so progress continues
        where it was.
        """
        open_from: dict[int, int] = {}
        for piece in pieces:
            open_from[piece.number] = min(piece.start, open_from.get(piece.number, piece.start))
        self._reporter.planned(
            (
                ProgressRange(
                    number, chunk.topic, chunk.partition, chunk.start, chunk.end, at=open_from.get(number, chunk.end)
                )
                for number, chunk in enumerate(plan.chunks)
            ),
            topics=len(plan.topics),
            idle=plan.idle + len(plan.unavailable),
        )
        self._reporter.phase("Running")

    def _search_losses(
        self, connection: KafkaConnection, writer: Writer, pieces: Sequence[Piece], chunks: int
    ) -> Collection[int]:
        """Look for what the format cannot hold of the records of this run. Returns the numbers of chunks that could not
        be looked through, and must not be archived: the run fails with their failures, when all else is done.
        """
        setting = setting_of(self._spec, writer.archive.storage, connection, writer.epoch)
        search = LossSearch(writer.archive, self._run_id, setting, self._slots(pieces))

        def run_tasks(work: Sequence[Work], function: ArchivePieces, on_result: OnPieces) -> None:
            self._reporter.phase("Checking")
            self._runner_factory().run(work, function, on_result, no_update, self._limits())

        found = search.search(pieces, chunks, run_tasks)
        self._losses = found.losses
        self._failures += found.failures.values()
        return found.failures.keys()

    def _archive_pieces(
        self,
        storage: Storage,
        connection: KafkaConnection,
        control: ControlPlane,
        writer: Writer,
        losses: LossBook,
        pieces: Sequence[Piece],
    ) -> None:
        setting = setting_of(self._spec, storage, connection, writer.epoch)
        shared = pack(pieces, self._slots(pieces), limited=self._spec.limits.bytes_per_second_int is not None)
        work = [BackupTask(number, some) for number, some in enumerate(shared, start=self._tasks)]
        self._tasks += len(work)
        committer = BackupCommitter(writer, control, losses, self._fail)
        pieces_by_number = {piece.number: piece for piece in pieces}
        left = {piece.number: 0 for piece in pieces}
        for piece in pieces:
            left[piece.number] += 1

        def on_result(index: int, done: tuple[PieceDone, ...]) -> None:
            failures = committer.take(done)
            self._activating.unread |= committer.unread
            for result in done:
                self._repeated = self._repeated or result.repeated
                piece = pieces_by_number[result.number]
                self._note_disagreements(result, piece)
                self._activating.saw(piece, result)
                if (failure := failures.get(result.number)) is not None:
                    self._fail(failure)
                    continue
                left[result.number] -= 1
                if left[result.number] == 0:
                    segments = result.receipt.segments if result.receipt else ()
                    self._reporter.done(
                        result.number, sum(entry.records for entry in segments), sum(entry.bytes for entry in segments)
                    )
            committer.commit_if_due()

        def on_update(update: PartitionUpdate) -> None:
            self._reporter.update(update)
            committer.commit_if_due()

        log.info("archiving %d chunks in %d tasks", len(pieces), len(work))
        with committer:
            self._runner_factory().run(work, partial(archive_task, setting), on_result, on_update, self._limits())

    def _slots(self, pieces: Sequence[Piece]) -> int:
        """How many tasks will run at once, after Spark was told what they will do."""
        if self._expect is None or not pieces:
            return self._spec.spark.executor.slots
        return self._expect(demand_of(pieces, self._spec.limits.bytes_per_second_int))

    def _note_disagreements(self, done: PieceDone, piece: Piece) -> None:
        for item in done.disagreements:
            self._disagreements.append(f"T{piece.where[1:]}: {item}: the marker holds")
            log.warning("%s", self._disagreements[-1])

    def _connection(self) -> KafkaConnection:
        return connection_from(self._spec.cluster, self._environ)

    def _limits(self) -> RunLimits:
        limits = self._spec.limits
        return RunLimits(limits.bytes_per_second_int, limits.readers_per_broker)

    def _fail(self, failure: LogkeepError) -> None:
        """Note a failure. The run continues with all the rest, and fails in the end."""
        log.error("%s", failure)
        self._failures.append(failure)

    def _conclude(self, plan: BackupPlan, writer: Writer) -> None:
        """End the run in the archive as succeeded, or raise the error of a failed one.

        For the archive, a run that only misses topics which the cluster does not have is a success: restores take all
        of it, with the positions of groups.
        """
        self._tried_all = True
        if self._failures:
            raise self._failures[0]
        if plan.unavailable:
            raise unavailable(plan.unavailable, MAX_LIST)
        forks = [*self._forks, *(fork for fork in plan.forks if not fork.branch_id)]
        if forks:
            raise diverged(forks, plan.topic_names, self._spec.format)
        loss = self._loss()
        if loss and self._spec.on_data_loss is OnDataLoss.FAIL:
            raise data_loss(loss)
        missed = unmatched_error(plan, self._spec)
        gone = {topic.topic_id for topic in plan.gone}  # the cluster has deleted the positions with the topic
        groups = writer.state.groups_after(plan.groups, [item for item in plan.topics if item.topic_id not in gone])
        if self._spec.format is FormatName.RECORDS:
            write_record_files(writer, plan, groups, self._topics_before)
        messages = (loss_message(loss), disagreement_message(self._disagreements), missed.message if missed else "")
        message = "; ".join(filter(None, messages))
        writer.end(RunOutcome.SUCCEEDED, message, groups, cluster_state=self._cluster_state)
        self._groups = len(plan.groups)
        self._tidy(writer, ((chunk.topic_id, chunk.partition) for chunk in plan.chunks), repeated=self._repeated)
        made = make_snapshots(writer, self._spec, self._reporter, self._runner_factory, self._expect)
        self._notes += made.notes
        self._message = str(made)
        if missed is not None:  # retention waits: the missing topics may be wanted from the archive
            raise missed
        self._retain(writer)
        self._merge(writer)
        self._bundle(writer)

    def _retain(self, writer: Writer) -> None:
        """Remove what `spec.retention` does not keep."""
        try:
            done = self._retained = retain(writer, retention_rules(self._spec))
        except LogkeepError as error:
            self._note("retention could not be finished, the next run continues it", error)
            return
        self._notes += done.notes
        if done.removed.bytes:
            self._message = "; ".join(filter(None, (self._message, f"retention removed {done.removed}")))

    def _merge(self, writer: Writer) -> None:
        """Merge small segments, so that objects stay large."""
        try:
            merged = merge_segments(writer, self._spec.segment, self._runner_factory, first_task=self._tasks)
        except LogkeepError as error:
            self._note("small segments could not be merged, the next run continues it", error)
            return
        self._notes += merged.notes
        self._message = "; ".join(filter(None, (self._message, str(merged))))

    def _hold(self, writer: Writer) -> None:
        """Note in the archive which topics and runs `spec.retention` holds."""
        writer.hold(with_spec_holds(writer.state.retention_holds, self._spec.retention.hold))

    def _loss(self) -> list[LossFact]:
        """Everything this run, in all its attempts, found gone."""
        plan, writer = self._plan, self._writer
        if plan is None or writer is None:
            return []
        return loss_facts(plan, writer.state, self._losses_found.open(writer.state) if self._losses_found else ())

    def _warnings(self, plan: BackupPlan) -> list[str]:
        of_format = format_warnings(self._spec, plan, self._losses)
        of_selection = selection_warnings(plan, self._spec.topics, self._topics_before)
        of_logs = [*gone_warnings(plan), *log_warnings(plan), *self._disagreements]
        of_state = []
        if self._writer is not None:
            state = self._writer.state
            of_state = [*empty_holds(state, plan.topic_names.values()), *generation_warnings(plan, state)]
        return [*self._notes, *of_selection, *of_format, *of_logs, *of_state]

    def result(self) -> RunResult:
        """The facts so far; outcome and exit code are those of a failed run."""
        result = replace(super().result(), message=self._message, warnings=told_warnings(self._notes))
        plan = self._plan
        if plan is not None:
            loss = self._loss()
            result = replace(
                result,
                topics=len(plan.topics),
                partitions=sum(topic.partitions for topic in plan.topics),
                groups=self._groups,
                loss_total=len(loss),
                loss_offsets=sum(fact.end - fact.start for fact in loss),
                loss=tuple(loss[:MAX_LIST]),
                warnings=told_warnings(self._warnings(plan)),
            )
        if plan is not None and self._writer is not None:
            left = self._not_archived
            found = coverage(plan, self._writer.state, self._spec.topics.include, left)
            result = replace(result, coverage=found, archive=self._report)
        return replace(result, reconciled=self._reconciled)

"""A backup run from beginning to end: begin, plan, and then step by step over one context.

The order makes it safe. Consumer groups are read before end offsets, so no position lies past the archived end.
The plan is stored before the first task, so a driver that starts again does the same chunks. Objects are written before
the commit that names them (`archiving`). Only when all is archived does the run end in the archive, and only after that
end is anything removed (`finishing`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import claim_of
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.maintenance.retaining import empty_holds, with_spec_holds
from logkeep_engine.archiving import ArchivingRun
from logkeep_engine.backup.pieces.losses import format_warnings
from logkeep_engine.backup.pieces.proof import LossBook
from logkeep_engine.backup.planning.generations import generation_warnings
from logkeep_engine.backup.planning.planner import BackupPlanner
from logkeep_engine.backup.recoverability.coverage import coverage, gone_warnings, selection_warnings
from logkeep_engine.backup.run import archiving, finishing
from logkeep_engine.backup.run.context import BackupContext
from logkeep_engine.backup.run.erasing import AskedErasures
from logkeep_engine.backup.run.summary import class_warnings, done_already, log_warnings
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST, RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, OnDataLoss
from logkeep_engine.errors import ErasureFailed, LogkeepError
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import Reporter, bounded_warnings
from logkeep_engine.storage import open_storage
from logkeep_engine.tasks import Expect, TaskRunner

log = logging.getLogger(__name__)

Step = Callable[[BackupContext], None]


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
        from logkeep_engine.backup.run.dry_run import BackupDryRun

        return BackupDryRun(request, spec, reporter, environ).perform()
    return BackupRun(request, spec, runner_factory, reporter, environ, timing, expect).perform()


class BackupRun(ArchivingRun):
    """One backup. Its steps work on a `BackupContext`, which is there once the run has a plan."""

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
        self._erasures = AskedErasures(spec.erasures, runner_factory, environ)
        self._context: BackupContext | None = None

    def execute(self) -> None:
        self._reporter.phase("Planning")
        storage = open_storage(self._spec.place, self._environ)
        storage.check()
        connection = connection_from(self._spec.cluster, self._environ)
        with ControlPlane(connection) as control:
            cluster_id = control.cluster_id()
            claim = claim_of(self._request)
            archive = self._archive = Archive.create_or_open(storage, cluster_id, self._spec.format, claim=claim)
            control.only(cluster_id)
            writer = self._writer = begin_run(archive, self._run_id, wait=self._timing)
            self._notes += writer.warnings
            context = self._context = self._planned(writer, control, replace(connection, cluster_id=cluster_id))
            with_cluster: tuple[Step, ...] = (
                archiving.archive_users,
                archiving.leave_out_what_has_changed,
                archiving.archive_everything,
                archiving.activate_generations,
            )
            for step in with_cluster:
                step(context)
        self._reporter.phase("Finishing")
        after: tuple[Step, ...] = (
            finishing.end,
            self._remove_leftovers,
            finishing.snapshot,
            finishing.refuse_unmatched,
            finishing.remove_old,
            finishing.merge_small,
            lambda _: self._bundle(writer),
            finishing.digest_records,
            finishing.describe,
            *((finishing.look_for_stale_keys,) if self._request.reconcile else ()),
            # The writer's state names what an erasure deletes, so nothing may follow that reads the archive by it.
            lambda _: context.messages.extend(self._erasures.perform(archive)),
        )
        for step in after:
            step(context)

    def _planned(self, writer: Writer, control: ControlPlane, connection: KafkaConnection) -> BackupContext:
        """Note the holds of the spec, and load the plan of an earlier attempt, or make it."""
        writer.hold(with_spec_holds(writer.state.retention_holds, self._spec.retention.hold))
        if self._had_succeeded:
            self._notes.append(done_already(self._run_id))
        before, attempt = dict(writer.state.topics), writer.state.runs[self._run_id].attempts
        self._reporter.phase("Planning", attempt=attempt)
        where = writer.archive.storage.uri
        log.info("run %s writes the archive at %s at epoch %d, attempt %d", self._run_id, where, writer.epoch, attempt)
        planner = BackupPlanner(self._run_id, self._spec, writer.archive, control, connection)
        planner.notes = self._notes
        return BackupContext(
            spec=self._spec,
            environ=self._environ,
            runner_factory=self._runner_factory,
            expect=self._expect,
            reporter=self._reporter,
            writer=writer,
            connection=connection,
            control=control,
            planner=planner,
            plan=planner.load_or_make(writer.state),
            losses=LossBook(control, record=self._spec.on_data_loss is OnDataLoss.RECORD),
            notes=self._notes,
            topics_before=before,
        )

    def _remove_leftovers(self, context: BackupContext) -> None:
        chunks = ((chunk.topic_id, chunk.partition) for chunk in context.plan.chunks)
        self._tidy(context.writer, chunks, repeated=context.repeated)

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note the failure, and describe the archive if the run has tried everything: a restore takes it then. At last
        do the erasures, if they were not begun."""
        context, writer = self._context, self._writer
        self._tried_all = context is not None and context.tried_all
        super().give_up(error, result)
        if isinstance(error, ErasureFailed):  # the archive was described before
            return
        ended = writer is not None and writer.state.runs[self._run_id].end_time is not None
        if isinstance(error, LogkeepError) and self._tried_all and context is not None and ended:
            finishing.describe(context)
        self._notes[:0] = self._erasures.after(error, writer, tried_all=self._tried_all)

    def result(self) -> RunResult:
        """Return the facts so far; outcome and exit code are those of a failed run."""
        result = replace(super().result(), warnings=bounded_warnings(self._notes))
        context = self._context
        if context is None:
            return result
        plan, loss = context.plan, finishing.loss_of(context)
        return replace(
            result,
            message="; ".join(context.messages),
            topics=len(plan.topics),
            partitions=sum(topic.partitions for topic in plan.topics),
            groups=context.groups,
            loss_total=len(loss),
            loss_offsets=sum(fact.end - fact.start for fact in loss),
            loss=tuple(loss[:MAX_LIST]),
            warnings=bounded_warnings(_warnings(context)),
            coverage=coverage(plan, context.writer.state, self._spec.topics.include, context.not_archived),
            archive=context.report,
            reconciled=context.reconciled,
        )


def _warnings(context: BackupContext) -> list[str]:
    plan, state = context.plan, context.writer.state
    return [
        *context.notes,
        *selection_warnings(plan, context.spec.topics, context.topics_before),
        *format_warnings(context.spec, plan, context.format_losses),
        *gone_warnings(plan),
        *log_warnings(plan),
        *class_warnings(context.spec),
        *context.disagreements,
        *empty_holds(state, plan.topic_names.values()),
        *generation_warnings(plan, state),
    ]

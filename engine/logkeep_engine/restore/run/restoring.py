"""One restore from beginning to end, in the driver. `entry` begins it.

The steps, by their rooms: plan (`planning`), create topics (`topics`), restore the partitions in tasks and count
(`sending`), verify if asked (`verification`), set the positions of consumer groups (`positions`), give topics the
source's configuration (`topics`), bring back quotas and ACLs if asked (`cluster_state`), write KafkaTopics if asked
(`topics`), result. A dry run (`dry_run`) plans, reports, and writes nothing but the KafkaTopics. Below
`runs/<run id>/` in place of its state (`model.state`) lie, in this order, what a driver that starts again needs to
continue:

    started.json          when the last driver was started: the state can be written
    alive.json            that the driver is still running, again and again, and at the end that it has ended
    taken-over.json       which other run continues this one, which must stop (`claim.takeover`)
    restore-plan.json     sources, targets, producer ids, start offsets, what is left out; made once
    held-topics.json      the retention of existing topics, before they are held (`topics.hold_notes`)
    point.json            what the point of the restore gives, if it has one: for people
    offset-maps/...       an archived partition is done when its map is there
    counted.json          the target has what was sent; the topics get their own configuration after this
    verification.html     what a verification has found, if one was asked for, as a page
    verification.json     the same for programs; the topics get their own configuration only if nothing differs. Reports
                          of later verifications have a number (`archive.reports`)
    group-changes/...     the positions that consumer groups had before, written before the first one is set
    consumer-groups.json  what became of the positions of consumer groups
    all-but-users.json    topics and groups are restored; written before ACLs may take the right to look at these again
    acls-sent.json        what is known before the ACLs of the cluster are sent, which may take the user's rights
    cluster-state-restored.json    what became of ACLs and quotas, and which users are to be created
    result.json           the end: a run that has succeeded is not done again

Next to them, `runs/of-<digest>/restore.json` says which run a restore of this name was (`planning.restored_before`),
and `runs/begun-<digest>/restore.json` which run of the same settings was planned last (`planning.resuming`).

Nothing else is written, and nothing to the archive if the state has another place. A crash at any point leaves topics
with the working configuration, which deletes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.contract.facts.dry_run import DRY_RUN, DryRunReport
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import COMMAND_LINE, ExitCode
from logkeep_engine.contract.restore_spec import IfTopicExists, KafkaRestoreSpec, RestoreVerification
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.values import human_time
from logkeep_engine.errors import LogkeepError, Refused, SpecError
from logkeep_engine.frame import DriverRun
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import Reporter, bounded_warnings, dry_run_ended
from logkeep_engine.restore.claim.fence import RunFence
from logkeep_engine.restore.cluster_state.step import restore_cluster_state
from logkeep_engine.restore.model.context import Planned, Refusals, RestoreContext
from logkeep_engine.restore.model.point_preview import tell
from logkeep_engine.restore.model.state import RESULT, RestoreState, archive_place, archive_to_restore, open_state
from logkeep_engine.restore.planning import restored_before
from logkeep_engine.restore.planning.earlier import borne_out, of_earlier, of_now
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.planning.resuming import begun_key, finished_before, note_begun
from logkeep_engine.restore.positions.groups import move_groups
from logkeep_engine.restore.run.run_facts import describe_records, facts_of_run, note_restored, noted_before
from logkeep_engine.restore.sending.count import check_counted, count_all, describe_deleted, is_counted
from logkeep_engine.restore.sending.partitions import restore_open_partitions
from logkeep_engine.restore.sending.without_records import refuse_without_records
from logkeep_engine.restore.topics.held_topics import describe_held, held_now, hold_existing, still_held
from logkeep_engine.restore.topics.kafka_topics import emit, emits, refuse_nowhere
from logkeep_engine.restore.topics.targets import CreatedTopics
from logkeep_engine.tasks import Expect, TaskRunner

log = logging.getLogger(__name__)


class RestoreRun(DriverRun):
    """One restore. With `only_verify` nothing is restored: what the run has restored before is verified again."""

    def __init__(
        self,
        request: RunRequest,
        spec: KafkaRestoreSpec,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
        environ: Mapping[str, str],
        expect: Expect | None = None,
        *,
        only_verify: bool = False,
    ) -> None:
        super().__init__(request.run_id, request.kind, time.time(), request.requested_by)
        self._request = request
        self._spec = spec
        self._runner_factory = runner_factory
        self._expect = expect
        self._only_verify = only_verify
        self._reporter = reporter
        self._environ = environ
        self._begun: tuple[Archive, RestoreState] | None = None
        self._earlier: RunResult | None = None
        self._done: RunResult | None = None
        self._verification: VerificationFacts | None = None
        # What shows that the driver is running must do so until the result is stored: else the run could be taken over.
        self._until_stored = ExitStack()
        self._control: ControlPlane | None = None
        self._fence: RunFence | None = None
        self._permit: Callable[[], None] = lambda: None

    def perform_or_raise(self) -> RunResult:
        """Do the run, as any. A result that is stored tells a later start of the run that it has succeeded."""
        with self._until_stored:
            result = super().perform_or_raise()
            if result.dry_run is not None:
                return replace(result, outcome=DRY_RUN)
            if self._begun is not None:
                self._done = None  # a run whose result cannot be stored has failed
                with self._telling_what_was_written():
                    self._permit()
                    _, state = self._begun
                    state.storage.put(state.file(RESULT), result.to_json().encode())
            return result

    def execute(self) -> None:
        with self._telling_what_was_written():
            self._restore()

    @contextmanager
    def _telling_what_was_written(self) -> Iterator[None]:
        """A refusal ends the run with REFUSED only if nothing was written to the cluster: afterwards a user must
        look at what is there."""
        try:
            yield
        except LogkeepError as error:
            if error.exit_code == ExitCode.REFUSED and self._control is not None and self._control.changed:
                error.exit_code = ExitCode.INCOMPLETE
            raise

    def _restore(self) -> None:
        if not self._only_verify:
            refuse_nowhere(self._spec, self._request.topics_config_map)
        if self._spec.dry_run:
            self._done = self._find_out()
            return
        archive, state = self._open()
        claimed = self._earlier_result(archive, state)
        if claimed is None:
            if self._only_verify:
                raise SpecError(
                    f"run {self._run_id} has restored nothing that could be verified",
                    hint=f"Name a run that has succeeded: it has {state.name(RESULT)}.",
                )
            state.begin(archive)
            self._begun = archive, state
        connection = connection_from(self._spec.cluster, self._environ)
        with ControlPlane(connection) as control:
            context = self._context(archive, state, control, control.cluster_id(), connection, Refusals())
            if claimed is None:
                self._earlier = self._done_before(context)
            else:  # a verification looks at all of it itself
                self._earlier = claimed if self._only_verify else borne_out(context, claimed)
            if self._earlier is not None and self._is_enough(self._earlier):
                log.info("run %s has succeeded before: nothing to do", self._earlier.earlier_run or self._run_id)
            elif self._earlier is not None:
                with RunNote(state.storage, state.run_id):  # its verification reads the archive
                    self._complete_earlier(context, self._earlier)
            else:
                self._control = control
                self._fence = self._until_stored.enter_context(RunFence(state))
                self._permit = self._fence.check
                control.only_while(self._permit)
                self._done = self._perform_steps(replace(context, permit=self._permit), super().result())
            if claimed is not None and self._earlier is not None and not self._only_verify:
                self._earlier = self._result_again(self._earlier)

    def _context(
        self,
        archive: Archive,
        state: RestoreState,
        control: ControlPlane,
        cluster_id: str,
        connection: KafkaConnection,
        refusals: Refusals,
    ) -> RestoreContext:
        control.only(cluster_id)
        return RestoreContext(
            run_id=self._run_id,
            spec=self._spec,
            archive=archive,
            state=state,
            cluster_id=cluster_id,
            control=control,
            connection=replace(connection, cluster_id=cluster_id),
            runner_factory=self._runner_factory,
            reporter=self._reporter,
            expect=self._expect,
            refusals=refusals,
            topics_config_map=self._request.topics_config_map,
            only_asked=self._only_verify,
        )

    def _find_out(self) -> RunResult:
        """Return the result of a dry run. What would refuse the restore is in it, and nothing is raised for that."""
        if self._only_verify:
            raise SpecError(
                "spec.dryRun: a dry run has restored nothing that could be verified", hint="Leave the field out."
            )
        from logkeep_engine.restore.run.dry_run import find_out

        begun, report, refusals = super().result(), DryRunReport(), Refusals(gathered=True)
        try:
            archive, state = self._open()
            begun = replace(begun, archive_id=archive.info.archive_id)
            state.refuse_begun_beside(archive)
            connection = connection_from(self._spec.cluster, self._environ)
            with ControlPlane(connection) as control:
                cluster_id = control.cluster_id()
                begun = replace(begun, cluster_id=cluster_id)
                context = self._context(archive, state, control, cluster_id, connection, refusals)
                earlier = self._earlier_result(archive, state)
                earlier = self._found_before(context) if earlier is None else borne_out(context, earlier)
                if earlier is not None:
                    text = f"Nothing would be written: run {earlier.run_id} has done this restore and ended at "
                    if emits(self._spec):
                        begun = replace(begun, emitted=emit(*of_earlier(context, earlier)))
                    done = dry_run_ended(begun, report, (), "restore")
                    return replace(done, message=text + human_time(earlier.end_time))
                found = find_out(context)
                report = found.report
                begun = replace(begun, warnings=bounded_warnings(found.warnings), emitted=found.emitted)
        except Refused as error:
            refusals.add(error)
        return dry_run_ended(begun, report, refusals.found, "restore")

    def _is_enough(self, earlier: RunResult) -> bool:
        """Return whether nothing is left to do if an earlier run has done this restore."""
        return not (self._only_verify or emits(self._spec) or self._verifies(earlier))

    def _verifies(self, earlier: RunResult) -> bool:
        unverified = self._spec.verify is RestoreVerification.FULL and earlier.verification is None
        return self._only_verify or unverified

    def _complete_earlier(self, context: RestoreContext, earlier: RunResult) -> None:
        """Verify what another run, or an earlier start of this one, has restored without a verification, and write its
        KafkaTopics, as far as this is asked for."""
        self._earlier = None  # as long as it is unknown how it ends
        context, planned = of_earlier(context, earlier)
        done = earlier
        if self._verifies(earlier):
            from logkeep_engine.restore.verification import step

            self._verification = found = step.verify_restored(context, planned)
            if self._only_verify:
                held = None if done.held_topics is None else held_now(context, planned.plan)
                self._earlier = replace(done, verification=found, held_topics=held)
                return
            step.raise_if_different(found)
            warnings = bounded_warnings([*step.describe_not_verified(found), *done.warnings])
            done = replace(done, verification=found, warnings=warnings)
        self._earlier = replace(done, emitted=emit(context, planned))

    def _perform_steps(self, context: RestoreContext, begun: RunResult) -> RunResult:
        """Do the steps of a restore, in their order, and return `begun` with the facts."""
        planned = RestorePlanner(context).load_or_make()
        if not planned.fresh:  # an earlier start may have written
            context.control.note_change()
        if self._fence is not None:
            self._fence.knows(planned.plan.known_commit)
        note_begun(context)
        tell(context, planned)
        # What is noted of earlier starts counts only where there was one: this driver has not made the plan.
        done = None if planned.fresh else noted_before(context, planned, begun)
        if done is None:
            done = self._restore_all_but_users(context, planned, begun)
            note_restored(context, done)
        elif self._verifies(done):  # that start was not asked for it
            done = self._with_verification(context, planned, done)
        self._verification = done.verification
        cluster_state, not_set = restore_cluster_state(context, planned)
        return replace(
            done,
            warnings=bounded_warnings([*not_set, *done.warnings]),
            emitted=emit(context, planned),
            cluster_state=cluster_state,
            end_time=time.time(),
        )

    def _restore_all_but_users(self, context: RestoreContext, planned: Planned, begun: RunResult) -> RunResult:
        """Restore topics and groups. Returns `begun` with the facts, and all warnings."""
        topics = CreatedTopics(context.control, planned.archived, context.spec.topics)
        counted = not planned.fresh and is_counted(context.state)
        if not counted:
            topics.create(planned.plan, fresh=planned.fresh)
            hold_existing(context, planned)
        summaries = restore_open_partitions(context, planned)
        context.reporter.phase("Finishing")
        if counted:
            check_counted(context, planned, summaries)
        else:
            summaries = count_all(context, planned, summaries)
        refuse_without_records(context, planned, summaries)
        verified = self._with_verification(context, planned, begun) if self._verifies(begun) else begun
        moved, warnings = move_groups(context, planned)
        warnings = [
            *describe_records(planned.plan, summaries),
            *warnings,
            *describe_deleted(context.control, planned.plan, summaries),
            *topics.finish(planned.plan, fresh=planned.fresh),
        ]
        held, not_held = still_held(context, planned.plan)
        return replace(
            facts_of_run(verified, context, planned, summaries, moved),
            held_topics=held,
            message=describe_held(held, context.spec.topics.hold_for) or verified.message,
            warnings=(*planned.plan.warnings, *verified.warnings, *warnings, *not_held),
        )

    def _with_verification(self, context: RestoreContext, planned: Planned, done: RunResult) -> RunResult:
        """Return the result with the findings of the verification that was asked for. Raises RecordsDiffer."""
        from logkeep_engine.restore.verification import step  # few restores are verified

        earlier = None if planned.fresh else step.earlier_facts(context)
        self._verification = found = earlier or step.verify_restored(context, planned)
        step.raise_if_different(found)
        return replace(done, verification=found, warnings=(*step.describe_not_verified(found), *done.warnings))

    def result(self) -> RunResult:
        """Return the result of the run that has succeeded, in this start or an earlier one; else that of a failed
        run."""
        return self._earlier or self._done or replace(super().result(), verification=self._verification)

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Store the failure next to the plan, if the run has got so far."""
        if self._begun is not None:
            archive, state = self._begun
            failure = replace(result, archive_id=archive.info.archive_id, end_time=time.time())
            note_failure(state, failure)

    def _open(self) -> tuple[Archive, RestoreState]:
        """Return the archive, and the place of the run's state."""
        archive_place(self._spec)
        self._reporter.phase("Planning")
        archive = archive_to_restore(self._spec, self._environ, self._request.anchor)
        return archive, open_state(self._run_id, self._spec, archive, self._environ)

    def _check_run_id(self, state: RestoreState) -> None:
        try:
            state.file(RESULT)
        except ValueError as error:
            raise SpecError(str(error), hint="Give the run another id.") from error

    def _earlier_result(self, archive: Archive, state: RestoreState) -> RunResult | None:
        """Return the result of an earlier start of this run, if that has succeeded."""
        self._check_run_id(state)
        result = state.success()
        if result is None:
            return None
        if result.archive_id != archive.info.archive_id:
            raise SpecError(
                f"run {self._run_id} has succeeded from archive {result.archive_id}, not from this one",
                hint="Give this restore its own run id.",
            )
        return result

    def _done_before(self, context: RestoreContext) -> RunResult | None:
        """Return the result of this run if another run has done the same restore before: its facts, and which run it
        was.

        Raises TargetChanged if the cluster does not have what that run has restored.
        """
        found = None
        if self._request.remembered_as is not None:
            found = restored_before.begin(self._asked(context), context.state, self._spec.if_topic_exists)
        found = found or self._resumed(context)
        if found is None:
            return None
        text = (
            f"Nothing was written: run {found.run_id} has done this restore and ended at {human_time(found.end_time)}"
        )
        found = of_now(borne_out(context, found), self._run_id, self._start_time, self._spec, text)
        return replace(found, emitted=None)  # that was to the ConfigMap of another resource

    def _result_again(self, found: RunResult) -> RunResult:
        """Return the result of an earlier start of this run, for a user who gives the command once more. A driver whose
        pod has died before it could report is started again on its own, and reports what was done."""
        if self._requested_by != COMMAND_LINE:
            return found
        text = f"Nothing was restored now: run {self._run_id} had already succeeded at {human_time(found.end_time)}"
        return of_now(found, self._run_id, self._start_time, self._spec, text)

    def _found_before(self, context: RestoreContext) -> RunResult | None:
        """Return the result of the run that has done the same restore before. Raises as `_done_before`, and notes
        nothing."""
        found = None
        if self._request.remembered_as is not None:
            found = restored_before.found_before(self._asked(context), context.state, self._spec.if_topic_exists)
        found = found or self._resumed(context)
        if found is None:
            return None
        found = borne_out(context, found)
        return replace(found, earlier_run=found.earlier_run or found.run_id)

    def _resumed(self, context: RestoreContext) -> RunResult | None:
        """Return the result of the run that would be resumed, if it has succeeded."""
        if self._spec.if_topic_exists is not IfTopicExists.RESUME:
            return None
        return finished_before(begun_key(context), context.state)

    def _asked(self, context: RestoreContext) -> restored_before.RestoreKey:
        archive_id = context.archive.info.archive_id
        return restored_before.RestoreKey.of(
            self._spec, archive_id, context.cluster_id, self._request.remembered_as or ""
        )


def note_failure(state: RestoreState, result: RunResult) -> None:
    """Store the failure of a run. A success that another driver of the run has noted meanwhile stays."""
    path = state.file(RESULT)
    try:
        if state.success() is None:
            state.storage.put(path, result.to_json().encode())
    except LogkeepError as error:  # the failure itself matters more
        log.warning("%s could not be written: %s", path, error)

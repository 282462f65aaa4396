"""The one decision of the operator: it takes what the cluster shows, and says what to do. It asks for the state, never
for what happened before.

    deleted?  invalid?  another run unfinished?  a time due?  this run over?  suspended?  no Job yet?  else it runs.

A run that has ended is never touched again, whatever became of its Job. The exceptions are a restore that failed and is
to be tried again (`retry`), and one that has succeeded and is to release its topics (`releasing`). A Job that vanished
before its run ended is made again: the engine continues where the archive's last commit is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_operator.api import Condition, Phase, Resource, RunStatus, StatusOutcome
from logkeep_operator.reconcile import conditions, retry
from logkeep_operator.reconcile.backup_runs import with_answers
from logkeep_operator.reconcile.drill import with_drill_reported
from logkeep_operator.reconcile.executors import useless_pods
from logkeep_operator.reconcile.in_progress import RESYNC_SECONDS, GoingOn
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.outcome import (
    DRY_RUN_DONE,
    DRY_RUN_REFUSED,
    JobOutcome,
)
from logkeep_operator.reconcile.places import check_place, of_archive
from logkeep_operator.reconcile.plan import (
    DeleteJob,
    Plan,
)
from logkeep_operator.reconcile.queue import RunQueue
from logkeep_operator.reconcile.releasing import (
    Release,
    awaits_release,
    is_held,
    is_live_release,
    is_release_due,
    restored,
    wake_after_hold,
    with_release_time,
)
from logkeep_operator.reconcile.risk import risk_changes_after, risk_has_turned
from logkeep_operator.reconcile.runs import inputs_of, wanted_run
from logkeep_operator.reconcile.schedule import scheduled_times, wake_after, with_times
from logkeep_operator.reconcile.starting import STUCK_JOB_AFTER, WAIT_SECONDS, Spec
from logkeep_operator.reconcile.step import CRDS_OUTDATED, INVALID_SPEC, NOT_ALLOWED, Step, last_turn, soonest
from logkeep_operator.reconcile.waiting import ARCHIVE_NOT_FOUND, Waiting, archive_not_found
from logkeep_operator.resources import check_allowed, job_name, with_defaults
from logkeep_operator.settings import EngineSettings

AT_REST_AFTER = timedelta(minutes=10)
_NO_QUEUE = RunQueue()
_SUSPENDED_AFTER_SUCCESS = "The last run has succeeded; no other is started while spec.suspend is true."


def reconcile(observed: Observed, now: datetime, engine: EngineSettings, turns: RunQueue = _NO_QUEUE) -> Plan:
    """Decide what is to be done about one resource. `turns` says whether its driver may begin."""
    if observed.resource.deleting:
        return Plan()  # the garbage collector takes the children
    plan = _decide(observed, now, engine, turns)
    plan = replace(plan, actions=(*plan.actions, *useless_pods(observed)))
    return with_drill_reported(observed, with_answers(observed, plan, now), now)


def _decide(observed: Observed, now: datetime, engine: EngineSettings, turns: RunQueue) -> Plan:
    try:
        if engine.defaults:
            _parse(observed.resource)
            observed = replace(observed, resource=with_defaults(observed.resource, engine))
        spec = _parse(observed.resource)
        check_allowed(spec, engine, named=observed.resource.archive_ref is not None)
        check_place(observed.resource)
    except SpecInvalid as error:
        step = Step(observed, now)
        return step.kept() if _has_done_all(observed.resource) else step.invalid(of_archive(observed.resource, error))
    return _Reconciliation(observed, now, spec, engine, turns).plan()


def is_at_rest(resource: Resource, now: datetime) -> bool:
    """Return whether the resource needs nothing, so that its children need not even be read."""
    return not risk_has_turned(resource, now) and _rests(resource, now)


def wake_after_rest(resource: Resource, now: datetime) -> float | None:
    """Seconds until a resource at rest must be looked at again, though nothing happens to it; None if never."""
    status = resource.status
    return soonest(
        wake_after(resource, now), risk_changes_after(resource, status, now), wake_after_hold(resource, status, now)
    )


def _rests(resource: Resource, now: datetime) -> bool:
    status = resource.status
    if status.observed_generation != resource.generation or resource.deleting:
        return False
    ready = status.condition("Ready")
    if ready is not None and ready.reason in (NOT_ALLOWED, CRDS_OUTDATED, ARCHIVE_NOT_FOUND):
        return False  # the installation may allow it in the meantime, or have other CRDs, or the KafkaArchive
    run = status.run
    if resource.archive_ref is not None and status.phase is Phase.INVALID:
        return False  # the KafkaArchive may be corrected
    if status.phase is Phase.INVALID and run is None:
        return True
    if run is None or run.outcome is None:
        return False
    turned = last_turn(status)
    if turned is None or now - turned < AT_REST_AFTER:
        return False  # a driver that was told to end may still say something
    if status.phase is Phase.INVALID:
        return True
    if retry.is_asked(resource):
        return False
    try:
        spec = _parse(resource)
    except SpecInvalid:
        return False
    if is_release_due(status, now) and not spec.suspend:
        return False
    if isinstance(spec, KafkaBackupSpec) and spec.storage is None:
        return False
    times = scheduled_times(resource, spec, now)
    if times.due is not None or with_times(status, status.last_schedule_time, times.next) != status:
        return False
    return wanted_run(resource, spec).id == run.id


def refused(resource: Resource, reason: str, message: str, now: datetime) -> Plan:
    """Tell that something which the run needs was not made: the API refused it (a quota, an admission webhook, a
    missing permission), or its name is taken."""
    return Step(Observed(resource), now).refused(reason, message, kept=is_release_due(resource.status, now))


def outdated(resource: Resource, message: str, now: datetime) -> Plan:
    """Tell that nothing is done, since the CRDs lack fields."""
    return Step(Observed(resource), now).outdated(message)


def _has_done_all(resource: Resource) -> bool:
    """Return whether a restore has succeeded, holds no topics that are to be released, and is asked for nothing more:
    neither by a schedule nor by an annotation. Those would wait in silence."""
    status, run, drill = resource.status, resource.status.run, resource.spec.get("drill")
    succeeded = resource.key.is_restore and run is not None and run.outcome is StatusOutcome.SUCCEEDED
    if not succeeded or awaits_release(status) or resource.run_again not in (None, status.last_handled_run_again):
        return False
    return not (isinstance(drill, Mapping) and drill.get("schedule"))


def _parse(resource: Resource) -> Spec:
    spec: Spec = parse_backup(resource.spec) if resource.key.is_backup else parse_restore(resource.spec)
    check_spec(spec)
    return spec


class _Reconciliation(GoingOn):
    """A resource whose spec is valid: from the run before to the end of the run that it requests."""

    def plan(self) -> Plan:
        if self.times.missed is not None:
            late = "A run was due at {} and could not be started within startingDeadlineSeconds of its schedule."
            self.event("Warning", "MissSchedule", late.format(timestamp(self.times.missed)))
        plan = self._plan()
        if self.times.due is not None and self.status.last_schedule_time == self.before.last_schedule_time:
            return plan  # the run waits for something that is looked at again
        held = wake_after_hold(self.resource, plan.status or self.before, self.now)
        due = wake_after(self.resource, self.now, self.status)
        return replace(plan, requeue_after=soonest(plan.requeue_after, due, held))

    def _plan(self) -> Plan:
        found = self.tell_unknown_run(self.wanted.id) or self.tell_loss_of_replaced()
        if found is not None:
            return found
        self.remove_replaced(self.wanted.id)
        last = self.before.run
        if last is not None and last.id != self.wanted.id and last.outcome is None:
            outcome = self.outcome(last.id)
            if outcome is not None:
                return self.finish(last, outcome)  # it ended, though another is requested: with its result and its loss
            if inputs_of(last.key) == self.wanted.inputs and self.job(last.id):
                return self.go_on(last)  # only asked for again: this one first
            self.stop_unfinished()
            reported = self.tell_loss_of_replaced()
            if reported is not None:
                return reported
        run = self.status.run
        if run is not None and run.id == self.wanted.id:
            return self._ended(run) if run.outcome is not None else self.go_on(run)
        return self._start()

    # ---- a run that is over

    def _ended(self, run: RunStatus) -> Plan:
        if retry.is_asked(self.resource):
            return self._retry(run)
        requeue = None
        found = self.job(run.id)
        self.status = with_release_time(self.status, self.spec, self.now)
        if awaits_release(self.status):
            due = run.outcome is StatusOutcome.SUCCEEDED and is_release_due(self.status, self.now)
            if due and not self.spec.suspend and (found is None or found.finished or is_live_release(found)):
                release = Release(self.observed, self.now, self.spec, self.engine, self.turns, self.status)
                return release.plan(run)
        if found is not None and is_live_release(found) and is_held(self.status):
            self.actions.append(DeleteJob(found.name, found.uid))  # the spec has changed: that is no longer requested
            found = None
        turned = last_turn(self.before) or self.now
        if found is not None and not found.finished and not found.suspended:
            left = (turned + STUCK_JOB_AFTER - self.now).total_seconds()
            if left > 0:
                requeue = left + 1
            else:
                self.actions.append(DeleteJob(found.name, found.uid))
                self.event(
                    "Warning", "DriverStuck", "The driver did not end after its run; its pods are deleted.", run.id
                )
        if run.outcome is StatusOutcome.SUCCEEDED and self.spec.suspend:
            return self.suspended(self._suspended_after_success(), run.id, requeue)
        if isinstance(self.spec, KafkaBackupSpec) and self.spec.storage is None:
            return self.wait(archive_not_found(self.resource))
        phase = Phase.PENDING if run.outcome in (None, StatusOutcome.REPLACED) else Phase(run.outcome.value)
        return self.done(phase, self._end_conditions(run), requeue)

    def _retry(self, run: RunStatus) -> Plan:
        """Let the failed run continue. Its Job is made when the status says so, as one that vanished is: so a crash
        between the two leaves no Job that is taken for the one before."""
        if self.spec.suspend:
            return self.suspended("The run continues when spec.suspend is false.", run.id)
        self.actions += retry.leftovers(self.observed, run.id)
        if not retry.is_clear(self.observed, run.id):
            message = f"The Job of the last attempt, {run.job}, and its pods are being deleted."
            return self.wait(Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS))
        self.started = True
        message = f"Run {run.id} has failed and continues where it stopped."
        self.event("Normal", "RunRetried", f"{message} ({self.resource.retry})", run.id)
        self.status = replace(
            self.status,
            run=retry.renewed(run, self.now),
            progress=None,
            verification=None,
            last_handled_retry=self.resource.retry,
        )
        return self.done(Phase.PENDING, conditions.reconciling("RunRetried", message), 0.0)

    def _end_conditions(self, run: RunStatus) -> tuple[Condition, ...]:
        """Return the conditions as they were written when the run ended. Since then the spec may have been invalid for
        a time."""
        message = run.message or ""
        if run.outcome is StatusOutcome.SUCCEEDED:
            return self._succeeded(message)
        if run.outcome is StatusOutcome.DRY_RUN:
            return self._only_found_out(message)
        failed = self.before.condition("Stalled")
        reason = (
            failed.reason
            if failed is not None
            and failed.status == "True"
            and failed.reason not in (INVALID_SPEC, NOT_ALLOWED, CRDS_OUTDATED)
            else "RunFailed"
        )
        return self._failed(reason, message)

    def _suspended_after_success(self) -> str:
        held = " Topics are held until then." if awaits_release(self.status) else ""
        return f"{_SUSPENDED_AFTER_SUCCESS}{held}"

    def _succeeded(self, message: str) -> tuple[Condition, ...]:
        looked_at = "" if self.resource.key.is_restore else retry.hint_inspect(self.resource, self.archive_uri())
        return restored(self.resource, self.status, message.removesuffix(".") + looked_at)

    def _only_found_out(self, message: str) -> tuple[Condition, ...]:
        found = self.status.dry_run
        message = message.removesuffix(".")  # that of a warning: the hint begins with one
        if found is not None and found.refused:
            return conditions.stalled(DRY_RUN_REFUSED, message + retry.hint_look_again(self.resource))
        return conditions.readiness(DRY_RUN_DONE, message + retry.hint_begin(self.resource))

    def _failed(self, reason: str, message: str) -> tuple[Condition, ...]:
        return conditions.stalled(reason, message + retry.hint(self.resource))

    def finish(self, run: RunStatus, outcome: JobOutcome) -> Plan:
        include: tuple[str, ...] = ()
        if run.id == self.wanted.id:
            include = self.spec.topics.include if isinstance(self.spec, KafkaBackupSpec) else ()
            self.note_reasons()
        extra = self.book(run, outcome, include)
        self.status = with_release_time(self.status, self.spec, self.now)
        succeeded = outcome.outcome is StatusOutcome.SUCCEEDED
        if (
            self.wanted.id != run.id
        ):  # asked for again in the meantime: this end says nothing about what is requested now
            state = conditions.reconciling(outcome.reason, f"Another run is requested; the last one: {outcome.message}")
            return self.done(Phase.PENDING, (*state, *extra), 0.0)
        if succeeded and not self.spec.suspend and isinstance(self.spec, KafkaBackupSpec) and self.spec.storage is None:
            # The spec may have changed since the run began: that is not known as long as its archive is not there.
            missing = archive_not_found(self.resource)
            self.problem_event(missing.reason, missing.message)
            state = conditions.reconciling(missing.reason, missing.message)
            return self.done(Phase.PENDING, (*state, *extra), missing.requeue_after)
        if outcome.outcome is StatusOutcome.DRY_RUN:
            state, phase = self._only_found_out(outcome.message), Phase.DRY_RUN
        elif succeeded:
            state, phase = self._succeeded(outcome.message), Phase.SUCCEEDED
        else:
            state, phase = self._failed(outcome.reason, outcome.message), Phase.FAILED
        found = self.job(run.id)
        requeue = STUCK_JOB_AFTER.total_seconds() + 1 if found is not None and not found.finished else None
        if succeeded and self.spec.suspend:
            return self.suspended(self._suspended_after_success(), run.id, requeue, extra)
        return self.done(phase, (*state, *extra), requeue)

    # ---- a run that is to be started, again or for the first time

    def _start(self) -> Plan:
        outcome = self.outcome(self.wanted.id)
        known = RunStatus(
            id=self.wanted.id,
            key=self.wanted.key,
            job=self._job_name(),
            requested_by=self.requested_by(self.wanted),
            start_time=timestamp(self.now),
        )
        if isinstance(self.spec, KafkaRestoreSpec):  # a value that is there from the beginning asks for nothing
            self.status = replace(self.status, last_handled_retry=self.resource.retry)
        if outcome is not None:
            return self.finish(known, outcome)  # it ran, and the status was lost
        if self.spec.suspend and self.job(self.wanted.id) is None:
            return self.suspended("No run is started while spec.suspend is true.")
        if self._may_lack_fields():
            message = retry.hint_compare(self.resource)
            self.problem_event(CRDS_OUTDATED, message)
            return self.done(Phase.PENDING, conditions.stalled(CRDS_OUTDATED, message))
        try:
            self.create(self.wanted)
        except Waiting as waiting:
            return self.wait(waiting)
        self.started = True
        self._tell_left_topics()
        due = f" It was due at {timestamp(self.times.due)}." if self.times.due is not None else ""
        text = f"Run {known.id} is started as Job {known.job}, requested by {known.requested_by}.{due}"
        self.event("Normal", "RunStarted", text, known.id)
        self.status = replace(
            self.status,
            run=known,
            archive=self.archive_noted(),
            progress=None,
            restored_by=None,
            dry_run=None,
            emitted=None,
            held_topics=None,
            verification=None,
        )
        self.note_reasons()
        return self.done(
            Phase.PENDING, self.on_its_way("RunStarted", "The driver's pod is being created."), RESYNC_SECONDS
        )

    def _tell_left_topics(self) -> None:
        """Tell of topics that the run before has left held: no status shows them any more."""
        held, last = self.before.held_topics, self.before.run
        if held is None or last is None or held.released_time is not None:
            return
        more = f" and {held.topics - len(held.topic_list)} more" if held.topics > len(held.topic_list) else ""
        message = (
            f"Another run starts, and the status no longer shows the topics that run {last.id} left held: "
            f"{', '.join(held.topic_list)}{more}. Release them with `logkeep release --run-id {last.id}`."
        )
        self.event("Warning", "TopicsStayHeld", message, last.id)

    def _may_lack_fields(self) -> bool:
        """Return whether a restore was made while its CRD lacked fields, and it was not looked at since. Without its
        `dryRun` it would write."""
        ready = self.before.condition("Ready")
        if not self.resource.key.is_restore or self.before.run is not None or self.resource.run_again is not None:
            return False
        return ready is not None and ready.reason == CRDS_OUTDATED

    def _job_name(self) -> str:
        return job_name(self.resource.key.name, self.wanted.id)

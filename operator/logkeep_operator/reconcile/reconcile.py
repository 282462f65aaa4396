"""The one decision of the operator: it takes what the cluster shows, and says what to do. It asks for the state, never
for what happened before.

    deleted?  invalid?  another run unfinished?  a time due?  this run over?  suspended?  no Job yet?  else it runs.

A run that has ended is never touched again, whatever became of its Job. The exception is a restore that failed and is
to be tried again (`retry`). A Job that vanished before its run ended is made again: the engine continues where the
archive's last commit is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, KafkaRestoreSpec, parse_backup, parse_restore
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api import Condition, Phase, Resource, RunStatus, StatusOutcome
from logkeep_operator.api.status import timestamp
from logkeep_operator.reconcile import conditions, retry
from logkeep_operator.reconcile.asked import with_answers
from logkeep_operator.reconcile.drill import with_told_backup
from logkeep_operator.reconcile.executors import useless_pods
from logkeep_operator.reconcile.observed import JobState, Observed, PodState
from logkeep_operator.reconcile.outcome import (
    DRY_RUN_DONE,
    DRY_RUN_REFUSED,
    RESTORED_BEFORE,
    RUN_SUCCEEDED,
    JobOutcome,
    attempt_failure,
    last_result,
)
from logkeep_operator.reconcile.plan import (
    DeleteJob,
    EnsureAccess,
    Plan,
    SuspendJob,
)
from logkeep_operator.reconcile.progress import progress_status
from logkeep_operator.reconcile.risk import risk_changes_after, risk_has_turned
from logkeep_operator.reconcile.runs import inputs_of, wanted_run
from logkeep_operator.reconcile.schedule import scheduled_times, wake_after, with_times
from logkeep_operator.reconcile.starting import STUCK_JOB_AFTER, WAIT_SECONDS, Spec, Starting
from logkeep_operator.reconcile.step import CRDS_OUTDATED, INVALID_SPEC, NOT_ALLOWED, Step, last_turn, soonest
from logkeep_operator.reconcile.trouble import find_trouble, silent_driver, unreadable
from logkeep_operator.reconcile.turns import Turns
from logkeep_operator.reconcile.waiting import Waiting
from logkeep_operator.resources import ROLE_DRIVER, check_allowed, job_name, needs_access_objects
from logkeep_operator.settings import EngineSettings

RESYNC_SECONDS = 30.0
AT_REST_AFTER = timedelta(minutes=10)
_NO_QUEUE = Turns()
_WITHOUT_ACCESS = ("DriverNotCreated", "NoExecutors", "NoProgress")
_SUSPENDED_AFTER_SUCCESS = "The last run has succeeded; no other is started while spec.suspend is true."


def reconcile(observed: Observed, now: datetime, engine: EngineSettings, turns: Turns = _NO_QUEUE) -> Plan:
    """Decide what is to be done about one resource. `turns` says whether its driver may begin."""
    if observed.resource.deleting:
        return Plan()  # the garbage collector takes the children
    plan = _decide(observed, now, engine, turns)
    plan = replace(plan, actions=(*plan.actions, *useless_pods(observed)))
    return with_told_backup(observed, with_answers(observed, plan, now), now)


def _decide(observed: Observed, now: datetime, engine: EngineSettings, turns: Turns) -> Plan:
    try:
        spec = _parse(observed.resource)
        check_allowed(spec, engine)
    except SpecInvalid as error:
        step = Step(observed, now)
        return step.kept() if _has_restored(observed.resource) else step.invalid(error)
    return _Reconciliation(observed, now, spec, engine, turns).plan()


def is_at_rest(resource: Resource, now: datetime) -> bool:
    """Whether the resource needs nothing, so that its children need not even be read."""
    return not risk_has_turned(resource, now) and _rests(resource, now)


def wake_after_rest(resource: Resource, now: datetime) -> float | None:
    """Seconds until a resource at rest must be looked at again, though nothing happens to it; None if never."""
    return soonest(wake_after(resource, now), risk_changes_after(resource, resource.status, now))


def _rests(resource: Resource, now: datetime) -> bool:
    status = resource.status
    if status.observed_generation != resource.generation or resource.deleting:
        return False
    ready = status.condition("Ready")
    if ready is not None and ready.reason in (NOT_ALLOWED, CRDS_OUTDATED):
        return False  # the installation may allow it meanwhile, or have other CRDs
    run = status.run
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
    times = scheduled_times(resource, spec, now)
    if times.due is not None or with_times(status, status.last_schedule_time, times.next) != status:
        return False
    return wanted_run(resource, spec).id == run.id


def refused(resource: Resource, reason: str, message: str, now: datetime) -> Plan:
    """Tell that something which the run needs was not made: the API refused it (a quota, an admission webhook, a
    missing permission), or its name is taken."""
    return Step(Observed(resource), now).refused(reason, message)


def outdated(resource: Resource, message: str, now: datetime) -> Plan:
    """Tell that nothing is done, since the CRDs lack fields."""
    return Step(Observed(resource), now).outdated(message)


def _is_left_out(pod: PodState) -> bool:
    """Whether the Job does not count the failure of the pod."""
    return pod.disrupted or pod.exit_code == ExitCode.INTERRUPTED


def _has_restored(resource: Resource) -> bool:
    run = resource.status.run
    return resource.key.is_restore and run is not None and run.outcome is StatusOutcome.SUCCEEDED


def _parse(resource: Resource) -> Spec:
    spec: Spec = parse_backup(resource.spec) if resource.key.is_backup else parse_restore(resource.spec)
    check_spec(spec)
    return spec


class _Reconciliation(Starting):
    """A resource whose spec is valid: from the run before to the end of the run that it wants."""

    def plan(self) -> Plan:
        if self.times.missed is not None:
            late = "A run was due at {} and could not be started within startingDeadlineSeconds of its schedule."
            self.event("Warning", "MissSchedule", late.format(timestamp(self.times.missed)))
        plan = self._plan()
        if self.times.due is not None and self.status.last_schedule_time == self.before.last_schedule_time:
            return plan  # the run waits for something that is looked at again
        return replace(
            plan, requeue_after=soonest(plan.requeue_after, wake_after(self.resource, self.now, self.status))
        )

    def _plan(self) -> Plan:
        found = self.tell_unknown_run(self.wanted.id) or self.tell_loss_of_replaced()
        if found is not None:
            return found
        self.remove_replaced(self.wanted.id)
        last = self.before.run
        if last is not None and last.id != self.wanted.id and last.outcome is None:
            outcome = self.outcome(last.id)
            if outcome is not None:
                return self._finish(last, outcome)  # it ended, though another is wanted: with its result and its loss
            if inputs_of(last.key) == self.wanted.inputs and self.job(last.id):
                return self._go_on(last)  # only asked for again: this one first
            self.stop_unfinished()
            told = self.tell_loss_of_replaced()
            if told is not None:
                return told
        run = self.status.run
        if run is not None and run.id == self.wanted.id:
            return self._ended(run) if run.outcome is not None else self._go_on(run)
        return self._start()

    # ---- a run that is over

    def _ended(self, run: RunStatus) -> Plan:
        if retry.is_asked(self.resource):
            return self._retry(run)
        requeue = None
        found = self.job(run.id)
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
            return self._suspended(_SUSPENDED_AFTER_SUCCESS, run.id, requeue)
        phase = Phase.PENDING if run.outcome in (None, StatusOutcome.REPLACED) else Phase(run.outcome.value)
        return self.done(phase, self._end_conditions(run), requeue)

    def _retry(self, run: RunStatus) -> Plan:
        """Let the failed run continue. Its Job is made when the status says so, as one that vanished is: so a crash
        between the two leaves no Job that is taken for the one before."""
        if self.spec.suspend:
            return self._suspended("The run continues when spec.suspend is false.", run.id)
        self.actions += retry.leftovers(self.observed, run.id)
        if not retry.is_clear(self.observed, run.id):
            message = f"The Job of the last attempt, {run.job}, and its pods are being deleted."
            return self._wait(Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS))
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
        """The conditions as they were written when the run ended. Since then the spec may have been invalid for a
        time."""
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

    def _succeeded(self, message: str) -> tuple[Condition, ...]:
        if self.status.restored_by is None:
            return conditions.ready(RUN_SUCCEEDED, message)
        return conditions.ready(RESTORED_BEFORE, message + retry.hint_again(self.resource))

    def _only_found_out(self, message: str) -> tuple[Condition, ...]:
        found = self.status.dry_run
        if found is not None and found.refused:
            return conditions.stalled(DRY_RUN_REFUSED, message + retry.hint_look_again(self.resource))
        return conditions.only_found_out(DRY_RUN_DONE, message + retry.hint_begin(self.resource))

    def _failed(self, reason: str, message: str) -> tuple[Condition, ...]:
        return conditions.stalled(reason, message + retry.hint(self.resource))

    def _finish(self, run: RunStatus, outcome: JobOutcome) -> Plan:
        include: tuple[str, ...] = ()
        if run.id == self.wanted.id:
            include = self.spec.topics.include if isinstance(self.spec, KafkaBackupSpec) else ()
            self.note_reasons()
        extra = self.book(run, outcome, include)
        succeeded = outcome.outcome is StatusOutcome.SUCCEEDED
        if self.wanted.id != run.id:  # asked for again meanwhile: this end says nothing of what is wanted now
            state = conditions.reconciling(outcome.reason, f"Another run is asked for; the last one: {outcome.message}")
            return self.done(Phase.PENDING, (*state, *extra), 0.0)
        if outcome.outcome is StatusOutcome.DRY_RUN:
            state, phase = self._only_found_out(outcome.message), Phase.DRY_RUN
        elif succeeded:
            state, phase = self._succeeded(outcome.message), Phase.SUCCEEDED
        else:
            state, phase = self._failed(outcome.reason, outcome.message), Phase.FAILED
        found = self.job(run.id)
        requeue = STUCK_JOB_AFTER.total_seconds() + 1 if found is not None and not found.finished else None
        if succeeded and self.spec.suspend:
            return self._suspended(_SUSPENDED_AFTER_SUCCESS, run.id, requeue, extra)
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
            return self._finish(known, outcome)  # it ran, and the status was lost
        if self.spec.suspend and self.job(self.wanted.id) is None:
            return self._suspended("No run is started while spec.suspend is true.")
        if self._may_lack_fields():
            message = retry.hint_compare(self.resource)
            self.trouble_event(CRDS_OUTDATED, message)
            return self.done(Phase.PENDING, conditions.stalled(CRDS_OUTDATED, message))
        try:
            self.create(self.wanted)
        except Waiting as waiting:
            return self._wait(waiting)
        self.started = True
        due = f" It was due at {timestamp(self.times.due)}." if self.times.due is not None else ""
        told = f"Run {known.id} is started as Job {known.job}, requested by {known.requested_by}.{due}"
        self.event("Normal", "RunStarted", told, known.id)
        self.status = replace(
            self.status,
            run=known,
            progress=None,
            restored_by=None,
            dry_run=None,
            emitted=None,
            held_topics=None,
            verification=None,
        )
        self.note_reasons()
        return self.done(
            Phase.PENDING, self.on_its_way("RunStarted", "The driver's pod is on its way."), RESYNC_SECONDS
        )

    def _may_lack_fields(self) -> bool:
        """Whether a restore was made while its CRD lacked fields, and nobody has looked at it since. Without its
        `dryRun` it would write."""
        ready = self.before.condition("Ready")
        if not self.resource.key.is_restore or self.before.run is not None or self.resource.run_again is not None:
            return False
        return ready is not None and ready.reason == CRDS_OUTDATED

    def _wait(self, waiting: Waiting) -> Plan:
        if waiting.warn:
            self.trouble_event(waiting.reason, waiting.message)
        told = conditions.stalled if waiting.stalled else self.on_its_way
        return self.done(Phase.PENDING, told(waiting.reason, waiting.message), waiting.requeue_after)

    # ---- a run that is still running

    def _go_on(self, run: RunStatus) -> Plan:
        outcome = self.outcome(run.id)
        if outcome is not None:
            return self._finish(run, outcome)
        found = self.job(run.id)
        if found is None:
            return self._again(run)
        self._show(run, found)
        if found.failure is not None:
            reason, message = found.failure
            return self._say(run, Phase.RUNNING, "Ending", f"The driver is stopped: {reason}: {message}")
        try:
            self.make_lost_config_maps(run)
        except Waiting as waiting:
            return self._say(run, Phase.PENDING, waiting.reason, waiting.message)
        if self.spec.suspend:
            if not found.suspended and found.by_operator:
                # A queue lets an admitted Job continue whoever has suspended it: only a Job that is gone rests.
                self.actions.append(DeleteJob(found.name, found.uid))
            elif not found.suspended:
                self.actions.append(SuspendJob(found.name, True))
            return self._suspended(
                "The run is suspended; it continues from the last commit when spec.suspend is false.", run.id
            )
        if found.suspended and not found.by_operator:
            return self._queued(run, found)
        try:
            if found.suspended:
                self.take_turn()
        except Waiting as waiting:
            return self._say(run, Phase.PENDING, waiting.reason, waiting.message)
        if found.suspended or found.by_operator:  # what is written down of it goes, too
            self.actions.append(SuspendJob(found.name, False))
        if self.before.phase is Phase.SUSPENDED or found.suspended:
            self.event("Normal", "Resumed", "The run continues.", run.id)
        return self._running(run, found)

    def _queued(self, run: RunStatus, found: JobState) -> Plan:
        """Somebody else, such as a queue, has suspended the Job and will let it continue."""
        message = f"Job {found.name} is suspended, not by Logkeep: a queue such as Kueue starts it when there is room."
        return self._say(run, Phase.PENDING, "Queued", message)

    def _again(self, run: RunStatus) -> Plan:
        """Make the Job again, which vanished before the run was over."""
        if self.spec.suspend:
            return self._suspended(
                "The run is suspended; its Job was deleted and is made again when spec.suspend is false.", run.id
            )
        try:
            self.create(self.wanted)
        except Waiting as waiting:
            return self._wait(waiting)
        if run.attempt == retry.NOT_STARTED:
            said = "The run continues where it stopped; the driver's pod is on its way."
            return self.done(Phase.PENDING, conditions.reconciling("RunRetried", said), RESYNC_SECONDS)
        message = (
            f"Job {run.job} was deleted before the run was over; it is created again and continues from the last "
            "commit."
        )
        self.event("Warning", "JobRecreated", message, run.id)
        return self.done(Phase.PENDING, conditions.reconciling("JobRecreated", message), RESYNC_SECONDS)

    def _running(self, run: RunStatus, found: JobState) -> Plan:
        drivers = self.observed.pods_of(run.id, ROLE_DRIVER)
        documents = self.documents(run.id)
        heard = parse_timestamp(self.status.run.heard_time) if self.status.run is not None else None
        trouble = silent_driver(heard, drivers, self.now) or find_trouble(self.observed, found, self.now)
        driver_runs = any(pod.phase == "Running" for pod in drivers)
        reported = documents.progress is not None or bool(documents.unreadable)
        phase = Phase.RUNNING if driver_runs or reported or found.failed else Phase.PENDING
        result = last_result(documents, drivers)
        failure = attempt_failure(result, drivers)
        if trouble is not None:
            self._make_access_again(trouble.reason)
            self.trouble_event(trouble.reason, trouble.message, run.id)
            return self._say(run, phase, trouble.reason, trouble.message)
        if failure and not driver_runs and self._is_last(result, drivers):
            return self._say(run, phase, "Ending", failure)  # the Job has not said so yet
        if failure and not driver_runs:
            message = f"An attempt failed and is tried again: {failure}"
            self.trouble_event("Retrying", message, run.id)
            return self._say(run, phase, "Retrying", message)
        if failure and driver_runs:
            return self._say(run, phase, "Running", f"Tried again after: {failure}")
        trouble = unreadable(documents)
        if trouble is not None:
            self.trouble_event(trouble.reason, trouble.message, run.id)
            return self._say(run, phase, trouble.reason, trouble.message)
        if documents.progress is not None and documents.progress.waits and driver_runs:
            return self._say(run, phase, "Retrieving", documents.progress.waits)
        if phase is Phase.RUNNING:
            return self._say(run, phase, "Running", "The run is in progress.")
        return self._say(run, phase, "Pending", "The driver's pod is on its way.")

    def _make_access_again(self, reason: str) -> None:
        """Make accounts and rights of the namespace again, once when the run gets into a trouble that their deletion
        brings: no pod can be made for a deleted account, and no progress be written without rights."""
        ready = self.before.condition("Ready")
        turns = reason in _WITHOUT_ACCESS and (ready is None or ready.reason != reason)
        if turns and needs_access_objects(self.spec.spark):
            self.actions.append(EnsureAccess(self.resource.key.namespace))

    def _is_last(self, result: RunResult | None, drivers: list[PodState]) -> bool:
        """Whether the Job will start no other attempt after the one that failed."""
        if result is not None and result.exit_code in NEVER_RETRIED:
            return True
        failed = [pod for pod in drivers if pod.phase == "Failed" and not _is_left_out(pod)]
        return len(failed) > self.spec.run_policy.backoff_limit

    def _say(self, run: RunStatus, phase: Phase, reason: str, message: str) -> Plan:
        current = self.status.run or run
        self.status = replace(self.status, run=replace(current, message=conditions.cut(message)))
        return self.done(phase, self.on_its_way(reason, message), RESYNC_SECONDS)

    def _show(self, run: RunStatus, found: JobState) -> None:
        """Show the attempt and the progress, as far as they are known."""
        progress = self.documents(run.id).progress
        attempt = max(progress.attempt if progress is not None else 1, found.failed + (1 if found.active else 0), 1)
        shown = progress_status(progress) if progress is not None else self.status.progress
        heard = self._heard(run)
        self.status = replace(self.status, run=replace(run, attempt=attempt, heard_time=heard), progress=shown)

    def _heard(self, run: RunStatus) -> str | None:
        """The time at which the driver last wrote, readable or not, or was first seen to run. It is a time of the API
        server, since the clock of the driver's node may be wrong."""
        running = [pod for pod in self.observed.pods_of(run.id, ROLE_DRIVER) if pod.phase == "Running"]
        if not running:
            return None
        since = parse_timestamp(run.heard_time) or self.now
        # A driver that was made later than its predecessor was heard of has its own time.
        return timestamp(max(since, running[-1].created or since, self.documents(run.id).written or since))

    def _suspended(
        self,
        message: str,
        run_id: str = "",
        requeue: float | None = None,
        extra: tuple[Condition, ...] = (),
    ) -> Plan:
        if self.before.phase is not Phase.SUSPENDED:
            self.event("Normal", "Suspended", message, run_id)
        run = self.status.run
        if run is not None and run.outcome is None:
            self.status = replace(self.status, run=replace(run, message=message))
        return self.done(Phase.SUSPENDED, (*conditions.suspended(message), *extra), requeue)

    def _job_name(self) -> str:
        return job_name(self.resource.key.name, self.wanted.id)

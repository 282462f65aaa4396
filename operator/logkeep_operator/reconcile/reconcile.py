"""The one decision: from what is seen to what is to be done. Level-triggered: it asks what is, never what happened.

    deleted?  invalid?  another run unfinished?  this run over?  suspended?  no Job yet?  then it goes on.

A run that has ended is never touched again, whatever became of its Job, but for a restore that failed and is to be
tried again (`retry`). A Job that vanished before its run ended is made again: the engine goes on where the archive's
last commit is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import (
    KafkaBackupSpec,
    KafkaRestoreSpec,
    SpecInvalid,
    Storage,
    parse_backup,
    parse_restore,
)
from logkeep_operator.api import Condition, HistoryEntry, Phase, Resource, RunOutcome, RunStatus
from logkeep_operator.api.status import MAX_HISTORY, parse_timestamp, timestamp
from logkeep_operator.reconcile import conditions, retry
from logkeep_operator.reconcile.observed import Documents, JobState, Observed, PodState
from logkeep_operator.reconcile.outcome import Outcome, attempt_failure, decide, last_result
from logkeep_operator.reconcile.plan import (
    Action,
    Create,
    DeleteConfigMap,
    DeleteJob,
    EnsureAccess,
    Event,
    Plan,
    SuspendJob,
)
from logkeep_operator.reconcile.progress import archive_status, final_progress, loss_entries, progress_status
from logkeep_operator.reconcile.runs import WantedRun, inputs_of, wanted_run
from logkeep_operator.reconcile.trouble import find_trouble
from logkeep_operator.resources import (
    ROLE_DRIVER,
    Run,
    check_spec,
    job,
    job_name,
    progress_config_map,
    request_config_map,
    request_name,
)
from logkeep_operator.resources.checks import state_problems, storage_problems
from logkeep_operator.settings import EngineSettings

Spec = KafkaBackupSpec | KafkaRestoreSpec

RESYNC_SECONDS = 30.0
WAIT_SECONDS = 3.0
BACKUP_RECHECK_SECONDS = 15.0
# A driver that reported success but does not go (a thread that hangs) would hold its pods for ever.
STUCK_JOB_AFTER = timedelta(seconds=120)
SETTLED_AFTER = timedelta(minutes=10)


@dataclass(frozen=True)
class _Waiting(Exception):
    """The run cannot be started yet: what the status says meanwhile."""

    reason: str
    message: str
    stalled: bool
    requeue_after: float


def reconcile(observed: Observed, now: datetime, engine: EngineSettings) -> Plan:
    """What is to be done about one resource."""
    if observed.resource.deleting:
        return Plan()  # the garbage collector takes the children
    try:
        spec = _parse(observed.resource)
    except SpecInvalid as error:
        return _Step(observed, now).invalid(error)
    return _Reconciliation(observed, now, spec, engine).plan()


def is_settled(resource: Resource, now: datetime) -> bool:
    """Whether nothing can be to do, so that the children need not even be read."""
    status = resource.status
    if status.observed_generation != resource.generation or resource.deleting:
        return False
    run = status.run
    if status.phase is Phase.INVALID:
        return run is None or run.outcome is not None
    if run is None or run.outcome is None or retry.is_asked(resource):
        return False
    end = parse_timestamp(run.end_time)
    if end is None or now - end < SETTLED_AFTER:
        return False
    try:
        return wanted_run(resource, _parse(resource)).id == run.id
    except SpecInvalid:
        return False


def refused(resource: Resource, message: str, now: datetime) -> Plan:
    """The API refused something that the run needs (a quota, an admission webhook, a missing permission)."""
    return _Step(Observed(resource), now).refused(message)


def _same_try(old: HistoryEntry, new: HistoryEntry) -> bool:
    return old.run_id == new.run_id and (old.start_time == new.start_time or old.end_time == new.end_time)


def _parse(resource: Resource) -> Spec:
    backup = resource.key.kind == "KafkaBackup"
    spec: Spec = parse_backup(resource.spec) if backup else parse_restore(resource.spec)
    check_spec(spec)
    return spec


class _Step:
    """Builds a plan: collects actions and events, writes conditions."""

    def __init__(self, observed: Observed, now: datetime) -> None:
        self.observed = observed
        self.now = now
        self.resource = observed.resource
        self.before = observed.resource.status
        self.status = replace(self.before, observed_generation=self.resource.generation)
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.started = False
        self.finished: str | None = None

    def invalid(self, error: SpecInvalid) -> Plan:
        """Nothing runs until the spec is corrected."""
        self.stop_unfinished()
        message = str(error)
        ready = self.before.condition("Ready")
        if ready is None or (ready.reason, ready.message) != ("InvalidSpec", conditions.cut(message)):
            self.event("Warning", "InvalidSpec", message)
        return self.done(Phase.INVALID, conditions.stalled("InvalidSpec", message))

    def refused(self, message: str) -> Plan:
        """Something could not be made; the controller tries again."""
        self.trouble_event("ApiRefused", message)
        phase = self.before.phase if self.before.phase in (Phase.RUNNING, Phase.SUSPENDED) else Phase.PENDING
        return self.done(phase, conditions.reconciling("ApiRefused", message))

    def stop_unfinished(self) -> None:
        """The run that goes on is not wanted any more: its Job goes, what it committed stays."""
        run = self.before.run
        if run is None or run.outcome is not None:
            return
        found = self.observed.jobs.get(run.id)
        if found is not None and not found.deleting:
            self.actions.append(DeleteJob(found.name, found.uid))
        if self.resource.key.kind == "KafkaRestore":
            return  # its run keeps its id whatever happens: only so does the target recognise what it already has
        message = "Another run was asked for before this one was over; what it had committed stays."
        self.event("Normal", "RunReplaced", message, run.id)
        self.close_run(run, RunOutcome.REPLACED, message, self.now, None)

    def close_run(
        self, run: RunStatus, outcome: RunOutcome, message: str, end: datetime, result: RunResult | None
    ) -> None:
        """The run is over: into the status and the history. A try that is there already is not entered twice."""
        text = conditions.cut(message)
        ended = replace(run, outcome=outcome, message=text, end_time=timestamp(end))
        progress = self.status.progress
        entry = HistoryEntry(
            run_id=run.id,
            outcome=outcome.value,
            start_time=run.start_time,
            end_time=ended.end_time,
            records=result.records if result is not None else progress.records if progress is not None else None,
            bytes=result.bytes if result is not None else progress.bytes if progress is not None else None,
            message=text[:256],
        )
        others = (old for old in self.status.history if not _same_try(old, entry))
        history = (entry, *others)[:MAX_HISTORY]
        self.status = replace(self.status, run=ended, history=history)
        self.finished = outcome.value

    def event(self, kind: str, reason: str, message: str, run_id: str = "") -> None:
        self.events.append(Event(kind, reason, conditions.cut(message), run_id))

    def trouble_event(self, reason: str, message: str, run_id: str = "") -> None:
        """A Warning, once for each time that the condition turns to this reason."""
        ready = self.before.condition("Ready")
        if ready is None or ready.reason != reason:
            self.event("Warning", reason, message, run_id)

    def done(self, phase: Phase, wanted: Iterable[Condition], requeue_after: float | None = None) -> Plan:
        merged = conditions.merge(self.before, wanted, self.resource.generation, self.now)
        self.status = replace(self.status, phase=phase, conditions=merged)
        return Plan(
            actions=tuple(self.actions),
            events=tuple(self.events),
            status=self.status if self.status != self.before else None,
            requeue_after=requeue_after,
            started=self.started,
            finished=self.finished,
        )


class _Reconciliation(_Step):
    """A resource whose spec is valid."""

    def __init__(self, observed: Observed, now: datetime, spec: Spec, engine: EngineSettings) -> None:
        super().__init__(observed, now)
        self.spec = spec
        self.engine = engine
        self.wanted = wanted_run(self.resource, spec)

    def plan(self) -> Plan:
        last = self.before.run
        if last is not None and last.id != self.wanted.id and last.outcome is None:
            if inputs_of(last.key) == self.wanted.inputs and (self._job(last.id) or self._outcome(last.id)):
                return self._go_on(last)  # only asked for again: this one first
            self.stop_unfinished()
        run = self.status.run
        if run is not None and run.id == self.wanted.id:
            return self._ended(run) if run.outcome is not None else self._go_on(run)
        return self._start()

    def _documents(self, run_id: str) -> Documents:
        return self.observed.documents.get(run_id, Documents())

    def _outcome(self, run_id: str) -> Outcome | None:
        drivers = self.observed.pods_of(run_id, ROLE_DRIVER)
        return decide(self._job(run_id), self._documents(run_id), drivers)

    def _job(self, run_id: str) -> JobState | None:
        """The run's Job; one that is being deleted counts as gone unless it is finished."""
        found = self.observed.jobs.get(run_id)
        return None if found is not None and found.deleting and not found.finished else found

    # ---- a run that is over

    def _ended(self, run: RunStatus) -> Plan:
        if retry.is_asked(self.resource):
            return self._retry(run)
        requeue = None
        found = self._job(run.id)
        end = parse_timestamp(run.end_time) or self.now
        if found is not None and not found.finished and not found.suspended:
            left = (end + STUCK_JOB_AFTER - self.now).total_seconds()
            if left > 0:
                requeue = left + 1
            else:
                self.actions.append(DeleteJob(found.name, found.uid))
                self.event(
                    "Warning", "DriverStuck", "The driver did not end after its run; its pods are deleted.", run.id
                )
        phase = Phase(run.outcome.value) if run.outcome in (RunOutcome.SUCCEEDED, RunOutcome.FAILED) else Phase.PENDING
        return self.done(phase, self._end_conditions(run), requeue)

    def _retry(self, run: RunStatus) -> Plan:
        """The run goes on. Its Job is made when the status says so, as one that vanished is: a crash between the two
        leaves no Job that is taken for the one before."""
        if self.spec.suspend:
            return self._suspended("The run goes on when spec.suspend is false.", run.id)
        self.actions += retry.leftovers(self.observed, run.id)
        if not retry.is_clear(self.observed, run.id):
            message = f"What is left of the last try, Job {run.job} and its pods, is being deleted."
            return self._wait(_Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS))
        self.started = True
        message = f"Run {run.id} has failed and goes on where it stopped."
        self.event("Normal", "RunRetried", f"{message} ({self.resource.retry})", run.id)
        self.status = replace(
            self.status,
            run=retry.renewed(run, self.now),
            progress=None,
            last_handled_retry=self.resource.retry,
        )
        return self.done(Phase.PENDING, conditions.reconciling("RunRetried", message), 0.0)

    def _end_conditions(self, run: RunStatus) -> tuple[Condition, ...]:
        """As they were written when the run ended; the time before, the spec may have been invalid."""
        message = run.message or ""
        if run.outcome is RunOutcome.SUCCEEDED:
            return conditions.ready("RunSucceeded", message)
        failed = self.before.condition("Stalled")
        reason = (
            failed.reason
            if failed is not None and failed.status == "True" and failed.reason != "InvalidSpec"
            else "RunFailed"
        )
        return conditions.stalled(reason, message)

    def _finish(self, run: RunStatus, outcome: Outcome) -> Plan:
        documents = self._documents(run.id)
        succeeded = outcome.outcome is RunOutcome.SUCCEEDED
        result = outcome.result
        end = outcome.end or self.now
        self.status = replace(self.status, progress=final_progress(documents.progress, result, succeeded))
        self.close_run(run, outcome.outcome, outcome.message, end, result)
        if succeeded:
            self.status = replace(self.status, last_success_time=timestamp(end))
            self.event("Normal", "RunSucceeded", outcome.message, run.id)
        else:
            self.event("Warning", "RunFailed", f"{outcome.reason}: {outcome.message}", run.id)
        extra: tuple[Condition, ...] = ()
        if result is not None:
            archive = archive_status(result, self._archive_uri())
            offset_map = result.offset_map or None
            self.status = replace(
                self.status,
                archive=archive or self.status.archive,
                offset_map=offset_map or self.status.offset_map,
                loss=loss_entries(result),
            )
            extra = self._loss(result, succeeded, run)
        state = (
            conditions.ready("RunSucceeded", outcome.message)
            if succeeded
            else conditions.stalled(outcome.reason, outcome.message)
        )
        phase = Phase.SUCCEEDED if succeeded else Phase.FAILED
        found = self._job(run.id)
        pending = self.wanted.id != run.id  # asked for again meanwhile
        requeue = (
            0.0
            if pending
            else STUCK_JOB_AFTER.total_seconds() + 1
            if found is not None and not found.finished
            else None
        )
        return self.done(phase, (*state, *extra), requeue)

    def _loss(self, result: RunResult, succeeded: bool, run: RunStatus) -> tuple[Condition, ...]:
        if result.loss_total == 0 and result.error_code != "DataLoss":
            return (conditions.data_loss(False, "No records are missing."),) if succeeded else ()
        first = result.loss[0] if result.loss else None
        message = f"{result.loss_offsets} offsets in {result.loss_total} ranges are missing"
        if first is not None:
            message += f", the first: {first.topic}-{first.partition} [{first.start}, {first.end}): {first.reason}"
        self.event("Warning", "RecordsMissing", message, run.id)
        return (conditions.data_loss(True, message),)

    def _archive_uri(self) -> str:
        if isinstance(self.spec, KafkaBackupSpec):
            return self.spec.storage.uri
        if self.spec.source.storage is not None:
            return self.spec.source.storage.uri
        backup = self.observed.backup
        return str((backup.spec.get("storage") or {}).get("uri", "")) if backup is not None else ""

    # ---- a run that is to be started, again or for the first time

    def _start(self) -> Plan:
        outcome = self._outcome(self.wanted.id)
        known = RunStatus(id=self.wanted.id, key=self.wanted.key, job=self._job_name(), start_time=timestamp(self.now))
        if isinstance(self.spec, KafkaRestoreSpec):  # a value that is there from the beginning asks for nothing
            self.status = replace(self.status, last_handled_retry=self.resource.retry)
        if outcome is not None:
            return self._finish(known, outcome)  # it ran, and the status was lost
        if self.spec.suspend and self._job(self.wanted.id) is None:
            return self._suspended("No run is started while spec.suspend is true.")
        try:
            self._create(self.wanted)
        except _Waiting as waiting:
            return self._wait(waiting)
        self.started = True
        self.event("Normal", "RunStarted", f"Run {known.id} is started as Job {known.job}.", known.id)
        self.status = replace(
            self.status,
            run=known,
            progress=None,
            last_handled_run=self.wanted.trigger if isinstance(self.spec, KafkaBackupSpec) else None,
        )
        return self.done(
            Phase.PENDING, conditions.reconciling("RunStarted", "The driver's pod is on its way."), RESYNC_SECONDS
        )

    def _create(self, wanted: WantedRun) -> None:
        """Everything a run needs, in an order in which a crash leaves nothing half. Raises _Waiting."""
        self._wait_for_others(wanted.id)
        storage, raw = self._storage()
        run = Run(self.resource, wanted.id, self.spec, storage, raw, self.engine)
        if self.spec.spark.service_account_name is None:
            self.actions.append(EnsureAccess(self.resource.key.namespace))
        self.actions += [Create(request_config_map(run)), Create(progress_config_map(run)), Create(job(run))]
        for run_id, documents in self.observed.documents.items():
            if run_id != wanted.id:
                self.actions += [DeleteConfigMap(name) for name in documents.config_maps]

    def _wait_for_others(self, run_id: str) -> None:
        """One driver at a time: none of an earlier run, and none of this one whose Job is gone."""
        if any(isinstance(action, DeleteJob) for action in self.actions):
            raise _Waiting("WaitingForPreviousRun", "The run before is being stopped.", False, WAIT_SECONDS)
        for other in self.observed.jobs.values():
            if other.run_id == run_id and not other.deleting:
                continue
            if other.finished and not other.deleting:
                continue
            if not other.deleting and self._is_over(other):
                self.actions.append(DeleteJob(other.name, other.uid))
            raise _Waiting("WaitingForPreviousRun", f"Job {other.name} has not ended yet.", False, WAIT_SECONDS)
        for pod in self.observed.pods:
            if pod.role == ROLE_DRIVER and pod.alive and not (pod.run_id == run_id and self._job(run_id) is not None):
                message = f"Driver pod {pod.name} of a Job that is gone has not ended yet."
                raise _Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS)

    def _is_over(self, other: JobState) -> bool:
        """Whether the Job's run has ended although its pod has not, for long enough."""
        entry = next((entry for entry in self.status.history if entry.run_id == other.run_id), None)
        end = parse_timestamp(entry.end_time) if entry is not None else None
        return end is not None and self.now - end > STUCK_JOB_AFTER

    def _storage(self) -> tuple[Storage, dict[str, object]]:
        """The archive's place, typed and as written. Raises _Waiting when a backupRef leads nowhere."""
        if isinstance(self.spec, KafkaBackupSpec):
            return self.spec.storage, dict(self.resource.spec["storage"])
        source = self.spec.source
        if source.storage is not None:
            return source.storage, dict(self.resource.spec["source"]["storage"])
        name = source.backup_ref.name if source.backup_ref is not None else ""
        backup = self.observed.backup
        if backup is None:
            message = (
                f"spec.source.backupRef: there is no KafkaBackup {name!r} in namespace {self.resource.key.namespace}."
            )
            raise _Waiting("BackupNotFound", message, True, BACKUP_RECHECK_SECONDS)
        try:
            storage = parse_backup(backup.spec).storage
            problems = storage_problems("spec.storage", storage)
            if problems:
                raise SpecInvalid(problems)
        except SpecInvalid as error:
            message = f"spec.source.backupRef: KafkaBackup {name!r} is invalid: {error}"
            raise _Waiting("BackupInvalid", message, True, BACKUP_RECHECK_SECONDS) from error
        if problems := state_problems(storage, self.spec.state):
            raise _Waiting("InvalidSpec", str(SpecInvalid(problems)), True, BACKUP_RECHECK_SECONDS)
        return storage, dict(backup.spec["storage"])

    def _wait(self, waiting: _Waiting) -> Plan:
        if waiting.stalled:
            self.trouble_event(waiting.reason, waiting.message)
        state = (conditions.stalled if waiting.stalled else conditions.reconciling)(waiting.reason, waiting.message)
        return self.done(Phase.PENDING, state, waiting.requeue_after)

    # ---- a run that goes on

    def _go_on(self, run: RunStatus) -> Plan:
        outcome = self._outcome(run.id)
        if outcome is not None:
            return self._finish(run, outcome)
        found = self._job(run.id)
        if found is None:
            return self._again(run)
        self._show(run, found)
        if self.spec.suspend:
            if not found.suspended:
                self.actions.append(SuspendJob(found.name, True))
            return self._suspended(
                "The run is suspended; it goes on from the last commit when spec.suspend is false.", run.id
            )
        if found.suspended:
            self.actions.append(SuspendJob(found.name, False))
        if self.before.phase is Phase.SUSPENDED:
            self.event("Normal", "Resumed", "The run goes on.", run.id)
        return self._running(run, found)

    def _again(self, run: RunStatus) -> Plan:
        """The Job vanished before the run was over."""
        if self.spec.suspend:
            return self._suspended(
                "The run is suspended; its Job was deleted and is made again when spec.suspend is false.", run.id
            )
        try:
            self._create(self.wanted)
        except _Waiting as waiting:
            return self._wait(waiting)
        # Driver and executors of the new Job get what the spec says now; the old request cannot be changed.
        self.actions.insert(0, DeleteConfigMap(request_name(self.resource.key.name, run.id)))
        if run.attempt == retry.NOT_STARTED:
            said = "The run goes on where it stopped; the driver's pod is on its way."
            return self.done(Phase.PENDING, conditions.reconciling("RunRetried", said), RESYNC_SECONDS)
        message = (
            f"Job {run.job} was deleted before the run was over; it is made again and goes on from the last commit."
        )
        self.event("Warning", "JobRecreated", message, run.id)
        return self.done(Phase.PENDING, conditions.reconciling("JobRecreated", message), RESYNC_SECONDS)

    def _running(self, run: RunStatus, found: JobState) -> Plan:
        drivers = self.observed.pods_of(run.id, ROLE_DRIVER)
        progress = self._documents(run.id).progress
        trouble = find_trouble(self.observed, found, self.now)
        driver_runs = any(pod.phase == "Running" for pod in drivers)
        phase = Phase.RUNNING if driver_runs or progress is not None or found.failed else Phase.PENDING
        result = last_result(self._documents(run.id), drivers)
        failure = attempt_failure(result, drivers)
        if trouble is not None:
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
        if phase is Phase.RUNNING:
            return self._say(run, phase, "Running", "The run goes on.")
        return self._say(run, phase, "Pending", "The driver's pod is on its way.")

    def _is_last(self, result: RunResult | None, drivers: list[PodState]) -> bool:
        """Whether the Job will start no other attempt after the one that failed."""
        if result is not None and result.exit_code in NEVER_RETRIED:
            return True
        failed = [pod for pod in drivers if pod.phase == "Failed" and pod.exit_code != ExitCode.INTERRUPTED]
        return len(failed) > self.spec.run_policy.backoff_limit

    def _say(self, run: RunStatus, phase: Phase, reason: str, message: str) -> Plan:
        current = self.status.run or run
        self.status = replace(self.status, run=replace(current, message=conditions.cut(message)))
        return self.done(phase, conditions.reconciling(reason, message), RESYNC_SECONDS)

    def _show(self, run: RunStatus, found: JobState) -> None:
        """Attempt and progress, as far as they are known."""
        progress = self._documents(run.id).progress
        attempt = max(progress.attempt if progress is not None else 1, found.failed + (1 if found.active else 0), 1)
        shown = progress_status(progress) if progress is not None else self.status.progress
        self.status = replace(self.status, run=replace(run, attempt=attempt), progress=shown)

    def _suspended(self, message: str, run_id: str = "") -> Plan:
        if self.before.phase is not Phase.SUSPENDED:
            self.event("Normal", "Suspended", message, run_id)
        run = self.status.run
        if run is not None and run.outcome is None:
            self.status = replace(self.status, run=replace(run, message=message))
        return self.done(Phase.SUSPENDED, conditions.suspended(message), RESYNC_SECONDS)

    def _job_name(self) -> str:
        return job_name(self.resource.key.name, self.wanted.id)

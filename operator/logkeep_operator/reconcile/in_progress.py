"""A run that is on its way: what is shown of it, what troubles it, and what becomes of a Job that is suspended or
gone."""

from __future__ import annotations

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import parse_timestamp
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Phase, RunStatus
from logkeep_operator.reconcile import conditions, retry
from logkeep_operator.reconcile.observed import JobState, PodState
from logkeep_operator.reconcile.outcome import JobOutcome, attempt_failure, last_result
from logkeep_operator.reconcile.plan import DeleteJob, EnsureAccess, Plan, SuspendJob
from logkeep_operator.reconcile.problems import find_problem, silent_driver, unreadable, waits_for_executors
from logkeep_operator.reconcile.progress import progress_status
from logkeep_operator.reconcile.starting import Starting
from logkeep_operator.reconcile.waiting import Waiting
from logkeep_operator.resources import ROLE_DRIVER, needs_access_objects

RESYNC_SECONDS = 30.0
_WITHOUT_ACCESS = ("DriverNotCreated", "NoExecutors", "NoProgress")


def _is_left_out(pod: PodState) -> bool:
    """Return whether the Job does not count the failure of the pod."""
    return pod.disrupted or pod.exit_code == ExitCode.INTERRUPTED


class GoingOn(Starting):
    """A resource whose spec is valid, and a run of it that has begun."""

    def finish(self, run: RunStatus, outcome: JobOutcome) -> Plan:
        """Tell how the run has ended."""
        raise NotImplementedError

    def wait(self, waiting: Waiting) -> Plan:
        """Tell what the run waits for."""
        if waiting.warn:
            self.problem_event(waiting.reason, waiting.message)
        condition_of = conditions.stalled if waiting.stalled else self.on_its_way
        return self.done(Phase.PENDING, condition_of(waiting.reason, waiting.message), waiting.requeue_after)

    def go_on(self, run: RunStatus) -> Plan:
        """Look after the run, or tell how it has ended."""
        outcome = self.outcome(run.id)
        if outcome is not None:
            return self.finish(run, outcome)
        found = self.job(run.id)
        if found is None:
            return self.again(run)
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
                # A queue lets an admitted Job continue, no matter who suspended it: only a Job that is gone rests.
                self.actions.append(DeleteJob(found.name, found.uid))
            elif not found.suspended:
                self.actions.append(SuspendJob(found.name, True))
            return self.suspended(
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
        """Another party, such as a queue, has suspended the Job and will let it continue."""
        message = f"Job {found.name} is suspended, not by Logkeep: a queue such as Kueue starts it when there is room."
        return self._say(run, Phase.PENDING, "Queued", message)

    def again(self, run: RunStatus) -> Plan:
        """Make the Job again, which vanished before the run was over."""
        if self.spec.suspend:
            return self.suspended(
                "The run is suspended; its Job was deleted and is created again when spec.suspend is false.", run.id
            )
        try:
            self.create(self.wanted)
        except Waiting as waiting:
            return self.wait(waiting)
        if run.attempt == retry.NOT_STARTED:
            said = "The run continues where it stopped; the driver's pod is being created."
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
        trouble = silent_driver(heard, drivers, self.now) or find_problem(self.observed, found, self.now)
        driver_runs = any(pod.phase == "Running" for pod in drivers)
        reported = documents.progress is not None or bool(documents.unreadable)
        phase = Phase.RUNNING if driver_runs or reported or found.failed else Phase.PENDING
        result = last_result(documents, drivers)
        failure = attempt_failure(result, drivers)
        if trouble is not None:
            self._make_access_again(trouble.reason)
            self.problem_event(trouble.reason, trouble.message, run.id)
            return self._say(run, phase, trouble.reason, trouble.message)
        if failure and self._is_last(result, drivers):
            return self._say(run, phase, "Ending", failure)  # the Job has not said so yet
        if failure and not driver_runs:
            message = f"An attempt failed and is tried again: {failure}"
            self.problem_event("Retrying", message, run.id)
            return self._say(run, phase, "Retrying", message)
        if failure and driver_runs:
            return self._say(
                run, phase, "Running", f"The run is in progress again, after an attempt that failed: {failure}"
            )
        trouble = unreadable(documents)
        if trouble is not None:
            self.problem_event(trouble.reason, trouble.message, run.id)
            return self._say(run, phase, trouble.reason, trouble.message)
        if documents.progress is not None and documents.progress.waits and driver_runs:
            return self._say(run, phase, "Retrieving", documents.progress.waits)
        waits = waits_for_executors(self.observed, run.id)
        if waits is not None:
            return self._say(run, phase, "Pending", waits)
        if phase is Phase.RUNNING:
            return self._say(run, phase, "Running", "The run is in progress.")
        return self._say(run, phase, "Pending", "The driver's pod is being created.")

    def _make_access_again(self, reason: str) -> None:
        """Make accounts and rights of the namespace again, once when the run gets into a trouble that their deletion
        brings: no pod can be made for a deleted account, and no progress be written without rights."""
        ready = self.before.condition("Ready")
        turns = reason in _WITHOUT_ACCESS and (ready is None or ready.reason != reason)
        if turns and needs_access_objects(self.spec.spark):
            self.actions.append(EnsureAccess(self.resource.key.namespace))

    def _is_last(self, result: RunResult | None, drivers: list[PodState]) -> bool:
        """Return whether the Job will start no other attempt after the one that failed."""
        if result is not None and result.exit_code in NEVER_RETRIED:
            return True
        failed = [pod for pod in drivers if pod.phase == "Failed" and not _is_left_out(pod)]
        runs = any(pod.phase == "Running" for pod in drivers)  # the limit has been changed since
        return not runs and len(failed) > self.spec.run_policy.backoff_limit

    def _say(self, run: RunStatus, phase: Phase, reason: str, message: str) -> Plan:
        current = self.status.run or run
        self.status = replace(self.status, run=replace(current, message=cut(message)))
        return self.done(phase, self.on_its_way(reason, message), RESYNC_SECONDS)

    def _show(self, run: RunStatus, found: JobState) -> None:
        """Show the attempt and the progress, as far as they are known."""
        progress = self.documents(run.id).progress
        attempt = max(progress.attempt if progress is not None else 1, found.failed + (1 if found.active else 0), 1)
        shown = progress_status(progress) if progress is not None else self.status.progress
        heard = self._heard(run)
        self.status = replace(self.status, run=replace(run, attempt=attempt, heard_time=heard), progress=shown)

    def _heard(self, run: RunStatus) -> str | None:
        """Return the time at which the driver last wrote, readable or not, or was first seen to run. It is a time of
        the API server, since the clock of the driver's node may be wrong."""
        running = [pod for pod in self.observed.pods_of(run.id, ROLE_DRIVER) if pod.phase == "Running"]
        if not running:
            return None
        since = parse_timestamp(run.heard_time) or self.now
        # A driver that was made later than its predecessor was heard of has its own time.
        return timestamp(max(since, running[-1].created or since, self.documents(run.id).written or since))

    def suspended(
        self,
        message: str,
        run_id: str = "",
        requeue: float | None = None,
        extra: tuple[Condition, ...] = (),
    ) -> Plan:
        """Tell that nothing is done while the resource is suspended."""
        if self.before.phase is not Phase.SUSPENDED:
            self.event("Normal", "Suspended", message, run_id)
        run = self.status.run
        if run is not None and run.outcome is None:
            self.status = replace(self.status, run=replace(run, message=message))
        return self.done(Phase.SUSPENDED, (*conditions.suspended(message), *extra), requeue)

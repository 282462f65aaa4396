"""The release of the topics that a restore holds, when `spec.topics.holdFor` is over.

The run that holds them is started again, under its id: its driver finds that it has succeeded, and releases them as
`logkeep release` does. That changes nothing that was changed before, so a Job that is gone, or whose end was not
seen, is created again. The run of the status keeps its outcome. `status.heldTopics` says when the topics are released,
that they were, or why not yet. A release that has failed is tried again, later and later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import parse_timestamp, so_many
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Phase, Resource, RunStatus, Status, StatusOutcome
from logkeep_operator.api.status import HeldTopicsStatus
from logkeep_operator.reconcile import conditions, retry
from logkeep_operator.reconcile.in_progress import RESYNC_SECONDS, GoingOn
from logkeep_operator.reconcile.observed import JobState, Observed
from logkeep_operator.reconcile.outcome import RESTORED_BEFORE, RUN_SUCCEEDED, JobOutcome
from logkeep_operator.reconcile.plan import DeleteConfigMap, DeleteJob, Plan
from logkeep_operator.reconcile.progress import held_topics_status
from logkeep_operator.reconcile.queue import RunQueue
from logkeep_operator.reconcile.runs import is_release, release_key
from logkeep_operator.reconcile.starting import WAIT_SECONDS, Spec
from logkeep_operator.reconcile.waiting import Waiting
from logkeep_operator.resources import is_topics_name
from logkeep_operator.settings import EngineSettings

RELEASE_FAILED = "ReleaseFailed"
_UNTOLD = HeldTopicsStatus()  # the report that names the topics was lost, and they are held all the same
_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=1)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)  # a user who may write a status may write any time


# ---- when


def with_release_time(status: Status, spec: KafkaBackupSpec | KafkaRestoreSpec, now: datetime) -> Status:
    """Return the status with the time at which the topics are released that it shows, as the spec says it now."""
    if not isinstance(spec, KafkaRestoreSpec):
        return status
    seconds, success = spec.topics.hold_seconds, parse_timestamp(status.last_success_time)
    held = status.held_topics or (_UNTOLD if seconds is not None and _has_lost_report(status.run) else None)
    if held is None or held.released_time is not None:
        return status
    at = None if seconds is None or success is None else min(success, _LAST) + timedelta(seconds=seconds)
    held = replace(held, release_time=None if at is None else timestamp(at))
    if at is None or at > now:  # what has failed at an earlier time counts no more
        held = replace(held, failures=None, failed_time=None, message=None)
    return replace(status, held_topics=held)


def _has_lost_report(run: RunStatus | None) -> bool:
    return run is not None and run.outcome is StatusOutcome.SUCCEEDED and run.exit_code is None


def is_held(status: Status) -> bool:
    """Return whether the status shows topics that it does not know to be released."""
    return status.held_topics is not None and status.held_topics.released_time is None


def awaits_release(status: Status) -> bool:
    """Return whether the operator is to release topics, now or later."""
    return is_held(status) and status.held_topics is not None and status.held_topics.release_time is not None


def is_release_due(status: Status, now: datetime) -> bool:
    """Return whether the topics are to be released now. A failed release waits for its next turn."""
    at = _due(status)
    return at is not None and at <= now


def wake_after_hold(resource: Resource, status: Status, now: datetime) -> float | None:
    """Seconds until the topics are to be released, None if they are not, or if the time has come: then something else
    says when to look again."""
    at = _due(status)
    if at is None or at <= now or status.phase is Phase.INVALID or resource.spec.get("suspend"):
        return None
    return (at - now).total_seconds()


def _due(status: Status) -> datetime | None:
    held, run = status.held_topics, status.run
    if held is None or not awaits_release(status) or run is None or run.outcome is not StatusOutcome.SUCCEEDED:
        return None
    at, failed = parse_timestamp(held.release_time), parse_timestamp(held.failed_time)
    if at is None or failed is None:
        return at
    return max(at, min(failed, _LAST) + _wait_after(held.failures))


def _wait_after(failures: int | None) -> timedelta:
    # Anybody who may write a status may write any number of failures, also one below 0.
    return min(_FIRST_WAIT * (1 << max(0, min((failures or 1) - 1, 10))), _LONGEST_WAIT)


# ---- what is reported


def restored(resource: Resource, status: Status, message: str) -> tuple[Condition, ...]:
    """Return the conditions of a restore that has succeeded with this message, and whose topics may wait for their
    release."""
    text = describe_release(status.held_topics, message)
    held = status.held_topics
    if held is not None and held.released_time is None and held.failures:
        return conditions.reconciling(RELEASE_FAILED, text)
    if status.restored_by is None:
        return conditions.ready(RUN_SUCCEEDED, text)
    return conditions.ready(RESTORED_BEFORE, text + retry.hint_again(resource))


def describe_release(held: HeldTopicsStatus | None, message: str) -> str:
    """Return the message of a restore, after what is known of the release of its topics: the end of a message may be
    cut."""
    text = "" if held is None else _describe_held(held)
    return "; ".join(filter(None, (text, message)))


def _describe_held(held: HeldTopicsStatus) -> str:
    if held.released_time is not None:
        left = held.topics - (held.released or 0)
        if not left:
            return f"{so_many(held.topics, 'held topic')} released at {held.released_time}"
        names = ", ".join(held.not_released_list) or "the others, whose names were lost"
        return f"{held.released} of {so_many(held.topics, 'held topic')} released at {held.released_time}, not {names}"
    if held.failures:
        failed = parse_timestamp(held.failed_time)
        again = f" at {timestamp(min(failed, _LAST) + _wait_after(held.failures))}" if failed is not None else ""
        return (
            f"the release of {_number(held)}, due at {held.release_time}, has failed "
            f"{so_many(held.failures, 'time')} and is tried again{again}: {held.message}"
        )
    if held.release_time is not None:
        return f"{_number(held)} to be released at {held.release_time}"
    return ""


def _number(held: HeldTopicsStatus) -> str:
    return so_many(held.topics, "held topic") if held.topics else "held topics"


# ---- the Job


def is_live_release(found: JobState | None) -> bool:
    """Return whether the Job releases topics and has not ended."""
    return found is not None and is_release(found.origin.key) and not found.finished


class Release(GoingOn):
    """A restore that has succeeded and whose topics are to be released now. `status` has the time."""

    def __init__(
        self, observed: Observed, now: datetime, spec: Spec, engine: EngineSettings, turns: RunQueue, status: Status
    ) -> None:
        super().__init__(observed, now, spec, engine, turns)
        assert status.held_topics is not None, "only topics that are held are released"
        self.status = status
        self.held = status.held_topics
        failures = self.held.failures or 0
        self.wanted = replace(self.wanted, key=release_key(self.wanted.id, self.held.release_time or "", failures))
        self.stands = failures == 0  # Ready stays as it was

    def plan(self, run: RunStatus) -> Plan:
        """Release the topics of the run, or tell that this was done."""
        return self._begin(run) if self.job(run.id) is None else self.go_on(run)

    def job(self, run_id: str) -> JobState | None:
        found = super().job(run_id)
        return found if found is not None and found.origin.key == self.wanted.key else None

    def done(self, phase: Phase, wanted: Iterable[Condition], requeue_after: float | None = None) -> Plan:
        """Plan as any, with the run and its progress as they ended."""
        self.status = replace(self.status, run=self.before.run, progress=self.before.progress)
        return super().done(Phase.SUCCEEDED, wanted, requeue_after)

    def on_its_way(self, reason: str, message: str) -> tuple[Condition, ...]:
        before = f" It has failed {so_many(self.held.failures, 'time')}." if self.held.failures else ""
        text = f"The release of {_number(self.held)} is on its way: {message}{before}"
        return super().on_its_way(reason, text)

    def _begin(self, run: RunStatus) -> Plan:
        """Make the Job, once nothing is left of the one before but the KafkaTopics that the user has got."""
        found, documents = self.observed.jobs.get(run.id), self.documents(run.id)
        names = [name for name in documents.config_maps if not is_topics_name(name)]
        if found is not None and not found.deleting:
            self.actions.append(DeleteJob(found.name, found.uid))
        self.actions += [DeleteConfigMap(name) for name in names]
        if found is not None or names or any(pod.run_id == run.id for pod in self.observed.pods):
            message = f"The previous Job, {run.job}, and its pods are being deleted."
            return self.wait(Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS))
        try:
            self.create(self.wanted)
        except Waiting as waiting:
            return self.wait(waiting)
        return self.done(
            Phase.SUCCEEDED, self.on_its_way("RunStarted", "The driver's pod is being created."), RESYNC_SECONDS
        )

    def finish(self, run: RunStatus, outcome: JobOutcome) -> Plan:
        """Tell which topics were released, or why none was."""
        found = held_topics_status(outcome.result) if outcome.result is not None else None
        if outcome.outcome is not StatusOutcome.SUCCEEDED or found is None or found.released_time is None:
            return self._failed(run, outcome)
        at = min(parse_timestamp(found.released_time) or self.now, self.now)
        names = self.held.topic_list or found.topic_list
        held = replace(found, topic_list=names, release_time=self.held.release_time, released_time=timestamp(at))
        self.status = replace(self.status, held_topics=held)
        self.event(
            "Normal" if held.released == held.topics else "Warning", "TopicsReleased", _describe_held(held), run.id
        )
        return self._release_end(run)

    def _failed(self, run: RunStatus, outcome: JobOutcome) -> Plan:
        held = replace(
            self.held,
            failures=(self.held.failures or 0) + 1,
            failed_time=timestamp(self.now),
            message=cut(f"{outcome.reason}: {outcome.message}"),
        )
        self.status = replace(self.status, held_topics=held)
        self.event("Warning", RELEASE_FAILED, _describe_held(held), run.id)
        return self._release_end(run)

    def _release_end(self, run: RunStatus) -> Plan:
        text = restored(self.resource, self.status, run.message or "")
        return self.done(Phase.SUCCEEDED, text, wake_after_hold(self.resource, self.status, self.now))

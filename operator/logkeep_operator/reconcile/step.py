"""The parts that every plan has, whatever the spec says: actions, events and conditions, how a run ended, and runs that
the status does not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.facts.values import moment_of, timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import parse_timestamp, so_many
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import (
    ArchiveStatus,
    Condition,
    HistoryEntry,
    Phase,
    ProgressStatus,
    RunStatus,
    Status,
    StatusOutcome,
)
from logkeep_operator.api.archive import storage_of, store_of
from logkeep_operator.api.status import MAX_HISTORY
from logkeep_operator.reconcile import conditions
from logkeep_operator.reconcile.archive import goes_back, with_archive
from logkeep_operator.reconcile.bounded import bounded
from logkeep_operator.reconcile.conditions import coverage_condition, coverage_of
from logkeep_operator.reconcile.drill import drill_status, is_drill
from logkeep_operator.reconcile.found import FoundRun, to_be_adopted, unknown_runs, with_entry
from logkeep_operator.reconcile.observed import Documents, JobState, Observed
from logkeep_operator.reconcile.outcome import DRY_RUN_REFUSED, JobOutcome, decide, last_result
from logkeep_operator.reconcile.plan import Action, DeleteJob, Event, Plan
from logkeep_operator.reconcile.progress import (
    final_progress,
    held_topics_status,
    warnings_of,
)
from logkeep_operator.reconcile.risk import CONDITION as RETENTION_RISK
from logkeep_operator.reconcile.risk import risk_changes_after, risk_condition
from logkeep_operator.reconcile.runs import is_dry_run
from logkeep_operator.reconcile.stale_keys import stale_keys_condition
from logkeep_operator.resources import ROLE_DRIVER, NotAllowed

INVALID_SPEC, NOT_ALLOWED = "InvalidSpec", "NotAllowed"
API_REFUSED, NAME_TAKEN = "ApiRefused", "NameTaken"
CRDS_OUTDATED = "CrdsOutdated"
_SAID_MAX = 256  # of a run in the history
_STATES = ("Ready", "Reconciling", "Stalled", conditions.SCHEDULED_RUN)
_REPLACED = "Another run was requested before this one was over; what it had committed stays."


def last_turn(status: Status) -> datetime | None:
    """Return the time at which the operator last saw the resource begin, end or stall, by the clock that gives `now`.
    Times that a driver wrote are times of its node and do not count."""
    conditions_of_state = (status.condition(kind) for kind in _STATES)
    times = [parse_timestamp(c.last_transition_time) for c in conditions_of_state if c is not None]
    return max((moment for moment in times if moment is not None), default=None)


def _same_end(old: HistoryEntry, new: HistoryEntry) -> bool:
    return old.run_id == new.run_id and (old.start_time == new.start_time or old.end_time == new.end_time)


def _entry(
    run: RunStatus,
    outcome: StatusOutcome,
    message: str,
    end: datetime,
    result: RunResult | None,
    progress: ProgressStatus | None,
) -> HistoryEntry:
    return HistoryEntry(
        run_id=run.id,
        outcome=outcome.value,
        requested_by=run.requested_by,
        start_time=run.start_time,
        end_time=timestamp(end),
        records=result.records if result is not None else progress.records if progress is not None else None,
        bytes=result.bytes if result is not None else progress.bytes if progress is not None else None,
        duration_seconds=_seconds(parse_timestamp(run.start_time), end),
        attempts=run.attempt,
        executors=progress.executors if progress is not None else None,
        message=cut(message, _SAID_MAX),
    )


def soonest(*seconds: float | None) -> float | None:
    """Return the least of these, None if there is none."""
    return min((some for some in seconds if some is not None), default=None)


def _seconds(start: datetime | None, end: datetime) -> int | None:
    return max(0, int((end - start).total_seconds())) if start is not None else None


def _restored_at(result: RunResult | None, end: datetime) -> datetime:
    """Return the end of a run that has succeeded, or of the earlier run that had done the same."""
    if result is None or result.earlier_end is None:
        return end
    return min(moment_of(result.earlier_end), end)


class Step:
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
        self.waits_since: datetime | None = None

    def invalid(self, error: SpecInvalid) -> Plan:
        """Plan for a spec that is invalid, or not allowed: nothing runs until that changes. A run that ended in the
        meantime is reported as it ended."""
        found = self.tell_unknown_run() or self.tell_loss_of_replaced()
        if found is not None:
            return found
        self.remove_replaced("")
        run = self.before.run
        outcome = self.outcome(run.id) if run is not None and run.outcome is None else None
        reported = self.book(run, outcome) if run is not None and outcome is not None else ()
        self.stop_unfinished()
        message, reason = str(error), NOT_ALLOWED if isinstance(error, NotAllowed) else INVALID_SPEC
        ready = self.before.condition("Ready")
        if ready is None or (ready.reason, ready.message) != (reason, cut(message)):
            self.event("Warning", reason, message)
        return self.done(Phase.INVALID, (*conditions.stalled(reason, message), *reported))

    def kept(self) -> Plan:
        """Plan for a restore that has succeeded: it never runs again, so it does not matter what a newer version
        refuses in its spec."""
        return self.done(self.before.phase or Phase.SUCCEEDED, ())

    def refused(self, reason: str, message: str, *, kept: bool = False) -> Plan:
        """Plan for an object that could not be made. The controller tries again. `kept`: the phase stays as it is."""
        self.problem_event(reason, message)
        phase = Phase.PENDING
        if self.before.phase is not None and (kept or self.before.phase in (Phase.RUNNING, Phase.SUSPENDED)):
            phase = self.before.phase
        return self.done(phase, conditions.reconciling(reason, message))

    def outdated(self, message: str) -> Plan:
        """Plan for a resource whose CRD lacks fields: nothing happens to it, nor to its run."""
        self.problem_event(CRDS_OUTDATED, message)
        return self.done(self.before.phase or Phase.PENDING, conditions.stalled(CRDS_OUTDATED, message))

    def stop_unfinished(self) -> None:
        """End the run that is still running and is not wanted any more. Its Job is deleted; what it committed stays."""
        run = self.status.run
        if run is None or run.outcome is not None:
            return
        found = self.observed.jobs.get(run.id)
        if found is not None and not found.deleting:
            self.actions.append(DeleteJob(found.name, found.uid))
        if self.resource.key.is_restore and not is_dry_run(run.key):
            return  # its run keeps its id whatever happens: only so does the target recognise what it already has
        self.event("Normal", "RunReplaced", _REPLACED, run.id)
        self.close_run(run, StatusOutcome.REPLACED, _REPLACED, self.now, None)

    def remove_replaced(self, wanted_id: str) -> None:
        """Delete Jobs of runs that were replaced: another operator may have made one too late. The wanted run may be
        among the replaced ones, if it was replaced before its status was written: it continues under the same id."""
        replaced = {entry.run_id for entry in self.before.history if entry.outcome == StatusOutcome.REPLACED} - {
            wanted_id
        }
        for found in self.observed.jobs.values():
            if found.run_id in replaced and not (found.finished or found.deleting):
                self.actions.append(DeleteJob(found.name, found.uid))

    # ---- runs that the status does not know

    def tell_unknown_run(self, wanted_id: str = "") -> Plan | None:
        """Tell of a run that the status does not know, in a plan with a status only: what to do about the run is
        decided when the status knows it. None if there is no such run, or if it is the requested one, which is started
        anyway."""
        for found in unknown_runs(self.observed):
            if found.id == wanted_id:
                continue
            return self._adopt(found) if to_be_adopted(self.observed, found) else self._enter(found)
        return None

    def _adopt(self, found: FoundRun) -> Plan:
        message = f"Run {found.id} had started, but the status did not know it."
        self.event("Warning", "RunFound", message, found.id)
        trigger = found.origin.trigger
        scheduled = found.origin.scheduled if found.origin.scheduled is not None else self.before.last_schedule_time
        requested = (
            found.origin.requested if found.origin.requested is not None else self.before.last_handled_backup_runs
        )
        run = found.status(self.now)
        self.status = replace(
            self.status,
            run=run,
            archive=self.archive_noted(),
            progress=None,
            verification=None,
            held_topics=None,
            last_schedule_time=scheduled,
            last_handled_backup_runs=requested,
        )
        if self.resource.key.is_restore:
            again = trigger if trigger is not None else self.before.last_handled_run_again
            retry = self.resource.retry
            self.status = replace(self.status, last_handled_retry=retry, last_handled_run_again=again)
        elif trigger is not None:
            self.status = replace(self.status, last_handled_run=trigger)
        return self.done(Phase.PENDING, conditions.reconciling("RunFound", message), 0.0)

    def _enter(self, found: FoundRun) -> Plan:
        """Enter the run into the history only, since the status has another run."""
        outcome = self.outcome(found.id)
        run = found.status(self.now)
        if outcome is None:
            outcome = JobOutcome(StatusOutcome.REPLACED, "RunReplaced", _REPLACED)
        end = self._end_of(found.id, outcome)
        entry = _entry(run, outcome.outcome, outcome.message, end, outcome.result, None)
        self.status = replace(
            self.status, history=with_entry(self.before, entry), observed_generation=self.before.observed_generation
        )
        self.finished = outcome.outcome.value
        self.tell(run, outcome)
        reported = self.loss(outcome.result, False, run) if outcome.result is not None else ()
        if self.before.run is None or self.before.run.outcome is not None:
            reported = ()  # a later run has ended since, and says what is missing now
        elif reported and outcome.result is not None:
            self.status = replace(self.status, loss=outcome.result.loss)
        last = parse_timestamp(self.before.last_success_time)
        if outcome.outcome is StatusOutcome.SUCCEEDED and (last is None or last < end):
            self.status = replace(self.status, last_success_time=timestamp(end))
        return self.done(self.before.phase or Phase.PENDING, reported, 0.0)

    def tell_loss_of_replaced(self) -> Plan | None:
        """Tell what a replaced run had found missing until it was stopped, in a plan with a status only, since no later
        run reports it again. Its history entry shows whether that was reported."""
        for entry in self.status.history:
            result = self._last_words(entry.run_id) if entry.outcome == StatusOutcome.REPLACED else None
            if result is None or result.loss_total == 0:
                continue
            message = f"{_offsets(result)} {_are(result)} missing. {_REPLACED}"
            reported = replace(entry, records=result.records, bytes=result.bytes, message=message)
            if reported == entry:
                continue
            condition = self.loss(result, False, RunStatus(id=entry.run_id))
            history = tuple(reported if old is entry else old for old in self.status.history)
            generation = self.before.observed_generation
            self.status = replace(self.status, history=history, loss=result.loss, observed_generation=generation)
            return self.done(self.before.phase or Phase.PENDING, condition, 0.0)
        return None

    def _last_words(self, run_id: str) -> RunResult | None:
        return last_result(self.documents(run_id), self.observed.pods_of(run_id, ROLE_DRIVER))

    # ---- how a run ended

    def documents(self, run_id: str) -> Documents:
        return self.observed.documents.get(run_id, Documents())

    def outcome(self, run_id: str) -> JobOutcome | None:
        """Return how the run has ended, None while it is running. A run that neither the status nor a Job shows has no
        end: a user who may create ConfigMaps can compute the names of its own, and write an end there in advance."""
        run = self.before.run
        reported = (run is not None and run.id == run_id) or any(
            entry.run_id == run_id for entry in self.before.history
        )
        if not reported and run_id not in self.observed.jobs:
            return None
        drivers = self.observed.pods_of(run_id, ROLE_DRIVER)
        return decide(self.job(run_id), self.documents(run_id), drivers, self.now)

    def job(self, run_id: str) -> JobState | None:
        """Return the run's Job. A Job that is being deleted counts as gone unless it is finished."""
        found = self.observed.jobs.get(run_id)
        return None if found is not None and found.deleting and not found.finished else found

    def _end_of(self, run_id: str, outcome: JobOutcome) -> datetime:
        """Return the end of the run as the driver says it, but not before its Job was made and not after now, since its
        clock may be wrong. A last success in the future would keep an alert silent."""
        found = self.job(run_id)
        end = outcome.end or (found.ended if found is not None else None) or self.now
        begun = found.created if found is not None else None
        return min(max(end, begun or end), self.now)

    def book(self, run: RunStatus, outcome: JobOutcome, include: tuple[str, ...] = ()) -> tuple[Condition, ...]:
        """Enter the end of the status's run. Returns the conditions that say what is missing. `include` has the
        patterns of a backup, if they are known to be the run's."""
        succeeded = outcome.outcome is StatusOutcome.SUCCEEDED
        result = outcome.result
        end = self._end_of(run.id, outcome)
        progress = final_progress(self.documents(run.id).progress, result, succeeded)
        restored_by = result.earlier_run if result is not None else None
        self.status = replace(self.status, progress=progress, restored_by=restored_by, warnings=warnings_of(result))
        self.close_run(run, outcome.outcome, outcome.message, end, result)
        self.tell(run, outcome)
        if succeeded:
            self.status = replace(self.status, last_success_time=timestamp(_restored_at(result, end)))
        if is_drill(self.resource):
            self.status = replace(self.status, drill=drill_status(self.resource, run.id, outcome, end))
        if result is None:
            unknown = succeeded and not self.status.loss
            return (conditions.data_loss_unknown(outcome.message),) if unknown else ()
        self.status = replace(
            self.status,
            emitted=result.emitted or self.status.emitted,
            held_topics=held_topics_status(result) or self.status.held_topics,
        )
        if outcome.outcome is StatusOutcome.DRY_RUN:
            self.status = replace(self.status, dry_run=None if result.dry_run is None else result.dry_run.bounded())
            return ()
        reported = self.loss(result, succeeded, run)
        if result.commit >= 0 and goes_back(self.status.archive, result, self.archive_uri()):
            known = self.status.archive.anchor if self.status.archive is not None else None
            message = (
                f"The run has left commit {result.commit} in an archive whose anchor was {known}: it was rolled back."
            )
            self.event("Warning", "ArchiveRolledBack", message, run.id)
        # The clock of the driver's node may be ahead.
        written = replace(result, end_time=min(result.end_time, self.now.timestamp()))
        self.status = replace(
            with_archive(self.status, written, self.archive_uri()),
            offset_map=result.offset_map or self.status.offset_map,
            verification=result.verification,
            cluster_state=result.cluster_state or self.status.cluster_state,
            loss=result.loss if reported else self.status.loss,  # with the condition, which stays, too
        )
        return (*reported, *self.coverage(coverage_of(result, include), run), *self.stale_keys(result, run))

    def tell(self, run: RunStatus, outcome: JobOutcome) -> None:
        """Tell of a run's end in an event."""
        match outcome.outcome:
            case StatusOutcome.SUCCEEDED:
                self.event("Normal", outcome.reason, outcome.message, run.id)
            case StatusOutcome.DRY_RUN:
                kind = "Warning" if outcome.reason == DRY_RUN_REFUSED else "Normal"
                self.event(kind, outcome.reason, outcome.message, run.id)
            case StatusOutcome.FAILED:
                self.event("Warning", "RunFailed", f"{outcome.reason}: {outcome.message}", run.id)
            case StatusOutcome.REPLACED:
                self.event("Normal", "RunReplaced", outcome.message, run.id)

    def loss(self, result: RunResult, succeeded: bool, run: RunStatus) -> tuple[Condition, ...]:
        if result.loss_total == 0 and result.error_code != "DataLoss":
            return (conditions.data_loss(False, "No records are missing."),) if succeeded else ()
        first = result.loss[0] if result.loss else None
        message = f"{_offsets(result)} in {so_many(result.loss_total, 'range')} {_are(result)} missing"
        if first is not None:
            message += f", the first: {first.topic}-{first.partition} [{first.start}, {first.end}): {first.reason}"
        self.event("Warning", "RecordsMissing", message, run.id)
        return (conditions.data_loss(True, message),)

    def coverage(self, found: TopicCoverage | None, run: RunStatus) -> tuple[Condition, ...]:
        """Tell what the run protects, if it has come so far as to know that."""
        if found is None:
            return ()
        self.status = replace(self.status, coverage=found)
        condition = coverage_condition(found)
        before = self.before.condition("Coverage")
        if condition.status == "False" and (before is None or before.message != condition.message):
            self.event("Warning", condition.reason, condition.message, run.id)
        return (condition,)

    def stale_keys(self, result: RunResult, run: RunStatus) -> tuple[Condition, ...]:
        """Tell what the run has found if it has looked for stale keys."""
        facts = result.reconciled
        if facts is None:
            return ()
        self.status = replace(self.status, reconcile=facts)
        condition = stale_keys_condition(facts)
        if condition.status != "False":
            self.event("Warning", condition.reason, condition.message, run.id)
        return (condition,)

    def _tell_risk(self, risk: Condition) -> None:
        before = self.before.condition(RETENTION_RISK)
        if risk.status == "True" and (before is None or (before.status, before.reason) != ("True", risk.reason)):
            self.event("Warning", RETENTION_RISK, risk.message)

    def archive_uri(self) -> str:
        """Return the URI of the run's archive, as it was noted when the run began: the spec may lead elsewhere now, or
        nowhere."""
        noted = self.before.archive.uri if self.before.archive is not None and self.before.run is not None else None
        return noted or self._archive_uri_of_spec()

    def _archive_uri_of_spec(self) -> str:
        """Return the URI of the archive that the spec names, or the backup that it names; empty if it leads nowhere."""
        return str(self._storage_of_spec().get("uri", ""))

    def _storage_of_spec(self) -> Mapping[str, Any]:
        backup = self.observed.backup
        return storage_of(self.resource) or (storage_of(backup) if backup is not None else None) or {}

    def archive_noted(self) -> ArchiveStatus | None:
        """Return what is known of the archive, with the place where a run that begins finds it."""
        known, uri = self.status.archive, self._archive_uri_of_spec()
        if not uri:
            return known
        noted = known if known is not None and known.is_at(uri) else ArchiveStatus(uri=uri)
        return replace(noted, store=store_of(self._storage_of_spec())) if self.resource.key.is_restore else noted

    def close_run(
        self, run: RunStatus, outcome: StatusOutcome, message: str, end: datetime, result: RunResult | None
    ) -> None:
        """Enter the end of the run into the status and the history. An end that is in the history already is not
        entered twice."""
        code = result.exit_code if result is not None else None
        text = cut(message)
        ended = replace(run, outcome=outcome, exit_code=code, message=text, end_time=timestamp(end))
        entry = _entry(run, outcome, message, end, result, self.status.progress)
        history = (entry, *(old for old in self.status.history if not _same_end(old, entry)))[:MAX_HISTORY]
        self.status = replace(self.status, run=ended, history=history)
        self.finished = outcome.value

    def event(self, kind: str, reason: str, message: str, run_id: str = "") -> None:
        self.events.append(Event(kind, reason, cut(message), run_id))

    def problem_event(self, reason: str, message: str, run_id: str = "") -> None:
        """Add a Warning event, once for each time that the condition turns to this reason."""
        ready = self.before.condition("Ready")
        if ready is None or ready.reason != reason:
            self.event("Warning", reason, message, run_id)

    def done(self, phase: Phase, wanted: Iterable[Condition], requeue_after: float | None = None) -> Plan:
        wanted = conditions.without_scheduled_run(self.before, wanted)
        risk = risk_condition(self.resource, self.status, self.now)
        if risk is not None:
            self._tell_risk(risk)
            wanted = (*wanted, risk)
        merged = conditions.merge(self.before, wanted, self.resource.generation, self.now)
        self.status = bounded(replace(self.status, phase=phase, conditions=merged))
        return Plan(
            actions=tuple(self.actions),
            events=tuple(self.events),
            status=self.status if self.status != self.before else None,
            requeue_after=soonest(requeue_after, risk_changes_after(self.resource, self.status, self.now)),
            started=self.started,
            finished=self.finished,
            waits_since=self.waits_since,
        )


def _offsets(result: RunResult) -> str:
    return so_many(result.loss_offsets, "offset")


def _are(result: RunResult) -> str:
    return "is" if result.loss_offsets == 1 else "are"

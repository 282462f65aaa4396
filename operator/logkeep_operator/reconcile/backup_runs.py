"""KafkaBackupRuns: which run each of them waits for, and what its status says.

A run answers all KafkaBackupRuns of its backup that were there when it was started, since it began after each of them.
The backup's status remembers them as one hash (`lastHandledBackupRuns`), and so do the run's children: as with the
annotation and the schedule, a crash between Job and status makes the same run again. What a KafkaBackupRun says is made
of the backup's status alone. It is written after that, and again by the next look if it could not be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Key, Phase, RunStatus, Status, StatusOutcome
from logkeep_operator.api.backup_run import RequestedPhase, RequestedRun, RequestedStatus
from logkeep_operator.api.status import HistoryEntry
from logkeep_operator.reconcile import conditions
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.plan import AdoptRequestedRun, Answer, AnswerRequestedRun, DeleteRequestedRun, Plan
from logkeep_operator.reconcile.step import INVALID_SPEC

_HASH_LENGTH = 10
_FINAL: dict[str, RequestedPhase] = {
    StatusOutcome.SUCCEEDED: RequestedPhase.SUCCEEDED,
    StatusOutcome.FAILED: RequestedPhase.FAILED,
}
_FORGOTTEN = "Run {} has left the history of its KafkaBackup before its end was reported here; the archive has it."


def requests_hash(requested: Iterable[RequestedRun]) -> str | None:
    """Return the hash of those that wait for a run to be started, None if there are none."""
    waiting = sorted(one.uid for one in requested if one.pending)
    if not waiting:
        return None
    return hashlib.sha256("\0".join(waiting).encode()).hexdigest()[:_HASH_LENGTH]


def wants_look(requested: Iterable[RequestedRun], now: datetime) -> bool:
    """Return whether one of them waits for a run, or is to be deleted."""
    return any(one.open or _is_over(one, now) for one in requested)


def answers(
    requested: Sequence[RequestedRun], uid: str, status: Status, now: datetime, known: Collection[str] = ()
) -> tuple[Answer, ...]:
    """Return the answers to the KafkaBackupRuns of a backup with this status. `known` are the ids of runs whose
    children are there."""
    started = status.run.id if status.run is not None else None
    digest = requests_hash(requested)
    bound = started if digest is not None and digest == status.last_handled_backup_runs else None
    found: list[Answer] = []
    for one in requested:
        if _is_over(one, now):
            found.append(DeleteRequestedRun(one.name, one.uid))
        if not one.open:
            continue
        answer = _stamped(one, _answer(one, bound if one.pending else one.status.run_id, status, known), now)
        if _says_more(one.status, answer):
            found.append(AnswerRequestedRun(one, answer))
        if uid not in one.owners:
            found.append(AdoptRequestedRun(one, uid))
    return tuple(found)


def with_answers(observed: Observed, plan: Plan, now: datetime) -> Plan:
    """Return the plan of a KafkaBackup with what is to be done about its KafkaBackupRuns."""
    if not observed.requested:
        return plan
    status = plan.status if plan.status is not None else observed.resource.status
    known = {*observed.jobs, *observed.documents}
    found = answers(observed.requested, observed.resource.uid, status, now, known)
    next_one = plan.finished is not None and any(one.pending for one in observed.requested)
    return replace(plan, answers=found, requeue_after=0.0 if next_one else plan.requeue_after)


def answers_without_backup(requested: Sequence[RequestedRun], key: Key, now: datetime) -> tuple[Answer, ...]:
    """Return the answers to those whose KafkaBackup is not there: it may come. Those whose spec is invalid name none,
    and have failed for good, since the spec of a KafkaBackupRun never changes."""
    message = f"spec.backupRef: there is no KafkaBackup {key.name!r} in namespace {key.namespace}."
    found: list[Answer] = []
    for one in requested:
        if _is_over(one, now):
            found.append(DeleteRequestedRun(one.name, one.uid))
        if one.open and one.problem:
            said = conditions.stalled(INVALID_SPEC, one.problem)
            found.append(AnswerRequestedRun(one, _stamped(one, _said(one.status, RequestedPhase.FAILED, said), now)))
        elif one.open:
            said = conditions.reconciling("BackupNotFound", message)
            answer = _stamped(one, _said(one.status, RequestedPhase.PENDING, said), now)
            found += [AnswerRequestedRun(one, answer)] if _says_more(one.status, answer) else []
    return tuple(found)


def _is_over(one: RequestedRun, now: datetime) -> bool:
    ended = one.ended
    return not one.deleting and ended is not None and now - ended > timedelta(seconds=one.ttl_seconds)


def _answer(one: RequestedRun, run_id: str | None, status: Status, known: Collection[str]) -> RequestedStatus:
    """Return the status of a KafkaBackupRun whose run has this id, None for none yet."""
    if run_id is None:
        return _said(one.status, RequestedPhase.PENDING, _waits(status))
    run = status.run
    entry = next((entry for entry in status.history if entry.run_id == run_id), None)
    if entry is not None and entry.outcome == StatusOutcome.REPLACED and run is not None and run.id != run_id:
        return _answer(one, run.id, status, known)  # the one that took its place, which began later still
    if run is not None and run.id == run_id and run.outcome is None:
        return _going_on(one, run, status)
    if run is not None and run.id == run_id and run.outcome is StatusOutcome.REPLACED:
        waits = conditions.reconciling("RunReplaced", run.message or "")
        return replace(_said(one.status, RequestedPhase.PENDING, waits), run_id=run_id)
    if entry is not None:
        return _ended(one, entry, status)
    if run_id in known:
        return _said(one.status, one.status.phase or RequestedPhase.PENDING, conditions.reconciling("RunFound", ""))
    answer = _said(one.status, RequestedPhase.FAILED, conditions.stalled("OutcomeUnknown", _FORGOTTEN.format(run_id)))
    return replace(answer, run_id=run_id)


def _waits(status: Status) -> tuple[Condition, ...]:
    """Return the conditions of one for which no run was started, in the words of the backup's own."""
    if status.run is not None and status.run.outcome is None and status.phase is not Phase.SUSPENDED:
        message = f"Run {status.run.id} is still running. A run for this one begins after its end."
        return conditions.reconciling("WaitingForPreviousRun", message)
    ready, stalled = status.condition("Ready"), status.condition("Stalled")
    if status.phase is Phase.SUSPENDED:
        return conditions.suspended(ready.message if ready is not None else "")
    if status.phase is Phase.INVALID and stalled is not None:
        return conditions.stalled(stalled.reason, stalled.message)
    reconciling = status.condition("Reconciling")
    if reconciling is not None and reconciling.status == "True":
        return conditions.reconciling(reconciling.reason, reconciling.message)
    return conditions.reconciling("Accepted", "A run is about to be started.")


def _going_on(one: RequestedRun, run: RunStatus, status: Status) -> RequestedStatus:
    ready = status.condition("Ready")
    reason, message = (ready.reason, ready.message) if ready is not None else ("RunStarted", "")
    state = conditions.reconciling(reason, message)
    if status.phase is Phase.SUSPENDED:
        state = conditions.suspended(message)
    phase = RequestedPhase.RUNNING if status.phase is Phase.RUNNING else RequestedPhase.PENDING
    answer = replace(_said(one.status, phase, state), run_id=run.id, job=run.job, start_time=run.start_time)
    progress = status.progress
    if progress is None:
        return answer
    return replace(answer, records=progress.records, bytes=progress.bytes, percent=progress.percent)


def _ended(one: RequestedRun, entry: HistoryEntry, status: Status) -> RequestedStatus:
    phase = _FINAL.get(entry.outcome, RequestedPhase.FAILED)
    message = entry.message or ""
    run = status.run if status.run is not None and status.run.id == entry.run_id else None
    if run is not None and run.message:
        message = run.message  # the history has only its beginning
    if phase is RequestedPhase.SUCCEEDED:
        state = conditions.ready("RunSucceeded", message)
    else:
        ready = status.condition("Ready") if run is not None else None
        state = conditions.stalled(ready.reason if ready is not None else "RunFailed", message)
    answer = replace(_said(one.status, phase, state), run_id=entry.run_id, message=cut(message))
    answer = replace(answer, start_time=entry.start_time, end_time=entry.end_time, job=run.job if run else answer.job)
    percent = 100 if phase is RequestedPhase.SUCCEEDED else answer.percent
    return replace(answer, records=entry.records, bytes=entry.bytes, percent=percent)


def _said(before: RequestedStatus, phase: RequestedPhase, state: tuple[Condition, ...]) -> RequestedStatus:
    return replace(before, phase=phase, conditions=state, message=state[0].message)


def _stamped(one: RequestedRun, answer: RequestedStatus, now: datetime) -> RequestedStatus:
    """Return the status with times: of its conditions, and an end if it has ended at an unknown time."""
    merged = conditions.merge(one.status, answer.conditions, one.generation, now)
    final = answer.phase in (RequestedPhase.SUCCEEDED, RequestedPhase.FAILED)
    end = answer.end_time or (timestamp(now) if final else None)
    return replace(answer, conditions=merged, observed_generation=one.generation, end_time=end)


def _says_more(before: RequestedStatus, after: RequestedStatus) -> bool:
    """Return whether the difference is worth a write: records alone change every second while a run lasts."""
    if after.phase is RequestedPhase.RUNNING and before.percent == after.percent:
        after = replace(after, records=before.records, bytes=before.bytes)
    return after != before

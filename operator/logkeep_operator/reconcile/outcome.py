"""This module decides how a run ended. It asks first what the driver wrote, then what its pod said, then what the Job
says.

The driver's pod may be gone before the operator looked, the operator may have been down for a day, a driver may be
killed before it says anything. So each of the three sources alone must lead to the right end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from logkeep_engine.contract.clear_text import of_the_run
from logkeep_engine.contract.facts.values import moment_of
from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import describe_aborted, human_bytes, so_many
from logkeep_operator.api import StatusOutcome
from logkeep_operator.reconcile.observed import Documents, JobState, PodState, termination_result
from logkeep_operator.reconcile.runs import is_dry_run
from logkeep_operator.resources import GRACE_SECONDS

# A driver that is told to end says until then what it has done and found missing; one on a dead node never does.
LAST_WORDS = timedelta(seconds=GRACE_SECONDS + 30)

RUN_SUCCEEDED = "RunSucceeded"
RESTORED_BEFORE = "RestoredBefore"  # another run has done the same restore, and this one did nothing
DRY_RUN_DONE, DRY_RUN_REFUSED = "DryRunDone", "DryRunRefused"
_DONE = (StatusOutcome.SUCCEEDED, StatusOutcome.DRY_RUN)

_EXPLANATIONS = {
    "BackoffLimitExceeded": "the driver failed as often as runPolicy.backoffLimit allows",
    "DeadlineExceeded": "the run took longer than runPolicy.activeDeadlineSeconds",
    "PodFailurePolicy": "the driver ended with an exit code that trying again cannot help",
}


@dataclass(frozen=True)
class JobOutcome:
    """How a run ended. `reason` is a CamelCase word for conditions and events, `result` what the driver said, if it
    could say something."""

    outcome: StatusOutcome
    reason: str
    message: str
    result: RunResult | None = None
    end: datetime | None = None


def last_result(documents: Documents, drivers: Sequence[PodState]) -> RunResult | None:
    """Return the newest result of any attempt. The ConfigMap's result is preferred to the same one in a pod, which is
    cut short. A success is always the last result, whatever the clocks of the attempts' nodes say."""
    lines = [documents.result, *(termination_result(pod) for pod in drivers)]
    results = [result for result in lines if result is not None]
    successes = [result for result in results if result.outcome in _DONE]
    return max(successes or results, key=lambda result: result.end_time, default=None)


def decide(job: JobState | None, documents: Documents, drivers: Sequence[PodState], now: datetime) -> JobOutcome | None:
    """Return the run's end, or None while it is running (or while the Job must be made again).

    The result of a failed attempt is not the end while the Job may start another one; success is an end at once.
    """
    result = last_result(documents, drivers)
    if result is not None and result.outcome == StatusOutcome.DRY_RUN:
        return _dry_run(result, "")
    if result is not None and result.outcome == StatusOutcome.SUCCEEDED:
        return _succeeded(result, "")
    if job is None:
        if result is not None and result.exit_code in NEVER_RETRIED:
            return _failed(result, "", "", drivers, documents.unreadable)
        return None
    # The Job waits for the whole pod: a container next to the driver may hold it for ever.
    held = drivers[-1] if drivers and drivers[-1].held else None
    if job.complete or (held is not None and held.exit_code == 0):
        ended = _dry_run if is_dry_run(job.origin.key) else _succeeded
        return ended(None, documents.unreadable)
    if held is not None and held.exit_code in NEVER_RETRIED:
        return _failed(result, "PodFailurePolicy", "", drivers, documents.unreadable)
    if job.failure is not None and not _is_speaking(job, drivers, now):
        return _failed(result, *job.failure, drivers, documents.unreadable)
    return None


def _is_speaking(job: JobState, drivers: Sequence[PodState], now: datetime) -> bool:
    """Return whether the driver of a Job that has failed (by its deadline) may still write its result."""
    lives = any(pod.alive for pod in drivers)
    return lives and job.ended is not None and now - job.ended < LAST_WORDS


def attempt_failure(result: RunResult | None, drivers: Sequence[PodState]) -> str:
    """Return the message of the last attempt that failed, empty if none did. An interruption is not a failure."""
    if result is not None and result.exit_code == ExitCode.INTERRUPTED:
        return ""
    if result is not None and result.outcome == StatusOutcome.FAILED:
        return _say(result)
    return _pod_failure(drivers)


def _succeeded(result: RunResult | None, unreadable: str) -> JobOutcome:
    if result is None:
        message = f"The run is done; the driver's report {_lost(unreadable)}."
        return JobOutcome(StatusOutcome.SUCCEEDED, RUN_SUCCEEDED, message)
    records, topics = so_many(result.records, "record"), so_many(result.topics, "topic")
    message = f"{records}, {human_bytes(result.bytes)}, {topics}, {so_many(result.partitions, 'partition')}"
    if result.aborted_records:
        message = f"{message}; {describe_aborted(result.aborted_records)} were left out"
    if result.message:
        message = f"{message}; {result.message}"
    said = of_the_run(result.warnings)
    if said:
        message = f"{message}; {'; '.join(said)}"
    reason = RUN_SUCCEEDED if result.earlier_run is None else RESTORED_BEFORE
    return JobOutcome(StatusOutcome.SUCCEEDED, reason, message, result, moment_of(result.end_time))


def _dry_run(result: RunResult | None, unreadable: str) -> JobOutcome:
    if result is None:
        message = f"The dry run is done; its report {_lost(unreadable)}. Nothing was written."
        return JobOutcome(StatusOutcome.DRY_RUN, DRY_RUN_DONE, message)
    refused = result.dry_run is not None and result.dry_run.refused > 0
    message = "; ".join([f"Dry run, nothing was written: {result.message}", *of_the_run(result.warnings)])
    reason = DRY_RUN_REFUSED if refused else DRY_RUN_DONE
    return JobOutcome(StatusOutcome.DRY_RUN, reason, message, result, moment_of(result.end_time))


def _lost(unreadable: str) -> str:
    return f"cannot be read: {unreadable}" if unreadable else "was lost"


def _failed(
    result: RunResult | None, job_reason: str, job_message: str, drivers: Sequence[PodState], unreadable: str
) -> JobOutcome:
    explanation = _EXPLANATIONS.get(job_reason, job_message)
    end = moment_of(result.end_time) if result is not None else None
    if job_reason == "DeadlineExceeded":  # the driver only knows that it was interrupted
        return JobOutcome(StatusOutcome.FAILED, job_reason, f"{explanation[0].upper()}{explanation[1:]}.", result, end)
    if result is not None and result.outcome == StatusOutcome.FAILED:
        return JobOutcome(
            StatusOutcome.FAILED, result.error_code or "RunFailed", _join(_say(result), explanation), result, end
        )
    reason = "OutOfMemory" if any(pod.exit_reason == "OOMKilled" for pod in drivers[-1:]) else job_reason or "RunFailed"
    said = _pod_failure(drivers) or "the driver reported nothing"
    if unreadable:
        said = f"{said}; its report cannot be read: {unreadable}"
    return JobOutcome(StatusOutcome.FAILED, reason, _join(said, explanation), result, end)


def _join(what: str, explanation: str) -> str:
    return f"{what} ({explanation})" if explanation else what


def _say(result: RunResult) -> str:
    return result.message or f"{result.error_code or 'RunFailed'}, exit code {result.exit_code}"


def _pod_failure(drivers: Sequence[PodState]) -> str:
    failed = [pod for pod in drivers if pod.phase == "Failed"]
    if not failed:
        return ""
    pod = failed[-1]
    if pod.exit_reason == "OOMKilled":
        return f"driver pod {pod.name} ran out of memory; give it more in spec.spark.driver.memory"
    if pod.reason is not None:
        return f"driver pod {pod.name}: {pod.reason[0]}: {pod.reason[1]}"
    if pod.exit_code is not None:
        how = f"exit code {pod.exit_code} ({pod.exit_reason or 'Error'})"
        return f"driver pod {pod.name} ended with {how} without a report"
    if pod.init_failure:
        return f"driver pod {pod.name}: {pod.init_failure}"
    return f"driver pod {pod.name} failed before its container ran"

"""This module finds out why a run does not get on, from the words of the scheduler, kubelet and the Job controller
about its pods. The trouble passes when its cause does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.run import TASK_PHASES, Progress
from logkeep_operator.reconcile.observed import Documents, JobState, Observed, PodState
from logkeep_operator.resources import ROLE_DRIVER, ROLE_EXECUTOR

_IMAGE_REASONS = {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
# A pod that was made so long ago and has not begun is worth a look at its events (a Secret that cannot be mounted
# shows nowhere else).
STUCK_AFTER = timedelta(seconds=10)
NO_EXECUTORS_AFTER = timedelta(seconds=60)
# The driver writes every half a minute, whatever it does.
NO_PROGRESS_AFTER = timedelta(minutes=5)

_WHAT_TO_DO = {
    "ContainerConfigError": "Create what is missing, or correct the spec.",
    "ImagePullFailed": "Check name and tag of the image, the network path to the registry, and the pull secrets.",
    "PodNotStarted": "If something is missing, create it, or correct the spec.",
    "SecretMissing": "Create the Secret or its key in this namespace, or correct the spec.",
}


@dataclass(frozen=True)
class RunProblem:
    """The reason why a run does not get on, as a CamelCase word for the condition Ready, and a message."""

    reason: str
    message: str


def find_problem(observed: Observed, job: JobState, now: datetime) -> RunProblem | None:
    """The first reason why this Job's run does not get on; the driver is asked before the executors."""
    drivers = [pod for pod in observed.pods_of(job.run_id, ROLE_DRIVER) if pod.alive]
    executors = [pod for pod in observed.pods_of(job.run_id, ROLE_EXECUTOR) if pod.alive]
    if not drivers:
        warning = observed.warnings.get(job.name)
        return RunProblem("DriverNotCreated", f"The driver's pod cannot be created: {warning}") if warning else None
    documents = observed.documents.get(job.run_id, Documents())
    return (
        _of_pods("DriverUnschedulable", drivers)
        or _not_mounted(observed, drivers)
        or _of_pods("ExecutorsUnschedulable", executors)
        or _not_mounted(observed, executors)
        or _no_executors(drivers[-1], executors, documents, now)
    )


def silent_driver(heard: datetime | None, drivers: Sequence[PodState], now: datetime) -> RunProblem | None:
    """Return the trouble of a driver that runs by its pod's state and has not been heard of for long: its node may be
    gone. Both times are the API server's."""
    running = [pod for pod in drivers if pod.phase == "Running"]
    if heard is None or not running or now - heard < NO_PROGRESS_AFTER:
        return None
    pod = running[-1]
    where = f" on node {pod.node}" if pod.node else ""
    return RunProblem(
        "NoProgress",
        f"Nothing has been heard from driver pod {pod.name}{where} since {timestamp(heard)}. Is the node lost? If "
        f"it is certain that it is off: kubectl delete pod {pod.name} --force --grace-period=0; another driver then "
        "continues from the last commit. Otherwise see the pod's log.",
    )


def stuck_pods(pods: Sequence[PodState], now: datetime) -> list[PodState]:
    """Pods that have had a node but no running container for too long. Their events say why."""
    return [
        pod
        for pod in pods
        if pod.phase == "Pending"
        and not pod.unschedulable
        and (pod.waiting is None or pod.waiting[0] in ("ContainerCreating", "PodInitializing"))
        and pod.created is not None
        and now - pod.created > STUCK_AFTER
    ]


def _of_pods(unschedulable: str, pods: Sequence[PodState]) -> RunProblem | None:
    for pod in pods:
        if pod.waiting is not None:
            trouble = _of_waiting(pod, *pod.waiting)
            if trouble is not None:
                return trouble
    waiting = [pod for pod in pods if pod.unschedulable]
    if not waiting:
        return None
    first = waiting[0]
    which = f"Driver pod {first.name}" if first.role == ROLE_DRIVER else f"{len(waiting)} of {len(pods)} executor pods"
    return RunProblem(unschedulable, f"{which} cannot be scheduled: {first.unschedulable}")


def _of_waiting(pod: PodState, reason: str, message: str) -> RunProblem | None:
    if reason in _IMAGE_REASONS:
        word = "ImagePullFailed"
    elif reason in _CONFIG_REASONS:
        word = "SecretMissing" if "secret" in message.lower() else "ContainerConfigError"
    else:
        return None
    return _not_started(word, f"Pod {pod.name}: {reason}: {message}")


def _not_started(word: str, message: str) -> RunProblem:
    """Tell what the kubelet says, and what to do about it."""
    return RunProblem(word, f"{message.rstrip('. ')}. {_WHAT_TO_DO[word]}")


def _not_mounted(observed: Observed, pods: Sequence[PodState]) -> RunProblem | None:
    for pod in pods:
        warning = observed.warnings.get(pod.name)
        if warning and pod.phase == "Pending":
            missing = "not found" in warning or "non-existent" in warning  # the Secret, or a key of it
            reason = "SecretMissing" if missing and "secret" in warning.lower() else "PodNotStarted"
            return _not_started(reason, f"Pod {pod.name}: {warning}")
    return None


def _driver_time(progress: Progress, documents: Documents, now: datetime) -> timedelta:
    """Return how long the driver has run. Its own clock says how long it ran up to its document, the API server's clock
    how long ago that was: times of two clocks are never compared."""
    until_written = timedelta(seconds=max(progress.update_time - progress.start_time, 0.0))
    return until_written + (now - documents.written if documents.written is not None else timedelta())


def _needs_executors(driver: PodState, documents: Documents) -> bool:
    """Return whether the driver has work that it does not do itself."""
    progress = documents.progress
    if driver.phase != "Running" or progress is None or progress.phase not in TASK_PHASES:
        return False
    if documents.written is not None and driver.created is not None and documents.written < driver.created:
        return False  # the driver before this one wrote it
    return progress.executors != 0 and progress.percent < 100


def waits_for_executors(observed: Observed, run_id: str) -> str | None:
    """Return what a run waits for whose driver has asked for executors of which none runs yet. That is no trouble
    before `NO_EXECUTORS_AFTER`: their pods are being created."""
    drivers = [pod for pod in observed.pods_of(run_id, ROLE_DRIVER) if pod.alive]
    documents = observed.documents.get(run_id, Documents())
    asked = documents.progress.executors if documents.progress is not None else None
    runs = any(pod.phase == "Running" for pod in observed.pods_of(run_id, ROLE_EXECUTOR))
    if asked is None or runs or not drivers or not _needs_executors(drivers[-1], documents):
        return None
    return f"The run waits for executors (0 of {asked}): their pods are being created."


def _no_executors(
    driver: PodState, executors: Sequence[PodState], documents: Documents, now: datetime
) -> RunProblem | None:
    progress = documents.progress
    if executors or progress is None or not _needs_executors(driver, documents):
        return None
    if _driver_time(progress, documents, now) < NO_EXECUTORS_AFTER:
        return None
    message = (
        f"The driver has no executor pods; its log says why (quota, perhaps): kubectl logs {driver.name}. After five "
        "minutes without any it does the work itself."
    )
    return RunProblem("NoExecutors", message)


def unreadable(documents: Documents) -> RunProblem | None:
    """Return the trouble of a driver whose documents cannot be read. It matters less than what stops the run or ends an
    attempt."""
    if not documents.unreadable:
        return None
    message = (
        f"What the driver reports cannot be read: {documents.unreadable}. The run continues, and its Job shows how "
        "it ends. An engine image of another version writes such reports."
    )
    return RunProblem("ProgressUnreadable", message)

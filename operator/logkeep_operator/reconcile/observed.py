"""A resource and its children as the API shows them, reduced to the facts that decisions need. Pure functions build
them from the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.request_files import hash_of_job
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.contract.values import parse_timestamp
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Key, Resource
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.api.status import StatusOutcome
from logkeep_operator.resources import (
    ANNOTATION_PREVIOUS_RUN,
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_RUN_ASKED,
    ANNOTATION_RUN_KEY,
    ANNOTATION_RUN_SCHEDULED,
    ANNOTATION_RUN_TRIGGER,
    ANNOTATION_SUSPENDED,
    LABEL_ROLE,
    LABEL_RUN,
    ROLE_DRIVER,
    ROLE_EXECUTOR,
    is_progress_name,
    job_name,
    owned_by,
    progress_name,
    request_name,
    topics_name,
)

_ENDS = (StatusOutcome.SUCCEEDED, StatusOutcome.FAILED, StatusOutcome.DRY_RUN)
_WHY_MAX = 300
D = TypeVar("D", Progress, RunResult)

_ENDED = ("Succeeded", "Failed")
_STARTING = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class RunOrigin:
    """Facts about a run that its children carry in annotations, as the status would say them; None for what they do not
    say. `previous` is the id of the run that the status named when this one was started,
    empty for none. `scheduled` is the time of the schedule for which this or an earlier run was started last,
    `requested` the hash of the KafkaBackupRuns.
    """

    key: str | None = None
    trigger: str | None = None
    previous: str | None = None
    scheduled: str | None = None
    requested: str | None = None
    requested_by: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> RunOrigin:
        """Read the origin from a child's annotations."""
        said = metadata.get("annotations") or {}
        names = (ANNOTATION_RUN_KEY, ANNOTATION_RUN_TRIGGER, ANNOTATION_PREVIOUS_RUN, ANNOTATION_RUN_SCHEDULED)
        return cls(*(said.get(name) for name in (*names, ANNOTATION_RUN_ASKED, ANNOTATION_REQUESTED_BY)))

    def annotations(self) -> dict[str, str]:
        """Return the annotations that hold the origin."""
        said = {
            ANNOTATION_RUN_KEY: self.key,
            ANNOTATION_RUN_TRIGGER: self.trigger,
            ANNOTATION_PREVIOUS_RUN: self.previous,
            ANNOTATION_RUN_SCHEDULED: self.scheduled,
            ANNOTATION_RUN_ASKED: self.requested,
            ANNOTATION_REQUESTED_BY: self.requested_by,
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class JobState:
    """A Job. `failure` has reason and message of the condition Failed or FailureTarget. `started` is the time at which
    the Job controller saw it begin, or continue after a suspension, `ended` the time at which it saw the end.
    `request_hash` is that of the request which its driver takes. `by_operator` says whether the operator has suspended
    it."""

    name: str
    uid: str
    run_id: str
    created: datetime | None = None
    suspended: bool = False
    by_operator: bool = False
    deleting: bool = False
    active: int = 0
    failed: int = 0
    complete: bool = False
    failure: tuple[str, str] | None = None
    started: datetime | None = None
    ended: datetime | None = None
    origin: RunOrigin = RunOrigin()
    request_hash: str | None = None

    @property
    def finished(self) -> bool:
        return self.complete or self.failure is not None


@dataclass(frozen=True)
class PodState:
    """A pod, judged by the container of its role: others, such as a mesh's, may run on, fail or wait. `phase` is that
    container's, and `held` says that it has ended while others of the pod run on. `waiting` has reason and message why
    it does not start, `init_failure` which init container has failed before it, `unschedulable` the scheduler's
    message. `disrupted`: the cluster has ended the pod, and its Job does not count that. `owner` is the uid of the
    object that made it."""

    name: str
    run_id: str
    role: str
    phase: str
    created: datetime | None = None
    waiting: tuple[str, str] | None = None
    unschedulable: str | None = None
    exit_code: int | None = None
    exit_reason: str | None = None
    termination_message: str = ""
    reason: tuple[str, str] | None = None  # of the pod itself, such as Evicted
    node: str = ""
    uid: str = ""
    owner: str = ""
    deleting: bool = False
    held: bool = False
    disrupted: bool = False
    init_failure: str = ""

    @property
    def alive(self) -> bool:
        return self.phase not in _ENDED


@dataclass(frozen=True)
class Documents:
    """The documents that the driver of a run has written to its ConfigMap so far. `config_maps` are the names of all
    ConfigMaps of the run. `created` and `written` are times of the API server; `written` is the last change of the
    ConfigMap with the progress, readable or not. `unreadable` says why a document counts as absent."""

    progress: Progress | None = None
    result: RunResult | None = None
    config_maps: tuple[str, ...] = ()
    created: datetime | None = None
    written: datetime | None = None
    origin: RunOrigin = RunOrigin()
    unreadable: str = ""


@dataclass(frozen=True)
class FoundKafka:
    """The answer to a question for a `Kafka` resource. `body` is None if there is none; `refused` says why the operator
    may not look."""

    body: Mapping[str, Any] | None = None
    refused: str = ""


@dataclass(frozen=True)
class Observed:
    """One resource and all that belongs to it. `backup` is the KafkaBackup that a restore's backupRef names, if it is
    there. `warnings` maps names of Jobs and pods to the newest Warning event about them; it is looked up only for those
    that do not get on. `kafka` is Strimzi's resource, None if the spec names none. `requested` are the KafkaBackupRuns
    of a KafkaBackup, if some of them ask for something. `archive_owner` is another KafkaBackup of the same archive.
    """

    resource: Resource
    jobs: Mapping[str, JobState] = field(default_factory=dict)  # by run id
    pods: Sequence[PodState] = ()
    documents: Mapping[str, Documents] = field(default_factory=dict)  # by run id
    backup: Resource | None = None
    warnings: Mapping[str, str] = field(default_factory=dict)
    kafka: FoundKafka | None = None
    requested: Sequence[RequestedRun] = ()
    archive_owner: Key | None = None

    def pods_of(self, run_id: str, role: str) -> list[PodState]:
        """Return the pods of one role of a run, oldest first."""
        chosen = [pod for pod in self.pods if pod.run_id == run_id and pod.role == role]
        return sorted(chosen, key=lambda pod: (pod.created.timestamp() if pod.created else 0.0, pod.name))


def job_state(body: Mapping[str, Any]) -> JobState:
    """Make the facts of a batch/v1 Job."""
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    # FailureTarget comes first, while pods are still being ended.
    failed = conditions.get("Failed") or conditions.get("FailureTarget")
    return JobState(
        name=metadata["name"],
        uid=metadata["uid"],
        run_id=(metadata.get("labels") or {}).get(LABEL_RUN, ""),
        created=parse_timestamp(metadata.get("creationTimestamp")),
        suspended=bool(body.get("spec", {}).get("suspend")),
        by_operator=(metadata.get("annotations") or {}).get(ANNOTATION_SUSPENDED) == "true",
        deleting="deletionTimestamp" in metadata,
        active=status.get("active", 0),
        failed=status.get("failed", 0),
        complete="Complete" in conditions,
        failure=(failed.get("reason", "JobFailed"), failed.get("message", "")) if failed else None,
        started=parse_timestamp(status.get("startTime")),
        # Only a Job that has succeeded has a completionTime.
        ended=parse_timestamp(status.get("completionTime") or (failed or {}).get("lastTransitionTime")),
        origin=RunOrigin.of(metadata),
        request_hash=hash_of_job(body),
    )


def pod_state(body: Mapping[str, Any]) -> PodState:
    """Make the facts of a v1 Pod. A pod that has ended may have no container statuses at all, if it was evicted before
    it started."""
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    role, phase = labels.get(LABEL_ROLE, ""), status.get("phase", "Pending")
    own = next((state for name, state in _states(status, "containerStatuses") if name == role), {})
    waiting, ended = _waiting(status, own), own.get("terminated")
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled: dict[str, Any] = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return PodState(
        name=metadata["name"],
        run_id=labels.get(LABEL_RUN, ""),
        role=role,
        phase=_phase(phase, own),
        created=parse_timestamp(metadata.get("creationTimestamp")),
        waiting=(waiting.get("reason", ""), waiting.get("message", "")) if waiting else None,
        unschedulable=scheduled.get("message", "Unschedulable") if unschedulable else None,
        exit_code=ended.get("exitCode") if ended else None,
        exit_reason=ended.get("reason") if ended else None,
        termination_message=(ended.get("message") or "") if ended else "",
        reason=(status["reason"], status.get("message", "")) if status.get("reason") else None,
        node=(body.get("spec") or {}).get("nodeName") or "",
        uid=metadata.get("uid", ""),
        owner=next((str(owner.get("uid", "")) for owner in _owners(body)), ""),
        deleting="deletionTimestamp" in metadata,
        held=ended is not None and phase not in _ENDED,
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
        init_failure=_init_failure(status) if not own.keys() & {"running", "terminated"} else "",
    )


def _states(status: Mapping[str, Any], which: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for container in status.get(which) or ():
        yield container.get("name", ""), container.get("state") or {}


def _phase(phase: str, own: Mapping[str, Any]) -> str:
    """Return the phase that the pod would have without other containers."""
    if "terminated" in own:
        return "Succeeded" if own["terminated"].get("exitCode") == 0 else "Failed"
    if "running" in own and phase == "Pending":
        return "Running"
    return "Pending" if "waiting" in own and phase == "Running" else phase


def _waiting(status: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the state of the container that does not start, or of the init container that it waits for."""
    if own.keys() & {"running", "terminated"}:
        return None
    before = (state["waiting"] for _, state in _states(status, "initContainerStatuses") if "waiting" in state)
    return next((found for found in before if found.get("reason", "") not in _STARTING), own.get("waiting"))


def _init_failure(status: Mapping[str, Any]) -> str:
    """Return the init container that has failed, and how; empty if none has."""
    for name, state in _states(status, "initContainerStatuses"):
        ended = state.get("terminated")
        if ended and ended.get("exitCode"):
            return f"init container {name} ended with exit code {ended['exitCode']} ({ended.get('reason') or 'Error'})"
    return ""


def own_jobs(bodies: Iterable[Mapping[str, Any]], resource: Resource) -> list[Mapping[str, Any]]:
    """Return the Jobs of the resource's runs: it is their controller, and they have the names that such Jobs have."""
    return [body for body in _own(bodies, resource) if _name(body) == job_name(resource.key.name, _run_id(body))]


def own_config_maps(bodies: Iterable[Mapping[str, Any]], resource: Resource) -> list[Mapping[str, Any]]:
    """Return the ConfigMaps of the resource's runs. None with another name is believed, nor is it deleted."""
    names = (request_name, progress_name, topics_name)
    return [
        body
        for body in _own(bodies, resource)
        if _name(body) in {name(resource.key.name, _run_id(body)) for name in names}
    ]


def _own(bodies: Iterable[Mapping[str, Any]], resource: Resource) -> Iterator[Mapping[str, Any]]:
    owner, namespace = resource.owner_reference(), resource.key.namespace
    for body in bodies:
        if body["metadata"].get("namespace") == namespace and owned_by(body, owner):
            yield body


def _name(body: Mapping[str, Any]) -> str:
    return str(body["metadata"].get("name", ""))


def _run_id(body: Mapping[str, Any]) -> str:
    return str((body["metadata"].get("labels") or {}).get(LABEL_RUN, ""))


def own_pods(bodies: Sequence[Mapping[str, Any]], resource_name: str) -> list[PodState]:
    """Return the pods that a Job of the resource has made, and the executors that such a driver has made.

    Labels can be copied, owners cannot by mistake. A Job is known by its name, not by its uid: the driver of a Job that
    was deleted, or of an earlier resource of this name, may still live, and must be waited for. A Job that was deleted
    with `--cascade=orphan` leaves its driver without an owner, but with the name that the Job controller has generated.
    """

    def of_job(body: Mapping[str, Any]) -> bool:
        run_id = (body["metadata"].get("labels") or {}).get(LABEL_RUN, "")
        name = job_name(resource_name, run_id)
        if not _owners(body):
            return str(body["metadata"].get("generateName", "")) == f"{name}-"
        return any(o.get("kind") == "Job" and o.get("name") == name and o.get("controller") for o in _owners(body))

    drivers = [body for body in bodies if pod_state(body).role == ROLE_DRIVER and of_job(body)]
    uids = {body["metadata"].get("uid") for body in drivers}
    executors = [
        body
        for body in bodies
        if pod_state(body).role == ROLE_EXECUTOR
        and any(o.get("kind") == "Pod" and o.get("uid") in uids for o in _owners(body))
    ]
    return [pod_state(body) for body in (*drivers, *executors)]


def _owners(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return body["metadata"].get("ownerReferences") or ()


def documents(config_maps: Sequence[Mapping[str, Any]]) -> dict[str, Documents]:
    """Read the documents, by run id. Only the ConfigMap for progress has some. A document of another run counts as
    absent, and so does one that cannot be read."""
    found: dict[str, Documents] = {}
    for body in config_maps:
        run_id = _run_id(body)
        data = (body.get("data") or {}) if is_progress_name(_name(body)) else {}
        before = found.get(run_id, Documents())
        progress, wrong_progress = _read(Progress, data.get(KEY_PROGRESS), run_id)
        result, wrong_result = _read(RunResult, data.get(KEY_RESULT), run_id)
        found[run_id] = Documents(
            progress=progress or before.progress,
            result=result or before.result,
            config_maps=(*before.config_maps, body["metadata"]["name"]),
            created=before.created or parse_timestamp(body["metadata"].get("creationTimestamp")),
            written=_last_change(body["metadata"]) if data.get(KEY_PROGRESS) else before.written,
            origin=RunOrigin.of(body["metadata"]),
            unreadable=wrong_result or wrong_progress or before.unreadable,
        )
    return found


def _last_change(metadata: Mapping[str, Any]) -> datetime | None:
    """Return the time at which the API server took the last write, no matter whose."""
    times = [parse_timestamp(entry.get("time")) for entry in metadata.get("managedFields") or ()]
    return max((moment for moment in times if moment is not None), default=None)


def termination_result(pod: PodState) -> RunResult | None:
    """Return the result in the pod's termination message, if there is one of this run. The message may hold anything,
    kubelet's words too."""
    return _read(RunResult, pod.termination_message, pod.run_id)[0]


def _read(kind: type[D], text: str | None, run_id: str) -> tuple[D | None, str]:
    """Return the document if it is of the run, and why it cannot be read."""
    if not text:
        return None, ""
    try:
        document = kind.from_json(text)
    except DocumentRefused as error:
        return None, cut(str(error), _WHY_MAX)
    if isinstance(document, RunResult) and document.outcome not in _ENDS:
        return None, f"the outcome {document.outcome} is unknown"
    return (document if document.run_id == run_id else None), ""

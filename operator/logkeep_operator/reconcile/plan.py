"""The plan of a reconciliation: data that can be printed and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logkeep_operator.api import Resource, Status
from logkeep_operator.api.backup_run import RequestedRun, RequestedStatus


@dataclass(frozen=True)
class EnsureAccess:
    """Make sure that ServiceAccounts and RoleBinding of the namespace exist."""

    namespace: str


@dataclass(frozen=True)
class EnsureNetworkPolicy:
    """Make sure that the NetworkPolicy of the namespace's drivers and executors exists."""

    namespace: str


@dataclass(frozen=True)
class Create:
    """Make the object unless there is one of its name."""

    body: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])


@dataclass(frozen=True)
class SuspendJob:
    """Suspend the Job, or let it continue."""

    name: str
    suspend: bool


@dataclass(frozen=True)
class DeleteJob:
    """Delete the Job and its pods, if the Job still has this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeleteConfigMap:
    """Delete a ConfigMap of an earlier run, or of an earlier Job of this run."""

    name: str


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod, if it still has this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class AnswerRequestedRun:
    """Write the status of a KafkaBackupRun."""

    requested: RequestedRun
    status: RequestedStatus


@dataclass(frozen=True)
class AdoptRequestedRun:
    """Let a KafkaBackupRun be deleted with its KafkaBackup, which has this uid."""

    requested: RequestedRun
    uid: str


@dataclass(frozen=True)
class DeleteRequestedRun:
    """Delete a KafkaBackupRun whose run has ended long enough ago."""

    name: str
    uid: str


Answer = AnswerRequestedRun | AdoptRequestedRun | DeleteRequestedRun
Action = EnsureAccess | EnsureNetworkPolicy | Create | SuspendJob | DeleteJob | DeleteConfigMap | DeletePod


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the resource. `run_id` tells events of two runs apart."""

    type: str  # Normal, Warning
    reason: str
    message: str
    run_id: str = ""


@dataclass(frozen=True)
class ReportDrill:
    """Write the status of a KafkaBackup, and report it in an Event: what a drill of its archive has found."""

    backup: Resource
    status: Status
    event: Event


@dataclass(frozen=True)
class Plan:
    """First the actions in their order, then the status (None: leave it), then the events, then the answers to
    KafkaBackupRuns, and what is reported of a drill. `requeue_after` is in seconds, None waits for an event. `started`
    and `finished` are for the counters: a run was started for the first time, a run ended with this outcome.
    `waits_since` is set if a driver is to begin, or would if it were the run's turn (`turns`)."""

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status: Status | None = None
    requeue_after: float | None = None
    started: bool = False
    finished: str | None = None
    waits_since: datetime | None = None
    answers: tuple[Answer, ...] = ()
    drilled: ReportDrill | None = None

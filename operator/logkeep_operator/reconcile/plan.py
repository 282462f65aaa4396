"""What a reconciliation wants done: data that can be printed and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logkeep_operator.api import Status


@dataclass(frozen=True)
class EnsureAccess:
    """ServiceAccounts, Role and RoleBinding of the namespace exist."""

    namespace: str


@dataclass(frozen=True)
class Create:
    """The object is made unless one of its name is there."""

    body: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])


@dataclass(frozen=True)
class SuspendJob:
    """The Job is suspended, or goes on."""

    name: str
    suspend: bool


@dataclass(frozen=True)
class DeleteJob:
    """The Job and its pods go, if it is still the one of this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeleteConfigMap:
    """A ConfigMap goes: of an earlier run, or of an earlier try or Job of this one."""

    name: str


Action = EnsureAccess | Create | SuspendJob | DeleteJob | DeleteConfigMap


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the resource. `run_id` tells events of two runs apart."""

    type: str  # Normal, Warning
    reason: str
    message: str
    run_id: str = ""


@dataclass(frozen=True)
class Plan:
    """Actions in order, then the status (None: as it is), then events. `requeue_after` in seconds, None: wait for an
    event.

    `started` and `finished` are for the counters: a run was started for the first time, a run ended with this outcome.
    """

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status: Status | None = None
    requeue_after: float | None = None
    started: bool = False
    finished: str | None = None

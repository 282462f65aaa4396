"""Decisions of the operator, pure: `reconcile(observed, now, engine) -> Plan`. No I/O, no clock; `controller` gathers
and applies."""

from logkeep_operator.reconcile.observed import (
    Documents,
    JobState,
    Observed,
    Origin,
    PodState,
    documents,
    job_state,
    own_children,
    own_pods,
)
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
from logkeep_operator.reconcile.reconcile import is_settled, reconcile, refused

__all__ = [
    "Action",
    "Create",
    "DeleteConfigMap",
    "DeleteJob",
    "Documents",
    "EnsureAccess",
    "Event",
    "JobState",
    "Observed",
    "Origin",
    "Plan",
    "PodState",
    "SuspendJob",
    "documents",
    "is_settled",
    "job_state",
    "own_children",
    "own_pods",
    "reconcile",
    "refused",
]

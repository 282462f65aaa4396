"""Decisions of the operator, pure: `reconcile(observed, now, engine) -> Plan`. No I/O, no clock; `controller` gathers
and applies."""

from logkeep_operator.reconcile.asked import answers_without_backup, wants_look
from logkeep_operator.reconcile.observed import (
    Documents,
    FoundKafka,
    JobState,
    Observed,
    PodState,
    RunOrigin,
    documents,
    job_state,
    own_children,
    own_pods,
)
from logkeep_operator.reconcile.plan import (
    Action,
    AdoptAskedRun,
    Answer,
    AnswerAskedRun,
    Create,
    DeleteAskedRun,
    DeleteConfigMap,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    Event,
    Plan,
    SuspendJob,
    TellBackup,
)
from logkeep_operator.reconcile.reconcile import is_at_rest, reconcile, refused, wake_after_rest
from logkeep_operator.reconcile.schedule import wake_after
from logkeep_operator.reconcile.turns import Turns, Waiter, due, holds_place, place_of

__all__ = [
    "Action",
    "AdoptAskedRun",
    "Answer",
    "AnswerAskedRun",
    "Create",
    "DeleteAskedRun",
    "DeleteConfigMap",
    "DeleteJob",
    "DeletePod",
    "Documents",
    "EnsureAccess",
    "Event",
    "FoundKafka",
    "JobState",
    "Observed",
    "Plan",
    "PodState",
    "RunOrigin",
    "SuspendJob",
    "TellBackup",
    "Turns",
    "Waiter",
    "answers_without_backup",
    "documents",
    "due",
    "holds_place",
    "is_at_rest",
    "job_state",
    "own_children",
    "own_pods",
    "place_of",
    "reconcile",
    "refused",
    "wake_after",
    "wake_after_rest",
    "wants_look",
]

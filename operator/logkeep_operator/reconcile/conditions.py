"""The conditions of a resource, with the meaning that kstatus (Flux, kubectl wait, Argo CD) gives them.

| | Ready | Reconciling | Stalled |
|---|---|---|---|
| the wanted run has succeeded | True | False | False |
| a run is on its way, or waits for something that is looked at again | False | True | False |
| the same for the schedule alone, after a success and with nothing wrong | True | False | False |
| the same for topics that a restore holds and that are released | True | False | False |
| suspended, also after a success | False | False | False |
| a dry run has found nothing that would refuse the run | False | False | False |
| failed or invalid: somebody must act | False | False | True |

`ScheduledRun` is True in the third and fourth of these cases, and there once that has been so.
`DataLoss` is there once a run has ended: True when records are missing, and it stays so until a run ends without.
Unknown when a run succeeded whose report could not be read.
`Coverage` (see `coverage`) is there once a backup has been planned: False when something that the spec names is not
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Status
from logkeep_operator.api.status import StatusWithConditions

SCHEDULED_RUN = "ScheduledRun"


def ready(reason: str, message: str) -> tuple[Condition, ...]:
    """The wanted run has succeeded."""
    return _three(reason, message, ready="True")


def reconciling(reason: str, message: str) -> tuple[Condition, ...]:
    """The run is on its way."""
    return _three(reason, message, reconciling="True")


def scheduled_run(reason: str, message: str) -> tuple[Condition, ...]:
    """A run of the schedule is on its way, or one that releases topics, and what the spec asks for was done before."""
    return (
        *_three(reason, message, ready="True"),
        Condition(type=SCHEDULED_RUN, status="True", reason=reason, message=cut(message)),
    )


def without_scheduled_run(before: Status, wanted: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the wanted conditions, and the end of `ScheduledRun` if they say the state and it is not among them."""
    told = {condition.type: condition for condition in wanted}
    ready = told.get("Ready")
    if ready is not None and SCHEDULED_RUN not in told and before.condition(SCHEDULED_RUN) is not None:
        told[SCHEDULED_RUN] = Condition(type=SCHEDULED_RUN, status="False", reason=ready.reason, message=ready.message)
    return tuple(told.values())


def suspended(message: str) -> tuple[Condition, ...]:
    """Nothing happens, because the resource is suspended."""
    return _three("Suspended", message)


def only_found_out(reason: str, message: str) -> tuple[Condition, ...]:
    """A dry run has ended: nothing was done, and nothing happens until the spec changes."""
    return _three(reason, message)


def stalled(reason: str, message: str) -> tuple[Condition, ...]:
    """Nothing happens until a user acts."""
    return _three(reason, message, stalled="True")


def data_loss(lost: bool, message: str) -> Condition:
    """Return whether records are missing."""
    return Condition(
        type="DataLoss",
        status="True" if lost else "False",
        reason="RecordsMissing" if lost else "NoLoss",
        message=cut(message),
    )


def data_loss_unknown(message: str) -> Condition:
    """The run succeeded and did not say whether records are missing."""
    return Condition(type="DataLoss", status="Unknown", reason="ReportMissing", message=cut(message))


def merge(
    before: StatusWithConditions, wanted: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return the wanted conditions with times: a time changes only when the condition's status does. Others stay as
    they are."""
    new = {condition.type: condition for condition in wanted}
    result = []
    for condition in new.values():
        old = before.condition(condition.type)
        same = old is not None and old.status == condition.status and old.last_transition_time
        moment = old.last_transition_time if old is not None and same else timestamp(now)
        result.append(
            Condition(
                type=condition.type,
                status=condition.status,
                reason=condition.reason,
                message=cut(condition.message),
                last_transition_time=moment,
                observed_generation=generation,
            )
        )
    result += [old for old in before.conditions if old.type not in new]
    return tuple(result)


def _three(
    reason: str, message: str, *, ready: str = "False", reconciling: str = "False", stalled: str = "False"
) -> tuple[Condition, ...]:
    text = cut(message)
    return (
        Condition(type="Ready", status=ready, reason=reason, message=text),
        Condition(type="Reconciling", status=reconciling, reason=reason, message=text),
        Condition(type="Stalled", status=stalled, reason=reason, message=text),
    )

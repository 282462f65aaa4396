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
`Coverage` (see `coverage_condition`) is there once a backup has been planned: False when something that the spec
names is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Status
from logkeep_operator.api.status import StatusWithConditions

_NAMES_IN_MESSAGE = 5


def coverage_of(result: RunResult, include: tuple[str, ...]) -> TopicCoverage | None:
    """Return the coverage, as far as the run has found it out; None if nothing is known. A run that no topic matches
    protects none. `include` has the run's patterns, if they are known."""
    if result.coverage is None and result.error_code == "NoTopicMatches" and include:
        return TopicCoverage(unmatched=len(include), patterns_unmatched=include)
    return result.coverage


def coverage_condition(found: TopicCoverage) -> Condition:
    """The condition is True if everything that the spec names is there and may be read. Topics that the spec leaves out
    do not count."""
    parts = (
        ("PatternsUnmatched", "patterns that choose no topic", found.unmatched, found.patterns_unmatched),
        ("TopicsUnreadable", "topics that may not be read", found.unreadable, found.topics_unreadable),
        ("TopicsVanished", "archived topics that are gone from the cluster", found.vanished, found.topics_vanished),
    )
    missing = [(reason, f"{what}: {total}{_named(names)}") for reason, what, total, names in parts if total]
    lines = [f"Topics that are protected: {found.protected}", *(text for _, text in missing)]
    if found.left_out:
        lines.append(f"others that are left out: {found.left_out}")
    message = cut("; ".join(lines) + ".")
    if missing:
        return Condition(type="Coverage", status="False", reason=missing[0][0], message=message)
    return Condition(type="Coverage", status="True", reason="AllFound", message=message)


def _named(names: Sequence[str]) -> str:
    shown = names[:_NAMES_IN_MESSAGE]
    return f" ({', '.join(shown)}{', ...' if len(names) > len(shown) else ''})" if shown else ""


SCHEDULED_RUN = "ScheduledRun"


def ready(reason: str, message: str) -> tuple[Condition, ...]:
    """The wanted run has succeeded."""
    return readiness(reason, message, ready="True")


def reconciling(reason: str, message: str) -> tuple[Condition, ...]:
    """The run is on its way."""
    return readiness(reason, message, reconciling="True")


def scheduled_run(reason: str, message: str) -> tuple[Condition, ...]:
    """A run of the schedule is on its way, or one that releases topics, and what the spec asks for was done before."""
    return (
        *readiness(reason, message, ready="True"),
        Condition(type=SCHEDULED_RUN, status="True", reason=reason, message=cut(message)),
    )


def without_scheduled_run(before: Status, wanted: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the wanted conditions, and the end of `ScheduledRun` if they say the state and it is not among them."""
    by_type = {condition.type: condition for condition in wanted}
    ready = by_type.get("Ready")
    if ready is not None and SCHEDULED_RUN not in by_type and before.condition(SCHEDULED_RUN) is not None:
        by_type[SCHEDULED_RUN] = Condition(
            type=SCHEDULED_RUN, status="False", reason=ready.reason, message=ready.message
        )
    return tuple(by_type.values())


def suspended(message: str) -> tuple[Condition, ...]:
    """Nothing happens, because the resource is suspended."""
    return readiness("Suspended", message)


def stalled(reason: str, message: str) -> tuple[Condition, ...]:
    """Nothing happens until a user acts."""
    return readiness(reason, message, stalled="True")


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


def readiness(
    reason: str, message: str, *, ready: str = "False", reconciling: str = "False", stalled: str = "False"
) -> tuple[Condition, ...]:
    """Return the conditions that every resource has, with one reason. By default nothing was done, and nothing happens
    until the spec changes. Ready has the message, and of the others the one that is True, which kstatus reads: people
    who describe the resource need not read it three times."""
    text = cut(message)
    return (
        Condition(type="Ready", status=ready, reason=reason, message=text),
        Condition(type="Reconciling", status=reconciling, reason=reason, message=text if reconciling == "True" else ""),
        Condition(type="Stalled", status=stalled, reason=reason, message=text if stalled == "True" else ""),
    )

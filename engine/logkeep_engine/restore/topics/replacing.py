"""Topics of the target that a restore deletes and creates again (`ifTopicExists: Replace`).

The plan remembers the id of each topic that is replaced, before anything is deleted, and a deletion asks for that id.
An id never comes back, so a restore that was killed may ask again: the topic that it has created since, and filled, has
another id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from logkeep_engine.contract.restore_spec import IfTopicExists, KafkaRestoreSpec
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    LogkeepError,
    SpecError,
    StateAltered,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.kafka.witnesses import Fate, TopicStanding
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.selection import Choice, shown
from logkeep_engine.restore.model.state import ALTERED
from logkeep_engine.restore.model.topics import BROKER_DEFAULT, ExistingTopic
from logkeep_engine.restore.topics.deleting import known_by_both

_PATIENCE = 60.0
_PAUSE = 0.2
_STANDS_IN = ".logkeep-stands-in"


def refuse_unconfirmed(
    choices: Sequence[Choice], existing: Mapping[str, ExistingTopic], confirmed: Iterable[str]
) -> None:
    """Raises SpecError for a confirmed name that is not a target, and TopicExists for a topic that would be replaced
    and is not confirmed. Pure.
    """
    named = set(confirmed)
    strange = sorted(named - {choice.target for choice in choices})
    if strange:
        raise unknown_target(strange)
    missing = sorted(set(existing) - named)
    if missing:
        raise not_confirmed(missing)


def unknown_target(names: Sequence[str]) -> SpecError:
    """Return the error about confirmed names that are not targets."""
    return SpecError(
        f"spec.confirm: {shown(names)}: no topic is restored under this name; nothing was written",
        hint="Name topics of the target, as they are called after spec.topics.rename.",
    )


def not_confirmed(names: Sequence[str]) -> TopicExists:
    """Return the error about topics that would be replaced without consent."""
    return TopicExists(
        f"{shown(names)}: to be replaced, but not named in spec.confirm; nothing was written",
        hint="Replace deletes everything that a topic holds. Name each topic that may be deleted in spec.confirm.",
    )


def check_replaceable(control: ControlPlane, topic: ExistingTopic) -> None:
    """Check that a topic can be deleted by its id and created again. Raises TargetUnsuitable, BrokerRefused."""
    if not topic.topic_id:
        raise TargetUnsuitable(
            f"topic {topic.name} has no topic id, so it cannot be replaced safely; nothing was written",
            hint="Delete it yourself, and restore with spec.ifTopicExists: Fail.",
        )
    if not topic.deletable:
        raise BrokerRefused(
            f"The user may not delete topic {topic.name!r}, which is to be replaced; nothing was written.",
            hint=f"Give the user the ACL DELETE on topic {topic.name!r}.",
        )
    # A broker looks at the rights first: of a topic that may be created, it says that it exists.
    problem = control.refusal(NewTopicPlan(topic.name, 1, BROKER_DEFAULT))
    if isinstance(problem, BrokerRefused):
        raise problem


def stand_in(name: str) -> str:
    """Return a name that no topic has, to ask whether a topic such as `name` could be created if it was not there."""
    return f"{name[:220]}{_STANDS_IN}"  # a name has 249 characters at most


@contextmanager
def as_the_topic() -> Iterator[None]:
    """Lets errors about a name that stands in tell of the topic itself."""
    try:
        yield
    except LogkeepError as error:
        message, hint = (text.replace(_STANDS_IN, "") for text in (error.message, error.hint))
        raise type(error)(message, hint=hint) from error


def delete_replaced(control: ControlPlane, plan: RestorePlan) -> None:
    """Delete the topics that the plan replaces, as far as they are there under their names, and wait until no broker
    knows them any more.

    Raises StateAltered for an id that is another topic's, BrokerUnavailable if brokers do not report it, and
    BrokerRefused."""
    ids = _replaced(plan)
    if not ids:
        return
    control.delete_topic_ids(known_by_both(control, ids, f"the plan of run {plan.run_id}"))
    deadline = time.monotonic() + _PATIENCE
    while left := {name: standing for name, standing in control.standings(ids).items() if not _is_gone(standing)}:
        if time.monotonic() > deadline:
            name, standing = next(iter(left.items()))
            raise BrokerUnavailable(
                f"Topic {name!r} was deleted, but brokers still know it: {standing.reason or 'it is there'}.",
                hint="Check that the brokers are healthy, then start the same run again: it continues from here.",
            )
        time.sleep(_PAUSE)


def _replaced(plan: RestorePlan) -> dict[str, str]:
    """Return the ids of the topics that a plan replaces, by name."""
    return {topic.target: topic.replaces for topic in plan.topics if topic.replaces}


def refuse_unconfirmed_plan(control: ControlPlane, plan: RestorePlan, spec: KafkaRestoreSpec, name: str) -> None:
    """Raises StateAltered for a stored plan, the object `name`, that replaces a topic which `spec.confirm` does not
    name, and TopicExists if the run that resumes another one would have to. What is deleted already needs no word."""
    wanted = _replaced(plan)
    if spec.if_topic_exists is IfTopicExists.RESUME:
        strange = sorted(set(spec.confirm) - {topic.target for topic in plan.topics})
        if strange:
            raise unknown_target(strange)
    unconfirmed = {topic: topic_id for topic, topic_id in wanted.items() if topic not in spec.confirm}
    if spec.if_topic_exists is not IfTopicExists.RESUME:
        if unconfirmed:
            raise StateAltered(
                f"{name}: it replaces {shown(sorted(unconfirmed))}, which spec.confirm does not name; it was not used",
                hint=ALTERED,
            )
        return
    there = known_by_both(control, unconfirmed, name)
    if there:
        raise not_confirmed(sorted(there))


def _is_gone(standing: TopicStanding) -> bool:
    return standing.fate in (Fate.GONE, Fate.RECREATED) and not standing.contested

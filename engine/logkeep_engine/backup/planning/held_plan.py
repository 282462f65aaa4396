"""Holds the stored plan of a backup to its spec and to the brokers: the plan is a claim.

A writer of the bucket could have put a plan there before the run began, or altered it between two of its
attempts. Such a plan could have topics archived that the spec does not choose, or call records lost that are there. Who
has put it there cannot be seen, but a run that has no earlier attempt has stored none.
"""

from __future__ import annotations

from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archiving import check_beginning
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.model.selection import Chooser, added_topics
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import ArchiveDamaged, StateAltered
from logkeep_engine.kafka.control import ControlPlane

_HINT = (
    "The object was altered or belongs to another run, or spec.topics has changed since the run began. Find out who "
    "can write to the bucket, and start a run under another id: it makes a new plan."
)


def plan_in(data: bytes, name: str, run_id: str, state: ArchiveState) -> BackupPlan:
    """Return the plan in the object `name`, which an earlier attempt of the run has stored. Raises StateAltered for
    what is not a plan of the run, or if there was no earlier attempt, ArchiveDamaged if the catalog has lost the run's
    beginning, and ArchiveMismatch."""
    first = state.runs[run_id].attempts == 1
    before = _altered(name, f"it was there before run {run_id} had stored a plan")
    try:
        plan = BackupPlan.from_json(data, name)
    except ArchiveDamaged as error:
        raise before if first else StateAltered(error.message, hint=_HINT) from error
    if plan.run_id != run_id:
        raise _altered(name, f"it is the plan of run {plan.run_id}")
    check_beginning(state, run_id, plan.begun)
    if first:
        raise before
    if strange := {gap.topic_id for gap in plan.gaps} - plan.names_with(state).keys():
        raise _altered(name, f"it calls records of topic id {min(strange)} lost, which the archive does not know")
    return plan


def refuse_strange(plan: BackupPlan, name: str, spec: KafkaBackupSpec, control: ControlPlane) -> None:
    """Raises StateAltered for a plan that archives topics which the spec does not choose, under another's id, or that
    calls records lost which the brokers still have. `name` is the plan's object."""
    chooser = Chooser(spec.topics, added_topics(spec))
    there = {topic.topic_id: topic for topic in control.list_topics()[0]}
    for topic in plan.topics:
        found = there.get(topic.topic_id)
        if found is not None and found.name != topic.name:
            raise _altered(name, f"it says that topic {topic.name!r} has the id of topic {found.name!r}")
        internal = found is not None and found.internal
        if not chooser.chooses(topic.name, internal=internal) and not chooser.adds(topic.name):
            raise _altered(name, f"it archives topic {topic.name!r}, which spec.topics does not choose")
    if strange := {chunk.topic_id for chunk in plan.chunks} - {topic.topic_id for topic in plan.topics}:
        raise _altered(name, f"it archives topic id {min(strange)}, which is not one of its topics")
    _refuse_wrong_gaps(plan, name, {topic_id: topic.name for topic_id, topic in there.items()}, control)


def _refuse_wrong_gaps(plan: BackupPlan, name: str, there: dict[str, str], control: ControlPlane) -> None:
    """Raises StateAltered for a gap that lies in what the log of a partition has now: a log never gets back what it has
    lost."""
    lost = [(there[gap.topic_id], gap.partition, gap.end) for gap in plan.gaps if gap.topic_id in there]
    starts = control.bounds(sorted({(topic, partition) for topic, partition, _ in lost})).found if lost else {}
    for topic, partition, end in lost:
        bounds = starts.get((topic, partition))
        if bounds is not None and end > bounds.start:
            raise _altered(
                name,
                f"it says that topic {topic!r} partition {partition} has lost the records up to offset {end}, and its "
                f"log begins at offset {bounds.start}",
            )


def _altered(name: str, what: str) -> StateAltered:
    return StateAltered(f"{name}: {what}; nothing was archived from it", hint=_HINT)

"""Notes in `held-topics.json` of a run which topics it holds: what those had before that were there, and whether the
run was released.

    hold_notes.noted(state, topics)                       # what the release gives back
    hold_notes.refuse_held_by_others(context, existing)   # before anything is written

A note is a claim: it may give no other topic another retention, and no other key. One restore at a time holds a topic.
A second one would note the hold of the first as what the topic had, and the release of each would let go what the other
has brought. So a topic is refused that another run holds, if the state of that run lies in the same place. Of others
nothing is known. A restore that holds nothing may append to it, and learns of the release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from logkeep_engine.archive.names import RUNS
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import ObjectExists, ObjectMissing, Refused, SpecError, StateAltered, TargetUnsuitable
from logkeep_engine.log.cleanup import RETENTION_BYTES, RETENTION_MS
from logkeep_engine.restore.claim.stored_plan import stored_plan
from logkeep_engine.restore.claim.takeover import taken_over_by
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import TopicPlan
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import ALTERED, HELD_NOTE, RestoreState, counted_ids
from logkeep_engine.restore.model.topics import HELD, ExistingTopic
from logkeep_engine.stored import reading

Retention = Mapping[str, str | None]
"""`retention.ms` and `retention.bytes` of a topic itself; None: it has the default of the brokers."""

# topic, topic id, retention.ms, retention.bytes
_NOTE = StoredDocument("note of held topics", 1, {"topics": [(str, str, str | None, str | None)], "released": bool})
_NUMBER = re.compile(r"-1|[0-9]{1,19}")  # an int64 has 19 digits at most
_HINT = "The object was altered. Set retention.ms and retention.bytes on the topics by hand."


def note_held(context: RestoreContext, topics: list[TopicPlan], *, fresh: bool) -> None:
    """Note what these topics have, unless an earlier start has: then they may be held already. A run whose plan is
    `fresh` has had none, so a note that lies there is not its own. Raises TargetUnsuitable for topics that another run
    holds since the plan was made."""
    own = context.control.topic_configs([topic.target for topic in topics]) if topics else {}
    rows = [
        [
            topic.target,
            topic.target_id,
            own.get(topic.target, {}).get(RETENTION_MS),
            own.get(topic.target, {}).get(RETENTION_BYTES),
        ]
        for topic in topics
    ]
    context.permit()
    storage, path = context.state.storage, context.state.file(HELD_NOTE)
    data = _NOTE.dumps({"topics": rows, "released": False})
    if fresh:
        storage.put(path, data)
        return
    there = _existing({topic.target: topic.target_id for topic in topics}, own)
    is_noted = bool(storage.list(path))  # then it may be an earlier start by which the topics keep all records
    _refuse(dict(_holders(context, there, ended=is_noted)), "nothing more was written")
    try:
        storage.create(path, data)
    except ObjectExists:
        noted(context.state, topics)  # their release must find it


def noted(state: RestoreState, topics: list[TopicPlan]) -> dict[str, Retention]:
    """Return the retention that these topics had before they were held, by name.

    Raises SpecError if the note is gone, ArchiveDamaged, and StateAltered if it is not of these topics, or says what
    cannot be."""
    if not topics:
        return {}
    name = state.name(HELD_NOTE)
    try:
        body = _read(state)
    except ObjectMissing as error:
        raise SpecError(
            f"{name} is gone: it is unknown which retention {shown([topic.target for topic in topics])} had before",
            hint="Set retention.ms and retention.bytes on the topics by hand, or restore the object from a copy.",
        ) from error
    rows: list[tuple[str, str, str | None, str | None]] = body["topics"]
    ids = {topic.target: topic.target_id for topic in topics}
    if {row[0]: row[1] for row in rows} != ids:
        raise StateAltered(f"{name}: it is not about a topic that this restore has appended to", hint=ALTERED)
    for topic, _, *values in rows:
        for value in values:
            if value is not None and not _NUMBER.fullmatch(value):
                raise StateAltered(f"{name}: the retention of topic {topic!r} is {value!r:.100}", hint=ALTERED)
    return {row[0]: {RETENTION_MS: row[2], RETENTION_BYTES: row[3]} for row in rows}


def _read(state: RestoreState) -> dict[str, Any]:
    data = state.storage.read(state.file(HELD_NOTE))
    with reading(_NOTE, data, state.name(HELD_NOTE), hint=_HINT) as body:
        return body


def note_released(state: RestoreState) -> None:
    """Note that the topics of a run were released."""
    try:
        rows = _read(state)["topics"]
    except ObjectMissing:
        rows = []  # it has only created topics
    state.storage.put(state.file(HELD_NOTE), _NOTE.dumps({"topics": rows, "released": True}))


def is_released(state: RestoreState) -> bool:
    """Return whether the topics of a run were released."""
    try:
        return bool(_read(state)["released"])
    except ObjectMissing:
        return False


def refuse_held_by_others(context: RestoreContext, existing: Mapping[str, ExistingTopic]) -> list[str]:
    """Return the warnings about existing topics that keep all records already. Raises TargetUnsuitable for those that
    another run holds, if this one is to hold them."""
    if context.spec.topics.retention is not TopicRetention.HOLD:
        return _describe_held_by_others(context, existing)
    _refuse(dict(_holders(context, existing)), "nothing was written")
    kept = sorted(name for name, topic in existing.items() if HELD.items() <= topic.own.items())
    if not kept:
        return []
    return [
        f"topics have retention.ms=-1 and retention.bytes=-1 already, which their release leaves: {shown(kept)}. No "
        f"restore with its state in {context.state.storage.uri} holds them. If another one does, its release lets what "
        "this one restores be deleted"
    ]


def _refuse(held: Mapping[str, str], what: str) -> None:
    """Raises TargetUnsuitable if there are topics that another run holds."""
    if not held:
        return
    named = shown([f"{topic} (run {run_id})" for topic, run_id in sorted(held.items())])
    raise TargetUnsuitable(
        f"spec.topics.retention: another restore holds these topics already: {named}; {what}",
        hint="One restore at a time holds a topic. Release it first: `logkeep release -f FILE --run-id "
        f"{min(held.values())}`, with the file of that restore. To give up a run that has not succeeded, set "
        "retention.ms and retention.bytes on its topics by hand.",
    )


def held_by_ended(context: RestoreContext, ids: Mapping[str, str], own: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the topics that other runs hold which have succeeded. `ids` are those of the topics, `own` the
    configurations that were set on the topics themselves."""
    return {name for name, _ in _holders(context, _existing(ids, own), ended=True)}


def _existing(ids: Mapping[str, str], own: Mapping[str, Mapping[str, str]]) -> dict[str, ExistingTopic]:
    return {name: ExistingTopic(name, 0, {}, topic_id, own=own.get(name, {})) for name, topic_id in ids.items()}


def _describe_held_by_others(context: RestoreContext, existing: Mapping[str, ExistingTopic]) -> list[str]:
    """Return the warning of a restore that holds nothing about existing topics that another run holds."""
    kept = {name: topic for name, topic in existing.items() if HELD.items() <= topic.own.items()}
    if not kept:
        return []
    try:
        found = sorted(dict(_holders(context, kept)).items())
    except Refused as error:
        return [f"whether another restore holds these topics is unknown: {shown(sorted(kept))}: {error.message}"]
    if not found:
        return []
    named = shown([f"{topic} (run {run_id})" for topic, run_id in found])
    return [
        f"another restore holds these topics: {named}. Once they are released, their retention then applies, also "
        "to what this restore writes"
    ]


def _holders(
    context: RestoreContext, existing: Mapping[str, ExistingTopic], *, ended: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the topics that other runs hold, each with the run. One that has succeeded holds its topics until it is
    released, another one, which is left out with `ended`, as long as they keep all records."""
    for state in _other_runs(context.state):
        plan = stored_plan(state)
        if plan is None or plan.cluster_id != context.cluster_id or is_released(state):
            continue
        ids = counted_ids(state) | {topic.target: topic.target_id for topic in plan.topics if topic.target_id}
        for name in sorted({topic.target for topic in plan.topics} & existing.keys()):
            topic = existing[name]
            is_same = ids.get(name, topic.topic_id) == topic.topic_id
            keeps_all = HELD.items() <= topic.own.items() and not ended
            if is_same and (keeps_all or state.success() is not None):
                yield name, state.run_id


def _other_runs(own: RestoreState) -> Iterator[RestoreState]:
    """Yield the states of other runs that have noted what they hold. What a run holds that was taken over, the one
    holds that has done it."""
    for info in own.storage.list(RUNS):
        run_id, _, name = info.path.removeprefix(RUNS).partition("/")
        if name == HELD_NOTE and run_id != own.run_id:
            state = own.of_run(run_id)
            if taken_over_by(state) is None:
                yield state

"""Holds the topics of a restore, so that they delete no record until they are released (`spec.topics.retention: Hold`).

    hold_existing(context, planned)             # before the first record; topics that the run creates are held as such
    with open_run(spec, run_id, os.environ) as context:
        release(context)                        # `logkeep release`, or the operator after `holdFor` (`releasing`)

A topic is held by `retention.ms=-1` and `retention.bytes=-1` on the topic itself, so nothing that happens to a run ends
it, and what brokers say of a topic tells whether it is held. A created topic gets its retention with its release: it
follows from the spec and the archive. What a topic had that was there before is noted before that is changed
(`hold_notes`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.run import MAX_LIST, HeldTopics, RunResult
from logkeep_engine.contract.spec import KafkaRestoreSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import (
    BrokerUnavailable,
    LogkeepError,
    Refused,
    SpecError,
)
from logkeep_engine.kafka.effective import applied_topic_configs
from logkeep_engine.log.cleanup import (
    BROKER_RETENTION_KEYS,
    is_deleted,
    least_kept,
)
from logkeep_engine.restore.alive import refuse_alive
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.count import counted_ids
from logkeep_engine.restore.hold_notes import Retention, held_by_ended, is_released, note_held, note_released, noted
from logkeep_engine.restore.keeping import (
    Going,
    RestoredTopic,
    TargetRetention,
    going,
    lacks_own,
    released_configs,
    source_defaults,
)
from logkeep_engine.restore.plan import RestorePlan
from logkeep_engine.restore.planner import RestorePlanner
from logkeep_engine.restore.selection import MAX_NAMES_SHOWN, shown
from logkeep_engine.restore.state import HELD_NOTE, RESULT
from logkeep_engine.restore.stored_plan import refuse_unknown
from logkeep_engine.restore.taking_over import RunClaim
from logkeep_engine.restore.topics import HELD, own_configs

# ---- holding


def held_topics(context: RestoreContext, plan: RestorePlan) -> HeldTopics | None:
    """The topics that the restore holds, None if it holds none."""
    if context.spec.topics.retention is not TopicRetention.HOLD or not plan.topics:
        return None
    names = sorted(topic.target for topic in plan.topics)
    return HeldTopics(len(names), tuple(names[:MAX_LIST]))


def still_held(context: RestoreContext, plan: RestorePlan) -> tuple[HeldTopics | None, list[str]]:
    """The topics that the restore holds at its end, and a warning about those to which somebody has given another
    retention since it began."""
    if held_topics(context, plan) is None:
        return None, []
    there, others = applied_topic_configs(context.control, {topic.target: dict(HELD) for topic in plan.topics})
    told = (
        f"somebody has given topics another retention while they were restored, so they are not held: {shown(others)}"
    )
    names = sorted(there.keys() - set(others))
    return HeldTopics(len(names), tuple(names[:MAX_LIST])) if names else None, [told] if others else []


def held_now(context: RestoreContext, plan: RestorePlan) -> HeldTopics | None:
    """The topics that a restore which has succeeded holds now: none that was released since, or that somebody has given
    another retention."""
    if held_topics(context, plan) is None or is_released(context.state):
        return None
    return still_held(context, plan)[0]


def held_until(spec: KafkaRestoreSpec, done: RunResult) -> int | None:
    """The time at which topics are to be released that a restore with this result holds, in whole seconds since the
    epoch, as a status has it. None: nobody but `logkeep release` releases them."""
    seconds = spec.topics.hold_seconds
    return None if seconds is None else int(done.end_time if done.earlier_end is None else done.earlier_end) + seconds


def told_held(held: HeldTopics | None, hold_for: str | None, *, would: bool = False) -> str:
    """Tell people which topics are held; empty if none is. `hold_for` may change: only a dry run names it."""
    if held is None:
        return ""
    until = "`logkeep release`"
    if hold_for is not None:
        until = f"they are released, {hold_for} after the restore" if would else "they are released"
    verb = "would keep" if would else "keeps" if held.total == 1 else "keep"
    names = held.topics[:MAX_NAMES_SHOWN]
    more = f" and {held.total - len(names)} more" if held.total > len(names) else ""
    return (
        f"{so_many(held.total, 'topic')} {verb} all records (retention.ms=-1, retention.bytes=-1) until {until}: "
        f"{', '.join(names)}{more}"
    )


def hold_existing(context: RestoreContext, planned: Planned) -> None:
    """Note that the restore holds its topics, and hold those that were there before it, before anything is written to
    them. Raises BrokerRefused and
    BrokerUnavailable if brokers do not do it."""
    if context.spec.topics.retention is not TopicRetention.HOLD or not planned.plan.topics:
        return
    there = [topic for topic in planned.plan.topics if not topic.created]
    note_held(context, there, fresh=planned.fresh)
    for topic in there:
        context.control.alter_topic_configs(topic.target, HELD)
    _, late = applied_topic_configs(context.control, {topic.target: dict(HELD) for topic in there})
    if late:
        raise BrokerUnavailable(
            f"{shown(late)}: the topics were held, and the brokers still answer with another retention.",
            hint="Check that the brokers are healthy, then start the same run again: nothing was written.",
        )


# ---- releasing


class ReleaseOutcome(StrEnum):
    """The outcome of a topic. `ReleasedBefore`: it has the retention that it is to have. `NotHeld`: somebody has given
    it another one, or somebody else holds it. `Gone`: somebody has deleted it, or another topic has its name. The topic
    is left as it is then."""

    RELEASED = "Released"
    RELEASED_BEFORE = "ReleasedBefore"
    NOT_HELD = "NotHeld"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class ReleasedTopic:
    """A topic of a restore, with the retention that it gets, and the records that it deletes then at most."""

    topic: str
    outcome: ReleaseOutcome
    retention: Retention
    goes: Going | None

    def to_json(self) -> dict[str, Any]:
        """The row of a document."""
        goes = self.goes
        return {
            "topic": self.topic,
            "outcome": self.outcome.value,
            "retention": dict(self.retention),
            "deletesAtMost": 0 if goes is None else goes.records,
            "oldest": None if goes is None else moment(goes.oldest) or None,
        }


def release(context: RestoreContext, *, dry_run: bool = False, in_time: bool = False) -> list[ReleasedTopic]:
    """Give the topics of a run their retention; with `dry_run` only tell what would become of them. A release that was
    interrupted is done again. One that was done is noted: somebody else may hold the topics since. With `in_time`
    nothing is released before `spec.topics.holdFor` is over.

    Raises SpecError if the run has not succeeded or holds nothing, Refused if it is too early, RestoreBusy if the run
    is still running, StateAltered if what is noted of it is not borne out, and what brokers raise.
    """
    context, planned = _planned(context, in_time=in_time)
    target = least_kept(context.control.configs_of_brokers(BROKER_RETENTION_KEYS))
    own = context.control.topic_configs([topic.target for topic in planned.plan.topics])
    wanted = _retentions(context, planned, target, own)
    outcomes, found = _outcomes(context, planned, own, wanted), []
    for topic in planned.plan.topics:
        outcome, retention = outcomes[topic.target], wanted[topic.target]
        goes = None
        if outcome is ReleaseOutcome.RELEASED:
            then = {key: value for key, value in own[topic.target].items() if key not in HELD}
            then |= {key: value for key, value in retention.items() if value is not None}
            restored = RestoredTopic.of_plan(planned.archived, topic)
            now_ms = int(time.time() * 1000)
            goes = going(planned.archived, restored, TargetRetention.of(then, target), planned.plan.point, now_ms)
        found.append(ReleasedTopic(topic.target, outcome, retention, goes))
    if not dry_run:
        _apply(context, [item for item in found if item.outcome is ReleaseOutcome.RELEASED])
        note_released(context.state)
    return found


def _planned(context: RestoreContext, *, in_time: bool) -> tuple[RestoreContext, Planned]:
    """The context and the plan of the run that has written the topics."""
    state = context.state
    try:
        state.file(RESULT)
    except ValueError as error:
        raise SpecError(str(error), hint="Name the run of a restore.") from error
    if context.spec.topics.retention is not TopicRetention.HOLD:
        raise SpecError(
            "spec.topics.retention: only a restore with Hold holds topics",
            hint="Give the command the file of the restore with which the run was begun.",
        )
    refuse_alive(RunClaim.after(state, state).last)
    done = state.success()
    if done is None:
        refuse_unknown(state)
        raise SpecError(
            f"run {context.run_id} has not succeeded: its topics may lack records",
            hint="Let the run end. To give it up, set retention.ms and retention.bytes on its topics by hand: "
            f"{state.name(HELD_NOTE)} has what those had that were there before.",
        )
    if in_time:
        _refuse_early(context.spec, done)
    run_id = done.earlier_run or done.run_id
    context = replace(context, run_id=run_id, state=state.of_run(run_id))
    return context, RestorePlanner(context).load_claimed(found=done.earlier_run is not None)


def _refuse_early(spec: KafkaRestoreSpec, done: RunResult) -> None:
    until = held_until(spec, done)
    if until is None:
        raise SpecError(
            "spec.topics.holdFor: without it topics are held until somebody releases them",
            hint="Set the field, or use `logkeep release`.",
        )
    now = time.time()
    if now < until:
        raise Refused(
            f"run {done.run_id} holds its topics until {moment(until * 1000)}, and this node's clock says "
            f"{moment(int(now * 1000))}: nothing was released",
            hint="Compare the clocks of the nodes. To release the topics earlier, use `logkeep release`.",
        )


def _retentions(
    context: RestoreContext, planned: Planned, target: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> dict[str, Retention]:
    """The retention that each topic gets. `own` are the configurations that were set on the topics themselves. Raises
    SpecError if it cannot be known."""
    topics, wanted = planned.plan.topics, context.spec.topics.configs
    before = noted(context.state, [topic for topic in topics if not topic.created])
    source, unknown = source_defaults(context.archive, planned.archived, context.spec.point)
    found: dict[str, Retention] = {}
    for topic in topics:
        entry = planned.archived.topics[topic.topic_id]
        if topic.created and unknown and lacks_own(entry, wanted):
            raise SpecError(
                f"topic {topic.target} has no retention of its own, and {unknown[0]}",
                hint="Set retention.ms and retention.bytes on the topic by hand: then it is not held any more.",
            )
        is_new = topic.created
        found[topic.target] = released_configs(entry, wanted, source, target) if is_new else before[topic.target]
        archived, there = own_configs(entry.configs, wanted), {**target, **own.get(topic.target, {})}
        if is_new and not is_deleted(archived) and is_deleted(there):
            found[topic.target] = HELD  # the cluster has not taken the policy that deletes nothing
    return found


def _outcomes(
    context: RestoreContext,
    planned: Planned,
    own: Mapping[str, Mapping[str, str]],
    wanted: Mapping[str, Retention],
) -> dict[str, ReleaseOutcome]:
    """The outcome of each topic. `own` are the configurations that were set on the topics themselves, `wanted` what the
    release gives them."""
    topics = planned.plan.topics
    ids = counted_ids(context.state) | {topic.target: topic.target_id for topic in topics if topic.target_id}
    there = context.control.topic_ids(topic.target for topic in topics)
    before = is_released(context.state)
    others = held_by_ended(context, there, own)
    found = {}
    for topic in topics:
        name = topic.target
        if name not in own or name not in there or ids.get(name, there[name]) != there[name]:
            found[name] = ReleaseOutcome.GONE
        elif HELD.items() <= own[name].items() and not before and name not in others:
            found[name] = ReleaseOutcome.RELEASED
        else:  # somebody else may hold it; a release that was interrupted has done a part of them
            done = all(own[name].get(key) == value for key, value in wanted[name].items())
            found[name] = ReleaseOutcome.RELEASED_BEFORE if done else ReleaseOutcome.NOT_HELD
    return found


def _apply(context: RestoreContext, topics: list[ReleasedTopic]) -> None:
    for number, item in enumerate(topics):
        values = {key: value for key, value in item.retention.items() if value is not None}
        try:
            context.control.alter_topic_configs(item.topic, values, sorted(set(item.retention) - set(values)))
        except LogkeepError as error:
            if number and error.exit_code == ExitCode.REFUSED:  # which says that nothing was changed
                error.exit_code = ExitCode.INCOMPLETE
            raise
    _, late = applied_topic_configs(context.control, {item.topic: dict(item.retention) for item in topics})
    if late:
        raise BrokerUnavailable(
            f"{shown(late)}: the retention was set, and the brokers still answer with another one.",
            hint="Look at retention.ms and retention.bytes of the topics once the brokers are healthy.",
        )

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

from logkeep_engine.contract.facts.outcome import HeldTopics
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import (
    BrokerUnavailable,
)
from logkeep_engine.kafka.effective import applied_topic_configs
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.selection import MAX_NAMES_SHOWN, shown
from logkeep_engine.restore.model.topics import HELD
from logkeep_engine.restore.topics.hold_notes import (
    is_released,
    note_held,
)


def held_topics(context: RestoreContext, plan: RestorePlan) -> HeldTopics | None:
    """Return the topics that the restore holds, None if it holds none."""
    if context.spec.topics.retention is not TopicRetention.HOLD or not plan.topics:
        return None
    names = sorted(topic.target for topic in plan.topics)
    return HeldTopics(topics=len(names), topic_list=tuple(names))


def still_held(context: RestoreContext, plan: RestorePlan) -> tuple[HeldTopics | None, list[str]]:
    """Return the topics that the restore holds at its end, and a warning about those that were given another retention
    since it began."""
    if held_topics(context, plan) is None:
        return None, []
    there, others = applied_topic_configs(context.control, {topic.target: dict(HELD) for topic in plan.topics})
    text = f"topics were given another retention while they were restored, so they are not held: {shown(others)}"
    names = sorted(there.keys() - set(others))
    return HeldTopics(topics=len(names), topic_list=tuple(names)) if names else None, [text] if others else []


def held_now(context: RestoreContext, plan: RestorePlan) -> HeldTopics | None:
    """Return the topics that a restore which has succeeded holds now: none that was released since, or that was given
    another retention."""
    if held_topics(context, plan) is None or is_released(context.state):
        return None
    return still_held(context, plan)[0]


def held_until(spec: KafkaRestoreSpec, done: RunResult) -> int | None:
    """Return the time at which topics are to be released that a restore with this result holds, in whole seconds since
    the epoch, as a status has it. None: only `logkeep release` releases them."""
    seconds = spec.topics.hold_seconds
    return None if seconds is None else int(done.end_time if done.earlier_end is None else done.earlier_end) + seconds


def describe_held(held: HeldTopics | None, hold_for: str | None, *, would: bool = False) -> str:
    """Tell people which topics are held; empty if none is. `hold_for` may change: only a dry run names it."""
    if held is None:
        return ""
    until = "`logkeep release`"
    if hold_for is not None:
        until = f"they are released, {hold_for} after the restore" if would else "they are released"
    verb = "would keep" if would else "keeps" if held.topics == 1 else "keep"
    names = held.topic_list[:MAX_NAMES_SHOWN]
    more = f" and {held.topics - len(names)} more" if held.topics > len(names) else ""
    return (
        f"{so_many(held.topics, 'topic')} {verb} all records (retention.ms=-1, retention.bytes=-1) until {until}: "
        f"{', '.join(names)}{more}"
    )


def hold_existing(context: RestoreContext, planned: Planned) -> None:
    """Note that the restore holds its topics, and hold those that were there before it, before anything is written to
    them. Raises BrokerRefused and BrokerUnavailable if brokers do not do it."""
    if context.spec.topics.retention is not TopicRetention.HOLD or not planned.plan.topics:
        return
    there = [topic for topic in planned.plan.topics if not topic.created]
    note_held(context, there, fresh=planned.fresh)
    for topic in there:
        context.control.alter_topic_configs(topic.target, HELD)
    _, late = applied_topic_configs(context.control, {topic.target: dict(HELD) for topic in there})
    if late:
        raise BrokerUnavailable(
            f"{shown(late)}: the topics were held, but the brokers still report another retention.",
            hint="Check that the brokers are healthy, then start the same run again: nothing was written.",
        )

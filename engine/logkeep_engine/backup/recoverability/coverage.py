"""The topics of a cluster that a run has protected, and those that must not be missing.

Warnings and the run's result tell all of them. If `spec.onUnmatched` does not allow something to be missing, the run
fails when everything else is archived. For the catalog that is a success, since it holds all that the cluster has.
Without `onUnmatched`, a pattern without wildcards must choose a topic: it is the name of one that a user counts on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import BackupPlan, open_gaps, open_pieces
from logkeep_engine.backup.model.selection import is_internal
from logkeep_engine.backup.model.unselected_topics import literal
from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.contract.spec import KafkaBackupSpec, OnUnmatched, Topics
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import PatternsUnmatched

_SHOWN_IN_ERROR = 3


def unmatched(plan: BackupPlan, include: Sequence[str]) -> list[int]:
    """Return the places of the patterns that choose no topic."""
    chosen = {topic.name for topic in plan.topics} | {topic.name for topic in plan.gone}
    chosen |= {name for name, _ in plan.unavailable}
    return NamePatterns(include).unmatched(chosen)


def describe_patterns(plan: BackupPlan, topics: Topics) -> list[str]:
    """Return a sentence for each pattern that chooses no topic."""
    return [_no_topic(plan, topics, at) for at in unmatched(plan, topics.include)]


def describe_topic_coverage(plan: BackupPlan) -> list[str]:
    """Return a sentence each for the topics that vanished, and for those that the user may not read."""
    sight, lines = plan.sight, []
    if sight.vanished.total:
        are = "is" if sight.vanished.total == 1 else "are"
        lines.append(
            f"{so_many(sight.vanished.total, 'topic')} of the archive {are} no longer in the cluster: "
            f"{sight.vanished}. What is archived of it stays. If that was intended, remove its name from "
            "spec.topics.include, or exclude it if a pattern with wildcards matches it."
        )
    if sight.unreadable.total:
        lines.append(
            f"The brokers do not let this user read {so_many(sight.unreadable.total, 'topic')}: {sight.unreadable}. "
            "They do not say whether topics exist that it may not even describe. The ACL READ is needed."
        )
    return lines


def selection_warnings(plan: BackupPlan, topics: Topics, before: Mapping[str, TopicEntry]) -> list[str]:
    """Return the warnings for patterns that choose no topic, for topics that vanished or may not be described, and for
    new incarnations of topics that the archive knew `before` the run.
    """
    warnings = [*describe_patterns(plan, topics), *describe_topic_coverage(plan)]
    known = {topic.name: topic.topic_id for topic in before.values()}
    return warnings + [
        f"Topic {topic.name!r} was deleted and created again: its id is {topic.topic_id}, in the last backup it was "
        f"{known[topic.name]}. What was archived of that one stays; spec.source.topicIds of a KafkaRestore selects one."
        for topic in plan.topics
        if topic.topic_id not in before and topic.name in known
    ]


def gone_warnings(plan: BackupPlan) -> list[str]:
    """Return the warnings for topics that were deleted while the run was planned."""
    names = {topic.name: topic.topic_id for topic in plan.topics}
    return [
        f"Topic {topic.name!r} (id {topic.topic_id}) was deleted while the run was planned, or before"
        + (f"; another topic has its name (id {names[topic.name]})." if topic.name in names else ".")
        for topic in plan.gone
    ]


def unmatched_error(plan: BackupPlan, spec: KafkaBackupSpec) -> PatternsUnmatched | None:
    """Return the error of a run that misses what `spec.onUnmatched` does not allow to be missing; None if nothing
    is."""
    include, policy = spec.topics.include, spec.on_unmatched
    if policy is OnUnmatched.WARN:
        return None
    patterns = [at for at in unmatched(plan, include) if policy is OnUnmatched.FAIL or literal(include[at]) is not None]
    lines = [_no_topic(plan, spec.topics, at) for at in patterns]
    if lines or policy is OnUnmatched.FAIL:
        lines += describe_topic_coverage(plan)
    if not lines:
        return None
    more = f" And {len(lines) - _SHOWN_IN_ERROR} more." if len(lines) > _SHOWN_IN_ERROR else ""
    return PatternsUnmatched(
        " ".join(lines[:_SHOWN_IN_ERROR]) + more,
        hint="Everything else was archived, with the positions of consumer groups; retention waits for a run that "
        "misses nothing. Correct spec.topics, give the user the ACLs, or set spec.onUnmatched: Warn.",
    )


def coverage(
    plan: BackupPlan, state: ArchiveState, include: Sequence[str], not_archived: Collection[Partition]
) -> TopicCoverage:
    """Return the topics that the run has protected so far, counted. `not_archived` are partitions that it must leave
    out."""
    patterns, sight = unmatched(plan, include), plan.sight
    return TopicCoverage(
        protected=len(protected_topics(plan, state, not_archived)),
        unmatched=len(patterns),
        left_out=sight.left_out.total,
        vanished=sight.vanished.total,
        unreadable=sight.unreadable.total,
        patterns_unmatched=tuple(include[at] for at in patterns[:MAX_LIST]),
        topics_left_out=sight.left_out.shown,
        topics_vanished=sight.vanished.shown,
        topics_unreadable=sight.unreadable.shown,
    )


def protected_topics(plan: BackupPlan, state: ArchiveState, not_archived: Collection[Partition]) -> list[TopicEntry]:
    """Return the topics that the run has archived whole so far."""
    silent = {name for name, _ in plan.unavailable}
    left = {piece.topic_id for piece in open_pieces(plan, state) if not piece.generation}
    left |= {gap.topic_id for gap in open_gaps(plan, state)}
    left |= {fork.topic_id for fork in plan.forks if not fork.branch_id}
    left |= {topic_id for topic_id, _ in not_archived}
    left |= {topic.topic_id for topic in plan.gone}
    return [topic for topic in plan.topics if topic.topic_id not in left and topic.name not in silent]


def _no_topic(plan: BackupPlan, topics: Topics, at: int) -> str:
    name = literal(topics.include[at])
    what = "that the user may read" if name in plan.sight.unreadable.shown else "of the cluster"
    why = ""
    if name is not None and NamePatterns(topics.include, topics.exclude).excludes(name):
        why = ": spec.topics.exclude excludes it"
    elif name is not None and not topics.internal and is_internal(name):
        why = ": it is Kafka's own, which spec.topics.internal leaves out"
    return f"spec.topics.include[{at}] {topics.include[at]!r} chooses no topic {what}{why}."

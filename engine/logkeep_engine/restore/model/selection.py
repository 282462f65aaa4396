"""Chooses the topics of an archive that are restored, the incarnation or branch of each, and its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from logkeep_engine.archive.catalog.facts import TopicEntry, is_branch_id
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.incarnations import Shows, as_counted, held, incarnations, taken_topics
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.pattern_lists import describe_unmatched
from logkeep_engine.contract.patterns import NamePatterns, Pattern, RenameRule
from logkeep_engine.contract.restored_topics import ChosenPartition, RestoreTopics, describe_unused
from logkeep_engine.errors import NoTopicMatches, SpecError
from logkeep_engine.kafka.internal import INTERNAL_TOPICS

MAX_NAMES_SHOWN = 10

# Kafka, org.apache.kafka.common.internals.Topic
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Choice:
    """A topic of the archive and the name it gets. `mapping`: which target partition each of the chosen partitions goes
    to; empty: each to the one of its number. `wanted`: the number of partitions that the target must have; None: that
    of the archived topic, or more where the target is there already.
    """

    source: TopicEntry
    target: str
    mapping: Mapping[int, int] = field(default_factory=dict)
    wanted: int | None = None

    @property
    def divided(self) -> bool:
        """Whether the records of each partition go to several ones, since the target has another number of them."""
        return self.partition_count != self.source.partitions

    @property
    def partition_count(self) -> int:
        """The number of partitions of the target, where the restore creates it."""
        return self.source.partitions if self.wanted is None else self.wanted

    @property
    def target_partitions(self) -> Collection[int]:
        """The partitions of the target to which something goes."""
        return self.mapping.values() if self.mapping else range(self.partition_count)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]


def legal_topic_name(name: str) -> bool:
    """Return whether Kafka would let a topic have this name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")


def select_topics(
    state: ArchiveState,
    topics: RestoreTopics,
    topic_ids: Mapping[str, str] = MappingProxyType({}),
    shows: Shows = as_counted,
) -> TopicSelection:
    """Return the topics to restore, with their target names, in the order of these.

    `topic_ids` names the topics for which another incarnation is needed than the newest that has records, with its
    topic id; or with the id of a branch, and then `state` is that of `with_branches`. `shows` is as in
    `incarnations.taken`.

    Raises NoTopicMatches when nothing is left, SpecError for a rename that makes an illegal name or brings two topics
    together, and for a topic id that chooses nothing.
    """
    found = incarnations(state.topics.values())
    patterns = NamePatterns(topics.include, topics.exclude)
    taken = taken_topics(state, shows=shows, wanted=lambda name: name not in topic_ids and patterns.chooses(name))
    by_name = _choose_incarnations(state, found, topic_ids, taken)
    chosen = [topic for name, topic in by_name.items() if patterns.chooses(name)]
    _refuse_unused(topic_ids, chosen)
    names = [topic.name for topic in chosen]
    notes = describe_unmatched("spec.topics.include", topics.include, names, "topic of the archive")
    notes += describe_unused("spec.topics.rename", topics.rename, names, "topic that is restored")
    notes += [_describe_choice(state, found[topic.name], topic) for topic in chosen if len(found[topic.name]) > 1]
    notes += [
        _describe_branch(state, topic, topic_ids.get(topic.name, ""))
        for topic in chosen
        if state.branch_ids(topic.topic_id)
    ]
    choices, left_out = _named(chosen, topics)
    notes += left_out
    if not choices:
        raise NoTopicMatches(
            _nothing_matches(sorted(by_name), topics, notes),
            hint=f"{_archive_holds(by_name)} Regular expressions must match the whole name.",
        )
    _refuse_collisions(choices)
    choices = _mapped(choices, topics.partitions)
    return TopicSelection(tuple(sorted(choices, key=lambda choice: choice.target)), tuple(notes))


def _named(chosen: Iterable[TopicEntry], topics: RestoreTopics) -> tuple[list[Choice], list[str]]:
    """Return the topics with the names they get, and why some of Kafka's own are left out."""
    choices, notes = [], []
    rules = [rename.rule() for rename in topics.rename]
    for topic in chosen:
        target = _rename(topic.name, rules)
        if topic.name in INTERNAL_TOPICS and target not in INTERNAL_TOPICS and not _is_meant(topic.name, topics):
            # An archive of format Avro may have __consumer_offsets without being asked for it by name.
            notes.append(
                f"topic {topic.name} was left out: it is an internal topic of Kafka; to restore it under another "
                "name, include it by a pattern that begins with an underscore"
            )
            continue
        if target in INTERNAL_TOPICS:
            notes.append(
                f"topic {topic.name} was left out: Kafka writes {target} itself and refuses produce requests to it; "
                "rename it to restore it under another name"
            )
            continue
        choices.append(Choice(topic, target, wanted=topics.partition_count))
    return choices, notes


def _mapped(choices: Sequence[Choice], chosen: Sequence[ChosenPartition]) -> list[Choice]:
    """Return the topics with the target partitions of those that are chosen. Raises SpecError for a topic or a
    partition that is not there."""
    by_name = {choice.source.name: choice for choice in choices}
    for at, item in enumerate(chosen):
        where = f"spec.topics.partitions[{at}]"
        if item.topic not in by_name:
            raise SpecError(
                f"{where}: topic {item.topic!r} is not restored: spec.topics does not choose it",
                hint="Name a topic as it is called in the archive, and choose it with spec.topics.include.",
            )
        count = by_name[item.topic].source.partitions
        if item.partition >= count:
            raise SpecError(
                f"{where}: the archived topic {item.topic} has no partition {item.partition}",
                hint=f"It has {count}, from 0 to {count - 1}.",
            )
    found = []
    for choice in choices:
        named = {item.partition: item.target_partition for item in chosen if item.topic == choice.source.name}
        moved = any(source != target for source, target in named.items())
        found.append(replace(choice, mapping=named) if moved else choice)
    return found


def only_chosen(state: ArchiveState, chosen: Sequence[ChosenPartition]) -> ArchiveState:
    """Return the archive without what it holds of partitions that are not chosen."""
    wanted: dict[str, set[int]] = {}
    for item in chosen:
        wanted.setdefault(item.topic, set()).add(item.partition)
    left_out = {
        (topic.topic_id, partition)
        for topic in state.topics.values()
        if topic.name in wanted
        for partition in range(topic.partitions)
        if partition not in wanted[topic.name]
    }
    return state.without(left_out) if left_out else state


def _is_meant(name: str, topics: RestoreTopics) -> bool:
    """Return whether a pattern speaks of names like Kafka's own, not of any name."""
    return any(Pattern(pattern).matches(name) and pattern.lstrip("^(\\").startswith("_") for pattern in topics.include)


def _choose_incarnations(
    state: ArchiveState,
    found: Mapping[str, Sequence[TopicEntry]],
    topic_ids: Mapping[str, str],
    taken: Mapping[str, TopicEntry],
) -> dict[str, TopicEntry]:
    """Return the incarnation of each name: the one in `topic_ids`, or else the one that is `taken`."""
    chosen = dict(taken)
    for name, topic_id in topic_ids.items():
        if name not in found:
            raise SpecError(f"spec.source.topicIds: the archive has no topic {name!r}", hint=_archive_holds(found))
        named = next((topic for topic in found[name] if _is(state, topic, topic_id)), None)
        if named is None:
            what = "branch" if is_branch_id(topic_id) else "incarnation"
            branches = [
                _branch(state, topic, item) for topic in found[name] for item in state.branch_ids(topic.topic_id)
            ]
            more = f", and the branches {', '.join(branches)}" if branches else ""
            raise SpecError(
                f"spec.source.topicIds.{name}: the archive has no {what} of the topic with the id {topic_id}",
                hint=f"It has {_listed(state, found[name])}{more}.",
            )
        chosen[name] = named
    return chosen


def with_branches(state: ArchiveState, topic_ids: Mapping[str, str]) -> ArchiveState:
    """Return the archive with these branches in place of the newest logs of their topics. Topic ids of incarnations
    change nothing.
    """
    for name, chosen in topic_ids.items():
        for topic in state.topics.values():
            if topic.name == name and chosen in state.branch_ids(topic.topic_id):
                state = state.with_branch(topic.topic_id, chosen)
    return state


def _is(state: ArchiveState, topic: TopicEntry, chosen: str) -> bool:
    return topic.topic_id == chosen or chosen in state.branch_ids(topic.topic_id)


def _describe_branch(state: ArchiveState, topic: TopicEntry, chosen: str) -> str:
    """Return the warning for a topic whose log the cluster has cut off while it was archived."""
    ids = state.branch_ids(topic.topic_id)
    others = ", ".join(_branch(state, topic, item) for item in ids[-MAX_NAMES_SHOWN:] if item != chosen)
    if chosen in ids:
        what = f"the earlier log, branch {_branch(state, topic, chosen)}, is restored, not the later one"
    else:
        what = "the newest log is restored"
    left = f", not the old ends {others}; spec.source.topicIds chooses one" if others else ""
    return f"topic {topic.name} was cut off in the cluster while it was archived: {what}{left}"


def _branch(state: ArchiveState, topic: TopicEntry, branch_id: str) -> str:
    parts = [
        f"partition {key[1]} offsets {branch.offset} to {branch.end - 1}"
        for key, branches in state.branches.items()
        if key[0] == topic.topic_id
        for branch in branches
        if branch.id == branch_id
    ]
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return f"{branch_id} ({'; '.join(sorted(parts)[:3])}{more})"


def _refuse_unused(topic_ids: Mapping[str, str], chosen: Sequence[TopicEntry]) -> None:
    unused = sorted(set(topic_ids) - {topic.name for topic in chosen})
    if unused:
        raise SpecError(
            f"spec.source.topicIds: topic {unused[0]!r} is not restored: spec.topics does not choose it",
            hint="Leave it out of topicIds, or choose it with spec.topics.include.",
        )


def _describe_choice(state: ArchiveState, found: Sequence[TopicEntry], chosen: TopicEntry) -> str:
    """Return the warning for a topic with several incarnations."""
    others = [topic for topic in found if topic is not chosen]
    return (
        f"topic {chosen.name} was deleted and created again while it was archived: incarnation {held(state, chosen)} "
        f"is restored, not {_listed(state, others)}; spec.source.topicIds chooses another"
    )


def _listed(state: ArchiveState, topics: Sequence[TopicEntry]) -> str:
    more = f" and {len(topics) - MAX_NAMES_SHOWN} older ones" if len(topics) > MAX_NAMES_SHOWN else ""
    return ", ".join(str(held(state, topic)) for topic in topics[-MAX_NAMES_SHOWN:]) + more


def _rename(name: str, rules: Sequence[RenameRule]) -> str:
    for at, rule in enumerate(rules):
        target = rule.new_name(name)
        if target is None:
            continue
        if not legal_topic_name(target):
            raise SpecError(
                f"spec.topics.rename[{at}]: turns topic {name!r} into {target!r}, which is not a legal topic name",
                hint="A topic name has 1 to 249 characters out of a-z A-Z 0-9 . _ - and is not '.' or '..'.",
            )
        return target
    return name


def _refuse_collisions(choices: Sequence[Choice]) -> None:
    taken: dict[str, str] = {}
    for choice in choices:
        other = taken.setdefault(choice.target, choice.source.name)
        if other != choice.source.name:
            raise SpecError(
                f"spec.topics.rename: topics {other!r} and {choice.source.name!r} would both become {choice.target!r}",
                hint="Change the rules, or exclude one of the topics: records of two topics are never mixed.",
            )


def _nothing_matches(archived: Sequence[str], topics: RestoreTopics, notes: Sequence[str]) -> str:
    message = f"no topic of the archive matches spec.topics.include {list(topics.include)}"
    if topics.exclude:
        message += f" without exclude {list(topics.exclude)}"
    return "; ".join([message, *notes])


def _archive_holds(archived: Iterable[str]) -> str:
    names = sorted(archived)
    if not names:
        return "The archive holds no topic: has a backup succeeded yet?"
    return f"The archive holds: {shown(names)}."


def shown(names: Sequence[str], most: int = MAX_NAMES_SHOWN) -> str:
    """Return the first of the names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""Finds where the archived positions of consumer groups lie after a restore. Pure, but for the offset maps it is given.

    moves = translate(select(state.groups, spec.consumer_groups), plan.topics, open_map, archived_end)

A position is the offset of the next record to read. If that record was restored, the group continues with it. If there
is no record at the position (a transaction marker, a record that compaction removed, or a lost one), the group
continues with the next record; after the last record, with the end of the restored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.pattern_lists import describe_unmatched
from logkeep_engine.contract.patterns import NamePatterns, RenameRule
from logkeep_engine.contract.restore_spec import RestoreGroups
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.errors import SpecError
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.restore.model.offset_map import FoundOffset, OffsetPlace
from logkeep_engine.restore.model.plan import NO_TASK, TopicPlan
from logkeep_engine.restore.positions.offset_lookup import OffsetFinder
from logkeep_engine.restore.streams.same import Extent

_MAPS_AT_ONCE = 4
_UNMATCHED_SHOWN = 5
NOTHING_THERE = FoundOffset(-1, OffsetPlace.END, None)


class PositionOutcome(StrEnum):
    """The outcome of setting a position."""

    SET = "set"
    KEPT = "kept"  # the group has another position in the target, which stays
    REFUSED = "refused"
    DIFFERENT = "different"  # it was set, but the cluster has another one


@dataclass(frozen=True, slots=True)
class Move:
    """An archived position and its target. `beyond`: it lay past everything that was archived. `record`: the source
    offset of the record before which the group stands then, if that is known."""

    group: GroupEntry
    topic: str
    offset: int
    place: OffsetPlace
    beyond: bool
    record: int | None = None

    @property
    def position(self) -> GroupPosition:
        """The position to commit. The archived leader epoch is one of the source, and means nothing in the target."""
        group = self.group
        return GroupPosition(group.group_id, self.topic, group.partition, self.offset, -1, group.metadata, group.share)


@dataclass(frozen=True, slots=True)
class Moved:
    """The outcome of a move. `reason` says why the position was not set; `members`: because the group has members."""

    move: Move
    outcome: PositionOutcome
    reason: str = ""
    members: bool = False


def select(groups: Iterable[GroupEntry], wanted: ConsumerGroups) -> list[GroupEntry]:
    """Return the archived positions of the chosen groups; there may be none."""
    found = list(groups)
    patterns = NamePatterns(wanted.include, wanted.exclude)
    ids = {group_id for group_id in {entry.group_id for entry in found} if patterns.chooses(group_id)}
    return [entry for entry in found if entry.group_id in ids]


def select_and_rename(groups: Iterable[GroupEntry], wanted: RestoreGroups) -> list[GroupEntry]:
    """Return the archived positions of the chosen groups, under the names that these get in the target.

    Raises SpecError for a rename that makes an empty name, or that brings two groups together: one of them would lose
    its positions.
    """
    found = list(groups)
    names = target_names({entry.group_id for entry in found}, wanted)
    return [replace(entry, group_id=names[entry.group_id]) for entry in found if entry.group_id in names]


def target_names(group_ids: Iterable[str], wanted: RestoreGroups) -> dict[str, str]:
    """Return the names in the target of the chosen groups among these. Raises as `select_and_rename`."""
    patterns = NamePatterns(wanted.include, wanted.exclude)
    rules = [rename.rule() for rename in wanted.rename]
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for group_id in sorted(filter(patterns.chooses, set(group_ids))):
        names[group_id] = target = _rename(group_id, rules)
        other = taken.setdefault(target, group_id)
        if other != group_id:
            raise SpecError(
                f"spec.consumerGroups.rename: groups {other!r} and {group_id!r} would both become {target!r}",
                hint="Change the rules, or exclude one of the groups: positions of two groups are never mixed.",
            )
    return names


def refuse_unmatched(groups: Iterable[GroupEntry], wanted: ConsumerGroups, field: str, where: str) -> None:
    """Raises SpecError for a pattern of `field` that chooses none of these groups of the archive, or of its point
    (`where`): who asks for groups only would take silence for success."""
    chosen = {entry.group_id for entry in select(groups, wanted)}
    text = describe_unmatched(field, wanted.include, chosen, f"consumer group of the archive{where}")
    if text:
        raise SpecError(
            "; ".join(text[:_UNMATCHED_SHOWN]),
            hint="A pattern must match the whole name of an archived group, which `logkeep inspect` lists; --include "
            "gives others instead of spec.consumerGroups.include.",
        )


def chosen_names(groups: Iterable[GroupEntry], wanted: RestoreGroups) -> set[str]:
    """Return the names in the target of the chosen archived groups."""
    rules = [rename.rule() for rename in wanted.rename]
    return {_rename(group_id, rules) for group_id in {entry.group_id for entry in select(groups, wanted)}}


def _rename(group_id: str, rules: Sequence[RenameRule]) -> str:
    for at, rule in enumerate(rules):
        target = rule.new_name(group_id)
        if target is not None:
            if not target:
                raise SpecError(
                    f"spec.consumerGroups.rename[{at}]: turns group {group_id!r} into a group without a name",
                    hint="Change the rule, or exclude the group.",
                )
            return target
    return group_id


def translate(
    groups: Iterable[GroupEntry],
    topics: Sequence[TopicPlan],
    open_map: Callable[[str, int], OffsetFinder],
    archived_end: Callable[[str, int], int],
) -> list[Move]:
    """Return the positions of restored topics, each with its target offset, in the order of `groups`.

    `open_map` gives the offset map of a target topic's partition, `archived_end` the end of what is archived of a topic
    id's partition. Every map is opened once, and a few are held at a time; it is asked for offsets that rise.
    """
    plans = {topic.topic_id: topic for topic in topics}
    _refuse_divided(topics)
    places = {topic.topic_id: {part.partition: part for part in topic.partitions} for topic in topics}
    by_partition: dict[tuple[str, int], list[tuple[int, GroupEntry]]] = {}
    for number, entry in enumerate(groups):
        topic = plans.get(entry.topic_id)
        if topic is not None and entry.partition in places[entry.topic_id]:
            key = (entry.topic_id, entry.partition)
            there = replace(entry, partition=places[key[0]][key[1]].target)
            by_partition.setdefault(key, []).append((number, there))

    def moves(key: tuple[str, int]) -> list[tuple[int, Move]]:
        topic = plans[key[0]]
        part = places[key[0]][key[1]]
        end = archived_end(*key)
        made = []
        if part.extent is not None:
            return [(number, _kept(entry, topic.target, part.extent)) for number, entry in by_partition[key]]
        found = None if part.producer_id == NO_TASK else open_map(topic.target, part.target)
        for number, entry in sorted(by_partition[key], key=lambda item: item[1].offset):
            at = NOTHING_THERE if found is None else found.find(entry.offset)
            offset = part.start if found is None else at.target
            made.append((number, Move(entry, topic.target, offset, at.place, entry.offset > end, at.source)))
        return made

    with ThreadPoolExecutor(_MAPS_AT_ONCE, thread_name_prefix="logkeep-groups") as pool:
        numbered = [item for part in pool.map(moves, by_partition) for item in part]
    return [move for _, move in sorted(numbered, key=lambda item: item[0])]


def _refuse_divided(topics: Iterable[TopicPlan]) -> None:
    """Raises SpecError for a topic without a target offset that stands for a position."""
    divided = sorted(topic.target for topic in topics if topic.divided)
    if divided:
        raise SpecError(
            f"spec.topics.partitionCount: {divided[0]} has another number of partitions than the archived topic, so "
            "none of its offsets corresponds to a position of a consumer group",
            hint="Set positions by a time, with Kafka's own kafka-consumer-groups.sh --reset-offsets.",
        )


def _kept(entry: GroupEntry, target: str, extent: Extent) -> Move:
    """Return the position of a group whose records have their source offsets: it stays what it is."""
    offset = extent.nearest(entry.offset)
    place = OffsetPlace.RECORD if offset == entry.offset else OffsetPlace.GAP
    return Move(entry, target, offset, place, entry.offset > extent.end)

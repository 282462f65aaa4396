"""Asks a cluster where its consumer groups stand, and where its share groups begin."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.cluster_state import LeftOutRow, describe_left_out
from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.backup.model.selection import select_groups
from logkeep_engine.contract.pattern_lists import describe_unmatched
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.contract.values import so_many
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.queries import Where
from logkeep_engine.kafka.topics import TopicInfo

log = logging.getLogger(__name__)

_SHOWN = 5
_UNKNOWN = "this version does not know groups of this kind"


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The positions of groups, the start offsets of share groups, and what the user must know of others. `left_out` are
    groups of kinds that are not archived."""

    entries: tuple[GroupEntry, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOutRow, ...] = ()


def find_groups(control: ControlPlane, wanted: ConsumerGroups, topics: Iterable[TopicInfo]) -> FoundGroups:
    """Return the chosen groups, as far as they have positions in these topics."""
    ids = {topic.name: topic.topic_id for topic in topics}
    found: list[GroupPosition] = []
    lines: list[str] = []
    listed = control.listed_groups()
    groups = {name: listed[name] for name in select_groups(listed, wanted)}
    what = "consumer group of the cluster that the user may describe"
    lines += describe_unmatched("spec.consumerGroups.include", wanted.include, groups, what)
    chosen = [name for name, group in groups.items() if group.commits_positions]
    if chosen:
        answer = control.group_offsets(chosen)
        found += answer.offsets
        for note in answer.notes:
            log.info("%s", note)
        negative = [_has(item, item.offset) for item in answer.negative if item.topic in ids]
        lines += _describe(negative, "pointed below 0, which clients treat as no position: not archived")
    left_out = [
        (name, group.kind.lower(), _UNKNOWN)
        for name, group in groups.items()
        if not group.commits_positions and not group.is_share
    ]
    shared = [name for name, group in groups.items() if group.is_share]
    if shared:
        answer = control.share_starts(shared)
        found += answer.offsets
        left_out += [(name, "share", answer.why) for name in answer.unreported]
    entries = tuple(
        GroupEntry(
            group_id=item.group_id,
            topic=item.topic,
            topic_id=ids[item.topic],
            partition=item.partition,
            offset=item.offset,
            leader_epoch=item.leader_epoch,
            metadata=item.metadata,
            share=item.share,
        )
        for item in found
        if item.topic in ids
    )
    return FoundGroups(entries, (*lines, *describe_left_out(left_out)), tuple(left_out))


def describe_changed_positions(
    found: Iterable[GroupEntry], archived: Iterable[GroupEntry], topics: Iterable[TopicInfo], ends: Mapping[Where, int]
) -> list[str]:
    """Tell the user of positions that were `found` and are `archived` otherwise, or not: clients may commit any number.
    `ends` are those of what the run archives. Pure."""
    partitions = {topic.topic_id: len(topic.partitions) for topic in topics}
    offsets = {_key(item): item.offset for item in archived}
    beyond, back, nowhere = list[str](), list[str](), list[str]()
    for item in found:
        offset = offsets.get(_key(item))
        if item.partition >= partitions.get(item.topic_id, 0):
            nowhere.append(_has(item, item.offset))
        elif offset is not None and offset != item.offset:
            at_end = offset == ends.get((item.topic, item.partition))
            (beyond if at_end else back).append(f"{_has(item, item.offset)}, archived is {offset}")
    end = "the end of what is archived (that of the log, or a transaction that is still open)"
    return [
        *_describe(beyond, f"pointed past {end}: that end was archived"),
        *_describe(back, "pointed to where a log has since been cut off: the offset of the cut was archived"),
        *_describe(nowhere, "pointed into a partition that the topic does not have: not archived"),
    ]


def _key(item: GroupEntry) -> tuple[str, str, int, bool]:
    return item.group_id, item.topic_id, item.partition, item.share


def _has(item: GroupEntry | GroupPosition, offset: int) -> str:
    return f"{item.group_id!r} has {offset} in topic {item.topic} partition {item.partition}"


def _describe(items: Sequence[str], what: str) -> list[str]:
    """Return a note about this many positions, with the first of them; none if there are none."""
    if not items:
        return []
    more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    shown = "; group ".join(items[:_SHOWN])
    return [f"{so_many(len(items), 'position')} of consumer groups {what}: group {shown}{more}"]

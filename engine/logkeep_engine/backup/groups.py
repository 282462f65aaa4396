"""Asks a cluster where its consumer groups stand, and where its share groups begin."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.backup.selection import select_groups
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.topics import TopicInfo

log = logging.getLogger(__name__)


def group_entries(
    control: ControlPlane, wanted: ConsumerGroups, topics: Iterable[TopicInfo], told: list[str]
) -> list[GroupEntry]:
    """The positions of the groups that are wanted in these topics, and the start offsets of share groups. What the user
    must know of groups that are not archived is added to `told`."""
    ids = {topic.name: topic.topic_id for topic in topics}
    found: list[GroupPosition] = []
    groups = control.listed_groups()
    chosen = select_groups((name for name, group in groups.items() if group.is_consumer), wanted)
    if chosen:
        answer = control.group_offsets(chosen)
        found += answer.offsets
        for note in answer.notes:
            log.info("%s", note)
    shared = select_groups((name for name, group in groups.items() if group.is_share), wanted)
    if shared:
        answer = control.share_starts(shared)
        found += answer.offsets
        told += answer.notes
    return [
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
    ]

"""Asks all living brokers of a cluster about a topic, before its records are called lost.

One broker's word is not enough for that. A broker that hung knows an old state of the cluster until it catches up: it
may not know a topic, or take itself for the leader of a partition that another has led for long. So every broker that
any of them takes for living is asked, and each must answer. The leader of a partition is the one of the highest epoch
that any of them knows, if it is in sync; it answers for that epoch only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.protocol import EARLIEST
from logkeep_engine.kafka.queries import NO_TOPIC_ID, ClusterView, PartitionView, TopicView, Where
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.survey import Survey


class Fate(Enum):
    """The fate of a topic id. A topic id never comes back, so what is gone stays so."""

    THERE = "there"
    GONE = "gone"
    RECREATED = "recreated"  # another topic has its name
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class TopicStanding:
    """`reason`: why it is not known. `contested`: one broker knows the topic id, another one says that another topic
    has the name. `likely`: the fate by the word of most brokers, where some do not answer; no proof of anything."""

    fate: Fate
    reason: str = ""
    contested: bool = False
    likely: Fate | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The truth about one partition. If its topic is there, its log is [log_start, log_end) on the leader, whether
    followers have it or not. `reason`: why nothing is known."""

    fate: Fate
    log_start: int = -1
    log_end: int = -1
    reason: str = ""


class Witnesses(Survey):
    """Questions about topics that are expected to have these `ids`, by name."""

    def __init__(self, pool: BrokerPool, patience: float, ids: Mapping[str, str]) -> None:
        super().__init__(pool, patience)
        self._ids = ids

    async def standings(self) -> dict[str, TopicStanding]:
        """Return the fate of each topic id, by the topic's name."""
        while True:
            views, silent = await self.pool.describe_to_all(list(self._ids))
            if not silent or not self.time_left():
                break
            await asyncio.sleep(self.pool.limits.control_pause)
        said = _by_name(views)
        found = {name: _standing(topic_id, said.get(name, ())) for name, topic_id in self._ids.items()}
        if not silent:
            return found
        reasons = "; ".join(silent.values())
        most = len(views) > len(silent)
        return {
            name: item
            if item.fate is Fate.THERE
            else TopicStanding(Fate.NOT_KNOWN, reasons, likely=item.fate if most else None)
            for name, item in found.items()
        }

    async def findings(self, partitions: Iterable[Where]) -> dict[Where, Finding]:
        """Return all that is known of each of these partitions."""
        wanted = list(partitions)
        standings = await self.standings()
        there = [where for where in wanted if standings[where[0]].fate is Fate.THERE]
        starts = await self.offsets(there, EARLIEST)
        ends = await self.epoch_ends(dict.fromkeys(starts.found))
        reasons = starts.unknown | starts.silent | ends.unknown | ends.silent

        def finding(where: Where) -> Finding:
            standing = standings[where[0]]
            if standing.fate is not Fate.THERE:
                return Finding(standing.fate, reason=standing.reason)
            end = ends.found.get(where)
            if end is None:
                return Finding(Fate.NOT_KNOWN, reason=reasons[where])
            if end.leader_epoch != end.current_epoch or end.end_offset < 0:
                return Finding(Fate.NOT_KNOWN, reason="the leader does not report where its log ends")
            return Finding(Fate.THERE, starts.found[where], end.end_offset)

        return {where: finding(where) for where in wanted}

    async def _leaders(self, topics: Iterable[str]) -> dict[str, TopicView] | RetriableError:
        try:
            views, silent = await self.pool.describe_to_all(sorted(topics))
        except RetriableError as trouble:
            return trouble
        if silent:
            return RetriableError("; ".join(silent.values()))
        said = _by_name(views)
        return {name: _newest(name, self._ids[name], said.get(name, ()), views) for name in topics}


def _by_name(views: Mapping[int, ClusterView]) -> dict[str, list[TopicView]]:
    """Each topic as the brokers know it."""
    said: dict[str, list[TopicView]] = {}
    for view in views.values():
        for topic in view.topics:
            said.setdefault(topic.name, []).append(topic)
    return said


def _standing(topic_id: str, said: Sequence[TopicView]) -> TopicStanding:
    if any(_is(topic, topic_id) for topic in said):
        return TopicStanding(
            Fate.THERE, contested=any(topic.code == Code.NONE and not _is(topic, topic_id) for topic in said)
        )
    if not said:
        return TopicStanding(Fate.NOT_KNOWN, "no broker says anything about it")
    for topic in said:
        if topic.code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            return TopicStanding(Fate.NOT_KNOWN, f"a broker says {Code.name_of(topic.code)}")
    return TopicStanding(Fate.RECREATED if any(topic.code == Code.NONE for topic in said) else Fate.GONE)


def _is(topic: TopicView, topic_id: str) -> bool:
    """Return whether this may be the topic with that id. A broker without topic ids cannot report it."""
    return topic.code == Code.NONE and topic.topic_id in (topic_id, NO_TOPIC_ID)


def _newest(name: str, topic_id: str, said: Sequence[TopicView], views: Collection[int]) -> TopicView:
    """Return the topic with each partition as the broker knows it that has heard of its last leader."""
    partitions: dict[int, PartitionView] = {}
    for number, partition in _known(topic_id, said):
        before = partitions.get(number)
        if before is None or partition.leader_epoch > before.leader_epoch:
            partitions[number] = partition
    for number, partition in partitions.items():
        if partition.leader not in views or partition.leader not in partition.in_sync:
            partitions[number] = replace(partition, leader=-1)
    return TopicView(Code.NONE if partitions else Code.UNKNOWN_TOPIC_OR_PARTITION, name, topic_id, False, partitions)


def _known(topic_id: str, said: Sequence[TopicView]) -> Iterator[tuple[int, PartitionView]]:
    for topic in said:
        if _is(topic, topic_id):
            yield from topic.partitions.items()

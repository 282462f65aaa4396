"""Which groups a cluster has, of which kind, and whether it has members: every broker lists those it coordinates.

A broker that has just become the coordinator of a group may not know it yet. Then it lists its other groups and no
error, and the broker before it is dead or lists the group no more. So a list is taken as whole only if all living
brokers name the same leaders of `__consumer_offsets`, before it and after it.

librdkafka does not look, and leaves out share groups (KIP-932) and groups of Kafka Streams (KIP-1071).

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import RETRIABLE, Code
from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_uvarint
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.kafka.queries import ClusterView
from logkeep_engine.kafka.retry import RetriableError

LIST_GROUPS = 16  # the key of the request
_WITH_STATES, _WITH_KINDS = 4, 5
_SHARE = "share"
_EMPTY_STATES = frozenset({"Empty", "Dead"})
_COMMITTING = frozenset({"classic", "consumer", "streams"})
_EVERYTHING = pack_uvarint(1)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it. `protocol` is empty for a group that has only committed positions."""

    group_id: str
    protocol: str
    state: str
    kind: str = ""

    @property
    def is_share(self) -> bool:
        """True if its members share partitions, as in a queue (KIP-932)."""
        return _SHARE in (self.kind.lower(), self.protocol)

    @property
    def commits_positions(self) -> bool:
        """True for a group of a kind that commits positions: classic, consumer (KIP-848) or streams (KIP-1071), no
        matter who its members are. Brokers that name no kinds have only classic groups, and the first share groups."""
        return not self.is_share and (self.kind.lower() in _COMMITTING or not self.kind)

    @property
    def has_members(self) -> bool:
        """True if it has a member, or one that is joining."""
        return self.state not in _EMPTY_STATES


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The groups of one coordinator, or the protocol's error code."""

    code: int
    throttle_ms: int
    groups: tuple[ListedGroup, ...]


def list_groups(version: int = _WITH_KINDS) -> Call[ListedGroups]:
    """Return all groups that a broker coordinates and this user may describe, with their states; from version 5 on with
    their kinds."""

    def group(read: Reader) -> ListedGroup:
        name, protocol, state = read.compact_string(), read.compact_string(), read.compact_string()
        kind = read.compact_string() if version >= _WITH_KINDS else ""
        read.tags()
        return ListedGroup(name, protocol, state, kind)

    def answer(read: Reader) -> ListedGroups:
        throttle, code = read.int32(), read.int16()
        return ListedGroups(code, throttle, tuple(read.compact_array(lambda: group(read))))

    filters = _EVERYTHING * (2 if version >= _WITH_KINDS else 1)
    return Call(LIST_GROUPS, version, (filters + NO_TAGS,), answer, True)


@dataclass(frozen=True, slots=True)
class _Coordinators:
    """The brokers, and the leaders of `__consumer_offsets` as all of them know it: leader and epoch by partition; none
    if there is no such topic, or this user may not see it. `settled`: no leader has died or was stopped lately."""

    brokers: frozenset[int]
    leaders: Mapping[int, tuple[int, int]]
    settled: bool = field(compare=False)


async def listed_groups(pool: BrokerPool) -> dict[str, ListedGroup]:
    """Return the groups of all living brokers, by name. Raises RetriableError if groups might be missing: if a broker
    does not answer, or coordinators are moving; BrokerRefused.

    Where coordinators may have moved a moment ago, groups are listed twice: a broker that says that it coordinates a
    group may still be about to read it.
    """
    coordinators = await _coordinators(pool)
    found = await _listed_by(pool, coordinators.brokers)
    # Groups, but no leaders: this user may not see the topic, so nobody would notice that a coordinator moves.
    if not coordinators.settled or (found and not coordinators.leaders):
        await asyncio.sleep(pool.limits.settling)
        found |= await _listed_by(pool, coordinators.brokers)
    if await _coordinators(pool) != coordinators:
        raise RetriableError("the coordinators of groups have changed while groups were listed")
    return found


async def _coordinators(pool: BrokerPool) -> _Coordinators:
    """Raises RetriableError if brokers are silent or do not agree, or if a partition has no leader."""
    views, silent = await pool.describe_to_all([CONSUMER_OFFSETS])
    if silent:
        raise RetriableError("; ".join(silent.values()))
    said = [_as_known_by(view) for view in views.values()]
    if any(coordinators != said[0] for coordinators in said):
        raise RetriableError("the brokers disagree about which of them coordinates groups")
    for partition, (leader, _) in said[0].leaders.items():
        if leader not in views:
            raise RetriableError(f"partition {partition} of {CONSUMER_OFFSETS} has no leader: groups would be missing")
    return replace(said[0], settled=all(coordinators.settled for coordinators in said))


def _as_known_by(view: ClusterView) -> _Coordinators:
    brokers = frozenset(view.brokers)
    topic = next((topic for topic in view.topics if topic.name == CONSUMER_OFFSETS), None)
    if topic is None or topic.code == Code.TOPIC_AUTHORIZATION_FAILED:
        return _Coordinators(brokers, {}, settled=False)
    if topic.code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
        raise RetriableError(f"a broker says {Code.name_of(topic.code)} of {CONSUMER_OFFSETS}")
    partitions = topic.partitions
    leaders = {number: (found.leader, found.leader_epoch) for number, found in partitions.items()}
    return _Coordinators(brokers, leaders, all(len(it.in_sync) == len(it.replicas) for it in partitions.values()))


async def _listed_by(pool: BrokerPool, brokers: Iterable[int]) -> dict[str, ListedGroup]:
    found: dict[str, ListedGroup] = {}
    for node in sorted(brokers):
        version = min(_WITH_KINDS, await pool.version(node, LIST_GROUPS))
        if version < _WITH_STATES:
            raise BrokerRefused(
                f"{pool.name(node)} does not say which groups have members.",
                hint="Groups are listed in Kafka 2.6 or newer.",
            )
        answer = await pool.ask(node, list_groups(version))
        if answer.code in RETRIABLE:
            raise RetriableError(f"{pool.name(node)} says {Code.name_of(answer.code)}")
        if answer.code != Code.NONE:
            raise BrokerRefused(
                f"Cannot list groups: {pool.name(node)} says {Code.name_of(answer.code)}.",
                hint="See the broker's log.",
            )
        found |= {group.group_id: group for group in answer.groups}
    return found

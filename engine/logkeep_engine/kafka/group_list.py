"""Which groups a cluster has, of which kind, and whether anybody is a member: every broker lists those it coordinates.

librdkafka leaves out share groups (KIP-932).

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import RETRIABLE, Code
from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_uvarint
from logkeep_engine.kafka.trouble import BrokerTrouble

LIST_GROUPS = 16
_WITH_STATES, _WITH_KINDS = 4, 5
_SHARE = "share"
_NOBODY = frozenset({"Empty", "Dead"})
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
    def has_members(self) -> bool:
        """True if somebody is a member, or is becoming one."""
        return self.state not in _NOBODY


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The groups of one coordinator, or the protocol's error code."""

    code: int
    throttle_ms: int
    groups: tuple[ListedGroup, ...]


def list_groups(version: int = _WITH_KINDS) -> Call[ListedGroups]:
    """All groups that a broker coordinates and this user may describe, with their states; from version 5 on with their
    kinds."""

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


async def has_share_groups(pool: BrokerPool) -> bool:
    """Whether brokers of this version may have share groups. Raises BrokerTrouble, BrokerRefused."""
    return await pool.version(pool.any_node(), LIST_GROUPS) >= _WITH_KINDS


async def listed_groups(pool: BrokerPool) -> dict[str, ListedGroup]:
    """The groups of all living brokers, by name. Raises BrokerTrouble if one of them does not answer: its groups would
    be missing; BrokerRefused."""
    view = await pool.describe([])
    found: dict[str, ListedGroup] = {}
    for node in view.brokers:
        version = min(_WITH_KINDS, await pool.version(node, LIST_GROUPS))
        if version < _WITH_STATES:
            raise BrokerRefused(
                f"{pool.name(node)} does not say which groups have members.",
                hint="Positions of groups are set in Kafka 2.6 or newer.",
            )
        answer = await pool.ask(node, list_groups(version))
        if answer.code in RETRIABLE:
            raise BrokerTrouble(f"{pool.name(node)} says {Code.name_of(answer.code)}")
        if answer.code != Code.NONE:
            raise BrokerRefused(
                f"Cannot list groups: {pool.name(node)} says {Code.name_of(answer.code)}.",
                hint="The broker's log says more.",
            )
        found |= {group.group_id: group for group in answer.groups}
    return found

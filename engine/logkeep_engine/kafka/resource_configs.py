"""Configurations of groups and of client metrics (KIP-714), asked for and set.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1. Any broker answers: it
passes on what the controller must do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from logkeep_engine.kafka.admin import Admin
from logkeep_engine.kafka.codes import RETRIABLE, Code
from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_array, pack_string, pack_uvarint
from logkeep_engine.kafka.group_list import listed_groups
from logkeep_engine.kafka.retry import BrokerTrouble
from logkeep_engine.kafka.survey import Survey, in_parts
from logkeep_engine.kafka.users import Known, SetRefused

GROUP, CLIENT_METRICS = "GROUP", "CLIENT_METRICS"

_TYPES = {CLIENT_METRICS: 16, GROUP: 32}
_NAMES = {number: name for name, number in _TYPES.items()}
_OWN = {CLIENT_METRICS: 7, GROUP: 8}
"""The number of the source of a value that was set on the resource itself."""
_LIST, _DESCRIBE, _ALTER = 74, 32, 44
_OF_METRICS, _OF_ALL = 0, 1  # versions of the request to list resources
_SET = 0
_A_REQUEST = 500
_SECONDS = 30.0
_SHOWN = 3


class ResourceConfig(NamedTuple):
    """A value that was set on a group or on a subscription of client metrics, in Kafka's words."""

    resource: str
    name: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value} of {_WORDS.get(self.resource, self.resource)} {self.name!r}"


_WORDS = {GROUP: "group", CLIENT_METRICS: "client metrics"}
Resource = tuple[str, str]
"""The resource and its name."""


@dataclass(frozen=True, slots=True)
class ListedConfigs:
    """The resources with a configuration, or the protocol's error code."""

    throttle_ms: int
    code: int
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class DescribedConfigs:
    """The values that were set on each resource itself, and the error codes of those that are not told."""

    throttle_ms: int
    configs: tuple[ResourceConfig, ...]
    codes: Mapping[Resource, int]


@dataclass(frozen=True, slots=True)
class AlteredConfigs:
    """The code and the reason of each resource that was to be changed."""

    throttle_ms: int
    results: Mapping[Resource, tuple[int, str]]


def list_resources(version: int = _OF_ALL) -> Call[ListedConfigs]:
    """All groups and client metrics that have a configuration; in version 0 client metrics only. Needs the ACL
    DESCRIBE_CONFIGS on the cluster."""

    def resource(read: Reader) -> Resource:
        name = read.compact_string()
        kind = read.int8() if version >= _OF_ALL else _TYPES[CLIENT_METRICS]
        read.tags()
        return _NAMES.get(kind, str(kind)), name

    def answer(read: Reader) -> ListedConfigs:
        throttle, code = read.int32(), read.int16()
        return ListedConfigs(throttle, code, tuple(read.compact_array(lambda: resource(read))))

    kinds = bytes(_TYPES.values())
    body = pack_uvarint(len(kinds) + 1) + kinds if version >= _OF_ALL else b""
    return Call(_LIST, version, (body + NO_TAGS,), answer, flexible=True)


def describe_resources(wanted: Iterable[Resource]) -> Call[DescribedConfigs]:
    """The configurations of these. Needs the ACL DESCRIBE_CONFIGS on each group, and for client metrics on the
    cluster."""
    every_key = struct.pack(">i", -1)
    rows = [struct.pack(">b", _TYPES[kind]) + pack_string(name) + every_key for kind, name in wanted]

    def entry(read: Reader, resource: Resource) -> ResourceConfig | None:
        key, value = read.string(), read.nullable_string()
        read.int8()
        source = read.int8()
        read.int8()
        read.array(lambda: (read.string(), read.nullable_string(), read.int8()))
        own = value is not None and source == _OWN.get(resource[0])
        return ResourceConfig(*resource, key, value or "") if own else None

    def answer(read: Reader) -> DescribedConfigs:
        throttle, codes, found = read.int32(), dict[Resource, int](), list[ResourceConfig]()

        def one() -> None:
            code = read.int16()
            read.nullable_string()
            kind, name = read.int8(), read.string()
            resource = _NAMES.get(kind, str(kind)), name
            entries = read.array(lambda: entry(read, resource))
            if code != Code.NONE:
                codes[resource] = code
            found.extend(item for item in entries if item is not None)

        read.array(one)
        return DescribedConfigs(throttle, tuple(found), codes)

    return Call(_DESCRIBE, 1, (pack_array(rows) + b"\x00",), answer)


def alter_resources(configs: Sequence[ResourceConfig], *, only_check: bool) -> Call[AlteredConfigs]:
    """Set these values; others stay. Needs the ACL ALTER_CONFIGS on each group, and for client metrics on the cluster.
    `only_check`: nothing is changed, and the answer is the same."""
    rows = [
        struct.pack(">b", _TYPES[kind])
        + pack_string(name)
        + pack_array(pack_string(item.key) + struct.pack(">b", _SET) + pack_string(item.value) for item in items)
        for (kind, name), items in _by_resource(configs)
    ]

    def one(read: Reader) -> tuple[Resource, tuple[int, str]]:
        result = read.int16(), read.string()
        kind, name = read.int8(), read.string()
        return (_NAMES.get(kind, str(kind)), name), result

    def answer(read: Reader) -> AlteredConfigs:
        return AlteredConfigs(read.int32(), dict(read.array(lambda: one(read))))

    return Call(_ALTER, 0, (pack_array(rows) + bytes([only_check]),), answer)


def _by_resource(configs: Iterable[ResourceConfig]) -> list[tuple[Resource, list[ResourceConfig]]]:
    return [(key, list(found)) for key, found in groupby(sorted(configs), key=lambda item: (item.resource, item.name))]


class ConfigAdmin(Admin):
    """Questions and orders about configurations of groups and client metrics."""

    def resource_configs(self) -> Known[ResourceConfig]:
        """All values that were set on groups and on client metrics. `reason` says which the cluster does not tell.

        Before Kafka 4.1 only the groups that exist are asked for: brokers do not list others with a configuration.
        """

        async def ask(survey: Survey) -> Known[ResourceConfig]:
            node = survey.pool.any_node()
            version = min(_OF_ALL, await survey.pool.version(node, _LIST))
            if version < _OF_METRICS:
                return Known(())  # brokers before 3.7 have neither
            listed = await survey.pool.ask(node, list_resources(version), _SECONDS)
            if listed.code in RETRIABLE:
                raise BrokerTrouble(f"{survey.pool.name(node)} says {Code.name_of(listed.code)}")
            if listed.code != Code.NONE:
                return Known(None, Code.name_of(listed.code))
            wanted = [item for item in listed.resources if item[0] in _TYPES]
            if version < _OF_ALL:
                wanted += [(GROUP, name) for name in await listed_groups(survey.pool)]
            return await _described(survey, node, sorted(set(wanted)), old=version < _OF_ALL)

        return self._ask(ask, "read configurations of groups and client metrics")

    def set_resource_configs(
        self, configs: Sequence[ResourceConfig], *, only_check: bool = False
    ) -> list[SetRefused[ResourceConfig]]:
        """Set these values; returns those that the cluster does not take, or this user may not set. Safe to repeat.
        `only_check`: nothing is set."""
        refused: list[SetRefused[ResourceConfig]] = []
        for part in in_parts(_by_resource(configs), _A_REQUEST):
            if not only_check:
                self._permit()
            results = self._altered([item for _, items in part for item in items], only_check=only_check)
            for resource, items in part:
                code, reason = results.get(resource, (int(Code.UNKNOWN_SERVER_ERROR), "the broker gave no answer"))
                if code == Code.NONE:
                    if not only_check:
                        self.note_change()
                elif len(items) == 1:
                    refused.append(SetRefused(items[0], _told(code, reason)))
                else:  # the cluster takes all values of a resource or none
                    for item in items:
                        refused += self.set_resource_configs([item], only_check=only_check)
        return refused

    def _altered(self, configs: Sequence[ResourceConfig], *, only_check: bool) -> Mapping[Resource, tuple[int, str]]:
        async def ask(survey: Survey) -> Mapping[Resource, tuple[int, str]]:
            node = survey.pool.any_node()
            answer = await survey.pool.send(node, 0, alter_resources(configs, only_check=only_check))
            for code, reason in answer.results.values():
                if (code in RETRIABLE and survey.time_left()) or code == Code.NOT_CONTROLLER:
                    raise BrokerTrouble(f"{survey.pool.name(node)} says {_told(code, reason)}")
            return answer.results

        return self._ask(ask, "set configurations of groups and client metrics")


async def _described(survey: Survey, node: int, wanted: Sequence[Resource], *, old: bool) -> Known[ResourceConfig]:
    """`old`: brokers that may know no configurations of groups."""
    found: list[ResourceConfig] = []
    hidden: dict[Resource, int] = {}
    for part in in_parts(wanted, _A_REQUEST):
        answer = await survey.pool.ask(node, describe_resources(part), _SECONDS)
        for code in answer.codes.values():
            if code in RETRIABLE and survey.time_left():
                raise BrokerTrouble(f"{survey.pool.name(node)} says {Code.name_of(code)}")
        found += answer.configs
        hidden |= answer.codes
    if old:
        hidden = {item: code for item, code in hidden.items() if code != Code.INVALID_REQUEST}
    if not hidden:
        return Known(tuple(found))
    shown = ", ".join(f"{_WORDS[kind]} {name!r}" for kind, name in list(hidden)[:_SHOWN])
    more = f" and {len(hidden) - _SHOWN} more" if len(hidden) > _SHOWN else ""
    codes = ", ".join(sorted({Code.name_of(code) for code in hidden.values()}))
    return Known(tuple(found), f"{codes} for {shown}{more}")


def _told(code: int, reason: str) -> str:
    return f"{Code.name_of(code)}: {reason}" if reason else Code.name_of(code)

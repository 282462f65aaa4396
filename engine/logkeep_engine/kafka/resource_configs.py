"""Configurations of groups and of client metrics (KIP-714), asked for and set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from logkeep_engine.kafka.admin import Admin
from logkeep_engine.kafka.codes import RETRIABLE, Code
from logkeep_engine.kafka.configs import (
    CLIENT_METRICS,
    GROUP,
    LIST,
    OF_ALL,
    OF_METRICS,
    Resource,
    describe_configs,
    list_resources,
)
from logkeep_engine.kafka.group_list import listed_groups
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.survey import Survey, in_parts
from logkeep_engine.kafka.users import Known, SetRefused

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


def _by_resource(configs: Iterable[ResourceConfig]) -> list[tuple[Resource, list[ResourceConfig]]]:
    return [(key, list(found)) for key, found in groupby(sorted(configs), key=lambda item: (item.resource, item.name))]


class ConfigAdmin(Admin):
    """Questions and orders about configurations of groups and client metrics."""

    def resource_configs(self) -> Known[ResourceConfig]:
        """Return all values that were set on groups and on client metrics. `reason` says which the cluster does not
        report.

        Before Kafka 4.1 only the groups that exist are asked for: brokers do not list others with a configuration.
        """

        async def ask(survey: Survey) -> Known[ResourceConfig]:
            node = survey.pool.any_node()
            version = min(OF_ALL, await survey.pool.version(node, LIST))
            if version < OF_METRICS:
                return Known(())  # brokers before 3.7 have neither
            listed = await survey.pool.ask(node, list_resources(version), _SECONDS)
            if listed.code in RETRIABLE:
                raise RetriableError(f"{survey.pool.name(node)} says {Code.name_of(listed.code)}")
            if listed.code != Code.NONE:
                return Known(None, Code.name_of(listed.code))
            wanted = [item for item in listed.resources if item[0] in _WORDS]
            if version < OF_ALL:
                wanted += [(GROUP, name) for name in await listed_groups(survey.pool)]
            return await _described(survey, node, sorted(set(wanted)), old=version < OF_ALL)

        return self._ask(ask, "read configurations of groups and client metrics")

    def set_resource_configs(
        self, configs: Sequence[ResourceConfig], *, only_check: bool = False
    ) -> list[SetRefused[ResourceConfig]]:
        """Set these values; returns those that the cluster does not take, or this user may not set. Safe to repeat.
        `only_check`: nothing is set."""
        refused: list[SetRefused[ResourceConfig]] = []
        for part in in_parts(_by_resource(configs), _A_REQUEST):
            wanted = [(resource, {item.key: item.value for item in items}) for resource, items in part]
            results = self._alter(wanted, "set configurations of groups and client metrics", only_check=only_check)
            for resource, items in part:
                code, reason = results.get(resource, (int(Code.UNKNOWN_SERVER_ERROR), "the broker did not answer"))
                if code == Code.NONE:
                    if not only_check:
                        self.note_change()
                elif len(items) == 1:
                    refused.append(SetRefused(items[0], Code.describe(code, reason)))
                else:  # the cluster takes all values of a resource or none
                    for item in items:
                        refused += self.set_resource_configs([item], only_check=only_check)
        return refused


async def _described(survey: Survey, node: int, wanted: Sequence[Resource], *, old: bool) -> Known[ResourceConfig]:
    """`old`: brokers that may know no configurations of groups."""
    found: list[ResourceConfig] = []
    hidden: dict[Resource, int] = {}
    for part in in_parts(wanted, _A_REQUEST):
        answer = await survey.pool.ask(node, describe_configs(part), _SECONDS)
        for code, reason in answer.refused.values():
            if code in RETRIABLE and survey.time_left():
                raise RetriableError(f"{survey.pool.name(node)} says {Code.describe(code, reason)}")
        for resource, entries in answer.entries.items():
            own = ((key, entry.value) for key, entry in entries.items() if entry.own)
            found += [ResourceConfig(*resource, key, value) for key, value in own if value is not None]
        hidden |= {resource: code for resource, (code, _) in answer.refused.items()}
    if old:
        hidden = {item: code for item, code in hidden.items() if code != Code.INVALID_REQUEST}
    if not hidden:
        return Known(tuple(found))
    shown = ", ".join(f"{_WORDS[kind]} {name!r}" for kind, name in list(hidden)[:_SHOWN])
    more = f" and {len(hidden) - _SHOWN} more" if len(hidden) > _SHOWN else ""
    codes = ", ".join(sorted({Code.name_of(code) for code in hidden.values()}))
    return Known(tuple(found), f"{codes} for {shown}{more}")

"""The configuration a topic really has, defaults of the brokers included."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from logkeep_engine.kafka.configs import ConfigEntry
from logkeep_engine.kafka.control import ControlPlane

_PATIENCE = 15.0
_PAUSE = 0.1


def effective_topic_configs(control: ControlPlane, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return every configuration of each topic by name; topics that are gone are absent.

    Needs the ACL DESCRIBE_CONFIGS on the topics. Raises BrokerUnavailable, BrokerRefused.
    """
    return {topic: _values(entries) for topic, entries in control.config_entries(names)}


def applied_topic_configs(
    control: ControlPlane, wanted: Mapping[str, Mapping[str, str | None]], *, patience: float = _PATIENCE
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return every configuration of each topic as soon as brokers answer with what was set; and the topics, sorted, for
    which they still answer otherwise after `patience` seconds.

    `wanted` has, by topic, the values that were set on the topic itself, and None for what was taken back to the
    default. The controller takes a change, and brokers answer from their own copy of the metadata, which follows a
    moment later. Topics that are gone are absent from both.

    Needs the ACL DESCRIBE_CONFIGS on the topics. Raises BrokerUnavailable, BrokerRefused.
    """
    found: dict[str, dict[str, str]] = {}
    waiting = set(wanted)
    deadline = time.monotonic() + patience
    while True:
        late = set()
        for topic, entries in control.config_entries(waiting):
            found[topic] = _values(entries)
            own = {name: entry.value for name, entry in entries.items() if entry.own}
            if any(own.get(name) != value for name, value in wanted[topic].items()):
                late.add(topic)
        if not late or time.monotonic() > deadline:
            return found, sorted(late)
        waiting = late
        time.sleep(_PAUSE)


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}

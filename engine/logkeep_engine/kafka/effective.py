"""The configuration a topic really has, defaults of the brokers included."""

from __future__ import annotations

from collections.abc import Iterable

from logkeep_engine.kafka.control import ControlPlane


def effective_topic_configs(control: ControlPlane, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Every configuration of each topic by name; topics that are gone are absent.

    Needs the ACL DESCRIBE_CONFIGS on the topics. Raises BrokerUnavailable, BrokerRefused.
    """
    return {
        topic: {name: entry.value for name, entry in entries.items() if entry.value is not None}
        for topic, entries in control.config_entries(names)
    }

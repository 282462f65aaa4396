"""The configuration a topic really has, defaults of the brokers included."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import ConfigResource, ResourceType

from logkeep_engine.kafka.control import ControlPlane

_TOPICS_A_REQUEST = 500


def effective_topic_configs(control: ControlPlane, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Every configuration of each topic by name; topics that are gone are absent.

    Needs the ACL DESCRIBE_CONFIGS on the topics. Raises BrokerUnavailable, BrokerRefused.
    """
    control._connect()
    wanted = sorted(set(names))
    configs: dict[str, dict[str, str]] = {}
    for start in range(0, len(wanted), _TOPICS_A_REQUEST):
        answers = control._each(
            lambda part: control._admin.describe_configs(part, request_timeout=control._timeout),
            [ConfigResource(ResourceType.TOPIC, name) for name in wanted[start : start + _TOPICS_A_REQUEST]],
            lambda resource: f"read the configuration of topic {resource.name!r} (ACL DESCRIBE_CONFIGS)",
        )
        for resource, entries in answers.items():
            configs[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    return configs

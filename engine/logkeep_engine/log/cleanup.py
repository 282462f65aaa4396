"""Tells what a topic's configuration says of its cleaning. Whoever asks whether a topic is compacted asks here."""

from __future__ import annotations

from collections.abc import Mapping

POLICY = "cleanup.policy"
_DELETE = "delete"
_COMPACT = "compact"
_DAY_MS = 86_400_000  # the brokers' default of `delete.retention.ms`


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether a topic with this configuration is compacted, whatever else is done with its records."""
    return _COMPACT in _policies(configs)


def is_deleted(configs: Mapping[str, str]) -> bool:
    """Whether Kafka deletes old records of a topic with this configuration."""
    return _DELETE in _policies(configs)


def delete_retention(configs: Mapping[str, str]) -> int:
    """How long tombstones of a topic stay (ms), as far as the topic itself says so."""
    text = configs.get("delete.retention.ms", "")
    return int(text) if text.isdecimal() else _DAY_MS


def _policies(configs: Mapping[str, str]) -> set[str]:
    return {word.strip() for word in configs.get(POLICY, _DELETE).split(",")}

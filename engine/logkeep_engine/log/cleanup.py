"""Tells what a topic's configuration says of its cleaning. This is the place to ask whether a topic is compacted, or
how long it keeps its records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

POLICY, RETENTION_MS, RETENTION_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
RETENTION_KEYS = (POLICY, RETENTION_MS, RETENTION_BYTES)
"""The keys of a topic's configuration that say which of its records Kafka deletes."""
BROKER_RETENTION_KEYS = (
    *("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    *("log.retention.bytes", "log.cleanup.policy"),
)
"""The keys of a broker's configuration that say what topics have of RETENTION_KEYS by default."""
# the finest first: `topic_defaults` takes the first that is set
_MS_OF = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
_DELETE = "delete"
_COMPACT = "compact"
_DAY_MS = 86_400_000  # the brokers' default of `delete.retention.ms`


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How long and how much a cluster keeps of a topic's logs; None: no limit."""

    ms: int | None = None
    bytes: int | None = None


NO_LIMITS = LogLimits()


def limits_of(values: Mapping[str, str]) -> LogLimits | None:
    """Return the limits in the whole configuration of a topic. None if they are not there: brokers report them all, or
    none."""
    if not is_deleted(values):
        return NO_LIMITS
    try:
        ms, size = int(values[RETENTION_MS]), int(values[RETENTION_BYTES])
    except (KeyError, ValueError):
        return None
    return LogLimits(ms if ms >= 0 else None, size if size >= 0 else None)


def topic_defaults(brokers: Mapping[str, str]) -> dict[str, str]:
    """Return the values of RETENTION_KEYS that a topic has unless they were set on the topic itself, by the
    configuration of the brokers. Keys that do not follow from it are absent.

    Of the three keys for the time the finest one that is set counts, and any time below 0 stands for no limit.
    """
    found = {}
    if (policy := brokers.get("log.cleanup.policy")) is not None:
        found[POLICY] = policy
    times = [_number(brokers[key], unit) for key, unit in _MS_OF.items() if key in brokers]
    found |= {RETENTION_MS: times[0]} if times and times[0] else {}
    size = _number(brokers.get("log.retention.bytes", ""), 1)
    return found | ({RETENTION_BYTES: size} if size else {})


def least_kept(brokers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the same by the configurations of all brokers: for each key the value that deletes the most. Each broker
    goes by its own."""
    found: dict[str, str] = {}
    for one in brokers:
        for key, value in topic_defaults(one).items():
            found[key] = min(found.get(key, value), value, key=_kept)
    return found


def _kept(value: str) -> float:
    """Return how much a limit keeps, or a policy: less than any limit if it deletes, else all."""
    if value.lstrip("-").isdecimal():
        return float(value) if int(value) >= 0 else math.inf
    return -1 if is_deleted({POLICY: value}) else math.inf


def _number(text: str, unit: int) -> str:
    """Return the number of this many units, -1 for any below 0. Empty for a text that is not a number."""
    try:
        return str(max(-1, int(text) * unit))
    except ValueError:
        return ""


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Return whether a topic with this configuration is compacted, whatever else is done with its records."""
    return _COMPACT in _policies(configs)


def is_deleted(configs: Mapping[str, str]) -> bool:
    """Return whether Kafka deletes old records of a topic with this configuration."""
    return _DELETE in _policies(configs)


def delete_retention(configs: Mapping[str, str]) -> int:
    """Return how long tombstones of a topic stay (ms), as far as the topic itself says so."""
    text = configs.get("delete.retention.ms", "")
    return int(text) if text.isdecimal() else _DAY_MS


def _policies(configs: Mapping[str, str]) -> set[str]:
    # a list: `compact,delete` asks for both (KIP-71)
    return {word.strip() for word in configs.get(POLICY, _DELETE).split(",")}

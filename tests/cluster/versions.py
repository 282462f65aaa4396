"""The versions of Kafka that the test bed runs, and where they differ in what it does with them.

`LOGKEEP_KAFKA=3.9.1 make test-kafka` runs the broker tests on another one.
"""

import os
import re
from collections.abc import Mapping

NEWEST = "4.4.0"
"""All tests run it unless they are told otherwise. Tools that read a broker's files are of this version, too: they
read what older ones have written."""

OLDEST = "2.8.2"
"""The oldest that backups are promised to work with."""

TIERED = "4.3.1"
"""The newest whose test classes are published whole: a remote store in a folder is one of them."""

BESIDES = (OLDEST, "3.9.1", "4.2.1")
"""Tests run these besides the newest."""

OLDEST_TARGET = "3.6"
"""The oldest that restores are promised to work with."""

_MOVED = {
    "ConfigCommand": ("4.4", "kafka.admin", "org.apache.kafka.tools"),
    "DumpLogSegments": ("4.3", "kafka.tools", "org.apache.kafka.tools"),
}


def at_least(version: str, other: str) -> bool:
    """Whether a version is this one or a newer one."""
    return _numbers(version) >= _numbers(other)


def _numbers(version: str) -> list[int]:
    if not re.fullmatch(r"\d+(\.\d+)+", version):
        raise ValueError(f"{version!r} is not a version of Kafka such as {NEWEST} (LOGKEEP_KAFKA)")
    return [int(part) for part in version.split(".")]


def has_kraft(version: str) -> bool:
    """Whether its brokers do all of their work without ZooKeeper."""
    return at_least(version, "3.3")


def chosen(environment: Mapping[str, str]) -> str:
    """The version that tests run by default. Raises ValueError for one that only `OldBroker` runs."""
    version = environment.get("LOGKEEP_KAFKA") or NEWEST
    if not has_kraft(version):
        raise ValueError(f"LOGKEEP_KAFKA={version}: Kafka before 3.3 needs ZooKeeper, and only a few tests have one")
    return version


DEFAULT = chosen(os.environ)

OTHERS = tuple(version for version in BESIDES if has_kraft(version))
"""`make test-deep` runs all tests with a broker on each of them, too."""

KNOWN = tuple(dict.fromkeys((NEWEST, DEFAULT, TIERED, *BESIDES)))

PAIRS = (
    *((version, NEWEST) for version in BESIDES),
    *((NEWEST, version) for version in BESIDES if at_least(version, OLDEST_TARGET)),
)
"""Tests bring topics from the first version of each pair to the second, which restores are promised to work with."""


def runs_on_new_java(version: str) -> bool:
    """Whether it runs on a Java that has no security manager any more: 24 or newer."""
    return at_least(version, "4.0")


def authorizer(version: str) -> str:
    """The class with which its brokers keep ACLs."""
    if has_kraft(version):
        return "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return "kafka.security.authorizer.AclAuthorizer"


def main_class(tool: str, version: str) -> str:
    """The class of one of Kafka's tools that has moved."""
    since, before, after = _MOVED[tool]
    return f"{after if at_least(version, since) else before}.{tool}"


if __name__ == "__main__":
    print(*OTHERS)

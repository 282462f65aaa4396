"""The topics that planning has seen, or has found missing, and that the plan does not archive. Pure.

They are stored in the run's plan, so that a run that is started again reports the same about the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.backup.model.selection import Chooser
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.contract.spec import Topics
from logkeep_engine.kafka.topics import TopicInfo

# A dot matches any character, but a user who writes orders.v1 means the topic of this name.
_LITERAL = re.compile(r"(?:[A-Za-z0-9._-]|\\[._-])+")


@dataclass(frozen=True, slots=True)
class Names:
    """A number of topics, with the names of the first ones."""

    total: int = 0
    shown: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        found = sorted(set(names))
        return cls(len(found), tuple(found[:MAX_LIST]))

    def __str__(self) -> str:
        more = f" and {self.total - len(self.shown)} more" if self.total > len(self.shown) else ""
        return ", ".join(map(repr, self.shown)) + more


NO_NAMES = Names()


@dataclass(frozen=True, slots=True)
class UnselectedTopics:
    """The topics that a plan does not archive. The cluster has the `left_out` ones, and nothing chooses them. The
    archive holds records of the `vanished` ones, and every broker says that they are gone. Brokers do not let the user
    read the `unreadable` ones.
    """

    left_out: Names = NO_NAMES
    vanished: Names = NO_NAMES
    unreadable: Names = NO_NAMES

    def to_json(self) -> dict[str, Any]:
        parts = {"leftOut": self.left_out, "vanished": self.vanished, "unreadable": self.unreadable}
        return {key: [names.total, list(names.shown)] for key, names in parts.items()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> UnselectedTopics:
        """Return the topics in a stored plan."""
        parts = {key: Names(total, tuple(shown)) for key, (total, shown) in document.items()}
        return cls(parts["leftOut"], parts["vanished"], parts["unreadable"])


NOTHING_MISSED = UnselectedTopics()


def literal(pattern: str) -> str | None:
    """Return the topic name that a pattern without wildcards stands for; None for another pattern."""
    return pattern.replace("\\", "") if _LITERAL.fullmatch(pattern) else None


def left_out(found: Iterable[TopicInfo], chosen: Collection[str], wanted: Topics) -> Names:
    """Return the topics of the cluster that are not chosen, without Kafka's own unless patterns may choose these."""
    chooser = Chooser(wanted)
    return Names.of(
        topic.name
        for topic in found
        if topic.name not in chosen and chooser.may_choose(topic.name, internal=topic.internal)
    )


def missed(include: Sequence[str], exclude: Sequence[str], chosen: Collection[str]) -> list[str]:
    """Return the names that patterns without wildcards ask for, and that no broker lists."""
    names = {name for pattern in include if (name := literal(pattern)) is not None}
    patterns = NamePatterns(include, exclude)
    return sorted(name for name in names if name not in chosen and not patterns.excludes(name))

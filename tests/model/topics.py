"""The topics of the model's cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import TopicEntry

_LETTERS = {"orders": "abcdef", "notes": "ghijkl"}
"""The names of topics, and the letters of which the ids of their incarnations are made, in their order."""
NAMES = tuple(_LETTERS)


@dataclass
class Topic:
    """A topic as the cluster has it. `policies` are all that runs have seen, `features` what has happened to it in the
    archive, by which refusals are judged."""

    name: str
    policy: str
    incarnation: int = 0
    partitions: int = 1
    policies: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all incarnations that it has, or may have."""
        return tuple(letter * 21 + "A" for letter in _LETTERS[self.name])

    @property
    def topic_id(self) -> str:
        """The id of the newest incarnation."""
        return self.ids[self.incarnation]

    def seen(self) -> TopicEntry:
        """The topic as a run sees it, and the archive knows it."""
        self.policies.add(self.policy)
        return self.entry

    @property
    def entry(self) -> TopicEntry:
        """The topic as the archive knows it."""
        configs = {"cleanup.policy": self.policy, "delete.retention.ms": "0"}
        return TopicEntry(self.name, self.topic_id, self.partitions, 1, configs)

    @property
    def has_states(self) -> bool:
        """Whether its last values count, since it was compacted once, and not each of its records."""
        return self.policies != {"delete"}

    def had(self) -> set[str]:
        """The things that have happened to it."""
        both = ["compact and delete"] if self.policies not in ({"compact"}, {"delete"}) else []
        return {*self.features, *both}

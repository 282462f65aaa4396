"""The scope of one attempt of a drill: what it restores, and the names of its topics."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.model import replace
from logkeep_engine.log.varints import INT64_MAX
from logkeep_engine.restore.model.drill_cycle import DrillCycle, DrillSample
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.model.topics import MARK_KEY

MAX_NAME = 249  # Kafka's own limit
TOKEN_DIGITS = 12


@dataclass
class DrillScope:
    """The scope of one attempt. `token` is random, 12 hexadecimal digits: no two attempts have topics of one name.
    `owner` is the resource whose drill it is. With a `cycle` only some partitions are restored: `sample` has them when
    the drill is planned, and `cold_segments` the number of segments that it leaves out."""

    prefix: str
    token: str
    cycle: DrillCycle | None = None
    sample: DrillSample | None = field(default=None, compare=False)
    owner: str = field(default="", compare=False)
    cold_segments: int = field(default=0, compare=False)

    @property
    def beginning(self) -> str:
        """How the names of all topics of the attempt begin."""
        return f"{self.prefix}{self.token}-"

    @property
    def mark(self) -> dict[str, str]:
        """The configuration by which a topic shows that this attempt of its owner has created it, until it is deleted.
        Records of any time are taken."""
        digest = hashlib.sha256("\0".join((self.owner, self.token)).encode()).hexdigest()
        return {MARK_KEY: str(INT64_MAX - 1 - int(digest[:TOKEN_DIGITS], 16))}

    def narrowed(self, archived: ArchiveState, choices: Sequence[Choice]) -> tuple[ArchiveState, tuple[Choice, ...]]:
        """Choose the sample. Returns the archive without what this drill does not restore, and the topics with the
        names that they have in the drill, in the order of these."""
        if self.cycle is not None:
            keys = [
                key for key in _partitions(choices) if any(entry.records for entry in archived.segments.get(key, ()))
            ]
            self.sample = self.cycle.sample(keys)
            chosen = self.sample.chosen
            if chosen:
                archived = archived.without({key for key in _partitions(choices) if key not in chosen})
                topics = {topic_id for topic_id, _ in chosen}
                choices = [choice for choice in choices if choice.source.topic_id in topics]
        found = (replace(choice, target=self._name(choice.source.name)) for choice in choices)
        return archived, tuple(sorted(found, key=lambda choice: choice.target))

    def _name(self, source: str) -> str:
        name = self.beginning + source
        if len(name) <= MAX_NAME:
            return name
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        return f"{name[: MAX_NAME - len(digest) - 1]}-{digest}"


def _partitions(choices: Sequence[Choice]) -> list[Partition]:
    return [(choice.source.topic_id, partition) for choice in choices for partition in range(choice.source.partitions)]

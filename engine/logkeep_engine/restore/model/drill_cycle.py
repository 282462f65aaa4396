"""Sampled drills (`drill.share`): which partitions a drill takes, so that all have been drilled after some runs.

A cycle has a permutation of the partitions, which follows from the name of the resource and the number of the cycle. A
drill takes the first partitions of it that were not drilled well in this cycle. So each is drilled once in a cycle,
also one that is archived only since it began; and a part that has failed is taken again by the next run, until it is
good. When none is left, the next cycle begins, with another permutation.

`runs/of-<digest>/drill-cycle.json` keeps what was drilled, in place of the state. It is written when a drill has
verified its part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.names import run_file
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.storage import Storage
from logkeep_engine.stored import reading

_CYCLE = StoredDocument("cycle of drills", 1, {"resource": str, "cycle": int, "done": [(str, int)]})
_FILE = "drill-cycle.json"


@dataclass(frozen=True)
class DrillSample:
    """The partitions of one drill, out of `total`. `cycle` is the number of their cycle."""

    chosen: frozenset[Partition]
    total: int
    cycle: int


@dataclass(frozen=True)
class DrillCycle:
    """The cycle of the drills of `resource`, which take the `share` of all partitions each, between 0 and 1."""

    resource: str
    archive_id: str
    share: float
    number: int = 1
    done: frozenset[Partition] = frozenset()

    @property
    def path(self) -> str:
        """The object that keeps the cycle."""
        digest = hashlib.sha256("\0".join(("drill", self.resource, self.archive_id)).encode()).hexdigest()
        return run_file(f"of-{digest[:32]}", _FILE)

    def part(self, total: int) -> int:
        """Return how many partitions a drill takes."""
        return max(1, math.ceil(total * self.share - 1e-9))

    def runs(self, total: int) -> int:
        """After how many runs all partitions were drilled."""
        return math.ceil(total / self.part(total))

    def sample(self, partitions: Sequence[Partition]) -> DrillSample:
        """Return the partitions of the next drill."""
        cycle = self if any(key not in self.done for key in partitions) else self.following()
        left = sorted((key for key in partitions if key not in cycle.done), key=cycle._rank)
        return DrillSample(frozenset(left[: self.part(len(partitions))]), len(partitions), cycle.number)

    def following(self) -> DrillCycle:
        """Return the next cycle, of which nothing is drilled."""
        return replace(self, number=self.number + 1, done=frozenset())

    def after(self, sample: DrillSample) -> DrillCycle:
        """Return the cycle after a drill of these partitions that was good."""
        cycle = self if sample.cycle == self.number else self.following()
        return replace(cycle, done=cycle.done | sample.chosen)

    def _rank(self, key: Partition) -> bytes:
        text = "\0".join((self.resource, self.archive_id, str(self.number), key[0], str(key[1])))
        return hashlib.sha256(text.encode()).digest()

    def load(self, storage: Storage) -> DrillCycle:
        """Return the cycle as the last drill has left it. Raises ArchiveMismatch and ArchiveDamaged."""
        try:
            data = storage.read(self.path)
        except ObjectMissing:
            return self
        hint = "The object was altered. Delete it: the drills begin with the first cycle again."
        with reading(_CYCLE, data, f"{storage.uri}/{self.path}", hint=hint) as body:
            done = frozenset((topic_id, partition) for topic_id, partition in body["done"])
            return replace(self, number=body["cycle"], done=done)

    def store(self, storage: Storage) -> None:
        """Keep the cycle for the next drill."""
        done = [list(key) for key in sorted(self.done)]
        storage.put(self.path, _CYCLE.dumps({"resource": self.resource, "cycle": self.number, "done": done}))

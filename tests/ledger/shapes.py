"""The shape of a round's restore: what differs between target and source, and who continues where one was killed.

The seed alone says it, so that rounds with neighbouring seeds have all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.ledger.points import POINTS
from tests.ledger.producers import PARTITIONS

_COUNTS = (5, 2, 7, 1, 4)
_DIVIDED_RATE = "1Mi"  # of some megabytes: most kills come in the middle


@dataclass(frozen=True)
class Shape:
    """`same`: the same offsets. `point`: the kind of point, see `points`. `partitions` are those of the target.
    `everything`: the topic, the group and a quota come back under their names into a cluster that has lost them.
    `resumes`: where a run was killed, another one takes it over."""

    same: bool
    full: bool
    point: str
    partitions: int
    everything: bool
    resumes: bool

    @classmethod
    def of(cls, seed: int, *, full: bool) -> Shape:
        """The shape of a round. `full`: it is verified fully, where that is possible."""
        same, kind = seed % 2 == 1, seed // 2 % len(POINTS)
        divided = not same and (kind in (0, 3)) == (seed // 8 % 2 == 0)
        everything = not divided and seed % 5 in (1, 3)
        return cls(
            same,
            full and not divided,
            "" if everything else POINTS[kind],  # the state of a cluster is that of a run
            _COUNTS[seed // 2 % len(_COUNTS)] if divided else PARTITIONS,
            everything,
            seed % 3 == 0,
        )

    @property
    def divided(self) -> bool:
        """Whether the target has another number of partitions."""
        return self.partitions != PARTITIONS

    def spec(self, topic: str, restored: str, group: str) -> dict[str, Any]:
        """The fields of the resource that say so."""
        rename = [{"from": topic, "to": restored}]
        common = {"offsets": "Same" if self.same else "Any", "verify": "Full" if self.full else "Counts"}
        if self.everything:
            return {**common, "everything": True}
        if self.divided:
            topics = {"rename": rename, "partitionCount": self.partitions, "partitioner": "murmur2"}
            return {**common, "topics": topics, "limits": {"bytesPerSecond": _DIVIDED_RATE}}
        groups = {"restore": "Translate", "include": [group]}
        return {**common, "topics": {"rename": rename}, "consumerGroups": groups}

    def __str__(self) -> str:
        return (
            "the same offsets, " * self.same
            + f"{PARTITIONS} partitions into {self.partitions}, " * self.divided
            + "everything of a cluster, " * self.everything
            + "resumed, " * self.resumes
            + "verified, " * self.full
        )

"""Snapshots of compacted partitions (KIP-630), as facts of commits. No I/O.

A snapshot has of each key the last record below its `end`, which is where the archive of the partition ended when a run
had ended. Its parts are entries of segments, of a layout of their own. Readers get them in place of the segments
below `end` (see `compacted.with_snapshots`); until retention removes these, they stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A snapshot of a partition. `leader_epoch` is that of the last batch below `end`. `time` (ms) is the highest
    timestamp of a record below `end`, of those that were left out, too; NO_TIME if there was none. `parts` are in the
    order of their offsets."""

    topic_id: str
    partition: int
    end: int
    leader_epoch: int
    time: int
    parts: tuple[SegmentEntry, ...]

    def __post_init__(self) -> None:
        where = f"topic id {self.topic_id} partition {self.partition}: snapshot {self.end}"
        if self.partition < 0 or self.end < 1 or self.leader_epoch < 0 or not self.parts:
            raise ValueError(f"{where} of leader epoch {self.leader_epoch} with {len(self.parts)} parts")
        for number, part in enumerate(self.parts):
            named = (part.topic_id, part.partition, part.files.end, part.files.leader_epoch, part.files.part)
            if part.layout is not Layout.SNAPSHOT or named != (*self.key, self.end, self.leader_epoch, number):
                raise ValueError(f"{where} has another part {number}: {part}")
        if any(before.next_offset > after.base_offset for before, after in pairwise(self.parts)):
            raise ValueError(f"{where} has parts that overlap")
        if self.parts[-1].next_offset > self.end:
            raise ValueError(f"{where} has offsets up to {self.parts[-1].next_offset}")

    @property
    def key(self) -> tuple[str, int]:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True)
class RemovedSnapshot:
    """A snapshot that retention takes out of a line of the partition."""

    topic_id: str
    partition: int
    end: int
    line: int = 0

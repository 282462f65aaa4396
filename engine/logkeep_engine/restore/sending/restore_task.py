"""The work of a restore for one archived partition, as it goes to executors."""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.errors import ObjectMissing
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.model.offset_map import PartitionSummary, stored_summary
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.division.stream import most_bytes
from logkeep_engine.restore.sending.written import TargetPartition, WrittenRecords
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.outgoing_ahead import AHEAD_BYTES
from logkeep_engine.storage import DEFAULT_BLOCK

WINDOW_BYTES = 16 << 20
"""The bytes of batches that were made and are not acknowledged, of all outlets of a divided partition."""

_MEMORY_EACH = 3 * DEFAULT_BLOCK + 4 * AHEAD_BYTES
_MEMORY_LEAST = 1 << 20
# Small records take several times their bytes as objects.
_COPIES_OF_RECORDS = 8
# A large record lies in the block that was read, as an object, in a batch, and compressed.
_COPIES_OF_THE_LARGEST = 5
_MEMORY_OF_RECORDS = 2 * _MEMORY_EACH
_OUTLET_MEMORY = 16 << 10  # without its batches: a window of requests, and the tasks of an event loop
# Batches up to this size, on average, go together with those of other partitions. Larger ones gain nothing by it, and
# the broker writes those of several connections side by side.
_SMALL_BATCH = 64 << 10


@dataclass(frozen=True, slots=True)
class RestoreTask:
    """The work for one archived partition; pickles without secrets. `number` stands for it in progress reports.

    `topic` is the plan of its target, whose `partitions` are those of this archived partition alone: one, or one for
    each partition of the target if the topic is divided. `fresh`: this driver made the plan, so the run has written
    nothing before task attempt 0. `known`: what the driver has found in the target partitions; empty: it has not
    looked.
    """

    number: int
    archived: ArchivedPartition
    topic: TopicPlan
    state: RestoreState
    connection: KafkaConnection
    fresh: bool
    known: tuple[WrittenRecords, ...] = ()

    @property
    def part(self) -> PartitionPlan:
        """Return the plan of the partition, if the topic is not divided."""
        return self.topic.partitions[0]

    @property
    def where(self) -> str:
        """Return the target, for messages."""
        if self.topic.divided:
            return (
                f"topic {self.topic.target!r}, what comes from partition {self.part.partition} of {self.topic.source!r}"
            )
        return f"topic {self.topic.target!r} partition {self.part.target}"

    @property
    def map_path(self) -> str:
        """Return the path of the offset map."""
        return self.state.map_path(self.topic.target, self.topic.number_of(self.part))

    def target_of(self, part: PartitionPlan) -> TargetPartition:
        """Return the partition to which one of the outlets writes."""
        topic = self.topic
        return TargetPartition(
            topic.target, part.target, part.producer_id, part.start, topic.created, topic.compacts, topic.divided
        )

    def finished(self) -> PartitionSummary | None:
        """Read the summary of the partition, if an earlier attempt has finished it."""
        try:
            return stored_summary(self.state.storage, self.map_path)
        except ObjectMissing:
            return None

    @property
    def small(self) -> bool:
        """Whether batches go together with those of other partitions, since the archived ones are small on average. It
        follows from the plan, as `produce_many` expects it."""
        if self.topic.divided or self.archived.batching is not None:
            return False
        return self.archived.bytes <= _SMALL_BATCH * sum(segment.batches for segment in self.archived.segments)

    @property
    def memory(self) -> int:
        """Return about how many bytes it takes."""
        archived, size = self.archived, self.archived.bytes
        if archived.batching is not None:
            largest = max((segment.max_batch_bytes for segment in archived.segments), default=0)
            some = min(_COPIES_OF_RECORDS * size, _MEMORY_OF_RECORDS)
            taken = max(_MEMORY_LEAST, some, _COPIES_OF_THE_LARGEST * largest)
        else:
            taken = max(_MEMORY_LEAST, min(2 * size, _MEMORY_EACH))
        if self.topic.divided:
            outlets = len(self.topic.partitions)
            making = min(outlets * most_bytes(outlets, self.topic.max_batch_bytes), 2 * size)
            taken += making + min(WINDOW_BYTES, size) + outlets * _OUTLET_MEMORY
        return taken

"""The facts of an archived partition that is divided and done.

They lie in `runs/<run id>/divided/<target topic>/<partition>.json`, where other partitions have an offset map. A map
would have nearly a row a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.restore.model.offset_map import PartitionSummary
from logkeep_engine.stored import reading

DIVIDED = StoredDocument(
    "summary of a divided partition",
    1,
    {
        "source": {"topic": str, "topicId": str, "partition": int},
        "target": {"topic": str},
        "records": int,
        "bytes": int,
        "appendTimeRecords": int,
        "abortedRecords": int,
        "pairs": [(int, int, int, int)],  # target partition, records, end, leader epoch
    },
)


@dataclass(frozen=True, slots=True)
class PairSummary:
    """The part of an archived partition that went to the partition `target`: so many `records`, the last of them before
    offset `end`, in a batch of leader epoch `epoch`."""

    target: int
    records: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DividedSummary(PartitionSummary):
    """The facts of an archived partition that was divided. `target_partition` is its own number, and the target offsets
    are 0: `pairs` have them."""

    pairs: tuple[PairSummary, ...] = ()

    def to_json(self) -> bytes:
        source = {
            "topic": self.source_topic,
            "topicId": self.source_topic_id,
            "partition": self.source_partition,
        }
        return DIVIDED.dumps(
            {
                "source": source,
                "target": {"topic": self.target_topic},
                "records": self.records,
                "bytes": self.bytes,
                "appendTimeRecords": self.append_time_records,
                "abortedRecords": self.aborted_records,
                "pairs": [[pair.target, pair.records, pair.end, pair.epoch] for pair in self.pairs],
            }
        )

    @classmethod
    def from_json(cls, data: bytes, name: str) -> DividedSummary:
        """The facts in the object `name`. Raises ArchiveMismatch (another format) or ArchiveDamaged."""
        hint = "The object was altered: begin a new restore under another run id."
        with reading(DIVIDED, data, name, hint=hint) as body:
            source = body["source"]
            return cls(
                source_topic=source["topic"],
                source_topic_id=source["topicId"],
                source_partition=source["partition"],
                target_topic=body["target"]["topic"],
                target_partition=source["partition"],
                records=body["records"],
                bytes=body["bytes"],
                target_start=0,
                target_end=0,
                append_time_records=body["appendTimeRecords"],
                aborted_records=body["abortedRecords"],
                pairs=tuple(PairSummary(*row) for row in body["pairs"]),
            )

"""The part of a backup that is for topics whose `cleanup.policy` contains compact."""

from __future__ import annotations

from logkeep_engine.contract.compacted import CompactedTopics
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import SpecError


def refuse_generations(spec: KafkaBackupSpec) -> None:
    """Raises SpecError for a way of keeping compacted topics that this version does not know yet."""
    if spec.how_compacted is CompactedTopics.GENERATIONS:
        raise SpecError(
            "spec.compactedTopics: this version of Logkeep does not make generations yet",
            hint="Write Snapshot (format Kafka) or Log.",
        )

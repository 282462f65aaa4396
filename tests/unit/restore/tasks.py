"""The work of a restore, as tests of its parts want it."""

from typing import Any

from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.storage import Storage, open_uri

NOWHERE = open_uri("file:///nonexistent")


def task_of(
    storage: Storage = NOWHERE, *segments: Any, plan: dict[str, Any] | None = None, **archived: Any
) -> RestoreTask:
    """A task that brings these segments of the topic `orders` to a created one. `plan` alters the plan of the topic,
    `archived` what is said of the archived partition."""
    topic = {"source": "orders", "topic_id": "", "target": "orders", "created": True, "partition_count": 1}
    topic |= {"replication_factor": 1, "max_batch_bytes": 1 << 20, "partitions": (PartitionPlan(0, 7, 0),)}
    return RestoreTask(
        0,
        ArchivedPartition(storage, "orders", segments, **archived),
        TopicPlan(**{**topic, **(plan or {})}),
        RestoreState(storage, "restore-1"),
        KafkaConnection(("localhost:1",)),
        fresh=True,
    )

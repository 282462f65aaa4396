"""The part of a KafkaRestore that asks for its topics as resources of Strimzi, and what the run reports about them."""

from __future__ import annotations

from enum import StrEnum

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import ResourceName

KEY_TOPICS = "kafka-topics.yaml"
KEY_TOPICS_PACKED = "kafka-topics.yaml.gz"
MAX_TOPICS_BYTES = 900 << 10  # a ConfigMap holds 1 MiB


class Emit(StrEnum):
    """`KafkaTopics`: the topics that the restore creates are written as KafkaTopics of Strimzi, too."""

    NONE = "None"
    KAFKA_TOPICS = "KafkaTopics"


class StrimziVersion(StrEnum):
    """The version of Strimzi's API: 1.0 serves `v1` only, and versions before 0.49 `v1beta2` only."""

    V1 = "v1"
    V1BETA2 = "v1beta2"


class EmitOptions(Model):
    """`strimziCluster`: the Kafka resource to which the KafkaTopics belong. The operator takes both fields from the
    Kafka resource that `cluster.strimzi` names, where they are not set.
    """

    strimzi_cluster: ResourceName | None = None
    """Name of the Kafka resource to which the KafkaTopics belong (label strimzi.io/cluster). By default the one of
    cluster.strimzi."""
    strimzi_api: StrimziVersion | None = None
    """Version of Strimzi's API. By default that of the Kafka resource of cluster.strimzi, else v1. Before Strimzi 0.49
    it is v1beta2."""

    def check(self, emit: Emit, *, strimzi: bool, drill: bool, hold_for: str | None) -> None:
        """Check the fields against the rest of the spec. Raises ValueError. `strimzi`: the cluster is found by a Kafka
        resource. `hold_for` is that of the topics."""
        if emit is Emit.NONE:
            if self != EmitOptions():
                raise ValueError("emitOptions has no effect with emit None; leave it out")
            return
        if drill:
            raise ValueError("emit may only be None with drill, which deletes its topics")
        if hold_for is not None:
            raise ValueError(
                "topics.holdFor may not be given with emit: the KafkaTopics hold the topics, too, and Strimzi's topic "
                "operator would undo the release. Leave it out; change the KafkaTopics when you release"
            )
        if not strimzi and self.strimzi_cluster is None:
            raise ValueError(
                "emitOptions.strimziCluster must be set with emit, unless cluster.strimzi names a Kafka resource"
            )

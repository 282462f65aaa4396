"""Fields about what a cluster has beside topics and groups: its ACLs, client quotas and SCRAM users."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from logkeep_engine.contract.spec import ConsumerGroups, KafkaRestoreSpec, RestoreTopics

SCHEMA_TOPIC = "_schemas"
"""The topic in which Confluent's Schema Registry, and those that do as it does, keep their schemas."""

TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]


class ClusterStateMode(StrEnum):
    """`Archive`: each run archives ACLs, client quotas and names of SCRAM users, as far as its user may see them."""

    ARCHIVE = "Archive"
    IGNORE = "Ignore"


def refuse_contradictions(spec: KafkaRestoreSpec) -> None:
    """Raises ValueError for fields that have no place beside `everything`, or only there."""
    if not spec.everything:
        if spec.schema_topic is not None:
            raise ValueError("schemaTopic may be set only with everything")
        return
    topics, groups, point = spec.topics, spec.consumer_groups, spec.point
    if _chooses(topics) or topics.rename:
        raise ValueError(
            "topics.include, topics.exclude and topics.rename must be left out with everything, which restores all "
            "topics under their names"
        )
    if _chooses(groups):
        raise ValueError(
            "consumerGroups.include and consumerGroups.exclude must be left out with everything, which restores all "
            "groups"
        )
    if spec.if_topic_exists.value == "Append":
        raise ValueError("ifTopicExists may not be Append with everything, which makes all topics anew")
    if spec.drill is not None:
        raise ValueError("drill may not be set with everything, which writes to the cluster itself")
    if point is not None and (point.offsets is not None or point.window is not None):
        raise ValueError(
            "point must be that of a run, or have asOf or timestamp, with everything: the state of a cluster is that "
            "of a run"
        )


def _chooses(patterns: RestoreTopics | ConsumerGroups) -> bool:
    """Whether some are left out."""
    return any(getattr(patterns, name) != type(patterns).model_fields[name].default for name in ("include", "exclude"))

"""Fields about what a cluster has next to topics and groups: its ACLs, client quotas and SCRAM users."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.pattern_lists import Patterns
from logkeep_engine.contract.restored_topics import ConfigPolicy, TopicName
from logkeep_engine.contract.values import TOPIC_NAME

if TYPE_CHECKING:
    from logkeep_engine.contract.restore_spec import KafkaRestoreSpec

SCHEMA_TOPIC = "_schemas"
"""The topic in which Confluent's Schema Registry, and those that do as it does, keep their schemas."""

SchemaTopic = Annotated[TopicName, Field(pattern=TOPIC_NAME)]


class ClusterStateMode(StrEnum):
    """`Archive`: each run archives ACLs, client quotas and names of SCRAM users, as far as its user may see them."""

    ARCHIVE = "Archive"
    IGNORE = "Ignore"


class RestoredAcls(Model):
    """The word of consent to archived ACLs that reach further than one named resource and one user whom the target
    knows: those on the `cluster` itself, on users and on delegation tokens, those on the resource name `*`
    (`any_resource`), those of `User:*` (`any_principal`), and those that allow something to `principals` whom the
    target does not know, by regular expressions that must match the whole principal. All others come back without it.
    """

    cluster: bool = False
    """Whether ACLs on the cluster itself, on users and on delegation tokens come back."""
    any_resource: bool = False
    """Whether ACLs on the resource name * come back."""
    any_principal: bool = False
    """Whether ACLs of the principal User:* come back."""
    principals: Patterns = ()
    """Principals whom the cluster does not know, and who get back what ACLs allow them, by regular expressions that
    must match the whole principal, such as User:app-.*. What ACLs deny to them comes back in any case."""


def refuse_contradictions(spec: KafkaRestoreSpec) -> None:
    """Raises ValueError for fields that have no place next to `everything`, or only there."""
    if not spec.everything:
        if spec.schema_topic is not None:
            raise ValueError("schemaTopic may be set only with everything")
        if spec.acls is not None:
            raise ValueError("acls may be set only with everything")
        return
    topics, groups, point = spec.topics, spec.consumer_groups, spec.point
    if _is_set(topics, "include", "exclude", "rename", "partitions"):
        raise ValueError(
            "topics.include, topics.exclude, topics.rename and topics.partitions must be left out with everything, "
            "which restores all topics completely and under their names"
        )
    if topics.partition_count is not None:
        raise ValueError(
            "topics.partitionCount may not be given with everything, which sets the positions of all consumer groups"
        )
    if topics.configs.policy is not ConfigPolicy.RESTORE:
        raise ValueError(
            "topics.configs.policy may only be Restore with everything, which restores configurations; override and "
            "ignore may name single keys"
        )
    if _is_set(groups, "include", "exclude", "rename"):
        raise ValueError(
            "consumerGroups.include, consumerGroups.exclude and consumerGroups.rename must be left out with "
            "everything, which restores all groups under their names"
        )
    if spec.if_topic_exists.value not in ("Fail", "Resume"):
        raise ValueError(
            "ifTopicExists may only be Fail or Resume with everything, which changes no topic that the cluster has"
        )
    if spec.confirm:
        raise ValueError("confirm has no effect with everything, which replaces no topic; leave it out")
    if spec.drill is not None:
        raise ValueError("drill may not be set with everything, which writes to the cluster itself")
    if point is not None and (point.offsets is not None or point.window is not None):
        raise ValueError(
            "point must be that of a run, or have asOf or timestamp, with everything: the state of a cluster is that "
            "of a run"
        )


def _is_set(part: BaseModel, *names: str) -> bool:
    """Return whether one of the fields is not what it is by default."""
    return any(getattr(part, name) != type(part).model_fields[name].default for name in names)

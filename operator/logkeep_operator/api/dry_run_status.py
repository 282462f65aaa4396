"""The part of a status with the findings of a dry run."""

from __future__ import annotations

from typing import Annotated

from logkeep_engine.contract.facts.values import Count, Listed, OnlyBackup, OnlyRestore, Timestamp, Whole
from logkeep_operator.api.part import StatusPart


class PlannedRefusalStatus(StatusPart):
    """An error with which the run would end before it writes."""

    reason: str = ""
    """The reason in a word, as conditions have it."""
    message: str = ""
    """The problem, and what to do."""


class PlannedTopicStatus(StatusPart):
    """A topic that the run would write. `state` is New, Exists or Replaced, `counts` Exact or AtMost."""

    topic: str = ""
    """Name of the topic in the cluster."""
    source: str | None = None
    """Name of the archived topic."""
    state: str = ""
    """New if the topic would be created, Exists if it is there, Replaced if it would be deleted and created again."""
    partitions: Count = 0
    """Number of partitions."""
    replicas: Whole | None = None
    """Replicas of a topic that would be created, -1 for the cluster's default."""
    records: Count = 0
    """Number of records, or the most there may be."""
    bytes: Count = 0
    """Bytes of record batches, or the most there may be."""
    counts: str = ""
    """Exact or AtMost, as for the sums."""
    config: str | None = None
    """The configuration that a topic would be created with."""


class PlannedGroupStatus(StatusPart):
    """A consumer group that the run would move."""

    group: str = ""
    """Id of the group."""
    positions: Count = 0
    """Number of its positions."""


class PlannedPositionStatus(StatusPart):
    """A position that the run would set. The group would read the record with source offset `record` next, of the time
    `time`; None: there is none."""

    group: str = ""
    """Id of the group, as it would be called in the target."""
    topic: str = ""
    """Name of the topic in the target."""
    partition: Count = 0
    """Number of the partition in the target."""
    source_offset: Count = 0
    """The archived position."""
    record: Count | None = None
    """Source offset of the record that the group would read next, if there is one."""
    time: Timestamp | None = None
    """The time of that record."""
    target_offset: Count = 0
    """The position in the target."""


class PlannedStateStatus(StatusPart):
    """The ACLs, quotas and users that a restore of everything would bring back, and those that the cluster lacks."""

    source_run: str = ""
    """The run of the backup that has archived them."""
    acls: Count | None = None
    """Number of archived ACLs; absent if not archived."""
    acls_to_add: Count | None = None
    """Number of ACLs that the cluster lacks, and that would be added."""
    acls_held_back: Count | None = None
    """Number of ACLs that the cluster lacks, and that spec.acls does not name."""
    quotas: Count | None = None
    """Number of archived values of client quotas; absent if not archived."""
    quotas_to_add: Count | None = None
    """Number of values that the cluster lacks and would take."""
    quotas_kept: Count | None = None
    """Number of values that are others in the cluster, and would stay as they are."""
    users: Count | None = None
    """Number of archived SCRAM users; absent if not archived."""
    users_to_create: Count | None = None
    """Number of SCRAM users that the cluster lacks, to be created with new passwords."""
    acl_list: Listed[str] = ()
    """ACLs that the cluster lacks, and that would be added, at most 20."""
    held_back_list: Listed[str] = ()
    """ACLs that would be held back, since spec.acls does not name them, at most 20."""
    quota_list: Listed[str] = ()
    """Values of client quotas that the cluster lacks, at most 20."""
    user_list: Listed[str] = ()
    """SCRAM users that the cluster lacks, at most 20."""


class PlannedRemovalStatus(StatusPart):
    """The segments and snapshots of a topic that retention would remove, and by which rule."""

    topic: str = ""
    """Name of the topic."""
    why: str = ""
    """The rule, such as maxAge."""
    partitions: Count = 0
    """Number of partitions."""
    segments: Count = 0
    """Number of segments."""
    snapshots: Count = 0
    """Number of snapshots."""
    bytes: Count = 0
    """Bytes of the objects of both."""


class PlannedRetentionStatus(StatusPart):
    """The segments and snapshots that retention would remove. Of `topics_unchosen` it would take nothing."""

    topics: Count = 0
    """Number of topics from which retention would remove something."""
    partitions: Count = 0
    """Number of their partitions."""
    segments: Count = 0
    """Number of segments that would go."""
    snapshots: Count = 0
    """Number of snapshots that would go."""
    bytes: Count = 0
    """Bytes of the objects of both."""
    topics_unchosen: Count = 0
    """Topics of the archive that spec.topics does not choose, from which nothing would be removed."""
    topic_list: Listed[PlannedRemovalStatus] = ()
    """Removals, by topic and rule, for at most 20."""


class DryRunStatus(StatusPart):
    """The findings of a dry run. The numbers count all, the lists have the first items. `counts` is Exact or AtMost.
    Only a KafkaRestore has `cluster_state`, only a KafkaBackup `retention`."""

    end_time: Timestamp | None = None
    """When the dry run had ended."""
    refused: Count = 0
    """Number of reasons for which the run would be refused."""
    refusals: Listed[PlannedRefusalStatus] = ()
    """The reasons for which the run would be refused, at most 20."""
    topics: Count = 0
    """Number of topics."""
    topics_created: Count = 0
    """Number of topics that would be created."""
    partitions: Count = 0
    """Number of partitions."""
    records: Count = 0
    """Number of records, or the most there may be; see counts."""
    bytes: Count = 0
    """Bytes of record batches, or the most there may be; see counts."""
    counts: str = ""
    """Exact if there are exactly this many records and bytes, AtMost if there may be fewer."""
    requests: Count = 0
    """About this many requests to Kafka would move records."""
    storage_requests: Count = 0
    """About this many requests would go to the storage."""
    seconds: Count | None = None
    """The run would take about this many seconds."""
    bytes_per_second: Count | None = None
    """The rate from which the seconds are computed."""
    rate: str | None = None
    """Where the rate is from, such as an earlier run."""
    groups: Count = 0
    """Number of consumer groups."""
    positions: Count = 0
    """Number of positions of these groups."""
    point: str | None = None
    """The state that the point of a restore gives."""
    topic_list: Listed[PlannedTopicStatus] = ()
    """Topics that the run would write or read, at most 20."""
    group_list: Listed[PlannedGroupStatus] = ()
    """Consumer groups, at most 20."""
    position_list: Listed[PlannedPositionStatus] = ()
    """Positions of consumer groups that would be set, at most 20."""
    cluster_state: Annotated[PlannedStateStatus | None, OnlyRestore] = None
    """The part of the cluster's users that would be brought back, with everything."""
    retention: Annotated[PlannedRetentionStatus | None, OnlyBackup] = None
    """The segments and snapshots that the retention of the run would remove if the archive stayed as it is now; absent
    without limits."""
    not_checked: Listed[str] = ()
    """Facts that only the run itself finds out."""

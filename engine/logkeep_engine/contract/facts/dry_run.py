"""The facts of a dry run: what a run would do, and what would refuse it (`RunResult.dry_run`).

Lists and texts are whole for the command line. `bounded` keeps the first items of each list and the beginning of each
text, so that a status is small whatever the number of topics; the numbers count all.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.facts.values import (
    MAX_LISTED,
    MAX_TIME,
    Count,
    Facts,
    FactTime,
    Items,
    OnlyBackup,
    OnlyRestore,
    Text,
    TopicName,
    Word,
    shortened,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.values import describe_aborted, human_bytes, so_many
from logkeep_engine.contract.visible import MESSAGE_MAX

DRY_RUN = "DryRun"
"""The outcome of a run that was only to find out what it would do."""
EXACT, AT_MOST = "Exact", "AtMost"
NEW, EXISTS, REPLACED = "New", "Exists", "Replaced"


def counts_of(*, exact: bool) -> str:
    """Return the word for numbers that are exact, or at most so large."""
    return EXACT if exact else AT_MOST


class PlannedRefusal(Facts):
    """An error with which the run would end before it writes."""

    reason: Word
    """The reason in a word, as conditions have it."""
    message: Text
    """The problem, and what to do."""


class PlannedTopic(Facts):
    """A topic that the run would write. `state` is New, Exists or Replaced, `counts` Exact or AtMost."""

    topic: TopicName
    """Name of the topic in the cluster."""
    source: TopicName | None = None
    """Name of the archived topic."""
    state: Word = NEW
    """New if the topic would be created, Exists if it is there, Replaced if it would be deleted and created again."""
    partitions: Count = 0
    """Number of partitions."""
    replicas: Annotated[int, Field(strict=True, ge=-1)] | None = None
    """Replicas of a topic that would be created, -1 for the cluster's default."""
    records: Count = 0
    """Number of records, or the most there may be."""
    bytes: Count = 0
    """Bytes of record batches, or the most there may be."""
    counts: Word = EXACT
    """Exact or AtMost, as for the sums."""
    config: Text | None = None
    """The configuration that a topic would be created with."""


class PlannedGroup(Facts):
    """A consumer group that the run would move."""

    group: Text
    """Id of the group."""
    positions: Count = 0
    """Number of its positions."""


class PlannedPosition(Facts):
    """A position that the run would set. The group would read the record with source offset `record` next, of the time
    `time`; None: there is none."""

    group: Text
    """Id of the group, as it would be called in the target."""
    topic: TopicName
    """Name of the topic in the target."""
    partition: Count = 0
    """Number of the partition in the target."""
    source_offset: Count = 0
    """The archived position."""
    record: Count | None = None
    """Source offset of the record that the group would read next, if there is one."""
    time: FactTime | None = None
    """The time of that record."""
    target_offset: Count = 0
    """The position in the target."""


class PlannedClusterState(Facts):
    """The ACLs, quotas and users that a restore of everything would bring back, and those that the cluster lacks."""

    source_run: Text
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
    acl_list: Items[Text] = ()
    """ACLs that the cluster lacks, and that would be added, at most 20."""
    held_back_list: Items[Text] = ()
    """ACLs that would be held back, since spec.acls does not name them, at most 20."""
    quota_list: Items[Text] = ()
    """Values of client quotas that the cluster lacks, at most 20."""
    user_list: Items[Text] = ()
    """SCRAM users that the cluster lacks, at most 20."""


class PlannedRemoval(Facts):
    """The segments and snapshots of a topic that retention would remove, and by which rule."""

    topic: TopicName
    """Name of the topic."""
    why: Text
    """The rule, such as maxAge."""
    partitions: Count = 0
    """Number of partitions."""
    segments: Count = 0
    """Number of segments."""
    snapshots: Count = 0
    """Number of snapshots."""
    bytes: Count = 0
    """Bytes of the objects of both."""


class PlannedRetention(Facts):
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
    topic_list: Items[PlannedRemoval] = ()
    """Removals, by topic and rule, for at most 20."""

    def describe(self) -> str:
        """Return the amount that would go, in words."""
        snapshots = f" and {so_many(self.snapshots, 'snapshot')}" if self.snapshots else ""
        topics = so_many(self.topics, "topic")
        return f"{so_many(self.segments, 'segment')}{snapshots} of {topics}, {human_bytes(self.bytes)}"


class DryRunReport(Facts):
    """The findings of a dry run. The numbers count all, the lists have the first items. `counts` is Exact or AtMost.
    Only a KafkaRestore has `cluster_state`, only a KafkaBackup `retention`."""

    end_time: FactTime | None = None
    """When the dry run had ended."""
    refused: Count = 0
    """Number of reasons for which the run would be refused."""
    refusals: Items[PlannedRefusal] = ()
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
    counts: Word = EXACT
    """Exact if there are exactly this many records and bytes, AtMost if there may be fewer."""
    aborted_records: Annotated[Count | None, OnlyRestore] = None
    """Number of records of aborted transactions, which a restore leaves out; absent if they were not counted."""
    requests: Count = 0
    """About this many requests to Kafka would move records."""
    storage_requests: Count = 0
    """About this many requests would go to the storage."""
    seconds: Annotated[int, Field(strict=True, ge=0, le=MAX_TIME)] | None = None
    """The run would take about this many seconds."""
    bytes_per_second: Count | None = None
    """The rate from which the seconds are computed."""
    rate: Text | None = None
    """Where the rate is from, such as an earlier run."""
    groups: Count = 0
    """Number of consumer groups."""
    positions: Count = 0
    """Number of positions of these groups."""
    point: Text | None = None
    """The state that the point of a restore gives."""
    topic_list: Items[PlannedTopic] = ()
    """Topics that the run would write or read, at most 20."""
    group_list: Items[PlannedGroup] = ()
    """Consumer groups, at most 20."""
    position_list: Items[PlannedPosition] = ()
    """Positions of consumer groups that would be set, at most 20."""
    cluster_state: Annotated[PlannedClusterState | None, OnlyRestore] = None
    """The part of the cluster's users that would be brought back, with everything."""
    retention: Annotated[PlannedRetention | None, OnlyBackup] = None
    """The segments and snapshots that the retention of the run would remove if the archive stayed as it is now; absent
    without limits."""
    not_checked: Items[Text] = ()
    """Facts that only the run itself finds out."""

    def bounded(self) -> DryRunReport:
        """Return the report with the first items of each list, and the beginning of each text."""
        return shortened(self, MAX_LISTED, MESSAGE_MAX)

    def without_lists(self, length: int) -> DryRunReport:
        """Return the numbers, and the first refusal with a message of at most this many characters."""
        first = tuple(shortened(refusal, 0, length) for refusal in self.refusals[:1])
        return replace(shortened(self, 0, length), refusals=first)

    def describe(self, does: str) -> str:
        """Return the report in a sentence. `does` is the verb of the run: restore, archive."""
        most = "" if self.counts == EXACT else "at most "
        new = f" ({self.topics_created} to be created)" if self.topics_created else ""
        records, topics = so_many(self.records, "record"), so_many(self.topics, "topic")
        amount = f"would {does} {most}{records}, {human_bytes(self.bytes)}, {topics}{new}"
        if self.aborted_records:
            amount += f", and leave out {describe_aborted(self.aborted_records)}"
        if self.seconds is not None:
            amount += f", in about {self.seconds} s"
        if self.retention is not None and self.retention.topics:
            amount += f"; its retention would remove {self.retention.describe()}"
        if not self.refused:
            return amount
        word = "reason" if self.refused == 1 else "reasons"
        text = f"would be refused for {self.refused} {word}, first: {self.refusals[0].message.rstrip('.')}"
        return f"{text}; else it {amount}" if self.topics else text

"""The facts about an archive that the driver of a backup finds out at the end of its run: how large it is, what a
restore brings back, what it keeps and removes, and when the cluster may delete records that are not archived.

Each list is short, so the report is small whatever the number of topics. None stands for what is unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.facts.values import (
    Count,
    Count32,
    Facts,
    FactTime,
    Listed,
    Name,
    OnlyBackup,
    Said,
    Text,
    TopicName,
)

MAX_PATH = 1024  # of an object, S3's own limit

Path = Annotated[Text, Field(max_length=MAX_PATH)]
RunName = Annotated[Name, Field(max_length=128)]
Rule = Annotated[str, Field(pattern=r"^[A-Za-z]{1,32}$")]


class Cause(StrEnum):
    """The reason why a cluster deletes records: they are older than `retention.ms`, the log is larger than
    `retention.bytes`, or records of that age were seen to be deleted, whatever the configuration says."""

    TIME = "Time"
    SIZE = "Size"
    DELETED = "Deleted"


class ArchiveSize(Facts):
    """The records that the archive holds. `size` and `growth` say `stored_bytes` and `bytes_per_day` to people."""

    topics: Annotated[Count | None, OnlyBackup] = None
    """Topics with records in the archive."""
    segments: Annotated[Count | None, OnlyBackup] = None
    """Segments in the archive."""
    objects: Annotated[Count | None, OnlyBackup] = None
    """Objects of these segments, indexes included."""
    records: Annotated[Count | None, OnlyBackup] = None
    """Records in the archive."""
    bytes: Annotated[Count | None, OnlyBackup] = None
    """Bytes of record batches in the archive."""
    stored_bytes: Annotated[Count | None, OnlyBackup] = None
    """Bytes of the objects that hold them, without indexes."""
    size: Annotated[Said | None, OnlyBackup] = None
    """The storedBytes for people, such as 384.0 GiB."""
    bytes_per_day: Annotated[Count | None, OnlyBackup] = None
    """Growth of bytes in a day, by the runs of the last seven days. What the archive's first run took does not
    count."""
    growth: Annotated[Said | None, OnlyBackup] = None
    """The bytesPerDay for people, such as 3.4 GiB/day."""
    object_bytes: Annotated[Count | None, OnlyBackup] = None
    """Bytes of all objects with segments, indexes and snapshots, and of those that retention has removed but not
    deleted yet. The catalog, and what runs note for themselves, do not count."""
    object_bytes_per_day: Annotated[Count | None, OnlyBackup] = None
    """Growth of objectBytes in a day, by the same runs as bytesPerDay. What retention removes is not taken off."""


class TopicSnapshots(Facts):
    """The newest snapshots of the partitions of a compacted topic. Points later than `exact_after` are exact, but of as
    many partitions as `exact_nowhere` says none is."""

    topic: TopicName
    """Name of the topic."""
    partitions: Count
    """Number of its partitions that have a snapshot."""
    records: Count
    """Records of these snapshots."""
    bytes: Count
    """Bytes of these snapshots."""
    exact_after: FactTime | None = None
    """Points later than this are exact, earlier ones need a log that retention has removed, or that was compacted
    before it was read. The latest of all partitions counts. It is absent if the archive has the whole log, but of the
    partitions that exactNowhere counts. Points of before the first backup lack what was compacted before it, also if it
    is absent."""
    exact_nowhere: Count32 | None = None
    """Number of partitions of which no point is exact: their log was cut off in the cluster, and with it what
    shows their state. Absent if there is none."""


class TopicGenerations(Facts):
    """The active generations of the partitions of a compacted topic. `number` is the lowest, and the first of them was
    begun at `began`. Of `reading` partitions another one is being read."""

    topic: TopicName
    """Name of the topic."""
    partitions: Count
    """Number of its partitions that have generations."""
    number: Count
    """The lowest number of an active generation."""
    reading: Count = 0
    """Partitions of which another generation is being read."""
    began: FactTime | None = None
    """When the first of the active generations was begun."""


class PointKept(Facts):
    """The end of a run that retention keeps restorable, and the rules by which it does."""

    run_id: RunName
    """Id of the run."""
    end_time: FactTime | None = None
    """When the run ended."""
    rules: tuple[Rule, ...] = ()
    """The rules that keep it: keepRuns, daily, weekly, monthly, hold, and last for the newest run."""


class Locked(Facts):
    """The removed objects that the store refuses to delete."""

    objects: Count
    """Number of these objects."""
    until: FactTime | None = None
    """The last date until which one is locked. It is absent if no date ends a lock."""
    legal_holds: Count = 0
    """How many of them have a legal hold."""
    first: Path
    """Path of one of them."""


class Retained(Facts):
    """The last retention: what it has removed and deleted, and what is kept. `points` counts all kept points, the
    newest are in `kept`."""

    run_id: RunName = ""
    """Id of the run."""
    removed_segments: Count = 0
    """Segments that the run has removed from the archive."""
    removed_snapshots: Count = 0
    """Snapshots that it has removed."""
    removed_bytes: Count = 0
    """Bytes of the objects of both."""
    deleted_segments: Count = 0
    """Removed segments and parts of snapshots, also of earlier runs, whose objects it has deleted."""
    deleted_bytes: Count = 0
    """Bytes of these objects."""
    waiting_segments: Count = 0
    """Removed segments and parts of snapshots whose objects are there still."""
    waiting_bytes: Count = 0
    """Bytes of these objects."""
    holds: Count = 0
    """Holds on topics and runs."""
    locked: Locked | None = None
    """Removed objects that the store has refused to delete, since they are locked."""
    points: Count = 0
    """Number of kept points: runs whose state stays restorable."""
    kept: Listed[PointKept] = ()
    """The newest kept points, at most 20."""


class TopicBehind(Facts):
    """A topic of which the last run could not archive everything."""

    topic: TopicName
    """Name of the topic."""
    first_time: FactTime | None = None
    """Time of its earliest record in the archive."""
    last_time: FactTime | None = None
    """All that was committed before this time can be restored. Absent if unknown."""
    offsets: Count | None = None
    """Offsets that were left when the run ended. Absent if unknown."""


class Recoverable(Facts):
    """The times and topics that a restore brings back: all that was committed before `last_time`, except of the topics
    in `behind`."""

    first_time: FactTime | None = None
    """Time of the earliest record in the archive."""
    last_time: FactTime
    """All that was committed in Kafka before this time can be restored, except of the topics in behind."""
    topics: Count = 0
    """Topics of the run."""
    topics_behind: Count = 0
    """Topics of which the run could not archive everything."""
    behind: Listed[TopicBehind] = ()
    """Topics of which the run could not archive all, furthest behind first, at most 20."""


class TopicDeadline(Facts):
    """The time from which on the cluster may delete records of a topic that are not archived."""

    topic: TopicName
    """Name of the topic."""
    partition: Count
    """Number of the partition."""
    deadline: FactTime
    """From this time on records that are not archived may be deleted."""
    oldest_time: FactTime
    """No record of the partition that is not archived is older."""
    window_seconds: Count
    """How long the cluster keeps a record."""
    cause: Cause
    """Time: by retention.ms. Size: by retention.bytes and the bytes that come in. Deleted: archived records of this age
    are gone from the log, for whatever reason."""


class Deadlines(Facts):
    """The deadlines, the soonest first. `deadline` is the first of all topics, None if none has one."""

    check_time: FactTime
    """When the brokers were asked."""
    deadline: FactTime | None = None
    """From this time on records that are not archived may be deleted. It is the earliest time of all topics, and absent
    if the cluster deletes nothing of them."""
    unknown_topics: Count = 0
    """Topics whose limits the brokers did not report."""
    topics: Listed[TopicDeadline] = ()
    """Topics with the earliest deadlines, the earliest first, at most 20."""


class ArchiveReport(Facts):
    """The archive after the run. `retention` None: the brokers could not be asked. `snapshots` and `generations` are
    those of the topics with the largest, or the oldest. `retained` None: the run has come to no retention."""

    size: ArchiveSize
    recovery: Recoverable
    retention: Deadlines | None = None
    snapshots: Listed[TopicSnapshots] = ()
    generations: Listed[TopicGenerations] = ()
    retained: Retained | None = None

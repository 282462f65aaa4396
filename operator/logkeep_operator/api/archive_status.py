"""The parts of a status that tell of an archive: what is in it, what a restore brings back, what it keeps and removes,
and when the cluster may delete records that are not archived."""

from __future__ import annotations

from typing import Annotated

from logkeep_engine.contract.archive import Cause
from logkeep_engine.contract.facts.values import Count, Count32, Listed, OnlyBackup, Timestamp
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.part import StatusPart


class SnapshotStatus(StatusPart):
    """The newest snapshots of the partitions of a compacted topic. Points later than `exact_after` are exact, but of as
    many partitions as `exact_nowhere` says none is."""

    topic: str = ""
    """Name of the topic."""
    partitions: Count | None = None
    """Number of its partitions that have a snapshot."""
    records: Count | None = None
    """Records of these snapshots."""
    bytes: Count | None = None
    """Bytes of these snapshots."""
    exact_after: Timestamp | None = None
    """Points later than this are exact, earlier ones need a log that retention has removed, or that was compacted
    before it was read. The latest of all partitions counts. It is absent if the archive has the whole log, but of the
    partitions that exactNowhere counts. Points of before the first backup lack what was compacted before it, also if it
    is absent."""
    exact_nowhere: Count32 | None = None
    """Number of partitions of which no point is exact: their log was cut off in the cluster, and with it went what
    tells their state. Absent if there is none."""


class GenerationStatus(StatusPart):
    """The active generations of the partitions of a compacted topic. `number` is the lowest, and the first of them was
    begun at `began`. Of `reading` partitions another one is being read."""

    topic: str = ""
    """Name of the topic."""
    partitions: Count | None = None
    """Number of its partitions that have generations."""
    number: Count | None = None
    """The lowest number of an active generation."""
    reading: Count | None = None
    """Partitions of which another generation is being read."""
    began: Timestamp | None = None
    """When the first of the active generations was begun."""


class PointStatus(StatusPart):
    """The end of a run that retention keeps restorable, and the rules by which it does."""

    run_id: str = ""
    """Id of the run."""
    end_time: Timestamp | None = None
    """When the run ended."""
    rules: tuple[str, ...] = ()
    """The rules that keep it: keepRuns, daily, weekly, monthly, hold, and last for the newest run."""


class LockedStatus(StatusPart):
    """The removed objects that the store refuses to delete."""

    objects: Count = 0
    """Number of these objects."""
    until: Timestamp | None = None
    """The last date until which one is locked. It is absent if no date ends a lock."""
    legal_holds: Count | None = None
    """How many of them have a legal hold."""
    first: str | None = None
    """Path of one of them."""


class RetainedStatus(StatusPart):
    """The last retention: what it has removed and deleted, and what is kept. `points` counts all kept points, the
    newest are in `kept`."""

    run_id: str | None = None
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
    locked: LockedStatus | None = None
    """Removed objects that the store has refused to delete, since they are locked."""
    points: Count = 0
    """Number of kept points: runs whose state stays restorable."""
    kept: tuple[PointStatus, ...] = ()
    """The newest kept points, at most 20."""


class ArchiveStatus(StatusPart):
    """The numbers are those of a KafkaBackup. `size` and `growth` say `stored_bytes` and `bytes_per_day` to people.
    `anchor` names the newest known commit with all before it, and never goes back by itself. `write_time` is the end
    of the last run that wrote the archive, `taken_over` the value of the annotation `logkeep.dev/take-over` that was
    used."""

    id: str | None = None
    """Id of the archive."""
    uri: str | None = None
    """URI of the archive."""
    cluster_id: str | None = None
    """Id of the Kafka cluster it was made from."""
    epoch: Count | None = None
    """Epoch of the last run."""
    commit: Count | None = None
    """Number of the last commit."""
    anchor: Annotated[str | None, OnlyBackup] = None
    """The newest known commit with all commits before it: its number and a SHA-256. Every run refuses an archive that
    does not have it (ArchiveRolledBack). It never goes back by itself. Pass it to logkeep verify --expect-commit."""
    write_time: Annotated[Timestamp | None, OnlyBackup] = None
    """When the last run ended that wrote the archive."""
    taken_over: Annotated[str | None, OnlyBackup] = None
    """The value of the annotation logkeep.dev/take-over that was used last. It consents to nothing more."""
    topics: Annotated[Count | None, OnlyBackup] = None
    """Topics of which the archive holds records."""
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
    size: Annotated[str | None, OnlyBackup] = None
    """The storedBytes for people, such as 384.0 GiB."""
    bytes_per_day: Annotated[Count | None, OnlyBackup] = None
    """Growth of bytes in a day, by the runs of the last seven days. What the archive's first run took does not
    count."""
    growth: Annotated[str | None, OnlyBackup] = None
    """The bytesPerDay for people, such as 3.4 GiB/day."""
    snapshots: Annotated[tuple[SnapshotStatus, ...], OnlyBackup] = ()
    """The newest snapshots of compacted topics, and since when those with generations are exact. Those with
    exactNowhere come first, then those of most bytes, at most 20."""
    generations: Annotated[tuple[GenerationStatus, ...], OnlyBackup] = ()
    """The active generations of compacted topics, those begun first before the others, at most 20."""
    retention: Annotated[RetainedStatus | None, OnlyBackup] = None
    """The last retention: what was removed, what waits for its deletion, and what is kept. It is absent if nothing is
    to be removed or kept."""

    @property
    def write_time_seconds(self) -> float | None:
        """The same in seconds since the epoch."""
        moment = parse_timestamp(self.write_time)
        return None if moment is None else moment.timestamp()

    def anchor_at(self, uri: str) -> str | None:
        """The newest known commit of the archive at a URI, None if none is known there."""
        return self.anchor if self.uri == uri else None


class BehindStatus(StatusPart):
    """A topic of which the last run could not archive everything."""

    topic: str = ""
    """Name of the topic."""
    first_time: Timestamp | None = None
    """Time of its earliest record in the archive."""
    last_time: Timestamp | None = None
    """All that was committed before this time can be restored. Absent if nobody knows it."""
    offsets: Count | None = None
    """Offsets that were left when the run ended. Absent if nobody knows it."""


class RecoveryStatus(StatusPart):
    """The times and topics that a restore brings back: all that was committed before `last_time`, except of the topics
    in `behind`."""

    first_time: Timestamp | None = None
    """Time of the earliest record in the archive."""
    last_time: Timestamp | None = None
    """All that was committed in Kafka before this time can be restored, except of the topics in behind."""
    topics: Count = 0
    """Topics of the run."""
    topics_behind: Count = 0
    """Topics of which the run could not archive everything."""
    behind: Listed[BehindStatus] = ()
    """Topics of which the run could not archive all, furthest behind first, at most 20."""


class DeadlineStatus(StatusPart):
    """The time from which on the cluster may delete records of a topic that are not archived."""

    topic: str = ""
    """Name of the topic."""
    partition: Count = 0
    """Number of the partition."""
    deadline: Timestamp | None = None
    """From this time on records that are not archived may be deleted."""
    oldest_time: Timestamp | None = None
    """No record of the partition that is not archived is older."""
    window_seconds: Count = 0
    """How long the cluster keeps a record."""
    cause: Cause = Cause.TIME
    """Time: by retention.ms. Size: by retention.bytes and the bytes that come in. Deleted: archived records of this age
    are gone from the log, for whatever reason."""


class RetentionStatus(StatusPart):
    """The deadlines, the soonest first. `deadline` is the first of all topics, None if none has one."""

    check_time: Timestamp | None = None
    """When the brokers were asked."""
    deadline: Timestamp | None = None
    """From this time on records that are not archived may be deleted. It is the earliest time of all topics, and absent
    if the cluster deletes nothing of them."""
    unknown_topics: Count = 0
    """Topics whose limits the brokers did not tell."""
    topics: Listed[DeadlineStatus] = ()
    """Topics with the earliest deadlines, the earliest first, at most 20."""

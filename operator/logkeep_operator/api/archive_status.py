"""The parts of a status that tell of an archive: what is in it, what a restore brings back, what it keeps and removes,
and when the cluster may delete records that are not archived."""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.part import StatusPart


@dataclass(frozen=True)
class SnapshotStatus(StatusPart):
    """The newest snapshots of the partitions of a compacted topic. Points later than `exact_after` are exact, but of as
    many partitions as `exact_nowhere` says none is."""

    topic: str = ""
    partitions: int | None = None
    records: int | None = None
    bytes: int | None = None
    exact_after: str | None = None
    exact_nowhere: int | None = None


@dataclass(frozen=True)
class GenerationStatus(StatusPart):
    """The active generations of the partitions of a compacted topic. `number` is the lowest, and the first of them was
    begun at `began`. Of `reading` partitions another one is being read."""

    topic: str = ""
    partitions: int | None = None
    number: int | None = None
    reading: int | None = None
    began: str | None = None


@dataclass(frozen=True)
class PointStatus(StatusPart):
    """The end of a run that retention keeps restorable, and the rules by which it does."""

    run_id: str = ""
    end_time: str | None = None
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class LockedStatus(StatusPart):
    """The removed objects that the store refuses to delete."""

    objects: int = 0
    until: str | None = None
    legal_holds: int | None = None
    first: str | None = None


@dataclass(frozen=True)
class RetainedStatus(StatusPart):
    """The last retention: what it has removed and deleted, and what is kept. `points` counts all kept points, the
    newest are in `kept`."""

    run_id: str | None = None
    removed_segments: int = 0
    removed_snapshots: int = 0
    removed_bytes: int = 0
    deleted_segments: int = 0
    deleted_bytes: int = 0
    waiting_segments: int = 0
    waiting_bytes: int = 0
    holds: int = 0
    locked: LockedStatus | None = None
    points: int = 0
    kept: tuple[PointStatus, ...] = ()


@dataclass(frozen=True)
class ArchiveStatus(StatusPart):
    """The numbers are those of a KafkaBackup. `size` and `growth` say `stored_bytes` and `bytes_per_day` to people.
    `anchor` names the newest known commit with all before it, and never goes back by itself. `write_time` is the end
    of the last run that wrote the archive, `taken_over` the value of the annotation `logkeep.dev/take-over` that was
    used."""

    id: str | None = None
    uri: str | None = None
    cluster_id: str | None = None
    epoch: int | None = None
    commit: int | None = None
    anchor: str | None = None
    write_time: str | None = None
    taken_over: str | None = None
    topics: int | None = None
    segments: int | None = None
    objects: int | None = None
    records: int | None = None
    bytes: int | None = None
    stored_bytes: int | None = None
    size: str | None = None
    bytes_per_day: int | None = None
    growth: str | None = None
    snapshots: tuple[SnapshotStatus, ...] = ()
    generations: tuple[GenerationStatus, ...] = ()
    retention: RetainedStatus | None = None

    @property
    def write_time_seconds(self) -> float | None:
        """The same in seconds since the epoch."""
        moment = parse_timestamp(self.write_time)
        return None if moment is None else moment.timestamp()

    def anchor_at(self, uri: str) -> str | None:
        """The newest known commit of the archive at a URI, None if none is known there."""
        return self.anchor if self.uri == uri else None


@dataclass(frozen=True)
class BehindStatus(StatusPart):
    """A topic of which the last run could not archive everything."""

    topic: str = ""
    first_time: str | None = None
    last_time: str | None = None
    offsets: int | None = None


@dataclass(frozen=True)
class RecoveryStatus(StatusPart):
    """The times and topics that a restore brings back: all that was committed before `last_time`, except of the topics
    in `behind`."""

    first_time: str | None = None
    last_time: str | None = None
    topics: int = 0
    topics_behind: int = 0
    behind: tuple[BehindStatus, ...] = ()


@dataclass(frozen=True)
class DeadlineStatus(StatusPart):
    """The time from which on the cluster may delete records of a topic that are not archived."""

    topic: str = ""
    partition: int = 0
    deadline: str | None = None
    oldest_time: str | None = None
    window_seconds: int = 0
    cause: str = ""


@dataclass(frozen=True)
class RetentionStatus(StatusPart):
    """The deadlines, the soonest first. `deadline` is the first of all topics, None if none has one."""

    check_time: str | None = None
    deadline: str | None = None
    unknown_topics: int = 0
    topics: tuple[DeadlineStatus, ...] = ()

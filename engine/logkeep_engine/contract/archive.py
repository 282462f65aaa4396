"""The report about an archive that the driver of a backup makes at the end of its run: `RunResult.archive`.

Each list has at most MAX_LIST items, so the report is small whatever the number of topics. Times are seconds since the
epoch. None stands for what nobody knows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from logkeep_engine.contract.facts.values import TopicName
from logkeep_engine.contract.model import Model

LATEST_TIME = 253402300799.0  # the end of the year 9999: later times have no name

MAX_PATH = 1024  # of an object, S3's own limit

Count = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
Time = Annotated[float, Field(strict=True, ge=0, le=LATEST_TIME, allow_inf_nan=False)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=int(LATEST_TIME))]
RunName = Annotated[str, Field(max_length=128)]
Rule = Annotated[str, Field(pattern=r"^[A-Za-z]{1,32}$")]


class Cause(StrEnum):
    """The reason why a cluster deletes records: they are older than `retention.ms`, the log is larger than
    `retention.bytes`, or records of that age were seen to be deleted, whatever the configuration says."""

    TIME = "Time"
    SIZE = "Size"
    DELETED = "Deleted"


class ArchiveSize(Model):
    """The records that the archive holds. `objects` are those of segments, indexes included. `bytes` are those of
    record batches; `stored_bytes` are those of the objects that hold them, without indexes. `bytes_per_day` is the
    growth of `bytes`."""

    topics: Count = 0
    segments: Count = 0
    objects: Count = 0
    records: Count = 0
    bytes: Count = 0
    stored_bytes: Count = 0
    bytes_per_day: Count | None = None


class TopicBehind(Model):
    """A topic of which the run could not archive everything. All that was committed before `last_time` is archived.
    `offsets` are those that were left; None if some partition gave no answer."""

    topic: TopicName
    first_time: Time | None = None
    last_time: Time | None = None
    offsets: Count | None = None


class Recoverable(Model):
    """The times and topics that a restore brings back. `first_time` is that of the earliest record. All that was
    committed before `last_time` is archived, except of the topics in `behind`. Of the `topics` of the run
    `topics_behind` are behind."""

    first_time: Time | None = None
    last_time: Time
    topics: Count = 0
    topics_behind: Count = 0
    behind: tuple[TopicBehind, ...] = ()


class TopicDeadline(Model):
    """The time from which on the cluster may delete a record of the topic that is not archived. `oldest_time`: no such
    record of this partition is older. `window_seconds`: how long the cluster keeps a record."""

    topic: TopicName
    partition: Count
    deadline: Time
    oldest_time: Time
    window_seconds: Seconds
    cause: Cause


class Deadlines(Model):
    """The deadlines of the run's topics, the soonest first. `deadline` None: no topic has one. `unknown_topics` are
    those whose limits the brokers did not tell. `check_time` is when the brokers were asked."""

    check_time: Time
    deadline: Time | None = None
    unknown_topics: Count = 0
    topics: tuple[TopicDeadline, ...] = ()


class TopicSnapshots(Model):
    """The newest snapshots of the partitions of a compacted topic, if it has some. Points later than `exact_after` are
    exact; None: all are. Neither counts for as many partitions as `exact_nowhere` says: of these no point is."""

    topic: TopicName
    partitions: Count
    records: Count
    bytes: Count
    exact_after: Time | None = None
    exact_nowhere: Count = 0


class TopicGenerations(Model):
    """The active generations of the partitions of a compacted topic: `number` is the lowest, and the first of them was
    begun at `began`. Of `reading` partitions another one is being read. TopicSnapshots say since when points are
    exact."""

    topic: TopicName
    partitions: Count
    number: Count
    reading: Count = 0
    began: Time | None = None


class PointKept(Model):
    """The end of a run whose state retention keeps restorable, and the rules by which it does."""

    run_id: RunName
    end_time: Time | None = None
    rules: tuple[Rule, ...] = ()


class Locked(Model):
    """The removed objects that the store refuses to delete. `until` is the last of their dates, None if no date ends a
    lock; `legal_holds` of them have a legal hold. `first` is the path of one."""

    objects: Count
    until: Time | None = None
    legal_holds: Count = 0
    first: Annotated[str, Field(max_length=MAX_PATH)]


class Retained(Model):
    """The retention of the run: what it has removed, and what was deleted of that and of earlier removals. The objects
    of `waiting_segments` are still there. `kept` are the newest of `points`."""

    removed_segments: Count = 0
    removed_snapshots: Count = 0
    removed_bytes: Count = 0
    deleted_segments: Count = 0
    deleted_bytes: Count = 0
    waiting_segments: Count = 0
    waiting_bytes: Count = 0
    holds: Count = 0
    locked: Locked | None = None
    points: Count = 0
    kept: tuple[PointKept, ...] = ()

    def without_lists(self) -> Retained:
        """The same without the points, and without a path."""
        locked = self.locked.model_copy(update={"first": ""}) if self.locked is not None else None
        return self.model_copy(update={"kept": (), "locked": locked})


class ArchiveReport(Model):
    """The archive after the run. `retention` None: the brokers could not be asked. `snapshots` and `generations` are
    those of the topics with the largest, or the oldest. `retained` None: the run has come to no retention."""

    size: ArchiveSize
    recovery: Recoverable
    retention: Deadlines | None = None
    snapshots: tuple[TopicSnapshots, ...] = ()
    generations: tuple[TopicGenerations, ...] = ()
    retained: Retained | None = None

    @classmethod
    def of(cls, value: Any) -> ArchiveReport:
        """From JSON. Raises ValueError for anything else."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"archive.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return self.model_dump(mode="json", by_alias=True)

    def without_topics(self) -> ArchiveReport:
        """The report without lists."""
        recovery = self.recovery.model_copy(update={"behind": ()})
        retention = self.retention.model_copy(update={"topics": ()}) if self.retention is not None else None
        retained = self.retained.without_lists() if self.retained is not None else None
        return ArchiveReport(size=self.size, recovery=recovery, retention=retention, retained=retained)

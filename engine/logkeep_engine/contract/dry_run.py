"""The findings of a dry run: what a run would do, and what would refuse it (`RunResult.dry_run`).

Lists are whole for the command line. `bounded` keeps the first MAX_SHOWN items of each, so that a status is small
whatever the number of topics; the numbers count all.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from logkeep_engine.contract.facts.values import MAX_TIME, Count, TopicName
from logkeep_engine.contract.facts.values import Text as AnyText
from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import describe_aborted, so_many

MAX_SHOWN = 20
MAX_TEXT = 1024
DRY_RUN = "DryRun"
"""The outcome of a run that was only to find out what it would do."""

Text = Annotated[AnyText, Field(max_length=1 << 20)]
M = TypeVar("M", bound=Model)


class PlannedRefusal(Model):
    """An error with which the run would end before it writes the first record. `code` is that of the error."""

    code: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]{0,63}$")]
    message: Text


class PlannedTopic(Model):
    """A topic that the run would write. `exists`: it is there already, else it would be created with this many
    `partitions`, `replicas` (-1: the default of the cluster) and the configuration `configs`. `replaced`: another one
    of its name would be deleted before. `exact`: exactly this many records and bytes, else at most."""

    topic: TopicName
    source: TopicName | None = None
    exists: bool = False
    replaced: bool = False
    partitions: Count = 0
    replicas: Annotated[int, Field(strict=True, ge=-1)] = 0
    configs: dict[str, str] = Field(default={})
    records: Count = 0
    bytes: Count = 0
    exact: bool = True


class PlannedGroup(Model):
    """A consumer group that the run would move, and how many of its positions."""

    group: Text
    positions: Count = 0


class PlannedPosition(Model):
    """A position that the run would set: `source_offset` is the archived one, `target_offset` the one in `topic`. The
    group would stand before the record with source offset `record` and time `timestamp` (ms), and read it next; None:
    there is none at or after the position."""

    group: Text
    topic: TopicName
    partition: Count = 0
    source_offset: Count = 0
    record: Count | None = None
    timestamp: Annotated[int, Field(strict=True, ge=-1)] | None = None
    target_offset: Count = 0


class PlannedClusterState(Model):
    """The cluster state that a restore of everything would bring back: how much of it `source_run` has archived, and
    what the cluster lacks. `quotas_kept` have another value there, which would stay. Of SCRAM users the restore would
    only report the names. `acls_held_back` need a word in `spec.acls`, and would not be added. The numbers of a kind
    that was not archived are None."""

    source_run: Text
    acls: Count | None = None
    acls_to_add: Count | None = None
    acls_held_back: Count | None = None
    quotas: Count | None = None
    quotas_to_add: Count | None = None
    quotas_kept: Count | None = None
    users: Count | None = None
    users_to_create: Count | None = None
    acls_shown: tuple[Text, ...] = ()
    held_back_shown: tuple[Text, ...] = ()
    quotas_shown: tuple[Text, ...] = ()
    users_shown: tuple[Text, ...] = ()

    def bounded(self, most: int = MAX_SHOWN) -> PlannedClusterState:
        """With the first items of each list."""
        kinds = ("acls_shown", "held_back_shown", "quotas_shown", "users_shown")
        return self.model_copy(
            update={kind: tuple(text[:MAX_TEXT] for text in getattr(self, kind)[:most]) for kind in kinds}
        )


class PlannedRemoval(Model):
    """The segments and snapshots of a topic that one rule of retention would remove, and the number of partitions."""

    topic: TopicName
    why: Text
    partitions: Count = 0
    segments: Count = 0
    snapshots: Count = 0
    bytes: Count = 0


class PlannedRetention(Model):
    """The segments and snapshots that retention would remove if the archive stayed as it is now, and the topics that it
    holds and that `spec.topics` does not choose, which lose nothing."""

    topics: Count = 0
    partitions: Count = 0
    segments: Count = 0
    snapshots: Count = 0
    bytes: Count = 0
    topics_unchosen: Count = 0
    topics_shown: tuple[PlannedRemoval, ...] = ()

    def bounded(self, most: int = MAX_SHOWN) -> PlannedRetention:
        """With the first items of the list."""
        return self.model_copy(update={"topics_shown": self.topics_shown[:most]})

    def describe(self) -> str:
        """Return the amount that would go, in words."""
        snapshots = f" and {so_many(self.snapshots, 'snapshot')}" if self.snapshots else ""
        return f"{so_many(self.segments, 'segment')}{snapshots} of {so_many(self.topics, 'topic')}, {self.bytes} bytes"


class DryRunReport(Model):
    """All that was found. `records` and `bytes` are exact if `exact` says so, else at most this many. `aborted_records`
    are those of aborted transactions, which a restore leaves out; None: they were not counted. About this many
    `requests` go to Kafka, those that write for a restore, those that read for a backup, and `storage_requests` to the
    storage. `seconds` is the expected time at `bytes_per_second`, and `rate` says where that is from. `not_checked`
    names what only the run itself finds out."""

    refused: Count = 0
    refusals: tuple[PlannedRefusal, ...] = ()
    topics: Count = 0
    topics_created: Count = 0
    partitions: Count = 0
    records: Count = 0
    bytes: Count = 0
    exact: bool = True
    aborted_records: Count | None = None
    requests: Count = 0
    storage_requests: Count = 0
    seconds: Annotated[int, Field(strict=True, ge=0, le=MAX_TIME)] | None = None
    bytes_per_second: Count | None = None
    rate: Text = ""
    groups: Count = 0
    positions: Count = 0
    point: Text = ""
    topics_shown: tuple[PlannedTopic, ...] = ()
    groups_shown: tuple[PlannedGroup, ...] = ()
    positions_shown: tuple[PlannedPosition, ...] = ()
    cluster_state: PlannedClusterState | None = None
    retention: PlannedRetention | None = None
    not_checked: tuple[Text, ...] = ()

    @classmethod
    def of(cls, value: Any) -> DryRunReport:
        """From JSON. Raises ValueError for anything else."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"dryRun.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.model_dump(mode="json", by_alias=True)

    def bounded(self) -> DryRunReport:
        """Return the report with the first items of each list, and texts of at most MAX_TEXT characters."""
        refusals = (item.model_copy(update={"message": item.message[:MAX_TEXT]}) for item in self.refusals[:MAX_SHOWN])
        topics = self.topics_shown[:MAX_SHOWN]
        return self.model_copy(
            update={
                "refusals": tuple(refusals),
                "topics_shown": tuple(
                    topic.model_copy(update={"configs": dict(list(topic.configs.items())[:MAX_SHOWN])})
                    for topic in topics
                ),
                "groups_shown": self.groups_shown[:MAX_SHOWN],
                "positions_shown": self.positions_shown[:MAX_SHOWN],
                "cluster_state": None if self.cluster_state is None else self.cluster_state.bounded(),
                "retention": None if self.retention is None else self.retention.bounded(),
                "not_checked": self.not_checked[:MAX_SHOWN],
                "point": self.point[:MAX_TEXT],
            }
        )

    def without_lists(self, length: int) -> DryRunReport:
        """Return the numbers, and the first refusal with a message of at most this many characters."""
        first = (item.model_copy(update={"message": item.message[:length]}) for item in self.refusals[:1])
        return self.model_copy(
            update={
                "refusals": tuple(first),
                "point": self.point[:length],
                "topics_shown": (),
                "groups_shown": (),
                "positions_shown": (),
                "cluster_state": None if self.cluster_state is None else self.cluster_state.bounded(0),
                "retention": None if self.retention is None else self.retention.bounded(0),
                "not_checked": (),
            }
        )

    def describe(self, does: str) -> str:
        """Return the report in a sentence. `does` is the verb of the run: restore, archive."""
        most = "" if self.exact else "at most "
        new = f" ({self.topics_created} to be created)" if self.topics_created else ""
        records, topics = so_many(self.records, "record"), so_many(self.topics, "topic")
        amount = f"would {does} {most}{records}, {self.bytes} bytes, {topics}{new}"
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

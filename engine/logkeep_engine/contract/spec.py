"""The typed spec of a `KafkaBackup`, as written in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from logkeep_engine.contract.archive_format import (
    DEFAULT_LIVE_PERCENT,
    DEFAULT_MERGE_COUNT,
    DEFAULT_PACK_BELOW,
    Compatibility,
    Compression,
    FormatName,
    FormatOptions,
    SegmentSpec,
)
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.cluster_state import ClusterStateMode
from logkeep_engine.contract.compacted import CompactedTopics, Generations, Snapshots
from logkeep_engine.contract.erasures import MAX_ERASURES, Erasure
from logkeep_engine.contract.model import Model, map_of, rule, rules, usual
from logkeep_engine.contract.parsing import SpecInvalid, parse_model
from logkeep_engine.contract.pattern_lists import Patterns, SomePatterns
from logkeep_engine.contract.reconcile import ReconcileSpec
from logkeep_engine.contract.references import ArchiveRef
from logkeep_engine.contract.retention import Retention
from logkeep_engine.contract.running import BackupLimits, RunPolicy, SparkSpec
from logkeep_engine.contract.schedule import ScheduleSpec
from logkeep_engine.contract.storage import ArchiveSpec

GROUP = "logkeep.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Topics(Model):
    """Regular expressions that must match the whole name."""

    include: SomePatterns
    """Topics to back up."""
    exclude: Patterns = ()
    """Topics to leave out although they match include."""
    internal: bool = False
    """Whether include may also match Kafka's internal topics, such as __consumer_offsets. With format Avro, true also
    adds __consumer_offsets and _schemas, unless exclude matches them."""


class ConsumerGroups(Model):
    include: Patterns = (".*",)
    """Groups whose positions are archived, or restored, by regular expressions that must match the whole name."""
    exclude: Patterns = ()
    """Groups to leave out although they match include."""


_OF_PACKS = {
    "pack_below": DEFAULT_PACK_BELOW,
    "merge_count": DEFAULT_MERGE_COUNT,
    "live_percent": DEFAULT_LIVE_PERCENT,
}


class OnDataLoss(StrEnum):
    FAIL = "Fail"
    RECORD = "Record"


class OnDivergence(StrEnum):
    """`Fail`: a partition whose log was cut off below the archive is refused. `Branch`: what is archived of the old log
    is kept as a branch, and the log as it is now continues where they part.
    """

    FAIL = "Fail"
    BRANCH = "Branch"


class OnUnmatched(StrEnum):
    """For patterns in `topics.include` that choose no topic, topics that vanished, and those the user may not read.

    `Fail`: the run fails when everything else is archived. `Warn`: it is reported.
    """

    FAIL = "Fail"
    WARN = "Warn"


class KafkaBackupSpec(Model):
    """The topics to back up, from where, and to where."""

    model_config = rules(
        (
            "has(self.archiveRef) != has(self.storage)",
            "exactly one of archiveRef and storage must be set",
        ),
        (
            "self.format == 'Kafka' || self.segment.compression == 'Passthrough'",
            "segment.compression may be Zstd only with format Kafka",
        ),
        (
            "self.format == 'Kafka' || self.segment.packBelow == '8Mi'",
            "segment.packBelow may be set only with format Kafka",
        ),
        (
            "self.format == 'Kafka' || (self.segment.mergeCount == 16 && self.segment.livePercent == 25)",
            "segment.mergeCount and segment.livePercent may be set only with format Kafka",
        ),
        (
            "self.format == 'Kafka' || self.onDivergence == 'Fail'",
            "onDivergence may be Branch only with format Kafka",
        ),
        (
            "!self.formatOptions.allowLoss || (has(self.formatOptions.compatibility) && "
            "self.formatOptions.compatibility == 'strict')",
            "formatOptions.allowLoss may be true only with compatibility strict",
        ),
        (
            "self.format == 'Avro' || !has(self.formatOptions.compatibility)",
            "formatOptions.compatibility may be set only with format Avro",
        ),
        (
            "self.format == 'Avro' || !has(self.formatOptions.codec)",
            "formatOptions.codec may be set only with format Avro",
        ),
        (
            "self.format == 'Kafka' || !has(self.compactedTopics) || self.compactedTopics != 'Snapshot'",
            "compactedTopics may be Snapshot only with format Kafka",
        ),
        (
            "!has(self.snapshots) || (has(self.compactedTopics) ? self.compactedTopics == 'Snapshot' : self.format "
            "== 'Kafka')",
            "snapshots may be set only where compactedTopics is Snapshot",
        ),
        (
            "!has(self.generations) || has(self.compactedTopics) && self.compactedTopics == 'Generations'",
            "generations may be set only where compactedTopics is Generations",
        ),
    )

    cluster: ClusterSpec
    """The Kafka cluster to back up."""
    topics: Topics
    """Which topics, by regular expressions that must match the whole name."""
    consumer_groups: ConsumerGroups = usual(ConsumerGroups)
    """The consumer groups whose committed offsets are archived, by regular expressions that must match the whole
    name."""
    cluster_state: ClusterStateMode = ClusterStateMode.ARCHIVE
    """Whether each run also archives the ACLs and client quotas of the cluster, and the names of its SCRAM users, so
    that a KafkaRestore with everything can bring them back. What the user may not see is named in warnings, and no run
    fails for it. Archive needs DESCRIBE and DESCRIBE_CONFIGS on the cluster."""
    archive_ref: ArchiveRef | None = None
    """A KafkaArchive in the same namespace, whose storage is that of the archive. No other KafkaBackup may write the
    archive. It may take the place of storage, and storage its place, as long as the uri is the same."""
    storage: (
        Annotated[
            ArchiveSpec,
            rule(
                "self.uri == oldSelf.uri",
                "storage.uri cannot be changed: an archive belongs to one KafkaBackup; create another KafkaBackup",
            ),
        ]
        | None
    ) = None
    """The archive, where no archiveRef names it. No other KafkaBackup may write it."""
    format: Annotated[
        FormatName,
        rule(
            "self == oldSelf",
            "format cannot be changed: an archive has one format; create another KafkaBackup with another storage.uri",
        ),
    ] = FormatName.KAFKA
    """Format of the archive. Kafka keeps record batches as the brokers have them and loses nothing. Records writes the
    files of kafka-backup. Avro writes Avro container files. It cannot be changed."""
    format_options: FormatOptions = usual(FormatOptions)
    """How the formats Records and Avro are written."""
    segment: SegmentSpec = usual(SegmentSpec)
    """How the archive is cut into objects."""
    compacted_topics: CompactedTopics | None = None
    """How the archive keeps topics whose cleanup.policy contains compact. With Snapshot a run that succeeded makes
    snapshots, which hold the last record of every key; a restore reads the newest one that fits and the log after it,
    and the log below may go. With Log the archive keeps the log alone; snapshots that are there stay. With Generations
    a run reads the topic again from its start when it is time, and what it had before goes once that is whole. The
    default is Snapshot for format Kafka and Log for the others, which cannot have snapshots."""
    snapshots: Snapshots | None = None
    """When a partition of a compacted topic gets a new snapshot: if both of these are true. Only where compactedTopics
    is Snapshot."""
    generations: Generations | None = None
    """When a compacted topic is read again. Only where compactedTopics is Generations."""
    reconcile: ReconcileSpec | None = None
    """When a backup looks for stale keys: keys of compacted topics that are alive in the archive and gone from the
    cluster, since their tombstones were cleaned before they were archived. It reads the compacted topics once more as a
    whole, when all is archived. By default no backup does."""
    retention: Retention = usual(Retention)
    """The limits that a successful run applies to the archive's segments at its end; none by default. Of
    topics that are only compacted, by their own policy or the brokers' default, only what a snapshot stands for
    goes."""
    erasures: Annotated[tuple[Erasure, ...], Field(max_length=MAX_ERASURES), map_of("name")] | None = None
    """Keys whose records the next run removes from the archive permanently, after it has archived. Each erasure is done
    once: the archive remembers its name. An erasure that fails fails the run, whose backup has succeeded; the next run
    tries it again. See docs/guides/erasure.md."""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """The consequence if records were deleted from Kafka before they could be archived. With Fail every run fails and
    names them, and nothing is recorded. With Record the run continues, and records the loss in the catalog and in the
    condition DataLoss. A run with Record also records a loss that runs with Fail have named."""
    on_divergence: OnDivergence = OnDivergence.FAIL
    """The consequence if the cluster has cut off what is archived of a partition (unclean leader election, lost disk).
    With Fail the run archives nothing more of the partition, and fails. With Branch it keeps the old end of the log
    next to the log as it is now, and archives that from the offset where the two part. Branch needs format Kafka."""
    on_unmatched: OnUnmatched | None = None
    """The consequence if a pattern in topics.include chooses no topic, if a topic that the archive holds is gone from
    the cluster, or if the user may not read a topic. With Fail the run fails after everything else is archived. With
    Warn it says so in warnings and in the condition Coverage. The default is Fail for patterns without wildcards and
    Warn for the rest."""
    dry_run: bool = False
    """If true, runs find out what they would archive and what would make them fail, and write nothing, also those of
    the schedule. With false the next run archives."""
    limits: BackupLimits = usual(BackupLimits)
    """How much of the Kafka cluster's network and brokers a run may use."""
    schedule: ScheduleSpec | None = None
    """When runs start by themselves, in the words of a CronJob. Two runs never continue at the same time. Runs that
    were missed are caught up by one."""
    suspend: bool = False
    """If true, the run stops and no other starts. The pods are deleted and what is committed stays. With false the run
    continues from there."""
    spark: SparkSpec = usual(SparkSpec)
    """The Spark application that does the work: one driver pod and some executor pods."""
    run_policy: RunPolicy = usual(RunPolicy)
    """How often a run is tried, how long it may take, and how long its Job is kept."""

    @model_validator(mode="after")
    def _fits_format(self) -> KafkaBackupSpec:
        if (self.archive_ref is None) == (self.storage is None):
            raise ValueError("exactly one of archiveRef and storage must be set")
        options = self.format_options
        if self.format is not FormatName.KAFKA and self.segment.compression is not Compression.PASSTHROUGH:
            raise ValueError("segment.compression may be Zstd only with format Kafka")
        if self.format is not FormatName.KAFKA:
            for name, default in _OF_PACKS.items():
                if getattr(self.segment, name) != default:
                    raise ValueError(f"segment.{to_camel(name)} may be set only with format Kafka")
        if self.format is not FormatName.KAFKA and self.on_divergence is OnDivergence.BRANCH:
            raise ValueError("onDivergence may be Branch only with format Kafka")
        if options.allow_loss and options.compatibility is not Compatibility.STRICT:
            raise ValueError("formatOptions.allowLoss may be true only with compatibility strict")
        if self.format is not FormatName.AVRO:
            for name in ("compatibility", "codec"):
                if getattr(options, name) is not None:
                    raise ValueError(f"formatOptions.{name} may be set only with format Avro")
        if self.format is not FormatName.KAFKA and self.compacted_topics is CompactedTopics.SNAPSHOT:
            raise ValueError("compactedTopics may be Snapshot only with format Kafka")
        if self.snapshots is not None and self.how_compacted is not CompactedTopics.SNAPSHOT:
            raise ValueError("snapshots may be set only where compactedTopics is Snapshot")
        if len({item.name for item in self.erasures or ()}) < len(self.erasures or ()):
            raise ValueError("each of erasures must have its own name")
        if self.generations is not None and self.how_compacted is not CompactedTopics.GENERATIONS:
            raise ValueError("generations may be set only where compactedTopics is Generations")
        return self

    @property
    def place(self) -> ArchiveSpec:
        """The archive's place. Raises SpecInvalid if the spec names a KafkaArchive instead: only the operator can look
        it up."""
        if self.storage is None:
            what = "only the operator can look up a KafkaArchive; write spec.storage, as in its spec"
            raise SpecInvalid([("spec.archiveRef", what)])
        return self.storage

    @property
    def how_compacted(self) -> CompactedTopics:
        """How compacted topics are kept: as the field says, or as is usual for the format."""
        usual = CompactedTopics.SNAPSHOT if self.format is FormatName.KAFKA else CompactedTopics.LOG
        return self.compacted_topics or usual

    @property
    def generation_cycle_ms(self) -> int | None:
        """The cycle of generations, None if compacted topics have none."""
        if self.how_compacted is not CompactedTopics.GENERATIONS:
            return None
        return (self.generations or Generations()).cycle_ms


def parse_backup(spec: Mapping[str, Any]) -> KafkaBackupSpec:
    """Return the typed spec; raises SpecInvalid whose problems name the fields (`spec.topics.include[0]`)."""
    return parse_model(KafkaBackupSpec, spec)

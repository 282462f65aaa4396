"""Typed specs of `KafkaBackup` and `KafkaRestore`, as written in YAML.

The CRDs in `crds/` are the single source of what a resource may say; a test keeps these models equal to them. Unknown
fields are refused. Field names are camelCase in YAML and snake_case in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from logkeep_engine.contract.anchor import AnchorText
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.cluster_state import ClusterStateMode, RestoredAcls, SchemaTopic, refuse_contradictions
from logkeep_engine.contract.compacted import CompactedTopics, Generations, Snapshots
from logkeep_engine.contract.drill import DrillSpec
from logkeep_engine.contract.emitting import Emit, EmitOptions
from logkeep_engine.contract.erasures import MAX_ERASURES, Erasure
from logkeep_engine.contract.model import Model
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.pattern_lists import Patterns, SomePatterns
from logkeep_engine.contract.pods import PodTemplate
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.reconcile import ReconcileSpec
from logkeep_engine.contract.restored_topics import Renames, RestoreTopics, TopicName, TopicRetention
from logkeep_engine.contract.retention import Retention
from logkeep_engine.contract.retrieval import Retrieval, refuse_without_classes
from logkeep_engine.contract.schedule import ScheduleSpec
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec
from logkeep_engine.contract.values import (
    BytesPerSecond,
    Cores,
    MergeCount,
    PackBytes,
    Percent,
    Quantity,
    ResourceName,
    SegmentBytes,
    parse_quantity,
)

GROUP = "logkeep.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# A Job that is gone before the operator saw it finished would be made again; five minutes outlast a restart of it.
MIN_TTL_SECONDS = 300
# A driver whose node is dead never ends by itself; a week is longer than any run that gets on.
DEFAULT_DEADLINE_SECONDS = 7 * 86400
MIB = 1 << 20
HEAP_MIN_MIB = 512  # Spark refuses a heap below 450 MiB, and the JVM reports somewhat less than -Xmx
TASK_MIB = 256  # a task of the engine needs at most so much above the interpreter
DRIVER_MIN_MIB = HEAP_MIN_MIB + TASK_MIB


class Topics(Model):
    """Regular expressions that must match the whole name."""

    include: SomePatterns
    exclude: Patterns = ()
    internal: bool = False


class ConsumerGroups(Model):
    include: Patterns = (".*",)
    exclude: Patterns = ()


class FormatName(StrEnum):
    """In which format an archive holds what was in the topics.

    `Kafka`: record batches as the broker has them, nothing is lost. `Records`: the files of `kafka-backup`. `Avro`:
    Avro container files.
    """

    KAFKA = "Kafka"
    RECORDS = "Records"
    AVRO = "Avro"


class Compatibility(StrEnum):
    """`lossless`: the published Avro schema with added fields. `strict`: the published schema as it is."""

    LOSSLESS = "lossless"
    STRICT = "strict"


class AvroCodec(StrEnum):
    """The compression of the blocks of an Avro object."""

    NONE = "none"
    DEFLATE = "deflate"
    SNAPPY = "snappy"
    ZSTANDARD = "zstandard"


class FormatOptions(Model):
    """`allowLoss`: continue where strict Avro cannot hold something that records carry. All are of format Avro."""

    allow_loss: bool = False
    compatibility: Compatibility | None = None
    codec: AvroCodec | None = None


class Compression(StrEnum):
    """`Passthrough`: batches lie in the archive as Kafka has them. `Zstd`: segments are compressed as a whole besides,
    which pays where producers do not compress, or poorly.
    """

    PASSTHROUGH = "Passthrough"
    ZSTD = "Zstd"


class DigestAlgorithm(StrEnum):
    """The algorithm of the digest by which every byte of an archived object is known again."""

    SHA256 = "Sha256"
    BLAKE3 = "Blake3"


DEFAULT_DIGEST = DigestAlgorithm.BLAKE3
DEFAULT_PACK_BELOW = "8Mi"
DEFAULT_MERGE_COUNT = 16
DEFAULT_LIVE_PERCENT = 25
_OF_PACKS = {
    "pack_below": DEFAULT_PACK_BELOW,
    "merge_count": DEFAULT_MERGE_COUNT,
    "live_percent": DEFAULT_LIVE_PERCENT,
}


class SegmentSpec(Model):
    """`maxBytes` bounds the log before it is compressed: positions in a Kafka index are those of the plain log.
    `packBelow` is about the bytes that are stored; 0: each segment has its own objects. Segments in packs are merged
    with their neighbours once these have `mergeCount` times the bytes of the largest; 0: never. A pack of which less
    than `livePercent` are still in use is cleared."""

    max_bytes: SegmentBytes = "512Mi"
    compression: Compression = Compression.PASSTHROUGH
    digest: DigestAlgorithm = DEFAULT_DIGEST
    record_digests: bool = False
    pack_below: PackBytes = DEFAULT_PACK_BELOW
    merge_count: MergeCount = DEFAULT_MERGE_COUNT
    live_percent: Percent = DEFAULT_LIVE_PERCENT

    @property
    def pack_below_int(self) -> int:
        return parse_quantity(self.pack_below)

    @property
    def max_bytes_int(self) -> int:
        return parse_quantity(self.max_bytes)


class OnDataLoss(StrEnum):
    FAIL = "Fail"
    RECORD = "Record"


class OnDivergence(StrEnum):
    """`Fail`: a partition whose log was cut off below the archive is refused. `Branch`: what is archived of the old log
    is kept beside, and the log as it is now continues where they part.
    """

    FAIL = "Fail"
    BRANCH = "Branch"


class OnUnmatched(StrEnum):
    """For patterns in `topics.include` that choose no topic, topics that vanished, and those the user may not read.

    `Fail`: the run fails when everything else is archived. `Warn`: it is told.
    """

    FAIL = "Fail"
    WARN = "Warn"


class RestoreLimits(Model):
    """`bytesPerSecond`: of record batches as they are on the wire, for the whole run."""

    bytes_per_second: BytesPerSecond | None = None

    @property
    def bytes_per_second_int(self) -> int | None:
        return None if self.bytes_per_second is None else parse_quantity(self.bytes_per_second)


class BackupLimits(RestoreLimits):
    """`readersPerBroker`: partitions read from one leader at the same time, by the whole run."""

    readers_per_broker: Annotated[int, Field(ge=1, le=1000)] = 16


class DriverSpec(Model):
    """`cores`: how many tasks the driver works on at once when it does the work itself."""

    cores: Annotated[int, Field(ge=1)] = 1
    core_request: Cores = "250m"
    core_limit: Cores | None = None
    memory: Quantity = "768Mi"
    pod_template: PodTemplate | None = None

    @property
    def slots(self) -> int:
        """How many tasks the driver works on at once itself: no more than its memory holds beside what plans."""
        return max(1, min(self.cores, (parse_quantity(self.memory) // MIB - DRIVER_MIN_MIB) // TASK_MIB))


class ExecutorSpec(Model):
    instances: Annotated[int, Field(ge=1, le=1000)] = 2
    cores: Annotated[int, Field(ge=1, le=64)] = 1
    core_request: Cores | None = None
    core_limit: Cores | None = None
    memory: Quantity = "1Gi"
    pod_template: PodTemplate | None = None

    @property
    def slots(self) -> int:
        """How many tasks run at once when all executors are there."""
        return self.instances * self.cores


class SparkSpec(Model):
    image: Annotated[str, Field(min_length=1)] | None = None
    driver: DriverSpec = DriverSpec()
    executor: ExecutorSpec = ExecutorSpec()
    conf: dict[str, str] = Field(default={})
    service_account_name: ResourceName | None = None


class RunPolicy(Model):
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    active_deadline_seconds: Annotated[int, Field(ge=1)] = DEFAULT_DEADLINE_SECONDS
    ttl_seconds_after_finished: Annotated[int, Field(ge=MIN_TTL_SECONDS)] = 86400
    job_labels: dict[str, str] = Field(default={})


class KafkaBackupSpec(Model):
    cluster: ClusterSpec
    topics: Topics
    consumer_groups: ConsumerGroups = ConsumerGroups()
    cluster_state: ClusterStateMode = ClusterStateMode.ARCHIVE
    storage: ArchiveSpec
    format: FormatName = FormatName.KAFKA
    format_options: FormatOptions = FormatOptions()
    segment: SegmentSpec = SegmentSpec()
    compacted_topics: CompactedTopics | None = None
    snapshots: Snapshots | None = None
    generations: Generations | None = None
    reconcile: ReconcileSpec | None = None
    retention: Retention = Retention()
    erasures: Annotated[tuple[Erasure, ...], Field(max_length=MAX_ERASURES)] | None = None
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_divergence: OnDivergence = OnDivergence.FAIL
    on_unmatched: OnUnmatched | None = None
    dry_run: bool = False
    limits: BackupLimits = BackupLimits()
    schedule: ScheduleSpec | None = None
    suspend: bool = False
    spark: SparkSpec = SparkSpec()
    run_policy: RunPolicy = RunPolicy()

    @model_validator(mode="after")
    def _fits_format(self) -> KafkaBackupSpec:
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
            raise ValueError("each of erasures must have a name of its own")
        if self.generations is not None and self.how_compacted is not CompactedTopics.GENERATIONS:
            raise ValueError("generations may be set only where compactedTopics is Generations")
        return self

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


class BackupRef(Model):
    """A KafkaBackup in the same namespace: its `storage` is the source."""

    name: ResourceName


TopicId = Annotated[str, Field(min_length=1, max_length=64)]


class SourceSpec(Model):
    """`topicIds`: topic id by topic name, where another incarnation is wanted than the newest that has records.
    `expectCommit`: a commit that the archive must have, instead of the one that the KafkaBackup's status knows."""

    backup_ref: BackupRef | None = None
    storage: ArchiveSpec | None = None
    expect_commit: AnchorText | None = None
    topic_ids: dict[str, TopicId] = Field(default={})
    retrieval: Retrieval | None = None

    @model_validator(mode="after")
    def _one(self) -> SourceSpec:
        if (self.backup_ref is None) == (self.storage is None):
            raise ValueError("exactly one of backupRef and storage must be set")
        refuse_without_classes(self.retrieval, self.storage)
        return self


class IfTopicExists(StrEnum):
    """`Append`: write after what is there. `Replace`: delete the topic and create it again. `Resume`: continue with
    what an earlier restore of the same settings has begun.
    """

    FAIL = "Fail"
    APPEND = "Append"
    REPLACE = "Replace"
    RESUME = "Resume"


class RestoreOffsets(StrEnum):
    """`Any`: records get the offsets that the target gives them, and offset maps say which. `Same`: every record gets
    its source offset, or nothing is restored.
    """

    ANY = "Any"
    SAME = "Same"


class OnDamagedArchive(StrEnum):
    """`Refuse`: every object is read and checked before the first record is written, and a backup must have come to its
    end. `Skip`: what is whole is restored.
    """

    REFUSE = "Refuse"
    SKIP = "Skip"


class BatchCompression(StrEnum):
    """The compression of batches that are made from records."""

    NONE = "None"
    GZIP = "Gzip"
    SNAPPY = "Snappy"
    LZ4 = "Lz4"
    ZSTD = "Zstd"


class RecordBatches(Model):
    """How records of an archive of format Records or Avro become batches again."""

    max_records: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    compression: BatchCompression | None = None


class GroupRestore(StrEnum):
    """`Translate`: positions of consumer groups are set to the restored records they stood before."""

    NONE = "None"
    TRANSLATE = "Translate"


class RestoreVerification(StrEnum):
    """`Counts`: the brokers are asked whether they still have all that was written. `Full`: the target is read back and
    compared with the archive, record by record."""

    COUNTS = "Counts"
    FULL = "Full"


class RestoreGroups(ConsumerGroups):
    restore: GroupRestore = GroupRestore.NONE
    rename: Renames = ()

    @model_validator(mode="after")
    def _chooses_what_is_moved(self) -> RestoreGroups:
        if self.restore is GroupRestore.NONE:
            for name in ("include", "exclude", "rename"):
                if getattr(self, name) != RestoreGroups.model_fields[name].default:
                    raise ValueError(
                        f"{name} has no effect with restore None, which moves no group; set restore to Translate, "
                        f"or leave {name} out"
                    )
        return self


class KafkaRestoreSpec(Model):
    """`state`: where the restore keeps what it must know to continue; None: beside the archive. `confirm`: the target
    topics that may be replaced. `acls`: the ACLs of everything that need a word. With `drill` nothing is restored for
    good, with `dryRun` nothing is written. `emit`: what is written for others to apply.
    """

    source: SourceSpec
    point: PointSpec | None = None
    state: StorageSpec | None = None
    cluster: ClusterSpec
    everything: bool = False
    schema_topic: SchemaTopic | None = None
    acls: RestoredAcls | None = None
    topics: RestoreTopics = RestoreTopics()
    if_topic_exists: IfTopicExists = IfTopicExists.FAIL
    confirm: tuple[TopicName, ...] = ()
    offsets: RestoreOffsets = RestoreOffsets.ANY
    on_damaged_archive: OnDamagedArchive = OnDamagedArchive.REFUSE
    allow_empty: bool = False
    consumer_groups: RestoreGroups = RestoreGroups()
    record_batches: RecordBatches = RecordBatches()
    verify: RestoreVerification = RestoreVerification.COUNTS
    dry_run: bool = False
    drill: DrillSpec | None = None
    emit: Emit = Emit.NONE
    emit_options: EmitOptions = EmitOptions()
    limits: RestoreLimits = RestoreLimits()
    suspend: bool = False
    spark: SparkSpec = SparkSpec()
    run_policy: RunPolicy = RunPolicy()

    @model_validator(mode="after")
    def _contradicts_nothing(self) -> KafkaRestoreSpec:
        refuse_contradictions(self)
        return self

    @model_validator(mode="after")
    def _confirms_what_is_replaced(self) -> KafkaRestoreSpec:
        how = self.if_topic_exists
        if how is IfTopicExists.REPLACE and not self.confirm:
            raise ValueError("ifTopicExists: Replace deletes topics: confirm must name those that may be deleted")
        if self.confirm and how not in (IfTopicExists.REPLACE, IfTopicExists.RESUME):
            raise ValueError("confirm has an effect only with ifTopicExists: Replace or Resume; leave it out")
        if len(set(self.confirm)) < len(self.confirm):
            raise ValueError("confirm names a topic twice")
        return self

    @model_validator(mode="after")
    def _offsets_can_be_kept(self) -> KafkaRestoreSpec:
        same, full = self.offsets is RestoreOffsets.SAME, self.verify is RestoreVerification.FULL
        if same and self.if_topic_exists is IfTopicExists.APPEND:
            raise ValueError("offsets may be Same only in new topics: ifTopicExists may not be Append with it")
        groups = self.consumer_groups.restore is not GroupRestore.NONE
        self.topics.refuse_with_count(same=same, groups=groups, full=full, drill=self.drill is not None)
        return self

    @model_validator(mode="after")
    def _only_new_topics_in_a_drill(self) -> KafkaRestoreSpec:
        if self.drill is None:
            return self
        if self.if_topic_exists is not IfTopicExists.FAIL:
            raise ValueError("ifTopicExists may only be Fail with drill, which writes to topics of its own")
        if self.consumer_groups.restore is not GroupRestore.NONE:
            raise ValueError("consumerGroups.restore may only be None with drill, which moves no groups")
        if self.topics.rename:
            raise ValueError("topics.rename has no effect with drill, which gives its topics names of its own")
        if self.source.retrieval is not None:
            raise ValueError("source.retrieval has no effect with drill, which leaves cold objects out")
        if self.topics.retention is not TopicRetention.REFUSE:
            raise ValueError("topics.retention has no effect with drill, which deletes its topics")
        if self.dry_run:
            raise ValueError("dryRun has no effect with drill, which writes to topics of its own")
        return self

    @model_validator(mode="after")
    def _emits_what_it_creates(self) -> KafkaRestoreSpec:
        strimzi, hold_for = self.cluster.strimzi is not None, self.topics.hold_for
        self.emit_options.check(self.emit, strimzi=strimzi, drill=self.drill is not None, hold_for=hold_for)
        return self


def parse_backup(spec: Mapping[str, Any]) -> KafkaBackupSpec:
    """The typed spec; raises SpecInvalid whose problems name the fields (`spec.topics.include[0]`)."""
    return parse_model(KafkaBackupSpec, spec)


def parse_restore(spec: Mapping[str, Any]) -> KafkaRestoreSpec:
    """The typed spec; raises SpecInvalid whose problems name the fields."""
    return parse_model(KafkaRestoreSpec, spec)

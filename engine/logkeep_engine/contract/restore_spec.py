"""The typed spec of a `KafkaRestore`, as written in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from logkeep_engine.contract.anchor import AnchorText
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.cluster_state import RestoredAcls, SchemaTopic, refuse_contradictions
from logkeep_engine.contract.drill import DrillSpec
from logkeep_engine.contract.emitting import Emit, EmitOptions
from logkeep_engine.contract.model import SET, Model, rules, schema, usual
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.references import ArchiveRef
from logkeep_engine.contract.restored_topics import Renames, RestoreTopics, TopicName, TopicRetention
from logkeep_engine.contract.retrieval import Retrieval, refuse_without_classes
from logkeep_engine.contract.running import RestoreLimits, RunPolicy, SparkSpec
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec
from logkeep_engine.contract.values import (
    ResourceName,
)


class BackupRef(Model):
    """A KafkaBackup in the same namespace: its archive is the source."""

    name: ResourceName
    """Name of the KafkaBackup."""


TopicId = Annotated[str, Field(min_length=1, max_length=64)]


class SourceSpec(Model):
    """`topicIds`: topic id by topic name, where another incarnation is needed than the newest that has records.
    `expectCommit`: a commit that the archive must have, instead of the one that the status of the KafkaBackup or the
    KafkaArchive knows."""

    model_config = rules(
        (
            "[has(self.backupRef), has(self.archiveRef), has(self.storage)].exists_one(set, set)",
            "exactly one of backupRef, archiveRef and storage must be set",
        ),
        (
            "!has(self.retrieval) || !has(self.storage) || !self.storage.uri.matches('^(file|gs):')",
            "retrieval has no effect with a file:// or gs:// uri: all objects there can be read at once",
        ),
    )

    backup_ref: BackupRef | None = None
    """A KafkaBackup in the same namespace whose archive is the source."""
    archive_ref: ArchiveRef | None = None
    """A KafkaArchive in the same namespace whose storage is the source, with or without a KafkaBackup that writes
    it."""
    storage: ArchiveSpec | None = None
    """The place of an archive, with or without a KafkaBackup that writes it."""
    expect_commit: AnchorText | None = None
    """A commit that the archive must have, with all commits before it: its number and a SHA-256, as logkeep inspect and
    the status.archive.anchor of a KafkaBackup or a KafkaArchive name it. With backupRef and archiveRef it takes the
    place of that anchor: so an archive that was rolled back is restored only if you name what you have seen."""
    topic_ids: Annotated[dict[str, TopicId], schema(maxProperties=500)] = Field(default={})
    """Which incarnation to restore of a topic that was deleted and created again while it was archived: topic name and
    topic id. For a topic whose log the cluster has cut off it may be the id of a branch. By default the newest
    incarnation that has records is restored. The command logkeep inspect shows the ids."""
    retrieval: Retrieval | None = None
    """Has objects retrieved that the restore reads and that lie in a cold storage class (GLACIER, DEEP_ARCHIVE, the
    archive tiers of INTELLIGENT_TIERING), and waits until all can be read. The store bills it. Without this field such
    a restore is refused."""

    @model_validator(mode="after")
    def _one(self) -> SourceSpec:
        if [self.backup_ref, self.archive_ref, self.storage].count(None) != 2:
            raise ValueError("exactly one of backupRef, archiveRef and storage must be set")
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
    """The most records of a batch. A batch never has more than about 900 kB of records. The default is 10000."""
    compression: BatchCompression | None = None
    """Compression of the batches. The default is Lz4."""


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
    model_config = rules(
        (
            "has(self.restore) && self.restore != 'None' || !has(self.include) || self.include == ['.*']",
            "include has no effect with restore None, which moves no group; set restore to Translate, or leave "
            "include out",
        ),
        (
            "has(self.restore) && self.restore != 'None' || !has(self.exclude) || size(self.exclude) == 0",
            "exclude has no effect with restore None, which moves no group; set restore to Translate, or leave "
            "exclude out",
        ),
        (
            "has(self.restore) && self.restore != 'None' || !has(self.rename) || size(self.rename) == 0",
            "rename has no effect with restore None, which moves no group; set restore to Translate, or leave rename "
            "out",
        ),
    )

    restore: GroupRestore = GroupRestore.NONE
    """None leaves the groups of the target as they are. Translate looks up the record at each archived position, and
    commits the offset of that record in the target."""
    rename: Renames = ()
    """New names of groups: the first rule that matches is used. Two groups never get one name: such a restore is
    refused."""

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
    """The topics to restore, from where, and to where."""

    model_config = rules(
        (
            "!has(self.offsets) || self.offsets != 'Same' || !has(self.ifTopicExists) || self.ifTopicExists != "
            "'Append'",
            "offsets may be Same only in new topics: ifTopicExists may not be Append with it",
        ),
        (
            "!has(self.schemaTopic) || has(self.everything) && self.everything",
            "schemaTopic may be set only with everything",
        ),
        (
            "!has(self.acls) || has(self.everything) && self.everything",
            "acls may be set only with everything",
        ),
        (
            "!has(self.everything) || !self.everything || !has(self.confirm) || size(self.confirm) == 0",
            "confirm has no effect with everything, which replaces no topic; leave it out",
        ),
        (
            "!has(self.everything) || !self.everything || self.topics.include == ['.*'] && "
            "self.topics.exclude.size() == 0 && self.topics.rename.size() == 0 && self.topics.partitions.size() == 0",
            "topics.include, topics.exclude, topics.rename and topics.partitions must be left out with everything, "
            "which restores all topics completely and under their names",
        ),
        (
            "!has(self.everything) || !self.everything || !has(self.topics.partitionCount)",
            "topics.partitionCount may not be given with everything, which sets the positions of all consumer groups",
        ),
        (
            "!has(self.everything) || !self.everything || self.topics.configs.policy == 'Restore'",
            "topics.configs.policy may only be Restore with everything, which restores configurations; override and "
            "ignore may name single keys",
        ),
        (
            "!has(self.everything) || !self.everything || self.consumerGroups.include == ['.*'] && "
            "self.consumerGroups.exclude.size() == 0 && self.consumerGroups.rename.size() == 0",
            "consumerGroups.include, consumerGroups.exclude and consumerGroups.rename must be left out with "
            "everything, which restores all groups under their names",
        ),
        (
            "!has(self.everything) || !self.everything || self.ifTopicExists in ['Fail', 'Resume']",
            "ifTopicExists may only be Fail or Resume with everything, which changes no topic that the cluster has",
        ),
        (
            "!has(self.everything) || !self.everything || !has(self.point) || !has(self.point.offsets) && "
            "!has(self.point.window)",
            "point must be that of a run, or have asOf or timestamp, with everything: the state of a cluster is that "
            "of a run",
        ),
        (
            "!has(self.everything) || !self.everything || !has(self.drill)",
            "drill may not be set with everything, which writes to the cluster itself",
        ),
        (
            "!has(self.dryRun) || !self.dryRun || has(oldSelf.dryRun) && oldSelf.dryRun",
            "dryRun cannot be set to true again: the restore has begun; create another KafkaRestore",
        ),
        (
            "!has(self.drill) || !has(self.dryRun) || !self.dryRun",
            "dryRun has no effect with drill, which writes to its own topics",
        ),
        (
            "!has(self.drill) || !has(self.ifTopicExists) || self.ifTopicExists == 'Fail'",
            "ifTopicExists may only be Fail with drill, which writes to its own topics",
        ),
        (
            "!has(self.drill) || !has(self.consumerGroups) || !has(self.consumerGroups.restore) || "
            "self.consumerGroups.restore == 'None'",
            "consumerGroups.restore may only be None with drill, which moves no groups",
        ),
        (
            "!has(self.drill) || !has(self.topics) || !has(self.topics.rename) || self.topics.rename.size() == 0",
            "topics.rename has no effect with drill, which gives its topics their own names",
        ),
        (
            "!has(self.drill) || !has(self.source.retrieval)",
            "source.retrieval has no effect with drill, which leaves cold objects out",
        ),
        (
            "!has(self.drill) || !has(self.topics) || !has(self.topics.retention) || self.topics.retention == 'Refuse'",
            "topics.retention has no effect with drill, which deletes its topics",
        ),
        (
            "!has(self.topics.holdFor) || !has(self.emit) || self.emit == 'None'",
            "topics.holdFor may not be given with emit: the KafkaTopics hold the topics, too, and Strimzi's topic "
            "operator would undo the release. Leave it out; change the KafkaTopics when you release",
        ),
        (
            "!has(self.drill) || !has(self.emit) || self.emit == 'None'",
            "emit may only be None with drill, which deletes its topics",
        ),
        (
            "has(self.emit) && self.emit != 'None' || !has(self.emitOptions) || "
            "!has(self.emitOptions.strimziCluster) && !has(self.emitOptions.strimziApi)",
            "emitOptions has no effect with emit None; leave it out",
        ),
        (
            "!has(self.emit) || self.emit == 'None' || has(self.cluster.strimzi) || has(self.emitOptions) && "
            "has(self.emitOptions.strimziCluster)",
            "emitOptions.strimziCluster must be set with emit, unless cluster.strimzi names a Kafka resource",
        ),
        (
            "!has(self.topics) || !has(self.topics.partitionCount) || !has(self.offsets) || self.offsets == 'Any'",
            "topics.partitionCount gives records other offsets: offsets may not be Same with it",
        ),
        (
            "!has(self.topics) || !has(self.topics.partitionCount) || !has(self.consumerGroups) || "
            "!has(self.consumerGroups.restore) || self.consumerGroups.restore == 'None'",
            "topics.partitionCount leaves no offset that corresponds to a position: consumerGroups.restore may only be "
            "None with it",
        ),
        (
            "!has(self.topics) || !has(self.topics.partitionCount) || !has(self.verify) || self.verify == 'Counts'",
            "topics.partitionCount mixes records of several partitions: verify may only be Counts",
        ),
        (
            "!has(self.topics) || !has(self.topics.partitionCount) || !has(self.drill)",
            "topics.partitionCount may not be given with drill, which verifies fully",
        ),
        (
            "!has(self.ifTopicExists) || self.ifTopicExists != 'Replace' || has(self.confirm) && size(self.confirm) "
            "> 0",
            "ifTopicExists: Replace deletes topics: confirm must name those that may be deleted",
        ),
        (
            "has(self.ifTopicExists) && self.ifTopicExists in ['Replace', 'Resume'] || !has(self.confirm) || "
            "size(self.confirm) == 0",
            "confirm has an effect only with ifTopicExists: Replace or Resume; leave it out",
        ),
        (
            "has(oldSelf.dryRun) && oldSelf.dryRun || has(self.source) == has(oldSelf.source) && (!has(self.source) "
            "|| self.source == oldSelf.source || (has(self.source.archiveRef) && (has(oldSelf.source.archiveRef) || "
            "has(oldSelf.source.storage)) || has(self.source.storage) && has(oldSelf.source.archiveRef)) && "
            "self.source.topicIds == oldSelf.source.topicIds && has(self.source.expectCommit) == "
            "has(oldSelf.source.expectCommit) && (!has(self.source.expectCommit) || self.source.expectCommit == "
            "oldSelf.source.expectCommit) && has(self.source.retrieval) == has(oldSelf.source.retrieval) && "
            "(!has(self.source.retrieval) || self.source.retrieval == oldSelf.source.retrieval)) && "
            "has(self.cluster) == has(oldSelf.cluster) && (!has(self.cluster) "
            "|| self.cluster == oldSelf.cluster) && self.topics.include == oldSelf.topics.include && "
            "self.topics.exclude == oldSelf.topics.exclude && self.topics.rename == oldSelf.topics.rename && "
            "has(self.topics.replicationFactor) == has(oldSelf.topics.replicationFactor) && "
            "(!has(self.topics.replicationFactor) || self.topics.replicationFactor == "
            "oldSelf.topics.replicationFactor) && self.topics.configs == oldSelf.topics.configs && "
            "self.topics.retention == oldSelf.topics.retention && has(self.topics.partitionCount) == "
            "has(oldSelf.topics.partitionCount) && (!has(self.topics.partitionCount) || self.topics.partitionCount "
            "== oldSelf.topics.partitionCount) && has(self.topics.partitioner) == has(oldSelf.topics.partitioner) && "
            "(!has(self.topics.partitioner) || self.topics.partitioner == oldSelf.topics.partitioner) && "
            "self.topics.partitions == oldSelf.topics.partitions && has(self.ifTopicExists) == "
            "has(oldSelf.ifTopicExists) && (!has(self.ifTopicExists) || self.ifTopicExists == oldSelf.ifTopicExists) "
            "&& has(self.offsets) == has(oldSelf.offsets) && (!has(self.offsets) || self.offsets == oldSelf.offsets) "
            "&& has(self.onDamagedArchive) == has(oldSelf.onDamagedArchive) && (!has(self.onDamagedArchive) || "
            "self.onDamagedArchive == oldSelf.onDamagedArchive) && has(self.allowEmpty) == has(oldSelf.allowEmpty) "
            "&& (!has(self.allowEmpty) || self.allowEmpty == oldSelf.allowEmpty) && has(self.consumerGroups) == "
            "has(oldSelf.consumerGroups) && (!has(self.consumerGroups) || self.consumerGroups == "
            "oldSelf.consumerGroups) && has(self.recordBatches) == has(oldSelf.recordBatches) && "
            "(!has(self.recordBatches) || self.recordBatches == oldSelf.recordBatches) && has(self.verify) == "
            "has(oldSelf.verify) && (!has(self.verify) || self.verify == oldSelf.verify) && has(self.state) == "
            "has(oldSelf.state) && (!has(self.state) || self.state == oldSelf.state) && has(self.point) == "
            "has(oldSelf.point) && (!has(self.point) || self.point == oldSelf.point) && has(self.everything) == "
            "has(oldSelf.everything) && (!has(self.everything) || self.everything == oldSelf.everything) && "
            "has(self.schemaTopic) == has(oldSelf.schemaTopic) && (!has(self.schemaTopic) || self.schemaTopic == "
            "oldSelf.schemaTopic) && has(self.acls) == has(oldSelf.acls) && (!has(self.acls) || self.acls == "
            "oldSelf.acls) && has(self.confirm) == has(oldSelf.confirm) && (!has(self.confirm) || self.confirm == "
            "oldSelf.confirm) && has(self.drill) == has(oldSelf.drill) && (!has(self.drill) || self.drill == "
            "oldSelf.drill) && has(self.emit) == has(oldSelf.emit) && (!has(self.emit) || self.emit == oldSelf.emit) "
            "&& has(self.emitOptions) == has(oldSelf.emitOptions) && (!has(self.emitOptions) || self.emitOptions == "
            "oldSelf.emitOptions)",
            "the spec of a KafkaRestore cannot be changed, except suspend, limits, spark, runPolicy and "
            "topics.holdFor, unless dryRun is true; create another KafkaRestore",
        ),
    )

    source: SourceSpec
    """The archive to restore from."""
    point: PointSpec | None = None
    """Which state of the topics to restore. By default it is the newest of the archive. A transaction is restored whole
    or not at all, by its marker (asOf, offsets) or by the time of its latest record (timestamp, window). Consumer
    groups have the newest positions that were archived before the point."""
    state: StorageSpec | None = None
    """Where the restore keeps its plan, its offset maps and its result. By default that is next to the archive, which
    must then be writable. With state, nothing is written to the archive."""
    cluster: ClusterSpec
    """The Kafka cluster to restore to."""
    everything: bool = False
    """If true, the restore brings a whole cluster back: all topics under their names, the one with the schemas first,
    the positions of all consumer groups, and the client quotas and ACLs that the run has archived. What the cluster has
    already is never changed or deleted. SCRAM users are named, to be created with new passwords. Needs DESCRIBE, ALTER,
    DESCRIBE_CONFIGS and ALTER_CONFIGS on the cluster."""
    schema_topic: SchemaTopic | None = None
    """The topic that is restored before all others, since records of others may need its schemas. Only with everything.
    The default is _schemas."""
    acls: RestoredAcls | None = None
    """Archived ACLs that come back only if they are named here, since they reach further than one named resource and
    one principal whom the cluster knows. Only with everything. What is held back is listed in status.clusterState, and
    before the restore by a dry run. The cluster knows the principals of its own ACLs that allow something, and its
    SCRAM users. An ACL that needs several of these words comes back if all of them are given."""
    topics: RestoreTopics = usual(RestoreTopics)
    """Which topics of the archive, and their names in the target."""
    if_topic_exists: IfTopicExists = IfTopicExists.FAIL
    """The consequence if a topic to restore is there already. Fail ends the run before anything is written. Append
    writes after what is there. Replace deletes the topic with all that it holds, and creates it again; confirm must
    name it. Needs DELETE on the topic. Resume continues with what an earlier KafkaRestore has begun and not ended. It
    must have had the same settings (source, point, topics, offsets, onDamagedArchive, consumerGroups, recordBatches),
    the same Kafka cluster, and its state in the same place. If none is known, Resume is as Fail."""
    confirm: Annotated[tuple[TopicName, ...], SET, schema(maxItems=5000)] = ()
    """The topics of the target that may be replaced, by their names there. If a topic that would be replaced is
    not named, or a name is not that of a restored topic, the run ends before anything is written. With Resume it
    names the topics that the earlier KafkaRestore was to replace, and has not deleted yet."""
    offsets: RestoreOffsets = RestoreOffsets.ANY
    """The offsets of restored records. Any takes those that the target gives, and offset maps say which. Same gives
    every record its source offset, in topics that the restore creates. Offsets without a record are filled with
    transactions, whose records no reader of committed records sees. Needs WRITE on transactional ids that begin with
    logkeep-, and DELETE on topics that start above offset 0."""
    on_damaged_archive: OnDamagedArchive = OnDamagedArchive.REFUSE
    """The consequence if the archive is damaged. Every object is read and checked before the first record is written.
    Refuse then ends the run if an object is damaged, or if no backup has come to its end. Skip restores what is whole,
    also of a first backup that has not ended, and lists the rest as loss."""
    allow_empty: bool = False
    """Whether a restore may bring no record at all. By default such a restore ends with the reason NothingToRestore,
    before anything is written. Of a point in a large archive it may show only at the end that no record lies within
    it."""
    consumer_groups: RestoreGroups = usual(RestoreGroups)
    """The treatment of the archived positions of consumer groups."""
    record_batches: RecordBatches = usual(RecordBatches)
    """How records become batches again, from archives of format Records or Avro. Not for format Kafka, whose batches
    are restored as they are."""
    verify: RestoreVerification = RestoreVerification.COUNTS
    """Counts asks the brokers at the end whether they still have all that was written. Full also reads the target back
    and compares it with the archive, record by record, and leaves a report in the archive. A restore whose target
    differs fails."""
    dry_run: bool = False
    """If true, the run finds out what the restore would do and all that would refuse it, and writes nothing: not to
    Kafka, not to the archive, not to its state. While it is true, the whole spec may be changed, and each change starts
    another dry run. With false the restore begins, and it cannot be set to true again."""
    drill: DrillSpec | None = None
    """Makes a drill of the restore. It restores into topics of other names, compares them with the archive record by
    record (as with verify Full), measures the time, deletes the topics, and leaves a report in the archive."""
    emit: Emit = Emit.NONE
    """KafkaTopics writes the topics that the restore creates as KafkaTopics of Strimzi to a ConfigMap, for Git.
    status.emitted names it. With dryRun the ConfigMap is there too, and nothing is restored."""
    emit_options: EmitOptions = usual(EmitOptions)
    """Whose KafkaTopics they are."""
    limits: RestoreLimits = usual(RestoreLimits)
    """How much of the Kafka cluster's network and brokers a run may use."""
    suspend: bool = False
    """If true, the run stops and no other starts. The pods are deleted and what is committed stays. With false the run
    continues from there."""
    spark: SparkSpec = usual(SparkSpec)
    """The Spark application that does the work: one driver pod and some executor pods."""
    run_policy: RunPolicy = usual(RunPolicy)
    """How often a run is tried, how long it may take, and how long its Job is kept."""

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
            raise ValueError("ifTopicExists may only be Fail with drill, which writes to its own topics")
        if self.consumer_groups.restore is not GroupRestore.NONE:
            raise ValueError("consumerGroups.restore may only be None with drill, which moves no groups")
        if self.topics.rename:
            raise ValueError("topics.rename has no effect with drill, which gives its topics their own names")
        if self.source.retrieval is not None:
            raise ValueError("source.retrieval has no effect with drill, which leaves cold objects out")
        if self.topics.retention is not TopicRetention.REFUSE:
            raise ValueError("topics.retention has no effect with drill, which deletes its topics")
        if self.dry_run:
            raise ValueError("dryRun has no effect with drill, which writes to its own topics")
        return self

    @model_validator(mode="after")
    def _emits_what_it_creates(self) -> KafkaRestoreSpec:
        strimzi, hold_for = self.cluster.strimzi is not None, self.topics.hold_for
        self.emit_options.check(self.emit, strimzi=strimzi, drill=self.drill is not None, hold_for=hold_for)
        return self


def parse_restore(spec: Mapping[str, Any]) -> KafkaRestoreSpec:
    """Return the typed spec; raises SpecInvalid whose problems name the fields."""
    return parse_model(KafkaRestoreSpec, spec)

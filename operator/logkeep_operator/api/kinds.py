"""The kinds of resources: the models of their specs and statuses, and how `kubectl get` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from logkeep_engine.contract.archive_spec import KafkaArchiveSpec
from logkeep_engine.contract.backup_run_spec import KafkaBackupRunSpec
from logkeep_engine.contract.names import BACKUP, BACKUP_RUN, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_operator.api.archive import KafkaArchiveStatus
from logkeep_operator.api.backup_run import RequestedStatus
from logkeep_operator.api.status import Status


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`, which only `-o wide` shows if it is `wide`. Its type is that of the field, unless it
    is given: `kubectl` shows no date that is to come."""

    name: str
    path: str
    type: str | None = None
    wide: bool = False


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resources. `short` is its short name for `kubectl`, `description` says what it is."""

    spec: type[BaseModel]
    status: type[BaseModel]
    short: str
    description: str
    columns: tuple[Column, ...]


RESOURCES: Mapping[str, ResourceKind] = {
    BACKUP: ResourceKind(
        spec=KafkaBackupSpec,
        status=Status,
        short="kbak",
        description=(
            "A backup of topics of a Kafka cluster into an archive. It runs when it is created, when a field "
            "changes that decides what is archived, when the annotation logkeep.dev/run gets a new value, when a "
            "KafkaBackupRun asks for it, and by its schedule."
        ),
        columns=(
            Column("Phase", ".status.phase"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', "string"),
            Column("Percent", ".status.progress.percent"),
            Column("Recoverable", ".status.recovery.lastTime"),
            Column("Size", ".status.archive.size"),
            Column("At Risk", '.status.conditions[?(@.type=="RetentionRisk")].status', "string"),
            Column("Last Success", ".status.lastSuccessTime"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Next Schedule", ".status.nextScheduleTime", "string", wide=True),
            Column("Partitions", ".status.progress.display", wide=True),
            Column("Run", ".status.run.id", wide=True),
            Column("Last Schedule", ".status.lastScheduleTime", wide=True),
            Column("Bytes", ".status.progress.bytes", wide=True),
            Column("Records", ".status.progress.records", wide=True),
            Column("Behind", ".status.recovery.topicsBehind", wide=True),
            Column("Growth", ".status.archive.growth", wide=True),
            Column("Kept Points", ".status.archive.retention.points", wide=True),
            Column("Stale Keys", '.status.conditions[?(@.type=="StaleKeys")].status', "string", wide=True),
            Column("Deadline", ".status.retention.deadline", "string", wide=True),
            Column("Refused", ".status.dryRun.refused", wide=True),
            Column("Verified", '.status.conditions[?(@.type=="Verified")].status', "string", wide=True),
            Column("Last Drill", ".status.drill.lastGoodTime", wide=True),
            Column("Recovery", ".status.drill.recovery", wide=True),
            Column("Message", ".status.run.message", wide=True),
        ),
    ),
    BACKUP_RUN: ResourceKind(
        spec=KafkaBackupRunSpec,
        status=RequestedStatus,
        short="kbrun",
        description=(
            "Asks for a run of a KafkaBackup, once, and reports how that run ended. A user who may create it does "
            "not need the right to change the KafkaBackup."
        ),
        columns=(
            Column("Backup", ".spec.backupRef.name"),
            Column("Phase", ".status.phase"),
            Column("Run", ".status.runId"),
            Column("Records", ".status.records"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Bytes", ".status.bytes", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
    ),
    RESTORE: ResourceKind(
        spec=KafkaRestoreSpec,
        status=Status,
        short="krst",
        description=(
            "A restore of topics from an archive into a Kafka cluster. It runs once, or, as a drill with a "
            "schedule, at each of its times."
        ),
        columns=(
            Column("Phase", ".status.phase"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', "string"),
            Column("Percent", ".status.progress.percent"),
            Column("Records", ".status.progress.records"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Partitions", ".status.progress.display", wide=True),
            Column("Run", ".status.run.id", wide=True),
            Column("Bytes", ".status.progress.bytes", wide=True),
            Column("Refused", ".status.dryRun.refused", wide=True),
            Column("Verified", ".status.verification.outcome", wide=True),
            Column("Recovery", ".status.drill.recovery", wide=True),
            Column("Message", ".status.run.message", wide=True),
        ),
    ),
    KAFKA_ARCHIVE: ResourceKind(
        spec=KafkaArchiveSpec,
        status=KafkaArchiveStatus,
        short="karc",
        description=(
            "The place of an archive, which KafkaBackups and KafkaRestores of the namespace name with archiveRef in "
            "place of a storage of their own. Nothing is deleted from the archive when a KafkaArchive is deleted."
        ),
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', "string"),
            Column("URI", ".spec.storage.uri"),
            Column("Writer", ".status.writer"),
            Column("Recoverable", ".status.recovery.lastTime"),
            Column("Size", ".status.archive.size"),
            Column("Last Drill", ".status.drill.lastGoodTime"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Growth", ".status.archive.growth", wide=True),
            Column("Cost", ".status.cost.display", wide=True),
            Column("Last Write", ".status.archive.writeTime", wide=True),
            Column("Backups", ".status.backups", wide=True),
            Column("Restores", ".status.restores", wide=True),
            Column("Verified", '.status.conditions[?(@.type=="Verified")].status', "string", wide=True),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', "string", wide=True),
        ),
    ),
}

"""The status of both kinds, field for field as in the CRDs. Times are RFC 3339 in UTC, to the second."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from logkeep_engine.contract.facts.archive import (
    ArchiveSize,
    Deadlines,
    Recoverable,
    Retained,
    TopicGenerations,
    TopicSnapshots,
)
from logkeep_engine.contract.facts.dry_run import DryRunReport
from logkeep_engine.contract.facts.outcome import (
    ClusterStateFacts,
    EmittedFacts,
    HeldTopics,
    LossFact,
    ReconcileFacts,
    TopicCoverage,
    VerificationFacts,
)
from logkeep_engine.contract.facts.progress import TopicProgress
from logkeep_engine.contract.facts.values import Count, Listed, OnlyBackup, OnlyRestore, Timestamp, Whole
from logkeep_engine.contract.model import schema
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.part import StatusPart

MAX_HISTORY = 10


class Phase(StrEnum):
    """The state of a resource in one word. `DryRun`: a dry run has ended, and nothing was done."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    INVALID = "Invalid"
    DRY_RUN = "DryRun"


class StatusOutcome(StrEnum):
    """How a run ended; `Replaced`: the spec changed before it was over. `DryRun`: it was only to find out what it would
    do, and has."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    REPLACED = "Replaced"
    DRY_RUN = "DryRun"


class Condition(StatusPart):
    """A condition as Kubernetes defines it."""

    model_config = ConfigDict(
        json_schema_extra={"required": ["type", "status", "reason", "message", "lastTransitionTime"]}
    )

    type: str = ""
    """Type of the condition, such as Ready, Reconciling or Stalled."""
    status: Annotated[str, schema(enum=["True", "False", "Unknown"])] = "Unknown"
    """True, False or Unknown."""
    reason: str = ""
    """Reason of the status, in a word."""
    message: str = ""
    """Reason of the status, in a sentence."""
    last_transition_time: Timestamp = ""
    """When status last changed."""
    observed_generation: Whole = 0
    """Generation of the resource that the condition is about."""


MAP_OF_TYPES = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class StatusWithConditions(StatusPart):
    """The part that the statuses of all kinds have."""

    observed_generation: Whole | None = None
    """Generation of the resource that this status is about; -1 before the operator has seen it."""
    conditions: Annotated[tuple[Condition, ...], schema(**MAP_OF_TYPES)] = ()
    """Ready: the wanted run has succeeded. Reconciling: a run is on its way. Stalled: nothing will happen until a
    user acts. DataLoss: records are missing. Coverage: all that the spec names was found. RetentionRisk: Kafka may
    delete records before they are archived. ScheduledRun: a run of the schedule is on its way, or the operator releases
    held topics, and the success before it stands. Verified: what the last drill found. StaleKeys: keys are alive in the
    archive and gone from the cluster."""

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, None if the status has none."""
        return next((c for c in self.conditions if c.type == kind), None)


class RunStatus(StatusPart):
    id: str = ""
    """Id of the run, as in the archive."""
    key: str = ""
    """Hash of what the run was asked to do: another hash makes another run."""
    job: str | None = None
    """Name of the Job."""
    requested_by: str | None = None
    """Origin of the run: an annotation, a KafkaBackupRun, the schedule or the spec. What an annotation says is a claim
    by a user who may write the resource."""
    attempt: Count | None = None
    """How often the driver was started."""
    start_time: Timestamp | None = None
    """When the run was started."""
    end_time: Timestamp | None = None
    """When the run ended."""
    heard_time: Timestamp | None = None
    """When the driver last wrote, or was first seen to run, by the API server's clock."""
    outcome: StatusOutcome | None = None
    """How the run ended; absent while it continues."""
    exit_code: Whole | None = None
    """The exit code of the driver, as that of the command line; absent if it has not reported its end."""
    message: str | None = None
    """The last event."""


class Lagging(StatusPart):
    """A partition and how far it is."""

    topic: str = ""
    """Topic."""
    partition: Count = 0
    """Partition."""
    done: Count = 0
    """Offsets done."""
    total: Count = 0
    """Offsets in this run."""


class ProgressStatus(StatusPart):
    phase: str | None = None
    """The step that the driver is at: Starting, Planning, Retrieving, Checking, Running, Snapshotting, Verifying or
    Finishing."""
    update_time: Timestamp | None = None
    """When the driver wrote this, by the clock of its node."""
    topics: Count = 0
    """Topics in this run."""
    partitions: Count = 0
    """Partitions in this run."""
    partitions_done: Count = 0
    """Partitions that are done."""
    display: str = "0/0"
    """Partitions done and partitions, such as 12/16."""
    records: Count = 0
    """Records that this run has archived or restored."""
    bytes: Count = 0
    """Bytes of record batches that this run has archived or restored."""
    percent: Count = 0
    """How much of the offsets is done, 0 to 100."""
    bytes_per_second: Count | None = None
    """Bytes of record batches in a second, over the last half minute."""
    seconds_left: Count | None = None
    """Seconds until the run is done, if it continues as in the last half minute."""
    executors: Count | None = None
    """Executor pods that the run has asked for; 0 if the driver does the work itself."""
    point: Annotated[str | None, OnlyRestore] = None
    """The state that spec.point gives, known before the first record is written: the most records, how many partitions
    end before their archived end, and which run has archived the positions of groups. The object point.json of the run
    has each partition."""
    moving: Annotated[tuple[TopicProgress, ...], Field(max_length=10)] = ()
    """Topics on which tasks work now, at most 10."""
    lagging: Listed[Lagging] = ()
    """The unfinished partitions with the most offsets left, at most 20."""


class DrillStatus(StatusPart):
    """The drill that has ended last, and when the last good one had ended. The measures are those of the last one that
    had restored everything. `recovery` says `recovery_seconds` to people."""

    restore: str | None = None
    """Name of the KafkaRestore."""
    run_id: str | None = None
    """Id of its run."""
    outcome: StatusOutcome | None = None
    """Whether the drill has restored and verified everything."""
    reason: str | None = None
    """DrillSucceeded, or why it has failed."""
    message: str | None = None
    """The outcome of the drill, or its failure."""
    end_time: Timestamp | None = None
    """When the drill had ended."""
    last_good_time: Timestamp | None = None
    """When the last drill that was good had ended."""
    recovery_seconds: Count | None = None
    """Seconds from the start of the drill until its last record was acknowledged."""
    recovery: str | None = None
    """The same for people, such as 12m 5s."""
    verified_seconds: Count | None = None
    """Seconds from the start of the drill until all was verified."""
    partitions: Count | None = None
    """Partitions that were restored."""
    records: Count | None = None
    """Records that were restored."""
    bytes: Count | None = None
    """Bytes that were restored."""
    total: Count | None = None
    """Partitions that could be drilled, with drill.share."""
    cycle: Count | None = None
    """Number of the cycle, with drill.share. A cycle drills each partition once."""
    drilled: Count | None = None
    """Partitions that were drilled in this cycle."""
    runs: Count | None = None
    """All partitions are drilled within this many runs."""
    progress: str | None = None
    """The same for people, such as 40/200, all partitions within 20 runs."""
    report: str | None = None
    """URI of the report."""


class HeldTopicsStatus(HeldTopics, StatusPart):
    """The topics that the last run holds. They are to be released at `release_time`, if the spec says so; until then
    the release has failed this many times, at `failed_time` with this message."""

    release_time: Timestamp | None = None
    """When they are to be released, by topics.holdFor."""
    failures: Count | None = None
    """How often the release has failed. It is tried again, later and later."""
    failed_time: Timestamp | None = None
    """When it has failed last."""
    message: str | None = None
    """Why it has failed last."""


class HistoryEntry(StatusPart):
    """A run that ended."""

    run_id: str = ""
    """Id of the run."""
    outcome: str = ""
    """How the run ended."""
    requested_by: str | None = None
    """Origin of the run."""
    start_time: Timestamp | None = None
    """When the run was started."""
    end_time: Timestamp | None = None
    """When the run ended."""
    records: Count | None = None
    """Records that the run archived or restored."""
    bytes: Count | None = None
    """Bytes of record batches that the run archived or restored."""
    duration_seconds: Count | None = None
    """Seconds from the start of the run to its end."""
    attempts: Count | None = None
    """How often the driver was started."""
    executors: Count | None = None
    """Executor pods that the run has asked for; 0 if the driver did the work itself."""
    message: str | None = None
    """The last message of the run."""


class ArchiveStatus(ArchiveSize, StatusPart):
    """The archive, and what a run has reported about it. `anchor` names the newest known commit with all before it, and
    never goes back on its own. `write_time` is the end of the last run that wrote the archive, `taken_over` the value
    of the annotation `logkeep.dev/take-over` that was used."""

    id: str | None = None
    """Id of the archive."""
    uri: str | None = None
    """URI of the archive."""
    store: Annotated[str | None, OnlyRestore] = None
    """Endpoint of its object store, or claim of its volume, if its place names one. A run that has begun to restore
    continues nowhere else, unless spec.state has its state."""
    cluster_id: str | None = None
    """Id of the Kafka cluster it was made from."""
    epoch: Count | None = None
    """Epoch of the last run."""
    commit: Count | None = None
    """Number of the last commit."""
    anchor: Annotated[str | None, OnlyBackup] = None
    """The newest known commit with all commits before it: its number and a SHA-256. Every run refuses an archive that
    does not have it (ArchiveRolledBack). It never goes back on its own. Pass it to logkeep verify --expect-commit."""
    write_time: Annotated[Timestamp | None, OnlyBackup] = None
    """When the last run ended that wrote the archive."""
    taken_over: Annotated[str | None, OnlyBackup] = None
    """The value of the annotation logkeep.dev/take-over that was used last. It consents to nothing more."""
    snapshots: Annotated[Listed[TopicSnapshots], OnlyBackup] = ()
    """The newest snapshots of compacted topics, and since when those with generations are exact. Those with
    exactNowhere come first, then those of most bytes, at most 20."""
    generations: Annotated[Listed[TopicGenerations], OnlyBackup] = ()
    """The active generations of compacted topics, those begun first before the others, at most 20."""
    retention: Annotated[Retained | None, OnlyBackup] = None
    """The last retention: what was removed, what waits for its deletion, and what is kept. It is absent if nothing is
    to be removed or kept."""

    @property
    def write_time_seconds(self) -> float | None:
        """The same in seconds since the epoch."""
        moment = parse_timestamp(self.write_time)
        return None if moment is None else moment.timestamp()

    def is_at(self, uri: str) -> bool:
        """Return whether the archive is at this URI: a slash at the end makes no other place."""
        return self.uri is not None and self.uri.rstrip("/") == uri.rstrip("/")

    def anchor_at(self, uri: str) -> str | None:
        """Return the newest known commit of the archive at a URI, None if none is known there."""
        return self.anchor if self.is_at(uri) else None


class Status(StatusWithConditions):
    """State of the resource as the operator knows it. Only the archive itself says what is archived."""

    phase: Phase | None = None
    """State of the resource, in a word."""
    run: RunStatus | None = None
    """The run that continues, or the last one."""
    progress: ProgressStatus | None = None
    """How far the run has come."""
    archive: ArchiveStatus | None = None
    """The archive as the last run of a backup left it, or the one that was restored from."""
    recovery: Annotated[Recoverable | None, OnlyBackup] = None
    """The records that a restore brings back, as the last run left it that tried everything."""
    retention: Annotated[Deadlines | None, OnlyBackup] = None
    """When the Kafka cluster may delete records that are not archived, as the last run has found out. Absent if it
    could not."""
    last_success_time: Timestamp | None = None
    """When a run last succeeded."""
    last_schedule_time: Timestamp | None = None
    """Time of the schedule, or of that of drills, for which a run was last started."""
    next_schedule_time: Timestamp | None = None
    """First time of the schedule, or of that of drills, for which no run was started yet. If it has passed, a run is
    due and waits for its jitter, for the end of the run before, or of the suspension."""
    last_handled_run: Annotated[str | None, OnlyBackup] = None
    """Value of the annotation logkeep.dev/run for which the last run was started. From its start on, Ready is about
    that run."""
    last_handled_backup_runs: Annotated[str | None, OnlyBackup] = None
    """Hash of the KafkaBackupRuns for which the last run that was asked for so was started."""
    last_handled_retry: Annotated[str | None, OnlyRestore] = None
    """Value of the annotation logkeep.dev/retry for which the run was last retried, or that was there when the run was
    started."""
    last_handled_run_again: Annotated[str | None, OnlyRestore] = None
    """Value of the annotation logkeep.dev/run-again for which the run was started."""
    restored_by: Annotated[str | None, OnlyRestore] = None
    """Id of the earlier run that has done this restore, if the last run found one and did nothing."""
    offset_map: Annotated[str | None, OnlyRestore] = None
    """URI of the folder that says which source offset became which target offset."""
    verification: Annotated[VerificationFacts | None, OnlyRestore] = None
    """The findings of the verification of the restored topics, with verify Full."""
    cluster_state: Annotated[ClusterStateFacts | None, OnlyRestore] = None
    """The outcome for the ACLs, client quotas and SCRAM users of the archive, with everything."""
    dry_run: DryRunReport | None = None
    """The findings of the last dry run. Numbers count all, lists have the first 20 items."""
    drill: DrillStatus | None = None
    """The drill that has ended last: of a restore with drill, or of the archive of a backup."""
    emitted: Annotated[EmittedFacts | None, OnlyRestore] = None
    """The KafkaTopics that the last run has written, with emit."""
    held_topics: Annotated[HeldTopicsStatus | None, OnlyRestore] = None
    """The topics that the last run has left without limits of retention, with topics.retention Hold. It changes when
    topics.holdFor releases them, and not when logkeep release does."""
    coverage: Annotated[TopicCoverage | None, OnlyBackup] = None
    """How much of the cluster the last run that was planned has protected."""
    reconcile: Annotated[ReconcileFacts | None, OnlyBackup] = None
    """The findings of the last run that looked for stale keys."""
    warnings: Listed[str] = ()
    """Warnings of the last run that has ended, at most 20. run.message is shorter."""
    loss: Listed[LossFact] = ()
    """Offsets that are missing, at most 20."""
    history: Annotated[tuple[HistoryEntry, ...], Field(max_length=MAX_HISTORY)] = ()
    """The last runs, newest first, at most 10."""

"""The status of both kinds, field for field as in the CRDs. Times are RFC 3339 in UTC, to the second."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from logkeep_operator.api.archive_status import ArchiveStatus, RecoveryStatus, RetentionStatus
from logkeep_operator.api.part import StatusPart

MAX_HISTORY = 10
MAX_LISTED = 20


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


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(seconds: float) -> datetime:
    """The time in UTC, of seconds since the epoch as drivers tell them."""
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True)
class Condition(StatusPart):
    type: str = ""
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"message": "", **super().to_dict()}


@dataclass(frozen=True)
class StatusWithConditions(StatusPart):
    """The part that the statuses of all kinds have."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None if the status has none."""
        return next((c for c in self.conditions if c.type == kind), None)


@dataclass(frozen=True)
class RunStatus(StatusPart):
    id: str = ""
    key: str = ""
    job: str | None = None
    requested_by: str | None = None
    attempt: int | None = None
    start_time: str | None = None
    end_time: str | None = None
    heard_time: str | None = None
    outcome: StatusOutcome | None = None
    exit_code: int | None = None
    message: str | None = None


@dataclass(frozen=True)
class Lagging(StatusPart):
    topic: str = ""
    partition: int = 0
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class MovingTopic(StatusPart):
    topic: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class ProgressStatus(StatusPart):
    phase: str | None = None
    update_time: str | None = None
    topics: int = 0
    partitions: int = 0
    partitions_done: int = 0
    display: str = "0/0"
    records: int = 0
    bytes: int = 0
    percent: int = 0
    bytes_per_second: int | None = None
    seconds_left: int | None = None
    executors: int | None = None
    point: str | None = None
    moving: tuple[MovingTopic, ...] = ()
    lagging: tuple[Lagging, ...] = ()


@dataclass(frozen=True)
class LossEntry(StatusPart):
    topic: str = ""
    partition: int = 0
    start: int = 0
    end: int = 0
    reason: str = ""


@dataclass(frozen=True)
class CoverageStatus(StatusPart):
    """How many topics are protected and how many are not, and the first names of each list."""

    protected: int = 0
    unmatched: int = 0
    left_out: int = 0
    vanished: int = 0
    unreadable: int = 0
    patterns_unmatched: tuple[str, ...] = ()
    topics_left_out: tuple[str, ...] = ()
    topics_vanished: tuple[str, ...] = ()
    topics_unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerificationStatus(StatusPart):
    """The findings of a verification. `outcome` is Verified, NotVerified or Different. `run_id` is the run whose
    records were verified."""

    run_id: str | None = None
    outcome: str | None = None
    message: str | None = None
    partitions: int | None = None
    verified: int | None = None
    not_verified: int | None = None
    different: int | None = None
    records: int | None = None
    end_time: str | None = None
    report: str | None = None


@dataclass(frozen=True)
class ReconcileStatus(StatusPart):
    """The findings of the last run that looked for stale keys. `outcome` is Same, StaleKeys, NotCompared or
    KeysMissing."""

    run_id: str | None = None
    outcome: str | None = None
    message: str | None = None
    partitions: int | None = None
    not_compared: int | None = None
    keys: int | None = None
    stale: int | None = None
    missing: int | None = None
    end_time: str | None = None
    report: str | None = None


@dataclass(frozen=True)
class RestoredStateStatus(StatusPart):
    """The outcome of bringing back the ACLs, quotas and users that `source_run` has archived."""

    source_run: str | None = None
    acls: int | None = None
    acls_added: int | None = None
    acls_refused: int | None = None
    acls_held_back: int | None = None
    held_back_list: tuple[str, ...] = ()
    quotas: int | None = None
    quotas_added: int | None = None
    quotas_refused: int | None = None
    quotas_kept: int | None = None
    users_to_create: tuple[str, ...] = ()
    users_total: int | None = None
    report: str | None = None


@dataclass(frozen=True)
class PlannedRefusalStatus(StatusPart):
    """An error with which the run would end before it writes."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class PlannedTopicStatus(StatusPart):
    """A topic that the run would write. `state` is New, Exists or Replaced, `counts` Exact or AtMost."""

    topic: str = ""
    source: str | None = None
    state: str = ""
    partitions: int = 0
    replicas: int | None = None
    records: int = 0
    bytes: int = 0
    counts: str = ""
    config: str | None = None


@dataclass(frozen=True)
class PlannedGroupStatus(StatusPart):
    """A consumer group that the run would move."""

    group: str = ""
    positions: int = 0


@dataclass(frozen=True)
class PlannedPositionStatus(StatusPart):
    """A position that the run would set. The group would read the record with source offset `record` next, of the time
    `time`; None: there is none."""

    group: str = ""
    topic: str = ""
    partition: int = 0
    source_offset: int = 0
    record: int | None = None
    time: str | None = None
    target_offset: int = 0


@dataclass(frozen=True)
class PlannedStateStatus(StatusPart):
    """The ACLs, quotas and users that a restore of everything would bring back, and those that the cluster lacks."""

    source_run: str = ""
    acls: int | None = None
    acls_to_add: int | None = None
    acls_held_back: int | None = None
    quotas: int | None = None
    quotas_to_add: int | None = None
    quotas_kept: int | None = None
    users: int | None = None
    users_to_create: int | None = None
    acl_list: tuple[str, ...] = ()
    held_back_list: tuple[str, ...] = ()
    quota_list: tuple[str, ...] = ()
    user_list: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedRemovalStatus(StatusPart):
    """The segments and snapshots of a topic that retention would remove, and by which rule."""

    topic: str = ""
    why: str = ""
    partitions: int = 0
    segments: int = 0
    snapshots: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class PlannedRetentionStatus(StatusPart):
    """The segments and snapshots that retention would remove. Of `topics_unchosen` it would take nothing."""

    topics: int = 0
    partitions: int = 0
    segments: int = 0
    snapshots: int = 0
    bytes: int = 0
    topics_unchosen: int = 0
    topic_list: tuple[PlannedRemovalStatus, ...] = ()


@dataclass(frozen=True)
class DryRunStatus(StatusPart):
    """The findings of a dry run. The numbers count all, the lists have the first items. `counts` is Exact or AtMost.
    Only a KafkaRestore has `cluster_state`, only a KafkaBackup `retention`."""

    end_time: str | None = None
    refused: int = 0
    refusals: tuple[PlannedRefusalStatus, ...] = ()
    topics: int = 0
    topics_created: int = 0
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    counts: str = ""
    requests: int = 0
    storage_requests: int = 0
    seconds: int | None = None
    bytes_per_second: int | None = None
    rate: str | None = None
    groups: int = 0
    positions: int = 0
    point: str | None = None
    topic_list: tuple[PlannedTopicStatus, ...] = ()
    group_list: tuple[PlannedGroupStatus, ...] = ()
    position_list: tuple[PlannedPositionStatus, ...] = ()
    cluster_state: PlannedStateStatus | None = None
    retention: PlannedRetentionStatus | None = None
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrillStatus(StatusPart):
    """The drill that has ended last, and when the last good one had ended. The measures are those of the last one that
    had restored everything. `recovery` says `recovery_seconds` to people."""

    restore: str | None = None
    run_id: str | None = None
    outcome: StatusOutcome | None = None
    reason: str | None = None
    message: str | None = None
    end_time: str | None = None
    last_good_time: str | None = None
    recovery_seconds: int | None = None
    recovery: str | None = None
    verified_seconds: int | None = None
    partitions: int | None = None
    records: int | None = None
    bytes: int | None = None
    total: int | None = None
    cycle: int | None = None
    drilled: int | None = None
    runs: int | None = None
    progress: str | None = None
    report: str | None = None


@dataclass(frozen=True)
class EmittedStatus(StatusPart):
    """The KafkaTopics that a restore has written, and where."""

    config_map: str = ""
    key: str = ""
    topics: int = 0


@dataclass(frozen=True)
class HeldTopicsStatus(StatusPart):
    """The topics that the last run has left without limits of retention: how many, and the first names. They are to be
    released at `release_time`, if the spec says so.

    At `released_time` they were: `released` of them have their own retention since, the others are in
    `not_released_list`. Before that, the release has failed so many times, at `failed_time` with this message."""

    topics: int = 0
    topic_list: tuple[str, ...] = ()
    release_time: str | None = None
    released_time: str | None = None
    released: int | None = None
    not_released_list: tuple[str, ...] = ()
    failures: int | None = None
    failed_time: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class HistoryEntry(StatusPart):
    run_id: str = ""
    outcome: str = ""
    requested_by: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    records: int | None = None
    bytes: int | None = None
    duration_seconds: int | None = None
    attempts: int | None = None
    executors: int | None = None
    message: str | None = None


@dataclass(frozen=True)
class Status(StatusWithConditions):
    """Only a KafkaBackup has `last_handled_run`, `last_handled_backup_runs`, `recovery`, `retention`, `coverage` and
    `reconcile`. Only a KafkaRestore has `last_handled_retry`, `last_handled_run_again`, `restored_by`, `offset_map`,
    `verification`, `cluster_state`, `emitted` and `held_topics`. Both kinds have all other fields."""

    phase: Phase | None = None
    run: RunStatus | None = None
    progress: ProgressStatus | None = None
    archive: ArchiveStatus | None = None
    recovery: RecoveryStatus | None = None
    retention: RetentionStatus | None = None
    last_success_time: str | None = None
    last_schedule_time: str | None = None
    next_schedule_time: str | None = None
    last_handled_run: str | None = None
    last_handled_backup_runs: str | None = None
    last_handled_retry: str | None = None
    last_handled_run_again: str | None = None
    restored_by: str | None = None
    offset_map: str | None = None
    verification: VerificationStatus | None = None
    cluster_state: RestoredStateStatus | None = None
    dry_run: DryRunStatus | None = None
    drill: DrillStatus | None = None
    emitted: EmittedStatus | None = None
    held_topics: HeldTopicsStatus | None = None
    coverage: CoverageStatus | None = None
    reconcile: ReconcileStatus | None = None
    warnings: tuple[str, ...] = ()
    loss: tuple[LossEntry, ...] = ()
    history: tuple[HistoryEntry, ...] = ()

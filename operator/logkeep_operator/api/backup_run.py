"""A KafkaBackupRun as it is read from the API: a user asks for a run of a KafkaBackup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from logkeep_engine.contract.backup_run_spec import MIN_TTL_SECONDS, KafkaBackupRunSpec
from logkeep_engine.contract.facts.values import Count, Timestamp
from logkeep_engine.contract.names import BACKUP, BACKUP_RUN, PLURALS
from logkeep_engine.contract.parsing import SpecInvalid, parse_model
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.resource import Key
from logkeep_operator.api.status import StatusWithConditions
from logkeep_operator.bounds import MAX_OWNERS, written_back

BACKUP_RUNS = PLURALS[BACKUP_RUN]
_DEFAULT_TTL = KafkaBackupRunSpec.model_fields["ttl_seconds_after_finished"].default


class RequestedPhase(StrEnum):
    """The state of a KafkaBackupRun in one word."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class RequestedStatus(StatusWithConditions):
    """Written by the operator alone."""

    phase: RequestedPhase | None = None
    """The state in one word. Pending until the driver of a run that was started for this object runs."""
    run_id: str | None = None
    """Id of the run, once it was started. One run answers all objects that were there when it was started."""
    job: str | None = None
    """Name of the run's Job."""
    start_time: Timestamp | None = None
    """When the run was started."""
    end_time: Timestamp | None = None
    """When the run ended."""
    records: Count | None = None
    """Records that the run has archived so far."""
    bytes: Count | None = None
    """Bytes of record batches that the run has archived so far."""
    percent: Count | None = None
    """How much of the run is done."""
    message: str | None = None
    """The last message about the run, or the reason why it has not begun."""


@dataclass(frozen=True)
class RequestedRun:
    """A KafkaBackupRun. `backup` is the name of the KafkaBackup, empty if the spec is invalid; `problem` says then what
    is wrong with it."""

    namespace: str
    name: str
    uid: str
    generation: int
    backup: str
    ttl_seconds: int
    deleting: bool
    owners: frozenset[str]
    status: RequestedStatus
    body: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    problem: str = ""

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> RequestedRun:
        """Make it of the API's JSON. A status that cannot be read counts as empty."""
        metadata, spec = body["metadata"], body.get("spec") or {}
        backup, problem = _backup_of(spec)
        ttl = spec.get("ttlSecondsAfterFinished", _DEFAULT_TTL)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            backup=backup,
            problem=problem,
            ttl_seconds=ttl if isinstance(ttl, int) else MIN_TTL_SECONDS,
            deleting="deletionTimestamp" in metadata,
            owners=frozenset(str(owner.get("uid")) for owner in (metadata.get("ownerReferences") or ())[-MAX_OWNERS:]),
            status=RequestedStatus.from_dict(body.get("status") or {}),
            body=written_back(body),
        )

    @property
    def key(self) -> Key:
        """The KafkaBackup that is to run. Its name is empty for one with an invalid spec."""
        return Key(BACKUP, self.namespace, self.backup)

    @property
    def open(self) -> bool:
        """Whether it still waits for the end of a run."""
        return not self.deleting and self.status.phase not in (RequestedPhase.SUCCEEDED, RequestedPhase.FAILED)

    @property
    def pending(self) -> bool:
        """Whether no run was started for it yet."""
        return self.open and self.status.run_id is None

    @property
    def ended(self) -> datetime | None:
        """The time at which its run has ended, None before."""
        return None if self.open else parse_timestamp(self.status.end_time)


def _backup_of(spec: Any) -> tuple[str, str]:
    """Return the name of the KafkaBackup that a spec names, and what is wrong with the spec: one of them is empty."""
    try:
        return parse_model(KafkaBackupRunSpec, spec).backup_ref.name, ""
    except SpecInvalid as error:
        return "", str(error)

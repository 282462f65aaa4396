"""A KafkaBackup or KafkaRestore as it is read from the API: its name, its spec, its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from logkeep_engine.contract.names import BACKUP, PLURALS, RESTORE
from logkeep_engine.contract.schedule import MAX_JITTER_SECONDS
from logkeep_engine.contract.spec import API_VERSION
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.status import Status
from logkeep_operator.bounds import own_annotations, written_back

KINDS: dict[str, str] = {kind: PLURALS[kind] for kind in (BACKUP, RESTORE)}
ANNOTATION_RUN = "logkeep.dev/run"
ANNOTATION_RETRY = "logkeep.dev/retry"
ANNOTATION_RUN_AGAIN = "logkeep.dev/run-again"
ANNOTATION_TAKE_OVER = "logkeep.dev/take-over"


class Key(NamedTuple):
    """Names one resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def is_backup(self) -> bool:
        return self.kind == BACKUP

    @property
    def is_restore(self) -> bool:
        return self.kind == RESTORE


@dataclass(frozen=True)
class Resource:
    """`spec` is as stored, with the CRD's defaults, but has the storage of the KafkaArchive in place of a reference to
    one that is there (`api.archive`). `archive_ref` is the name that it refers to, `archive_anchor` the newest commit
    that the KafkaArchive's status knows. `body` is what a write of the status needs."""

    key: Key
    uid: str
    generation: int
    deleting: bool
    spec: Mapping[str, Any]
    status: Status
    annotations: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    archive_ref: str | None = None
    archive_anchor: str | None = None

    @classmethod
    def from_object(cls, kind: str, body: Mapping[str, Any]) -> Resource:
        """Make it of the API's JSON. A status that cannot be read, since another version wrote it, counts as empty."""
        metadata = body["metadata"]
        return cls(
            key=Key(kind, metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            deleting="deletionTimestamp" in metadata,
            spec=body.get("spec") or {},
            status=Status.from_dict(body.get("status") or {}),
            annotations=own_annotations(metadata.get("annotations") or {}),
            body=written_back(body),
        )

    @property
    def created(self) -> datetime | None:
        """The time at which the API server made the resource."""
        return parse_timestamp((self.body.get("metadata") or {}).get("creationTimestamp"))

    @property
    def trigger(self) -> str | None:
        """The value of the annotation that asks for another run."""
        return self.annotations.get(ANNOTATION_RUN)

    @property
    def retry(self) -> str | None:
        """The value of the annotation that asks a KafkaRestore to continue the run that has failed."""
        return self.annotations.get(ANNOTATION_RETRY)

    @property
    def suspended(self) -> bool:
        """Whether the spec says that no run is to continue."""
        return self.spec.get("suspend") is True

    @property
    def max_jitter(self) -> timedelta:
        """The most by which a run starts later than its time in the schedule."""
        part = self.spec if self.key.is_backup else self.spec.get("drill")
        schedule = part.get("schedule") if isinstance(part, Mapping) else None
        seconds = schedule.get("jitterSeconds", 0) if isinstance(schedule, Mapping) else 0
        return timedelta(seconds=seconds if type(seconds) is int and 0 <= seconds <= MAX_JITTER_SECONDS else 0)

    @property
    def run_again(self) -> str | None:
        """The value of the annotation that asks a KafkaRestore to restore once more, from the beginning."""
        return self.annotations.get(ANNOTATION_RUN_AGAIN) or None

    @property
    def take_over(self) -> str | None:
        """The value of the annotation that consents to take an archive over, until a run has used it. Then the same
        value consents to nothing more."""
        value = self.annotations.get(ANNOTATION_TAKE_OVER) or None
        used = self.status.archive.taken_over if self.status.archive is not None else None
        return None if value == used else value

    def owner_reference(self) -> dict[str, Any]:
        """Return the owner reference of a child: Kubernetes deletes the child with this resource."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.key.kind,
            "name": self.key.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

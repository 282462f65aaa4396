"""A KafkaArchive as it is read from the API, and what it means for the resources that name it.

A reference is resolved here and nowhere else: all that decides sees a storage in the spec, as if a user had written it
there. So it makes no difference to a run which of the two it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from logkeep_engine.contract.facts.archive import Recoverable
from logkeep_engine.contract.facts.values import Count, Listed, Said, Timestamp
from logkeep_engine.contract.model import replace, schema
from logkeep_engine.contract.names import KAFKA_ARCHIVE, PLURALS
from logkeep_engine.contract.objects import is_name
from logkeep_operator.api.part import StatusPart
from logkeep_operator.api.resource import Key, Resource
from logkeep_operator.api.status import MAP_OF_TYPES, ArchiveStatus, Condition, DrillStatus, StatusWithConditions
from logkeep_operator.bounds import written_back

KAFKA_ARCHIVES = PLURALS[KAFKA_ARCHIVE]


class VerifiedRestore(StatusPart):
    """The restore with verify Full that has ended last."""

    restore: str | None = None
    """Name of the KafkaRestore."""
    outcome: str | None = None
    """The outcome of its verification."""
    end_time: Timestamp | None = None
    """When its run had ended."""


class StorageCost(StatusPart):
    """The price of storing archive.objectBytes, by spec.prices. Requests are not in it."""

    currency: str | None = None
    """The currency of spec.prices."""
    month: float | None = None
    """Price of a month at the present size."""
    month_in_30_days: float | None = None
    """Price of a month at the size of 30 days from now, at the present growth (archive.objectBytesPerDay). It is absent
    if that is not known, if no backup writes the archive, or if its retention has maxAge or maxBytes."""
    display: Said | None = None
    """The price of a month for people, such as 12.30 USD/month."""


class KafkaArchiveStatus(StatusWithConditions):
    """The facts that runs of backups and restores have reported about the archive. They stay when they are deleted."""

    conditions: Annotated[tuple[Condition, ...], schema(**MAP_OF_TYPES)] = ()
    """Ready: backups and restores may name it. Stalled: its spec is invalid, or not allowed. Reconciling is always
    False. Verified: what the last drill of the archive has found."""
    writer: str | None = None
    """Name of the KafkaBackup that writes the archive."""
    backups: Count | None = None
    """KafkaBackups of the namespace whose archive this is, by reference or with the same storage."""
    backup_list: Listed[str] = ()
    """Their names, at most 20."""
    restores: Count | None = None
    """KafkaRestores of the namespace whose source this is, likewise."""
    restore_list: Listed[str] = ()
    """Their names, at most 20."""
    archive: ArchiveStatus | None = None
    """The archive as the last run of its writer left it."""
    cost: StorageCost | None = None
    """The price of storing it, by spec.prices. Without prices, or before a run has reported the size, it is absent."""
    recovery: Recoverable | None = None
    """The records that a restore brings back, as the last run of the writer left it that tried everything."""
    drill: DrillStatus | None = None
    """The drill of the archive that has ended last."""
    verification: VerifiedRestore | None = None
    """The restore with verify Full that has ended last."""


@dataclass(frozen=True)
class KafkaArchive:
    """A KafkaArchive. `storage` is that of its spec as stored."""

    key: Key
    uid: str
    generation: int
    spec: Mapping[str, Any]
    status: KafkaArchiveStatus = field(default_factory=KafkaArchiveStatus)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> KafkaArchive:
        """Make it of the API's JSON. A status that cannot be read counts as empty."""
        metadata = body["metadata"]
        return cls(
            key=Key(KAFKA_ARCHIVE, metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            spec=body.get("spec") or {},
            status=KafkaArchiveStatus.from_dict(body.get("status") or {}),
            body=written_back(body),
        )

    @property
    def storage(self) -> Mapping[str, Any]:
        """The storage as stored, empty for one that is none."""
        found = self.spec.get("storage")
        return found if isinstance(found, Mapping) else {}

    @property
    def uri(self) -> str:
        return str(self.storage.get("uri", ""))

    @property
    def place(self) -> object:
        """The place that it names, which can be compared with those of resources (`archive_at`)."""
        return _place(self.key.namespace, self.storage)


def named_by(resource: Resource) -> Key | None:
    """Return the KafkaArchive that a spec still refers to. The API is asked for no name that is none: `reconcile` says
    what is wrong with it."""
    reference = _holder(resource).get("archiveRef")
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return Key(KAFKA_ARCHIVE, resource.key.namespace, name) if is_name(name) else None


def resolved(resource: Resource, archive: KafkaArchive | None) -> Resource:
    """Return the resource with the storage of the KafkaArchive that it names. Without one the reference stays."""
    named = named_by(resource)
    if named is None:
        return resource
    resource = replace(resource, archive_ref=named.name)
    if archive is None:
        return resource
    kept = {name: value for name, value in _holder(resource).items() if name != "archiveRef"}
    # A spec with both is invalid, and stays so.
    holder = {**kept, "storage": archive.storage} if "storage" not in kept else _holder(resource)
    spec = holder if resource.key.is_backup else {**resource.spec, "source": holder}
    known = archive.status.archive
    anchor = known.anchor_at(archive.uri) if known is not None else None
    return replace(resource, spec=spec, archive_anchor=anchor)


def _holder(resource: Resource) -> Mapping[str, Any]:
    """Return the part of a spec that has the reference, or the storage."""
    part = resource.spec if resource.key.is_backup else resource.spec.get("source")
    return part if isinstance(part, Mapping) else {}


def path_of(resource: Resource, field: str) -> str:
    """Return the path in the spec of `storage`, `archiveRef`, or what else stands beside them."""
    return f"spec.{field}" if resource.key.is_backup else f"spec.source.{field}"


def storage_of(resource: Resource) -> Mapping[str, Any] | None:
    """Return the storage of the archive that a spec names itself or by a KafkaArchive, as stored; None if it names none
    or a KafkaBackup."""
    found = _holder(resource).get("storage")
    return found if isinstance(found, Mapping) else None


def archive_at(resource: Resource) -> object:
    """Return the place of the archive that a spec names, which can be compared; None if it names none. It is another
    one in each namespace."""
    return _place(resource.key.namespace, storage_of(resource))


def _place(namespace: str, storage: Mapping[str, Any] | None) -> object:
    if storage is None or not isinstance(storage.get("uri"), str):
        return None
    return (namespace, storage["uri"].rstrip("/"), store_of(storage))


def store_of(storage: Mapping[str, Any]) -> str | None:
    """Return the endpoint of the object store, or the claim of the volume, that a storage names; None if it names
    none."""
    if str(storage.get("uri")).startswith("file:"):
        volume: Any = storage.get("volume")
        return volume.get("claimName") if isinstance(volume, Mapping) else None
    return str(storage.get("endpoint") or "").rstrip("/") or None

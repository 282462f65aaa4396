"""Which topics of a cluster no KafkaBackup protects. Pure.

A topic is protected by a KafkaBackup that chooses it, is not suspended, and has succeeded once, if its status is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.backup.model.selection import Chooser, added_topics, is_internal
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.kafka.topics import TopicInfo


@dataclass(frozen=True, slots=True)
class Backup:
    """A KafkaBackup of the cluster. `cluster_id` is that of its archive, "" if no run has reported it. `succeeded` is
    None if that is not known.
    """

    name: str
    spec: KafkaBackupSpec
    cluster_id: str = ""
    succeeded: bool | None = None

    @property
    def problem(self) -> str:
        """Why it protects nothing now; empty if it does."""
        if self.spec.suspend:
            return "suspended"
        return "has never succeeded" if self.succeeded is False else ""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """`chosen_by`: backups that choose the topic and do not protect it, with the reason."""

    topic: str
    partitions: int
    chosen_by: tuple[str, ...] = ()


def backup_of(document: Mapping[str, Any], spec: KafkaBackupSpec) -> Backup:
    """Return the resource with what its status says, if it has one."""
    name, status = resource_name(document), document.get("status")
    if not isinstance(status, Mapping):
        return Backup(name, spec)
    archive = status.get("archive")
    cluster_id = archive.get("clusterId") if isinstance(archive, Mapping) else None
    return Backup(name, spec, str(cluster_id or ""), bool(status.get("lastSuccessTime")))


def resource_name(document: Mapping[str, Any]) -> str:
    """Namespace and name, as far as the document says them."""
    metadata = document.get("metadata") or {}
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)) or "a KafkaBackup"


def is_of(backup: Backup, cluster_id: str, servers: Iterable[str]) -> bool:
    """Return whether it backs up this cluster: by its archive's cluster id, or by an address if no run has reported
    one."""
    if backup.cluster_id:
        return backup.cluster_id == cluster_id
    return not set(backup.spec.cluster.servers).isdisjoint(servers)


def uncovered(topics: Iterable[TopicInfo], backups: Sequence[Backup], *, internal: bool = False) -> list[Uncovered]:
    """Return the topics that no backup protects, by name. Kafka's own count only with `internal`."""
    choosers = [(backup, Chooser(backup.spec.topics, added_topics(backup.spec))) for backup in backups]
    found = []
    for topic in topics:
        if not internal and is_internal(topic.name, internal=topic.internal):
            continue
        chosen = [
            backup
            for backup, chooser in choosers
            if chooser.chooses(topic.name, internal=topic.internal) or chooser.adds(topic.name)
        ]
        if all(backup.problem for backup in chosen):
            by = tuple(f"{backup.name} ({backup.problem})" for backup in chosen)
            found.append(Uncovered(topic.name, len(topic.partitions), by))
    return sorted(found, key=lambda item: item.topic)

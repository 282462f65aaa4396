"""Looks at KafkaArchives: each gets the status that the resources at its place make."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from logkeep_operator.api import Key, Resource, Status
from logkeep_operator.api.archive import KafkaArchive, archive_at
from logkeep_operator.archive_users import UsersOfArchives
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.errors import ApiError
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import ArchiveUsers, archive_status
from logkeep_operator.settings import EngineSettings
from logkeep_operator.shared_archives import SharedArchives

log = logging.getLogger(__name__)

_SHOWN = ("archive", "recovery", "drill", "verification")  # the parts of a status that a KafkaArchive shows


class KafkaArchives:
    """Reads resources from the API for each look. `wake` is called for a KafkaArchive about which there is news."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        engine: EngineSettings,
        metrics: Metrics,
        sharing: SharedArchives,
        wake: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._engine = engine
        self._metrics = metrics
        self._sharing = sharing
        self._wake = wake
        self._users = UsersOfArchives()

    def event(self, archive: KafkaArchive, how: str) -> list[Key]:
        """Return what is to be looked at after an event about a KafkaArchive: itself, and the resources that name
        it."""
        if how != "DELETED" and not self._users.is_news(archive):
            return []  # an echo of its status
        return [archive.key, *self._users.naming(archive.key)]

    def look(self, key: Key, now: datetime) -> None:
        """Write the status of a KafkaArchive, if it is to be another one. Raises ApiError."""
        archives = {one.key: one for one in self._cluster.archives([key.namespace])}
        archive = archives.get(key)
        if archive is None:
            self._users.forget_archive(key)
            return
        self._users.note_archive(archive)
        mine, read = archive.place, self._cluster.resources([key.namespace], archives)
        users = self._among(archive, [one for one in read if mine is not None and archive_at(one) == mine])
        status, events = archive_status(archive, users, self._engine, now)
        if status == archive.status:
            return
        self._cluster.write_status(archive, status)
        for event in events:
            log.info("%s: %s: %s", key, event.reason, event.message)
            try:
                self._cluster.event(archive, event.type, event.reason, event.message, event.run_id)
            except ApiError as error:
                log.warning("%s: the Event %s could not be written: %s", key, event.reason, error)
                self._metrics.event_failed(key, event.reason)

    def unsettled(
        self, archives: Iterable[KafkaArchive], resources: Iterable[Resource], now: datetime
    ) -> Iterator[Key]:
        """Yield the KafkaArchives of a snapshot whose status is to be another one."""
        by_place: dict[object, list[Resource]] = {}
        for resource in resources:
            if (place := archive_at(resource)) is not None:
                by_place.setdefault(place, []).append(resource)
        for archive in archives:
            self._users.note_archive(archive)
            users = self._among(archive, by_place.get(archive.place, []))
            if archive_status(archive, users, self._engine, now)[0] != archive.status:
                yield archive.key

    def note(self, resource: Resource) -> None:
        """Note a resource as it was read."""
        self._wake_all(self._users.note(resource))

    def forget(self, key: Key) -> None:
        """Note that a resource is gone."""
        self._wake_all(self._users.forget(key))

    def told(self, resource: Resource, status: Status) -> None:
        """Note that a resource has got this status."""
        if any(getattr(resource.status, part) != getattr(status, part) for part in _SHOWN):
            self._wake_all(self._users.archives_of(resource.key))

    def _among(self, archive: KafkaArchive, at_place: list[Resource]) -> ArchiveUsers:
        backups = [one for one in at_place if one.key.is_backup]
        for one in backups:
            self._sharing.note(one)
        writers = frozenset(one.key for one in backups if self._sharing.owner_instead_of(one) is None)
        return ArchiveUsers.among(archive, at_place, writers)

    def _wake_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._wake(key)

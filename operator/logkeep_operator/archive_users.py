"""Which resources have which place: a change of a KafkaArchive wakes those that name it, and their news wake it.

What is remembered here spares calls only: a look reads from the API what it decides about.
"""

from __future__ import annotations

from threading import Lock

from logkeep_engine.contract.names import KAFKA_ARCHIVE
from logkeep_operator.api import Key, Resource
from logkeep_operator.api.archive import KafkaArchive, archive_at


class UsersOfArchives:
    """Remembers the places of KafkaArchives, and of the resources that use them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._archives: dict[Key, tuple[str, int, object]] = {}
        self._places: dict[Key, tuple[str | None, object]] = {}

    def is_news(self, archive: KafkaArchive) -> bool:
        """Return whether a KafkaArchive is another one than was looked at last, and not the echo of a status."""
        with self._lock:
            return self._archives.get(archive.key) != _state(archive)

    def note_archive(self, archive: KafkaArchive) -> None:
        """Note a KafkaArchive that is looked at."""
        with self._lock:
            self._archives[archive.key] = _state(archive)

    def forget_archive(self, key: Key) -> None:
        """Note that a KafkaArchive is gone."""
        with self._lock:
            self._archives.pop(key, None)

    def note(self, resource: Resource) -> list[Key]:
        """Note a resource as it was read. Returns the KafkaArchives that it uses since, or does not use any more."""
        used = None if resource.deleting else (resource.archive_ref, archive_at(resource))
        with self._lock:
            before = self._places.get(resource.key)
            if before == used:
                return []
            if used is None:
                self._places.pop(resource.key, None)
            else:
                self._places[resource.key] = used
            return self._at(before, resource.key.namespace) + self._at(used, resource.key.namespace)

    def forget(self, key: Key) -> list[Key]:
        """Note that a resource is gone. Returns the KafkaArchives that it has used."""
        with self._lock:
            return self._at(self._places.pop(key, None), key.namespace)

    def archives_of(self, key: Key) -> list[Key]:
        """Return the KafkaArchives that a resource uses, as it was noted last."""
        with self._lock:
            return self._at(self._places.get(key), key.namespace)

    def naming(self, archive: Key) -> list[Key]:
        """Return the resources that name a KafkaArchive."""
        with self._lock:
            return [
                key
                for key, (name, _) in self._places.items()
                if name == archive.name and key.namespace == archive.namespace
            ]

    def _at(self, used: tuple[str | None, object] | None, namespace: str) -> list[Key]:
        if used is None:
            return []
        name, place = used
        at_place = [key for key, (_, _, other) in self._archives.items() if place is not None and other == place]
        named = [Key(KAFKA_ARCHIVE, namespace, name)] if name is not None else []
        return list(dict.fromkeys([*named, *at_place]))


def _state(archive: KafkaArchive) -> tuple[str, int, object]:
    return archive.uid, archive.generation, archive.place

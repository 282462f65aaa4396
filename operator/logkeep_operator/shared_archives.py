"""KafkaBackups that name the same archive: only one of them may write it.

The archive itself says who that is, and each run asks it. What is remembered here lets the operator say so before it
starts a Job in vain. Of KafkaBackups of a namespace with the same storage, the one that wrote the archive last has it.
If none has written it, it is the first that was created of those that have begun a run.

Namespaces are not compared with each other. Any user can write down a URI, and one who has the driver's account of a
namespace, or may change ConfigMaps there, can have a status say that the archive was written a moment ago. That must
not stop a run elsewhere, nor reveal which URIs others use. There the archive alone decides.

Who has written an archive is stopped only by another one that has written the same archive, later and at a higher
epoch. A status may show an archive in another place, or of a run that another had overtaken and that ended late:
when in doubt, no run is stopped, and the run asks the archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from logkeep_operator.api import Key, Resource, Status, StatusOutcome
from logkeep_operator.api.archive import archive_at


@dataclass(frozen=True)
class _Turn:
    """A KafkaBackup that names an archive. `written`: when it last wrote it, in seconds since the epoch; None if it has
    not. `begun`: it has begun a run that writes."""

    key: Key
    created: float
    begun: bool
    written: float | None = None
    archive_id: str | None = None
    epoch: int = 0

    @property
    def _age(self) -> tuple[bool, float, Key]:
        return not self.begun, self.created, self.key

    def comes_before(self, other: _Turn) -> bool:
        """Return whether this one has the archive instead of the other."""
        if self.written is None:
            return self.begun and other.written is None and self._age < other._age
        if other.written is None:
            return True
        return self.archive_id == other.archive_id and self.written > other.written and self.epoch > other.epoch


class SharedArchives:
    """Remembers where the archives of all KafkaBackups lie. Safe to use from several threads."""

    def __init__(self) -> None:
        self._places: dict[Key, object] = {}
        self._turns: dict[object, dict[Key, _Turn]] = {}
        self._lock = Lock()

    def note(self, resource: Resource, status: Status | None = None) -> None:
        """Note a KafkaBackup as it was read, or as its status is about to become."""
        if not resource.key.is_backup:
            return
        place = None if resource.deleting else archive_at(resource)
        with self._lock:
            self._forget(resource.key)
            if place is not None:
                self._places[resource.key] = place
                self._turns.setdefault(place, {})[resource.key] = _turn(resource, status or resource.status)

    def forget(self, key: Key) -> None:
        """Note that the resource is gone."""
        with self._lock:
            self._forget(key)

    def owner_instead_of(self, resource: Resource) -> Key | None:
        """Return the KafkaBackup that has the archive which `resource` names; None if that is itself."""
        with self._lock:
            turns = self._turns.get(self._places.get(resource.key), {})
            own = turns.get(resource.key)
            before = [turn for turn in turns.values() if own is not None and turn.comes_before(own)]
        wrote = [turn for turn in before if turn.written is not None]
        if wrote:
            return max(wrote, key=lambda turn: (turn.written, turn.key)).key
        return min(before, key=lambda turn: (turn.created, turn.key)).key if before else None

    def _forget(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._turns[place].pop(key, None)
            if not self._turns[place]:
                del self._turns[place]


def _turn(resource: Resource, status: Status) -> _Turn:
    begun = status.run is not None and status.run.outcome is not StatusOutcome.DRY_RUN
    archive, created = status.archive, resource.created.timestamp() if resource.created is not None else 0.0
    if archive is None or not archive.is_at(resource.spec["storage"]["uri"]):
        return _Turn(resource.key, created, begun)
    return _Turn(resource.key, created, begun, archive.write_time_seconds, archive.id, archive.epoch or 0)

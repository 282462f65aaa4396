"""Tells an event that says something new of a resource from the echo of the operator's own writes.

Every status that the operator writes comes back as an event. A look at it would find nothing, and a resource whose look
has failed would be looked at again at once, however long its back-off is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from logkeep_operator.api import Key, Resource, Status


class News(Enum):
    """The news that an event may bring. `STATUS`: only the status has changed, and another client wrote it."""

    NOTHING = "nothing"
    STATUS = "status"
    RESOURCE = "resource"


@dataclass(frozen=True)
class _State:
    requested: tuple[object, ...]
    status: Status


class EventFilter:
    """Remembers each resource as it was last looked at or written. Safe to use from several threads."""

    def __init__(self) -> None:
        self._last: dict[Key, _State] = {}

    def note(self, resource: Resource, status: Status | None = None) -> None:
        """Note that the resource is looked at, or is about to get this status: the event may come before the answer
        does."""
        written = Status.from_dict(status.to_dict()) if status is not None else resource.status
        self._last[resource.key] = _State(_asked(resource), written)

    def forget(self, key: Key) -> None:
        """Note that the resource is gone."""
        self._last.pop(key, None)

    def news(self, resource: Resource) -> News:
        """Return the news that an event with this resource brings."""
        last = self._last.get(resource.key)
        if last is None or last.requested != _asked(resource):
            return News.RESOURCE
        return News.NOTHING if last.status == resource.status else News.STATUS


def _asked(resource: Resource) -> tuple[object, ...]:
    annotations = tuple(sorted(resource.annotations.items()))
    return resource.uid, resource.generation, resource.deleting, annotations

"""The runs that have a driver and those that wait for one, as looks at their resources have found them.

This is a memory of what the cluster has said. A new operator fills it by its first resync; until then no run begins.
`enter` takes a place before the run's Job is made, so two looks at the same time never take the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from datetime import datetime

from logkeep_operator.api import Key
from logkeep_operator.reconcile import RunQueue, Waiter, due, place_of
from logkeep_operator.settings import Concurrency


class DriverSlots:
    """Safe to use from several threads. `scopes` are the namespaces that are resynced, None for the whole cluster."""

    def __init__(self, concurrency: Concurrency, scopes: Iterable[str | None]) -> None:
        self._concurrency = concurrency
        self._uncounted = set(scopes)
        self._running: set[Key] = set()
        self._waiting: dict[Key, datetime] = {}
        self._looks = 0
        self._looked: dict[Key, int] = {}
        self._namespaces: dict[str | None, frozenset[str]] = {}
        self._lock = threading.Lock()

    def turns(self) -> RunQueue:
        """Return the runs and those that wait, as they are known now."""
        with self._lock:
            return self._turns()

    def due(self) -> list[Key]:
        """Return the resources whose turn it is."""
        return due(self.turns()) if self._waiting else []

    def mark(self) -> int:
        """Return the number of looks so far. A snapshot that begins now knows nothing of later ones."""
        return self._looks

    def found(self, key: Key, *, running: bool, mark: int | None = None) -> None:
        """Note whether the resource has a driver. With `mark` a snapshot says so, and a look since then knows it
        better."""
        with self._lock:
            if self._is_older(key, mark):
                return
            if mark is None:
                self._look(key)
            (self._running.add if running else self._running.discard)(key)
            if running:
                self._waiting.pop(key, None)

    def enter(self, key: Key, since: datetime) -> RunQueue:
        """Wait since then, and take a place if it is the resource's turn: then it is among those that run."""
        with self._lock:
            self._look(key)
            self._waiting[key] = since
            if place_of(self._turns(), key, since) is None:
                del self._waiting[key]
                self._running.add(key)
            return self._turns()

    def wait(self, key: Key, since: datetime, mark: int) -> RunQueue:
        """Wait since then, as a snapshot says, and take no place."""
        with self._lock:
            if not self._is_older(key, mark) and key not in self._running:
                self._waiting[key] = since
            return self._turns()

    def leave(self, key: Key, mark: int | None = None) -> None:
        """Give the place away, or the one in the queue: the resource needs none, or could not begin."""
        with self._lock:
            if self._is_older(key, mark):
                return
            self._running.discard(key)
            self._waiting.pop(key, None)
            if mark is None:
                self._look(key)

    def stand_back(self, key: Key, mark: int | None = None) -> None:
        """Leave the queue until a later look finds that the resource can begin. One whose look has failed holds up
        no others."""
        with self._lock:
            if not self._is_older(key, mark):
                self._waiting.pop(key, None)

    def counted(self, scope: str | None, there: Collection[Key], mark: int) -> None:
        """Note that all resources of a scope have been looked at. Those that are not `there` are gone."""
        with self._lock:
            for key in [*self._running, *self._waiting]:
                if scope in (None, key.namespace) and key not in there and not self._is_older(key, mark):
                    self._running.discard(key)
                    self._waiting.pop(key, None)
                    self._looked.pop(key, None)
            self._namespaces[scope] = frozenset(key.namespace for key in there)
            self._uncounted.discard(scope)

    def not_counted(self, scope: str | None) -> None:
        """Note that a scope cannot be read: the runs of others begin all the same."""
        with self._lock:
            self._uncounted.discard(scope)

    def forget(self, key: Key) -> None:
        """Note that the resource is gone."""
        with self._lock:
            self._running.discard(key)
            self._waiting.pop(key, None)
            self._looked.pop(key, None)

    def _turns(self) -> RunQueue:
        waiting = frozenset(Waiter(since, key) for key, since in self._waiting.items())
        namespaces = frozenset(key.namespace for key in (*self._running, *self._waiting))
        return RunQueue(
            self._concurrency,
            frozenset(self._running),
            waiting,
            counted=not self._uncounted,
            namespaces=namespaces.union(*self._namespaces.values()),
        )

    def _look(self, key: Key) -> None:
        self._looks += 1
        self._looked[key] = self._looks

    def _is_older(self, key: Key, mark: int | None) -> bool:
        return mark is not None and self._looked.get(key, 0) > mark

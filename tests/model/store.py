"""A storage in memory that dies before one of its writes.

Histories spend most of their time in small objects: files cost five times as much as a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.errors import ObjectExists, ObjectMissing
from logkeep_engine.storage import ColdObject, ObjectInfo, Storage
from logkeep_engine.storage.base import ANYTHING, ObjectWriter, UnseenObject
from tests.unit.erasure.erasing import Killed


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. No two have one `version`."""

    data: bytes
    time: float
    version: str


@dataclass
class MemoryStore(Storage):
    """Dies before it changes something for the `left`-th time, counted from 0; None: it lives. Heartbeats do not count:
    they come when they like. `now` gives the time of an object, `writes` counts the changes."""

    uri: str
    now: Callable[[], float]
    left: int | None = None
    writes: int = 0
    objects: dict[str, Stored] = field(default_factory=dict)
    hidden: dict[str, bytes] = field(default_factory=dict)
    """The objects that killed writers have left: no list shows it."""
    _versions: int = 0

    def step(self) -> None:
        """Count a change, or die before it."""
        self.writes += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def keep(self, path: str, data: bytes) -> None:
        """Have an object."""
        self._versions += 1
        self.objects[path] = Stored(data, self.now(), str(self._versions))

    def check(self) -> None:
        pass

    def create(self, path: str, data: bytes) -> None:
        self.step()
        if path in self.objects:
            raise ObjectExists(f"{self.uri}/{path} exists already.")
        self.keep(path, bytes(data))

    def put(self, path: str, data: bytes) -> None:
        if not path.endswith("heartbeat.json"):
            self.step()
        self.keep(path, bytes(data))

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return _Writer(self, path, replaces)

    def version(self, path: str) -> str | None:
        found = self.objects.get(path)
        return None if found is None else found.version

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        found = self.objects.get(path)
        if found is None:
            raise ObjectMissing(f"{self.uri}/{path} does not exist.")
        return found.data if not start and (end is None or end >= len(found.data)) else found.data[start:end]

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return [
            ObjectInfo(path, len(item.data), item.time)
            for path, item in sorted(self.objects.items())
            if path.startswith(prefix)
        ]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.step()
            self.objects.pop(path, None)

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        return ()

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        raise NotImplementedError

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        return tuple(UnseenObject(path, path) for path in sorted(self.hidden) if path.startswith(prefix))

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[()]:
        for item in found:
            self.step()
            del self.hidden[item.id]
        return ()


@dataclass
class _Writer(ObjectWriter):
    store: MemoryStore
    path: str
    replaces: str | None
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.data += view
        return len(view)

    def commit(self) -> None:
        try:
            self.store.step()
        except Killed:
            self.store.hidden[f"{self.path}.{self.store.writes}"] = bytes(self.data)
            raise
        if self.replaces != ANYTHING and self.store.version(self.path) != self.replaces:
            raise ObjectExists(f"{self.store.uri}/{self.path} is not what was to be replaced.")
        self.store.keep(self.path, bytes(self.data))

    def abort(self) -> None:
        self.data.clear()

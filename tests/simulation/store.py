"""The store of an archive as a simulated process sees it: a folder in memory, with faults, or the S3 front.

Faults of the folder are those that a network file system or an object store shows through `Storage`; those of HTTP
itself are in `s3_front`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import Any, TypeVar

from logkeep_engine.errors import ObjectExists, StorageUnavailable
from logkeep_engine.storage import (
    ANYTHING,
    Buffer,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    Storage,
    StorageAround,
    UnseenObject,
)
from tests.simulation.process import Process, current

T = TypeVar("T")

SLOW_SECONDS = 0.02


class StoreKind(StrEnum):
    """A thing that happens instead of what was asked for."""

    UNAVAILABLE = "store unavailable"
    LOST_ANSWER = "store did it, answer lost"
    EXISTS = "store did it, a repeated request says it exists"
    SLOW = "store slow"
    STALE_LIST = "list without the newest objects"


@dataclass(slots=True)
class StoreFault:
    """A fault after so many calls of an operation
    (`create`, `put`, `writer`, `read`, `list`, `delete`), so many times."""

    kind: StoreKind
    operation: str
    after: int
    times: int = 1

    def __str__(self) -> str:
        return f"store {self.operation}: {self.kind.value}, after {self.after}, {self.times} times"


@dataclass(slots=True)
class StoreFaults:
    """Those to come. `newest` is what was written since a list was complete. Safe for several threads."""

    active: list[StoreFault] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    newest: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def take(self, operation: str) -> StoreKind | None:
        with self._lock:
            for fault in self.active:
                if fault.operation != operation:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if fault.times == 0:
                    self.active.remove(fault)
                self.used[f"{operation}: {fault.kind.value}"] += 1
                return fault.kind
        return None

    def heal(self) -> None:
        with self._lock:
            self.active.clear()
            self.newest.clear()


class ProcessStorage(StorageAround):
    """`under`, as one process uses it. A task that unpickles it uses it as itself."""

    def __init__(self, under: Storage, faults: StoreFaults, process: Process) -> None:
        super().__init__(under)
        self._faults = faults
        self._process = process

    def __reduce__(self) -> tuple[Any, ...]:
        key = id(self.under)
        _known[key] = (self.under, self._faults)
        return _of_this_process, (key,)

    def create(self, path: str, data: bytes) -> None:
        self._do("create", path, lambda: self.under.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._do("put", path, lambda: self.under.put(path, data))

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        self._process.alive()
        return _Writer(self, path, self.under.writer(path, replaces=replaces))

    def version(self, path: str) -> str | None:
        return self._do("read", path, lambda: self.under.version(path))

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        return self._do("read", path, lambda: self.under.read_range(path, start, end))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        found = self._do("list", prefix, lambda: self.under.list(prefix))
        hidden = set(self._faults.newest) if self._faults.take("hide") is StoreKind.STALE_LIST else set()
        return [info for info in found if info.path not in hidden]

    def delete(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        self._do("delete", "", lambda: self.under.delete(wanted))

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        return self._do("list", prefix, lambda: self.under.unseen(prefix))

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        wanted = list(found)
        return self._do("delete", "", lambda: self.under.delete_unseen(wanted))

    def _do(self, operation: str, path: str, act: Callable[[], T]) -> T:
        process = self._process
        if path.endswith("heartbeat.json"):
            process.alive()  # in a thread of its own: it would make the counting of calls a matter of luck
            return act()
        process.begin()
        kind = self._faults.take(operation)
        if kind is StoreKind.UNAVAILABLE:
            raise StorageUnavailable(f"{path}: simulated: no answer.")
        if kind is StoreKind.SLOW:
            time.sleep(SLOW_SECONDS)
        result = act()
        if operation in ("create", "put", "writer"):
            self._faults.newest = [*self._faults.newest, path][-2:]
        process.end()
        if kind is StoreKind.LOST_ANSWER:
            raise StorageUnavailable(f"{path}: simulated: the answer was lost.")
        if kind is StoreKind.EXISTS and operation == "create":
            raise ObjectExists(f"{path} exists already.")
        return result


class _Writer(ObjectWriter):
    def __init__(self, storage: ProcessStorage, path: str, inner: ObjectWriter) -> None:
        self._storage = storage
        self._path = path
        self._inner = inner

    def write(self, data: Buffer) -> int:
        self._storage._process.alive()
        return self._inner.write(data)

    def commit(self) -> None:
        self._storage._do("writer", self._path, self._inner.commit)

    def abort(self) -> None:
        if not self._storage._process.dead:
            self._inner.abort()


_known: dict[int, tuple[Storage, StoreFaults]] = {}


def _of_this_process(key: int) -> ProcessStorage:
    return ProcessStorage(*_known[key], current())

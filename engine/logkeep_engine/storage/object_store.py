"""A storage whose client asks for, and deletes, one object at a time: what those of Google and Azure share."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from logkeep_engine.errors import LogkeepError, ObjectMissing, StorageRefused, StorageUnavailable
from logkeep_engine.storage.base import LockedObject, Storage, UnseenObject
from logkeep_engine.storage.parts import PartSender
from logkeep_engine.storage.per_process import PerProcess
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.retry import retried

CONNECT_TIMEOUT = 15.0
"""Seconds until a connection must be there, and until a slab of a body must be sent: urllib3 has no third limit."""
READ_TIMEOUT = 30.0
"""Seconds without a byte of an answer."""
CONNECTIONS = 64
"""Connections that a process keeps to a store."""
_DELETED_AT_ONCE = 16

C = TypeVar("C")
T = TypeVar("T")


class PastEndError(LogkeepError):
    """A range that starts at or after an object's end."""


class LockedError(StorageRefused):
    """The object is locked: the store does not delete it."""


def unanswered(error: Exception, place: BucketPlace, path: str, may_pass: bool) -> LogkeepError:
    """Return the error for a request that the store has not answered."""
    if may_pass:
        return StorageUnavailable(
            f"{place.name_of(path)}: no answer from {place.where} ({type(error).__name__}).",
            hint=f"Check that {place.keys.part('endpoint')} is right and reachable.",
        )
    return StorageRefused(
        f"{place.name_of(path)}: {place.where} cannot be asked ({type(error).__name__}).",
        hint=f"Check {place.keys.part('uri')} and {place.keys.part('endpoint')}.",
    )


class ObjectStore(Storage, Generic[C]):
    """Objects below a prefix. `C` is what a process speaks to the store with. Pickles without credentials: a worker
    process takes those of its own environment."""

    def __init__(self, place: BucketPlace, environ: Mapping[str, str] = os.environ) -> None:
        self._place = place
        self._own = PerProcess(lambda: self._connect(environ))
        self._sender = PerProcess(PartSender)
        self.uri = place.uri

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r}, endpoint={self._place.where!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._place,))

    @abstractmethod
    def _connect(self, environ: Mapping[str, str]) -> C:
        """Return the means to speak to the store, with the credentials of this environment."""

    @abstractmethod
    def _translate(self, error: Exception, path: str) -> LogkeepError:
        """Return our error for one of the library."""

    @abstractmethod
    def _delete_one(self, connection: C, path: str, version: str | None) -> None:
        """Delete an object, or the version of it that `UnseenObject.id` names."""

    @abstractmethod
    def _lock_of(self, connection: C, path: str, version: str | None) -> LockedObject | None:
        """Return how an object is locked; None if the store does not report it."""

    @property
    def place(self) -> BucketPlace:
        """The bucket and the prefix of the objects."""
        return self._place

    @property
    def sender(self) -> PartSender:
        """The threads and the memory of this process's writers."""
        return self._sender.get()

    def connection(self) -> C:
        """This process's own connection; the first call makes it."""
        return self._own.get()

    def ask(self, path: str, action: Callable[[C], T]) -> T:
        """Have the store do it, and again while it fails for a reason that may pass. `path`: what an error names."""
        try:
            self.connection()
        except Exception as error:
            raise self._translate(error, path) from error
        return retried(
            lambda attempt: action(self.connection()),
            lambda error: self._translate(error, path),
            lambda error: None,
        )

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        self._place.key(path)
        if end is not None and end <= start:
            return b""
        try:
            return self.ask(path, lambda connection: self._read(connection, path, start, end))
        except PastEndError:
            return b""

    @abstractmethod
    def _read(self, connection: C, path: str, start: int, end: int | None) -> bytes:
        """Return bytes [start, end) of an object. Raises what becomes PastEndError where it is shorter than `start`."""

    def _path_of(self, key: str, prefix: str) -> str:
        """Return the path of a key. Refuses one of elsewhere: what is listed may be deleted."""
        if not key.startswith(self._place.prefix + prefix):
            raise StorageRefused(
                f"{self._place.where}: the list of objects below {self._place.name_of(prefix)} has {key!r}, which was "
                "not asked for.",
                hint="A backup cannot be trusted to a store that ignores the prefix of a list.",
            )
        return key[len(self._place.prefix) :]

    def delete(self, paths: Iterable[str]) -> None:
        self._delete([(path, None) for path in paths], refuse=True)

    def delete_unlocked(self, paths: Iterable[str]) -> tuple[LockedObject, ...]:
        return self._delete([(path, None) for path in paths], refuse=False)

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        return self._delete([(item.path, item.id) for item in found], refuse=False)

    def _delete(self, objects: Iterable[tuple[str, str | None]], *, refuse: bool) -> tuple[LockedObject, ...]:
        with ThreadPoolExecutor(_DELETED_AT_ONCE, thread_name_prefix="logkeep-delete") as pool:
            found = [*pool.map(partial(self._delete_unless_locked, refuse), objects)]
        return tuple(lock for lock in found if lock is not None)

    def _delete_unless_locked(self, refuse: bool, item: tuple[str, str | None]) -> LockedObject | None:
        path, version = item
        self._place.key(path)
        try:
            self.ask(path, lambda connection: self._delete_one(connection, path, version))
        except ObjectMissing:
            pass
        except LockedError:
            lock = None if refuse else self.ask(path, lambda connection: self._lock_of(connection, path, version))
            if lock is None:
                raise
            return lock
        return None

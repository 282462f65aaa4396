"""The interface of every storage: objects below a URI, written whole, read by ranges or as a stream."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from logkeep_engine.errors import ObjectTooLarge

DEFAULT_BLOCK = 8 << 20  # bytes a reader fetches at once

PART_BYTES = 32 << 20
"""Bytes that a writer to an object store collects before it sends them: the parts of an upload, all but the last."""

WHOLE_BYTES = 256 << 20
"""The most bytes of an object that is read whole, unless the reader says less. A commit of a million segments has this
many; what is larger is read in parts."""

NOTE_BYTES = 1 << 20
"""The most bytes of a note: an object that says one thing, such as `archive.json` or a heartbeat."""

ANYTHING = "*"
"""With this, `Storage.writer` replaces whatever lies under the name."""

Buffer = bytes | bytearray | memoryview  # collections.abc.Buffer came with Python 3.12


def is_object_path(path: str) -> bool:
    """Return whether the path names an object, and leads nowhere else."""
    return not any(part in ("", ".", "..") for part in path.split("/"))


def require_object_path(path: str) -> None:
    """Raises ValueError for a path that names no object, or that leads out of the storage."""
    if not is_object_path(path):
        raise ValueError(f"{path!r} is not an object path")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`path` is relative to the storage's URI; `size` in bytes; `modified` in seconds since the epoch, by the clock of
    the store. `storage_class` is the store's word; empty if it has none."""

    path: str
    size: int
    modified: float = field(default=0.0, compare=False)
    storage_class: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ColdObject:
    """An object that cannot be read before the store has retrieved it. `retrieving`: the store was asked to."""

    info: ObjectInfo
    retrieving: bool

    def __str__(self) -> str:
        return f"{self.info.path} ({self.info.storage_class})"


@dataclass(frozen=True, slots=True)
class LockedObject:
    """An object that the store refuses to delete: it is retained until a time (seconds since the epoch), or has a legal
    hold, which has no end on its own."""

    path: str
    until: float | None
    legal_hold: bool

    def __str__(self) -> str:
        until = "" if self.until is None else f" until {datetime.fromtimestamp(self.until, UTC).isoformat()}"
        return f"{self.path}{until}{' with a legal hold' if self.legal_hold else ''}"


@dataclass(frozen=True, slots=True)
class UnseenObject:
    """Bytes that lie in a storage though no list shows them: an older version of an object, or what a writer that was
    killed has left. `id` says to the store which they are."""

    path: str
    id: str
    is_version: bool = False


class ObjectWriter(ABC):
    """Writes one object as a stream. Nothing is visible before `commit`, everything after it; `abort` leaves nothing.

    As a context manager it commits on a clean exit and aborts when an exception leaves the block. Not safe for several
    threads.
    """

    @abstractmethod
    def write(self, data: Buffer) -> int:
        """Append; the data is copied before this returns."""

    def complete(self) -> None:  # noqa: B027 - most have nothing to begin
        """Note that all bytes were written: what `commit` waits for may begin, while the caller does other things."""

    @abstractmethod
    def commit(self) -> None:
        """Make the object visible under its name, replacing what was there. Durable when this returns.

        Raises ObjectExists if the writer was to replace something else than lies there now; then `abort` it.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written. Harmless after `commit` and when called twice; never raises for the storage's sake."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self.abort()
                raise
        else:
            self.abort()


class Storage(ABC):
    """Objects below one URI. Paths are relative to it, with `/`. Safe for several threads.

    `tests/unit/storage/contract.py` asks every kind of storage the same questions.

    Every method may raise StorageUnavailable (may pass), StorageRefused or CredentialsMissing, and BucketMissing; those
    that read raise ObjectCold.
    """

    uri: str
    forgets_unfinished = False
    """Whether the store itself drops what writers that were killed have left, and shows it to nobody."""

    @abstractmethod
    def check(self) -> None:
        """Find out whether the bucket or folder can be reached with these credentials. Never writes."""

    def check_path(self, path: str) -> None:  # noqa: B027 - most storages hold whatever a caller names
        """Raises StorageRefused for an object, or a folder of objects, whose name cannot be held here. Makes no
        request."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Write a new object, whole and durable. Raises ObjectExists if the name is taken.

        When the connection broke while the store answered, ObjectExists may mean that this very call wrote the object:
        a caller to whom that matters puts something unique into `data` and reads the object.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object, whole and durable."""

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write or replace some small objects, each whole. All are durable when this returns. If it raises, any of
        them may be there.
        """
        for path, data in objects.items():
            self.put(path, data)

    @abstractmethod
    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        """Stream a new object with bounded memory: what one writer collects, and some of all writers that is on its way
        while callers continue.

        `replaces` is what the object may take the place of when it is committed: whatever is there, only the object
        that had this `version`, or None: nothing, the name must be free.
        """

    @abstractmethod
    def version(self, path: str) -> str | None:
        """Return a mark that another object in its place does not have; None if there is no object. On S3 (the ETag)
        objects of equal content share it."""

    @abstractmethod
    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        """Bytes [start, end) of an object, fewer where it is shorter; to its end if `end` is None. Raises
        ObjectMissing."""

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        """Fill `target` with the object's bytes from `start` on and say how many there were: fewer at its end. Raises
        ObjectMissing."""
        data = self.read_range(path, start, start + len(target))
        target[: len(data)] = data
        return len(data)

    @abstractmethod
    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return all objects whose path starts with `prefix`, at any depth, sorted by path; [] if there are none."""

    def list_in_pages(self, prefix: str, size: int) -> Sequence[ObjectInfo]:
        """The same as `list`, where the store is asked for so many objects at a time. A folder has no pages."""
        return self.list(prefix)

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""

    def delete_unlocked(self, paths: Iterable[str]) -> tuple[LockedObject, ...]:
        """Delete objects, but for those that the store keeps because they are locked: these are returned."""
        self.delete(paths)
        return ()

    @abstractmethod
    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        """Return all that lies below `prefix` and no list shows. Raises StorageRefused if the store does not report
        it."""

    @abstractmethod
    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        """Delete what `unseen` has found, but for what the store keeps because it is locked: this is returned. Objects
        stay as they are; a writer that still writes what is deleted fails."""

    @abstractmethod
    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        """Return those of the listed objects that cannot be read now, since they lie in a cold storage class. Asks
        about none whose class can be read at once."""

    @abstractmethod
    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        """Ask the store to make an object readable, for this many days; returns at once. One that it was asked for
        before is not an error."""

    def read(self, path: str, *, most: int = WHOLE_BYTES) -> bytes:
        """Return a whole object. Raises ObjectMissing, and ObjectTooLarge for one of more than `most` bytes."""
        data = self.read_range(path, 0, most + 1)
        if len(data) > most:
            raise self.too_large(path, len(data), most)
        return data

    def too_large(self, path: str, size: int, most: int) -> ObjectTooLarge:
        """Return the error for an object of at least `size` bytes that was to be read whole."""
        return ObjectTooLarge(
            f"{self.uri}/{path} has {size} bytes or more; an object of its kind has at most {most}.",
            hint="Logkeep did not write it: find out who can write here, and restore the object from a copy.",
        )

    def reader(self, path: str, *, block: int = DEFAULT_BLOCK, start: int = 0) -> ObjectReader:
        """Return a sequential stream from byte `start` on; the next block is fetched while the caller works on one.
        Raises ObjectMissing on the first read."""
        return ObjectReader(self, path, block, start)


class StorageAround(Storage):
    """A storage around another one, `under`. It hands on what every storage must do itself; what `Storage` makes of
    that, such as `read`, it makes of its own methods, so it is enough to override one."""

    def __init__(self, under: Storage) -> None:
        self.uri = under.uri
        self.under = under
        self.forgets_unfinished = under.forgets_unfinished

    def check(self) -> None:
        self.under.check()

    def check_path(self, path: str) -> None:
        self.under.check_path(path)

    def create(self, path: str, data: bytes) -> None:
        self.under.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.under.put(path, data)

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return self.under.writer(path, replaces=replaces)

    def version(self, path: str) -> str | None:
        return self.under.version(path)

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        return self.under.read_range(path, start, end)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return self.under.list(prefix)

    def list_in_pages(self, prefix: str, size: int) -> Sequence[ObjectInfo]:
        return self.under.list_in_pages(prefix, size)

    def delete(self, paths: Iterable[str]) -> None:
        self.under.delete(paths)

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        return self.under.unseen(prefix)

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        return self.under.delete_unseen(found)

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        return self.under.cold(listed)

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        self.under.retrieve(cold, days, tier)


class ObjectReader(io.RawIOBase):
    """Sequential reads of one object by ranges of `block` bytes, one in flight ahead of the caller: two blocks of
    memory."""

    def __init__(self, storage: Storage, path: str, block: int, start: int = 0) -> None:
        self._storage = storage
        self._path = path
        self._block = block
        self._current = memoryview(b"")
        self._offset = start
        self._last = False
        self._ahead: Future[bytes] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        return True

    def read_block(self) -> bytes:
        """Return the next up to `block` bytes without a copy; b"" at the end. Not to be mixed with the other reads."""
        if self._last:
            return b""
        data = self._ahead.result() if self._ahead is not None else self._fetch(self._offset)
        self._ahead = None
        self._offset += len(data)
        if len(data) < self._block:
            self._last = True
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="logkeep-read")
            self._ahead = self._pool.submit(self._fetch, self._offset)
        return data

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        if not self._current:
            self._current = memoryview(self.read_block())
        count = min(len(target), len(self._current))
        target[:count] = self._current[:count]
        self._current = self._current[count:]
        return count

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        super().close()

    def _fetch(self, start: int) -> bytes:
        return self._storage.read_range(self._path, start, start + self._block)

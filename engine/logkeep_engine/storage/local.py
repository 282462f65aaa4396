"""Objects as files below a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

from logkeep_engine.errors import (
    BucketMissing,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageRefused,
    StorageUnavailable,
    by_place,
)
from logkeep_engine.storage.base import (
    ANYTHING,
    WHOLE_BYTES,
    Buffer,
    ColdObject,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    Storage,
    UnseenObject,
    require_object_path,
)
from logkeep_engine.storage.page_cache import WrittenFile

_TEMPORARY = ".logkeep-"
_LOST_AND_FOUND = "lost+found"  # a file system's own, for root only; no topic can have this name
_NAME_BYTES = 255  # NAME_MAX of Linux's file systems


class LocalStorage(Storage):
    """A folder. Objects are files; folders are made when an object needs them."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._root = Path(unquote(urlsplit(uri).path))

    def __repr__(self) -> str:
        return f"LocalStorage({self.uri!r})"

    def check(self) -> None:
        folder = self._root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise BucketMissing(
                f"{self.uri}: {folder} is not a folder.",
                hint=by_place("Name a folder of the volume.", "Name a folder."),
            )
        if not os.access(folder, os.R_OK | os.X_OK):
            raise StorageDenied(f"{self.uri}: no permission to read {folder}.", hint="Check its owner and mode.")

    def require_folder(self) -> None:
        """Raises BucketMissing if the folder itself is not there: a name with an error in it would make another one."""
        self.check()
        if not self._root.exists():
            raise BucketMissing(
                f"{self.uri}: there is no folder {self._root}.",
                hint="Correct the name, or make the folder if it is right.",
            )

    def check_path(self, path: str) -> None:
        for part in path.split("/"):
            if _is_temporary(part):
                raise StorageRefused(
                    f"{self.uri}/{path}: names that begin with {_TEMPORARY} are those of unfinished files.",
                    hint="Exclude the topic, or use an object store.",
                )
            if len(os.fsencode(part)) > _NAME_BYTES:
                raise StorageRefused(
                    f"{self.uri}/{path}: a name in a file system has at most {_NAME_BYTES} bytes.",
                    hint="Exclude the topic, or use an object store or another format.",
                )

    def create(self, path: str, data: bytes) -> None:
        target = self._own_path(path)
        with _os_errors(self, path):
            temporary = self._write_temporary(target, data)
            try:
                # a link, since a rename would replace an object that is there
                os.link(temporary, target)
            except FileExistsError as error:
                raise ObjectExists(f"{self.uri}/{path} exists already.") from error
            finally:
                os.unlink(temporary)
            _sync_folder(target.parent)

    def put(self, path: str, data: bytes) -> None:
        target = self._own_path(path)
        with _os_errors(self, path):
            temporary = self._write_temporary(target, data)
            try:
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise
            _sync_folder(target.parent)

    def remove_folders(self) -> None:
        """Remove the storage's folder and those in it, and the one above, as far as they are empty."""
        for folder, _, _ in os.walk(self._root, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        with contextlib.suppress(OSError):
            os.rmdir(self._root.parent)

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Files that are synced at the same time share a commit of the file system's journal, and they need one sync
        of their folder."""
        writers: list[_LocalWriter] = []
        try:
            for path, data in objects.items():
                writer = _LocalWriter(self, path, self._own_path(path), ANYTHING)
                writers.append(writer)
                writer.write(data)
                writer.complete()
            folders = {writer.publish(): path for writer, path in zip(writers, objects, strict=True)}
            for folder, path in folders.items():
                with _os_errors(self, path):
                    _sync_folder(folder)
        except BaseException:
            for writer in writers:
                writer.abort()
            raise

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return _LocalWriter(self, path, self._own_path(path), replaces)

    def version(self, path: str) -> str | None:
        with _os_errors(self, path):
            return _file_version(self._path(path))

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        with _os_errors(self, path, _NOT_READABLE), open(self._path(path), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            wanted = max(0, (size if end is None else min(end, size)) - start)
            data = bytearray(wanted)
            filled = 0
            file.seek(start)
            while filled < wanted:
                count = file.readinto(memoryview(data)[filled:])
                if not count:
                    break
                filled += count
            return bytes(memoryview(data)[:filled])

    def read(self, path: str, *, most: int = WHOLE_BYTES) -> bytes:
        with _os_errors(self, path, _NOT_READABLE):
            size = os.stat(self._path(path)).st_size
        if size > most:
            raise self.too_large(path, size, most)
        return super().read(path, most=most)

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        filled = 0
        with _os_errors(self, path, _NOT_READABLE), open(self._path(path), "rb", buffering=0) as file:
            file.seek(start)
            while filled < len(target):
                count = file.readinto(target[filled:])
                if not count:
                    break
                filled += count
        return filled

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        found: list[ObjectInfo] = []
        for parent, folders, files in os.walk(self._root / folder, onerror=self._not_listed):
            base = self._relative(parent)
            # in place: os.walk enters only the folders that its own list still has
            folders[:] = [name for name in folders if f"{base}{name}/".startswith(prefix)]
            with _os_errors(self, base, _NOT_READABLE):
                for name in files:
                    path = base + name
                    if path.startswith(prefix) and not _is_temporary(name):
                        try:
                            facts = os.stat(os.path.join(parent, name))
                            found.append(ObjectInfo(path, facts.st_size, facts.st_mtime))
                        except FileNotFoundError:  # deleted since the folder was read
                            continue
        return sorted(found, key=lambda info: info.path)

    def delete(self, paths: Iterable[str]) -> None:
        folders = set()
        for path in paths:
            target = self._path(path)
            if target.parent not in folders:  # once a folder: an old catalog deletes thousands of commits
                self._refuse_outside(target, path)
                folders.add(target.parent)
            with _os_errors(self, path):
                target.unlink(missing_ok=True)
        for folder in folders:
            if folder.exists():
                with _os_errors(self, str(folder)):
                    _sync_folder(folder)

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        return ()

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        raise TypeError(f"{self.uri} has no cold objects")

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        folder, _, _ = prefix.rpartition("/")
        walk = os.walk(self._root / folder, onerror=self._not_listed)
        paths = [self._relative(parent) + name for parent, _, some in walk for name in some if _is_temporary(name)]
        return tuple(UnseenObject(path, path) for path in sorted(paths) if path.startswith(prefix))

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        for item in found:
            with _os_errors(self, item.path):
                target = self._root / item.path
                self._refuse_outside(target, item.path)
                target.unlink(missing_ok=True)
                _sync_folder(target.parent)
        return ()

    def _not_listed(self, error: OSError) -> None:
        """Raises for a folder that could not be read: what is in it would be missing in a list, without notice.

        One that has vanished, or never was, holds nothing.
        """
        folder = os.fspath(error.filename)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return
        if isinstance(error, PermissionError) and os.path.basename(folder) == _LOST_AND_FOUND:
            return
        with _os_errors(self, self._relative(folder), _NOT_READABLE):
            raise error

    def _relative(self, folder: str) -> str:
        """Return a folder below the root as a prefix of paths."""
        relative = os.path.relpath(folder, self._root)
        return "" if relative == "." else relative.replace(os.sep, "/") + "/"

    def _path(self, path: str) -> Path:
        require_object_path(path)
        self.check_path(path)
        return self._root / path

    def _own_path(self, path: str) -> Path:
        """Return the path of an object that is to be written or deleted."""
        target = self._path(path)
        self._refuse_outside(target, path)
        return target

    def _refuse_outside(self, target: Path, path: str) -> None:
        """Raises StorageRefused if a symbolic link in the folder leads out of it: a user who may write there could
        have made it."""
        folder, root = os.path.realpath(target.parent), os.path.realpath(self._root)
        if folder != root and not folder.startswith(root.rstrip(os.sep) + os.sep):
            raise StorageRefused(
                f"{self.uri}/{path}: a symbolic link leads out of the folder, to {folder}.",
                hint="Mount the other file system there instead, or find out who created the link.",
            )

    def _write_temporary(self, target: Path, data: bytes) -> Path:
        _make_folder(target.parent)
        temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb", buffering=0) as file:
                _write_all(file, data)
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary


class _LocalWriter(ObjectWriter):
    def __init__(self, storage: LocalStorage, path: str, target: Path, replaces: str | None) -> None:
        self._storage = storage
        self._path = path
        self._target = target
        self._replaces = replaces
        self._temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        with _os_errors(storage, path):
            _make_folder(target.parent)
            self._file: io.FileIO | None = open(self._temporary, "xb", buffering=0)  # noqa: SIM115
        self._written = WrittenFile(self._file)
        self._writing = threading.Lock()  # a task that is cancelled aborts, and may have a thread that writes yet
        self._synced: Future[None] | None = None

    def write(self, data: Buffer) -> int:
        with self._writing, _os_errors(self._storage, self._path):
            if self._file is None:
                raise ValueError(f"{self._path}: write after commit or abort")
            if self._synced is not None:
                raise ValueError(f"{self._path}: write after complete")
            return self._written.write(data)

    def complete(self) -> None:
        if self._file is None or self._synced is not None:
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="logkeep-sync")
        self._synced = pool.submit(self._written.finish)
        # the thread ends once the file is synced; `publish` waits for it
        pool.shutdown(wait=False)

    def commit(self) -> None:
        folder = self.publish()
        with _os_errors(self._storage, self._path):
            _sync_folder(folder)

    def publish(self) -> Path:
        """Make the object visible. Its name is durable when the folder, which is returned, is synced."""
        if self._file is None:
            raise ValueError(f"{self._path}: commit after commit or abort")
        with _os_errors(self._storage, self._path):
            if self._synced is None:
                self._written.finish()
            else:
                self._synced.result()
            self._rename()
            self._close(self._file)
        return self._target.parent

    def _rename(self) -> None:
        if self._replaces == ANYTHING:
            os.replace(self._temporary, self._target)
            return
        taken = ObjectExists(f"{self._storage.uri}/{self._path} was written by another writer.")
        if self._replaces is None:
            try:
                os.link(self._temporary, self._target)
            except FileExistsError as error:
                raise taken from error
            os.unlink(self._temporary)
            return
        with _locked(self._target.parent):
            if _file_version(self._target) != self._replaces:
                raise taken
            os.replace(self._temporary, self._target)

    def abort(self) -> None:
        with self._writing:  # another file may get the number of one that is closed, and its buffer
            if self._file is not None:
                if self._synced is not None:
                    wait([self._synced])
                self._close(self._file)
                self._temporary.unlink(missing_ok=True)

    def _close(self, file: io.FileIO) -> None:
        self._written.release()
        file.close()
        self._file = None


def _is_temporary(name: str) -> bool:
    return name.startswith(_TEMPORARY)


def _write_all(file: io.FileIO, data: Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents durable. A synced file is lost if a crash forgets its folder."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _file_version(path: Path) -> str | None:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return f"{facts.st_ino}-{facts.st_mtime_ns}-{facts.st_size}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that one process at a time looks at files and replaces them. A killed one holds no lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NOT_WRITABLE = "The folder must be writable by this user, on a file system that has hard links."
_NOT_READABLE = "It must be readable by this user: check its owner and mode, and those of the folders above it."


class _os_errors:  # noqa: N801 - reads as the statement it is
    """Turns OSError into ours, with the object's name; `hint` is for one that this user is not permitted to touch."""

    def __init__(self, storage: LocalStorage, path: str, hint: str = _NOT_WRITABLE) -> None:
        self._name = f"{storage.uri}/{path}"
        self._hint = hint

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError):
            return
        what = error.strerror or type(error).__name__
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise ObjectMissing(f"{self._name} does not exist.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.EMLINK):
            raise StorageDenied(f"{self._name}: {what}.", hint=self._hint) from error
        if error.errno == errno.ENAMETOOLONG:
            raise StorageRefused(f"{self._name}: {what}.", hint="Use a shorter path, or an object store.") from error
        raise StorageUnavailable(f"{self._name}: {what}.", hint="Check the disk.") from error

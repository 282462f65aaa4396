"""Where an archive lies: an S3 bucket or a folder, behind one small interface.

    storage = open_storage(spec.storage)
    storage.create("catalog/00000000000000000000.json", data)   # fails with ObjectExists if the name is taken

Everything the archive relies on is here and nowhere else: an object is visible whole or not at all, `create` succeeds
for one caller only (`If-None-Match: *` on S3, a hard link on files), and what a call returned from is durable.

A crash leaves, on files, hidden files `.logkeep-*` that nothing reads or lists; on S3, an unfinished multipart upload
that no listing shows (a lifecycle rule `AbortIncompleteMultipartUpload` removes it).

Objects pickle without credentials: a worker process takes its own from its environment. They may cross a fork: the
connections to S3 are made again in the child.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import random
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from crc32c import crc32c

from logkeep_engine.contract import names
from logkeep_engine.contract import spec as specs
from logkeep_engine.errors import (
    BucketMissing,
    CredentialsMissing,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    StorageRefused,
    StorageUnavailable,
)

DEFAULT_BLOCK = 8 << 20  # bytes a reader fetches at once, and of one part of a multipart upload (S3's minimum is 5 MiB)
PATIENCE = 20.0  # seconds during which a request that failed for a reason that may pass is sent again
ATTEMPTS = 3  # at least, however long each took
QUICK_TIMEOUT = 5.0  # seconds without a byte of the answer to a request that is small, in its first attempts
BODY_TIMEOUT = 30.0  # the same for others, and in later attempts: a store may be slow instead of gone
_QUICK_ATTEMPTS = 2
_QUICK_BYTES = 1 << 20  # more than that, in either direction, is no small request
_TEMPORARY = ".logkeep-"
_LOST_AND_FOUND = "lost+found"  # a file system's own, for root only; no topic can have this name
_NAME_BYTES = 255  # NAME_MAX of Linux's file systems
_DELETE_AT_ONCE = 1000  # S3's limit of DeleteObjects
_PARTS_AT_ONCE = 4  # parts under way of all writers of a storage together
_BLOCKS_KEPT = 8

ANYTHING = "*"
"""For `Storage.writer`: whatever lies under the name is replaced."""

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview  # collections.abc.Buffer came with Python 3.12


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`path` is relative to the storage's URI; `size` in bytes; `modified` in seconds since the epoch, by the clock of
    the store."""

    path: str
    size: int
    modified: float = field(default=0.0, compare=False)


class ObjectWriter(ABC):
    """Writes one object as a stream. Nothing is visible before `commit`, everything after it; `abort` leaves nothing.

    As a context manager it commits on a clean exit and aborts when an exception leaves the block. Not safe for several
    threads.
    """

    @abstractmethod
    def write(self, data: Buffer) -> int:
        """Append; the data is copied before this returns."""

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

    Every method may raise StorageUnavailable (may pass), StorageRefused or CredentialsMissing, and BucketMissing.
    """

    uri: str

    @abstractmethod
    def check(self) -> None:
        """Is the bucket or folder reachable with these credentials? Reads only, never writes."""

    def check_path(self, path: str) -> None:  # noqa: B027 - most storages hold whatever a caller names
        """Raises StorageRefused for an object, or a folder of objects, whose name cannot be held here. Asks nobody."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Write a new object, whole and durable. Raises ObjectExists if the name is taken.

        When the connection broke while the store answered, ObjectExists may mean that this very call wrote the object:
        a caller to whom that matters puts something unique into `data` and reads the object.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object, whole and durable."""

    @abstractmethod
    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        """Stream a new object with bounded memory: a block for each writer, and a few that go out while callers fill
        the next.

        `replaces` is what the object may take the place of when it is committed: whatever is there, only the object
        that had this `version`, or None: nothing, the name must be free.
        """

    @abstractmethod
    def version(self, path: str) -> str | None:
        """What tells the object from one that takes its place; None if there is none. On S3 (the ETag) objects of equal
        content share it."""

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
        """All objects whose path starts with `prefix`, at any depth, sorted by path; [] if there are none."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""

    def read(self, path: str) -> bytes:
        """A whole object. Raises ObjectMissing."""
        return self.read_range(path, 0, None)

    def reader(self, path: str, *, block: int = DEFAULT_BLOCK, start: int = 0) -> ObjectReader:
        """A sequential stream from byte `start` on; the next block is fetched while the caller works on one. Raises
        ObjectMissing on the first read."""
        return ObjectReader(self, path, block, start)


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
        """The next up to `block` bytes without a copy; b"" at the end. Not to be mixed with the other reads."""
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


def open_storage(
    spec: specs.Storage, environ: Mapping[str, str] = os.environ, *, secret_keys: names.Keys = names.OWN_KEYS
) -> Storage:
    """The storage of a resource. Opens no connection. `secret_keys`: where the environment holds the keys of the Secret
    that the spec names; without one they are the process's own.

    Raises CredentialsMissing if the spec names a Secret, or the pod's identity, and the environment does not hold what
    that should have brought.
    """
    if spec.credentials is not None and spec.credentials.secret_ref is not None:
        _check_keys(secret_keys, environ, f"names Secret {spec.credentials.secret_ref.name!r}")
        return open_uri(spec.uri, spec.endpoint, spec.region, environ, keys=secret_keys)
    identity = spec.credentials is not None and spec.credentials.workload_identity is not None
    if identity and not any(all(environ.get(name) for name in group) for group in _IDENTITIES):
        ways = ", nor ".join(" and ".join(group) for group in _IDENTITIES)
        raise CredentialsMissing(
            f"{secret_keys.field}.credentials.workloadIdentity asks for the pod's own identity, and it has none: "
            f"neither {ways} is in the environment.",
            hint="Bind both ServiceAccounts, of driver and executors, to a role: annotate them for IRSA, associate "
            "them for EKS Pod Identity. Leave credentials out to take whatever the environment gives.",
        )
    return open_uri(spec.uri, spec.endpoint, spec.region, environ, identity=identity)


def _check_keys(keys: names.Keys, environ: Mapping[str, str], told: str) -> None:
    """Raises CredentialsMissing if what a Secret should have brought is not in the environment."""
    missing = [name for name in (keys.access, keys.secret) if not environ.get(name)]
    if missing:
        raise CredentialsMissing(
            f"{keys.field}.credentials.secretRef {told}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not in the environment.",
            hint=f"The Secret must have the keys {names.SECRET_S3_ACCESS_KEY} and {names.SECRET_S3_SECRET_KEY}; "
            "outside Kubernetes set the variables yourself.",
        )


# Variables that IRSA and EKS Pod Identity put into the pods of a ServiceAccount.
_IDENTITIES = (
    ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
)
# Botocore's providers that read them.
_IDENTITY_PROVIDERS = ("assume-role-with-web-identity", "container-role")


def open_uri(
    uri: str,
    endpoint: str | None = None,
    region: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    keys: names.Keys = names.OWN_KEYS,
    identity: bool = False,
) -> Storage:
    """Storage at `s3://bucket/prefix` or `file:///path`. Credentials for S3: the `keys` of `environ`, else botocore's
    own chain; with `identity` those of the pod's ServiceAccount and no others.

    Raises StorageRefused for any other URI; one that may hold a secret is not repeated.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # its text may repeat a password
        raise _no_storage_uri(uri) from None
    _refuse_login(parts)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        _refuse_rest(uri, hint="In the name of a folder write %3F and %23.")
        return LocalStorage(uri)
    if parts.scheme == "s3" and parts.netloc:
        _refuse_rest(uri, hint=f"End the URI there. {_LOGIN}")
        return S3Storage(uri, endpoint, region, environ, keys=keys, identity=identity)
    raise _no_storage_uri(uri)


_LOGIN = (
    f"Credentials come from the environment ({names.ENV_S3_ACCESS_KEY}, {names.ENV_S3_SECRET_KEY}); in Kubernetes the "
    "Secret of storage.credentials.secretRef fills it."
)


def _no_storage_uri(uri: str) -> StorageRefused:
    shown = "What was given" if re.search("[@?#]", uri) else repr(uri)
    return StorageRefused(f"{shown} is not a storage URI.", hint="Write s3://bucket/prefix or file:///path.")


def _refuse_login(parts: SplitResult) -> None:
    """Raises StorageRefused for a user or a password, which would stand in every message with the URI."""
    authority = unquote(parts.netloc)
    # A slash in a password ends the authority early: then only the colon in front of it is left.
    if "@" in authority or (parts.scheme == "s3" and ":" in authority):
        raise StorageRefused(
            "The storage URI, which is not repeated here, has a user, a password or a port: none belongs there.",
            hint=f"Write s3://bucket/prefix. {_LOGIN}",
        )


def _refuse_rest(uri: str, hint: str) -> None:
    meant = re.split("[?#]", uri, maxsplit=1)[0]
    if meant != uri:
        raise StorageRefused(f"{meant}: a storage URI has no part behind '?' or '#'.", hint=hint)


# ---- files


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
            raise BucketMissing(f"{self.uri}: {folder} is not a folder.", hint="Name a folder, or mount the volume.")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise StorageRefused(f"{self.uri}: no permission to read {folder}.", hint="Check its owner and mode.")

    def check_path(self, path: str) -> None:
        for part in path.split("/"):
            if part.startswith(_TEMPORARY):
                raise StorageRefused(
                    f"{self.uri}/{path}: names that begin with {_TEMPORARY} are those of files in the making.",
                    hint="Exclude the topic, or use an object store.",
                )
            if len(os.fsencode(part)) > _NAME_BYTES:
                raise StorageRefused(
                    f"{self.uri}/{path}: a name in a file system has at most {_NAME_BYTES} bytes.",
                    hint="Exclude the topic, or use an object store or another format.",
                )

    def create(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with _os_errors(self, path):
            temporary = self._write_temporary(target, data)
            try:
                os.link(temporary, target)
            except FileExistsError as error:
                raise ObjectExists(f"{self.uri}/{path} exists already.") from error
            finally:
                os.unlink(temporary)
            _sync_folder(target.parent)

    def put(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with _os_errors(self, path):
            temporary = self._write_temporary(target, data)
            try:
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise
            _sync_folder(target.parent)

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return _LocalWriter(self, path, self._path(path), replaces)

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
            folders[:] = [name for name in folders if f"{base}{name}/".startswith(prefix)]
            with _os_errors(self, base, _NOT_READABLE):
                for name in files:
                    path = base + name
                    if path.startswith(prefix) and not name.startswith(_TEMPORARY):
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
            with _os_errors(self, path):
                target.unlink(missing_ok=True)
            folders.add(target.parent)
        for folder in folders:
            if folder.exists():
                with _os_errors(self, str(folder)):
                    _sync_folder(folder)

    def _not_listed(self, error: OSError) -> None:
        """Raises for a folder that could not be read: what is in it would be missing in a list, and nobody would know.

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
        """A folder below the root as a prefix of paths."""
        relative = os.path.relpath(folder, self._root)
        return "" if relative == "." else relative.replace(os.sep, "/") + "/"

    def _path(self, path: str) -> Path:
        parts = path.split("/")
        if not path or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{path!r} is not an object path")
        self.check_path(path)
        return self._root / path

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

    def write(self, data: Buffer) -> int:
        if self._file is None:
            raise ValueError(f"{self._path}: write after commit or abort")
        with _os_errors(self._storage, self._path):
            return _write_all(self._file, data)

    def commit(self) -> None:
        if self._file is None:
            raise ValueError(f"{self._path}: commit after commit or abort")
        with _os_errors(self._storage, self._path):
            os.fsync(self._file.fileno())
            self._publish()
            self._file.close()
            self._file = None
            _sync_folder(self._target.parent)

    def _publish(self) -> None:
        if self._replaces == ANYTHING:
            os.replace(self._temporary, self._target)
            return
        taken = ObjectExists(f"{self._storage.uri}/{self._path} was written by somebody else.")
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
        if self._file is not None:
            self._file.close()
            self._file = None
            self._temporary.unlink(missing_ok=True)


def _write_all(file: io.FileIO, data: Buffer) -> int:
    rest = memoryview(data).cast("B")
    total = len(rest)
    while rest:
        rest = rest[file.write(rest) :]
    return total


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents durable: a synced file in a folder that a crash forgets is lost."""
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
    """Alone among those who replace files of the folder that they have looked at before. A killed process lets go."""
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
            raise StorageRefused(f"{self._name}: {what}.", hint=self._hint) from error
        if error.errno == errno.ENAMETOOLONG:
            raise StorageRefused(f"{self._name}: {what}.", hint="Use a shorter path, or an object store.") from error
        raise StorageUnavailable(f"{self._name}: {what}.", hint="Check the disk.") from error


# ---- S3

_MISSING_BUCKET = {"NoSuchBucket"}
_MISSING_OBJECT = {"NoSuchKey", "404"}
_EXISTS = {"PreconditionFailed", "412"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_UPLOAD_GONE = {"NoSuchUpload"}
_CREDENTIALS = {
    "InvalidAccessKeyId",
    "XAdminUserNotFound",  # versitygw's InvalidAccessKeyId
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "AuthorizationHeaderMalformed",
    "RequestTimeTooSkewed",
}
_MAY_PASS = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
}


def _s3_storage(uri: str, endpoint: str | None, region: str | None, keys: names.Keys, identity: bool) -> S3Storage:
    """The storage in another process, with the credentials of its environment."""
    return S3Storage(uri, endpoint, region, keys=keys, identity=identity)


def _only_identity(session: Any) -> None:
    """Take the other providers of credentials away: what they find is not what the resource asks for."""
    resolver = session.get_component("credential_provider")
    resolver.providers = [provider for provider in resolver.providers if provider.METHOD in _IDENTITY_PROVIDERS]


class S3Storage(Storage):
    """A prefix of a bucket, through s3fs. `endpoint` and `region` as in the resource; None: botocore's own.

    Bodies go through botocore, on which s3fs stands: sending a gigabyte takes it half the CPU time, since it hands a
    block to the socket as it is, and lets a checksum be given that was computed at memory speed.
    """

    def __init__(
        self,
        uri: str,
        endpoint: str | None,
        region: str | None,
        environ: Mapping[str, str] = os.environ,
        *,
        keys: names.Keys = names.OWN_KEYS,
        identity: bool = False,
    ) -> None:
        parts = urlsplit(uri)
        self.uri = uri.rstrip("/")
        self.bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self._endpoint = endpoint
        self._region = region
        self._environ = environ
        self._keys = keys
        self._identity = identity
        self._connecting = threading.Lock()
        self._connection: _Connected | None = None
        # Kept so that a child process does not close connections that its parent still uses.
        self._of_parent: list[_Connected] = []

    def __repr__(self) -> str:
        return f"S3Storage({self.uri!r}, endpoint={self._where!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_s3_storage, (self.uri, self._endpoint, self._region, self._keys, self._identity))

    def check(self) -> None:
        self._call("list_objects_v2", "", MaxKeys=1, Prefix=self._prefix)

    def create(self, path: str, data: bytes) -> None:
        self._send("put_object", path, data, IfNoneMatch="*")

    def put(self, path: str, data: bytes) -> None:
        self._send("put_object", path, data)

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return _S3Writer(self, path, self._key(path), replaces)

    def version(self, path: str) -> str | None:
        try:
            answer = self._call("head_object", path, Key=self._key(path))
        except ObjectMissing:
            return None
        return str(answer["ETag"])

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            return b""
        wanted: dict[str, str] = {}
        if start or end is not None:
            wanted["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"

        def get(attempt: int) -> bytes:
            client = self._connected().client(attempt, 0 if end is None else end - start)
            answer = client.get_object(Bucket=self.bucket, Key=self._key(path), **wanted)
            body = answer["Body"]
            try:
                data: bytes = body.read()
            finally:
                body.close()
            if len(data) != answer["ContentLength"]:
                raise TimeoutError(f"{len(data)} of {answer['ContentLength']} bytes arrived")
            return data

        try:
            return self._retry(get, path)
        except _BehindEnd:
            return b""

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        page: dict[str, str] = {}
        while True:
            answer = self._call("list_objects_v2", prefix, Prefix=self._prefix + prefix, **page)
            for item in answer.get("Contents", ()):
                path = item["Key"][len(self._prefix) :]
                if path and not path.endswith("/"):  # a "folder" object that some tools make
                    found.append(ObjectInfo(path, item["Size"], item["LastModified"].timestamp()))
            if not answer.get("IsTruncated"):
                return sorted(found, key=lambda info: info.path)
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        for start in range(0, len(keys), _DELETE_AT_ONCE):
            batch = keys[start : start + _DELETE_AT_ONCE]
            answer = self._call(
                "delete_objects", batch[0], Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
            )
            for failed in answer.get("Errors", ()):
                name = f"s3://{self.bucket}/{failed.get('Key')}"
                if failed.get("Code") in _MAY_PASS:
                    raise StorageUnavailable(f"{name} was not deleted: {failed.get('Code')}.", hint="Try again.")
                raise StorageRefused(
                    f"{name} was not deleted: {failed.get('Code')}.", hint="The credentials need s3:DeleteObject."
                )

    def _key(self, path: str) -> str:
        if not path or any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError(f"{path!r} is not an object path")
        return self._prefix + path

    @property
    def _where(self) -> str:
        """The endpoint without user info, for messages; also of one that is no URL."""
        if self._endpoint is None:
            return "AWS"
        scheme, separator, rest = self._endpoint.rpartition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2].partition('/')[0]}"

    def _connected(self) -> _Connected:
        process = os.getpid()
        with self._connecting:
            connected = self._connection
            if connected is not None and connected.process == process:
                return connected
            if connected is not None:
                self._of_parent.append(connected)
            self._connection = self._connect()
            return self._connection

    def _connect(self) -> _Connected:
        import s3fs  # slow to import; a driver that archives to files does without
        from botocore.config import Config
        from botocore.session import get_session

        environ = self._environ
        region = self._region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        if region is None and self._endpoint is not None:
            region = "us-east-1"  # any name will do for a store of one's own, but the signature needs one
        if self._keys != names.OWN_KEYS:  # botocore would look elsewhere, and find those of another store
            _check_keys(self._keys, environ, "is set")
        of_environment = {} if self._identity else environ
        key = of_environment.get(self._keys.access) or None
        secret = of_environment.get(self._keys.secret) or None
        token = of_environment.get(self._keys.token) or None
        # One attempt: `_retry` repeats, and botocore would multiply the time until a dead endpoint is reported.
        config = {
            "max_pool_connections": 64,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            # `_checksum` is thirty times as fast as what botocore would compute by itself.
            "request_checksum_calculation": "when_required",
        }
        session, asynchronous = get_session(), None
        if self._identity:
            asynchronous = s3fs.core.aiobotocore.session.AioSession()
            _only_identity(session)
            _only_identity(asynchronous)
        filesystem = s3fs.S3FileSystem(
            session=asynchronous,
            key=key,
            secret=secret,
            token=token,
            endpoint_url=self._endpoint,
            client_kwargs={} if region is None else {"region_name": region},
            config_kwargs={"connect_timeout": 5, "read_timeout": QUICK_TIMEOUT, **config},
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        filesystem.retries = 1

        def client(connect_timeout: float, read_timeout: float) -> Any:
            return session.create_client(
                "s3",
                region_name=region,
                endpoint_url=self._endpoint,
                aws_access_key_id=key,
                aws_secret_access_key=secret,
                aws_session_token=token,
                config=Config(connect_timeout=connect_timeout, read_timeout=read_timeout, **config),
            )

        # The time to connect is also the time to send one part: urllib3 has no third limit.
        bodies = client(30, BODY_TIMEOUT)
        return _Connected(os.getpid(), filesystem, bodies, client(5, QUICK_TIMEOUT))

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        """A small request without a body to speak of."""

        def call(attempt: int) -> Any:
            connected = self._connected()
            if attempt < _QUICK_ATTEMPTS:
                return connected.filesystem.call_s3(method, Bucket=self.bucket, **arguments)
            return getattr(connected.bodies, method)(Bucket=self.bucket, **arguments)

        return self._retry(call, path)

    def _call_long(self, method: str, path: str, **arguments: Any) -> Any:
        """A request for which the store may have much to do before it answers."""
        return self._retry(
            lambda attempt: getattr(self._connected().bodies, method)(Bucket=self.bucket, **arguments), path
        )

    def _send(self, method: str, path: str, body: bytes | bytearray, **arguments: Any) -> Any:
        checksum = _checksum(body)

        def send(attempt: int) -> Any:
            request = getattr(self._connected().client(attempt, len(body)), method)
            return request(Bucket=self.bucket, Key=self._key(path), Body=body, ChecksumCRC32C=checksum, **arguments)

        return self._retry(send, path)

    def _retry(self, action: Callable[[int], T], path: str) -> T:
        """Do it, as often as it takes and `PATIENCE` and `ATTEMPTS` allow. `action` gets the number of its attempt."""
        try:
            self._connected()
        except Exception as error:
            raise self._translate(error, path) from error
        deadline = time.monotonic() + PATIENCE  # making the first client takes a while of its own
        pause = 0.2
        for attempt in itertools.count():
            try:
                return action(attempt)
            except Exception as error:
                ours = self._translate(error, path)
                wait = pause * (0.5 + random.random())
                late = time.monotonic() + wait > deadline
                if not isinstance(ours, StorageUnavailable) or (late and attempt + 1 >= ATTEMPTS):
                    raise ours from error
                if _is_silence(error):
                    self._connected().drop_idle()
            time.sleep(wait)
            pause = min(pause * 2, 4.0)
        raise AssertionError("unreachable")

    def _translate(self, error: Exception, path: str) -> LogkeepError:
        """What went wrong, from the code the store sent. Its message is left out: it may quote what was signed."""
        from botocore.exceptions import (
            ClientError,
            HTTPClientError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
            ProfileNotFound,
        )

        name = f"s3://{self.bucket}/{self._prefix}{path}" if path else self.uri
        if isinstance(error, LogkeepError):
            return error
        client_error = error if isinstance(error, ClientError) else error.__cause__  # s3fs wraps it
        if isinstance(client_error, ClientError):
            return self._translate_answer(client_error, name)
        if isinstance(error, (NoCredentialsError, PartialCredentialsError, ProfileNotFound)):
            return CredentialsMissing(
                f"{self.uri}: no credentials for {self._where}.",
                hint=f"Set {names.ENV_S3_ACCESS_KEY} and {names.ENV_S3_SECRET_KEY} "
                "(storage.credentials.secretRef does), or give the pod a workload identity.",
            )
        if isinstance(error, (ParamValidationError, ValueError, TypeError)):
            what = str(error) if self._endpoint is None else str(error).replace(self._endpoint, self._where)
            return StorageRefused(f"{name}: {what}", hint="Check storage.uri, storage.endpoint and storage.region.")
        kind = type(error).__name__
        if isinstance(error, HTTPClientError) and "SSL" in kind.upper():
            return StorageRefused(f"{self._where}: TLS failed ({kind}).", hint="Check the endpoint's certificate.")
        return StorageUnavailable(
            f"{name}: no answer from {self._where} ({kind}).",
            hint="Check that storage.endpoint is right and reachable.",
        )

    def _translate_answer(self, error: Any, name: str) -> LogkeepError:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        where = self._where
        if code in _MISSING_BUCKET:
            return BucketMissing(
                f"Bucket {self.bucket!r} does not exist at {where}.", hint="Create it, or correct storage.uri."
            )
        if code in _MISSING_OBJECT:
            return ObjectMissing(f"{name} does not exist.")
        if code in _EXISTS or status == 412:
            return ObjectExists(f"{name} exists already.")
        if code == "InvalidRange" or status == 416:
            return _BehindEnd(name)
        if code in _CREDENTIALS:
            return StorageRefused(
                f"{where} refused the credentials for {name}: {code}.",
                hint=f"Check {self._keys.access}, {self._keys.secret}, {self._keys.field}.region and the clock.",
            )
        if status in (401, 403) or code == "AccessDenied":
            return StorageRefused(
                f"{where} denied access to {name}: {code or status}.",
                hint="To read, the credentials need s3:GetObject and s3:ListBucket, to write s3:PutObject and "
                "s3:AbortMultipartUpload as well.",
            )
        if code in _MAY_PASS or code in _CONFLICT or (status >= 500 and status != 501) or status in (408, 409, 429):
            return StorageUnavailable(f"{name}: {where} answered {code or status}.", hint="It may pass; try again.")
        if code == "KeyTooLongError":
            return StorageRefused(
                f"{name}: {where} answered {code}.",
                hint="Exclude the topic, or use a shorter prefix or another format. A store that keeps objects in "
                "files takes 255 bytes between two slashes.",
            )
        if code == "NotImplemented" or status == 501:
            return StorageRefused(
                f"{name}: {where} cannot do what was asked ({code or status}).",
                hint="The object store must support conditional writes (If-None-Match) and multipart uploads.",
            )
        if code in _UPLOAD_GONE:
            return _UploadGone(name)
        return StorageRefused(
            f"{name}: {where} answered {code or status}.", hint="Check storage.endpoint and storage.region."
        )


class _BehindEnd(LogkeepError):
    """A range that starts at or behind an object's end."""


class _UploadGone(StorageRefused):
    """The multipart upload is not known: aborted by somebody, or completed by a request whose answer was lost."""


class _Connected:
    """The means of one process to speak to a store: s3fs, clients for bodies and for small ones, threads that send
    parts, and blocks of memory for them.

    Blocks are used again: in fresh memory every part would cost two thousand page faults.
    """

    def __init__(self, process: int, filesystem: Any, bodies: Any, quick: Any) -> None:
        self.process = process
        self.filesystem = filesystem
        self.bodies = bodies
        self._quick = quick
        self._blocks: list[bytearray] = []
        self._free = threading.BoundedSemaphore(_PARTS_AT_ONCE)
        self._sending = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="logkeep-send")

    def send(self, action: Callable[[], T]) -> Future[T]:
        """Begin to send a part; waits while _PARTS_AT_ONCE are under way, so that memory stays bounded."""
        self._free.acquire()
        sending = self._sending.submit(action)
        sending.add_done_callback(lambda _: self._free.release())
        return sending

    def client(self, attempt: int, size: int) -> Any:
        """For the `attempt`th time (from 0) that a body of `size` bytes is asked for or sent; 0: of unknown size."""
        return self._quick if attempt < _QUICK_ATTEMPTS and size <= _QUICK_BYTES else self.bodies

    def drop_idle(self) -> None:
        """Forget connections that nobody uses now: if one was silent, what lies between has forgotten others too. Those
        of s3fs go by themselves after a few seconds."""
        self._quick.close()
        self.bodies.close()

    def take_block(self) -> bytearray:
        try:
            return self._blocks.pop()
        except IndexError:
            return bytearray(DEFAULT_BLOCK)

    def give_back(self, block: bytearray) -> None:
        if len(self._blocks) < _BLOCKS_KEPT:
            self._blocks.append(block)


def _is_silence(error: Exception) -> bool:
    from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

    return isinstance(error, (ConnectionClosedError, ReadTimeoutError))


def _checksum(body: bytes | bytearray) -> str:
    """CRC-32C as S3 wants it in a header. The store checks it, so that over TLS the payload need not be hashed to sign
    it; without TLS botocore signs a SHA-256 as well.
    """
    return b64encode(crc32c(body).to_bytes(4, "big")).decode()


class _S3Writer(ObjectWriter):
    """One PUT for a small object, else a multipart upload: while the caller fills a block, others are on their way."""

    def __init__(self, storage: S3Storage, path: str, key: str, replaces: str | None) -> None:
        self._storage = storage
        self._path = path
        self._key = key
        self._condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        if replaces == ANYTHING:
            self._condition = {}
        self._connected = storage._connected()
        self._block: bytearray | None = None
        self._filled = 0
        self._upload: str | None = None
        self._checksums = False  # parts may name their checksums only in an upload that was made with an algorithm
        self._parts: list[Future[dict[str, Any]]] = []
        self._settled = 0  # parts from the front that are known to have arrived
        self._size = 0
        self._open = True

    def write(self, data: Buffer) -> int:
        if not self._open:
            raise ValueError(f"{self._path}: write after commit or abort")
        rest = memoryview(data).cast("B")
        total = len(rest)
        self._size += total
        while rest:
            if self._block is None:
                self._block = self._connected.take_block()
            count = min(len(rest), DEFAULT_BLOCK - self._filled)
            memoryview(self._block)[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == DEFAULT_BLOCK:
                self._send_part()
        return total

    def commit(self) -> None:
        if not self._open:
            raise ValueError(f"{self._path}: commit after commit or abort")
        if self._upload is None:
            self._storage._send("put_object", self._path, self._content(), **self._condition)
        else:
            if self._filled:
                self._send_part()
            parts = [part.result() for part in self._parts]
            try:
                self._storage._call_long(
                    "complete_multipart_upload",
                    self._path,
                    Key=self._key,
                    UploadId=self._upload,
                    MultipartUpload={"Parts": parts},
                    **self._condition,
                )
            except _UploadGone:
                # The answer to a first request may have been lost after the store had done it.
                if not self._is_there():
                    raise
                if self._condition:  # then the caller compares what is there
                    raise ObjectExists(f"{self._storage.uri}/{self._path} may be of this writer or another.") from None
            self._upload = None
        self._close()

    def abort(self) -> None:
        if not self._open:
            return
        for part in self._parts:
            part.cancel()
        wait(self._parts)  # a part that arrives after the abort would be kept
        if self._upload is not None:
            # The error that led here matters more, and an unfinished upload is invisible.
            with contextlib.suppress(LogkeepError):
                self._storage._call("abort_multipart_upload", self._path, Key=self._key, UploadId=self._upload)
            self._upload = None
        self._close()

    def _close(self) -> None:
        self._open = False
        if self._block is not None:
            self._connected.give_back(self._block)
            self._block = None
        self._parts = []

    def _content(self) -> bytes:
        return b"" if self._block is None else bytes(memoryview(self._block)[: self._filled])

    def _send_part(self) -> None:
        if self._upload is None:
            answer = self._storage._call(
                "create_multipart_upload", self._path, Key=self._key, ChecksumAlgorithm="CRC32C"
            )
            self._upload = answer["UploadId"]
            self._checksums = bool(answer.get("ChecksumAlgorithm"))
        while self._settled < len(self._parts) and self._parts[self._settled].done():
            self._parts[self._settled].result()
            self._settled += 1
        number = len(self._parts) + 1
        if self._filled == DEFAULT_BLOCK and self._block is not None:
            block, self._block = self._block, None
            self._parts.append(self._connected.send(lambda: self._send_block(number, block)))
        else:
            rest = self._content()
            self._parts.append(self._connected.send(lambda: self._upload_part(number, rest)))
        self._filled = 0

    def _send_block(self, number: int, block: bytearray) -> dict[str, Any]:
        part = self._upload_part(number, block)
        self._connected.give_back(block)  # not after a failure: a request given up may still be reading it
        return part

    def _upload_part(self, number: int, body: bytes | bytearray) -> dict[str, Any]:
        answer = self._storage._send("upload_part", self._path, body, UploadId=self._upload, PartNumber=number)
        part: dict[str, Any] = {"PartNumber": number, "ETag": answer["ETag"]}
        if self._checksums:
            part |= {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
        return part

    def _is_there(self) -> bool:
        try:
            answer = self._storage._call("head_object", self._path, Key=self._key)
        except ObjectMissing:
            return False
        return bool(answer["ContentLength"] == self._size)

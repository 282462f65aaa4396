"""Names of objects as the user knows them, and errors of files with these names."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from logkeep_engine.errors import (
    StorageRefused,
)
from logkeep_engine.storage import Storage


def local_path(storage: Storage, path: str) -> Path | None:
    """Return the file that an object is; None: it lies in an object store."""
    parts = urlsplit(storage.uri)
    return Path(unquote(parts.path), path) if parts.scheme == "file" else None


@contextmanager
def os_errors(name: str) -> Iterator[None]:
    """Turns an OSError of what is done to a file or folder into StorageRefused, with its name."""
    try:
        yield
    except OSError as error:
        hint = _OS_HINTS.get(error.errno or 0, "Check the path and the disk.")
        raise StorageRefused(f"{name}: {error.strerror or type(error).__name__}.", hint=hint) from error


_NOT_ALLOWED = "Run it as the user that the files belong to, or as root, on a file system that can be written to."
_NO_SPACE = "Make room: what is cut is copied first, and nothing is cut that was not copied."
_OS_HINTS = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.ENAMETOOLONG: "Name an archive, or a broker's log folder.",
}


def display(storage: Storage, path: str) -> str:
    """Return an object as the user would name it: a local path, or a URI."""
    parts = urlsplit(storage.uri)
    return f"{unquote(parts.path) if parts.scheme == 'file' else storage.uri}/{path}"

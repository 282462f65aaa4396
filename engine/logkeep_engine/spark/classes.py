"""Archives of Spark's classes, which halve the time a JVM takes to start ("application class-data sharing", JEP 350).

The engine image brings its own (`docker/classes.py`), named by LOGKEEP_CLASS_ARCHIVE. The command line makes one for
its user at the end of the first run that succeeds, in the user's cache folder, and uses it from then on. An archive
holds for one JVM and one class path; the JVM checks that, and reads the jars as ever when an archive is missing or does
not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

ENV_CLASS_ARCHIVE = "LOGKEEP_CLASS_ARCHIVE"
"""The archive to use. If it is empty, none is used and none is made."""

DUMP_SECONDS = 60.0
_KEPT = 3  # archives of a user, one for each installation; about 60 MB each
_ABANDONED_SECONDS = 3600.0

# Mapped at the address it was made for, the archive is shared memory. At a random one, Java 17's default, every page is
# written to at the start: 90 MB of memory and a tenth of the time, for hiding where class metadata lies (there is no
# machine code in it). If the place is taken the JVM finds another.
_MAPPED = ("-Xshare:auto", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
# The JVM's words about an archive that does not fit are of no use to the user.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive of classes. The JVM reads `used`. It writes `made` when it ends, which is then kept under the name
    `kept`."""

    used: Path | None = None
    made: Path | None = None
    kept: Path | None = None

    @property
    def options(self) -> list[str]:
        """The options of the JVM."""
        if self.used is not None:
            return [f"-XX:SharedArchiveFile={self.used}", *_MAPPED, *_QUIET]
        if self.made is not None:
            return [f"-XX:ArchiveClassesAtExit={self.made}", *_QUIET]
        return []

    def keep(self) -> None:
        """Put what the JVM has made where the next run looks for it. Never raises."""
        if self.made is None or self.kept is None:
            return
        try:
            os.replace(self.made, self.kept)
            _clean(self.kept.parent)
        except OSError as error:
            log.debug("the class archive was not kept: %s", error)

    def drop(self) -> None:
        """Forget what the JVM may have made."""
        if self.made is not None:
            with contextlib.suppress(OSError):
                self.made.unlink(missing_ok=True)


def class_archive(java: Path, jars: Sequence[Path], environ: Mapping[str, str]) -> ClassArchive:
    """Return the archive for this JVM and class path: the one that the environment names, else the one in the user's
    cache, which may have to be made.

    There is none if the cache cannot be written, or if others could write to it: a JVM runs what is in an archive.
    """
    named = environ.get(ENV_CLASS_ARCHIVE)
    if named is not None:
        return ClassArchive(used=Path(named)) if named else ClassArchive()
    try:
        folder = _own_folder(environ)
        if folder is None:
            return ClassArchive()
        kept = folder / f"classes-{_key(java, jars)}.jsa"
        if kept.exists():
            os.utime(kept)  # else `_clean` would take it for one that nobody uses
            return ClassArchive(used=kept)
        # Named by the process: two runs may make it at the same time.
        return ClassArchive(made=folder / f"{kept.name}.{os.getpid()}", kept=kept)
    except OSError as error:
        log.debug("no class archive: %s", error)
        return ClassArchive()


def _own_folder(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("XDG_CACHE_HOME") or (os.path.join(environ["HOME"], ".cache") if environ.get("HOME") else "")
    if not os.path.isabs(home):
        return None
    folder = Path(home) / "logkeep" / "java"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022 or not os.access(folder, os.W_OK):
        return None
    return folder


def _key(java: Path, jars: Sequence[Path]) -> str:
    """Return a hash of what the JVM compares: itself, and names, sizes and times of the jars."""
    digest = hashlib.sha256()
    runtime = java.resolve().parent.parent / "lib" / "modules"
    for path in (runtime, *jars):
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _clean(folder: Path) -> None:
    """Delete the archives that were not used for longest, and what interrupted runs left."""
    archives = sorted(folder.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    unfinished = [path for path in folder.glob("classes-*.jsa.*") if _age(path) > _ABANDONED_SECONDS]
    for path in (*archives[_KEPT:], *unfinished):
        path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0

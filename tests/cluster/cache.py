"""The cache of parts that are built once and used by every later run: tools, jars, images, certificates.

An entry is a folder named by kind and key. It is produced under a temporary name and renamed when it is complete,
under a file lock, so that two runs at once build it once and a killed run leaves nothing that looks finished.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cluster import progress


def root() -> Path:
    """The cache folder: `$XDG_CACHE_HOME/logkeep`, by default `~/.cache/logkeep`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "logkeep"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest(*parts: str | bytes | Path) -> str:
    """Sixteen hex digits over strings, bytes, and files or folders (names and contents)."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in _files(part):
                content = file.read_bytes()
                total.update(f"{file.relative_to(part.parent)}\0{len(content)}\0".encode())
                total.update(content)
        else:
            raw = part.encode() if isinstance(part, str) else part
            total.update(f"{len(raw)}\0".encode())
            total.update(raw)
    return total.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(f for f in path.rglob("*") if f.is_file() and "__pycache__" not in f.parts)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of this name; other processes wait for it, and say for whom."""
    folder = root() / "locks"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.lock"
    with file.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"{name} is taken: waiting for the one that has {_holder(file)}")
            with progress.here.step(f"waiting for {name}", partial(_holder, file)):
                fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(f"process {os.getpid()}, {shlex.join(sys.orig_argv)}")
        handle.flush()
        yield


def _holder(file: Path) -> str:
    """Return who holds a lock, by what they have written into its file, and for how long."""
    who = file.read_text() or "a process that has not said which it is"
    return f"held it for {max(time.time() - file.stat().st_mtime, 0):.0f} s: {who}"


_ONLY: list[frozenset[str]] = []


@contextmanager
def only(kinds: Collection[str]) -> Iterator[None]:
    """Refuse every other kind of entry in this process, built or not."""
    _ONLY.append(frozenset(kinds))
    try:
        yield
    finally:
        _ONLY.pop()


def build(kind: str, key: str, produce: Callable[[Path], None], keep: int = 3) -> Path:
    """The entry's folder, produced now if it is missing. At most `keep` entries of a kind stay, the last used ones.

    Raises RuntimeError for a kind that this process may not ask for (`only`).
    """
    for allowed in _ONLY:
        if kind not in allowed:
            raise RuntimeError(
                f"{kind} is not one of {', '.join(sorted(allowed))}: what `make demo` needs is a list in "
                "tests/cluster/prepare.py, and it is built before the demo begins"
            )
    folder = root() / kind
    target = folder / key
    if not target.exists():
        with locked(f"{kind}-{key}"):
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                temporary = folder / f".{key}.partial"
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                progress.note(f"building {kind} ({key})")
                started = time.monotonic()
                with progress.here.step(kind):
                    produce(temporary)
                temporary.rename(target)
                progress.note(f"built {kind} in {time.monotonic() - started:.0f} s")
    os.utime(target)
    entries = sorted((e for e in folder.iterdir() if not e.name.startswith(".")), key=_age, reverse=True)
    for old in entries[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def _age(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:  # another run removed it meanwhile
        return 0.0

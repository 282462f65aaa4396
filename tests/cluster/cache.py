"""The cache of parts that are built once and used by every later run: tools, jars, images, certificates.

An entry is a folder named by kind and key. It is produced under a temporary name and renamed when it is complete,
under a file lock, so that two runs at once build it once and a killed run leaves nothing that looks finished.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def root() -> Path:
    """The cache folder: `$XDG_CACHE_HOME/logkeep`, by default `~/.cache/logkeep`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "logkeep"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def note(line: str) -> None:
    """Tell the person who waits what takes the time."""
    print(f"logkeep test bed: {line}", file=sys.stderr, flush=True)


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
    """Hold the cache's lock of this name; other processes wait for it."""
    folder = root() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(kind: str, key: str, produce: Callable[[Path], None], keep: int = 3) -> Path:
    """The entry's folder, produced now if it is missing. At most `keep` entries of a kind stay, the last used ones."""
    folder = root() / kind
    target = folder / key
    if not target.exists():
        with locked(f"{kind}-{key}"):
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                temporary = folder / f".{key}.partial"
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                note(f"building {kind} ({key})")
                started = time.monotonic()
                produce(temporary)
                temporary.rename(target)
                note(f"built {kind} in {time.monotonic() - started:.0f} s")
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

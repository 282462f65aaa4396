"""Temporary files of tests, and the data of brokers, in memory: on a disk, each small file and each entry of a
broker's metadata is waited for until it is safe."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.state import ENV_MEMORY

MEMORY = Path("/dev/shm")
ROOM = 12 << 30
"""Bytes that must be free there. All tests together take some gigabytes."""

_NAME = "logkeep-lanes-"


@contextmanager
def temporary_files(memory: Path = MEMORY, room: int = ROOM) -> Iterator[Mapping[str, str]]:
    """Variables for processes whose temporary files go with this block. There are none where memory has no room."""
    _sweep(memory)
    if not memory.is_dir() or min(shutil.disk_usage(memory).free, _available()) < room:
        yield {}
        return
    name = f"{_NAME}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=name, dir=memory, ignore_cleanup_errors=True) as folder:
        yield {"TMPDIR": folder, ENV_MEMORY: folder}


def keep(environment: Mapping[str, str], target: Path) -> None:
    """Copy what failed tests have left there, as far as it consists of files and folders."""
    if folder := environment.get("TMPDIR"):
        with suppress(shutil.Error):
            shutil.copytree(folder, target, symlinks=True)


def _available() -> int:
    """Bytes of memory that processes may still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _sweep(memory: Path) -> None:
    """Remove what killed runs have left."""
    for folder in memory.glob(f"{_NAME}*"):
        if not Path("/proc", folder.name.removeprefix(_NAME).partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)

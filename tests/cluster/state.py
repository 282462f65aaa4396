"""State folders: everything a running part owns outside its process, written down so that it can always be taken away.

A folder under `run/` in the cache holds, beside the part's own files:

    owner           process id and start time of the test process
    pids/           one file a child process: process id and start time
    netns, cgroup   names of the network namespace and the cgroup of a node
    memory          the path of a folder in memory for the part's data, if there is one

`State.destroy` ends exactly those. `sweep` does the same for folders whose owner is gone, so a killed run leaves
nothing for good. A process id counts only with its start time: numbers are used again.
"""

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import cache, progress, system

ENV_MEMORY = "LOGKEEP_TEST_MEMORY"
"""A folder in memory. Brokers keep their data there: on a disk they wait for each entry of the metadata to be safe."""


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a living process; None if there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _is_alive(record: str) -> bool:
    pid, _, started = record.strip().partition(" ")
    return pid.isdigit() and _start_time(int(pid)) == started


def end_processes(pids: Iterable[int], grace: float = 10) -> None:
    """SIGTERM to each process, SIGKILL to those that are left after `grace` seconds."""
    left = {pid: _start_time(pid) for pid in pids}
    for number, limit in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        for pid, started in left.items():
            if started and _start_time(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        until = time.monotonic() + limit
        while left and time.monotonic() < until:
            left = {pid: started for pid, started in left.items() if started and _start_time(pid) == started}
            time.sleep(0.02 if left else 0)


class State:
    """One part's state folder. `path` is short: unix socket names have a limit of 107 bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> "State":
        """A new folder owned by this process."""
        path = cache.root() / "run" / f"{name}-{secrets.token_hex(3)}"
        (path / "pids").mkdir(parents=True)
        (path / "owner").write_text(f"{os.getpid()} {_start_time(os.getpid())}")
        return cls(path)

    @property
    def data(self) -> Path:
        """The folder for the part's data: this one, or one in memory that goes with it."""
        memory = os.environ.get(ENV_MEMORY)
        if not memory:
            return self.path
        folder = Path(memory) / self.path.name
        (self.path / "memory").write_text(str(folder))
        folder.mkdir(exist_ok=True)
        return folder

    def remember(self, name: str, pid: int) -> None:
        """Write a child process down; called right after it was started."""
        (self.path / "pids" / name).write_text(f"{pid} {_start_time(pid)}")

    @property
    def owned(self) -> bool:
        """Whether the test process that made this folder still lives."""
        try:
            return _is_alive((self.path / "owner").read_text())
        except FileNotFoundError:
            pass
        try:
            return time.time() - self.path.stat().st_mtime < 60  # being made right now
        except FileNotFoundError:
            return True  # taken down right now

    def destroy(self, grace: float = 10) -> None:
        """End the part's processes, containers, mounts, namespace and cgroup, then remove the folder."""
        records = [file.read_text() for file in (self.path / "pids").glob("*")]
        end_processes((int(record.split()[0]) for record in records if _is_alive(record)), grace)
        if system.is_root():
            self._destroy_containers()
        if memory := self._read("memory"):
            shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _destroy_containers(self) -> None:
        netns, cgroup = self._read("netns"), self._read("cgroup")
        if netns:  # what containerd left: its shims
            listed = system.run(["ip", "netns", "pids", netns], check=False).stdout.split()
            end_processes((int(pid) for pid in listed), grace=0)
        if cgroup:
            _destroy_cgroup(cgroup)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{self.path}/")), reverse=True):
            system.run(["umount", "--lazy", mount], check=False)
        for address in self.path.glob("containerd/state/io.containerd.runtime.v2.task/*/*/address"):
            Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
        if netns:
            system.run(["ip", "netns", "del", netns], check=False)
            for result in Path("/var/lib/cni/results").glob(f"{netns}-*"):
                result.unlink(missing_ok=True)
        for link in Path("/var/log/containers").glob("*.log"):
            if link.is_symlink() and str(link.readlink()).startswith(f"{self.path}/"):
                link.unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        file = self.path / name
        return file.read_text().strip() if file.exists() else None


def cgroup_folders(name: str) -> list[Path]:
    """The folder of a top-level cgroup: one in the unified hierarchy, one a controller in the old ones."""
    if system.cgroup_v2():
        return [system.CGROUPS / name]
    return [c / name for c in system.CGROUPS.iterdir() if c.is_dir() and not c.is_symlink()]


def _destroy_cgroup(name: str) -> None:
    for top in cgroup_folders(name):
        if not top.exists():
            continue
        folders = sorted((f for f in [top, *top.rglob("*")] if f.is_dir()), reverse=True)
        pids = {int(pid) for f in folders for pid in _members(f)}
        end_processes(pids, grace=0)
        for folder in folders:
            with contextlib.suppress(OSError):  # a dying process holds it for a moment
                folder.rmdir()


def _members(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.procs").read_text().split()
    except OSError:
        return []


def sweep() -> None:
    """Take down what killed runs left behind."""
    folder = cache.root() / "run"
    folder.mkdir(exist_ok=True)
    with cache.locked("sweep"):
        for path in folder.iterdir():
            state = State(path)
            if path.is_dir() and not state.owned:
                progress.note(f"cleaning up {path.name}, left by a run that was killed")
                state.destroy(grace=1)

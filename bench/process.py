"""One process under the clock: wall, CPU and peak memory of it and of all it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.04
_SEARCH_SECONDS = 0.25  # new descendants: reading all of /proc costs milliseconds
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(RuntimeError):
    """A measured command ended with an error; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Usage:
    """`wall` and `cpu` in seconds, `peak` the largest process's resident memory in bytes, `peak_sum` the sum of the
    peaks of all processes, an upper bound. `first_byte`: seconds until `seen` was true, None if it never was.
    """

    wall: float
    cpu: float
    peak: int
    peak_sum: int
    first_byte: float | None
    output: str


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cores: Sequence[int] | None = None,
    seen: Callable[[], bool] | None = None,
    timeout: float = 900,
) -> Usage:
    """Run a command to its end and that of all processes it started. Raises Failed.

    `cores` it may run on; `seen` is polled while it runs.
    """
    _adopt_orphans()
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command] if cores is not None else list(command)
    before, others = _children_cpu(), _own_children()
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        child = subprocess.Popen(
            pinned,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        watch = _Watch(child.pid, seen, started, others)
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        wall = time.perf_counter() - started
        watch.end()
        out.seek(0)
        output = out.read().decode(errors="replace")
    if code:
        raise Failed(f"{' '.join(command)[:500]}\nexit {code}\n{output[-4000:]}")
    peaks = watch.peaks.values()
    return Usage(wall, _children_cpu() - before, max(peaks, default=0), sum(peaks), watch.first_byte, output)


def _adopt_orphans() -> None:
    """Make processes that a measured process leaves behind our children, so that their CPU can be counted."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Watch:
    """Looks at a process and its descendants many times a second, for new descendants a few times. `others` are our
    children that are none of its.
    """

    def __init__(self, pid: int, seen: Callable[[], bool] | None, started: float, others: set[int]) -> None:
        self.peaks: dict[int, int] = {}
        self.first_byte: float | None = None
        self._known = {pid}
        self._root = pid
        self._others = others
        self._seen = seen
        self._started = started
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        due = 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            if self._seen is not None and self.first_byte is None and self._seen():
                self.first_byte = time.perf_counter() - self._started
            if time.monotonic() >= due:
                due = time.monotonic() + _SEARCH_SECONDS
                self._known |= descendants(self._known)
            for pid in self._known:
                if peak := peak_memory(pid):
                    self.peaks[pid] = max(peak, self.peaks.get(pid, 0))

    def end(self) -> None:
        """Wait for what is left of the descendants."""
        self._ended.set()
        self._thread.join()
        self._known |= _own_children() - self._others  # orphans that were not seen while their parent lived
        until = time.monotonic() + 20
        while (left := descendants(self._known)) and time.monotonic() < until:
            self._known |= left
            time.sleep(0.02)
        for pid in self._known - {self._root}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _parents() -> dict[int, int]:
    """The parent of each living process."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    return parents


def _own_children() -> set[int]:
    return {pid for pid, parent in _parents().items() if parent == os.getpid()}


def descendants(roots: set[int]) -> set[int]:
    """Living children and further descendants of these processes."""
    parents = _parents()
    found: set[int] = set()
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in roots | found} - found
        found |= more
        grew = bool(more)
    return found | {pid for pid in roots if pid in parents and pid != os.getpid() and parents[pid] == os.getpid()}


def peak_memory(pid: int | str = "self") -> int:
    """VmHWM of a process in bytes, 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def cpu_of(pid: int) -> float:
    """User and system seconds a running process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def stolen() -> float:
    """Seconds, so far, in which a core of this machine had work and the host ran something else."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _TICKS


def pin(pid: int, cores: Sequence[int] | None) -> None:
    """Let all threads of a running process run on these cores only; None: on all."""
    allowed = set(cores) if cores is not None else set(range(os.cpu_count() or 1))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), allowed)

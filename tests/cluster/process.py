"""One server process of the test bed: started with a log file, waited for until it answers, stopped whole."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster import system
from tests.cluster.state import State


class NotReady(RuntimeError):
    """A part of the test bed did not answer in time or ended; the message has the last lines of its log."""


def wait_until(check: Callable[[], bool], timeout: float, what: str) -> None:
    """Poll until `check` is true. Raises `NotReady` naming what was waited for."""
    until = time.monotonic() + timeout
    pause = 0.02
    while not check():
        if time.monotonic() > until:
            raise NotReady(f"{what}: not within {timeout:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.5)


class Process:
    """A process in a session of its own, so that its children end with it. Output goes to `<state>/<name>.log`."""

    def __init__(
        self,
        state: State,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        netns: str | None = None,
    ) -> None:
        self.name = name
        self.log = state.path / f"{name}.log"
        self._state = state
        self._argv = system.in_namespace(netns, argv)
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start it; also again after `stop` or `kill`."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._state.path,
                start_new_session=True,
            )
        self._state.remember(self.name, self._child.pid)

    @property
    def pid(self) -> int:
        """The process id, for tests that send signals."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def output(self) -> str:
        """The output of the process since it was last started."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def wait_ready(self, check: Callable[[], bool], timeout: float = 120) -> None:
        """Poll `check` until it is true; fail at once when the process ends."""

        def ready_or_ended() -> bool:
            return not self.running or check()

        try:
            wait_until(ready_or_ended, timeout, self.name)
        except NotReady as slow:
            raise NotReady(f"{slow}\n{self._tail()}") from None
        if not self.running:
            raise NotReady(f"{self.name} ended while it was waited for\n{self._tail()}")

    def _tail(self) -> str:
        return f"last lines of {self.log}:\n" + "\n".join(self.output.splitlines()[-40:])

    def stop(self, grace: float = 180) -> None:
        """SIGTERM, and SIGKILL if it takes longer than `grace` seconds. Nothing happens if it is not running."""
        if self._child is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._child.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the process and its children, as a crash would do it."""
        if self._child is not None:
            self._signal(signal.SIGKILL)
            self._child.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing is answered any more, as with a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it continues where it was."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

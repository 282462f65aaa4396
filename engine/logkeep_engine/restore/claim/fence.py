"""Ends a driver that continues after another run has taken over its own, or another driver of the run has started.

A driver that is stopped (SIGSTOP, a frozen node), or cut off from the place of its state, cannot show that it is still
running, so another run may take over its plan (`takeover`). When it wakes up, it must not continue next to that one.
So the driver asks its fence before each change of the cluster, and its tasks ask theirs before they send more.

    with RunFence(state) as fence:
        fence.check()           # raises RestoreBusy
        control.create_topics(...)

The driver first writes its note that it is still running, and then looks for the claim of another run. A run that
claims another looks at that note once more after its claim. So whichever of the two comes later sees the other one.

A run that is started again has another driver, whose note stands in place of that of the first. That one is mostly
dead. If it only slept, it sees the note when it wakes up, and leaves it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Executor
from dataclasses import dataclass

from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.errors import RestoreBusy
from logkeep_engine.restore.claim.takeover import fenced, started_again, taken_over_by, writer_of
from logkeep_engine.restore.model.state import RestoreState

TRUSTED_SECONDS = 1.0
"""How long the driver trusts its last look. Who takes a run over watches it for much longer."""

TASK_SECONDS = 10.0
"""The same of tasks: they look this often."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks of this machine at a moment. One alone may stand still: while the machine sleeps, the monotonic clock
    does, and while it is frozen as a virtual machine, at first only the time of day jumps."""

    monotonic: float
    boot: float
    day: float

    @classmethod
    def now(cls) -> ClockReading:
        """Return the reading of this moment."""
        boot = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        return cls(time.monotonic(), boot, time.time())

    def seconds_to(self, later: ClockReading) -> float:
        """Return the time between the two by the clock that has moved most. A time of day that was set back counts,
        too."""
        return max(later.monotonic - self.monotonic, later.boot - self.boot, abs(later.day - self.day))


class RunFence(RunNote):
    """The note that a run is still running, and whether it may: not once another run has taken it over."""

    def __init__(self, state: RestoreState) -> None:
        super().__init__(state.storage, state.run_id)
        self._state = state
        self._lock = threading.Lock()
        self._looked: ClockReading | None = None
        self._busy: RestoreBusy | None = None

    def check(self) -> None:
        """Raises RestoreBusy if another run has taken over this one, or another driver of it has started, and what the
        storage raises if that is unknown. Looks at most once in TRUSTED_SECONDS."""
        with self._lock:
            now = ClockReading.now()
            if self._looked is None or self._looked.seconds_to(now) > TRUSTED_SECONDS:
                self._look(now)
            if self._busy is not None:
                raise self._busy

    def beat(self) -> None:
        """Show once more that the run is still running, and look. It shows nothing more once it was taken over."""
        with self._lock:
            self._look(ClockReading.now())

    def end(self) -> None:
        """Do as every note, but leave that of another driver."""
        self.stop()
        with self._logged():
            if not self._is_anothers():
                self.write(ended=True)

    def _look(self, now: ClockReading) -> None:
        if self._busy is not None:
            return
        if self._looked is not None and self._is_anothers():
            self._busy = started_again(self._state)
            return
        self.write(ended=False)
        if by := taken_over_by(self._state):
            self._busy = fenced(self._state, by)
        self._looked = now  # of before: it may have slept since

    def _is_anothers(self) -> bool:
        return writer_of(self._state) not in (None, self.writer)


class TaskFence:
    """Whether a task of a run may send more. A task writes no note: it lasts as long as its driver does, or is cut off
    from it. So its driver is the one whose note it sees at first."""

    def __init__(self, state: RestoreState, executor: Executor) -> None:
        self._state = state
        self._executor = executor
        self._looked: ClockReading | None = None
        self._driver: str | None = None

    async def check(self) -> None:
        """Raises RestoreBusy if another run has taken over this one, or another driver of it has started. Looks at most
        once in TASK_SECONDS."""
        now = ClockReading.now()
        if self._looked is not None and self._looked.seconds_to(now) <= TASK_SECONDS:
            return
        await asyncio.get_running_loop().run_in_executor(self._executor, self._look)
        self._looked = now

    def _look(self) -> None:
        if by := taken_over_by(self._state):
            raise fenced(self._state, by)
        writer = writer_of(self._state)
        self._driver = self._driver or writer
        if writer not in (None, self._driver):
            raise started_again(self._state)

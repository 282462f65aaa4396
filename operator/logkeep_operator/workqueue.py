"""A queue of keys to reconcile. Each key is worked on at most once at a time, soon but not too often, and later and
later after errors.

Keys belong to groups (namespaces). Work that takes long gives its place to other work, up to a share of each group, so
slow answers in one group hold up no other.

    queue.add(key)          # from events: many adds become one call
    queue.add(key, again=True)   # it asks for something else now: no back-off holds it
    await queue.run(work)   # `work(key)` runs in a thread and returns seconds until the next look, or None

It lives in one event loop; only `work` runs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

# Threads for each worker: this many groups may be slow at once until one must wait.
THREADS_PER_WORKER = 8


class WorkQueue(Generic[K]):
    """The queue. `interval` is the least time between two starts for one key. After the n-th error in a row the wait is
    backoff * 2^(n-1). Work that has lasted for `slow_after` does not count among `workers` any more; a group with as
    many slow keys as there are workers starts no others."""

    def __init__(
        self,
        *,
        workers: int,
        interval: float = 0.5,
        backoff: float = 1.0,
        backoff_max: float = 60.0,
        slow_after: float = 2.0,
        group: Callable[[K], Hashable] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._interval = interval
        self._backoff = backoff
        self._backoff_max = backoff_max
        self._slow_after = slow_after
        self._group = group
        self._clock = clock
        self._threads = ThreadPoolExecutor(workers * THREADS_PER_WORKER, thread_name_prefix="reconcile")
        self._starts = itertools.count(1)
        self._served: dict[Hashable, int] = {}  # when each group was last served, in starts
        self._due: dict[K, float] = {}
        self._running: dict[K, asyncio.Task[None]] = {}
        self._started: dict[K, float] = {}
        self._errors: dict[K, int] = {}
        self._not_before: dict[K, float] = {}  # of those whose last look failed
        self._again: set[K] = set()  # of those that are due: asked for again since their look began
        self._changed = asyncio.Event()
        self.last_turn = clock()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def ready(self) -> int:
        """The number of keys that wait for a worker now. Timers that are not over do not count. Safe to ask from any
        thread."""
        now = self._clock()
        return sum(due <= now for due in list(self._due.values()))  # a copy: the loop may change it meanwhile

    def add(self, key: K, delay: float = 0.0, *, again: bool = False) -> None:
        """Look at the key after `delay` seconds, or earlier if that was said before. After an error it waits for the
        end of its back-off, whatever happens, unless it asks for something else now."""
        due = max(self._clock() + delay, self._started.get(key, float("-inf")) + self._interval)
        if again:
            self._again.add(key)
        else:
            due = max(due, self._not_before.get(key, float("-inf")))
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    async def run(self, work: Callable[[K], float | None]) -> None:
        """Work until cancelled."""
        try:
            while True:
                self.last_turn = self._clock()
                timeout = self._start_due(work)
                # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
                with contextlib.suppress(TimeoutError):
                    # A turn a second at least: work that has become slow gives its place away, and nothing tells of it.
                    async with asyncio.timeout(min(timeout, 1.0)):
                        await self._changed.wait()
                self._changed.clear()
        finally:
            for task in self._running.values():
                task.cancel()
            self._threads.shutdown(wait=False)

    def _start_due(self, work: Callable[[K], float | None]) -> float:
        """Start what is due. Returns the seconds until the next key is due."""
        now = self._clock()
        waiting = sorted(((due, i, key) for i, (key, due) in enumerate(self._due.items()) if key not in self._running))
        for due, _, key in self._in_turn(waiting, now):
            if due > now:
                return due - now
            if not self._may_start(key, now):
                continue
            del self._due[key]
            self._again.discard(key)
            self._started[key] = now
            self._served[self._group(key)] = next(self._starts)
            self._running[key] = asyncio.create_task(self._do(key, work))
        return float("inf")

    def _in_turn(self, waiting: list[tuple[float, int, K]], now: float) -> list[tuple[float, int, K]]:
        """Return the keys that are due, one of each group at a time. The group that has waited longest comes first;
        within a group time decides."""
        turns = Counter(self._group(key) for key in self._running)
        due = []
        for entry in waiting:
            if entry[0] <= now:
                group = self._group(entry[2])
                due.append(((turns[group], self._served.get(group, 0)), entry))
                turns[group] += 1
        return [entry for _, entry in sorted(due, key=lambda turn: turn[0])] + waiting[len(due) :]

    def _may_start(self, key: K, now: float) -> bool:
        running = self._running
        slow = [other for other in running if now - self._started[other] >= self._slow_after]
        if len(running) - len(slow) >= self._workers or len(running) >= self._workers * THREADS_PER_WORKER:
            return False
        group = self._group(key)
        return sum(self._group(other) == group for other in slow) < self._workers

    async def _do(self, key: K, work: Callable[[K], float | None]) -> None:
        try:
            again = await asyncio.get_running_loop().run_in_executor(self._threads, work, key)
        except Exception as error:
            count = self._errors[key] = self._errors.get(key, 0) + 1
            # The exponent is bounded, since 2.0 ** 1024 raises OverflowError.
            wait = min(self._backoff * 2.0 ** min(count - 1, 30), self._backoff_max)
            log.warning("%s: tried again in %.0f s: %s", key, wait, error, exc_info=log.isEnabledFor(logging.DEBUG))
            self._not_before[key] = self._clock() + wait
            if key not in self._again:
                self._due.pop(key, None)  # its own events came while it was looked at
            self.add(key, wait)
        else:
            self._errors.pop(key, None)
            self._not_before.pop(key, None)
            if again is not None:
                self.add(key, again)
            elif key not in self._due:
                self._started.pop(key, None)
        finally:
            del self._running[key]
            self._changed.set()

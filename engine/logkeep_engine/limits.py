"""The load that a run may put on a Kafka cluster: bytes in a second, and partitions read from one broker at the same
time.

Both hold for the whole run, so they are kept in one place, the driver: `Budget` hands out bytes, `Places` places at a
broker. A task sees a `Throttle` (`tasks.TaskContext.throttle`); the one of `spark.link` leases from the driver and
falls back to a `StaticShare`, which needs no one.

A budget is a schedule, not a bucket that is polled: a grant of n bytes at a rate of r takes up n / r seconds of it.
The answer says at once from when on the grant may be used. So no task waits for an answer longer than the network
takes, and no queue is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

# Unused time is given out later, up to this much of it: enough that a stalled event loop or a round trip
# costs no throughput, and 1/60 of the minute over which a limit is to hold.
CREDIT_SECONDS = 1.0
# A grant is the share of one task for this long: short enough to be smooth, long enough that asking costs nothing.
GRANT_SECONDS = 0.2
# The driver answers at most about this many requests a second; with more tasks the grants grow instead.
GRANTS_PER_SECOND = 1000
MIN_GRANT = 16 << 10
ASKING_SECONDS = 2.0  # who has asked within this time shares in the rate
# Each stream of a task asks at once for its part of what the task may move in this time.
FETCH_SECONDS = 0.5
MIN_FETCH = 32 << 10


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits of a run: `bytes_per_second` of record batches on the wire, `readers_per_broker` partitions at once.
    None: no limit."""

    bytes_per_second: int | None = None
    readers_per_broker: int | None = None


NO_LIMITS = RunLimits()


class Schedule:
    """A rate in bytes a second as a line of time, which is given away in the order of asking.

    All times are seconds of one monotonic clock, which the caller reads.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._given_until = now

    def reserve(self, size: int, now: float) -> float:
        """Take `size` bytes; returns the seconds from `now` on until they may be moved, 0 or more."""
        self._given_until = max(self._given_until, now - CREDIT_SECONDS) + size / self.rate
        return max(0.0, self._given_until - now)

    def give_back(self, size: int) -> None:
        """Give back `size` bytes that were reserved and will not be moved."""
        self._given_until -= size / self.rate


class Budget:
    """The driver's side of `bytesPerSecond`, one for a whole run. One thread at a time uses it."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._schedule = Schedule(rate, clock())
        self.rate = rate
        self._asked: dict[object, float] = {}

    def grant(self, asker: object) -> tuple[int, float]:
        """Grant bytes to a task, which is known by any object of its own. Returns (bytes, seconds until they may be
        moved)."""
        now = self._clock()
        self._asked[asker] = now
        if len(self._asked) > 1:
            self._asked = {key: at for key, at in self._asked.items() if now - at <= ASKING_SECONDS}
        tasks = len(self._asked)
        seconds = max(GRANT_SECONDS, tasks / GRANTS_PER_SECOND)
        size = max(MIN_GRANT, int(self.rate * seconds / tasks))
        return size, self._schedule.reserve(size, now)

    def give_back(self, asker: object, size: int) -> None:
        """Take back `size` bytes that the task was granted and has not moved. The task is gone."""
        self._asked.pop(asker, None)
        self._schedule.give_back(size)


class Places:
    """The places at each broker. Tasks that wait get them in their order. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self._brokers: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limit))

    async def enter(self, broker: int) -> None:
        """Wait for a place; may be cancelled. Every `enter` that returned needs its `leave`."""
        await self._brokers[broker].acquire()

    def leave(self, broker: int) -> None:
        self._brokers[broker].release()


class Throttle:
    """A task asks its throttle before it moves bytes. This one knows no limits.

    A throttle belongs to the event loop of its task.
    """

    @property
    def limited(self) -> bool:
        """True if bytes are counted at all."""
        return False

    async def pace(self, size: int) -> None:
        """Wait until `size` more bytes of batches may be moved. The task's streams get their turns in the order of
        asking."""

    @asynccontextmanager
    async def reading(self, broker: int) -> AsyncIterator[None]:
        """Hold one of the places at a broker. A holder of one may not wait for another."""
        yield

    def fetch_bytes(self, most: int, streams: int) -> int:
        """Return the number of bytes, up to `most`, that each of a task's `streams` should ask for at once, so that a
        slow rate stays smooth."""
        return most


UNLIMITED = Throttle()


class StaticShare(Throttle):
    """A fair share of the run's limits for one of `tasks` that run at once. It is kept without asking anybody."""

    def __init__(self, limits: RunLimits, tasks: int, clock: Callable[[], float] = time.monotonic) -> None:
        rate, readers = limits.bytes_per_second, limits.readers_per_broker
        self._clock = clock
        self.rate = None if rate is None else rate / tasks
        self.readers = None if readers is None else max(1, readers // tasks)
        self._schedule = None if self.rate is None else Schedule(self.rate, clock())
        self._places = None if self.readers is None else Places(self.readers)

    @property
    def limited(self) -> bool:
        return self.rate is not None

    async def pace(self, size: int) -> None:
        if self._schedule is not None:
            await asyncio.sleep(self._schedule.reserve(size, self._clock()))

    @asynccontextmanager
    async def reading(self, broker: int) -> AsyncIterator[None]:
        if self._places is None:
            yield
            return
        await self._places.enter(broker)
        try:
            yield
        finally:
            self._places.leave(broker)

    def fetch_bytes(self, most: int, streams: int) -> int:
        if self.rate is None:
            return most
        return min(most, max(MIN_FETCH, int(self.rate * FETCH_SECONDS / streams)))

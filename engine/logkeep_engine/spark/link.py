"""A task's end of its connections to the driver: `TaskLink` is the `tasks.TaskContext` of a task on an executor.

Progress may get lost, and goes over a plain socket, from any thread that has something to report. Leases are asked for
over a second connection that belongs to the task's event loop. Without the driver a task neither stops nor runs
unlimited: it keeps to a fair static share of the limits, says so in its log, and tries again now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from logkeep_engine.limits import UNLIMITED, RunLimits, StaticShare, Throttle
from logkeep_engine.spark.listener import BYTES, DONE, ENTER, ENTERED, LEAVE, PROGRESS, keep_alive, line
from logkeep_engine.tasks import PartitionUpdate

log = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
PAUSE_SECONDS = 15.0
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DriverEndpoint:
    """The address at which the driver listens, and what it needs to hear. `tasks` is the number of tasks that may run
    at once in the whole run.

    It travels to the executors and holds no secrets: `token` only lets a task talk to this run's listener.
    """

    address: tuple[str, int]
    token: str
    limits: RunLimits
    tasks: int


class TaskLink:
    """`tasks.TaskContext` inside an executor."""

    def __init__(self, attempt: int, endpoint: DriverEndpoint) -> None:
        self.attempt = attempt
        self.throttle: Throttle = UNLIMITED if endpoint.limits == RunLimits() else LeasedThrottle(endpoint)
        self._endpoint = endpoint
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        with self._lock:
            if not updates or time.monotonic() < self._retry_at:
                return
            lines = [line(PROGRESS, u.key, u.partition, u.task, u.at, u.records, u.bytes) for u in updates]
            try:
                if self._socket is None:
                    self._socket = socket.create_connection(self._endpoint.address, timeout=CONNECT_SECONDS)
                    lines.insert(0, self._endpoint.token.encode() + b"\n")
                self._socket.sendall(b"".join(lines))
            except OSError:
                self._drop()
                self._retry_at = time.monotonic() + PAUSE_SECONDS

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


class LeasedThrottle(Throttle):
    """A throttle that leases from the driver. It connects when it is first needed, and the connection ends with the
    event loop."""

    def __init__(self, endpoint: DriverEndpoint) -> None:
        self._endpoint = endpoint
        self._share = StaticShare(endpoint.limits, endpoint.tasks)
        self._lease: _Lease | None = None
        self._retry_at = 0.0
        self._connecting = asyncio.Lock()
        self._turn = asyncio.Lock()

    @property
    def limited(self) -> bool:
        return self._share.limited

    async def pace(self, size: int) -> None:
        if self._endpoint.limits.bytes_per_second is None:
            return
        async with self._turn:
            while size > 0:
                lease = await self._connected()
                if lease is None:
                    await self._share.pace(size)
                    return
                size -= await lease.take(size)

    @asynccontextmanager
    async def reading(self, broker: int) -> AsyncIterator[None]:
        if self._endpoint.limits.readers_per_broker is None:
            yield
            return
        lease = await self._connected()
        number = await lease.enter(broker) if lease is not None else None
        if lease is None or number is None:
            async with self._share.reading(broker):
                yield
            return
        try:
            yield
        finally:
            lease.leave(number)

    def fetch_bytes(self, most: int, streams: int) -> int:
        return self._share.fetch_bytes(most, streams)

    async def _connected(self) -> _Lease | None:
        """Return the connection, made again if it was lost; None while the driver cannot be asked."""
        async with self._connecting:
            if self._lease is not None and not self._lease.lost:
                return self._lease
            if self._lease is not None and self._lease.silent:
                self._pause(f"it has not answered for {ANSWER_SECONDS:.0f} s")
            self._lease = None
            if time.monotonic() < self._retry_at:
                return None
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(*self._endpoint.address)
            except OSError as error:  # TimeoutError is one
                self._pause(error.strerror or type(error).__name__)
                return None
            keep_alive(writer)
            writer.write(self._endpoint.token.encode() + b"\n")
            self._lease = _Lease(reader, writer)
            return self._lease

    def _pause(self, why: str) -> None:
        self._retry_at = time.monotonic() + PAUSE_SECONDS
        held = [
            f"{int(self._share.rate)} bytes a second" if self._share.rate is not None else "",
            f"{self._share.readers} partitions of a broker" if self._share.readers is not None else "",
        ]
        log.warning(
            "the driver cannot be asked about spec.limits (%s): this task keeps to %s, and asks again in %.0f s",
            why, " and ".join(filter(None, held)), PAUSE_SECONDS,
        )  # fmt: skip


class _Lease:
    """The leases over one connection. `lost`: the connection is of no use any more. `silent`: the driver did not
    answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lost = False
        self.silent = False
        self._reader = reader
        self._writer = writer
        self._held = 0
        self._used = 0
        self._ahead: asyncio.Future[_Grant | None] | None = None
        self._asked: deque[asyncio.Future[_Grant | None]] = deque()
        self._numbers = itertools.count()
        self._entering: dict[int, asyncio.Future[bool]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def take(self, size: int) -> int:
        """Wait until some bytes may be moved and use them up. Returns how many, at most `size`; 0 if the connection was
        lost."""
        if self._held == 0:
            self._held = await self._next_grant()
        taken = min(size, self._held)
        self._held -= taken
        self._used += taken
        return taken

    async def enter(self, broker: int) -> int | None:
        """Wait for a place. Returns the number to leave it with, None if the connection was lost."""
        if self.lost:
            return None
        number = next(self._numbers)
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._entering[number] = waiting
        self._say(ENTER, number, broker)
        try:
            return number if await waiting else None
        except asyncio.CancelledError:
            self.leave(number)
            raise
        finally:
            self._entering.pop(number, None)

    def leave(self, number: int) -> None:
        self._say(LEAVE, number)

    async def _next_grant(self) -> int:
        """Wait for the next grant until it may be used. By then the one after it is asked for, so that no time is lost
        to the round trip."""
        if self._ahead is None:
            self._ahead = self._ask()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                grant = await asyncio.shield(self._ahead)  # who is cancelled leaves it to the next
        except TimeoutError:
            self.lost = self.silent = True
            self._reading.cancel()
            return 0
        self._ahead = None
        if grant is None:
            return 0
        await asyncio.sleep(grant.usable_at - time.monotonic())
        self._ahead = self._ask()
        return grant.size

    def _ask(self) -> asyncio.Future[_Grant | None]:
        asked: asyncio.Future[_Grant | None] = asyncio.get_running_loop().create_future()
        # Grants have no number: they come in the order of the questions.
        self._asked.append(asked)
        self._say(BYTES)
        if self.lost:
            self._forget()
        return asked

    def _say(self, *message: object) -> None:
        if not self.lost:
            self._writer.write(line(*message))

    async def _read(self) -> None:
        try:
            while text := await self._reader.readline():
                kind, *rest = json.loads(text)
                if kind == BYTES:
                    size, seconds = rest
                    self._asked.popleft().set_result(_Grant(size, time.monotonic() + seconds))
                elif kind == ENTERED:
                    waiting = self._entering.get(rest[0])
                    if waiting is not None and not waiting.done():
                        waiting.set_result(True)
        # The connection is lost, or its words make no sense: what follows tells all who wait.
        except (OSError, ValueError):
            pass
        finally:
            # Also reached when the task's event loop ends: what was granted and not moved goes back.
            self._say(DONE, self._used)
            self.lost = True
            self._forget()
            self._writer.close()

    def _forget(self) -> None:
        """Tell all who wait that no answer will come."""
        for asked in self._asked:
            asked.set_result(None)
        self._asked.clear()
        for waiting in self._entering.values():
            if not waiting.done():
                waiting.set_result(False)


@dataclass(frozen=True, slots=True)
class _Grant:
    """A grant of bytes. `usable_at` is a time of this process's monotonic clock."""

    size: int
    usable_at: float

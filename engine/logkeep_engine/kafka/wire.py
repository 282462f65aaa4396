"""One connection to a broker: requests out, answers in, at the speed of the socket.

asyncio receives straight into a buffer of the answer's size, which is lent by `Buffers` and used again: the bytes are
written once, where the segment is written from. A stream of asyncio would copy every answer into a growing buffer, out
of it and out of it again, all in fresh memory. The same works over TLS.

A broker answers the requests of a connection in their order, so several can be under way.

Where the broker bounds the session of a login (KIP-368), the connection logs in again before it ends. A broker takes
nothing else meanwhile: what was sent before is answered first, and what is sent then waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.buffers import AnswerFrame, Buffers
from logkeep_engine.kafka.encoding import Call, Reader, VersionMissing
from logkeep_engine.kafka.login import (
    BEFORE_LOGIN,
    SASL_AUTHENTICATE,
    Login,
    LoginDenied,
    LoginNotTaken,
    WrongBroker,
    api_versions,
    log_in,
)

R = TypeVar("R")
GetLogin = Callable[[], Awaitable[Login]]
"""Returns the login as it is now: a password and a token may have been renewed."""

_log = logging.getLogger(__name__)
_RENEWED_AT = (0.8, 0.9)  # of the session's time: connections that were opened together are not renewed together

_SIZE = struct.Struct(">i")
_LARGEST = 1 << 30  # what says it is larger is not a Kafka answer
_JOINED = 64 << 10  # parts of a request up to this size are copied into one write


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    call: Call[Any]
    answer: asyncio.Future[Any]


class Wire(asyncio.BufferedProtocol):
    """Belongs to one event loop. Made by `open_wire`.

    `patience`: seconds within which the answer that is next in line must be whole, counted from the one before it or,
    if there was none, from its request. After that, as after any error, the connection is of no more use: everything
    under way fails with TimeoutError or another OSError.
    """

    def __init__(self, buffers: Buffers, client_id: str, patience: float) -> None:
        self._transport: asyncio.Transport
        self._buffers = buffers
        self.versions: Mapping[int, tuple[int, int]] = BEFORE_LOGIN
        self._client_id = client_id
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()  # done when the socket is
        self._open = True
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._since = self._loop.time()  # when the last answer was whole or the line was empty
        self._alarm: asyncio.TimerHandle | None = None
        self._size = bytearray(_SIZE.size)
        self._frame: AnswerFrame | None = None
        self._target = memoryview(self._size)
        self._filled = 0
        self._held: deque[tuple[Call[Any], asyncio.Future[Any]]] | None = None  # while it logs in again
        self._used = False  # since the last login
        self._alarm_of_session: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    # ---- for the caller

    def connected(self) -> bool:
        return self._open and not self._transport.is_closing()

    def idle_for(self) -> float:
        """Seconds since the last answer; 0 while one is awaited."""
        return 0.0 if self._waiting or self._held else self._loop.time() - self._since

    def speaks(self, call: Call[R]) -> bool:
        """Return whether the broker at the other end takes requests of this version."""
        try:
            call.check_version(self.versions)
        except VersionMissing:
            return False
        return True

    def highest(self, api_key: int) -> int:
        """Return the highest version of a request that the broker takes, -1 if it takes none."""
        return self.versions.get(api_key, (-1, -1))[1]

    def send(self, call: Call[R]) -> asyncio.Future[R]:
        """Write the request now and return what its answer will be.

        Raises VersionMissing if the broker does not speak this version, OSError if the connection is closed.
        """
        call.check_version(self.versions)
        if not self.connected():
            raise ConnectionError("the connection was closed")
        self._used = True
        answer: asyncio.Future[R] = self._loop.create_future()
        if self._held is None:
            self._put(call, answer)
        else:
            self._held.append((call, answer))
        return answer

    def _put(self, call: Call[R], answer: asyncio.Future[R]) -> None:
        self._correlation_id = (self._correlation_id + 1) % 2**31  # an int32 on the wire
        parts = call.encode(self._correlation_id, self._client_id)
        self._write(parts)
        if not self._waiting:
            self._since = self._loop.time()
        self._waiting.append(_Waiting(self._correlation_id, call, answer))
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._patience, self._watch)

    def close(self, error: Exception | None = None) -> asyncio.Future[None]:
        """Close the connection; what is under way fails with `error`. The future is done when the socket is closed."""
        if self._open:
            self._open = False
            if error is None:
                self._transport.close()
            else:
                self._transport.abort()  # nothing that comes can be understood any more
            self._fail(error or ConnectionError("the connection was closed"))
        return self.closed

    # ---- logins

    async def log_in(self, login: Login, again: GetLogin | None = None) -> None:
        """Log in, and once more before each end of the session that the broker grants, as `again` says then. Raises
        what `login.log_in` raises."""
        # The broker ends no session of a client that cannot log in again: version 1 says that this one can.
        version = min(1, max(0, self.highest(SASL_AUTHENTICATE))) if again is not None else 0
        seconds = await log_in(_Direct(self), login, version)
        self._used = False
        if again is not None and seconds > 0 and self.connected():
            self._alarm_of_session = self._loop.call_later(seconds * random.uniform(*_RENEWED_AT), self._renew, again)

    def _renew(self, again: GetLogin) -> None:
        if not self.connected():
            return
        if not self._used and not self._waiting:  # nobody has asked here for that long: who does opens another one
            self.close()
            return
        self._renewing = self._loop.create_task(self._log_in_again(again))

    async def _log_in_again(self, again: GetLogin) -> None:
        try:
            login = await again()  # a token may take its time, and nothing waits for it
            self._held = deque()
            await self.log_in(login, again)
        except (LoginDenied, LoginNotTaken, WrongBroker, OSError, LogkeepError) as error:
            _log.info("cannot log in again, so the connection is closed: %s", error)
            self.close(ConnectionError(f"the login could not be renewed: {error}"))
            return
        held, self._held = self._held, None
        self._used = bool(held)
        for call, answer in held:
            if not answer.done():  # else its caller has given up
                self._put(call, answer)

    # ---- for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._open:
            return  # TLS hands out what had arrived before it closes
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        frame = self._frame
        if frame is None:
            self._begin(*_SIZE.unpack(self._size))
            return
        self._frame = None
        self._expect(memoryview(self._size))
        self._complete(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        self._fail(exc if isinstance(exc, OSError) else ConnectionError("the connection was closed"))
        if not self.closed.done():
            self.closed.set_result(None)

    # ---- frames

    def _expect(self, target: memoryview) -> None:
        self._target = target
        self._filled = 0

    def _begin(self, size: int) -> None:
        if not _SIZE.size <= size <= _LARGEST or not self._waiting:
            self.close(ConnectionError(f"an answer of {size} bytes that belongs to no request"))
            return
        self._frame = self._buffers.lend(size)
        self._expect(self._frame.view)

    def _complete(self, frame: AnswerFrame) -> None:
        waiting = self._waiting[0]
        reader = Reader(frame)
        answered = reader.int32()
        if answered != waiting.correlation_id:
            frame.release()
            self.close(ConnectionError(f"answer {answered} came instead of {waiting.correlation_id}"))
            return
        self._waiting.popleft()
        self._since = self._loop.time()
        if not waiting.answer.done():  # else its caller has given up
            try:
                waiting.answer.set_result(waiting.call.decode(reader))
            # The frame was whole, so the next answer begins where it should: the connection stays.
            except (struct.error, IndexError, ValueError) as error:
                waiting.answer.set_exception(ConnectionError(f"an answer cannot be read: {error}"))
        if not reader.kept:
            frame.release()

    def _write(self, parts: list[bytes | bytearray | memoryview]) -> None:
        """Small parts as one, so that a request without a body is one packet; large ones as they are."""
        small = bytearray()
        for part in parts:
            if len(part) <= _JOINED:
                small += part
                continue
            self._transport.write(small)
            self._transport.write(part)
            small = bytearray()
        if small:
            self._transport.write(small)

    # ---- endings

    def _watch(self) -> None:
        self._alarm = None
        if not self._waiting:
            return
        left = self._since + self._patience - self._loop.time()
        if left <= 0:
            self.close(TimeoutError(f"no answer within {self._patience:.0f} s"))
        else:
            self._alarm = self._loop.call_later(left, self._watch)

    def _fail(self, error: Exception) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._frame = None  # not given back: the transport may still hold a view of it
        self._filled = 0
        if self._alarm_of_session is not None:
            self._alarm_of_session.cancel()
        if self._renewing is not None and self._renewing is not asyncio.current_task(self._loop):
            self._renewing.cancel()
        waiting, self._waiting = self._waiting, deque()
        held, self._held = self._held or (), None
        for answer in [*(one.answer for one in waiting), *(answer for _, answer in held)]:
            if not answer.done():
                answer.set_exception(error)


class _Direct:
    """A connection on which a login is sent while other requests are held back."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def send(self, call: Call[R]) -> asyncio.Future[R]:
        call.check_version(self._wire.versions)
        if not self._wire.connected():
            raise ConnectionError("the connection was closed")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._wire._put(call, answer)
        return answer


async def open_wire(
    host: str,
    port: int,
    *,
    buffers: Buffers,
    client_id: str,
    patience: float,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
    again: GetLogin | None = None,
) -> Wire:
    """Connect, and log in; `again` gives the login for a session that ends. Raises OSError (ssl.SSLError is one), and
    what `log_in` raises."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Wire(buffers, client_id, patience), host, port, ssl=tls)
    try:
        wire.versions = await wire.send(api_versions())
        if login is not None:
            await wire.log_in(login, again)
    except BaseException:
        wire.close()
        raise
    return wire

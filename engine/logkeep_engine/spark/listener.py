"""The driver's end of the connections to its tasks: progress comes in, leases go out.

A connection begins with the token; anything else is hung up on. Then each line is a JSON array whose first item says
what it is:

    task -> driver  ["progress", key, partition, task, at, records, bytes]
                    ["bytes"]                 may I move some more?
                    ["enter", n, broker]      wait for a place at a broker; n is the task's own number for it
                    ["leave", n]              give it back, or wait no longer
                    ["done", size]            this many bytes of those granted were moved; the rest comes back
    driver -> task  ["bytes", size, seconds]  this many, in this many seconds
                    ["entered", n]

What a task holds comes back when its connection closes, so a task that dies keeps nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from logkeep_engine.limits import Budget, Places
from logkeep_engine.tasks import PartitionUpdate

PROGRESS, BYTES, ENTER, ENTERED, LEAVE, DONE = "progress", "bytes", "enter", "entered", "leave", "done"

# A peer whose machine vanished is noticed after about 40 s, by the kernel.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


def line(*items: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(items).encode() + b"\n"


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel notice a peer that is gone without notice."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Listener:
    """Serves the tasks of one Spark job from a thread of its own. `budget` may serve several jobs one after another."""

    def __init__(
        self,
        host: str,
        on_update: Callable[[PartitionUpdate], None],
        budget: Budget | None = None,
        readers_per_broker: int | None = None,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.address = (host, 0)
        self.on_update = on_update
        self.budget = budget
        self.places = None if readers_per_broker is None else Places(readers_per_broker)
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="logkeep-listener", daemon=True)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Listener:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, 0), family=family, backlog=512)
        self.address = (self._host, self._socket.getsockname()[1])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._talk, sock=self._socket))
            self._loop.run_forever()
            server.close()
            self._loop.run_until_complete(_end_all())
        finally:
            self._loop.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            token = await asyncio.wait_for(reader.readline(), timeout=10)
            # In constant time, so that it tells nothing of the token.
            if not hmac.compare_digest(token.strip(), self.token.encode()):
                return
            keep_alive(writer)
            peer = _Peer(self, writer)
            try:
                while text := await reader.readline():
                    peer.take(json.loads(text))
            finally:
                peer.close()
        # Anyone may connect, and a task continues without a listener, so whatever came, this connection ends.
        except (OSError, ValueError, TypeError, LookupError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # connections are closed in the next turn of the loop


class _Peer:
    """The driver's end of one connection, with what the task holds. Raises ValueError, TypeError or LookupError for
    something that is not a message."""

    def __init__(self, listener: Listener, writer: asyncio.StreamWriter) -> None:
        self._listener = listener
        self._writer = writer
        self._granted = 0
        self._places: dict[int, _Place] = {}

    def take(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind == PROGRESS:
            key, partition, task, at, records, size = rest
            self._listener.on_update(
                PartitionUpdate(str(key), int(partition), int(task), int(at), int(records), int(size))
            )
        elif kind == BYTES and self._listener.budget is not None:
            size, seconds = self._listener.budget.grant(self)
            self._granted += size
            self._writer.write(line(BYTES, size, seconds))
        elif kind == ENTER and self._listener.places is not None:
            number, broker = rest
            self._places[number] = _Place(self._listener.places, int(broker), lambda: self._entered(number))
        elif kind == LEAVE:
            self._places.pop(rest[0]).close()
        elif kind == DONE:
            unused = self._granted - int(rest[0])
            if self._listener.budget is not None and unused > 0:
                self._listener.budget.give_back(self, unused)
        else:
            raise ValueError(kind)

    def close(self) -> None:
        for place in self._places.values():
            place.close()
        self._places.clear()

    def _entered(self, number: int) -> None:
        self._writer.write(line(ENTERED, number))


class _Place:
    """A place at a broker that a task has asked for: first it waits for the place, then it holds it."""

    def __init__(self, places: Places, broker: int, entered: Callable[[], None]) -> None:
        self._places = places
        self._broker = broker
        self._entered = entered
        self._waiting = asyncio.get_running_loop().create_task(places.enter(broker))
        self._waiting.add_done_callback(self._waited)
        self._closed = False

    def close(self) -> None:
        """Give the place back, or stop waiting for it. Called once."""
        self._closed = True
        if not self._waiting.cancel():
            self._places.leave(self._broker)

    def _waited(self, waiting: asyncio.Task[None]) -> None:
        if not waiting.cancelled() and not self._closed:
            self._entered()

"""One pool of connections for questions that follow each other, from any thread, without a thread between them.

    kept = KeptPool()
    kept.ask(connection, question)      # connects
    kept.ask(connection, question)      # asks on the same connections
    kept.close()

A question runs in the kept event loop, which stands still between questions. So a question finds what it would find on
a new pool: its first request is the one with which a pool begins, for brokers and the cluster's id, and where no open
connection answers that at once, a new pool takes the place of the kept one. After a question that fails nothing is
kept. While one question is under way, another one gets a pool of its own, as it does in a process that was forked
in the meantime: connections and loop are its parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.connection import KafkaConnection

T = TypeVar("T")
Question = Callable[[BrokerPool], Awaitable[T]]

_IDLE_SECONDS = 2.0
"""Questions of one plan follow each other faster. After a longer pause a broker may have vanished silently, and a
new pool, which tries all addresses at once, finds another one sooner."""


async def ask_once(connection: KafkaConnection, question: Question[T], reach: float | None = None) -> T:
    """Return the answer to a question, on a pool of its own. `reach`: seconds within which a broker must answer. Raises
    what `BrokerPool` and the question raise."""
    async with BrokerPool(connection, connection.limits, reach=reach) as pool:
        return await question(pool)


class KeptPool:
    """Nothing is opened before the first question. `close` must be called by the process that has asked."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._turn = threading.Lock()  # taken in threads of this class only: no signal interrupts them
        self._runner: asyncio.Runner | None = None
        self._pool: BrokerPool | None = None
        self._connection: KafkaConnection | None = None
        self._asked = 0.0
        self._closed = False

    def ask(self, connection: KafkaConnection, question: Question[T], reach: float | None = None) -> T:
        """Return the answer to a question: the caller may be inside a loop. A new pool must reach a broker within
        `reach` seconds. Raises what `BrokerPool` and the question raise."""
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(self._ask, connection, question, reach).result()

    def close(self) -> None:
        """Close the connections, after the question that is under way. What is asked later gets a pool of its own."""
        if self._is_ours():
            with ThreadPoolExecutor(1) as executor:
                executor.submit(self._close).result()

    def _is_ours(self) -> bool:
        return self._process == os.getpid()

    def _ask(self, connection: KafkaConnection, question: Question[T], reach: float | None) -> T:
        if not self._is_ours() or not self._turn.acquire(blocking=False):
            return asyncio.run(ask_once(connection, question, reach))
        try:
            if self._closed:
                return asyncio.run(ask_once(connection, question, reach))
            return self._ask_kept(connection, question, reach)
        finally:
            self._turn.release()

    def _ask_kept(self, connection: KafkaConnection, question: Question[T], reach: float | None) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            answer = self._runner.run(self._answer(connection, question, reach))
        except BaseException:
            self._drop()  # other requests of this question may be under way
            raise
        self._asked = time.monotonic()
        return answer

    async def _answer(self, connection: KafkaConnection, question: Question[T], reach: float | None) -> T:
        return await question(await self._open(connection, reach))

    async def _open(self, connection: KafkaConnection, reach: float | None) -> BrokerPool:
        kept, self._pool = self._pool, None  # if what follows fails, it is not used again
        if kept is not None:
            same = connection is self._connection or kept.is_of(connection)
            if same and time.monotonic() - self._asked < _IDLE_SECONDS and await kept.answers():
                self._pool, self._connection = kept, connection
                return kept
            await kept.close()
        pool = BrokerPool(connection, connection.limits, reach=reach)
        await pool.__aenter__()
        self._pool, self._connection = pool, connection
        return pool

    def _close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        runner, self._runner = self._runner, None
        pool, self._pool = self._pool, None
        if runner is None:
            return
        with runner:
            if pool is not None:
                runner.run(pool.close())

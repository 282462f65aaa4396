"""Batches to send that are made ready in threads, while the ones before are being sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor

from logkeep_engine.restore.streams.filter import Outgoing

AHEAD_BYTES = 2 << 20
"""The bytes of batches that are made ready in one go, at most."""

_FIRST_BYTES = 128 << 10
_AHEAD_COUNT = 512


class OutgoingAhead:
    """Takes the batches of a stream, some at a time. The first ones are made ready at once, and they are few: the
    broker has something to do while more are made. Each go takes twice as much as the one before, up to AHEAD_BYTES.

    Needs `stop` at the end. Belongs to one event loop.
    """

    def __init__(self, stream: Generator[Outgoing, None, None], pool: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._pool = pool
        self._bytes = _FIRST_BYTES
        self._ready = pool.submit(self._take)

    async def take(self) -> AsyncIterator[list[Outgoing]]:
        """Yield the batches, in their order. Raises what the stream raises."""
        while items := await asyncio.wrap_future(self._ready):
            self._ready = self._pool.submit(self._take)
            yield items

    async def stop(self) -> None:
        """Make no more batches, and close the stream. Harmless when called twice."""
        if not self._ready.cancel():
            await asyncio.gather(asyncio.wrap_future(self._ready), return_exceptions=True)
        self._stream.close()

    def _take(self) -> list[Outgoing]:
        taken: list[Outgoing] = []
        size = 0
        for item in self._stream:
            taken.append(item)
            size += item.weight
            if size >= self._bytes or len(taken) >= _AHEAD_COUNT:
                break
        self._bytes = min(2 * self._bytes, AHEAD_BYTES)
        return taken

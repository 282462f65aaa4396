"""The batches of one partition between their producer and their sender."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from logkeep_engine.kafka.encoding import Buffer

Batch = Buffer | tuple[Buffer, ...]
"""A record batch in one buffer, or in several that are sent one after the other. The first holds at least its header.
"""


class BatchQueue:
    """Batches that are ready to be sent, so that a window of requests is filled in one go: to wait for each batch costs
    more than to send it. Who puts them in bounds their number. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.ready: deque[Batch] = deque()
        self.ended = False
        """No more batches will be ready."""
        self._asked: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether all batches were taken."""
        return self.ended and not self.ready

    def put(self, batch: Batch) -> None:
        """Add a batch after the others."""
        self.ready.append(batch)
        self._wake()

    def end(self) -> None:
        """Note that no more batches come. Harmless when called twice."""
        self.ended = True
        self._wake()

    async def wait(self, other: asyncio.Future[Any] | None) -> None:
        """Wait until a batch is ready, or none will come, or the other future is done. No batch may be ready."""
        self._asked = asyncio.get_running_loop().create_future()
        either: list[asyncio.Future[Any]] = [self._asked] if other is None else [self._asked, other]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    def _wake(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)

"""The bound on what was made for the outlets of a partition and is not acknowledged."""

from __future__ import annotations

import asyncio


class Window:
    """This much may be under way. Something that is larger may be under way alone. One task takes, others give back.

    Who waits for room gets a third of all: to wait for each batch costs more than to send it.
    """

    def __init__(self, size: int) -> None:
        self._left = self._size = size
        self._wanted = 0
        self._room: asyncio.Future[None] | None = None

    async def take(self, size: int) -> None:
        """Wait until this much is left, and take it."""
        if self._left < min(size, self._size):
            await self._until(max(min(size, self._size), self._size // 3))
        self._left -= size

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._left += size
        if self._room is not None and self._left >= self._wanted and not self._room.done():
            self._room.set_result(None)

    async def all_back(self) -> None:
        """Wait until nothing is under way."""
        if self._left < self._size:
            await self._until(self._size)

    async def _until(self, left: int) -> None:
        self._wanted, self._room = left, asyncio.get_running_loop().create_future()
        await self._room

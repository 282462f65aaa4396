"""Items of an asynchronous iterator that are ready before they are asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Takes up to `most` items ahead, so that a window of requests is filled in one go: to wait for each batch costs
    more than to send it.

    Needs `stop` at the end. Belongs to one event loop.
    """

    def __init__(self, items: AsyncIterator[T], most: int) -> None:
        self.ready: deque[T] = deque()
        self.ended = False
        """No more items will be ready."""
        self.error: BaseException | None = None
        """Why, if the iterator has raised: anything, or what is missing would look like the end. A panic of compiled
        code is no `Exception`."""
        self._most = most
        self._room: asyncio.Future[None] | None = None
        self._asked: asyncio.Future[None] | None = None
        self._filling = asyncio.get_running_loop().create_task(self._fill(items))

    @property
    def over(self) -> bool:
        """All items were taken, and there was no error."""
        return self.ended and not self.ready and self.error is None

    def take(self) -> T:
        """The first of the items that are ready."""
        item = self.ready.popleft()
        if len(self.ready) <= self._most // 2:
            _wake(self._room)
        return item

    async def wait(self, other: asyncio.Future[Any] | None) -> None:
        """Wait until an item is ready, or none will come, or the other future is done. No item may be ready."""
        self._asked = asyncio.get_running_loop().create_future()
        either: list[asyncio.Future[Any]] = [self._asked] if other is None else [self._asked, other]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Ask for no more items, and wait until the iterator is left alone."""
        self._filling.cancel()
        await asyncio.wait([self._filling])

    async def _fill(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self.ready.append(item)
                _wake(self._asked)
                if len(self.ready) >= self._most:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        except BaseException as error:
            self.error = error
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self.ended = True
            _wake(self._asked)


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper is not None and not sleeper.done():
        sleeper.set_result(None)

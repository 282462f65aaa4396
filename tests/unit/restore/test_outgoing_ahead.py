"""Batches that are made ready while others are being sent."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.outgoing_ahead import AHEAD_BYTES, OutgoingAhead

SIZE = 64 << 10


class Stream:
    """Gives `count` batches and notes how many it has given, and whether it was closed."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.given = 0
        self.closed = threading.Event()
        self.begun = threading.Event()
        self._count = count
        self._error = error

    def items(self) -> Generator[Outgoing, None, None]:
        self.begun.set()
        try:
            for number in range(self._count):
                self.given += 1
                yield Outgoing(number, 1, SIZE, (bytes(SIZE),), ((number, 1),), 0)
            if self._error is not None:
                raise self._error
        finally:
            self.closed.set()


def lots_of(stream: Stream) -> list[list[int]]:
    async def main() -> list[list[int]]:
        with ThreadPoolExecutor(2) as pool:
            ahead = OutgoingAhead(stream.items(), pool)
            try:
                return [[item.index for item in items] async for items in ahead.take()]
            finally:
                await ahead.stop()
                await ahead.stop()

    return asyncio.run(main())


def test_the_first_batches_are_few_and_all_come_in_order() -> None:
    stream = Stream(100)
    lots = lots_of(stream)
    assert [number for lot in lots for number in lot] == list(range(100))
    assert [len(lot) for lot in lots] == [2, 4, 8, 16, AHEAD_BYTES // SIZE, AHEAD_BYTES // SIZE, 6]
    assert stream.closed.is_set()


def test_batches_that_cannot_be_made_are_no_end() -> None:
    stream = Stream(3, ArchiveDamaged("broken"))
    with pytest.raises(ArchiveDamaged, match="broken"):
        lots_of(stream)
    assert stream.closed.is_set()

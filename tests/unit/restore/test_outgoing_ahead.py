"""Batches that are made ready while others are being sent, and while a task looks what is in its target already."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from logkeep_engine.errors import ArchiveDamaged, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import UNLIMITED
from logkeep_engine.restore.sending import task as task_module
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.sending.written import WrittenRecords
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.outgoing_ahead import AHEAD_BYTES, OutgoingAhead

SIZE = 64 << 10


class Stream:
    """Gives `count` batches and notes how many it has given, and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
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


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("records", [0, 5])
def test_batches_are_made_while_a_fresh_run_looks_at_its_target(
    monkeypatch: pytest.MonkeyPatch, fresh: bool, records: int
) -> None:
    """They are dropped if the target holds records of the run all the same: then it must begin behind these."""
    stream = Stream(1000)

    async def look(*_: Any, **__: Any) -> WrittenRecords:
        if fresh:
            assert await asyncio.to_thread(stream.begun.wait, 10), "nothing is made before the broker has answered"
        return WrittenRecords(records)

    async def main(pool: ThreadPoolExecutor) -> None:
        landed, ahead = await begin(pool, fresh=fresh)
        assert landed.records == records
        assert (ahead is not None) == (fresh and not records)
        assert stream.closed.is_set() == (fresh and records > 0)
        if ahead is not None:
            await ahead.stop()

    monkeypatch.setattr(task_module, "look", look)
    monkeypatch.setattr(task_module, "stream_of", lambda *_: stream.items())
    with ThreadPoolExecutor(2) as pool:
        asyncio.run(main(pool))


def test_no_thread_reads_on_when_the_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1000)

    async def look(*_: Any, **__: Any) -> WrittenRecords:
        raise TopicExists("somebody else's")

    monkeypatch.setattr(task_module, "look", look)
    monkeypatch.setattr(task_module, "stream_of", lambda *_: stream.items())
    with ThreadPoolExecutor(2) as pool, pytest.raises(TopicExists):
        asyncio.run(begin(pool, fresh=True))
    assert stream.closed.is_set() or not stream.begun.is_set()
    assert stream.given < 1000


async def begin(pool: ThreadPoolExecutor, *, fresh: bool) -> tuple[WrittenRecords, OutgoingAhead[Outgoing] | None]:
    class Task:
        place = None
        extent = None

    task, client = cast(RestoreTask, Task()), cast(RawClient, None)
    return await task_module._begin(task, client, pool, UNLIMITED, LeftOut(), fresh=fresh)

"""The life of the connections that questions share. Pools are stand-ins: what real ones do is tested with brokers."""

import asyncio
import os
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka import kept_pool
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.kept_pool import KeptPool

CONNECTION = KafkaConnection(("localhost:1",))


class Pool:
    """Counts pools that are opened and closed."""

    made: list["Pool"]

    def __init__(self, connection: KafkaConnection, limits: Any, *, reach: float | None = None) -> None:
        self.connection = connection
        self.well = True
        self.open = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def is_of(self, connection: KafkaConnection) -> bool:
        return connection == self.connection

    async def __aenter__(self) -> "Pool":
        self.open, self.loop = True, asyncio.get_running_loop()
        Pool.made.append(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.open = False

    async def answers(self) -> bool:
        assert asyncio.get_running_loop() is self.loop
        return self.well


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    Pool.made = []
    monkeypatch.setattr(kept_pool, "BrokerPool", Pool)
    return Pool.made


async def itself(pool: Any) -> Any:
    return pool


def test_questions_that_follow_each_other_share_a_pool_until_the_end(made: list[Pool]) -> None:
    before = threading.active_count()
    kept = KeptPool()
    assert kept.ask(CONNECTION, itself) is kept.ask(CONNECTION, itself) is made[0]
    assert made[0].open
    assert threading.active_count() == before
    kept.close()
    loop = made[0].loop
    assert not made[0].open
    assert loop is not None
    assert loop.is_closed()
    kept.close()


def test_a_question_after_the_end_gets_a_pool_of_its_own(made: list[Pool]) -> None:
    kept = KeptPool()
    kept.close()
    kept.ask(CONNECTION, itself)
    assert [pool.open for pool in made] == [False]


def test_a_pool_that_does_not_answer_at_once_is_replaced(made: list[Pool]) -> None:
    kept = KeptPool()
    kept.ask(CONNECTION, itself)
    made[0].well = False
    assert kept.ask(CONNECTION, itself) is made[1]
    assert [pool.open for pool in made] == [False, True]
    kept.close()


def test_a_pool_that_was_idle_for_long_is_replaced(made: list[Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPool()
    now = [100.0]
    monkeypatch.setattr(kept_pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    kept.ask(CONNECTION, itself)
    now[0] += 1.9
    assert kept.ask(CONNECTION, itself) is made[0]
    now[0] += 2.1
    assert kept.ask(CONNECTION, itself) is made[1]
    assert [pool.open for pool in made] == [False, True]
    kept.close()


def test_another_connection_gets_another_pool(made: list[Pool]) -> None:
    kept = KeptPool()
    kept.ask(CONNECTION, itself)
    only = replace(CONNECTION, cluster_id="other")
    assert kept.ask(only, itself) is made[1]
    assert made[1].connection is only
    assert [pool.open for pool in made] == [False, True]
    kept.close()


def test_nothing_is_kept_of_a_question_that_failed(made: list[Pool]) -> None:
    left: list[asyncio.Task[None]] = []

    async def failing(pool: Any) -> None:
        left.append(asyncio.create_task(asyncio.sleep(600)))
        await asyncio.sleep(0)
        raise BrokerUnavailable("nobody answers")

    kept = KeptPool()
    with pytest.raises(BrokerUnavailable, match="nobody answers"):
        kept.ask(CONNECTION, failing)
    assert left[0].cancelled()
    assert kept.ask(CONNECTION, itself) is made[1]
    assert [pool.open for pool in made] == [False, True]
    kept.close()


def test_a_question_beside_another_one_does_not_wait_for_it(made: list[Pool]) -> None:
    kept = KeptPool()
    begun, end = threading.Event(), threading.Event()

    async def long(pool: Any) -> Any:
        begun.set()
        await asyncio.to_thread(end.wait, 10)
        return pool

    other = threading.Thread(target=kept.ask, args=(CONNECTION, long))
    other.start()
    assert begun.wait(10)
    assert kept.ask(CONNECTION, itself) is made[1]
    assert [pool.open for pool in made] == [True, False]
    end.set()
    other.join()
    assert kept.ask(CONNECTION, itself) is made[0]
    kept.close()


def test_a_caller_inside_a_loop_may_ask(made: list[Pool]) -> None:
    kept = KeptPool()

    async def inside() -> None:
        kept.ask(CONNECTION, itself)
        kept.ask(CONNECTION, itself)
        kept.close()

    asyncio.run(inside())
    assert [pool.open for pool in made] == [False]


def test_a_process_that_was_forked_leaves_the_pool_to_its_parent(
    made: list[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptPool()
    kept.ask(CONNECTION, itself)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert kept.ask(CONNECTION, itself) is made[1]
    kept.close()
    assert [pool.open for pool in made] == [True, False]
    monkeypatch.undo()
    monkeypatch.setattr(kept_pool, "BrokerPool", Pool)
    kept.close()
    assert [pool.open for pool in made] == [False, False]

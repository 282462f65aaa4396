"""Leases between a task and the driver's listener, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from logkeep_engine.limits import NO_LIMITS, UNLIMITED, Budget, Places, RunLimits
from logkeep_engine.spark import link, listener
from logkeep_engine.spark.link import DriverEndpoint, LeasedThrottle, TaskLink
from logkeep_engine.spark.listener import Listener
from logkeep_engine.tasks import PartitionUpdate
from tests.cluster import system
from tests.cluster.process import wait_until

RATE = 4_000_000
LIMITS = RunLimits(RATE, 2)


def ignore(update: PartitionUpdate) -> None:
    pass


def listening(limits: RunLimits = LIMITS, budget: Budget | None = None) -> Listener:
    rate = limits.bytes_per_second
    return Listener(
        "127.0.0.1", ignore, budget or (Budget(rate) if rate is not None else None), limits.readers_per_broker
    )


def endpoint(driver: Listener, limits: RunLimits = LIMITS, tasks: int = 2) -> DriverEndpoint:
    return DriverEndpoint(driver.address, driver.token, limits, tasks)


def closed_endpoint(limits: RunLimits = LIMITS, tasks: int = 2) -> DriverEndpoint:
    (port,) = system.free_ports(1)
    return DriverEndpoint(("127.0.0.1", port), "token", limits, tasks)


def in_threads(*tasks: Callable[[], Awaitable[None]]) -> None:
    """Runs each task in an event loop of its own, until the last one has ended."""

    async def run(task: Callable[[], Awaitable[None]]) -> None:
        await task()

    threads = [threading.Thread(target=lambda task=task: asyncio.run(run(task))) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def moving(place: DriverEndpoint, sizes: list[int]) -> Callable[[], Awaitable[None]]:
    async def task() -> None:
        throttle = LeasedThrottle(place)
        for size in sizes:
            await throttle.pace(size)

    return task


def test_tasks_share_one_rate_and_what_one_leaves_the_others_use() -> None:
    started = time.monotonic()  # the time that passes before the first request is given out later
    with listening() as driver:
        place = endpoint(driver, tasks=30)
        in_threads(moving(place, [100_000] * 60), moving(place, [300_000] * 6), moving(place, [1]))
        seconds = time.monotonic() - started
    assert seconds >= 0.99 * 7_800_000 / RATE, "never faster than the limit"
    assert seconds < 8 * 7_800_000 / RATE, "three of thirty tasks have the whole rate"


def test_a_batch_larger_than_a_grant_is_waited_for_in_parts() -> None:
    started = time.monotonic()
    with listening() as driver:
        in_threads(moving(endpoint(driver), [RATE]))
        assert 0.99 <= time.monotonic() - started < 10


def test_a_task_gives_back_what_it_has_not_moved() -> None:
    budget = Budget(RATE)
    with listening(budget=budget) as driver:
        in_threads(*(moving(endpoint(driver), [1]) for _ in range(10)))
        wait_until(lambda: not budget._asked, 60, "the listener to see them leave")
        _, wait = budget.grant("another")
    assert wait <= 0.2, "ten grants that were not used do not stand in its way"


def test_the_budget_of_a_run_outlives_its_jobs() -> None:
    budget = Budget(RATE)
    started = time.monotonic()
    for _ in range(3):
        with listening(budget=budget) as driver:
            in_threads(moving(endpoint(driver), [RATE // 4]))
    assert time.monotonic() - started >= 0.75


def test_no_more_than_so_many_readers_of_a_broker_over_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: dict[int, int] = {}
    most: dict[int, int] = {}

    class Counted(Places):
        async def enter(self, broker: int) -> None:
            await super().enter(broker)
            inside[broker] = inside.get(broker, 0) + 1
            most[broker] = max(most.get(broker, 0), inside[broker])

        def leave(self, broker: int) -> None:
            inside[broker] -= 1
            super().leave(broker)

    monkeypatch.setattr(listener, "Places", Counted)
    done: list[int] = []

    def reading(place: DriverEndpoint) -> Callable[[], Awaitable[None]]:
        async def task() -> None:
            throttle = LeasedThrottle(place)

            async def piece(number: int) -> None:
                async with throttle.reading(number % 3):
                    await asyncio.sleep(0.01)
                done.append(number)

            await asyncio.gather(*(piece(number) for number in range(30)))

        return task

    with listening() as driver:
        in_threads(*(reading(endpoint(driver)) for _ in range(4)))
        wait_until(lambda: not any(inside.values()), 60, "the last to leave")
    assert len(done) == 120
    assert most == {0: 2, 1: 2, 2: 2}
    assert inside == {0: 0, 1: 0, 2: 0}


def test_a_task_that_dies_or_waits_no_longer_leaves_its_places_to_others() -> None:
    limits = RunLimits(None, 1)
    with listening(limits) as driver, socket.create_connection(driver.address, timeout=30) as dying:
        dying.sendall(driver.token.encode() + b'\n["enter", 0, 7]\n')
        assert json.loads(dying.makefile().readline()) == ["entered", 0]

        async def scenario() -> None:
            throttle = LeasedThrottle(endpoint(driver, limits))

            async def enter() -> None:
                async with throttle.reading(7):
                    pass

            given_up, waiting = asyncio.create_task(enter()), asyncio.create_task(enter())
            await asyncio.sleep(0.2)
            given_up.cancel()
            await asyncio.sleep(0.1)
            assert not waiting.done()
            dying.close()
            await asyncio.wait_for(waiting, 30)
            await asyncio.wait_for(enter(), 30)

        asyncio.run(scenario())


def test_a_task_without_the_driver_keeps_to_its_share_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> float:
        throttle = LeasedThrottle(closed_endpoint(tasks=2))
        started = time.monotonic()
        for _ in range(10):
            await throttle.pace(RATE // 20)
        async with throttle.reading(1):
            pass
        return time.monotonic() - started

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scenario()) >= 0.95, "half a second's bytes at half the rate"
    (record,) = caplog.records
    assert "this task keeps to 2000000 bytes a second and 1 partitions of a broker" in record.getMessage()


def test_a_driver_that_goes_away_leaves_its_tasks_their_share(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> float:
        driver = listening().__enter__()
        throttle = LeasedThrottle(endpoint(driver, tasks=4))
        await throttle.pace(RATE // 10)
        async with throttle.reading(1), throttle.reading(1):
            third = throttle.reading(1)
            blocked = asyncio.create_task(third.__aenter__())
            await asyncio.sleep(0.1)
            assert not blocked.done()
            await asyncio.to_thread(driver.__exit__)
            await asyncio.wait_for(blocked, 30)
            await third.__aexit__(None, None, None)
        started = time.monotonic()
        await throttle.pace(RATE // 2)
        await throttle.pace(RATE // 2)
        return time.monotonic() - started

    with caplog.at_level(logging.WARNING):
        seconds = asyncio.run(scenario())
    assert 2.9 <= seconds < 20, "a second's bytes at a quarter of the rate, less a second of credit"
    assert "the driver cannot be asked about spec.limits" in caplog.text


def test_a_driver_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def scenario() -> None:
            throttle = LeasedThrottle(DriverEndpoint(silent.getsockname(), "token", LIMITS, 2))
            await asyncio.wait_for(throttle.pace(1000), 30)

        asyncio.run(scenario())
    assert "it has not answered for 0 s" in caplog.text


def test_the_driver_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PAUSE_SECONDS", 0.2)

    async def scenario() -> None:
        (port,) = system.free_ports(1)  # which nobody else is given meanwhile
        address = ("127.0.0.1", port)
        budget = Budget(RATE)
        throttle = LeasedThrottle(DriverEndpoint(address, "token", RunLimits(RATE), 2))
        await throttle.pace(1000)
        served = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readline() == b"token\n"
            assert await reader.readline() == listener.line("bytes")
            writer.write(listener.line("bytes", *budget.grant(1)))
            served.set()

        async with await asyncio.start_server(answer, *address):
            await asyncio.sleep(0.3)
            await asyncio.wait_for(throttle.pace(1000), 30)
            assert served.is_set()

    asyncio.run(scenario())


def test_a_cancelled_wait_for_bytes_ends_at_once_and_the_next_one_works() -> None:
    async def scenario() -> None:
        with listening() as driver:
            throttle = LeasedThrottle(endpoint(driver))
            waiting = asyncio.create_task(throttle.pace(100 * RATE))
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, 20)
            await asyncio.wait_for(throttle.pace(RATE // 10), 20)

    asyncio.run(scenario())


@pytest.mark.parametrize("said", ["{}", "[]", '["leave", 3]', '["enter", 1]', '["bytes"', '["other"]', '["done", "x"]'])
def test_the_listener_hangs_up_on_what_it_does_not_know(said: str) -> None:
    with listening() as driver, socket.create_connection(driver.address, timeout=30) as peer:
        peer.sendall(f"{driver.token}\n{said}\n".encode())
        peer.shutdown(socket.SHUT_WR) if said.endswith('"bytes"') else None
        assert peer.recv(1) == b""


def test_without_limits_nobody_is_asked() -> None:
    assert TaskLink(0, closed_endpoint(NO_LIMITS)).throttle is UNLIMITED

    async def scenario() -> None:
        throttle = LeasedThrottle(closed_endpoint(RunLimits(None, None)))
        await throttle.pace(10**12)
        async with throttle.reading(1):
            pass
        assert throttle.fetch_bytes(8 << 20, 4) == 8 << 20

    asyncio.run(asyncio.wait_for(scenario(), 20))

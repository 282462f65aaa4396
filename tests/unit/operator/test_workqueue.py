"""The work queue: never twice at once, soon but not too often, later and later after errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable

from logkeep_operator.workqueue import WorkQueue
from tests.cluster.process import wait_until


def work_until(
    done: Callable[[], bool], queue: WorkQueue[str], work: Callable[[str], float | None], *, keys: str = "a"
) -> None:
    """Work until it is done, and a moment longer, for what should not come."""

    async def main() -> None:
        task = asyncio.create_task(queue.run(work))
        for key in keys:
            queue.add(key)
        await eventually(done)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


async def eventually(done: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, done, 60, "the calls")
    await asyncio.sleep(0.2)


def test_many_adds_become_one_call_and_what_comes_meanwhile_becomes_another() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=2, interval=0.05)
    calls: list[str] = []
    begun = threading.Event()

    def work(key: str) -> None:
        calls.append(key)
        begun.set()
        time.sleep(0.02)

    async def main() -> None:
        task = asyncio.create_task(queue.run(work))
        for _ in range(50):
            queue.add("a")
        await asyncio.to_thread(begun.wait)
        for _ in range(50):
            queue.add("a")
        await eventually(lambda: len(calls) >= 2)
        task.cancel()

    asyncio.run(main())
    assert calls == ["a", "a"]


def test_a_key_is_never_worked_on_twice_at_once_and_workers_are_limited() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=2, interval=0.0)
    lock = threading.Lock()
    running: list[str] = []
    faults: list[list[str]] = []
    done = 0

    def work(key: str) -> float:
        nonlocal done
        with lock:
            running.append(key)
            if len(running) > 2 or running.count(key) > 1:
                faults.append(list(running))
        time.sleep(0.005)
        with lock:
            running.remove(key)
            done += 1
        return 0.0

    work_until(lambda: done >= 40, queue, work, keys="abcd")
    assert faults == []


def test_errors_wait_longer_and_longer_and_a_success_forgets_them() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0, backoff=0.02, backoff_max=0.1)
    calls: list[float] = []

    def work(key: str) -> None:
        calls.append(time.monotonic())
        if len(calls) < 4:
            raise ValueError("not yet")

    work_until(lambda: len(calls) >= 4, queue, work)
    waits = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert len(calls) == 4
    assert waits[0] >= 0.02
    assert waits[1] >= 0.04
    assert waits[2] >= 0.08


def test_work_says_when_to_look_again() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0)
    calls: list[str] = []

    def work(key: str) -> float | None:
        calls.append(key)
        return 0.02 if len(calls) < 3 else None

    work_until(lambda: len(calls) >= 3, queue, work)
    assert calls == ["a", "a", "a"]
    assert len(queue) == 0


def test_own_events_do_not_shorten_the_wait_after_an_error() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0, backoff=0.3, backoff_max=10.0)
    calls: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def work(key: str) -> None:
            calls.append(time.monotonic())
            loop.call_soon_threadsafe(queue.add, key)  # the event of what was written meanwhile
            time.sleep(0.02)
            raise ValueError("refused")

        task = asyncio.create_task(queue.run(work))
        queue.add("a")
        await asyncio.to_thread(wait_until, lambda: len(calls) >= 1, 60, "the first call")
        for _ in range(100):
            queue.add("a")
            await asyncio.sleep(0.01)
        await asyncio.to_thread(wait_until, lambda: len(calls) >= 3, 60, "the calls")
        task.cancel()

    asyncio.run(main())
    waits = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert waits[0] >= 0.3
    assert waits[1] >= 0.6


def test_who_asks_for_something_else_waits_for_no_back_off() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0, backoff=300.0, backoff_max=300.0)
    calls: list[str] = []

    def work(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise ValueError("refused")

    async def main() -> None:
        task = asyncio.create_task(queue.run(work))
        queue.add("a")
        await asyncio.to_thread(wait_until, lambda: len(calls) == 1, 60, "the first call")
        await asyncio.sleep(0.1)
        queue.add("a", again=True)
        await eventually(lambda: len(calls) >= 2)
        task.cancel()

    asyncio.run(main())
    assert calls == ["a", "a"]


def test_timers_that_are_not_over_do_not_wait_for_a_worker() -> None:
    now = 100.0
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0, clock=lambda: now)
    for key in "abc":
        queue.add(key, 30.0)
    queue.add("d")
    assert (len(queue), queue.ready) == (4, 1)
    now = 131.0
    assert queue.ready == 4


def test_slow_work_of_one_group_holds_no_other_and_takes_no_more_than_its_share() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=2, interval=0.0, slow_after=0.1, group=lambda key: key[0])
    release = threading.Event()
    lock = threading.Lock()
    slow: list[str] = []
    quick: list[str] = []

    def work(key: str) -> None:
        with lock:
            (slow if key[0] == "s" else quick).append(key)
        if key[0] == "s":
            release.wait(60)

    async def main() -> None:
        task = asyncio.create_task(queue.run(work))
        try:
            for number in range(6):
                queue.add(f"s{number}")
            await asyncio.to_thread(wait_until, lambda: len(slow) == 2, 60, "the slow ones")
            for number in range(20):
                queue.add(f"q{number}")
            await asyncio.to_thread(wait_until, lambda: len(quick) == 20, 60, "the quick ones")
            assert len(slow) == 2
        finally:
            release.set()
        await asyncio.to_thread(wait_until, lambda: len(slow) == 6, 60, "the other slow ones")
        task.cancel()

    asyncio.run(main())


def test_groups_take_turns_whatever_number_of_keys_they_have() -> None:
    queue: WorkQueue[str] = WorkQueue(workers=1, interval=0.0, group=lambda key: key[0])
    order: list[str] = []

    async def main() -> None:
        for number in range(50):
            queue.add(f"a{number}")
        queue.add("b")
        task = asyncio.create_task(queue.run(order.append))
        await asyncio.to_thread(wait_until, lambda: len(order) == 51, 60, "the calls")
        task.cancel()

    asyncio.run(main())
    assert order.index("b") <= 1

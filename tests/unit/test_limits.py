"""The schedule of bytes and the places at brokers, with a clock of our own."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from logkeep_engine.limits import (
    CREDIT_SECONDS,
    GRANT_SECONDS,
    MIN_FETCH,
    MIN_GRANT,
    NO_LIMITS,
    UNLIMITED,
    Budget,
    Places,
    RunLimits,
    Schedule,
    StaticShare,
)

MB = 1_000_000


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_reserved_one_after_another_takes_the_time_of_its_rate() -> None:
    schedule = Schedule(MB, 0.0)
    assert [schedule.reserve(MB // 2, 0.0) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert schedule.reserve(MB // 2, 1.25) == 0.75, "1.25 of the 2 seconds have passed"


def test_time_that_nobody_used_is_credited_up_to_a_bound() -> None:
    schedule = Schedule(MB, 0.0)
    assert schedule.reserve(int(CREDIT_SECONDS * MB), 3600.0) == 0
    assert schedule.reserve(MB, 3600.0) == 1


def test_nothing_is_credited_at_the_start() -> None:
    assert Schedule(MB, 50.0).reserve(MB, 50.0) == 1


def test_what_is_given_back_is_there_for_others() -> None:
    schedule = Schedule(MB, 0.0)
    schedule.reserve(10 * MB, 0.0)
    schedule.give_back(9 * MB)
    assert schedule.reserve(MB, 0.0) == 2


def test_a_grant_is_the_share_of_one_task_for_a_short_time() -> None:
    clock = Clock()
    budget = Budget(10 * MB, clock)
    size, wait = budget.grant("a")
    assert size == 10 * MB * GRANT_SECONDS
    assert wait == pytest.approx(GRANT_SECONDS)
    assert budget.grant("b")[0] == 10 * MB * GRANT_SECONDS / 2
    assert budget.grant("c")[0] == int(10 * MB * GRANT_SECONDS / 3)


def test_tasks_that_do_not_ask_leave_the_rate_to_the_others() -> None:
    clock = Clock()
    budget = Budget(10 * MB, clock)
    for asker in range(20):
        budget.grant(asker)
    clock.now += 10
    assert budget.grant(0)[0] == 10 * MB * GRANT_SECONDS


def test_grants_have_a_least_size_and_grow_when_there_are_very_many_tasks() -> None:
    assert Budget(65536, Clock()).grant("a")[0] == MIN_GRANT
    budget = Budget(10**9, Clock())
    size = [budget.grant(asker)[0] for asker in range(1000)][-1]
    assert size == 10**9 / 1000, "a second's share: no more than 1000 questions a second"


@dataclass(order=True)
class Event:
    at: float
    number: int
    act: Callable[[], None] = field(compare=False)


class Simulation:
    """Tasks that move bytes as a `Budget` lets them, on a clock of their own."""

    def __init__(self, rate: int, seed: int) -> None:
        self.clock = Clock()
        self.budget = Budget(rate, self.clock)
        self.random = random.Random(seed)
        self.moved: list[tuple[float, int]] = []
        self._events: list[Event] = []
        self._numbers: Iterator[int] = iter(range(10**9))

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, Event(self.clock.now + seconds, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self._events and self._events[0].at <= end:
            event = heapq.heappop(self._events)
            self.clock.now = event.at
            event.act()
        self.clock.now = end

    def task(self, life: float, *, dies: bool = False, pause: float = 0.0) -> None:
        """Moves all it may until its end. Then it gives back what it holds, unless it `dies`."""
        asker, end = object(), self.clock.now + life

        def ask() -> None:
            size, wait = self.budget.grant(asker)
            self.at(wait + self.random.uniform(0, 0.02), lambda: move(size))

        def move(size: int) -> None:
            if self.clock.now >= end:
                if not dies:
                    self.budget.give_back(asker, size)
                return
            self.moved.append((self.clock.now, size))
            self.at(self.random.uniform(0, pause), ask)

        ask()

    def rates(self, first: float, last: float, window: float = 60) -> list[float]:
        """Bytes a second over every `window` seconds that begin between `first` and `last`, a second apart."""
        starts = [first + offset for offset in range(int(last - first) + 1)]
        return [sum(size for at, size in self.moved if start <= at < start + window) / window for start in starts]


@pytest.mark.parametrize("rate", [65536, 10 * MB, 10**9])
@pytest.mark.parametrize("tasks", [1, 2, 7, 40])
def test_tasks_together_keep_the_rate_over_every_minute(rate: int, tasks: int) -> None:
    simulation = Simulation(rate, seed=tasks)
    start = simulation.clock.now
    for _ in range(tasks):
        simulation.task(200)
    simulation.run(180)
    assert all(0.95 * rate < found < 1.05 * rate for found in simulation.rates(start, start + 120))


def test_tasks_that_start_end_and_die_change_nothing_of_the_sum() -> None:
    rate = 10 * MB
    simulation = Simulation(rate, seed=4)
    start = simulation.clock.now

    def another() -> None:
        life = simulation.random.uniform(0.3, 8)
        simulation.task(life, dies=simulation.random.random() < 0.3, pause=simulation.random.choice([0, 0, 0.5]))
        simulation.at(life, another)

    for _ in range(8):
        another()
    simulation.run(180)
    assert all(0.9 * rate < found < 1.05 * rate for found in simulation.rates(start, start + 120))


def test_one_busy_task_among_idle_ones_has_the_whole_rate() -> None:
    rate = 10 * MB
    simulation = Simulation(rate, seed=5)
    for _ in range(30):
        simulation.task(1)
    simulation.run(5)
    start = simulation.clock.now
    simulation.task(100)
    simulation.run(70)
    assert simulation.rates(start, start) == [pytest.approx(rate, rel=0.05)]


def test_places_are_given_in_the_order_of_asking_and_each_broker_has_its_own() -> None:
    async def scenario() -> list[str]:
        places, seen = Places(2), []

        async def reader(name: str, broker: int) -> None:
            await places.enter(broker)
            seen.append(name)

        tasks = [asyncio.create_task(reader(name, int(name[0]))) for name in ("1a", "1b", "1c", "1d", "2a")]
        await asyncio.sleep(0)
        assert seen == ["1a", "1b", "2a"]
        tasks[2].cancel()
        places.leave(1)
        await asyncio.sleep(0.01)
        return seen

    assert asyncio.run(scenario()) == ["1a", "1b", "2a", "1d"]


def test_a_static_share_is_a_fair_part_of_the_limits() -> None:
    share = StaticShare(RunLimits(10 * MB, 16), tasks=5)
    assert (share.rate, share.readers) == (2 * MB, 3)
    assert StaticShare(RunLimits(10 * MB, 2), tasks=5).readers == 1
    assert StaticShare(NO_LIMITS, tasks=5).rate is None


def test_fetches_are_smaller_when_the_rate_is_low() -> None:
    most = 8 << 20
    assert UNLIMITED.fetch_bytes(most, 4) == most
    assert StaticShare(NO_LIMITS, 2).fetch_bytes(most, 4) == most
    assert StaticShare(RunLimits(10**10), 2).fetch_bytes(most, 4) == most
    assert StaticShare(RunLimits(32 * MB), 2).fetch_bytes(most, 4) == 2 * MB
    assert StaticShare(RunLimits(65536), 2).fetch_bytes(most, 16) == MIN_FETCH


def test_a_static_share_keeps_its_rate_and_its_readers() -> None:
    async def scenario() -> tuple[float, int]:
        share = StaticShare(RunLimits(10 * MB, 4), tasks=2)
        loop = asyncio.get_running_loop()
        inside = most = 0

        async def stream() -> None:
            nonlocal inside, most
            async with share.reading(1):
                inside += 1
                most = max(most, inside)
                await share.pace(MB // 2)
                inside -= 1

        started = loop.time()
        await asyncio.gather(*(stream() for _ in range(5)))
        return loop.time() - started, most

    seconds, most = asyncio.run(scenario())
    assert seconds >= 0.49, "2.5 MB at 5 MB a second"
    assert most == 2

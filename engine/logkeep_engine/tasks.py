"""The spreading of work over executors. Nothing here knows what spreads it.

`backup/` and `restore/` plan a list of work items, hand them to a `TaskRunner` and get results while others still run.
The runner of this engine is `spark.runner.SparkRunner`; nothing here imports Spark, so plans and tasks can be read and
tested alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from logkeep_engine.limits import NO_LIMITS, RunLimits, Throttle

W = TypeVar("W")
R = TypeVar("R")

REPORT_SECONDS = 1.0
"""The least time between two reports of a task's progress."""


@dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """The progress of one range of a partition.

    `task` is the number of the range in the run's plan, the one given to `report.Reporter.planned`. `at` is the source
    offset that is reached. `records` and `bytes` are sums since the beginning of the range, so the next update makes a
    lost one good.
    """

    key: str
    partition: int
    task: int
    at: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a part of a run is about to do: about how many `bytes` it moves, in `chunks` that can be worked on at
    the same time. `bytes_per_second` is the limit of the run."""

    chunks: int
    bytes: int
    bytes_per_second: int | None = None


Expect = Callable[[Demand], int]
"""Told what the next tasks will do, before they are made. Answers how many of them will run at once."""


def in_groups(
    items: Iterable[W], size_of: Callable[[W], int], size: int, count: int | None = None
) -> Iterator[list[W]]:
    """Yield the items in groups, in order: of at most `size` together and at most `count`, but at least one."""
    group: list[W] = []
    taken = 0
    for item in items:
        own = size_of(item)
        if group and (taken + own > size or len(group) == count):
            yield group
            group, taken = [], 0
        group.append(item)
        taken += own
    if group:
        yield group


def no_update(update: PartitionUpdate) -> None:
    """Takes an update and does nothing with it."""


class TaskContext(Protocol):
    """The surroundings of a task."""

    @property
    def attempt(self) -> int:
        """The number of this attempt at the work item: 0 for the first in this call of `run`, then rising. No number is
        used twice in one call."""

    @property
    def throttle(self) -> Throttle:
        """The throttle that the task asks before it moves bytes from or to Kafka. It belongs to one event loop."""

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        """Tell the driver how far the task has come: best effort, about once a second. Never raises, never waits for
        long.
        """


class TaskProgress:
    """Tells the driver how far the ranges of a task are, at most once a second."""

    def __init__(self, context: TaskContext, *, after: float = 0.0) -> None:
        """The first update goes out no earlier than `after` seconds from now."""
        self._context = context
        self._due = time.monotonic() + after
        self._updates: dict[int, PartitionUpdate] = {}

    def tell(self, update: PartitionUpdate) -> None:
        """Report an update. The newest update of a range stands for the earlier ones."""
        now = time.monotonic()
        self._updates[update.task] = update
        if now < self._due:
            return
        self._due = now + REPORT_SECONDS
        self._context.report(list(self._updates.values()))
        self._updates.clear()


class TaskRunner(Protocol):
    """Runs a function over work items on executors."""

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        """Run `function(work[i], context)` for every i and return when all are done.

        `limits` hold for all tasks together, through `TaskContext.throttle`, and over several calls with the same ones.

        `function`, work items and results travel by pickle: no secrets in them. `on_result(i, result)` and `on_update`
        are called in the thread that called `run`, while other tasks still run, and `on_result` once for each i.

        A task that raises is tried again elsewhere, a few times, unless its error is one that trying again cannot
        change (`exit_code` other than FAILED). Then the other tasks are cancelled, results that have arrived are
        delivered, and the first error is raised here with its class and message. An exception of `on_result` cancels
        the tasks and passes through.
        """

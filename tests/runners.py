"""Task runners for tests: what a runner is asked to do is one value, so that a test can change a part of it and hand it
on.

    @dataclass
    class Unheard(Runner):
        runner: TaskRunner

        def perform(self, job: Job) -> None:
            replace(job, on_result=lambda index, result: None).on(self.runner)
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from logkeep_engine.limits import NO_LIMITS, UNLIMITED, RunLimits, Throttle
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskRunner

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """The arguments of a call of `tasks.TaskRunner.run`."""

    work: Sequence[Any]
    function: Callable[[Any, TaskContext], Any]
    on_result: Callable[[int, Any], None]
    on_update: Callable[[PartitionUpdate], None]
    limits: RunLimits

    @property
    def name(self) -> str:
        """The name of the function, also of one with its first arguments."""
        return str(getattr(self.function, "func", self.function).__name__)

    def on(self, runner: TaskRunner) -> None:
        """Run it."""
        runner.run(self.work, self.function, self.on_result, self.on_update, self.limits)


class Runner(ABC):
    """A `tasks.TaskRunner`."""

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        self.perform(Job(work, function, on_result, on_update, limits))

    @abstractmethod
    def perform(self, job: Job) -> None:
        """Run the job, or something else in its place."""


@dataclass
class Context:
    """`tasks.TaskContext` of a task in this process."""

    attempt: int = 0
    updates: list[PartitionUpdate] = field(default_factory=list)
    throttle: Throttle = UNLIMITED

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        self.updates.extend(updates)


@dataclass
class HereRunner(Runner):
    """Runs tasks one after another in this process; what travels is pickled as for Spark. `before` is told of each, and
    `ran` has the names of the functions that ran."""

    before: Callable[[Any], None] = lambda work: None
    ran: list[str] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        for index, item in enumerate(job.work):
            self.before(item)
            self.ran.append(job.name)
            action, copied = pickle.loads(pickle.dumps((job.function, item)))
            job.on_result(index, pickle.loads(pickle.dumps(action(copied, Context()))))

"""Tasks that the driver does itself, in processes of its nursery: `TaskRunner` without Spark.

Attempts, limits and progress are those of `spark.runner`, and a task that dies takes no other with it. Only what starts
the processes is another: a JVM, a Python next to it and their imports take several seconds of a processor, which is
more than a small run needs for its work.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from logkeep_engine import interrupt
from logkeep_engine.contract.spark_keys import EXECUTOR_ENV, TASK_MAX_FAILURES
from logkeep_engine.errors import LogkeepError, SparkFailed, SpecError, TaskFailed
from logkeep_engine.limits import NO_LIMITS, RunLimits
from logkeep_engine.spark.attempts import Budgets, Done, Failed
from logkeep_engine.spark.conf import MAX_FAILURES
from logkeep_engine.spark.link import DriverEndpoint
from logkeep_engine.spark.listener import Listener
from logkeep_engine.spark.nursery import Nursery, Raised, Worker
from logkeep_engine.tasks import PartitionUpdate, TaskContext

log = logging.getLogger(__name__)

W = TypeVar("W")
R = TypeVar("R")

POLL_SECONDS = 0.05
_HOST = "127.0.0.1"


class InDriver:
    """A session whose tasks are the driver's own, `slots` at once. Takes of `conf` what is for tasks."""

    def __init__(self, nursery: Nursery, slots: int, conf: Mapping[str, str]) -> None:
        environ = {name.removeprefix(EXECUTOR_ENV): conf[name] for name in conf if name.startswith(EXECUTOR_ENV)}
        self._runner = InDriverRunner(nursery, slots, environ, _max_failures(conf))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    def has_executor(self) -> bool:
        """Return whether an executor has come to run, besides the driver."""
        return False

    def runner(self) -> InDriverRunner:
        """Return the task runner."""
        return self._runner


def _max_failures(conf: Mapping[str, str]) -> int:
    text = conf.get(TASK_MAX_FAILURES, str(MAX_FAILURES)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"{TASK_MAX_FAILURES}: {text!r} is not a number of 1 or more.", hint="Correct spec.spark.conf.")
    return int(text)


class InDriverRunner:
    """Runs work in processes next to this one. Implements `tasks.TaskRunner`. Several calls of `run`, one after
    another, share the processes."""

    def __init__(
        self, nursery: Nursery, slots: int, environ: Mapping[str, str] | None = None, max_failures: int = MAX_FAILURES
    ) -> None:
        self.slots = slots
        self._nursery = nursery
        self._environ = environ or {}
        self._max_failures = max_failures
        self._budgets = Budgets()
        self._idle: list[Worker] = []

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        """See `tasks.TaskRunner.run`. Raises SparkFailed if the process of a task dies again and again."""
        if not work:
            return
        updates: queue.SimpleQueue[PartitionUpdate] = queue.SimpleQueue()
        with Listener(_HOST, updates.put, self._budgets.of(limits), limits.readers_per_broker) as listener:
            endpoint = DriverEndpoint(listener.address, listener.token, limits, self.slots)
            job = _Job(function, work, endpoint, self._max_failures, self._idle)
            try:
                while job.unfinished:
                    self._fill(job)
                    job.wait()
                    while not updates.empty():
                        on_update(updates.get_nowait())
                    self._deliver(job, on_result)
                    interrupt.check()
                while not updates.empty():
                    on_update(updates.get_nowait())
            finally:
                job.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._idle:
            worker.dismiss()
        self._idle.clear()

    def _fill(self, job: _Job) -> None:
        while job.waiting and len(job.busy) < self.slots:
            job.begin(self._idle.pop() if self._idle else self._nursery.worker(self._environ))

    @staticmethod
    def _deliver(job: _Job, on_result: Callable[[int, Any], None]) -> None:
        """Hand over all results that have arrived. Then raise the first failure among them, if there is one."""
        failure: LogkeepError | None = None
        arrived, job.arrived = job.arrived, []
        for outcome in arrived:
            if isinstance(outcome, Done):
                on_result(outcome.index, outcome.value)
            elif failure is None:
                if isinstance(outcome.error, TaskFailed):
                    log.error("task %d failed: %s\n%s", outcome.index, outcome.error, outcome.trace)
                failure = outcome.error
        if failure is not None:
            raise failure


class _Job:
    """The tasks of one call: those that wait, those that a worker has, and outcomes that have not been taken yet."""

    def __init__(
        self,
        function: Callable[..., Any],
        work: Sequence[Any],
        endpoint: DriverEndpoint,
        max_failures: int,
        idle: list[Worker],
    ) -> None:
        """`idle` takes the workers that have done a task."""
        self.waiting = deque(range(len(work)))
        self.busy: dict[Worker, int] = {}
        self.arrived: list[Done | Failed] = []
        self._function = function
        self._work = work
        self._endpoint = endpoint
        self._max_failures = max_failures
        self._attempts = [0] * len(work)
        self._idle = idle
        self._selector = selectors.DefaultSelector()

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.busy)

    def begin(self, worker: Worker) -> None:
        """Give the next task to a worker."""
        index = self.waiting.popleft()
        self.busy[worker] = index
        self._selector.register(worker, selectors.EVENT_READ)
        attempt, self._attempts[index] = self._attempts[index], self._attempts[index] + 1
        worker.give((self._function, self._endpoint, index, self._work[index], attempt, self._max_failures))

    def wait(self) -> None:
        """Wait a moment for workers that have something to report, and take it."""
        for key, _ in self._selector.select(POLL_SECONDS):
            worker: Any = key.fileobj
            self._selector.unregister(worker)
            index = self.busy.pop(worker)
            try:
                reported = worker.take()
            except (EOFError, ConnectionError):
                self._died(index, worker.end())
                continue
            self._idle.append(worker)
            if isinstance(reported, Raised):
                log.warning("attempt %d of task %d failed: %s", self._attempts[index], index, reported.text)
                self.waiting.appendleft(index)
            else:
                self.arrived.append(reported)

    def _died(self, index: int, how: str) -> None:
        tried = self._attempts[index]
        log.warning("attempt %d of task %d failed: its process ended with %s", tried, index, how)
        if tried < self._max_failures:
            self.waiting.appendleft(index)
            return
        error = SparkFailed(
            f"A task failed {tried} times: its process ended with {how}.",
            hint="The run can be tried again. If it is short of memory, see spec.spark.driver.memory.",
        )
        self.arrived.append(Failed(index, error, ""))

    def close(self) -> None:
        """End the workers that have a task, so that nothing of this job still writes. Never raises: what has led here
        matters more."""
        for worker in self.busy:
            with contextlib.suppress(SparkFailed):  # the nursery has died, and they with it
                worker.end()
        self.busy.clear()
        self._selector.close()

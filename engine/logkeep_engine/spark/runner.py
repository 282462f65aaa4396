"""`TaskRunner` on a SparkContext: one work item a Spark task.

- A task's outcome reaches the driver when the task ends, through an accumulator, so the driver can commit while others
  run.
- What a task has done so far travels over TCP to a listener of the driver (`spark.listener`). Python accumulators
  cannot do that, they arrive at the end only. A lost message or connection never fails a task. The same way tasks lease
  their part of what the run may ask of the cluster.
- An attempt (`spark.attempts`) hands over as a value what must not be tried again: Spark tries four times what a task
  raises.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark import SparkContext
from pyspark import TaskContext as SparkTaskContext
from pyspark.accumulators import AccumulatorParam

from logkeep_engine import interrupt
from logkeep_engine.errors import LogkeepError, SparkFailed, TaskFailed
from logkeep_engine.limits import NO_LIMITS, RunLimits
from logkeep_engine.spark.attempts import Budgets, Done, Outcome, attempted
from logkeep_engine.spark.conf import MAX_FAILURES
from logkeep_engine.spark.link import DriverEndpoint
from logkeep_engine.spark.listener import Listener
from logkeep_engine.tasks import PartitionUpdate, TaskContext

log = logging.getLogger(__name__)

W = TypeVar("W")
R = TypeVar("R")

POLL_SECONDS = 0.05
CANCEL_WAIT_SECONDS = 20.0


class _OutcomeList(AccumulatorParam[list[Outcome]]):
    def zero(self, value: list[Outcome]) -> list[Outcome]:
        return []

    def addInPlace(self, value1: list[Outcome], value2: list[Outcome]) -> list[Outcome]:  # noqa: N802
        value1.extend(value2)
        return value1


class SparkRunner:
    """Runs work on the executors of `sc`. Implements `tasks.TaskRunner`. Several calls of `run`, one after another,
    share one context."""

    def __init__(self, sc: SparkContext) -> None:
        self._sc = sc
        self._max_failures = int(sc.getConf().get("spark.task.maxFailures", str(MAX_FAILURES)) or MAX_FAILURES)
        self._host = (sc.getConf().get("spark.driver.host") or "127.0.0.1").strip("[]")
        self._budgets = Budgets()

    @property
    def slots(self) -> int:
        """The configured number of executor cores: this many tasks run at once when all executors are there."""
        conf = self._sc.getConf()
        instances, cores = conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
        if instances and not (conf.get("spark.master") or "").startswith("local"):
            return int(instances) * int(cores or 1)
        return max(1, int(self._sc.defaultParallelism))

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        """See `tasks.TaskRunner.run`. Raises SparkFailed if Spark itself gives up."""
        if not work:
            return
        updates: queue.SimpleQueue[PartitionUpdate] = queue.SimpleQueue()
        outcomes = self._sc.accumulator([], _OutcomeList())
        with Listener(self._host, updates.put, self._budgets.of(limits), limits.readers_per_broker) as listener:
            endpoint = DriverEndpoint(listener.address, listener.token, limits, self.slots)
            task = _Task(function, endpoint, self._max_failures, outcomes)
            job = _SparkJob(self._sc, list(enumerate(work)), task)
            job.start()
            try:
                self._follow(job, outcomes.value, len(work), updates, on_result, on_update)
            finally:
                if not job.ended.is_set():
                    job.cancel()

    def _follow(
        self,
        job: _SparkJob,
        arrived: list[Outcome],
        total: int,
        updates: queue.SimpleQueue[PartitionUpdate],
        on_result: Callable[[int, Any], None],
        on_update: Callable[[PartitionUpdate], None],
    ) -> None:
        seen: set[int] = set()
        failure: LogkeepError | None = None
        while True:
            ended = job.ended.is_set()  # read before the outcomes: what came before the end is then among them
            failure = self._deliver(arrived, seen, on_result) or failure
            if failure is not None:
                raise failure
            with contextlib.suppress(queue.Empty):
                while True:
                    on_update(updates.get_nowait())
            if ended:
                break
            job.ended.wait(POLL_SECONDS)
            interrupt.check()
        if job.error is not None:
            raise job.error
        if len(seen) != total:
            raise SparkFailed(f"Spark ended a job of {total} tasks with {len(seen)} results.", hint="Run it again.")

    @staticmethod
    def _deliver(arrived: list[Outcome], seen: set[int], on_result: Callable[[int, Any], None]) -> LogkeepError | None:
        """Hand over all results that have arrived. Then return the first failure among them, if there is one."""
        count = len(arrived)  # the accumulator's thread appends at the end meanwhile
        fresh = arrived[:count]
        del arrived[:count]
        failure: LogkeepError | None = None
        for outcome in fresh:
            if outcome.index in seen:
                continue
            seen.add(outcome.index)
            if isinstance(outcome, Done):
                on_result(outcome.index, outcome.value)
            elif failure is None:
                if isinstance(outcome.error, TaskFailed):
                    log.error("task %d failed: %s\n%s", outcome.index, outcome.error, outcome.trace)
                failure = outcome.error
        return failure


class _SparkJob:
    """One Spark job in a thread of its own: the thread that called `run` stays free to commit and to be interrupted."""

    def __init__(self, sc: SparkContext, items: list[tuple[int, Any]], task: _Task[Any, Any]) -> None:
        self._sc = sc
        self._items = items
        self._task = task
        self._group = f"logkeep-{uuid.uuid4().hex}"
        # A daemon: a job that cannot be cancelled must not keep the driver from ending.
        self._thread = threading.Thread(target=self._run, name="logkeep-spark-job", daemon=True)
        self.ended = threading.Event()
        self.error: SparkFailed | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._sc.setJobGroup(self._group, "logkeep", interruptOnCancel=False)
            self._sc.parallelize(self._items, len(self._items)).foreachPartition(self._task)
        except Exception as error:
            self.error = SparkFailed(
                f"Spark gave up: {_cause(error)}", hint="The executors' logs say more; the run can be tried again."
            )
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """Stop the tasks and wait until they are gone, so that nothing of this run still writes."""
        until = time.monotonic() + CANCEL_WAIT_SECONDS
        while not self.ended.is_set() and time.monotonic() < until:
            # Cancelling a group whose job is not submitted yet does nothing: do it again until the job ends.
            try:
                self._sc.cancelJobGroup(self._group)
            except Exception as error:
                log.warning("the Spark job could not be cancelled: %s", _cause(error))
                return
            self.ended.wait(1.0)


def _cause(error: Exception) -> str:
    """Return the line of a Java exception that means something to a reader."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "ExecutorLostFailure" in line or "Most recent failure" in line:
            return line[:500]
    return (lines[0] if lines else type(error).__name__)[:500]


@dataclass
class _Task(Generic[W, R]):
    """The task that Spark sends to the executors. It holds no secrets."""

    function: Callable[[W, TaskContext], R]
    endpoint: DriverEndpoint
    max_failures: int
    outcomes: Any

    def __call__(self, items: Iterable[tuple[int, W]]) -> None:
        spark = SparkTaskContext.get()
        attempt = spark.attemptNumber() if spark is not None else 0
        for index, item in items:
            found = attempted(self.function, self.endpoint, index, item, attempt, self.max_failures)
            self.outcomes.add([found])

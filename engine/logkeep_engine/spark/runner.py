"""`TaskRunner` on a SparkContext: one work item a Spark task.

- A task's outcome reaches the driver when the task ends, through an accumulator, so the driver can commit while others
  run.
- What a task has done so far travels over TCP to a listener of the driver. Python accumulators cannot do that, they
  arrive at the end only. A lost message or connection never fails a task.
- An error that trying again cannot change is handed over as a value: raised in the task, Spark would try it four times.
  The same holds for the last attempt of any other error, so that its class and message survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark import SparkContext
from pyspark import TaskContext as SparkTaskContext
from pyspark.accumulators import AccumulatorParam

from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import LogkeepError, SparkFailed, TaskFailed
from logkeep_engine.tasks import PartitionUpdate, TaskContext

log = logging.getLogger(__name__)

W = TypeVar("W")
R = TypeVar("R")

POLL_SECONDS = 0.05
DEFAULT_MAX_FAILURES = 4
CANCEL_WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class _Done:
    index: int
    value: Any


@dataclass(frozen=True)
class _Failed:
    index: int
    error: LogkeepError
    trace: str


_Outcome = _Done | _Failed


class _OutcomeList(AccumulatorParam[list[_Outcome]]):
    def zero(self, value: list[_Outcome]) -> list[_Outcome]:
        return []

    def addInPlace(self, value1: list[_Outcome], value2: list[_Outcome]) -> list[_Outcome]:  # noqa: N802
        value1.extend(value2)
        return value1


class SparkRunner:
    """Runs work on the executors of `sc`. Implements `tasks.TaskRunner`; several `run`s one after another share one
    context.
    """

    def __init__(self, sc: SparkContext) -> None:
        self._sc = sc
        self._max_failures = int(
            sc.getConf().get("spark.task.maxFailures", str(DEFAULT_MAX_FAILURES)) or DEFAULT_MAX_FAILURES
        )
        self._host = sc.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"

    @property
    def slots(self) -> int:
        """Executor cores as configured: how many tasks run at once when all executors are there."""
        return max(1, int(self._sc.defaultParallelism))

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
    ) -> None:
        """See `tasks.TaskRunner.run`. Raises SparkFailed if Spark itself gives up."""
        if not work:
            return
        updates: queue.SimpleQueue[PartitionUpdate] = queue.SimpleQueue()
        outcomes = self._sc.accumulator([], _OutcomeList())
        with _Listener(self._host, updates.put) as listener:
            task = _Task(function, listener.address, listener.token, self._max_failures, outcomes)
            job = _Job(self._sc, list(enumerate(work)), task)
            job.start()
            try:
                self._follow(job, outcomes.value, len(work), updates, on_result, on_update)
            finally:
                if not job.ended.is_set():
                    job.cancel()

    def _follow(
        self,
        job: _Job,
        arrived: list[_Outcome],
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
        if job.error is not None:
            raise job.error
        if len(seen) != total:
            raise SparkFailed(f"Spark ended a job of {total} tasks with {len(seen)} results.", hint="Run it again.")

    @staticmethod
    def _deliver(arrived: list[_Outcome], seen: set[int], on_result: Callable[[int, Any], None]) -> LogkeepError | None:
        """Hand over all results that have arrived; the first failure among them, if any, is returned after that."""
        count = len(arrived)  # the accumulator's thread appends at the end meanwhile
        fresh = arrived[:count]
        del arrived[:count]
        failure: LogkeepError | None = None
        for outcome in fresh:
            if outcome.index in seen:
                continue
            seen.add(outcome.index)
            if isinstance(outcome, _Done):
                on_result(outcome.index, outcome.value)
            elif failure is None:
                if isinstance(outcome.error, TaskFailed):
                    log.error("task %d failed: %s\n%s", outcome.index, outcome.error, outcome.trace)
                failure = outcome.error
        return failure


class _Job:
    """One Spark job in a thread of its own: the thread that called `run` stays free to commit and to be interrupted."""

    def __init__(self, sc: SparkContext, items: list[tuple[int, Any]], task: _Task[Any, Any]) -> None:
        self._sc = sc
        self._items = items
        self._task = task
        self._group = f"logkeep-{uuid.uuid4().hex}"
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
    """The line of a Java exception that a reader can use."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "ExecutorLostFailure" in line or "Most recent failure" in line:
            return line[:500]
    return (lines[0] if lines else type(error).__name__)[:500]


@dataclass
class _Task(Generic[W, R]):
    """What Spark sends to the executors. Holds no secrets: `token` only lets a task talk to this run's progress
    listener.
    """

    function: Callable[[W, TaskContext], R]
    address: tuple[str, int]
    token: str
    max_failures: int
    outcomes: Any

    def __call__(self, items: Iterable[tuple[int, W]]) -> None:
        spark = SparkTaskContext.get()
        attempt = spark.attemptNumber() if spark is not None else 0
        for index, item in items:
            self.outcomes.add([self._attempt(index, item, attempt)])

    def _attempt(self, index: int, item: W, attempt: int) -> _Outcome:
        context = _Context(attempt, self.address, self.token)
        try:
            return _Done(index, self.function(item, context))
        except LogkeepError as error:
            if error.exit_code == ExitCode.FAILED and attempt + 1 < self.max_failures:
                raise
            return _Failed(index, error, traceback.format_exc())
        except Exception as error:
            if attempt + 1 < self.max_failures:
                raise
            wrapped = TaskFailed(f"{type(error).__name__}: {error}", hint="The driver's log has the traceback.")
            return _Failed(index, wrapped, traceback.format_exc())
        finally:
            context.close()


@dataclass
class _Context:
    """`tasks.TaskContext` inside an executor."""

    attempt: int
    address: tuple[str, int]
    token: str
    _socket: socket.socket | None = None
    _retry_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    CONNECT_SECONDS = 1.0
    PAUSE_SECONDS = 15.0

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        with self._lock:
            if not updates or time.monotonic() < self._retry_at:
                return
            lines = [json.dumps([u.key, u.partition, u.task, u.at, u.records, u.bytes]) for u in updates]
            try:
                if self._socket is None:
                    self._socket = socket.create_connection(self.address, timeout=self.CONNECT_SECONDS)
                    lines.insert(0, self.token)
                self._socket.sendall(("\n".join(lines) + "\n").encode())
            except OSError:
                self._drop()
                self._retry_at = time.monotonic() + self.PAUSE_SECONDS

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


class _Listener:
    """Takes progress lines from tasks: the token first, then one JSON array an update. Anything else is hung up on."""

    def __init__(self, host: str, on_update: Callable[[PartitionUpdate], None]) -> None:
        self.token = secrets.token_hex(16)
        self.address = (host, 0)
        self._host = host
        self._on_update = on_update
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="logkeep-progress", daemon=True)
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Listener:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, 0), family=family, backlog=512)
        self.address = (self._host, self._socket.getsockname()[1])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._talk, sock=self._socket))
            self._loop.run_forever()
            server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            token = await asyncio.wait_for(reader.readline(), timeout=10)
            if not hmac.compare_digest(token.strip(), self.token.encode()):
                return
            while line := await reader.readline():
                key, partition, task, at, records, size = json.loads(line)
                self._on_update(PartitionUpdate(str(key), int(partition), int(task), int(at), int(records), int(size)))
        except (OSError, ValueError, TypeError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

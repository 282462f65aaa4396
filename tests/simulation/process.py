"""Processes of a run, in this one: a driver and its tasks, each of which can die at any call it makes.

    with product(driver, store, limits):
        run_backup(request, spec, lambda: TaskThreads(driver, ...), reporter, {})

A process that is dead does nothing any more: every call of it to the store or to a broker raises `Killed`, which no
product code catches. So what a kill leaves behind is exactly what was written.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest.mock import patch

from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.writer import Timing
from logkeep_engine.archive.maintenance.bundling import bundle_old_commits
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka import brokers
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from tests.runners import Context, Job, Runner

WATCH = Timing(heartbeat=3600, watch=0.02, poll=0.01)
SMALL = 600  # bytes
HOUR = 3_600_000
TASK_TRIES = 4  # as spark.task.maxFailures


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Process:
    """`steps` calls to the store and to brokers may be made, then it dies: before the last of them if `before`. With
    `lives_on` it is only thought to be dead: it is done again elsewhere, and continues."""

    name: str
    steps: int | None = None
    before: bool = False
    parent: Process | None = None
    lives_on: bool = False
    dead: bool = False
    ended: threading.Event = field(default_factory=threading.Event)  # or given up for lost
    on_death: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def alive(self) -> None:
        """Raises Killed if it is dead."""
        if self.dead or (self.parent is not None and self.parent.dead):
            raise Killed(self.name)

    def begin(self) -> None:
        """One more call begins."""
        self.alive()
        with self._lock:
            if self.steps is None:
                return
            self.steps -= 1
            dies = self.steps <= 0 and self.before
        if dies:
            self.kill()

    def end(self) -> None:
        """The call has done what it does."""
        if self.steps is not None and self.steps <= 0:
            self.kill()
        self.alive()

    def kill(self) -> None:
        if self.lives_on:
            self.steps = None
            self.ended.set()
            return
        self.dead = True
        self.on_death()
        raise Killed(self.name)


class _Current(threading.local):
    process: Process | None = None


_current = _Current()
_driver: list[Process] = []


def current() -> Process:
    """The process of this thread: a task's, else the driver."""
    return _current.process or _driver[-1]


class TaskThreads(Runner):
    """A `tasks.TaskRunner`. `deaths`: after how many calls the next attempts of tasks die, or are thought to be dead if
    the number is negative; None lives."""

    def __init__(self, driver: Process, deaths: list[int | None], threads: int = 1) -> None:
        self._driver = driver
        self._lost: list[threading.Thread] = []
        self._deaths = deaths
        self._threads = threads

    def perform(self, job: Job) -> None:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="task") as pool:
            waiting = {
                pool.submit(self._attempts, pickle.dumps((job.function, work))): index
                for index, work in enumerate(job.work)
            }
            failure: BaseException | None = None
            while waiting:
                done: set[Future[Any]] = wait(waiting, return_when=FIRST_COMPLETED).done
                for future in sorted(done, key=lambda one: waiting[one]):
                    index = waiting.pop(future)
                    if future.cancelled():
                        continue
                    error = future.exception()
                    if error is None:
                        try:
                            job.on_result(index, pickle.loads(pickle.dumps(future.result())))
                            continue
                        except BaseException as problem:
                            error = problem
                    if failure is None:
                        failure = error
                        for other in waiting:
                            other.cancel()
            self._driver.alive()
            if failure is not None:
                raise failure

    def join(self) -> None:
        """Wait for tasks that were thought to be dead."""
        for thread in self._lost:
            thread.join()

    def _attempts(self, job: bytes) -> Any:
        for attempt in range(TASK_TRIES):
            death = self._deaths.pop() if self._deaths else None
            lives_on = death is not None and death < 0
            process = Process("task", None if death is None else abs(death), parent=self._driver, lives_on=lives_on)
            done: Future[Any] = Future()
            thread = threading.Thread(target=_run_task, args=(process, job, attempt, done), daemon=True)
            thread.start()
            process.ended.wait()
            if not done.done():  # another one is started beside it
                self._lost.append(thread)
                continue
            error = done.exception()
            if error is None:
                return done.result()
            self._driver.alive()
            if attempt < TASK_TRIES - 1:
                if process.dead or (isinstance(error, LogkeepError) and error.exit_code is ExitCode.FAILED):
                    continue
            elif process.dead:
                break
            raise error
        raise LogkeepError("A task was lost too often.")


def _run_task(process: Process, job: bytes, attempt: int, done: Future[Any]) -> None:
    _current.process = process
    try:
        function, work = pickle.loads(job)
        done.set_result(function(work, Context(attempt)))
    except BaseException as error:
        done.set_exception(error)
    finally:
        process.ended.set()


@contextmanager
def product(driver: Process, open_storage: Callable[..., Any], limits: Limits) -> Iterator[None]:
    """The product's own code, with the storage and the limits of a simulation, as this process."""

    def connect(spec: ClusterSpec, environ: Any = None) -> KafkaConnection:
        return replace(connection_from(spec, {}), limits=limits)

    post = brokers.BrokerPool.post

    async def posted(pool: brokers.BrokerPool, node: int, lane: int, call: Any) -> Awaitable[Any]:
        process = current()
        process.begin()
        answer = await post(pool, node, lane, call)
        try:
            process.end()
        except Killed:
            cast(Coroutine[Any, Any, Any], answer).close()
            raise
        return answer

    _driver.append(driver)
    try:
        with (
            patch("logkeep_engine.backup.run.backup_run.open_storage", open_storage),
            patch("logkeep_engine.restore.model.state.open_storage", open_storage),
            patch("logkeep_engine.backup.run.backup_run.connection_from", connect),
            patch("logkeep_engine.restore.run.restoring.connection_from", connect),
            patch.object(brokers.BrokerPool, "post", posted),
            # Small enough that a topic of some dozens of records has several chunks and several batches.
            patch("logkeep_engine.backup.planning.plan_builder.CHUNK_BYTES", SMALL),
            patch("logkeep_engine.backup.planning.plan_builder.MIN_CHUNK_OFFSETS", 8),
            patch("logkeep_engine.restore.streams.merge.MERGED_BYTES", SMALL),
            # Each run moves commits into bundles, and the next removes them.
            patch("logkeep_engine.archiving.bundle_old_commits", partial(bundle_old_commits, rest=-HOUR)),
            patch("logkeep_engine.archive.catalog.writer.CheckpointPolicy", partial(CheckpointPolicy, min_bytes=1)),
        ):
            yield
    finally:
        _driver.pop()


def quiet_deaths() -> None:
    """Threads and loops of killed processes end without a word."""
    report = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not Killed:
            report(args)

    threading.excepthook = hook


__all__ = ["Killed", "Process", "TaskThreads", "current", "product", "quiet_deaths"]

"""The engine as the benchmark calls it: whole runs of `backup/` and `restore/` over a task runner that keeps time.

Only this module knows how to call runs and tasks of the engine. It names tasks by their functions, so a run with other
kinds of tasks is measured all the same.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from logkeep_engine.collector import paused
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.limits import NO_LIMITS, UNLIMITED, RunLimits, Throttle
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import PartitionUpdate, TaskContext

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

W = TypeVar("W")
R = TypeVar("R")

SUFFIX = "-restored"


@dataclass(frozen=True, slots=True)
class TaskTime:
    """One task: its function, wall and CPU seconds (user and system, all threads of its process)."""

    function: str
    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Context:
    """`tasks.TaskContext` of a task whose reports nobody reads."""

    attempt: int = 0
    throttle: Throttle = UNLIMITED

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        """Take the updates, as the accumulator of a driver does."""


def function_name(function: Callable[..., Any]) -> str:
    """The name of a task's function, also of one with arguments bound."""
    return str(getattr(getattr(function, "func", function), "__name__", "task"))


def timed(function: Callable[[W, TaskContext], R], item: W) -> tuple[R, TaskTime]:
    """Run one task here and say what it took."""
    started, used = time.perf_counter(), cpu_seconds()
    result = function(item, Context())
    return result, TaskTime(function_name(function), time.perf_counter() - started, cpu_seconds() - used)


def cpu_seconds() -> float:
    """User and system seconds of this process and its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass
class ClockedRunner:
    """A `tasks.TaskRunner`: one task after the other in this process, or `processes` at once in processes of theirs.

    `spans` holds the wall seconds of each `run` by function, `times` every task. Processes are started before the
    clock of their first run.
    """

    processes: int = 1
    times: list[TaskTime] = field(default_factory=list)
    spans: dict[str, float] = field(default_factory=dict)
    _pool: ProcessPoolExecutor | None = None

    def run(
        self,
        work: Sequence[W],
        function: Callable[[W, TaskContext], R],
        on_result: Callable[[int, R], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        """Run the work like `tasks.TaskRunner.run`, without retries and without limits."""
        pool = self.warm_up()
        started = time.perf_counter()
        if pool is None:
            for index, item in enumerate(work):
                result, taken = timed(function, item)
                self.times.append(taken)
                on_result(index, result)
        else:
            done: SimpleQueue[tuple[int, Future[tuple[R, TaskTime]]]] = SimpleQueue()
            for index, item in enumerate(work):
                pool.submit(timed, function, item).add_done_callback(partial(_put, done, index))
            for _ in work:
                index, task = done.get()
                result, taken = task.result()
                self.times.append(taken)
                on_result(index, result)
        name = function_name(function)
        self.spans[name] = self.spans.get(name, 0.0) + time.perf_counter() - started

    def warm_up(self) -> ProcessPoolExecutor | None:
        """Start the processes, if there are to be more than this one. What they have imported rests, as in Spark's
        workers (`spark/daemon.py`): the collector does not walk it again and again."""
        gc.freeze()
        if self.processes > 1 and self._pool is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(self.processes, mp_context=multiprocessing.get_context("spawn"))
            list(self._pool.map(_warm, range(self.processes * 4)))
        return self._pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown()


def _put(queue: SimpleQueue[tuple[int, Any]], index: int, task: Future[Any]) -> None:
    queue.put((index, task))


def _warm(_: int) -> None:
    import logkeep_engine.backup.run.backup_run
    import logkeep_engine.restore.run.entry  # noqa: F401 (imported by the first task otherwise)

    gc.freeze()
    time.sleep(0.2)


def backup_spec(bootstrap: str, topic: str, storage: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """The spec of a KafkaBackup of one topic, and of nothing that a format would bring along."""
    from logkeep_engine.backup.model.selection import AVRO_INTERNAL_TOPICS  # a measured process does without it

    cluster = {"bootstrapServers": [bootstrap]}
    topics = {"include": [re.escape(topic)], "exclude": sorted(AVRO_INTERNAL_TOPICS)}
    return {"cluster": cluster, "topics": topics, "storage": dict(storage), **more}


def restore_spec(bootstrap: str, storage: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """The spec of a KafkaRestore of a whole archive, topics renamed with SUFFIX."""
    rename = [{"from": "(.*)", "to": rf"\1{SUFFIX}"}]
    cluster = {"bootstrapServers": [bootstrap]}
    return {"cluster": cluster, "source": {"storage": dict(storage)}, "topics": {"rename": rename}, **more}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: `spans` and `times` as the runner has them, `wall` from its beginning to its end."""

    records: int
    bytes: int
    wall: float
    spans: Mapping[str, float]
    times: Sequence[TaskTime]


def run_in_process(kind: str, spec: Mapping[str, Any], processes: int = 1, *, one_piece: bool = False) -> Outcome:
    """A whole run with its tasks in this process, or in `processes` of them.

    `one_piece`: every partition is one task's work, however large. Raises RuntimeError if the run fails.
    """
    runner = ClockedRunner(processes)
    spec = {**spec, "spark": {"executor": {"instances": processes}}}
    request = RunRequest(kind=kind, name="bench", namespace="", run_id=f"bench-{os.getpid()}", spec=spec)
    run = _backup(request, one_piece) if kind == "KafkaBackup" else _restore(request)
    runner.warm_up()
    reporter = Reporter(request.run_id)
    started = time.perf_counter()
    try:
        result = run(runner, reporter)
        wall = time.perf_counter() - started
    finally:
        reporter.close()
        runner.close()
    return _outcome(result, wall, runner)


def convert_in_process(source: str, target: str, format_name: str) -> Outcome:
    """A whole conversion of the archive at `source` with its tasks in this process. Raises RuntimeError if it fails."""
    from logkeep_engine.contract.archive_format import FormatName
    from logkeep_engine.convert.run import ConvertOptions, run_convert
    from logkeep_engine.convert.source import archive_source
    from logkeep_engine.storage import open_uri

    runner = ClockedRunner()
    reporter = Reporter(f"bench-{os.getpid()}")
    started = time.perf_counter()
    try:
        done = run_convert(
            reporter.run_id,
            lambda _, __: archive_source(open_uri(source)),
            open_uri(target),
            ConvertOptions(FormatName(format_name)),
            lambda: runner,
            reporter,
        )
        wall = time.perf_counter() - started
    finally:
        reporter.close()
    return _outcome(done.result, wall, runner)


def decode(bootstrap: str, topic: str, ends: Sequence[int]) -> int:
    """Read a topic as a backup does, take every record apart and drop it; returns how many there were."""
    return asyncio.run(_decode(bootstrap, topic, ends))


async def _decode(bootstrap: str, topic: str, ends: Sequence[int]) -> int:
    from logkeep_engine.backup.pieces.task import FETCH_BYTES
    from logkeep_engine.contract.cluster import ClusterSpec
    from logkeep_engine.kafka.client import RawClient
    from logkeep_engine.kafka.connection import connection_from
    from logkeep_engine.log.batch import walk_checked
    from logkeep_engine.log.codec import decode_slices

    def take(data: memoryview, end: int) -> int:
        return sum(
            len(records)
            for position, header in walk_checked(data, end)
            if not header.is_control
            for records in decode_slices(data[position : position + header.size], header)
        )

    seen = 0
    cluster = ClusterSpec.model_validate({"bootstrapServers": [bootstrap]})
    loop = asyncio.get_running_loop()
    # One thread takes apart while this one receives: more would only wait for each other.
    with ThreadPoolExecutor(1) as decoder:
        async with RawClient(connection_from(cluster)) as client:

            async def partition(number: int, end: int) -> None:
                nonlocal seen
                async for fetched in client.stream(topic, number, 0, end, max_bytes=FETCH_BYTES // len(ends)):
                    taken = await loop.run_in_executor(decoder, take, fetched.data, end)
                    seen += taken
                    fetched.release()

            await asyncio.gather(*(partition(number, end) for number, end in enumerate(ends) if end))
    return seen


def _backup(request: RunRequest, one_piece: bool) -> Callable[[ClockedRunner, Reporter], RunResult]:
    with paused():  # as the driver does
        from logkeep_engine.backup.planning import planner  # each side alone: its imports count in its memory
        from logkeep_engine.backup.run.backup_run import run_backup

        spec = parse_backup(request.spec)
    if one_piece:
        vars(planner)["make_plan"] = _whole_partitions(vars(planner)["make_plan"])
        vars(planner)["balance"] = lambda plan, *_: plan
    return lambda runner, reporter: run_backup(request, spec, lambda: runner, reporter, os.environ)


def _restore(request: RunRequest) -> Callable[[ClockedRunner, Reporter], RunResult]:
    with paused():
        from logkeep_engine.contract.restore_spec import parse_restore
        from logkeep_engine.restore.run.entry import run_of

        spec = parse_restore(request.spec)
    return lambda runner, reporter: run_of(request, spec, lambda: runner, reporter, os.environ).perform_or_raise()


def _whole_partitions(make_plan: Callable[..., Any]) -> Callable[..., Any]:
    def planned(*arguments: Any, **named: Any) -> Any:
        return make_plan(*arguments, **{**named, "chunk_bytes": 1 << 50})

    return planned


def _outcome(result: RunResult, wall: float, runner: ClockedRunner) -> Outcome:
    if result.outcome != "Succeeded":
        raise RuntimeError(f"{result.kind} {result.outcome}: {result.message}")
    return Outcome(result.records, result.bytes, wall, runner.spans, runner.times)

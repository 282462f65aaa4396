"""Drivers of runs as processes that can be killed: the product's own code behind a runner that needs no Java.

They are forked from a process that has imported everything and done nothing, so a driver starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import pickle
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from logkeep_engine.archive.catalog import run_note
from logkeep_engine.archive.catalog.writer import Timing
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.restore.claim import takeover
from tests.runners import Context, Job, Runner

TASKS_AT_ONCE = 2
_TIMING = Timing(heartbeat=0.2, watch=1.0, poll=0.1)
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["logkeep_engine.backup.run.backup_run", "logkeep_engine.restore.run.entry", __name__]
)


class Driver:
    """One attempt at a run, from `start` on."""

    def __init__(self, kind: str, run_id: str, spec: Mapping[str, Any], log: Path) -> None:
        self._answers, theirs = _processes.Pipe(duplex=False)
        self._process = _processes.Process(target=_drive, args=(kind, run_id, json.dumps(spec), str(log), theirs))
        self._process.start()
        theirs.close()

    def kill_after(self, seconds: float) -> bool:
        """SIGKILL, unless it has ended before; whether it was killed."""
        self._process.join(seconds)
        alive = self._process.is_alive()
        self._process.kill()
        self._process.join()
        return alive

    def result(self, seconds: float = 180.0) -> RunResult:
        """Wait for its end."""
        try:
            if not self._answers.poll(seconds):
                raise TimeoutError(f"the run does not end within {seconds:.0f} s")
            found = self._answers.recv()
        finally:
            self.kill_after(5)
        assert isinstance(found, RunResult)
        return found


def _drive(kind: str, run_id: str, spec: str, log: str, answers: Connection) -> None:
    with open(log, "a") as file:
        sys.stderr = file
        logging.basicConfig(level=logging.INFO, stream=file, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            answers.send(
                _perform(RunRequest(kind=kind, name="ledger", namespace="", run_id=run_id, spec=json.loads(spec)))
            )
        except BaseException:
            traceback.print_exc(file=file)
            raise


def _perform(request: RunRequest) -> RunResult:
    run_note.BEAT_SECONDS, takeover.WATCH_SECONDS = _TIMING.heartbeat, _TIMING.watch
    reporter = Reporter(request.run_id)
    if request.kind == "KafkaBackup":
        from logkeep_engine.backup.run.backup_run import run_backup

        return run_backup(request, parse_backup(request.spec), SideBySide, reporter, {}, _TIMING)
    from logkeep_engine.restore.run.entry import run_of

    return run_of(request, parse_restore(request.spec), SideBySide, reporter, {}).perform()


class SideBySide(Runner):
    """Some tasks at once, each in a thread; a task that fails is tried again, as Spark does. Work is pickled, too."""

    def perform(self, job: Job) -> None:
        done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        stopped = threading.Event()

        def task(index: int, work: bytes) -> None:
            for attempt in range(3):
                if stopped.is_set():
                    return
                try:
                    done.put((index, job.function(pickle.loads(work), Context(attempt)), None))
                    return
                except Exception as error:
                    failure = error
                    time.sleep(0.1)
            done.put((index, None, failure))

        with ThreadPoolExecutor(TASKS_AT_ONCE) as pool, contextlib.ExitStack() as stack:
            stack.callback(stopped.set)
            for index, item in enumerate(job.work):
                pool.submit(task, index, pickle.dumps(item))
            for _ in job.work:
                index, result, error = done.get()
                if error is not None:
                    raise error
                _tell(job.on_result, index, result)


def _tell(on_result: Callable[[int, Any], None], index: int, result: Any) -> None:
    on_result(index, pickle.loads(pickle.dumps(result)))

"""Tasks that a driver does itself. What they share with Spark's is in `tests/kafka/test_spark_runner.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from logkeep_engine.errors import BrokerUnavailable, SparkFailed, SpecError, TaskFailed
from logkeep_engine.limits import NO_LIMITS
from logkeep_engine.spark.in_driver import InDriver, InDriverRunner
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.tasks import TaskContext, no_update
from tests.cluster.process import wait_until


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def runner(nursery: Nursery) -> Iterator[InDriverRunner]:
    with InDriver(nursery, 2, {"spark.executorEnv.LOGKEEP_TEST": "told", "spark.task.maxFailures": "3"}) as session:
        yield session.runner()


def process_of(item: int, context: TaskContext) -> int:
    return os.getpid()


def variable_of(item: str, context: TaskContext) -> str | None:
    return os.environ.get(item)


def killed_until(item: tuple[str, int], context: TaskContext) -> int:
    """Notes its attempts in a file. Those before the one that `item` names are killed."""
    file, lives_at = item
    with Path(file).open("a") as out:
        out.write(f"{context.attempt} ")
    if context.attempt < lives_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return context.attempt


class Panic(BaseException):
    """A panic as PyO3 raises it."""

    __module__ = "pyo3_runtime"


def panics(item: str, context: TaskContext) -> None:
    with Path(item).open("a") as out:
        out.write("tried ")
    raise Panic("index out of bounds")


def never_ends(item: str, context: TaskContext) -> None:
    Path(item).write_text(str(os.getpid()))
    time.sleep(600)


def fails_or_never_ends(others: list[str], item: str, context: TaskContext) -> None:
    if item in others:
        never_ends(item, context)
    wait_until(lambda: all(Path(other).exists() for other in others), 60, "the others to have begun")
    raise BrokerUnavailable("Nobody there.", hint="Look.")


def large(item: int, context: TaskContext) -> bytes:
    return b"x" * item


def gone(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_tasks_run_in_processes_beside_the_driver_that_serve_all_of_them(runner: InDriverRunner) -> None:
    found: list[tuple[int, int]] = []
    for _ in range(2):
        runner.run(range(10), process_of, lambda index, value: found.append((index, value)), no_update)
    assert sorted(index for index, _ in found) == sorted([*range(10), *range(10)])
    processes = {process for _, process in found}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes


def test_tasks_have_the_variables_that_executors_would_have(
    runner: InDriverRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, str | None] = {}
    runner.run(["LOGKEEP_TEST", "PATH", "NONE"], variable_of, found.__setitem__, no_update)
    assert found == {0: "told", 1: os.environ["PATH"], 2: None}
    assert "LOGKEEP_TEST" not in os.environ


def test_a_large_result_arrives_whole(runner: InDriverRunner) -> None:
    sizes: list[int] = []
    runner.run([5 << 20, 1, 3 << 20], large, lambda _, value: sizes.append(len(value)), no_update)
    assert sorted(sizes) == [1, 3 << 20, 5 << 20]


def test_a_task_that_is_killed_is_tried_again(runner: InDriverRunner, tmp_path: Path) -> None:
    found: list[int] = []
    runner.run([(str(tmp_path / "tries"), 2)], killed_until, lambda _, value: found.append(value), no_update)
    assert (found, (tmp_path / "tries").read_text()) == ([2], "0 1 2 ")


def test_a_task_that_is_killed_again_and_again_fails_the_run_and_no_other_task(
    runner: InDriverRunner, tmp_path: Path
) -> None:
    found: list[int] = []
    work = [(str(tmp_path / "tries"), 99), (str(tmp_path / "other"), 0)]
    with pytest.raises(SparkFailed, match=r"failed 3 times: its process ended with signal 9 \(SIGKILL\)"):
        runner.run(work, killed_until, lambda _, value: found.append(value), no_update)
    assert (found, (tmp_path / "tries").read_text()) == ([0], "0 1 2 ")
    runner.run([(str(tmp_path / "next"), 0)], killed_until, lambda _, value: found.append(value), no_update)
    assert found == [0, 0]


def test_when_one_fails_for_good_the_others_are_gone_before_it_is_reported(
    runner: InDriverRunner, tmp_path: Path
) -> None:
    others = [str(tmp_path / "other")]
    task = partial(fails_or_never_ends, others)
    with pytest.raises(BrokerUnavailable, match="Nobody there"):
        runner.run(["fails", *others], task, lambda *_: pytest.fail("a result"), no_update)
    assert gone(Path(others[0]).read_text())


def test_a_panic_of_compiled_code_is_tried_again_and_then_fails_the_run_with_its_words(
    runner: InDriverRunner, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with pytest.raises(TaskFailed, match="compiled code has panicked: index out of bounds"):
        runner.run([str(notes)], panics, lambda _, value: None, no_update)
    assert notes.read_text() == "tried tried tried "


def test_an_interrupt_ends_the_tasks(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "task"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with InDriver(nursery, 1, {}) as session:
        before = signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            with pytest.raises(KeyboardInterrupt):
                session.runner().run([str(file)], never_ends, lambda *_: None, no_update, NO_LIMITS)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert not file.exists() or gone(file.read_text())


def test_tasks_end_with_the_process_that_has_made_them(
    nursery: Nursery, runner: InDriverRunner, tmp_path: Path
) -> None:
    files = [tmp_path / "one", tmp_path / "two"]

    def kill() -> None:
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), 60, "the tasks")
        os.kill(nursery._pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(SparkFailed, match="the process that makes them has died"):
            runner.run([str(file) for file in files], never_ends, lambda *_: None, no_update)
    finally:
        killer.join()
    wait_until(lambda: all(gone(file.read_text()) for file in files), 10, "the tasks to end")


def test_an_interrupt_is_reported_as_one_though_no_task_can_be_ended(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "task"

    def interrupted(*_: object) -> None:
        os.kill(nursery._pid, signal.SIGKILL)
        raise KeyboardInterrupt

    with InDriver(nursery, 1, {}) as session:
        before = signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            with pytest.raises(KeyboardInterrupt):
                session.runner().run([str(file)], never_ends, lambda *_: None, no_update)
        finally:
            signal.signal(signal.SIGALRM, before)
    if file.exists():
        wait_until(lambda: gone(file.read_text()), 10, "the task to end")


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_number_of_attempts_that_is_none_is_refused(nursery: Nursery, value: str) -> None:
    with pytest.raises(SpecError, match=r"spark\.task\.maxFailures"):
        InDriver(nursery, 1, {"spark.task.maxFailures": value})


def test_processes_end_with_the_driver_however_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "task"
    script = f"""
from logkeep_engine.spark.in_driver import InDriver
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.tasks import no_update
from tests.unit.spark.test_in_driver import never_ends
nursery = Nursery()
print(nursery._pid, flush=True)
with InDriver(nursery, 1, {{}}) as session:
    session.runner().run([{str(file)!r}], never_ends, lambda *_: None, no_update)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ) as driver:
        assert driver.stdout is not None
        nursery = driver.stdout.readline().strip()
        wait_until(lambda: file.exists() and bool(file.read_text()), 60, "the task")
        driver.kill()
    task = file.read_text()
    wait_until(lambda: gone(nursery) and gone(task), 60, "both to end")

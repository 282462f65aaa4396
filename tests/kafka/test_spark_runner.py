"""Work on real Spark executors, and in processes beside the driver: results while others run, errors as they were
raised, progress that may be lost."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.errors import BrokerUnavailable, SparkFailed, SpecError, StorageRefused, TaskFailed
from logkeep_engine.limits import NO_LIMITS, RunLimits
from logkeep_engine.spark.conf import kubernetes_conf, master_conf
from logkeep_engine.spark.in_driver import InDriver
from logkeep_engine.spark.link import DriverEndpoint, TaskLink
from logkeep_engine.spark.listener import Listener
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import LocalStorage
from logkeep_engine.tasks import PartitionUpdate, TaskRunner
from tests.cluster.process import wait_until
from tests.kafka import spark_functions as functions
from tests.unit.backup.compacted_topic import KEY, CompactedTopic, last_values, spread_all


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(params=["spark", "driver"])
def runner(request: pytest.FixtureRequest) -> Iterator[TaskRunner]:
    if request.param == "spark":
        yield SparkRunner(request.getfixturevalue("spark_context"))
        return
    with InDriver(request.getfixturevalue("nursery"), 2, {}) as session:
        yield session.runner()


def ignore(update: PartitionUpdate) -> None:
    pass


def test_every_result_arrives_once(runner: TaskRunner) -> None:
    results: list[tuple[int, int]] = []
    runner.run(list(range(40)), functions.double, lambda index, value: results.append((index, value)), ignore)
    assert sorted(results) == [(number, 2 * number) for number in range(40)]


def test_no_work_is_done_at_once(runner: TaskRunner) -> None:
    runner.run([], functions.double, lambda index, value: pytest.fail("a result of nothing"), ignore)


def test_results_arrive_while_other_tasks_run(runner: TaskRunner, tmp_path: Path) -> None:
    """The second task ends when the first one's result has arrived."""
    first = tmp_path / "first-has-arrived"
    arrived: list[bool] = []

    def note(index: int, ended: bool) -> None:
        arrived.append(ended)
        if index == 0:
            first.touch()

    runner.run(["", str(first)], functions.waits_for, note, ignore)
    assert arrived == [True, True]


def test_error_that_trying_again_cannot_change_is_raised_at_once(runner: TaskRunner) -> None:
    started = time.monotonic()
    with pytest.raises(StorageRefused) as caught:
        runner.run([0, 1], functions.refused, lambda index, value: None, ignore)
    assert (caught.value.message, caught.value.hint) == ("Bucket b: no.", "Ask for access.")
    assert time.monotonic() - started < 80, "the other task was not waited for"


def test_error_that_may_pass_is_tried_again(runner: TaskRunner, tmp_path: Path) -> None:
    results: list[int] = []
    calls = tmp_path / "calls"
    runner.run([(str(calls), 2)], functions.unavailable_until, lambda _, value: results.append(value), ignore)
    assert results == [2]
    assert calls.read_text().split() == ["0", "1", "2"]


def test_last_attempt_s_error_arrives_as_it_was(runner: TaskRunner, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with pytest.raises(BrokerUnavailable) as caught:
        runner.run([(str(calls), 99)], functions.unavailable_until, lambda index, value: None, ignore)
    assert str(caught.value) == "Attempt 3: nobody there. Look."
    assert calls.read_text().split() == ["0", "1", "2", "3"]


def test_exception_that_is_none_of_ours_names_its_class(runner: TaskRunner) -> None:
    with pytest.raises(TaskFailed, match="KeyError: 'b'"):
        runner.run([0, 1], functions.broken, lambda index, value: None, ignore)


def test_worker_that_dies_fails_the_run_with_what_spark_says(runner: TaskRunner) -> None:
    results: list[int] = []
    with pytest.raises(SparkFailed, match=r"Python worker exited unexpectedly|failed 4 times"):
        runner.run([0, 1], functions.dies, lambda _, value: results.append(value), ignore)
    assert results == [0]


def test_exception_of_the_caller_cancels_the_tasks(spark_context: SparkContext) -> None:
    def stop(index: int, value: int) -> None:
        raise RuntimeError("fenced")

    started = time.monotonic()
    with pytest.raises(RuntimeError, match="fenced"):
        SparkRunner(spark_context).run(list(range(30)), functions.slow_for_odd, stop, ignore)
    assert time.monotonic() - started < 75, "what fifteen tasks of 10 s take, two at a time"
    assert list(spark_context.statusTracker().getActiveJobsIds()) == []


def test_progress_arrives_while_tasks_run(runner: TaskRunner, tmp_path: Path) -> None:
    """The tasks end when all of it has arrived."""
    updates: list[PartitionUpdate] = []
    arrived = tmp_path / "all-has-arrived"

    def note(update: PartitionUpdate) -> None:
        updates.append(update)
        if len(updates) == 6:
            arrived.touch()

    runner.run([(0, str(arrived)), (1, str(arrived))], functions.reports, lambda index, value: None, note)
    assert PartitionUpdate("orders", 1, 1, 3, 30, 300) in updates
    assert len(updates) == 6


def test_a_large_compacted_partition_is_spread_over_tasks(runner: TaskRunner, tmp_path: Path) -> None:
    topic = CompactedTopic(LocalStorage(tmp_path.as_uri()))
    with spread_all():
        for number in range(3):
            topic.write([(b"%d" % (number * 7 % key), b"v%d" % number) for key in range(1, 9)])
            made = topic.back_up(f"run-{number}", runner=lambda: runner)
            assert (made.count, made.notes) == (1, [])
    archive = Archive.open(topic.storage)
    assert [len(item.parts(KEY)) for item in archive.load().snapshots[KEY]] == [1, 2, 3]
    assert last_values((record.key, record.value) for record in topic.restored()) == topic.consumed()
    report = verify(archive)
    assert (report.faults, report.orphans) == ([], [])


def test_limits_hold_over_all_tasks_and_jobs_also_when_workers_die(runner: TaskRunner) -> None:
    rate, work = 2_000_000, [1_000_000, 500_001, 500_000, 10_000]
    results: list[int] = []
    started = time.monotonic()
    for _ in range(2):
        runner.run(work, functions.paced, lambda _, value: results.append(value), ignore, RunLimits(rate, 1))
    seconds = time.monotonic() - started
    assert sorted(results) == sorted(2 * work)
    assert seconds > 2 * sum(work) / rate
    assert seconds < 60, "what the dead workers held came back"


def test_listener_takes_no_line_without_the_token() -> None:
    updates: list[PartitionUpdate] = []
    with Listener("127.0.0.1", updates.append) as listener:
        for first in (b"wrong\n", b"", b"\xff\xfe\n"):
            with socket.create_connection(listener.address, timeout=30) as connection:
                connection.sendall(first + b'["progress", "orders", 0, 0, 1, 1, 1]\n')
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        context = TaskLink(0, DriverEndpoint(listener.address, listener.token, NO_LIMITS, 1))
        context.report([PartitionUpdate("orders", 0, 0, 1, 1, 1)])
        wait_until(lambda: bool(updates), 60, "the update")
        context.close()
    assert updates == [PartitionUpdate("orders", 0, 0, 1, 1, 1)]


def test_task_without_a_listener_continues_silently() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    context = TaskLink(0, DriverEndpoint(address, "token", NO_LIMITS, 1))
    started = time.monotonic()
    for at in range(100):
        context.report([PartitionUpdate("orders", 0, 0, at, 1, 1)])
    context.close()
    assert time.monotonic() - started < 10


def test_kubernetes_needs_a_pod() -> None:
    with pytest.raises(SpecError, match="LOGKEEP_POD_NAME, LOGKEEP_POD_IP"):
        kubernetes_conf({}, {})


def test_kubernetes_settings_that_make_the_run_safe_cannot_be_overridden() -> None:
    environ = {
        "LOGKEEP_POD_NAME": "backup-orders-20261121-with-a-very-long-name-indeed-x7k2p",
        "LOGKEEP_POD_IP": "10.1.2.3",
        "LOGKEEP_POD_NAMESPACE": "kafka",
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    asked = {"spark.executor.memory": "2g", "spark.driver.host": "elsewhere", "spark.speculation": "true"}
    conf = kubernetes_conf(asked, environ)
    assert conf.get("spark.executor.memory") == "2g"
    assert conf.get("spark.driver.host") == "10.1.2.3"
    assert conf.get("spark.speculation") == "false"
    assert conf.get("spark.master") == "k8s://https://[fd00::1]:443"
    assert len(str(conf.get("spark.kubernetes.executor.podNamePrefix"))) <= 46


@pytest.mark.parametrize("master", ["yarn", "local[0]", "local[x]"])
def test_masters_that_are_not_known_are_refused(master: str) -> None:
    with pytest.raises(SpecError, match="--master"):
        master_conf(master, {}, {})

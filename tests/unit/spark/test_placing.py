"""The Spark of a run in a Job's pod, with sessions that only note how they were started."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from logkeep_engine import interrupt
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.running import ExecutorSpec, SparkSpec
from logkeep_engine.errors import SpecError
from logkeep_engine.spark import job_session as placing
from logkeep_engine.spark.driver import _with_keys_without_effect
from logkeep_engine.spark.job_session import JobSession
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.tasks import Demand

LITTLE = Demand(3, 1 << 20)
MUCH = Demand(100, 1 << 40)
POD = {
    "LOGKEEP_POD_NAME": "nightly-x7k2p",
    "LOGKEEP_POD_IP": "10.1.2.3",
    "LOGKEEP_POD_NAMESPACE": "team",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}
SPARK = SparkSpec(executor=ExecutorSpec(instances=3))
NURSERY = cast("Nursery", "makes processes for tasks of the driver")
CONF = {"spark.executor.instances": "3", "spark.kubernetes.container.image": "engine:1", "spark.driver.memory": "512m"}


@dataclass
class Cluster:
    """The sessions that were started, and whether executors come to run."""

    has_room: bool = True
    started: list[dict[str, str]] = field(default_factory=list)
    open: int = 0
    placed: list[int] = field(default_factory=list)

    @property
    def masters(self) -> list[str]:
        return [conf["spark.master"] for conf in self.started]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    class FakeSession:
        def __init__(self, conf: Mapping[str, str], *, environ: Mapping[str, str], s3: bool) -> None:
            self.conf = dict(conf)

        def __enter__(self) -> FakeSession:
            assert made.open == 0, "a process can have one Spark context"
            made.open += 1
            made.started.append(self.conf)
            return self

        def __exit__(self, *error: object) -> None:
            made.open -= 1

        def has_executor(self) -> bool:
            return made.has_room

        def runner(self) -> Any:
            return self.conf["spark.master"]

    class FakeInDriver(FakeSession):
        def __init__(self, nursery: Nursery, slots: int, conf: Mapping[str, str]) -> None:
            self.conf = {"spark.master": f"driver[{slots}]"}

    monkeypatch.setattr(placing, "Session", FakeSession)
    monkeypatch.setattr(placing, "InDriver", FakeInDriver)
    monkeypatch.setattr(placing, "_POLL_SECONDS", 0.001)
    return made


@pytest.fixture
def session(cluster: Cluster) -> Iterator[JobSession]:
    with JobSession(SPARK, CONF, POD, NURSERY, s3=False, placed=cluster.placed.append, wait_seconds=0.05) as made:
        yield made
    assert cluster.open == 0


def test_a_run_with_nothing_to_do_starts_no_spark(cluster: Cluster, session: JobSession) -> None:
    assert (cluster.started, cluster.placed) == ([], [])


def test_little_work_is_done_by_the_driver(cluster: Cluster, session: JobSession) -> None:
    assert session.expect(LITTLE) == 1
    assert str(session.runner()).startswith("driver[1]")
    assert cluster.placed == [0]


def test_much_work_is_done_by_executors_that_go_when_they_have_nothing_to_do(
    cluster: Cluster, session: JobSession
) -> None:
    assert session.expect(MUCH) == 3
    assert str(session.runner()) == "k8s://https://10.0.0.1:443"
    (conf,) = cluster.started
    assert {conf[f"spark.dynamicAllocation.{name}Executors"] for name in ("initial", "max")} == {"3"}
    assert conf["spark.dynamicAllocation.minExecutors"] == "0"
    assert (conf["spark.dynamicAllocation.enabled"], conf["spark.executor.instances"]) == ("true", "3")
    assert cluster.placed == [3]


def test_more_work_than_was_expected_first_gets_executors_and_keeps_them(cluster: Cluster, session: JobSession) -> None:
    session.expect(LITTLE)
    session.runner()
    assert session.expect(MUCH) == 3
    assert session.expect(LITTLE) == 3
    session.runner()
    assert [master.partition(":")[0] for master in cluster.masters] == ["driver[1]", "k8s"]
    assert cluster.placed == [0, 3]


def test_each_session_has_names_of_its_own_for_its_executors(cluster: Cluster, session: JobSession) -> None:
    session.expect(Demand(2, 1 << 40))
    session.expect(MUCH)
    prefixes = [conf["spark.kubernetes.executor.podNamePrefix"] for conf in cluster.started]
    assert prefixes == ["nightly-x7k2p-1", "nightly-x7k2p-2"]
    assert cluster.placed == [2, 3]


def test_executors_that_have_gone_are_waited_for_as_the_first_ones(
    cluster: Cluster, session: JobSession, caplog: pytest.LogCaptureFixture
) -> None:
    """They go when they have nothing to do for a while. Then others may take their room."""
    session.expect(MUCH)
    session.runner()
    cluster.has_room = False
    assert session.expect(MUCH) == 3
    assert str(session.runner()).startswith("driver[1]")
    assert "no executor has started" in caplog.text
    assert cluster.placed == [3, 3, 0]
    prefixes = [conf.get("spark.kubernetes.executor.podNamePrefix") for conf in cluster.started]
    assert prefixes == ["nightly-x7k2p-1", "nightly-x7k2p-2", None]


def test_a_part_of_which_nobody_has_told_does_not_wait_for_executors_that_have_gone(
    cluster: Cluster, session: JobSession
) -> None:
    session.expect(MUCH)
    session.runner()
    cluster.has_room = False
    assert str(session.runner()).startswith("driver[1]")


def test_a_driver_that_cannot_do_the_work_ends_when_its_executors_have_gone(cluster: Cluster) -> None:
    wide = SPARK.model_copy(update={"conf": {"spark.executorEnv.LOGKEEP_TASK_MEMORY": "1Gi"}})
    with JobSession(wide, CONF, POD, NURSERY, s3=False, placed=cluster.placed.append, wait_seconds=0.05) as session:
        session.expect(MUCH)
        session.runner()
        cluster.has_room = False
        with pytest.raises(KeyboardInterrupt):
            session.runner()
    assert cluster.placed == [3, 3]


def test_little_work_is_done_by_the_driver_when_the_executors_have_gone(cluster: Cluster, session: JobSession) -> None:
    session.expect(MUCH)
    session.runner()
    cluster.has_room = False
    assert session.expect(LITTLE) == 1
    assert str(session.runner()).startswith("driver[1]")
    assert cluster.placed == [3, 0]


KEYS = {
    "spark.eventLog.enabled": "true",
    "spark.kubernetes.driver.requestTimeout": "10",
    "spark.extraListeners": "a.B",
    "spark.executorEnv.HTTPS_PROXY": "http://proxy",
    "spark.kubernetes.executor.label.team": "a",
    "spark.task.maxFailures": "2",
}


def test_keys_for_spark_have_no_effect_only_if_the_driver_does_all_work(cluster: Cluster) -> None:
    spec = SPARK.model_copy(update={"conf": KEYS})
    with JobSession(spec, CONF, POD, NURSERY, s3=False, placed=cluster.placed.append) as session:
        assert session.without_effect() == [], "nothing was to be done"
        session.expect(LITTLE)
        unheard = ["spark.eventLog.enabled", "spark.extraListeners", "spark.kubernetes.driver.requestTimeout"]
        assert session.without_effect() == unheard
        (warning,) = _with_keys_without_effect(
            RunResult(run_id="r", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0),
            session,
        ).warnings
        assert warning.startswith(f"spec.spark.conf: {', '.join(unheard)} had no effect")
        session.expect(MUCH)
        assert session.without_effect() == []


def test_tasks_that_nobody_has_told_of_are_done_by_the_driver(cluster: Cluster, session: JobSession) -> None:
    assert str(session.runner()).startswith("driver[1]")


def test_a_driver_whose_executors_do_not_come_does_the_work_itself(
    cluster: Cluster, session: JobSession, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.has_room = False
    session.expect(MUCH)
    assert str(session.runner()).startswith("driver[1]")
    assert "no executor has started" in caplog.text
    assert session.expect(MUCH) == 1, "it does not ask for them again"
    session.runner()
    assert len(cluster.started) == 2
    assert cluster.placed == [3, 0]


WIDE = SPARK.model_copy(update={"conf": {"spark.executorEnv.LOGKEEP_TASK_MEMORY": "1Gi"}})


def test_a_driver_that_cannot_do_the_work_leaves_it_to_executors(cluster: Cluster) -> None:
    with JobSession(WIDE, CONF, POD, NURSERY, s3=False, placed=cluster.placed.append, wait_seconds=0.05) as session:
        session.runner()
        assert session.expect(MUCH) == 3
        session.runner()
    assert cluster.placed == [1, 3]


def test_a_driver_that_cannot_do_the_work_gives_its_room_to_others_if_no_executor_comes(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.has_room = False
    with JobSession(WIDE, CONF, POD, NURSERY, s3=False, placed=cluster.placed.append, wait_seconds=0.05) as session:
        session.expect(MUCH)
        with pytest.raises(KeyboardInterrupt):
            session.runner()
    assert (cluster.placed, cluster.open) == ([3], 0)
    assert "the driver ends" in caplog.text


def test_drivers_that_give_way_do_not_do_so_together(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.has_room = False
    waits = []
    for pod in ("nightly-x7k2p", "hourly-9k2ml", "weekly-q0q0q"):
        clock = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda clock=clock: clock[0])
        monkeypatch.setattr(time, "sleep", lambda _, clock=clock: clock.__setitem__(0, clock[0] + 1))
        environ = {**POD, "LOGKEEP_POD_NAME": pod}
        with JobSession(WIDE, CONF, environ, NURSERY, s3=False, placed=cluster.placed.append) as session:
            session.expect(MUCH)
            with pytest.raises(KeyboardInterrupt):
                session.runner()
        waits.append(clock[0])
    assert len(set(waits)) == 3
    assert all(300 <= wait <= 601 for wait in waits)


def test_a_signal_ends_the_wait_for_executors(
    cluster: Cluster, session: JobSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupt, "check", interrupted)
    cluster.has_room = False
    session.expect(MUCH)
    with pytest.raises(KeyboardInterrupt):
        session.runner()


def test_outside_a_pod_it_says_what_is_missing(cluster: Cluster) -> None:
    with pytest.raises(SpecError, match="LOGKEEP_POD_NAME"):
        JobSession(SPARK, CONF, {}, NURSERY, s3=False, placed=cluster.placed.append)

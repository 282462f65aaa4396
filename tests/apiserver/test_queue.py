"""The queue of runs: one operator with a limit, and the Jobs that it makes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.unit.operator.world import backup_of_its_own

pytestmark = pytest.mark.timeout(300)


def ask(namespace: Namespace, name: str, **spec: Any) -> None:
    answer = namespace.apply("KafkaBackup", name, backup_of_its_own(name, **spec))
    assert answer.returncode == 0, answer.stderr


def jobs(namespace: Namespace) -> list[str]:
    """The resources that have a Job."""
    return sorted(job["metadata"]["annotations"]["logkeep.dev/resource"] for job in namespace.items("jobs"))


def end(namespace: Namespace, name: str) -> None:
    """The run of a resource succeeds."""
    found = namespace.items("jobs")
    (job,) = (job for job in found if job["metadata"]["annotations"]["logkeep.dev/resource"] == name)
    namespace.write(job, result=result(run_id_of(job)))
    namespace.job_ends(job, "Complete")
    namespace.phase("kbak", name, "Succeeded")


def queue(namespace: Namespace, name: str, position: int) -> None:
    """Wait until the resource says that it waits at the position."""
    text = f"at position {position}:"

    def reported() -> bool:
        return text in namespace.condition("kbak", name, "Ready").get("message", "")

    assert namespace.reason("kbak", name, "Queued")
    wait_for(text, reported)


def test_runs_wait_for_their_turn_first_come_first_served_also_over_a_crash_of_the_operator(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_MAX_CONCURRENT_RUNS="1") as operator:
        ask(namespace, "c")
        wait_for("the first Job", lambda: jobs(namespace) == ["c"])
        for position, name in enumerate(("b", "a"), 1):
            ask(namespace, name)
            queue(namespace, name, position)
            time.sleep(1.1)  # times of a status are seconds
        end(namespace, "c")
        wait_for("the second Job", lambda: jobs(namespace) == ["b", "c"])
        queue(namespace, "a", 1)

        operator.kill()
        operator.start()
        ask(namespace, "d")
        queue(namespace, "d", 2)
        assert jobs(namespace) == ["b", "c"], "the new operator has counted the run that goes on"
        end(namespace, "b")
        wait_for("the third Job", lambda: jobs(namespace) == ["a", "b", "c"])
        end(namespace, "a")
        wait_for("the last Job", lambda: jobs(namespace) == ["a", "b", "c", "d"])


def test_many_that_are_asked_for_at_once_never_have_more_drivers_than_the_limit(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    names = [f"n{number:02}" for number in range(12)]
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_MAX_CONCURRENT_RUNS="3", LOGKEEP_WORKERS="8"):
        for name in names:
            ask(namespace, name)
        ended: list[str] = []
        while len(ended) < len(names):
            going = wait_for("runs", lambda: sorted(set(jobs(namespace)) - set(ended)))
            assert len(going) <= 3, going
            end(namespace, going[0])
            ended.append(going[0])


def test_a_resource_that_gives_its_job_to_kueue_waits_for_no_turn(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_MAX_CONCURRENT_RUNS="1", LOGKEEP_KUEUE="true"):
        ask(namespace, "first")
        wait_for("its Job", lambda: jobs(namespace) == ["first"])
        ask(namespace, "kueue", runPolicy={"jobLabels": {"kueue.x-k8s.io/queue-name": "backups"}})
        wait_for("both Jobs", lambda: jobs(namespace) == ["first", "kueue"])
        ask(namespace, "next")
        queue(namespace, "next", 1)
        first, kueue = sorted(namespace.items("jobs"), key=lambda job: str(job["metadata"]["name"]))
        assert kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "backups"
        for job in (kueue, first):
            namespace.patch("job", job["metadata"]["name"], {"spec": {"suspend": True}})  # as Kueue does
        wait_for("a place for the next one", lambda: jobs(namespace) == ["first", "kueue", "next"])
        for name, job in (("first", first), ("kueue", kueue)):
            assert "not by Logkeep" in namespace.reason("kbak", name, "Queued")["message"]
            assert namespace.get("job", job["metadata"]["name"])["spec"]["suspend"] is True

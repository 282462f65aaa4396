"""Containers that a mesh puts beside drivers, and evictions, on a real API server with its Job controller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.operator import Namespace, Operator, progress, result, run_id_of, wait_for
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(600)

CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
)
RUNS = {"running": {"startedAt": "2026-11-27T18:00:00Z"}}


@pytest.fixture
def running(place: Namespace, account: Path, tmp_path: Path) -> Iterator[Operator]:
    """The operator, serving this test's namespace."""
    with Operator(account, place.name, tmp_path / "operator.log") as operator:
        yield operator


def ended(code: int, message: str = "") -> dict[str, Any]:
    at = {"startedAt": "2026-11-27T18:00:00Z", "finishedAt": "2026-11-27T18:01:00Z"}
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message, **at}}


def container(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def pods_of(place: Namespace, job: dict[str, Any], count: int = 1) -> list[dict[str, Any]]:
    """The pods that the Job controller has made so far, once there are so many; the oldest first."""

    def look() -> list[dict[str, Any]] | None:
        name = job["metadata"]["name"]
        found = [p for p in place.items("pods") if p["metadata"]["labels"].get("batch.kubernetes.io/job-name") == name]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"]) if len(found) >= count else None

    return wait_for(f"{count} pods of the driver", look, 120)


def says(place: Namespace, pod: dict[str, Any], **status: Any) -> None:
    """The kubelet tells of the pod."""
    place.patch("pod", pod["metadata"]["name"], {"status": status}, "status")


def with_sidecar(place: Namespace, pod: dict[str, Any], driver: dict[str, Any]) -> None:
    """The driver's container is in this state, and the proxy beside it runs."""
    says(place, pod, phase="Running", containerStatuses=[container("driver", driver), container("istio-proxy", RUNS)])


def reason(place: Namespace) -> str:
    return str(place.condition("kbak", "nightly", "Ready").get("reason", ""))


def begun(place: Namespace, **spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A backup whose driver runs beside a sidecar: its Job and its pod."""
    place.apply("KafkaBackup", "nightly", backup_spec(**spec))
    job = place.job()
    pod = pods_of(place, job)[0]
    with_sidecar(place, pod, RUNS)
    place.write(job, progress(run_id_of(job), 10))
    wait_for("the run", lambda: reason(place) == "Running")
    return job, pod


def fails(place: Namespace, job: dict[str, Any], pod: dict[str, Any], code: int, error: str) -> None:
    """The driver reports an error and ends, and the sidecar runs on."""
    failed = result(run_id_of(job), outcome="Failed", exit_code=code, error_code=error, message="what was wrong")
    place.write(job, result=failed)
    with_sidecar(place, pod, ended(code, failed.to_termination_message(4096)))


def test_a_driver_that_fails_for_good_beside_a_sidecar_ends_its_run_and_the_next_one_begins(
    place: Namespace, running: Operator
) -> None:
    job, pod = begun(place)
    fails(place, job, pod, 2, "NoTopicMatches")
    place.phase("kbak", "nightly", "Failed")
    assert reason(place) == "NoTopicMatches"
    place.patch("kbak", "nightly", {"metadata": {"annotations": {"logkeep.dev/run": "2"}}})

    def others() -> list[dict[str, Any]]:
        return [one for one in place.items("jobs") if run_id_of(one) != run_id_of(job)]

    wait_for("the next run", others, 240)


def test_a_driver_that_is_tried_again_does_not_wait_for_the_sidecar(place: Namespace, running: Operator) -> None:
    job, pod = begun(place)
    fails(place, job, pod, 1, "BrokerUnavailable")

    def goes() -> bool:
        found = place.find("pod", pod["metadata"]["name"])
        return found is None or "deletionTimestamp" in found["metadata"]

    wait_for("the pod to go", goes)
    wait_for("a word of it", lambda: reason(place) == "Retrying")
    stopped = [container("driver", ended(1)), container("istio-proxy", ended(137))]
    if place.find("pod", pod["metadata"]["name"]) is not None:  # the kubelet ends what is left
        says(place, pod, phase="Failed", containerStatuses=stopped)
    names = {pod["metadata"]["name"]}
    wait_for("another attempt", lambda: {p["metadata"]["name"] for p in pods_of(place, job)} - names, 240)


def test_evictions_are_not_reported_as_the_end(place: Namespace, running: Operator) -> None:
    place.apply("KafkaBackup", "nightly", backup_spec(runPolicy={"backoffLimit": 1}))
    job = place.job()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    for count in (1, 2, 3):
        pod = pods_of(place, job, count)[count - 1]
        says(place, pod, phase="Failed", reason="Evicted", message="The node was low", conditions=[condition])
        wait_for("a word of it", lambda: reason(place) in ("Retrying", "Ending"))
        time.sleep(3)
        assert reason(place) != "Ending", count

"""The operator on a real API server with the Job and garbage collecting controllers: changes while runs start, two
operators, refusals, many resources, what somebody deletes by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from logkeep_engine.contract.facts.outcome import LossFact
from tests.apiserver.calls import Calls
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.webhook import RefusesJobs
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_of_its_own

pytestmark = pytest.mark.timeout(300)

CONTROLLERS = ("job-controller", "garbage-collector-controller", "namespace-controller")
MANY = 150  # `bench.resources` asks 500
LOSS = (LossFact(topic="orders", partition=0, start=10, end=310, reason="retention overtook the reader"),)


@pytest.fixture
def running(place: Namespace, account: Path, tmp_path: Path) -> Iterator[Operator]:
    """The operator, serving this test's namespace; what follows is not about its start."""
    with Operator(account, place.name, tmp_path / "operator.log") as operator:
        place.apply("KafkaBackup", "begin", backup_of_its_own("begin", suspend=True))
        place.phase("kbak", "begin", "Suspended")
        yield operator


@pytest.fixture(scope="module")
def objects(controlled: ApiServer) -> client.CustomObjectsApi:
    """The API as fast as a user's program asks it."""
    return client.CustomObjectsApi(config.new_client_from_config(str(controlled.kubeconfig)))  # type: ignore[no-untyped-call]


class User:
    """Makes and changes KafkaBackups of a namespace, within milliseconds."""

    def __init__(self, objects: client.CustomObjectsApi, place: Namespace) -> None:
        self._objects = objects
        self._where = ("logkeep.dev", "v1alpha1", place.name, "kafkabackups")

    def make(self, name: str, **spec: Any) -> None:
        body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": name}}
        self._objects.create_namespaced_custom_object(*self._where, {**body, "spec": backup_of_its_own(name, **spec)})

    def change(self, name: str, change: dict[str, Any]) -> None:
        self._objects.patch_namespaced_custom_object(*self._where, name, change)

    def annotate(self, name: str, value: str) -> None:
        self.change(name, {"metadata": {"annotations": {"logkeep.dev/run": value}}})

    def include(self, name: str, topic: str) -> None:
        self.change(name, {"spec": {"topics": {"include": [topic]}}})


@pytest.fixture
def user(objects: client.CustomObjectsApi, place: Namespace) -> User:
    return User(objects, place)


def jobs_of(place: Namespace, name: str) -> list[dict[str, Any]]:
    """The Jobs that are not being deleted."""
    found = [job for job in place.items("jobs") if job["metadata"]["annotations"]["logkeep.dev/resource"] == name]
    return [job for job in found if "deletionTimestamp" not in job["metadata"]]


def progress_of(place: Namespace, name: str) -> dict[str, Any] | None:
    """The status when it names the run of the only Job, and has been written for what is asked for now."""
    body = place.get("kbak", name)
    status: dict[str, Any] = body.get("status", {})
    jobs = [run_id_of(job) for job in jobs_of(place, name)]
    fresh = status.get("observedGeneration") == body["metadata"]["generation"]
    return status if fresh and jobs == [status.get("run", {}).get("id")] else None


def restored_topic(place: Namespace, name: str, topic: str) -> dict[str, Any] | None:
    """The same when that run is of this topic. Before, a status may tell of a run that an earlier edit asked for."""
    status = progress_of(place, name)
    if status is None:
        return None
    found = place.kubectl("get", "configmap", f"{status['run']['job']}-request", "-o", "json", check=False)
    if found.returncode != 0:
        return None  # it has just gone with the run
    request = json.loads(json.loads(found.stdout)["data"]["request.json"])
    return status if request["spec"]["topics"]["include"] == [topic] else None


def unfinished_run(place: Namespace, name: str) -> str | None:
    """The id of the run that the status tells of, while it has not ended."""
    run = place.status("kbak", name).get("run", {})
    return None if "outcome" in run else run.get("id")


def driver_succeeds(place: Namespace, job: dict[str, Any], **changes: Any) -> None:
    """The driver writes its result and its pod ends; the Job controller does the rest."""
    place.write(job, result=result(run_id_of(job), **changes))
    name = job["metadata"]["name"]

    def made() -> list[str]:
        pods = [pod["metadata"] for pod in place.items("pods")]
        return [pod["name"] for pod in pods if pod["labels"].get("batch.kubernetes.io/job-name") == name]

    pods = wait_for("the pod", made)
    place.patch("pod", pods[0], {"status": {"phase": "Succeeded"}}, "status")


# ---- a change while a run starts


def test_an_annotation_while_the_run_starts_orphans_nothing(place: Namespace, running: Operator, user: User) -> None:
    names = [f"b{number}" for number in range(6)]
    for number, name in enumerate(names):
        user.make(name)
        time.sleep(0.015 * number)
        user.annotate(name, "2")
    for name in names:
        wait_for(f"the status of {name}", lambda name=name: progress_of(place, name))  # type: ignore[misc]
    first = jobs_of(place, names[0])[0]
    driver_succeeds(place, first, loss=LOSS, loss_total=1, loss_offsets=300)
    wait_for("the loss", lambda: place.condition("kbak", names[0], "DataLoss").get("status") == "True")
    status = place.status("kbak", names[0])
    assert [(entry["runId"], entry["outcome"]) for entry in status["history"]] == [(run_id_of(first), "Succeeded")]
    assert (status["loss"][0]["start"], status["loss"][0]["end"]) == (10, 310)


def test_edits_while_runs_start_with_two_operators_leave_the_last_ones_job(
    place: Namespace, account: Path, running: Operator, user: User, tmp_path: Path
) -> None:
    names = [f"b{number}" for number in range(3)]
    with Operator(account, place.name, tmp_path / "second.log"):
        for name in names:
            user.make(name)
        for edit in range(10):
            for name in names:
                user.include(name, f"t{edit}")
            time.sleep(0.07)
        for name in names:
            what = f"the last edit of {name}"
            status = wait_for(what, lambda name=name: restored_topic(place, name, "t9"), timeout=120)  # type: ignore[misc]
            assert {entry["outcome"] for entry in status.get("history", ())} <= {"Replaced"}


# ---- refusals


def test_a_refusal_whose_text_changes_is_asked_for_again_later_and_later(
    place: Namespace, running: Operator, user: User, controlled: ApiServer, tmp_path: Path
) -> None:
    with RefusesJobs(controlled, place.name, tmp_path / "webhook") as webhook:
        wait_for("the webhook", lambda: "refused for the" in place.kubectl(
            "create", "job", "x", "--image=x", "--dry-run=server", check=False
        ).stderr)  # fmt: skip
        webhook.posts.clear()
        user.make("refused")
        place.reason("kbak", "refused", "ApiRefused")
        wait_for("three refusals", lambda: len(webhook.posts) >= 3)
        until = webhook.posts[0] + 12
        wait_for("12 seconds", lambda: time.monotonic() > until)
        assert 3 <= len(webhook.posts) <= 5, "1, 2, 4, 8 seconds between them"
        before = len(webhook.posts)
        wait_for("another refusal, after which the wait is 16 s or longer", lambda: len(webhook.posts) > before)
        before = len(webhook.posts)
        user.include("refused", "another")
        wait_for("a look at once", lambda: len(webhook.posts) > before, timeout=10)


# ---- many


def test_idle_resources_cost_a_few_calls_however_many_they_are(
    place: Namespace, account: Path, user: User, controlled: ApiServer, tmp_path: Path
) -> None:
    calls = Calls(controlled)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: user.make(f"b{number}", suspend=True), range(MANY)))
    with Operator(account, place.name, tmp_path / "many.log", LOGKEEP_WORKERS="8"):

        def suspended() -> bool:
            phases = [item.get("status", {}).get("phase") for item in place.items("kbak")]
            return phases == ["Suspended"] * MANY

        wait_for("all statuses", suspended, timeout=180)
        looks = calls.counted()
        assert looks["patch kafkabackups/status"] <= MANY + 5
        assert looks["get kafkabackups"] <= 1.6 * MANY, "a look for each write, and hardly another"

        def calm() -> bool:
            calls.restart()
            time.sleep(3)
            return calls.counted()["get kafkabackups"] == 0

        wait_for("the looks at what was written to end", calm, timeout=180)
        calls.restart()
        time.sleep(21)
        requested = calls.counted()
        assert sum(requested.values()) <= 40, f"four resyncs of six lists: {requested}"


# ---- by hand


def test_config_maps_that_somebody_deletes_are_made_again(place: Namespace, running: Operator, user: User) -> None:
    user.make("nightly")
    job = place.job()
    wait_for("the status", lambda: progress_of(place, "nightly"))
    name = job["metadata"]["name"]
    for part in ("progress", "request"):
        before = place.get("configmap", f"{name}-{part}")
        place.kubectl("delete", "configmap", f"{name}-{part}")
        wait_for("it", lambda part=part: place.find("configmap", f"{name}-{part}"))  # type: ignore[misc]
        again = place.get("configmap", f"{name}-{part}")
        assert again["metadata"]["uid"] != before["metadata"]["uid"]
        assert again.get("data") == before.get("data")
    driver_succeeds(place, job)
    place.phase("kbak", "nightly", "Succeeded")


def test_a_status_wiped_by_hand_gets_its_success_back(place: Namespace, running: Operator, user: User) -> None:
    user.make("nightly")
    for value in ("", "2"):
        if value:
            user.annotate("nightly", value)
            wait_for("the second run", lambda: len(jobs_of(place, "nightly")) == 2)
        run_id = wait_for("a run", lambda: unfinished_run(place, "nightly"))
        driver_succeeds(place, next(j for j in jobs_of(place, "nightly") if run_id_of(j) == run_id))
        place.phase("kbak", "nightly", "Succeeded")
    before = place.status("kbak", "nightly")
    place.kubectl("patch", "kbak", "nightly", "--subresource=status", "--type=json", "-p", json.dumps(
        [{"op": "replace", "path": "/status", "value": {}}]
    ))  # fmt: skip
    after = place.phase("kbak", "nightly", "Succeeded")
    wait_for("the history", lambda: len(place.status("kbak", "nightly").get("history", ())) == 2)
    after = place.status("kbak", "nightly")
    kept = ("lastSuccessTime", "lastHandledRun", "archive", "progress")
    assert {part: after.get(part) for part in kept} == {part: before.get(part) for part in kept}
    assert [entry["runId"] for entry in after["history"]] == [entry["runId"] for entry in before["history"]]
    assert len(jobs_of(place, "nightly")) == 2, "no run is started for it"


def test_a_driver_whose_clock_is_behind_may_end_after_its_success(
    place: Namespace, running: Operator, user: User
) -> None:
    user.make("nightly")
    job = place.job()
    place.write(job, result=result(run_id_of(job), end_time=time.time() - 300))
    place.phase("kbak", "nightly", "Succeeded")
    user.change("nightly", {"spec": {"limits": {"bytesPerSecond": "1Gi"}}})  # which is a look
    place.phase("kbak", "nightly", "Succeeded")
    assert [found["metadata"]["uid"] for found in jobs_of(place, "nightly")] == [job["metadata"]["uid"]]

"""A pod is judged by the container of its role, whatever a mesh or a policy has put beside it."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.running import RunPolicy
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import DeleteJob, DeletePod, PodState
from logkeep_operator.reconcile.observed import pod_state
from tests.unit.operator.world import World, backup_spec

RUNS: dict[str, Any] = {"running": {}}
WAITS: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def pod(
    phase: str, *containers: tuple[str, dict[str, Any]], init: tuple[tuple[str, dict[str, Any]], ...] = (), **more: Any
) -> PodState:
    """The facts of a driver's pod with these containers."""
    status = {
        "phase": phase,
        "initContainerStatuses": [{"name": name, "state": state} for name, state in init],
        "containerStatuses": [{"name": name, "state": state} for name, state in containers],
        **more,
    }
    return pod_state({"metadata": {"name": "p", "labels": {"logkeep.dev/role": "driver"}}, "status": status})


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("phase", "own", "other", "judged", "held"),
    [
        ("Running", RUNS, RUNS, "Running", False),
        ("Running", RUNS, ended(1), "Running", False),
        ("Pending", RUNS, {"waiting": {"reason": "ImagePullBackOff"}}, "Running", False),
        ("Running", ended(0), RUNS, "Succeeded", True),
        ("Running", ended(2), RUNS, "Failed", True),
        ("Failed", ended(0), ended(137), "Succeeded", False),
        ("Failed", ended(1), ended(0), "Failed", False),
        ("Running", WAITS, RUNS, "Pending", False),
        ("Failed", RUNS, RUNS, "Failed", False),
        ("Unknown", RUNS, RUNS, "Unknown", False),
    ],
)
def test_only_the_container_of_the_role_counts(
    phase: str, own: dict[str, Any], other: dict[str, Any], judged: str, held: bool, order: int
) -> None:
    found = pod(phase, *[("driver", own), ("istio-proxy", other)][::order])
    assert (found.phase, found.held) == (judged, held)
    assert found.waiting in (None, ("ContainerCreating", ""))


def test_what_another_container_leaves_is_not_the_drivers() -> None:
    found = pod("Failed", ("driver", ended(1, "Error", "mine")), ("z-proxy", ended(0, "OOMKilled", "another's")))
    assert (found.exit_code, found.exit_reason, found.termination_message) == (1, "Error", "mine")
    assert pod("Failed", ("z-proxy", ended(0, "Completed", "another's"))).termination_message == ""


def test_a_pod_without_statuses_of_containers_has_its_own_phase() -> None:
    assert [pod(phase).phase for phase in ("Pending", "Running", "Failed")] == ["Pending", "Running", "Failed"]


def test_a_driver_waits_for_init_containers_that_others_have_put_before_it() -> None:
    pulls = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    own = ("driver", {"waiting": {"reason": "PodInitializing"}})
    assert pod("Pending", own, init=(("istio-init", pulls),)).waiting == ("ImagePullBackOff", "no such image")
    later = ("istio-proxy", {"waiting": {"reason": "PodInitializing"}})
    assert pod("Pending", own, init=(("istio-init", ended(0)), later)).waiting == ("PodInitializing", "")
    assert pod("Running", ("driver", RUNS), init=(("istio-proxy", pulls),)).waiting is None


def run_with(*pods: dict[str, Any]) -> World:
    """A run whose driver has run, and whose pods are as given now."""
    world = World("KafkaBackup", backup_spec(schedule={"cron": "0 2 * * *"}))
    world.settle()
    world.job_is(active=1)
    world.driver("Running")
    world.reports(progress=world.progress())
    world.settle()
    world.pass_time(seconds=30)
    for number, more in enumerate(pods):
        world.driver(more.pop("phase", "Failed"), name=f"driver-{number}", uid=f"uid-{number}", **more)
    world.pods = world.pods[1:]
    return world


def test_a_driver_that_ends_for_good_beside_a_sidecar_ends_its_run() -> None:
    world = run_with({"held": True, "exit_code": 2, "exit_reason": "Error"})
    world.reports(result=world.failed_result(exit_code=2, error_code="NoTopicMatches", message="no such topic"))
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert world.condition("Stalled") == ("True", "NoTopicMatches")
    world.pass_time(seconds=150)
    plan = world.step()
    assert [type(action) for action in plan.actions] == [DeleteJob]
    assert [event.reason for event in plan.events] == ["DriverStuck"]


@pytest.mark.parametrize("reported", [True, False])
def test_a_driver_that_ends_well_beside_a_sidecar_has_succeeded(reported: bool) -> None:
    world = run_with({"phase": "Succeeded", "held": True, "exit_code": 0, "exit_reason": "Completed"})
    if reported:
        world.reports(result=world.result())
    plan = world.step()
    assert world.status.phase is Phase.SUCCEEDED
    assert not [action for action in plan.actions if isinstance(action, DeletePod)], "its Job would begin another one"


@pytest.mark.parametrize("code", [1, 6, 137, 143])
def test_a_driver_that_is_tried_again_does_not_wait_for_its_sidecar(code: int) -> None:
    world = run_with({"held": True, "exit_code": code, "exit_reason": "Error"})
    plan = world.step()
    assert DeletePod("driver-0", "uid-0") in plan.actions
    assert world.status.phase is Phase.RUNNING
    assert world.condition("Ready") == ("False", "Retrying")
    assert not [action for action in world.step().actions if isinstance(action, DeletePod)]


def test_a_driver_that_has_ended_beside_a_sidecar_is_not_silent_and_lacks_no_executors() -> None:
    world = run_with({"held": True, "exit_code": 1, "exit_reason": "Error"})
    for _ in range(5):
        world.pass_time(minutes=10)
        world.step()
        assert world.condition("Ready")[1] not in ("NoProgress", "NoExecutors")


def test_executors_whose_driver_has_ended_beside_a_sidecar_go() -> None:
    world = run_with({"phase": "Succeeded", "held": True, "exit_code": 0})
    world.pods.append(PodState("exec", world.run_id, "executor", "Running", uid="e", owner="uid-0"))
    assert DeletePod("exec", "e") in world.step().actions


def test_an_init_container_that_has_failed_is_named() -> None:
    failure = "init container istio-init ended with exit code 3 (Error)"
    own = ("driver", {"waiting": {"reason": "PodInitializing"}})
    assert pod("Failed", own, init=(("istio-init", ended(3)),)).init_failure == failure
    assert pod("Failed", ("driver", ended(1)), init=(("istio-init", ended(3)),)).init_failure == ""
    world = run_with({"init_failure": failure})
    world.step()
    assert world.message() == f"An attempt failed and is tried again: driver pod driver-0: {failure}"


def test_evictions_are_reported_as_retries_since_the_job_does_not_count_them() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    assert pod("Failed", conditions=[condition]).disrupted
    assert not pod("Failed", conditions=[{**condition, "status": "False"}]).disrupted
    evicted = {"disrupted": True, "reason": ("Evicted", "The node was low on resource: memory.")}
    world = run_with(*[dict(evicted) for _ in range(5)])
    world.step()
    assert world.condition("Ready") == ("False", "Retrying")
    assert "Evicted: The node was low on resource: memory." in world.message()


def test_an_eviction_among_failures_is_not_counted() -> None:
    failures: list[dict[str, Any]] = [{"exit_code": 1} for _ in range(RunPolicy().backoff_limit)]
    world = run_with(*failures, {"disrupted": True, "reason": ("Evicted", "memory")})
    world.step()
    assert world.condition("Ready")[1] == "Retrying"
    world = run_with(*[dict(one) for one in failures], {"disrupted": True}, {"exit_code": 1})
    world.step()
    assert world.condition("Ready")[1] == "Ending"

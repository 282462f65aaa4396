"""Executors that nobody needs any more: the operator deletes them, since their driver may not."""

from __future__ import annotations

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import Progress
from logkeep_operator.reconcile import DeletePod, PodState
from logkeep_operator.reconcile.executors import DELETE_ON_TERMINATION
from tests.unit.operator.world import World


def world(driver: str, *executors: str, **conf: str) -> World:
    """A run whose pods are in these phases."""
    world = World()
    world.step()
    world.edit(spark={"conf": conf})
    world.step()
    world.pods = [PodState("driver", world.run_id, "driver", driver, uid="driver")]
    world.pods += [
        PodState(f"exec-{number}", world.run_id, "executor", phase, uid=f"uid-{number}", owner="driver")
        for number, phase in enumerate(executors, 1)
    ]
    return world


def deleted(world: World) -> list[str]:
    return [action.name for action in world.step().actions if isinstance(action, DeletePod)]


def test_an_executor_that_has_ended_goes_and_the_others_stay() -> None:
    running = world("Running", "Pending", "Running", "Succeeded", "Failed")
    assert deleted(running) == ["exec-3", "exec-4"]
    assert deleted(running) == []


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_what_a_driver_leaves_behind_goes(end: str) -> None:
    assert deleted(world(end, "Pending", "Running", "Unknown", "Failed")) == ["exec-1", "exec-2", "exec-3", "exec-4"]


def test_the_next_attempts_executors_are_not_those_of_the_last_one() -> None:
    found = world("Failed", "Pending")
    found.pods.append(PodState("driver-2", found.run_id, "driver", "Running", uid="driver-2"))
    found.pods.append(PodState("exec-9", found.run_id, "executor", "Pending", uid="uid-9", owner="driver-2"))
    assert deleted(found) == ["exec-1"]


def test_executors_that_did_not_come_go_when_the_driver_does_the_work_itself() -> None:
    found = world("Running", "Pending", "Running")
    found.pods = [replace(pod, created=found.now) for pod in found.pods]
    found.pass_time(seconds=-10)
    given_up = Progress(run_id=found.run_id, phase="Running", start_time=0.0, update_time=0.0, executors=0)
    found.documents[found.run_id] = replace(found.documents[found.run_id], progress=given_up, written=found.now)
    assert deleted(found) == []  # said before the pods were made
    found.pass_time(seconds=20)
    found.documents[found.run_id] = replace(found.documents[found.run_id], written=found.now)
    assert deleted(found) == ["exec-1"]


@pytest.mark.parametrize("driver", ["Running", "Succeeded", "Failed"])
def test_executors_that_have_begun_stay_if_the_resource_says_so(driver: str) -> None:
    kept = world(driver, "Running", "Pending", "Failed", "Succeeded", **{DELETE_ON_TERMINATION: "false"})
    assert deleted(kept) == ([] if driver == "Running" else ["exec-2"])


def test_an_executor_on_its_way_out_is_not_deleted_again() -> None:
    found = world("Failed", "Running")
    found.pods = [replace(pod, deleting=pod.role == "executor") for pod in found.pods]
    assert deleted(found) == []

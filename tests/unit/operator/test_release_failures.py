"""A release of held topics that fails, waits or is lost is reported, and tried again."""

from __future__ import annotations

from typing import Any

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import RunOrigin, is_at_rest, refused
from logkeep_operator.reconcile.queue import RunQueue
from logkeep_operator.settings import Concurrency
from tests.unit.operator.held_topics import HELD, as_it_ended, begin, fail, held, release, restored
from tests.unit.operator.world import World


def test_a_release_that_fails_is_tried_again_later_and_later() -> None:
    world = restored()
    before = as_it_ended(world)
    begin(world)
    at = world.now
    waits = []
    for number in range(1, 10):
        fail(world)
        assert as_it_ended(world) == before
        assert (held(world).failures, held(world).failed_time) == (number, timestamp(world.now))
        assert world.condition("Ready") == ("False", "ReleaseFailed")
        assert world.condition("Reconciling") == ("True", "ReleaseFailed")
        times = "1 time" if number == 1 else f"{number} times"
        assert f"due at {timestamp(at)}, has failed {times} and is tried again at " in world.message()
        assert ": BrokerUnavailable: It is BrokerUnavailable. (the driver failed as often" in world.message()
        assert world.events.pop() == ("Warning", "ReleaseFailed")
        assert world.events == []
        world.created.clear()
        world.pass_time(seconds=59)
        plan = world.step()
        assert (world.created, plan.status) == ([], None), "it waits"
        assert plan.requeue_after is not None
        waits.append(plan.requeue_after + 59)
        world.pass_time(seconds=plan.requeue_after)
        assert not is_at_rest(world.resource, world.now)
        world.step()
        world.collect()
        world.settle()
        assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"]
        assert world.condition("Ready")[0] == "False", "an alert must not come and go"
        world.job_is(active=1)
        world.driver()
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    release(world)
    assert held(world).failures is None
    assert held(world).message is None
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert world.condition("Reconciling")[0] == "False"


def test_a_failure_is_reported_once_whatever_becomes_of_the_status() -> None:
    world = restored()
    begin(world)
    failure = world.failed_result(exit_code=2, error_code="StateAltered", message="It was altered.")
    world.reports(result=failure)
    world.driver("Failed", exit_code=2)
    world.job_is(active=0, failure=("PodFailurePolicy", ""))
    world.step(conflict=True)
    world.settle()
    world.settle()
    assert held(world).failures == 1
    assert (held(world).message or "").startswith("StateAltered: It was altered.")


def test_a_report_that_was_lost_is_no_release() -> None:
    world = restored()
    begin(world)
    world.documents[world.run_id] = replace(world.documents[world.run_id], result=None, progress=None)
    world.driver("Succeeded", exit_code=0)
    world.job_is(active=0, complete=True)
    world.settle()
    assert held(world).failures == 1
    assert "is tried again at" in world.message()
    assert "the driver's report was lost" in world.message()
    assert world.condition("Ready") == ("False", "ReleaseFailed")


def test_a_job_that_was_deleted_is_made_again() -> None:
    world = restored()
    begin(world)
    world.created.clear()
    del world.jobs[world.run_id]
    world.step()
    assert world.created == [], "its driver lives"
    world.collect()
    world.settle()
    assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"]
    assert held(world).failures is None
    world.driver()
    release(world)
    assert held(world).released == 3


def test_a_result_without_its_job_is_not_believed() -> None:
    """Whoever may make ConfigMaps can make one with the key of a release."""
    world = restored()
    world.pass_time(days=1)
    del world.jobs[world.run_id]
    world.collect()
    found = replace(HELD, released=3, released_time=timestamp(world.now))
    world.reports(result=world.result(held_topics=found))
    key = f"{world.run_id}.release.{held(world).release_time}.0"
    world.documents[world.run_id] = replace(world.documents[world.run_id], origin=RunOrigin(key))
    world.settle()
    assert held(world).released_time is None
    assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"]


def test_the_end_of_the_restore_is_not_taken_for_that_of_the_release() -> None:
    world = restored()
    world.pass_time(days=1)
    world.step()  # the Job goes, its pod is still there, with the result of the restore
    world.driver("Succeeded", exit_code=0, termination_message=world.result(held_topics=HELD).to_json())
    world.step()
    assert world.condition("Ready") == ("True", "WaitingForPreviousRun")
    assert (world.created, held(world).released_time) == ([], None)


def test_a_driver_of_the_restore_that_has_not_ended_is_waited_for() -> None:
    world = restored("5s")
    world.driver("Running")
    world.job_is(active=1, complete=False)
    world.pass_time(seconds=10)
    world.settle()
    assert world.created == []
    world.pass_time(minutes=3)
    world.step()
    assert ("Warning", "DriverStuck") in world.events
    world.collect()
    world.settle()
    assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"]


def test_what_the_run_needs_is_waited_for_and_told() -> None:
    world = restored()
    backup, world.backup = world.backup, None
    world.pass_time(days=1)
    world.step()
    world.collect()
    world.settle()
    assert world.condition("Ready") == ("False", "BackupNotFound")
    assert world.message().startswith("The release of 3 held topics is on its way: spec.source.backupRef: ")
    assert (world.created, world.status.phase) == ([], Phase.SUCCEEDED)
    world.backup = backup
    world.settle()
    assert world.condition("Ready") == ("True", "Pending")
    assert world.created[-1]["kind"] == "Job"


def test_an_object_that_the_api_refuses_leaves_the_phase_as_it_is() -> None:
    world = restored()
    world.pass_time(days=1)
    status = refused(world.resource, "ApiRefused", "exceeded quota", world.now).status
    assert status is not None
    ready = status.condition("Ready")
    assert ready is not None
    assert (status.phase, ready.status, ready.reason) == (Phase.SUCCEEDED, "False", "ApiRefused")


def test_a_release_waits_for_its_turn_among_the_drivers() -> None:
    world = restored()
    world.turns = RunQueue(Concurrency(operator=1), frozenset({another(world)}))
    world.pass_time(days=1)
    world.step()
    world.collect()
    world.settle()
    assert world.created == []
    assert world.condition("Ready") == ("True", "Queued")
    world.turns = RunQueue()
    world.settle()
    assert world.created[-1]["kind"] == "Job"


def another(world: World) -> Any:
    """The key of another restore."""
    return world.resource.key._replace(name="another")

"""A failed restore continues with the same run when the annotation `logkeep.dev/retry` says so, and only then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract import names
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile import DeleteJob, is_at_rest
from tests.unit.operator.world import World, backup_spec, resource, restore_spec


def begun() -> World:
    world = World("KafkaRestore", restore_spec())
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.driver()
    return world


def fail(world: World, **changes: Any) -> None:
    """The driver is refused, and the Job gives up."""
    world.pass_time(minutes=1)
    refusal = world.failed_result(exit_code=2, error_code="TopicExists", message="orders exists.", **changes)
    world.reports(world.progress(), refusal)
    world.driver("Failed", exit_code=2, termination_message=refusal.to_termination_message(4096))
    world.job_is(failure=("PodFailurePolicy", ""))
    world.step()


def failed() -> World:
    world = begun()
    fail(world)
    world.settle()
    assert world.status.phase is Phase.FAILED
    world.created.clear()
    world.events.clear()
    world.pass_time(minutes=1)
    return world


def tidied(world: World) -> None:
    """Reconcile, and let the garbage collector do its part."""
    world.step()
    world.collect()
    world.settle()


def test_the_condition_of_a_failed_restore_says_how_it_continues_also_after_another_look() -> None:
    world = begun()
    fail(world)
    reported = world.message()
    assert reported.startswith("orders exists.")
    assert "kubectl -n team annotate krst again logkeep.dev/retry=" in reported
    world.settle()
    assert world.message() == reported


def test_a_failed_restore_continues_with_the_same_run_and_what_the_spec_says_now() -> None:
    world = failed()
    run_id, job = world.run_id, world.jobs[world.run_id].name
    world.edit(spark={"driver": {"memory": "4Gi"}}, limits={"bytesPerSecond": "5Mi"}, runPolicy={"backoffLimit": 9})
    world.settle()
    assert (world.status.phase, world.created) == (Phase.FAILED, []), "a changed spec alone starts nothing"

    world.retry("1")
    plan = world.step()
    assert [action.name for action in plan.actions if isinstance(action, DeleteJob)] == [job]
    assert world.condition("Reconciling") == ("True", "WaitingForPreviousRun")
    assert plan.requeue_after is not None
    world.settle()
    assert world.created == [], "the pod of the old Job is still there"
    world.collect()
    world.settle()

    assert (world.run_id, set(world.jobs)) == (run_id, {run_id})
    assert world.condition("Reconciling")[0] == "True"
    assert world.status.phase is Phase.PENDING
    made = {body["kind"]: body for body in world.created}
    assert made["Job"]["spec"]["backoffLimit"] == 9
    assert made["Job"]["metadata"]["name"] == job
    requests = [body["data"][names.KEY_REQUEST] for body in world.created if names.KEY_REQUEST in body.get("data", {})]
    request = json.loads(requests[0])
    assert (request["runId"], request["spec"]["limits"]) == (run_id, {"bytesPerSecond": "5Mi"})
    assert world.events == [("Normal", "RunRetried")]
    assert world.status.last_handled_retry == "1"
    assert world.status.run is not None
    assert world.status.run.exit_code is None, "that of the attempt before"

    world.pass_time(minutes=1)
    world.complete()
    assert world.condition("Ready") == ("True", "RunSucceeded")
    ends = [(entry.run_id, entry.outcome) for entry in world.status.history]
    assert ends == [(run_id, "Succeeded"), (run_id, "Failed")]


def test_each_value_is_one_try() -> None:
    world = failed()
    for value in ("1", "2", "2"):
        before = len([reason for _, reason in world.events if reason == "RunRetried"])
        new = value != world.status.last_handled_retry
        world.retry(value)
        tidied(world)
        assert len([reason for _, reason in world.events if reason == "RunRetried"]) == before + new
        if new:
            assert world.status.phase is Phase.PENDING
            fail(world)
            world.settle()
        assert world.status.phase is Phase.FAILED
    assert [entry.outcome for entry in world.status.history] == ["Failed"] * 3
    world.resource = replace(world.resource, annotations={})
    tidied(world)
    assert world.status.phase is Phase.FAILED


def test_a_value_from_the_beginning_asks_for_nothing() -> None:
    world = World("KafkaRestore", restore_spec())
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.retry("in-git")
    world.settle()
    fail(world)
    tidied(world)
    assert (world.status.phase, world.status.last_handled_retry) == (Phase.FAILED, "in-git")


def test_a_value_that_comes_while_the_run_continues_is_answered_when_it_has_failed() -> None:
    world = begun()
    world.retry("1")
    world.settle()
    assert not [reason for _, reason in world.events if reason == "RunRetried"]
    fail(world)
    assert [entry.outcome for entry in world.status.history] == ["Failed"]
    tidied(world)
    assert world.status.phase is Phase.PENDING
    world.complete()
    world.retry("2")
    tidied(world)
    assert world.condition("Ready") == ("True", "RunSucceeded")


def test_a_suspended_restore_is_tried_again_when_it_is_resumed() -> None:
    world = failed()
    world.edit(suspend=True)
    world.retry("1")
    tidied(world)
    assert (world.status.phase, world.created) == (Phase.SUSPENDED, [])
    world.edit(suspend=False)
    tidied(world)
    assert (world.status.phase, set(world.jobs)) == (Phase.PENDING, {world.run_id})


def test_what_is_asked_for_is_not_settled() -> None:
    world = failed()
    world.pass_time(hours=1)
    assert is_at_rest(world.resource, world.now)
    world.retry("1")
    assert not is_at_rest(world.resource, world.now)
    tidied(world)
    fail(world)
    world.settle()
    world.pass_time(hours=1)
    assert is_at_rest(world.resource, world.now)


@pytest.mark.parametrize("lost", range(5))
def test_the_operator_may_die_before_any_status_is_written(lost: int) -> None:
    world = failed()
    run_id = world.run_id
    world.retry("1")
    for number in range(8):
        before = world.status
        world.step()
        if number == lost:
            world.resource = replace(world.resource, status=before)
        if number == 1:
            world.collect()
    world.settle()
    assert (world.run_id, set(world.jobs), world.status.phase) == (run_id, {run_id}, Phase.PENDING)
    jobs: list[dict[str, Any]] = [body for body in world.created if body["kind"] == "Job"]
    assert {body["metadata"]["name"] for body in jobs} == {jobs[0]["metadata"]["name"]}
    world.complete()
    assert world.status.phase is Phase.SUCCEEDED


def test_a_driver_that_still_lives_is_waited_for() -> None:
    world = failed()
    world.driver("Running")
    world.retry("1")
    world.settle()
    assert (world.condition("Reconciling"), world.jobs) == (("True", "WaitingForPreviousRun"), {})
    world.collect()
    world.settle()
    assert set(world.jobs) == {world.run_id}


def test_the_silence_of_the_last_try_is_not_the_next_ones() -> None:
    world = failed()
    world.pass_time(hours=1)
    world.retry("1")
    tidied(world)
    world.driver()
    world.settle()
    assert world.condition("Ready") == ("False", "Running")


def test_the_documents_of_the_last_try_are_not_made_again_while_they_go() -> None:
    world = failed()
    world.retry("1")
    world.step()
    assert world.documents == {}
    world.settle()
    assert world.created == [], "the pod of the old Job is still there"


def test_a_verification_that_found_a_difference_is_no_news_once_the_run_continues() -> None:
    world = begun()
    fail(world, verification=VerificationFacts(outcome="Different", message="one is lost", partitions=1, different=1))
    world.settle()
    assert world.status.verification is not None
    world.pass_time(minutes=1)
    world.retry("now")
    tidied(world)
    assert world.status.verification is None

"""Conditions, metrics and waits that said something else than what was the case."""

from __future__ import annotations

import pytest

from logkeep_engine.contract.model import replace
from logkeep_operator.api import Key, Phase, Status
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import SuspendJob, job_state
from tests.unit.operator.test_reconcile import started, succeeded
from tests.unit.operator.world import World

# ---- suspension after an end


def test_a_backup_that_is_suspended_after_a_success_is_not_ready() -> None:
    world = succeeded()
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    assert [world.condition(kind)[0] for kind in ("Ready", "Reconciling", "Stalled")] == ["False", "False", "False"]
    assert world.condition("Ready")[1] == "Suspended"
    assert world.events.count(("Normal", "Suspended")) == 1
    world.edit(suspend=False)
    world.settle()
    assert (world.status.phase, world.condition("Ready")) == (Phase.SUCCEEDED, ("True", "RunSucceeded"))
    assert len(world.status.history) == 1


def test_a_run_that_succeeds_while_it_is_suspended_is_not_ready() -> None:
    world = started()
    world.driver()
    world.settle()
    world.edit(suspend=True)
    world.reports(result=world.result())
    world.step()
    assert (world.status.phase, world.condition("Ready")) == (Phase.SUSPENDED, ("False", "Suspended"))
    assert world.condition("DataLoss")[0] == "False"
    assert world.status.last_success_time is not None
    world.settle()
    assert [entry.outcome for entry in world.status.history] == ["Succeeded"]


def test_suspending_does_not_hide_a_failure() -> None:
    world = started()
    world.job_is(failure=("PodFailurePolicy", ""))
    world.reports(result=world.failed_result(exit_code=2, error_code="TopicMissing"))
    world.settle()
    world.edit(suspend=True)
    world.settle()
    assert (world.status.phase, world.condition("Stalled")) == (Phase.FAILED, ("True", "TopicMissing"))


def test_a_restore_that_has_succeeded_stays_so_when_a_newer_version_refuses_its_spec() -> None:
    world = started("KafkaRestore")
    world.complete()
    before = world.status
    world.edit(spark={"conf": {"spark.kubernetes.driver.podTemplateFile": "/template"}})
    world.settle()
    assert (world.status.phase, world.condition("Ready")) == (Phase.SUCCEEDED, ("True", "RunSucceeded"))
    assert world.status == replace(before, observed_generation=2)


# ---- a Job that a queue holds


def test_a_job_that_a_queue_has_suspended_is_left_to_it() -> None:
    world = started()
    world.job_is(suspended=True)
    plan = world.step()
    assert [action for action in plan.actions if isinstance(action, SuspendJob)] == []
    assert world.condition("Ready") == ("False", "Queued")
    assert (world.condition("Reconciling")[0], world.status.phase) == ("True", Phase.PENDING)
    world.settle()
    world.job_is(suspended=False, active=1)
    world.driver()
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    world.job_is(suspended=True, active=0)  # preempted
    world.pods = []
    world.settle()
    assert world.jobs[world.run_id].suspended


def test_the_user_and_the_queue_suspend_independently() -> None:
    world = started()
    world.job_is(suspended=True, by_operator=False)
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    world.edit(suspend=False)
    world.settle()
    assert world.jobs[world.run_id].suspended, "the queue has not let it go"
    assert world.condition("Ready") == ("False", "Queued")


def test_a_suspended_run_that_a_queue_lets_continue_rests_all_the_same() -> None:
    world = started()
    run_id = world.run_id
    world.edit(suspend=True)
    world.settle()
    world.job_is(suspended=False, by_operator=True)  # Kueue starts what it has admitted, whoever has suspended it
    world.settle()
    assert (world.jobs, world.status.phase) == ({}, Phase.SUSPENDED)
    world.edit(suspend=False)
    world.settle()
    assert set(world.jobs) == {run_id}, "the same run goes on"


def test_what_the_operator_has_suspended_continues_although_the_status_was_wiped() -> None:
    world = started()
    world.job_is(suspended=True, by_operator=True)
    assert world.status.phase is not Phase.SUSPENDED
    assert SuspendJob(world.jobs[world.run_id].name, False) in world.step().actions


def test_a_job_says_who_has_suspended_it() -> None:
    (made,) = [body for body in started().created if body["kind"] == "Job"]
    for written, expected in (
        (made["metadata"]["annotations"], False),
        ({"logkeep.dev/suspended": "true"}, True),
        ({}, False),
    ):
        metadata = {**made["metadata"], "uid": "u", "annotations": written}
        assert job_state({**made, "metadata": metadata}).by_operator is expected


# ---- waiting for the run that was asked for


def test_a_run_whose_status_was_lost_answers_the_annotation_too() -> None:
    world = World()
    world.annotate("2026-11-22")
    world.settle()
    world.complete()
    world.resource = replace(world.resource, status=Status())
    world.settle()
    assert (world.status.phase, len(world.jobs)) == (Phase.SUCCEEDED, 1)
    assert world.status.last_handled_run == "2026-11-22"


# ---- metrics


def value(metrics: Metrics, name: str, key: Key) -> float | None:
    return metrics.registry.get_sample_value(name, {"kind": key.kind, "namespace": key.namespace, "name": key.name})


def test_a_backup_that_never_succeeded_has_series_for_the_alert() -> None:
    metrics, world = Metrics(), World()
    body = {"metadata": {"creationTimestamp": "2026-11-01T00:00:00Z"}}
    never = replace(world.resource, body=body)
    metrics.seen(never.key, never.status, never.created)
    assert value(metrics, "logkeep_last_success_timestamp_seconds", never.key) == 0
    created = value(metrics, "logkeep_resource_created_timestamp_seconds", never.key)
    assert created == 1793491200
    done = succeeded()
    metrics.seen(done.resource.key, done.status, None)
    assert value(metrics, "logkeep_last_success_timestamp_seconds", done.resource.key) == 1795248000
    metrics.gone(never.key)
    for name in ("logkeep_last_success_timestamp_seconds", "logkeep_resource_created_timestamp_seconds"):
        assert value(metrics, name, never.key) is None


@pytest.mark.parametrize("succeeds", [True, False])
@pytest.mark.parametrize("edits", [True, False])
def test_the_end_of_a_run_is_not_reported_as_that_of_the_one_asked_for_meanwhile(succeeds: bool, edits: bool) -> None:
    """Whoever waits for Ready or Stalled of the generation that was applied, or after the annotation, must not see it
    by the run before."""
    world = World()
    world.settle()
    first = world.run_id
    if edits:
        world.edit(topics={"include": ["t9"]})
    else:
        world.annotate("2")
    world.reports(result=world.result() if succeeds else world.failed_result())
    world.job_is(complete=succeeds, failure=None if succeeds else ("BackoffLimitExceeded", ""))
    world.step()
    assert [entry.run_id for entry in world.status.history] == [first]
    assert world.status.phase is Phase.PENDING
    for kind, status in (("Ready", "False"), ("Stalled", "False"), ("Reconciling", "True")):
        assert world.condition(kind)[0] == status
    world.settle()
    assert world.run_id != first

"""The operator decides: from every state that can be seen it goes to the right next one."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import LossFact, TopicCoverage
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import TASK_PHASES
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile import (
    Create,
    DeleteConfigMap,
    DeleteJob,
    EnsureAccess,
    EnsureNetworkPolicy,
    SuspendJob,
    is_at_rest,
    reconcile,
    refused,
)
from logkeep_operator.reconcile.conditions import stalled
from logkeep_operator.reconcile.observed import Observed
from tests.unit.operator.world import ENGINE, START, World, backup_spec, resource, restore_spec


def started(kind: str = "KafkaBackup", **spec: Any) -> World:
    base = backup_spec() if kind == "KafkaBackup" else restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}})
    world = World(kind, base | spec)
    world.settle()
    return world


def succeeded() -> World:
    world = started()
    world.driver()
    world.reports(world.progress())
    world.settle()
    world.complete()
    return world


# ---- starting


def test_a_new_backup_gets_access_config_maps_and_job_in_this_order() -> None:
    world = World()
    plan = world.step()
    assert isinstance(plan.actions[0], EnsureAccess)
    assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"]
    assert world.events == [("Normal", "RunStarted")]
    assert world.status.phase is Phase.PENDING
    assert (world.condition("Ready")[0], world.condition("Reconciling")[0], world.condition("Stalled")[0]) == (
        "False", "True", "False",
    )  # fmt: skip


@pytest.mark.parametrize("there", [0, 1, 2, 3])
def test_reconciling_again_after_a_crash_makes_what_is_not_there_yet(there: int) -> None:
    world = World()
    lost = World()
    world.step()
    lost.step()
    lost.resource = replace(lost.resource, status=resource("KafkaBackup", backup_spec()).status)  # never written
    made = [body["metadata"]["name"] for body in world.created]
    for name in made[there:]:
        lost.delete_config_map(name)
    if there < 3:
        lost.jobs = {}
    lost.step()
    # Without a Job there is no driver: what lies under the names of its ConfigMaps is made again.
    assert [body["metadata"]["name"] for body in lost.created[3:]] == ([] if there == 3 else made)
    assert lost.run_id == world.run_id


def test_a_deleted_resource_is_left_to_the_garbage_collector() -> None:
    world = started()
    world.jobs = {}
    world.resource = replace(world.resource, deleting=True)
    plan = world.step()
    assert (plan.actions, plan.status, plan.events) == ((), None, ())


def test_a_service_account_of_the_users_own_needs_no_access_objects() -> None:
    world = World(spec=backup_spec(spark={"serviceAccountName": "own"}))
    plan = world.step()
    assert not any(isinstance(action, EnsureAccess) for action in plan.actions)


def test_nobody_else_connects_to_drivers_and_executors_unless_the_installation_says_otherwise() -> None:
    world = World(spec=backup_spec(spark={"serviceAccountName": "own"}))
    assert EnsureNetworkPolicy("team") in world.step().actions
    open_to_all = replace(ENGINE, network_policies=False)
    plan = reconcile(Observed(World().resource), START, open_to_all)
    assert not any(isinstance(action, EnsureNetworkPolicy) for action in plan.actions)


# ---- going on


def test_progress_is_folded_into_the_status() -> None:
    world = started()
    world.driver()
    world.executor(1)
    world.job_is(active=1)
    world.reports(world.progress())
    world.settle()
    shown = world.status.progress
    assert shown is not None
    assert (shown.display, shown.percent, shown.records, shown.bytes) == ("1/2", 54, 600, 5900)
    assert [(p.topic, p.partition, p.done, p.total) for p in shown.lagging] == [("orders", 0, 500, 1000)]
    assert world.status.phase is Phase.RUNNING


def test_progress_of_another_run_is_not_shown() -> None:
    world = started()
    world.driver()
    world.documents["other"] = replace(world.documents[world.run_id], progress=world.progress(run_id="other"))
    world.settle()
    assert world.status.progress is None


def test_an_attempt_that_failed_is_no_end_while_the_job_continues() -> None:
    world = started()
    world.driver("Failed", exit_code=1)
    world.job_is(active=0, failed=1)
    world.reports(world.progress(), world.failed_result())
    world.settle()
    assert world.status.phase is Phase.RUNNING
    assert world.condition("Ready") == ("False", "Retrying")
    assert "No broker answers at kafka:9092." in world.message()
    assert world.events.count(("Warning", "Retrying")) == 1
    world.driver("Running", name="driver-pod-2")
    world.job_is(active=1, failed=1)
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    assert world.message().startswith("The run is in progress again, after an attempt that failed: No broker answers")
    assert world.status.run is not None
    assert world.status.run.attempt == 2


@pytest.mark.parametrize("kind", ["KafkaBackup", "KafkaRestore"])
def test_a_job_deleted_by_hand_is_made_again(kind: str) -> None:
    world = started(kind)
    run_id, name = world.run_id, world.jobs[world.run_id].name
    world.jobs = {}
    world.settle()
    assert (world.run_id, world.jobs[run_id].name) == (run_id, name)
    assert ("Warning", "JobRecreated") in world.events


def test_a_job_that_is_made_again_has_the_spark_settings_of_now() -> None:
    world = started()
    world.edit(spark={"executor": {"instances": 7}})
    world.settle()
    world.jobs = {}
    plan = world.step()
    deleted = [action.name for action in plan.actions if isinstance(action, DeleteConfigMap)]
    request = next(body for body in world.created[3:] if body["metadata"]["name"] in deleted)
    assert '"spark.executor.instances":"7"' in request["data"]["request.json"]


def test_the_job_is_not_made_again_while_its_driver_pod_lives() -> None:
    world = started()
    world.driver("Running")
    world.jobs = {}
    plan = world.step()
    assert plan.actions == ()
    assert plan.requeue_after == pytest.approx(3.0)
    assert world.condition("Ready") == ("False", "WaitingForPreviousRun")
    world.pods = []
    world.settle()
    assert world.run_id in world.jobs


# ---- ends


def test_success() -> None:
    world = succeeded()
    status = world.status
    assert status.phase is Phase.SUCCEEDED
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert (world.condition("Reconciling")[0], world.condition("Stalled")[0]) == ("False", "False")
    assert world.condition("DataLoss")[0] == "False"
    assert status.progress is not None
    assert (status.progress.display, status.progress.percent, status.progress.records) == ("2/2", 100, 1100)
    assert status.archive is not None
    assert (status.archive.id, status.archive.uri, status.archive.epoch, status.archive.commit) == (
        "a1", "s3://bucket/prefix", 3, 7,
    )  # fmt: skip
    assert status.last_success_time == "2026-11-21T08:00:00Z"
    assert [(entry.outcome, entry.records) for entry in status.history] == [("Succeeded", 1100)]
    assert world.events == [("Normal", "RunStarted"), ("Normal", "RunSucceeded")]


def test_success_is_seen_from_the_termination_message_alone() -> None:
    world = started()
    world.driver("Succeeded", exit_code=0, termination_message=world.result().to_termination_message(4096))
    world.documents = {}
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED


def test_success_is_seen_from_the_config_map_when_job_and_pods_are_gone() -> None:
    world = started()
    world.reports(result=world.result())
    world.jobs = {}
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert world.jobs == {}


def test_success_is_seen_from_the_job_alone() -> None:
    world = started()
    world.documents = {}
    world.job_is(complete=True)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert "report was lost" in world.message()


def test_a_completed_job_outweighs_the_result_of_an_attempt_that_failed() -> None:
    world = started()
    world.reports(result=world.failed_result())
    world.job_is(complete=True, failed=1)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED


def test_a_success_is_the_last_result_although_the_clock_of_an_earlier_attempt_was_ahead() -> None:
    world = started()
    ahead = world.failed_result(end_time=world.now.timestamp() + 600)
    world.driver("Failed", name="first", exit_code=1, termination_message=ahead.to_json())
    world.settle()
    world.pass_time(seconds=30)
    world.driver("Succeeded", name="second", exit_code=0)
    loss = (LossFact(topic="orders", partition=0, start=10, end=20, reason="retention overtook the reader"),)
    world.reports(result=world.result(loss=loss, loss_total=1, loss_offsets=10))
    world.job_is(failed=1, complete=True)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert "1100 records" in world.message()
    assert world.condition("DataLoss")[0] == "True"


def test_a_job_that_was_refused_gets_the_request_of_the_spec_that_was_corrected() -> None:
    """The request was made before the Job, and what the spec says of Spark does not make it another run."""
    world = World()
    world.step(conflict=True)
    (run_id,) = world.jobs
    world.jobs = {}  # a webhook has refused it
    world.edit(spark={"image": "registry.example/allowed:1"})
    world.created = []
    plan = world.step()
    assert world.run_id == run_id
    requests = [body for body in world.created if body["metadata"]["name"].endswith("-request")]
    kinds = [type(action) for action in plan.actions]
    assert plan.actions.index(DeleteConfigMap(requests[0]["metadata"]["name"])) < kinds.index(Create)
    assert "registry.example/allowed:1" in requests[0]["data"]["request.json"]


@pytest.mark.parametrize(("days", "hours"), [(-30, 0), (30, 1)])
def test_no_success_is_told_of_a_time_that_cannot_be(days: int, hours: int) -> None:
    """The clock of the driver's node is off; the alert on the last success would be silent for a month, or cry."""
    world = started()
    world.pass_time(hours=1)
    world.reports(result=world.result(end_time=(world.now + timedelta(days=days)).timestamp()))
    world.job_is(complete=True)
    world.settle()
    assert world.status.last_success_time == timestamp(START + timedelta(hours=hours))
    assert world.status.history[0].end_time == timestamp(START + timedelta(hours=hours))


def test_failure_by_back_off_says_what_the_driver_said() -> None:
    world = started()
    world.reports(world.progress(), world.failed_result())
    world.job_is(failed=4, failure=("BackoffLimitExceeded", "Job has reached the specified backoff limit"))
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert world.condition("Stalled") == ("True", "BrokerUnavailable")
    assert "No broker answers at kafka:9092." in world.message()
    assert "backoffLimit" in world.message()
    assert ("Warning", "RunFailed") in world.events
    assert world.status.last_success_time is None


@pytest.mark.parametrize(("code", "limit"), [(2, 3), (3, 3), (4, 3), (1, 0)])
def test_the_last_attempt_is_not_announced_as_tried_again(code: int, limit: int) -> None:
    world = started(runPolicy={"backoffLimit": limit})
    world.driver("Failed", exit_code=code)
    world.reports(result=world.failed_result(exit_code=code))
    world.settle()
    assert world.condition("Ready") == ("False", "Ending")
    world.job_is(failed=1, failure=("PodFailurePolicy", ""))
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert [reason for _, reason in world.events] == ["RunStarted", "RunFailed"]


def test_a_driver_that_has_reported_a_refusal_and_still_runs_is_not_called_another_attempt() -> None:
    world = started()
    world.driver("Running")
    world.reports(result=world.failed_result(exit_code=2, error_code="TopicExists", message="orders exists."))
    world.settle()
    assert world.condition("Ready") == ("False", "Ending")
    assert world.message().startswith("orders exists.")


def test_failure_by_deadline_is_not_called_an_interruption() -> None:
    world = started()
    world.reports(result=world.failed_result(error_code="Interrupted", exit_code=130))
    world.job_is(failure=("DeadlineExceeded", "Job was active longer than specified deadline"))
    world.settle()
    assert world.condition("Stalled") == ("True", "DeadlineExceeded")
    assert "activeDeadlineSeconds" in world.message()


def test_a_run_that_meets_its_deadline_has_a_minute_for_its_last_words() -> None:
    """The Job has failed as soon as it tells the driver to end, and the result with its loss comes after that."""
    world = started()
    world.driver()
    world.job_is(active=1, failure=("DeadlineExceeded", ""), ended=world.now)
    world.settle()
    assert world.condition("Ready") == ("False", "Ending")
    assert not world.status.history
    world.pass_time(seconds=59)
    loss = (LossFact(topic="orders", partition=0, start=10, end=20, reason="retention overtook the reader"),)
    lost = world.failed_result(error_code="Interrupted", exit_code=130, loss=loss, loss_total=1, loss_offsets=10)
    world.reports(result=lost)
    world.driver("Failed", exit_code=130)
    world.settle()
    assert world.condition("Stalled") == ("True", "DeadlineExceeded")
    assert world.condition("DataLoss")[0] == "True"
    assert [entry.records for entry in world.status.history] == [1100]


def test_the_last_words_of_a_driver_on_a_dead_node_are_not_waited_for_for_ever() -> None:
    world = started()
    world.driver()
    world.job_is(active=1, failure=("DeadlineExceeded", ""), ended=world.now)
    world.settle()
    world.pass_time(seconds=120)
    world.settle()
    assert world.status.phase is Phase.FAILED


def test_a_driver_killed_for_memory_is_told_so() -> None:
    world = started()
    world.driver("Failed", exit_code=137, exit_reason="OOMKilled")
    world.job_is(failed=4, failure=("BackoffLimitExceeded", ""))
    world.settle()
    assert world.condition("Stalled") == ("True", "OutOfMemory")
    assert "spec.spark.driver.memory" in world.message()


def test_a_refusal_is_an_end_even_when_the_job_was_deleted() -> None:
    world = started()
    world.reports(result=world.failed_result(exit_code=2, error_code="TopicExists", message="orders exists."))
    world.jobs = {}
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert world.jobs == {}


def test_what_a_format_cannot_hold_is_the_reason_of_the_refusal() -> None:
    world = started()
    message = "Format Avro cannot hold 3 tombstones of topic 'orders'."
    world.job_is(failed=1, failure=("PodFailurePolicy", ""))
    world.reports(result=world.failed_result(exit_code=2, error_code="FormatLoss", message=message))
    world.settle()
    assert (world.condition("Ready"), world.condition("Stalled")) == (("False", "FormatLoss"), ("True", "FormatLoss"))
    assert message in world.message()
    assert ("Warning", "RunFailed") in world.events


def test_what_a_run_warns_of_and_removed_stands_in_its_message_and_in_the_history() -> None:
    world = started()
    removed = "retention removed 2 segments, 4096 bytes"
    world.reports(result=world.result(message=removed, warnings=("topic orders loses its transactions",)))
    world.settle()
    for message in (world.message(), world.status.history[0].message or ""):
        assert f"{removed}; topic orders loses its transactions" in message


def test_a_success_says_where_the_archive_is_and_each_thing_once() -> None:
    world = started()
    plain = "spec.storage.endpoint is http://: all records cross the network in the clear. Use https://."
    world.reports(result=world.result(warnings=(plain,), bytes=5 << 20))
    world.settle()
    uri = world.resource.spec["storage"]["uri"]
    assert world.message() == (
        f"1100 records, 5.0 MiB, 1 topic, 2 partitions; archived in {uri}. "
        "To look into it: kubectl logkeep inspect kbak/nightly -n team"
    )
    assert (world.message("Reconciling"), world.message("Stalled")) == ("", "")
    assert world.status.warnings == (plain,)
    assert "in the clear" not in str(world.status.history)


def test_each_warning_of_the_last_run_is_whole_though_the_message_is_cut() -> None:
    world = started()
    warnings = tuple(f"topic {'t' * 200}-{number}: its retention.ms could not be set" for number in range(20))
    world.reports(result=world.result(warnings=warnings))
    world.job_is(active=0, complete=True)
    world.settle()
    assert world.message().endswith("…")
    assert world.status.warnings == warnings
    world.annotate("2")
    world.settle()
    assert world.status.warnings == warnings  # of the last run that has ended
    world.reports(result=world.result())
    world.settle()
    assert (world.status.warnings, "warnings" in world.status.to_dict()) == ((), False)


def test_an_evicted_pod_without_container_statuses_is_explained() -> None:
    world = started()
    world.driver("Failed", reason=("Evicted", "The node was low on resource: memory."))
    world.job_is(failed=1, failure=("BackoffLimitExceeded", ""))
    world.settle()
    assert "Evicted: The node was low on resource" in world.message()


def test_data_loss_is_a_condition_and_a_list() -> None:
    world = started()
    loss = (LossFact(topic="orders", partition=0, start=10, end=20, reason="retention overtook the reader"),)
    world.reports(result=world.result(loss=loss, loss_total=1, loss_offsets=10))
    world.settle()
    assert world.condition("DataLoss")[0] == "True"
    assert "orders-0 [10, 20)" in world.message("DataLoss")
    assert [(entry.start, entry.end) for entry in world.status.loss] == [(10, 20)]
    assert world.status.phase is Phase.SUCCEEDED


def test_what_is_missing_stays_reported_until_a_run_ends_without() -> None:
    """A run that fails knows nothing of the loss, nor does a run whose report was lost."""
    world = started()
    loss = (LossFact(topic="orders", partition=0, start=10, end=20, reason="retention overtook the reader"),)
    world.reports(result=world.result(loss=loss, loss_total=1, loss_offsets=10))
    world.job_is(complete=True)
    world.settle()
    for fails in (True, False):
        world.pods = []
        world.annotate(f"fails: {fails}")
        world.settle()
        if fails:
            world.reports(result=world.failed_result())
            world.job_is(failure=("BackoffLimitExceeded", ""))
        else:
            world.job_is(complete=True)
        world.settle()
        assert world.condition("DataLoss") == ("True", "RecordsMissing")
        assert [(entry.start, entry.end) for entry in world.status.loss] == [(10, 20)]
    world.pods = []
    world.annotate("last")
    world.settle()
    world.complete()
    assert (world.condition("DataLoss")[0], world.status.loss) == ("False", ())


@pytest.mark.parametrize("kind", ["KafkaBackup", "KafkaRestore"])
def test_a_finished_run_is_never_touched_again(kind: str) -> None:
    world = started(kind)
    world.reports(result=world.result())
    world.settle()
    before = world.status
    world.jobs, world.pods, world.documents = {}, [], {}
    for hours in (1, 24, 1000):
        world.pass_time(hours=hours)
        plan = world.step()
        assert (plan.actions, plan.events, plan.status) == ((), (), None)
    assert world.status == before


def test_a_failed_restore_never_runs_again() -> None:
    world = started("KafkaRestore")
    world.job_is(failure=("PodFailurePolicy", ""))
    world.reports(result=world.failed_result(exit_code=2, error_code="TopicExists", message="orders exists."))
    world.settle()
    world.annotate("again")
    world.edit(suspend=True)
    world.settle()
    world.edit(suspend=False)
    world.jobs = {}
    world.settle()
    assert (world.status.phase, world.jobs) == (Phase.FAILED, {})
    assert world.condition("Stalled") == ("True", "TopicExists")


def test_a_driver_that_does_not_go_after_success_is_removed() -> None:
    world = started()
    world.driver()
    world.job_is(active=1)
    world.reports(result=world.result())
    plan = world.step()
    assert plan.requeue_after is not None
    world.pass_time(seconds=60)
    assert world.step().actions == ()
    world.pass_time(seconds=61)
    assert any(isinstance(action, DeleteJob) for action in world.step().actions)
    assert world.status.phase is Phase.SUCCEEDED


def test_what_is_settled_needs_no_look() -> None:
    world = succeeded()
    assert not is_at_rest(world.resource, world.now)
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)
    world.annotate("2")
    assert not is_at_rest(world.resource, world.now)


# ---- another run


def test_the_annotation_starts_another_run_and_keeps_the_history() -> None:
    world = succeeded()
    first = world.run_id
    world.pods = []
    world.annotate("2026-11-22")
    world.settle()
    assert world.run_id != first
    assert world.status.last_handled_run == "2026-11-22"
    assert world.status.last_success_time is not None
    assert set(world.documents) == {world.run_id}, "the first run's ConfigMaps are deleted"
    world.reports(result=world.result())
    world.settle()
    assert [entry.run_id for entry in world.status.history] == [world.run_id, first]


def test_taking_the_annotation_away_starts_nothing() -> None:
    world = succeeded()
    world.pods = []
    world.annotate("2")
    world.settle()
    world.reports(result=world.result())
    world.settle()
    second = world.run_id
    world.resource = replace(world.resource, annotations={})
    world.settle()
    assert world.run_id == second


def test_asking_again_during_a_run_waits_for_its_end() -> None:
    world = started()
    first = world.run_id
    world.driver()
    world.annotate("2")
    world.settle()
    assert (world.run_id, set(world.jobs)) == (first, {first})
    world.reports(result=world.result())
    world.job_is(complete=True)
    world.driver("Succeeded")
    assert world.step().requeue_after == 0
    world.settle()
    assert world.run_id != first


def test_a_changed_spec_replaces_the_run_once_its_driver_is_gone() -> None:
    world = started()
    first = world.run_id
    world.driver()
    world.edit(topics={"include": ["payments"]})
    world.step()
    assert ("Normal", "RunReplaced") in world.events
    assert world.jobs == {}
    assert world.status.history[0].outcome == "Replaced"
    world.step()
    assert world.jobs == {}, "the first driver still lives"
    world.pods = []
    world.settle()
    assert set(world.jobs) == {world.run_id}
    assert world.run_id != first


def test_a_spec_that_is_changed_back_is_another_run() -> None:
    world = succeeded()
    first = world.run_id
    seen = {first}
    for include in ("payments", "orders.*", "payments"):
        world.pods = []
        world.edit(topics={"include": [include]})
        world.settle()
        assert world.run_id not in seen
        seen.add(world.run_id)
        world.complete()


@pytest.mark.parametrize(
    "change",
    [
        {"spark": {"executor": {"instances": 5}}},
        {"runPolicy": {"backoffLimit": 0}},
        {"limits": {"bytesPerSecond": "1Gi"}},
        {"retention": {"maxAge": "30d"}},
        {"snapshots": {"minCleanableRatio": 0.25}},
    ],
)
def test_a_change_of_how_it_runs_starts_nothing(change: dict[str, Any]) -> None:
    world = succeeded()
    first = world.run_id
    world.edit(**change)
    world.settle()
    assert world.run_id == first
    assert world.status.observed_generation == 2
    assert {condition.observed_generation for condition in world.status.conditions if condition.type == "Ready"} == {2}


def test_another_cycle_of_generations_holds_from_the_next_run_on() -> None:
    world = succeeded()
    world.edit(compactedTopics="Generations")
    world.settle()
    second = world.run_id
    world.edit(generations={"cycle": "1d"})
    world.settle()
    assert world.run_id == second


def test_history_keeps_ten_runs() -> None:
    world = succeeded()
    for number in range(12):
        world.pods = []
        world.annotate(str(number))
        world.settle()
        world.complete()
    assert len(world.status.history) == 10


# ---- suspension


def test_another_run_waits_for_the_driver_of_the_last_one() -> None:
    world = started()
    world.job_is(active=1)
    world.reports(result=world.result())
    world.settle()
    world.annotate("2")
    world.step()
    assert world.condition("Ready") == ("False", "WaitingForPreviousRun")
    assert len(world.jobs) == 1
    world.pass_time(seconds=130)
    world.settle()
    assert set(world.jobs) == {world.run_id}
    assert world.status.last_handled_run == "2"


def test_suspended_from_the_start_makes_no_job() -> None:
    world = World(spec=backup_spec(suspend=True))
    world.settle()
    assert (world.status.phase, world.jobs, world.created) == (Phase.SUSPENDED, {}, [])
    world.edit(suspend=False)
    world.settle()
    assert len(world.jobs) == 1


def test_suspend_and_resume() -> None:
    world = started()
    world.driver()
    world.edit(suspend=True)
    assert world.step().actions == (SuspendJob(world.jobs[world.run_id].name, True),)
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    assert world.condition("Ready") == ("False", "Suspended")
    assert world.condition("Reconciling")[0] == "False"
    world.reports(result=world.failed_result(exit_code=130, error_code="Interrupted"))
    world.pods = []
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    world.edit(suspend=False)
    world.settle()
    assert not world.jobs[world.run_id].suspended
    assert [reason for _, reason in world.events] == ["RunStarted", "Suspended", "Resumed"]


# ---- what cannot run


def test_an_invalid_spec_names_the_field_and_starts_nothing() -> None:
    world = World(spec=backup_spec(topics={"include": ["orders(", "x"]}))
    world.settle()
    assert (world.status.phase, world.jobs) == (Phase.INVALID, {})
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.message().startswith("spec.topics.include[0]: 'orders(' is not a regular expression")
    assert world.events == [("Warning", "InvalidSpec")]
    world.edit(topics={"include": ["orders"]})
    world.settle()
    assert len(world.jobs) == 1


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"spark": {"conf": {"spark.master": "local"}}}, "spec.spark.conf[spark.master]: is set by Logkeep"),
        ({"spark": {"conf": {"master": "local"}}}, "spec.spark.conf[master]: keys begin with 'spark.'"),
        ({"spark": {"conf": {"spark.authenticate.secret": "x"}}}, "spec.spark.conf[spark.authenticate.secret]"),
        ({"spark": {"executor": {"cores": 4}}}, "spec.spark.executor.memory: 1Gi is too little, at least 1536Mi"),
        ({"spark": {"driver": {"memory": "512Mi"}}}, "spec.spark.driver.memory: 512Mi is too little"),
        ({"spark": {"driver": {"coreLimit": "0.1"}}}, "spec.spark.driver.coreLimit: 0.1 is less than the 250m that"),
        ({"spark": {"executor": {"coreLimit": "500m"}}}, "spec.spark.executor.coreLimit: 500m is less than the 1 that"),
        ({"storage": {"uri": "file:///archive"}}, "spec.storage.volume: required with a file:// uri"),
        (
            {"storage": {"uri": "file:///etc/x", "volume": {"claimName": "c"}}},
            "spec.storage.uri: the volume is mounted",
        ),
    ],
)
def test_what_only_matters_in_a_cluster_is_checked_too(spec: dict[str, Any], problem: str) -> None:
    world = World(spec=backup_spec(**spec))
    world.settle()
    assert world.message().startswith(problem)
    assert world.jobs == {}


def test_a_spec_that_becomes_invalid_stops_the_run() -> None:
    world = started()
    world.edit(topics={"include": ["("]})
    world.settle()
    assert (world.status.phase, world.jobs) == (Phase.INVALID, {})
    world.edit(topics={"include": ["orders.*"]})
    world.settle()
    assert len(world.jobs) == 1, "the same spec as before, but its run was stopped: another one"
    assert world.status.history[0].run_id != world.run_id


def test_a_restore_whose_spec_a_new_version_refuses_keeps_its_run() -> None:
    world = started("KafkaRestore")
    first = world.run_id
    world.edit(spark={"driver": {"memory": "100Mi"}})
    world.settle()
    assert world.jobs == {}
    world.edit(spark={})
    world.settle()
    assert set(world.jobs) == {first}


def test_a_restore_waits_for_its_backup() -> None:
    world = World("KafkaRestore")
    plan = world.step()
    assert (world.condition("Reconciling"), world.condition("Stalled")[0]) == (("True", "BackupNotFound"), "False")
    assert "KafkaBackup 'nightly'" in world.message()
    assert plan.requeue_after == pytest.approx(15.0)
    world.step()
    assert world.events == [("Warning", "BackupNotFound")]
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    assert len(world.jobs) == 1
    assert world.condition("Stalled")[0] == "False"


def test_a_restore_that_is_applied_with_its_backup_waits_for_its_success() -> None:
    world = World("KafkaRestore")
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(phase=Phase.RUNNING))
    plan = world.step()
    assert world.jobs == {}
    assert plan.requeue_after == pytest.approx(15.0)
    assert (world.condition("Ready"), world.condition("Stalled")[0]) == (("False", "WaitingForBackup"), "False")
    assert world.condition("Reconciling") == ("True", "WaitingForBackup")
    assert "KafkaBackup 'nightly' has not succeeded yet (Running)" in world.message()
    assert "by another KafkaRestore, with spec.source.storage" in world.message()
    world.backup = replace(world.backup, status=Status(phase=Phase.FAILED))
    world.step()
    assert (world.jobs, world.condition("Stalled")[0]) == ({}, "False")
    world.backup = replace(world.backup, status=Status(phase=Phase.RUNNING, last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    assert len(world.jobs) == 1


def test_a_restore_that_has_begun_continues_whatever_becomes_of_its_backups_status() -> None:
    world = World("KafkaRestore")
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.backup = resource("KafkaBackup", backup_spec())
    world.jobs = {}
    world.settle()
    assert len(world.jobs) == 1


def test_a_restore_of_an_invalid_backup_says_so() -> None:
    world = World("KafkaRestore")
    world.backup = resource("KafkaBackup", {"storage": {}})
    plan = world.step()
    assert (world.condition("Reconciling")[0], world.condition("Stalled")) == ("False", ("True", "BackupInvalid"))
    assert plan.requeue_after == pytest.approx(15.0), "it may be mended"
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    assert (len(world.jobs), world.condition("Stalled")[0]) == (1, "False")


def test_a_restore_of_a_backup_that_can_never_succeed_does_not_wait_for_ever() -> None:
    """Its storage is right, and its cron expression is not."""
    text = "spec.schedule.cron: '61 * * * *' is not a valid cron expression"
    wrong = Status(phase=Phase.INVALID, observed_generation=1, conditions=stalled("InvalidSpec", text))
    world = World("KafkaRestore")
    world.backup = resource("KafkaBackup", backup_spec(), status=wrong)
    plan = world.step()
    assert (world.jobs, world.condition("Stalled")) == ({}, ("True", "BackupInvalid"))
    assert world.message() == f"spec.source.backupRef: KafkaBackup 'nightly' is invalid: {text}"
    assert plan.requeue_after == pytest.approx(15.0)
    world.backup = replace(world.backup, generation=2)  # it was changed, and nobody has looked at it yet
    world.step()
    assert world.condition("Reconciling") == ("True", "WaitingForBackup")
    world.backup = replace(world.backup, status=replace(wrong, last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    assert len(world.jobs) == 1, "there is something to restore"


def test_what_the_api_refuses_is_in_the_status() -> None:
    world = World()
    plan = refused(world.resource, "ApiRefused", 'jobs.batch is forbidden: exceeded quota: "jobs"', START)
    assert plan.status is not None
    ready = plan.status.condition("Ready")
    assert ready is not None
    assert (ready.reason, "exceeded quota" in ready.message) == ("ApiRefused", True)
    assert [event.reason for event in plan.events] == ["ApiRefused"]


# ---- what a backup protects


FOUND = TopicCoverage(protected=12, left_out=3, topics_left_out=("a", "b", "c"))


def ended_with(**result: Any) -> World:
    world = started()
    world.driver()
    world.reports(world.progress(), world.result(**result))
    world.job_is(active=0, complete=True)
    world.settle()
    return world


def test_a_success_says_how_many_records_of_aborted_transactions_it_has_left_out() -> None:
    assert "; 1300 records of aborted transactions were left out" in ended_with(aborted_records=1300).message()
    assert "aborted" not in ended_with().message()


@pytest.mark.parametrize("code", [2, 5])
def test_the_status_has_the_exit_code_of_a_restore_that_was_refused(code: int) -> None:
    world = started("KafkaRestore")
    world.driver("Failed", exit_code=code)
    world.reports(result=world.failed_result(error_code="TopicGone", exit_code=code))
    world.job_is(failed=1, active=0, failure=("PodFailurePolicy", ""))
    world.settle()
    run = world.status.run
    assert run is not None
    assert (run.outcome, run.exit_code, world.condition("Stalled")) == ("Failed", code, ("True", "TopicGone"))


def test_a_success_says_how_many_topics_it_protects() -> None:
    world = ended_with(coverage=FOUND)
    assert world.condition("Coverage") == ("True", "AllFound")
    assert world.message("Coverage") == "Topics that are protected: 12; others that are left out: 3."
    shown = world.status.coverage
    assert shown is not None
    assert (shown.protected, shown.left_out, shown.topics_left_out) == (12, 3, ("a", "b", "c"))
    assert [event for event in world.events if event[0] == "Warning"] == []


@pytest.mark.parametrize(
    ("more", "reason", "said"),
    [
        ({"unmatched": 1, "patterns_unmatched": ("typo",), "vanished": 1}, "PatternsUnmatched", "no topic: 1 (typo)"),
        ({"vanished": 2, "topics_vanished": ("old", "older")}, "TopicsVanished", "(old, older)"),
        ({"unreadable": 1, "topics_unreadable": ("secret",)}, "TopicsUnreadable", "(secret)"),
    ],
)
def test_a_success_that_has_missed_something_says_so(more: dict[str, Any], reason: str, said: str) -> None:
    world = ended_with(coverage=replace(FOUND, **more))
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert world.condition("Coverage") == ("False", reason)
    assert said in world.message("Coverage")
    assert world.events.count(("Warning", reason)) == 1


def test_what_a_later_run_finds_replaces_it_and_a_run_that_has_not_looked_leaves_it() -> None:
    world = ended_with(coverage=replace(FOUND, vanished=1))
    for result, expected in (({"coverage": None}, "False"), ({"coverage": FOUND}, "True")):
        world.pass_time(minutes=1)
        world.annotate(str(result))
        world.settle()
        world.pods = []
        world.reports(result=world.result(**result))
        world.job_is(active=0, complete=True)
        world.settle()
        assert world.condition("Coverage")[0] == expected


def test_a_run_that_no_topic_matches_protects_none() -> None:
    world = started()
    world.driver("Failed", exit_code=2)
    world.reports(result=world.failed_result(error_code="NoTopicMatches", exit_code=2))
    world.job_is(active=0, failed=1, failure=("PodFailurePolicy", ""))
    world.settle()
    assert world.condition("Coverage") == ("False", "PatternsUnmatched")
    assert world.status.coverage is not None
    assert (world.status.coverage.protected, world.status.coverage.unmatched) == (0, 1)


def test_coverage_is_bounded_whatever_the_names_are() -> None:
    names = tuple("x" * 5000 + str(number) for number in range(1000))
    world = ended_with(
        coverage=TopicCoverage(protected=1, unmatched=len(names), patterns_unmatched=names, topics_left_out=names)
    )
    assert len(json.dumps(world.status.to_dict())) < 20_000


# ---- trouble with pods


def test_executors_that_cannot_be_scheduled_are_in_the_status_and_the_run_continues() -> None:
    world = started()
    world.driver()
    world.executor(1)
    world.executor(2, "Pending", unschedulable="0/3 nodes are available: 3 Insufficient cpu.")
    world.settle()
    assert world.condition("Ready") == ("False", "ExecutorsUnschedulable")
    assert world.message() == "1 of 2 executor pods cannot be scheduled: 0/3 nodes are available: 3 Insufficient cpu."
    assert world.status.phase is Phase.RUNNING
    world.step()
    assert world.events.count(("Warning", "ExecutorsUnschedulable")) == 1
    world.executor(2)
    world.settle()
    assert world.condition("Ready") == ("False", "Running")


@pytest.mark.parametrize(
    ("pod", "reason", "does"),
    [
        ({"unschedulable": "0/1 nodes are available"}, "DriverUnschedulable", "0/1 nodes are available"),
        ({"waiting": ("ErrImagePull", "not found")}, "ImagePullFailed", "not found. Check name and tag"),
        ({"waiting": ("ImagePullBackOff", "Back-off pulling image")}, "ImagePullFailed", "and the pull secrets."),
        (
            {"waiting": ("CreateContainerConfigError", 'secret "s3" not found')},
            "SecretMissing",
            'secret "s3" not found. Create the Secret or its key in this namespace, or correct the spec.',
        ),
        (
            {"waiting": ("CreateContainerConfigError", "couldn't find key accessKeyId in Secret team/s3")},
            "SecretMissing",
            "in Secret team/s3. Create the Secret or its key",
        ),
        (
            {"waiting": ("CreateContainerError", "context deadline exceeded")},
            "ContainerConfigError",
            "correct the spec.",
        ),
    ],
)
def test_why_a_driver_does_not_start_is_in_the_status(pod: dict[str, Any], reason: str, does: str) -> None:
    world = started()
    world.driver("Pending", **pod)
    world.settle()
    assert world.condition("Ready") == ("False", reason)
    assert world.events[-1] == ("Warning", reason)
    assert world.status.phase is Phase.PENDING
    assert does in world.message()


def test_a_secret_that_cannot_be_mounted_is_known_from_events_only() -> None:
    world = started()
    world.driver("Pending", waiting=("ContainerCreating", ""))
    world.warnings = {"driver-pod": 'MountVolume.SetUp failed for volume "kafka-ca" : secret "ca" not found'}
    world.settle()
    assert world.condition("Ready") == ("False", "SecretMissing")


def test_a_job_that_cannot_make_its_pod_says_why() -> None:
    world = started()
    world.warnings = {world.jobs[world.run_id].name: 'Error creating: pods "x" is forbidden: exceeded quota'}
    world.settle()
    assert world.condition("Ready") == ("False", "DriverNotCreated")
    assert "exceeded quota" in world.message()


@pytest.mark.parametrize("phase", TASK_PHASES)
def test_a_driver_without_executors_for_a_minute_is_noticed(phase: str) -> None:
    world = started()
    world.driver()
    world.reports(world.progress(phase=phase))
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    world.pass_time(seconds=61)
    world.settle()
    assert world.condition("Ready") == ("False", "NoExecutors")
    assert "kubectl logs driver-pod" in world.message()


@pytest.mark.parametrize("phase", TASK_PHASES)
def test_a_run_says_that_it_waits_for_its_executors(phase: str) -> None:
    world = started()
    world.driver()
    world.reports(world.progress(phase=phase, executors=2))
    waits = "The run waits for executors (0 of 2): their pods are being created."
    for executors in ([], ["Pending"], ["Pending", "Pending"]):
        for number, state in enumerate(executors):
            world.executor(number, state)
        world.settle()
        assert world.condition("Ready") == ("False", "Pending")
        assert world.condition("Reconciling") == ("True", "Pending")
        assert (world.status.phase, world.message()) == (Phase.RUNNING, waits)
        assert world.status.run is not None
        assert world.status.run.message == waits  # kubectl get -o wide
    world.executor(0)  # the other one joins in when it comes
    world.settle()
    assert (world.condition("Ready"), world.message()) == (("False", "Running"), "The run is in progress.")
    assert [reason for kind, reason in world.events if kind == "Warning"] == []


def test_a_run_whose_work_is_done_waits_for_no_executors() -> None:
    world = started()
    world.driver()
    for said in ({"phase": "Finishing"}, {"phase": "Planning"}, {"offsets_done": 1100}, {"executors": 0}):
        world.reports(world.progress(**{"executors": 2, **said}))
        world.settle()
        assert world.condition("Ready") == ("False", "Running"), said


def test_what_an_earlier_driver_asked_for_is_not_waited_for() -> None:
    world = started()
    world.driver()
    world.reports(world.progress(executors=2))
    world.pass_time(seconds=30)
    world.driver(name="driver-pod-2")
    world.driver("Failed", exit_code=137)
    world.settle()
    assert "executors" not in world.message()


def test_what_a_driver_waits_for_is_in_the_status_until_it_continues() -> None:
    world = started()
    world.driver()
    text = (
        "The store is retrieving 3 objects (2.0 KiB) in the storage class GLACIER: a, b, c; 0 of 3 can be read so far."
    )
    world.reports(world.progress(phase="Retrieving", waits=text))
    world.settle()
    assert world.condition("Ready") == ("False", "Retrieving")
    assert world.condition("Reconciling") == ("True", "Retrieving")
    assert world.message() == text
    assert (world.status.phase, world.status.progress.phase) == (Phase.RUNNING, "Retrieving")  # type: ignore[union-attr]
    world.pass_time(minutes=4)
    world.settle()
    assert world.condition("Ready") == ("False", "Retrieving")
    world.reports(world.progress(phase="Running", executors=0))
    world.settle()
    assert world.condition("Ready") == ("False", "Running")


def test_a_driver_that_does_the_work_itself_needs_no_executors() -> None:
    world = started()
    world.driver()
    world.reports(world.progress(executors=0))
    world.settle()
    world.pass_time(seconds=61)
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    world.reports(world.progress(executors=2))
    world.pass_time(seconds=61)
    world.settle()
    assert world.condition("Ready") == ("False", "NoExecutors")


def test_times_of_conditions_change_only_with_their_status() -> None:
    world = started()
    times = {c.type: c.last_transition_time for c in world.status.conditions}
    world.pass_time(minutes=5)
    world.driver()
    world.settle()
    assert {c.type: c.last_transition_time for c in world.status.conditions} == times
    world.reports(result=world.result())
    world.settle()
    later = {c.type: c.last_transition_time for c in world.status.conditions}
    assert later["Ready"] != times["Ready"]
    assert later["Stalled"] == times["Stalled"]
    assert later["Ready"] == (START + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- clocks


def test_a_driver_whose_clock_is_behind_is_given_its_minute_to_get_executors() -> None:
    world = started()
    world.driver()
    behind = world.now - timedelta(minutes=5)
    world.reports(world.progress(start_time=behind.timestamp(), update_time=behind.timestamp()))
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    world.pass_time(seconds=61)
    world.settle()
    assert world.condition("Ready") == ("False", "NoExecutors")


def test_a_driver_that_has_told_its_own_minute_without_executors_is_noticed() -> None:
    world = started()
    world.driver()
    ahead = world.now + timedelta(minutes=5)
    world.reports(world.progress(start_time=ahead.timestamp(), update_time=ahead.timestamp() + 61))
    world.settle()
    assert world.condition("Ready") == ("False", "NoExecutors")


@pytest.mark.parametrize("minutes", [-5, 5])
def test_a_driver_with_another_clock_has_two_minutes_to_end_after_its_success(minutes: int) -> None:
    world = started()
    world.driver()
    world.job_is(active=1)
    world.reports(result=world.result(end_time=world.now.timestamp() + 60 * minutes))
    world.step()
    world.pass_time(seconds=1)
    assert world.step().actions == ()
    world.pass_time(seconds=121)
    assert any(isinstance(action, DeleteJob) for action in world.step().actions)


@pytest.mark.parametrize("minutes", [-15, 15])
def test_what_is_settled_is_reported_by_the_clock_of_the_conditions(minutes: int) -> None:
    world = started()
    world.driver()
    world.job_is(complete=True)
    world.reports(result=world.result(end_time=world.now.timestamp() + 60 * minutes))
    world.settle()
    assert not is_at_rest(world.resource, world.now)
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)


def test_a_suspended_resource_asks_for_no_look() -> None:
    world = World(spec=backup_spec(suspend=True))
    world.settle()
    assert world.step().requeue_after is None


def test_the_history_says_how_long_a_run_took_what_it_moved_and_with_how_many_executors() -> None:
    world = started()
    world.driver()
    world.reports(world.progress(executors=2))
    world.pass_time(seconds=90)
    world.settle()
    world.reports(result=world.result(records=7, bytes=2048))
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0)
    world.settle()
    (entry,) = world.status.history
    assert (entry.duration_seconds, entry.attempts, entry.executors) == (90, 1, 2)
    assert (entry.records, entry.bytes) == (7, 2048)

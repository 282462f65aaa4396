"""Topics that a restore holds are released when `spec.topics.holdFor` is over: by the same run, started again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from logkeep_engine.contract.run import HeldTopics, RunRequest
from logkeep_operator.api import Phase, Status, StatusOutcome
from logkeep_operator.api.status import HeldTopicsStatus, timestamp
from logkeep_operator.reconcile import RunOrigin, is_at_rest, refused, wake_after_rest
from logkeep_operator.reconcile.turns import Turns
from logkeep_operator.settings import Concurrency
from tests.unit.operator.world import START, World, backup_spec, resource, restore_spec

HELD = HeldTopics(3, ("a", "b", "c"))
SAID = "3 topics keep all records (retention.ms=-1, retention.bytes=-1) until they are released: a, b, c"
DAY = timedelta(days=1)
END = START + timedelta(minutes=1)


def topics(hold_for: str | None = "1d") -> dict[str, Any]:
    return {"retention": "Hold", **({} if hold_for is None else {"holdFor": hold_for})}


def restored(hold_for: str | None = "1d", **spec: Any) -> World:
    """A restore that has succeeded and holds three topics."""
    world = World("KafkaRestore", restore_spec(topics=topics(hold_for), **spec))
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.driver()
    world.pass_time(minutes=1)
    world.reports(world.progress(), world.result(held_topics=HELD, message=SAID))
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    world.created.clear()
    world.events.clear()
    return world


def held(world: World) -> HeldTopicsStatus:
    assert world.status.held_topics is not None
    return world.status.held_topics


def begin(world: World) -> None:
    """Let the time be over, and the release have a driver."""
    world.pass_time(days=1)
    world.step()
    world.collect()
    world.settle()
    assert [body["kind"] for body in world.created] == ["ConfigMap", "ConfigMap", "Job"], world.message()
    world.job_is(active=1)
    world.driver()
    world.settle()


def release(world: World, released: int = 3, left: tuple[str, ...] = ()) -> None:
    """The driver releases topics and ends."""
    found = replace(HELD, released=released, not_released=left, released_time=world.now.timestamp())
    world.reports(result=world.result(end_time=END.timestamp(), held_topics=found, message=SAID))
    world.driver("Succeeded", exit_code=0)
    world.job_is(active=0, complete=True)
    world.settle()


def fail(world: World, reason: str = "BrokerUnavailable", code: int = 1) -> None:
    """The driver fails, and the Job gives up."""
    failure = world.failed_result(exit_code=code, error_code=reason, message=f"It is {reason}.")
    world.reports(result=failure)
    world.driver("Failed", exit_code=code)
    world.job_is(active=0, failed=4, failure=("BackoffLimitExceeded", ""))
    world.settle()


def as_it_ended(world: World) -> Any:
    """The parts of the status that a release must not change."""
    status = world.status
    return status.run, status.history, status.progress, status.last_success_time, status.archive, status.phase


# ---- the way it should go


def test_the_status_says_when_the_topics_are_released() -> None:
    world = restored()
    assert held(world).to_dict() == {
        "topics": 3,
        "topicList": ["a", "b", "c"],
        "releaseTime": timestamp(END + DAY),
    }
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert world.message().startswith(f"3 held topics to be released at {timestamp(END + DAY)}; 1100 records")
    assert SAID in world.message()
    plan = world.step()
    assert plan.requeue_after == DAY.total_seconds()
    world.pass_time(minutes=20)
    assert is_at_rest(world.resource, world.now)
    assert wake_after_rest(world.resource, world.now) == (DAY - timedelta(minutes=20)).total_seconds()
    world.pass_time(days=1)
    assert not is_at_rest(world.resource, world.now)


def test_the_same_run_is_started_again_when_the_time_is_over_and_keeps_its_end() -> None:
    world = restored()
    before, run_id, job = as_it_ended(world), world.run_id, world.jobs[world.run_id]
    begin(world)
    (body,) = (one for one in world.created if one["kind"] == "Job")
    assert body["metadata"]["name"] == job.name
    (data,) = (one["data"] for one in world.created if "data" in one)
    request = RunRequest.from_json(data["request.json"])
    assert (request.run_id, request.release, request.spec["topics"]) == (run_id, True, topics())
    assert as_it_ended(world) == before
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("ScheduledRun") == ("True", "Running")
    assert "The release of 3 held topics is on its way: The run is in progress." in world.message()
    assert world.condition("Reconciling")[0] == "False"
    at = timestamp(world.now)
    release(world)
    assert as_it_ended(world) == before
    assert held(world).to_dict() == {
        "topics": 3,
        "topicList": ["a", "b", "c"],
        "releaseTime": timestamp(END + DAY),
        "releasedTime": at,
        "released": 3,
    }
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert world.condition("ScheduledRun")[0] == "False"
    assert world.message().startswith(f"3 held topics released at {at}; 1100 records")
    assert world.events == [("Normal", "TopicsReleased")]
    assert Status.from_dict(world.status.to_dict()) == world.status
    world.pass_time(days=9)
    world.settle()
    assert is_at_rest(world.resource, world.now)
    assert wake_after_rest(world.resource, world.now) is None
    assert len(world.created) == 3, "nothing is started again"


def test_a_restore_without_the_time_releases_nothing_by_itself() -> None:
    world = restored(None)
    assert held(world).release_time is None
    assert world.message().startswith("1100 records")
    world.pass_time(days=900)
    world.settle()
    assert world.created == []
    assert is_at_rest(world.resource, world.now)


def test_a_request_that_releases_nothing_does_not_say_so() -> None:
    world = World("KafkaRestore", restore_spec(topics=topics()))
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    (data,) = (one["data"] for one in world.created if "data" in one)
    assert RunRequest.from_json(data["request.json"]).release is None


def test_topics_that_somebody_has_changed_or_deleted_are_named() -> None:
    world = restored()
    begin(world)
    release(world, 1, ("b: NotHeld", "c: Gone"))
    assert held(world).not_released_list == ("b: NotHeld", "c: Gone")
    assert world.message().startswith("1 of 3 held topics released at ")
    assert ", not b: NotHeld, c: Gone; 1100 records" in world.message()
    assert world.events == [("Warning", "TopicsReleased")]
    assert world.condition("Ready") == ("True", "RunSucceeded")


def test_names_that_a_termination_message_has_no_room_for_are_those_that_were_known() -> None:
    world = restored()
    begin(world)
    short = replace(HELD, topics=(), released=1, not_released=(), released_time=world.now.timestamp())
    world.driver("Succeeded", exit_code=0, termination_message=world.result(held_topics=short).to_json())
    world.job_is(active=0, complete=True)
    world.settle()
    assert held(world).topic_list == ("a", "b", "c")
    assert ", not the others, whose names were lost; " in world.message()


# ---- what goes wrong


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


def test_a_failure_is_told_once_whatever_becomes_of_the_status() -> None:
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
    found = replace(HELD, released=3, released_time=world.now.timestamp())
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
    world.turns = Turns(Concurrency(operator=1), frozenset({another(world)}))
    world.pass_time(days=1)
    world.step()
    world.collect()
    world.settle()
    assert world.created == []
    assert world.condition("Ready") == ("True", "Queued")
    world.turns = Turns()
    world.settle()
    assert world.created[-1]["kind"] == "Job"


def another(world: World) -> Any:
    """The key of another restore."""
    return world.resource.key._replace(name="another")


# ---- what the user changes


def test_a_time_that_is_changed_counts_from_the_success_as_well() -> None:
    world = restored()
    world.edit(topics=topics("3d"))
    world.settle()
    assert held(world).release_time == timestamp(END + 3 * DAY)
    world.pass_time(days=2)
    world.settle()
    assert world.created == []
    world.edit(topics=topics("1h"))
    world.step()
    world.collect()
    world.settle()
    assert world.created[-1]["kind"] == "Job"


@pytest.mark.parametrize("changed", [None, "3d"])
def test_a_release_that_has_begun_ends_if_the_spec_does_not_want_it_any_more(changed: str | None) -> None:
    world = restored()
    before = as_it_ended(world)
    begin(world)
    world.edit(topics=topics(changed))
    world.settle()
    assert world.run_id not in world.jobs
    assert held(world).release_time == (None if changed is None else timestamp(END + 3 * DAY))
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert as_it_ended(world) == before


def test_failures_are_forgotten_when_the_time_is_a_later_one() -> None:
    world = restored()
    begin(world)
    fail(world)
    world.edit(topics=topics("3d"))
    world.settle()
    assert held(world).failures is None
    assert world.condition("Ready") == ("True", "RunSucceeded")
    world.pass_time(days=2)
    world.created.clear()
    world.step()
    world.collect()
    world.settle()
    assert world.created[-1]["kind"] == "Job"
    world.driver()
    release(world)
    assert held(world).released == 3


def test_a_suspended_restore_holds_its_topics_until_it_is_resumed() -> None:
    world = restored()
    begin(world)
    world.edit(suspend=True)
    world.settle()
    assert world.run_id not in world.jobs
    assert world.status.phase is Phase.SUSPENDED
    assert world.message().endswith("Topics are held until then.")
    world.pass_time(days=5)
    world.settle()
    assert is_at_rest(world.resource, world.now)
    assert wake_after_rest(world.resource, world.now) is None
    world.created.clear()
    world.collect()
    world.edit(suspend=False)
    world.settle()
    assert world.created[-1]["kind"] == "Job"
    world.driver()
    release(world)
    assert (world.status.phase, held(world).released) == (Phase.SUCCEEDED, 3)


def test_a_spec_that_became_invalid_is_told_as_long_as_topics_wait() -> None:
    world = restored()
    world.edit(offsets="Neither")
    world.settle()
    assert (world.status.phase, world.condition("Ready")) == (Phase.INVALID, ("False", "InvalidSpec"))
    world.pass_time(days=2)
    world.settle()
    assert world.created == []
    world.edit(offsets="Any")
    world.step()
    world.collect()
    world.settle()
    world.driver()
    release(world)
    assert (world.status.phase, held(world).released) == (Phase.SUCCEEDED, 3)
    world.edit(offsets="Neither")
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED, "all is done"


def test_a_resource_that_is_deleted_releases_nothing() -> None:
    world = restored()
    world.pass_time(days=2)
    world.resource = replace(world.resource, deleting=True)
    plan = world.step()
    assert (plan.actions, plan.status) == ((), None)


def test_topics_that_another_run_leaves_behind_are_told_of() -> None:
    world = restored()
    first = world.run_id
    world.annotate("once more", "logkeep.dev/run-again")
    world.settle()
    assert world.run_id != first
    assert world.status.held_topics is None
    assert ("Warning", "TopicsStayHeld") in world.events


def test_topics_that_were_released_are_not() -> None:
    world = restored()
    begin(world)
    release(world)
    world.annotate("once more", "logkeep.dev/run-again")
    world.settle()
    assert ("Warning", "TopicsStayHeld") not in world.events


# ---- what is not remembered


def test_a_restore_that_another_resource_has_done_counts_from_that_success() -> None:
    """A KafkaRestore that was deleted and is created again finds the topics held, and releases them."""
    world = World("KafkaRestore", restore_spec(topics=topics()))
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.driver()
    earlier = (START - 2 * DAY).timestamp()
    world.reports(result=world.result(held_topics=HELD, earlier_run="r0", earlier_end=earlier))
    world.driver("Succeeded", exit_code=0)
    world.job_is(active=0, complete=True)
    world.step()
    assert held(world).release_time == timestamp(START - DAY)
    world.created.clear()
    world.step()
    world.collect()
    world.settle()
    assert world.created[-1]["kind"] == "Job"
    world.driver()
    release(world)
    assert held(world).released == 3
    assert world.condition("Ready") == ("True", "RestoredBefore")


@pytest.mark.parametrize("hold_for", ["1d", None])
def test_a_restore_whose_report_was_lost_releases_its_topics_as_well(hold_for: str | None) -> None:
    world = World("KafkaRestore", restore_spec(topics=topics(hold_for)))
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.pass_time(minutes=1)
    world.driver("Succeeded", exit_code=0)
    world.job_is(active=0, complete=True)
    world.settle()
    if hold_for is None:
        assert world.status.held_topics is None
        return
    assert world.message().startswith(f"held topics to be released at {timestamp(END + DAY)}; The run is done")
    world.created.clear()
    begin(world)
    assert "The release of held topics is on its way" in world.message()
    release(world)
    assert (held(world).topics, held(world).released, held(world).topic_list) == (3, 3, ("a", "b", "c"))


def test_a_status_that_was_lost_comes_back_with_the_release() -> None:
    world = restored()
    begin(world)
    world.resource = replace(world.resource, status=Status())
    world.settle()
    assert world.status.run is not None
    assert world.status.run.outcome is None
    release(world)
    assert world.status.run.outcome is StatusOutcome.SUCCEEDED
    assert (held(world).released, held(world).topics) == (3, 3)
    assert world.status.history[0].records == 1100
    assert world.message().startswith("3 held topics released at ")


def test_a_job_of_a_release_that_the_status_does_not_await_is_not_in_the_way() -> None:
    """Another replica has written a newer status than the one that made the Job."""
    world = restored()
    begin(world)
    key = f"{world.run_id}.release.2026-01-01T00:00:00Z.7"
    world.job_is(origin=RunOrigin(key), complete=True, active=0)
    world.created.clear()
    world.step()
    assert world.run_id not in world.jobs
    world.collect()
    world.settle()
    assert world.created[-1]["kind"] == "Job"


def test_the_topics_that_were_emitted_stay() -> None:
    world = restored()
    name = f"again-{world.run_id}-topics"
    known = world.documents[world.run_id]
    world.documents[world.run_id] = replace(known, config_maps=(*known.config_maps, name))
    begin(world)
    assert name in world.documents[world.run_id].config_maps


@pytest.mark.parametrize(
    "changes",
    [
        {"release_time": "9999-12-31T23:59:59Z"},
        {"release_time": "soon"},
        {"failures": -5, "failed_time": "9999-12-31T23:59:59Z", "message": "x"},
        {"failures": 10**9, "failed_time": "0001-01-01T00:00:00Z"},
        {"failed_time": "yesterday", "failures": 1},
    ],
)
def test_a_status_that_somebody_has_written_breaks_nothing(changes: dict[str, Any]) -> None:
    world = restored()
    for last in (timestamp(END), "9999-12-31T23:59:59Z"):
        status = replace(world.status, held_topics=replace(held(world), **changes), last_success_time=last)
        world.resource = replace(world.resource, status=status)
        is_at_rest(world.resource, world.now)
        wake_after_rest(world.resource, world.now)
        world.settle()
        world.pass_time(days=2)
        world.settle()

"""Topics that a restore holds are released when `spec.topics.holdFor` is over: by the same run, started again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest
from logkeep_operator.api import Status, StatusOutcome
from logkeep_operator.reconcile import RunOrigin, is_at_rest, wake_after_rest
from tests.unit.operator.held_topics import (
    DAY,
    END,
    HELD,
    SAID,
    as_it_ended,
    begin,
    begin_again,
    held,
    release,
    restored,
    topics,
)
from tests.unit.operator.world import START, World, backup_spec, resource, restore_spec


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
    short = replace(HELD, topic_list=(), released=1, released_time=timestamp(world.now))
    world.driver("Succeeded", exit_code=0, termination_message=world.result(held_topics=short).to_json())
    world.job_is(active=0, complete=True)
    world.settle()
    assert held(world).topic_list == ("a", "b", "c")
    assert ", not the others, whose names were lost; " in world.message()


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
    begin_again(world)
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
        {"releaseTime": "9999-12-31T23:59:59Z"},
        {"releaseTime": "soon"},
        {"failures": -5, "failedTime": "9999-12-31T23:59:59Z", "message": "x"},
        {"failures": 10**9, "failedTime": "0001-01-01T00:00:00Z"},
        {"failedTime": "yesterday", "failures": 1},
    ],
)
def test_a_status_that_somebody_has_written_breaks_nothing(changes: dict[str, Any]) -> None:
    world = restored()
    for last in (timestamp(END), "9999-12-31T23:59:59Z"):
        body = world.status.to_dict()
        status = Status.from_dict({**body, "heldTopics": body["heldTopics"] | changes, "lastSuccessTime": last})
        world.resource = replace(world.resource, status=status)
        is_at_rest(world.resource, world.now)
        wake_after_rest(world.resource, world.now)
        world.settle()
        world.pass_time(days=2)
        world.settle()

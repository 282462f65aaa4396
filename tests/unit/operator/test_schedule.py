"""The schedule of a KafkaBackup, with a clock that the tests turn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.api import Key, Phase, Resource, Status
from logkeep_operator.api.archive import KafkaArchive
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.api.fields import Fields
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import RunQueue, is_at_rest, wake_after
from logkeep_operator.settings import Concurrency
from tests.examples import number
from tests.unit.operator.fake_api import our_fields
from tests.unit.operator.world import ENGINE, World, backup_spec


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def scheduled(**schedule: Any) -> World:
    """A backup of every night at two. It was created at START, at eight, and its first run has succeeded."""
    world = World(spec=backup_spec(schedule={"cron": "0 2 * * *", "jitterSeconds": 0} | schedule))
    world.settle()
    end_run(world)
    return world


def end_run(world: World) -> None:
    """The run that continues succeeds now."""
    world.driver()
    world.settle()
    world.complete()
    world.pods = []


def goes_on(world: World) -> bool:
    return world.status.run is not None and world.status.run.outcome is None


def begun(world: World) -> int:
    """How many runs have begun."""
    return len({body["metadata"]["name"] for body in world.created if body["kind"] == "Job"})


def look_at(world: World, text: str) -> None:
    """Turn the clock and look, as an operator does that was down until then."""
    world.now = moment(text)
    world.settle()


def times_of(world: World) -> tuple[str | None, str | None]:
    return world.status.last_schedule_time, world.status.next_schedule_time


# ---- a run at its time


def test_a_backup_runs_when_it_is_created_and_then_at_its_times() -> None:
    world = scheduled()
    assert (begun(world), times_of(world)) == (1, (None, "2026-11-22T02:00:00Z"))
    look_at(world, "2026-11-22T01:59:59Z")
    assert begun(world) == 1
    look_at(world, "2026-11-22T02:00:00Z")
    assert (begun(world), goes_on(world)) == (2, True)
    assert times_of(world) == ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z")
    end_run(world)
    world.settle()
    assert (begun(world), world.status.phase) == (2, Phase.SUCCEEDED)
    look_at(world, "2026-11-23T02:00:01Z")
    assert (begun(world), len(world.status.history)) == (3, 2)


def test_reconcile_wakes_itself_for_the_next_time() -> None:
    world = scheduled()
    assert world.step().requeue_after == timedelta(hours=18).total_seconds()
    world.now = moment("2026-11-22T01:59:58.500Z")
    assert world.step().requeue_after == 1.5


def test_a_backup_at_rest_rests_until_its_time() -> None:
    world = scheduled()
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)
    assert wake_after(world.resource, world.now) == (timedelta(hours=18) - timedelta(minutes=11)).total_seconds()
    world.now = moment("2026-11-22T02:00:00Z")
    assert not is_at_rest(world.resource, world.now)


def test_the_controller_and_the_resync_come_back_for_a_backup_at_rest() -> None:
    world = scheduled()
    world.pass_time(minutes=11)

    class AtRest:
        def served_fields(self) -> dict[str, Fields]:
            return our_fields()

        def now(self) -> datetime:
            return world.now

        def archives(self, namespaces: list[str]) -> list[KafkaArchive]:
            return []

        def resources(self, namespaces: list[str], archives: Mapping[Key, KafkaArchive]) -> list[Resource]:
            return [world.resource]

        def resource(self, key: Key) -> Resource:
            return world.resource

        def requested_runs(self, namespace: str | None) -> list[RequestedRun]:
            return []

    requested = Controller(cast(KubernetesCluster, AtRest()), ENGINE, Metrics())
    left = (moment("2026-11-22T02:00:00Z") - world.now).total_seconds()
    assert requested.reconcile(world.resource.key) == left
    assert requested.unsettled("team") == [(world.resource.key, left)]


def test_a_failed_run_does_not_stop_the_next() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    world.job_is(failure=("BackoffLimitExceeded", ""))
    world.reports(result=world.failed_result())
    world.settle()
    assert world.status.phase is Phase.FAILED
    look_at(world, "2026-11-23T02:00:00Z")
    assert (begun(world), goes_on(world)) == (3, True)


def test_the_jitter_is_a_part_of_its_seconds_and_always_the_same() -> None:
    late = set()
    for name in ("a", "b", "c", "d", "e"):
        world = scheduled(jitterSeconds=3600)
        world.resource = replace(world.resource, uid=f"uid-of-{name}")
        world.now = moment("2026-11-22T02:00:00Z")
        seconds = wake_after(world.resource, world.now)
        assert seconds is not None
        assert 0 <= seconds < 3600
        late.add(seconds)
        tomorrow = replace(world.status, next_schedule_time="2026-11-23T02:00:00Z")
        assert wake_after(world.resource, world.now + timedelta(days=1), tomorrow) == seconds
    assert len(late) == 5


def test_a_run_starts_when_its_jitter_is_over() -> None:
    world = scheduled(jitterSeconds=3600)
    world.now = moment("2026-11-22T02:00:00Z")
    late = wake_after(world.resource, world.now)
    assert late is not None
    assert late > 1
    world.pass_time(seconds=late - 1)
    world.settle()
    assert begun(world) == 1
    world.pass_time(seconds=1)
    world.settle()
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))
    world.edit(schedule={"cron": "0 2 * * *", "jitterSeconds": 0})
    end_run(world)
    world.settle()
    assert begun(world) == 2, "another jitter is no other time"


# ---- runs that were missed, and two that must not meet


def test_an_operator_that_was_down_for_a_month_starts_one_run() -> None:
    world = scheduled()
    look_at(world, "2026-12-21T13:30:00Z")
    assert (begun(world), times_of(world)) == (2, ("2026-12-21T02:00:00Z", "2026-12-22T02:00:00Z"))
    end_run(world)
    world.settle()
    assert begun(world) == 2


def test_a_run_that_is_longer_than_an_hour_is_followed_by_one() -> None:
    world = scheduled(cron="@hourly")
    look_at(world, "2026-11-21T09:00:00Z")
    for hour in range(10, 15):
        look_at(world, f"2026-11-21T{hour}:00:00Z")
        assert (begun(world), goes_on(world)) == (2, True)
    assert times_of(world) == ("2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z"), "since then a run is due and waits"
    world.reports(result=world.result())
    world.job_is(complete=True)
    assert world.step().requeue_after == 0.0, "nobody else wakes it up"
    world.settle()
    assert (begun(world), times_of(world)) == (3, ("2026-11-21T14:00:00Z", "2026-11-21T15:00:00Z"))
    end_run(world)
    world.settle()
    assert begun(world) == 3


def test_the_run_of_a_schedule_waits_for_a_driver_that_still_lives() -> None:
    world = scheduled()
    world.driver(name="late")
    world.now = moment("2026-11-22T02:00:00Z")
    plan = world.step()
    assert (begun(world), world.condition("ScheduledRun")) == (1, ("True", "WaitingForPreviousRun"))
    assert plan.requeue_after is not None
    assert plan.requeue_after > 1, "it is not asked again and again"
    world.pods = []
    world.settle()
    assert begun(world) == 2


# ---- what a run of the schedule does to the conditions


def states(world: World) -> tuple[str, str, str, str]:
    """The conditions Ready, Reconciling and Stalled, and ScheduledRun if it is there."""
    found = [world.status.condition(kind) for kind in ("Ready", "Reconciling", "Stalled", "ScheduledRun")]
    ready, reconciling, stalled, run = (condition.status if condition is not None else "" for condition in found)
    return ready, reconciling, stalled, run


READY, UNREADY = ("True", "False", "False"), ("False", "True", "False")


def test_a_run_of_the_schedule_leaves_a_backup_ready_that_has_succeeded() -> None:
    world = scheduled()
    assert states(world) == (*READY, "")
    world.turns = RunQueue(Concurrency(1), frozenset({Key("KafkaBackup", "team", "other")}))
    look_at(world, "2026-11-22T02:00:00Z")
    assert (states(world), world.condition("Ready")[1], begun(world)) == ((*READY, "True"), "Queued", 1)
    world.pass_time(minutes=7)
    assert world.step().waits_since == moment("2026-11-22T02:00:00Z"), "it keeps its place in the queue"
    world.turns = RunQueue()
    world.settle()
    assert (states(world), goes_on(world)) == ((*READY, "True"), True)
    world.driver()
    world.settle()
    assert (states(world), world.condition("Ready")[1]) == ((*READY, "True"), "Running")
    world.complete()
    assert (states(world), world.condition("Ready")[1]) == ((*READY, "False"), "RunSucceeded")


def test_a_driver_that_does_not_go_after_a_run_of_the_schedule_has_its_time() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    world.driver()
    world.pass_time(hours=1)
    world.settle()
    world.reports(result=world.result())
    world.settle()
    assert (goes_on(world), states(world)) == (False, (*READY, "False"))
    world.pass_time(seconds=60)
    world.settle()
    assert world.run_id in world.jobs
    world.pass_time(seconds=70)
    world.settle()
    assert world.run_id not in world.jobs


def test_a_run_of_the_schedule_that_has_trouble_makes_the_backup_unready_until_its_end() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    world.driver("Pending", unschedulable="0/1 nodes are available")
    world.settle()
    assert (states(world), world.condition("Ready")[1]) == ((*UNREADY, "False"), "DriverUnschedulable")
    world.driver()
    world.settle()
    assert (states(world), world.condition("Ready")[1]) == ((*UNREADY, "False"), "Running")
    world.complete()
    assert states(world) == (*READY, "False")


def test_the_run_of_the_schedule_after_a_failure_is_no_success_yet() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    world.driver("Failed", exit_code=2)
    world.reports(result=world.failed_result(exit_code=2))
    world.job_is(failure=("PodFailurePolicy", ""))
    world.settle()
    assert states(world) == ("False", "False", "True", "False")
    look_at(world, "2026-11-23T02:00:00Z")
    assert (goes_on(world), states(world)) == (True, (*UNREADY, "False"))


@pytest.mark.parametrize("how", ["annotation", "spec", "object"])
def test_a_run_that_something_else_asks_for_makes_a_backup_unready(how: str) -> None:
    world = scheduled()
    world.now = moment("2026-11-22T02:00:00Z")
    if how == "annotation":
        world.annotate("now")
    elif how == "spec":
        world.edit(topics={"include": ["payments"]})
    else:
        world.ask("now")
    world.settle()
    assert (goes_on(world), states(world)) == (True, (*UNREADY, ""))


def test_a_run_that_is_asked_for_while_one_of_the_schedule_continues_is_waited_for() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    assert states(world) == (*READY, "True")
    world.annotate("now")
    world.settle()
    assert (begun(world), states(world)) == (2, (*UNREADY, "False"))


def test_a_run_that_would_start_too_late_is_left_out_and_told_once() -> None:
    world = scheduled(startingDeadlineSeconds=3600)
    look_at(world, "2026-11-22T03:00:01Z")
    assert (begun(world), times_of(world)) == (1, (None, "2026-11-23T02:00:00Z"))
    assert world.events.count(("Warning", "MissSchedule")) == 1
    look_at(world, "2026-11-23T03:00:00Z")
    assert (begun(world), times_of(world)) == (2, ("2026-11-23T02:00:00Z", "2026-11-24T02:00:00Z"))
    assert world.events.count(("Warning", "MissSchedule")) == 1


def test_the_deadline_counts_for_a_run_that_waited_for_another() -> None:
    world = scheduled(cron="0 * * * *", startingDeadlineSeconds=600)
    look_at(world, "2026-11-21T09:00:00Z")
    look_at(world, "2026-11-21T10:20:00Z")
    end_run(world)
    world.settle()
    assert (begun(world), times_of(world)) == (2, ("2026-11-21T09:00:00Z", "2026-11-21T11:00:00Z"))
    assert world.events.count(("Warning", "MissSchedule")) == 1


def test_a_suspended_backup_starts_nothing_and_is_caught_up_once() -> None:
    world = scheduled()
    world.edit(suspend=True)
    look_at(world, "2026-11-25T12:00:00Z")
    assert (begun(world), world.step().requeue_after) == (1, None)
    assert is_at_rest(world.resource, world.now + timedelta(minutes=11))
    world.edit(suspend=False)
    world.settle()
    assert (begun(world), times_of(world)) == (2, ("2026-11-25T02:00:00Z", "2026-11-26T02:00:00Z"))


def test_a_run_that_was_asked_for_stands_for_the_time_that_is_due() -> None:
    world = scheduled()
    world.annotate("by hand")
    look_at(world, "2026-11-22T02:00:00Z")
    end_run(world)
    world.settle()
    assert (begun(world), world.status.last_handled_run) == (2, "by hand")
    assert world.status.last_schedule_time == "2026-11-22T02:00:00Z"


# ---- changes of the schedule


def test_a_schedule_that_is_added_or_changed_starts_no_run() -> None:
    world = World()
    world.settle()
    end_run(world)
    look_at(world, "2026-11-21T12:00:00Z")
    assert times_of(world) == (None, None)
    for cron, expected in (("0 2 * * *", "22T02:00"), ("0 11 * * *", "22T11:00"), ("0 * * * *", "21T13:00")):
        world.edit(schedule={"cron": cron, "jitterSeconds": 0})
        world.settle()
        assert (begun(world), times_of(world)) == (1, (None, f"2026-11-{expected}:00Z"))
    world.edit(schedule={"cron": "0 2 * * *", "timeZone": "Asia/Tokyo", "jitterSeconds": 0})
    world.settle()
    assert (begun(world), times_of(world)) == (1, (None, "2026-11-21T17:00:00Z"))


def test_a_change_loses_no_run_that_was_due() -> None:
    world = scheduled()
    world.edit(schedule={"cron": "0 3 * * *", "jitterSeconds": 0})
    look_at(world, "2026-11-22T04:00:00Z")
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T03:00:00Z", "2026-11-23T03:00:00Z"))


def test_a_schedule_that_is_taken_away_starts_no_run() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    end_run(world)
    spec = {name: value for name, value in world.resource.spec.items() if name != "schedule"}
    world.resource = replace(world.resource, spec=spec, generation=2)
    look_at(world, "2026-11-25T02:00:00Z")
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", None))
    assert wake_after(world.resource, world.now) is None


@pytest.mark.parametrize(
    ("schedule", "field", "what"),
    [
        ({"cron": "0 25 * * *"}, "spec.schedule.cron", "bad hour"),
        ({"cron": "0 0 30 2 *"}, "spec.schedule.cron", "bad day-of-month"),
        ({"cron": "0 2 * * *", "timeZone": "Mars/Olympus"}, "spec.schedule.timeZone", "not a time zone"),
        ({"cron": "0 2 * * *", "timeZone": "Local"}, "spec.schedule.timeZone", "the operator's pod"),
    ],
)
def test_a_schedule_without_a_time_is_invalid(schedule: dict[str, str], field: str, what: str) -> None:
    with pytest.raises(SpecInvalid, match=what) as caught:
        check_spec(parse_backup(backup_spec(schedule=schedule)))
    assert [path for path, _ in caught.value.problems] == [field]


def test_an_invalid_schedule_rests_and_is_caught_up_when_it_is_corrected() -> None:
    world = scheduled()
    world.edit(schedule={"cron": "0 25 * * *", "jitterSeconds": 0})
    look_at(world, "2026-11-22T12:00:00Z")
    assert (world.status.phase, world.step().requeue_after) == (Phase.INVALID, None)
    assert wake_after(world.resource, world.now) is None
    world.edit(schedule={"cron": "0 2 * * *", "jitterSeconds": 0})
    world.settle()
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))


# ---- clocks that jump


def test_a_clock_that_is_set_back_a_little_starts_no_run_twice() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    end_run(world)
    for text in ("2026-11-22T01:59:50Z", "2026-11-22T02:00:00Z", "2026-11-22T01:20:00Z", "2026-11-22T02:00:01Z"):
        look_at(world, text)
        assert (begun(world), world.status.next_schedule_time) == (2, "2026-11-23T02:00:00Z")


def test_a_clock_that_was_wrong_by_a_year_holds_up_no_run() -> None:
    world = scheduled()
    look_at(world, "2027-11-22T12:00:00Z")
    assert begun(world) == 2
    end_run(world)
    look_at(world, "2026-11-21T12:00:00Z")
    assert (begun(world), world.status.next_schedule_time) == (2, "2026-11-22T02:00:00Z")
    look_at(world, "2026-11-22T02:00:00Z")
    assert (begun(world), times_of(world)) == (3, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))


@pytest.mark.parametrize(
    ("cron", "day", "starts"),
    [
        ("30 2 * * *", "2027-03-28", ["01:00"]),
        ("30 2 * * *", "2027-10-31", ["00:30"]),
        ("0 2 * * *", "2027-10-31", ["00:00"]),
        ("0 2-4 * * *", "2027-03-28", ["01:00", "02:00"]),
        ("0 * * * *", "2027-10-31", ["00:00", "01:00", "02:00", "03:00"]),
    ],
)
def test_a_night_in_which_the_clock_changes(cron: str, day: str, starts: list[str]) -> None:
    """An operator that looks every ten minutes, in Berlin."""
    world = scheduled(cron=cron, timeZone="Europe/Berlin")
    world.now = moment(f"{day}T00:00:00Z") - timedelta(minutes=10)
    world.settle()  # catches up all until then
    if goes_on(world):
        end_run(world)
    found = []
    for _ in range(22):  # until 03:30
        world.pass_time(minutes=10)
        world.settle()
        if goes_on(world):
            found.append(world.now.strftime("%H:%M"))
            end_run(world)
    assert found == starts


# ---- crashes


def test_a_crash_between_the_job_and_the_status_makes_no_second_run() -> None:
    world = scheduled()
    world.now = moment("2026-11-22T02:00:00Z")
    world.step(conflict=True)
    assert (begun(world), times_of(world)) == (2, (None, "2026-11-22T02:00:00Z"))
    look_at(world, "2026-11-22T02:00:05Z")
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))


def test_a_run_that_the_status_does_not_know_is_found_when_the_next_is_due() -> None:
    world = scheduled(cron="@hourly")
    world.now = moment("2026-11-21T09:00:00Z")
    world.step(conflict=True)
    look_at(world, "2026-11-21T10:30:00Z")
    assert (begun(world), goes_on(world)) == (2, True), "the run of nine goes on"
    assert world.status.last_schedule_time == "2026-11-21T09:00:00Z"
    end_run(world)
    world.settle()
    assert (begun(world), times_of(world)) == (3, ("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"))


def test_a_status_that_was_deleted_starts_no_run_again() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    end_run(world)
    world.resource = replace(world.resource, status=Status())
    world.settle()
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))


def test_a_next_time_that_has_had_its_run_moves_on() -> None:
    """The status is of before the run, as one that somebody has put back."""
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    end_run(world)
    world.resource = replace(world.resource, status=replace(world.status, next_schedule_time="2026-11-22T02:00:00Z"))
    look_at(world, "2026-11-22T02:30:00Z")
    assert (begun(world), times_of(world)) == (2, ("2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"))


# ---- whatever happens


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(number(10, deep=200)))
def test_whatever_happens_every_time_is_followed_by_a_run_and_no_two_meet(seed: int) -> None:
    drawn = random.Random(seed)
    cron = drawn.choice(["*/20 * * * *", "@hourly", "30 2,14 * * *"])
    world = World(spec=backup_spec(schedule={"cron": cron, "timeZone": "Europe/Berlin", "jitterSeconds": 60}))
    world.now = moment("2027-10-30T12:00:00Z")
    world.settle()
    for _ in range(150):
        world.pass_time(seconds=drawn.choice([7, 61, 600, 1800, 9000]))
        match drawn.randrange(8):
            case 0:
                world.step(conflict=True)
            case 1:
                world.edit(suspend=not world.resource.spec.get("suspend", False))
            case 2 | 3 | 4 if goes_on(world) and not world.resource.spec.get("suspend") and world.run_id in world.jobs:
                world.reports(result=world.result())
                world.job_is(complete=True)
            case 5 if goes_on(world):
                world.jobs = {}
            case _:
                pass
        world.settle()
        assert sum(not job.finished and not job.deleting for job in world.jobs.values()) <= 1
        first = world.status.next_schedule_time
        assert first is not None
        idle = not goes_on(world) and not world.resource.spec.get("suspend")
        assert not idle or first > timestamp(world.now - timedelta(seconds=60)), "a run was due and none was started"
    assert begun(world) > 2

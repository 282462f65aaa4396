"""A driver that is said to run and says nothing: its node may be gone. Only the operator's own clock counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import EnsureAccess
from tests.unit.operator.test_reconcile import started
from tests.unit.operator.world import World, backup_spec

RUNS = ("False", "Running")
SILENT = ("False", "NoProgress")


def running(**driver: str) -> World:
    world = started()
    world.driver(**driver)
    world.executor(1)
    world.job_is(active=1)
    world.reports(world.progress())
    world.settle()
    return world


def test_a_driver_on_a_dead_node_is_not_said_to_continue() -> None:
    world = running(node="node-7")
    world.pass_time(minutes=4)
    world.settle()
    assert world.condition("Ready") == RUNS
    world.pass_time(minutes=2)
    world.settle()
    assert world.condition("Ready") == SILENT
    assert "driver pod driver-pod on node node-7 since 2026-11-21T08:00:00Z" in world.message()
    assert world.status.phase is Phase.RUNNING
    assert world.events.count(("Warning", "NoProgress")) == 1
    before = world.status
    world.pass_time(hours=3)
    world.settle()
    assert world.status == before, "the message does not change at every look"


def test_a_driver_that_died_before_its_first_word_is_noticed_too() -> None:
    world = started()
    world.driver()
    world.settle()
    world.pass_time(minutes=6)
    world.settle()
    assert world.condition("Ready") == SILENT


def test_news_of_the_driver_end_it() -> None:
    world = running()
    world.pass_time(minutes=6)
    world.settle()
    world.reports(world.progress())
    world.settle()
    assert world.condition("Ready") == RUNS
    world.pass_time(minutes=6)
    world.settle()
    assert world.condition("Ready") == SILENT


@pytest.mark.parametrize("off", [timedelta(hours=-9), timedelta(hours=9)])
def test_a_clock_of_the_driver_that_is_wrong_does_not_matter(off: timedelta) -> None:
    world = running()
    for _ in range(4):
        world.pass_time(minutes=4)
        world.reports(world.progress(update_time=(world.now + off).timestamp()))
        world.settle()
        assert world.condition("Ready") == RUNS
    world.pass_time(minutes=6)
    world.settle()
    assert world.condition("Ready") == SILENT


def test_what_a_driver_says_after_its_restart_is_news_although_its_clock_is_behind() -> None:
    world = running()
    world.pass_time(minutes=4)
    world.reports(world.progress(update_time=0.0))
    world.settle()
    world.pass_time(minutes=4)
    world.settle()
    assert world.condition("Ready") == RUNS


def test_the_time_that_no_driver_ran_does_not_count() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    world.pods = []
    world.pass_time(hours=1)
    world.settle()
    world.edit(suspend=False)
    world.settle()
    world.driver()
    world.settle()
    assert world.condition("Ready") == RUNS


def test_both_times_are_in_the_status() -> None:
    world = started()
    world.driver()
    world.reports(world.progress(update_time=(world.now - timedelta(hours=1)).timestamp()))
    world.settle()
    assert world.status.progress is not None
    assert world.status.run is not None
    assert world.status.progress.update_time == "2026-11-21T07:00:00Z"
    assert world.status.run.heard_time == "2026-11-21T08:00:00Z"


def test_without_a_word_a_run_ends_after_a_week() -> None:
    (made,) = [body for body in started().created if body["kind"] == "Job"]
    assert made["spec"]["activeDeadlineSeconds"] == 7 * 86400


def test_what_cannot_be_read_is_a_word_of_the_driver_too() -> None:
    world = running()
    world.reports()
    known = world.documents[world.run_id]
    world.pass_time(minutes=6)
    world.documents[world.run_id] = replace(
        known, progress=None, unreadable="startTime is not a time", written=world.now
    )
    world.settle()
    assert world.condition("Ready") == ("False", "ProgressUnreadable")
    world.pass_time(minutes=6)
    world.settle()
    assert world.condition("Ready") == SILENT


@pytest.mark.parametrize("account", [None, "team-a"])
def test_accounts_and_rights_that_were_deleted_are_made_again_once_when_the_driver_falls_silent(
    account: str | None,
) -> None:
    world = World("KafkaBackup", backup_spec(spark={"serviceAccountName": account} if account else {}))
    world.settle()
    world.job_is(active=1)
    world.driver("Running")
    world.reports(progress=world.progress())
    world.settle()
    world.pass_time(minutes=6)
    made = [action for _ in range(3) for action in world.step().actions if isinstance(action, EnsureAccess)]
    assert world.condition("Ready")[1] == "NoProgress"
    assert made == ([EnsureAccess(world.resource.key.namespace)] if account is None else [])

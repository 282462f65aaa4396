"""A user changes `spec.topics.holdFor`, the spec or the resource itself while a restore holds topics."""

from __future__ import annotations

import pytest

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import is_at_rest, wake_after_rest
from tests.unit.operator.held_topics import (
    DAY,
    END,
    as_it_ended,
    begin,
    begin_again,
    fail,
    held,
    release,
    restored,
    topics,
)


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
    begin_again(world)
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


def test_a_spec_that_became_invalid_is_reported_as_long_as_topics_wait() -> None:
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

"""A restore that an earlier resource of its name has done is told as done, and is done again only when asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile import is_at_rest
from tests.unit.operator.world import World, backup_spec, resource, restore_spec

FOUND = VerificationFacts(
    run_id="0123456789",
    outcome="Verified",
    message="all 5 records are those of the archive",
    partitions=1,
    verified=1,
    records=5,
    report="file:///a",
)
EARLIER = {"earlier_run": "0123456789", "earlier_end": 1763625600.0, "message": "Nothing was written"}


def begun(**annotations: str) -> World:
    world = World("KafkaRestore", restore_spec())
    world.resource = replace(world.resource, annotations=annotations)
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    return world


def ended(world: World, **result: Any) -> World:
    world.pass_time(minutes=1)
    world.reports(result=world.result(**result))
    world.job_is(active=0, complete=True)
    world.settle()
    return world


def ask(world: World, value: str) -> None:
    world.annotate(value, "logkeep.dev/run-again")


def request(world: World) -> dict[str, Any]:
    """The last request that a driver got."""
    bodies = [body for body in world.created if "request.json" in (body.get("data") or {})]
    found: dict[str, Any] = json.loads(bodies[-1]["data"]["request.json"])
    return found


def test_a_restore_that_was_done_before_is_ready_and_says_so() -> None:
    world = ended(begun(), **EARLIER)
    assert world.status.phase is Phase.SUCCEEDED
    assert world.condition("Ready") == ("True", "RestoredBefore")
    assert "Nothing was written. To restore once more: kubectl -n team annotate krst again" in world.message()
    assert "logkeep.dev/run-again=" in world.message()
    assert world.status.restored_by == "0123456789"
    assert world.status.last_success_time == "2025-11-20T08:00:00Z", "when the records came, not when this was found"
    assert ("Normal", "RestoredBefore") in world.events
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)


def test_it_still_says_so_after_a_suspension() -> None:
    world = ended(begun(), **EARLIER)
    world.edit(suspend=True)
    world.settle()
    assert world.condition("Ready") == ("False", "Suspended")
    world.edit(suspend=False)
    world.settle()
    assert world.condition("Ready") == ("True", "RestoredBefore")


def test_the_request_names_the_restore_so_that_a_later_resource_finds_it() -> None:
    world = begun()
    assert request(world)["rememberedAs"] == "KafkaRestore team/again"
    assert request(begun(**{"logkeep.dev/run-again": "2"}))["rememberedAs"] == "KafkaRestore team/again, run again: 2"
    backup = World()
    backup.settle()
    assert request(backup)["rememberedAs"] is None


def test_a_new_value_makes_another_run_and_only_one() -> None:
    world = ended(begun(), **EARLIER)
    first = world.run_id
    ask(world, "2")
    assert not is_at_rest(world.resource, world.now)
    world.settle()
    second = world.run_id
    assert second != first
    assert world.status.last_handled_run_again == "2"
    assert world.status.restored_by is None
    assert request(world)["rememberedAs"].endswith("run again: 2")
    ended(world)
    assert world.condition("Ready") == ("True", "RunSucceeded")
    world.resource = replace(world.resource, annotations={})
    world.settle()
    assert (world.run_id, world.status.phase) == (second, Phase.SUCCEEDED), "taking it away asks for nothing"


def test_a_failed_restore_begins_again_with_a_new_value_instead_of_going_on() -> None:
    world = begun()
    first = world.run_id
    world.driver()
    world.reports(result=world.failed_result(exit_code=2))
    world.job_is(failure=("PodFailurePolicy", ""))
    world.driver("Failed", exit_code=2)
    world.settle()
    assert world.status.phase is Phase.FAILED
    ask(world, "2")
    world.settle()
    assert world.run_id != first


def test_a_run_that_continues_is_finished_first() -> None:
    world = begun()
    first = world.run_id
    world.driver()
    ask(world, "2")
    world.settle()
    assert world.run_id == first
    world.jobs.clear()  # also when its Job is made again
    world.pods.clear()
    world.settle()
    assert world.run_id == first
    assert request(world)["rememberedAs"] == "KafkaRestore team/again"
    ended(world)
    world.settle()
    assert world.run_id != first
    assert world.status.history[0].run_id == first


@pytest.mark.parametrize("value", ["", None])
def test_no_value_asks_for_nothing(value: str | None) -> None:
    world = ended(begun())
    first = world.run_id
    if value is not None:
        ask(world, value)
    world.settle()
    assert (world.run_id, world.status.phase) == (first, Phase.SUCCEEDED)


def test_a_value_whose_status_was_refused_is_known_from_the_job() -> None:
    world = ended(begun())
    ask(world, "2")
    world.step(conflict=True)
    world.resource = replace(world.resource, annotations={})
    world.settle()
    assert world.status.last_handled_run_again == "2"
    assert world.run_id in world.jobs


def test_what_a_verification_has_found_is_told_of_its_run_only() -> None:
    world = begun()
    first = world.run_id
    ended(world, verification=replace(FOUND, run_id=first))
    assert world.status.verification is not None
    assert (world.status.verification.run_id, world.status.verification.outcome) == (first, "Verified")
    ask(world, "2")
    world.settle()
    assert world.run_id != first
    assert world.status.verification is None, "the new run has verified nothing yet"
    ended(world)
    assert world.status.verification is None, "and did not in the end"


def test_a_verification_of_what_an_earlier_run_has_restored_names_that_run() -> None:
    world = ended(begun(), **EARLIER, verification=FOUND)
    assert world.status.verification is not None
    assert world.status.verification.run_id == "0123456789"

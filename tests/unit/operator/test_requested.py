"""The reason of a run is reported in its request, its status, its history and the event of its start."""

from __future__ import annotations

from logkeep_engine.contract.run import RunRequest
from tests.unit.hostile import NAME, doing
from tests.unit.operator.test_backup_runs import at_rest
from tests.unit.operator.test_schedule import look_at, scheduled
from tests.unit.operator.world import World, restore_spec


def requested_by(world: World) -> str | None:
    """Return what the status says, which is what the driver is told."""
    assert world.status.run is not None
    requests = [body for body in world.created if body["metadata"]["name"].endswith("-request")]
    request = RunRequest.from_json(requests[-1]["data"]["request.json"])
    assert (request.run_id, request.requested_by) == (world.run_id, world.status.run.requested_by)
    return request.requested_by


def test_a_resource_that_is_created_asks_by_its_spec() -> None:
    world = World()
    world.step()
    assert requested_by(world) == "spec of KafkaBackup team/nightly"
    world.complete()
    assert world.status.history[0].requested_by == "spec of KafkaBackup team/nightly"


def test_a_restore_that_is_asked_for_again_tells_its_annotation() -> None:
    world = World("KafkaRestore", restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}}))
    world.annotate("first", "logkeep.dev/run-again")
    world.step()
    assert requested_by(world) == "annotation logkeep.dev/run-again: first"


def test_the_value_of_an_annotation_is_reported_on_one_line_and_cut() -> None:
    world = at_rest()
    world.annotate("alice, after the incident")
    world.step()
    assert requested_by(world) == "annotation logkeep.dev/run: alice, after the incident"
    world.complete()
    world.annotate(NAME * 10)
    world.settle()
    claim = requested_by(world) or ""
    assert claim.startswith(r"annotation logkeep.dev/run: pwned\x1b]0;title")
    assert len(claim) < 200
    assert doing(claim + "".join(entry.requested_by or "" for entry in world.status.history)) == []


def test_kafkabackupruns_are_reported_by_name() -> None:
    world = at_rest()
    for number in range(7):
        world.ask(f"run-{number}")
    world.step()
    first = ", ".join(f"KafkaBackupRun team/run-{number}" for number in range(5))
    assert requested_by(world) == f"{first}, 2 more"


def test_a_schedule_is_reported_with_its_time() -> None:
    world = scheduled()
    look_at(world, "2026-11-22T02:00:00Z")
    assert requested_by(world) == "schedule of KafkaBackup team/nightly, due 2026-11-22T02:00:00Z"


def test_reasons_that_are_new_at_once_are_reported_together() -> None:
    world = at_rest()
    world.annotate("bob")
    world.ask("one")
    world.step()
    assert requested_by(world) == "annotation logkeep.dev/run: bob, KafkaBackupRun team/one"


def test_a_job_that_is_made_again_and_a_lost_status_change_nothing() -> None:
    world = at_rest()
    world.ask("one")
    world.step(conflict=True)
    world.step()
    assert requested_by(world) == "KafkaBackupRun team/one"
    world.jobs.clear()
    world.documents.clear()
    world.settle()
    assert requested_by(world) == "KafkaBackupRun team/one"

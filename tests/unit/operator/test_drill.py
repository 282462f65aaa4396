"""A drill of an archive: its result is told where people look, and it repeats."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.facts.outcome import DrillFacts, VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest
from logkeep_operator.api import ArchiveStatus, Condition, DrillStatus, Phase, Resource, Status, StatusOutcome
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import is_at_rest, wake_after
from tests.unit.operator.world import ENGINE, World, backup_spec, resource, restore_spec

FACTS = DrillFacts(
    recovery_seconds=725.4,
    verified_seconds=1450.2,
    partitions=2,
    records=1100,
    bytes=10900,
    report="s3://bucket/prefix/runs/r/drill.json",
)
GOOD = VerificationFacts(
    run_id="r",
    outcome="Verified",
    message="all 1100 records are those of the archive",
    partitions=2,
    verified=2,
    records=1100,
    end_time="1970-01-01T00:00:01Z",
    report="s3://page",
)


def drill(**fields: Any) -> World:
    """A drill of the archive of the backup `nightly`, which has succeeded."""
    world = World("KafkaRestore", restore_spec(drill={"prefix": "drill-", **fields}))
    ready = Condition(
        type="Ready",
        status="True",
        reason="RunSucceeded",
        message="",
        last_transition_time="2026-11-21T07:00:00Z",
        observed_generation=1,
    )
    status = Status(last_success_time="2026-11-21T07:00:00Z", conditions=(ready,), archive=ArchiveStatus(id="a1"))
    world.backup = resource("KafkaBackup", backup_spec(), status=status)
    world.settle()
    return world


def succeed(world: World) -> None:
    world.pass_time(minutes=20)
    world.driver()
    world.settle()
    world.reports(result=world.result(drill=FACTS, verification=GOOD))
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0)
    world.settle()
    world.pods = []


def fail(world: World, **changes: Any) -> None:
    world.pass_time(minutes=20)
    world.driver()
    world.settle()
    known = {"exit_code": 5, "error_code": "RecordsDiffer", "message": "one record differs", "archive_id": "a1"}
    world.reports(result=world.failed_result(**(known | changes)))
    world.job_is(active=0, failure=("PodFailurePolicy", "exit code 2"))
    world.driver("Failed", exit_code=2)
    world.settle()
    world.pods = []


def backup_of(world: World) -> Resource:
    assert world.backup is not None
    return world.backup


def verified(world: World) -> tuple[str, str]:
    found = backup_of(world).status.condition("Verified")
    return (found.status, found.reason) if found is not None else ("", "")


def drill_of(world: World) -> DrillStatus:
    found = backup_of(world).status.drill
    assert found is not None
    return found


def test_a_good_drill_is_reported_in_the_status_of_the_backup() -> None:
    world = drill()
    assert verified(world) == ("", "")
    succeed(world)
    assert verified(world) == ("True", "DrillSucceeded")
    found = drill_of(world)
    assert found == world.status.drill
    assert (found.restore, found.run_id, found.outcome) == ("again", world.run_id, StatusOutcome.SUCCEEDED)
    assert (found.recovery_seconds, found.recovery, found.verified_seconds) == (725, "12m 5s", 1450)
    assert found.last_good_time == found.end_time == "2026-11-21T08:20:00Z"
    assert found.report == FACTS.report
    condition = backup_of(world).status.condition("Verified")
    assert condition is not None
    assert condition.message.startswith(f"KafkaRestore again, run {world.run_id}: 1100 records")
    assert condition.message.endswith("; all are those of the archive, restored in 12m 5s")
    assert world.drill_events == [("Normal", "DrillSucceeded")]
    assert [one.type for one in backup_of(world).status.conditions] == ["Ready", "Verified"]
    assert world.step().drilled is None


def test_what_a_drill_has_left_out_as_cold_is_not_claimed() -> None:
    world = drill()
    world.reports(result=world.result(drill=replace(FACTS, cold_segments=7), verification=GOOD))
    world.job_is(active=0, complete=True)
    world.settle()
    message = "; all are those of the archive, restored in 12m 5s; 7 segments with cold objects were left out and are "
    assert message + "not proved" in str(drill_of(world).message)


def test_seconds_and_words_of_the_recovery_time_are_the_same() -> None:
    world = drill()
    world.reports(result=world.result(drill=replace(FACTS, recovery_seconds=2.6), verification=GOOD))
    world.job_is(active=0, complete=True)
    world.settle()
    assert (drill_of(world).recovery_seconds, drill_of(world).recovery) == (3, "3s")


def test_a_failed_drill_is_told_to_both_and_keeps_the_time_of_the_last_good_one() -> None:
    world = drill(schedule={"cron": "@daily", "jitterSeconds": 0})
    succeed(world)
    world.now = datetime(2026, 11, 22, tzinfo=UTC)
    world.settle()
    fail(world)
    assert verified(world) == ("False", "RecordsDiffer")
    assert (drill_of(world).last_good_time, drill_of(world).end_time) == (
        "2026-11-21T08:20:00Z",
        "2026-11-22T00:20:00Z",
    )
    assert (drill_of(world).outcome, drill_of(world).recovery) == (StatusOutcome.FAILED, "12m 5s")
    assert world.drill_events[-1] == ("Warning", "DrillFailed")
    assert ("Warning", "RunFailed") in world.events


def test_it_is_reported_though_the_operator_was_killed_in_between() -> None:
    world = drill()
    before = world.backup
    succeed(world)
    world.backup = before
    assert world.step().drilled is not None
    assert verified(world) == ("True", "DrillSucceeded")


def test_the_drill_that_has_ended_last_is_shown() -> None:
    world = drill()
    later = DrillStatus(restore="other", end_time="2026-11-21T09:00:00Z", outcome=StatusOutcome.FAILED)
    world.backup = replace(backup_of(world), status=replace(backup_of(world).status, drill=later))
    succeed(world)
    assert drill_of(world) == later
    earlier = replace(later, end_time="2026-11-21T08:00:00Z", last_good_time="2026-11-21T07:30:00Z")
    world.backup = replace(backup_of(world), status=replace(backup_of(world).status, drill=earlier))
    world.settle()
    assert drill_of(world).restore == "again"


def test_two_drills_that_have_ended_in_the_same_second_do_not_take_turns() -> None:
    world = drill()
    succeed(world)
    same = replace(drill_of(world), restore="one more")
    world.backup = replace(backup_of(world), status=replace(backup_of(world).status, drill=same))
    world.settle()
    assert drill_of(world) == same


def test_another_backup_of_the_name_is_not_reported() -> None:
    world = drill()
    other = replace(backup_of(world).status, archive=ArchiveStatus(id="a2"))
    world.backup = replace(backup_of(world), status=other)
    succeed(world)
    assert verified(world) == ("", "")


def test_a_restore_that_is_no_drill_tells_nothing() -> None:
    world = World("KafkaRestore", restore_spec())
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    world.complete()
    assert (world.status.drill, world.drill_events, verified(world)) == (None, [], ("", ""))


def test_a_drill_is_not_remembered_as_a_restore() -> None:
    world = drill()
    requests = [body["data"]["request.json"] for body in world.created if "request.json" in body.get("data", {})]
    assert [RunRequest.from_json(text).remembered_as for text in requests] == [None]


def test_metrics_of_a_backup_tell_of_its_drills() -> None:
    world, metrics = drill(), Metrics()

    def shown(name: str) -> float | None:
        labels = dict(zip(("kind", "namespace", "name"), backup_of(world).key, strict=True))
        return metrics.registry.get_sample_value(name, labels)

    metrics.seen(backup_of(world).key, backup_of(world).status, None)
    assert shown("logkeep_last_good_drill_timestamp_seconds") == 0
    assert math.isnan(shown("logkeep_drill_recovery_seconds") or 0)
    succeed(world)
    metrics.seen(backup_of(world).key, backup_of(world).status, None)
    assert shown("logkeep_last_good_drill_timestamp_seconds") == world.now.timestamp()
    assert shown("logkeep_drill_recovery_seconds") == 725
    metrics.gone(backup_of(world).key)
    assert shown("logkeep_drill_recovery_seconds") is None


# ---- the schedule


def test_a_drill_repeats_at_its_times_and_rests_in_between() -> None:
    world = drill(schedule={"cron": "0 2 * * *", "jitterSeconds": 0})
    first = world.run_id
    succeed(world)
    assert (world.status.phase, world.status.next_schedule_time) == (Phase.SUCCEEDED, "2026-11-22T02:00:00Z")
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)
    assert wake_after(world.resource, world.now) == timedelta(hours=17, minutes=29).total_seconds()
    world.now = datetime(2026, 11, 22, 2, tzinfo=UTC)
    assert not is_at_rest(world.resource, world.now)
    world.settle()
    second = world.run_id
    assert second != first
    ready = world.status.condition("Ready")
    assert ready is not None
    assert ready.status == "True", "a health check does not wait for it"
    world.settle()
    assert (world.run_id, len(world.jobs)) == (second, 2)
    assert world.status.last_schedule_time == "2026-11-22T02:00:00Z"
    succeed(world)
    assert [entry.run_id for entry in world.status.history] == [second, first]
    world.pass_time(hours=1)
    world.settle()
    assert world.run_id == second


def test_a_drill_that_has_failed_is_tried_again_at_its_time() -> None:
    world = drill(schedule={"cron": "0 2 * * *", "jitterSeconds": 0})
    fail(world)
    first = world.run_id
    assert world.status.phase is Phase.FAILED
    world.now = datetime(2026, 11, 22, 2, tzinfo=UTC)
    world.settle()
    assert world.run_id != first
    succeed(world)
    assert (world.status.phase, verified(world)) == (Phase.SUCCEEDED, ("True", "DrillSucceeded"))


@pytest.mark.parametrize("asked", ["schedule", "annotation", "nothing"])
def test_a_drill_that_is_not_allowed_any_more_says_so_if_more_is_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = backup_spec()["storage"]
    world = drill(**({"schedule": {"cron": "0 2 * * *", "jitterSeconds": 0}} if asked == "schedule" else {}))
    succeed(world)
    world.edit(source={"storage": inline})  # as it is, had it been written so
    engine = dataclasses.replace(ENGINE, allowed_inline_storage=False)
    monkeypatch.setattr("tests.unit.operator.world.ENGINE", engine)
    if asked == "annotation":
        world.annotate("once more", "logkeep.dev/run-again")
    world.pass_time(hours=30)
    world.settle()
    if asked == "nothing":
        assert (world.status.phase, world.condition("Ready")) == (Phase.SUCCEEDED, ("True", "RunSucceeded"))
        return
    assert (world.status.phase, world.condition("Ready")) == (Phase.INVALID, ("False", "NotAllowed"))
    assert verified(world) == ("True", "DrillSucceeded")
    first = world.run_id
    monkeypatch.setattr("tests.unit.operator.world.ENGINE", ENGINE)
    world.settle()
    assert (world.run_id != first, world.status.phase) == (True, Phase.PENDING)


def test_a_drill_without_a_schedule_is_done_once() -> None:
    world = drill()
    succeed(world)
    first = world.run_id
    world.pass_time(days=30)
    world.settle()
    assert (world.run_id, world.status.next_schedule_time) == (first, None)


def test_no_drill_begins_while_it_is_suspended() -> None:
    world = drill(schedule={"cron": "0 2 * * *", "jitterSeconds": 0})
    succeed(world)
    first = world.run_id
    world.edit(suspend=True)
    world.now = datetime(2026, 11, 23, 2, 30, tzinfo=UTC)
    world.settle()
    assert world.run_id == first
    world.edit(suspend=False)
    world.settle()
    assert (world.run_id != first, world.status.last_schedule_time) == (True, "2026-11-23T02:00:00Z")


def test_a_schedule_that_has_no_time_is_refused() -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.drill\.schedule\.cron"):
        check_spec(parse_restore(restore_spec(drill={"schedule": {"cron": "0 25 * * *"}})))

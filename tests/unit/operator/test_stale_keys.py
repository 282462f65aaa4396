"""When a run looks for stale keys, and what the status says of it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_operator.api import SpecInvalid, Status
from logkeep_operator.reconcile.stale_keys import reconciles, stale_keys_condition
from tests.unit.operator.world import World, backup_spec
from tests.unit.test_report import RESULT

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
SPEC = {
    "cluster": {"bootstrapServers": ["kafka:9092"]},
    "topics": {"include": [".*"]},
    "storage": {"uri": "s3://bucket/prod"},
    "reconcile": {"cron": "0 3 * * *"},
}
FACTS = ReconcileFacts(
    run_id="r1",
    outcome="StaleKeys",
    message="12 keys",
    partitions=3,
    keys=90,
    stale=12,
    end_time=timestamp(NOW),
    report="s3://x",
)


def status(last: timedelta | None) -> Status:
    compared = replace(FACTS, end_time=timestamp(NOW - last)) if last is not None else None
    return Status(last_success_time=timestamp(NOW), reconcile=compared)


@pytest.mark.parametrize(
    ("last", "due"),
    [(None, True), (timedelta(hours=8), False), (timedelta(hours=10), True), (timedelta(hours=-1), False)],
)
def test_the_first_run_after_a_time_of_the_cron_expression_looks_for_stale_keys(
    last: timedelta | None, due: bool
) -> None:
    assert reconciles(status(last), parse_backup(SPEC), NOW) is due


def test_a_run_that_makes_the_archive_does_not_and_neither_does_one_without_the_field() -> None:
    assert not reconciles(Status(), parse_backup(SPEC), NOW)
    without = {key: value for key, value in SPEC.items() if key != "reconcile"}
    assert not reconciles(status(None), parse_backup(without), NOW)


def test_the_time_zone_is_that_of_the_cron_expression() -> None:
    spec = parse_backup({**SPEC, "reconcile": {"cron": "30 12 * * *", "timeZone": "Europe/Berlin"}})
    assert reconciles(status(timedelta(hours=1)), spec, NOW)
    assert not reconciles(status(timedelta(minutes=20)), spec, NOW)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (FACTS, ("True", "StaleKeysFound")),
        (replace(FACTS, outcome="Same", stale=0), ("False", "NoStaleKeys")),
        (replace(FACTS, outcome="NotCompared", stale=0, not_compared=1), ("Unknown", "NotReconciled")),
        (replace(FACTS, outcome="NotCompared", not_compared=1), ("True", "StaleKeysFound")),
        (replace(FACTS, outcome="KeysMissing", stale=0, missing=1), ("Unknown", "KeysMissing")),
        (replace(FACTS, outcome="OfALaterVersion", stale=0), ("Unknown", "NotReconciled")),
    ],
)
def test_the_condition_says_what_was_found(facts: ReconcileFacts, expected: tuple[str, str]) -> None:
    condition = stale_keys_condition(facts)
    assert (condition.type, condition.status, condition.reason) == ("StaleKeys", *expected)
    assert condition.message == "12 keys; report s3://x"


def test_the_result_of_a_run_keeps_its_findings_on_the_way_to_the_status() -> None:
    result = replace(RESULT, reconciled=FACTS)
    assert RunResult.from_json(result.to_json()).reconciled == FACTS
    assert RunResult.from_json(result.to_termination_message(4096)).reconciled == FACTS
    wrong = json.loads(result.to_json())
    wrong["reconciled"]["stale"] = -1
    with pytest.raises(DocumentRefused, match="stale"):
        RunResult.from_json(json.dumps(wrong))


def test_the_second_run_of_a_backup_is_told_to_look_and_its_findings_are_shown() -> None:
    world = World(spec=backup_spec(reconcile={"cron": "@yearly"}))
    world.settle()
    assert requests(world)[-1].reconcile is None
    end(world)
    assert world.status.reconcile is None
    world.annotate("again")
    world.settle()
    assert requests(world)[-1].reconcile is True
    end(world, reconciled=replace(FACTS, run_id=world.run_id, end_time=timestamp(world.now)))
    assert world.status.reconcile is not None
    assert (world.status.reconcile.stale, world.status.reconcile.run_id) == (12, world.run_id)
    assert world.condition("StaleKeys") == ("True", "StaleKeysFound")
    assert ("Warning", "StaleKeysFound") in world.events
    world.annotate("once more")
    world.settle()
    assert requests(world)[-1].reconcile is None  # no time of the cron expression has come since
    end(world)
    assert world.condition("StaleKeys") == ("True", "StaleKeysFound")  # it stays until a run has looked again


def requests(world: World) -> list[RunRequest]:
    bodies = [body for body in world.created if "request.json" in (body.get("data") or {})]
    return [RunRequest.from_json(body["data"]["request.json"]) for body in bodies]


def end(world: World, **facts: Any) -> None:
    """The driver tells that it has succeeded, and ends."""
    world.pass_time(minutes=1)
    world.reports(result=world.result(**facts))
    world.job_is(active=0, complete=True)
    world.settle()


def test_a_cron_expression_that_is_none_is_refused_with_its_field() -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.reconcile\.cron"):
        check_spec(parse_backup({**SPEC, "reconcile": {"cron": "0 99 * * *"}}))
    with pytest.raises(SpecInvalid, match=r"spec\.reconcile\.timeZone"):
        check_spec(parse_backup({**SPEC, "reconcile": {"cron": "@daily", "timeZone": "Nowhere"}}))

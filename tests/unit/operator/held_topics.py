"""A restore that has succeeded and holds topics, and what becomes of their release."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from logkeep_engine.contract.facts.outcome import HeldTopics
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase, Status
from logkeep_operator.api.status import HeldTopicsStatus
from tests.unit.operator.world import START, World, backup_spec, resource, restore_spec

HELD = HeldTopics(topics=3, topic_list=("a", "b", "c"))
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


def begin_again(world: World) -> None:
    """Let the operator start the run of a release, and that have a driver."""
    world.created.clear()
    world.step()
    world.collect()
    world.settle()
    assert world.created[-1]["kind"] == "Job"
    world.driver()


def release(world: World, released: int = 3, left: tuple[str, ...] = ()) -> None:
    """The driver releases topics and ends."""
    found = replace(HELD, released=released, not_released_list=left, released_time=timestamp(world.now))
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

"""Runs that the status does not know: a conflict, another operator or somebody's hand kept it from the status."""

from __future__ import annotations

import pytest

from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile import Create, DeleteJob, JobState, is_at_rest
from tests.unit.operator.world import World, origin

LOSS = (LossFact(topic="orders", partition=0, start=10, end=310, reason="retention overtook the reader"),)


def begun_unknown(**change: object) -> tuple[World, str]:
    """A Job was made, the resource was changed before its status was written; the Job's run."""
    world = World()
    world.step(conflict=True)
    (run_id,) = world.jobs
    if change:
        world.edit(**change)
    else:
        world.annotate("2")
    return world, run_id


def succeed(world: World, run_id: str, **result: object) -> None:
    """The run's driver ends well, whatever the status knows of it."""
    ended = world.result(run_id=run_id, **result)
    world.documents[run_id] = replace(world.documents[run_id], result=ended)
    world.jobs[run_id] = replace(world.jobs[run_id], complete=True)


def test_a_run_asked_for_again_before_its_status_was_written_continues_and_is_reported() -> None:
    world, first = begun_unknown()
    world.settle()
    assert (world.run_id, set(world.jobs)) == (first, {first})
    succeed(world, first, loss=LOSS, loss_total=1, loss_offsets=300)
    world.settle()
    assert world.run_id != first
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(first, "Succeeded")]
    assert world.condition("DataLoss") == ("True", "RecordsMissing")
    assert [(entry.start, entry.end) for entry in world.status.loss] == [(10, 310)]
    assert ("Warning", "RecordsMissing") in world.events


def test_a_spec_changed_before_the_status_was_written_replaces_the_run() -> None:
    world, first = begun_unknown(topics={"include": ["t9"]})
    world.settle()
    assert first not in world.jobs
    assert set(world.jobs) == {world.run_id}
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(first, "Replaced")]
    request = next(b for b in world.created if b["metadata"]["name"].endswith(f"{world.run_id}-request"))
    assert '"t9"' in request["data"]["request.json"]


def test_a_run_that_was_replaced_before_its_status_was_written_continues_when_it_is_wanted_again() -> None:
    world = World()
    world.settle()
    world.edit(topics={"include": ["t9"]})
    world.step(conflict=True)
    world.step(conflict=True)  # the Job of the first run goes, that of the second is made
    (second,) = world.jobs
    world.edit(topics={"include": ["("]})
    world.settle()
    world.edit(topics={"include": ["t9"]})
    world.settle()
    assert (world.run_id, set(world.jobs)) == (second, {second})


def test_a_run_that_ended_with_loss_is_reported_though_another_spec_is_wanted_already() -> None:
    world, first = begun_unknown(topics={"include": ["t9"]})
    succeed(world, first, loss=LOSS, loss_total=1, loss_offsets=300)
    world.step()
    world.step()
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(first, "Succeeded")]
    assert world.condition("DataLoss")[0] == "True"
    world.settle()
    assert set(world.jobs) == {first, world.run_id}


def test_a_known_run_that_ended_with_loss_is_reported_though_the_spec_became_invalid() -> None:
    world = World()
    world.settle()
    first = world.run_id
    world.edit(topics={"include": ["("]})
    succeed(world, first, loss=LOSS, loss_total=1, loss_offsets=300)
    world.settle()
    assert world.status.phase is Phase.INVALID
    assert world.condition("DataLoss")[0] == "True"
    assert [entry.outcome for entry in world.status.history] == ["Succeeded"]


def test_an_unknown_run_of_a_spec_that_became_invalid_is_stopped_and_told() -> None:
    world, first = begun_unknown(topics={"include": ["("]})
    world.settle()
    assert world.jobs == {}
    assert world.status.phase is Phase.INVALID
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(first, "Replaced")]


def test_ten_edits_that_each_meet_a_conflict_leave_one_job_and_every_run_in_the_history() -> None:
    world = World()
    seen: set[str] = set()
    for number in range(10):
        world.edit(topics={"include": [f"t{number}"]})
        world.step(conflict=number % 2 == 0)
        seen |= set(world.jobs)
    world.settle()
    world.settle()
    assert set(world.jobs) == {world.run_id}
    assert {entry.run_id for entry in world.status.history} == seen - {world.run_id}
    assert {entry.outcome for entry in world.status.history} == {"Replaced"}


def test_a_job_that_another_operator_made_late_for_a_replaced_spec_goes() -> None:
    world = World()
    late = World()
    late.step()
    world.edit(topics={"include": ["t9"]})
    world.settle()
    world.jobs[late.run_id] = late.jobs[late.run_id]
    plan = world.step()
    assert plan.actions == ()
    world.settle()
    assert set(world.jobs) == {world.run_id}
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(late.run_id, "Replaced")]


def test_loss_of_another_operators_run_is_reported_while_the_status_run_continues() -> None:
    world = World()
    late = World()
    late.step()
    world.edit(topics={"include": ["t9"]})
    world.settle()
    wanted = world.run_id
    world.jobs[late.run_id] = late.jobs[late.run_id]
    world.documents[late.run_id] = late.documents[late.run_id]
    succeed(world, late.run_id, loss=LOSS, loss_total=1, loss_offsets=300)
    world.settle()
    assert world.run_id == wanted
    assert world.condition("DataLoss")[0] == "True"
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(late.run_id, "Succeeded")]


def stopped_with_loss(world: World, run_id: str) -> None:
    """The run's driver was told to end, and says what it had recorded as missing until then."""
    result = world.failed_result(run_id=run_id, exit_code=130, error_code="Interrupted")
    lost = replace(result, loss=LOSS, loss_total=1, loss_offsets=300)
    world.documents[run_id] = replace(world.documents[run_id], result=lost)
    world.pods = []


@pytest.mark.parametrize("include", ["t9", "("])
@pytest.mark.parametrize("conflicts", [0, 1, 2])
def test_what_a_replaced_run_had_recorded_as_missing_is_reported_once(include: str, conflicts: int) -> None:
    world = World()
    world.settle()
    first = world.run_id
    world.driver()
    world.settle()
    world.edit(topics={"include": [include]})
    world.step()
    assert not is_at_rest(world.resource, world.now), "the driver still has a minute for its last words"
    stopped_with_loss(world, first)
    for _ in range(conflicts):
        world.step(conflict=True)
    world.settle()
    assert world.condition("DataLoss") == ("True", "RecordsMissing")
    assert [(entry.start, entry.end) for entry in world.status.loss] == [(10, 310)]
    assert [entry.outcome for entry in world.status.history] == ["Replaced"]
    assert (world.status.history[0].message or "").startswith("300 offsets are missing.")
    assert world.events.count(("Warning", "RecordsMissing")) == 1 + conflicts
    if include == "t9":
        world.complete()
        assert world.condition("DataLoss")[0] == "False"


def test_what_a_run_had_recorded_as_missing_is_reported_though_its_job_is_gone_and_it_is_replaced_at_once() -> None:
    world = World()
    world.settle()
    first = world.run_id
    stopped_with_loss(world, first)
    world.jobs = {}
    world.edit(topics={"include": ["t9"]})
    world.step()
    assert world.jobs == {}, "its report would go with the next run's Job"
    assert world.condition("DataLoss") == ("True", "RecordsMissing")
    world.settle()
    assert set(world.jobs) == {world.run_id} != {first}
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(first, "Replaced")]


def test_jobs_that_left_the_history_are_not_found_again() -> None:
    world = World()
    world.settle()
    world.complete()
    for number in range(12):
        world.pods = []
        world.pass_time(seconds=10)
        world.annotate(str(number))
        world.settle()
        world.complete()
    assert len(world.jobs) == 13
    assert len(world.status.history) == 10
    assert ("Warning", "RunFound") not in world.events


def test_a_wiped_status_gets_its_last_run_back() -> None:
    world = World()
    world.settle()
    world.complete()
    first = world.run_id
    world.pods = []
    world.pass_time(minutes=1)
    world.annotate("2")
    world.settle()
    world.complete()
    before = world.status
    world.pods = []
    world.resource = replace(world.resource, status=Status())
    world.settle()
    after = world.status
    assert (after.phase, world.run_id, after.last_handled_run) == (Phase.SUCCEEDED, before.run and before.run.id, "2")
    assert (after.last_success_time, after.archive) == (before.last_success_time, before.archive)
    assert [entry.run_id for entry in after.history] == [world.run_id, first]
    assert len(world.jobs) == 2, "no run is started"


def test_a_wiped_status_gets_a_run_back_that_continues() -> None:
    world = World()
    world.settle()
    world.complete()
    world.pods = []
    world.pass_time(minutes=1)
    world.annotate("2")
    world.settle()
    second = world.run_id
    world.driver()
    world.resource = replace(world.resource, status=Status(), annotations={})
    world.settle()
    assert (world.run_id, world.status.phase, len(world.jobs)) == (second, Phase.RUNNING, 2)


def test_a_live_job_of_an_earlier_version_is_replaced_and_told() -> None:
    world = World()
    world.settle()
    world.complete()
    world.pods = []
    world.jobs["0123456789"] = JobState("nightly-0123456789", "uid-of-it", "0123456789", created=world.now)
    world.settle()
    assert "0123456789" not in world.jobs
    assert "Replaced" in {entry.outcome for entry in world.status.history}


def test_deleted_config_maps_of_a_run_that_continues_are_made_again() -> None:
    world = World()
    world.settle()
    world.driver()
    made = len(world.created)
    world.documents = {}
    plan = world.step()
    assert [(a.kind, a.name) for a in plan.actions if isinstance(a, Create)] == [
        ("ConfigMap", f"nightly-{world.run_id}-request"),
        ("ConfigMap", f"nightly-{world.run_id}-progress"),
    ]
    again, before = world.created[made:], world.created[:2]
    assert [origin(body) for body in again] == [origin(body) for body in before]
    assert again == before
    assert ("Warning", "ConfigMapRecreated") in world.events
    world.settle()
    assert not any(isinstance(action, DeleteJob) for action in world.step().actions)

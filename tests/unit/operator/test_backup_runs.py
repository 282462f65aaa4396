"""A KafkaBackupRun asks for a run, and its status tells how that run ended: decided from what the cluster shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from logkeep_operator.api import Key, Phase, Resource
from logkeep_operator.api.archive import KafkaArchive
from logkeep_operator.api.backup_run import RequestedPhase, RequestedRun
from logkeep_operator.api.fields import Fields
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import (
    AnswerRequestedRun,
    Create,
    DeleteRequestedRun,
    answers_without_backup,
    is_at_rest,
)
from logkeep_operator.requested_runs import RequestedRuns
from tests.unit.operator.fake_api import our_fields
from tests.unit.operator.world import ENGINE, START, World


def at_rest() -> World:
    """A backup whose first run has succeeded long ago."""
    world = World()
    world.step()
    world.complete()
    world.pass_time(minutes=11)
    world.settle()
    return world


def state_of(world: World, name: str = "one") -> tuple[str, str, str | None]:
    """Phase, reason and run of a KafkaBackupRun."""
    one = next(found for found in world.requested if found.name == name)
    ready = one.status.condition("Ready")
    assert one.status.phase is not None
    assert ready is not None
    return one.status.phase.value, ready.reason, one.status.run_id


def jobs(world: World) -> list[str]:
    return [body["metadata"]["name"] for body in world.created if body["kind"] == "Job"]


def test_it_starts_one_run_and_tells_its_end() -> None:
    world = at_rest()
    first = world.run_id
    world.ask("one")
    world.step()
    assert world.run_id != first
    assert state_of(world) == ("Pending", "RunStarted", world.run_id)
    assert world.requested[0].owners == {world.resource.uid}
    world.job_is(active=1)
    world.driver()
    world.executor(1)
    world.reports(world.progress())
    world.settle()
    assert state_of(world) == ("Running", "Running", world.run_id)
    assert (world.requested[0].status.percent, world.requested[0].status.records) == (54, 600)
    world.complete()
    assert state_of(world) == ("Succeeded", "RunSucceeded", world.run_id)
    done = world.requested[0].status
    assert (done.records, done.percent, done.job) == (1100, 100, world.status.run and world.status.run.job)
    assert done.end_time is not None
    world.pass_time(minutes=11)
    world.settle()
    assert is_at_rest(world.resource, world.now)
    assert len(jobs(world)) == 2


def test_a_run_that_continues_does_not_count_and_one_run_answers_all_that_wait() -> None:
    world = at_rest()
    world.ask("one")
    world.step()
    first = world.run_id
    world.ask("two")
    world.ask("three")
    world.settle()
    assert state_of(world, "two") == ("Pending", "WaitingForPreviousRun", None)
    assert first in (world.requested[1].status.message or "")
    world.reports(result=world.result())
    world.job_is(complete=True)
    plan = world.step()
    assert plan.requeue_after == 0.0
    world.settle()
    assert state_of(world, "one") == ("Succeeded", "RunSucceeded", first)
    assert world.run_id != first
    assert {state_of(world, name)[2] for name in ("two", "three")} == {world.run_id}
    assert len(jobs(world)) == 3


def test_one_that_comes_with_its_backup_is_answered_by_the_first_run() -> None:
    world = World()
    world.ask("one")
    world.step()
    world.complete()
    assert state_of(world) == ("Succeeded", "RunSucceeded", world.run_id)
    assert len(jobs(world)) == 1


def test_a_run_that_fails_is_reported_with_its_reason_and_another_may_be_asked_for() -> None:
    world = at_rest()
    world.ask("one")
    world.step()
    world.reports(result=world.failed_result())
    world.job_is(failure=("BackoffLimitExceeded", ""))
    world.settle()
    assert state_of(world) == ("Failed", "BrokerUnavailable", world.run_id)
    stalled = world.requested[0].status.condition("Stalled")
    assert stalled is not None
    assert stalled.status == "True"
    assert stalled.message.startswith("No broker answers at kafka:9092.")
    world.ask("two")
    world.settle()
    assert state_of(world, "two")[2] == world.run_id
    assert len(jobs(world)) == 3


@pytest.mark.parametrize("lost", ["status", "answers"])
def test_an_operator_that_dies_on_the_way_starts_no_second_run(lost: str) -> None:
    world = at_rest()
    world.ask("one")
    world.step(conflict=lost == "status", answered=False)
    assert world.requested[0].status.run_id is None
    world.settle()
    assert state_of(world)[2] == world.run_id
    assert len(set(jobs(world))) == 2
    world.complete()
    assert state_of(world)[0] == "Succeeded"
    assert len(set(jobs(world))) == 2


def test_a_job_whose_status_was_lost_is_found_with_what_asked_for_it() -> None:
    world = at_rest()
    world.ask("one")
    world.step(conflict=True)
    world.edit(suspend=True)  # the API refused the status because of this change
    world.edit(suspend=False)
    world.ask("two")  # so the wanted run is another one now
    world.settle()
    assert world.status.last_handled_backup_runs is not None
    world.complete()
    world.settle()
    assert state_of(world, "one")[0] in ("Pending", "Running")
    world.complete()
    assert {state_of(world, name)[0] for name in ("one", "two")} == {"Succeeded"}


def test_a_suspended_backup_lets_it_wait_and_starts_its_run_later() -> None:
    world = at_rest()
    world.edit(suspend=True)
    world.ask("one")
    world.settle()
    assert state_of(world) == ("Pending", "Suspended", None)
    assert [c.status for c in world.requested[0].status.conditions] == ["False"] * 3
    world.edit(suspend=False)
    world.settle()
    assert state_of(world)[2] == world.run_id
    assert len(jobs(world)) == 2


def test_an_invalid_backup_is_reported_and_its_run_starts_when_it_is_corrected() -> None:
    world = at_rest()
    topics = world.resource.spec["topics"]
    world.edit(topics={"include": ["("]})
    world.ask("one")
    world.settle()
    assert state_of(world) == ("Pending", "InvalidSpec", None)
    world.edit(topics=topics)
    world.settle()
    assert state_of(world)[2] == world.run_id


def test_it_follows_its_run_to_the_one_that_replaces_it() -> None:
    world = at_rest()
    world.ask("one")
    world.step()
    replaced = world.run_id
    world.edit(topics={"include": ["other"]})
    for _ in range(6):
        world.step()
        world.collect()
    assert world.run_id != replaced
    assert state_of(world)[2] == world.run_id
    world.complete()
    assert state_of(world) == ("Succeeded", "RunSucceeded", world.run_id)


def test_a_run_that_has_left_the_history_is_not_called_a_success() -> None:
    world = at_rest()
    world.ask("one")
    world.step()
    world.complete()
    lost = world.requested[0]
    world.requested[0] = RequestedRun.from_object(
        {
            "metadata": {"namespace": "team", "name": "one", "uid": lost.uid},
            "spec": {"backupRef": {"name": "nightly"}},
            "status": {"runId": "0000000000", "phase": "Running"},
        }
    )
    world.settle()
    assert state_of(world) == ("Failed", "OutcomeUnknown", "0000000000")


def test_it_goes_when_its_time_is_over() -> None:
    world = at_rest()
    world.ask("one", ttl=60)
    world.step()
    world.complete()
    world.pass_time(seconds=30)
    assert [one.name for one in world.requested] == ["one"]
    assert not world.step().answers
    world.pass_time(seconds=61)
    assert world.step().answers == (DeleteRequestedRun("one", "uid-of-one"),)
    assert world.requested == []


def test_records_alone_are_not_written_every_second() -> None:
    world = at_rest()
    world.ask("one")
    world.step()
    world.job_is(active=1)
    world.driver()
    world.reports(world.progress())
    world.settle()
    world.pass_time(seconds=1)
    world.reports(world.progress(records=601))
    assert world.step().answers == ()
    world.reports(world.progress(offsets_done=900))
    assert len(world.step().answers) == 1


def test_without_its_backup_it_waits() -> None:
    world = World()
    world.ask("one")
    key = Key("KafkaBackup", "team", "nightly")
    (answer,) = answers_without_backup(world.requested, key, START)
    assert isinstance(answer, AnswerRequestedRun)
    assert answer.status.phase is RequestedPhase.PENDING
    assert answer.status.message == "spec.backupRef: there is no KafkaBackup 'nightly' in namespace team."
    world.requested = [RequestedRun.from_object({**_body(), "status": answer.status.to_dict()})]
    assert answers_without_backup(world.requested, key, START + timedelta(hours=1)) == ()


def _body() -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "one", "uid": "uid-of-one"}
    return {"metadata": metadata, "spec": {"backupRef": {"name": "nightly"}}}


class OneBackup:
    """A cluster with a backup at rest, which counts how often KafkaBackupRuns are read."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reads = 0
        self.answered: list[str] = []

    def served_fields(self) -> dict[str, Fields]:
        return our_fields()

    def now(self) -> Any:
        return self.world.now

    def archives(self, namespaces: list[str]) -> list[KafkaArchive]:
        return []

    def resources(self, namespaces: list[str], archives: Mapping[Key, KafkaArchive]) -> list[Resource]:
        return [self.world.resource]

    def resource(self, key: Key) -> Resource | None:
        return self.world.resource if key == self.world.resource.key else None

    def requested_runs(self, namespace: str | None) -> list[RequestedRun]:
        self.reads += 1
        return list(self.world.requested)

    def answer_requested_run(self, requested: RequestedRun, status: Any) -> None:
        self.answered.append(f"{requested.name}: {status.phase.value}")

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]:
        return []

    def all_children(self, kind: str, namespace: str | None) -> list[dict[str, Any]]:
        return []


def test_a_look_reads_them_only_where_some_ask_for_something() -> None:
    world = at_rest()
    cluster = OneBackup(world)
    controller = Controller(cast(KubernetesCluster, cluster), ENGINE, Metrics())
    key = world.resource.key
    assert controller.reconcile(key) is None
    assert cluster.reads == 0
    world.ask("one")
    controller.requested.note(world.requested[0])
    known = RequestedRuns(cast(KubernetesCluster, cluster))
    assert known.of(key, world.now) == ()
    known.note(world.requested[0])
    assert [one.name for one in known.of(key, world.now)] == ["one"]
    assert (key, 0.0) in controller.unsettled("team")


def test_a_resync_finds_those_that_no_event_told_of() -> None:
    world = at_rest()
    world.ask("one")
    elsewhere = {**_body(), "spec": {"backupRef": {"name": "nowhere"}}}
    elsewhere["metadata"] = {"namespace": "team", "name": "lost", "uid": "u"}
    world.requested.append(RequestedRun.from_object(elsewhere))
    cluster = OneBackup(world)
    controller = Controller(cast(KubernetesCluster, cluster), ENGINE, Metrics())
    gone = Key("KafkaBackup", "team", "nowhere")
    assert sorted(controller.unsettled("team")) == sorted([(gone, 0.0), (world.resource.key, 0.0)])
    assert controller.reconcile(gone) is None
    assert cluster.answered == ["lost: Pending"]


def test_the_annotation_and_the_object_ask_for_one_run_together() -> None:
    world = at_rest()
    world.annotate("2")
    world.ask("one")
    plan = world.step()
    assert [action.kind for action in plan.actions if isinstance(action, Create)].count("Job") == 1
    world.complete()
    assert (state_of(world)[0], world.status.last_handled_run) == ("Succeeded", "2")
    assert world.status.phase is Phase.SUCCEEDED
    assert len(jobs(world)) == 2

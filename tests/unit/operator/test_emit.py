"""A restore that emits its topics has a ConfigMap for them, and its status says where they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import EmittedFacts, HeldTopics
from logkeep_engine.contract.run import RunRequest
from logkeep_operator.api import Phase, Status
from logkeep_operator.reconcile import FoundKafka
from tests.unit.operator.test_dry_run import REPORT, begun, found
from tests.unit.operator.test_strimzi import KAFKA, said
from tests.unit.operator.world import World, backup_spec, resource, restore_spec

EMIT: dict[str, Any] = {"emit": "KafkaTopics", "emitOptions": {"strimziCluster": "prod"}}


def request(world: World) -> RunRequest:
    bodies = [body for body in world.created if "request.json" in (body.get("data") or {})]
    return RunRequest.from_json(bodies[-1]["data"]["request.json"])


def names(world: World) -> set[str]:
    return {body["metadata"]["name"] for body in world.created if body["kind"] == "ConfigMap"}


def test_a_run_that_emits_has_an_empty_config_map_and_knows_its_name() -> None:
    world = begun(**EMIT)
    name = f"again-{world.run_id}-topics"
    assert name in names(world)
    assert request(world).topics_config_map == name
    assert request(world).spec["emitOptions"] == {"strimziCluster": "prod"}
    assert begun().created[-1]["kind"] == "Job"
    assert not any(known.endswith("-topics") for known in names(begun()))
    assert request(begun()).topics_config_map is None


@pytest.mark.parametrize(
    ("options", "version", "expected"),
    [
        ({}, "v1", {"strimziCluster": "prod", "strimziApi": "v1"}),
        ({}, "v1beta2", {"strimziCluster": "prod", "strimziApi": "v1beta2"}),
        ({}, "v9", {"strimziCluster": "prod"}),
        ({"strimziCluster": "b", "strimziApi": "v1"}, "v1beta2", {"strimziCluster": "b", "strimziApi": "v1"}),
    ],
)
def test_what_is_not_said_comes_from_strimzis_kafka(
    options: dict[str, str], version: str, expected: dict[str, str]
) -> None:
    world = World("KafkaRestore", restore_spec(cluster=said("plain"), emit="KafkaTopics", emitOptions=options))
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.kafka = FoundKafka({**KAFKA, "apiVersion": f"kafka.strimzi.io/{version}"})
    world.settle()
    assert request(world).spec["emitOptions"] == expected
    assert "strimzi" not in json.dumps(request(world).spec["cluster"])


def test_a_config_map_that_was_deleted_is_made_again_while_the_run_continues() -> None:
    world = begun(**EMIT)
    name = f"again-{world.run_id}-topics"
    world.delete_config_map(name)
    world.created.clear()
    world.settle()
    assert names(world) == {name}
    assert ("Warning", "ConfigMapRecreated") in world.events


def ended(world: World, **facts: Any) -> None:
    world.pass_time(minutes=1)
    world.reports(result=world.result(**facts))
    world.job_is(active=0, complete=True)
    world.settle()


def test_the_status_says_where_the_topics_are() -> None:
    world = begun(**EMIT)
    name = f"again-{world.run_id}-topics"
    ended(world, emitted=EmittedFacts(config_map=name, key="kafka-topics.yaml", topics=7))
    assert world.status.phase is Phase.SUCCEEDED
    assert world.status.emitted is not None
    assert world.status.emitted.to_dict() == {"configMap": name, "key": "kafka-topics.yaml", "topics": 7}
    assert Status.from_dict(world.status.to_dict()) == world.status


def test_the_status_says_which_topics_are_held_until_another_run_begins() -> None:
    world = begun(**EMIT)
    held = HeldTopics(topics=30, topic_list=tuple(f"t{number}" for number in range(20)))
    ended(world, held_topics=held, message="30 topics keep all records until `logkeep release`")
    assert world.status.held_topics is not None
    assert world.status.held_topics.to_dict() == {"topics": 30, "topicList": list(held.topic_list)}
    ready = next(item for item in world.status.conditions if item.type == "Ready")
    assert (ready.status, "30 topics keep all records until `logkeep release`" in ready.message) == ("True", True)
    assert Status.from_dict(world.status.to_dict()) == world.status
    world.annotate("once more", "logkeep.dev/run-again")
    world.settle()
    assert world.status.held_topics is None


def test_a_dry_run_emits_and_the_restore_after_it_emits_again() -> None:
    world = begun(**EMIT, dryRun=True)
    name = f"again-{world.run_id}-topics"
    found(world, REPORT, emitted=EmittedFacts(config_map=name, key="kafka-topics.yaml", topics=1))
    assert world.status.phase is Phase.DRY_RUN
    assert world.status.emitted is not None
    world.edit(dryRun=False)
    world.settle()
    assert world.status.emitted is None
    assert f"again-{world.run_id}-topics" in names(world) - {name}
    assert all(name not in known.config_maps for known in world.documents.values())

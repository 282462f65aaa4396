"""The topics of a restore as resources of Strimzi: for each name one that Kubernetes takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.cli.emitting import StrimziVersion, kafka_topics, resource_name
from logkeep_engine.contract.spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.selection import Choice
from tests.unit.restore.test_plan import topic

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def spec(**topics: object) -> KafkaRestoreSpec:
    cluster = {"bootstrapServers": ["kafka:9092"]}
    return parse_restore({"cluster": cluster, "source": {"storage": {"uri": "s3://bucket"}}, "topics": topics})


def archived(name: str, replicas: int, **configs: str) -> TopicEntry:
    return replace(topic(name, 1, 3), replication_factor=replicas, configs=configs)


@pytest.mark.parametrize("name", ["orders", "a.b-c", "Orders", "a_b", "_x", ".x.", "a..b", "-", "A" * 249, "x.-y", "9"])
def test_every_name_of_a_topic_has_one_that_kubernetes_takes(name: str) -> None:
    found = resource_name(name)
    assert NAME.fullmatch(found), found
    assert len(found) <= 253
    assert (found == name) == (NAME.fullmatch(name) is not None)
    assert resource_name("a_b") != resource_name("ab")


def test_a_topic_has_what_it_has_when_it_is_restored() -> None:
    choices = [Choice(archived("Orders", 3, **{"retention.ms": "5", "flush.ms": "1"}), "Orders-copy")]
    configs = {"override": {"retention.ms": "7"}, "ignore": ["flush.ms"]}
    (found,) = kafka_topics(choices, spec(configs=configs), "prod", StrimziVersion.V1BETA2)
    assert found == {
        "apiVersion": "kafka.strimzi.io/v1beta2",
        "kind": "KafkaTopic",
        "metadata": {"name": resource_name("Orders-copy"), "labels": {"strimzi.io/cluster": "prod"}},
        "spec": {"topicName": "Orders-copy", "partitions": 3, "replicas": 3, "config": {"retention.ms": "7"}},
    }


def test_replicas_that_nobody_knows_are_left_to_the_cluster() -> None:
    (found,) = kafka_topics([Choice(archived("a", 0), "a")], spec(), "prod", StrimziVersion.V1)
    assert found["spec"] == {"partitions": 3}
    (found,) = kafka_topics([Choice(archived("a", 0), "a")], spec(replicationFactor=2), "prod", StrimziVersion.V1)
    assert found["spec"] == {"partitions": 3, "replicas": 2}


def test_a_topic_to_which_nobody_could_write_is_refused() -> None:
    choices = [Choice(archived("a", 3, **{"min.insync.replicas": "2"}), "a")]
    with pytest.raises(TargetUnsuitable, match=r"min\.insync\.replicas=2, and 1 replica cannot meet that"):
        list(kafka_topics(choices, spec(replicationFactor=1), "prod", StrimziVersion.V1))

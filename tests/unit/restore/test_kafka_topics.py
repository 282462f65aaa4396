"""The topics of a restore as resources of Strimzi: a name that Kubernetes takes for each, and one ConfigMap."""

from __future__ import annotations

import base64
import gzip
import random
import re

import pytest
import yaml
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.cli import app
from logkeep_engine.cli.restore import kafka_topics
from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import SpecError
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.topics.kafka_topics import config_map_data, kafka_topic, resource_name
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


def test_a_topic_that_is_held_is_not_released_by_its_resource() -> None:
    choices = [Choice(archived("orders", 3, **{"retention.ms": "5", "flush.ms": "1"}), "orders")]
    (found,) = kafka_topics(choices, spec(retention="Hold"), "prod", StrimziVersion.V1)
    assert found["spec"]["config"] == {"flush.ms": "1", "retention.bytes": "-1", "retention.ms": "-1"}


def test_replicas_that_is_unknown_are_left_to_the_cluster() -> None:
    (found,) = kafka_topics([Choice(archived("a", 0), "a")], spec(), "prod", StrimziVersion.V1)
    assert found["spec"] == {"partitions": 3}
    (found,) = kafka_topics([Choice(archived("a", 0), "a")], spec(replicationFactor=2), "prod", StrimziVersion.V1)
    assert found["spec"] == {"partitions": 3, "replicas": 2}


def test_more_replicas_in_sync_than_replicas_are_emitted_as_they_are() -> None:
    """Kafka counts no more than there are."""
    choices = [Choice(archived("a", 3, **{"min.insync.replicas": "2"}), "a")]
    (found,) = kafka_topics(choices, spec(replicationFactor=1), "prod", StrimziVersion.V1)
    assert (found["spec"]["replicas"], found["spec"]["config"]) == (1, {"min.insync.replicas": "2"})


def many(count: int, *, value: str = "x") -> list[dict[str, object]]:
    return [kafka_topic(f"orders-{n}", 3, 3, {"a": value}, "prod", StrimziVersion.V1) for n in range(count)]


def test_few_topics_are_text_in_a_config_map() -> None:
    key, changes = config_map_data(many(3))
    assert key == "kafka-topics.yaml"
    assert changes["binaryData"] == {"kafka-topics.yaml.gz": None}
    text = changes["data"]["kafka-topics.yaml"]
    assert text is not None
    assert list(yaml.safe_load_all(text)) == many(3)


def test_without_a_topic_the_text_is_empty() -> None:
    assert config_map_data([])[1]["data"] == {"kafka-topics.yaml": ""}


@pytest.mark.parametrize("options", [("--dry-run",), ("--output", "json"), ("--verify", "Full")])
def test_options_of_a_restore_are_refused_where_topics_are_only_written(options: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(app, ["restore", "-f", "restore.yaml", "--emit-topics", "-", *options])
    assert refused.exit_code == 2
    assert f"{options[0]} has no effect with --emit-topics" in refused.stderr


def test_many_topics_are_compressed() -> None:
    topics = many(1, value="x" * 1000) * 1000
    key, changes = config_map_data(topics)
    assert key == "kafka-topics.yaml.gz"
    assert changes["data"] == {"kafka-topics.yaml": None}
    packed = changes["binaryData"][key]
    assert packed is not None
    assert gzip.decompress(base64.b64decode(packed)).count(b"kind: KafkaTopic") == 1000
    assert config_map_data(topics) == (key, changes), "another attempt writes the same"


def test_more_topics_than_a_config_map_holds_are_refused() -> None:
    noise = random.Random(1).randbytes(1_000_000).hex()
    with pytest.raises(SpecError, match=r"spec\.emit: 1 KafkaTopics take 2\d+ bytes, and 1\d+ compressed") as refused:
        config_map_data(many(1, value=noise))
    assert "--emit-topics" in str(refused.value)

"""The shape of the target of a restore: configurations, replicas, topics that are there, and partitions."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import Refused, TargetUnsuitable
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import Record, create_topic, produce, topic_names
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec, topic_settings

NOW = int(time.time() * 1000) - 3_600_000  # older records would be deleted where a topic has the default retention


def numbered(count: int, *, start: int = 0, partition: int = 0) -> Iterator[Record]:
    for number in range(start, start + count):
        yield Record(b"k%d" % number, b"v%d" % number, NOW + number, [("h", b"1")], partition)


def archived(kafka: KafkaBroker, topic: str, root: Path, *, partitions: int = 1, **configs: str) -> None:
    """Archive a topic with ten records in each partition."""
    create_topic(kafka.bootstrap, topic, partitions, {key.replace("_", "."): value for key, value in configs.items()})
    for partition in range(partitions):
        produce(kafka.bootstrap, topic, numbered(10, partition=partition))
    back_up(backup_spec(kafka, root, topic))


def shaped(kafka: KafkaBroker, root: Path, topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A restore of every topic with -copy behind its name."""
    spec = restore_spec(kafka, root, **more)
    return {**spec, "topics": {**spec["topics"], **topics}}


class TestConfigurations:
    def test_keys_are_restored_overridden_or_ignored(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        archived(kafka, unique, tmp_path, retention_ms="-1", segment_bytes="2097152", flush_ms="77")
        configs = {"override": {"segment.bytes": "1048576", "file.delete.delay.ms": "5"}, "ignore": ["flush.ms"]}
        assert bring_back(shaped(kafka, tmp_path, {"configs": configs})).warnings == ()
        assert topic_settings(kafka, f"{unique}-copy") == {
            "retention.ms": "-1",
            "segment.bytes": "1048576",
            "file.delete.delay.ms": "5",
        }

    def test_with_the_policy_ignore_only_what_is_overridden_is_set(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path, retention_ms="-1", flush_ms="77")
        bring_back(shaped(kafka, tmp_path, {"configs": {"policy": "Ignore", "override": {"segment.ms": "86400000"}}}))
        assert topic_settings(kafka, f"{unique}-copy") == {"segment.ms": "86400000"}

    @pytest.mark.parametrize(("key", "value"), [("retention.ms", "long"), ("no.such.key", "1")])
    def test_a_key_that_the_cluster_does_not_take_is_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, key: str, value: str
    ) -> None:
        archived(kafka, unique, tmp_path)
        spec = shaped(kafka, tmp_path, {"configs": {"override": {"flush.ms": "1", key: value}}})
        with pytest.raises(Refused, match=f"Topic '{unique}-copy' was refused") as refused:
            bring_back(spec)
        assert "spec.topics.configs.override: " in refused.value.message
        assert key in refused.value.message
        assert key == "no.such.key" or value in refused.value.message
        assert "flush.ms" not in refused.value.message
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)


class TestReplicas:
    def test_more_replicas_in_sync_than_replicas_are_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path, min_insync_replicas="1")
        configs = {"override": {"min.insync.replicas": "2"}}
        with pytest.raises(TargetUnsuitable, match=r"min\.insync\.replicas=2, and 1 replica cannot meet that"):
            bring_back(shaped(kafka, tmp_path, {"replicationFactor": 1, "configs": configs}))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)

    def test_more_replicas_than_brokers_are_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path)
        with pytest.raises(TargetUnsuitable, match="cannot have 3 replicas"):
            bring_back(shaped(kafka, tmp_path, {"replicationFactor": 3}))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)

    def test_throttled_replicas_are_not_restored(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        archived(kafka, unique, tmp_path, leader_replication_throttled_replicas="0:1", retention_ms="-1")
        bring_back(shaped(kafka, tmp_path, {}))
        assert topic_settings(kafka, f"{unique}-copy") == {"retention.ms": "-1"}
        assert len(committed(kafka, f"{unique}-copy")) == 10

"""The shape of the target of a restore: configurations, replicas, topics that are there, and partitions."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import Refused, SpecError, TargetUnsuitable, TopicExists
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import Record, create_topic, produce, topic_names
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    topic_settings,
)

NOW = int(time.time() * 1000) - 3_600_000  # older records would be deleted where a topic has the default retention


def numbered(count: int, *, start: int = 0, partition: int = 0) -> Iterator[Record]:
    for number in range(start, start + count):
        yield Record(b"k%d" % number, b"v%d" % number, NOW + number, [("h", b"1")], partition)


def archived(kafka: KafkaBroker, topic: str, root: Path, *, partitions: int = 1, **configs: str) -> None:
    """Archive a topic with ten records in each partition."""
    create_topic(kafka.bootstrap, topic, partitions, {key.replace("_", "."): value for key, value in configs.items()})
    for partition in range(partitions):
        produce(kafka.bootstrap, topic, numbered(10, partition=partition))
    back_up(backup_spec(kafka, root, topic), f"backup-{topic}")


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


def topic_id(kafka: KafkaBroker, topic: str) -> str:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        return control.topic_ids([topic]).get(topic, "")


class TestReplace:
    @pytest.fixture
    def copy(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
        """A topic with other partitions and records than the one that was archived under its name."""
        archived(kafka, unique, tmp_path, partitions=2, retention_ms="-1")
        create_topic(kafka.bootstrap, f"{unique}-copy", 3, {"flush.ms": "77"})
        produce(kafka.bootstrap, f"{unique}-copy", numbered(5, start=100, partition=2))
        return f"{unique}-copy"

    def spec(self, kafka: KafkaBroker, root: Path, *confirm: str, **more: Any) -> dict[str, Any]:
        return restore_spec(kafka, root, ifTopicExists="Replace", confirm=list(confirm), **more)

    def test_a_confirmed_topic_is_deleted_and_created_anew(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        before = topic_id(kafka, copy)
        assert bring_back(self.spec(kafka, tmp_path, copy)).records == 20
        assert topic_id(kafka, copy) not in ("", before)
        assert topic_settings(kafka, copy) == {"retention.ms": "-1"}
        for partition in (0, 1):
            assert committed(kafka, copy, partition) == committed(kafka, unique, partition)
        again = self.spec(kafka, tmp_path, copy, offsets="Same")
        assert bring_back(again, "restore-2").records == 20
        assert committed(kafka, copy, 1) == committed(kafka, unique, 1)

    def test_a_topic_that_is_not_there_is_created(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        spec = self.spec(kafka, tmp_path, f"{unique}-new")
        spec["topics"] = {"rename": [{"from": "(.*)", "to": r"\1-new"}]}
        assert bring_back(spec).records == 20

    def test_what_is_not_confirmed_is_refused_and_nothing_is_deleted(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        archived(kafka, f"{unique}-b", tmp_path)
        create_topic(kafka.bootstrap, f"{unique}-b-copy")
        before = topic_id(kafka, copy), topic_id(kafka, f"{unique}-b-copy")
        with pytest.raises(TopicExists, match=f"{unique}-b-copy: to be replaced, and not named in spec.confirm"):
            bring_back(self.spec(kafka, tmp_path, copy))
        with pytest.raises(SpecError, match=f"spec.confirm: {unique}: no topic is restored under this name"):
            bring_back(self.spec(kafka, tmp_path, copy, f"{unique}-b-copy", unique))
        assert before == (topic_id(kafka, copy), topic_id(kafka, f"{unique}-b-copy"))

    def test_what_cannot_be_created_anew_is_not_deleted(self, kafka: KafkaBroker, copy: str, tmp_path: Path) -> None:
        before = topic_id(kafka, copy)
        spec = self.spec(kafka, tmp_path, copy)
        for topics, what in (
            ({"replicationFactor": 3}, "cannot have 3 replicas"),
            ({"configs": {"override": {"flush.ms": "soon"}}}, "flush.ms"),
        ):
            with pytest.raises(Refused, match=what):
                bring_back({**spec, "topics": {**spec["topics"], **topics}})
        assert topic_id(kafka, copy) == before

    def test_it_goes_on_after_a_crash_at_any_step_and_deletes_nothing_twice(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies(item: Any) -> None:
            if type(item) is tuple:
                raise ConnectionAbortedError

        def crash(step: str, *, after: bool) -> None:
            """Let the driver die in front of a step, or behind it."""
            real = getattr(ControlPlane, step)

            def dying(control: ControlPlane, *arguments: Any) -> Any:
                if after:
                    real(control, *arguments)
                raise ConnectionAbortedError

            with monkeypatch.context() as patched:
                patched.setattr(ControlPlane, step, dying)
                with pytest.raises(ConnectionAbortedError):
                    bring_back(self.spec(kafka, tmp_path, copy))

        old = topic_id(kafka, copy)
        crash("delete_by_id", after=False)
        assert topic_id(kafka, copy) == old
        crash("delete_by_id", after=True)
        crash("create_topics", after=False)
        assert topic_id(kafka, copy) == ""
        crash("create_topics", after=True)
        new = topic_id(kafka, copy)
        assert new not in ("", old)
        with pytest.raises(ConnectionAbortedError):
            bring_back(self.spec(kafka, tmp_path, copy), runner=ThreadRunner(before=dies))
        crash("epoch_ends", after=True)  # it counts what it has written
        assert len(committed(kafka, copy)) == 10
        crash("alter_topic_configs", after=False)
        crash("alter_topic_configs", after=True)
        assert bring_back(self.spec(kafka, tmp_path, copy)).records == 20
        assert topic_id(kafka, copy) == new
        for partition in (0, 1):
            assert committed(kafka, copy, partition) == committed(kafka, unique, partition)

    def test_brokers_that_delete_no_topics_are_told(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        with KafkaBroker(overrides={"delete.topic.enable": "false"}) as broker:
            create_topic(broker.bootstrap, copy, 1, {"retention.ms": "-1"})
            produce(broker.bootstrap, copy, numbered(3))
            with pytest.raises(Refused, match=rf"Cannot delete topic '{copy}': the brokers have delete\.topic\.enable"):
                bring_back(self.spec(broker, tmp_path, copy))
            assert len(committed(broker, copy)) == 3

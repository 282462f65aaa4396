"""A restore writes the topics that it creates as resources of Strimzi, when all else is done."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.emitting import KEY_TOPICS, MAX_TOPICS_BYTES
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import Progress, RunRequest, RunResult
from logkeep_engine.errors import SpecError, TopicsNotEmitted
from logkeep_engine.report import ConfigMapChanges, Reporter
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.restore.topics import kafka_topics as emitting
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import create_topic, produce, topic_names
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, restore_spec, topic_settings
from tests.kafka.test_restore_shape import numbered

EMIT: dict[str, Any] = {"emit": "KafkaTopics", "emitOptions": {"strimziCluster": "prod"}}


class ConfigMapOfTopics:
    """The ConfigMap that the operator has made for a run, as the driver patches it. `broken`: the API refuses it."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self.data: dict[str, str] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.broken = False

    def progress(self, progress: Progress) -> None:
        pass

    def result(self, result: RunResult) -> None:
        pass

    def emit(self, name: str, changes: ConfigMapChanges) -> None:
        if self.broken:
            raise ConnectionError("no API")
        assert name == "again-topics"
        self.data = {key: value for key, value in changes["data"].items() if value is not None}
        there = set(topic_names(self._kafka.bootstrap))
        named = {item["spec"].get("topicName", item["metadata"]["name"]) for item in self.topics()}
        self.settings = {name: topic_settings(self._kafka, name) for name in named & there}

    def topics(self) -> list[dict[str, Any]]:
        return list(yaml.safe_load_all(self.data[KEY_TOPICS]))

    def restore(self, spec: Mapping[str, Any], run_id: str = "restore-1", **more: Any) -> RunResult:
        """Restore as the driver of a run of the operator."""
        request = RunRequest(
            kind="KafkaRestore",
            name="again",
            namespace="team",
            run_id=run_id,
            spec=dict(spec),
            topics_config_map="again-topics",
            **more,
        )
        return run_of(request, parse_restore(spec), ThreadRunner, Reporter(run_id, self), os.environ).perform_or_raise()


@pytest.fixture
def emitted(kafka: KafkaBroker) -> ConfigMapOfTopics:
    return ConfigMapOfTopics(kafka)


@pytest.fixture(autouse=True)
def archive(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "-1", "flush.ms": "7"})
    create_topic(kafka.bootstrap, f"{unique}_Odd", 1)
    produce(kafka.bootstrap, unique, numbered(10))
    produce(kafka.bootstrap, f"{unique}_Odd", numbered(10))
    back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))


def expected(unique: str) -> list[dict[str, Any]]:
    odd = emitting.resource_name(f"{unique}_Odd-copy")
    head = {"apiVersion": "kafka.strimzi.io/v1", "kind": "KafkaTopic"}
    label = {"labels": {"strimzi.io/cluster": "prod"}}
    config = {"flush.ms": "7", "retention.ms": "-1"}
    return [
        {
            **head,
            "metadata": {"name": f"{unique}-copy", **label},
            "spec": {"partitions": 2, "replicas": 1, "config": config},
        },
        {
            **head,
            "metadata": {"name": odd, **label},
            "spec": {"topicName": f"{unique}_Odd-copy", "partitions": 1, "replicas": 1},
        },
    ]


def test_topics_are_emitted_when_they_are_as_the_resources_say(
    kafka: KafkaBroker, emitted: ConfigMapOfTopics, unique: str, tmp_path: Path
) -> None:
    done = emitted.restore(restore_spec(kafka, tmp_path, **EMIT))
    assert (done.outcome, done.records) == ("Succeeded", 20)
    assert done.emitted is not None
    assert (done.emitted.config_map, done.emitted.key, done.emitted.topics) == ("again-topics", KEY_TOPICS, 2)
    assert sorted(emitted.topics(), key=lambda item: str(item["spec"])) == sorted(
        expected(unique), key=lambda item: str(item["spec"])
    )
    assert emitted.settings == {
        f"{unique}-copy": {"flush.ms": "7", "retention.ms": "-1"},
        f"{unique}_Odd-copy": {},
    }, "a topic operator that takes them ends at once has nothing to change"
    assert RunResult.from_json(done.to_json()) == done


def test_a_dry_run_emits_what_the_restore_would_create(
    kafka: KafkaBroker, emitted: ConfigMapOfTopics, unique: str, tmp_path: Path
) -> None:
    spec = restore_spec(kafka, tmp_path, **EMIT)
    dry = emitted.restore({**spec, "dryRun": True}, "dry-1")
    assert dry.outcome == "DryRun"
    assert dry.emitted is not None
    assert dry.emitted.topics == 2
    before = emitted.data
    assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
    assert emitted.restore(spec).outcome == "Succeeded"
    assert emitted.data == before


def test_topics_that_are_there_are_not_the_restores(
    kafka: KafkaBroker, emitted: ConfigMapOfTopics, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, f"{unique}-copy", 5, {"retention.ms": "-1"})
    done = emitted.restore(restore_spec(kafka, tmp_path, ifTopicExists="Append", **EMIT))
    assert done.emitted is not None
    assert [item["spec"]["topicName"] for item in emitted.topics()] == [f"{unique}_Odd-copy"]


def test_a_restore_that_cannot_write_them_continues_and_writes_them(
    kafka: KafkaBroker,
    emitted: ConfigMapOfTopics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    emitted.broken = True
    spec = restore_spec(kafka, tmp_path, **EMIT)
    with pytest.raises(TopicsNotEmitted, match="to ConfigMap again-topics: ConnectionError: no API"):
        emitted.restore(spec)
    emitted.broken = False
    done = emitted.restore(spec)
    assert (done.outcome, done.records, len(emitted.topics())) == ("Succeeded", 20, 2)
    emitted.data.clear()
    assert emitted.restore(spec).emitted == done.emitted, "a driver that was killed before it told of its success"
    assert len(emitted.topics()) == 2


def test_a_resource_that_is_created_again_gets_them_again(
    kafka: KafkaBroker, emitted: ConfigMapOfTopics, tmp_path: Path
) -> None:
    name = {"remembered_as": "KafkaRestore team/again"}
    spec = restore_spec(kafka, tmp_path, **EMIT)
    emitted.restore(spec, **name)
    written = dict(emitted.data)
    emitted.data.clear()
    again = emitted.restore(spec, "restore-2", **name)
    assert (again.earlier_run, emitted.data) == ("restore-1", written)
    emitted.data.clear()
    dry = emitted.restore({**spec, "dryRun": True}, "dry-1", **name)
    assert "run restore-1 has done this restore" in dry.message
    assert emitted.data == written
    without = {key: value for key, value in spec.items() if key not in EMIT}
    assert emitted.restore(without, "restore-3", **name).emitted is None


def test_more_than_a_config_map_holds_is_refused_before_anything_is_written(
    kafka: KafkaBroker,
    emitted: ConfigMapOfTopics,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MAX_TOPICS_BYTES < 1 << 20
    monkeypatch.setattr(emitting, "MAX_TOPICS_BYTES", 100)
    spec = restore_spec(kafka, tmp_path, **EMIT)
    with pytest.raises(SpecError, match=r"spec\.emit: 2 KafkaTopics take"):
        emitted.restore(spec)
    assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
    dry = emitted.restore({**spec, "dryRun": True}, "dry-1")
    assert dry.dry_run is not None
    assert [item.reason for item in dry.dry_run.refusals] == ["InvalidSpec"]
    assert dry.emitted is None


def test_a_run_without_a_config_map_is_refused_and_the_command_writes_a_file(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    spec = restore_spec(kafka, tmp_path, **EMIT)
    with pytest.raises(SpecError, match=r"spec\.emit: only a run of the operator writes KafkaTopics"):
        bring_back(spec)
    resource = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "spec": spec}
    (tmp_path / "restore.yaml").write_text(yaml.safe_dump(resource))
    printed = logkeep("restore", "-f", tmp_path / "restore.yaml", "--emit-topics", "-")
    assert printed.returncode == 0, printed.stderr
    found = {item["metadata"]["name"]: item for item in yaml.safe_load_all(printed.stdout)}
    assert found == {item["metadata"]["name"]: item for item in expected(unique)}

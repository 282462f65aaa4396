"""A restore that has counted its records, and has failed behind that, does not take a later topic for its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from logkeep_engine.errors import TargetChanged
from logkeep_engine.restore.run import restoring as run
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.data.topics import create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec
from tests.kafka.test_restore_shape import numbered


@pytest.fixture
def counted(kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The note of a run that has counted its records, and has died before it moved groups."""

    def dies(*_: Any) -> None:
        raise ConnectionAbortedError

    create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "-1"})
    for partition in range(2):
        produce(kafka.bootstrap, unique, numbered(100, partition=partition))
    back_up(backup_spec(kafka, tmp_path, unique))
    with monkeypatch.context() as patched:
        patched.setattr(run, "move_groups", dies)
        with pytest.raises(ConnectionAbortedError):
            bring_back(restore_spec(kafka, tmp_path))
    return tmp_path / "runs" / "restore-1" / "counted.json"


def create_again(kafka: KafkaBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)

    def is_created() -> bool:
        try:
            create_topic(kafka.bootstrap, topic, 2)
        except KafkaException:  # its deletion continues
            return False
        return True

    wait_until(is_created, 60, "the topic")


def as_without_ids(counted: Path) -> None:
    """Make the note that of a run whose brokers knew no topic ids."""
    note = json.loads(counted.read_text())
    counted.write_text(json.dumps({**note, "topicIds": {}}))


@pytest.mark.parametrize("without_ids", [False, True], ids=["with ids", "without ids"])
def test_a_topic_that_was_created_again_is_not_taken_for_the_counted_one(
    kafka: KafkaBroker, unique: str, tmp_path: Path, counted: Path, without_ids: bool
) -> None:
    if without_ids:
        as_without_ids(counted)
    create_again(kafka, f"{unique}-copy")
    with pytest.raises(TargetChanged, match=f"{unique}-copy"):
        bring_back(restore_spec(kafka, tmp_path))
    with pytest.raises(TargetChanged, match=f"{unique}-copy"):
        bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Resume"), "restore-2")
    assert not any(committed(kafka, f"{unique}-copy", partition) for partition in range(2))


@pytest.mark.parametrize("without_ids", [False, True], ids=["with ids", "without ids"])
def test_the_counted_topic_is_taken_and_its_id_is_noted(
    kafka: KafkaBroker, unique: str, tmp_path: Path, counted: Path, without_ids: bool
) -> None:
    noted = json.loads(counted.read_text())
    assert list(noted["topicIds"]) == [f"{unique}-copy"]
    if without_ids:
        as_without_ids(counted)
    assert bring_back(restore_spec(kafka, tmp_path)).records == 200
    assert json.loads(counted.read_text()) == noted

"""Old brokers: Logkeep supports those that it can read soundly, and refuses the others with their true version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import Refused
from logkeep_engine.report import Reporter
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.old_kafka import OldBroker
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    transactions,
    without_offsets,
)


@pytest.fixture(scope="module")
def old_broker() -> Iterator[OldBroker]:
    with OldBroker() as broker:
        yield broker


@pytest.fixture
def topics(old_broker: OldBroker) -> Topics:
    return Topics(old_broker)


def test_a_broker_that_cannot_fetch_by_topic_id_is_asked_by_name(
    old_broker: OldBroker, topics: Topics, kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    topics.create(unique, partitions=2)
    topics.produce(unique, numbers(150))
    transactions(old_broker, unique, [5, -5, 5], partition=1)
    spec = backup_spec(old_broker, tmp_path, unique)
    back_up(spec)
    topics.produce(unique, numbers(50, first=150))
    assert back_up(spec, "backup-2").records == 50
    assert verify(Archive.open(open_uri(tmp_path.as_uri()))).faults == []
    result = bring_back(restore_spec(kafka, tmp_path))
    assert result.outcome == "Succeeded", result.message
    for partition, count in enumerate((200, 10)):
        source = committed(old_broker, unique, partition)
        assert len(source) == count
        assert without_offsets(committed(kafka, f"{unique}-copy", partition)) == without_offsets(source)


def test_what_was_read_by_name_of_a_topic_that_is_another_now_is_not_committed(
    old_broker: OldBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))

    def replace(item: object) -> None:
        topics.delete(unique)
        topics.create(unique)
        topics.produce(unique, numbers(100, first=500))

    spec = backup_spec(old_broker, tmp_path, unique)
    request = RunRequest(kind="KafkaBackup", name="test", namespace="", run_id="run", spec=spec)
    result = run_backup(request, parse_backup(spec), lambda: ThreadRunner(before=replace), Reporter("run"), {})
    assert "deleted and created again" in result.message
    state = Archive.open(open_uri(tmp_path.as_uri())).load()
    assert list(state.segments) == [], "none of the new topic's records under the old one's id"


def test_topics_without_ids_are_refused_by_name_and_version(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    """Brokers before 2.8, or with a protocol from before it, have none. A restore into such a one is refused, too: it
    lacks configurations of topics that came with 3.6."""
    Topics(kafka).create(unique)
    Topics(kafka).produce(unique, numbers(10))
    back_up(backup_spec(kafka, tmp_path / "newer", unique))
    with OldBroker(protocol="2.7") as broker:
        topics = Topics(broker)
        topics.create(unique)
        topics.produce(unique, numbers(10))
        spec = backup_spec(broker, tmp_path, unique)
        request = RunRequest(kind="KafkaBackup", name="test", namespace="", run_id="run", spec=spec)
        result = run_backup(request, parse_backup(spec), ThreadRunner, Reporter("run"), {})
        with pytest.raises(Refused, match=r"Restores need Kafka 3\.6 or newer"):
            bring_back(restore_spec(broker, tmp_path / "newer"))
    assert (result.outcome, result.exit_code) == ("Failed", ExitCode.REFUSED)
    assert f"Topic {unique!r} has no topic id" in result.message
    assert "Backups need Kafka 2.8 or newer" in result.message

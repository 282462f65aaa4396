"""A broker whose lists of aborted transactions leave some out: real, and made so by taking its transaction indexes away
while it is stopped. A broker that was shut down cleanly does not make them again.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.contract.run import RunResult
from logkeep_engine.spark.nursery import Nursery
from tests.cluster.kafka import KafkaBroker
from tests.data.compare import read_committed
from tests.kafka.backing_up import Backups, Topics, folder_spec
from tests.kafka.conftest import running
from tests.kafka.restores import bring_back, restore_spec

ENDED, OPEN = "ended", "open"
COMMITTED, ABORTED, PLAIN = ([b"%b %d" % (word, at) for at in range(10)] for word in (b"kept", b"gone", b"plain"))
FORMATS = ["Kafka", "Records", "Avro"]


@dataclass
class Forgetful:
    """The broker. Topic `ended`: a committed transaction, one that was aborted, plain records, another aborted one.
    Topic `open-<format>`: an aborted transaction whose marker lies after the first record of one that is open still.
    """

    broker: KafkaBroker
    topics: Topics
    still_open: dict[str, Producer]


@pytest.fixture(scope="module")
def forgetful(second_broker: KafkaBroker) -> Forgetful:
    broker = running(second_broker)
    topics = Topics(broker)
    topics.create(ENDED)
    topics.transaction(ENDED, COMMITTED, commit=True)
    topics.transaction(ENDED, ABORTED, commit=False)
    topics.produce(ENDED, PLAIN)
    topics.transaction(ENDED, ABORTED, commit=False)
    still_open = {}
    for name in FORMATS:
        topic = topics.create(f"{OPEN}-{name}")
        aborted = topics.open_transaction(topic, ABORTED)
        settings = {"transactional.id": f"open-{name}", "transaction.timeout.ms": 900_000}
        producer = still_open[name] = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in COMMITTED:
            producer.produce(topic, value, partition=0)
        assert producer.flush(120) == 0
        topics.end(aborted, topic, commit=False)
    broker.stop()
    indexes = [path for topic in (ENDED, OPEN) for path in broker.data_dir.glob(f"{topic}*-0/*.txnindex")]
    assert len(indexes) == 1 + len(FORMATS)
    for index in indexes:
        index.unlink()
    broker.start()
    return Forgetful(broker, topics, still_open)


@pytest.fixture
def backups(nursery: Nursery, forgetful: Forgetful, tmp_path: Path) -> Backups:
    return Backups(forgetful.broker, folder_spec(tmp_path), nursery=nursery)


def loss_of(result: RunResult) -> list[str]:
    return [warning.partition("aborted, but its ")[2] for warning in result.warnings if "did not name" in warning]


def values(broker: KafkaBroker, topic: str) -> list[bytes | None]:
    return [message.value() for message in read_committed(broker.bootstrap, topic, 0)]


def restored(forgetful: Forgetful, root: Path, topic: str, name: str) -> list[bytes | None]:
    spec = restore_spec(forgetful.broker, root, suffix=f"-{name}", ifTopicExists="Fail")
    bring_back(spec, run_id=f"restore-{name}")
    return values(forgetful.broker, f"{topic}-{name}")


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_broker_does_not_name_as_aborted_is_not_archived_as_committed(
    forgetful: Forgetful, backups: Backups, tmp_path: Path, name: str
) -> None:
    result = backups.run(ENDED, format=name, topics={"include": [ENDED]})
    assert result.outcome == "Succeeded", result.message
    assert loss_of(result) == ["ABORT marker does: the marker holds"] * 2
    run = list(backups.state().runs.values())[-1]
    assert "its ABORT marker does: the marker holds; and 1 more transactions" in run.message, "in the catalog"
    assert verify(backups.archive).whole
    if name == "Kafka":
        assert backups.log(ENDED) == forgetful.topics.log(ENDED)
        (segment,) = backups.segments(ENDED)
        index = open_partition(backups.storage, ENDED, (segment,)).transaction_index()
        assert [(txn.first_offset, txn.last_offset) for txn in index] == [(11, 21), (32, 42)]
    assert restored(forgetful, tmp_path, ENDED, name) == [*COMMITTED, *PLAIN]


@pytest.mark.parametrize("name", FORMATS)
def test_a_marker_after_the_end_of_the_run_is_found_or_comes_with_the_next(
    forgetful: Forgetful, backups: Backups, tmp_path: Path, name: str
) -> None:
    topic = f"{OPEN}-{name}"
    first = backups.run(topic, format=name, topics={"include": [topic]})
    assert first.outcome == "Succeeded", first.message
    assert first.records == (10 if name == "Kafka" else 0), "a format of records has looked for the marker"
    assert len(loss_of(first)) == (0 if name == "Kafka" else 1)
    forgetful.topics.end(forgetful.still_open[name], topic, commit=True)
    second = backups.run(topic, format=name, topics={"include": [topic]})
    assert second.outcome == "Succeeded", second.message
    report = verify(backups.archive)
    assert report.whole
    assert len(report.disagreements) == (1 if name == "Kafka" else 0)
    assert restored(forgetful, tmp_path, topic, name) == COMMITTED

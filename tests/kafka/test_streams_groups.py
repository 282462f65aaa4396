"""Groups of Kafka Streams (KIP-1071): a program that was restored continues where it was, and counts nothing twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.process import wait_until
from tests.cluster.streams import counting
from tests.data.compare import read_all_committed
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec

pytestmark = pytest.mark.since("4.2")

APPLICATION, SOURCE, COUNTS = "counting", "in", "counts"
KEYS, PARTITIONS = 5, 2


@pytest.fixture(scope="module")
def source() -> Iterator[KafkaBroker]:
    with KafkaBroker(overrides=STEADY) as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[KafkaBroker]:
    with KafkaBroker(overrides=STEADY) as broker:
        yield broker


def write_each_key(broker: KafkaBroker, each: int) -> None:
    """So many records of each key."""
    records = [Record(b"k%d" % key, b"x", 1_700_000_000_000) for _ in range(each) for key in range(KEYS)]
    produce(broker.bootstrap, SOURCE, records)


def counts(broker: KafkaBroker) -> dict[bytes, list[int]]:
    """The counts that the program has written, in their order, by key."""
    found: dict[bytes, list[int]] = {}
    for record in read_all_committed(broker.bootstrap, [(COUNTS, number) for number in range(PARTITIONS)]):
        found.setdefault(record.key() or b"", []).append(int(record.value() or b""))
    return found


def positions(broker: KafkaBroker) -> tuple[GroupPosition, ...]:
    return ControlPlane(KafkaConnection((broker.bootstrap,))).group_offsets([APPLICATION]).offsets


def count_until(broker: KafkaBroker, each: int) -> None:
    """Let the program run until it has counted so many records of each key, and has committed."""
    wanted = {b"k%d" % key: list(range(1, each + 1)) for key in range(KEYS)}
    with counting(broker, APPLICATION, SOURCE, COUNTS):
        wait_until(lambda: sum(map(len, counts(broker).values())) >= each * KEYS, 120, f"{each} records of each key")
    assert counts(broker) == wanted
    control = ControlPlane(KafkaConnection((broker.bootstrap,)))
    wait_until(lambda: not control.listed_groups()[APPLICATION].has_members, 120, "the program to leave its group")
    assert sum(item.offset for item in positions(broker)) == each * KEYS


def test_a_restored_streams_program_continues_where_it_was(
    source: KafkaBroker, target: KafkaBroker, tmp_path: Path
) -> None:
    for topic in (SOURCE, COUNTS):
        create_topic(source.bootstrap, topic, PARTITIONS, NO_RETENTION)
    write_each_key(source, 6)
    count_until(source, 6)
    group = ControlPlane(KafkaConnection((source.bootstrap,))).listed_groups()[APPLICATION]
    assert (group.kind.lower(), group.commits_positions) == ("streams", True)
    stood = positions(source)
    assert all(item.metadata for item in stood), "the time of the stream"

    assert back_up(backup_spec(source, tmp_path, ".*")).warnings == ()
    archived = Archive.open(open_uri(tmp_path.as_uri())).load()
    found = sorted((item.group_id, item.partition, item.offset, item.metadata) for item in archived.groups)
    assert found == [(item.group_id, item.partition, item.offset, item.metadata) for item in stood]

    spec = restore_spec(target, tmp_path, suffix="", consumerGroups={"restore": "Translate"})
    result = bring_back(spec)
    assert (result.outcome, result.groups) == ("Succeeded", len(stood))
    there = positions(target)
    assert [(item.partition, item.offset, item.metadata) for item in there] == [
        (item.partition, item.offset, item.metadata) for item in stood
    ]
    write_each_key(target, 4)
    count_until(target, 10)

"""Archives of the record-shaped formats on the node: there, back, and the consumer groups with it."""

from collections.abc import Iterator

import pytest

from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce
from tests.e2e.home import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PARTITIONS = 2
RECORDS = 400


def _records() -> Iterator[Record]:
    """All that a record can carry: no key, no value, headers that repeat, are empty or null."""
    for number in range(RECORDS):
        yield Record(
            key=None if number % 5 == 0 else b"key %d" % number,
            value=None if number % 7 == 0 else b"value %d" % number,
            timestamp=1_700_000_000_000 + number,
            headers=[("number", b"%d" % number), ("number", None), ("", b"")],
            partition=number % PARTITIONS,
        )


@pytest.mark.parametrize("format_name", ["Records", "Avro"])
def test_a_topic_comes_back_with_its_consumer_groups(home: Home, format_name: str) -> None:
    topic, group = f"files-{format_name.lower()}", f"readers-of-{format_name.lower()}"
    bootstrap = home.broker.bootstrap
    create_topic(bootstrap, topic, PARTITIONS, NO_RETENTION)
    produce(bootstrap, topic, _records(), compression="lz4")
    commit_positions(bootstrap, group, {(topic, 0): 40, (topic, 1): RECORDS // PARTITIONS})

    saved = home.backup(topic, format=format_name)
    status = saved.wait("Succeeded")

    assert status["progress"]["records"] == RECORDS
    suffix = {"Records": "_records", "Avro": ".data"}[format_name]
    assert sum(name.endswith(suffix) for name in home.objects()) == PARTITIONS
    home.verify()

    groups = {"restore": "Translate", "include": [group]}
    again = home.restore(consumerGroups=groups, recordBatches={"maxRecords": 30, "compression": "Zstd"})
    again.wait("Succeeded")

    home.check_restored(topic, RECORDS)
    assert home.positions(group, f"restored.{topic}", PARTITIONS) == {0: 40, 1: RECORDS // PARTITIONS}

"""A compacted topic by the operator on the node: backed up twice, kept as snapshots, restored."""

import secrets
import time

import pytest

from tests.cluster.kafka import KafkaBroker
from tests.cluster.logkeep import Installation, restore
from tests.cluster.s3 import S3Server
from tests.data.compare import read_committed
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.e2e.home import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "accounts"
KEYS = 40


def last_values(bootstrap: str, topic: str) -> dict[bytes, tuple[bytes, int]]:
    """The last value of each key that a consumer of committed records has at the end, and its time."""
    found: dict[bytes, tuple[bytes, int]] = {}
    for message in read_committed(bootstrap, topic, 0):
        key, value = message.key(), message.value()
        assert key is not None
        if value is None:
            found.pop(key, None)
        else:
            found[key] = (value, message.timestamp()[1])
    return found


def test_a_compacted_topic_is_kept_as_snapshots_and_comes_back(
    logkeep: Installation, broker: KafkaBroker, node_s3: S3Server
) -> None:
    namespace = logkeep.create_namespace(f"snapshots-{secrets.token_hex(3)}", node_s3)
    home = Home(logkeep, broker, node_s3, namespace, node_s3.create_bucket(namespace))
    bootstrap, began = broker.bootstrap, int(time.time() * 1000)
    create_topic(bootstrap, TOPIC, 1, {**NO_RETENTION, "cleanup.policy": "compact"})

    def overwrite(count: int, since: int) -> None:
        rows = ((number % KEYS, number % 7 == 3) for number in range(count))
        produce(
            bootstrap,
            TOPIC,
            (
                Record(b"k%d" % key, None if gone else b"%d of %d" % (at, since), since + at, [], 0)
                for at, (key, gone) in enumerate(rows)
            ),
        )

    overwrite(400, began)
    saved = home.backup(TOPIC, spark={}, snapshots={"maxRecordBytesBetweenSnapshots": "1Ki", "minCleanableRatio": 0.1})
    first = saved.wait("Succeeded")
    assert "made snapshots of 1 partition" in first["run"]["message"].split("; ")
    overwrite(250, began + 1000)
    saved.run_again("later")
    status = saved.wait("Succeeded", run_not=first["run"]["id"])
    (reported,) = status["archive"]["snapshots"]
    assert (reported["topic"], reported["partitions"]) == (TOPIC, 1)
    assert 0 < reported["records"] <= KEYS
    assert "exactAfter" not in reported

    made = home.apply(
        restore(
            "again",
            bootstrap,
            "saved",
            spark={},
            topics={"rename": [{"from": "(.*)", "to": r"restored.\1"}]},
            offsets="Same",
            verify="Full",
        )
    )
    assert made.wait("Succeeded")["verification"]["outcome"] == "Verified"
    assert last_values(bootstrap, f"restored.{TOPIC}") == last_values(bootstrap, TOPIC)
    assert sum(1 for _ in read_committed(bootstrap, f"restored.{TOPIC}", 0)) < 250
    logkeep.api.delete_namespace(namespace)

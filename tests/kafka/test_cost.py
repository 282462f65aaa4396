"""The requests that `logkeep inspect --cost` tells are those that runs make: a proxy in front of the store counts."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.cost.archive_cost import ArchiveCost
from logkeep_engine.archive.maintenance.cost.estimate import CostQuestion, cost_of
from logkeep_engine.archive.maintenance.cost.requests import RequestCount, to_write_record_files
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.cli.options import Server
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.storage import open_storage
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.restores import back_up, bring_back

OFTEN = re.compile(rb"/runs/[^/]+/(heartbeat|alive|taken-over)\.json")
"""Objects that a run writes or reads again and again while it lasts."""


class Counted:
    """Requests to the store since the last look: to objects of topics, and all others."""

    def __init__(self, proxy: S3Proxy, bucket: str) -> None:
        self._proxy = proxy
        self._topics = f"/{bucket}/kafka/topics/".encode()

    def take(self) -> tuple[RequestCount, RequestCount]:
        """Those of topics, then those of all but what is asked for again and again."""
        lines = list(self._proxy.requests)
        self._proxy.requests.clear()
        topics = [line for line in lines if line.split(b" ")[1].startswith(self._topics)]
        return counted(topics), counted(line for line in lines if not OFTEN.search(line))


def counted(lines: Iterable[bytes]) -> RequestCount:
    """Requests by kind, by their first lines."""
    kinds = Counter(kind(*line.decode().split(" ")[:2]) for line in lines)
    return RequestCount(kinds["put"], kinds["get"], kinds["list"], kinds["delete"])


def kind(method: str, path: str) -> str:
    if "list-type=2" in path:
        return "list"
    if "?delete" in path:
        return "delete"
    return {"PUT": "put", "POST": "put", "GET": "get", "HEAD": "get"}[method]


def of_topics(cost: ArchiveCost, run: str) -> RequestCount:
    """The requests for objects of topics. Those that list a folder are to the bucket."""
    found = RequestCount()
    for topic in cost.topics:
        found += getattr(topic, run)
    return RequestCount(found.put, found.get)


def is_about(found: RequestCount, expected: RequestCount) -> bool:
    """Whether there are as many requests as were told, to within a quarter and five."""
    pairs = (
        (found.put, expected.put),
        (found.get, expected.get),
        (found.list, expected.list),
        (found.delete, expected.delete),
    )
    return all(abs(one - other) <= 5 + other / 4 for one, other in pairs)


@pytest.fixture(scope="module")
def filled(kafka: KafkaBroker) -> list[str]:
    """A topic of two partitions, one of which becomes a segment of several blocks, one with an aborted
    transaction, and a compacted one."""
    topics, names = Topics(kafka), ["cost-plain", "cost-transactions", "cost-states"]
    topics.create(names[0], 2)
    topics.create(names[1])
    topics.create(names[2], cleanup_policy="compact")
    topics.produce(names[2], numbers(200), key=lambda number: b"%d" % (number % 50))
    topics.produce(names[0], numbers(19_000, 1000))
    topics.produce(names[0], numbers(100), partition=1)
    topics.transaction(names[1], numbers(20), commit=True)
    topics.transaction(names[1], numbers(20), commit=False)
    return names


SETTINGS: list[dict[str, Any]] = [
    {
        "snapshots": {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0.0},
        "segment": {"packBelow": "0"},  # tests/unit/archive/maintenance/test_cost.py is about packs
    },
    {"segment": {"compression": "Zstd", "packBelow": "0"}},
    {"format": "Records"},
    {"format": "Avro"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["Kafka", "Zstd", "Records", "Avro"])
def test_runs_make_the_requests_that_are_reported(
    kafka: KafkaBroker,
    s3: S3Server,
    bucket: str,
    proxy: S3Proxy,
    filled: list[str],
    unique: str,
    storage_environment: None,
    settings: dict[str, Any],
) -> None:
    place = {"uri": f"s3://{bucket}/kafka", "endpoint": proxy.endpoint, "region": s3.region}
    cluster = {"bootstrapServers": kafka.addresses}
    spec = {"cluster": cluster, "topics": {"include": filled}, "storage": place, **settings}
    requests = Counted(proxy, bucket)

    def reported() -> ArchiveCost:
        archive = Archive.open(open_storage(StorageSpec.model_validate(place), os.environ))
        found = cost_of(archive, archive.load(), CostQuestion(), 0)
        requests.take()
        return found

    ended = back_up(spec, "backup-1")
    written, _ = requests.take()
    of_files = to_write_record_files(4 if settings.get("format") == "Records" else 0)
    assert (written.put, written.get) == (
        of_topics(reported(), "backup").put + of_files.put,
        of_topics(reported(), "backup").get + of_files.put,  # it asks for each of these files before it writes it
    )
    stored = reported().stored
    assert ended.archive is not None
    assert ended.archive.size.object_bytes == (stored.logs + stored.indexes + stored.snapshots + stored.removed).bytes
    back_up(spec, "backup-2")
    _, idle = requests.take()
    cost = reported()
    assert is_about(idle, cost.operations.idle.requests)
    assert verify(Server(proxy.endpoint, s3.region).archive(place["uri"])).whole
    read, whole = requests.take()
    assert read == of_topics(cost, "verify")
    assert is_about(whole, cost.operations.verify.requests)
    rename = [{"from": "(.*)", "to": rf"\1-{unique}"}]
    bring_back({"cluster": cluster, "source": {"storage": place}, "topics": {"rename": rename}})
    read, whole = requests.take()
    assert read == of_topics(cost, "restore")
    assert is_about(whole, cost.operations.restore.requests)

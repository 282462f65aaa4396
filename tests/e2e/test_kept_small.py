"""An archive that does not grow, by the operator on the node: holds and retention, stale keys, an erasure, generations.

One KafkaBackup does all of it in four runs. What each of them finds and leaves is looked at after it, and two
KafkaRestores show at the end what the archive still has.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Resource, restore
from tests.data.compare import read_committed
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.e2e.home import Home
from tests.kafka.keyed import CLEANED_SOON, wait_until_cleaned_away
from tests.unit.erasure.erasing import traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLICKS, STOCK, PEOPLE = "clicks", "stock", "people"
HOUR_MS = 3_600_000
GONE = f"erase-me-{secrets.token_hex(8)}"
HELD, EXPIRED = 20, 30


@pytest.fixture
def cleaned(broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """The broker with a cleaner that hardly rests."""
    rest_of_cleaner(broker, "100")
    yield broker
    rest_of_cleaner(broker, None)


def rest_of_cleaner(broker: KafkaBroker, ms: str | None) -> None:
    kind = AlterConfigOpType.DELETE if ms is None else AlterConfigOpType.SET
    entry = ConfigEntry("log.cleaner.backoff.ms", ms, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


class Kept:
    """The KafkaBackup, and its runs one after the other."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.saved: Resource
        self.runs: list[str] = []

    def first(self) -> Document:
        self.saved = self.home.backup(
            f"{CLICKS}|{STOCK}|{PEOPLE}", spark={}, compactedTopics="Generations", segment={"packBelow": "0"}
        )
        return self._ended()

    def next(self, spec: Mapping[str, Any], *, starts: bool = False) -> Document:
        """The run after a change of the spec, which `starts` it or not."""
        self.saved.patch(spec)
        if not starts:
            self.saved.run_again(str(len(self.runs)))
        return self._ended()

    def _ended(self) -> Document:
        status = self.saved.wait("Succeeded", run_not=self.runs[-1] if self.runs else None)
        self.runs.append(status["run"]["id"])
        return status

    def objects_of(self, topic: str) -> set[str]:
        return {name for name in self.home.objects() if name.startswith(f"archive/topics/{topic}/")}


def write_clicks(bootstrap: str, since: int, count: int) -> None:
    made = (Record(b"c%d" % number, b"since %d" % since, since + number, [], 0) for number in range(count))
    produce(bootstrap, CLICKS, made)


def put(bootstrap: str, topic: str, values: Mapping[str, str | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "compression.type": "zstd"})
    for key, value in values.items():
        producer.produce(topic, None if value is None else value.encode(), key.encode(), 0)
    assert producer.flush(60) == 0


def values_in(bootstrap: str, topic: str) -> dict[str, str]:
    """The last value of each key."""
    found: dict[str, str] = {}
    for message in read_committed(bootstrap, topic, 0):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        found.pop(key.decode(), None)
        if value is not None:
            found[key.decode()] = value.decode()
    return found


def texts(home: Home, folder: Path) -> dict[str, str]:
    """Everything that somebody can read of the runs: logs, and all objects of the API but Secrets."""
    node, operators = home.logkeep.node, home.logkeep.namespace
    node.collect_logs(folder)
    mine = (home.namespace, operators)
    found = {file.name: file.read_text(errors="replace") for file in folder.glob("*.log") if file.name.startswith(mine)}
    kinds = "pods,jobs,configmaps,events,kafkabackups,kafkarestores,kafkabackupruns,kafkaarchives"
    for namespace in mine:
        found[f"objects of {namespace}"] = node.kubectl("get", kinds, "-n", namespace, "-o", "yaml").stdout
    return found


def test_an_archive_stays_small_and_says_so(home: Home, cleaned: KafkaBroker, tmp_path: Path) -> None:
    bootstrap, kept, now = cleaned.bootstrap, Kept(home), int(time.time() * 1000)

    # The first run archives what it holds later on.
    create_topic(bootstrap, CLICKS, 1, NO_RETENTION)
    write_clicks(bootstrap, now - 3 * HOUR_MS, HELD)
    kept.first()
    held = kept.objects_of(CLICKS)

    # The second one finds the hold, and takes older records than the limit allows out of the catalog.
    write_clicks(bootstrap, now - 2 * HOUR_MS, EXPIRED)
    create_topic(bootstrap, STOCK, 1, {**NO_RETENTION, **CLEANED_SOON})
    put(bootstrap, STOCK, {"apples": "5", "pears": "7", "sold out": "1"})
    create_topic(bootstrap, PEOPLE, 1, NO_RETENTION)
    put(bootstrap, PEOPLE, {"ann": "1", GONE: "personal", "bob": "2"})
    retention = {"maxAge": "1h", "keepRuns": 1, "keepFor": {"daily": 1}, "grace": "1s", "hold": {"runs": kept.runs[:1]}}
    status = kept.next({"retention": retention})
    assert "retention removed 1 segment, " in status["run"]["message"]
    waiting = kept.objects_of(CLICKS) - held
    assert waiting  # a run that reads may have begun before

    # The third one deletes their objects, finds a key whose tombstone was cleaned, and erases another one.
    put(bootstrap, STOCK, {"sold out": None, "apples": "6"})
    wait_until_cleaned_away(cleaned, STOCK, ["sold out"], lambda: put(bootstrap, STOCK, {"pears": "8"}))
    home.logkeep.create_secret(home.namespace, "ticket-4711", {"keys": f"{GONE}\n"})
    asked = {"name": "ticket-4711", "topic": PEOPLE, "keysSecretRef": {"name": "ticket-4711"}, "askedBy": "ticket 4711"}
    status = kept.next({"reconcile": {"cron": "0 0 1 1 *"}, "erasures": [asked]}, starts=True)
    assert "; erasure ticket-4711 took 1 record out of 1 segment of topic people" in status["run"]["message"]
    assert "delete.retention.ms is not twice as long" in status["run"]["message"]  # its tombstones go at once
    assert kept.objects_of(CLICKS) == held
    assert (status["reconcile"]["outcome"], status["reconcile"]["stale"]) == ("StaleKeys", 1)
    stale = kept.saved.condition("StaleKeys")
    assert (stale["status"], stale["reason"]) == ("True", "StaleKeysFound")
    archive = open_uri(f"file://{home.s3.data_dir}/{home.bucket}/archive")
    assert traces(archive, GONE.encode()) == []

    # The fourth one reads the table again: the new generation does not have the stale key.
    put(bootstrap, STOCK, {"plums": "1"})
    kept.next({"generations": {"cycle": "1s"}})

    restores = [
        home.apply(restore(name, bootstrap, "saved", spark={}, topics=_as(name, *topics), **spec))
        for name, topics, spec in (
            ("newest", (STOCK, PEOPLE), {"verify": "Full"}),
            ("held", (CLICKS,), {"point": {"run": kept.runs[0]}}),
        )
    ]
    for each in restores:
        each.wait("Succeeded")
    assert values_in(bootstrap, f"newest.{STOCK}") == values_in(bootstrap, STOCK)
    assert "sold out" not in values_in(bootstrap, f"newest.{STOCK}")
    assert values_in(bootstrap, f"newest.{PEOPLE}") == {"ann": "1", "bob": "2"}
    assert [message.key() for message in read_committed(bootstrap, f"held.{CLICKS}", 0)] == [
        b"c%d" % number for number in range(HELD)
    ]
    home.verify()
    reported = texts(home, tmp_path)
    assert any("saved" in name for name in reported), sorted(reported)
    assert [name for name, text in reported.items() if GONE in text] == []


def _as(prefix: str, *topics: str) -> Document:
    return {"include": list(topics), "rename": [{"from": "(.*)", "to": rf"{prefix}.\1"}]}

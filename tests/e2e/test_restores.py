"""Restores that people can trust, by the operator on the node, once each. They share an archive and run side by side.

The archive has two runs. Between them lies `POINT`, which is the time of the first record that came after the first
run. Producers had wrong clocks: one was ahead before that moment, and one was late after it.
"""

import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from logkeep_engine.archive.moments import iso
from tests.apiserver.plugin import Plugin
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Installation, Resource, restore, small
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.data.compare import compare_topics, read_committed
from tests.data.murmur2 import target_of
from tests.data.topics import Record, commit_positions, create_topic, end_transaction, produce, topic_names
from tests.e2e.home import Home
from tests.kafka.restores import topic_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, GROUP = "ledger", "accounting"
MINUTE = 60_000
LOG_START = 5  # of partition 1, as retention leaves it
FIRST, LAST = {0: 120, 1: 150}, {0: 350, 1: 290}  # positions of the group, archived by the first run and the second

DIVIDED = 3  # partitions of a target that has another number of them

EventFilter = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def records(count: int, partition: int, since: int, *, wrong: int | None = None) -> Iterator[Record]:
    """Records a millisecond apart, of which the twentieth from the end has the time `wrong`, if one is given."""
    for number in range(count):
        moment = wrong if wrong is not None and number == count - 20 else since + number
        headers: list[tuple[str, str | bytes | None]] = [("n", b"%d" % number), ("n", None), ("", b"")]
        value = None if number % 7 == 0 else b"%d since %d" % (number, since)
        yield Record(None if number % 5 == 0 else b"k%d" % number, value, moment, headers, partition)


def transactions(bootstrap: str, topic: str, sizes: Sequence[int], since: int) -> None:
    """A transaction in partition 0 for each size; those with a negative size are aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(60)
    for number, size in enumerate(sizes):
        producer.begin_transaction()
        for at in range(abs(size)):
            producer.produce(topic, b"%d of %d" % (at, number), b"t", partition=0, timestamp=since + number)
        end_transaction(bootstrap, producer, [(topic, 0)], commit=size > 0)


@dataclass(frozen=True)
class Archived:
    """An archive with two runs, the point between them, and what committed consumers read of the source, by offset."""

    home: Home
    saved: Resource
    point: int
    source: dict[int, dict[int, EventFilter]]
    restores: dict[str, Resource] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of committed records."""
        return sum(map(len, self.source.values()))

    def as_of_point(self, partition: int) -> list[EventFilter]:
        """The records before the first one of the point or later."""
        times = {offset: record[3] for offset, record in self.source[partition].items()}
        end = min(offset for offset, moment in times.items() if moment >= self.point)
        return [record for offset, record in self.source[partition].items() if offset < end]

    def before_point(self, partition: int) -> dict[int, EventFilter]:
        """The records of an earlier time, by offset."""
        return {offset: record for offset, record in self.source[partition].items() if record[3] < self.point}

    def places_of(self, positions: Mapping[int, int]) -> dict[int, int]:
        """The number of records in front of each position."""
        return {
            partition: sum(offset < position for offset in self.source[partition])
            for partition, position in positions.items()
        }

    def positions(self, name: str, partitions: int = 2) -> dict[int, int]:
        """The positions of the group in the topic of a restore."""
        return self.home.positions(f"{name}.{GROUP}", f"{name}.{TOPIC}", partitions)

    def plugin(self, command: str, *arguments: str) -> str:
        """The output of `kubectl logkeep` for the administrator."""
        done = Plugin(self.home.logkeep.node.kubeconfig, self.home.namespace)(command, *arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    def columns(self, name: str) -> dict[str, str]:
        """The columns that `kubectl get -o wide` shows of a restore, but those that have spaces in them."""
        shown = self.home.logkeep.node.kubectl("get", "-n", self.home.namespace, f"krst/{name}", "-o", "wide").stdout
        head, row = shown.splitlines()
        starts = [match.start() for match in re.finditer(r"\S+", head)]
        ends = [*starts[1:], None]
        return {head[start:end].strip(): row[start:end].strip() for start, end in zip(starts, ends, strict=True)}

    def report(self, uri: str) -> str:
        """The object at an URI."""
        return (self.home.s3.data_dir / uri.removeprefix("s3://")).read_text()


def seen(bootstrap: str, topic: str, partition: int) -> dict[int, EventFilter]:
    """The records that a committed consumer reads of a partition, by offset."""
    found: dict[int, EventFilter] = {}
    for message in read_committed(bootstrap, topic, partition):
        headers: Any = message.headers() or []
        offset = message.offset()
        assert offset is not None
        found[offset] = (message.key(), message.value(), tuple(headers), message.timestamp()[1])
    return found


def restored(bootstrap: str, topic: str, partition: int) -> list[EventFilter]:
    """The records of a restored partition, in their order."""
    return list(seen(bootstrap, topic, partition).values())


@pytest.fixture(scope="module")
def archived(logkeep: Installation, broker: KafkaBroker, node_s3: S3Server) -> Iterator[Archived]:
    """The archive, and all restores of it, which continue."""
    namespace = logkeep.create_namespace(f"restores-{secrets.token_hex(3)}", node_s3)
    home = Home(logkeep, broker, node_s3, namespace, node_s3.create_bucket(namespace))
    bootstrap = broker.bootstrap
    began = int(time.time() * 1000) - 30 * MINUTE
    create_topic(bootstrap, TOPIC, 2)
    create_topic(bootstrap, f"replace.{TOPIC}", 3)
    produce(bootstrap, f"replace.{TOPIC}", records(30, 2, began))
    produce(bootstrap, TOPIC, records(300, 0, began), compression="lz4")
    produce(bootstrap, TOPIC, records(200, 1, began, wrong=began + 50 * MINUTE), compression="zstd")
    transactions(bootstrap, TOPIC, [5, -40, 3], began + MINUTE)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(TOPIC, 1, LOG_START)]).values():
        done.result(30)
    commit_positions(bootstrap, GROUP, {(TOPIC, number): offset for number, offset in FIRST.items()})
    saved = home.backup(TOPIC, spark={})
    first = saved.wait("Succeeded")

    point = int(time.time() * 1000)
    produce(bootstrap, TOPIC, records(80, 0, point, wrong=point - 20 * MINUTE), compression="lz4")
    produce(bootstrap, TOPIC, records(100, 1, point), compression="zstd")
    commit_positions(bootstrap, GROUP, {(TOPIC, number): offset for number, offset in LAST.items()})
    saved.run_again("later")
    saved.wait("Succeeded", run_not=first["run"]["id"])

    source = {number: seen(bootstrap, TOPIC, number) for number in (0, 1)}
    made = Archived(home, saved, point, source)
    made.restores.update(apply_all(home, asked_for(bootstrap, point)))
    yield made
    logkeep.api.delete_namespace(namespace)


def asked_for(bootstrap: str, point: int) -> Iterator[Document]:
    """All restores. Each gives its topics and groups names of its own."""

    def named(name: str, **spec: Any) -> Document:
        rename = [{"from": "(.*)", "to": rf"{name}.\1"}]
        topics = {"rename": rename, **spec.pop("topics", {})}
        groups = {"restore": "Translate", "include": [GROUP], "rename": rename}
        wanted = {"spark": {}, "consumerGroups": groups, **spec}
        return restore(name, bootstrap, "saved", topics=topics, **wanted)

    yield named("replace", dryRun=True)
    yield named("same", offsets="Same", verify="Full", spark=small(1))
    yield restore("drill", bootstrap, "saved", spark={}, topics={}, drill={})
    yield named("as-of", point={"asOf": iso(point)})
    topics = {"partitionCount": DIVIDED, "partitioner": "murmur2"}
    divided: Document = {"topics": topics, "consumerGroups": {"restore": "None"}}
    yield named("by-time", point={"timestamp": iso(point)}, **divided)
    part = [{"topic": TOPIC, "partition": 1, "target": 0}]
    yield named("part", topics={"partitions": part, "retention": "Hold", "holdFor": "1s"})


def apply_all(home: Home, documents: Iterator[Document]) -> dict[str, Resource]:
    """Apply KafkaRestores at once, and return them by name."""
    found = list(documents)
    home.logkeep.node.kubectl("apply", "-n", home.namespace, "-f", "-", stdin=yaml.safe_dump_all(found))
    names = [document["metadata"]["name"] for document in found]
    return {name: Resource(home.logkeep, home.namespace, "KafkaRestore", name) for name in names}


def topic_id(bootstrap: str, topic: str) -> str:
    """The id that a broker has given to a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return str(admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id)


def test_what_a_time_gives_is_shown_before_anything_is_restored(archived: Archived) -> None:
    # The plugin sends keys to the store because the chart names it.
    reported = json.loads(archived.plugin("inspect", "kbak/saved", "--at", iso(archived.point), "-o", "json"))

    shown = [dict(zip(reported["asOf"]["columns"], row, strict=True)) for row in reported["asOf"]["partitions"]]
    assert [(row["start"], row["end"]) for row in shown] == [(0, 351), (LOG_START, 180)]
    assert reported["asOf"]["groups"]["positions"] == len(FIRST)


def test_as_of_a_time_brings_what_consumers_could_read_then(archived: Archived) -> None:
    status = archived.restores["as-of"].wait("Succeeded")

    expected = {partition: archived.as_of_point(partition) for partition in archived.source}
    for partition, wanted in expected.items():
        assert restored(archived.home.broker.bootstrap, f"as-of.{TOPIC}", partition) == wanted, partition
    assert len(expected[1]) == 180 - LOG_START, "the partition ends where a clock was ahead"
    assert status["progress"]["records"] == sum(map(len, expected.values()))
    assert "2 of 2 partitions end before their archived end" in status["progress"]["point"]
    assert archived.positions("as-of") == archived.places_of(FIRST)


def test_a_time_of_records_brings_exactly_the_earlier_ones_to_where_their_keys_belong(archived: Archived) -> None:
    status = archived.restores["by-time"].wait("Succeeded")

    expected = {partition: archived.before_point(partition) for partition in archived.source}
    assert len(expected[0]) == 308 + 1, "a record that was late is there"
    assert len(expected[1]) == 199 - LOG_START, "a record of a clock that was ahead is not there"
    assert status["progress"]["records"] == sum(map(len, expected.values()))
    for target in range(DIVIDED):
        found = restored(archived.home.broker.bootstrap, f"by-time.{TOPIC}", target)
        wanted = [
            [record for offset, record in records.items() if target_of(record[0], offset, DIVIDED) == target]
            for records in expected.values()
        ]
        assert Counter(found) == Counter(record for records in wanted for record in records), target
        for records in wanted:
            left = iter(found)
            assert all(record in left for record in records), "records of a partition keep their order"


def test_the_same_offsets_are_proved_by_a_report(archived: Archived) -> None:
    status = archived.restores["same"].wait("Succeeded")
    found = status["verification"]

    compared = compare_topics(archived.home.broker.bootstrap, TOPIC, f"same.{TOPIC}")
    assert compared.equal, compared
    assert compared.offsets_equal
    assert archived.positions("same") == LAST
    assert (found["outcome"], found["verified"], found["records"]) == ("Verified", 2, archived.total), found
    assert found["report"] == f"{archived.home.uri}/runs/{status['run']['id']}/verification.html"
    page = archived.report(found["report"])
    assert page.startswith("<!DOCTYPE html>")
    assert f"same.{TOPIC}" in page
    assert json.loads(archived.report(found["report"].replace(".html", ".json")))["outcome"] == "Verified"
    assert archived.columns("same")["VERIFIED"] == "Verified"
    assert found["report"] in archived.plugin("status", "krst/same")


def test_chosen_partitions_go_where_the_mapping_says(archived: Archived) -> None:
    archived.restores["part"].wait("Succeeded")

    bootstrap = archived.home.broker.bootstrap
    assert restored(bootstrap, f"part.{TOPIC}", 0) == list(archived.source[1].values())
    assert restored(bootstrap, f"part.{TOPIC}", 1) == []
    assert archived.positions("part", 1) == {0: archived.places_of(LAST)[1]}


def test_topics_that_are_held_are_released_by_the_same_run_in_time(archived: Archived) -> None:
    part = archived.restores["part"]
    run = part.wait("Succeeded")["run"]
    wait_until(lambda: "releasedTime" in part.status["heldTopics"], 300, "the release")
    status = part.wait("Succeeded")
    held = status["heldTopics"]
    assert (held["topicList"], held["released"], "failures" in held) == ([f"part.{TOPIC}"], 1, False)
    assert held["releaseTime"] <= held["releasedTime"]
    assert (status["run"], len(status["history"])) == (run, 1)
    ready = part.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "RunSucceeded")
    assert ready["message"].startswith(f"1 held topic released at {held['releasedTime']}; ")
    assert not {"retention.ms", "retention.bytes"} & topic_settings(archived.home.broker, f"part.{TOPIC}").keys()


def test_a_drill_proves_the_archive_and_leaves_nothing_but_a_report(archived: Archived) -> None:
    found = archived.restores["drill"].wait("Succeeded")["drill"]

    assert (found["records"], found["partitions"]) == (archived.total, 2), found
    wait_until(lambda: "drill" in archived.saved.status, 60, "the backup to tell of its drill")
    condition = archived.saved.condition("Verified")
    assert (condition["status"], condition["reason"]) == ("True", "DrillSucceeded")
    assert condition["message"].endswith(f"restored in {found['recovery']}")
    assert archived.saved.status["drill"] == found
    assert found["recoverySeconds"] <= found["verifiedSeconds"]
    report = json.loads(archived.report(found["report"]))
    assert (report["outcome"], report["records"]) == ("Verified", archived.total)
    assert report["topics"][0][2] in archived.report(report["page"])
    left = [name for name in topic_names(archived.home.broker.bootstrap) if name.startswith("logkeep-drill-")]
    assert left == []


def test_a_dry_run_names_what_refuses_the_restore_and_the_mended_one_replaces_the_topic(archived: Archived) -> None:
    again, bootstrap, target = archived.restores["replace"], archived.home.broker.bootstrap, f"replace.{TOPIC}"
    before = topic_id(bootstrap, target)

    status = again.wait("DryRun")
    reported = status["dryRun"]
    assert (reported["refused"], reported["topicsCreated"], reported["positions"]) == (1, 0, 2), reported
    assert [item["reason"] for item in reported["refusals"]] == ["TopicExists"]
    assert again.condition("Stalled")["reason"] == "DryRunRefused"
    assert (topic_id(bootstrap, target), len(restored(bootstrap, target, 2))) == (before, 30), "nothing is written"
    assert not [name for name in archived.home.objects() if status["run"]["id"] in name], "nothing is written"

    again.patch({"dryRun": False, "ifTopicExists": "Replace", "confirm": [target]})
    status = again.wait("Succeeded")

    assert topic_id(bootstrap, target) != before
    compared = compare_topics(bootstrap, TOPIC, target)
    assert compared.equal, compared
    assert archived.positions("replace") == archived.places_of(LAST)
    assert "dryRun" not in status
    assert [run["outcome"] for run in status["history"]] == ["Succeeded", "DryRun"]

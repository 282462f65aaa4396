"""Every version of Kafka that is promised: what a broker of one has comes back on a broker of another, both ways.

`tests.cluster.versions` has the versions. Another implementation of the protocol stands beside them: kfake.
docs/compatibility.md says which they are.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.moments import iso
from logkeep_engine.compare.account import compare
from logkeep_engine.contract.run import RunResult
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.storage import open_uri
from tests.cluster import versions
from tests.cluster.kafka import STEADY, Brokers, KafkaBroker
from tests.cluster.kfake import KFAKE, Kfake
from tests.cluster.old_kafka import OldBroker
from tests.cluster.versions import NEWEST
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce, topic_names
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.raw import eventually, plain
from tests.kafka.restores import (
    Seen,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    topic_settings,
    transactions,
    without_offsets,
)
from tests.kafka.test_cluster_state import control_plane
from tests.kafka.test_point import NOON, disordered, offset_for
from tests.kafka.test_restore_groups import TRANSLATE, next_values, positions
from tests.kafka.test_restore_same import Difficult, bounds
from tests.kafka.test_snapshots import OFTEN, state_of

NOW = int(time.time() * 1000) - 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ENDED_WITH_4 = {"message.downconversion.enable": "false", "message.timestamp.difference.max.ms": "3600000"}
UNKNOWN = {
    # The source's own configuration that brokers of the target do not know or allow. A segment has 1 MiB from 4.0 on.
    "2.8.2 to 4.4.0": {**ENDED_WITH_4, "message.format.version": "2.8-IV0", "segment.bytes": "65536"},
    "3.9.1 to 4.4.0": {**ENDED_WITH_4, "message.format.version": "3.0-IV1", "segment.bytes": "65536"},
    "4.4.0 to 3.9.1": {"errors.deadletterqueue.group.enable": "true"},
    "4.4.0 to 4.2.1": {"errors.deadletterqueue.group.enable": "true"},
}


@dataclass(frozen=True)
class Pair:
    """Two clusters: what the first one has is to come back in the second one."""

    source: KafkaBroker | Kfake
    target: KafkaBroker | Kfake

    def __str__(self) -> str:
        return f"{self.source.version} to {self.target.version}"

    @property
    def has_kfake(self) -> bool:
        return KFAKE in (self.source.version, self.target.version)


def cluster(version: str) -> KafkaBroker:
    """A broker that keeps ACLs, and where whoever does not log in may do everything."""
    overrides = {**STEADY, "authorizer.class.name": versions.authorizer(version), "super.users": "User:ANONYMOUS"}
    if versions.has_kraft(version):
        return KafkaBroker(version=version, overrides=overrides)
    return OldBroker(overrides=overrides)


@pytest.fixture(scope="module")
def newest() -> Iterator[KafkaBroker]:
    with cluster(NEWEST) as broker:
        yield broker


@pytest.fixture(scope="module", params=[*versions.PAIRS, (KFAKE, NEWEST), (NEWEST, KFAKE)], ids=" to ".join)
def pair(request: pytest.FixtureRequest, newest: KafkaBroker) -> Iterator[Pair]:
    of, to = request.param
    other = to if of == NEWEST else of
    # A source compacts its logs soon. A target must leave what comes back as it is.
    kfake = Kfake() if of == NEWEST else Kfake(backoff_ms=500)
    with kfake if other == KFAKE else cluster(other) as there:
        yield Pair(newest, there) if of == NEWEST else Pair(there, newest)


@pytest.fixture
def topics(pair: Pair) -> Topics:
    """Makes and fills topics of the source."""
    return Topics(pair.source)


def come_back(pair: Pair, root: Path, name: str = "copy", **more: Any) -> RunResult:
    """The result of a restore into the target, all of which was read back."""
    result = bring_back(restore_spec(pair.target, root, suffix=f"-{name}", verify="Full", **more), f"restore-{name}")
    assert result.outcome == "Succeeded", result
    assert result.verification is not None
    assert (result.verification.outcome, result.verification.records) == ("Verified", result.records)
    return result


def torture(count: int, partitions: int) -> Iterator[Record]:
    """Null and empty keys and values, tombstones, large values, headers without value, and the same one twice."""
    keys = (None, b"", b"k%d", "schlüssel".encode())
    for number in range(count):
        key, value = keys[number % 4], (None, b"", b"%d" % number * 50, b"large" * 20_000)[(number % 7) % 4]
        headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None), ("", b"")] if number % 3 else []
        yield Record(key, value, NOW + number, headers, number % partitions)


def assert_whole(root: Path) -> None:
    report = verify(Archive.open(open_uri(root.as_uri())))
    assert (report.whole, report.faults, report.orphans) == (True, [], [])


def assert_equal(pair: Pair, partitions: Mapping[str, int], suffix: str = "-copy") -> int:
    """Compare topics with their copies as committed readers see them; returns how many records there are."""
    source = all_committed(pair.source, partitions)
    target = all_committed(pair.target, {f"{topic}{suffix}": count for topic, count in partitions.items()})
    for (topic, partition), records in source.items():
        assert without_offsets(target[f"{topic}{suffix}", partition]) == without_offsets(records), (topic, partition)
    return sum(map(len, source.values()))


def test_the_brokers_are_of_these_versions(pair: Pair) -> None:
    for broker in (pair.source, pair.target):
        if isinstance(broker, KafkaBroker):
            assert f"Kafka version: {broker.version} " in broker.log.read_text() + " "


def test_records_of_every_kind_and_codec(pair: Pair, unique: str, tmp_path: Path) -> None:
    made = {f"{unique}-{codec}": 3 for codec in CODECS}
    for (topic, partitions), codec in zip(made.items(), CODECS, strict=True):
        create_topic(pair.source.bootstrap, topic, partitions, NO_RETENTION)
        produce(pair.source.bootstrap, topic, torture(120, partitions), compression=codec)
    back_up(backup_spec(pair.source, tmp_path, f"{unique}-.*"))
    assert_whole(tmp_path)
    assert come_back(pair, tmp_path).records == 600
    assert assert_equal(pair, made) == 600


def test_times_of_a_broker(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique, message_timestamp_type="LogAppendTime")
    topics.produce(unique, numbers(300), codec="lz4", batch=7)
    back_up(backup_spec(pair.source, tmp_path, unique))
    come_back(pair, tmp_path)
    assert assert_equal(pair, {unique: 1}) == 300
    assert topic_settings(pair.target, f"{unique}-copy") == {"message.timestamp.type": "LogAppendTime"}


def test_transactions_that_were_committed_and_aborted(pair: Pair, unique: str, tmp_path: Path) -> None:
    create_topic(pair.source.bootstrap, unique, 2)
    transactions(pair.source, unique, [10, -5, 20, -1, 1])
    transactions(pair.source, unique, [-3, 3], partition=1)
    back_up(backup_spec(pair.source, tmp_path, unique))
    assert_whole(tmp_path)
    assert come_back(pair, tmp_path).records == 34
    assert assert_equal(pair, {unique: 2}) == 34


def test_a_transaction_that_is_open_comes_with_the_backup_after_its_end(
    pair: Pair, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(50))
    producer = topics.open_transaction(unique, numbers(10, first=50))
    topics.produce(unique, numbers(10, first=60))
    spec = backup_spec(pair.source, tmp_path, unique)
    assert back_up(spec).records == 50
    come_back(pair, tmp_path, "before")
    assert len(committed(pair.target, f"{unique}-before")) == 50
    topics.end(producer, unique, commit=True)
    back_up(spec, "backup-2")
    come_back(pair, tmp_path)
    assert assert_equal(pair, {unique: 1}) == 70


def test_what_is_new_comes_with_the_next_backup(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique, 2)
    topics.produce(unique, numbers(150))
    spec = backup_spec(pair.source, tmp_path, unique)
    assert back_up(spec).records == 150
    assert back_up(spec, "backup-2").records == 0
    topics.grow(unique, 3)
    for partition in range(3):
        topics.produce(unique, numbers(40, first=150), partition=partition)
    assert back_up(spec, "backup-3").records == 120
    assert_whole(tmp_path)
    report = compare(Archive.open(open_uri(tmp_path.as_uri())), plain(pair.source.bootstrap))
    assert report.whole
    come_back(pair, tmp_path)
    assert assert_equal(pair, {unique: 3}) == 270


def test_a_topic_that_was_deleted_and_created_again(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    spec = backup_spec(pair.source, tmp_path, unique)
    back_up(spec)
    topics.delete(unique)
    topics.create(unique)
    topics.produce(unique, numbers(30, first=500))
    assert back_up(spec, "backup-2").records == 30
    come_back(pair, tmp_path)
    assert assert_equal(pair, {unique: 1}) == 30


def test_a_compacted_topic(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique, 1, cleanup_policy="compact", **{key.replace(".", "_"): v for key, v in NO_RETENTION.items()})
    at_end: list[list[Seen]] = []
    for number in range(2):
        topics.produce(unique, numbers(60, first=number), key=lambda at: b"%d" % (at % 7))
        back_up(backup_spec(pair.source, tmp_path, unique, **OFTEN), f"backup-{number}")
        at_end.append(committed(pair.source, unique))
    assert_whole(tmp_path)
    for number, records in enumerate(at_end):
        come_back(pair, tmp_path, f"run{number}", point={"run": f"backup-{number}"}, offsets="Same")
        found = committed(pair.target, f"{unique}-run{number}")
        assert state_of(found) == state_of(records)
        assert set(found) <= set(records), "with its own offset, value and time"


def test_points_in_time(pair: Pair, unique: str, tmp_path: Path) -> None:
    create_topic(pair.source.bootstrap, unique, 1, NO_RETENTION)
    produce(pair.source.bootstrap, unique, disordered(1500), compression="lz4", config={"batch.size": 3000})
    back_up(backup_spec(pair.source, tmp_path, unique))
    records = committed(pair.source, unique)
    moment = records[777][4]
    as_of = offset_for(pair.source, unique, 0, moment)
    points = {
        "time": ({"timestamp": iso(moment)}, [record for record in records if record[4] < moment]),
        "as-of": ({"asOf": iso(moment)}, records[:as_of]),
        "offset": ({"offsets": [{"topic": unique, "partition": 0, "offset": 1234}]}, records[:1234]),
        "window": (
            {"window": {"from": iso(NOON + 300_000), "to": iso(moment)}},
            [record for record in records if NOON + 300_000 <= record[4] < moment],
        ),
    }
    for name, (point, expected) in points.items():
        come_back(pair, tmp_path, name, point=point)
        assert expected
        assert without_offsets(committed(pair.target, f"{unique}-{name}")) == without_offsets(expected), name


def test_the_same_offsets(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    """The logs begin above 0, and have gaps that compaction, aborted transactions and markers have left."""
    source = Difficult(pair.source, topics, unique)
    source.everything()
    source.emptied()
    source.compaction()
    back_up(backup_spec(pair.source, tmp_path, f"{unique}-.*"))
    come_back(pair, tmp_path, offsets="Same")
    assert len(source.made) == 3
    for topic, partitions in source.made.items():
        assert bounds(pair.target, f"{topic}-copy", partitions) == bounds(pair.source, topic, partitions)
        for partition in range(partitions):
            assert committed(pair.target, f"{topic}-copy", partition) == committed(pair.source, topic, partition)


def read_by_a_member(broker: Brokers, group: str, topic: str, count: int, protocol: str) -> list[bytes | None]:
    """Let a member of a group read so many records of a topic, commit and leave. Returns their values."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen: list[bytes | None] = []

    def has_read_enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen.append(message.value())
            if len(seen) == count:
                consumer.commit(message=message, asynchronous=False)
        return len(seen) == count

    eventually(has_read_enough, 60)
    consumer.close()
    return seen


def test_positions_of_groups(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    """One group has had members, by the newest protocol that the source has, and one only commits."""
    topics.create(unique)
    transactions(pair.source, unique, [10, -5, 20])
    read, noted = f"{unique}-read", f"{unique}-noted"
    is_new = pair.source.version == KFAKE or versions.at_least(pair.source.version, "4.0")
    protocol = "consumer" if is_new else "classic"
    seen = read_by_a_member(pair.source, read, unique, 15, protocol)
    commit_positions(pair.source.bootstrap, noted, {(unique, 0): 4}, metadata="noted")
    spec = backup_spec(pair.source, tmp_path, unique, consumerGroups={"include": [f"{unique}-.*"]})
    back_up(spec)
    assert come_back(pair, tmp_path, consumerGroups=TRANSLATE).groups == 2
    assert positions(pair.target, noted)[f"{unique}-copy", 0] == (4, "noted")
    assert positions(pair.target, read)[f"{unique}-copy", 0][0] == 15
    expected = [record[2] for record in committed(pair.source, unique)]
    assert [*seen, *next_values(pair.target, read, f"{unique}-copy", 15)] == expected


def test_a_configuration_comes_back(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    configs = {
        "retention_ms": "123456789",
        "max_message_bytes": "2000000",
        "min_insync_replicas": "1",
        "cleanup_policy": "compact,delete",
        "compression_type": "zstd",
        "segment_bytes": "2097152",
        "unclean_leader_election_enable": "false",
    }
    topics.create(unique, 1, **configs)
    topics.produce(unique, numbers(5), key=lambda number: b"%d" % number)
    back_up(backup_spec(pair.source, tmp_path, unique))
    assert come_back(pair, tmp_path).warnings == ()
    assert topic_settings(pair.target, f"{unique}-copy") == {
        key.replace("_", "."): value for key, value in configs.items()
    }


def test_a_configuration_that_the_target_does_not_know_is_named(
    pair: Pair, topics: Topics, unique: str, tmp_path: Path
) -> None:
    if str(pair) not in UNKNOWN:
        assert pair.has_kfake or str(pair) == "4.2.1 to 4.4.0", "the target knows all that the source does"
        return
    unknown = UNKNOWN[str(pair)]
    topics.create(unique, 1, **{key.replace(".", "_"): value for key, value in unknown.items()}, flush_ms="77")
    topics.produce(unique, numbers(20))
    back_up(backup_spec(pair.source, tmp_path, unique))
    spec = restore_spec(pair.target, tmp_path)
    lines = [f"topic {unique}-copy: {key}={value} could not be set" for key, value in sorted(unknown.items())]
    planned = bring_back({**spec, "dryRun": True}, "dry-1")
    came = come_back(pair, tmp_path)
    for result in (planned, came):
        assert [[line for line in lines if line in text] for text in result.warnings] == [[line] for line in lines]
    assert came.records == 20
    assert topic_settings(pair.target, f"{unique}-copy") == {"flush.ms": "77"}
    assert assert_equal(pair, {unique: 1}) == 20


def test_acls_quotas_and_users(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    user = f"User:{unique}"
    acls = {
        Acl("TOPIC", unique, "LITERAL", user, "*", "READ", "ALLOW"),
        Acl("TOPIC", unique, "PREFIXED", user, "10.1.2.3", "WRITE", "ALLOW"),
        Acl("GROUP", unique, "LITERAL", user, "*", "ALL", "DENY"),
        Acl("TRANSACTIONAL_ID", unique, "LITERAL", user, "*", "WRITE", "ALLOW"),
        Acl("CLUSTER", "kafka-cluster", "LITERAL", user, "*", "IDEMPOTENT_WRITE", "ALLOW"),
    }
    quotas = {
        Quota((("user", unique),), "consumer_byte_rate", 1_048_576.0),
        Quota((("user", unique), ("client-id", "batch")), "producer_byte_rate", 2_097_152.0),
        Quota((("ip", "10.1.2.3"),), "connection_creation_rate", 50.0),
    }
    control = control_plane(pair.source)
    assert control.create_acls(sorted(acls)) == []
    assert control.set_quotas(sorted(quotas)) == []
    password = UserScramCredentialUpsertion(
        unique, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), b"a password", b"salt of 16 bytes"
    )
    admin = AdminClient({"bootstrap.servers": pair.source.bootstrap})
    for done in admin.alter_user_scram_credentials([password]).values():
        done.result(30)
    eventually(lambda: acls <= set(control.acls().items or ()) and quotas <= set(control.quotas().items or ()))
    tells_users = pair.source.version != KFAKE  # to kfake no name stands for nobody, and not for everybody
    eventually(lambda: not tells_users or unique in {item.name for item in control.scram_users().items or ()})
    topics.create(unique)
    topics.produce(unique, numbers(10))
    archived = back_up(backup_spec(pair.source, tmp_path, unique))
    assert archived.warnings == ()
    result = bring_back(
        {
            "cluster": {"bootstrapServers": pair.target.addresses},
            "source": {"storage": {"uri": tmp_path.as_uri()}},
            "everything": True,
            "acls": {"cluster": True, "anyResource": True, "anyPrincipal": True, "principals": [".*"]},
        }
    )
    assert (result.outcome, result.records) == ("Succeeded", 10)
    found = control_plane(pair.target)
    assert acls <= set(found.acls().items or ())
    assert quotas <= set(found.quotas().items or ())
    assert result.cluster_state is not None
    assert (f"{unique} (SCRAM-SHA-256, 8192 iterations)" in result.cluster_state.users_to_create) == tells_users
    assert unique in topic_names(pair.target.bootstrap)


def test_a_dry_run_tells_what_the_restore_does(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique, 2)
    topics.produce(unique, numbers(80))
    back_up(backup_spec(pair.source, tmp_path, unique))
    planned = bring_back({**restore_spec(pair.target, tmp_path), "dryRun": True}, "dry-1").dry_run
    assert planned is not None
    assert (planned.refusals, planned.records, planned.counts) == ((), 80, "Exact")
    assert f"{unique}-copy" not in topic_names(pair.target.bootstrap)
    assert come_back(pair, tmp_path).records == 80


def test_records_are_appended_to_a_topic_that_is_there(pair: Pair, topics: Topics, unique: str, tmp_path: Path) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(50))
    back_up(backup_spec(pair.source, tmp_path, unique))
    there = Topics(pair.target)
    there.create(f"{unique}-copy")
    there.produce(f"{unique}-copy", numbers(7, first=900))
    come_back(pair, tmp_path, ifTopicExists="Append")
    found = committed(pair.target, f"{unique}-copy")
    assert len(found) == 57
    assert without_offsets(found[7:]) == without_offsets(committed(pair.source, unique))

"""Positions of consumer groups after a restore, on a real broker: where each archived position stands in the target."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract import names
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import BrokerRefused, SpecError
from tests.cluster.kafka import STEADY, Brokers, KafkaBroker
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce, topic_names
from tests.kafka.raw import eventually
from tests.kafka.record_archives import group, topic_entry, write_archive
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    transactions,
)
from tests.kafka.test_restore_formats import numbered

TRANSLATE = {"restore": "Translate"}
NOT_READY = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
Positions = dict[tuple[str, int], tuple[int, str]]


def positions(kafka: Brokers, group_id: str) -> Positions:
    """Offset and metadata by topic and partition. librdkafka reads past the end of metadata without a zero byte.

    On a new broker this makes `__consumer_offsets`, whose coordinators are waited for.
    """

    async def ask() -> Positions:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        until = time.monotonic() + 60
        try:
            while True:
                try:
                    found = await admin.list_consumer_group_offsets(group_id)
                    break
                except NOT_READY:
                    if time.monotonic() > until:
                        raise
                await asyncio.sleep(0.1)
        finally:
            await admin.close()
        # librdkafka's consumers commit the zero byte, too.
        return {
            (where.topic, where.partition): (item.offset, item.metadata.rstrip("\0"))
            for where, item in found.items()
            if item.offset >= 0
        }

    return asyncio.run(ask())


def commit(kafka: Brokers, group_id: str, topic: str, offset: int, partition: int = 0) -> None:
    commit_positions(kafka.bootstrap, group_id, {(topic, partition): offset}, metadata="noted")


@contextmanager
def member(kafka: KafkaBroker, group_id: str, topic: str, **config: str) -> Iterator[None]:
    """Somebody who is a member of the group, and commits nothing."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group_id, "enable.auto.commit": False, **config}
    consumer = Consumer(settings)
    consumer.subscribe([topic])

    def joined() -> bool:
        consumer.poll(0.2)
        return bool(consumer.assignment())

    eventually(joined, 60)
    try:
        yield
    finally:
        consumer.close()


def next_values(kafka: Brokers, group_id: str, topic: str, count: int) -> list[bytes | None]:
    """The values that a consumer of the group reads first."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group_id, "auto.offset.reset": "error"}  # no guessing
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
    consumer.close()
    return found


def rows(root: Path, run_id: str = "restore-1") -> list[list[Any]]:
    document = json.loads((root / "runs" / run_id / "consumer-groups.json").read_text())
    assert document["columns"] == [
        "group",
        "topic",
        "partition",
        "sourceOffset",
        "targetOffset",
        "at",
        "outcome",
        "reason",
    ]
    found: list[list[Any]] = document["rows"]
    return found


def warned(result: RunResult, *words: str) -> bool:
    return any(all(word in warning for word in words) for warning in result.warnings)


class TestTranslation:
    def test_of_a_backup_with_transactions(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        # Offsets: 0-9, marker 10, aborted 11-15, marker 16, 17-36, marker 37.
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [10, -5, 20])
        groups = {f"{unique}-{at}": at for at in (0, 4, 10, 13, 17, 20, 37, 38)}
        for group_id, offset in groups.items():
            commit(kafka, group_id, unique, offset)
        back_up(backup_spec(kafka, tmp_path, unique, consumerGroups={"include": [f"{unique}-.*"]}))
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        source, copy = committed(kafka, unique), f"{unique}-copy"
        target = committed(kafka, copy)
        assert len(target) == 30
        for group_id, offset in groups.items():
            at, metadata = positions(kafka, group_id)[copy, 0]
            assert at == sum(record[0] < offset for record in source)
            assert metadata == "noted"
        assert result.groups == len(groups)
        assert warned(result, "2 positions of consumer groups pointed to an offset without a record")
        assert next_values(kafka, f"{unique}-13", copy, 2) == [record[2] for record in target[10:12]]
        places = {row[3]: row[5] for row in rows(tmp_path)}
        gaps = (10, 13)
        assert places == {
            offset: "gap" if offset in gaps else "end" if offset > 36 else "record" for offset in groups.values()
        }

    @pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO], ids=["records", "avro"])
    def test_of_archives_of_records(self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout) -> None:
        topic = topic_entry(unique, 3)
        records = numbered(100, step=2)  # offsets 0, 2, ... 198
        where = {"exact": 50, "gap": 51, "start": 0, "end": 199, "past": 5000}
        groups = [group(f"{unique}-{name}", topic, offset, 1, f"at {name}") for name, offset in where.items()]
        groups.append(group(f"{unique}-exact", topic, 7, 2))  # a partition without records
        groups.append(group(f"{unique}-other", topic, 5, 9))  # a partition that is not there
        write_archive(tmp_path, layout, topic, {1: records}, groups=groups)
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        copy = f"{unique}-copy"
        assert positions(kafka, f"{unique}-exact") == {(copy, 1): (25, "at exact"), (copy, 2): (0, "")}
        found = {name: positions(kafka, f"{unique}-{name}")[copy, 1] for name in where}
        assert found == {
            "exact": (25, "at exact"),
            "gap": (26, "at gap"),
            "start": (0, "at start"),
            "end": (100, "at end"),
            "past": (100, "at past"),
        }
        assert positions(kafka, f"{unique}-other") == {}
        assert result.groups == 6
        assert warned(result, "1 position of consumer groups pointed to an offset without a record")
        assert warned(result, "2 positions of consumer groups pointed past the archived end")

    def test_only_of_the_groups_that_are_wanted(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic = topic_entry(unique)
        groups = [group(f"{unique}-{name}", topic, 3) for name in ("a", "b", "c")]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        wanted = {**TRANSLATE, "include": [".*-[ab]"], "exclude": [".*-b"]}
        assert bring_back(restore_spec(kafka, tmp_path, consumerGroups=wanted)).groups == 1
        assert positions(kafka, f"{unique}-a") == {(f"{unique}-copy", 0): (3, "")}
        assert positions(kafka, f"{unique}-b") == positions(kafka, f"{unique}-c") == {}

    def test_of_no_archived_group_is_reported(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic = topic_entry(unique)
        groups = [group(f"{unique}-{name}", topic, 3) for name in ("billing", "shop")]
        write_archive(tmp_path / "some", Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        mistyped = {**TRANSLATE, "include": [f"{unique}-biling"]}
        result = bring_back(restore_spec(kafka, tmp_path / "some", consumerGroups=mistyped))
        assert (result.outcome, result.records, result.groups) == ("Succeeded", 10, 0)
        named = f"archived are '{unique}-billing', '{unique}-shop'"
        assert warned(result, "no archived group matches spec.consumerGroups.include", named)
        assert rows(tmp_path / "some") == []
        write_archive(tmp_path / "none", Layout.RECORDS, topic, {0: numbered(10)})
        spec = restore_spec(kafka, tmp_path / "none", ifTopicExists="Append")
        assert warned(bring_back({**spec, "consumerGroups": TRANSLATE}), "the archive holds no positions")
        assert not warned(bring_back(spec, run_id="restore-2"), "consumer group")

    def test_of_no_group_by_default(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic = topic_entry(unique)
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=[group(unique, topic, 3)])
        assert bring_back(restore_spec(kafka, tmp_path)).groups == 0
        assert positions(kafka, unique) == {}
        assert not (tmp_path / "runs" / "restore-1" / "consumer-groups.json").exists()

    def test_of_a_topic_of_another_incarnation_is_left_out(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        topic = topic_entry(unique)
        old = GroupEntry(unique, topic.name, "B" * 22, 0, 5)
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=[old])
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert (result.groups, positions(kafka, unique)) == (0, {})
        assert warned(result, "has a position in a restored topic", f"archived are '{unique}'")

    def test_of_many_groups_with_many_partitions(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic = topic_entry(unique, 40)
        groups = [
            group(f"{unique}-{number}", topic, number % 10, partition, "m" * 4000)
            for number in range(70)
            for partition in range(40)
        ]
        write_archive(tmp_path, Layout.RECORDS, topic, {at: numbered(10) for at in range(40)}, groups=groups)
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert (result.groups, result.warnings) == (2800, ())
        for number in (0, 33, 69):
            found = positions(kafka, f"{unique}-{number}")
            assert found == {(f"{unique}-copy", at): (number % 10, "m" * 4000) for at in range(40)}


class TestWhatIsThere:
    def test_positions_of_a_group_are_not_moved(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic, copy = topic_entry(unique, 2), f"{unique}-copy"
        create_topic(kafka.bootstrap, copy, 2, NO_RETENTION)
        produce(kafka.bootstrap, copy, [Record(b"k", b"before", int(time.time() * 1000))] * 7)
        commit(kafka, unique, copy, 2)
        groups = [group(unique, topic, 5, 0), group(unique, topic, 5, 1), group(f"{unique}-new", topic, 5, 0)]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10), 1: numbered(10)}, groups=groups)
        result = bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append", consumerGroups=TRANSLATE))
        assert positions(kafka, unique) == {(copy, 0): (2, "noted"), (copy, 1): (5, "")}
        assert positions(kafka, f"{unique}-new") == {(copy, 0): (12, "")}
        assert result.groups == 2
        assert warned(
            result, f"consumer group '{unique}': 1 position not set, first topic {copy} partition 0", "offset 2"
        )
        assert [row[6] for row in sorted(rows(tmp_path))] == ["kept", "set", "set"]

    @pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.since("4.0"))])
    def test_a_group_with_members_is_named_and_left_alone(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, protocol: str
    ) -> None:
        topic, copy, elsewhere = topic_entry(unique), f"{unique}-copy", f"{unique}-elsewhere"
        create_topic(kafka.bootstrap, elsewhere)
        groups = [group(unique, topic, 5), group(f"{unique}-idle", topic, 6)]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        with member(kafka, unique, elsewhere, **{"group.protocol": protocol}):
            result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert (result.outcome, result.records, result.groups) == ("Succeeded", 10, 1)
        assert warned(result, f"consumer group '{unique}': 1 position not set", "the group has members")
        assert positions(kafka, unique) == {}
        assert positions(kafka, f"{unique}-idle") == {(copy, 0): (6, "")}
        assert rows(tmp_path)[0] == [unique, copy, 0, 5, 5, "record", "refused", "the group has members"]

    def test_metadata_that_the_target_does_not_take_is_reported(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        topic = topic_entry(unique)
        groups = [group(unique, topic, 5, metadata="x" * 5000)]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert result.groups == 0
        assert warned(result, f"consumer group '{unique}': 1 position not set", "OFFSET_METADATA_TOO_LARGE")


class TestStartedAgain:
    def test_a_driver_that_died_before_or_after_the_groups(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        topic, copy = topic_entry(unique), f"{unique}-copy"
        groups = [group(unique, topic, 5), group(f"{unique}-moved", topic, 6)]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)
        first = bring_back(spec)
        assert first.groups == 2
        # The run seems to have died before it wrote its result; meanwhile one of the groups has gone on.
        run = tmp_path / "runs" / "restore-1"
        (run / "result.json").unlink()
        commit(kafka, f"{unique}-moved", copy, 9)
        again = bring_back(spec)
        assert (again.records, again.groups) == (10, 1)
        assert positions(kafka, unique) == {(copy, 0): (5, "")}
        assert positions(kafka, f"{unique}-moved") == {(copy, 0): (9, "noted")}

    def test_the_groups_that_are_wanted_belong_to_the_run(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        topic = topic_entry(unique)
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=[group(unique, topic, 5)])

        def power_cut(item: Any) -> None:
            if isinstance(item, tuple):
                raise RuntimeError("power cut")

        with pytest.raises(RuntimeError, match="power cut"):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=power_cut))
        with pytest.raises(SpecError, match="was started with another spec"):
            bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert bring_back(restore_spec(kafka, tmp_path)).records == 10


class TestPermissions:
    def test_a_group_that_may_not_be_seen_stops_the_restore_and_one_that_may_not_be_set_is_reported(
        self, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        overrides = {
            **STEADY,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
        }
        hidden, seen = f"{unique}-hidden", f"{unique}-seen"
        topic = topic_entry(unique)
        groups = [group(hidden, topic, 5), group(seen, topic, 6), group(f"{unique}-free", topic, 7)]
        write_archive(tmp_path, Layout.RECORDS, topic, {0: numbered(10)}, groups=groups)
        with KafkaBroker(overrides=overrides, secure=True) as broker:
            monkeypatch.setenv(names.ENV_KAFKA_USERNAME, broker.username)
            monkeypatch.setenv(names.ENV_KAFKA_PASSWORD, broker.password)
            _rule(broker, hidden, AclOperation.ALL, AclPermissionType.DENY)
            _rule(broker, seen, AclOperation.DESCRIBE, AclPermissionType.ALLOW)
            login = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "login"}}}
            spec = restore_spec(broker, tmp_path, consumerGroups=TRANSLATE)
            spec["cluster"] = {"bootstrapServers": [broker.sasl_bootstrap], "security": login}
            with pytest.raises(BrokerRefused, match=f"consumer group '{hidden}'.*ACL DESCRIBE"):
                bring_back(spec)
            assert f"{unique}-copy" not in topic_names(broker.bootstrap)
            result = bring_back({**spec, "consumerGroups": {**TRANSLATE, "exclude": [hidden]}})
            assert (result.records, result.groups) == (10, 1)
            assert warned(result, f"consumer group '{seen}': 1 position not set", "GROUP_AUTHORIZATION_FAILED")
            assert positions(broker, f"{unique}-free") == {(f"{unique}-copy", 0): (7, "")}


def _rule(broker: KafkaBroker, group_id: str, operation: AclOperation, permission: AclPermissionType) -> None:
    """Add a rule for the user and the group. Where there is a rule, everything else is refused."""
    user = f"User:{broker.username}"
    binding = AclBinding(ResourceType.GROUP, group_id, ResourcePatternType.LITERAL, user, "*", operation, permission)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls([binding]).values():
        future.result(30)
    same = AclBindingFilter(ResourceType.GROUP, group_id, ResourcePatternType.LITERAL, user, "*", operation, permission)
    eventually(lambda: bool(admin.describe_acls(same).result(30)))

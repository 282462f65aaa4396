"""Runs ask for the rights that they need before they begin what they cannot finish, on a broker that checks them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.reading.view import choose
from logkeep_engine.contract.names import ENV_KAFKA_PASSWORD, ENV_KAFKA_USERNAME
from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import Record, create_topic, produce, topic_names
from tests.kafka.backing_up import Topics
from tests.kafka.raw import batch, eventually, plain, run
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    try_backup,
    without_offsets,
)
from tests.kafka.test_control_plane import secure
from tests.runners import Job

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READER = {TOPIC: ["READ", "DESCRIBE_CONFIGS"], GROUP: ["DESCRIBE"]}
WRITER = {TOPIC: ["CREATE", "WRITE", "READ", "ALTER_CONFIGS"]}  # the last implies DESCRIBE_CONFIGS
GROUPS = {GROUP: ["READ"]}


class Dies(ThreadRunner):
    """The driver is gone when all records have been sent, before it knows."""

    def perform(self, job: Job) -> None:
        super().perform(job)
        if job.name == "restore_partitions":
            for task in job.work[0]:
                task.state.storage.delete([task.map_path])
            raise ConnectionAbortedError


class Rights:
    """The rights of the user on topics and groups whose names begin with `prefix`."""

    def __init__(self, broker: KafkaBroker, prefix: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._user = f"User:{broker.username}"
        self._prefix = prefix
        every = AclOperation.ANY, AclPermissionType.ANY
        self._mine = AclBindingFilter(ResourceType.ANY, prefix, ResourcePatternType.PREFIXED, self._user, "*", *every)

    def grant(self, rights: Mapping[ResourceType, Sequence[str]], *, without: str = "") -> None:
        """These and no others."""
        self._all(self._admin.delete_acls([self._mine]))
        wanted = [
            AclBinding(
                kind,
                self._prefix,
                ResourcePatternType.PREFIXED,
                self._user,
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for kind, operations in rights.items()
            for operation in operations
            if operation != without
        ]
        if wanted:
            self._all(self._admin.create_acls(wanted))
        eventually(lambda: set(self._admin.describe_acls(self._mine).result(30)) == set(wanted))

    def _all(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)


def commits(consumer: Consumer, position: TopicPartition) -> bool:
    """False while the broker, which is new, loads its coordinator."""
    try:
        consumer.commit(offsets=[position], asynchronous=False)
    except KafkaException:
        return False
    return True


def test_each_kind_of_run_does_with_the_rights_that_the_documentation_names(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    create_topic(strict.bootstrap, unique, 1)
    create_topic(strict.bootstrap, "others", 1)
    recent = int(time.time() * 1000) - 3_600_000
    produce(strict.bootstrap, unique, (Record(b"k%d" % n, b"v%d" % n, recent + n, [], 0) for n in range(50)))
    consumer = Consumer({"bootstrap.servers": strict.bootstrap, "group.id": f"{unique}-group"})
    eventually(lambda: commits(consumer, TopicPartition(unique, 0, 20)))
    consumer.close()
    cluster = {
        "bootstrapServers": [strict.sasl_bootstrap],
        "security": {
            "protocol": "SASL_PLAINTEXT",
            "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}},
        },
    }
    storage = {"uri": tmp_path.as_uri()}
    rights = Rights(strict, unique)

    rights.grant(READER)
    backup = {"cluster": cluster, "topics": {"include": [f"{unique}.*"]}, "storage": storage}
    archived = back_up(backup)
    assert (archived.records, archived.groups) == (50, 1)
    # A right that was taken away ends no run before its end, so that a restore takes what it has archived.
    for number, left in enumerate((["DESCRIBE", "DESCRIBE_CONFIGS"], []), 2):
        rights.grant({TOPIC: left, GROUP: ["DESCRIBE"]})
        refused = try_backup(backup, f"backup-{number}")
        assert f"do not let this user read topics that the archive knows: '{unique}'" in refused.message, refused
        assert f"backup-{number}" in choose(Archive.open(open_uri(tmp_path.as_uri()))).state.runs

    restore = {
        "cluster": cluster,
        "source": {"storage": storage},
        "topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}]},
    }
    needed = set()
    for number, operation in enumerate(WRITER[TOPIC]):
        rights.grant(WRITER, without=operation)
        try:
            renamed = {"rename": [{"from": "(.*)", "to": rf"\1-without-{number}"}]}
            bring_back({**restore, "topics": renamed}, f"no-{number}")
        except BrokerRefused as error:
            needed.add(operation if operation in str(error) else f"{operation}: {error}")
    # A restore that continues reads back what it has written: only then it needs READ.
    assert needed == {"CREATE", "WRITE", "ALTER_CONFIGS"}
    rights.grant(WRITER)
    with pytest.raises(ConnectionAbortedError):
        bring_back(restore, runner=Dies())
    rights.grant(WRITER, without="READ")
    with pytest.raises(BrokerRefused):
        bring_back(restore)
    rights.grant(WRITER)
    assert bring_back(restore).records == 50
    assert without_offsets(committed(strict, f"{unique}-copy")) == without_offsets(committed(strict, unique))

    restore |= {
        "consumerGroups": {"restore": "Translate"},
        "topics": {"rename": [{"from": "(.*)", "to": r"\1-groups"}]},
    }
    with pytest.raises(BrokerRefused):
        bring_back(restore, "restore-2")
    rights.grant({**WRITER, **GROUPS})
    assert bring_back(restore, "restore-2").groups == 1


def test_same_offsets_need_rights_that_are_asked_for_before_anything_is_written(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    create_topic(strict.bootstrap, unique, 1)
    recent = int(time.time() * 1000) - 3_600_000
    produce(strict.bootstrap, unique, (Record(b"k%d" % n, b"v%d" % n, recent + n, [], 0) for n in range(50)))
    Topics(strict).delete_records(unique, 20)
    security = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}}
    cluster = {"bootstrapServers": [strict.sasl_bootstrap], "security": security}
    storage = {"uri": tmp_path.as_uri()}
    rights, transactions = Rights(strict, unique), Rights(strict, "logkeep-")
    rights.grant(READER)
    back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage})
    restore = {
        "cluster": cluster,
        "source": {"storage": storage},
        "offsets": "Same",
        "topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}]},
    }
    try:
        rights.grant({TOPIC: [*WRITER[TOPIC], "DELETE"]})
        transactions.grant({})
        with pytest.raises(BrokerRefused, match=r"may not use the transactional id 'logkeep-.*prefix 'logkeep-'"):
            bring_back(restore, "restore-1")
        transactions.grant({ResourceType.TRANSACTIONAL_ID: ["WRITE"]})
        rights.grant(WRITER)
        with pytest.raises(BrokerRefused, match="Give the user the ACL DELETE on topic"):
            bring_back(restore, "restore-2")
        assert f"{unique}-copy" not in topic_names(strict.bootstrap)
        rights.grant({TOPIC: [*WRITER[TOPIC], "DELETE"]})
        assert bring_back(restore, "restore-3").records == 30
        assert committed(strict, f"{unique}-copy") == committed(strict, unique)
    finally:
        transactions.grant({})


def test_rights_that_replace_needs_are_asked_for_before_anything_is_deleted(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    copy = f"{unique}-copy"
    create_topic(strict.bootstrap, unique, 1, {"retention.ms": "-1"})
    produce(strict.bootstrap, unique, [Record(b"k", b"v", 1)])
    back_up(backup_spec(strict, tmp_path, unique))
    create_topic(strict.bootstrap, copy)
    control = ControlPlane(plain(strict.bootstrap))
    before = control.topic_ids([copy])
    security = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}}
    spec = restore_spec(strict, tmp_path, ifTopicExists="Replace", confirm=[copy])
    spec["cluster"] = {"bootstrapServers": [strict.sasl_bootstrap], "security": security}
    rights = Rights(strict, unique)
    rights.grant(WRITER)
    with pytest.raises(BrokerRefused, match=f"The user may not delete topic '{copy}'"):
        bring_back(spec)
    rights.grant({TOPIC: [*WRITER[TOPIC], "DELETE"]}, without="CREATE")
    with pytest.raises(BrokerRefused, match=rf"create topic '{copy}' \(ACL CREATE\): TOPIC_AUTHORIZATION_FAILED"):
        bring_back(spec)
    assert control.topic_ids([copy]) == before
    rights.grant({TOPIC: [*WRITER[TOPIC], "DELETE"]})
    assert bring_back(spec).records == 1
    assert without_offsets(committed(strict, copy)) == without_offsets(committed(strict, unique))


def test_a_verification_needs_to_read_and_says_so_before_anything_is_written(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    create_topic(strict.bootstrap, unique, 1)
    recent = int(time.time() * 1000) - 3_600_000
    produce(strict.bootstrap, unique, (Record(b"k%d" % n, b"v%d" % n, recent + n, [], 0) for n in range(50)))
    security = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}}
    cluster = {"bootstrapServers": [strict.sasl_bootstrap], "security": security}
    storage = {"uri": tmp_path.as_uri()}
    rights = Rights(strict, unique)
    rights.grant(READER)
    back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage})
    restore = {
        "cluster": cluster,
        "source": {"storage": storage},
        "topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}]},
        "verify": "Full",
    }
    rights.grant(WRITER, without="READ")
    with pytest.raises(BrokerRefused, match=r"may not read topic .*; nothing was written"):
        bring_back(restore, "restore-1")
    assert f"{unique}-copy" not in topic_names(strict.bootstrap)
    rights.grant(WRITER)
    found = bring_back(restore, "restore-1").verification
    assert found is not None
    assert found.outcome == "Verified"

    drill = {"cluster": cluster, "source": {"storage": storage}, "drill": {"prefix": f"{unique}-drill."}}
    rights.grant({TOPIC: ["CREATE", "WRITE", "ALTER_CONFIGS", "DELETE"]})
    with pytest.raises(BrokerRefused, match=rf"may not read topic {unique}-drill\..*; nothing was written"):
        bring_back(drill, "drill-1")
    assert not list((tmp_path / "runs" / "open-drills").glob("*")), "it has noted no topic, and created none"
    rights.grant({TOPIC: [*WRITER[TOPIC], "DELETE"]})
    assert bring_back(drill, "drill-1").records == 50


def test_acl_that_is_missing_is_named(strict: KafkaBroker, unique: str) -> None:
    ControlPlane(plain(strict.bootstrap)).create_topics([NewTopicPlan(unique, 1, 1)])
    connection = secure(strict, "SASL_PLAINTEXT", "PLAIN")
    control = ControlPlane(connection)
    assert control.topics() == []
    with pytest.raises(BrokerRefused, match="DESCRIBE_CONFIGS"):
        control.topic_configs([unique])

    async def attempt(what: str) -> None:
        async with RawClient(connection) as client:
            if what == "fetch":
                await client.fetch(unique, 0, 0)
            else:
                await client.produce(unique, 0, batch([b"x"]))

    for what in ("fetch", "produce"):
        with pytest.raises(BrokerRefused, match=rf"{unique}.*TOPIC_AUTHORIZATION_FAILED.*Give the user the ACL"):
            run(attempt(what))
    with pytest.raises(BrokerRefused, match="ACL DESCRIBE on the cluster"):
        control.partition_bytes(ControlPlane(plain(strict.bootstrap)).topics())

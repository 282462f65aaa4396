"""A cluster that is gone comes back into a new one: topics, configurations, groups, quotas, ACLs, names of users."""

import hashlib
import json
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from logkeep_engine.archive.catalog.cluster_state import KINDS, read_cluster_state, state_path
from logkeep_engine.backup.run import cluster_state
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ENV_KAFKA_PASSWORD, ENV_KAFKA_USERNAME
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import (
    ArchiveDamaged,
    BrokerRefused,
    BrokerUnavailable,
    SpecError,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.kafka.configs import CLIENT_METRICS, GROUP
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.kafka.users import Known
from logkeep_engine.restore.cluster_state import step as everything_module
from logkeep_engine.restore.planning import planner
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.command import script
from tests.data.topics import Record, commit_positions, create_topic, delete_topics, produce, topic_names
from tests.kafka.raw import eventually
from tests.kafka.restores import (
    ThreadRunner,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    settings_of_topics,
    topic_settings,
    without_offsets,
)
from tests.kafka.test_cluster_state import control_plane, grant
from tests.kafka.test_dry_run import stored
from tests.kafka.test_restore_groups import positions
from tests.runners import Job
from tests.unit.archive.forge import Document, relinked

pytestmark = pytest.mark.since("4.0")  # the cluster that comes back has configurations of groups

CHECKS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPICS = {f"team-{number:02d}": 1 + number % 3 for number in range(18)} | {"_schemas": 1, "0-before-all": 2}
CONFIGS = {"retention.ms": "123456789", "max.message.bytes": "2000000", "min.insync.replicas": "1"}
ACLS = [
    *(
        Acl("TOPIC", f"team-{n:02d}", "LITERAL", f"User:u{n}", "*", op, "ALLOW")
        for n in range(18)
        for op in ("READ", "WRITE")
    ),
    Acl("GROUP", "team-", "PREFIXED", "User:reader", "10.1.2.3", "READ", "ALLOW"),
    Acl("TRANSACTIONAL_ID", "*", "LITERAL", "User:writer", "*", "WRITE", "ALLOW"),
    Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:writer", "*", "IDEMPOTENT_WRITE", "ALLOW"),
    Acl("TOPIC", "team-03", "LITERAL", "User:mallory", "*", "ALL", "DENY"),
    Acl("USER", "reader", "LITERAL", "User:writer", "*", "CREATE_TOKENS", "ALLOW"),
]
QUOTAS = [
    Quota((("user", "reader"),), "consumer_byte_rate", 1_048_576.0),
    Quota((("user", "reader"), ("client-id", None)), "producer_byte_rate", 2_097_152.0),
    Quota((("user", None),), "request_percentage", 200.0),
    Quota((("client-id", "batch"),), "controller_mutation_rate", 5.0),
    Quota((("ip", "10.1.2.3"),), "connection_creation_rate", 50.0),
]

RESOURCE_CONFIGS = [
    ResourceConfig(GROUP, "billing", "consumer.session.timeout.ms", "50000"),
    ResourceConfig(GROUP, "to-come", "consumer.session.timeout.ms", "51000"),
    ResourceConfig(CLIENT_METRICS, "slow", "interval.ms", "60000"),
    ResourceConfig(CLIENT_METRICS, "slow", "metrics", "org.apache.kafka.producer."),
]


def cluster(**more: str) -> KafkaBroker:
    return KafkaBroker(secure=True, overrides={**STEADY, **CHECKS, **more})


@pytest.fixture(scope="module")
def target() -> Iterator[KafkaBroker]:
    with cluster() as broker:
        yield broker


@pytest.fixture
def broker(target: KafkaBroker) -> Iterator[KafkaBroker]:
    """A cluster to restore into, empty before and after each test."""
    yield target
    empty(target)


@pytest.fixture(scope="module")
def trusting_target() -> Iterator[KafkaBroker]:
    with cluster(**{"allow.everyone.if.no.acl.found": "true"}) as broker:
        yield broker


@pytest.fixture
def trusting(trusting_target: KafkaBroker) -> Iterator[KafkaBroker]:
    """An empty cluster where everybody may do all with what nobody has an ACL for."""
    yield trusting_target
    empty(trusting_target)


def empty(broker: KafkaBroker) -> None:
    """Take all that a restore brings out of the cluster, but for configurations of groups and client metrics: it is as
    it was when it was new."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    delete_topics(broker.bootstrap, topic_names(broker.bootstrap))
    groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid or ()]
    if groups:
        for gone in admin.delete_consumer_groups(groups).values():
            gone.result(30)
    anything: Any = None
    kinds = ResourceType.ANY, anything, ResourcePatternType.ANY
    every = AclBindingFilter(*kinds, anything, anything, AclOperation.ANY, AclPermissionType.ANY)
    for deleted in admin.delete_acls([every]).values():
        deleted.result(30)
    control = control_plane(broker)
    assert control.set_quotas([quota._replace(value=None) for quota in control.quotas().items or ()]) == []
    eventually(lambda: (control.acls().items, control.quotas().items) == ((), ()))
    eventually(lambda: not topic_names(broker.bootstrap))


def records(topic: str, partitions: int) -> Iterator[Record]:
    now = int(time.time() * 1000)
    for number in range(30):
        key, value = f"{topic}-{number}".encode(), (None if number % 7 == 6 else b"%d" % number * 50)
        yield Record(key, value, now + number, [("h", b"1"), ("h", None)], number % partitions)


@dataclass(frozen=True)
class Seen:
    """All of a cluster that is to come back."""

    topics: Mapping[str, Any]
    groups: Mapping[str, Any]
    acls: frozenset[Acl]
    quotas: frozenset[Quota]
    configs: frozenset[ResourceConfig]


def look(broker: KafkaBroker) -> Seen:
    there = sorted(topic_names(broker.bootstrap) & set(TOPICS))
    content = all_committed(broker, {name: TOPICS[name] for name in there})
    settings = settings_of_topics(broker, there)
    topics = {
        name: (settings[name], [without_offsets(content[name, partition]) for partition in range(TOPICS[name])])
        for name in there
    }
    groups = {name: positions(broker, name) for name in ("billing", "shipping")}
    control = control_plane(broker)
    return Seen(
        topics,
        groups,
        frozenset(control.acls().items or ()),
        frozenset(control.quotas().items or ()),
        frozenset(control.resource_configs().items or ()),
    )


def fill(broker: KafkaBroker) -> None:
    for name, partitions in TOPICS.items():
        policy = {"cleanup.policy": "compact"} if name == "_schemas" else CONFIGS
        create_topic(broker.bootstrap, name, partitions, policy)
        produce(broker.bootstrap, name, records(name, partitions))
    commit_positions(broker.bootstrap, "billing", {("team-01", 0): 7, ("team-01", 1): 15, ("team-02", 2): 3})
    commit_positions(broker.bootstrap, "shipping", {("0-before-all", 0): 1, ("team-17", 0): 10})
    control = control_plane(broker)
    assert control.create_acls(ACLS) == []
    assert control.set_quotas(QUOTAS) == []
    assert control.set_resource_configs(RESOURCE_CONFIGS) == []
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), b"a password", b"salt of 16 bytes"
        )
        for name in ("reader", "writer")
    ]
    for future in admin.alter_user_scram_credentials(wanted).values():
        future.result(30)
    eventually(lambda: len(control.scram_users().items or ()) == 3)
    eventually(
        lambda: set(control.acls().items or ()) == set(ACLS) and set(control.quotas().items or ()) == set(QUOTAS)
    )
    eventually(lambda: set(control.resource_configs().items or ()) == set(RESOURCE_CONFIGS))


@dataclass(frozen=True)
class Lost:
    """The archive of a cluster that is gone, and what the cluster had."""

    root: Path
    had: Seen
    archived: RunResult


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    root = tmp_path_factory.mktemp("archive")
    with cluster() as broker:
        fill(broker)
        had = look(broker)
        archived = back_up(backup_spec(broker, root, ".*"))
        broker.kill()
    return Lost(root, had, archived)


def everything(broker: KafkaBroker, root: Path, **more: Any) -> dict[str, Any]:
    return {
        "cluster": {"bootstrapServers": broker.addresses},
        "source": {"storage": {"uri": root.as_uri()}},
        "everything": True,
        "acls": {"cluster": True, "anyResource": True, "anyPrincipal": True, "principals": [".*"]},
        **more,
    }


class Noted(ThreadRunner):
    """Notes the topics of the tasks, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: list[str] = []

    def perform(self, job: Job) -> None:
        if job.name == "restore_partitions":
            self.topics += [task.archived.topic for group in job.work for task in group]
        super().perform(job)


def test_a_cluster_that_is_gone_comes_back_with_everything(lost: Lost, broker: KafkaBroker, tmp_path: Path) -> None:
    assert (lost.archived.topics, lost.archived.warnings) == (len(TOPICS), ())
    runner = Noted()
    spec = everything(broker, lost.root, state={"uri": tmp_path.as_uri()})
    result = bring_back(spec, runner=runner)
    assert look(broker) == lost.had
    assert (runner.topics[0], runner.topics.count("_schemas"), len(runner.topics)) == ("_schemas", 1, 39)

    found = result.cluster_state
    assert found is not None
    assert (found.source_run, found.acls, found.acls_added, found.acls_refused) == ("backup-1", 41, 41, 0)
    assert (found.quotas, found.quotas_added, found.quotas_refused, found.quotas_kept) == (5, 5, 0, 0)
    assert found.users_to_create == (  # the user logkeep is there
        "reader (SCRAM-SHA-256, 8192 iterations)",
        "writer (SCRAM-SHA-256, 8192 iterations)",
    )
    (lines,) = [text for text in result.warnings if "users" in text]
    assert lines.startswith("create these SCRAM users with new passwords, which no archive has: reader (")
    document = json.loads(Path(found.report.removeprefix("file://")).read_text())
    assert {row[-2] for row in document["acls"]["rows"] + document["quotas"]["rows"]} == {"added"}
    assert len(document["usersToCreate"]["rows"]) == 2
    assert [row[:4] for row in document["configs"]["rows"]] == [
        list(item) for item in RESOURCE_CONFIGS if item.resource == CLIENT_METRICS
    ]
    assert {row[4] for row in document["configs"]["rows"]} <= {"added", "there"}

    assert bring_back(spec) == result
    assert look(broker) == lost.had


def test_what_the_cluster_has_already_stays_and_what_it_does_not_take_is_named(
    lost: Lost, broker: KafkaBroker, tmp_path: Path
) -> None:
    mine = Acl("TOPIC", "mine", "LITERAL", "User:me", "*", "ALL", "ALLOW")
    other = QUOTAS[0]._replace(value=77.0)
    control = control_plane(broker)
    assert control.create_acls([mine, ACLS[0]]) == []
    assert control.set_quotas([other, QUOTAS[1]]) == []
    eventually(lambda: len(control.acls().items or ()) == 2 and len(control.quotas().items or ()) == 2)
    result = bring_back(everything(broker, lost.root, state={"uri": tmp_path.as_uri()}))
    seen = look(broker)
    assert seen.acls == lost.had.acls | {mine}
    assert seen.quotas == lost.had.quotas - {QUOTAS[0]} | {other}
    found = result.cluster_state
    assert found is not None
    assert (found.acls, found.acls_added, found.quotas, found.quotas_added, found.quotas_kept) == (41, 40, 5, 3, 1)
    (lines,) = [text for text in result.warnings if "quota" in text]
    assert "1 client quota has another value in the cluster, which is left as it is" in lines
    assert "consumer_byte_rate=1048576 of user reader" in lines


def test_what_the_cluster_does_not_take_is_named(
    lost: Lost, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ACL and a quota that no cluster takes stand for what another version of Kafka does not know."""
    create, alter = ControlPlane.create_acls, ControlPlane.set_quotas

    def without_users(self: ControlPlane, acls: Any, **more: Any) -> Any:
        unknown = [acl._replace(resource="CLUSTER") if acl.resource == "USER" else acl for acl in acls]
        return [item.__class__(ACLS[-1], item.reason) for item in create(self, unknown, **more)]

    def without_ips(self: ControlPlane, quotas: Any, **more: Any) -> Any:
        unknown = [item._replace(key="no_such_rate") if item.entity[0][0] == "ip" else item for item in quotas]
        return [item.__class__(QUOTAS[-1], item.reason) for item in alter(self, unknown, **more)]

    monkeypatch.setattr(ControlPlane, "create_acls", without_users)
    monkeypatch.setattr(ControlPlane, "set_quotas", without_ips)
    result = bring_back(everything(broker, lost.root, state={"uri": tmp_path.as_uri()}))
    found = result.cluster_state
    assert found is not None
    assert (found.acls_added, found.acls_refused, found.quotas_added, found.quotas_refused) == (40, 1, 4, 1)
    assert look(broker).acls == lost.had.acls - {ACLS[-1]}
    (acls,) = [text for text in result.warnings if "ACL could not be set" in text]
    assert acls.startswith("1 ACL could not be set: ALLOW User:writer from *: CREATE_TOKENS on USER reader (")
    (quotas,) = [text for text in result.warnings if "client quota could not be set" in text]
    assert quotas.startswith("1 client quota could not be set: connection_creation_rate=50 of ip 10.1.2.3 (")
    report = json.loads((tmp_path / "runs/restore-1/cluster-state-restored.json").read_text())
    assert [row[-2] for row in report["acls"]["rows"]].count("refused") == 1


_DRIVER = """
import json, os, signal, sys
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.run import restoring as run
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.topics.targets import CreatedTopics
from tests.kafka.restores import bring_back

name, spec = sys.argv[1], json.loads(sys.argv[2])
owner, _, name = name.rpartition(".")
owner = {kind.__name__: kind for kind in (ControlPlane, CreatedTopics, RestoreContext)}.get(owner, run)
genuine = getattr(owner, name)

def dying(*arguments, **more):
    genuine(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, dying)
bring_back(spec)
"""


def killed_behind(step: str, spec: Mapping[str, Any]) -> None:
    """Begin the restore in a process of its own, or continue with it, and kill that behind this step."""
    found = script(_DRIVER, step, json.dumps(spec))
    assert found.returncode == -signal.SIGKILL, found.stderr


def test_a_run_that_is_killed_after_each_of_its_steps_ends_right(
    lost: Lost, broker: KafkaBroker, tmp_path: Path
) -> None:
    spec = everything(broker, lost.root, state={"uri": tmp_path.as_uri()})
    killed_behind("CreatedTopics.create", spec)
    assert topic_names(broker.bootstrap) >= set(TOPICS)
    killed_behind("RestoreContext.run_tasks", spec)  # the schemas are there
    seen = look(broker)
    assert seen.topics["_schemas"][1] == lost.had.topics["_schemas"][1]
    assert not any(seen.topics["team-00"][1])
    killed_behind("run.count_all", spec)
    killed_behind("run.move_groups", spec)
    assert look(broker).groups == lost.had.groups
    killed_behind("CreatedTopics.finish", spec)
    seen = look(broker)
    # Those of groups are set before positions.
    assert seen.configs >= {item for item in lost.had.configs if item.resource == GROUP}
    assert seen == replace(lost.had, acls=frozenset(), quotas=frozenset(), configs=seen.configs)
    killed_behind("ControlPlane.set_quotas", spec)
    eventually(lambda: look(broker).quotas == lost.had.quotas)
    killed_behind("ControlPlane.create_acls", spec)  # those that deny are missing, and those of the cluster
    eventually(lambda: len(look(broker).acls) == 39)
    killed_behind("run.restore_cluster_state", spec)
    result = bring_back(spec)
    assert look(broker) == lost.had
    found = result.cluster_state
    assert found is not None
    assert (found.acls, found.acls_refused, found.quotas, found.quotas_refused, found.quotas_kept) == (
        41,
        0,
        5,
        0,
        0,
    )
    assert found.users_total == 2
    assert result.records == 30 * len(TOPICS)


def test_another_resource_resumes_what_one_that_was_killed_has_begun(
    lost: Lost, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is gone when it has restored all records and positions, and no quotas and no ACLs."""

    def dies(*_: Any) -> Any:
        raise BrokerUnavailable("gone")

    spec = everything(broker, lost.root, state={"uri": tmp_path.as_uri()})
    with monkeypatch.context() as patched:
        patched.setattr(ControlPlane, "set_quotas", dies)
        with pytest.raises(BrokerUnavailable):
            bring_back(spec)
    there = look(broker)
    assert there == replace(lost.had, acls=frozenset(), quotas=frozenset())
    with pytest.raises(TopicExists, match="team-00"):
        bring_back(spec, "restore-2")
    result = bring_back({**spec, "ifTopicExists": "Resume", "verify": "Full"}, "restore-3")
    assert look(broker) == lost.had
    assert result.verification is not None, "the first run was not asked to verify"
    assert result.verification.outcome != "Different"
    assert result.cluster_state is not None
    assert (result.cluster_state.acls_added, result.cluster_state.quotas_added) == (41, 5)


STRANGER = [
    Acl("TOPIC", "*", "LITERAL", "User:stranger", "*", "ALL", "ALLOW"),
    Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:stranger", "*", "ALTER", "ALLOW"),
    Acl("USER", "logkeep", "LITERAL", "User:stranger", "*", "CREATE_TOKENS", "ALLOW"),
    Acl("TOPIC", "team-01", "LITERAL", "User:*", "*", "READ", "ALLOW"),
]


@pytest.fixture
def altered(lost: Lost, tmp_path: Path) -> Path:
    """The archive, to whose ACLs somebody who may write there has added some: every digest is right again (case 07)."""
    root = Path(shutil.copytree(lost.root, tmp_path / "altered"))
    (path,) = root.glob("runs/*/cluster-state.json")
    document = json.loads(path.read_bytes())
    document["acls"]["rows"] += [list(acl) for acl in STRANGER]
    path.write_bytes(json.dumps(document, separators=(",", ":")).encode())
    known = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "acls": len(document["acls"]["rows"])}

    def change(commit: Document) -> None:
        if commit.get("clusterState") is not None:
            commit["clusterState"] |= known

    relinked(open_uri(root.as_uri()), range(len(list((root / "catalog").glob("*.json")))), change)
    return root


def test_acls_that_reach_far_come_back_only_with_a_word(lost: Lost, broker: KafkaBroker, altered: Path) -> None:
    """The new cluster knows the user `reader`, whom somebody has created, and nobody else."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    reader = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    (created,) = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("reader", reader, b"another password", b"salt of 16 bytes")]
    ).values()
    created.result(30)
    eventually(lambda: "reader" in {user.name for user in control_plane(broker).scram_users().items or ()})
    spec = {**everything(broker, altered, state={"uri": (altered / "state").as_uri()}), "acls": {}}
    try:
        planned = bring_back({**spec, "dryRun": True}).dry_run
        assert planned is not None
        assert planned.cluster_state is not None
        assert (planned.cluster_state.acls_to_add, planned.cluster_state.acls_held_back) == (2, 43)
        for acl in STRANGER:
            assert str(acl) in planned.cluster_state.held_back_list

        result = bring_back({**spec, "acls": {"principals": ["User:u[0-9]+"]}})
    finally:
        (gone,) = admin.alter_user_scram_credentials(
            [UserScramCredentialDeletion("reader", ScramMechanism.SCRAM_SHA_256)]
        ).values()
        gone.result(30)
    found = result.cluster_state
    assert found is not None
    assert (found.acls, found.acls_added, found.acls_held_back, found.acls_refused) == (45, 38, 7, 0)
    seen = look(broker).acls
    assert seen == {acl for acl in ACLS if acl.principal not in ("User:writer",)}, "and what is denied to mallory"
    (lines,) = [text for text in result.warnings if "held back" in text]
    assert lines.startswith("7 ACLs were held back, since spec.acls does not name them: ")
    report = json.loads(Path(found.report.removeprefix("file://")).read_text())
    held = {tuple(row[:7]): row[8] for row in report["acls"]["rows"] if row[7] == "held back"}
    assert set(STRANGER) < {Acl(*row) for row in held}
    assert "spec.acls.anyResource is not set" in held[tuple(STRANGER[0])]
    assert "the cluster does not know its principal" in held[tuple(STRANGER[0])]
    assert held[tuple(STRANGER[3])] == "it is for everyone, and spec.acls.anyPrincipal is not set"


def test_a_later_start_of_a_restore_does_not_take_the_principals_of_the_archive_for_known(
    broker: KafkaBroker, altered: Path
) -> None:
    """An earlier start has brought back quotas, and what is denied to mallory: both name users of the archive."""
    spec = {**everything(broker, altered, state={"uri": (altered / "state").as_uri()}), "acls": {}}
    killed_behind("ControlPlane.create_acls", spec)
    result = bring_back(spec)
    assert result.cluster_state is not None
    assert result.cluster_state.acls_held_back == 44
    assert look(broker).acls == {ACLS[-2]}


def test_a_dry_run_tells_all_that_would_come_back_and_changes_nothing(
    lost: Lost, broker: KafkaBroker, tmp_path: Path
) -> None:
    before, seen = stored(lost.root), look(broker)
    configs = {"override": {"retention.ms": "987654321"}, "ignore": ["max.message.bytes"]}
    state = {"uri": tmp_path.as_uri()}
    spec = everything(broker, lost.root, state=state, topics={"configs": configs})
    result = bring_back({**spec, "dryRun": True}, "dry-1")
    assert look(broker) == seen
    assert (seen.topics, seen.groups) == ({}, {"billing": {}, "shipping": {}})
    assert (stored(lost.root), stored(tmp_path)) == (before, {})
    report = result.dry_run
    assert (result.outcome, report is None) == ("DryRun", False)
    assert report is not None
    assert (report.refusals, report.topics_created, report.partitions) == ((), len(TOPICS), 39)
    assert (report.groups, report.positions) == (2, 5)
    planned = report.cluster_state
    assert planned is not None
    assert (planned.source_run, planned.acls, planned.acls_to_add) == ("backup-1", 41, 41)
    assert (planned.quotas, planned.quotas_to_add, planned.quotas_kept) == (5, 5, 0)
    assert (planned.users, planned.users_to_create) == (3, 2)
    assert "DENY User:mallory from *: ALL on TOPIC team-03" in planned.acl_list
    assert "producer_byte_rate=2097152 of user reader, client-id <default>" in planned.quota_list
    assert planned.user_list[0] == "reader (SCRAM-SHA-256, 8192 iterations)"
    assert "whether the cluster accepts each of the 41 ACLs" in report.not_checked
    assert result.cluster_state is None
    (topic,) = [topic for topic in report.topic_list if topic.topic == "team-00"]
    assert topic.config == "min.insync.replicas=1, retention.ms=987654321"

    bring_back(spec)
    assert topic_settings(broker, "team-00") == {"retention.ms": "987654321", "min.insync.replicas": "1"}
    assert look(broker).acls == lost.had.acls


def test_a_dry_run_tells_what_is_there_already_and_what_the_cluster_would_not_take(
    lost: Lost, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter = ControlPlane.set_quotas

    def without_ips(self: ControlPlane, quotas: Any, **more: Any) -> Any:
        unknown = [item._replace(key="no_such_rate") if item.entity[0][0] == "ip" else item for item in quotas]
        return [item.__class__(QUOTAS[-1], item.reason) for item in alter(self, unknown, **more)]

    control = control_plane(broker)
    assert control.create_acls(ACLS[:5]) == []
    assert control.set_quotas([QUOTAS[0]._replace(value=77.0), QUOTAS[1]]) == []
    eventually(lambda: len(control.acls().items or ()) == 5 and len(control.quotas().items or ()) == 2)
    before = look(broker)
    monkeypatch.setattr(ControlPlane, "set_quotas", without_ips)
    result = bring_back(everything(broker, lost.root, state={"uri": tmp_path.as_uri()}, dryRun=True), "dry-1")
    assert look(broker) == before
    assert result.dry_run is not None
    planned = result.dry_run.cluster_state
    assert planned is not None
    assert (planned.acls_to_add, planned.quotas_to_add, planned.quotas_kept) == (36, 2, 1)
    assert result.dry_run.refusals == ()
    (kept,) = [text for text in result.warnings if "another value" in text]
    assert "consumer_byte_rate=1048576 of user reader" in kept
    (refused,) = [text for text in result.warnings if "would not be set" in text]
    assert refused.startswith("1 client quota would not be set: connection_creation_rate=50 of ip 10.1.2.3 (")


def test_a_dry_run_tells_at_once_all_for_which_a_cluster_does_not_come_back(
    lost: Lost, kafka: KafkaBroker, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, "0-before-all", 1)
    spec = everything(kafka, lost.root, state={"uri": tmp_path.as_uri()}, dryRun=True)
    report = bring_back(spec, "dry-1").dry_run
    assert report is not None
    assert [refusal.reason for refusal in report.refusals] == ["TargetUnsuitable", "TopicExists"]
    assert "41 ACLs, but the target cluster has no authorizer" in report.refusals[0].message
    assert "0-before-all" in report.refusals[1].message


def test_a_cluster_without_an_authorizer_is_refused_before_anything_is_written(
    lost: Lost, kafka: KafkaBroker, tmp_path: Path
) -> None:
    before = topic_names(kafka.bootstrap)
    with pytest.raises(TargetUnsuitable) as refused:
        bring_back(everything(kafka, lost.root, state={"uri": tmp_path.as_uri()}))
    assert "the archive has 41 ACLs, but the target cluster has no authorizer" in refused.value.message
    assert "spec.consumerGroups.restore to Translate" in refused.value.hint
    assert topic_names(kafka.bootstrap) == before


RIGHTS = {
    ("TOPIC", "*"): ("CREATE", "WRITE", "READ", "ALTER_CONFIGS"),
    ("GROUP", "*"): ("READ", "ALTER_CONFIGS"),
    ("CLUSTER", "kafka-cluster"): ("DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS"),
}
"""The rights that docs/guides/kafka-rights.md names."""


def test_the_rights_that_are_documented_are_enough_and_none_too_many(
    lost: Lost, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = as_the_user(broker, lost.root, tmp_path, monkeypatch)
    (where, operations), *others = reversed(RIGHTS.items())
    for (resource, name), some in others:
        grant(broker, resource, name, *some)
    for number, operation in enumerate(operations):
        report = bring_back({**spec, "dryRun": True}, f"dry-{number}").dry_run
        assert report is not None
        (refusal,) = report.refusals
        missing = " and ".join(sorted(operations[number:]))
        assert f"the cluster does not let it {missing}; nothing was written" in refusal.message
        with pytest.raises(BrokerRefused, match=f"does not let it {missing}; nothing was written"):
            bring_back(spec)
        grant(broker, *where, operation)
    assert not topic_names(broker.bootstrap) & set(TOPICS)
    report = bring_back({**spec, "dryRun": True}, "dry-9").dry_run
    assert report is not None
    assert report.refusals == ()
    revoke(broker, operations[-1])
    with monkeypatch.context() as patched:
        patched.setattr(planner, "check_everything", lambda *_: [])  # the right is taken away after the check
        with pytest.raises(BrokerRefused, match="The user may not set client quotas"):
            bring_back(spec)
    grant(broker, *where, operations[-1])
    result = bring_back(spec)
    assert [text for text in result.warnings if "could not" in text] == []
    seen = look(broker)
    assert seen.acls > lost.had.acls
    assert replace(seen, acls=lost.had.acls) == lost.had


def revoke(broker: KafkaBroker, operation: str) -> None:
    """Take a right on the cluster away from the user."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    what = ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, f"User:{broker.username}", "*"
    wanted = AclBindingFilter(*what, AclOperation[operation], AclPermissionType.ALLOW)
    for deleted in admin.delete_acls([wanted]).values():
        deleted.result(30)
    eventually(lambda: not admin.describe_acls(wanted).result(30))


def as_the_user(broker: KafkaBroker, root: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The restore of everything by a user who logs in, and may do only what the cluster says."""
    monkeypatch.setenv(ENV_KAFKA_USERNAME, broker.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, broker.password)
    login = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}}
    where = {"bootstrapServers": [broker.sasl_bootstrap], "security": login}
    return everything(broker, root, cluster=where, state={"uri": state.as_uri()})


def test_acls_of_the_cluster_that_take_the_rights_of_the_user_come_last(
    lost: Lost, trusting: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody has an ACL of the cluster, all may do everything there; the first one ends that, however many there
    are."""
    many = [Acl("CLUSTER", "kafka-cluster", "LITERAL", f"User:m{n}", "*", "DESCRIBE", "ALLOW") for n in range(1001)]
    read = read_cluster_state

    def with_many(*arguments: Any) -> Any:
        found = read(*arguments)
        assert found is not None
        return replace(found, acls=(*(found.acls or ()), *many))

    monkeypatch.setattr(everything_module, "read_cluster_state", with_many)
    result = bring_back(as_the_user(trusting, lost.root, tmp_path, monkeypatch))
    assert look(trusting) == replace(lost.had, acls=lost.had.acls | set(many))
    found = result.cluster_state
    assert found is not None
    assert (found.acls_added, found.acls_refused, found.quotas_added) == (1042, 0, 5)


def test_a_run_that_is_killed_behind_acls_of_topics_that_take_its_rights_continues_with_the_others(
    lost: Lost, trusting: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has no ACL of its own, and may do all with what nobody has one for. The run is killed twice."""
    create = ControlPlane.create_acls

    def dying(self: ControlPlane, acls: Any, **more: Any) -> Any:
        assert acls[0].resource != "CLUSTER"
        create(self, acls, **more)
        raise ConnectionAbortedError

    spec = as_the_user(trusting, lost.root, tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(ControlPlane, "create_acls", dying)
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec)
        eventually(lambda: len(look(trusting).acls) == 39)
        with pytest.raises(ConnectionAbortedError):
            bring_back({**spec, "ifTopicExists": "Resume"}, "restore-2")
    result = bring_back({**spec, "ifTopicExists": "Resume"}, "restore-2")
    assert look(trusting) == lost.had
    assert (result.records, result.groups, result.topics) == (30 * len(TOPICS), 5, len(TOPICS))
    found = result.cluster_state
    assert found is not None
    assert (found.acls, found.acls_refused, found.quotas, found.quotas_refused) == (41, 0, 5, 0)
    (lines,) = [text for text in result.warnings if "is no longer known whether the topics" in text]
    assert "TOPIC_AUTHORIZATION_FAILED" in lines
    assert "restore-2" in result.offset_map


def test_a_run_that_is_killed_behind_acls_that_take_its_rights_ends(
    lost: Lost, trusting: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ControlPlane.create_acls

    def dying(self: ControlPlane, acls: Any, **more: Any) -> Any:
        refused = create(self, acls, **more)
        if acls[0].resource == "CLUSTER":
            raise ConnectionAbortedError
        return refused

    for (resource, name), some in RIGHTS.items():
        if resource != "CLUSTER":
            grant(trusting, resource, name, *some)
    spec = as_the_user(trusting, lost.root, tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(ControlPlane, "create_acls", dying)
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec)
    eventually(lambda: look(trusting).acls > lost.had.acls)
    result = bring_back(spec)
    assert replace(look(trusting), acls=lost.had.acls) == lost.had
    found = result.cluster_state
    assert found is not None
    assert (found.acls_added, found.acls_refused, found.quotas_added, found.users_total) == (41, 0, 5, 2)
    assert len(found.users_to_create) == 2
    assert any("the user may no longer set or see ACLs" in text for text in result.warnings)
    assert bring_back(spec) == result


def test_topics_that_the_cluster_had_no_more_are_named(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    kept, gone = f"{unique}-kept", f"{unique}-gone"
    for name in (kept, gone):
        create_topic(kafka.bootstrap, name, 1)
        produce(kafka.bootstrap, name, records(name, 1))
    spec = backup_spec(kafka, tmp_path, f"{unique}.*")
    back_up(spec)
    assert gone_warnings(kafka, tmp_path) == []
    delete_topic(kafka, gone)
    back_up(spec, "backup-2")
    (reported,) = gone_warnings(kafka, tmp_path)
    assert reported.startswith("1 topic will be restored although run backup-2 no longer found them: deleted before")
    assert reported.endswith(f": {gone}")
    assert gone_warnings(kafka, tmp_path, point={"run": "backup-1"}) == []


def delete_topic(broker: KafkaBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)
    eventually(lambda: name not in topic_names(broker.bootstrap))


def gone_warnings(broker: KafkaBroker, root: Path, **more: Any) -> list[str]:
    result = bring_back(everything(broker, root, dryRun=True, **more), "dry-1")
    return [text for text in result.warnings if "will be restored although" in text]


def test_a_damaged_state_of_the_cluster_is_refused_or_left_out(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 1)
    produce(kafka.bootstrap, unique, records(unique, 1))
    back_up(backup_spec(kafka, tmp_path, unique))
    delete_topic(kafka, unique)
    (tmp_path / state_path("backup-1")).write_text("{}")
    with pytest.raises(ArchiveDamaged, match="its SHA-256 is not the one") as refused:
        bring_back(everything(kafka, tmp_path))
    assert "spec.onDamagedArchive: Skip restores all but ACLs, quotas and users" in refused.value.hint
    assert unique not in topic_names(kafka.bootstrap)
    result = bring_back(everything(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
    assert (result.outcome, result.records) == ("Succeeded", 30)
    (lines,) = [text for text in result.warnings if "does not have" in text]
    assert lines.startswith(
        "the archive does not have the ACLs, client quotas, names of SCRAM users, the brokers' defaults of retention, "
        "configurations of groups and client metrics, settings of the brokers of run backup-1: "
    )
    assert "its SHA-256 is not the one" in lines
    found = result.cluster_state
    assert found is not None
    assert (found.acls, found.acls_added, found.quotas, found.quotas_kept, found.users_total) == (None,) * 5
    report = json.loads((tmp_path / "runs/restore-2/cluster-state-restored.json").read_text())
    assert report["notArchived"].keys() == KINDS.keys()


def test_an_archive_without_the_state_of_its_cluster_is_refused(
    trusting: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(trusting.bootstrap, unique, 1)
    produce(trusting.bootstrap, unique, records(unique, 1))
    spec = backup_spec(trusting, tmp_path, unique)
    back_up({**spec, "clusterState": "Ignore"})
    with pytest.raises(SpecError, match="run backup-1 has not archived them"):
        bring_back(everything(trusting, tmp_path), "early")
    back_up(spec, "backup-2")
    with pytest.raises(SpecError, match="run backup-1 has not archived them"):
        bring_back(everything(trusting, tmp_path, point={"run": "backup-1"}, schemaTopic=unique), "to-1")
    with pytest.raises(SpecError, match="schemaTopic: the archive has no topic 'registry'"):
        bring_back(everything(trusting, tmp_path, schemaTopic="registry"), "no-schemas")
    (tmp_path / state_path("backup-2")).write_text("{}")
    with pytest.raises(ArchiveDamaged, match="its SHA-256 is not the one"):
        bring_back(everything(trusting, tmp_path), "damaged")


def test_an_archive_of_a_cluster_that_told_nothing_is_refused(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(kafka.bootstrap, unique, 1)
    produce(kafka.bootstrap, unique, records(unique, 1))
    spec = backup_spec(kafka, tmp_path, unique)
    with monkeypatch.context() as patched:
        patched.setattr(cluster_state, "_asked", lambda _: Known(None, "CLUSTER_AUTHORIZATION_FAILED"))
        back_up(spec)
        patched.setattr(ControlPlane, "acls", lambda _: Known(None, "CLUSTER_AUTHORIZATION_FAILED"))
        patched.setattr(cluster_state, "_asked", lambda question: question())
        back_up(spec, "backup-2")
    delete_topic(kafka, unique)
    first = {"point": {"run": "backup-1"}}
    with pytest.raises(SpecError, match="backup-1 got none of them \\(ACLs: CLUSTER_AUTHORIZATION_FAILED; client"):
        bring_back(everything(kafka, tmp_path, **first))
    report = bring_back(everything(kafka, tmp_path, dryRun=True, **first), "dry-1").dry_run
    assert report is not None
    assert [refusal.reason for refusal in report.refusals] == [SpecError.code]
    assert unique not in topic_names(kafka.bootstrap)
    report = bring_back(everything(kafka, tmp_path, dryRun=True), "dry-2").dry_run
    assert report is not None
    assert report.cluster_state is not None
    assert (report.cluster_state.acls, report.cluster_state.acls_to_add) == (None, None)
    assert report.cluster_state.quotas is not None
    found = bring_back(everything(kafka, tmp_path), "restore-2").cluster_state
    assert found is not None
    assert (found.acls, found.acls_added, found.acls_refused, found.quotas_refused) == (None, None, None, 0)


def test_a_point_brings_back_the_acls_of_its_time(
    trusting: KafkaBroker, broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    control = control_plane(trusting)
    create_topic(trusting.bootstrap, unique, 1)
    spec = backup_spec(trusting, tmp_path, unique)
    ends = []
    for number, acl in enumerate(ACLS[:3], 1):
        produce(trusting.bootstrap, unique, records(unique, 1))
        assert control.create_acls([acl]) == []
        eventually(lambda wanted=number: len(control.acls().items or ()) == wanted)  # type: ignore[misc]
        ends.append(back_up(spec, f"backup-{number}").end_time)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ends[1]))
    moment = f"{at}.{int(ends[1] * 1000) % 1000:03d}Z"
    for number, (point, wanted) in enumerate([({"run": "backup-1"}, 1), ({"timestamp": moment}, 2), (None, 3)]):
        more = {} if point is None else {"point": point}
        result = bring_back(everything(broker, tmp_path, **more), f"restore-{number}")
        assert result.cluster_state is not None
        assert result.cluster_state.source_run == f"backup-{wanted}"
        assert set(control_plane(broker).acls().items or ()) == set(ACLS[:wanted])
        empty(broker)

"""The commands of docs/guides/kafka-rights.md, run with Kafka's own tool: each kind of run does with the rights that
they give, and says what is missing without any single one of them."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from logkeep_engine.contract.names import ENV_KAFKA_PASSWORD, ENV_KAFKA_USERNAME
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.configs import GROUP
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.user_requests import Quota
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_tools import acls
from tests.command import logkeep
from tests.data.topics import Record, commit_positions, create_topic, delete_topics, produce, topic_names
from tests.kafka.backing_up import Topics
from tests.kafka.raw import eventually
from tests.kafka.restores import bring_back, try_backup
from tests.kafka.test_cli import resource
from tests.kafka.test_cluster_state import control_plane

PAGE = (Path(__file__).parents[2] / "docs/guides/kafka-rights.md").read_text()
RECENT = int(time.time() * 1000) - 3_600_000
ANY: Any = None
EVERY = AclBindingFilter(
    ResourceType.ANY, ANY, ResourcePatternType.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY
)


def commands(section: str) -> list[list[str]]:
    """The arguments of each kafka-acls.sh below a heading of the page."""
    (text,) = re.findall(rf"^#+ {re.escape(section)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = block.replace("\\\n", "").splitlines()
    words = [shlex.split(line) for line in lines]
    assert words
    assert all(line[0] == "kafka-acls.sh" for line in words)
    return [line[1:] for line in words]


@dataclass(frozen=True)
class Bed:
    """The broker with an authorizer, and one user who plays both of the page's."""

    broker: KafkaBroker
    unique: str
    root: Path

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    @property
    def topic(self) -> str:
        return f"{self.unique}-orders.eu"

    @property
    def group(self) -> str:
        return f"{self.unique}-billing"

    @property
    def cluster(self) -> dict[str, Any]:
        sasl = {"mechanism": "PLAIN", "secretRef": {"name": "user"}}
        return {
            "bootstrapServers": [self.broker.sasl_bootstrap],
            "security": {"protocol": "SASL_PLAINTEXT", "sasl": sasl},
        }

    def grant(self, *sections: str) -> set[AclBinding]:
        """Run the page's commands, for the names of this test. No other ACL is left."""
        self.take(self.acls())
        login = self.root.parent / "admin.properties"
        login.write_text("security.protocol=PLAINTEXT\n")
        user = f"User:{self.broker.username}"
        here = {
            "kafka-bootstrap.kafka:9092": self.broker.bootstrap, "admin.properties": str(login),
            "User:logkeep-backup": user, "User:logkeep-restore": user,
            "orders.": f"{self.unique}-orders.", "restored.": f"{self.unique}-restored.",
            "billing": f"{self.unique}-billing", "logkeep-drill-": f"{self.unique}-drill-",
        }  # fmt: skip
        wanted = [arguments for section in sections for arguments in commands(section)]
        for arguments in wanted:
            assert "Adding ACLs" in acls(*(here.get(word, word) for word in arguments))
        eventually(lambda: len(self.acls()) == sum(arguments.count("--operation") for arguments in wanted))
        return self.acls()

    def acls(self) -> set[AclBinding]:
        return set(self.admin.describe_acls(EVERY).result(30))

    def take(self, gone: set[AclBinding]) -> None:
        for acl in gone:
            what = acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host
            exactly = AclBindingFilter(*what, acl.operation, acl.permission_type)
            self.admin.delete_acls([exactly])[exactly].result(30)
        eventually(lambda: not gone & self.acls())

    def give(self, acl: AclBinding) -> None:
        self.admin.create_acls([acl])[acl].result(30)
        eventually(lambda: acl in self.acls())

    def of_topic(self, prefix: str, operation: AclOperation) -> AclBinding:
        """A right of the user on topics that begin with `prefix`."""
        pattern, user = ResourcePatternType.PREFIXED, f"User:{self.broker.username}"
        return AclBinding(ResourceType.TOPIC, prefix, pattern, user, "*", operation, AclPermissionType.ALLOW)

    def without(self, granted: set[AclBinding], attempt: Callable[[str], str]) -> dict[str, str]:
        """Return what is said with all rights but one, by the missing right."""
        said: dict[str, str] = {}
        for number, acl in enumerate(sorted(granted, key=str)):
            self.take({acl})
            kind, operation = ResourceType(acl.restype), AclOperation(acl.operation)
            what = "cluster" if kind is ResourceType.BROKER else kind.name.lower()
            name = acl.name.removeprefix(f"{self.unique}-")
            said[f"{operation.name} on {what} {name}"] = attempt(f"without-{number}")
            self.give(acl)
        return said


@pytest.fixture
def bed(strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    made = Bed(strict, unique, tmp_path / "archive")
    create_topic(strict.bootstrap, made.topic, 1)
    produce(strict.bootstrap, made.topic, (Record(b"k%d" % n, b"v%d" % n, RECENT + n, [], 0) for n in range(50)))
    control = control_plane(strict)
    assert (
        control.set_resource_configs([ResourceConfig(GROUP, made.group, "consumer.session.timeout.ms", "50000")]) == []
    )
    commit_positions(strict.bootstrap, made.group, {(made.topic, 0): 20})
    return made


def said_by(run: Callable[[], Any]) -> str:
    """Return what a run says that it could not do, nothing if it did all."""
    try:
        result = run()
    except LogkeepError as error:
        return str(error)
    return " ".join([*([] if result.outcome == "Succeeded" else [result.outcome, result.message]), *result.warnings])


def backup(bed: Bed, run_id: str = "backup-1", **more: Any) -> str:
    spec = {
        "cluster": bed.cluster,
        "topics": {"include": [f"{bed.unique}-orders.*"]},
        "storage": {"uri": bed.root.as_uri()},
        **more,
    }
    return said_by(lambda: try_backup(spec, run_id))


def restore_spec(
    bed: Bed, run_id: str, topics: Mapping[str, Any] | None = None, to: str = "", **more: Any
) -> dict[str, Any]:
    """Each run restores into topics of its own, or into `to`."""
    renamed = {"rename": [{"from": rf"{bed.unique}-orders\.(.*)", "to": rf"{bed.unique}-restored.{to or run_id}.\1"}]}
    source = {"storage": {"uri": bed.root.as_uri()}}
    return {"cluster": bed.cluster, "source": source, "topics": {**renamed, **(topics or {})}, **more}


def restore(bed: Bed, run_id: str, topics: Mapping[str, Any] | None = None, to: str = "", **more: Any) -> str:
    return said_by(lambda: bring_back(restore_spec(bed, run_id, topics, to, **more), run_id))


LOGIN = ("--security-protocol", "SASL_PLAINTEXT", "--sasl-mechanism", "PLAIN")


def command(bed: Bed, *words: str) -> str:
    """Return what a command prints that does not succeed."""
    done = logkeep(*words, environ={ENV_KAFKA_USERNAME: bed.broker.username, ENV_KAFKA_PASSWORD: bed.broker.password})
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def archived(bed: Bed) -> None:
    """The archive, by somebody who may do everything."""
    assert backup(bed, cluster={"bootstrapServers": bed.broker.addresses}) == ""


def assert_needed(bed: Bed, granted: set[AclBinding], attempt: Callable[[str], str], needed: Mapping[str, str]) -> None:
    """All of these rights are enough, and without any single one something is said."""
    assert attempt("with-all") == ""
    said = bed.without(granted, attempt)
    assert said.keys() == needed.keys(), said
    assert {right: text for right, text in said.items() if not re.search(needed[right], text)} == {}


CREATED = {
    "ALTER_CONFIGS on topic restored.": "ACL (DESCRIBE|ALTER)_CONFIGS",
    "CREATE on topic restored.": r"create topic .* \(ACL CREATE\)",
    "WRITE on topic restored.": "WRITE on any topic",
}
READ_BACK = {"READ on topic restored.": "may not read topic .*; nothing was written. Give the user the ACL READ on it"}


def test_a_backup(bed: Bed) -> None:
    granted = bed.grant("A backup")
    cluster = "not archived from the cluster: {} .*: give the user the ACL {} on"
    needed = {
        "READ on topic orders.": "do not let this user read topics that the archive knows.* Give the user the ACL READ",
        "DESCRIBE_CONFIGS on topic orders.": r"configuration of topic .* \(ACL DESCRIBE_CONFIGS\)",
        "DESCRIBE on group billing": r"offsets of consumer group .* \(ACL DESCRIBE on the group",
        "DESCRIBE_CONFIGS on group billing": cluster.format("configurations of groups", "DESCRIBE_CONFIGS")
        + " all groups",
        "DESCRIBE on cluster kafka-cluster": cluster.format("ACLs", "DESCRIBE") + " the cluster",
        "DESCRIBE_CONFIGS on cluster kafka-cluster": cluster.format("client quotas", "DESCRIBE_CONFIGS")
        + " the cluster",
        "DESCRIBE on topic __consumer_offsets": "^$",
    }
    assert_needed(bed, granted, lambda number: backup(bed, number), needed)


def test_a_restore_and_a_release(bed: Bed) -> None:
    archived(bed)
    granted = bed.grant("A restore")
    hold = {"retention": "Hold"}
    assert_needed(bed, granted, lambda number: restore(bed, number, hold, verify="Full"), CREATED | READ_BACK)
    file = bed.root.parent / "restore.yaml"
    file.write_text(resource("KafkaRestore", restore_spec(bed, "with-all", hold, verify="Full")))
    release = "release", "-f", str(file), "--run-id", "with-all"
    diff = "diff", "-f", str(file), "--run-id", "with-all"
    of_reader = {acl for acl in granted if acl.operation is not AclOperation.READ}
    bed.take(of_reader)
    describe = bed.of_topic(f"{bed.unique}-restored.", AclOperation.DESCRIBE_CONFIGS)
    bed.give(describe)
    assert command(bed, *diff) == "", "READ and DESCRIBE_CONFIGS are enough to compare"
    assert "ALTER_CONFIGS" in command(bed, *release)
    bed.grant("A restore")
    assert command(bed, *release) == ""


def test_a_restore_with_groups_whose_positions_are_taken_back(bed: Bed) -> None:
    archived(bed)
    granted = bed.grant("A restore", "With positions of groups")
    translate: dict[str, Any] = {"consumerGroups": {"restore": "Translate"}}
    configuration = r"configurations? could not be set: "
    needed = CREATED | {
        "READ on topic restored.": r"1 position not set.*TOPIC_AUTHORIZATION_FAILED",
        "READ on group billing": "offsets of consumer group",
        "ALTER_CONFIGS on group billing": configuration,
        "DESCRIBE_CONFIGS on cluster kafka-cluster": configuration
        + ".*give the user the ACL DESCRIBE_CONFIGS on the cluster",
    }
    assert_needed(bed, granted, lambda number: restore(bed, number, **translate), needed)
    file = bed.root.parent / "restore.yaml"
    file.write_text(resource("KafkaRestore", restore_spec(bed, "with-all", **translate)))
    words = "-f", str(file), "--run-id", "with-all"
    assert command(bed, "groups", "reset", *words) == ""
    assert command(bed, "groups", "rollback", *words) == "", "the restore had set what the reset has replaced"
    assert "GROUP_AUTHORIZATION_FAILED" in command(bed, "groups", "rollback", *words)
    bed.grant("A restore", "With positions of groups", "To take positions back")
    assert command(bed, "groups", "rollback", *words) == ""


def test_a_restore_at_the_same_offsets(bed: Bed) -> None:
    Topics(bed.broker).delete_records(bed.topic, 10)
    archived(bed)
    granted = bed.grant("A restore", "At the same offsets")
    needed = (
        CREATED
        | READ_BACK
        | {
            "WRITE on transactional_id logkeep-": "ACL WRITE on the transactional ids with the prefix 'logkeep-'",
            "DELETE on topic restored.": "Give the user the ACL DELETE on topic",
        }
    )
    assert_needed(bed, granted, lambda number: restore(bed, number, offsets="Same", verify="Full"), needed)


def test_a_restore_in_place_of_existing_topics(bed: Bed) -> None:
    archived(bed)
    granted = bed.grant("A restore", "In place of existing topics")
    there = f"{bed.unique}-restored.there.eu"
    create_topic(bed.broker.bootstrap, there)

    def replacing(number: str) -> str:
        return restore(bed, number, to="there", ifTopicExists="Replace", confirm=[there], verify="Full")

    assert_needed(bed, granted, replacing, CREATED | READ_BACK | {"DELETE on topic restored.": "ACL DELETE on topic"})


def test_a_restore_of_everything(bed: Bed) -> None:
    other = bed.of_topic(f"{bed.unique}-other", AclOperation.DESCRIBE)
    bed.give(other)
    control = control_plane(bed.broker)
    quota = Quota((("user", bed.broker.username),), "consumer_byte_rate", 1_048_576_000.0)
    assert control.set_quotas([quota]) == []
    eventually(lambda: quota in (control.quotas().items or ()))
    try:
        archived(bed)
        granted = bed.grant("A restore of everything")

        def everything(number: str) -> str:
            bed.take({other} & bed.acls())
            delete_topics(bed.broker.bootstrap, {bed.topic} & topic_names(bed.broker.bootstrap))
            spec = {"cluster": bed.cluster, "source": {"storage": {"uri": bed.root.as_uri()}}, "everything": True}
            return said_by(lambda: bring_back(spec, number))

        needed = {f"{right.partition(' ')[0]} on topic *": said for right, said in CREATED.items()} | {
            "READ on topic *": "1 position not set",
            "READ on group *": "offsets of consumer group",
            "ALTER_CONFIGS on group *": r"configurations? could not be set: ",
            "ALTER on cluster kafka-cluster": "may not restore the ACLs .*nothing was written",
            "ALTER_CONFIGS on cluster kafka-cluster": "may not restore the client quotas .*nothing was written",
        }
        assert_needed(bed, granted, everything, needed)
    finally:
        control.set_quotas([quota._replace(value=None)])


def test_a_drill(bed: Bed) -> None:
    archived(bed)
    granted = bed.grant("A drill")
    spec = {
        "cluster": bed.cluster,
        "source": {"storage": {"uri": bed.root.as_uri()}},
        "drill": {"prefix": f"{bed.unique}-drill-"},
    }
    needed = {right.replace("restored.", "drill-"): said for right, said in (CREATED | READ_BACK).items()}
    needed["READ on topic drill-"] += r"\.$"
    needed["DELETE on topic drill-"] = "nothing was written. Give the user the ACL DELETE"
    assert_needed(bed, granted, lambda number: said_by(lambda: bring_back(spec, number)), needed)


def test_commands_that_compare(bed: Bed) -> None:
    archived(bed)
    (read, describe) = sorted(
        bed.grant("Commands that compare"), key=lambda acl: acl.operation is not AclOperation.READ
    )
    verify = "verify", bed.root.as_uri(), "--against", bed.broker.sasl_bootstrap, *LOGIN
    assert command(bed, *verify) == ""
    bed.take({describe})
    assert "(ACL DESCRIBE_CONFIGS)" in command(bed, *verify)
    bed.give(describe)
    bed.take({read})
    unseen = logkeep(
        *verify, environ={ENV_KAFKA_USERNAME: bed.broker.username, ENV_KAFKA_PASSWORD: bed.broker.password}
    )
    assert unseen.returncode == 0, unseen.stderr
    assert "or the user lacks the ACL DESCRIBE on it" in unseen.stdout
    bed.give(bed.of_topic(f"{bed.unique}-orders.", AclOperation.DESCRIBE))
    assert "Give the user the ACL READ on topic" in command(bed, *verify)

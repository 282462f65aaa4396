"""A cluster that is gone comes back into a new one, by the operator on the node: `everything: true`."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from logkeep_engine.contract.model import replace
from logkeep_engine.kafka.user_requests import Acl, Quota
from tests.cluster.kafka import CALM, STEADY, KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.node import Node
from tests.data.compare import read_committed
from tests.data.topics import Record, commit_positions, create_topic, produce, topic_names
from tests.e2e.home import Home
from tests.kafka.raw import eventually
from tests.kafka.test_cluster_state import control_plane
from tests.kafka.test_everything import CHECKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = {"orders": 3, "_schemas": 1}
GROUP, POSITIONS = "billing", {0: 7, 1: 0, 2: 12}
ACLS = {
    Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"),
    Acl("GROUP", "bill", "PREFIXED", "User:alice", "10.1.2.3", "READ", "ALLOW"),
}
QUOTAS = {Quota((("user", "alice"),), "consumer_byte_rate", 1_048_576.0)}


@contextmanager
def cluster(node: Node) -> Iterator[KafkaBroker]:
    """A broker that looks at ACLs, on the node's address."""
    with KafkaBroker(host=node.ip, netns=node.netns, overrides={**STEADY, **CALM, **CHECKS}) as broker:
        yield broker


def fill(broker: KafkaBroker) -> None:
    now = int(time.time() * 1000)
    for topic, partitions in TOPICS.items():
        create_topic(broker.bootstrap, topic, partitions, {"cleanup.policy": "compact"} if partitions == 1 else {})
        made = (
            Record(
                b"k%d" % n,
                None if n % 7 == 6 else b"%s %d" % (topic.encode(), n),
                now + n,
                [("h", b"1")],
                n % partitions,
            )
            for n in range(60)
        )
        produce(broker.bootstrap, topic, made)
    commit_positions(broker.bootstrap, GROUP, {("orders", number): at for number, at in POSITIONS.items()})
    control = control_plane(broker)
    assert control.create_acls(list(ACLS)) == []
    assert control.set_quotas(list(QUOTAS)) == []
    user: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(
            "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"a password", b"salt of 16 bytes"
        )
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.alter_user_scram_credentials(user).values():
        done.result(30)
    eventually(lambda: rights(broker) == (ACLS, QUOTAS) and len(control.scram_users().items or ()) == 1)


def rights(broker: KafkaBroker) -> tuple[set[Acl], set[Quota]]:
    control = control_plane(broker)
    return set(control.acls().items or ()), set(control.quotas().items or ())


def records(broker: KafkaBroker) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """The records that a committed consumer reads of each partition."""
    return {
        (topic, number): [
            (message.key(), message.value(), message.headers(), message.timestamp())
            for message in read_committed(broker.bootstrap, topic, number)
        ]
        for topic, partitions in TOPICS.items()
        for number in range(partitions)
    }


def everything(broker: KafkaBroker) -> Document:
    return {
        "apiVersion": "logkeep.dev/v1alpha1",
        "kind": "KafkaRestore",
        "metadata": {"name": "everything"},
        "spec": {
            "source": {"backupRef": {"name": "saved"}},
            "cluster": {"bootstrapServers": [broker.bootstrap]},
            "everything": True,
            "acls": {"principals": ["User:alice"]},
            "spark": {},
        },
    }


def test_a_cluster_that_is_gone_comes_back_into_a_new_one(node: Node, home: Home) -> None:
    with cluster(node) as lost:
        fill(lost)
        had = records(lost)
        first = replace(home, broker=lost)
        first.backup(".*", spark={}).wait("Succeeded")

    with cluster(node) as new:
        second = replace(home, broker=new)
        status = second.apply(everything(new)).wait("Succeeded")

        assert records(new) == had
        assert topic_names(new.bootstrap) >= set(TOPICS)
        assert second.positions(GROUP, "orders", 3) == POSITIONS
        assert rights(new) == (ACLS, QUOTAS)
    found = status["clusterState"]
    assert (found["acls"], found["aclsAdded"], found["quotas"], found["quotasAdded"]) == (2, 2, 1, 1), found
    assert found["usersToCreate"] == ["alice (SCRAM-SHA-512, 4096 iterations)"]
    report = json.loads((home.s3.data_dir / found["report"].removeprefix("s3://")).read_text())
    assert len(report["usersToCreate"]["rows"]) == 1

"""A backup archives the ACLs, client quotas and SCRAM users of a cluster, as far as its user may see them."""

import time
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state
from logkeep_engine.archive.reading.view import ends_of_runs
from logkeep_engine.contract.names import ENV_KAFKA_PASSWORD, ENV_KAFKA_USERNAME
from logkeep_engine.kafka.configs import CLIENT_METRICS, GROUP
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.data.topics import Record, create_topic, produce
from tests.kafka.raw import eventually
from tests.kafka.restores import back_up, backup_spec

ALICE = Acl("TOPIC", "orders", "PREFIXED", "User:alice", "*", "READ", "ALLOW")
MALLORY = Acl("GROUP", "*", "LITERAL", "User:mallory", "10.0.0.1", "ALL", "DENY")
NOT_ONE = Acl("CLUSTER", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
OF_ALICE = Quota((("user", "alice"), ("client-id", None)), "producer_byte_rate", 1_000_000.0)
OF_ALL = Quota((("user", None),), "request_percentage", 62.5)


def control_plane(broker: Brokers) -> ControlPlane:
    return ControlPlane(KafkaConnection((broker.bootstrap,)))


def newest(root: Path) -> ClusterState:
    archive = Archive.open(open_uri(root.as_uri()))
    found = read_cluster_state(archive, next(ends_of_runs(archive, archive.load().commit)))
    assert found is not None
    return found


def fill(broker: KafkaBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 1)
    now = int(time.time() * 1000)
    produce(broker.bootstrap, topic, (Record(b"k%d" % n, b"v%d" % n, now + n, [], 0) for n in range(5)))


def as_user(strict: KafkaBroker, root: Path, topic: str, **more: Any) -> dict[str, Any]:
    cluster = {
        "bootstrapServers": [strict.sasl_bootstrap],
        "security": {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}},
    }
    return {"cluster": cluster, "topics": {"include": [topic]}, "storage": {"uri": root.as_uri()}, **more}


def grant(strict: KafkaBroker, resource: str, name: str, *operations: str) -> None:
    control = control_plane(strict)
    wanted = [
        Acl(resource, name, "LITERAL", f"User:{strict.username}", "*", operation, "ALLOW") for operation in operations
    ]
    assert control.create_acls(wanted) == []
    eventually(lambda: set(wanted) <= set(control.acls().items or ()))


def test_acls_and_quotas_that_are_set_are_reported(strict: KafkaBroker) -> None:
    control = control_plane(strict)
    (refused,) = control.create_acls([ALICE, NOT_ONE, MALLORY])
    assert refused.item == NOT_ONE
    assert "INVALID_REQUEST: The only valid name" in refused.reason
    assert control.create_acls([ALICE, MALLORY]) == []
    eventually(lambda: set(control.acls().items or ()) == {ALICE, MALLORY})
    nonsense = OF_ALICE._replace(key="nonsense")
    (refused_quota,) = control.set_quotas([OF_ALICE, nonsense], only_check=True)
    assert refused_quota.item == nonsense
    assert "Invalid configuration key nonsense" in refused_quota.reason
    # The cluster answers for the entities in an order of its own.
    for number in range(8):
        bad = OF_ALL._replace(entity=(("user", f"u{number}"),), key="nonsense")
        assert [item.item for item in control.set_quotas([OF_ALICE, OF_ALL, bad], only_check=True)] == [bad]
    assert control.set_quotas([OF_ALICE, OF_ALL]) == []
    try:
        eventually(lambda: set(control.quotas().items or ()) == {OF_ALICE, OF_ALL})
        (user,) = control.scram_users().items or ()
        assert (user.name, user.mechanism) == (strict.username, "SCRAM-SHA-512")
        assert user.iterations >= 4096
        assert {"ALTER", "DESCRIBE", "ALTER_CONFIGS"} <= control.cluster_operations()
    finally:
        control.set_quotas([item._replace(value=None) for item in (OF_ALICE, OF_ALL)])
        eventually(lambda: control.quotas().items == ())


def test_a_cluster_without_an_authorizer_has_no_acls(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    known = control_plane(kafka).acls()
    assert (known.items, known.switched_off) == ((), True)
    (refused,) = control_plane(kafka).create_acls([ALICE])
    assert refused.reason.startswith("SECURITY_DISABLED")
    fill(kafka, unique)
    assert back_up(backup_spec(kafka, tmp_path, unique)).warnings == ()
    state = newest(tmp_path)
    assert (state.acls, state.authorizer, state.reasons) == ((), False, {})


RESET = ResourceConfig(GROUP, "queue", "consumer.session.timeout.ms", "50000")
METRICS = ResourceConfig(CLIENT_METRICS, "slow", "interval.ms", "60000")


@pytest.mark.since("4.0")
def test_configurations_settings_and_features_are_archived(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    control = control_plane(kafka)
    configs = [RESET._replace(name=f"{unique}\n"), METRICS._replace(name=unique)]
    wrong = RESET._replace(name=unique, key="nonsense")
    late = RESET._replace(name=unique, value="1")
    assert control.set_resource_configs([wrong, *configs], only_check=True)[0].item == wrong
    assert not set(configs) & set(control.resource_configs().items or ())
    refused = control.set_resource_configs([wrong, late, *configs])
    assert [item.item for item in refused] == [late, wrong]
    assert all(item.reason.startswith("INVALID_CONFIG") for item in refused)
    eventually(lambda: set(configs) <= set(control.resource_configs().items or ()))
    fill(kafka, unique)
    assert back_up(backup_spec(kafka, tmp_path, unique)).warnings == ()
    state = newest(tmp_path)
    assert set(configs) <= {ResourceConfig(*row) for row in state.configs or ()}
    assert state.settings is not None
    assert state.settings["auto.create.topics.enable"] == "false"  # as the test bed has set it
    assert not {"log.segment.delete.delay.ms", "message.max.bytes", "num.io.threads"} & state.settings.keys()
    assert state.features == control.features()
    assert state.features["metadata.version"] > 20


def test_what_the_user_may_not_see_is_named_and_no_run_fails(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    fill(strict, unique)
    grant(strict, "TOPIC", unique, "READ", "DESCRIBE_CONFIGS")
    spec = as_user(strict, tmp_path, unique)
    (warning,) = back_up(spec).warnings
    no = "CLUSTER_AUTHORIZATION_FAILED"
    assert warning == (
        f"not archived from the cluster: ACLs ({no}); client quotas ({no}); names of SCRAM users ({no}); the brokers' "
        f"defaults of retention ({no}); configurations of groups and client metrics ({no}); settings of the brokers "
        f"({no}): give the user the ACL DESCRIBE and DESCRIBE_CONFIGS on the cluster, or set spec.clusterState to "
        "Ignore"
    )
    state = newest(tmp_path)
    assert (state.acls, state.quotas, state.users) == (None, None, None)
    assert (state.configs, state.settings) == (None, None)
    assert state.reasons == dict.fromkeys(
        ("acls", "quotas", "scramUsers", "topicDefaults", "configs", "brokerSettings"), no
    )

    assert back_up({**spec, "clusterState": "Ignore"}, "backup-2").warnings == ()
    archive = Archive.open(open_uri(tmp_path.as_uri()))
    assert next(ends_of_runs(archive, archive.load().commit)).cluster_state is None

    grant(strict, "CLUSTER", "kafka-cluster", "DESCRIBE", "DESCRIBE_CONFIGS")
    assert back_up(spec, "backup-3").warnings == ()
    state = newest(tmp_path)
    assert state.reasons == {}
    assert {acl[5] for acl in state.acls or () if acl[0] == "CLUSTER"} == {"DESCRIBE", "DESCRIBE_CONFIGS"}
    assert [user[0] for user in state.users or ()] == [strict.username]


def test_all_attempts_of_a_run_archive_the_state_of_its_plan(strict: KafkaBroker, unique: str, tmp_path: Path) -> None:
    fill(strict, unique)
    spec = backup_spec(strict, tmp_path, unique)
    control = control_plane(strict)
    assert control.create_acls([ALICE]) == []
    eventually(lambda: control.acls().items == (ALICE,))
    back_up(spec)
    first = newest(tmp_path)
    assert first.acls == (ALICE,)
    assert control.create_acls([MALLORY]) == []
    eventually(lambda: len(control.acls().items or ()) == 2)
    back_up(spec)
    assert newest(tmp_path) == first
    back_up(spec, "backup-2")
    assert set(newest(tmp_path).acls or ()) == {ALICE, MALLORY}

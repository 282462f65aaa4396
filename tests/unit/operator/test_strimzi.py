"""A run connects with what a `Kafka` resource of Strimzi says, or the condition says why it does not start."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.reconcile import FoundKafka
from logkeep_operator.reconcile.strimzi import kafka_access
from logkeep_operator.reconcile.waiting import Waiting
from logkeep_operator.resources import request_config_map
from logkeep_operator.resources.credentials import KafkaAccess
from tests.unit.operator.test_resources import environment, pods_of, request_of
from tests.unit.operator.test_resources import run as run_of
from tests.unit.operator.world import World, backup_spec, restore_spec

CA = "-----BEGIN CERTIFICATE-----\nMIIDLTCCAhWgAwIBAgIJANA7\n-----END CERTIFICATE-----\n"
OWN = {"secretName": "from-cert-manager", "certificate": "tls.crt", "key": "tls.key"}
# With the fields that Strimzi 0.45 to 1.2 writes; tests/apiserver/test_strimzi.py holds them against its CRDs.
KAFKA: dict[str, Any] = {
    "apiVersion": "kafka.strimzi.io/v1",
    "kind": "Kafka",
    "metadata": {"name": "prod", "namespace": "kafka"},
    "spec": {
        "kafka": {
            "listeners": [
                {"name": "plain", "port": 9092, "type": "internal", "tls": False},
                {"name": "open", "port": 9097, "type": "internal", "tls": True},
                {"name": "tls", "port": 9093, "type": "internal", "tls": True, "authentication": {"type": "tls"}},
                {
                    "name": "scram", "port": 9094, "type": "internal", "tls": True,
                    "authentication": {"type": "scram-sha-512"},
                },
                {
                    "name": "bare", "port": 9095, "type": "internal", "tls": False,
                    "authentication": {"type": "scram-sha-512"},
                },
                {
                    "name": "external", "port": 9096, "type": "loadbalancer", "tls": True,
                    "authentication": {"type": "scram-sha-512"}, "configuration": {"brokerCertChainAndKey": OWN},
                },
                {"name": "oauth", "port": 9098, "type": "internal", "tls": True, "authentication": {"type": "custom"}},
            ],
        },
    },
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "clusterId": "JBIrRLkcRnyHpK9u2FkTkA",
        "listeners": [
            {
                "name": name,
                "addresses": [{"host": "prod-kafka-bootstrap.kafka.svc", "port": port}],
                "bootstrapServers": f"prod-kafka-bootstrap.kafka.svc:{port}",
                **({} if name in ("plain", "bare") else {"certificates": [CA]}),
            }
            for name, port in [
                ("plain", 9092), ("tls", 9093), ("scram", 9094), ("bare", 9095), ("external", 9096), ("open", 9097),
                ("oauth", 9098),
            ]
        ],
    },
}  # fmt: skip
USER = {"name": "logkeep"}


def said(listener: str, user: dict[str, str] | None = None, **strimzi: Any) -> dict[str, Any]:
    cluster: dict[str, Any] = {"strimzi": {"name": "prod", "listener": listener, **strimzi}}
    return cluster if user is None else cluster | {"kafkaUserRef": user}


def access(cluster: dict[str, Any], body: dict[str, Any] | None = KAFKA, namespace: str = "kafka") -> KafkaAccess:
    return kafka_access(ClusterSpec.model_validate(cluster), namespace, FoundKafka(body))


def refusal(cluster: dict[str, Any], body: dict[str, Any] | None = KAFKA, namespace: str = "kafka") -> Waiting:
    with pytest.raises(Waiting) as caught:
        access(cluster, body, namespace)
    return caught.value


def changed(**status: Any) -> dict[str, Any]:
    """The resource with another status."""
    body = copy.deepcopy(KAFKA)
    body["status"] = status
    return body


@pytest.mark.parametrize(
    ("listener", "user", "protocol", "port"),
    [
        ("plain", None, "PLAINTEXT", 9092),
        ("open", None, "SSL", 9097),
        ("tls", USER, "SSL", 9093),
        ("scram", USER, "SASL_SSL", 9094),
        ("bare", USER, "SASL_PLAINTEXT", 9095),
    ],
)
def test_a_listener_says_servers_and_protocol(
    listener: str, user: dict[str, str] | None, protocol: str, port: int
) -> None:
    found = access(said(listener, user)).cluster
    assert found.servers == (f"prod-kafka-bootstrap.kafka.svc:{port}",)
    assert found.security.protocol == protocol
    assert found.strimzi is None


def test_a_load_balancer_has_several_addresses() -> None:
    listed = [{"name": "plain", "bootstrapServers": "10.0.0.1:9092,[fd00::1]:9092,b.example:9092"}]
    found = access(said("plain"), changed(listeners=listed)).cluster
    assert found.servers == ("10.0.0.1:9092", "[fd00::1]:9092", "b.example:9092")


def test_the_users_name_is_that_of_the_resource() -> None:
    sasl = access(said("scram", USER)).cluster.security_with_user.sasl
    assert sasl is not None
    assert sasl.secret_ref is not None
    assert (sasl.mechanism, sasl.username, sasl.secret_ref.name) == ("SCRAM-SHA-512", "logkeep", "logkeep")


def test_beside_the_brokers_the_pods_mount_the_clusters_authority() -> None:
    found = access(said("tls", USER))
    tls = found.cluster.security_with_user.tls
    assert tls is not None
    assert tls.ca_secret_ref is not None
    # The ca.crt in a KafkaUser's Secret is the authority of clients: brokers are not signed by it.
    assert (tls.ca_secret_ref.name, tls.ca_secret_ref.certificate_key) == ("prod-cluster-ca-cert", "ca.crt")
    assert found.authorities is None


def test_elsewhere_the_authority_is_the_one_that_the_resource_shows() -> None:
    found = access(said("scram", USER, namespace="kafka"), namespace="team")
    assert found.authorities == CA
    assert found.cluster.security.tls is None


def test_a_listener_with_a_certificate_of_its_own_is_not_signed_by_the_clusters_authority() -> None:
    for namespace in ("kafka", "team"):
        found = access(said("external", USER, namespace="kafka"), namespace=namespace)
        assert (found.cluster.security.tls, found.authorities) == (None, None)
    own = said("external", USER, namespace="kafka", caSecretRef={"name": "company-ca", "certificateKey": "root.pem"})
    tls = access(own, namespace="team").cluster.security.tls
    assert tls is not None
    assert tls.ca_secret_ref is not None
    assert (tls.ca_secret_ref.name, tls.ca_secret_ref.certificate_key) == ("company-ca", "root.pem")


@pytest.mark.parametrize(
    ("cluster", "body", "reason", "words"),
    [
        (said("tls", USER), None, "KafkaNotFound", "no Kafka 'prod' of kafka.strimzi.io in namespace kafka"),
        (
            said("tsl", USER),
            KAFKA,
            "KafkaListenerUnfit",
            "no listener 'tsl'; it has: bare, external, oauth, open, plain",
        ),
        (said("oauth", USER), KAFKA, "KafkaListenerUnfit", "authentication 'custom', and Logkeep knows tls and scram"),
        (said("tls"), KAFKA, "KafkaListenerUnfit", "authentication 'tls': set spec.cluster.kafkaUserRef"),
        (said("scram"), KAFKA, "KafkaListenerUnfit", "authentication 'scram-sha-512': set spec.cluster.kafkaUserRef"),
        (said("plain", USER), KAFKA, "KafkaListenerUnfit", "no authentication, so kafkaUserRef has no effect"),
        (
            said("plain", caSecretRef={"name": "ca"}),
            KAFKA,
            "KafkaListenerUnfit",
            "no TLS, so caSecretRef has no effect",
        ),
        (said("plain"), {"spec": "x", "status": []}, "KafkaListenerUnfit", "no listener 'plain'; it has: none"),
        (
            said("plain"),
            changed(listeners=[{"name": "plain", "bootstrapServers": "null:null"}]),
            "KafkaListenerUnfit",
            "an address that is not host:port: 'null:null'",
        ),
    ],
)
def test_what_somebody_must_change_is_said(
    cluster: dict[str, Any], body: dict[str, Any] | None, reason: str, words: str
) -> None:
    found = refusal(cluster, body)
    assert (found.reason, found.warn) == (reason, True)
    assert found.message.startswith("spec.cluster.strimzi: ")
    assert words in found.message


@pytest.mark.parametrize("status", [{}, {"listeners": []}, {"listeners": [{"name": "tls"}]}, {"listeners": "soon"}])
def test_a_cluster_that_is_being_made_is_waited_for(status: dict[str, Any]) -> None:
    conditions = [{"type": "NotReady", "status": "True", "reason": "Creating", "message": "Kafka is being deployed"}]
    found = refusal(said("tls", USER), changed(conditions=conditions, **status))
    assert (found.reason, found.warn) == ("KafkaNotReady", False)
    assert "shows no addresses of listener 'tls' yet" in found.message
    assert "Strimzi says: NotReady: Kafka is being deployed" in found.message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"spec": None, "status": "x"},
        {"spec": {"kafka": {"listeners": {"plain": {}}}}},
        {"spec": {"kafka": {"listeners": [None, 5, {"name": 5}, {"name": "plain", "authentication": "x"}]}}},
        {"spec": KAFKA["spec"], "status": {"listeners": [{"name": "plain", "bootstrapServers": ["kafka:9092"]}]}},
        {"spec": KAFKA["spec"], "status": {"conditions": [None, {"status": "True"}], "listeners": [None]}},
    ],
)
def test_a_resource_of_another_form_is_reported_and_not_believed(body: dict[str, Any]) -> None:
    assert refusal(said("plain"), body).reason in ("KafkaListenerUnfit", "KafkaNotReady")


def test_elsewhere_a_listener_without_its_certificate_is_waited_for() -> None:
    listed = [{"name": "tls", "bootstrapServers": "kafka:9093"}]
    found = refusal(said("tls", USER, namespace="kafka"), changed(listeners=listed), namespace="team")
    assert found.reason == "KafkaNotReady"
    assert "shows no certificate of listener 'tls' yet" in found.message


def test_an_operator_without_the_right_says_which_one() -> None:
    cluster = ClusterSpec.model_validate(said("tls", USER, namespace="kafka"))
    with pytest.raises(Waiting, match=r"may not read Kafka 'prod' in namespace kafka: 403 .*strimzi\.namespaces") as it:
        kafka_access(cluster, "team", FoundKafka(refused="403 forbidden"))
    assert it.value.reason == "KafkaNotReadable"


# ---- the pods, and the run


def pods(cluster: dict[str, Any], namespace: str) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """The cluster as the request says it, the pods, and the data of the request's ConfigMap."""
    spec = backup_spec(cluster=cluster)
    made = run_of(spec, kafka=kafka_access(parse_backup(spec).cluster, namespace, FoundKafka(KAFKA)))
    return request_of(made).spec["cluster"], pods_of(made), request_config_map(made)["data"]


def volumes(pod: dict[str, Any]) -> dict[str, Any]:
    return {volume.pop("name"): volume for volume in copy.deepcopy(pod["volumes"])}


def test_pods_get_the_files_of_a_kafka_user_under_the_names_of_the_engine() -> None:
    request, both, data = pods(said("tls", USER), "kafka")
    assert parse_backup(backup_spec(cluster=request)).cluster.servers == ("prod-kafka-bootstrap.kafka.svc:9093",)
    assert "kafka-ca.crt" not in data
    for pod in both:
        found = environment(pod)
        assert found["LOGKEEP_KAFKA_CA_FILE"] == "/etc/logkeep/kafka-ca/ca.crt"
        assert found["LOGKEEP_KAFKA_CERT_FILE"] == "/etc/logkeep/kafka-client/tls.crt"
        assert "LOGKEEP_KAFKA_USERNAME" not in found
        client = volumes(pod)["kafka-client"]["secret"]
        assert client["secretName"] == "logkeep"
        assert client["items"] == [{"key": "user.crt", "path": "tls.crt"}, {"key": "user.key", "path": "tls.key"}]
        assert volumes(pod)["kafka-ca"]["secret"]["secretName"] == "prod-cluster-ca-cert"


def test_pods_elsewhere_get_the_authority_from_the_runs_config_map() -> None:
    request, both, data = pods(said("scram", USER, namespace="kafka"), "team")
    assert data["kafka-ca.crt"] == CA
    assert request["security"] == {"protocol": "SASL_SSL"}
    for pod in both:
        found = environment(pod)
        assert found["LOGKEEP_KAFKA_CA_FILE"] == "/etc/logkeep/kafka-ca/ca.crt"
        assert found["LOGKEEP_KAFKA_PASSWORD_FILE"] == "/etc/logkeep/kafka-login/password"
        login = volumes(pod)["kafka-login"]["secret"]
        assert (login["secretName"], login["items"]) == ("logkeep", [{"key": "password", "path": "password"}])
        assert volumes(pod)["kafka-ca"]["configMap"] == {
            "name": "nightly-0123456789-request",
            "items": [{"key": "kafka-ca.crt", "path": "ca.crt"}],
            "defaultMode": 0o444,
        }


def test_a_run_waits_for_its_cluster_and_takes_what_is_there_then() -> None:
    world = World("KafkaBackup", backup_spec(cluster=said("plain")))
    world.step()
    assert world.condition("Ready") == ("False", "KafkaNotFound")
    assert (world.created, world.events) == ([], [("Warning", "KafkaNotFound")])
    world.kafka = FoundKafka(KAFKA)
    world.step()
    assert world.condition("Ready") == ("False", "RunStarted")
    (first,) = world.jobs
    # Moved addresses are no reason for another run.
    world.kafka = FoundKafka(changed(listeners=[{"name": "plain", "bootstrapServers": "moved:9092"}]))
    world.step()
    assert list(world.jobs) == [first]


def test_a_restore_finds_its_target_likewise() -> None:
    spec = restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}}, cluster=said("bare", USER))
    world = World("KafkaRestore", spec)
    world.kafka = FoundKafka(KAFKA)
    world.step()
    (request,) = (body for body in world.created if body["metadata"]["name"].endswith("-request"))
    cluster = parse_restore(RunRequest.from_json(request["data"]["request.json"]).spec).cluster
    assert cluster.servers == ("prod-kafka-bootstrap.kafka.svc:9095",)
    assert cluster.security_with_user.sasl is not None


def test_a_config_map_that_was_deleted_in_a_run_waits_for_the_cluster_too() -> None:
    world = World("KafkaBackup", backup_spec(cluster=said("plain")))
    world.kafka = FoundKafka(KAFKA)
    world.step()
    (run_id,) = world.jobs
    world.delete_config_map(f"nightly-{run_id}-request")
    world.kafka = FoundKafka()
    world.step()
    assert world.condition("Ready") == ("False", "KafkaNotFound")
    world.kafka = FoundKafka(KAFKA)
    world.step()
    assert ("Warning", "ConfigMapRecreated") in world.events

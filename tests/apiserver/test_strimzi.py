"""A run takes servers, protocol and authority from Strimzi's resource, with the rights that the chart gives. The CRDs
are those of Strimzi's releases: the newest one that serves v1, and one that serves v1beta2 only. They also take the
topics that a restore emits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.facts.outcome import EmittedFacts
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.topics import BROKER_DEFAULT
from logkeep_engine.restore.topics.kafka_topics import config_map_data, kafka_topic
from logkeep_engine.spark.config_map import ConfigMaps, ConfigMapSink
from tests.apiserver import strimzi
from tests.apiserver.conftest import SYSTEM, chart, pod_account, service_account_kubeconfig
from tests.apiserver.operator import NAMESPACED_ROLE, ROOT, Namespace, Operator, result, wait_for
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.test_strimzi import CA, KAFKA
from tests.unit.operator.world import backup_spec, restore_spec

pytestmark = pytest.mark.timeout(300)

USER = {"name": "logkeep"}


@pytest.fixture(scope="module", params=strimzi.RELEASES)
def release(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The release of Strimzi whose CRDs the API server has."""
    name: str = request.param
    strimzi.install(api, name)
    yield name
    strimzi.remove(api)


def request_of(namespace: Namespace, job: dict[str, Any]) -> dict[str, str]:
    data: dict[str, str] = namespace.get("configmap", f"{job['metadata']['name']}-request")["data"]
    return data


def cluster(listener: str, **strimzi_fields: Any) -> dict[str, Any]:
    return {"strimzi": {"name": "prod", "listener": listener, **strimzi_fields}, "kafkaUserRef": USER}


def test_a_run_waits_until_strimzi_shows_addresses(
    api: ApiServer, release: str, namespace: Namespace, operator: Operator
) -> None:
    answer = namespace.apply("KafkaBackup", "nightly", backup_spec(cluster=cluster("tls")))
    assert answer.returncode == 0, answer.stderr
    assert "no Kafka 'prod'" in namespace.reason("kbak", "nightly", "KafkaNotFound")["message"]
    strimzi.create(api, namespace.name, KAFKA, release)
    namespace.reason("kbak", "nightly", "KafkaNotReady")
    assert namespace.items("jobs") == []
    strimzi.write_status(api, namespace.name, KAFKA)
    job = namespace.job()
    request = json.loads(request_of(namespace, job)["request.json"])["spec"]["cluster"]
    assert request["bootstrapServers"] == ["prod-kafka-bootstrap.kafka.svc:9093"]
    assert request["security"] == {"protocol": "SSL", "tls": {"caSecretRef": {"name": "prod-cluster-ca-cert"}}}
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["kafka-ca"]["secret"]["secretName"] == "prod-cluster-ca-cert"
    assert [item["key"] for item in volumes["kafka-client"]["secret"]["items"]] == ["user.crt", "user.key"]


def test_a_kafka_of_another_namespace_wants_the_charts_right(
    api: ApiServer, release: str, namespace: Namespace, operator_kubeconfig: Path, unique: str, tmp_path: Path
) -> None:
    """With `watchNamespaces` the operator may read there only what `strimzi.namespaces` names."""
    assert operator_kubeconfig.exists(), "its fixture makes the namespace of the account"
    brokers = Namespace(api, f"{unique}-kafka")
    strimzi.create(api, brokers.name, KAFKA, release)
    strimzi.write_status(api, brokers.name, KAFKA)
    watched = ("--set", f"watchNamespaces={{{namespace.name}}}", "--set", f"serviceAccount.name={unique}")
    roles = ("--show-only", "templates/rbac.yaml")
    api.kubectl("apply", "-f", "-", stdin=chart(*roles, *watched))
    account = service_account_kubeconfig(api, unique, tmp_path / "kubeconfig")
    with Operator(account, namespace.name, tmp_path / "operator.log", LOGKEEP_DRIVER_ROLE=NAMESPACED_ROLE):
        spec = backup_spec(cluster=cluster("scram", namespace=brokers.name))
        assert namespace.apply("KafkaBackup", "nightly", spec).returncode == 0
        ready = namespace.reason("kbak", "nightly", "KafkaNotReadable")
        assert "strimzi.namespaces" in ready["message"]
        api.kubectl(
            "apply", "-f", "-", stdin=chart(*roles, *watched, "--set", f"strimzi.namespaces={{{brokers.name}}}")
        )
        job = namespace.job()
    assert request_of(namespace, job)["kafka-ca.crt"] == CA
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["kafka-ca"]["configMap"]["items"] == [{"key": "kafka-ca.crt", "path": "ca.crt"}]
    account_name = f"system:serviceaccount:{SYSTEM}:{unique}"
    for what in ("secrets", "kafkausers.kafka.strimzi.io", "pods"):
        requested = ("auth", "can-i", "get", what, f"--as={account_name}")
        assert brokers.kubectl(*requested, check=False).stdout.strip() == "no", what


@pytest.mark.parametrize("authentication", ["tls", "scram-sha-512"])
def test_the_kafka_user_of_the_example_is_one_of_strimzis(
    api: ApiServer, release: str, namespace: Namespace, authentication: str
) -> None:
    """Its Secret has the user's name, which `kafkaUserRef` takes from the resource's name."""
    _, user = yaml.safe_load_all((ROOT / "examples/strimzi.yaml").read_text())
    user["spec"]["authentication"]["type"] = authentication
    strimzi.create(api, namespace.name, user, release)
    name = {"tls": "CN=logkeep", "scram-sha-512": "logkeep"}[authentication]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T08:00:00Z"}
    user["status"] = {"conditions": [ready], "observedGeneration": 1, "username": name, "secret": "logkeep"}
    strimzi.write_status(api, namespace.name, user)


TOPICS = ("orders", "Orders.V1", "a_b", "_schemas", "a..b", "x" * 240 + "_Y")


@pytest.mark.parametrize("dry", [False, True], ids=["restored", "dry run"])
def test_topics_that_a_restore_emits_are_taken_by_strimzi(
    api: ApiServer, release: str, namespace: Namespace, operator: Operator, tmp_path: Path, dry: bool
) -> None:
    strimzi.create(api, namespace.name, KAFKA, release)
    strimzi.write_status(api, namespace.name, KAFKA)
    source = {"storage": {"uri": "s3://bucket/prefix", "credentials": {"secretRef": {"name": "s3"}}}}
    spec = restore_spec(cluster=cluster("tls"), source=source, emit="KafkaTopics", dryRun=dry)
    answer = namespace.apply("KafkaRestore", "again", spec)
    assert answer.returncode == 0, answer.stderr
    job = namespace.job()
    request = RunRequest.from_json(request_of(namespace, job)["request.json"])
    options = parse_restore(request.spec).emit_options
    assert f"kafka.strimzi.io/{options.strimzi_api}" == strimzi.version(release)
    assert options.strimzi_cluster == "prod"
    assert request.topics_config_map is not None
    owner = namespace.get("configmap", request.topics_config_map)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("KafkaRestore", "again")

    # The driver, with the account that it has in its pod.
    assert options.strimzi_api is not None
    configs = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.insync.replicas": "2"}
    topics = [kafka_topic(name, 3, 3, configs, "prod", options.strimzi_api) for name in TOPICS]
    topics.append(kafka_topic("plain", 1, BROKER_DEFAULT, {}, "prod", options.strimzi_api))
    key, changes = config_map_data(topics)
    sink = ConfigMapSink("unused", namespace.name, api=driver_account(api, namespace, request, tmp_path))
    Reporter(request.run_id, sink).emit(request.topics_config_map, changes)
    facts = EmittedFacts(config_map=request.topics_config_map, key=key, topics=len(topics))
    ended = result(request.run_id, "KafkaRestore", outcome="DryRun" if dry else "Succeeded", emitted=facts)
    namespace.write(job, result=ended)
    namespace.job_ends(job, "Complete")
    emitted = namespace.phase("krst", "again", "DryRun" if dry else "Succeeded")["emitted"]

    # The user, who has only the status.
    assert emitted == {"configMap": request.topics_config_map, "key": "kafka-topics.yaml", "topics": 7}
    data = namespace.get("configmap", emitted["configMap"])["data"]
    assert list(data) == [emitted["key"]]
    namespace.kubectl("create", "--validate=strict", "-f", "-", stdin=data[emitted["key"]])
    listed = json.loads(namespace.kubectl("get", "kafkatopics", "-o", "json").stdout)["items"]
    stored = {item["spec"].get("topicName", item["metadata"]["name"]): item for item in listed}
    assert set(stored) == {*TOPICS, "plain"}
    for name in TOPICS:
        assert (stored[name]["metadata"]["name"] == name) == (name == "orders")
        assert stored[name]["metadata"]["labels"] == {"strimzi.io/cluster": "prod"}
        assert (stored[name]["spec"]["partitions"], stored[name]["spec"]["replicas"]) == (3, 3)
        assert stored[name]["spec"]["config"] == configs
    assert stored["plain"]["spec"] == {"partitions": 1}


def driver_account(api: ApiServer, namespace: Namespace, request: RunRequest, folder: Path) -> ConfigMaps:
    """The API as a driver of the run sees it."""
    account = f"system:serviceaccount:{namespace.name}:logkeep-engine"
    requested = ("auth", "can-i", "patch", f"configmaps/{request.topics_config_map}", f"--as={account}")
    wait_for("the driver's role", lambda: namespace.kubectl(*requested, check=False).returncode == 0)
    environ = pod_account(api, "logkeep-engine", folder / "account", namespace.name)
    return ConfigMaps(environ, folder / "account")

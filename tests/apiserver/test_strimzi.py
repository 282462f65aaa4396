"""A run takes servers, protocol and authority from Strimzi's resource, with the rights that the chart gives. The CRDs
are those of Strimzi's releases: the newest one that serves v1, and one that serves v1beta2 only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver import strimzi
from tests.apiserver.conftest import SYSTEM, chart, service_account_kubeconfig
from tests.apiserver.operator import NAMESPACED_ROLE, ROOT, Namespace, Operator
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.test_strimzi import CA, KAFKA
from tests.unit.operator.world import backup_spec

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
        asked = ("auth", "can-i", "get", what, f"--as={account_name}")
        assert brokers.kubectl(*asked, check=False).stdout.strip() == "no", what


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

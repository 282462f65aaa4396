"""Where credentials go when a resource names an endpoint: from the plugin, and from the pods of runs.

The store is a real one behind a proxy that notes all that it is sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import SYSTEM, chart
from tests.apiserver.operator import Namespace, Operator
from tests.apiserver.plugin import Plugin, administrator, user
from tests.cluster.apiserver import ApiServer
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy
from tests.kafka.test_storage_s3 import open_s3
from tests.unit.archive.build import archive_of, chunk
from tests.unit.operator.world import backup_spec, restore_spec

OWN_TOKEN = "the-administrators-own-session-token"


@pytest.fixture
def store(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """A store with an archive. Whoever runs the plugin has a cloud identity of his own."""
    storage = open_s3(s3, bucket)
    archive_of(storage, chunk(storage, 0, 40))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIAADMIN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "administrators-own-key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", OWN_TOKEN)
    with S3Proxy(s3) as proxy:
        yield proxy


def place(store: S3Proxy, bucket: str, **more: Any) -> dict[str, Any]:
    return {"uri": f"s3://{bucket}/an/archive", "endpoint": store.endpoint, "region": "us-east-1", **more}


KEYS = {"credentials": {"secretRef": {"name": "keys"}}}


def make(namespace: Namespace, storage: dict[str, Any], s3: S3Server | None = None) -> Plugin:
    answer = namespace.apply("KafkaBackup", "bait", backup_spec(storage=storage))
    assert answer.returncode == 0, answer.stderr
    if s3 is not None:
        values = {"accessKeyId": s3.access_key, "secretAccessKey": s3.secret_key}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}
        namespace.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    return administrator(namespace)


@pytest.mark.parametrize("credentials", [{}, {"credentials": {"workloadIdentity": {}}}], ids=["none", "identity"])
def test_ones_own_identity_goes_to_no_endpoint_that_a_resource_names(
    namespace: Namespace, store: S3Proxy, s3: S3Server, bucket: str, credentials: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    logkeep = make(namespace, place(store, bucket, **credentials))
    namespace.apply("KafkaRestore", "again", restore_spec(source={"backupRef": {"name": "bait"}}))
    for name in ("kbak/bait", "krst/again"):
        for words in ((), ("--allow-endpoint", store.endpoint), ("--cost",), ("--at", "2999-01-01T00:00:00Z")):
            refused = logkeep("inspect", name, *words)
            assert refused.exit_code == 2, refused.output
            assert (
                f"The resource names the endpoint {store.endpoint} and no Secret, and your own cloud identity is not "
                "sent where a resource says." in refused.stderr
            )
    assert store.heads == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert logkeep.json("inspect", "kbak/bait", "--endpoint", store.endpoint)["records"] == 40
    assert store.heads


def test_ones_own_identity_trusts_no_authorities_that_a_resource_names(namespace: Namespace) -> None:
    tls = {"uri": "s3://bucket/x", "tls": {"caConfigMapRef": {"name": "mine"}}}
    refused = make(namespace, tls)("inspect", "bait")
    assert refused.exit_code == 2
    assert "The resource names certificate authorities (tls) and no Secret" in refused.stderr


def test_keys_of_a_secret_go_to_endpoints_that_the_caller_names(
    namespace: Namespace, store: S3Proxy, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    logkeep = make(namespace, place(store, bucket, **KEYS), s3)
    for words in ((), ("--allow-endpoint", "*"), ("--allow-endpoint", "https://*"), ("--allow-endpoint", "http://x")):
        refused = logkeep("inspect", "bait", *words)
        assert refused.exit_code == 2, refused.output
        assert f"The resource names the endpoint {store.endpoint}, and no keys of a Secret are sent there: " in (
            refused.stderr
        )
        assert "ConfigMap logkeep-endpoints in namespace logkeep cannot be read: There is no ConfigMap" in (
            refused.stderr
        )
        assert f"If you trust it: --allow-endpoint {store.endpoint}." in refused.stderr
    wrong = logkeep("inspect", "bait", "--allow-endpoint", "store:9000")
    assert "--allow-endpoint: 'store:9000' must be https://host:port, http://host:port or *" in wrong.stderr
    rights = [("logkeep.dev", "kafkabackups", ["get"])]
    without = user(namespace, tmp_path, rights)("inspect", "kbak/bait")
    assert "no keys of a Secret are sent there: " in without.stderr
    assert "get on configmaps in namespace logkeep" in without.stderr
    assert "get on secrets" not in without.stderr, "no Secret is read"
    assert store.heads == []
    assert logkeep.json("inspect", "bait", "--allow-endpoint", store.endpoint)["records"] == 40
    assert logkeep.json("inspect", "bait", "--endpoint", store.endpoint)["records"] == 40
    assert all(s3.access_key.encode() in head for head in store.heads)
    assert not any(OWN_TOKEN.encode() in head or b"ASIAADMIN" in head for head in store.heads)


@pytest.mark.usefixtures("operator_kubeconfig")  # it makes the operator's namespace
def test_keys_of_a_secret_go_to_endpoints_that_the_installation_names(
    namespace: Namespace, api: ApiServer, store: S3Proxy, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    make(namespace, place(store, bucket, **KEYS), s3)
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "logkeep-endpoints"},
            "data": {"endpoints": store.endpoint}}  # fmt: skip
    namespace.kubectl("apply", "-f", "-", stdin=json.dumps(mine))
    rights = [("logkeep.dev", "kafkabackups", ["get"]), ("", "secrets", ["get"])]
    logkeep = user(namespace, tmp_path, rights)
    assert logkeep("inspect", "kbak/bait").exit_code == 2, "what a tenant has made counts for nothing"
    for value, allowed in (("https://*", False), ("http://other", False), (store.endpoint, True)):
        rendered = chart("--show-only", "templates/endpoints.yaml", "--set", f"engine.allowed.endpoints={{{value}}}")
        api.kubectl("apply", "-f", "-", stdin=rendered)
        done = logkeep("inspect", "kbak/bait", "--operator-namespace", SYSTEM)
        assert done.exit_code == (0 if allowed else 2), done.output
        if not allowed:
            assert f"ConfigMap logkeep-endpoints in namespace {SYSTEM} does not name it." in done.stderr
            assert store.heads == []
    api.kubectl("-n", SYSTEM, "delete", "configmap,role,rolebinding", "logkeep-endpoints")


def test_an_allowed_store_cannot_send_the_keys_elsewhere(
    namespace: Namespace, store: S3Proxy, s3: S3Server, bucket: str
) -> None:
    logkeep = make(namespace, place(store, bucket, **KEYS), s3)
    with S3Proxy(s3) as elsewhere:
        head = f"HTTP/1.1 301 Moved\r\nLocation: {elsewhere.endpoint}/{bucket}\r\nx-amz-bucket-region: evil\r\n"
        store.always(lambda exchange: exchange.send(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()))
        assert logkeep("inspect", "bait", "--allow-endpoint", store.endpoint).exit_code != 0
        assert store.heads
        assert elsewhere.heads == []


def test_no_job_is_made_for_an_endpoint_that_the_installation_does_not_allow(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    stored = {"uri": "s3://bucket/x", "endpoint": "https://minio.storage:9000", **KEYS}
    with Operator(operator_kubeconfig, namespace.name, tmp_path / "log", LOGKEEP_ALLOWED_ENDPOINTS="https://other"):
        for name, place_ in (("bait", stored), ("plain", {**stored, "endpoint": "http://other"})):
            assert namespace.apply("KafkaBackup", name, backup_spec(storage=place_)).returncode == 0
        assert namespace.apply("KafkaRestore", "again", restore_spec(source={"storage": stored})).returncode == 0
        away = {"storage": {"uri": "s3://bucket/x"}}
        assert namespace.apply("KafkaRestore", "away", restore_spec(source=away, state=stored)).returncode == 0
        for kind, name in (("kbak", "bait"), ("kbak", "plain"), ("krst", "again"), ("krst", "away")):
            ready = namespace.reason(kind, name, "NotAllowed")
            assert "is not in the chart's engine.allowed.endpoints" in ready["message"]
        assert namespace.items("jobs") == []
        assert namespace.items("serviceaccounts") == []
    allowed = "https://minio.storage:9000"
    with Operator(operator_kubeconfig, namespace.name, tmp_path / "log", LOGKEEP_ALLOWED_ENDPOINTS=allowed):
        job = namespace.job("bait")
        container = job["spec"]["template"]["spec"]["containers"][0]
        environment = {item["name"]: item.get("value") for item in container["env"]}
        assert environment["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] == "true"

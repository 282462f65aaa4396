"""A name in a reference stays in its namespace: on a real API server, with the CRDs and the operator's own rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.model import RULES
from tests.apiserver.operator import ROOT, Namespace, Operator, wait_for
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec, restore_spec

ELSEWHERE = "../../{}/kafkabackups/nightly"
NAMES = ["../x", "..", "Nightly", "a..b", "a_b", "x/status", "x?y=z", "a" * 254, ""]
REFERENCES: list[tuple[str, str, dict[str, Any]]] = [
    ("KafkaBackupRun", "spec.backupRef.name", {"backupRef": {"name": "@"}}),
    ("KafkaRestore", "spec.source.backupRef.name", restore_spec(source={"backupRef": {"name": "@"}})),
    (
        "KafkaBackup",
        "spec.storage.credentials.secretRef.name",
        backup_spec(storage={"uri": "s3://bucket/x", "credentials": {"secretRef": {"name": "@"}}}),
    ),
    (
        "KafkaBackup",
        "spec.storage.tls.caSecretRef.name",
        backup_spec(storage={"uri": "s3://bucket/x", "tls": {"caSecretRef": {"name": "@"}}}),
    ),
    (
        "KafkaBackup",
        "spec.storage.volume.claimName",
        backup_spec(storage={"uri": "file:///archive", "volume": {"claimName": "@"}}),
    ),
    ("KafkaBackup", "spec.spark.serviceAccountName", backup_spec(spark={"serviceAccountName": "@"})),
    (
        "KafkaBackup",
        "spec.cluster.strimzi.name",
        backup_spec(cluster={"strimzi": {"name": "@", "listener": "tls"}}),
    ),
    (
        "KafkaBackup",
        "spec.spark.executor.podTemplate.spec.imagePullSecrets[0].name",
        backup_spec(spark={"executor": {"podTemplate": {"spec": {"imagePullSecrets": [{"name": "@"}]}}}}),
    ),
]


def named(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """The spec with this name in its reference."""
    found: dict[str, Any] = json.loads(json.dumps(spec).replace('"@"', json.dumps(name)))
    return found


@pytest.mark.parametrize(("kind", "field", "spec"), REFERENCES, ids=[field for _, field, _ in REFERENCES])
def test_a_reference_takes_names_only(namespace: Namespace, kind: str, field: str, spec: dict[str, Any]) -> None:
    for name in NAMES:
        answer = namespace.apply(kind, "x", named(spec, name))
        assert answer.returncode != 0, name
        assert field in answer.stderr
    answer = namespace.apply(kind, "x", named(spec, "a-1.b.c2"))
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("key", ["..", ".", "..data", "a/b", ""])
def test_a_key_of_a_secret_is_one_that_kubernetes_takes(namespace: Namespace, key: str) -> None:
    def spec(key: str) -> dict[str, Any]:
        reference = {"name": "s3", "accessKeyIdKey": key}
        return backup_spec(storage={"uri": "s3://bucket/x", "credentials": {"secretRef": reference}})

    answer = namespace.apply("KafkaBackup", "x", spec(key))
    assert answer.returncode != 0
    assert "accessKeyIdKey" in answer.stderr
    assert namespace.apply("KafkaBackup", "x", spec(".dockerconfigjson")).returncode == 0


@pytest.fixture
def earlier_crds(api: ApiServer) -> Iterator[None]:
    """CRDs that take any text as a name, as earlier ones did. They are as they were when the context ends."""
    folder = ROOT / "crds"
    for file in sorted(folder.glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
        api.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(_lax(body)))
    yield
    api.kubectl("apply", "--server-side", "--force-conflicts", "-f", folder)


def _lax(part: Any) -> Any:
    if isinstance(part, dict):
        dropped = ("pattern", RULES)
        return {key: _lax(value) for key, value in part.items() if key not in dropped or isinstance(value, dict)}
    return [_lax(item) for item in part] if isinstance(part, list) else part


def test_who_may_only_ask_starts_no_run_in_another_namespace(
    api: ApiServer, namespace: Namespace, operator: Operator, earlier_crds: None
) -> None:
    """The resources came in with CRDs without patterns; with the present ones their status is reported all the same."""
    other = Namespace(api, f"{namespace.name}-b")
    assert other.apply("KafkaBackup", "nightly", backup_spec()).returncode == 0
    name = ELSEWHERE.format(other.name)

    def taken() -> bool | None:
        made = namespace.apply("KafkaBackupRun", "steal", {"backupRef": {"name": name}})
        return True if made.returncode == 0 else None

    wait_for("the API server to serve the earlier CRDs", taken)
    restore = restore_spec(source={"backupRef": {"name": name}}, drill={"prefix": "d."})
    assert namespace.apply("KafkaRestore", "liar", restore).returncode == 0
    api.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")

    def failed() -> dict[str, Any] | None:
        status = namespace.status("kbrun", "steal")
        return status if status.get("phase") == "Failed" else None

    status = wait_for("the KafkaBackupRun to be told", failed)
    assert status["message"].startswith(f"spec.backupRef.name: {name!r} is not a name in Kubernetes")
    assert namespace.condition("kbrun", "steal", "Stalled")["reason"] == "InvalidSpec"
    namespace.reason("krst", "liar", "InvalidSpec")
    assert [body for ns in (namespace, other) for body in ns.items("jobs")] == []
    backup = other.get("kbak", "nightly")
    assert backup["status"] == {"observedGeneration": -1}, "as the API server makes it"
    assert [one["manager"] for one in backup["metadata"]["managedFields"]] == ["user"]

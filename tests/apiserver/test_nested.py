"""Resources that nest as deep as the API server takes them: their owner is told, and they stop no other."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.apiserver.operator import Namespace, Operator, wait_for
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(300)


def apply_nested(namespace: Namespace, folder: Path, name: str, levels: int) -> None:
    """A KafkaBackup whose driver has a nested affinity. Python's own JSON does not write it."""
    spec = backup_spec(spark={"driver": {"podTemplate": {"spec": {"affinity": {"nodeAffinity": "HERE"}}}}})
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": name}, "spec": spec}
    text = json.dumps(body).replace('"HERE"', '{"a":' * levels + "{}" + "}" * levels)
    file = folder / f"{name}.json"
    file.write_text(text)
    path = f"/apis/logkeep.dev/v1alpha1/namespaces/{namespace.name}/kafkabackups"
    assert namespace.kubectl("create", "--raw", path, "-f", str(file)).returncode == 0


def message_of(namespace: Namespace, name: str) -> str:
    """Reason and message of Ready; the answer as a whole is too deep for Python's JSON."""
    ready = ".status.conditions[?(@.type=='Ready')]"
    path = f"{{{ready}.reason}} {{{ready}.message}}"
    return namespace.kubectl("get", "kbak", name, "-o", f"jsonpath={path}").stdout


def is_refused(namespace: Namespace, name: str) -> bool:
    return "it nests deeper" in message_of(namespace, name)


def test_a_deeply_nested_resource_is_told_so_and_stops_no_other(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    apply_nested(namespace, tmp_path, "deep", 800)
    apply_nested(namespace, tmp_path, "deeper", 9000)
    with Operator(operator_kubeconfig, namespace.name, tmp_path / "operator.log"):
        answer = namespace.apply("KafkaBackup", "other", backup_spec())
        assert answer.returncode == 0, answer.stderr
        wait_for("the Job of the other", lambda: namespace.items("jobs"))
        for name in ("deep", "deeper"):
            wait_for(f"what {name} is told", partial(is_refused, namespace, name))
            where = "spec.spark.driver.podTemplate.spec.affinity.nodeAffinity"
            assert message_of(namespace, name) == f"InvalidSpec {where}: it nests deeper than 50 levels"
        (job,) = namespace.items("jobs")
        assert job["metadata"]["annotations"]["logkeep.dev/resource"] == "other"

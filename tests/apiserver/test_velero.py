"""The files of examples/velero on a real API server with Velero's own CRDs: what the hook's command does with its
rights, and what the operator makes of resources that come back as Velero restores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.conftest import chart, service_account_kubeconfig
from tests.apiserver.operator import ROOT, Namespace, Operator, result, run_id_of
from tests.apiserver.plugin import Plugin
from tests.apiserver.test_anchors import FIVE, next_job, request_of, succeeds
from tests.apiserver.test_operator import start
from tests.cluster import tools
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import restore_spec

pytestmark = pytest.mark.timeout(300)

CRDS = ("schedules.velero.io", "restores.velero.io")


def example(name: str, namespace: Namespace | None = None) -> list[dict[str, Any]]:
    """The documents of an example, for a namespace of the test's own."""
    text = (ROOT / "examples" / name).read_text()
    return list(yaml.safe_load_all(text.replace("team-a", namespace.name) if namespace else text))


def hook_of(namespace: Namespace, folder: Path) -> tuple[Plugin, list[str]]:
    """The command `kubectl logkeep` as the account of the hook's pod, and the words that Velero runs there."""
    documents = example("velero/hook.yaml", namespace)
    namespace.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/user-roles.yaml"))
    namespace.kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(documents))
    pod = documents[-1]["spec"]["template"]
    program, *words = json.loads(pod["metadata"]["annotations"]["pre.hook.backup.velero.io/command"])
    assert program == "kubectl-logkeep"
    account = pod["spec"]["serviceAccountName"]
    config = service_account_kubeconfig(namespace.api, account, folder / "hook", namespace.name)
    return Plugin(config, namespace.name), words


def test_velero_takes_the_schedule_and_the_restore(api: ApiServer) -> None:
    for name in CRDS:
        plural = name.partition(".")[0]
        api.kubectl("apply", "--server-side", "-f", tools.velero_crds() / f"velero.io_{plural}.yaml")
    api.kubectl("wait", "--for=create", "--timeout=60s", "crd", *CRDS)
    try:
        api.kubectl("create", "namespace", "velero")
        for name in ("velero/schedule.yaml", "velero/restore.yaml"):
            (document,) = example(name)
            command = ("create", "--validate=strict", "--dry-run=server", "-f", "-")
            assert "created" in api.kubectl(*command, stdin=json.dumps(document)).stdout
    finally:
        api.kubectl("delete", "crd", *CRDS)


def test_the_hook_ends_with_the_run_and_with_its_exit_code(
    namespace: Namespace, operator: Operator, tmp_path: Path
) -> None:
    first = start(namespace)
    succeeds(namespace, first)
    namespace.phase("kbak", "nightly", "Succeeded")
    logkeep, words = hook_of(namespace, tmp_path)
    done = logkeep.start(*words)
    second = next_job(namespace, first)
    succeeds(namespace, second)
    assert done.wait(60) == 0, done.communicate()
    done = logkeep.start(*words)
    third = next_job(namespace, first, second)
    failed: dict[str, Any] = {"outcome": "Failed", "exit_code": 3, "error_code": "BrokerUnavailable", "message": "No."}
    namespace.write(third, result=result(run_id_of(third), **failed))
    namespace.job_ends(third, "Failed")
    said, complained = done.communicate(timeout=60)
    assert done.returncode not in (0, None)
    assert "BrokerUnavailable: No." in said + complained
    at = words.index("--timeout") + 1
    late = logkeep(words[0], *words[1:at], "1")
    assert late.exit_code == 1, late.output
    assert run_id_of(next_job(namespace, first, second, third)), "the run continues"


def test_what_velero_brings_back_asks_for_a_run_of_its_own(namespace: Namespace, operator: Operator) -> None:
    """Velero restores resources without their status, with new uids."""
    first = start(namespace)
    succeeds(namespace, first, anchor=FIVE)
    before = namespace.phase("kbak", "nightly", "Succeeded")
    assert before["archive"]["anchor"] == FIVE
    assert namespace.apply("KafkaRestore", "again", restore_spec()).returncode == 0
    restoring = next_job(namespace, first)
    (schedule,) = example("velero/schedule.yaml")
    (expression,) = schedule["spec"]["template"]["labelSelector"]["matchExpressions"]
    assert expression["operator"] == "DoesNotExist"
    kinds = "kafkabackups,kafkarestores,jobs,configmaps,pods"
    chosen = namespace.kubectl("get", kinds, "-l", f"!{expression['key']}", "-o", "json").stdout
    bodies = [body for body in json.loads(chosen)["items"] if body["metadata"]["name"] != "kube-root-ca.crt"]
    assert {body["kind"] for body in bodies} == {"KafkaBackup", "KafkaRestore"}, "nothing of a run"
    for job in (first, restoring):
        assert job["spec"]["template"]["metadata"]["labels"][expression["key"]] == run_id_of(job)  # type: ignore[index]

    (restore,) = example("velero/restore.yaml")
    left_out = {name.partition(".")[0] for name in restore["spec"]["excludedResources"]}
    namespace.kubectl("delete", "kafkabackups,kafkarestores,jobs,configmaps", "--all")
    for body in bodies:
        if f"{body['kind'].lower()}s" in left_out:
            continue
        metadata = {"name": body["metadata"]["name"], "labels": {"velero.io/restore-name": "team-a"}}
        brought = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata, "spec": body["spec"]}
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(brought))
    job = next_job(namespace, first, restoring)
    requested = request_of(namespace, job)
    assert (requested.kind, requested.name, requested.anchor) == ("KafkaBackup", "nightly", None)
    assert requested.uid == namespace.get("kbak", "nightly")["metadata"]["uid"]
    assert namespace.items("kafkarestores") == []

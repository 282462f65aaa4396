"""The operator's life with a resource: from the first apply to the end, over crashes, in every state a run can be
seen in."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import SYSTEM, apply_permissions, chart, service_account_kubeconfig
from tests.apiserver.operator import (
    DRIVER_ROLE,
    IMAGE,
    NAMESPACED_ROLE,
    Namespace,
    Operator,
    progress,
    result,
    run_id_of,
    wait_for,
)
from tests.cluster import system
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_of_its_own, backup_spec, restore_spec

pytestmark = pytest.mark.timeout(300)

RUNNING: dict[str, Any] = {"phase": "Running"}
UNSCHEDULABLE: dict[str, Any] = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes: Insufficient cpu.",
        }
    ],
}


def start(namespace: Namespace, kind: str = "KafkaBackup", name: str = "nightly", **spec: Any) -> dict[str, Any]:
    """Apply a resource and wait for its Job."""
    own = backup_spec() if name == "nightly" else backup_of_its_own(name)
    base = own if kind == "KafkaBackup" else restore_spec()
    answer = namespace.apply(kind, name, base | spec)
    assert answer.returncode == 0, answer.stderr
    return namespace.job()


def test_a_backup_from_apply_to_success(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    run_id = run_id_of(job)
    names = {item["metadata"]["name"] for item in namespace.items("configmaps")}
    assert {f"{job['metadata']['name']}-request", f"{job['metadata']['name']}-progress"} <= names
    assert {i["metadata"]["name"] for i in namespace.items("serviceaccounts")} >= {"logkeep-engine", "logkeep-executor"}
    assert namespace.get("rolebinding", "logkeep-driver")["roleRef"]["name"] == "logkeep-system-logkeep-driver"
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    status = namespace.phase("kbak", "nightly", "Pending")
    assert status["run"]["id"] == run_id

    namespace.pod(job, "driver", **RUNNING)
    namespace.job_status(job, startTime="2026-11-21T08:00:00Z", active=1)
    namespace.write(job, progress(run_id, 250))
    namespace.phase("kbak", "nightly", "Running")
    wait_for("25 percent", lambda: namespace.status("kbak", "nightly").get("progress", {}).get("percent") == 25)
    namespace.write(job, progress(run_id, 500))
    wait_for("50 percent", lambda: namespace.status("kbak", "nightly")["progress"]["percent"] == 50)
    shown = namespace.kubectl("get", "kbak").stdout.splitlines()
    assert shown[0].split("  ")[0] == "NAME"
    assert shown[1].split()[:5] == ["nightly", "Running", "False", "Running", "50"]

    namespace.write(job, result=result(run_id))
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True", "Reconciling": "False", "Stalled": "False", "DataLoss": "False",
    }  # fmt: skip
    assert status["archive"] == {
        "id": "a1", "uri": "s3://bucket/prefix", "clusterId": "k1", "epoch": 2, "commit": 5,
        "writeTime": status["archive"]["writeTime"],
    }  # fmt: skip
    assert (status["run"]["outcome"], status["history"][0]["runId"]) == ("Succeeded", run_id)
    wait_for("events", lambda: namespace.events("nightly") == ["RunStarted", "RunSucceeded"])
    namespace.kubectl("wait", "--for=condition=Ready", "kbak/nightly", "--timeout=30s")


def test_no_finalizer_no_foreign_label_and_no_secret_in_anything_it_writes(
    namespace: Namespace, operator: Operator
) -> None:
    namespace.kubectl(
        "create",
        "secret",
        "generic",
        "s3",
        "--from-literal=accessKeyId=AKIA1",
        "--from-literal=secretAccessKey=TOPSECRET",
    )
    job = start(namespace)
    namespace.write(job, result=result(run_id_of(job)))
    namespace.phase("kbak", "nightly", "Succeeded")
    body = namespace.get("kbak", "nightly")
    assert "finalizers" not in body["metadata"]
    assert "annotations" not in body["metadata"]
    children = namespace.items("jobs") + [
        c for c in namespace.items("configmaps") if "nightly" in c["metadata"]["name"]
    ]
    assert len(children) == 3
    for child in children:
        assert not any("argocd" in label for label in child["metadata"]["labels"])
        assert [owner["name"] for owner in child["metadata"]["ownerReferences"]] == ["nightly"]
    everything = json.dumps([body, *children, *namespace.items("events")])
    assert "TOPSECRET" not in everything
    assert "AKIA1" not in everything
    assert "TOPSECRET" not in operator.log.read_text()


def test_the_operator_may_be_killed_between_any_two_steps(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    run_id = run_id_of(job)
    operator.kill()
    namespace.pod(job, "driver", **RUNNING)
    namespace.write(job, progress(run_id, 400))
    operator.start()
    wait_for("40 percent", lambda: namespace.status("kbak", "nightly").get("progress", {}).get("percent") == 40)
    operator.kill()
    namespace.write(job, result=result(run_id))
    namespace.job_ends(job, "Complete")
    namespace.kubectl("delete", "pod", "driver", "--force", "--grace-period=0")
    operator.start()
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert status["run"]["id"] == run_id
    operator.kill()
    namespace.kubectl("delete", "job", job["metadata"]["name"])
    operator.start()
    namespace.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=2")
    second = wait_for("a second run", lambda: namespace.items("jobs"))
    assert run_id_of(second[0]) != run_id
    assert len(second) == 1


def test_a_failed_run_says_why(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    message = "Topic orders does not exist. Correct spec.topics.include."
    ended = result(run_id_of(job), outcome="Failed", exit_code=2, error_code="NoTopicMatches", message=message)
    terminated = {"exitCode": 2, "reason": "Error", "message": ended.to_termination_message(4096)}
    container = {"name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    namespace.pod(job, "driver", phase="Failed", containerStatuses=[{**container, "state": {"terminated": terminated}}])
    namespace.job_ends(job, "Failed", "PodFailurePolicy", "Container driver failed with exit code 2")
    status = namespace.phase("kbak", "nightly", "Failed")
    stalled = namespace.condition("kbak", "nightly", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NoTopicMatches")
    assert message in stalled["message"]
    assert message in status["run"]["message"]
    wait_for("events", lambda: namespace.events("nightly") == ["RunStarted", "RunFailed", "PatternsUnmatched"])


def test_suspend_and_resume(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    namespace.apply("KafkaBackup", "nightly", backup_spec(suspend=True))
    namespace.phase("kbak", "nightly", "Suspended")
    assert namespace.job()["spec"]["suspend"] is True
    namespace.apply("KafkaBackup", "nightly", backup_spec(suspend=False))
    namespace.phase("kbak", "nightly", "Pending")
    assert namespace.job()["spec"]["suspend"] is False
    assert namespace.job()["metadata"]["uid"] == job["metadata"]["uid"]
    wait_for("events", lambda: namespace.events("nightly") == ["RunStarted", "Suspended", "Resumed"])


def test_an_invalid_expression_names_the_field(namespace: Namespace, operator: Operator) -> None:
    namespace.apply("KafkaBackup", "nightly", backup_spec(topics={"include": ["orders("]}))
    namespace.phase("kbak", "nightly", "Invalid")
    stalled = namespace.condition("kbak", "nightly", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert stalled["message"].startswith("spec.topics.include[0]: 'orders('")
    assert namespace.items("jobs") == []
    namespace.apply("KafkaBackup", "nightly", backup_spec())
    namespace.phase("kbak", "nightly", "Pending")


def test_a_restore_finds_its_backup_when_it_comes(namespace: Namespace, operator: Operator) -> None:
    namespace.apply("KafkaRestore", "again", restore_spec())
    namespace.reason("krst", "again", "BackupNotFound")
    namespace.apply("KafkaBackup", "nightly", backup_spec())
    backup = namespace.job()
    stalled = namespace.reason("krst", "again", "WaitingForBackup")
    assert "KafkaBackup 'nightly' has not succeeded yet" in stalled["message"]
    assert namespace.condition("krst", "again", "Stalled")["status"] == "False"
    assert len(namespace.items("jobs")) == 1
    namespace.write(backup, result=result(run_id_of(backup)))

    def restores() -> list[dict[str, Any]]:
        return [job for job in namespace.items("jobs") if "again" in job["metadata"]["name"]]

    job = wait_for("the restore's Job", restores)[0]
    request = namespace.get("configmap", f"{job['metadata']['name']}-request")["data"]["request.json"]
    assert json.loads(request)["spec"]["source"]["storage"]["uri"] == "s3://bucket/prefix"
    offset_map = "s3://bucket/prefix/runs/x/offset-maps"
    namespace.write(job, result=result(run_id_of(job), kind="KafkaRestore", offset_map=offset_map))
    assert namespace.phase("krst", "again", "Succeeded")["offsetMap"] == offset_map
    namespace.kubectl("delete", "job", "--all")
    namespace.kubectl("annotate", "krst", "again", "logkeep.dev/run=2")
    namespace.apply("KafkaBackup", "other", backup_of_its_own("other"))
    wait_for("another resource's Job", lambda: [j for j in namespace.items("jobs") if "other" in j["metadata"]["name"]])
    assert not [j for j in namespace.items("jobs") if "again" in j["metadata"]["name"]], "a restore runs once"


def test_pods_that_do_not_start_are_in_the_status(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    namespace.pod(job, "driver", **UNSCHEDULABLE)
    assert "Insufficient cpu" in namespace.reason("kbak", "nightly", "DriverUnschedulable")["message"]
    container = {"name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "s3" not found'}
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    state = [{**container, "state": {"waiting": waiting}}]
    namespace.pod(job, "driver", phase="Pending", conditions=scheduled, containerStatuses=state)
    namespace.reason("kbak", "nightly", "SecretMissing")
    namespace.pod(job, "driver", phase="Running", conditions=scheduled, containerStatuses=[])
    namespace.pod(job, "driver-exec-1", role="executor", **UNSCHEDULABLE)
    assert "1 of 1 executor pods" in namespace.reason("kbak", "nightly", "ExecutorsUnschedulable")["message"]
    assert namespace.status("kbak", "nightly")["phase"] == "Running"
    namespace.pod(job, "driver-exec-1", role="executor", phase="Running", conditions=scheduled)
    namespace.reason("kbak", "nightly", "Running")
    troubles = {"DriverUnschedulable", "SecretMissing", "ExecutorsUnschedulable"}
    wait_for("events", lambda: troubles <= set(namespace.events("nightly")))


def test_a_job_that_may_not_make_pods_is_in_the_status(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "failed-create"}, "type": "Warning",
        "reason": "FailedCreate", "message": "Error creating: pods is forbidden: exceeded quota: compute",
        "involvedObject": {"kind": "Job", "name": job["metadata"]["name"], "namespace": namespace.name},
        "lastTimestamp": "2026-11-21T08:00:00Z",
    }  # fmt: skip
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(event))

    def said() -> dict[str, Any] | None:
        ready = namespace.condition("kbak", "nightly", "Ready")
        return ready if ready.get("reason") == "DriverNotCreated" else None

    assert "exceeded quota: compute" in wait_for("the quota's words", said)["message"]


def test_what_the_api_refuses_is_in_the_status(namespace: Namespace, operator: Operator) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-jobs"}, "spec": {"hard":
        {"count/jobs.batch": "0"}},
    }  # fmt: skip
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    hard = {"status": {"hard": {"count/jobs.batch": "0"}, "used": {"count/jobs.batch": "0"}}}
    namespace.kubectl(
        "patch", "resourcequota", "no-jobs", "--subresource=status", "--type=merge", "-p", json.dumps(hard)
    )
    namespace.apply("KafkaBackup", "nightly", backup_spec())
    assert "exceeded quota: no-jobs" in namespace.reason("kbak", "nightly", "ApiRefused")["message"]
    namespace.kubectl("delete", "resourcequota", "no-jobs")
    namespace.job()


def test_a_deleted_resource_is_forgotten(namespace: Namespace, operator: Operator) -> None:
    start(namespace)
    namespace.kubectl("delete", "kbak", "nightly", "--timeout=60s")
    namespace.kubectl("delete", "jobs", "--all")  # as the garbage collector
    namespace.apply("KafkaBackup", "other", backup_of_its_own("other"))
    wait_for("the other's Job", lambda: [j for j in namespace.items("jobs") if "other" in j["metadata"]["name"]])
    assert not [j for j in namespace.items("jobs") if "nightly" in j["metadata"]["name"]]


def test_a_changed_spec_replaces_the_run(namespace: Namespace, operator: Operator) -> None:
    first = start(namespace)
    namespace.apply("KafkaBackup", "nightly", backup_spec(topics={"include": ["payments"]}))

    def replaced() -> list[dict[str, Any]]:
        return [job for job in namespace.items("jobs") if run_id_of(job) != run_id_of(first)]

    second = wait_for("another Job", replaced)[0]
    assert [run_id_of(job) for job in namespace.items("jobs")] == [run_id_of(second)]
    status = namespace.phase("kbak", "nightly", "Pending")
    assert [(entry["runId"], entry["outcome"]) for entry in status["history"]] == [(run_id_of(first), "Replaced")]


def test_sigterm_ends_the_operator(namespace: Namespace, operator: Operator) -> None:
    start(namespace)
    stopped_at = time.monotonic()
    assert operator.terminate() == 0
    assert time.monotonic() - stopped_at < 4  # kopf gives what hangs five seconds


# ---- the chart's permissions


def selfcheck(kubeconfig: Path, namespaces: str, role: str = DRIVER_ROLE) -> tuple[int, str]:
    import sys

    environment = {
        "KUBECONFIG": str(kubeconfig), "LOGKEEP_NAMESPACES": namespaces, "PYTHONPATH": "operator:engine",
        "LOGKEEP_ENGINE_IMAGE": IMAGE, "LOGKEEP_DRIVER_ROLE": role, "LOGKEEP_LEASE_NAME": "logkeep",
        "LOGKEEP_LEASE_NAMESPACE": SYSTEM,
    }  # fmt: skip
    done = system.run([sys.executable, "-m", "logkeep_operator.selfcheck"], check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_the_charts_cluster_wide_permissions_are_what_the_operator_needs(
    api: ApiServer, operator_kubeconfig: Path
) -> None:
    apply_permissions(api)
    assert selfcheck(operator_kubeconfig, "") == (
        0,
        "logkeep: the CRDs have all fields, and no right is missing\n",
    )


def test_the_charts_permissions_by_namespace_are_enough_there_and_nothing_elsewhere(
    api: ApiServer, operator_kubeconfig: Path, namespace: Namespace, tmp_path: Path
) -> None:
    narrow = ["--set", f"watchNamespaces={{{namespace.name}}}", "--set", "serviceAccount.name=narrow"]
    api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/rbac.yaml", *narrow))
    kubeconfig = service_account_kubeconfig(api, "narrow", tmp_path / "narrow")
    role = NAMESPACED_ROLE
    assert selfcheck(kubeconfig, namespace.name, role)[0] == 0
    code, said = selfcheck(kubeconfig, "default", role)
    assert code == 1
    assert "may not create jobs.batch in default" in said
    with Operator(kubeconfig, namespace.name, tmp_path / "log", LOGKEEP_DRIVER_ROLE=role):
        start(namespace)

"""Argo CD, Flux and `kubectl` judge resources: their health in every state, and who owns which field."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.health import Verdict, judge
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.unit.operator.world import backup_of_its_own, backup_spec, restore_spec

pytestmark = pytest.mark.timeout(600)

ARGO = "argocd-controller"
FLUX = "kustomize-controller"
OPERATOR = "logkeep-operator"
IN_PROGRESS = Verdict("InProgress", "Progressing")
FAILED = Verdict("Failed", "Degraded")
DONE = Verdict("Current", "Healthy")


def ask(namespace: Namespace, name: str, kind: str = "KafkaBackup", **spec: Any) -> None:
    base = backup_of_its_own(name) if kind == "KafkaBackup" else restore_spec()
    answer = namespace.apply(kind, name, base | spec)
    assert answer.returncode == 0, answer.stderr


def job_of(namespace: Namespace, name: str) -> dict[str, Any]:
    """Wait for the Job of a resource."""

    def look() -> dict[str, Any] | None:
        found = namespace.items("jobs")
        return next((j for j in found if j["metadata"]["annotations"]["logkeep.dev/resource"] == name), None)

    return wait_for(f"the Job of {name}", look)


def is_ready_for_kubectl(namespace: Namespace, name: str) -> bool:
    done = namespace.kubectl("wait", "--for=condition=Ready", name, "--timeout=1s", check=False)
    return done.returncode == 0


def test_kstatus_argo_cd_and_kubectl_agree_in_every_state(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    seen: dict[str, tuple[dict[str, Any], Verdict]] = {}

    def see(state: str, kind: str, name: str, wanted: Verdict) -> None:
        seen[state] = namespace.get(kind, name), wanted

    ask(namespace, "nightly")
    ask(namespace, "again", "KafkaRestore")
    requested = namespace.apply("KafkaBackupRun", "now", {"backupRef": {"name": "nightly"}})
    assert requested.returncode == 0, requested.stderr
    see("a backup that nobody has looked at", "kbak", "nightly", IN_PROGRESS)
    see("a KafkaBackupRun that nobody has looked at", "kbrun", "now", IN_PROGRESS)
    see("a restore that nobody has looked at", "krst", "again", IN_PROGRESS)
    assert namespace.apply("KafkaArchive", "lake", {"storage": backup_spec()["storage"]}).returncode == 0
    see("an archive that nobody has looked at", "karc", "lake", IN_PROGRESS)
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_MAX_CONCURRENT_RUNS="1") as operator:
        nightly = job_of(namespace, "nightly")
        namespace.phase("kbak", "nightly", "Pending")
        see("a run that begins", "kbak", "nightly", IN_PROGRESS)
        namespace.reason("krst", "again", "WaitingForBackup")
        see("a restore that waits", "krst", "again", IN_PROGRESS)
        ask(namespace, "other")
        namespace.reason("kbak", "other", "Queued")
        see("a run in the queue", "kbak", "other", IN_PROGRESS)
        ask(namespace, "wrong", topics={"include": ["orders("]})
        namespace.phase("kbak", "wrong", "Invalid")
        see("an invalid spec", "kbak", "wrong", FAILED)
        ask(namespace, "asleep", suspend=True)
        namespace.phase("kbak", "asleep", "Suspended")
        namespace.reason("karc", "lake", "Usable")
        see("an archive", "karc", "lake", DONE)
        elsewhere = backup_spec()["storage"] | {"endpoint": "https://elsewhere:9000"}
        assert namespace.apply("KafkaArchive", "lake", {"storage": elsewhere}).returncode == 0
        namespace.reason("karc", "lake", "NotAllowed")
        see("an archive that is not allowed", "karc", "lake", FAILED)
        see("suspended", "kbak", "asleep", Verdict("InProgress", "Suspended"))
        namespace.pod(nightly, "driver", phase="Running")
        namespace.phase("kbak", "nightly", "Running")
        see("a run that goes on", "kbak", "nightly", IN_PROGRESS)
        namespace.write(nightly, result=result(run_id_of(nightly)))
        namespace.job_ends(nightly, "Complete")
        namespace.pod(nightly, "driver", phase="Succeeded")
        namespace.phase("kbak", "nightly", "Succeeded")
        see("a success", "kbak", "nightly", DONE)
        namespace.phase("kbrun", "now", "Succeeded")
        see("a KafkaBackupRun whose run has succeeded", "kbrun", "now", DONE)
        assert is_ready_for_kubectl(namespace, "kbak/nightly")

        other = job_of(namespace, "other")
        failure: dict[str, Any] = {
            "outcome": "Failed",
            "exit_code": 2,
            "error_code": "NoTopicMatches",
            "message": "No topic.",
        }
        namespace.write(other, result=result(run_id_of(other), **failure))
        namespace.job_ends(other, "Failed", "PodFailurePolicy", "exit code 2")
        namespace.phase("kbak", "other", "Failed")
        see("a failure", "kbak", "other", FAILED)
        restore = job_of(namespace, "again")
        before: dict[str, Any] = {"kind": "KafkaRestore", "earlier_run": "0123456789", "earlier_end": 1763625600.0}
        namespace.write(restore, result=result(run_id_of(restore), **before))
        namespace.job_ends(restore, "Complete")
        namespace.reason("krst", "again", "RestoredBefore")
        see("a restore that was done before", "krst", "again", DONE)
        operator.kill()
        ask(namespace, "nightly", topics={"include": ["payments"]})
        see("a changed spec that nobody has looked at", "kbak", "nightly", IN_PROGRESS)
        assert not is_ready_for_kubectl(namespace, "kbak/nightly")

    verdicts = judge([body for body, _ in seen.values()])
    found = dict(zip(seen, verdicts, strict=True))
    assert found == {state: wanted for state, (_, wanted) in seen.items()}


def test_a_restore_that_git_creates_again_is_reported_as_done_and_runs_again_when_asked(
    namespace: Namespace, operator: Operator
) -> None:
    def begun(*earlier: str) -> tuple[dict[str, Any], str]:
        """The Job of another run, and the name under which the engine looks for an earlier one."""

        def look() -> dict[str, Any] | None:
            return next((job for job in namespace.items("jobs") if run_id_of(job) not in earlier), None)

        job = wait_for("a Job", look)
        request = namespace.get("configmap", f"{job['metadata']['name']}-request")["data"]["request.json"]
        return job, json.loads(request)["rememberedAs"]

    def succeed(job: dict[str, Any], **more: Any) -> None:
        namespace.write(job, result=result(run_id_of(job), kind="KafkaRestore", **more))
        namespace.job_ends(job, "Complete")

    wanted = {"source": {"storage": {"uri": "s3://bucket/prefix"}}}
    ask(namespace, "again", "KafkaRestore", **wanted)
    first, name = begun()
    assert name == f"KafkaRestore {namespace.name}/again"
    succeed(first)
    namespace.phase("krst", "again", "Succeeded")
    namespace.kubectl("delete", "krst", "again")
    namespace.kubectl("delete", "jobs,configmaps", "-l", "logkeep.dev/name=again")  # as the garbage collector

    ask(namespace, "again", "KafkaRestore", **wanted)
    second, name = begun(run_id_of(first))
    assert name == f"KafkaRestore {namespace.name}/again"
    succeed(second, earlier_run=run_id_of(first), earlier_end=1763625600.0, message="Nothing was written")
    ready = namespace.reason("krst", "again", "RestoredBefore")
    assert "annotate krst again logkeep.dev/run-again=" in ready["message"]
    status = namespace.status("krst", "again")
    assert (status["restoredBy"], status["lastSuccessTime"]) == (run_id_of(first), "2025-11-20T08:00:00Z")

    namespace.kubectl("annotate", "krst", "again", "logkeep.dev/run-again=2")
    third, name = begun(run_id_of(first), run_id_of(second))
    assert name == f"KafkaRestore {namespace.name}/again, run again: 2"
    succeed(third)
    namespace.reason("krst", "again", "RunSucceeded")
    status = namespace.status("krst", "again")
    assert "restoredBy" not in status
    assert status["lastHandledRunAgain"] == "2"


def manifest(**spec: Any) -> str:
    """A backup as it lies in Git: with fields whose defaults the API server adds to."""
    metadata = {"name": "nightly", "labels": {"app.kubernetes.io/instance": "kafka"}}
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": metadata}
    return json.dumps({**body, "spec": backup_spec(runPolicy={"backoffLimit": 2}) | spec})


def apply(namespace: Namespace, manager: str, body: str, *more: str) -> subprocess.CompletedProcess[str]:
    manager_flag = f"--field-manager={manager}"
    return namespace.kubectl("apply", "--server-side", manager_flag, *more, "-f", "-", stdin=body, check=False)


def differs(namespace: Namespace, manager: str, body: str) -> str:
    """The drift that a GitOps tool sees, empty if none. Such tools take the fields of others."""
    done = namespace.kubectl(
        "diff", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-", stdin=body, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def owned(body: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """The parts of the resource in which a manager owns fields, by manager and subresource."""
    entries = body["metadata"]["managedFields"]
    return {(entry["manager"], entry.get("subresource", "")): set(entry["fieldsV1"]) for entry in entries}


def test_two_managers_apply_a_backup_and_the_operator_owns_its_status_only(
    namespace: Namespace, operator: Operator
) -> None:
    for manager in (ARGO, FLUX):  # the same fields with the same values are no conflict
        answer = apply(namespace, manager, manifest())
        assert answer.returncode == 0, answer.stderr
    job = namespace.job()
    requested = {"metadata": {"annotations": {"example.com/note": "by hand"}, "finalizers": ["example.com/keep"]}}
    namespace.patch("kbak", "nightly", requested)
    namespace.pod(job, "driver", phase="Running")
    namespace.phase("kbak", "nightly", "Running")
    refused = apply(namespace, "kubectl", manifest(topics={"include": ["payments"]}))
    assert refused.returncode != 0, "a person does not change what Git has by mistake"
    assert ARGO in refused.stderr
    assert OPERATOR not in refused.stderr
    namespace.write(job, result=result(run_id_of(job)))
    namespace.job_ends(job, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")

    body = namespace.get("kbak", "nightly")
    owners = owned(body)
    assert {key: parts for key, parts in owners.items() if key[0] == OPERATOR} == {(OPERATOR, "status"): {"f:status"}}
    assert [key for key, parts in owners.items() if "f:status" in parts] == [(OPERATOR, "status")]
    assert owners[ARGO, ""] == owners[FLUX, ""] == {"f:metadata", "f:spec"}
    assert body["metadata"]["annotations"] == {"example.com/note": "by hand"}
    assert body["metadata"]["finalizers"] == ["example.com/keep"]
    for manager in (ARGO, FLUX):
        assert differs(namespace, manager, manifest()) == ""
        assert apply(namespace, manager, manifest()).returncode == 0
    after = namespace.get("kbak", "nightly")
    assert after["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"], "no sync writes anything"
    assert "payments" in differs(namespace, ARGO, manifest(topics={"include": ["payments"]})), "a change is seen"

    suspended = apply(namespace, "kubectl", manifest_of_suspension())
    assert suspended.returncode == 0, suspended.stderr
    namespace.phase("kbak", "nightly", "Suspended")
    assert differs(namespace, ARGO, manifest()) == "", "what Git does not say is the person's"
    namespace.patch("kbak", "nightly", {"metadata": {"finalizers": None}})


def manifest_of_suspension() -> str:
    """The one field that a person adds to what Git says."""
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "nightly"}}
    return json.dumps({**body, "spec": {"suspend": True}})

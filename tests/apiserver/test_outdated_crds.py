"""CRDs of an earlier version on a real API server, which drops what they lack without a word: nothing runs twice, no
dry run becomes a restore, and everybody is told."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.conftest import apply_permissions, chart, install_crds, service_account_kubeconfig
from tests.apiserver.operator import ROOT, Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_operator import selfcheck
from tests.cluster import names, system
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec, restore_spec

pytestmark = pytest.mark.timeout(300)

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OPENAPI = "/openapi/v3/apis/logkeep.dev/v1alpha1"
LACKED = {
    "kafkabackups": ("status.lastHandledBackupRuns", "status.nextScheduleTime", "spec.dryRun"),
    "kafkarestores": ("status.run", "status.lastHandledRunAgain", "spec.dryRun"),
}
OPEN_RESTORE = restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}})


def published(api: ApiServer, plural: str, path: str) -> bool:
    """Whether the API server publishes a field of a CRD."""
    kind = {"kafkabackups": "KafkaBackup", "kafkarestores": "KafkaRestore"}[plural]
    part, field = path.split(".")
    schema = (api.connection.get(OPENAPI) or {})["components"]["schemas"][f"dev.logkeep.v1alpha1.{kind}"]
    return field in schema["properties"][part]["properties"]


def lacks(api: ApiServer, plural: str, path: str) -> bool:
    return not published(api, plural, path)


@pytest.fixture
def old_crds(api: ApiServer) -> Iterator[Callable[[], None]]:
    """Replaces the CRDs by those of an earlier version; after the test they are ours again."""

    def replace() -> None:
        for plural, paths in LACKED.items():
            crd = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())
            properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
            for path in paths:
                part, field = path.split(".")
                del properties[part]["properties"][field]
                for rule in list(properties[part].get("x-kubernetes-validations", ())):
                    if field in rule["rule"]:
                        properties[part]["x-kubernetes-validations"].remove(rule)
            api.kubectl("replace", "-f", "-", stdin=json.dumps(crd))
            wait_for("the old CRD", partial(lacks, api, plural, paths[0]))

    yield replace
    new_crds(api)


def new_crds(api: ApiServer) -> None:
    """Apply our CRDs as docs/guides/upgrade.md says."""
    api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    install_crds(api)
    wait_for(
        "our CRDs", lambda: all(published(api, plural, path) for plural, paths in LACKED.items() for path in paths)
    )


def make(namespace: Namespace, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> None:
    """Make a resource as a client without strict validation does."""
    metadata = {"name": name, "annotations": annotations}
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    namespace.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(body))


def end(namespace: Namespace, job: dict[str, Any], kind: str) -> None:
    namespace.write(job, result=result(run_id_of(job), kind=kind))
    namespace.job_ends(job, "Complete")


def metric(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        (line,) = (text for text in answer.read().decode().splitlines() if text.startswith("logkeep_crds_outdated "))
    return str(line.rpartition(" ")[2])


def test_with_old_crds_nothing_begins_and_everybody_is_told(
    api: ApiServer,
    namespace: Namespace,
    operator_kubeconfig: Path,
    old_crds: Callable[[], None],
    tmp_path: Path,
) -> None:
    old_crds()
    (port,) = system.free_ports(1)
    with Operator(
        operator_kubeconfig, namespace.name, tmp_path / "operator.log", LOGKEEP_METRICS_PORT=str(port)
    ) as operator:
        make(namespace, "KafkaBackup", "nightly", backup_spec())
        make(namespace, "KafkaBackupRun", "ask", {"backupRef": {"name": "nightly"}})
        make(namespace, "KafkaRestore", "dry", OPEN_RESTORE | {"dryRun": True})
        make(namespace, "KafkaRestore", "again", OPEN_RESTORE, **{"logkeep.dev/run-again": "1"})
        for kind, name in (("kbak", "nightly"), ("krst", "dry"), ("krst", "again")):
            reported = namespace.reason(kind, name, "CrdsOutdated")["message"]
            assert "kafkabackups.logkeep.dev lacks spec.dryRun, status." in reported
            assert "kafkarestores.logkeep.dev lacks spec.dryRun, status.run, status.lastHandledRunAgain" in reported
            assert f"kubectl apply --server-side --force-conflicts -f {names.file('logkeep-crds.yaml')}" in reported
            assert namespace.condition(kind, name, "Stalled")["status"] == "True"
        assert metric(port) == "1.0"
        assert operator.log.read_text().count("ERROR") == 1
        code, said = selfcheck(operator_kubeconfig, "")
        assert code == 1
        assert "The CRDs in this cluster are older than this operator" in said
        assert namespace.items("jobs") == []
        assert "runId" not in namespace.status("kafkabackuprun", "ask")

        new_crds(api)
        job = namespace.job("nightly-")
        end(namespace, job, "KafkaBackup")
        namespace.phase("kbak", "nightly", "Succeeded")
        wait_for("the asked run", lambda: namespace.status("kafkabackuprun", "ask").get("runId"))
        namespace.job("again-")
        wait_for(
            "a word of what is missing",
            lambda: "such as dryRun" in namespace.condition("krst", "dry", "Ready")["message"],
        )
        assert not [job for job in namespace.items("jobs") if job["metadata"]["name"].startswith("dry-")]
        assert metric(port) == "0.0"
        apply_permissions(api)  # an installation of another test may have taken over those for the Lease
        code, said = selfcheck(operator_kubeconfig, "")
        assert code == 0, said
        namespace.kubectl("delete", "krst", "dry")
        make(namespace, "KafkaRestore", "dry", OPEN_RESTORE | {"dryRun": True})
        begun = namespace.job("dry-")
        request = namespace.get("configmap", f"{begun['metadata']['name']}-request")["data"]["request.json"]
        assert json.loads(request)["spec"]["dryRun"] is True


def test_what_old_crds_hide_is_there_again_with_the_new_ones_and_no_restore_runs_twice(
    api: ApiServer, namespace: Namespace, operator: Operator, old_crds: Callable[[], None]
) -> None:
    make(namespace, "KafkaRestore", "again", OPEN_RESTORE, **{"logkeep.dev/run-again": "1"})
    end(namespace, namespace.job("again-"), "KafkaRestore")
    namespace.phase("krst", "again", "Succeeded")
    assert namespace.status("krst", "again")["lastHandledRunAgain"] == "1"
    operator.kill()
    old_crds()
    assert "run" not in namespace.status("krst", "again"), "the API server hides it"
    operator.start()
    wait_for("an Event", lambda: "CrdsOutdated" in namespace.events("again"))
    new_crds(api)
    operator.kill()
    operator.start()
    make(namespace, "KafkaBackup", "nightly", backup_spec())
    namespace.job("nightly-")  # it works again
    assert namespace.status("krst", "again")["lastHandledRunAgain"] == "1"
    assert len([job for job in namespace.items("jobs") if job["metadata"]["name"].startswith("again-")]) == 1
    assert namespace.condition("krst", "again", "Ready")["reason"] == "RunSucceeded"


def hook(api: ApiServer, folder: Path) -> Path:
    """The chart's hook before an upgrade, as far as it needs no pod: its account, its rights and its CRDs. Returns the
    kubeconfig of the account; the CRDs are in the folder."""
    shown = chart("--set", "crds.upgrade=true", "--show-only", "templates/crds-upgrade.yaml")
    bodies = {body["kind"]: body for body in yaml.safe_load_all(shown)}
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        api.kubectl("apply", "-f", "-", stdin=json.dumps(bodies[kind]))
    (container,) = bodies["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python3", "-m", "logkeep_operator.apply_crds", "/crds"]
    for name, text in bodies["ConfigMap"]["data"].items():
        (folder / name).write_text(text)
    return service_account_kubeconfig(api, bodies["Job"]["metadata"]["name"], folder / "kubeconfig")


def applied(kubeconfig: Path, *folders: Path) -> tuple[int, str]:
    """The exit code of the hook's program, and what it says."""
    environment = {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'engine'}"}
    command: list[str | Path] = [sys.executable, "-m", "logkeep_operator.apply_crds", *folders]
    done = system.run(command, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_hook_of_an_upgrade_applies_the_crds_with_the_rights_that_the_chart_gives_it(
    api: ApiServer, operator_kubeconfig: Path, old_crds: Callable[[], None], tmp_path: Path
) -> None:
    old_crds()
    code, said = applied(hook(api, tmp_path), tmp_path)
    assert code == 0, said
    assert "kafkabackups.logkeep.dev is applied" in said
    wait_for("our CRDs", lambda: not any(lacks(api, plural, path) for plural in LACKED for path in LACKED[plural]))
    by_hook = [api.connection.get(f"{CRDS}/{plural}.logkeep.dev") or {} for plural in LACKED]
    new_crds(api)
    by_kubectl = [api.connection.get(f"{CRDS}/{plural}.logkeep.dev") or {} for plural in LACKED]
    assert [crd["spec"] for crd in by_hook] == [crd["spec"] for crd in by_kubectl]  # Helm reads numbers as it likes


def test_a_hook_that_may_not_or_has_nothing_to_apply_stops_the_upgrade(
    api: ApiServer, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    hook(api, tmp_path)
    code, said = applied(operator_kubeconfig, tmp_path)  # the operator itself may not change CRDs
    assert code == 1
    assert "kafkaarchives.logkeep.dev was not applied" in said
    assert "forbidden" in said
    assert applied(operator_kubeconfig) == (2, "logkeep: name a folder with CRDs as *.json\n")

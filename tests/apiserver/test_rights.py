"""Who may do what, asked of a real API server: drivers and executors beside brokers, and the operator itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.spark.config_map import ConfigMaps
from tests.apiserver.conftest import SYSTEM, apply_permissions, pod_account, service_account_kubeconfig
from tests.apiserver.operator import Namespace, Operator, owner, pod_of, run_id_of, wait_for
from tests.apiserver.rights import may
from tests.apiserver.test_operator import RUNNING, start
from tests.cluster import system, tools
from tests.cluster.apiserver import ApiServer

pytestmark = pytest.mark.timeout(300)

READ = ("get", "list", "watch")
VERBS = (*READ, "create", "update", "patch", "delete", "deletecollection")
RBAC = "rbac.authorization.k8s.io"
KINDS = ("kafkabackups.logkeep.dev", "kafkarestores.logkeep.dev")
REQUESTED_RUNS = "kafkabackupruns.logkeep.dev"
ARCHIVES = "kafkaarchives.logkeep.dev"
ASKED = (
    "pods", "pods/exec", "pods/log", "pods/status", "pods/ephemeralcontainers", "services", "configmaps", "secrets",
    "persistentvolumeclaims", "serviceaccounts", "serviceaccounts/token", "events", "jobs.batch", "statefulsets.apps",
    "deployments.apps", f"roles.{RBAC}", f"rolebindings.{RBAC}", f"clusterroles.{RBAC}", f"clusterrolebindings.{RBAC}",
    "leases.coordination.k8s.io", "networkpolicies.networking.k8s.io",
    "kafkas.kafka.strimzi.io", *KINDS, *(f"{kind}/status" for kind in KINDS),
    *(f"{kind}/finalizers" for kind in KINDS), REQUESTED_RUNS, f"{REQUESTED_RUNS}/status",
    ARCHIVES, f"{ARCHIVES}/status", f"{ARCHIVES}/finalizers",
)  # fmt: skip
DRIVER = {"pods": (*READ, "create"), "configmaps": ("patch",)}
OPERATOR = {
    **dict.fromkeys(KINDS, READ),
    **{f"{kind}/status": ("patch",) for kind in KINDS},
    **{f"{kind}/finalizers": ("update",) for kind in KINDS},
    REQUESTED_RUNS: (*READ, "patch", "delete"),
    f"{REQUESTED_RUNS}/status": ("patch",),
    ARCHIVES: READ,
    f"{ARCHIVES}/status": ("patch",),
    "kafkas.kafka.strimzi.io": ("get",),
    "jobs.batch": (*READ, "create", "patch", "delete"),
    "serviceaccounts": ("create",),
    "events": ("get", "list", "create", "patch"),
    "pods": (*READ, "delete"),
    "configmaps": (*READ, "create", "delete"),
    f"rolebindings.{RBAC}": ("create",),
    "networkpolicies.networking.k8s.io": ("create",),
}


def rights(api: ApiServer, user: str, namespace: str) -> dict[str, tuple[str, ...]]:
    """All that the user may do in the namespace, of what is asked."""
    found = {what: tuple(verb for verb in VERBS if may(api, user, verb, what, namespace)) for what in ASKED}
    return {what: verbs for what, verbs in found.items() if verbs}


def account(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def as_account(api: ApiServer, namespace: Namespace, name: str, folder: Path, *arguments: str, stdin: str = "") -> str:
    """kubectl with a token of the ServiceAccount; what it said."""
    kubeconfig = service_account_kubeconfig(api, name, folder / name, namespace.name)
    command: list[str | Path] = [tools.kubectl(), "--kubeconfig", kubeconfig, "-n", namespace.name, *arguments]
    done = system.run(command, stdin=stdin, check=False)
    return done.stdout + done.stderr


def test_what_drivers_executors_and_the_operator_may_do(
    api: ApiServer, namespace: Namespace, operator: Operator, unique: str
) -> None:
    start(namespace)
    other = Namespace(api, f"{unique}-other")
    assert rights(api, account(namespace.name, "logkeep-engine"), namespace.name) == DRIVER
    assert rights(api, account(namespace.name, "logkeep-engine"), other.name) == {}
    assert rights(api, account(namespace.name, "logkeep-executor"), namespace.name) == {}
    assert rights(api, account(SYSTEM, "logkeep"), namespace.name) == OPERATOR
    for what in (f"roles.{RBAC}", f"rolebindings.{RBAC}"):
        assert not may(api, account(SYSTEM, "logkeep"), "delete", what, namespace.name, "logkeep-engine")


def test_the_first_run_in_a_namespace_brings_the_network_policy_and_the_next_leaves_it_as_it_is(
    namespace: Namespace, operator: Operator
) -> None:
    start(namespace)
    made = namespace.find("networkpolicies", "logkeep-runs")
    assert made is not None
    assert made["spec"]["ingress"][0]["from"] == [{"podSelector": made["spec"]["podSelector"]}]
    namespace.patch("networkpolicies", "logkeep-runs", {"spec": {"ingress": []}})
    start(namespace, name="second", storage={"uri": "s3://bucket/second"})  # an archive has one owner
    wait_for("both Jobs", lambda: len(namespace.items("jobs")) == 2)
    left = namespace.get("networkpolicies", "logkeep-runs")
    assert "ingress" not in left["spec"]


def test_the_operator_may_renew_its_lease_and_no_other(api: ApiServer, operator_kubeconfig: Path) -> None:
    apply_permissions(api)
    user, leases = account(SYSTEM, "logkeep"), "leases.coordination.k8s.io"
    assert rights(api, user, SYSTEM) == {**OPERATOR, leases: ("create",)}
    own = [verb for verb in VERBS if may(api, user, verb, leases, SYSTEM, "logkeep")]
    assert own == ["get", "create", "update"]
    assert not [verb for verb in VERBS if may(api, user, verb, leases, "kube-system", "logkeep")]


def test_the_operator_binds_no_role_but_that_of_drivers(
    api: ApiServer, operator_kubeconfig: Path, namespace: Namespace
) -> None:
    def bind(role: str) -> str:
        command = ["create", "rolebinding", "x", f"--clusterrole={role}", "--serviceaccount=a:b"]
        kubectl: list[str | Path] = [tools.kubectl(), "--kubeconfig", operator_kubeconfig, "-n", namespace.name]
        done = system.run([*kubectl, *command], check=False)
        return done.stdout + done.stderr

    for role in ("cluster-admin", "system:kube-scheduler", "system:node"):
        assert "is attempting to grant RBAC permissions not currently held" in bind(role)
    assert "created" in bind("logkeep-system-logkeep-driver")


def strangers(namespace: Namespace, job: dict[str, Any]) -> list[tuple[str, str]]:
    """Objects of the brokers beside a run. The pod has the labels of an executor of this run, by which Spark would
    delete it."""
    labels = {"spark-role": "executor", "spark-app-selector": run_id_of(job), **job["metadata"]["labels"]}
    template = {"containers": [{"name": "kafka", "image": "kafka"}]}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    specs: list[tuple[str, str, str, dict[str, Any]]] = [
        ("v1", "Pod", "kafka-0", {"spec": template}),
        ("v1", "PersistentVolumeClaim", "data-kafka-0", {"spec": claim}),
        ("v1", "Service", "kafka-bootstrap", {"spec": {"ports": [{"port": 9092}]}}),
        ("v1", "ConfigMap", "kafka-config", {"data": {"a": "b"}}),
        ("v1", "Secret", "kafka-user", {"stringData": {"password": "x"}}),
    ]
    for version, kind, name, rest in specs:
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(body))
    return [(kind.lower(), name) for _, kind, name, _ in specs]


def test_a_drivers_account_can_neither_delete_nor_change_what_is_beside_it(
    api: ApiServer, namespace: Namespace, operator: Operator, tmp_path: Path
) -> None:
    job = start(namespace)
    objects = strangers(namespace, job)
    for kind, name in objects:
        said = as_account(api, namespace, "logkeep-engine", tmp_path, "delete", kind, name)
        assert "cannot delete resource" in said
        path = f"/api/v1/namespaces/{namespace.name}/{kind}s?labelSelector=spark-role%3Dexecutor"
        everything = ("delete", "--raw", path)
        assert "cannot deletecollection resource" in as_account(api, namespace, "logkeep-engine", tmp_path, *everything)
    change = ("patch", "pod", "kafka-0", "-p", '{"spec":{"activeDeadlineSeconds":1}}')
    assert "cannot patch resource" in as_account(api, namespace, "logkeep-engine", tmp_path, *change)
    for kind, name in objects:
        assert not namespace.kubectl("get", kind, name, "-o", "jsonpath={.metadata.deletionTimestamp}").stdout


def test_a_drivers_account_makes_executors_and_writes_its_progress(
    api: ApiServer, namespace: Namespace, operator: Operator, tmp_path: Path
) -> None:
    job = start(namespace)
    namespace.pod(job, "driver", **RUNNING)
    made = owner("v1", "Pod", namespace.get("pod", "driver"))
    executor = json.dumps(pod_of(job, "driver-exec-1", made, "executor"))
    assert "created" in as_account(api, namespace, "logkeep-engine", tmp_path, "create", "-f", "-", stdin=executor)
    environ = pod_account(api, "logkeep-engine", tmp_path / "engine", namespace.name)
    name = f"{job['metadata']['name']}-progress"
    ConfigMaps(environ, tmp_path / "engine").patch(name, namespace.name, {"data": {"x": "y"}}, 30)
    assert namespace.get("configmap", name)["data"]["x"] == "y"


def test_the_operator_deletes_executors_that_are_not_needed_and_nobody_elses_pods(
    namespace: Namespace, operator: Operator
) -> None:
    job = start(namespace)
    strangers(namespace, job)
    namespace.pod(job, "driver", **RUNNING)
    namespace.pod(job, "driver-exec-1", role="executor", phase="Running")
    namespace.pod(job, "driver-exec-2", role="executor", phase="Succeeded")
    namespace.pod(job, "driver-exec-3", role="executor", phase="Pending")
    wait_for("the executor that has ended to go", lambda: namespace.find("pod", "driver-exec-2") is None)
    names = {pod["metadata"]["name"] for pod in namespace.items("pods")}
    assert names == {"driver", "driver-exec-1", "driver-exec-3", "kafka-0"}
    namespace.pod(job, "driver", phase="Failed")

    def left() -> set[str]:
        return {p["metadata"]["name"] for p in namespace.items("pods") if "deletionTimestamp" not in p["metadata"]}

    wait_for("the executors of the driver to go", lambda: left() == {"driver", "kafka-0"})


def test_a_binding_of_another_installation_is_made_again_and_the_run_begins(
    namespace: Namespace, operator: Operator
) -> None:
    """The release had another name, or `watchNamespaces` was set since."""
    subject = {"kind": "ServiceAccount", "name": "logkeep-engine", "namespace": namespace.name}
    metadata = {"name": "logkeep-driver", "labels": {"app.kubernetes.io/managed-by": "logkeep"}}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "old-logkeep-driver"}
    body = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": role}
    namespace.kubectl("apply", "-f", "-", stdin=json.dumps({**body, "subjects": [subject]}))
    start(namespace)
    made = namespace.get("rolebinding", "logkeep-driver")
    assert made["roleRef"]["name"] == "logkeep-system-logkeep-driver"
    assert made["subjects"] == [subject]
    assert "of another installation: it is created again" in operator.log.read_text()

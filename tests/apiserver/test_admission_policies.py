"""The chart's ValidatingAdmissionPolicies on a real API server: what a driver's account may make and write, whoever has
its token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from logkeep_engine.contract.names import KEY_EXECUTOR_TEMPLATE
from logkeep_engine.spark.config_map import ConfigMaps
from tests.apiserver.conftest import chart, pod_account, service_account_kubeconfig
from tests.apiserver.operator import Namespace, Operator, owner, pod_of, wait_for
from tests.apiserver.test_operator import start
from tests.cluster import system, tools
from tests.cluster.apiserver import ApiServer

pytestmark = pytest.mark.timeout(300)

Pod = dict[str, Any]
POLICIES = "templates/admission-policies.yaml"
VALUES = (
    "engine.image.repository=registry.example/logkeep-engine", "engine.image.tag=test",
    "engine.allowed.images={registry.example/own/*}", "engine.allowed.serviceAccounts={team-*}",
    "admissionPolicies.images={mesh/proxy:1}",
)  # fmt: skip


@dataclass(frozen=True)
class Driver:
    """A driver's pod whose token somebody has, and the executor that Spark would make there."""

    namespace: Namespace
    kubeconfig: Path
    config_maps: ConfigMaps
    job: str
    executor: Pod

    def makes(self, pod: Pod) -> str:
        """The answer of the API server to a pod, which it does not keep."""
        command: list[str | Path] = [tools.kubectl(), "--kubeconfig", self.kubeconfig, "-n", self.namespace.name]
        done = system.run([*command, "create", "--dry-run=server", "-f", "-"], stdin=json.dumps(pod), check=False)
        return done.stdout + done.stderr

    def writes(self, name: str, **metadata: Any) -> str:
        """The answer of the API server to a change of a ConfigMap, "" if it makes it."""
        try:
            self.config_maps.patch(name, self.namespace.name, {"data": {"x": "y"}, "metadata": metadata}, 30)
        except ApiException as refused:
            return str(refused.body)
        return ""


@pytest.fixture
def policies(api: ApiServer) -> Iterator[None]:
    """The policies, as long as the test continues: other tests have drivers whose tokens are of no pod."""
    sets = [part for value in VALUES for part in ("--set", value)]
    rendered = chart("--show-only", POLICIES, *sets)
    api.kubectl("apply", "-f", "-", stdin=rendered)
    try:
        yield
    finally:
        api.kubectl("delete", "-f", "-", stdin=rendered)


@pytest.fixture
def driver(api: ApiServer, namespace: Namespace, operator: Operator, policies: None, tmp_path: Path) -> Driver:
    """A driver in the moment in which the API server has learned of the policies."""
    job = start(namespace)
    name = f"{job['metadata']['name']}-abcde"
    body = pod_of(job, name, owner("batch/v1", "Job", job))
    body["spec"]["serviceAccountName"] = "logkeep-engine"
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(body))
    made = namespace.get("pod", name)
    request = namespace.get("configmap", f"{job['metadata']['name']}-request")
    executor = yaml.safe_load(request["data"][KEY_EXECUTOR_TEMPLATE])
    executor["metadata"] |= {"name": f"{name}-exec-1", "ownerReferences": [owner("v1", "Pod", made)]}
    executor["spec"] |= {"serviceAccountName": "logkeep-executor", "restartPolicy": "Never"}
    executor["spec"]["containers"][0]["image"] = "registry.example/logkeep-engine:test"
    driver = driver_of(api, namespace, tmp_path, job["metadata"]["name"], executor, name)
    stranger = deepcopy(executor)
    stranger["spec"]["containers"][0]["image"] = "evil"
    wait_for("the policy of pods", lambda: "denied request" in driver.makes(stranger))
    namespace.kubectl("create", "configmap", "kafka-config", "--from-literal=a=b")
    wait_for("the policy of ConfigMaps", lambda: "denied request" in driver.writes("kafka-config"))
    return driver


def driver_of(api: ApiServer, namespace: Namespace, folder: Path, job: str, executor: Pod, pod: str = "") -> Driver:
    """Somebody with a token of the driver's account, which is of a pod or of none."""
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}") if pod else ()
    kubeconfig = service_account_kubeconfig(api, "logkeep-engine", folder / f"config{pod}", namespace.name, *bound)
    environ = pod_account(api, "logkeep-engine", folder / f"account{pod}", namespace.name, *bound)
    return Driver(namespace, kubeconfig, ConfigMaps(environ, folder / f"account{pod}"), job, executor)


def spec(**changes: Any) -> Callable[[Pod], None]:
    return lambda pod: pod["spec"].update(changes)


def container(**changes: Any) -> Callable[[Pod], None]:
    return lambda pod: pod["spec"]["containers"][0].update(changes)


def security(**changes: Any) -> Callable[[Pod], None]:
    return lambda pod: pod["spec"]["containers"][0]["securityContext"].update(changes)


def owned(**changes: Any) -> Callable[[Pod], None]:
    return lambda pod: pod["metadata"]["ownerReferences"][0].update(changes)


def volume(**kind: Any) -> Callable[[Pod], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **kind})


def beside(**fields: Any) -> Callable[[Pod], None]:
    """Another container of an image that is allowed, as a webhook puts it in."""
    safe = {"allowPrivilegeEscalation": False}
    return lambda pod: pod["spec"]["containers"].append(
        {"name": "proxy", "image": "mesh/proxy:1", "securityContext": safe, **fields}
    )


def orphan(pod: Pod) -> None:
    del pod["metadata"]["ownerReferences"]


def second_owner(pod: Pod) -> None:
    pod["metadata"]["ownerReferences"].append(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "kafka", "uid": "0"}
    )


IMAGE, OWNER, ACCOUNT = "pods of the engine's image", "only pods that its own pod owns", "pods of the account"
VOLUMES, NODE = "without volumes of the node", "without namespaces and ports"
POD, CONTAINERS = "that meet the restricted", "whose containers meet the restricted"


def test_a_driver_makes_executors_and_nothing_else(driver: Driver) -> None:
    allowed: list[Callable[[Pod], None]] = [
        spec(), container(image="registry.example/own/engine:2"), spec(serviceAccountName="team-a"), beside(),
        volume(emptyDir={}), volume(persistentVolumeClaim={"claimName": "archive"}),
        volume(secret={"secretName": "s3"}), volume(csi={"driver": "secrets-store.csi.k8s.io"}),
    ]  # fmt: skip
    for change in allowed:
        pod = deepcopy(driver.executor)
        change(pod)
        said = driver.makes(pod)
        assert "created (server dry run)" in said, (pod, said)
    refused: list[tuple[Callable[[Pod], None], str]] = [
        (container(image="evil"), IMAGE), (container(image="registry.example/logkeep-engine:test2"), IMAGE),
        (container(image="evil/registry.example/own/x"), IMAGE), (beside(image="evil"), IMAGE),
        (spec(initContainers=[{"name": "first", "image": "evil"}]), IMAGE),
        (orphan, OWNER), (second_owner, OWNER), (owned(uid="0"), OWNER), (owned(name="kafka-0"), OWNER),
        (owned(kind="ReplicaSet", apiVersion="apps/v1"), OWNER),
        (spec(serviceAccountName="admin"), ACCOUNT), (spec(serviceAccountName="my-team-a"), ACCOUNT),
        (volume(hostPath={"path": "/"}), VOLUMES), (volume(nfs={"server": "a", "path": "/"}), VOLUMES),
        (volume(iscsi={"targetPortal": "a", "iqn": "iqn.2001-04.com.example:a", "lun": 0}), VOLUMES),
        (volume(csi={"driver": "nfs.csi.k8s.io"}), VOLUMES), (volume(flexVolume={"driver": "a/b"}), VOLUMES),
        (spec(hostNetwork=True), NODE), (spec(hostPID=True), NODE), (spec(hostIPC=True), NODE),
        (spec(nodeName="control-plane"), NODE), (container(ports=[{"containerPort": 1, "hostPort": 1}]), NODE),
        (spec(securityContext={}), POD), (security(privileged=True, allowPrivilegeEscalation=True), CONTAINERS),
        (security(allowPrivilegeEscalation=True), CONTAINERS), (security(runAsUser=0), CONTAINERS),
        (security(capabilities={"add": ["SYS_ADMIN"]}), CONTAINERS),
        (security(seccompProfile={"type": "Unconfined"}), CONTAINERS),
        (beside(securityContext={}), CONTAINERS),
        (spec(securityContext={"runAsNonRoot": True, "appArmorProfile": {"type": "Unconfined"}}), POD),
        (spec(securityContext={"runAsNonRoot": True, "sysctls": [{"name": "kernel.x", "value": "1"}]}), POD),
    ]  # fmt: skip
    for change, why in refused:
        pod = deepcopy(driver.executor)
        change(pod)
        said = driver.makes(pod)
        assert "pods-of-drivers" in said, (pod, said)
        assert "denied request: a driver of Logkeep makes" in said, (pod, said)
        assert why in said, (pod, said)


def test_a_token_that_is_of_no_pod_makes_none(api: ApiServer, driver: Driver, tmp_path: Path) -> None:
    """Whoever may ask for tokens of the account has no more by it."""
    stranger = driver_of(api, driver.namespace, tmp_path, driver.job, driver.executor)
    assert OWNER in stranger.makes(driver.executor)
    assert "ConfigMaps of its own run only" in stranger.writes(f"{driver.job}-progress")


def test_a_driver_writes_to_the_config_maps_of_its_run_and_to_no_other(driver: Driver) -> None:
    driver.namespace.kubectl("create", "configmap", "other-0123456789-progress")
    assert driver.writes(f"{driver.job}-progress") == ""
    for name in ("kafka-config", "other-0123456789-progress"):
        assert "writes to the ConfigMaps of its own run only" in driver.writes(name)
    changes: list[dict[str, Any]] = [{"labels": {"logkeep.dev/name": "other"}}, {"ownerReferences": []}]
    for metadata in changes:
        said = driver.writes(f"{driver.job}-progress", **metadata)
        assert "changes neither the labels nor the owners" in said


def test_the_policies_hold_for_drivers_and_for_nobody_else(driver: Driver) -> None:
    pod = deepcopy(driver.executor)
    pod["spec"]["hostNetwork"] = True
    orphan(pod)
    made = driver.namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    assert "created" in made.stdout

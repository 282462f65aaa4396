"""Pods as the platform wants them, on a node that has become as OpenShift: it gives each pod a user that no image
knows, and refuses pods that ask for one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Installation, backup, small
from tests.cluster.node import Node
from tests.e2e.home import Home
from tests.e2e.openshift import SECURITY_API, USER, RestrictedV2

pytestmark = pytest.mark.timeout(900)


def engine_user(logkeep: Installation) -> str:
    """Read what the chart has told the operator about the user of pods."""
    (operator,) = logkeep.api.items(f"/apis/apps/v1/namespaces/{logkeep.namespace}/deployments")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    return str(next(variable["value"] for variable in container["env"] if variable["name"] == "LOGKEEP_ENGINE_USER"))


@pytest.fixture
def openshift(logkeep: Installation, node: Node, namespace: str, tmp_path: Path) -> Iterator[RestrictedV2]:
    """The test's namespace and the operator's are restricted, and the chart has found out by itself."""
    node.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    node.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(SECURITY_API))
    try:
        node.kubectl("wait", "--for=condition=Established", "crd", SECURITY_API["metadata"]["name"], "--timeout=60s")
        with RestrictedV2(node, [namespace, logkeep.namespace], tmp_path / "webhook") as admission:
            logkeep.install()
            assert engine_user(logkeep) == "Platform"
            yield admission
    finally:
        node.kubectl("delete", "crd", SECURITY_API["metadata"]["name"])
        logkeep.install()
        assert engine_user(logkeep) == "Fixed"


def template(role: str) -> Document:
    return {
        "metadata": {"labels": {"team": "data"}},
        "spec": {
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {
                    "name": role,
                    "env": [{"name": "TMPDIR", "value": "/scratch"}],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                }
            ],
        },
    }


def test_drivers_and_executors_with_templates_work_as_a_user_that_no_image_knows(
    openshift: RestrictedV2, home: Home
) -> None:
    asks = {"apiVersion": "v1", "spec": {"securityContext": {"fsGroup": 185}}}
    refused = home.logkeep.node.kubectl(
        "run", "asks", "-n", home.namespace, "--image=any", f"--overrides={json.dumps(asks)}", "--dry-run=server",
        check=False,
    )  # fmt: skip
    assert "unable to validate against any security context constraint" in refused.stderr, refused
    openshift.refused.clear()
    records = home.fill("placed", 2, 2)
    spark: dict[str, Any] = small(executors=1)
    spark["conf"]["spark.kubernetes.executor.deleteOnTermination"] = "false"  # to be looked at afterwards
    for role in ("driver", "executor"):
        spark[role] = {**spark.get(role, {}), "podTemplate": template(role)}
    uri = f"s3://{home.bucket}/with-executors"

    saved = home.backup("placed", spark={})  # the driver does the work itself
    other = home.apply(backup("with-executors", home.broker.bootstrap, home.s3, uri, ["placed"], spark=spark))

    for resource in (saved, other):
        assert resource.wait("Succeeded")["progress"]["records"] == records
    home.restore(spark=spark).wait("Succeeded")
    home.check_restored("placed", records)

    found = set()
    for pod in home.logkeep.api.items(f"/api/v1/namespaces/{home.namespace}/pods"):
        metadata, spec, (container,) = pod["metadata"], pod["spec"], pod["spec"]["containers"]
        found.add((metadata["annotations"]["logkeep.dev/resource"], metadata["labels"]["logkeep.dev/role"]))
        assert container["securityContext"]["runAsUser"] == USER
        assert "fsGroup" not in spec["securityContext"]
        if metadata["annotations"]["logkeep.dev/resource"] != "saved":
            assert metadata["labels"]["team"] == "data"
            assert {"key": "dedicated", "operator": "Exists"} in spec["tolerations"]
            assert {"name": "TMPDIR", "value": "/scratch"} in container["env"]
            assert "/scratch" in [mount["mountPath"] for mount in container["volumeMounts"]]
    both = {(name, role) for name in ("with-executors", "again") for role in ("driver", "executor")}
    assert found == {("saved", "driver"), *both}

    logkeep = home.logkeep
    acting = logkeep.operator_pods()[0]["metadata"]["name"]
    ids = logkeep.node.kubectl("exec", "-n", logkeep.namespace, acting, "--", "id").stdout
    assert ids.startswith(f"uid={USER} gid=0(root) "), "the operator, too, has a user without a name"
    assert openshift.refused == [], "no pod asks for ids"

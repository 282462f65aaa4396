"""Pods as the platform wants them, on a node."""

from typing import Any

import pytest

from tests.cluster.kube_api import Document
from tests.cluster.logkeep import small
from tests.e2e.home import Home

pytestmark = pytest.mark.timeout(900)

USER = 1000680000  # as OpenShift gives them: no image has it in its passwd file


def template(role: str) -> Document:
    return {
        "metadata": {"labels": {"team": "data"}},
        "spec": {
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "securityContext": {"runAsUser": USER, "runAsGroup": 0},
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {
                    "name": role,
                    "env": [{"name": "TZ", "value": "UTC"}],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                }
            ],
        },
    }


def test_templates_are_in_the_pods_which_run_as_a_user_that_no_image_knows(home: Home) -> None:
    records = home.fill("placed", 2, 2)
    spark: dict[str, Any] = small(executors=1)
    spark["conf"]["spark.kubernetes.executor.deleteOnTermination"] = "false"  # to be looked at afterwards
    for role in ("driver", "executor"):
        spark[role] = {**spark.get(role, {}), "podTemplate": template(role)}

    saved = home.backup("placed", spark=spark)

    assert saved.wait("Succeeded")["progress"]["records"] == records
    pods = home.logkeep.api.items(f"/api/v1/namespaces/{home.namespace}/pods")
    assert {pod["metadata"]["labels"]["logkeep.dev/role"] for pod in pods} == {"driver", "executor"}
    for pod in pods:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert pod["metadata"]["labels"]["team"] == "data"
        assert spec["securityContext"]["runAsUser"] == USER
        assert {"key": "dedicated", "operator": "Exists"} in spec["tolerations"]
        assert {"name": "TZ", "value": "UTC"} in container["env"]
        assert "/scratch" in [mount["mountPath"] for mount in container["volumeMounts"]]

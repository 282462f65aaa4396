"""The node of the test bed runs the engine's image as a Spark application that reaches a broker and an S3 server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.unit.archive.build import archive_of, chunk

pytestmark = pytest.mark.timeout(900)

VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
KINDS = ["pods", "services", "configmaps", "persistentvolumeclaims"]


def test_spark_runs_on_the_node(node: Node, node_kafka: KafkaBroker, node_s3: S3Server, namespace: str) -> None:
    in_namespace = ["--namespace", namespace]
    node.kubectl("create", "configmap", "job", f"--from-file={Path(__file__).parent / 'spark_job.py'}", *in_namespace)
    node.kubectl(
        "create", "role", "driver", f"--verb={','.join(VERBS)}", f"--resource={','.join(KINDS)}", *in_namespace
    )
    node.kubectl(
        "create", "rolebinding", "driver", "--role=driver", f"--serviceaccount={namespace}:default", *in_namespace
    )
    keys = {"AWS_ACCESS_KEY_ID": node_s3.access_key, "AWS_SECRET_ACCESS_KEY": node_s3.secret_key}
    uri = f"s3://{node_s3.create_bucket(namespace)}/archive"
    storage = open_uri(uri, node_s3.endpoint, node_s3.region, keys)
    archive_of(storage, chunk(storage, 0, 50))
    pod = driver_pod(["/job/spark_job.py", node_kafka.bootstrap, node_s3.endpoint, node_s3.region, uri], keys)
    node.kubectl("apply", "-f", "-", *in_namespace, stdin=json.dumps(pod))
    node.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/driver", "--timeout=240s", *in_namespace)
    assert "reached all, 7 groups, 50 archived records" in node.kubectl("logs", "driver", *in_namespace).stdout


def test_operator_image_has_the_operator_without_java(node: Node, namespace: str) -> None:
    script = "import kopf, kubernetes, logkeep_operator, logkeep_engine, shutil; print('java', shutil.which('java'))"
    arguments = ["--image=localhost/logkeep-operator:dev", "--image-pull-policy=Never", "--restart=Never"]
    node.kubectl("run", "check", "-n", namespace, *arguments, "--command", "--", "python3", "-c", script)
    node.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/check", "--timeout=240s")
    assert node.kubectl("logs", "-n", namespace, "check").stdout == "java None\n"


def driver_pod(command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """A pod by the restricted pod security standard, its root file system read-only, that runs Python."""

    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    variables = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    container = {
        "name": "driver",
        "image": "localhost/logkeep-engine:dev",
        "imagePullPolicy": "Never",
        "args": ["python3", *command],
        "env": [
            *({"name": name, "valueFrom": field(path)} for name, path in variables.items()),
            *({"name": name, "value": value} for name, value in environ.items()),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "job", "mountPath": "/job"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "job", "configMap": {"name": "job"}}, {"name": "tmp", "emptyDir": {}}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, "spec": spec}

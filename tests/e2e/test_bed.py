"""The images have what they need: the node of the test bed runs them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.storage import open_uri
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.unit.archive.build import archive_of, chunk

pytestmark = pytest.mark.timeout(900)


def test_the_engine_image_answers_queries_on_an_archive(node: Node, node_s3: S3Server, namespace: str) -> None:
    in_namespace = ["--namespace", namespace]
    node.kubectl("create", "configmap", "job", f"--from-file={Path(__file__).parent / 'spark_job.py'}", *in_namespace)
    keys = {"AWS_ACCESS_KEY_ID": node_s3.access_key, "AWS_SECRET_ACCESS_KEY": node_s3.secret_key}
    uri = f"s3://{node_s3.create_bucket(namespace)}/archive"
    storage = open_uri(uri, node_s3.endpoint, node_s3.region, keys)
    archive_of(storage, chunk(storage, 0, 50))
    pod = query_pod(["/job/spark_job.py", node_s3.endpoint, node_s3.region, uri], keys)
    node.kubectl("apply", "-f", "-", *in_namespace, stdin=json.dumps(pod))
    node.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/query", "--timeout=240s", *in_namespace)
    assert "7 groups, 50 archived records" in node.kubectl("logs", "query", *in_namespace).stdout


def test_operator_image_has_the_operator_without_java(node: Node, namespace: str) -> None:
    script = "import kopf, kubernetes, logkeep_operator, logkeep_engine, shutil; print('java', shutil.which('java'))"
    arguments = ["--image=localhost/logkeep-operator:dev", "--image-pull-policy=Never", "--restart=Never"]
    node.kubectl("run", "check", "-n", namespace, *arguments, "--command", "--", "python3", "-c", script)
    node.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/check", "--timeout=240s")
    assert node.kubectl("logs", "-n", namespace, "check").stdout == "java None\n"


def query_pod(command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """A pod by the restricted pod security standard, its root file system read-only, that runs Python."""
    container = {
        "name": "query",
        "image": "localhost/logkeep-engine:dev",
        "imagePullPolicy": "Never",
        "args": ["python3", *command],
        "env": [{"name": name, "value": value} for name, value in environ.items()],
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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "query"}, "spec": spec}

"""The images have what they need: the node of the test bed runs them."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from logkeep_engine.storage import open_uri
from tests.cluster import kernel, names
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
    arguments = [f"--image={names.image('operator')}", "--image-pull-policy=Never", "--restart=Never"]
    node.kubectl("run", "check", "-n", namespace, *arguments, "--command", "--", "python3", "-c", script)
    node.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/check", "--timeout=240s")
    assert node.kubectl("logs", "-n", namespace, "check").stdout == "java None\n"


LOOKED_AT = """
import hashlib, importlib.metadata, json, pathlib, subprocess

def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()

print(json.dumps({
    "run as others": lines("find", "/", "-xdev", "-perm", "/6000"),
    "deb": lines("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n"),
    "pypi": [f"{found.name} {found.version}" for found in importlib.metadata.distributions()],
    "jars": [hashlib.sha256(path.read_bytes()).hexdigest() for path in pathlib.Path("/opt/logkeep").rglob("*.jar")],
}))
print(open("/usr/share/logkeep/sbom.cdx.json").read())
"""


@pytest.mark.parametrize(("image", "jars"), [("operator", 0), ("engine", 100)])
def test_an_image_lists_all_that_it_holds_and_runs_nothing_as_somebody_else(
    node: Node, namespace: str, image: str, jars: int
) -> None:
    arguments = [f"--image={names.image(image)}", "--image-pull-policy=Never", "--restart=Never"]
    node.kubectl("run", "look", "-n", namespace, *arguments, "--command", "--", "python3", "-c", LOOKED_AT)
    node.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/look", "--timeout=240s")
    first, _, listed = node.kubectl("logs", "-n", namespace, "look").stdout.partition("\n")
    there = json.loads(first)
    assert there["run as others"] == []

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(listed) is None
    components = json.loads(listed)["components"]
    by_kind: dict[str, list[str]] = defaultdict(list)
    for component in components:
        by_kind[component["purl"][4:].partition("/")[0]].append(f"{component['name']} {component.get('version', '')}")
    assert sorted(by_kind["deb"]) == sorted(there["deb"])
    assert sorted(by_kind["pypi"]) == sorted(
        f"{canonicalize_name(name)} {version}" for name, version in map(str.split, there["pypi"])
    )
    digests = [item["content"] for component in components for item in component.get("hashes", ())]
    assert sorted(digests) == sorted(there["jars"])
    assert len(digests) >= jars
    linked = {tuple(line.split()[:2]) for line in kernel.crates().splitlines()} if image == "engine" else set()
    assert sorted(by_kind["cargo"]) == sorted(f"{name} {version[1:]}" for name, version in linked)


def query_pod(command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """A pod by the restricted pod security standard, its root file system read-only, that runs Python."""
    container = {
        "name": "query",
        "image": names.image("engine"),
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

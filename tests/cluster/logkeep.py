"""Logkeep on a node: its chart installed, resources applied and waited for, their pods found and killed."""

import contextlib
import json
import os
import signal
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import chart, system, tools
from tests.cluster.kube_api import Document, path_of
from tests.cluster.node import Node
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.state import cgroup_folders

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLURALS = {"KafkaArchive": "kafkaarchives", "KafkaBackup": "kafkabackups", "KafkaRestore": "kafkarestores"}
ODD_NAMES = "http://0x*"
"""The names that `system.name_of_address` makes: those of the servers of Google's and Azure's interfaces."""
FINAL = ("Succeeded", "Failed", "Invalid")


def small(executors: int = 2) -> Document:
    """`spec.spark` for a node of two cores. Each executor is a JVM and a Python more to start.

    However little a run moves, it has executors: a driver leaves tasks to them that may need more memory.
    """
    return {
        "executor": {"instances": executors, "memory": "768Mi"},
        "conf": {
            "spark.kubernetes.driver.request.cores": "100m",
            "spark.kubernetes.executor.request.cores": "100m",
            "spark.executorEnv.LOGKEEP_TASK_MEMORY": "256Mi",
        },
    }


class StatusNotReached(AssertionError):
    """A resource did not get where it was expected; the message has its status."""


class Installation:
    """The chart on a node, which allows this S3 server. `install` returns when the operator is ready."""

    release = "logkeep"

    def __init__(self, node: Node, s3: S3Server, namespace: str = "logkeep", helm: Path | None = None) -> None:
        self.node = node
        self.s3 = s3
        self.namespace = namespace
        self._helm = helm or tools.helm()
        self.api = node.connection

    def install(self, values: Mapping[str, Any] | None = None, package: Path | None = None) -> None:
        """Install the chart of a release, or the one of the `package`, with the S3 server as an allowed endpoint. Its
        images are in the node."""
        allowed = {"engine": {"allowed": {"endpoints": [self.s3.endpoint, ODD_NAMES]}}}
        command = [
            "upgrade",
            "--install",
            self.release,
            str(package or chart.packaged()),
            "--create-namespace",
            "--wait",
            "--timeout",
            "240s",
        ]
        self.helm(*command, "--values", "-", stdin=yaml.safe_dump({**allowed, **(values or {})}))

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Run Helm in the operator's namespace; returns what it printed."""
        place = ["--kubeconfig", str(self.node.kubeconfig), "--namespace", self.namespace]
        return system.run([self._helm, *arguments, *place], stdin=stdin).stdout

    def acting(self) -> str:
        """The process of the operator that holds the Lease: its pod's name, and a mark of its own. Empty for none."""
        lease = self.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.release}") or {}
        return str(lease.get("spec", {}).get("holderIdentity") or "")

    def operator_pods(self) -> list[Document]:
        """The operator's pods that are not on their way out, the one that acts first."""
        pods = self.api.items(f"/api/v1/namespaces/{self.namespace}/pods")
        holder = self.acting().partition("_")[0]
        found = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and _phase(pod) == "Running"]
        return sorted(found, key=lambda pod: pod["metadata"]["name"] != holder)

    def wait_ready(self, timeout: float = 180) -> None:
        """Wait until the operator's deployment is available again, after its pod was deleted or killed."""
        names = f"deployments --selector=app.kubernetes.io/instance={self.release}".split()
        place = ["-n", self.namespace, f"--timeout={timeout:.0f}s"]
        self.node.kubectl("wait", "--for=condition=Available", *names, *place)

    def create_namespace(self, name: str, s3: S3Server | None = None) -> str:
        """A namespace for resources, with the Secret `archive-s3` for the S3 server."""
        self.api.create_namespace(name)
        if s3:
            keys = {"accessKeyId": s3.access_key, "secretAccessKey": s3.secret_key}
            self.create_secret(name, "archive-s3", keys)
        return name

    def create_secret(self, namespace: str, name: str, values: Mapping[str, str]) -> None:
        """Create or replace a Secret."""
        encoded = {key: b64encode(value.encode()).decode() for key, value in values.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
        self._apply(path_of(namespace, "secret", name), secret)

    def apply(self, namespace: str, document: Document) -> "Resource":
        """Apply one of our kinds, as `kubectl apply --server-side` does."""
        found = Resource(self, namespace, document["kind"], document["metadata"]["name"])
        self._apply(found.path, document)
        return found

    def _apply(self, path: str, document: Document) -> None:
        refusal = self.api.apply(path, document, "user")
        if refusal:
            raise RuntimeError(f"{path} is refused: {refusal}")


def backup(name: str, bootstrap: str, s3: S3Server, uri: str, topics: Sequence[str] = (".*",), **spec: Any) -> Document:
    """`examples/backup.yaml` with its addresses, name and topics replaced; `spec` holds more fields of the spec."""
    document = example("backup.yaml", "KafkaBackup")
    del document["spec"]["schedule"]  # a test that continues at two in the morning would see one run more
    document["metadata"]["name"] = name
    document["spec"]["cluster"]["bootstrapServers"] = [bootstrap]
    document["spec"]["topics"]["include"] = list(topics)
    document["spec"]["storage"] |= {"uri": uri, "endpoint": s3.endpoint, "region": s3.region}
    document["spec"] |= {"spark": small(), **spec}
    return document


def restore(name: str, bootstrap: str, source: str, **spec: Any) -> Document:
    """`examples/restore.yaml` with its addresses, name and source replaced; `spec` holds more fields of the spec."""
    document = example("restore.yaml", "KafkaRestore")
    document["metadata"]["name"] = name
    document["spec"]["source"] = {"backupRef": {"name": source}}
    document["spec"]["cluster"]["bootstrapServers"] = [bootstrap]
    document["spec"] |= {"spark": small(), **spec}
    return document


def example(file: str, kind: str) -> Document:
    """The document of this kind in a file of `examples/`."""
    documents = yaml.safe_load_all((EXAMPLES / file).read_text())
    found: Document = next(document for document in documents if document["kind"] == kind)
    return found


@dataclass(frozen=True)
class Resource:
    """A KafkaBackup, KafkaRestore or KafkaArchive on the node."""

    installation: Installation
    namespace: str
    kind: str
    name: str

    @property
    def reference(self) -> str:
        """The name as kubectl takes it."""
        return f"{PLURALS[self.kind]}/{self.name}"

    @property
    def path(self) -> str:
        """Where the API has it."""
        return path_of(self.namespace, PLURALS[self.kind], self.name)

    def read(self) -> Document | None:
        """The resource as it is now; None if it is gone."""
        return self.installation.api.get(self.path)

    @property
    def status(self) -> Document:
        """Its status; empty before the operator has seen it."""
        return dict((self.read() or {}).get("status", {}))

    @property
    def progress(self) -> Document:
        """`status.progress`, of the run that continues or the last one."""
        return dict(self.status.get("progress", {}))

    def condition(self, kind: str) -> Document:
        """The condition of this type; empty if there is none."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def wait(self, *phases: str, timeout: float = 300, run_not: str | None = None) -> Document:
        """Wait for one of the phases and return the status; another final phase fails at once.

        `run_not` is the id of an earlier run whose status is not meant.
        """
        until = time.monotonic() + timeout
        while True:
            found = self.read() or {}
            status: Document = found.get("status", {})
            current = status.get("observedGeneration") == found.get("metadata", {}).get("generation")
            fresh = current and (run_not is None or status.get("run", {}).get("id") != run_not)
            if fresh and status.get("phase") in phases:
                return status
            if (fresh and status.get("phase") in FINAL) or time.monotonic() > until:
                raise StatusNotReached(
                    f"{self.reference} should be {' or '.join(phases)} within {timeout:.0f} s:\n"
                    f"{json.dumps(status, indent=1)}\nevents:\n" + "\n".join(self.events())
                )
            time.sleep(0.3)

    def wait_for_progress(self, records: int, timeout: float = 240) -> Document:
        """Wait until the run has done at least so many records, and is still going on."""
        until = time.monotonic() + timeout
        while True:
            status = self.status
            if status.get("phase") in FINAL or time.monotonic() > until:
                raise StatusNotReached(f"{self.reference} should be in the middle:\n{json.dumps(status, indent=1)}")
            if status.get("progress", {}).get("records", 0) >= records:
                return status
            time.sleep(0.2)

    def events(self) -> list[str]:
        """Its events as `reason: message`."""
        found = self.installation.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        mine = [event for event in found if event["involvedObject"].get("name") == self.name]
        return [f"{event['reason']}: {event['message']}" for event in mine]

    def drivers(self) -> list[Document]:
        """The driver pods of its Jobs that run."""
        jobs = {job["metadata"]["uid"] for job in self.jobs()}
        return [pod for pod in self._pods() if jobs & _owners(pod) and _phase(pod) == "Running"]

    def executors(self) -> list[Document]:
        """The executor pods that run."""
        drivers = {pod["metadata"]["uid"] for pod in self.drivers()}
        return [pod for pod in self._pods() if drivers & _owners(pod) and _phase(pod) == "Running"]

    def jobs(self) -> list[Document]:
        """The Jobs it owns."""
        uid = (self.read() or {"metadata": {"uid": ""}})["metadata"]["uid"]
        found = self.installation.api.items(f"/apis/batch/v1/namespaces/{self.namespace}/jobs")
        return [job for job in found if uid in _owners(job)]

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Merge into its spec."""
        self._merge({"spec": dict(spec)})

    def run_again(self, value: str) -> None:
        """Ask for another run by the annotation."""
        self._annotate("logkeep.dev/run", value)

    def retry(self, value: str, timeout: float = 240) -> None:
        """Ask by the annotation to retry a failed restore, and wait until the run continues."""
        self._annotate("logkeep.dev/retry", value)
        wait_until(lambda: self.status.get("lastHandledRetry") == value, timeout, f"{self.reference} to be tried again")

    def delete(self, timeout: float = 120) -> None:
        """Delete it and wait until it is gone."""
        self.installation.api.delete(self.path)
        wait_until(lambda: self.read() is None, timeout, f"{self.reference} to be gone")

    def _annotate(self, name: str, value: str) -> None:
        self._merge({"metadata": {"annotations": {name: value}}})

    def _merge(self, changes: Document) -> None:
        self.installation.api.patch(self.path, changes)

    def _pods(self) -> list[Document]:
        return self.installation.api.items(f"/api/v1/namespaces/{self.namespace}/pods")


def kill_pod(node: Node, pod: Document) -> None:
    """SIGKILL to all processes of a pod's containers, as the kernel's out-of-memory killer does it."""
    pids = _processes(node, pod["metadata"]["uid"])
    if not pids:
        raise RuntimeError(f"{pod['metadata']['name']} has no processes")
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent
            os.kill(pid, signal.SIGKILL)
            killed += 1
    if not killed:
        raise RuntimeError(f"the processes of {pod['metadata']['name']} had ended by themselves")


def _processes(node: Node, uid: str) -> list[int]:
    found: set[int] = set()
    for top in cgroup_folders(node.netns):
        for folder in top.rglob(f"*{uid}"):
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):  # a container that has just ended
                    found.update(int(pid) for pid in file.read_text().split())
    return sorted(pid for pid in found if not _holds_namespaces(pid))


def _holds_namespaces(pid: int) -> bool:
    try:
        return b"2147483647" in Path(f"/proc/{pid}/cmdline").read_bytes()  # how long the pause image sleeps
    except (FileNotFoundError, ProcessLookupError):
        return True


def _owners(document: Document) -> set[str]:
    return {owner["uid"] for owner in document["metadata"].get("ownerReferences", [])}


def _phase(pod: Document) -> str:
    return str(pod.get("status", {}).get("phase", ""))

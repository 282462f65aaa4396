"""The operator as a process against a real API server, and the parts that are missing there played by hand.

No kubelet, Job controller or garbage collector runs: a test says what they would say, by writing the status of Jobs
and pods.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from logkeep_engine.contract.facts.progress import PartitionProgress
from logkeep_engine.contract.run import Progress, RunResult
from tests.cluster.apiserver import ApiServer
from tests.cluster.kube_api import path_of

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
DRIVER_ROLE = "ClusterRole/logkeep-system-logkeep-driver"  # of the chart in tests.apiserver.conftest.SYSTEM
NAMESPACED_ROLE = "Role/logkeep-driver"  # of the chart with watchNamespaces
IMAGE = "registry.example/logkeep-engine:test"
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["logkeep_operator.__main__", __name__])


def wait_for(what: str, look: Callable[[], T | None], timeout: float = 60) -> T:
    """Poll until `look` returns something true: often at first, and less often where it takes long."""
    end, pause = time.monotonic() + timeout, 0.05
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.4)
    return found


class Operator:
    """The operator for one namespace as a process of its own; `kill` is SIGKILL, `start` starts it again.

    It is forked from a process that has imported it, which saves a second of imports a start. With `forked` false it is
    `python -m logkeep_operator`.
    """

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, *, forked: bool = True, **settings: str) -> None:
        self.log = log
        self._forked = forked
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "LOGKEEP_ENGINE_IMAGE": IMAGE,
            "LOGKEEP_DRIVER_ROLE": DRIVER_ROLE,
            "LOGKEEP_NAMESPACES": namespace,
            "LOGKEEP_METRICS_PORT": "0",
            "LOGKEEP_PROBE_PORT": "0",
            "LOGKEEP_RESYNC_SECONDS": "5",
            "LOGKEEP_MAX_CONCURRENT_RUNS": "0",  # drivers end only when a test says so
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "engine")),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | ForkServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        if self._forked:
            self._process = _processes.Process(
                target=_run, args=(dict(self._environment), str(self.log)), name="operator", daemon=True
            )
            self._process.start()
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "logkeep_operator"], stdout=log, stderr=log, env=self._environment
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process continues."""
        return self._process is not None and self._ended(0) is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._ended(60)
            self._process = None

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._ended(60)
        if code is None:
            raise AssertionError("the operator does not end within 60 s of SIGTERM")
        return code

    def stop(self) -> None:
        """SIGSTOP: it does nothing until `go_on`."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_end(self, seconds: float = 60) -> int:
        """Wait until it ends by itself; the exit code."""
        code = self._ended(seconds)
        if code is None:
            raise AssertionError(f"the operator does not end within {seconds} s")
        return code

    def _ended(self, seconds: float) -> int | None:
        """Wait for its end; its exit code, None if it continues."""
        if isinstance(self._process, ForkServerProcess):
            self._process.join(seconds)
            return self._process.exitcode
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def collect_logs(self, folder: Path) -> None:
        (folder / "operator.log").write_bytes(self.log.read_bytes())


def _run(environment: dict[str, str], log: str) -> None:
    """In the forked process: the operator with this environment, its output in the log."""
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab", buffering=0) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    from kubernetes.config import kube_config

    from logkeep_operator.__main__ import main

    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = environment["KUBECONFIG"]  # the library reads it when it is imported
    sys.exit(main())


@dataclass(frozen=True)
class Applied:
    """How `kubectl apply` would end, without the process that it is: `stderr` has the API's refusal."""

    returncode: int
    stderr: str


class Namespace:
    """A namespace of a test's own, and what kubelet and controllers would do in it."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.api = api
        self.name = name
        self._kube = api.connection
        self._kube.create_namespace(name)

    # ---- as the user

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.api.kubectl("-n", self.name, *arguments, stdin=stdin, check=check)

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> Applied:
        """Apply a resource; the answer is not checked, so that a refusal can be looked at."""
        body = {
            "apiVersion": "logkeep.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "labels": {"argocd.argoproj.io/instance": "app"}},
            "spec": spec,
        }
        refusal = self._kube.apply(path_of(self.name, kind.lower(), name), body, manager="user")
        return Applied(1 if refusal else 0, refusal)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """The object. Raises LookupError if there is none."""
        found = self.find(kind, name)
        if found is None:
            raise LookupError(f"there is no {kind} {name} in {self.name}")
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, None if there is none."""
        return self._kube.get(path_of(self.name, kind, name))

    def items(self, kind: str) -> list[dict[str, Any]]:
        return self._kube.items(path_of(self.name, kind))

    def patch(self, kind: str, name: str, changes: dict[str, Any], subresource: str = "") -> None:
        """Merge into the object, or into a subresource such as `status`."""
        self._kube.patch(path_of(self.name, kind, name, *filter(None, [subresource])), changes)

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(kind, name).get("status", {})
        return found

    def phase(self, kind: str, name: str, phase: str) -> dict[str, Any]:
        """Wait until the resource is in the phase, for what it asks for now; its status."""

        def look() -> dict[str, Any] | None:
            body = self.get(kind, name)
            status: dict[str, Any] = body.get("status", {})
            fresh = status.get("observedGeneration") == body["metadata"]["generation"]
            return status if fresh and status.get("phase") == phase else None

        try:
            return wait_for(f"{kind} {name} to be {phase}", look)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{json.dumps(self.status(kind, name), indent=1)}") from None

    def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        found = [c for c in self.status(kind, name).get("conditions", ()) if c["type"] == condition]
        return found[0] if found else {}

    def reason(self, kind: str, name: str, reason: str) -> dict[str, Any]:
        """Wait until the condition Ready has the reason."""

        def look() -> dict[str, Any] | None:
            ready = self.condition(kind, name, "Ready")
            return ready if ready.get("reason") == reason else None

        return wait_for(f"{kind} {name} to be Ready={reason}", look)

    def events(self, name: str) -> list[str]:
        found = [e for e in self.items("events") if e["involvedObject"]["name"] == name]
        found.sort(key=lambda e: (e["firstTimestamp"], int(e["metadata"]["resourceVersion"])))
        return [e["reason"] for e in found]

    # ---- as the cluster

    def job(self, run_id: str = "") -> dict[str, Any]:
        """Wait for the only Job (of the run); it."""

        def look() -> dict[str, Any] | None:
            found = [j for j in self.items("jobs") if run_id in j["metadata"]["name"]]
            return found[0] if found else None

        return wait_for("a Job", look)

    def job_status(self, job: dict[str, Any], **status: Any) -> None:
        """Write a Job's status like the Job controller."""
        self.patch("job", job["metadata"]["name"], {"status": status}, "status")

    def job_ends(self, job: dict[str, Any], condition: str, reason: str = "", message: str = "") -> None:
        """End a Job like the Job controller, in the steps that the API's validation asks for."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        def made(kind: str) -> dict[str, str]:
            known = {"type": kind, "status": "True", "lastProbeTime": moment, "lastTransitionTime": moment}
            return {**known, "reason": reason or "CompletionsReached", "message": message}

        target = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[condition]
        self.job_status(job, startTime=moment, active=0, conditions=[made(target)])
        ended: dict[str, Any] = {"conditions": [made(target), made(condition)], "ready": 0, "terminating": 0}
        if condition == "Complete":
            ended |= {"succeeded": 1, "completionTime": moment}
        else:
            ended |= {"failed": 1}
        self.job_status(job, **ended)

    def pod(self, job: dict[str, Any], name: str, role: str = "driver", owned: bool = True, **status: Any) -> None:
        """Make a pod of the run with this status, in the place of Job controller or Spark and of the kubelet. With
        `owned` false it is a stranger's who has copied the labels. An executor is of the pod `driver`.
        """
        maker = None
        if owned:
            maker = owner("batch/v1", "Job", job) if role == "driver" else owner("v1", "Pod", self.get("pod", "driver"))
        body = pod_of(job, name, maker, role)
        if self.find("pod", name) is None:
            self._kube.create(path_of(self.name, "pods"), body)
        self.patch("pod", name, {"status": status}, "status")

    def write(self, job: dict[str, Any], progress: Progress | None = None, result: RunResult | None = None) -> None:
        """Write a document like the driver."""
        documents = {"progress.json": progress, "result.json": result}
        data = {key: document.to_json() for key, document in documents.items() if document is not None}
        name = f"{job['metadata']['name']}-progress"
        self.patch("configmap", name, {"data": data})


def pod_of(job: dict[str, Any], name: str, maker: dict[str, Any] | None, role: str = "driver") -> dict[str, Any]:
    """A pod of the run as its Job's template says it, with its owner or without one."""
    template = job["spec"]["template"]
    labels = {k: v for k, v in template["metadata"]["labels"].items() if "job" not in k and "controller" not in k}
    metadata = {
        "name": name,
        "labels": {**labels, "logkeep.dev/role": role},
        "annotations": template["metadata"]["annotations"],
        "ownerReferences": [maker] if maker is not None else [],
    }
    spec = {"containers": [{"name": role, "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owner(version: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reference that makes the object the controller of a child."""
    metadata = body["metadata"]
    return {
        "apiVersion": version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"], "controller": True,
    }  # fmt: skip


def run_id_of(job: dict[str, Any]) -> str:
    return str(job["metadata"]["labels"]["logkeep.dev/run"])


def progress(run_id: str, at: int) -> Progress:
    return Progress(
        run_id=run_id, phase="Running", start_time=time.time(), update_time=time.time(), topics=1, partitions=4,
        partitions_done=1, records=at, bytes=at * 10, offsets_done=at, offsets_total=1000,
        partitions_shown=(
            PartitionProgress(topic="orders", partition=0, start=0, end=1000, at=at, records=at, bytes=at * 10),
        ),
    )  # fmt: skip


def result(run_id: str, kind: str = "KafkaBackup", **changes: Any) -> RunResult:
    known: dict[str, Any] = {
        "run_id": run_id, "kind": kind, "outcome": "Succeeded", "exit_code": 0, "start_time": time.time() - 5,
        "end_time": time.time(), "topics": 1, "partitions": 4, "records": 1000, "bytes": 10_000, "archive_id": "a1",
        "cluster_id": "k1", "epoch": 2, "commit": 5,
    }  # fmt: skip
    return RunResult(**(known | changes))

"""The operator with many resources on a real API server: what it costs idle and busy, and how late a status is.

    python -m bench.resources                        # 600 resources, 20 of them running: about four minutes
    python -m bench.resources --resources 60 --seconds 20

It starts etcd and kube-apiserver of the test bed and the operator with the chart's permissions. No kubelet and no Job
controller run: in place of a driver there is a pod that is Running, and the benchmark writes its progress. Calls are
counted in the API server's audit log; a watch that goes on counts as one. Prints a JSON object for each row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config, watch

from tests.apiserver.calls import OPERATOR_GROUP, Calls
from tests.apiserver.conftest import install_crds, install_operator_account
from tests.apiserver.operator import Operator, owner, pod_of, progress
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec

GROUP = ("logkeep.dev", "v1alpha1")
PLURAL = "kafkabackups"
NAMESPACES = 10
PATIENCE = 180.0


class Bench:
    """A cluster with an operator, asked as fast as a program asks."""

    def __init__(self, api: ApiServer, kubeconfig: Path, folder: Path) -> None:
        self.api = api
        self.calls = Calls(api)
        self.operator = Operator(kubeconfig, "", folder / "operator.log", forked=False, LOGKEEP_RESYNC_SECONDS="60")
        made = config.new_client_from_config(str(api.kubeconfig))  # type: ignore[no-untyped-call]
        made.configuration.connection_pool_maxsize = 16
        self.objects = client.CustomObjectsApi(made)
        self.core = client.CoreV1Api(made)
        self.batch = client.BatchV1Api(made)
        for number in range(NAMESPACES):
            self.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=f"team-{number}")))

    def make(self, number: int, suspend: bool = True) -> None:
        body = {"apiVersion": "/".join(GROUP), "kind": "KafkaBackup", "metadata": {"name": f"b{number}"}}
        spec = backup_spec(suspend=suspend)
        where = (*GROUP, f"team-{number % NAMESPACES}", PLURAL)
        self.objects.create_namespaced_custom_object(*where, {**body, "spec": spec})

    def resume(self, number: int) -> None:
        where = (*GROUP, f"team-{number % NAMESPACES}", PLURAL, f"b{number}")
        self.objects.patch_namespaced_custom_object(*where, {"spec": {"suspend": False}})

    def drive(self, number: int, job: str) -> None:
        """Make a driver pod that is Running, in the place of Job controller and kubelet."""
        namespace = f"team-{number % NAMESPACES}"
        made: Any = self.batch.api_client.sanitize_for_serialization(self.batch.read_namespaced_job(job, namespace))
        pod: Any = pod_of(made, job, owner("batch/v1", "Job", made))
        self.core.create_namespaced_pod(namespace, pod)
        self.core.patch_namespaced_pod_status(job, namespace, {"status": {"phase": "Running"}})

    def statuses(self) -> dict[int, dict[str, Any]]:
        """By number of the resource."""
        listed: Any = self.objects.list_cluster_custom_object(*GROUP, PLURAL)
        return {int(item["metadata"]["name"][1:]): item.get("status", {}) for item in listed["items"]}

    def wait(self, what: str, done: Callable[[dict[int, dict[str, Any]]], bool], pause: float = 1.0) -> float:
        """Seconds until the statuses are so."""
        begun = time.monotonic()
        while not done(self.statuses()):
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError(f"{what}: not within {PATIENCE:.0f} s")
            time.sleep(pause)
        return time.monotonic() - begun

    @contextmanager
    def costs(self, row: dict[str, Any]) -> Iterator[None]:
        """Calls a minute, CPU and memory of the operator meanwhile."""
        self.calls.restart()
        cpu, begun = _cpu_seconds(self.operator.pid), time.monotonic()
        yield
        seconds = time.monotonic() - begun
        asked = self.calls.counted()
        row["seconds"] = round(seconds, 1)
        row["calls_a_minute"] = round(sum(asked.values()) * 60 / seconds)
        row["cores"] = round((_cpu_seconds(self.operator.pid) - cpu) / seconds, 3)
        row["rss_mib"] = _rss_mib(self.operator.pid)
        row["calls"] = dict(asked.most_common(8))


def measure(resources: int, running: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The rows: first start, start again, idle, busy."""
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as name, ApiServer((), OPERATOR_GROUP) as api:
        install_crds(api)
        bench = Bench(api, install_operator_account(api, Path(name) / "kubeconfig"), Path(name))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(bench.make, range(resources)))
        with bench.operator:
            row: dict[str, Any] = {"row": "first start", "resources": resources}
            with bench.costs(row):
                bench.wait("all statuses", lambda told: all("phase" in status for status in told.values()))
            yield row
            bench.operator.kill()
            bench.make(resources)
            bench.operator.start()
            row = {"row": "start again", "resources": resources}
            with bench.costs(row):
                bench.wait("the new one's status", lambda told: "phase" in told[resources], pause=0.2)
            yield row
            time.sleep(5)
            row = {"row": "idle", "resources": resources}
            with bench.costs(row):
                time.sleep(seconds)
            yield row
            yield _busy(bench, resources, range(running), seconds)


def _busy(bench: Bench, resources: int, running: Sequence[int], seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"row": "busy", "resources": resources, "running": len(running)}
    for number in running:
        bench.resume(number)
    bench.wait("the runs", lambda told: all("run" in told[number] for number in running), pause=0.2)
    runs = {number: status["run"] for number, status in bench.statuses().items() if number in running}
    for number, run in runs.items():
        bench.drive(number, run["job"])
    told = _Told(bench)
    with bench.costs(row):
        begun, at = time.monotonic(), 0
        while time.monotonic() < begun + seconds:
            at += 1
            for number, run in runs.items():
                body = {"data": {"progress.json": progress(run["id"], at).to_json()}}
                told.wrote(number, at)
                name = f"{run['job']}-progress"
                bench.core.patch_namespaced_config_map(name, f"team-{number % NAMESPACES}", body)
            time.sleep(max(0.0, begun + at - time.monotonic()))
    time.sleep(3)
    late = told.stop()
    row["documents"] = at * len(runs)
    row["statuses"] = len(late)
    row["latency_p50_s"] = round(statistics.median(late), 2)
    row["latency_p95_s"] = round(statistics.quantiles(late, n=20)[-1], 2)
    row["latency_max_s"] = round(max(late), 2)
    return row


class _Told:
    """From the moment that a document is written to the moment that a watcher of the resource sees it, or a newer one,
    in the status. A document that a newer one overtook counts until the newer one is seen."""

    def __init__(self, bench: Bench) -> None:
        self._written: dict[int, list[tuple[int, float]]] = {}
        self._late: list[float] = []
        self._lock = threading.Lock()
        self._watch: Any = watch.Watch()  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._follow, args=(bench,), daemon=True)
        self._thread.start()

    def wrote(self, number: int, at: int) -> None:
        """The document is about to be written."""
        with self._lock:
            self._written.setdefault(number, []).append((at, time.monotonic()))

    def stop(self) -> list[float]:
        """Seconds of every document that was seen."""
        self._watch.stop()
        with self._lock:
            return list(self._late)

    def _follow(self, bench: Bench) -> None:
        with contextlib.suppress(urllib3.exceptions.HTTPError):  # the API server ends before the watch does
            for event in self._watch.stream(bench.objects.list_cluster_custom_object, *GROUP, PLURAL):
                self._saw(event["object"])

    def _saw(self, body: dict[str, Any]) -> None:
        number = int(body["metadata"]["name"][1:])
        at = body.get("status", {}).get("progress", {}).get("records", 0)
        now = time.monotonic()
        with self._lock:
            waiting = self._written.get(number, [])
            self._late += [now - moment for written, moment in waiting if written <= at]
            self._written[number] = [entry for entry in waiting if entry[0] > at]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m bench.resources", description=__doc__)
    parser.add_argument("--resources", type=int, default=600)
    parser.add_argument("--running", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the idle and of the busy row")
    parsed = parser.parse_args(arguments)
    for row in measure(parsed.resources, parsed.running, parsed.seconds):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The operator with many resources on a real API server: what it costs idle, in a night and busy, and how late it is.

    python -m bench.resources                        # 500 resources, 20 runs at a time: about eight minutes
    python -m bench.resources --resources 50 --seconds 20

It starts etcd and kube-apiserver of the test bed and two replicas of the operator with the chart's permissions. Each
resource has a schedule. No kubelet and no Job controller run: the benchmark ends Jobs and writes results and progress
in the place of drivers. Calls are those of both replicas, counted in the API server's audit log; a watch that continues
counts as one. Prints a JSON object for each row:

- first start: until all resources have a status;
- first runs: the queue lets one run after another begin, until all have succeeded;
- idle: all wait for their next time;
- night: all are due in the same minute;
- busy: 20 runs, each of which writes progress every second;
- failover: the acting replica is killed, and a resource that is new waits for its first status.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config, watch

from tests.apiserver.calls import Calls
from tests.apiserver.conftest import OPERATOR_GROUP, SYSTEM, install_crds, install_operator_account
from tests.apiserver.operator import Operator, owner, pod_of, progress, result
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_of_its_own

GROUP = ("logkeep.dev", "v1alpha1")
PLURAL = "kafkabackups"
NAMESPACES = 10
PATIENCE = 900.0
PAUSE = 0.2  # between two runs that end
RUN = 2.0


class Bench:
    """A cluster with two replicas of the operator, asked as fast as a program asks. `places`: how many runs it lets
    continue at a time."""

    def __init__(self, api: ApiServer, kubeconfig: Path, folder: Path, places: int) -> None:
        self.api = api
        self.places = places
        self.calls = Calls(api)
        self._account, self._folder = kubeconfig, folder
        self.acting, self.waiting = self._replica("one"), self._replica("two")
        made = config.new_client_from_config(str(api.kubeconfig))  # type: ignore[no-untyped-call]
        made.configuration.connection_pool_maxsize = 16
        self.objects = client.CustomObjectsApi(made)
        self.core = client.CoreV1Api(made)
        self.batch = client.BatchV1Api(made)
        for number in range(NAMESPACES):
            self.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=f"team-{number}")))

    def _replica(self, name: str) -> Operator:
        return Operator(
            self._account,
            "",
            self._folder / f"{name}.log",
            forked=False,
            LOGKEEP_RESYNC_SECONDS="60",
            LOGKEEP_MAX_CONCURRENT_RUNS=str(self.places),
            LOGKEEP_LEASE_NAME="logkeep",
            LOGKEEP_LEASE_NAMESPACE=SYSTEM,
            LOGKEEP_POD_NAME=name,
        )

    def start(self) -> None:
        """Both replicas; the first of them acts."""
        self.acting.start()
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/logkeep"
        begun = time.monotonic()
        while self.api.connection.get(lease) is None:
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError("no replica takes the Lease")
            time.sleep(0.2)
        self.waiting.start()

    def fail_over(self) -> None:
        """SIGKILL for the replica that acts."""
        self.acting.kill()
        self.acting, self.waiting = self.waiting, self.acting

    def stop(self) -> None:
        self.acting.kill()
        self.waiting.kill()

    def make(self, number: int) -> None:
        body = {"apiVersion": "/".join(GROUP), "kind": "KafkaBackup", "metadata": {"name": f"b{number}"}}
        spec = backup_of_its_own(f"b{number}", schedule=_daily(time.time() - 3600))
        where = (*GROUP, f"team-{number % NAMESPACES}", PLURAL)
        self.objects.create_namespaced_custom_object(*where, {**body, "spec": spec})

    def change(self, number: int, change: dict[str, Any]) -> None:
        where = (*GROUP, f"team-{number % NAMESPACES}", PLURAL, f"b{number}")
        self.objects.patch_namespaced_custom_object(*where, change)

    def drive(self, number: int, job: str) -> None:
        """Make a driver pod that is Running, in the place of Job controller and kubelet."""
        namespace = f"team-{number % NAMESPACES}"
        made: Any = self.batch.api_client.sanitize_for_serialization(self.batch.read_namespaced_job(job, namespace))
        pod: Any = pod_of(made, job, owner("batch/v1", "Job", made))
        self.core.create_namespaced_pod(namespace, pod)
        self.core.patch_namespaced_pod_status(job, namespace, {"status": {"phase": "Running"}})

    def succeed(self, namespace: str, job: str, run_id: str) -> None:
        """The run's result and its Job's end, in the place of driver and Job controller."""
        body = {"data": {"result.json": result(run_id, records=0).to_json()}}
        self.core.patch_namespaced_config_map(f"{job}-progress", namespace, body)
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        met, complete = ({"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete"))
        begun: dict[str, Any] = {"startTime": moment, "active": 0, "conditions": [met]}
        self.batch.patch_namespaced_job_status(job, namespace, {"status": begun})
        ended = {"succeeded": 1, "completionTime": moment, "ready": 0, "terminating": 0, "conditions": [met, complete]}
        self.batch.patch_namespaced_job_status(job, namespace, {"status": ended})

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
        """Calls a minute of both replicas, CPU and memory of the one that acts in the end."""
        self.calls.restart()
        cpu, begun = {pid: _cpu_seconds(pid) for pid in self._pids()}, time.monotonic()
        yield
        seconds = time.monotonic() - begun
        asked = self.calls.counted()
        row["seconds"] = round(seconds, 1)
        row["calls_a_minute"] = round(sum(asked.values()) * 60 / seconds)
        row["cores"] = round((_cpu_seconds(self.acting.pid) - cpu[self.acting.pid]) / seconds, 3)
        row["rss_mib"] = [_rss_mib(pid) for pid in self._pids()]
        row["calls"] = dict(asked.most_common(12))

    def _pids(self) -> list[int]:
        """The replica that acts, and the other one while it is there."""
        return [operator.pid for operator in (self.acting, self.waiting) if operator.running]


def measure(resources: int, running: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The rows."""
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as name, ApiServer((), OPERATOR_GROUP) as api:
        install_crds(api)
        bench = Bench(api, install_operator_account(api, Path(name) / "kubeconfig"), Path(name), running)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(bench.make, range(resources)))
        try:
            for measured in (_first, _idle, _night, _busy, _failover):
                for row in measured(bench, resources, seconds):
                    yield {**row, "resources": resources, "places": running}
        finally:
            bench.stop()


def _first(bench: Bench, resources: int, seconds: float) -> Iterator[dict[str, Any]]:
    queue = _Queue(bench)
    row: dict[str, Any] = {"row": "first start"}
    bench.start()
    with bench.costs(row):
        bench.wait("all statuses", lambda reported: all("phase" in status for status in reported.values()))
    yield row
    row = {"row": "first runs"}
    with bench.costs(row):
        row |= queue.drain(resources)
        bench.wait(
            "all successes", lambda reported: all(status["phase"] == "Succeeded" for status in reported.values())
        )
    yield row


def _idle(bench: Bench, resources: int, seconds: float) -> Iterator[dict[str, Any]]:
    time.sleep(5)
    row: dict[str, Any] = {"row": "idle"}
    with bench.costs(row):
        time.sleep(seconds)
    yield row


def _night(bench: Bench, resources: int, seconds: float) -> Iterator[dict[str, Any]]:
    """All have the same time of the day, and no jitter."""
    due = (int(time.time()) // 60 + 2) * 60 + (60 if resources > 100 else 0)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: bench.change(number, {"spec": {"schedule": _daily(due)}}), range(resources)))
    reported = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
    bench.wait("the schedule", lambda all_: all(status["nextScheduleTime"] == reported for status in all_.values()))
    queue = _Queue(bench, due)
    row: dict[str, Any] = {"row": "night"}
    time.sleep(max(0.0, due - time.time()))
    with bench.costs(row):
        row |= queue.drain(resources)
        bench.wait("all successes", lambda all_: all(status["phase"] == "Succeeded" for status in all_.values()))
        bench.wait("their times", lambda all_: all(status["lastScheduleTime"] == reported for status in all_.values()))
    yield row


def _busy(bench: Bench, resources: int, seconds: float) -> Iterator[dict[str, Any]]:
    running = range(min(bench.places, resources))
    row: dict[str, Any] = {"row": "busy", "running": len(running)}
    before = {number: status["run"]["id"] for number, status in bench.statuses().items() if number in running}
    for number in running:
        bench.change(number, {"metadata": {"annotations": {"logkeep.dev/run": "busy"}}})
    bench.wait(
        "the runs", lambda reported: all(reported[number]["run"]["id"] != before[number] for number in running), 0.2
    )
    runs = {number: status["run"] for number, status in bench.statuses().items() if number in running}
    for number, run in runs.items():
        bench.drive(number, run["job"])
    reported = _Told(bench)
    with bench.costs(row):
        begun, at = time.monotonic(), 0
        while time.monotonic() < begun + seconds:
            at += 1
            for number, run in runs.items():
                body = {"data": {"progress.json": progress(run["id"], at).to_json()}}
                reported.wrote(number, at)
                name = f"{run['job']}-progress"
                bench.core.patch_namespaced_config_map(name, f"team-{number % NAMESPACES}", body)
            time.sleep(max(0.0, begun + at - time.monotonic()))
    time.sleep(3)
    late = reported.stop()
    row["documents"] = at * len(runs)
    row["statuses"] = len(late)
    yield row | _spread("status", late)


def _failover(bench: Bench, resources: int, seconds: float) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {"row": "failover"}
    bench.fail_over()
    with bench.costs(row):
        bench.make(resources)
        bench.wait("the new one's status", lambda reported: "phase" in reported[resources], pause=0.2)
    yield row


def _daily(at: float) -> dict[str, Any]:
    """A schedule for this time of the day."""
    moment = time.gmtime(at)
    return {"cron": f"{moment.tm_min} {moment.tm_hour} * * *", "jitterSeconds": 0}


def _spread(name: str, late: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_p50_s": round(statistics.median(late), 2),
        f"{name}_p95_s": round(statistics.quantiles(late, n=20)[-1], 2),
        f"{name}_max_s": round(max(late), 2),
    }


@dataclass(frozen=True)
class _Run:
    """A Job that was seen at a moment."""

    namespace: str
    job: str
    id: str
    begun: float


class _Queue:
    """Ends the runs that begin, and measures how long a place stays free: the first runs that begin take the places,
    and each later one takes that of a run that has ended. A run takes RUN seconds at least, and one ends each PAUSE.
    `due`: when all were due."""

    def __init__(self, bench: Bench, due: float | None = None) -> None:
        self._bench = bench
        self._due = due
        self._begun: list[_Run] = []
        self._watch: Any = watch.Watch()  # type: ignore[no-untyped-call]
        listed: Any = bench.batch.list_job_for_all_namespaces()
        self._known = {job.metadata.uid for job in listed.items}
        self._thread = threading.Thread(target=self._follow, args=(listed.metadata.resource_version,), daemon=True)
        self._thread.start()

    def drain(self, runs: int) -> dict[str, Any]:
        """Until so many runs have ended."""
        ended: list[float] = []
        most, last = 0, time.time()
        while len(ended) < runs:
            if time.time() - last > PATIENCE:
                raise RuntimeError(f"{len(ended)} of {runs} runs have ended, and no other does")
            time.sleep(0.01)
            begun = self._begun[:]
            most = max(most, len(begun) - len(ended))
            now = time.time()
            if len(begun) > len(ended) and now - last >= PAUSE and now - begun[len(ended)].begun >= RUN:
                run = begun[len(ended)]
                self._bench.succeed(run.namespace, run.job, run.id)
                last = time.time()
                ended.append(last)
        self._watch.stop()
        return self._figures(ended, [run.begun for run in self._begun], most)

    def _figures(self, ended: list[float], begun: list[float], most: int) -> dict[str, Any]:
        places = self._bench.places
        late = [max(0.0, start - end) for end, start in zip(ended, begun[places:], strict=False)]
        reported: dict[str, Any] = {"jobs": len(begun), "most_at_once": most}
        reported["runs_a_minute"] = round(60 * len(ended) / (ended[-1] - begun[0]))
        if self._due is not None:
            reported["first_late_s"] = round(begun[0] - self._due, 2)
            reported["places_taken_s"] = round(begun[min(places, len(begun)) - 1] - self._due, 2)
        return reported | _spread("place_free", late)

    def _follow(self, version: str) -> None:
        batch = self._bench.batch
        with contextlib.suppress(urllib3.exceptions.HTTPError):  # the API server ends before the watch does
            for event in self._watch.stream(batch.list_job_for_all_namespaces, resource_version=version):
                if event is None:  # the watch was stopped
                    return
                metadata = event["object"].metadata
                if metadata.uid not in self._known:
                    self._known.add(metadata.uid)
                    run = metadata.labels["logkeep.dev/run"]
                    self._begun.append(_Run(metadata.namespace, metadata.name, run, time.time()))


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
    parser.add_argument("--resources", type=int, default=500)
    parser.add_argument("--running", type=int, default=20, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the idle and of the busy row")
    parsed = parser.parse_args(arguments)
    for row in measure(parsed.resources, parsed.running, parsed.seconds):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

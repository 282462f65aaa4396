"""A nightly run of a KafkaBackup over many topics, on a real node with a real broker: what it costs with nothing to do.

    python -m bench.idle                             # 1,000 topics of 3 partitions: the first run, then idle runs
    python -m bench.idle --topics 100 --runs 2

It starts the node of the test bed, with a broker and an S3 server beside it, installs the chart, and applies one
KafkaBackup with nothing set but its addresses. To measure another version, run this file in a checkout of that version:

    PYTHONPATH=operator:engine:.:kernel/built python -P <here>/bench/idle.py

A pod holds what it requests from the moment that it has a node until its containers have ended: `pod_s`, and with the
requests `core_s` and `gib_s`. `cpu_s` and `peak_mib` (anonymous memory and mapped files of all its processes together,
Java's and Python's) are from the pods' cgroups, `s3` from the server's access log, `s3_put_bytes` from its folder.
`load` is the machine's load before the run. Prints a JSON object for each run, and one of the medians of the idle runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import cpu_of
from bench.results import commit
from tests.cluster import images, state, system
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Installation, Resource, backup
from tests.cluster.node import Node
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server

NAMESPACE = "bench"
BUCKET = "bench"
_JVM = ("-Xmx1g", "-XX:+UseG1GC")
_LOOK_SECONDS = 0.1
_TOPICS_A_REQUEST = 50
_RECORD_BYTES = 1000
_SETTLE_SECONDS = 3.0
_OPERATION = re.compile(r" s3_(\w+) ")
_MIB = 1 << 20
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True, slots=True)
class Options:
    """`conf` are keys of `spec.spark.conf`."""

    topics: int
    partitions: int
    records: int
    runs: int
    conf: Mapping[str, str]

    @property
    def wanted(self) -> int:
        """Records of all topics."""
        return self.topics * self.partitions * self.records


@dataclass
class Pod:
    """A pod of a run as it was seen: seconds of the monotonic clock, what it requests, what it has used."""

    role: str
    cores: float
    memory: float
    since: float
    until: float | None = None
    cpu_s: float = 0.0
    peak: int = 0

    @property
    def seconds(self) -> float:
        """How long it held what it requests."""
        assert self.until is not None
        return self.until - self.since


class Pods:
    """Looks at the pods of a namespace and at their cgroups many times a second, from entering to leaving."""

    def __init__(self, installation: Installation) -> None:
        self._api, self._cgroup = installation.api, installation.node.netns
        self._pods: dict[str, Pod] = {}
        self._known: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        for pod in self._listed():
            self._known.add(pod["metadata"]["uid"])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether there were pods and all have ended."""
        pods = list(self._pods.values())
        return bool(pods) and all(pod.until is not None for pod in pods)

    @property
    def all(self) -> list[Pod]:
        """All pods that have come since entering."""
        return list(self._pods.values())

    def _listed(self) -> list[Document]:
        return self._api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            listed = {pod["metadata"]["uid"]: pod for pod in self._listed()}
            now = time.monotonic()
            for uid, document in listed.items():
                if uid not in self._known and uid not in self._pods and document["spec"].get("nodeName"):
                    self._pods[uid] = _pod(document, now)
            for uid, pod in self._pods.items():
                gone = uid not in listed or listed[uid]["status"]["phase"] in ("Succeeded", "Failed")
                if pod.until is None and gone:
                    pod.until = now
                cpu, memory = _used(self._cgroup, uid)
                pod.cpu_s, pod.peak = max(pod.cpu_s, cpu), max(pod.peak, memory)


def _pod(document: Document, now: float) -> Pod:
    requests = [container["resources"]["requests"] for container in document["spec"]["containers"]]
    return Pod(
        role=document["metadata"]["labels"]["logkeep.dev/role"],
        cores=sum(quantity(each["cpu"]) for each in requests),
        memory=sum(quantity(each["memory"]) for each in requests),
        since=now,
    )


def quantity(text: str) -> float:
    """Kubernetes' 250m, 768Mi or 1 as a number."""
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    return float(text[:-2]) * _UNITS[text[-2:]] if text[-2:] in _UNITS else float(text)


def _used(cgroup: str, uid: str) -> tuple[float, int]:
    """CPU seconds that the processes of a pod have used, and bytes of memory that they hold."""
    if system.cgroup_v2():
        cpu = _numbers(cgroup, uid, "", "cpu.stat").get("usage_usec", 0) / 1e6
        memory = _numbers(cgroup, uid, "", "memory.stat")
        return cpu, memory.get("anon", 0) + memory.get("file_mapped", 0)
    used = _numbers(cgroup, uid, "cpuacct", "cpuacct.stat")
    memory = _numbers(cgroup, uid, "memory", "memory.stat")
    ticks = used.get("user", 0) + used.get("system", 0)
    return ticks / os.sysconf("SC_CLK_TCK"), memory.get("total_rss", 0) + memory.get("total_mapped_file", 0)


def _numbers(cgroup: str, uid: str, controller: str, file: str) -> dict[str, int]:
    """The lines of a pod's file; nothing if the pod has none any more."""
    for path in (system.CGROUPS / controller / cgroup / "kubepods").glob(f"**/pod{uid}/{file}"):
        with contextlib.suppress(OSError):
            return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
    return {}


def fill(broker: KafkaBroker, options: Options) -> None:
    """Make the topics, each partition with the same number of records that do not compress."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 3})
    names = [f"topic-{number:06d}" for number in range(options.topics)]
    for at in range(0, len(names), _TOPICS_A_REQUEST):
        some = [NewTopic(name, options.partitions, 1) for name in names[at : at + _TOPICS_A_REQUEST]]
        for made in admin.create_topics(some, operation_timeout=60, request_timeout=120).values():
            made.result(120)

    def led() -> bool:
        known = admin.list_topics(timeout=60).topics
        return all(
            name in known and sum(part.leader >= 0 for part in known[name].partitions.values()) == options.partitions
            for name in names
        )

    wait_until(led, 120, "the leaders of all partitions")
    settings = {"linger.ms": 100, "queue.buffering.max.messages": options.wanted + 1, "log_level": 3}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for name in names:
        for partition in range(options.partitions):
            for _ in range(options.records):
                producer.produce(name, os.urandom(_RECORD_BYTES), partition=partition, on_delivery=_refuse)
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("the broker has not taken all records within 300 s")


def _refuse(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


class Bench:
    """A node with Logkeep, a filled broker and an S3 server, and the KafkaBackup that runs there."""

    def __init__(
        self,
        installation: Installation,
        broker: KafkaBroker,
        s3: S3Server,
        access_log: Path,
        document: Document,
        records: int,
    ) -> None:
        self._installation, self._broker, self._s3, self._access_log = installation, broker, s3, access_log
        self._document = document
        self._records = records

    def run(self, row: dict[str, Any], *, first: bool = False) -> dict[str, Any]:
        """One run to its end. `row` is filled."""
        resource = Resource(self._installation, NAMESPACE, "KafkaBackup", self._document["metadata"]["name"])
        before = resource.status.get("run", {}).get("id")
        row["load"] = round(os.getloadavg()[0], 1)
        log, begun_at = self._access_log.stat().st_size if self._access_log.exists() else 0, time.time()
        broker, s3 = cpu_of(self._broker.process.pid), cpu_of(self._s3.process.pid)
        with Pods(self._installation) as pods:
            begun = time.monotonic()
            if first:
                self._installation.apply(NAMESPACE, self._document)
            else:
                resource.run_again(f"{begun_at}")
            status = resource.wait("Succeeded", timeout=1800, run_not=before)
            row["wall_s"] = round(time.monotonic() - begun, 1)
            wait_until(lambda: pods.ended, 120, "the pods to end")
            time.sleep(_SETTLE_SECONDS)  # so that nothing of this run is in the next one's figures
        row |= costs(pods.all)
        row["broker_cpu_s"] = round(cpu_of(self._broker.process.pid) - broker, 2)
        row["s3_cpu_s"] = round(cpu_of(self._s3.process.pid) - s3, 2)
        row["records"] = status["progress"].get("records", 0)
        if first and row["records"] != self._records:
            raise RuntimeError(f"the first run has archived {row['records']} records of {self._records}")
        with self._access_log.open() as lines:
            lines.seek(log)
            row["s3"] = dict(Counter(_OPERATION.findall(lines.read())))
        row["s3_put_bytes"] = _written(self._s3.data_dir / BUCKET, begun_at)
        return row


def costs(pods: Sequence[Pod]) -> dict[str, Any]:
    """Add up what the pods of a run held and used, and find the most memory of its driver."""
    drivers = [pod for pod in pods if pod.role == "driver"]
    return {
        "pods": dict(Counter(pod.role for pod in pods)),
        "pod_s": round(sum(pod.seconds for pod in pods), 1),
        "core_s": round(sum(pod.seconds * pod.cores for pod in pods), 2),
        "gib_s": round(sum(pod.seconds * pod.memory for pod in pods) / (1 << 30), 2),
        "cpu_s": round(sum(pod.cpu_s for pod in pods), 2),
        "peak_mib": round(max(pod.peak for pod in drivers) / _MIB),
    }


def _written(folder: Path, since: float) -> int:
    """Bytes of the objects that are newer. A run writes each object once."""
    files = (file.stat() for file in folder.rglob("*") if file.is_file())
    return sum(stat.st_size for stat in files if stat.st_mtime >= since)


@contextlib.contextmanager
def started(options: Options) -> Iterator[Bench]:
    """Everything that a run needs."""
    state.sweep()
    with contextlib.ExitStack() as stack:
        access_log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-idle-"))) / "s3.log"
        os.environ["VGW_ACCESS_LOG"] = str(access_log)  # read by the S3 server: it writes a line a request
        node = stack.enter_context(Node())
        for image in images.archives().values():
            node.load(image)
        broker = stack.enter_context(KafkaBroker(host=node.ip, netns=node.netns, overrides=STEADY, jvm=_JVM))
        s3 = stack.enter_context(S3Server(host=node.ip, netns=node.netns))
        try:
            fill(broker, options)
        except Exception as error:
            error.add_note(broker.process.output[-3000:])
            raise
        installation = Installation(node, s3)
        installation.install()
        installation.create_namespace(NAMESPACE, s3)
        s3.create_bucket(BUCKET)
        document = backup("nightly", broker.bootstrap, s3, f"s3://{BUCKET}/archive")
        document["spec"]["spark"] = {"conf": dict(options.conf)}
        yield Bench(installation, broker, s3, access_log, document, options.wanted)


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """The rows: the first run, the idle runs, and the medians of those."""
    facts = {"commit": commit(), "topics": options.topics, "partitions": options.topics * options.partitions}
    with started(options) as bench:
        yield bench.run({"row": "first", **facts}, first=True)
        idle = []
        for number in range(options.runs):
            idle.append(bench.run({"row": f"idle {number + 1}", **facts}))
            yield idle[-1]
    if idle:
        yield {"row": "idle, medians", **facts, **medians(idle)}


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median of every column that is a number and belongs to one run."""
    columns = [name for name in rows[0] if name.endswith(("_s", "_mib", "_bytes"))]
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in columns}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=3, help="of a topic")
    parser.add_argument("--records", type=int, default=30, help="of 1 kB, of a partition")
    parser.add_argument("--runs", type=int, default=5, help="idle runs, after the first one")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of spec.spark.conf")
    parsed = parser.parse_args(arguments)
    if wrong := [pair for pair in parsed.conf if "=" not in pair]:
        parser.error(f"--conf takes KEY=VALUE, not {wrong[0]!r}")
    conf = dict(pair.split("=", 1) for pair in parsed.conf)
    for row in measure(Options(parsed.topics, parsed.partitions, parsed.records, parsed.runs, conf)):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

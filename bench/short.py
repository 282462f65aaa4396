"""The price that a short run pays once: whole processes that archive 34 MB, again with nothing new, and restore it.

    python -m bench.short                                    # this checkout
    python -m bench.short --beside /path/to/another/checkout # and another one, in turns
    python -m bench.short --times 9 --only pod

It starts the broker and the S3 server of the test bed. `engine` is the engine's tasks in one process, `command` is
`logkeep backup --master local[2]`, `pod` is the driver as a Job's pod runs it, with no executors: it writes its
progress to an API that this program serves. `again` is a run that finds nothing new, `restore` restores the archive
(measured for `engine` only). Prints a JSON object for each: seconds of a processor and of the clock, the least and the
middle of all times. The machine may be busy: compare CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import ssl
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from bench import bed, load, process, topics
from bench.bed import Bed
from bench.engine import backup_spec, restore_spec
from logkeep_engine.contract.run import RunRequest
from tests.cluster.pki import Authority
from tests.data.topics import delete_topics

ROOT = Path(__file__).parents[1]
TOPIC = topics.named(["plain-1k"])[0].shrunk(60)

# The account's files of a pod lie in a folder of our own.
_IN_POD = """
import runpy, sys
from pathlib import Path
from logkeep_engine.spark import config_map
config_map.ACCOUNT = Path(sys.argv.pop(1))
runpy.run_module("logkeep_engine.spark.driver", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where runs are measured: servers, and the files and variables of a pod."""

    bed: Bed
    account: Path
    environ: dict[str, str]


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def in_pod(here: Bed) -> Iterator[Scene]:
    """The surroundings of a driver's pod: its account, and an API that takes every patch."""
    account = here.folder / "account"
    authority = Authority(account)
    certificate = authority.issue("api", "/CN=api", "IP:127.0.0.1")
    (account / "ca.crt").write_bytes(authority.cert.read_bytes())
    (account / "token").write_text("token")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environ = {
        "LOGKEEP_POD_NAME": "short-x7k2p",
        "LOGKEEP_POD_IP": "127.0.0.1",
        "LOGKEEP_POD_NAMESPACE": "bench",
        "LOGKEEP_TERMINATION_LOG": str(here.folder / "termination-log"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_address[1]),
        "NO_PROXY": "127.0.0.1",
    }
    try:
        yield Scene(here, account, environ)
    finally:
        server.shutdown()


def engine(scene: Scene, spec: dict[str, Any], kind: str = "KafkaBackup") -> list[str]:
    """The tasks of a run in one process."""
    # -P: the code of the checkout that is measured, not of the folder that this program was started in
    return [sys.executable, "-P", "-m", "bench.worker", "engine", json.dumps({"kind": kind, "spec": spec})]


def command(scene: Scene, spec: dict[str, Any]) -> list[str]:
    """The command of a user."""
    file = scene.bed.folder / "backup.yaml"
    metadata = {"name": "bench"}
    document = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": metadata, "spec": spec}
    file.write_text(yaml.safe_dump(document))
    return [sys.executable, "-m", "logkeep_engine.cli", "backup", "-f", str(file), "--master", "local[2]"]


def pod(scene: Scene, spec: dict[str, Any]) -> list[str]:
    """The driver of a Job."""
    file = scene.bed.folder / "request.json"
    request = RunRequest(
        kind="KafkaBackup",
        name="bench",
        namespace="bench",
        run_id=f"bench-{secrets.token_hex(4)}",
        spec=spec,
        progress_config_map="bench-progress",
        spark_conf={"spark.driver.memory": "512m", "spark.kubernetes.container.image": "engine:1"},
    )
    file.write_text(request.to_json())
    return [sys.executable, "-c", _IN_POD, str(scene.account), "--request", str(file)]


RUNS: dict[str, tuple[Callable[[Scene, dict[str, Any]], list[str]], str]] = {
    "engine": (engine, "file"),
    "command": (command, "file"),
    "pod": (pod, "s3"),
}


def measure(scene: Scene, name: str, checkout: Path) -> Mapping[str, process.Usage]:
    """Back up into a new archive, back up the same again, and restore it; returns the cost of each by its name."""
    make, where = RUNS[name]
    path = os.pathsep.join(str(checkout / part) for part in ("operator", "engine", ".", "kernel/built"))
    environ = {**scene.environ, "PYTHONPATH": path}
    archive = f"short-{secrets.token_hex(4)}"
    storage = scene.bed.storage(where, archive)
    spec = backup_spec(scene.bed.bootstrap, TOPIC.name, storage)
    try:
        found = {run: process.run(make(scene, spec), env=environ) for run in ("first", "again")}
        if make is engine:
            target = f"{TOPIC.name}-{archive}"
            renamed = restore_spec(scene.bed.bootstrap, storage, topics={"rename": [{"from": ".*", "to": target}]})
            found["restore"] = process.run(engine(scene, renamed, "KafkaRestore"), env=environ)
            delete_topics(scene.bed.bootstrap, [target])
    finally:
        scene.bed.drop(where, archive)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.short", description=__doc__)
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another checkout to measure")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", choices=RUNS, action="append")
    chosen = parser.parse_args()
    found: dict[tuple[str, str, str], list[process.Usage]] = {}
    with bed.started(s3=True) as here, in_pod(here) as scene:
        load.load(here.bootstrap, TOPIC)
        for _ in range(chosen.times + 1):
            for name in chosen.only or RUNS:
                for checkout in (*chosen.beside, ROOT):
                    for run, usage in measure(scene, name, checkout).items():
                        found.setdefault((name, run, str(checkout)), []).append(usage)
    for (name, run, checkout), every in found.items():
        counted = every[1:]  # the first one fills caches
        cpu, wall = [usage.cpu for usage in counted], [usage.wall for usage in counted]
        print(
            json.dumps(
                {
                    "run": f"{name}, {run}",
                    "checkout": checkout,
                    "cpu": [round(min(cpu), 2), round(statistics.median(cpu), 2)],
                    "wall": [round(min(wall), 2), round(statistics.median(wall), 2)],
                    "peak_mb": round(min(usage.peak for usage in counted) / 1e6),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

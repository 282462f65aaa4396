"""Make the archive of classes with which the JVMs of the engine image start: `classes.py ARCHIVE`.

A JVM spends most of its start on reading and checking classes; from an archive it maps them ("class-data sharing", JEP
350). To learn which classes a Logkeep run needs, this runs one Spark job as a run does: a driver in client mode against
a Kubernetes API, and one executor. The API is played by this script, which "starts a pod" by starting the executor's
process. No cluster is needed, and nothing but the loopback interface. The driver's JVM then loads the executor's
classes too and writes one archive for both when it ends.

The archive holds for the jars in the order of their names, as `entrypoint.sh` and `logkeep_engine.spark.jvm` give them,
and for this very Java. Where it does not fit, the JVM starts without it.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

JAVA = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
CLASS_PATH = ":".join(str(jar) for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")))
GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
OPEN_PACKAGES = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.ref")
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class Api(ThreadingHTTPServer):
    """The part of the Kubernetes API that Spark asks for: objects are given back as they were sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.pods: list[dict[str, Any]] = []
        self.executors: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def create(self, item: dict[str, Any]) -> None:
        item["metadata"] |= {"uid": f"u{len(self.pods)}", "resourceVersion": "1", "namespace": "default"}
        item["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if item.get("kind") == "Pod":
            item["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
            self.pods.append(item)
            self.executors.append(start_executor(item))


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def do_GET(self) -> None:
        if self.path.split("?")[0].endswith("/pods"):
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.server.pods})
        else:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            metadata = {"name": "driver", "namespace": "default", "uid": "u"}
            self._answer({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": status})

    def do_POST(self) -> None:
        item = self._body()
        self.server.create(item)
        self._answer(item)

    def do_PUT(self) -> None:
        self._answer(self._body())

    def do_PATCH(self) -> None:
        self._body()
        self._answer(self.server.pods[0] if self.server.pods else {})

    def do_DELETE(self) -> None:
        self._body()
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _body(self) -> dict[str, Any]:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(raw) if raw else {}

    def _answer(self, item: dict[str, Any]) -> None:
        raw = json.dumps(item).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def start_executor(pod: dict[str, Any], address: str = "127.0.0.1") -> subprocess.Popen[bytes]:
    """Do what `entrypoint.sh executor` does, with the environment of the pod's container, in a pod of this address."""
    container = pod["spec"]["containers"][0]
    reported = {item["name"]: item["value"] for item in container["env"] if item.get("value") is not None}
    environ = {**os.environ, **reported}
    environ.pop("SPARK_HOME", None)
    names = sorted((name for name in reported if name.startswith("SPARK_JAVA_OPT_")), key=lambda name: int(name[15:]))
    arguments = {
        "--driver-url": reported["SPARK_DRIVER_URL"],
        "--executor-id": reported["SPARK_EXECUTOR_ID"],
        "--cores": reported["SPARK_EXECUTOR_CORES"],
        "--app-id": reported["SPARK_APPLICATION_ID"],
        "--hostname": address,
        "--resourceProfileId": reported["SPARK_RESOURCE_PROFILE_ID"],
        "--podName": pod["metadata"]["name"],
    }
    options = [reported[name] for name in names]
    words = [word for pair in arguments.items() for word in pair]
    command = [JAVA, *options, "-cp", CLASS_PATH, EXECUTOR, *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def driver_jvm(folder: Path, archive: Path) -> Iterator[None]:
    """The driver's JVM, for pyspark to find; it has written the archive when this is left."""
    info = folder / "gateway"
    environ = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)}
    environ.pop("SPARK_HOME", None)
    options = [*SMALL, "-Xlog:disable", "-Xlog:all=error:stderr", f"-XX:ArchiveClassesAtExit={archive}"]
    log4j = folder / "log4j2.properties"
    log4j.write_text("rootLogger.level = off\n")
    options += [f"-Dlog4j2.configurationFile=file:{log4j}", "-Dio.netty.tryReflectionSetAccessible=true"]
    options += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPEN_PACKAGES]
    process = subprocess.Popen([JAVA, *options, "-cp", CLASS_PATH, GATEWAY], stdin=subprocess.PIPE, env=environ)
    while not info.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the driver's JVM ended with {process.returncode}")
        time.sleep(0.05)
    raw = info.read_bytes()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(raw[:4], "big"))
    os.environ["PYSPARK_GATEWAY_SECRET"] = raw[8:].decode()
    try:
        yield
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(600)


def run_job(folder: Path, executor_classes: Path) -> None:
    """Run a job; the executor writes the names of its classes to the file."""
    api = Api()
    own = {
        "spark.executor.extraJavaOptions": " ".join([*SMALL, f"-XX:DumpLoadedClassList={executor_classes}"]),
        "spark.local.dir": str(folder),
    }
    context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list((settings(api) | own).items())))
    try:
        total = context.accumulator(0)
        context.parallelize([1, 2], 2).foreach(total.add)
        if total.value != 3:
            raise RuntimeError("the job did not run")
    finally:
        context.stop()
        for process in api.executors:
            process.wait(120)


def settings(api: Api) -> dict[str, str]:
    """Spark's settings for one executor, which this API starts."""
    return {
        "spark.app.name": "classes",
        "spark.authenticate": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": " ".join(SMALL),
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.kubernetes.container.image": "none",
        "spark.kubernetes.driver.pod.name": "driver",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.namespace": "default",
        "spark.master": f"k8s://http://127.0.0.1:{api.server_port}",
        "spark.task.reaper.enabled": "true",
        "spark.ui.enabled": "false",
    }


def load(executor_classes: Path) -> None:
    """Load the executor's classes in the driver's JVM, without running anything of them."""
    java: Any = SparkContext._jvm.java  # type: ignore[union-attr]
    loader = java.lang.ClassLoader.getSystemClassLoader()
    for line in executor_classes.read_text().splitlines():
        name = line.split(" ")[0]
        if not name.startswith(("#", "@")) and "$$Lambda" not in name and "/Generated" not in name:
            with suppress(Py4JError):
                java.lang.Class.forName(name.replace("/", "."), False, loader)


def main() -> None:
    """Run the job, and let the driver's JVM write the archive."""
    archive = Path(sys.argv[1])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the name of a container that builds an image may have no address
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        executor_classes = Path(name) / "executor"
        with driver_jvm(Path(name), archive):
            run_job(Path(name), executor_classes)
            load(executor_classes)
    archive.chmod(0o644)
    print(f"{archive}: {archive.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()

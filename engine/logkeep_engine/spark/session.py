"""The SparkContext of a run: in one process for the command line, with executor pods for a Job.

Only RDDs are used: no SQL session, no UI, no Hive. The JVM and the context start apart, since the JVM costs seconds and
can start while the run is planned, but executors are asked for only when there is work.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

import logkeep_engine
from logkeep_engine.contract.names import ENV_POD_IP, ENV_POD_NAME, ENV_POD_NAMESPACE
from logkeep_engine.errors import LogkeepError, SparkFailed, SpecError
from logkeep_engine.spark.runner import DEFAULT_MAX_FAILURES, SparkRunner

log = logging.getLogger(__name__)

JVM_START_SECONDS = 15.0
_LOCAL = re.compile(r"^local(?:\[(\d+|\*)\])?$")
# Names of executor pods are the prefix, "-exec-" and a number, and must fit a DNS label of 63.
_POD_NAME_PREFIX_MAX = 46

_COMMON = {
    "spark.app.name": "logkeep",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.maxFailures": str(DEFAULT_MAX_FAILURES),
    "spark.python.worker.reuse": "true",
    "spark.task.reaper.enabled": "true",  # a cancelled task is watched until it is gone
}

# A short-lived JVM that moves no data: quick to start, small.
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p spark %c{{1}}: %m%n%ex{{3}}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.python.name = org.apache.spark.api.python
logger.python.level = {level}
"""


def local_conf(cores: int, *, conf: Mapping[str, str] | None = None) -> SparkConf:
    """Spark inside this machine with `cores` task slots; tasks are retried as on a cluster."""
    settings = {
        **_COMMON,
        "spark.master": f"local[{cores},{DEFAULT_MAX_FAILURES}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _SMALL_JAVA,
        **(conf or {}),
    }
    return _conf(settings)


def kubernetes_conf(conf: Mapping[str, str], environ: Mapping[str, str]) -> SparkConf:
    """Client mode inside the driver's pod. `conf` is `RunRequest.spark_conf`: image, executors, their secrets.

    Raises SpecError if this is no pod, or was not given its name, IP and namespace.
    """
    needed = (ENV_POD_NAME, ENV_POD_IP, ENV_POD_NAMESPACE, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise SpecError(f"The environment lacks {', '.join(missing)}.", hint="Outside a pod use --master local[N].")
    pod, address = environ[ENV_POD_NAME], environ[ENV_POD_IP]
    api_host, api_port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    settings = {
        **_COMMON,
        # Work starts with the first executor; the rest join in.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
        "spark.driver.extraJavaOptions": _SMALL_JAVA,
        "spark.executor.extraJavaOptions": _SMALL_JAVA,
        # Spark makes a secret and hands it to its executors, so that no other pod can talk to this driver.
        "spark.authenticate": "true",
        **conf,
        # What the engine relies on is not the resource's to change.
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.master": f"k8s://https://{_host(api_host)}:{api_port}",
        "spark.submit.deployMode": "client",
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.kubernetes.namespace": environ[ENV_POD_NAMESPACE],
        "spark.kubernetes.driver.pod.name": pod,
        "spark.kubernetes.executor.podNamePrefix": _pod_name_prefix(pod),
    }
    return _conf(settings)


def master_conf(master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]) -> SparkConf:
    """The configuration for `--master`: `local`, `local[N]`, `local[*]`, or None for Kubernetes."""
    if master is None:
        return kubernetes_conf(conf, environ)
    match = _LOCAL.match(master)
    if match is None:
        raise SpecError(f"--master {master!r} is not local, local[N] or local[*].")
    cores = (os.cpu_count() or 1) if match.group(1) == "*" else int(match.group(1) or 1)
    if cores < 1:
        raise SpecError(f"--master {master!r}: at least one core is needed.")
    return local_conf(
        cores, conf={key: value for key, value in conf.items() if not key.startswith("spark.kubernetes.")}
    )


def _conf(settings: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _pod_name_prefix(pod: str) -> str:
    if len(pod) <= _POD_NAME_PREFIX_MAX:
        return pod
    digest = hashlib.sha256(pod.encode()).hexdigest()[:8]
    return f"{pod[: _POD_NAME_PREFIX_MAX - 9].rstrip('-.')}-{digest}"


class Session:
    """A context that starts when it is first needed.

    with Session(local_conf(2)) as session:  # the JVM starts in the background
        run_backup(..., runner_factory=session.runner, ...)

    `runner` may be called often; the context is stopped on leaving.
    """

    def __init__(self, conf: SparkConf, *, environ: MutableMapping[str, str] = os.environ) -> None:
        self._conf = conf
        self._environ = environ
        self._folder = tempfile.TemporaryDirectory(prefix="logkeep-spark-")
        self._error: Exception | None = None
        self._context: SparkContext | None = None
        self._runner: SparkRunner | None = None
        self._jvm = threading.Thread(target=self._start_jvm, name="logkeep-jvm", daemon=True)

    def __enter__(self) -> Self:
        self._prepare()
        self._jvm.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def runner(self) -> SparkRunner:
        """The task runner on this session's context. Raises SparkFailed if Spark cannot start."""
        if self._runner is None:
            self._runner = SparkRunner(self.context())
        return self._runner

    def context(self) -> SparkContext:
        """The context, started now if it is not running. Raises SparkFailed."""
        if self._context is None:
            self._jvm.join()
            if self._error is not None:
                raise self._failure(self._error) from self._error
            try:
                self._context = SparkContext(conf=self._conf)
            except Exception as error:
                raise self._failure(error) from error
        return self._context

    def stop(self) -> None:
        """End the context and its executors; the JVM ends with this process. Never raises."""
        if self._jvm.is_alive():
            self._jvm.join(JVM_START_SECONDS)  # it uses the folder that is about to go
        if self._context is not None:
            try:
                self._context.stop()
            except Exception as error:
                log.warning("Spark did not stop cleanly: %s", type(error).__name__)
        self._context = self._runner = None
        self._folder.cleanup()

    def _prepare(self) -> None:
        self._environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Python workers are started by the JVM: they find the engine as this process found it, installed or not.
        source = str(Path(logkeep_engine.__file__).resolve().parent.parent)
        path = [part for part in self._environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        if source not in path:
            self._environ["PYTHONPATH"] = os.pathsep.join([*path, source])
        log4j = Path(self._folder.name) / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level="fatal" if self._is_local else "warn"))
        java = f"-Dlog4j2.configurationFile=file:{log4j} {self._conf.get('spark.driver.extraJavaOptions', '') or ''}"
        self._conf.set("spark.driver.extraJavaOptions", java.strip())

    @property
    def _is_local(self) -> bool:
        return str(self._conf.get("spark.master", "")).startswith("local")

    def _start_jvm(self) -> None:
        try:
            if SparkContext._gateway is not None or not self._is_local:
                SparkContext._ensure_initialized(conf=self._conf)
                return
            # On a terminal the JVM's own remarks say nothing to the user; `_failure` quotes them if it does not start.
            with self._jvm_log.open("wb") as out:
                gateway = launch_gateway(self._conf, {"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway, conf=self._conf)
        except Exception as error:
            self._error = error

    @property
    def _jvm_log(self) -> Path:
        return Path(self._folder.name) / "jvm.log"

    def _failure(self, error: Exception) -> LogkeepError:
        java = getattr(error, "java_exception", None)
        text = str(java.getMessage() if java is not None else error).strip() or type(error).__name__
        if java is None and self._jvm_log.exists():
            said = self._jvm_log.read_text(errors="replace").strip()
            text = said.splitlines()[-1] if said else text
        return SparkFailed(
            f"Spark could not start: {text.splitlines()[0][:500]}", hint="Java 17 or newer must be installed."
        )

"""The SparkContext of a run: in one process for the command line, with executor pods for a Job.

Only RDDs are used: no SQL session, no UI, no Hive. Everything that can start while the run is planned does so: the JVM,
before pyspark is imported here; the context; and, where the executor is the JVM itself, the Python workers. In a Job's
pod a session starts only when the plan has work for it (`placing`).
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import logkeep_kernel

import logkeep_engine
from logkeep_engine.errors import LogkeepError, SparkFailed
from logkeep_engine.spark import classes, daemon
from logkeep_engine.spark.jvm import JAVA_HINT, Jvm, find_java, spark_jars

if TYPE_CHECKING:
    from pyspark import SparkContext

    from logkeep_engine.spark.runner import SparkRunner

log = logging.getLogger(__name__)

START_SECONDS = 30.0
DEFAULT_MEMORY = "1g"  # Spark's

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p spark %c{{1}}: {shown}%n
appender.console.layout.alwaysWriteExceptions = false
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.python.name = org.apache.spark.api.python
logger.python.level = {level}
"""
# A task's error has names and texts of others. Characters that do something become ?, and lines after the first are
# indented, as in the driver's own log (contract.visible).
_LOG4J_SHOWN = r"%replace{%replace{%m%notEmpty{%n%ex{3}}}{[\\pC&&[^\n\t]]}{?}}{\n}{\n  }"


def log4j_settings(level: str) -> str:
    """Return the settings of the JVM's log."""
    return _LOG4J.format(level=level, shown=_LOG4J_SHOWN)


class Session:
    """A context that starts at once in the background. The first caller that needs it waits for it.

    with Session(local_conf(2)) as session:
        run_backup(..., runner_factory=session.runner, ...)

    `runner` may be called often. Leaving the `with` block stops the context. `s3`: the tasks will talk to S3.
    """

    def __init__(
        self, conf: Mapping[str, str], *, environ: MutableMapping[str, str] = os.environ, s3: bool = False
    ) -> None:
        self._conf = dict(conf)
        if s3:
            self._conf[f"spark.executorEnv.{daemon.ENV_PRELOAD}"] = "s3"
        self._environ = environ
        self._folder = tempfile.TemporaryDirectory(prefix="logkeep-spark-", ignore_cleanup_errors=True)
        self._classes = classes.ClassArchive()
        self._jvm: Jvm | None = None
        self._gateway: Any = None
        self._error: Exception | None = None
        self._context: SparkContext | None = None
        self._runner: SparkRunner | None = None
        self._learn = False
        self._started = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._start, name="logkeep-spark", daemon=True)

    def __enter__(self) -> Self:
        self._prepare()
        try:
            self._jvm = self._start_jvm()
        except SparkFailed as error:  # said when there is work for it, as all that can go wrong here
            self._error = error
            self._started.set()
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def runner(self) -> SparkRunner:
        """Return the task runner on this session's context. Raises SparkFailed if Spark cannot start."""
        if self._runner is None:
            from logkeep_engine.spark.runner import SparkRunner

            self._runner = SparkRunner(self.context())
        return self._runner

    def context(self) -> SparkContext:
        """Return the context, which has asked for its executors. Raises SparkFailed."""
        self._started.wait()
        if self._error is not None:
            raise self._failure(self._error) from self._error
        if self._context is None:
            raise SparkFailed("Spark was stopped before it was used.")
        return self._context

    def has_executor(self) -> bool:
        """Return whether an executor has come to run, besides the driver. Raises SparkFailed."""
        return int(self.context()._jsc.sc().getExecutorMemoryStatus().size()) > 1

    def stop(self) -> None:
        """End the context, its executors and the JVM. Never raises."""
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(START_SECONDS)  # no executor may be asked for after this
        context, self._context, self._runner = self._context, None, None
        if context is not None:
            _close(context, orderly=not self._is_local or self._learn)
        if self._gateway is not None:
            _forget(self._gateway)
        if self._jvm is not None:
            if self._jvm.end(wait=classes.DUMP_SECONDS if self._learn else 0.0):
                self._classes.keep()
            self._classes.drop()
            self._jvm = None
        self._folder.cleanup()

    def learn(self) -> bool:
        """Let `stop` keep the classes that the JVM has loaded, for a quicker start of the next run. Called when the run
        went well.

        The answer is True if this will take seconds.
        """
        self._learn = self._context is not None and self._classes.made is not None
        return self._learn

    def _prepare(self) -> None:
        self._environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Python workers are started by the JVM: they find the engine and its kernel as this process found them,
        # installed or not.
        path = [part for part in self._environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        sources = [
            Path(logkeep_engine.__file__).resolve().parent.parent,
            Path(logkeep_kernel.__file__).resolve().parent,
        ]
        missing = [source for source in dict.fromkeys(map(str, sources)) if source not in path]
        if missing:
            self._environ["PYTHONPATH"] = os.pathsep.join([*path, *missing])
        if self._is_local:
            self._conf["spark.local.dir"] = self._folder.name  # goes with the folder, however the JVM ends

    def _start_jvm(self) -> Jvm:
        folder = Path(self._folder.name)
        log4j = folder / "log4j2.properties"
        log4j.write_text(log4j_settings("fatal" if self._is_local else "warn"))
        extra = [Path(part) for part in self._conf.get("spark.driver.extraClassPath", "").split(os.pathsep) if part]
        java, jars = find_java(self._environ), [*spark_jars(), *extra]
        self._classes = classes.class_archive(java, jars, self._environ)
        options = [
            f"-Xmx{self._conf.get('spark.driver.memory', DEFAULT_MEMORY)}",
            f"-Dlog4j2.configurationFile=file:{log4j}",
            *self._classes.options,
            *shlex.split(self._conf.get("spark.driver.defaultJavaOptions", "")),
            *shlex.split(self._conf.get("spark.driver.extraJavaOptions", "")),
        ]
        environ = dict(self._environ)
        if self._is_local:
            environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # On a terminal the JVM's own remarks say nothing to the user; its last one is quoted if it does not start.
        output = folder / "jvm.log" if self._is_local else None
        return Jvm.start(java, jars, options, environ, folder, output)

    def _start(self) -> None:
        assert self._jvm is not None
        try:
            from pyspark import SparkConf, SparkContext

            self._gateway = gateway = self._jvm.connect(self._leaving.is_set)
            if gateway is None:
                return
            conf = SparkConf(loadDefaults=False).setAll(list(self._conf.items()))
            self._context = SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            self._error = error
            return
        finally:
            self._started.set()
        if self._is_local and not self._leaving.is_set():
            _warm_up(self._context)

    @property
    def _is_local(self) -> bool:
        return self._conf.get("spark.master", "").startswith("local")

    def _failure(self, error: Exception) -> LogkeepError:
        if isinstance(error, LogkeepError):
            return error
        java = getattr(error, "java_exception", None)
        text = str(java.getMessage() if java is not None else error).strip() or type(error).__name__
        return SparkFailed(f"Spark could not start: {text.splitlines()[0][:500]}", hint=JAVA_HINT)


def _warm_up(context: SparkContext) -> None:
    """Start the Python workers' daemon and load the classes of a job, while the run is still planned."""
    try:
        context.parallelize([0], 1).foreachPartition(_nothing)
    except Exception as error:
        log.debug("warming up: %s", error)


def _nothing(items: Iterable[int]) -> None:
    """A task that does nothing."""


def _close(context: SparkContext, *, orderly: bool) -> None:
    """End a context. `orderly` lets it end its executors and clean up. A JVM that is its only executor, and is about to
    be killed, need not do that."""
    server: Any = context._accumulatorServer
    if server is not None:
        # It would print a traceback when the JVM closes the connection, and makes its caller wait half a second.
        server.handle_error = lambda *_: None
        threading.Thread(target=server.shutdown, name="logkeep-accumulators", daemon=True).start()
        context._accumulatorServer = None  # type: ignore[assignment]
    if not orderly:
        context._jsc = None
    try:
        context.stop()
    except Exception as error:
        log.warning("Spark did not stop cleanly: %s", type(error).__name__)


def _forget(gateway: Any) -> None:
    """Let the next session of this process have a JVM of its own."""
    from pyspark import SparkContext

    gateway._gateway_client.is_connected = False  # objects released later would be reported to a JVM that is gone
    if SparkContext._gateway is gateway:
        SparkContext._gateway = SparkContext._jvm = None

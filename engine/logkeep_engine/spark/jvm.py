"""The JVM of a driver, started without `spark-submit`.

`spark-submit` is a shell script that starts a first JVM only to find out how to start the second, and puts the whole
configuration on the command line. Here the JVM is started at once, with nothing on its command line but its own options
(Spark's settings reach it over the gateway), before pyspark is imported:

    with Jvm.start(java, jars, options, environ, folder, output=None) as jvm:
        gateway = jvm.connect(given_up)

The JVM ends when this process does, since its standard input closes then, and takes its Python workers with it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from logkeep_engine.errors import SparkFailed

JAVA_HINT = "Java 17 or newer must be installed."

_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.005

# The packages in `org.apache.spark.launcher.JavaModuleOptions` that Spark's core needs. The incubator module
# named there serves MLlib only, and keeps the JVM from using its archived module graph.
_OPEN_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_PACKAGES),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)

# Not for the JVM: with a home it would put pyspark's zip archives before the installed package on its workers' path,
# and they would compile every module they import.
_NOT_INHERITED = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")


def find_java(environ: Mapping[str, str]) -> Path:
    """Find `java` in JAVA_HOME, else on PATH. Raises SparkFailed."""
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise _no_java(f"JAVA_HOME is {home}, which has no bin/java")
        return java
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise _no_java("java is not on PATH, and JAVA_HOME is not set")
    return Path(found)


def spark_jars() -> list[Path]:
    """Return the jars of the installed pyspark, always in the same order: an archive of classes holds for one class
    path."""
    package = importlib.util.find_spec("pyspark")
    if package is None or not package.submodule_search_locations:
        raise SparkFailed("Spark could not start: pyspark is not installed.", hint="Install logkeep[engine].")
    return sorted((Path(package.submodule_search_locations[0]) / "jars").glob("*.jar"))


class Jvm:
    """A running JVM with Spark's gateway."""

    def __init__(self, process: subprocess.Popen[bytes], info: Path, output: Path | None) -> None:
        self._process = process
        self._info = info
        self._output = output

    @classmethod
    def start(
        cls, java: Path, jars: Sequence[Path], options: Sequence[str], environ: Mapping[str, str], folder: Path,
        output: Path | None,
    ) -> Jvm:  # fmt: skip
        """Start the JVM and return at once. `folder` is this JVM's own; its output goes to `output`, or to that of this
        process. Raises SparkFailed."""
        info = folder / "gateway"
        environ = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
        environ |= {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_CONNECT_MODE": "0"}
        class_path = os.pathsep.join(map(str, jars))
        command = [str(java), *options, *MODULE_OPTIONS, "-cp", class_path, _MAIN]
        out: IO[bytes] | None = output.open("wb") if output is not None else None
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environ,
                process_group=0,  # a Ctrl-C is for this process, which ends the work in order
            )
        except OSError as error:
            raise _no_java(f"{java}: {error.strerror}") from error
        finally:
            if out is not None:
                out.close()
        return cls(process, info, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, given_up: Callable[[], bool]) -> Any:
        """Wait for Spark's gateway, as pyspark expects it. The answer is None when the caller has given up in the
        meantime.

        Raises SparkFailed if the JVM ended, or did not serve the gateway.
        """
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

        until = time.monotonic() + _START_SECONDS
        while not self._info.exists():  # moved there when it is complete
            if given_up():
                return None
            if self._process.poll() is not None:
                raise SparkFailed(f"Spark could not start: {self._last_words()}", hint=JAVA_HINT)
            if time.monotonic() > until:
                raise SparkFailed(
                    f"Spark could not start: no answer from Java in {_START_SECONDS:.0f} s.", hint=JAVA_HINT
                )
            time.sleep(_POLL_SECONDS)
        raw = self._info.read_bytes()
        self._info.unlink()  # it has the secret
        # Java has written the port, the length of the secret and the secret: two int32 and bytes.
        port, secret = int.from_bytes(raw[:4], "big"), raw[8:].decode()
        gateway = ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        _import_names(gateway)
        return gateway

    def end(self, *, wait: float = 0.0) -> bool:
        """End the JVM. With `wait`, let it end by itself for this many seconds first, or until the user interrupts (the
        work is done by then). The answer is True if it did so without an error."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return self._process.wait(wait) == 0
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
            return False

    def _last_words(self) -> str:
        said = self._output.read_text(errors="replace").strip() if self._output is not None else ""
        return (said.splitlines() or [f"Java ended with exit code {self._process.returncode}."])[-1][:500]


def _no_java(reason: str) -> SparkFailed:
    return SparkFailed(f"Spark could not start: {reason}.", hint=JAVA_HINT)


def _import_names(gateway: Any) -> None:
    """Import the Java names that pyspark's core uses without their package, as `pyspark.java_gateway` imports them."""
    from py4j.java_gateway import java_import

    for name in (
        "org.apache.spark.SparkConf",
        "org.apache.spark.api.java.*",
        "org.apache.spark.api.python.*",
        "org.apache.spark.resource.*",
        "scala.Tuple2",
    ):
        java_import(gateway.jvm, name)

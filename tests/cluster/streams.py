"""A program of Kafka Streams that counts the records of each key, as a member of a streams group (KIP-1071).

with counting(broker, "app", "in", "counts"):
    ...  # it runs
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache as once
from pathlib import Path

from tests.cluster import cache, system, tools
from tests.cluster.kafka import SMALL_JVM, KafkaBroker

_FILES = tools.FILES / "streams"


@once
def _jars() -> Path:
    """The folder with the jars of Kafka Streams."""

    def produce(folder: Path) -> None:
        copy = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}")
        system.run(["mvn", "-q", "-B", "-f", _FILES / "pom.xml", *copy], timeout=1800)

    return cache.build("streams-jars", cache.digest(_FILES / "pom.xml"), produce)


@once
def program() -> list[str]:
    """The beginning of the command that runs the program."""
    sources, jars = _FILES / "java", _jars()

    def produce(folder: Path) -> None:
        files = sorted(sources.rglob("*.java"))
        system.run(["javac", "--release", "17", "-proc:none", "-Werror", "-cp", f"{jars}/*", "-d", folder, *files])

    classes = cache.build("streams-classes", cache.digest(sources, str(jars)), produce)
    logging = [f"-Dlog4j2.configurationFile={tools.FILES / 'log4j2.properties'}", "-Dlogkeep.log.level=WARN"]
    return [str(tools.java()), *SMALL_JVM, *logging, "-cp", f"{jars}/*:{classes}", "dev.logkeep.bed.Counting"]


@contextmanager
def counting(broker: KafkaBroker, application: str, source: str, target: str) -> Iterator[None]:
    """The program runs in this context, with a state folder of its own; then it commits and leaves its group."""
    folder = tempfile.mkdtemp(prefix="counting-")
    command = [*program(), broker.bootstrap, application, source, target, folder]
    try:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            try:
                yield
            finally:
                running.terminate()
                try:
                    running.wait(60)
                except subprocess.TimeoutExpired:
                    running.kill()
    finally:
        shutil.rmtree(folder)

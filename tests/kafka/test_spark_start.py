"""How Spark starts and ends: what runs, what is on command lines, and what is harmless when it is missing."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from logkeep_engine.errors import SparkFailed
from logkeep_engine.spark.classes import ENV_CLASS_ARCHIVE, class_archive
from logkeep_engine.spark.conf import local_conf
from logkeep_engine.spark.jvm import find_java, spark_jars
from logkeep_engine.spark.session import Session, log4j_settings
from tests.unit.hostile import doing

# In a process of its own: there can be one SparkContext in each. Prints a JSON object of what it saw.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
from logkeep_engine.spark.conf import local_conf
from logkeep_engine.spark.session import Session

def processes():
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":  # a zombie has ended, and waits for the process that has adopted it
                    line = (folder / "cmdline").read_bytes().replace(b"\\0", b" ").decode()
                    found[int(folder.name)] = (int(parent), line)
            except OSError:
                continue
    return found

def descendants():
    everything, wanted = processes(), {os.getpid()}
    while more := {pid for pid, (parent, _) in everything.items() if parent in wanted} - wanted:
        wanted |= more
    return {pid: everything[pid][1] for pid in wanted - {os.getpid()}}

def modules(_):
    return [name for name in sys.modules if name.startswith("logkeep_engine") or name == "botocore.session"]

seen = []
for _ in range(int(os.environ.get("TIMES", "1"))):
    with Session(local_conf(2), s3=True) as session:
        context = session.context()
        loaded = context.parallelize([0], 1).mapPartitions(modules).collect()
        running = descendants()
        jvms = [pid for pid, line in running.items() if "GatewayServer" in line]
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in jvms]
        folder = session._folder.name
        session.learn()
    until = time.monotonic() + 60
    while (left := [pid for pid in running if pid in processes()]) and time.monotonic() < until:
        time.sleep(0.05)
    archives = sorted({line.split()[-1] for text in maps for line in text.splitlines() if line.endswith(".jsa")})
    lines, there = sorted(running.values()), os.path.exists(folder)
    left = [(running[pid], processes().get(pid)) for pid in left]
    seen.append(dict(loaded=loaded, running=lines, left=left, folder=there, archives=archives))
print(json.dumps(seen))
"""


SECRETS = {"AWS_SECRET_ACCESS_KEY": "hush-s3-3141", "LOGKEEP_KAFKA_PASSWORD": "hush-kafka-2718"}


@dataclass(frozen=True)
class Starts:
    """Two starts, one after the other, with secrets in the environment and a cache that was empty."""

    seen: list[dict[str, Any]]
    stderr: str
    cache: Path


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    cache = tmp_path_factory.mktemp("cache")
    done = run_script(SCRIPT, {**SECRETS, "XDG_CACHE_HOME": str(cache), "TIMES": "2"})
    assert done.returncode == 0, done.stderr
    return Starts(json.loads(done.stdout.splitlines()[-1]), done.stderr, cache)


def run_script(script: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**inherited, **environ},
    )


def test_a_worker_finds_the_engine_imported(spark_context: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another environment gets a worker of its own: those of other tests may have imported more.
    monkeypatch.setitem(spark_context.environment, "LOGKEEP_TEST", "a worker of its own")
    # Nothing of this function's own makes the worker import the engine.
    found = spark_context.parallelize([0], 1).map(lambda _: sorted(__import__("sys").modules)).collect()[0]
    assert {
        "logkeep_engine.backup.pieces.task",
        "logkeep_engine.restore.sending.task",
        "logkeep_engine.spark.runner",
    } <= set(found)
    assert "botocore.session" not in found, "nobody said that it is needed"


def test_nothing_is_left_and_no_secret_is_on_a_command_line(starts: Starts) -> None:
    for seen in starts.seen:
        assert any("logkeep_engine.spark.daemon" in line for line in seen["running"])
        assert {"botocore.session", "logkeep_engine.backup.pieces.task"} <= set(seen["loaded"])
        assert "hush" not in " ".join(seen["running"])
        assert not any(name in " ".join(seen["running"]) for name in ("secret", "spark.master", "password"))
        assert (seen["left"], seen["folder"]) == ([], False)


def test_first_start_makes_an_archive_of_classes_and_the_next_uses_it(starts: Starts) -> None:
    first, second = starts.seen
    (kept,) = (starts.cache / "logkeep" / "java").iterdir()
    assert str(kept) not in first["archives"]
    assert str(kept) in second["archives"]
    assert [(seen["left"], seen["folder"]) for seen in (first, second)] == [([], False), ([], False)]
    assert starts.stderr == ""


@pytest.mark.parametrize("content", [None, b"no archive at all" * 1000, b""])
def test_java_starts_without_an_archive_that_is_missing_or_broken(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    options = class_archive(Path("/java"), [], {ENV_CLASS_ARCHIVE: str(archive)}).options
    assert str(archive) in " ".join(options)
    done = subprocess.run([find_java(os.environ), *options, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "classes.jsa" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere, which has no bin/java"),
        ({"JAVA_HOME": "", "PATH": "/nowhere"}, "java is not on PATH, and JAVA_HOME is not set"),
    ],
)
def test_no_java(environ: dict[str, str], message: str) -> None:
    with Session(local_conf(1), environ={**os.environ, **environ}) as session, pytest.raises(SparkFailed) as caught:
        session.runner()
    assert str(caught.value) == f"Spark could not start: {message}. Java 17 or newer must be installed."


def test_java_that_does_not_start_is_quoted() -> None:
    conf = local_conf(1, conf={"spark.driver.memory": "1"})
    with (
        Session(conf, environ=dict(os.environ)) as session,
        pytest.raises(SparkFailed, match=r"could not start: .*heap"),
    ):
        session.runner()


def test_a_session_that_is_left_at_once_waits_for_nothing() -> None:
    with Session(local_conf(1), environ=dict(os.environ)) as session:
        assert session._jvm is not None
        pid = session._jvm.pid
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(SparkFailed, match="stopped before it was used"):
        session.context()


def test_a_context_that_fails_is_reported_and_the_next_session_starts() -> None:
    script = """
from logkeep_engine.errors import SparkFailed
from logkeep_engine.spark.conf import local_conf
from logkeep_engine.spark.session import Session
with Session(local_conf(1, conf={"spark.task.cpus": "many"})) as session:
    try:
        session.runner()
    except SparkFailed as error:
        print(error)
with Session(local_conf(1)) as session:
    print(session.context().parallelize([3], 1).collect())
"""
    done = run_script(script, {})
    assert done.returncode == 0, done.stderr
    reported, collected = done.stdout.splitlines()
    assert reported.startswith("Spark could not start: ")
    assert "many" in reported
    assert collected == "[3]"


def test_little_work_is_done_in_a_pod_without_executors_and_without_java() -> None:
    script = """
import json, os, sys
from logkeep_engine.contract.running import SparkSpec
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.job_session import JobSession
from logkeep_engine.tasks import Demand, no_update

def double(item, context):
    return item * 2

executors, found = [], {}
conf = {"spark.driver.memory": "512m", "spark.kubernetes.container.image": "engine:1", "spark.executor.instances": "2"}
nursery = Nursery()
with JobSession(SparkSpec(), conf, os.environ, nursery, s3=False, placed=executors.append) as session:
    slots = session.expect(Demand(3, 1 << 20))
    for _ in range(2):
        session.runner().run([1, 2, 3], double, found.__setitem__, no_update)
nursery.close()
print(json.dumps([executors, slots, sorted(found.items()), "pyspark" in sys.modules]))
"""
    pod = {
        "LOGKEEP_POD_NAME": "nightly-x7k2p",
        "LOGKEEP_POD_IP": "127.0.0.1",
        "LOGKEEP_POD_NAMESPACE": "team",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
    }
    done = run_script(script, {**pod, "JAVA_HOME": "/nowhere"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0], 1, [[0, 2], [1, 4], [2, 6]], False]


_LOGS = """
import org.slf4j.*;
public class Logs {
  public static void main(String[] given) {
    Logger log = LoggerFactory.getLogger("org.apache.spark.Task");
    log.warn("plain");
    log.warn("pwned\\u001b[2J\\u009b\\u202e\\r\\n2026-01-01T00:00:00.000 INFO logkeep: forged");
    log.error("failed", new RuntimeException("a\\n2026-01-01T00:00:00.000 INFO logkeep: forged\\u001b"));
  }
}
"""


def test_the_log_of_a_pods_jvm_lets_text_of_others_do_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "log4j2.properties"
    settings.write_text(log4j_settings("warn"))
    (tmp_path / "Logs.java").write_text(_LOGS)
    classes = ":".join(map(str, spark_jars()))
    command = [str(find_java(os.environ)), f"-Dlog4j2.configurationFile=file:{settings}", "-cp", classes]
    done = subprocess.run([*command, tmp_path / "Logs.java"], capture_output=True, text=True, timeout=240, check=True)
    lines = done.stderr.splitlines()
    assert doing(done.stderr) == []
    assert [line[24:] for line in lines if not line.startswith(" ")] == [
        "WARN spark Task: plain", "WARN spark Task: pwned?[2J???", "ERROR spark Task: failed"
    ]  # fmt: skip
    assert "  2026-01-01T00:00:00.000 INFO logkeep: forged?" in lines

"""Kafka's own tools, one after the other in one JVM: it takes longer to start than most of them take."""

import re
import subprocess
import tempfile
from functools import cache as once
from pathlib import Path

from tests.cluster import tools, versions
from tests.cluster.kafka import java
from tests.cluster.system import CommandFailed, succeeded

_RUNNER = "dev.logkeep.bed.Tools"


def dump_log_segments(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `DumpLogSegments` of the newest Kafka, which needs no broker. Raises CommandFailed with both streams."""
    done = _run(versions.main_class("DumpLogSegments", versions.NEWEST), *arguments)
    done.stderr = without_beginnings(done.stderr)
    succeeded(done.args, done)
    return done


def acls(*arguments: str | Path) -> str:
    """Run `kafka-acls.sh` of the newest Kafka, and return what it printed. Raises CommandFailed with both streams."""
    done = _run("org.apache.kafka.tools.AclCommand", *arguments)
    succeeded(done.args, done)
    return done.stdout


def _run(main_class: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    words = [main_class, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        jvm = _jvm()
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        jvm.stdin.write("\t".join([str(out), str(err), *words]) + "\n")
        jvm.stdin.flush()
        answer = jvm.stdout.readline()
        if not answer:
            raise CommandFailed(f"the JVM of {words[0]} has ended")
        return subprocess.CompletedProcess(words, int(answer), out.read_text(), err.read_text())


def without_beginnings(complaints: str) -> str:
    """The tool's complaints, without those of segments that do not begin at 0: since 4.3 it takes that for a gap after
    offset -1."""
    left = re.sub(r"^  -1 is followed by \d+\n", "", complaints, flags=re.MULTILINE)
    return re.sub(r"^Non-consecutive offsets in .*\n(?!  \d+ is followed by)", "", left, flags=re.MULTILINE)


@once
def _jvm() -> "subprocess.Popen[str]":
    """It ends with this process, which holds its standard input."""
    classes = [str(tools.broker_classes())]
    command = [*java(log_level="WARN", class_path=classes, version=versions.NEWEST), _RUNNER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

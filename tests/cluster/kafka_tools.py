"""Kafka's own tools, one after the other in one JVM: it takes longer to start than most of them take."""

import subprocess
import tempfile
from functools import cache as once
from pathlib import Path

from tests.cluster import tools
from tests.cluster.kafka import java
from tests.cluster.system import CommandFailed, succeeded

_RUNNER = "dev.logkeep.bed.Tools"


def dump_log_segments(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `kafka.tools.DumpLogSegments`, which needs no broker. Raises CommandFailed with both streams."""
    words = ["kafka.tools.DumpLogSegments", *map(str, arguments)]
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
        done = subprocess.CompletedProcess(words, int(answer), out.read_text(), err.read_text())
    succeeded(words, done)
    return done


@once
def _jvm() -> "subprocess.Popen[str]":
    """It ends with this process, which holds its standard input."""
    command = [*java(log_level="WARN", class_path=[str(tools.broker_classes())]), _RUNNER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

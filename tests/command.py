"""The command `logkeep`, or a script, in a process of its own, without the seconds that its imports take.

    done = logkeep("inspect", uri, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL

One process imports what the command imports, and forks for each call. The fork has its own arguments, environment,
standard streams and exit code, as any process has.
"""

import atexit
import gc
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self

if TYPE_CHECKING:
    from logkeep_engine.tasks import TaskRunner

_SECONDS = 240
_NEW = os.O_WRONLY | os.O_CREAT | os.O_APPEND

_IMPORTED = (
    "logkeep_engine.archive.maintenance.inspect",
    "logkeep_engine.archive.maintenance.verify",
    "logkeep_engine.backup.run.backup_run",
    "logkeep_engine.cli",
    "logkeep_engine.convert.run",
    "logkeep_engine.restore.run.entry",
    "logkeep_engine.spark.runner",
    "logkeep_engine.spark.session",
    "logkeep_engine.storage.s3",
    "botocore.session",
    "tests.kafka.restores",
)


def logkeep(
    *arguments: str | Path,
    stdin: str | None = None,
    environ: Mapping[str, str] | None = None,
    spark: bool = False,
    constants: Mapping[str, float] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end. Its environment is this process's without logins, and `environ`.

    Spark, whose start takes seconds of a processor, runs its tasks only with `spark=True`; else its own process does.
    `constants` have other values in the command, by module and name: for waits that are not the subject.
    """
    more = {"spark": spark, "constants": dict(constants or {})}
    return _call(arguments, environment(environ), stdin or "", more)


def script(text: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end, or until it kills its process. Its environment is this process's."""
    return _call(arguments, dict(os.environ), "", {"script": text})


def _call(
    arguments: Sequence[str | Path], environ: Mapping[str, str], stdin: str, more: Mapping[str, Any]
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory(prefix="logkeep-command-") as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin)
        words = [str(argument) for argument in arguments]
        streams_there = [str(stream) for stream in streams]
        call = {"arguments": words, "environ": environ, "streams": streams_there, **more}
        code = _ask(_parent(), call)
        return subprocess.CompletedProcess(words, code, streams[1].read_text(), streams[2].read_text())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without logins, and `more`."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "LOGKEEP_"))}
    return {**plain, "PYTHONPATH": os.pathsep.join(sys.path), **(more or {})}


@cache
def _parent() -> "subprocess.Popen[str]":
    """The process that forks. It ends when this process has gone, and with that its standard input."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.command"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
        start_new_session=True,
    )


def _ask(parent: "subprocess.Popen[str]", call: Mapping[str, Any]) -> int:
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(call) + "\n")
    parent.stdin.flush()
    answer = parent.stdout.readline()
    assert answer, "the process that forks commands has gone"
    return int(answer)


def _serve() -> None:
    """Fork for each call on standard input, and answer with its exit code."""
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # collections in the forks copy no page of what is there now
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _become(json.loads(line))
            except SystemExit as end:
                _end(end.code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


def _end(code: str | int | None) -> Never:
    """End as Python does, but take apart none of what was imported: that is four fifths of what a short call costs."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if isinstance(code, str) else code or 0)


def _become(call: Mapping[str, Any]) -> Never:
    signal.alarm(_SECONDS)  # no test waits longer for a command
    os.environ.clear()
    os.environ.update(call["environ"])
    for number, (path, flags) in enumerate(zip(call["streams"], (os.O_RDONLY, _NEW, _NEW), strict=True)):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True)
    if text := call.get("script"):
        sys.argv = ["-c", *call["arguments"]]
        exec(compile(text, "<script>", "exec"), {"__name__": "__main__"})
        sys.exit()
    if not call["spark"]:
        _without_spark()
    for where, value in call["constants"].items():
        module, _, name = where.rpartition(".")
        assert hasattr(import_module(module), name), where
        setattr(import_module(module), name, value)
    sys.argv = ["logkeep", *call["arguments"]]
    runpy.run_module("logkeep_engine.cli", run_name="__main__", alter_sys=True)
    sys.exit()


def _without_spark() -> None:
    from logkeep_engine.spark import session

    session.Session = _InProcess  # type: ignore[assignment,misc]


class _InProcess:
    """A session that runs tasks in the command's process."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def runner(self) -> "TaskRunner":
        from tests.kafka.restores import ThreadRunner

        return ThreadRunner()

    def learn(self) -> bool:
        return False


if __name__ == "__main__":
    _serve()

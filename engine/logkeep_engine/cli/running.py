"""What commands that run on Spark share: options, the names of runs, progress on stderr, how a run begins and ends."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from logkeep_engine.cli.common import human_bytes, say
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import Progress as RunProgress
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import SpecError
from logkeep_engine.report import CallbackSink, Reporter

if TYPE_CHECKING:
    from logkeep_engine.spark.session import Session

MAX_BARS = 12  # topics shown at once; the rest is in the bar of the sum
LINE_EVERY_SECONDS = 5.0
_WORDS = {"KafkaBackup": "archived", "Convert": "converted", "Import": "imported"}
_RUN_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

RunId = Annotated[
    str | None,
    typer.Option(
        help="Name of the run; give the id of an interrupted run to go on with it. By default made from the time."
    ),
]
Master = Annotated[str, typer.Option(help="Where Spark runs: local, local[N] or local[*] (N tasks at once).")]


def run_id_or_new(run_id: str | None) -> str:
    """The id itself; without one a new one, which sorts by time: 20261121t140500z-1a2b3c. Raises SpecError for what
    cannot be one."""
    if run_id is None:
        return f"{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}-{secrets.token_hex(3)}"
    if _RUN_ID.fullmatch(run_id) is None:
        raise SpecError(
            f"--run-id {run_id!r} is no name for a run", hint="Use 1 to 63 characters out of a-z, 0-9, '-' and '.'."
        )
    return run_id


@contextmanager
def on_spark(run_id: str, kind: str, master: str, *, s3: bool) -> Iterator[tuple[Session, Reporter]]:
    """A session for one run, which starts while the body goes on, and a reporter whose progress is shown until the body
    is left. Raises SpecError for a wrong `master`."""
    say(f"run {run_id}")
    from logkeep_engine.spark.session import Session, master_conf

    # Options first: a wrong --master must not cost a started JVM.
    conf = master_conf(master, {}, os.environ)
    with (
        Shown(kind) as shown,
        closing(Reporter(run_id, CallbackSink(shown.show), interval=0.5)) as reporter,
        Session(conf, s3=s3) as session,
    ):
        yield session, reporter


def end(session: Session, reporter: Reporter, result: RunResult) -> None:
    """The run is over: no more progress, and what Spark has learnt of one that went well is kept."""
    reporter.close()
    if result.exit_code == ExitCode.OK and session.learn():
        say("keeping Java's classes for a quicker start of the next run")


def leave(result: RunResult) -> None:
    """End the command with the exit code of the run, if that is not 0."""
    if result.exit_code:
        if result.exit_code == ExitCode.INTERRUPTED:
            say(f"hint: go on with --run-id {result.run_id}")
        raise typer.Exit(result.exit_code)


class Shown(AbstractContextManager["Shown"]):
    """Progress of a run on stderr: bars per topic on a terminal, else a line every few seconds. `show` is called from
    the reporter's thread.
    """

    def __init__(self, kind: str) -> None:
        self._word = _WORDS.get(kind, "restored")
        self._console = Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, progress: RunProgress) -> None:
        if self._bars is not None:
            self._show_bars(self._bars, progress)
        elif progress.phase != self._phase or time.monotonic() - self._last_line > LINE_EVERY_SECONDS:
            self._phase, self._last_line = progress.phase, time.monotonic()
            say(self._line(progress))

    def _line(self, progress: RunProgress) -> str:
        if progress.phase in ("Starting", "Planning"):
            return progress.phase.lower()
        return (
            f"{progress.phase.lower()}: {progress.percent}%, {progress.partitions_done} of {progress.partitions} "
            "partitions, "
            f"{progress.records} records, {human_bytes(progress.bytes)} {self._word}"
        )

    def _show_bars(self, bars: Progress, progress: RunProgress) -> None:
        totals: dict[str, tuple[int, int]] = {}
        for part in progress.partitions_shown:
            done, total = totals.get(part.topic, (0, 0))
            totals[part.topic] = done + part.at - part.start, total + part.end - part.start
        self._bar(bars, f"[bold]{progress.phase}", progress.offsets_done, progress.offsets_total)
        behind = sorted(totals, key=lambda topic: totals[topic][0] - totals[topic][1])
        for topic in behind:
            if topic in self._tasks or len(self._tasks) <= MAX_BARS:
                self._bar(bars, topic, *totals[topic])

    def _bar(self, bars: Progress, name: str, done: int, total: int) -> None:
        key = "" if name.startswith("[bold]") else name
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(name, total=None)
        bars.update(self._tasks[key], description=name, completed=done, total=total or None)

"""Commands that run on Spark share this module: options, the names of runs, how a run begins and ends, and what is
printed about it."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import print_json, say
from logkeep_engine.contract.names import COMMAND_LINE, ExitCode
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import human_bytes, human_time
from logkeep_engine.errors import LogkeepError, SpecError
from logkeep_engine.report import CallbackSink, Reporter, failed

if TYPE_CHECKING:
    from logkeep_engine.spark.session import Session

_NONE: Mapping[str, Any] = {}
_RUN_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

RunId = Annotated[
    str | None,
    typer.Option(
        help="Name of the run; give the id of an interrupted run to continue it. By default made from the time."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing: print what the run would do, and why it would be refused.")
]
Master = Annotated[str, typer.Option(help="Where Spark runs: local, local[N] or local[*] (N tasks at once).")]


@dataclass(frozen=True)
class SparkOptions:
    """The options of a run: its id, and where its tasks run."""

    run_id: RunId = None
    master: Master = "local[2]"

    def run_id_or_new(self) -> str:
        """Return the id that the user has given. Without one it is a new id, which sorts by time:
        20261121t140500z-1a2b3c. Raises SpecError for a wrong id."""
        if self.run_id is None:
            return f"{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}-{secrets.token_hex(3)}"
        if _RUN_ID.fullmatch(self.run_id) is None:
            raise SpecError(
                f"--run-id {self.run_id!r} is not a valid name for a run",
                hint="Use 1 to 63 characters out of a-z, 0-9, '-' and '.'.",
            )
        return self.run_id


@contextmanager
def on_spark(run_id: str, kind: str, master: str, *, s3: bool) -> Iterator[tuple[Session, Reporter]]:
    """Give a session for one run, which starts while the body lasts, and a reporter that shows progress until the body
    is left. Raises SpecError for a wrong --master."""
    say(f"run {run_id}")
    from logkeep_engine.cli.progress import RunShown
    from logkeep_engine.spark.conf import master_conf
    from logkeep_engine.spark.session import Session

    # Options first: a wrong --master must not cost a started JVM.
    conf = master_conf(master, {}, os.environ)
    with (
        RunShown(kind) as shown,
        closing(Reporter(run_id, CallbackSink(shown.show), interval=0.5)) as reporter,
        Session(conf, s3=s3) as session,
    ):
        yield session, reporter


def print_failure(
    error: BaseException, kind: str, run_id: str | None, output: Output, started: float, more: Mapping[str, Any] = _NONE
) -> None:
    """Print the result of a run that ends with `error`, if JSON is requested, with `more` that such a result has. A run
    that is refused before it has begun has one, too; its `run_id` is what the user has given, if anything."""
    if output is Output.JSON:
        begun = RunResult(
            run_id=run_id or "",
            kind=kind,
            outcome="Failed",
            exit_code=int(ExitCode.FAILED),
            start_time=started,
            end_time=time.time(),
            requested_by=COMMAND_LINE,
        )
        error = SpecError(str(error)) if isinstance(error, SpecInvalid) else error
        print_json({**failed(begun, error).to_dict(), **more})


@contextmanager
def failing_as_json(kind: str, run_id: str | None, output: Output, more: Mapping[str, Any] = _NONE) -> Iterator[None]:
    """Print the failure of a run that ends by an error of the body, as `print_failure` does."""
    started = time.time()
    try:
        yield
    except (LogkeepError, SpecInvalid) as error:
        print_failure(error, kind, run_id, output, started, more)
        raise


def end(session: Session, reporter: Reporter, result: RunResult) -> None:
    """End the progress of a run. Keep what Spark has learnt of a run that went well."""
    reporter.close()
    if result.exit_code == ExitCode.OK and session.learn():
        say("keeping Java's classes for a quicker start of the next run")


def leave(result: RunResult) -> None:
    """End the command with the exit code of the run, if that is not 0."""
    if result.exit_code:
        if result.exit_code == ExitCode.INTERRUPTED:
            say_how_to_go_on(result.run_id)
        raise typer.Exit(result.exit_code)


def say_how_to_go_on(run_id: str) -> None:
    """The hint for a run that was interrupted."""
    say(f"hint: continue with --run-id {run_id}")


def say_warnings(result: RunResult) -> None:
    """Print a line on stderr for each warning of a run."""
    for warning in result.warnings:
        say(f"warning: {warning}")


def rows_of_counts(result: RunResult) -> list[tuple[str, str]]:
    """Return the rows with the first facts about any run."""
    outcome = result.outcome
    if result.earlier_end is not None:
        outcome = f"already succeeded at {human_time(result.earlier_end)}; nothing was restored now"
    return [
        ("run", result.run_id),
        ("outcome", outcome),
        ("topics", str(result.topics)),
        ("partitions", str(result.partitions)),
        ("records", str(result.records)),
        ("bytes", human_bytes(result.bytes)),
    ]


def seconds(result: RunResult) -> str:
    """Return the seconds that a run took."""
    return f"{result.end_time - result.start_time:.1f}"

"""This module makes lines on stderr and exit codes of errors, also of those of standard output itself."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, cast

import typer

from logkeep_engine import interrupt
from logkeep_engine.cli.output import log_to_stderr, say, say_damage
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, LogkeepError, Refused, SpecError
from logkeep_engine.report import UNEXPECTED

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, may succeed when tried again; 2 refused: the file, the "
    "archive or the target must change first; 3 another run owns the archive; 4 records were gone before they could be "
    "archived and onDataLoss is Fail, or the cluster has cut off what is archived (onDivergence); 5 the target was "
    "written to, and is not known to match the archive; 6 what was compared differs, or is damaged; 130 interrupted."
)
# These say no more than that something is wrong: the message begins with the field or the option.
_GENERAL = frozenset({LogkeepError.code, Refused.code, SpecError.code})
CLOSED_PIPE = 141  # as a shell shows a program that SIGPIPE has ended


class OutputFailed(OSError):
    """Standard output takes no more: the disk is full, or the reader of the pipe has gone."""


class _Stdout(io.FileIO):
    """Standard output that reports once what it could not write, and raises an interrupt that came while its reader did
    not read. Later output is dropped, so that nothing waits for that reader any more."""

    _failed = False

    def write(self, data: Any) -> int:
        if self._failed or not data:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            raise OutputFailed(error.errno, error.strerror) from error
        except KeyboardInterrupt:
            self._failed = True
            raise


def open_stdout() -> None:
    """Open standard output for the whole process. Its failures can be distinguished from others (OutputFailed), and
    characters that its encoding does not have are shown as \u20ac."""
    plain = sys.stdout
    if plain is None:  # it was closed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(plain, io.TextIOWrapper):
        raw = _Stdout(plain.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            cast("BinaryIO", raw) if plain.write_through else io.BufferedWriter(raw),
            encoding=plain.encoding,
            errors="backslashreplace",
            line_buffering=plain.line_buffering,
            write_through=plain.write_through,
        )


class errors(AbstractContextManager[None]):  # noqa: N801 (used as a function)
    """Turns errors into lines on stderr and exit codes; tracebacks only with --debug."""

    def __init__(self, debug: bool) -> None:
        self._debug = debug
        log_to_stderr(logging.DEBUG if debug else logging.WARNING)
        if not debug:
            for handler in logging.getLogger().handlers:
                handler.addFilter(_is_for_users)
        for chatty in ("py4j", "botocore", "urllib3", "asyncio"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        if not debug:
            # These say again, in their own words, what an error of ours will say.
            logging.getLogger("logkeep_engine.spark.runner").setLevel(logging.CRITICAL)
        interrupt.on(signal.SIGINT, signal.SIGTERM)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not isinstance(error, KeyboardInterrupt):
                sys.stdout.flush()
        except KeyboardInterrupt as interrupted:
            error = interrupted
        except OutputFailed as failed:
            if error is None or isinstance(error, typer.Exit):
                error = failed
        if error is None or isinstance(error, (typer.Exit, typer.Abort, SystemExit)):
            return
        if self._debug:
            logging.getLogger("logkeep").error("traceback", exc_info=error)
        if isinstance(error, KeyboardInterrupt):
            fail(ExitCode.INTERRUPTED, "interrupted")
        if isinstance(error, SpecInvalid):
            for path, what in error.problems:
                say(f"error: {path}: {what}")
            raise typer.Exit(ExitCode.REFUSED) from None
        if isinstance(error, LogkeepError):
            if isinstance(error, ArchiveDamaged):
                say_damage(error.faults)
            fail(error.exit_code, with_code(error.code, error.message), error.hint)
        if isinstance(error, OutputFailed) and error.errno == errno.EPIPE:
            raise typer.Exit(CLOSED_PIPE) from None
        if isinstance(error, BrokenPipeError):  # of stderr, say
            raise typer.Exit(ExitCode.FAILED) from None
        if isinstance(error, OutputFailed):
            fail(ExitCode.FAILED, f"standard output: {error.strerror}.", "Make room, or write it somewhere else.")
        if isinstance(error, ModuleNotFoundError) and not (error.name or "logkeep").startswith("logkeep"):
            fail(
                ExitCode.REFUSED,
                f"This command needs the Python package {error.name}, which is not installed here.",
                "Install Logkeep with the dependencies of this command, in a checkout: pip install '.[engine]'.",
            )
        if isinstance(error, Exception):
            fail(
                ExitCode.FAILED,
                f"{UNEXPECTED}: {type(error).__name__}: {error}",
                "Run it again with --debug and report the output.",
            )


def _is_for_users(record: logging.LogRecord) -> bool:
    """Take the traceback from a record. One of the root logger is left out: py4j alone writes there, of calls that an
    interrupt has ended, and the error says that."""
    record.exc_info = record.exc_text = None
    return record.name != logging.root.name


def with_code(code: str, message: str) -> str:
    """Return the message of an error, after the word by which docs/conditions has a page about it."""
    return message if not code or code in _GENERAL else f"{code}: {message}"


def say_failure(result: RunResult) -> None:
    """Say why a run has failed."""
    say(f"error: {with_code(result.error_code, result.message)}")


def fail(code: int, message: str, hint: str = "") -> NoReturn:
    """Say what is wrong and leave the command with this exit code."""
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")
    raise typer.Exit(int(code)) from None

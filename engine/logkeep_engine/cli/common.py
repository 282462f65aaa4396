"""What all commands of `logkeep` share: options, errors and exit codes, output for people and for programs.

Results go to stdout, everything else to stderr. On a terminal tables have colours and its width, in a pipe they are
plain and never folded.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn, cast

import typer
from rich.console import Console, RenderableType
from rich.style import StyleType
from rich.table import Table

from logkeep_engine import interrupt
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.spec import Cluster, Protocol, SaslMechanism, SpecInvalid
from logkeep_engine.errors import ArchiveDamaged, LogkeepError, SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog import Archive
    from logkeep_engine.kafka.connection import Connection

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, may succeed when tried again (verify: faults were found); 2 refused: the file, the "
    "archive or the target must change first; 3 another run owns the archive; 4 records were gone before they could be "
    "archived and onDataLoss is Fail, or the cluster has cut off what is archived (onDivergence); 130 interrupted."
)
CLOSED_PIPE = 141  # as a shell shows a program that SIGPIPE has ended

MAX_FAULTS = 20  # printed for a refused restore; all are in the archive's damage.json


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="json prints one JSON document on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log in detail, and show tracebacks.")]
Uri = Annotated[
    str, typer.Argument(help="The archive: s3://bucket/prefix or file:///path.", metavar="URI", show_default=False)
]
Endpoint = Annotated[str | None, typer.Option(help="URL of an S3 server other than AWS.")]
Region = Annotated[str | None, typer.Option(help="Region of the bucket.")]


SecurityProtocol = Annotated[
    Protocol | None,
    typer.Option(help="PLAINTEXT by default; with SASL and TLS, LOGKEEP_KAFKA_* in the environment hold the secrets."),
]
Mechanism = Annotated[SaslMechanism | None, typer.Option(help="For SASL_PLAINTEXT and SASL_SSL.")]


class OutputFailed(OSError):
    """Standard output takes no more: a full disk, or a pipe whose reader has gone."""


class _Stdout(io.FileIO):
    """Says what it could not write once, and an interrupt that came while its reader did not read; what comes after
    that is dropped, so that nothing waits for that reader any more.
    """

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
    """For the whole process: failures of standard output can be told from others (OutputFailed), and characters that
    its encoding does not have are shown as \\u20ac.
    """
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
        logging.basicConfig(
            level=logging.DEBUG if debug else logging.WARNING,
            stream=sys.stderr,
            format="%(levelname)s %(name)s: %(message)s",
            force=True,
        )
        if not debug:
            for handler in logging.getLogger().handlers:
                handler.addFilter(_without_traceback)
        for chatty in ("py4j", "botocore", "aiobotocore", "s3fs", "fsspec", "urllib3", "asyncio"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        if not debug:
            # These say again, in their own words, what an error of ours will say.
            logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
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
            faults = error.faults if isinstance(error, ArchiveDamaged) else ()
            for fault in faults[:MAX_FAULTS] if len(faults) > 1 else ():
                say(f"fault: {fault}")
            fail(error.exit_code, error.message, error.hint)
        if isinstance(error, OutputFailed) and error.errno == errno.EPIPE:
            raise typer.Exit(CLOSED_PIPE) from None
        if isinstance(error, BrokenPipeError):  # of stderr, say
            raise typer.Exit(ExitCode.FAILED) from None
        if isinstance(error, OutputFailed):
            fail(ExitCode.FAILED, f"standard output: {error.strerror}.", "Make room, or write it somewhere else.")
        if isinstance(error, Exception):
            fail(
                ExitCode.FAILED,
                f"unexpected {type(error).__name__}: {error}",
                "Run it again with --debug and report what it says.",
            )


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True


def fail(code: int, message: str, hint: str = "") -> NoReturn:
    """Say what is wrong and leave the command with this exit code."""
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")
    raise typer.Exit(int(code)) from None


def refuse(options: Mapping[str, object], why: str, hint: str = "Leave it out.") -> None:
    """Raises SpecError for the first option that was given."""
    for name, value in options.items():
        if value:
            raise SpecError(f"{name} {why}", hint=hint)


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One document on stdout."""
    print(json_text(value, indent=2), flush=True)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that standard output can take: escaped where its encoding lacks a character, or half of one is in it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def human_bytes(size: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def stdout() -> Console:
    """The console for results. What it prints is data: nothing in it is markup."""
    if sys.stdout.isatty():
        return Console(markup=False, emoji=False, highlight=False)
    # A pipe has no width: tables must not be folded or cut for the program that reads them.
    return Console(width=1_000_000, soft_wrap=True, markup=False, emoji=False, highlight=False)


_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord(character): repr(character)[1:-1] for character in "\t\n\r"
}


def visible(text: str) -> str:
    """Text of somebody else on one line of a terminal: control characters are shown, such as \\x1b, and do nothing."""
    return text.translate(_VISIBLE)


class _DataTable(Table):
    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        shown = (visible(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, style=style, end_section=end_section)


def table(*columns: str) -> Table:
    """A table without lines; numbers stand to the right. Control characters in its cells are shown."""
    table = _DataTable(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in columns:
        right = column in ("partition", "records", "size", "segments", "offset")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and what they stand for."""
    shown = Table(show_header=False, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*row)
    return shown


def open_archive(uri: str, endpoint: str | None, region: str | None) -> Archive:
    """The archive at a URI. Raises ArchiveMissing, and what the storage raises."""
    from logkeep_engine.archive.catalog import Archive
    from logkeep_engine.storage import open_uri

    storage = open_uri(uri, endpoint, region)
    storage.check()
    return Archive.open(storage)


def cluster_connection(
    option: str, servers: str, protocol: Protocol | None, mechanism: SaslMechanism | None
) -> Connection:
    """How to reach a cluster that is named by an option. Raises SpecError, CredentialsMissing."""
    from pydantic import ValidationError

    from logkeep_engine.kafka.connection import connection_from

    protocol = protocol or Protocol.PLAINTEXT
    document: dict[str, Any] = {
        "bootstrapServers": [server.strip() for server in servers.split(",") if server.strip()],
        "security": {"protocol": protocol.value},
    }
    if mechanism is not None:
        document["security"]["sasl"] = {"mechanism": mechanism.value, "secretRef": {"name": "environment"}}
    try:
        return connection_from(Cluster.model_validate(document), os.environ)
    except ValidationError as error:
        problem = error.errors()[0]
        raise SpecError(
            f"{option} {servers!r} with --security-protocol {protocol.value}: {problem['msg']}",
            hint="Write host:port; --sasl-mechanism goes with SASL_PLAINTEXT and SASL_SSL.",
        ) from error

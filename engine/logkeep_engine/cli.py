"""The command `logkeep`: back up, restore, inspect and verify without Kubernetes, from the same YAML.

    logkeep backup -f backup.yaml --master local[2]
    logkeep restore -f restore.yaml
    logkeep inspect s3://bucket/prefix --endpoint http://localhost:9000
    logkeep verify file:///var/backups/kafka

Results go to stdout, everything else to stderr. `docs/cli.md` is the reference. Imports that take long happen inside
the commands.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from logkeep_engine import interrupt
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import Progress as RunProgress
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import API_VERSION, KafkaBackupSpec, SpecInvalid, parse_backup, parse_restore
from logkeep_engine.errors import ArchiveDamaged, LogkeepError, SpecError
from logkeep_engine.report import CallbackSink, Reporter, failed

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog import Archive
    from logkeep_engine.archive.inspect import Description
    from logkeep_engine.archive.verify import VerifyProgress, VerifyReport

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, may succeed when tried again (verify: faults were found); 2 refused: the file, the "
    "archive or the target must change first; 3 another run owns the archive; 4 records were gone before they could be "
    "archived and onDataLoss is Fail; 130 interrupted."
)

MAX_FAULTS = 20  # printed for a refused restore; all are in the archive's damage.json
MAX_BARS = 12  # topics shown at once; the rest is in the bar of the sum
LINE_EVERY_SECONDS = 5.0
_RUN_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

app = typer.Typer(
    name="logkeep",
    help="Backup and restore for Apache Kafka.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


File = Annotated[
    str, typer.Option("--file", "-f", help="The resource as YAML; - reads standard input.", show_default=False)
]
RunId = Annotated[
    str | None,
    typer.Option(
        help="Name of the run; give the id of an interrupted run to go on with it. By default made from the time."
    ),
]
Master = Annotated[str, typer.Option(help="Where Spark runs: local, local[N] or local[*] (N tasks at once).")]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="json prints one JSON document on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log in detail, and show tracebacks.")]
Uri = Annotated[
    str, typer.Argument(help="The archive: s3://bucket/prefix or file:///path.", metavar="URI", show_default=False)
]
Endpoint = Annotated[str | None, typer.Option(help="URL of an S3 server other than AWS.")]
Region = Annotated[str | None, typer.Option(help="Region of the bucket.")]


@app.command(epilog=EXIT_CODES)
def backup(
    file: File,
    run_id: RunId = None,
    master: Master = "local[2]",
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Archive the topics of a KafkaBackup.

    Secrets that the file refers to are not read from Kubernetes: set LOGKEEP_KAFKA_USERNAME, LOGKEEP_KAFKA_PASSWORD,
    LOGKEEP_KAFKA_CA_FILE, LOGKEEP_KAFKA_CERT_FILE, LOGKEEP_KAFKA_KEY_FILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
    instead.
    """
    _run_resource("KafkaBackup", file, run_id, master, output, debug)


@app.command(epilog=EXIT_CODES)
def restore(
    file: File,
    run_id: RunId = None,
    master: Master = "local[2]",
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Bring topics of an archive back, as a KafkaRestore says; secrets come from the environment as for backup."""
    _run_resource("KafkaRestore", file, run_id, master, output, debug)


@app.command(epilog=EXIT_CODES)
def inspect(
    uri: Uri,
    endpoint: Endpoint = None,
    region: Region = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show what an archive holds: runs, topics, partitions, consumer groups."""
    with _errors(debug):
        from logkeep_engine.archive.inspect import describe

        archive = _open_archive(uri, endpoint, region)
        described = describe(archive.info, archive.load())
        if output is Output.JSON:
            _print_json(described.to_json())
        else:
            _print_archive(described)


@app.command(epilog=EXIT_CODES)
def verify(
    uri: Uri,
    endpoint: Endpoint = None,
    region: Region = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Objects read at once.")] = 4,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Read every object of an archive and check it against the catalog: size, SHA-256, CRCs, offsets, indexes. Exit
    code 1 if faults were found.
    """
    with _errors(debug):
        _verify(uri, endpoint, region, workers, output)


# ---- running a resource


def _run_resource(kind: str, file: str, run_id: str | None, master: str, output: Output, debug: bool) -> None:
    with _errors(debug), ExitStack() as stack:
        document = read_document(file, kind)
        spec = document["spec"]
        run_id = _check_run_id(run_id) if run_id is not None else new_run_id()
        typed = parse_backup(spec) if kind == "KafkaBackup" else parse_restore(spec)
        if not isinstance(typed, KafkaBackupSpec) and typed.source.storage is None:
            raise SpecError(
                "spec.source.backupRef: only the operator can look up a KafkaBackup",
                hint="Write spec.source.storage, as in the KafkaBackup's spec.storage.",
            )
        metadata = document.get("metadata") or {}
        request = RunRequest(
            kind=kind,
            name=str(metadata.get("name", "cli")),
            namespace=str(metadata.get("namespace", "")),
            run_id=run_id,
            spec=spec,
        )
        _say(f"run {run_id}")
        from logkeep_engine.spark.session import Session, master_conf, planned_for, uses_s3

        # Options first: a wrong --master must not cost a started JVM.
        conf = master_conf(master, {}, os.environ)
        shown = stack.enter_context(_Shown(kind))
        reporter = Reporter(run_id, CallbackSink(shown.show), interval=0.5)
        stack.callback(reporter.close)
        started = time.time()
        try:
            # Java starts first, and while it does, what plans the run is imported here.
            session = stack.enter_context(Session(conf, s3=uses_s3(typed)))
            if isinstance(typed, KafkaBackupSpec):
                from logkeep_engine.backup.run import run_backup

                result = run_backup(request, planned_for(master, typed), session.runner, reporter, os.environ)
            else:
                from logkeep_engine.restore.run import restore as run_restore

                result = run_restore(request, planned_for(master, typed), session.runner, reporter, os.environ)
        except (LogkeepError, KeyboardInterrupt) as error:
            if output is Output.JSON:
                begun = RunResult(
                    run_id=run_id, kind=kind, outcome="Failed", exit_code=1, start_time=started, end_time=time.time()
                )
                _print_json(json.loads(failed(begun, error).to_json()))
            if isinstance(error, KeyboardInterrupt):
                _say(f"hint: go on with --run-id {run_id}")
            raise
        reporter.close()
        if result.exit_code == ExitCode.OK and session.learn():
            _say("keeping Java's classes for a quicker start of the next run")
        stack.close()
        _print_result(result, output)
        if result.exit_code:
            if result.exit_code == ExitCode.INTERRUPTED:
                _say(f"hint: go on with --run-id {run_id}")
            raise typer.Exit(result.exit_code)


def new_run_id() -> str:
    """Sorts by time: 20261121t140500z-1a2b3c."""
    return f"{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}-{secrets.token_hex(3)}"


def _check_run_id(run_id: str) -> str:
    if _RUN_ID.fullmatch(run_id) is None:
        raise SpecError(
            f"--run-id {run_id!r} is no name for a run", hint="Use 1 to 63 characters out of a-z, 0-9, '-' and '.'."
        )
    return run_id


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice in a mapping is an error, not a silent overwrite."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands here twice", key_node.start_mark)
        if isinstance(key, str):
            seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_document(file: str, kind: str) -> dict[str, Any]:
    """The one document of `kind` in a YAML file (`-`: standard input). Raises SpecError for a wrong file, apiVersion,
    kind or top-level field.
    """
    name = "standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(f"{name}: {reason}", hint="Name a YAML file with --file.") from error
    try:
        documents = [item for item in yaml.load_all(text, Loader=_StrictLoader) if item is not None]
    except yaml.YAMLError as error:
        raise SpecError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not documents:
        raise SpecError(f"{name}: holds no document", hint=f"It must hold a resource of kind {kind}.")
    for document in documents:
        if not isinstance(document, dict):
            raise SpecError(f"{name}: a document is a {type(document).__name__}, not a resource")
    found = [document for document in documents if document.get("kind") == kind]
    if not found:
        kinds = ", ".join(sorted({repr(document.get("kind")) for document in documents}))
        raise SpecError(f"{name}: kind: {kinds} found, {kind} wanted", hint=_other_command(documents))
    if len(found) > 1:
        raise SpecError(
            f"{name}: {len(found)} documents of kind {kind}", hint="A run is for one resource: split the file."
        )
    return _check_envelope(found[0], name)


def _other_command(documents: Sequence[Mapping[str, Any]]) -> str:
    kinds = {document.get("kind") for document in documents}
    for kind, command in (("KafkaBackup", "logkeep backup"), ("KafkaRestore", "logkeep restore")):
        if kind in kinds:
            return f"A {kind} is run by `{command}`."
    return ""


def _check_envelope(document: dict[str, Any], name: str) -> dict[str, Any]:
    if document.get("apiVersion") != API_VERSION:
        raise SpecError(f"{name}: apiVersion: {document.get('apiVersion')!r} found, {API_VERSION!r} wanted")
    unknown = sorted(set(map(str, document)) - {"apiVersion", "kind", "metadata", "spec", "status"})
    if unknown:
        raise SpecError(f"{name}: {unknown[0]}: unknown field")
    if not isinstance(document.get("spec"), dict):
        raise SpecError(f"{name}: spec: required")
    if not isinstance(document.get("metadata") or {}, dict):
        raise SpecError(f"{name}: metadata: must be a mapping")
    return document


# ---- what the user sees


class _errors(AbstractContextManager[None]):  # noqa: N801 (used as a function)
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
        if error is None or isinstance(error, (typer.Exit, typer.Abort, SystemExit)):
            return
        if self._debug:
            logging.getLogger("logkeep").error("traceback", exc_info=error)
        if isinstance(error, KeyboardInterrupt):
            _fail(ExitCode.INTERRUPTED, "interrupted")
        if isinstance(error, SpecInvalid):
            for path, what in error.problems:
                _say(f"error: {path}: {what}")
            raise typer.Exit(ExitCode.REFUSED) from None
        if isinstance(error, LogkeepError):
            faults = error.faults if isinstance(error, ArchiveDamaged) else ()
            for fault in faults[:MAX_FAULTS] if len(faults) > 1 else ():
                _say(f"fault: {fault}")
            _fail(error.exit_code, error.message, error.hint)
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(ExitCode.FAILED) from None
        if isinstance(error, Exception):
            _fail(
                ExitCode.FAILED,
                f"unexpected {type(error).__name__}: {error}",
                "Run it again with --debug and report what it says.",
            )


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True


def _fail(code: int, message: str, hint: str = "") -> NoReturn:
    _say(f"error: {message}")
    if hint:
        _say(f"hint: {hint}")
    raise typer.Exit(int(code)) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2), flush=True)


def human_bytes(size: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


class _Shown(AbstractContextManager["_Shown"]):
    """Progress of a run on stderr: bars per topic on a terminal, else a line every few seconds. `show` is called from
    the reporter's thread.
    """

    def __init__(self, kind: str) -> None:
        self._word = "archived" if kind == "KafkaBackup" else "restored"
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
            _say(self._line(progress))

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


def _print_result(result: RunResult, output: Output) -> None:
    if output is Output.JSON:
        _print_json(json.loads(result.to_json()))
        return
    if result.outcome == "Succeeded" or result.records:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in _result_rows(result):
            table.add_row(name, value)
        _stdout().print(table)
    for fact in result.loss:
        _say(f"lost: {fact.topic}-{fact.partition} offsets {fact.start} to {fact.end - 1}: {fact.reason}")
    if result.loss_total > len(result.loss):
        _say(f"lost: and {result.loss_total - len(result.loss)} more ranges")
    for warning in result.warnings:
        _say(f"warning: {warning}")
    if result.outcome != "Succeeded":
        _say(f"error: {result.message}")


def _result_rows(result: RunResult) -> list[tuple[str, str]]:
    rows = [
        ("run", result.run_id),
        ("outcome", result.outcome),
        ("topics", str(result.topics)),
        ("partitions", str(result.partitions)),
        ("records", str(result.records)),
        ("bytes", f"{result.bytes} ({human_bytes(result.bytes)})"),
        ("seconds", f"{result.end_time - result.start_time:.1f}"),
    ]
    if result.kind == "KafkaBackup":
        rows += [("segments", str(result.segments)), ("groups", str(result.groups)), ("commit", str(result.commit))]
    if result.archive_id:
        rows.append(("archive", result.archive_id))
    if result.loss_offsets:
        rows.append(("lost offsets", str(result.loss_offsets)))
    if result.offset_map:
        rows.append(("offset map", result.offset_map))
    return rows


def _stdout() -> Console:
    # A pipe has no width: tables must not be folded for the program that reads them.
    return Console() if sys.stdout.isatty() else Console(width=240, soft_wrap=True)


# ---- inspect and verify


def _open_archive(uri: str, endpoint: str | None, region: str | None) -> Archive:
    from logkeep_engine.archive.catalog import Archive
    from logkeep_engine.storage import open_uri

    storage = open_uri(uri, endpoint, region)
    storage.check()
    return Archive.open(storage)


def _print_archive(archive: Description) -> None:
    out = _stdout()
    head = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("archive", archive.archive_id),
        ("Kafka cluster", archive.cluster_id),
        ("created", f"{archive.created_at} by {archive.created_by}"),
        ("commit", str(archive.commit)),
        ("records", str(archive.records)),
        ("bytes", f"{archive.bytes} ({human_bytes(archive.bytes)})"),
        ("stored", f"{archive.stored_bytes} ({human_bytes(archive.stored_bytes)})"),
        ("segments", str(archive.segments)),
    ):
        head.add_row(name, value)
    out.print(head)
    topics = _table("topic", "partition", "offsets", "records", "size", "first", "last", "lost or missing")
    for topic in archive.topics:
        name = topic.name if topic.incarnations == 1 else f"{topic.name} ({topic.incarnation} of {topic.incarnations})"
        for part in topic.partitions:
            lacking = [*((gap.start, gap.end) for gap in part.gaps), *part.holes]
            topics.add_row(
                name,
                str(part.partition),
                f"{part.start} to {part.end - 1}" if part.end > part.start >= 0 else "-",
                str(part.records),
                human_bytes(part.bytes),
                part.times.first_time or "-",
                part.times.last_time or "-",
                ", ".join(f"{start} to {end - 1}" for start, end in sorted(lacking)) or "-",
            )
    out.print(topics)
    runs = _table("run", "began", "ended", "outcome", "records", "size", "segments", "message")
    for run in archive.runs:
        runs.add_row(
            run.run_id,
            run.begin_time,
            run.end_time or "-",
            run.outcome,
            str(run.records),
            human_bytes(run.bytes),
            str(run.segments),
            run.message,
        )
    out.print(runs)
    groups = _table("consumer group", "topic", "partition", "offset")
    for group in archive.groups:
        for position in group.positions:
            groups.add_row(group.group_id, position.topic, str(position.partition), str(position.offset))
    out.print(groups)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in columns:
        right = column in ("partition", "records", "size", "segments", "offset")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def _verify(uri: str, endpoint: str | None, region: str | None, workers: int, output: Output) -> None:
    from logkeep_engine.archive.verify import verify as verify_archive

    archive = _open_archive(uri, endpoint, region)
    with _VerifyShown() as shown:
        report = verify_archive(archive, on_progress=shown.show, workers=workers)
    if output is Output.JSON:
        _print_json(report.to_json())
    else:
        _print_report(report)
    if report.faults:
        raise typer.Exit(int(ExitCode.FAILED))


class _VerifyShown(AbstractContextManager["_VerifyShown"]):
    """Progress of a verification on stderr, on a terminal only: without one, the faults and the sum are all that is
    said.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("verify"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: VerifyProgress) -> None:
        if self._task is None:
            self._task = self._bars.add_task("verify", total=progress.segments_total)
        self._bars.update(self._task, completed=progress.segments)


def _print_report(report: VerifyReport) -> None:
    for fault in report.faults:
        print(fault)
    word = "whole" if report.whole else f"{len(report.faults)} {'fault' if len(report.faults) == 1 else 'faults'}"
    print(
        f"{word}: {report.objects} objects, {report.segments} segments, {report.records} records, "
        f"{human_bytes(report.bytes)} without fault; {len(report.orphans)} objects that no commit names"
    )


def main() -> None:
    """The entry point of the command `logkeep`."""
    try:
        app()
    except KeyboardInterrupt:  # outside of a command: while options are read
        _say("error: interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))


if __name__ == "__main__":
    main()

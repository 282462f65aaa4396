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
import os
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from logkeep_engine.cli import convert, coverage
from logkeep_engine.cli.common import (
    EXIT_CODES,
    Debug,
    Endpoint,
    Mechanism,
    Output,
    OutputFormat,
    Region,
    SecurityProtocol,
    Uri,
    cluster_connection,
    errors,
    facts,
    human_bytes,
    open_archive,
    open_stdout,
    print_json,
    refuse,
    say,
    stdout,
    table,
    visible,
)
from logkeep_engine.cli.documents import read_document
from logkeep_engine.cli.log import log_app
from logkeep_engine.cli.running import Master, RunId, end, leave, on_spark, run_id_or_new
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import (
    GroupRestore,
    KafkaBackupSpec,
    KafkaRestoreSpec,
    parse_backup,
    parse_restore,
)
from logkeep_engine.errors import LogkeepError, SpecError
from logkeep_engine.report import failed

if TYPE_CHECKING:
    from logkeep_engine.archive.inspect import Description
    from logkeep_engine.archive.verify import VerifyProgress, VerifyReport
    from logkeep_engine.kafka.connection import Connection
    from logkeep_engine.toolbox.against import AgainstReport

app = typer.Typer(
    name="logkeep",
    help="Backup and restore for Apache Kafka.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(log_app)


File = Annotated[
    str, typer.Option("--file", "-f", help="The resource as YAML; - reads standard input.", show_default=False)
]


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
    with errors(debug):
        from logkeep_engine.archive.beginnings import missing_beginnings
        from logkeep_engine.archive.inspect import describe
        from logkeep_engine.archive.visible import shows

        archive = open_archive(uri, endpoint, region)
        state = archive.load()
        described = describe(
            archive.info,
            state,
            beginnings=missing_beginnings(archive, state),
            lost_tails=archive.lost_tails(state),
            shows=shows(archive.storage, state),
        )
        if output is Output.JSON:
            print_json(described.to_json())
        else:
            _print_archive(described)


@app.command(epilog=EXIT_CODES)
def verify(
    uri: Uri,
    endpoint: Endpoint = None,
    region: Region = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Objects read at once.")] = 4,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="BOOTSTRAP",
            help="Also look for what the archive lacks of the live topics of this cluster, host:port[,host:port].",
        ),
    ] = None,
    security_protocol: SecurityProtocol = None,
    sasl_mechanism: Mechanism = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Read every object of an archive and check it against the catalog: size, SHA-256, CRCs, offsets, indexes. Exit
    code 1 if faults were found.
    """
    with errors(debug):
        connection = None
        if against is not None:
            connection = cluster_connection("--against", against, security_protocol, sasl_mechanism)
        else:
            refuse(
                {"--security-protocol": security_protocol, "--sasl-mechanism": sasl_mechanism},
                "has no effect: it is for --against",
            )
        _verify(uri, endpoint, region, workers, output, connection)


# ---- running a resource


def _run_resource(kind: str, file: str, run_id: str | None, master: str, output: Output, debug: bool) -> None:
    with errors(debug):
        document = read_document(file, kind)
        spec = document["spec"]
        run_id = run_id_or_new(run_id)
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
        from logkeep_engine.spark.session import planned_for, uses_s3

        started = time.time()
        result: RunResult | None = None
        try:
            with on_spark(run_id, kind, master, s3=uses_s3(typed)) as (session, reporter):
                # Java has been started first, and while it starts, what plans the run is imported here.
                if isinstance(typed, KafkaBackupSpec):
                    from logkeep_engine.backup.run import run_backup

                    result = run_backup(request, planned_for(master, typed), session.runner, reporter, os.environ)
                else:
                    from logkeep_engine.restore.run import restore as run_restore

                    result = run_restore(request, planned_for(master, typed), session.runner, reporter, os.environ)
                end(session, reporter, result)
        except (LogkeepError, KeyboardInterrupt) as error:
            if result is not None:  # the run had ended, and was interrupted no more
                _print_result(result, output, moves_groups=_moves_groups(typed))
                raise
            if output is Output.JSON:
                begun = RunResult(
                    run_id=run_id, kind=kind, outcome="Failed", exit_code=1, start_time=started, end_time=time.time()
                )
                print_json(json.loads(failed(begun, error).to_json()))
            if isinstance(error, KeyboardInterrupt):
                say(f"hint: go on with --run-id {run_id}")
            raise
        _print_result(result, output, moves_groups=_moves_groups(typed))
        leave(result)


def _moves_groups(spec: KafkaBackupSpec | KafkaRestoreSpec) -> bool:
    return not isinstance(spec, KafkaBackupSpec) and spec.consumer_groups.restore is GroupRestore.TRANSLATE


# ---- what the user sees


def _print_result(result: RunResult, output: Output, *, moves_groups: bool) -> None:
    if output is Output.JSON:
        print_json(json.loads(result.to_json()))
        return
    if result.outcome == "Succeeded" or result.records:
        stdout().print(facts(_result_rows(result, moves_groups)))
    if result.outcome == "Succeeded" and result.message:
        say(result.message)
    for fact in result.loss:
        say(f"lost: {fact.topic}-{fact.partition} offsets {fact.start} to {fact.end - 1}: {fact.reason}")
    if result.loss_total > len(result.loss):
        say(f"lost: and {result.loss_total - len(result.loss)} more ranges")
    for warning in result.warnings:
        say(f"warning: {warning}")
    if result.outcome != "Succeeded":
        say(f"error: {result.message}")


def _result_rows(result: RunResult, moves_groups: bool) -> list[tuple[str, str]]:
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
    elif moves_groups:
        rows.append(("groups", str(result.groups)))
    if result.archive_id:
        rows.append(("archive", result.archive_id))
    if result.loss_offsets:
        rows.append(("lost offsets", str(result.loss_offsets)))
    if result.offset_map:
        rows.append(("offset map", result.offset_map))
    return rows


# ---- inspect and verify


def _print_archive(archive: Description) -> None:
    out = stdout()
    head = (
        ("archive", archive.archive_id),
        ("Kafka cluster", archive.cluster_id),
        ("format", f"{archive.segment_format}{', imported' if archive.imported else ''}"),
        ("created", f"{archive.created_at} by {archive.created_by}"),
        ("commit", str(archive.commit)),
        ("records", str(archive.records)),
        ("bytes", f"{archive.bytes} ({human_bytes(archive.bytes)})"),
        ("stored", f"{archive.stored_bytes} ({human_bytes(archive.stored_bytes)})"),
        ("segments", str(archive.segments)),
    )
    out.print(facts(head))
    for lost in archive.lost_commits:
        say(f"warning: the catalog has lost its last commits: {lost}")
    heads = ["topic", "partition", "offsets", "records", "size", "first", "last", "lost or missing"]
    retained = any(part.removed for topic in archive.topics for part in topic.partitions)
    topics = table(*heads, *(["removed"] if retained else []))
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
                _offsets(lacking),
                *([_offsets(part.removed)] if retained else []),
            )
    out.print(topics)
    if any(topic.incarnations > 1 for topic in archive.topics):
        out.print(_incarnations(archive))
    if any(topic.branches for topic in archive.topics):
        out.print(_branches(archive))
    runs = table("run", "began", "ended", "outcome", "records", "size", "segments", "message")
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
    groups = table("consumer group", "topic", "partition", "offset")
    for group in archive.groups:
        for position in group.positions:
            groups.add_row(group.group_id, position.topic, str(position.partition), str(position.offset))
    out.print(groups)


def _incarnations(archive: Description) -> Table:
    """The topics that were deleted and created again."""
    found = table("deleted and created again", "topic id", "records", "first", "last", "restored by default")
    for topic in archive.topics:
        if topic.incarnations > 1:
            found.add_row(
                f"{topic.name} ({topic.incarnation} of {topic.incarnations})",
                topic.topic_id,
                str(topic.records),
                topic.times.first_time or "-",
                topic.times.last_time or "-",
                "yes" if topic.taken else "no",
            )
    return found


def _branches(archive: Description) -> Table:
    """Old ends of logs that were cut off in the cluster."""
    found = table("cut off in the cluster", "partition", "branch", "old end", "records", "first", "last")
    for topic in archive.topics:
        for branch in topic.branches:
            found.add_row(
                topic.name,
                str(branch.partition),
                branch.id,
                _offsets([(branch.start, branch.end)]),
                str(branch.records),
                branch.times.first_time or "-",
                branch.times.last_time or "-",
            )
    return found


def _offsets(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in sorted(ranges)) or "-"


def _verify(
    uri: str,
    endpoint: str | None,
    region: str | None,
    workers: int,
    output: Output,
    connection: Connection | None,
) -> None:
    from logkeep_engine.archive.verify import verify as verify_archive

    archive = open_archive(uri, endpoint, region)
    with _VerifyShown() as shown:
        report = verify_archive(archive, on_progress=shown.show, workers=workers)
    live = None
    if connection is not None:
        from logkeep_engine.toolbox.against import compare

        live = compare(archive, connection)
    whole = report.whole and (live is None or live.whole)
    if output is Output.JSON:
        print_json({**report.to_json(), "whole": whole, **({} if live is None else {"against": live.to_json()})})
    else:
        _print_report(report)
        if live is not None:
            _print_against(live)
    if not whole:
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
    for disagreement in report.disagreements:
        print(f"note: {disagreement}")
    word = "whole" if report.whole else f"{len(report.faults)} {'fault' if len(report.faults) == 1 else 'faults'}"
    print(
        f"{word}: {report.objects} objects, {report.segments} segments, {report.records} records, "
        f"{human_bytes(report.bytes)} without fault; {len(report.orphans)} objects that no commit names"
    )


def _print_against(report: AgainstReport) -> None:
    for item in report.partitions:
        where = visible(f"{item.topic}-{item.partition}")
        for found in item.missing:
            print(
                f"{where}: {_count(found.records)} of the live log at offsets {found.start} to {found.end - 1} "
                f"{'is' if found.records == 1 else 'are'} missing in the archive, which says it covers them"
            )
        if item.missing_records > (shown := sum(found.records for found in item.missing)):
            print(f"{where}: and {item.missing_records - shown} more")
        if item.failed:
            print(f"{where}: could not be compared: {item.failed}")
        for reason in item.not_compared:
            print(f"{where}: not compared: {reason}")
    missing = sum(item.missing_records for item in report.partitions)
    live = sum(item.live for item in report.partitions)
    compared = sum(bool(item.ranges) and not item.failed for item in report.partitions)
    print(
        f"{'nothing missing' if report.whole else f'{_count(missing)} missing'}: {_count(live)} of the live log in "
        f"{compared} of {len(report.partitions)} archived partitions compared"
    )


def _count(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"


convert.register(app)
coverage.register(app)


def main() -> None:
    """The entry point of the command `logkeep`."""
    open_stdout()
    try:
        app()
    except KeyboardInterrupt:  # outside of a command: while options are read
        say("error: interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))

"""The command `logkeep reconcile`: looks for keys that are alive in the archive and gone from the cluster."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import WHOLE_NAMES, ActsFor, Debug, Output, OutputFormat, pattern, spread
from logkeep_engine.cli.output import print_json, say, stdout, table
from logkeep_engine.cli.resource import File
from logkeep_engine.cli.running import SparkOptions, on_spark
from logkeep_engine.contract.names import BACKUP, ExitCode
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.catalog.state import ArchiveState
    from logkeep_engine.backup.reconcile.report import ReconcileReport

_MOST_KEYS = 1_000_000

TopicNames = Annotated[
    list[str] | None, typer.Option("--topic", metavar="REGEX", help=f"Only compacted topics. {WHOLE_NAMES}")
]
KeysFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write the stale keys here, base64 in lines of JSON. It must be a new file; only you may read it.",
    ),
]
Heal = Annotated[bool, typer.Option("--heal", help="Let the next backup read the partitions with stale keys again.")]


@spread
def reconcile(
    file: File,
    spark: SparkOptions,
    topic: TopicNames = None,
    keys_file: KeysFile = None,
    heal: Heal = False,
    owner: ActsFor = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Compare the keys of the compacted topics of a KafkaBackup with the archive. A key is stale if the archive has a
    value of it, and the cluster has nothing more: it was deleted, and the tombstone was cleaned before it was archived.

    Exit code 6 if stale keys were found, or a partition could not be compared; 4 if the archive lacks the last record
    of a key.
    """
    with errors(debug):
        from logkeep_engine.backup.reconcile.report import MOST_OFFSETS
        from logkeep_engine.backup.reconcile.step import reconcile_archive
        from logkeep_engine.cli.documents import claim_of_file, read_document
        from logkeep_engine.spark.conf import planned_for, uses_s3

        document = read_document(file, BACKUP)
        spec, claim = planned_for(spark.master, parse_backup(document["spec"])), claim_of_file(document, acts_for=owner)
        run_id = spark.run_id_or_new()
        for text in topic or ():
            pattern("--topic", text)
        keys = _new_file(keys_file) if keys_file is not None else None
        with on_spark(run_id, BACKUP, spark.master, s3=uses_s3(spec)) as (session, reporter):
            most = _MOST_KEYS if keys is not None else MOST_OFFSETS
            only = frozenset(topic or ())
            report, archive, state = reconcile_archive(
                run_id, spec, session.runner, reporter, os.environ, only=only, most=most, heal=heal, claim=claim
            )
        if keys is not None:
            with os.fdopen(keys, "w", encoding="utf-8") as out:
                _write_keys(out, report, archive, state)
        _print(report, output)
        report.raise_if_wrong()
        if report.counts.stale:
            raise typer.Exit(int(ExitCode.DIFFERS))


def _new_file(path: str) -> int:
    """Return a new file that only the user may read. Raises SpecError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SpecError(
            f"--keys-file {path!r}: {error.strerror}", hint="Name a new file in a folder where you may write."
        ) from error


def _write_keys(out: Any, report: ReconcileReport, archive: Archive, state: ArchiveState) -> None:
    """Write the stale keys, which are read once more from the archive."""
    from logkeep_engine.archive.reading.partition import open_partition

    for item in report.partitions:
        if item.keys is None or not item.keys.stale:
            continue
        key, left = (item.topic_id, item.partition), set(item.keys.stale)
        segments, kept = state.segments[key], state.kept(*key)
        for records in open_partition(archive.storage, item.topic, segments, kept).records(min(left)):
            for record in records:
                if record.offset in left and record.key is not None:
                    text = base64.b64encode(record.key).decode()
                    line = {"topic": item.topic, "partition": item.partition, "offset": record.offset, "key": text}
                    out.write(json.dumps(line, separators=(",", ":")) + "\n")
        if item.counts.stale > len(left):
            where = f"{item.topic}-{item.partition}"
            say(f"warning: {where}: only {len(left)} of {item.counts.stale} stale keys are written")


def _print(report: ReconcileReport, output: Output) -> None:
    if output is Output.JSON:
        print_json({**report.to_json(), "report": report.document})
        return
    shown = table("topic", "partition", "keys", "stale", "missing", "expired", "verdict")
    for item in report.partitions:
        counts = item.counts
        numbers = (counts.keys, counts.stale, counts.wrong, counts.expired)
        lines = [str(number) if item.keys is not None else "-" for number in numbers]
        shown.add_row(item.topic, str(item.partition), *lines, item.verdict.value)
    if report.partitions:
        stdout().print(shown)
    for item in report.partitions:
        if item.failed:
            say(f"{item.topic}-{item.partition}: not compared: {item.failed}")
        if why := report.healing.get(item.key):
            say(f"{item.topic}-{item.partition}: not healed: {why}")
    for name in report.not_archived:
        say(f"note: topic {name} is compacted and not yet archived")
    say(f"{report.message}; report {report.document}")

"""The commands `logkeep retention` and `logkeep hold`: what an archive keeps."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import (
    WHOLE_NAMES,
    ActsFor,
    Debug,
    Output,
    OutputFormat,
    Server,
    Uri,
    pattern,
    refuse_unmatched,
    spread,
)
from logkeep_engine.cli.output import print_json, print_line, say, stdout, table
from logkeep_engine.cli.resource import File
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.values import human_bytes
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from logkeep_engine.archive.maintenance.retaining import RetentionDone
    from logkeep_engine.archive.maintenance.retention_report import RetentionPreview

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing: print what would be removed, and what stays and why.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="REGEX", help=f"Topics to hold. {WHOLE_NAMES}"),
]
Runs = Annotated[
    list[str] | None, typer.Option("--run", metavar="ID", help="A run: all that the archive held then. Repeatable.")
]
Release = Annotated[bool, typer.Option("--release", help="Release these holds.")]


@spread
def retention(
    file: File,
    dry_run: DryRun = False,
    owner: ActsFor = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Remove from the archive of a KafkaBackup what its spec.retention does not keep, now and without a backup.

    The last backup must have succeeded. Nothing of Kafka is asked. Secrets that the file refers to are not read from
    Kubernetes: set the variables of the store instead, as for backup.
    """
    with errors(debug):
        from logkeep_engine.archive.catalog.archive import Archive
        from logkeep_engine.archive.catalog.owner import check_owner
        from logkeep_engine.archive.maintenance.retaining import run_retention
        from logkeep_engine.archive.maintenance.retention_report import preview
        from logkeep_engine.backup.model.selection import retention_rules
        from logkeep_engine.cli.documents import claim_of_file, read_document
        from logkeep_engine.contract.spec import parse_backup
        from logkeep_engine.storage import open_storage

        document = read_document(file, BACKUP)
        spec = parse_backup(document["spec"])
        storage = open_storage(spec.place, os.environ)
        storage.check()
        claim = claim_of_file(document, acts_for=owner)
        archive, rules = Archive.open(storage, claim), retention_rules(spec)
        if dry_run:
            check_owner(archive, archive.load())
            found = preview(archive, rules, spec.retention.hold)
            if output is Output.JSON:
                print_json(found.to_json())
            else:
                _show_preview(found)
            return
        done = run_retention(archive, _run_id("retention"), rules, spec.retention.hold)
        if output is Output.JSON:
            print_json(_json_of(done))
            return
        for note in done.notes:
            say(f"warning: {note}")
        print_line(f"removed {done.removed}")
        print_line(f"deleted the objects of {done.purged.segments} removed segments, {done.purged.waiting} wait")


@spread
def hold(
    uri: Uri,
    *,
    server: Server,
    topic: Topics = None,
    run: Runs = None,
    release: Release = False,
    owner: ActsFor = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Hold topics and runs in an archive: neither retention nor an erasure takes anything of them. Without --topic and
    --run the holds are listed. Those of a KafkaBackup (spec.retention.hold) are released there.
    """
    with errors(debug):
        from logkeep_engine.archive.catalog.claim import ArchiveClaim
        from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
        from logkeep_engine.archive.maintenance.retaining import change_holds

        if release and not topic and not run:
            raise SpecError(
                "--release releases nothing without --topic or --run", hint="`logkeep hold URI` lists all holds."
            )
        archive = server.archive(uri, ArchiveClaim(acts_for=owner))
        for text in topic or ():
            pattern("--topic", text)
        try:
            wanted = [
                *(Hold(HoldKind.TOPIC, name, HoldOrigin.COMMAND) for name in topic or ()),
                *(Hold(HoldKind.RUN, name, HoldOrigin.COMMAND) for name in run or ()),
            ]
        except ValueError as error:
            raise SpecError(f"--run: {error}", hint="`logkeep inspect` lists the runs of an archive.") from error
        state = archive.load()
        if not release:
            names = {item.name for item in state.topics.values()}
            hint = (
                "`logkeep inspect` lists the topics of an archive. Topics that are not there yet may be named in "
                "spec.retention.hold of its KafkaBackup."
            )
            refuse_unmatched("--topic", topic or (), names, "topic of the archive", hint)
        for name in run or ():
            if not release and name not in state.runs:
                raise SpecError(f"--run {name!r} is not a run of the archive", hint="`logkeep inspect` lists them.")
            if not release and name not in {run.run_id for run in state.successes()}:
                raise SpecError(
                    f"--run {name!r} is not a backup that succeeded, so no restore uses the archive as it left it",
                    hint="Hold a later run that succeeded; `logkeep inspect` lists them.",
                )
        holds = change_holds(archive, _run_id("hold"), wanted, release=release) if wanted else state.retention_holds
        if output is Output.JSON:
            print_json([{"kind": one.kind, "name": one.name, "origin": one.origin} for one in holds])
            return
        shown = table("hold on", "name", "asked for by")
        for one in holds:
            shown.add_row(one.kind.lower(), one.name, one.origin.lower())
        stdout().print(shown if holds else "no holds")


def _run_id(kind: str) -> str:
    return f"{kind}-{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}-{secrets.token_hex(3)}"


def _json_of(done: RetentionDone) -> dict[str, object]:
    removed, purged = done.removed, done.purged
    return {
        "removed": {"segments": removed.segments, "snapshots": removed.snapshots, "bytes": removed.bytes},
        "purged": {"segments": purged.segments, "bytes": purged.bytes, "waiting": purged.waiting},
        "readers": list(purged.readers),
        "locked": [{"path": item.path, "until": item.until, "legalHold": item.legal_hold} for item in purged.locked],
        "notes": list(done.notes),
    }


def _show_preview(found: RetentionPreview) -> None:
    console = stdout()
    if found.refused:
        say(f"warning: it would be refused now: {found.refused}")
    for note in found.notes:
        say(f"warning: {note}")
    parts = [part for part in (_topics(found), _points(found), _waiting(found)) if part.row_count]
    for part in parts:
        console.print(part)
        console.print()
    if not parts:
        console.print("nothing is archived")
    for one in found.holds:
        console.print(one)


def _topics(found: RetentionPreview) -> Table:
    shown = table("topic", "would", "why", "segments", "snapshots", "size", "from", "to")
    for row in found.topics:
        would = "go" if row.goes else "stay"
        size = human_bytes(row.bytes)
        shown.add_row(
            row.topic, would, row.why, str(row.segments), str(row.snapshots), size, row.first_time, row.last_time
        )
    return shown


def _points(found: RetentionPreview) -> Table:
    shown = table("restorable point", "ended", "kept by", "would have")
    for point in found.points:
        has = "everything" if point.whole else f"what is younger than {point.since or 'an unknown time'}"
        shown.add_row(
            point.run_id, point.end_time, ", ".join(point.rules), has if point.restorable else "it cannot be restored"
        )
    return shown


def _waiting(found: RetentionPreview) -> Table:
    shown = table("removed by commit", "at", "segments", "size")
    for item in found.waiting:
        shown.add_row(str(item.commit), item.time, str(item.segments), human_bytes(item.bytes))
    return shown

"""The command `logkeep verify`: checks an archive against its catalog, and against a cluster.

Imports that take long happen inside the command.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import (
    Debug,
    ExpectCommit,
    Output,
    OutputFormat,
    SecurityOptions,
    Server,
    Uri,
    refuse,
    spread,
)
from logkeep_engine.cli.output import print_json, print_line
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.values import human_bytes, so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.maintenance.verify import Unread, VerifyReport
    from logkeep_engine.compare.account import AgainstReport
    from logkeep_engine.contract.anchor import Anchor
    from logkeep_engine.kafka.connection import KafkaConnection


_SHOWN = 5


@spread
def verify(
    uri: Uri,
    *,
    server: Server,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Objects read at once.")] = 4,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="BOOTSTRAP",
            help="Also look for what the archive lacks of the live topics of this cluster, host:port[,host:port].",
        ),
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option(
            "--incremental", help="Read what is new since the last incremental verification, and a share of the rest."
        ),
    ] = False,
    share: Annotated[
        str | None,
        typer.Option(metavar="1/N", help="The share of an incremental verification; 1/30 without it."),
    ] = None,
    expect_commit: ExpectCommit = None,
    security: SecurityOptions,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Read every object of an archive and check it against the catalog: size, digest, CRCs, offsets, indexes. Exit code
    6 if faults were found.
    """
    with errors(debug):
        if not incremental:
            refuse({"--share": share}, "has no effect without --incremental")
        parts = _parts(share or "1/30") if incremental else None
        connection = None
        if against is not None:
            connection = security.connection("--against", against)
        else:
            security.refuse_without("--against")
        from logkeep_engine.archive.catalog.claim import anchor_of

        anchor = anchor_of(expect_commit, "--expect-commit")
        _verify(server.archive(uri), workers, output, connection, parts, anchor)


def _parts(share: str) -> int:
    """Return the N of 1/N."""
    found = re.fullmatch(r"1/([1-9][0-9]{0,3})", share)
    if found is None:
        raise SpecError(f"--share: {share!r} is not a share like 1/30", hint="N is a number from 1 to 9999.")
    return int(found[1])


def _verify(
    archive: Archive,
    workers: int,
    output: Output,
    connection: KafkaConnection | None,
    parts: int | None,
    anchor: Anchor | None,
) -> None:
    from logkeep_engine.archive.maintenance.increments import VerifyCycle
    from logkeep_engine.archive.maintenance.leases import READING, reading
    from logkeep_engine.archive.maintenance.verify import verify as verify_archive
    from logkeep_engine.cli.progress import VerifyShown

    live = None
    cycle = None if parts is None else VerifyCycle.load(archive, parts)
    run_id = f"{READING}verify-{secrets.token_hex(4)}"
    with reading(archive.storage, run_id, archive.listing().last), VerifyShown() as shown:
        report = verify_archive(archive, on_progress=shown.show, workers=workers, cycle=cycle, anchor=anchor)
    if connection is not None:
        from logkeep_engine.compare.account import compare

        live = compare(archive, connection)
    whole = report.whole and (live is None or live.whole)
    fault = bool(report.faults) or (live is not None and not live.whole)
    if output is Output.JSON:
        print_json({**report.to_json(), "whole": whole, **({} if live is None else {"against": live.to_json()})})
    else:
        _print_report(report)
        if live is not None:
            _print_against(live)
    if fault:
        raise typer.Exit(int(ExitCode.DIFFERS))


def _print_report(report: VerifyReport) -> None:
    for fault in report.faults:
        print_line(f"fault: {fault}")
    for disagreement in report.disagreements:
        print_line(f"note: {disagreement}")
    whole = "whole" if report.unread is None and not report.cold else "no fault in what was read"
    word = whole if not report.faults else f"{so_many(len(report.faults), 'fault')}"
    print_line(
        f"{word}: {so_many(report.objects, 'object')}, {so_many(report.segments, 'segment')}, "
        f"{so_many(report.records, 'record')}, {human_bytes(report.bytes)} without fault; "
        f"{so_many(len(report.orphans), 'object')} that no commit names"
    )
    if report.unread is not None:
        _print_unread(report.unread)
    if report.cold:
        _print_cold(report.cold)


def _print_unread(unread: Unread) -> None:
    commits = "all commits" if unread.whole_catalog else "the commits since the last one"
    print_line(
        f"not read: {so_many(unread.segments, 'segment')}, {human_bytes(unread.bytes)}, whose objects exist in the "
        f"right size or are named above. This was verification {unread.done} of {unread.parts} of a cycle, which read "
        f"{commits}; after all of them each object was read"
    )


def _print_cold(cold: Sequence[str]) -> None:
    more = f" and {len(cold) - _SHOWN} more" if len(cold) > _SHOWN else ""
    print_line(
        f"cold: {so_many(len(cold), 'segment')}, whose objects exist in the right size or are named above, cannot be "
        f"read before they are retrieved, so nothing proves them: {', '.join(cold[:_SHOWN])}{more}"
    )


def _print_against(report: AgainstReport) -> None:
    for item in report.partitions:
        where = f"{item.topic}-{item.partition}"
        for found in item.missing:
            are = "is" if found.records == 1 else "are"
            print_line(
                f"{where}: {so_many(found.records, 'record')} of the live log at offsets {found.start} to "
                f"{found.end - 1} {are} missing in the archive, which says it covers them"
            )
        if item.missing_records > (shown := sum(found.records for found in item.missing)):
            print_line(f"{where}: and {item.missing_records - shown} more")
        if item.failed:
            print_line(f"{where}: could not be compared: {item.failed}")
        for reason in item.not_compared:
            print_line(f"{where}: not compared: {reason}")
    missing = sum(item.missing_records for item in report.partitions)
    live = sum(item.live for item in report.partitions)
    compared = sum(bool(item.ranges) and not item.failed for item in report.partitions)
    text = "nothing missing" if report.whole else f"{so_many(missing, 'record')} missing"
    print_line(
        f"{text}: {so_many(live, 'record')} of the live log in "
        f"{compared} of {so_many(len(report.partitions), 'archived partition')} compared"
        if report.partitions
        else "nothing compared: the archive has no partition"
    )

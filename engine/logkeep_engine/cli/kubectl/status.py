"""The command `kubectl logkeep status`: a line for each resource, or all about one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import archive_lines, lines, maintenance_lines
from logkeep_engine.cli.kubectl.errors import NoSuchResource
from logkeep_engine.cli.kubectl.options import AllNamespaces, Where, named
from logkeep_engine.cli.options import Debug, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.output import facts, print_json, say, stdout, table
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="All about this one: NAME, kbak/NAME, krst/NAME or karc/NAME.")
]


@spread
def status(
    name: Name = None,
    all_namespaces: AllNamespaces = False,
    *,
    where: Where,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show backups, restores and archives: their state, the last success, what can be restored, the next run."""
    with errors(debug):
        if name is not None:
            refuse({"--all-namespaces": all_namespaces}, "has no effect with the name of a resource")
        cluster = where.connect()
        now = datetime.now(UTC)
        if name is None:
            _show_all(cluster, now, output, everywhere=all_namespaces)
        else:
            _show_one(cluster, name, now, output)


def _show_all(cluster: Kubernetes, now: datetime, output: Output, *, everywhere: bool) -> None:
    found = [
        {**body, "kind": kind}
        for kind in (BACKUP, RESTORE, KAFKA_ARCHIVE)
        for body in cluster.items(kind, everywhere=everywhere)
    ]
    if output is Output.JSON:
        print_json({"items": [lines.clean(body) for body in found]})
        return
    if not found:
        where = "any namespace" if everywhere else f"namespace {cluster.namespace}"
        say(f"There is no KafkaBackup, KafkaRestore or KafkaArchive in {where}.")
        return
    shown = table(*lines.overview_columns(everywhere=everywhere))
    for body in found:
        of_archive = body["kind"] == KAFKA_ARCHIVE
        shown.add_row(*(archive_lines if of_archive else lines).overview(body, now, everywhere=everywhere))
    stdout().print(shown)


def _show_one(cluster: Kubernetes, text: str, now: datetime, output: Output) -> None:
    found = resources_named(cluster, text, with_archives=True)
    if output is Output.JSON:
        print_json({"items": [lines.clean(body) for body in found]})
        return
    out = stdout()
    for body in found:
        if body["kind"] == KAFKA_ARCHIVE:
            out.print(facts(archive_lines.detail(body, now)))
            continue
        out.print(facts([*lines.detail(body, now), *maintenance_lines.maintenance_rows(body, now)]))
        for note in (*lines.run_notes(body), *lines.dry_run_notes(body), *maintenance_lines.planned_removals(body)):
            say(note)
        for heads, rows in (
            (lines.DRY_RUN_TOPICS, lines.dry_run_topics(body)),
            (maintenance_lines.COMPACTED, maintenance_lines.compacted_topics(body)),
            (maintenance_lines.KEPT, maintenance_lines.kept_points(body, now)),
            (lines.HISTORY, lines.history(body, now)),
        ):
            if rows:
                shown = table(*heads)
                for row in rows:
                    shown.add_row(*row)
                out.print(shown)


def resource_named(cluster: Kubernetes, text: str, *, with_archives: bool = False) -> dict[str, Any]:
    """Return the one resource of this name. Raises NoSuchResource, and SpecError if there are two."""
    found = resources_named(cluster, text, with_archives=with_archives)
    if len(found) > 1:
        short = " or ".join(lines.short_name(body) for body in found)
        raise SpecError(f"{text!r} is a KafkaBackup and a KafkaRestore", hint=f"Write {short}.")
    return found[0]


def resources_named(cluster: Kubernetes, text: str, *, with_archives: bool = False) -> list[dict[str, Any]]:
    """Return the resources of this name: one, or a backup and a restore. A name alone is that of a KafkaArchive only if
    neither of them has it. Raises NoSuchResource."""
    kinds, name = named(text, BACKUP, RESTORE, *([KAFKA_ARCHIVE] if with_archives else []))
    if len(kinds) == 1:
        return [cluster.get(kinds[0], name)]
    found = [body for kind in (BACKUP, RESTORE) if (body := cluster.find(kind, name)) is not None]
    if not found and with_archives and (archive := cluster.find(KAFKA_ARCHIVE, name)) is not None:
        return [archive]
    if not found:
        what = "no KafkaBackup, KafkaRestore or KafkaArchive" if with_archives else "no KafkaBackup or KafkaRestore"
        raise NoSuchResource(
            f"There is {what} {name!r} in namespace {cluster.namespace}.",
            hint="Is it in another -n/--namespace?",
        )
    return found

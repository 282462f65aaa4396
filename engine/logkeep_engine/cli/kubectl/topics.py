"""The command `kubectl logkeep topics`: what backups protect, and how far behind they are, by their statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import lines
from logkeep_engine.cli.kubectl.options import AllNamespaces, Where, backup_name
from logkeep_engine.cli.options import Debug, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.output import print_json, say, stdout, table
from logkeep_engine.contract.names import BACKUP

Name = Annotated[str | None, typer.Argument(metavar="BACKUP", help="Name of a KafkaBackup; by default all.")]
_PARTS = ("coverage", "recovery", "retention")


@spread
def topics(
    backup: Name = None,
    all_namespaces: AllNamespaces = False,
    *,
    where: Where,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show which topics backups protect, which are behind, and which are not protected.

    A status names 20 topics of each sort at most; `kubectl logkeep inspect` reads all of them from the archive.
    """
    with errors(debug):
        if backup is not None:
            refuse({"--all-namespaces": all_namespaces}, "has no effect with the name of a backup")
        cluster = where.connect()
        if backup is not None:
            found = [cluster.get(BACKUP, backup_name(backup))]
        else:
            found = cluster.items(BACKUP, everywhere=all_namespaces)
        if output is Output.JSON:
            print_json({"items": [_facts(body) for body in found]})
            return
        if not found:
            say(
                f"There is no KafkaBackup in {'any namespace' if all_namespaces else f'namespace {cluster.namespace}'}."
            )
        _show(found, datetime.now(UTC), everywhere=all_namespaces)


def _facts(body: dict[str, Any]) -> dict[str, Any]:
    status = body.get("status") or {}
    names = {key: body["metadata"][key] for key in ("namespace", "name")}
    return {**names, **{key: status[key] for key in _PARTS if key in status}}


def _show(found: list[dict[str, Any]], now: datetime, *, everywhere: bool) -> None:
    shown = table(*(("NAMESPACE", *lines.TOPICS) if everywhere else lines.TOPICS))
    for body in found:
        for row in lines.topics(body, now):
            shown.add_row(*((str(body["metadata"]["namespace"]), *row) if everywhere else row))
    out = stdout()
    if shown.row_count:
        out.print(shown)
    for body in found:
        for sentence in lines.topic_sums(body, now):
            out.print(sentence)

"""The command `logkeep release`: gives the topics of a restore their retention, which `Hold` has kept from them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.output import print_json, say, stdout, table
from logkeep_engine.cli.resource import File
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import parse_restore

if TYPE_CHECKING:
    from logkeep_engine.restore.run.releasing import ReleasedTopic


@spread
def release(
    file: File,
    *,
    run_id: Annotated[str, typer.Option("--run-id", help="The run of the restore.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: print what would be deleted.")] = False,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Give the topics of a restore with spec.topics.retention: Hold the retention that they are to have. Kafka then
    deletes what is older, or more, than that; look with --dry-run first. A topic with another retention than the
    restore has given it is left as it is.
    """
    with errors(debug):
        from logkeep_engine.cli.documents import read_document
        from logkeep_engine.restore.run.opening import open_run
        from logkeep_engine.restore.run.releasing import release as release_topics

        spec = parse_restore(read_document(file, RESTORE)["spec"])
        with open_run(spec, run_id, os.environ) as run:
            found = release_topics(run, dry_run=dry_run)
        if output is Output.JSON:
            print_json({"runId": run_id, "dryRun": dry_run, "topics": [item.to_json() for item in found]})
        else:
            _print(found)
            if dry_run:
                say("This was a dry run: nothing was changed.")


def _print(found: list[ReleasedTopic]) -> None:
    shown = table("topic", "outcome", "retention.ms", "retention.bytes", "deletes up to", "of")
    for item in found:
        values = [value if value is not None else "the brokers' default" for value in item.retention.values()]
        goes = item.goes
        counts = ("-", "-") if goes is None else (str(goes.records), goes.of)
        shown.add_row(item.topic, item.outcome.value, *values, *counts)
    stdout().print(shown)
    for item in found:
        if item.goes is not None:
            say(str(item.goes))

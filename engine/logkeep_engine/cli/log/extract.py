"""The command `logkeep log extract`: writes segments of an archive as the files that Kafka's own tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import Chosen, Form, Where, leave_if_damaged
from logkeep_engine.cli.options import Debug, Server, spread
from logkeep_engine.cli.output import print_json, print_line

Folder = Annotated[
    Path,
    typer.Argument(help="A new folder, or one without these files.", metavar="FOLDER", show_default=False),
]


@spread
def extract_log(
    source: Where,
    folder: Folder,
    *,
    chosen: Chosen,
    server: Server,
    form: Form,
    debug: Debug = False,
) -> None:
    """Write segments of an archive of format Kafka as a broker has them: a folder for each partition, such as orders-0,
    with the log as it was before it was compressed as a whole, and its indexes. Exit code 6 if something is damaged:
    what can be read of it is written.
    """
    with errors(debug):
        from logkeep_engine.toolbox.extract import extract

        found = list(extract(chosen.source(source, server), folder))
        if form.json:
            print_json([{"file": str(item.path), "bytes": item.bytes} for item in found])
        else:
            for item in found:
                print_line(f"{item.path}: {item.bytes} bytes")
        leave_if_damaged([damage for item in found for damage in item.damage])

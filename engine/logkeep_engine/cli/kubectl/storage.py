"""The command `kubectl logkeep storage check`: tries the place of a resource's archive, with the Secret that it
names."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from logkeep_engine.cli.commands import Commands
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl.endpoints import Endpoints
from logkeep_engine.cli.kubectl.inspect import allowed_storage, open_named
from logkeep_engine.cli.kubectl.options import EXIT_CODES, ResourceOrArchive, Where
from logkeep_engine.cli.kubectl.status import resource_named
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.storage import ForRole, ReadOnly, try_storage

app = typer.Typer(
    name="storage",
    cls=Commands,
    help="Try what the store of a resource can do.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback(help=app.info.help, epilog=EXIT_CODES)
def storage() -> None:
    """Options of the group itself; each command has its own."""


@app.command(epilog=EXIT_CODES)
@spread
def check(
    name: ResourceOrArchive,
    *,
    endpoints: Endpoints,
    where: Where,
    read_only: ReadOnly = False,
    role: ForRole = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Try all that an archive needs of the place that a resource names, as `logkeep storage check` does. Your own
    rights must allow its Secret."""
    with errors(debug), ExitStack() as files:
        cluster = where.connect()
        spec = allowed_storage(cluster, resource_named(cluster, name, with_archives=True), endpoints)
        try_storage(
            spec.uri,
            lambda uri: open_named(
                cluster, spec.model_copy(update={"uri": uri}), files, command="logkeep storage check"
            ),
            read_only=read_only,
            role=role,
            output=output,
        )

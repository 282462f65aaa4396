"""The commands `logkeep log …`: they look into logs and repair them, in archives and in a broker's log folders.

    logkeep log dump s3://bucket/prefix --topic orders --deep
    logkeep log index check /var/lib/kafka/data/orders-0
    logkeep log diff s3://bucket/prefix --bootstrap-server localhost:9092

`docs/cli.md` is the reference. Imports that take long happen inside the commands.
"""

from __future__ import annotations

import typer

from logkeep_engine.cli.log import diff, dump, extract, index, offsets, recover, timestamps
from logkeep_engine.cli.log.options import EXIT_CODES

_log = typer.Typer(
    name="log",
    help="Look into logs and repair them: archives, a broker's log folders, single files.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (index, dump, extract, recover, offsets, timestamps, diff):  # as --help lists them
    command.register(_log)


def register(app: typer.Typer) -> None:
    """Add the commands to `logkeep`."""
    app.add_typer(_log)

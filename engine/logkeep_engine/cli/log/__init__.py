"""The commands `logkeep log …`: they look into logs and repair them, in archives and in a broker's log folders.

    logkeep log dump s3://bucket/prefix --topic orders --deep
    logkeep log index check /var/lib/kafka/data/orders-0
    logkeep log diff s3://bucket/prefix --bootstrap-server localhost:9092

`docs/cli.md` is the reference. Imports that take long happen inside the commands.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from logkeep_engine.cli.commands import Commands
from logkeep_engine.cli.log import diff, dump, extract, index, offsets, recover, timestamps
from logkeep_engine.cli.log.options import EXIT_CODES

app = typer.Typer(
    name="log",
    cls=Commands,
    help="Look into logs and repair them: archives, a broker's log folders, single files.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "dump": dump.dump,
    "extract": extract.extract_log,
    "recover": recover.recover_log,
    "offsets": offsets.offsets,
    "timestamps": timestamps.show_timestamps,
    "diff": diff.diff,
}
"""The commands, as --help lists them."""

app.add_typer(index.app)
for _name, _command in _COMMANDS.items():
    app.command(_name, epilog=EXIT_CODES)(_command)

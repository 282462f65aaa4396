"""The command `logkeep`: back up, restore, inspect and verify without Kubernetes, from the same YAML.

    logkeep backup -f backup.yaml --master local[2]
    logkeep restore -f restore.yaml
    logkeep inspect s3://bucket/prefix --endpoint http://localhost:9000
    logkeep verify file:///var/backups/kafka
    logkeep erase s3://bucket/prefix --topic customers --keys-file keys.txt

Results go to stdout, everything else to stderr. `docs/cli.md` is the reference. Each command is a function
in a module of its own; what commands share is next to them. Imports that take long happen inside the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from logkeep_engine.cli import (
    backup,
    convert,
    coverage,
    diff,
    drill,
    erase,
    explain,
    groups,
    import_,
    inspect,
    log,
    reconcile,
    release,
    restore,
    retention,
    storage,
    verify,
)
from logkeep_engine.cli.commands import CONTEXT_SETTINGS, Commands
from logkeep_engine.cli.errors import EXIT_CODES, open_stdout
from logkeep_engine.cli.options import Version
from logkeep_engine.cli.output import say
from logkeep_engine.contract.names import ExitCode

app = typer.Typer(
    name="logkeep",
    cls=Commands,
    help="Backup and restore for Apache Kafka.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Back up": {
        "backup": backup.backup,
        "coverage": coverage.coverage,
        "reconcile": reconcile.reconcile,
    },
    "Restore": {
        "restore": restore.restore,
        "release": release.release,
        "drill": drill.drill,
        "diff": diff.diff,
    },
    "Look at an archive, and prove it": {
        "inspect": inspect.inspect,
        "verify": verify.verify,
    },
    "Remove from an archive, or keep": {
        "retention": retention.retention,
        "hold": retention.hold,
        "erase": erase.erase,
    },
    "Bring archives into other forms": {
        "convert": convert.convert,
        "import": import_.import_,
    },
    "Understand": {
        "explain": explain.explain,
    },
}
"""The commands, by what people do, as --help lists them."""
_OTHER_EXIT_CODES = {"coverage": coverage.EXIT_CODES}

for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _codes = _OTHER_EXIT_CODES.get(_name, EXIT_CODES)
        app.command(_name, epilog=_codes, rich_help_panel=_group)(_command)
app.add_typer(groups.app, rich_help_panel="Restore")
app.add_typer(log.app, rich_help_panel="Look at an archive, and prove it")
app.add_typer(storage.app, rich_help_panel="Understand")


@app.callback(help=app.info.help, epilog=EXIT_CODES)
def logkeep(version: Version = False) -> None:
    """Options of the command itself; each command has its own."""


def main() -> None:
    """The entry point of the command `logkeep`."""
    open_stdout()
    try:
        app()
    except KeyboardInterrupt:  # outside of a command: while options are read
        say("error: interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))

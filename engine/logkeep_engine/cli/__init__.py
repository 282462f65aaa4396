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
    verify,
)
from logkeep_engine.cli.errors import EXIT_CODES, open_stdout
from logkeep_engine.cli.options import Commands, Version
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
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "backup": backup.backup,
    "restore": restore.restore,
    "release": release.release,
    "diff": diff.diff,
    "drill": drill.drill,
    "inspect": inspect.inspect,
    "verify": verify.verify,
    "reconcile": reconcile.reconcile,
    "retention": retention.retention,
    "hold": retention.hold,
    "convert": convert.convert,
    "import": import_.import_,
    "erase": erase.erase,
    "explain": explain.explain,
}
"""The commands, as --help lists them."""

for _name, _command in _COMMANDS.items():
    app.command(_name, epilog=EXIT_CODES)(_command)
app.command("coverage", epilog=coverage.EXIT_CODES)(coverage.coverage)
app.add_typer(groups.app)
app.add_typer(log.app)


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

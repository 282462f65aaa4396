"""The plugin `kubectl logkeep`: what the operator does, from where kubectl works, with the user's own rights.

    kubectl logkeep status
    kubectl logkeep run nightly --wait
    kubectl logkeep inspect nightly

kubectl finds a plugin by the name of its program, `kubectl-logkeep`, and hands on what follows its name. Each command
is a function in a module of its own. `calls` is the only module that talks to the Kubernetes API; `lines` makes what
people read of what it answers. `docs/reference/kubectl-logkeep.md` is the reference.
"""

from __future__ import annotations

import sys

import typer

from logkeep_engine.cli.commands import CONTEXT_SETTINGS, Commands
from logkeep_engine.cli.errors import open_stdout
from logkeep_engine.cli.explain import explain
from logkeep_engine.cli.kubectl import inspect, logs, restore, run, status, storage, topics
from logkeep_engine.cli.kubectl.options import EXIT_CODES
from logkeep_engine.cli.options import Version
from logkeep_engine.cli.output import say
from logkeep_engine.contract.names import ExitCode

app = typer.Typer(
    name="kubectl logkeep",
    cls=Commands,
    help="Backups and restores of Apache Kafka in a Kubernetes cluster. Options come after the command: "
    "kubectl logkeep status -n team-a",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)
for command in (status.status, run.run, restore.restore, topics.topics, logs.logs, inspect.inspect, explain):
    app.command(epilog=EXIT_CODES)(command)
app.add_typer(storage.app)


@app.callback(help=app.info.help, epilog=EXIT_CODES)
def plugin(version: Version = False) -> None:
    """Options of the plugin itself; each command has its own."""


def main() -> None:
    """The entry point of the program `kubectl-logkeep`."""
    open_stdout()
    try:
        app(prog_name="kubectl logkeep")
    except KeyboardInterrupt:  # outside of a command: while options are read
        say("error: interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))

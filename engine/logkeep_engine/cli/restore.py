"""The command `logkeep restore`: brings topics of an archive back, as a KafkaRestore says."""

from __future__ import annotations

from typing import Annotated

import typer

from logkeep_engine.cli.errors import EXIT_CODES
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import DryRun, SparkOptions
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.spec import RestoreVerification


def register(app: typer.Typer) -> None:
    """Add the command to `logkeep`."""
    app.command(epilog=EXIT_CODES)(restore)


@spread
def restore(
    file: File,
    spark: SparkOptions,
    verify: Annotated[
        RestoreVerification | None,
        typer.Option(help="Instead of spec.verify: Full reads the target back and compares it with the archive."),
    ] = None,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Bring topics of an archive back, as a KafkaRestore says; secrets come from the environment as for backup."""
    changes: dict[str, object] = {} if verify is None else {"verify": verify.value}
    if dry_run:
        changes["dryRun"] = True
    run_resource(RESTORE, file, spark, output, debug, changes=changes)

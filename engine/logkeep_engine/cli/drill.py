"""The command `logkeep drill`: proves that an archive can be restored, and how long that takes."""

from __future__ import annotations

from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import SparkOptions
from logkeep_engine.contract.names import RESTORE


@spread
def drill(file: File, spark: SparkOptions, output: OutputFormat = Output.TEXT, debug: Debug = False) -> None:
    """Restore as a KafkaRestore says, into topics of other names; verify them record by record, measure the time, and
    delete them. Exit code 5 if not everything could be proved. A spec.drill need not be there.
    """
    run_resource(RESTORE, file, spark, output, debug, defaults={"drill": {}})

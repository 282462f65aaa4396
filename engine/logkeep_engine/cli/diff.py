"""The command `logkeep diff`: compares what a restore has brought back with the archive, by digests of records."""

from __future__ import annotations

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import SparkOptions, failing_as_json
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.errors import SpecError


@spread
def diff(file: File, spark: SparkOptions, output: OutputFormat = Output.TEXT, debug: Debug = False) -> None:
    """Compare the topics that a run of a KafkaRestore has restored with the archive, record by record. Exit code 6 if
    they differ, 5 if not all could be compared. Nothing is restored; the report is a new one in the folder of the run.
    """
    with errors(debug), failing_as_json(RESTORE, None, output):
        if spark.run_id is None:
            raise SpecError("--run-id is required", hint="Name the run that has restored the topics.")
    run_resource(RESTORE, file, spark, output, debug, only_verify=True)

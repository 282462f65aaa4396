"""The command `logkeep backup`: archives the topics of a KafkaBackup."""

from __future__ import annotations

from typing import Annotated

import typer

from logkeep_engine.cli.example import ExampleBackup
from logkeep_engine.cli.options import Debug, ExpectCommit, Output, OutputFormat, spread
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import DryRun, SparkOptions
from logkeep_engine.contract.names import BACKUP

TakeOver = Annotated[
    str | None,
    typer.Option(
        metavar="N:SHA256",
        help="Take the archive over from its owner, or accept it although commits are lost: its newest commit, as the "
        "error names it; 'new' if the archive is gone.",
    ),
]


@spread
def backup(
    file: File,
    spark: SparkOptions,
    expect_commit: ExpectCommit = None,
    take_over: TakeOver = None,
    dry_run: DryRun = False,
    example: ExampleBackup = False,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Archive the topics of a KafkaBackup.

    Secrets that the file refers to are not read from Kubernetes: set LOGKEEP_KAFKA_USERNAME, LOGKEEP_KAFKA_PASSWORD,
    LOGKEEP_KAFKA_CA_FILE, LOGKEEP_KAFKA_CERT_FILE, LOGKEEP_KAFKA_KEY_FILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    LOGKEEP_GOOGLE_KEY, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, LOGKEEP_ERASURES_DIR (a folder with the keys to
    erase, in NAME/keys) instead.
    """
    changes = {"dryRun": True} if dry_run else {}
    run_resource(BACKUP, file, spark, output, debug, changes=changes, anchor=expect_commit, take_over=take_over)

"""The command `logkeep restore`: brings topics of an archive back, as a KafkaRestore says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from logkeep_engine.cli.emitting import emit_topics
from logkeep_engine.cli.errors import EXIT_CODES, errors
from logkeep_engine.cli.options import Confirm, Debug, Output, OutputFormat, options_of, refuse, spread
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import DryRun, SparkOptions, failing_as_json
from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import IfTopicExists, RestoreVerification


@dataclass(frozen=True)
class EmitFileOptions:
    """The options for the topics of a restore as resources."""

    emit_topics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Restore nothing: write the topics as Strimzi's KafkaTopics to this file (-: standard output).",
        ),
    ] = None
    strimzi_cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --emit-topics: the Kafka resource of the topics, instead of spec.emitOptions.strimziCluster.",
        ),
    ] = None
    strimzi_api: Annotated[
        StrimziVersion | None,
        typer.Option(
            help="With --emit-topics: the version of the API, instead of spec.emitOptions.strimziApi; by default v1. "
            "Before Strimzi 0.49 it is v1beta2."
        ),
    ] = None


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
    if_topic_exists: Annotated[
        IfTopicExists | None,
        typer.Option(help="Instead of spec.ifTopicExists: what to do with a topic that already exists."),
    ] = None,
    confirm: Confirm = None,
    *,
    emitted: EmitFileOptions,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Bring topics of an archive back, as a KafkaRestore says; secrets come from the environment as for backup."""
    if emitted.emit_topics is not None:
        others = {**options_of(spark), "--verify": verify, "--if-topic-exists": if_topic_exists, "--confirm": confirm}
        others |= {"--dry-run": dry_run, "--output": output is Output.JSON}
        with errors(debug):
            refuse({**others, "--master": None}, "has no effect with --emit-topics, which restores nothing")
            emit_topics(file, emitted.emit_topics, emitted.strimzi_cluster, emitted.strimzi_api)
        return
    with errors(debug), failing_as_json(RESTORE, spark.run_id, output):
        unused = {"--strimzi-cluster": emitted.strimzi_cluster, "--strimzi-api": emitted.strimzi_api}
        refuse(unused, "has no effect without --emit-topics")
    changes: dict[str, Any] = {} if verify is None else {"verify": verify.value}
    if dry_run:
        changes["dryRun"] = True
    if if_topic_exists is not None:
        changes["ifTopicExists"] = if_topic_exists.value
    if confirm:
        changes["confirm"] = list(confirm)
    run_resource(RESTORE, file, spark, output, debug, changes=changes)

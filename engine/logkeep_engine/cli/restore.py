"""The command `logkeep restore`: brings topics of an archive back, as a KafkaRestore says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.example import ExampleRestore
from logkeep_engine.cli.options import Confirm, Debug, Output, OutputFormat, options_of, refuse, spread
from logkeep_engine.cli.output import print_lines, say
from logkeep_engine.cli.resource import File, run_resource
from logkeep_engine.cli.running import DryRun, SparkOptions, failing_as_json
from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import IfTopicExists, KafkaRestoreSpec, RestoreVerification, parse_restore
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.restore.model.selection import Choice


def emit_topics(file: str, out: str, cluster: str | None, version: StrimziVersion | None) -> None:
    """Write the topics that the KafkaRestore in `file` would create, as resources of a Strimzi `cluster`: that of the
    file if it is None. `out` - is standard output. Nothing is written to Kafka, and Kafka is not asked. Raises
    SpecError, and what the archive raises.
    """
    from logkeep_engine.cli.documents import read_document
    from logkeep_engine.restore.topics.kafka_topics import as_yaml

    spec = parse_restore(read_document(file, RESTORE)["spec"])
    strimzi, said = spec.cluster.strimzi, spec.emit_options
    cluster = cluster or said.strimzi_cluster or (strimzi.name if strimzi is not None else None)
    if cluster is None:
        raise SpecError(
            "--emit-topics: --strimzi-cluster must name the Kafka resource to which the topics belong",
            hint="It becomes the label strimzi.io/cluster.",
        )
    resources = list(kafka_topics(_chosen(spec), spec, cluster, version or said.strimzi_api or StrimziVersion.V1))
    text = as_yaml(resources)
    if out == "-":
        print_lines(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--emit-topics {out}: {error.strerror}", hint="Name a file that can be written.") from error
    are = "is" if len(resources) == 1 else "are"
    say(f"{so_many(len(resources), 'KafkaTopic')} {are} in {out}; nothing was restored")


def _chosen(spec: KafkaRestoreSpec) -> tuple[Choice, ...]:
    from logkeep_engine.restore.model import point
    from logkeep_engine.restore.model.state import archive_to_restore

    archive = archive_to_restore(spec, os.environ)
    point.refuse_future(spec.point)
    _, selection = point.choose_topics(archive, point.choose(archive, spec.point).state, spec)
    for warning in selection.warnings:
        say(f"warning: {warning}")
    return selection.choices


def kafka_topics(
    choices: Iterable[Choice], spec: KafkaRestoreSpec, cluster: str, version: StrimziVersion
) -> Iterator[dict[str, Any]]:
    """Yield a KafkaTopic for each topic, with the partitions, the replicas and the configuration that it has when it is
    restored. Pure."""
    from logkeep_engine.restore.model.topics import ending_configs, replicas_of
    from logkeep_engine.restore.topics.kafka_topics import kafka_topic

    for choice in choices:
        replicas = replicas_of(choice.source, spec.topics.replication_factor)
        configs = ending_configs(choice.source.configs, spec.topics)
        yield kafka_topic(choice.target, choice.partition_count, replicas, configs, cluster, version)


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
        typer.Option(
            metavar="ACTION", help="Instead of spec.ifTopicExists: what to do with a topic that already exists."
        ),
    ] = None,
    confirm: Confirm = None,
    *,
    emitted: EmitFileOptions,
    dry_run: DryRun = False,
    example: ExampleRestore = False,
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

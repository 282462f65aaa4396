"""The topics of a restore as Strimzi's KafkaTopic resources, for Git: `logkeep restore --emit-topics FILE`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logkeep_engine.cli.output import print_lines, say
from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
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

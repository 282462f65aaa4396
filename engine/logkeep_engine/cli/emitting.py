"""The topics of a restore as Strimzi's KafkaTopic resources, for Git: `logkeep restore --emit-topics FILE`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logkeep_engine.cli.output import say
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.restore.selection import Choice

_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 253


class StrimziVersion(StrEnum):
    """The version of Strimzi's API: 1.0 serves `v1` only, and versions before 0.49 `v1beta2` only."""

    V1 = "v1"
    V1BETA2 = "v1beta2"


def emit_topics(file: str, out: str, cluster: str, version: StrimziVersion) -> None:
    """Write the topics that the KafkaRestore in `file` would create, as resources of the Strimzi `cluster`. `out` - is
    standard output. Nothing is written to Kafka, and Kafka is not asked. Raises SpecError, and what the archive raises.
    """
    import yaml

    from logkeep_engine.cli.documents import read_document

    choices, spec = _chosen(parse_restore(read_document(file, RESTORE)["spec"]))
    resources = list(kafka_topics(choices, spec, cluster, version))
    text = yaml.safe_dump_all(resources, sort_keys=False, explicit_start=True)
    if out == "-":
        print(text, end="")
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--emit-topics {out}: {error.strerror}", hint="Name a file that can be written.") from error
    say(f"{len(resources)} KafkaTopics are in {out}; nothing was restored")


def _chosen(spec: KafkaRestoreSpec) -> tuple[tuple[Choice, ...], KafkaRestoreSpec]:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.reading.visible import shows
    from logkeep_engine.restore import point
    from logkeep_engine.restore.selection import select_topics, with_branches
    from logkeep_engine.storage import open_storage

    if spec.source.storage is None:
        raise SpecError(
            "spec.source.backupRef: only the operator can look up a KafkaBackup",
            hint="Write spec.source.storage, as in the KafkaBackup's spec.storage.",
        )
    storage = open_storage(spec.source.storage, os.environ)
    storage.check()
    archive = Archive.open(storage)
    point.refuse_future(spec.point)
    archived = with_branches(point.choose(archive, spec.point).state, spec.source.topic_ids)
    sees = point.shows_at(archived, spec.point, shows(storage, archived))
    selection = select_topics(archived, spec.topics, spec.source.topic_ids, sees)
    for warning in selection.warnings:
        say(f"warning: {warning}")
    return selection.choices, spec


def kafka_topics(
    choices: Iterable[Choice], spec: KafkaRestoreSpec, cluster: str, version: StrimziVersion
) -> Iterator[dict[str, Any]]:
    """A KafkaTopic for each topic, with the partitions, the replicas and the configuration that it has when it is
    restored. Pure."""
    from logkeep_engine.restore.topics import BROKER_DEFAULT, own_configs, refuse_insync, replicas_of

    for choice in choices:
        replicas = replicas_of(choice.source, spec.topics.replication_factor)
        configs = own_configs(choice.source.configs, spec.topics.configs)
        refuse_insync(choice.target, configs, replicas)
        name = resource_name(choice.target)
        yield {
            "apiVersion": f"kafka.strimzi.io/{version.value}",
            "kind": "KafkaTopic",
            "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
            "spec": {
                **({} if name == choice.target else {"topicName": choice.target}),
                "partitions": choice.source.partitions,
                **({} if replicas == BROKER_DEFAULT else {"replicas": replicas}),
                **({"config": dict(sorted(configs.items()))} if configs else {}),
            },
        }


def resource_name(topic: str) -> str:
    """The name of a topic's resource: that of the topic, if Kubernetes takes it. Otherwise what is left of the name,
    and the SHA-1 of it."""
    if len(topic) <= _LONGEST and _KUBERNETES_NAME.fullmatch(topic) is not None:
        return topic
    digest = hashlib.sha1(topic.encode(), usedforsecurity=False).hexdigest()
    left = re.sub(r"[^a-z0-9.-]", "", topic.lower())
    left = re.sub(r"(?<![a-z0-9])[.-]+|[.-]+(?=\.)|^[.-]+", "", left).strip("-.")
    return f"{left[: _LONGEST - 43].rstrip('-.') or 'topic'}---{digest}"

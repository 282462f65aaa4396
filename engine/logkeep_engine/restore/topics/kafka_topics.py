"""The topics of a restore as Strimzi's KafkaTopic resources (`emit: KafkaTopics`): each as the topic is in the end.

The run writes them to a ConfigMap that the operator has made, when all else is done. Before that they must not be
applied: the topic operator would give a topic its own configuration while it is being filled, and retention would
begin."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from logkeep_engine.contract.emitting import KEY_TOPICS, KEY_TOPICS_PACKED, MAX_TOPICS_BYTES, Emit, StrimziVersion
from logkeep_engine.contract.facts.outcome import EmittedFacts
from logkeep_engine.contract.objects import is_name
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.values import MAX_DNS_NAME
from logkeep_engine.errors import SpecError
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.topics import BROKER_DEFAULT, ending_configs


def resource_name(topic: str) -> str:
    """Return the name of a topic's resource: that of the topic, if Kubernetes takes it. Otherwise what is left of the
    name, and the SHA-1 of it."""
    if is_name(topic):
        return topic
    digest = hashlib.sha1(topic.encode(), usedforsecurity=False).hexdigest()
    left = re.sub(r"[^a-z0-9.-]", "", topic.lower())
    left = re.sub(r"(?<![a-z0-9])[.-]+|[.-]+(?=\.)|^[.-]+", "", left).strip("-.")
    return f"{left[: MAX_DNS_NAME - 43].rstrip('-.') or 'topic'}---{digest}"


def kafka_topic(
    topic: str, partitions: int, replicas: int, configs: Mapping[str, str], cluster: str, version: StrimziVersion
) -> dict[str, Any]:
    """Return the KafkaTopic of a topic, in the Strimzi `cluster`. BROKER_DEFAULT `replicas` are left to the brokers.
    Pure."""
    name = resource_name(topic)
    return {
        "apiVersion": f"kafka.strimzi.io/{version.value}",
        "kind": "KafkaTopic",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": {
            **({} if name == topic else {"topicName": topic}),
            "partitions": partitions,
            **({} if replicas == BROKER_DEFAULT else {"replicas": replicas}),
            **({"config": dict(sorted(configs.items()))} if configs else {}),
        },
    }


def as_yaml(resources: Iterable[Mapping[str, Any]]) -> str:
    """Return the resources as documents of YAML, for `kubectl apply` and for Git."""
    import yaml

    # libyaml writes the same, ten times as fast.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump_all(resources, Dumper=dumper, sort_keys=False, explicit_start=True))


def emits(spec: KafkaRestoreSpec) -> bool:
    """Return whether the topics that the restore creates are requested as resources."""
    return spec.emit is Emit.KAFKA_TOPICS


def refuse_nowhere(spec: KafkaRestoreSpec, config_map: str | None) -> None:
    """Raises SpecError if resources are requested, and the run has no ConfigMap to write them to."""
    if emits(spec) and config_map is None:
        raise SpecError(
            "spec.emit: only a run of the operator writes KafkaTopics, to a ConfigMap",
            hint="Leave it out here. `logkeep restore --emit-topics FILE` writes them to a file, and restores nothing.",
        )


def emitted_topics(context: RestoreContext, planned: Planned) -> list[dict[str, Any]]:
    """Return the KafkaTopics of the topics that the run creates, in the order of the plan. Pure."""
    spec, options = context.spec, context.spec.emit_options
    return [
        kafka_topic(
            topic.target,
            topic.partition_count,
            topic.replication_factor,
            ending_configs(planned.archived.topics[topic.topic_id].configs, spec.topics),
            options.strimzi_cluster or "",
            options.strimzi_api or StrimziVersion.V1,
        )
        for topic in planned.plan.topics
        if topic.created
    ]


def config_map_data(resources: list[dict[str, Any]]) -> tuple[str, dict[str, dict[str, str | None]]]:
    """Return the key under which a ConfigMap has the resources, and what is to be merged into it: text, or a compressed
    one if that is too long. Raises SpecError if no ConfigMap can hold them. Pure."""
    text = as_yaml(resources).encode()
    if len(text) <= MAX_TOPICS_BYTES:
        return KEY_TOPICS, {"data": {KEY_TOPICS: text.decode()}, "binaryData": {KEY_TOPICS_PACKED: None}}
    packed = gzip.compress(text, mtime=0)
    if len(packed) > MAX_TOPICS_BYTES:
        raise SpecError(
            f"spec.emit: {len(resources)} KafkaTopics take {len(text)} bytes, and {len(packed)} compressed; a "
            f"ConfigMap holds {MAX_TOPICS_BYTES} of them",
            hint="Write them with `logkeep restore --emit-topics FILE`, or restore the topics in several KafkaRestores "
            "(spec.topics.include).",
        )
    encoded = base64.b64encode(packed).decode()
    return KEY_TOPICS_PACKED, {"data": {KEY_TOPICS: None}, "binaryData": {KEY_TOPICS_PACKED: encoded}}


def refuse_too_many(context: RestoreContext, planned: Planned) -> None:
    """Raises SpecError if no ConfigMap holds the KafkaTopics of this restore."""
    if emits(context.spec):
        config_map_data(emitted_topics(context, planned))


def emit(context: RestoreContext, planned: Planned) -> EmittedFacts | None:
    """Write the KafkaTopics of the restore to its ConfigMap, if requested. Raises TopicsNotEmitted."""
    if not emits(context.spec) or context.topics_config_map is None:
        return None
    resources = emitted_topics(context, planned)
    key, changes = config_map_data(resources)
    context.permit()
    context.reporter.emit(context.topics_config_map, changes)
    return EmittedFacts(config_map=context.topics_config_map, key=key, topics=len(resources))

"""What a restore will do, decided before the first topic is created. Pure: no clients, no storage.

The plan is stored at `runs/<run id>/restore-plan.json` by a conditional create; a driver that starts again loads it, so
that sources, targets, producer ids and start offsets stay as they were. Segments are not listed in it: they are those
of the catalog at `commit`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.reading.salvage import Survey, UnreadableRange
from logkeep_engine.contract.run import LossFact
from logkeep_engine.contract.spec import BatchCompression, FormatName, RecordBatches
from logkeep_engine.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    SpecError,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.merge import Rule
from logkeep_engine.restore.records import CODEC, MAX_BYTES, MAX_RECORDS, Batching
from logkeep_engine.restore.selection import Choice

FORMAT = Rule.BY_UNPACKED_SIZE
FORMATS = tuple(Rule)

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
DEFAULT_MAX_MESSAGE_BYTES = 1048588  # Kafka, ServerLogConfigs.MAX_MESSAGE_BYTES_DEFAULT

# Configurations that speak of one cluster's brokers and mean nothing, or harm, on another.
_CLUSTER_BOUND = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the catalog says of a topic's segments. Times are ms since the epoch, -1 if there is no record."""

    records: int
    bytes: int
    max_batch_bytes: int
    min_timestamp: int
    max_timestamp: int
    append_time: bool


def topic_facts(segments: Iterable[SegmentEntry]) -> TopicFacts:
    """The facts of a topic from all of its segments; zeros and -1 if it has none.

    Of segments that hold records `max_batch_bytes` is what the largest record may take as a batch.
    """
    found = [segment for segment in segments if segment.batches]
    return TopicFacts(
        records=sum(segment.records for segment in found),
        bytes=sum(segment.bytes for segment in found),
        max_batch_bytes=max((segment.max_batch_bytes for segment in found), default=0),
        min_timestamp=min(
            (segment.min_base_timestamp for segment in found if segment.min_base_timestamp >= 0), default=-1
        ),
        max_timestamp=max((segment.max_timestamp for segment in found), default=-1),
        append_time=any(segment.append_time for segment in found),
    )


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic of the target cluster. `configs` are the effective values, defaults included. `topic_id` is empty if the
    brokers have no topic ids.
    """

    name: str
    partitions: int
    configs: Mapping[str, str]
    topic_id: str = ""

    @property
    def compacts(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "delete")


def refuse_existing(choices: Sequence[Choice], existing: Iterable[str]) -> None:
    """Raises TopicExists naming every target that exists already (`ifTopicExists: Fail`)."""
    names = set(existing)
    there = [choice.target for choice in choices if choice.target in names]
    if there:
        raise TopicExists(
            f"{'topic' if len(there) == 1 else 'topics'} {_listing(there)} already "
            f"exist{'s' if len(there) == 1 else ''} "
            "on the target cluster; nothing was written",
            hint="Delete them, rename with spec.topics.rename, or write behind what they hold with "
            "spec.ifTopicExists: Append.",
        )


def _listing(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def check_append(choice: Choice, existing: ExistingTopic, facts: TopicFacts, now_ms: int) -> list[str]:
    """Raises TargetUnsuitable if `existing` cannot take the topic's records as they are; returns warnings about what it
    will do to them.
    """
    name, configs = existing.name, existing.configs
    if existing.partitions < choice.source.partitions:
        raise TargetUnsuitable(
            f"topic {name} has {existing.partitions} partitions, the archived topic {choice.source.name} has "
            f"{choice.source.partitions}",
            hint=f"Add partitions to {name}, or restore under another name.",
        )
    if configs.get("message.timestamp.type", "CreateTime") != "CreateTime":
        raise TargetUnsuitable(
            f"topic {name} has message.timestamp.type={configs['message.timestamp.type']}: it would stamp the time "
            "of the restore on every record",
            hint="Set message.timestamp.type=CreateTime on it for the time of the restore, or restore under another "
            "name.",
        )
    limit = int(configs.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
    if facts.max_batch_bytes > limit:
        raise TargetUnsuitable(
            f"topic {name} takes batches of at most max.message.bytes={limit}, the largest archived batch (or record) "
            f"of {choice.source.name} has {facts.max_batch_bytes} bytes",
            hint=f"Set max.message.bytes of {name} to {facts.max_batch_bytes} or more.",
        )
    _check_timestamp_bounds(choice, existing, facts, now_ms)
    warnings = retention_warnings(name, configs, facts, now_ms)
    if existing.compacts:
        warnings.append(
            f"topic {name} is compacted: the restored records come behind what it holds, so of a key that both have "
            "the restored value stays, also where it is the older one"
        )
    return warnings


def _check_timestamp_bounds(choice: Choice, existing: ExistingTopic, facts: TopicFacts, now_ms: int) -> None:
    bounds = (
        ("message.timestamp.before.max.ms", now_ms - facts.min_timestamp if facts.min_timestamp >= 0 else 0, "older"),
        ("message.timestamp.after.max.ms", facts.max_timestamp - now_ms, "newer"),
    )
    for key, distance, word in bounds:
        limit = int(existing.configs.get(key, MAX_INT64))
        if distance > limit:
            raise TargetUnsuitable(
                f"topic {existing.name} refuses records {word} than {key}={limit}, {choice.source.name} has records "
                f"{distance} ms {word} than now",
                hint=f"Raise {key} of {existing.name} for the time of the restore, or restore under another name.",
            )


def retention_warnings(name: str, configs: Mapping[str, str], facts: TopicFacts, now_ms: int) -> list[str]:
    """What the topic's own configuration will soon do to the restored records."""
    warnings = []
    policy = configs.get("cleanup.policy", "delete").replace(" ", "").split(",")
    if "delete" in policy:
        keep_ms = int(configs.get("retention.ms", -1))
        if keep_ms >= 0 and 0 <= facts.min_timestamp < now_ms - keep_ms:
            what = "all" if facts.max_timestamp < now_ms - keep_ms else "some"
            warnings.append(
                f"topic {name}: retention.ms={keep_ms} and {what} restored segments hold records older than that: "
                "Kafka deletes them soon; "
                "raise retention.ms to keep them"
            )
        keep_bytes = int(configs.get("retention.bytes", -1))
        if 0 <= keep_bytes < facts.bytes:
            warnings.append(
                f"topic {name}: retention.bytes={keep_bytes} a partition, {facts.bytes} bytes were archived: Kafka "
                "may delete the oldest"
            )
    return warnings


def working_configs(facts: TopicFacts) -> dict[str, str]:
    """The configuration of a topic while it is being restored: it takes every batch as it is and deletes nothing.

    `max.message.bytes` leaves room for batches that are built anew and compress a little worse.
    """
    largest = facts.max_batch_bytes + facts.max_batch_bytes // 4 + 65536
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(min(MAX_INT32, max(DEFAULT_MAX_MESSAGE_BYTES, largest))),
        "message.timestamp.after.max.ms": str(MAX_INT64),
        "message.timestamp.before.max.ms": str(MAX_INT64),
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }


def final_configs(source: Mapping[str, str], working: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(to set, to delete) that turn a topic with the working configuration into one with the source's own."""
    own = {key: value for key, value in source.items() if key not in _CLUSTER_BOUND}
    return own, sorted(set(working) - set(own))


def batching_of(segments: FormatName, wanted: RecordBatches) -> Batching | None:
    """How the records of an archive become batches; None if it holds batches. Raises SpecError for what has no meaning
    then.
    """
    if segments is not FormatName.KAFKA:
        return Batching(
            max_records=MAX_RECORDS if wanted.max_records is None else wanted.max_records,
            max_bytes=MAX_BYTES,
            codec=CODEC if wanted.compression is None else _CODECS[wanted.compression],
        )
    if wanted != RecordBatches():
        raise SpecError(
            "spec.recordBatches: the archive has Kafka's own batches, which are restored as they are",
            hint="Leave the field out: it is for archives of format Records or Avro.",
        )
    return None


_CODECS = {
    BatchCompression.NONE: Codec.NONE,
    BatchCompression.GZIP: Codec.GZIP,
    BatchCompression.SNAPPY: Codec.SNAPPY,
    BatchCompression.LZ4: Codec.LZ4,
    BatchCompression.ZSTD: Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The archived partition of this number goes to the target partition of the same number.

    `start` is the target's end offset before the run (0 in a created topic). `producer_id` is the one of this partition
    alone, epoch 0; -1 for a partition without segments, which has no task.
    """

    partition: int
    producer_id: int
    start: int


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """`max_batch_bytes` is what the target takes; batches built anew are cut to it. `replication_factor` is 0 for an
    existing topic, -1: the cluster's default. `compacts`: the target's compaction may remove records while the run goes
    on. `target_id` is the id of an existing topic; empty if the run or its brokers do not know it.
    """

    source: str
    topic_id: str
    target: str
    created: bool
    partition_count: int
    replication_factor: int
    max_batch_bytes: int
    partitions: tuple[PartitionPlan, ...]
    compacts: bool = False
    target_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """What is left out of an archived partition, see `salvage.Survey`."""

    topic_id: str
    partition: int
    survey: Survey


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`commit` is the last commit of the catalog that the run sees; `spec_digest` tells whether a later start has the
    same spec.

    `loss` are source offsets that will not be restored, `warnings` what was found while planning. `rule`: how bounds
    of batches are found; a run that was begun by a version with another rule is finished by that, since the bounds of
    the batches it has sent must stay what they were. `batching`: the archive holds records, and batches are made of
    them like this.
    """

    run_id: str
    spec_digest: str
    archive_id: str
    commit: int
    cluster_id: str
    topics: tuple[TopicPlan, ...]
    surveys: tuple[PartitionSurvey, ...] = ()
    loss: tuple[LossFact, ...] = ()
    warnings: tuple[str, ...] = ()
    rule: Rule = FORMAT
    batching: Batching | None = None

    def surveys_by_partition(self) -> dict[tuple[str, int], Survey]:
        """By topic id and partition, those that have one."""
        return {(item.topic_id, item.partition): item.survey for item in self.surveys}

    def to_json(self) -> bytes:
        body: dict[str, Any] = {
            "format": int(self.rule),
            "runId": self.run_id,
            "specDigest": self.spec_digest,
            "archiveId": self.archive_id,
            "commit": self.commit,
            "clusterId": self.cluster_id,
            "warnings": list(self.warnings),
            "loss": [[fact.topic, fact.partition, fact.start, fact.end, fact.reason] for fact in self.loss],
            "surveys": [_survey_to_json(item) for item in self.surveys],
            "topics": [
                {
                    "source": topic.source,
                    "topicId": topic.topic_id,
                    "target": topic.target,
                    "created": topic.created,
                    "partitionCount": topic.partition_count,
                    "replicationFactor": topic.replication_factor,
                    "maxBatchBytes": topic.max_batch_bytes,
                    "compacts": topic.compacts,
                    "columns": ["partition", "producerId", "start"],
                    "partitions": [[part.partition, part.producer_id, part.start] for part in topic.partitions],
                    **({"targetId": topic.target_id} if topic.target_id else {}),
                }
                for topic in self.topics
            ],
        }
        if self.batching is not None:  # versions that do not know it do not open such an archive
            body["recordBatches"] = _batching_to_json(self.batching)
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> RestorePlan:
        """The plan in the object `name`. Raises ArchiveMismatch (another format) or ArchiveDamaged."""
        try:
            body: dict[str, Any] = json.loads(data)
            if body["format"] not in FORMATS:
                raise ArchiveMismatch(
                    f"{name}: restore plan of format {body['format']}, this version reads {min(FORMATS)} to {FORMAT}",
                    hint="Go on with the version of Logkeep that began this restore.",
                )
            topics = tuple(
                TopicPlan(
                    source=topic["source"],
                    topic_id=topic["topicId"],
                    target=topic["target"],
                    created=topic["created"],
                    partition_count=topic["partitionCount"],
                    replication_factor=topic["replicationFactor"],
                    max_batch_bytes=topic["maxBatchBytes"],
                    partitions=tuple(PartitionPlan(*row) for row in topic["partitions"]),
                    # Earlier versions have not looked.
                    compacts=topic.get("compacts", not topic["created"]),
                    target_id=topic.get("targetId", ""),
                )
                for topic in body["topics"]
            )
            return cls(
                run_id=body["runId"],
                spec_digest=body["specDigest"],
                archive_id=body["archiveId"],
                commit=body["commit"],
                cluster_id=body["clusterId"],
                topics=topics,
                surveys=tuple(_survey_from_json(item) for item in body["surveys"]),
                loss=tuple(LossFact(*row) for row in body["loss"]),
                warnings=tuple(body["warnings"]),
                rule=Rule(body["format"]),
                batching=_batching_from_json(body.get("recordBatches")),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamaged(
                f"{name}: not a restore plan: {error!r}",
                hint="The object was altered: begin a new restore under another run id.",
            ) from error

    def with_producer_ids(self, ids: Iterable[int]) -> RestorePlan:
        """The plan with one producer id of `ids` for each partition that has a task."""
        left = iter(ids)
        topics = tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(part, producer_id=next(left)) if part.producer_id != NO_TASK else part
                    for part in topic.partitions
                ),
            )
            for topic in self.topics
        )
        return replace(self, topics=topics)


def _batching_to_json(batching: Batching) -> dict[str, Any]:
    return {
        "maxRecords": batching.max_records,
        "maxBytes": batching.max_bytes,
        "compression": batching.codec.name.lower(),
    }


def _batching_from_json(body: dict[str, Any] | None) -> Batching | None:
    if body is None:
        return None
    return Batching(body["maxRecords"], body["maxBytes"], Codec[body["compression"].upper()])


def _survey_to_json(item: PartitionSurvey) -> dict[str, Any]:
    survey = item.survey
    aborted = None
    if survey.aborted is not None:
        aborted = [
            [txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset] for txn in survey.aborted
        ]
    return {
        "topicId": item.topic_id,
        "partition": item.partition,
        "damaged": list(survey.damaged),
        "lost": [[lost.start, lost.end, lost.reason] for lost in survey.lost],
        "aborted": aborted,
    }


def _survey_from_json(body: dict[str, Any]) -> PartitionSurvey:
    aborted = body["aborted"]
    survey = Survey(
        damaged=tuple(body["damaged"]),
        lost=tuple(UnreadableRange(*row) for row in body["lost"]),
        aborted=None if aborted is None else tuple(AbortedTxn(*row) for row in aborted),
    )
    return PartitionSurvey(body["topicId"], body["partition"], survey)


TASK_BYTES = 1 << 30
MAX_PARTITIONS_PER_TASK = 256
_PARTITION_COST = 256 << 10  # what a partition costs however small it is, in bytes that could be sent instead


def pack(sizes: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """Share partitions, given by their archived bytes, out to tasks: positions in `sizes`, the biggest tasks first.

    Big ones go alone, small ones together: at most TASK_BYTES (one partition may be larger) and MAX_PARTITIONS_PER_TASK
    a task, and at least one task for each of `slots` executor cores while there are partitions enough. Not more tasks
    than that: a broker serves one connection's requests in turn, so a task is faster with several partitions at once.
    """
    costs = [size + _PARTITION_COST for size in sizes]
    wanted = max(1, slots)
    limit = min(TASK_BYTES, sum(costs) // wanted)
    most = min(MAX_PARTITIONS_PER_TASK, max(1, len(costs) // wanted))
    tasks: list[tuple[int, list[int]]] = []
    total, current = 0, list[int]()
    for at, cost in enumerate(costs):
        if current and (total + cost > limit or len(current) >= most):
            tasks.append((total, current))
            total, current = 0, []
        current.append(at)
        total += cost
    if current:
        tasks.append((total, current))
    return [tuple(group) for _, group in sorted(tasks, key=lambda task: -task[0])]


BROKER_DEFAULT = -1
NO_TASK = -1
NEEDS_PRODUCER_ID = -2


def plan_topic(
    choice: Choice,
    segments: Mapping[int, Sequence[SegmentEntry]],
    *,
    existing: ExistingTopic | None,
    end_offsets: Mapping[int, int],
    replicas: int | None = None,
) -> TopicPlan:
    """The plan of one topic, producer ids not yet given (NEEDS_PRODUCER_ID where a task will run).

    `segments` are the archived ones by partition; `end_offsets` those of the existing target topic. `replicas`: so many
    are wanted instead of the archived number.
    """
    facts = topic_facts(segment for part in segments.values() for segment in part)
    if existing is None:
        limit = int(working_configs(facts)["max.message.bytes"])
    else:
        # A log takes no batch larger than a segment either (RECORD_LIST_TOO_LARGE).
        limit = min(
            int(existing.configs.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES)),
            int(existing.configs.get("segment.bytes", MAX_INT32)),
        )
    return TopicPlan(
        source=choice.source.name,
        topic_id=choice.source.topic_id,
        target=choice.target,
        created=existing is None,
        partition_count=choice.source.partitions,
        replication_factor=0 if existing is not None else replicas_of(choice.source, replicas),
        max_batch_bytes=limit,
        partitions=tuple(
            PartitionPlan(
                partition, NEEDS_PRODUCER_ID if segments.get(partition) else NO_TASK, end_offsets.get(partition, 0)
            )
            for partition in range(choice.source.partitions)
        ),
        compacts=existing is not None and existing.compacts,
        target_id=existing.topic_id if existing is not None else "",
    )


def replicas_of(source: TopicEntry, wanted: int | None) -> int:
    """Of a new topic. An imported archive does not know (-1): the cluster's default is taken."""
    if wanted is not None:
        return wanted
    return source.replication_factor if source.replication_factor > 0 else BROKER_DEFAULT

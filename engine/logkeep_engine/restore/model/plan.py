"""The plan of a restore, made before the first topic is created. Pure: no clients, no storage.

The plan is stored at `runs/<run id>/restore-plan.json` by a conditional create; a driver that starts again loads it, so
that sources, targets, producer ids and start offsets stay as they were. Segments are not listed in it: they are those
of the catalog at `commit`, and a digest of each topic's tells whether they still are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.reading.salvage import DamageSurvey, UnreadableRange
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.cluster_state import SCHEMA_TOPIC
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import Model, replace
from logkeep_engine.contract.restore_spec import BatchCompression, KafkaRestoreSpec, RecordBatches
from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.contract.stored import Maybe, StoredDocument
from logkeep_engine.errors import SpecError
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.records import CODEC, MAX_BYTES, MAX_RECORDS, Batching
from logkeep_engine.restore.streams.same import Extent
from logkeep_engine.stored import reading

_BATCHING = {"maxRecords": int, "maxBytes": int, "compression": str}
_POINT = {"seen": int, "newest": int, "ends": [(str, int, int)], "since": int | None, "before": int | None}
_SURVEY = {
    "topicId": str,
    "partition": int,
    "damaged": [int],
    "lost": [(int, int, str)],
    "aborted": Maybe([(int, int, int, int)]),
}
_TOPIC = {
    "source": str,
    "topicId": str,
    "target": str,
    "created": bool,
    "partitionCount": int,
    "replicationFactor": int,
    "maxBatchBytes": int,
    "compacts": bool,
    "targetId": str,
    "replaces": str,
    "divided": bool,
    "partitioner": str | None,
    "segments": str,
    "partitions": [(int, int, int, int, int, int | None)],
}
# The number also stands for how a stream is cut into batches (`merge`, `records`): a run continues with the same ones.
PLAN = StoredDocument(
    "restore plan",
    1,
    {
        "runId": str,
        "specDigest": str,
        "archiveId": str,
        "commit": int,
        "clusterId": str,
        "warnings": [str],
        "loss": [(str, int, int, int, str)],
        "surveys": [_SURVEY],
        "topics": [_TOPIC],
        "recordBatches": Maybe(_BATCHING),
        "point": Maybe(_POINT),
    },
)

NO_TASK = -1
NEEDS_PRODUCER_ID = -2


def batching_of(segments: FormatName, wanted: RecordBatches) -> Batching | None:
    """Return the size of batches that are made of an archive's records; None if it holds batches. Raises SpecError for
    a field that has no meaning then.
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
    """One partition of a topic. The archived partition goes to the target partition `to`; None: that of the same
    number. Where it is -1, nothing goes to that target partition. In a divided topic it is a pair: those records of the
    archived partition that go to `to`.

    `start` is the target's end offset before the run (0 in a created topic). `producer_id` is the one of this partition
    alone, epoch 0; -1 for a partition without segments, which has no task. With `offsets: Same` the target's log goes
    from `log_start` to `log_end`, and a partition without segments has a task unless both are 0; else they are -1.
    """

    partition: int
    producer_id: int
    start: int
    log_start: int = -1
    log_end: int = -1
    to: int | None = None

    @property
    def target(self) -> int:
        """The partition of the target."""
        return self.partition if self.to is None else self.to

    @property
    def first(self) -> int:
        """Return the target offset from which on the run's records lie, when all is done."""
        return self.start if self.extent is None else self.extent.start

    @property
    def begins(self) -> int:
        """The end of the target's log where nothing is restored to it."""
        return self.start if self.extent is None else self.extent.end

    @property
    def extent(self) -> Extent | None:
        """The offsets of the target's log, if they are those of the source."""
        return Extent(self.log_start, self.log_end) if self.log_end >= 0 else None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """An archived topic and its target. Batches that are rebuilt are cut to `max_batch_bytes`, which the target
    takes.

    `replication_factor` is 0 for an existing topic, and -1 for the cluster's default. `compacts`: the target's
    compaction may remove records while the run lasts. `target_id` is the id of an existing topic, empty if the run or
    its brokers do not know it. `replaces` is the id of the topic that a created one takes the place of. `divided`: the
    target has another number of partitions. Then each archived partition that has records stands there once for each of
    them, in their order, and the `partitioner` says which record goes to which. `segments` is a digest of what is
    restored: a later start must find the same segments.
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
    replaces: str = ""
    divided: bool = False
    partitioner: Partitioner | None = None
    segments: str = ""

    @property
    def archived_partitions(self) -> dict[int, tuple[PartitionPlan, ...]]:
        """The archived partitions that are restored, each with the plans of what goes to the target: several in a
        divided topic."""
        found: dict[int, list[PartitionPlan]] = {}
        for part in self.partitions:
            if part.producer_id != NO_TASK:
                found.setdefault(part.partition, []).append(part)
        return {partition: tuple(parts) for partition, parts in found.items()}

    def number_of(self, part: PartitionPlan) -> int:
        """Return the number by which the progress and the offset map of a partition are known: that in the target, or
        in the archive where its records go to several."""
        return part.partition if self.divided else part.target


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """The offsets of an archived partition that are left out, see `salvage.DamageSurvey`."""

    topic_id: str
    partition: int
    survey: DamageSurvey


@dataclass(frozen=True, slots=True)
class PointPlan:
    """The point of a restore, in offsets and times. `ends`: the first offsets of partitions that are not restored, for
    those of which the archive has more. Times (ms) are from `since` on and below `before`. What retention has removed
    up to the commit `seen` is not in the archive any more, nor, at the end of a run, what was deleted by the commit
    `newest`, the last one when the plan was made.
    """

    seen: int
    ends: Mapping[Partition, int] = field(default_factory=dict)
    since: int | None = None
    before: int | None = None
    newest: int = 0

    def clip(self, key: Partition) -> Clip | None:
        """Return the part of a partition that is restored; None: all of it."""
        clip = Clip(self.ends.get(key), self.since, self.before)
        return None if clip == Clip() else clip

    def to_json(self) -> dict[str, Any]:
        ends = [[*key, end] for key, end in sorted(self.ends.items())]
        return {"seen": self.seen, "newest": self.newest, "ends": ends, "since": self.since, "before": self.before}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> PointPlan:
        """From the plan's JSON."""
        ends = {(topic_id, partition): end for topic_id, partition, end in body["ends"]}
        return cls(body["seen"], ends, body["since"], body["before"], body["newest"])


def clip_of(point: PointPlan | None, key: Partition) -> Clip:
    """Return the part of a partition that is restored; without a point, or where that leaves nothing out, all of it."""
    return (point.clip(key) if point is not None else None) or Clip()


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`commit` is the last commit of the catalog that the run sees; `spec_digest` tells whether a later start has the
    same spec.

    `loss` are source offsets that will not be restored. `warnings` were found while planning. With `batching` the
    archive holds records, and batches of that size are made of them.
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
    batching: Batching | None = None
    point: PointPlan | None = None

    @property
    def known_commit(self) -> int:
        """The last commit of the catalog whose removals the run knows."""
        return self.commit if self.point is None else max(self.commit, self.point.seen)

    def to_json(self) -> bytes:
        return PLAN.dumps(
            {
                "runId": self.run_id,
                "specDigest": self.spec_digest,
                "archiveId": self.archive_id,
                "commit": self.commit,
                "clusterId": self.cluster_id,
                "warnings": list(self.warnings),
                "loss": [[fact.topic, fact.partition, fact.start, fact.end, fact.reason] for fact in self.loss],
                "surveys": [_survey_to_json(item) for item in self.surveys],
                "topics": [_topic_to_json(topic) for topic in self.topics],
                "recordBatches": None if self.batching is None else _batching_to_json(self.batching),
                "point": None if self.point is None else self.point.to_json(),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, name: str) -> RestorePlan:
        """Return the plan in the object `name`. Raises ArchiveMismatch (another format) or ArchiveDamaged."""
        hint = "The object was altered: start a new restore under another run id."
        with reading(PLAN, data, name, hint=hint) as body:
            return cls(
                run_id=body["runId"],
                spec_digest=body["specDigest"],
                archive_id=body["archiveId"],
                commit=body["commit"],
                cluster_id=body["clusterId"],
                topics=tuple(map(_topic_from_json, body["topics"])),
                surveys=tuple(_survey_from_json(item) for item in body["surveys"]),
                loss=tuple(map(_loss_from_json, body["loss"])),
                warnings=tuple(body["warnings"]),
                batching=_batching_from_json(body["recordBatches"]),
                point=None if body["point"] is None else PointPlan.from_json(body["point"]),
            )

    def with_producer_ids(self, ids: Iterable[int]) -> RestorePlan:
        """Return the plan with one producer id of `ids` for each partition that has a task."""
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


def _topic_to_json(topic: TopicPlan) -> dict[str, Any]:
    return {
        "source": topic.source,
        "topicId": topic.topic_id,
        "target": topic.target,
        "created": topic.created,
        "partitionCount": topic.partition_count,
        "replicationFactor": topic.replication_factor,
        "maxBatchBytes": topic.max_batch_bytes,
        "compacts": topic.compacts,
        "targetId": topic.target_id,
        "replaces": topic.replaces,
        "divided": topic.divided,
        "partitioner": topic.partitioner,
        "segments": topic.segments,
        "partitions": [
            [part.partition, part.producer_id, part.start, part.log_start, part.log_end, part.to]
            for part in topic.partitions
        ],
    }


def _topic_from_json(body: Mapping[str, Any]) -> TopicPlan:
    return TopicPlan(
        source=body["source"],
        topic_id=body["topicId"],
        target=body["target"],
        created=body["created"],
        partition_count=body["partitionCount"],
        replication_factor=body["replicationFactor"],
        max_batch_bytes=body["maxBatchBytes"],
        partitions=tuple(PartitionPlan(*row) for row in body["partitions"]),
        compacts=body["compacts"],
        target_id=body["targetId"],
        replaces=body["replaces"],
        divided=body["divided"],
        partitioner=None if body["partitioner"] is None else Partitioner(body["partitioner"]),
        segments=body["segments"],
    )


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
    survey = DamageSurvey(
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


def schema_topic(spec: KafkaRestoreSpec) -> str | None:
    """Return the topic with the schemas, which is restored before all others; None if the restore has no order."""
    return (spec.schema_topic or SCHEMA_TOPIC) if spec.everything else None


def spec_digest(spec: KafkaRestoreSpec) -> str:
    """Return a digest of all fields that decide what is restored to where. Spark's settings and logins are not among
    them."""
    storage = spec.source.storage
    decides: dict[str, object] = {
        "uri": storage.uri.rstrip("/") if storage is not None else "",
        "topics": _as_json(spec.topics, {"hold_for"}),  # it may change as long as they are held
        "topicIds": dict(spec.source.topic_ids),
        "ifTopicExists": spec.if_topic_exists.value,
        "onDamagedArchive": spec.on_damaged_archive.value,
        "recordBatches": _as_json(spec.record_batches),
        "offsets": spec.offsets.value,
        "drill": None if spec.drill is None else _as_json(spec.drill, {"schedule"}),
        "point": None if spec.point is None else _as_json(spec.point),
        "everything": schema_topic(spec),
        "acls": None if spec.acls is None else _as_json(spec.acls),
        "consumerGroups": _as_json(spec.consumer_groups),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _as_json(model: Model, exclude: Set[str] = frozenset()) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude=set(exclude))


def _loss_from_json(row: Sequence[Any]) -> LossFact:
    topic, partition, start, end, reason = row
    return LossFact(topic=topic, partition=partition, start=start, end=end, reason=reason)

"""The topics of a restore: what the archived ones need, what existing ones can take, and how created ones are
configured. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.row_facts import content_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import RestoreOffsets
from logkeep_engine.contract.restored_topics import (
    ConfigPolicy,
    Rename,
    RestoreTopics,
    TopicConfigs,
    TopicRetention,
    describe_unused,
)
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import TargetUnsuitable, TopicExists
from logkeep_engine.log.cleanup import POLICY, RETENTION_BYTES, RETENTION_MS, is_compacted, is_deleted
from logkeep_engine.log.varints import INT64_MAX
from logkeep_engine.restore.model.plan import NEEDS_PRODUCER_ID, NO_TASK, PartitionPlan, PointPlan, TopicPlan, clip_of
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.streams.same import Extent, Extents

BROKER_DEFAULT = -1  # the cluster chooses the number of replicas
MAX_INT32 = 2**31 - 1
DEFAULT_MAX_MESSAGE_BYTES = 1048588  # Kafka, ServerLogConfigs.MAX_MESSAGE_BYTES_DEFAULT

# Configurations that speak of one cluster's brokers and mean nothing, or harm, on another.
_CLUSTER_BOUND = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The facts about a topic's segments in the catalog. Times are ms since the epoch, -1 if there is no record."""

    records: int
    bytes: int
    max_batch_bytes: int
    min_timestamp: int
    max_timestamp: int


def topic_facts(segments: Iterable[SegmentEntry]) -> TopicFacts:
    """Return the facts of a topic from all of its segments; zeros and -1 if it has none.

    For segments that hold records, `max_batch_bytes` is the most that the largest record may take as a batch.
    """
    found = [segment for segment in segments if segment.batches]
    return TopicFacts(
        records=sum(segment.records for segment in found),
        bytes=sum(segment.bytes for segment in found),
        max_batch_bytes=max((segment.max_batch_bytes for segment in found), default=0),
        min_timestamp=min(
            (segment.times.min_base_timestamp for segment in found if segment.times.min_base_timestamp >= 0), default=-1
        ),
        max_timestamp=max((segment.times.max_timestamp for segment in found), default=-1),
    )


def topic_segments(state: ArchiveState, topic: TopicEntry) -> list[SegmentEntry]:
    """Return all archived segments of a topic, in the order of its partitions."""
    return [
        entry for partition in range(topic.partitions) for entry in state.segments.get((topic.topic_id, partition), ())
    ]


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic of the target cluster. `configs` are the effective values, defaults included, `own` those that were set
    on the topic itself. `topic_id` is empty if the brokers have no topic ids. `deletable`: the user may delete it, as
    far as brokers report it.
    """

    name: str
    partitions: int
    configs: Mapping[str, str]
    topic_id: str = ""
    deletable: bool = True
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def compacts(self) -> bool:
        return is_compacted(self.configs)


_OF_EVERYTHING = (
    "A restore of everything does not rename, append to or replace topics. Delete the topic if it is not needed, or "
    "restore into a cluster that has no such topic."
)


def refuse_existing(
    choices: Sequence[Choice], existing: Iterable[str], renames: Sequence[Rename] = (), *, everything: bool
) -> None:
    """Raises TopicExists naming every target that exists already (`ifTopicExists: Fail`), and the rules that rename
    nothing: with a mistyped one a restore means to leave alone what the hint would have deleted."""
    names = set(existing)
    there = [choice.target for choice in choices if choice.target in names]
    if there:
        sources = {choice.source.name for choice in choices}
        unused = describe_unused("spec.topics.rename", renames, sources, "topic that is restored")
        raise TopicExists(
            f"{'topic' if len(there) == 1 else 'topics'} {_listing(there)} already "
            f"exist{'s' if len(there) == 1 else ''} "
            f"on the target cluster; {''.join(f'{reported}; ' for reported in unused)}nothing was written",
            hint=f"{_OF_EVERYTHING} If an earlier restore of everything has created them, continue it with "
            "spec.ifTopicExists: Resume."
            if everything
            else "Delete them, rename with spec.topics.rename, append to them with spec.ifTopicExists: "
            "Append, or let the restore delete them with Replace.",
        )


def refuse_unknown(choices: Sequence[Choice], existing: Iterable[str], where: str, *, everything: bool) -> None:
    """Raises TopicExists naming every target that exists already, where no restore is known that could be resumed."""
    names = set(existing)
    there = [choice.target for choice in choices if choice.target in names]
    if there:
        raise TopicExists(
            f"{_listing(there)}: they exist already, and {where} has no restore with the same settings into this "
            "cluster that could be resumed; nothing was written",
            hint="Resume continues a restore that has the same source, topics, point, offsets and consumerGroups, "
            "and its state in the same place: compare it with the earlier one. "
            + (_OF_EVERYTHING if everything else "Or choose Append or Replace."),
        )


def _listing(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def check_append(choice: Choice, existing: ExistingTopic, facts: TopicFacts, now_ms: int) -> list[str]:
    """Return the warnings about what `existing` will do to the topic's records. Raises TargetUnsuitable if it cannot
    take them as they are.
    """
    name, configs = existing.name, existing.configs
    if choice.mapping:
        refuse_far_partition(choice, existing.partitions)
    elif choice.wanted is not None:
        _refuse_other_count(choice, existing)
    elif existing.partitions < choice.source.partitions:
        raise TargetUnsuitable(
            f"topic {name} has {so_many(existing.partitions, 'partition')}, the archived topic {choice.source.name} "
            f"has {choice.source.partitions}",
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
    if not existing.compacts:
        return []
    return [
        f"topic {name} is compacted: the restored records come after what it holds, so if both have a key, the "
        "restored value wins, even if it is older"
    ]


def _refuse_other_count(choice: Choice, existing: ExistingTopic) -> None:
    """Raises TargetUnsuitable if a topic has another number of partitions than requested."""
    if existing.partitions != choice.wanted:
        raise TargetUnsuitable(
            f"spec.topics.partitionCount: topic {existing.name} has {so_many(existing.partitions, 'partition')} "
            f"already, but {choice.wanted} are requested; nothing was written",
            hint=f"Set partitionCount to {existing.partitions}, or restore under another name.",
        )


def refuse_far_partition(choice: Choice, partitions: int) -> None:
    """Raises TargetUnsuitable if a partition is to go to one that the target does not have."""
    for source, target in choice.mapping.items():
        if target >= partitions:
            raise TargetUnsuitable(
                f"spec.topics.partitions: partition {source} of topic {choice.source.name} is to go to partition "
                f"{target}, and topic {choice.target} has {so_many(partitions, 'partition')}; nothing was written",
                hint=f"The partitions of {choice.target} are 0 to {partitions - 1}. A topic that the restore creates "
                "has as many as the archived one.",
            )


def _check_timestamp_bounds(choice: Choice, existing: ExistingTopic, facts: TopicFacts, now_ms: int) -> None:
    bounds = (
        ("message.timestamp.before.max.ms", now_ms - facts.min_timestamp if facts.min_timestamp >= 0 else 0, "older"),
        ("message.timestamp.after.max.ms", facts.max_timestamp - now_ms, "newer"),
    )
    for key, distance, word in bounds:
        limit = int(existing.configs.get(key, INT64_MAX))
        if distance > limit:
            raise TargetUnsuitable(
                f"topic {existing.name} refuses records {word} than {key}={limit}, {choice.source.name} has records "
                f"{distance} ms {word} than now",
                hint=f"Raise {key} of {existing.name} for the time of the restore, or restore under another name.",
            )


MARK_KEY = "message.timestamp.after.max.ms"
"""The key by which a topic shows that a restore, or a drill, has created it and has not finished it."""


HELD = {RETENTION_BYTES: "-1", RETENTION_MS: "-1"}
"""The configuration by which a topic deletes nothing, of those that it is filled with."""


def working_configs(facts: TopicFacts) -> dict[str, str]:
    """Return the configuration of a topic while it is being restored: it takes every batch as it is and deletes
    nothing.

    `max.message.bytes` leaves room for batches that are rebuilt and compress a little worse.
    """
    largest = facts.max_batch_bytes + facts.max_batch_bytes // 4 + 65536
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(min(MAX_INT32, max(DEFAULT_MAX_MESSAGE_BYTES, largest))),
        MARK_KEY: str(INT64_MAX),
        "message.timestamp.before.max.ms": str(INT64_MAX),
        "message.timestamp.type": "CreateTime",
        **HELD,
    }


def own_configs(source: Mapping[str, str], wanted: TopicConfigs) -> dict[str, str]:
    """Return the configuration that a created topic has in the end: the `source`'s own, with the requested changes."""
    kept = source if wanted.policy is ConfigPolicy.RESTORE else {}
    left_out = {*_CLUSTER_BOUND, *wanted.ignore}
    return {key: value for key, value in kept.items() if key not in left_out} | wanted.override


def ending_configs(source: Mapping[str, str], wanted: RestoreTopics) -> dict[str, str]:
    """Return the configuration that a created topic has when the restore ends. One that is held gets its retention with
    its release."""
    own = own_configs(source, wanted.configs)
    return {**own, **HELD} if wanted.retention is TopicRetention.HOLD else own


def final_configs(own: Mapping[str, str], working: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the keys to set and to delete, to turn a topic with the working configuration into one with its own."""
    return dict(own), sorted(set(working) - set(own))


def kept_instead(refused: str, own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the keys that a topic needs besides its own if the cluster does not take the key `refused` of them.

    Without a policy that deletes nothing, such as the empty one of Kafka 4.2, the retention of the brokers, or one that
    had no effect, would delete the topic's records.
    """
    return HELD if refused == POLICY and not is_deleted(own) else {}


def describe_refused_key(target: str, key: str, own: Mapping[str, str], why: str) -> str:
    """Return the warning about a key of a topic's own configuration that the cluster does not take."""
    instead = ", ".join(f"{name}={value}" for name, value in sorted(kept_instead(key, own).items(), reverse=True))
    kept = f" So that it still deletes nothing, it has {instead}." if instead else ""
    return f"topic {target}: {key}={own[key]} could not be set: {why}{kept}"


MIN_INSYNC, DEFAULT_REPLICAS = "min.insync.replicas", "default.replication.factor"
BROKER_KEYS = (MIN_INSYNC, DEFAULT_REPLICAS)
"""The keys of a broker's configuration that `too_few_in_sync` looks at."""


def too_few_in_sync(
    target: str, own: Mapping[str, str], replicas: int, brokers: Mapping[str, str] = MappingProxyType({})
) -> TargetUnsuitable | None:
    """Return the error for a topic that would have fewer replicas than must be in sync, by its own configuration or
    that of the `brokers`, as far as that is known: before Kafka 3.7 no producer can write to it with acks=all."""
    least = own.get(MIN_INSYNC, brokers.get(MIN_INSYNC, ""))
    if replicas == BROKER_DEFAULT and brokers.get(DEFAULT_REPLICAS, "").isdecimal():
        replicas = int(brokers[DEFAULT_REPLICAS])
    if replicas == BROKER_DEFAULT or not least.isdecimal() or int(least) <= replicas:
        return None
    whose = "" if MIN_INSYNC in own else ", the default of the brokers"
    return TargetUnsuitable(
        f"topic {target} would have {MIN_INSYNC}={least}{whose}, and {so_many(replicas, 'replica')} cannot meet "
        "that with brokers before Kafka 3.7; nothing was written",
        hint=f"Set spec.topics.replicationFactor to {least} or more, or {MIN_INSYNC} in spec.topics.configs.override.",
    )


def plan_topic(
    choice: Choice,
    segments: Mapping[int, Sequence[SegmentEntry]],
    *,
    existing: ExistingTopic | None,
    end_offsets: Mapping[int, int],
    replicas: int | None = None,
    extents: Mapping[int, Extent] | None = None,
    replaces: str = "",
) -> TopicPlan:
    """Return the plan of one topic, producer ids not yet given (NEEDS_PRODUCER_ID where a task will run).

    `segments` are the archived ones by partition; `end_offsets` those of the existing target topic. `replicas`: this
    many are requested instead of the archived number. `extents`: of the target's partitions, with `offsets: Same`.
    `replaces`: the id of the topic that is deleted first.
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
        partition_count=choice.partition_count,
        replication_factor=0 if existing is not None else replicas_of(choice.source, replicas),
        max_batch_bytes=limit,
        partitions=_pairs(choice, segments, end_offsets)
        if choice.divided
        else tuple(
            _partition_plan(
                partition,
                has_segments=bool(segments.get(partition)),
                start=end_offsets.get(partition if to is None else to, 0),
                extent=None if extents is None else extents.get(partition, Extent(0, 0)),
                to=to,
            )
            for partition, to in _rows(choice, created=existing is None)
        ),
        compacts=existing is not None and existing.compacts,
        target_id=existing.topic_id if existing is not None else "",
        replaces=replaces,
        divided=choice.divided,
    )


def with_contents(topics: Iterable[TopicPlan], whole: ArchiveState, point: PointPlan | None) -> Iterator[TopicPlan]:
    """Yield the plans with a digest of what the archive has of their topics below the ends of the point, whatever
    objects it lies in. `whole` has all of it, by whatever times records are left out."""
    for topic in topics:
        found = hashlib.sha256()
        for number in range(whole.topics[topic.topic_id].partitions):
            key = topic.topic_id, number
            dense, others = content_of(whole.segments.get(key, ()), clip_of(point, key).end)
            found.update(b"%d %d %d " % (number, len(dense), len(others)))
            found.update(b"".join(b"%d-%d " % part for part in dense))
            found.update(b"".join(others))
        yield replace(topic, segments=found.hexdigest())


def extents_of(
    offsets: RestoreOffsets, archived: ArchiveState, choices: Sequence[Choice], at: PointPlan | None
) -> dict[str, dict[int, Extent]]:
    """Return how far the partitions of each target reach if records keep their offsets."""
    if offsets is not RestoreOffsets.SAME:
        return {}
    known = Extents(archived, at.ends if at is not None else {})
    return {
        choice.target: {
            partition: known.of(choice.source.topic_id, partition) for partition in range(choice.source.partitions)
        }
        for choice in choices
    }


def _pairs(
    choice: Choice, segments: Mapping[int, Sequence[SegmentEntry]], end_offsets: Mapping[int, int]
) -> tuple[PartitionPlan, ...]:
    """Return the pairs of a divided topic: each archived partition that has segments with each partition of the
    target."""
    return tuple(
        PartitionPlan(partition, NEEDS_PRODUCER_ID, end_offsets.get(to, 0), to=to)
        for partition in range(choice.source.partitions)
        if segments.get(partition)
        for to in range(choice.partition_count)
    )


def _rows(choice: Choice, *, created: bool) -> list[tuple[int, int | None]]:
    """Archived partitions, each with the target partition where that is another one. Partitions of a created topic to
    which none goes are among them, with -1: they must stay empty."""
    if not choice.mapping:
        return [(partition, None) for partition in range(choice.source.partitions)]
    source = {target: partition for partition, target in choice.mapping.items()}
    wanted = range(choice.source.partitions) if created else sorted(source)
    return [(source.get(target, -1), target) for target in wanted]


def _partition_plan(
    partition: int, *, has_segments: bool, start: int, extent: Extent | None, to: int | None
) -> PartitionPlan:
    if extent is None:
        return PartitionPlan(partition, NEEDS_PRODUCER_ID if has_segments else NO_TASK, start, to=to)
    has_work = has_segments or extent.end > 0
    return PartitionPlan(partition, NEEDS_PRODUCER_ID if has_work else NO_TASK, start, extent.start, extent.end, to)


def replicas_of(source: TopicEntry, wanted: int | None) -> int:
    """Return the number of replicas of a new topic. An imported archive does not know it: the cluster's default
    counts."""
    if wanted is not None:
        return wanted
    return source.replication_factor if source.replication_factor > 0 else BROKER_DEFAULT

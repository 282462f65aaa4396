"""Finds out by which partitioner the records of a topic lie, so that a division puts them where its producers will
write.

Java's producers hash a key with murmur2, those of librdkafka with CRC32. A record says nothing of it, but the keys and
the partitions in which they lie do: a sample of them fits one partitioner, or none. The newest records are looked at,
since partitions may have been added, and producers replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import StateAltered, TargetUnsuitable
from logkeep_engine.log.divider import target_of_record
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import ALTERED
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext

_PARTITIONS = 8
_KEYS = 100  # of a partition, each counted once
_RECORDS = 5_000  # of a partition: if this many have no key, few records have one
_WIDER = 10  # times as many offsets are looked at, where some hold no record
_LEAST_KEYS = 5  # fewer may lie by chance where a partitioner puts them, or by hand
_DIGEST_BYTES = 8
_MOST_STRAYS = 10  # percent of the keys: a few may have been written by hand
_SHOWN = 3

_USERS = {
    Partitioner.MURMUR2: "murmur2, the default of Java's producers",
    Partitioner.CRC32: "crc32, the default of librdkafka's producers",
}


@dataclass(frozen=True, slots=True)
class KeySampleTask:
    """The number of a topic's partitions, and the segments of some of those that have records. `whole`: of all that
    have. Pickles without secrets."""

    storage: Storage
    topic: str
    partitions: int
    segments: tuple[tuple[SegmentEntry, ...], ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class KeySample:
    """The number of keys that were looked at in a topic of this many partitions, and how many of them lie where each
    partitioner puts them. `whole`: no record was left out."""

    partitions: int
    keys: int
    fitting: Mapping[Partitioner, int]
    whole: bool

    @property
    def fits(self) -> list[Partitioner]:
        """The partitioners by which the keys may lie: both where the sample cannot tell."""
        if self.keys < _LEAST_KEYS:
            return list(Partitioner)
        least = self.keys * (100 - _MOST_STRAYS)
        return [partitioner for partitioner in Partitioner if self.fitting[partitioner] * 100 >= least]

    @property
    def found(self) -> Partitioner | None:
        """The one partitioner by which the keys lie, None if it is neither, or not known."""
        return self.fits[0] if len(self.fits) == 1 else None

    def __str__(self) -> str:
        if self.partitions == 1:
            return "it has one partition"
        fitting = (f"{count} where {partitioner} puts them" for partitioner, count in self.fitting.items())
        return f"of {so_many(self.keys, 'key')} that were looked at, {', '.join(fitting)}"


def sample_keys(task: KeySampleTask, context: TaskContext) -> KeySample:
    """Look at keys of a topic. Runs on an executor. What is damaged, or gone, is left out."""
    fitting, keys, whole = dict.fromkeys(Partitioner, 0), 0, task.whole
    for segments in task.segments:
        found, all_of_it = _places(task, segments)
        keys, whole = keys + len(found), whole and all_of_it
        for places in found:
            for partitioner, place in zip(Partitioner, places, strict=True):
                fitting[partitioner] += place == segments[0].partition
    return KeySample(task.partitions, keys, fitting, whole)


def _places(task: KeySampleTask, segments: Sequence[SegmentEntry]) -> tuple[list[tuple[int, ...]], bool]:
    """Return where each partitioner puts keys of a partition, the newest ones, and whether no record was left out.

    Which keys are taken depends on offsets and records alone: a later start, which may find the segments merged, must
    take the same ones."""
    start, end, offsets = segments[0].base_offset, segments[-1].next_offset, _RECORDS
    while True:
        since = max(start, end - offsets)
        found, records = _newest(task, [entry for entry in segments if entry.next_offset > since], since)
        if since == start or len(found) >= _KEYS or records >= _RECORDS:
            newest = sorted(found.values(), reverse=True)[:_KEYS]
            return [places for _, places in newest], since == start and len(found) <= _KEYS
        offsets *= _WIDER


def _newest(
    task: KeySampleTask, segments: Sequence[SegmentEntry], since: int
) -> tuple[dict[bytes, tuple[int, tuple[int, ...]]], int]:
    """Return the last offset of each key from an offset on, with its places, and the number of records. An empty key
    says nothing: librdkafka's producers put it anywhere."""
    found: dict[bytes, tuple[int, tuple[int, ...]]] = {}
    records = 0
    for part in open_damaged(task.storage, task.topic, segments, aborted=()).records(since):
        if isinstance(part, Damage):
            continue
        for record in part:
            records += 1
            if record.key:
                key = bytes(record.key)
                digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
                places = found[digest][1] if digest in found else _places_of(key, task.partitions)
                found[digest] = record.offset, places
    return found, records


def _places_of(key: bytes, partitions: int) -> tuple[int, ...]:
    return tuple(target_of_record(partitioner, key, 0, partitions) for partitioner in Partitioner)


def sampled(context: RestoreContext, planned: Planned) -> dict[str, KeySample]:
    """Samples of the topics that are divided, by target."""
    divided = [topic for topic in planned.plan.topics if topic.divided]
    if not divided:
        return {}
    work = [_sample_task(context, planned, topic) for topic in divided]
    found: dict[int, KeySample] = {}
    context.run_tasks(work, sample_keys, found.__setitem__)
    return {topic.target: found[at] for at, topic in enumerate(divided)}


def _sample_task(context: RestoreContext, planned: Planned, topic: TopicPlan) -> KeySampleTask:
    logs = [planned.segments(topic, partition) for partition in topic.archived_partitions]
    with_records = [tuple(log) for log in logs if any(entry.records for entry in log)]
    some = with_records[:: max(1, -(-len(with_records) // _PARTITIONS))]
    return KeySampleTask(
        context.archive.storage,
        topic.source,
        planned.archived.topics[topic.topic_id].partitions,
        tuple(some),
        len(some) == len(with_records),
    )


def with_partitioners(context: RestoreContext, planned: Planned) -> tuple[Planned, list[str]]:
    """Return the plan with the partitioner of each topic that is divided, and what to report about them.

    Raises TargetUnsuitable for topics whose records lie by another partitioner than the spec says, or by none that is
    known if the spec says nothing."""
    samples, wanted = sampled(context, planned), context.spec.topics.partitioner
    plan = planned.plan
    with context.refusals:
        _refuse_other(plan, samples, wanted)
    chosen = {target: wanted or sample.found or Partitioner.MURMUR2 for target, sample in samples.items()}
    topics = tuple(replace(topic, partitioner=chosen.get(topic.target)) for topic in plan.topics)
    return replace(planned, plan=replace(plan, topics=topics)), list(_describe_partitioners(plan, samples, wanted))


def refuse_other_partitioners(context: RestoreContext, planned: Planned, name: str) -> None:
    """Raises StateAltered for a stored plan, in the object `name`, that divides a topic otherwise than the spec says,
    or than its records lie."""
    wanted = context.spec.topics.partitioner
    samples = sampled(context, planned)
    for topic in planned.plan.topics:
        if not topic.divided:
            continue
        own = wanted or samples[topic.target].found or topic.partitioner
        if topic.partitioner is None or own is not topic.partitioner:
            raise StateAltered(
                f"{name}: it divides topic {topic.target!r} by {topic.partitioner}, and not by "
                f"{own or 'a partitioner'}; it was not used",
                hint=ALTERED,
            )


def _refuse_other(plan: RestorePlan, samples: Mapping[str, KeySample], wanted: Partitioner | None) -> None:
    names = {topic.target: topic.source for topic in plan.topics}
    if wanted is not None:
        others = {name: item for name, item in samples.items() if item.found not in (None, wanted)}
        if others:
            raise TargetUnsuitable(
                f"spec.topics.partitioner is {wanted}, but the archived records are not distributed like this: "
                f"{_listed(names, others)}; nothing was written",
                hint="Leave the field out: each topic is then divided by the partitioner that its records follow.",
            )
        return
    strange = {name: item for name, item in samples.items() if not item.fits}
    if strange:
        raise TargetUnsuitable(
            "spec.topics.partitionCount: it is unknown where producers will write the keys, since the archived "
            f"records follow neither murmur2 nor crc32: {_listed(names, strange)}; nothing was written",
            hint="Either the topic got partitions later, or its producers choose partitions in another way, or in "
            "several ones. Set spec.topics.partitioner to the partitioner that the producers will use: murmur2 for "
            "Java's, crc32 for those of librdkafka.",
        )


def _describe_partitioners(
    plan: RestorePlan, samples: Mapping[str, KeySample], wanted: Partitioner | None
) -> Iterator[str]:
    names = {topic.target: topic.source for topic in plan.topics}
    for partitioner in Partitioner:
        lie = {name: item for name, item in samples.items() if item.found is partitioner}
        if lie:
            yield f"records follow {_USERS[partitioner]}, and are divided the same way: {_listed(names, lie)}"
    neither = {name: item for name, item in samples.items() if not item.fits}
    if neither and wanted is not None:
        yield (
            f"records follow neither murmur2 nor crc32, and are divided by {_USERS[wanted]}, as spec.topics."
            f"partitioner says: {_listed(names, neither)}"
        )
    unknown = {name: item for name, item in samples.items() if len(item.fits) > 1 and (item.keys or not item.whole)}
    if unknown and wanted is None:
        yield (
            "it is unknown which partitioner records follow, so they are divided by "
            f"{_USERS[Partitioner.MURMUR2]}: set spec.topics.partitioner if other producers write: "
            f"{_listed(names, unknown)}"
        )


def _listed(names: Mapping[str, str], samples: Mapping[str, KeySample]) -> str:
    """Return the topics, with what was found of the first ones."""
    shown: Sequence[str] = [f"topic {names[target]} ({samples[target]})" for target in sorted(samples)]
    more = f"; and {so_many(len(shown) - _SHOWN, 'more topic')}" if len(shown) > _SHOWN else ""
    return "; ".join(shown[:_SHOWN]) + more

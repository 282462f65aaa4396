"""Finds the records of a restore that its targets would delete by their own retention, before anything is written.

Kafka deletes whole segments of a log: those whose newest record is older than `retention.ms`, and the first ones of a
log that is larger than `retention.bytes`. The segments of a target begin and end elsewhere than the archived ones, so
only what goes at most is known. A created topic keeps the times of its records, also with
`message.timestamp.type=LogAppendTime`: it gets that type after the last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.restored_topics import ConfigPolicy, RestoreTopics, TopicConfigs, TopicRetention
from logkeep_engine.contract.values import human_duration, so_many
from logkeep_engine.errors import ArchiveDamaged, TargetUnsuitable
from logkeep_engine.log.cleanup import (
    NO_LIMITS,
    POLICY,
    RETENTION_BYTES,
    RETENTION_KEYS,
    RETENTION_MS,
    LogLimits,
    limits_of,
)
from logkeep_engine.restore.model.plan import PointPlan, TopicPlan, clip_of
from logkeep_engine.restore.model.point import source_state
from logkeep_engine.restore.model.selection import Choice, shown
from logkeep_engine.restore.model.topics import ExistingTopic, own_configs
from logkeep_engine.restore.streams.clip import Clip

_SHOWN = 5
_COMPRESSION = "compression.type"
_KAFKAS = {POLICY: "delete", RETENTION_MS: "604800000", RETENTION_BYTES: "-1"}
"""The defaults of a broker whose configuration says nothing."""


@dataclass(frozen=True, slots=True)
class TargetRetention:
    """The values of RETENTION_KEYS that a target has. `origins` says where those come from that were not set on the
    topic itself."""

    values: Mapping[str, str]
    origins: Mapping[str, str]

    @classmethod
    def of(cls, own: Mapping[str, str], brokers: Mapping[str, str]) -> TargetRetention:
        """That of a topic with these values of its `own`. `brokers` are the defaults, as far as the brokers report
        them; Kafka's own defaults count for the others."""
        values, origins = {}, {}
        for key in RETENTION_KEYS:
            values[key] = own.get(key, brokers.get(key, _KAFKAS[key]))
            if key not in own:
                known = key in brokers
                origins[key] = "the brokers' default" if known else "Kafka's default, since no broker reports its own"
        return cls(values, origins)

    def describe(self, key: str) -> str:
        """Return the value of a key, and where it comes from."""
        return ", ".join(filter(None, (f"{key}={self.values[key]}", self.origins.get(key))))


@dataclass(frozen=True, slots=True)
class RetentionLoss:
    """The records of a topic that its target would delete: at most `records` of `total`, in this many archived
    segments. `oldest` is the time of the oldest in ms since the epoch, -1 if it is unknown. `why` names the topic and
    the limits. `exact`: `total` is the number of records that the restore brings, and not only the most.
    """

    why: str
    records: int
    total: int
    segments: int
    oldest: int
    exact: bool = True

    @property
    def of(self) -> str:
        """The number of records that the restore brings, as far as it is known."""
        return f"{'' if self.exact else 'at most '}{self.total}"

    def __str__(self) -> str:
        oldest = moment(self.oldest)
        return (
            f"{self.why}: it deletes up to {self.records} of {self.of} record{'' if self.total == 1 else 's'} in "
            f"{so_many(self.segments, 'archived segment')}" + (f", the oldest of {oldest}" if oldest else "")
        )


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """An archived topic and its target. `logs`: the number of partitions among which its records are divided; 0: each
    stays in its own."""

    source: TopicEntry
    target: str
    logs: int = 0

    @classmethod
    def of(cls, choice: Choice) -> RestoredTopic:
        """That of a choice."""
        return cls(choice.source, choice.target, choice.partition_count if choice.divided else 0)

    @classmethod
    def of_plan(cls, archived: ArchiveState, topic: TopicPlan) -> RestoredTopic:
        """That of a plan."""
        source = archived.topics[topic.topic_id]
        return cls(source, topic.target, topic.partition_count if topic.divided else 0)


def going(
    archived: ArchiveState, topic: RestoredTopic, retention: TargetRetention, point: PointPlan | None, now_ms: int
) -> RetentionLoss | None:
    """Return the records of a topic, as it is at the point, that a target with this retention would delete; None:
    none."""
    limits = limits_of(retention.values)
    if limits is None or limits == NO_LIMITS:
        return None
    clips = [clip_of(point, (topic.source.topic_id, number)) for number in range(topic.source.partitions)]
    logs = [_before_end(archived, topic.source, number, clip) for number, clip in enumerate(clips)]
    if topic.logs:
        logs = [[entry for log in logs for entry in log]]
        limits = LogLimits(limits.ms, None if limits.bytes is None else limits.bytes * topic.logs)
    coming = [[entry for entry in log if _comes(entry, point)] for log in logs]
    old: list[SegmentEntry] = []
    if limits.ms is not None:
        # Of a segment that does not come by the first records of its batches, records after these may be old.
        others = [[entry for entry in log if _may_come(entry, point)] for log in logs]
        old = _old(coming, point, now_ms - limits.ms) or _old(others, point, now_ms - limits.ms)
    large = [] if limits.bytes is None else [e for log in coming for e in _too_large(log, limits.bytes)]
    found = _by_place((*old, *large))
    if not found:
        return None
    why = []
    if old and limits.ms is not None:
        why.append(f"records for {human_duration(limits.ms / 1000)} ({retention.describe(RETENTION_MS)})")
    if large:
        why.append(f"{retention.values[RETENTION_BYTES]} bytes a partition ({retention.describe(RETENTION_BYTES)})")
    brought = {**_by_place(entry for log in coming for entry in log), **found}.values()
    return RetentionLoss(
        f"topic {topic.target} keeps {' and '.join(why)}",
        sum(clips[entry.partition].most_of(entry) for entry in found.values()),
        sum(clips[entry.partition].most_of(entry) for entry in brought),
        len(found),
        min(_times(found.values(), point), default=-1),
        all(clips[entry.partition].counts(entry) for entry in brought),
    )


def _before_end(archived: ArchiveState, topic: TopicEntry, number: int, clip: Clip) -> list[SegmentEntry]:
    """Return the segments of a partition that begin before the end of what is restored of it."""
    return [entry for entry in archived.segments.get((topic.topic_id, number), ()) if entry.base_offset < clip.stop]


def _comes(entry: SegmentEntry, point: PointPlan | None) -> bool:
    """Return whether a segment may have records that the point gives, by the first records of its batches."""
    if point is None or point.before is None:
        return _may_come(entry, point)
    return entry.times.min_base_timestamp < point.before and _may_come(entry, point)


def _may_come(entry: SegmentEntry, point: PointPlan | None) -> bool:
    """Return the same, where older records may follow the first one of a batch."""
    if not entry.batches or point is None:
        return entry.batches > 0
    if point.since is not None and 0 <= entry.times.max_timestamp < point.since:
        return False
    return is_batched(entry.layout) or point.before is None or entry.times.min_base_timestamp < point.before


def _old(logs: Iterable[Iterable[SegmentEntry]], point: PointPlan | None, kept_from: int) -> list[SegmentEntry]:
    """Return the segments that may give records older than what is kept. One record without a time hides how old the
    others are. Where none has a time, a broker goes by the moment at which they come."""
    if point is not None and point.since is not None and point.since >= kept_from:
        return []
    all_old = point is not None and point.before is not None and point.before <= kept_from
    return [
        entry
        for log in logs
        for entry in log
        if entry.times.max_timestamp >= 0 and (all_old or entry.times.min_base_timestamp < kept_from)
    ]


def _by_place(entries: Iterable[SegmentEntry]) -> dict[tuple[str, int, int], SegmentEntry]:
    return {(entry.topic_id, entry.partition, entry.base_offset): entry for entry in entries}


def _times(entries: Iterable[SegmentEntry], point: PointPlan | None) -> Iterator[int]:
    """Yield the times of the first records that segments give, as far as they are known."""
    since = 0 if point is None or point.since is None else point.since
    for entry in entries:
        first = entry.times.min_base_timestamp
        if first >= 0 and (point is None or point.before is None or first < point.before):
            yield max(first, since)


def _too_large(log: Sequence[SegmentEntry], most: int) -> Iterator[SegmentEntry]:
    """Yield the segments of a log that do not lie in its last `most` bytes."""
    size = 0
    for entry in reversed(log):
        size += entry.bytes
        if size > most:
            yield entry


def refuse_going(found: Sequence[RetentionLoss], retention: TopicRetention, *, drill: bool) -> list[str]:
    """Return the warnings about records that the targets would delete. Raises TargetUnsuitable if they must not."""
    if not found or retention is TopicRetention.HOLD:
        return []
    if drill:  # it verifies its topics while they delete nothing, and then deletes them
        return [f"a restore into such topics would lose records: {item}" for item in found]
    if retention is TopicRetention.APPLY:
        return [str(item) for item in found]
    do, others = "does" if len(found) == _SHOWN + 1 else "do", so_many(len(found) - _SHOWN, "more topic")
    more = f"; and so {do} {others}" if len(found) > _SHOWN else ""
    raise TargetUnsuitable(
        f"The target would delete restored records: {'; '.join(map(str, found[:_SHOWN]))}{more}; nothing was written.",
        hint="Set spec.topics.retention to Hold, and the topics keep all records until `logkeep release`, or to Apply "
        "to let them be deleted. Or set retention.ms and retention.bytes: of created topics in "
        "spec.topics.configs.override, of others on the topic.",
    )


@dataclass(frozen=True, slots=True)
class RestoredTopics:
    """The chosen topics as they are at the point, and all that says how long their targets keep records. `defaults` are
    those of the target's brokers, as far as these report them. What an `existing` topic has of them is what one broker
    says."""

    archived: ArchiveState
    choices: Sequence[Choice]
    existing: Mapping[str, ExistingTopic]
    defaults: Mapping[str, str]
    wanted: RestoreTopics
    point: PointPlan | None = None

    def going(self, now_ms: int) -> list[RetentionLoss]:
        """Return the records that the targets would delete."""
        found = [
            going(self.archived, RestoredTopic.of(choice), self._retention(choice), self.point, now_ms)
            for choice in self.choices
        ]
        return [item for item in found if item is not None]

    def describe_unknown_sizes(self) -> Iterator[str]:
        """Yield the warnings about topics whose `retention.bytes` may delete records, which shows only when all are
        there. Held topics delete none."""
        for choice in self.choices if self.wanted.retention is not TopicRetention.HOLD else ():
            retention = self._retention(choice)
            limits = limits_of(retention.values)
            size = self._bytes(choice.source)
            if limits is None or limits.bytes is None or not size:
                continue
            there = self.existing.get(choice.target)
            codec = "producer" if there is None else there.configs.get(_COMPRESSION, "producer")
            why = ""
            if choice.divided and size > limits.bytes:
                why = f"how many of {size} bytes each partition gets depends on the keys"
            if codec != "producer":
                why = f"with {_COMPRESSION}={codec} records may take more than their {size} bytes in the archive"
            if why:
                yield (
                    f"topic {choice.target} keeps {retention.values[RETENTION_BYTES]} bytes a partition "
                    f"({retention.describe(RETENTION_BYTES)}), and {why}: whether it deletes records is unknown"
                )

    def _retention(self, choice: Choice) -> TargetRetention:
        there = self.existing.get(choice.target)
        if there is None:
            return TargetRetention.of(own_configs(choice.source.configs, self.wanted.configs), self.defaults)
        return TargetRetention.of(there.own, {**there.configs, **self.defaults})

    def _bytes(self, topic: TopicEntry) -> int:
        """Return the size of the segments that come, of which a point may take a part."""
        return sum(
            entry.bytes
            for number in range(topic.partitions)
            for entry in _before_end(self.archived, topic, number, clip_of(self.point, (topic.topic_id, number)))
            if _comes(entry, self.point)
        )


# ---- the defaults of the source


def source_defaults(
    archive: Archive, archived: ArchiveState, point: PointSpec | None
) -> tuple[Mapping[str, str], list[str]]:
    """Return the values of RETENTION_KEYS that topics of the source had by default, as far as the archive has them; and
    a warning if what it has cannot be read."""
    try:
        state = source_state(archive, archived, point)
    except ArchiveDamaged as error:
        return {}, [f"how long the source kept records by default is unknown: {error.message}"]
    return (state.defaults if state is not None else None) or {}, []


def lacks_own(topic: TopicEntry, wanted: TopicConfigs) -> list[str]:
    """Return the RETENTION_KEYS that a created topic has from the brokers of the target, though that was not asked
    for."""
    if wanted.policy is not ConfigPolicy.RESTORE:
        return []
    own = own_configs(topic.configs, wanted)
    return [key for key in RETENTION_KEYS if key not in own and key not in wanted.ignore]


def describe_defaults(
    created: Iterable[Choice], wanted: RestoreTopics, source: Mapping[str, str], target: Mapping[str, str]
) -> Iterator[str]:
    """Yield the warnings about created topics that had another retention from the brokers of the source than they get
    from those of the target."""
    lacking: dict[str, list[str]] = {}
    for choice in created:
        for key in lacks_own(choice.source, wanted.configs):
            if key in source and key in target and source[key] != target[key]:
                lacking.setdefault(key, []).append(choice.target)
    for key, topics in lacking.items():
        carried = wanted.retention is TopicRetention.HOLD and key != POLICY
        then = f"their release sets {key}={source[key]}" if carried else "set it in spec.topics.configs.override"
        yield (
            f"{so_many(len(topics), 'topic')} had {key}={source[key]} from the brokers of the source, and would get "
            f"{key}={target[key]} from those of the target: {then}: {shown(sorted(topics))}"
        )


def released_configs(
    topic: TopicEntry, wanted: TopicConfigs, source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the retention that a created topic gets when it is released; None: the default of the brokers.

    What it had from the brokers of the source is set on the topic, unless the target's brokers give it the same."""
    own = own_configs(topic.configs, wanted)
    found: dict[str, str | None] = {}
    for key in (RETENTION_MS, RETENTION_BYTES):
        found[key] = own.get(key)
        if key in lacks_own(topic, wanted) and key in source and source[key] != target.get(key):
            found[key] = source[key]
    return found

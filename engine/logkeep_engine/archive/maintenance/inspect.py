"""The content of an archive, from the catalog and the plans of unfinished runs: for `logkeep inspect`, and for scripts
as JSON.

Times are ms since the epoch (-1: none) and, next to them, ISO 8601 in UTC ("" : none). `bytes` are those of the logs,
`stored_bytes` what the objects that hold them take (less, if `segment.compression` is Zstd); indexes are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.cluster_state import ClusterState
from logkeep_engine.archive.catalog.documents import FORMAT, ArchiveInfo
from logkeep_engine.archive.catalog.facts import Partition, RunEntry, TopicEntry
from logkeep_engine.archive.catalog.generations import NOWHERE, generation_of, unread
from logkeep_engine.archive.catalog.held_lines import Branch, branches_of
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.lost_tail import LostTail
from logkeep_engine.archive.catalog.packed import digests_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import SegmentTotals, totals_of, totals_of_segments
from logkeep_engine.archive.history.compacted import first_exact, with_snapshots
from logkeep_engine.archive.maintenance.as_json import AsJson
from logkeep_engine.archive.maintenance.growth import runs_by_epoch
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading.beginnings import holes
from logkeep_engine.archive.reading.incarnations import Shows, as_counted, incarnations, taken


@dataclass(frozen=True)
class TimeRange(AsJson):
    """From the earliest first time of a batch to the latest time of a record."""

    first: int
    last: int
    first_time: str
    last_time: str


@dataclass(frozen=True)
class RunInfo(AsJson):
    """A run: `attempts` counts starts of its driver; `end` -1: it has not ended."""

    run_id: str
    kind: str
    epoch: int
    attempts: int
    outcome: str
    message: str
    begin: int
    begin_time: str
    end: int
    end_time: str
    records: int
    bytes: int
    segments: int


@dataclass(frozen=True)
class GapInfo(AsJson):
    """Offsets [start, end) that were gone before they could be archived."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class SnapshotInfo(AsJson):
    """A snapshot of a compacted partition: of each key the last record below the offset `end`. `time`: no record below
    `end` is later, and none of those that were left out."""

    end: int
    leader_epoch: int
    time: int
    time_text: str
    records: int
    bytes: int
    parts: int


@dataclass(frozen=True)
class PassiveInfo(AsJson):
    """The generation of a compacted partition that is being read: `read` offsets of [start, end) are archived."""

    number: int
    began: int
    began_time: str
    start: int
    end: int
    read: int


@dataclass(frozen=True)
class GenerationInfo(AsJson):
    """The active generation of a compacted partition (0: the first is being archived). It was begun at `began`, is
    active since `since`, and exact from the offset `exact` on (-1: not known, or nowhere: `exact_from` is -1, too).
    `due`: it has stale keys, and the next one is due."""

    number: int
    began: int
    began_time: str
    since: int
    since_time: str
    exact: int
    passive: PassiveInfo | None
    due: bool = False


@dataclass(frozen=True)
class InspectedPartition(AsJson):
    """`start` and `end`: the catalog accounts for the offsets [start, end), -1 if for none. `holes`: ranges that are
    neither archived nor recorded as lost, in front of `start` too. `removed`: parts that retention has removed.
    `snapshots` are in none of the other numbers. Points at offset `exact_from` and later are exact (-1: none is)."""

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    stored_bytes: int
    segments: int
    times: TimeRange
    gaps: tuple[GapInfo, ...]
    holes: tuple[tuple[int, int], ...]
    removed: tuple[tuple[int, int], ...]
    snapshots: tuple[SnapshotInfo, ...] = ()
    exact_from: int = -1
    generation: GenerationInfo | None = None


@dataclass(frozen=True)
class BranchInfo(AsJson):
    """The old end of a partition whose log was cut off in the cluster: offsets [start, end). `id` chooses it in
    `spec.source.topicIds`; it is the same for all partitions that were found cut off by the same run."""

    id: str
    partition: int
    start: int
    end: int
    records: int
    bytes: int
    stored_bytes: int
    segments: int
    times: TimeRange


@dataclass(frozen=True)
class InspectedTopic(AsJson):
    """An incarnation of a topic: the `incarnation`th of its name (from 1) of `incarnations`. `taken`: a restore takes
    it if `spec.source.topicIds` does not choose another. `runs` have archived something of it that is still there. All
    that was committed before `complete` (ms since the epoch, -1: unknown) is archived. What its `branches` hold is in
    none of the other numbers."""

    name: str
    topic_id: str
    incarnation: int
    incarnations: int
    taken: bool
    replication_factor: int
    configs: dict[str, str]
    records: int
    bytes: int
    stored_bytes: int
    segments: int
    runs: int
    times: TimeRange
    complete: int
    complete_time: str
    partitions: tuple[InspectedPartition, ...]
    branches: tuple[BranchInfo, ...]


@dataclass(frozen=True)
class PositionInfo(AsJson):
    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True)
class GroupInfo(AsJson):
    """Committed positions of a consumer group, or start offsets of a `share` group, as the last successful run archived
    them."""

    group_id: str
    positions: tuple[PositionInfo, ...]
    share: bool = False


@dataclass(frozen=True)
class ClusterStateInfo(AsJson):
    """The state of the cluster as a run archived it at `time`: rows of words, as the object has them. A kind is null if
    the cluster did not report it, and `not_archived` has the reason."""

    run_id: str
    time: int
    time_text: str
    authorizer: bool
    acls: tuple[tuple[str, ...], ...] | None
    quotas: tuple[tuple[Any, ...], ...] | None
    scram_users: tuple[tuple[Any, ...], ...] | None
    topic_defaults: dict[str, str] | None
    configs: tuple[tuple[str, ...], ...] | None
    broker_settings: dict[str, str] | None
    features: dict[str, int]
    groups_left_out: tuple[tuple[str, ...], ...]
    not_archived: dict[str, str]

    @classmethod
    def of(cls, state: ClusterState) -> ClusterStateInfo:
        """From the archived object."""
        defaults = None if state.defaults is None else dict(state.defaults)
        settings = None if state.settings is None else dict(state.settings)
        kinds = state.acls, state.quotas, state.users, defaults, state.configs, settings, dict(state.features)
        return cls(
            state.run_id, state.time, moment(state.time), state.authorizer, *kinds, state.left_out, dict(state.reasons)
        )


@dataclass(frozen=True)
class OwnerInfo(AsJson):
    """The KafkaBackup that writes an archive; on the command line a name, without namespace and uid."""

    label: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Description(AsJson):
    """An archive after commit `commit` (-1: no commit yet). `segment_format`: Kafka, Records or Avro. `imported`: it
    was made from what another tool wrote. `digests`: how many of the segments have a digest of which algorithm.
    `lost_commits`: what shows that commits are gone from the catalog's end. `cluster_state` is that of the last
    run that succeeded, null if it has archived none. `anchor` names the commit with all before it (see
    `archive.catalog.anchor`), null without commits. `owner` is who writes the archive, null without an owner;
    `taken_over`: the consent that gave it to the owner."""

    archive_id: str
    cluster_id: str
    format: int
    segment_format: str
    imported: bool
    created_at: str
    created_by: str
    commit: int
    epoch: int
    records: int
    bytes: int
    stored_bytes: int
    segments: int
    digests: dict[str, int]
    runs: tuple[RunInfo, ...]
    topics: tuple[InspectedTopic, ...]
    groups: tuple[GroupInfo, ...]
    lost_commits: tuple[str, ...]
    cluster_state: ClusterStateInfo | None = None
    anchor: str | None = None
    owner: OwnerInfo | None = None
    taken_over: str = ""


def describe(
    info: ArchiveInfo,
    state: ArchiveState,
    *,
    beginnings: Mapping[Partition, int] = MappingProxyType({}),
    complete: Mapping[str, int] = MappingProxyType({}),
    lost_tails: Iterable[LostTail] = (),
    topics: Callable[[str], bool] | None = None,
    shows: Shows = as_counted,
    cluster_state: ClusterState | None = None,
) -> Description:
    """Return the archive, or its topics whose name `topics` says yes to. Topics by name, then by incarnation.
    `beginnings` are those that are missing (see `archive.reading.beginnings`), `complete` the times up to which topics
    are (see `archive.reading.completeness`), `lost_tails` those of the catalog (see `archive.catalog.lost_tail`).
    `shows` as in `incarnations.taken`, `cluster_state` is what the last run that succeeded has archived."""
    highest: dict[str, int] = {}
    for topic_id, partition in (*state.coverage, *state.gaps):
        highest[topic_id] = max(partition, highest.get(topic_id, -1))
    anchor, owner = newest(state), info.owner
    making = _Making(state, beginnings, complete, runs_by_epoch(state))
    seen = with_snapshots(state)
    described = tuple(
        making.topic(found, at, highest.get(found[at].topic_id, -1) + 1, chosen)
        for name, found in incarnations(state.topics.values()).items()
        if topics is None or topics(name)
        for chosen in [taken(seen, found, shows)]
        for at in range(len(found))
    )
    return Description(
        archive_id=info.archive_id,
        cluster_id=info.cluster_id,
        format=FORMAT,
        segment_format=info.segments.value,
        imported=info.imported,
        created_at=info.created_at,
        created_by=info.created_by,
        commit=state.commit,
        epoch=state.epoch,
        records=sum(topic.records for topic in described),
        bytes=sum(topic.bytes for topic in described),
        stored_bytes=sum(topic.stored_bytes for topic in described),
        segments=sum(topic.segments for topic in described),
        digests=_digests(state, {topic.topic_id for topic in described}),
        runs=_runs(state),
        topics=described,
        groups=_groups(state, topics),
        lost_commits=tuple(str(tail) for tail in lost_tails),
        cluster_state=None if cluster_state is None else ClusterStateInfo.of(cluster_state),
        anchor=None if anchor is None else str(anchor),
        owner=None if owner is None else OwnerInfo(owner.label, owner.namespace, owner.name, owner.uid),
        taken_over=info.taken_over,
    )


def _digests(state: ArchiveState, topic_ids: Set[str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key in state.segments:
        if key[0] in topic_ids:
            counts.update(digests_of(state.segments.rows(key)))
    return {name: count for name, count in counts.items() if count}


def _runs(state: ArchiveState) -> tuple[RunInfo, ...]:
    return tuple(
        RunInfo(
            run_id=run.run_id,
            kind=run.kind,
            epoch=run.epoch,
            attempts=run.attempts,
            outcome=run.outcome.value,
            message=_run_message(run),
            begin=run.begin_time,
            begin_time=moment(run.begin_time),
            end=-1 if run.end_time is None else run.end_time,
            end_time="" if run.end_time is None else moment(run.end_time),
            records=run.records,
            bytes=run.bytes,
            segments=run.segments,
        )
        for run in state.runs.values()
    )


def _run_message(run: RunEntry) -> str:
    before = run.success
    if before is None or before is run:
        return run.message
    return "; ".join(filter(None, (f"it had succeeded at {moment(before.end_time or 0)}, which stays", run.message)))


@dataclass(frozen=True)
class _Making:
    """Describes topics one by one."""

    state: ArchiveState
    beginnings: Mapping[Partition, int]
    complete: Mapping[str, int]
    run_of: Callable[[int], str]

    def topic(self, found: Sequence[TopicEntry], at: int, archived: int, chosen: TopicEntry) -> InspectedTopic:
        """Return the incarnation number `at`, from 0."""
        state, topic = self.state, found[at]
        topic_id = topic.topic_id
        count = max(topic.partitions, archived)
        totals = SegmentTotals()
        for partition in range(count):
            if (topic_id, partition) in state.segments:
                totals.add(totals_of_segments(state.segments[topic_id, partition]))
        complete = self.complete.get(topic_id, -1)
        return InspectedTopic(
            name=topic.name,
            topic_id=topic_id,
            incarnation=at + 1,
            incarnations=len(found),
            taken=chosen is topic,
            replication_factor=topic.replication_factor,
            configs=dict(topic.configs),
            records=totals.records,
            bytes=totals.bytes,
            stored_bytes=totals.stored_bytes,
            segments=totals.segments,
            runs=len({self.run_of(epoch) for epoch in totals.epochs}),
            times=_times(totals),
            complete=complete,
            complete_time=moment(complete),
            partitions=tuple(_partition(state, self.beginnings, topic_id, partition) for partition in range(count)),
            branches=tuple(
                _branch(branch)
                for partition in range(count)
                for branch in branches_of((topic_id, partition), state.lines.get((topic_id, partition), ()))
            ),
        )


def _branch(branch: Branch) -> BranchInfo:
    totals = totals_of(branch.held.rows)
    return BranchInfo(
        id=branch.id,
        partition=branch.key[1],
        start=branch.offset,
        end=branch.end,
        records=totals.records,
        bytes=totals.bytes,
        stored_bytes=totals.stored_bytes,
        segments=totals.segments,
        times=_times(totals),
    )


def _partition(
    state: ArchiveState, beginnings: Mapping[Partition, int], topic_id: str, partition: int
) -> InspectedPartition:
    segments = state.segments.get((topic_id, partition))
    totals = SegmentTotals() if segments is None else totals_of_segments(segments)
    accounted = state.accounted_for(topic_id, partition)
    first = first_exact(state, (topic_id, partition)) if topic_id in state.topics else None
    return InspectedPartition(
        partition=partition,
        start=accounted[0][0] if accounted else -1,
        end=accounted[-1][1] if accounted else -1,
        records=totals.records,
        bytes=totals.bytes,
        stored_bytes=totals.stored_bytes,
        segments=totals.segments,
        times=_times(totals),
        gaps=tuple(GapInfo(gap.start, gap.end, gap.reason) for gap in state.gaps.get((topic_id, partition), ())),
        holes=tuple(holes(state, (topic_id, partition), beginnings)),
        removed=tuple(state.removed.get((topic_id, partition), ())),
        snapshots=tuple(map(_snapshot, state.snapshots.get((topic_id, partition), ()))),
        exact_from=-1 if first is None or not accounted else first.offset,
        generation=_generation(state, (topic_id, partition)),
    )


def _generation(state: ArchiveState, key: Partition) -> GenerationInfo | None:
    if key not in state.next_generations:
        return None
    known = generation_of(state, key)
    passive, found = known.passive, None
    if passive is not None:
        left = sum(end - start for start, end in unread(state, key, passive))
        began, size = passive.began, passive.end - passive.start
        found = PassiveInfo(passive.number, began, moment(began), passive.start, passive.end, size - left)
    times = known.began, moment(known.began), known.since, moment(known.since)
    exact = -1 if known.exact_from == NOWHERE else known.exact
    return GenerationInfo(known.number, *times, exact, found, known.due)


def _snapshot(held: HeldSnapshot) -> SnapshotInfo:
    totals = totals_of(held.rows)
    return SnapshotInfo(
        end=held.end,
        leader_epoch=held.leader_epoch,
        time=held.time,
        time_text=moment(held.time),
        records=totals.records,
        bytes=totals.bytes,
        parts=totals.segments,
    )


def _groups(state: ArchiveState, topics: Callable[[str], bool] | None) -> tuple[GroupInfo, ...]:
    positions: dict[tuple[str, bool], list[PositionInfo]] = {}
    for group in state.groups:
        if topics is None or topics(group.topic):
            position = PositionInfo(
                group.topic, group.topic_id, group.partition, group.offset, group.leader_epoch, group.metadata
            )
            positions.setdefault((group.group_id, group.share), []).append(position)
    return tuple(
        GroupInfo(group_id, tuple(sorted(found, key=lambda item: (item.topic, item.partition))), share)
        for (group_id, share), found in sorted(positions.items())
    )


def _times(totals: SegmentTotals) -> TimeRange:
    return TimeRange(totals.first, totals.last, moment(totals.first), moment(totals.last))

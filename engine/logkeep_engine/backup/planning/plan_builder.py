"""Makes the plan of a backup run out of what brokers answered and what the archive holds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from logkeep_engine.archive.catalog.facts import (
    Gap,
    GenerationChange,
    GroupEntry,
    Partition,
    TopicEntry,
    branch_id,
)
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, Fork, LeaderSeen, LogStanding
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range, cut
from logkeep_engine.archive.reading.beginnings import holes
from logkeep_engine.backup.model.plan import (
    CHUNK_BYTES,
    REASON_DELETED,
    REASON_RETENTION,
    BackupPlan,
    Chunk,
    TopicPartition,
)
from logkeep_engine.backup.planning.generations import GenerationPolicy, to_read
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo
from logkeep_engine.log.cleanup import is_compacted

MIN_CHUNK_OFFSETS = 1000  # a partition whose size is not known is not cut into crumbs

_UNCOMPARED = LogStanding(UNKNOWN, known=False)


@dataclass(frozen=True)
class BrokerAnswers:
    """The answers of brokers about the topics of a run.

    `earliest` and `ends` are log start and last stable offset of each partition. A partition without them is
    unavailable, and so is one that the archive knows and the topic does not have. A topic without `configs` keeps those
    that the archive knows. `sizes` are bytes on the leader's disk, 0 or missing if not known. `standings` tell where
    logs part from the archive. A log about which nothing is known parts from it if it ends below the archived end.
    `silent` are partitions whose leader did not report how its log stands.
    """

    configs: Mapping[str, Mapping[str, str]]
    earliest: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int]
    standings: Mapping[TopicPartition, LogStanding] = field(default_factory=dict)
    silent: Collection[TopicPartition] = ()

    def of(self, where: TopicPartition) -> tuple[int, int] | None:
        """Return the log start and the end of a partition; None if it cannot be planned."""
        if where not in self.earliest or where not in self.ends or where in self.silent:
            return None
        return self.earliest[where], self.ends[where]


def make_plan(
    run_id: str,
    topics: Sequence[TopicInfo],
    answers: BrokerAnswers,
    state: ArchiveState,
    *,
    among: Collection[TopicPartition] | None = None,
    branch: bool = False,
    beginnings: Mapping[Partition, int] = MappingProxyType({}),
    groups: Iterable[GroupEntry] = (),
    generations: GenerationPolicy | None = None,
    chunk_bytes: int | None = None,
) -> BackupPlan:
    """Return the plan of a run over `topics`: all offsets from the beginning of a partition's archive to the end of its
    log for which the archive does not account yet. Those of them that lie below the log's start are gaps.

    Only partitions `among` these are planned, if given. A partition that the archive does not know starts at its log
    start; since the archive knows topics by id, a recreated topic does too. With `branch` the old end of a log that
    parts from the archive becomes a branch and the log is planned from there, otherwise nothing is planned, unless the
    archive holds nothing there but gaps. `beginnings` are partitions whose first offsets an earlier run has left out,
    and where they begin (see `archive.reading.beginnings`). A log start that has moved back adds nothing: what comes
    before the archive's first offset was gone when the archive began, and may be the start of a batch that it has the
    rest of. With `generations` compacted partitions are read again when it is time.
    """
    making = _Making(answers, state, beginnings, branch, generations, chunk_bytes or CHUNK_BYTES)
    for topic in topics:
        missing = ((topic.name, number) for number in unheard_of(topic, state))
        making.unavailable += (where for where in missing if among is None or where in among)
        for partition in topic.partitions:
            if among is None or (topic.name, partition.id) in among:
                making.add(topic, partition)
    return BackupPlan(
        run_id=run_id,
        topics=tuple(
            TopicEntry(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                replication_factor=topic.replication_factor,
                configs=dict(_configs(topic, answers.configs, state)),
            )
            for topic in topics
        ),
        chunks=tuple(making.chunks),
        gaps=tuple(making.gaps),
        forks=tuple(making.forks),
        leaders=tuple(making.leaders),
        uncompared=tuple(making.uncompared),
        groups=tuple(_within(groups, topics, answers.ends, _old_ends(state, making.forks))),
        idle=making.idle,
        unavailable=tuple(making.unavailable),
        generations=tuple(making.changes),
    )


class _Making:
    """The plan in the making: partitions are added one by one."""

    def __init__(
        self,
        answers: BrokerAnswers,
        state: ArchiveState,
        beginnings: Mapping[Partition, int],
        branch: bool,
        generations: GenerationPolicy | None,
        chunk_bytes: int,
    ) -> None:
        self._answers = answers
        self._state = state
        self._beginnings = beginnings
        self._branch = branch
        self._generations = generations
        self._chunk_bytes = chunk_bytes
        self.chunks: list[Chunk] = []
        self.gaps: list[Gap] = []
        self.forks: list[Fork] = []
        self.leaders: list[LeaderSeen] = []
        self.changes: list[GenerationChange] = []
        self.uncompared: list[TopicPartition] = []
        self.unavailable: list[TopicPartition] = []
        self.idle = 0

    def add(self, topic: TopicInfo, partition: PartitionInfo) -> None:
        state, where, key = self._state, (topic.name, partition.id), (topic.topic_id, partition.id)
        answered = self._answers.of(where)
        if answered is None:
            self.unavailable.append(where)
            return
        log_start, end = answered
        accounted = state.accounted_for(*key)
        standing = self._answers.standings.get(where, _UNCOMPARED)
        parted = _fork(standing, accounted, end)
        if parted is not None:
            if not self._goes_on(key, parted, accounted):
                return
            accounted, _ = cut(accounted, parted)
        if accounted and not standing.known:
            self.uncompared.append(where)
        start = self._beginnings.get(key, accounted[0][0]) if accounted else log_start
        self.gaps += (Gap(*key, *part, REASON_RETENTION) for part in _open(state, key, start, log_start, parted))
        wanted = _open(state, key, max(start, log_start), end, parted)
        generation, again = self._again(topic, key, log_start, parted)
        self.idle += not wanted and not again
        if standing.leader_epoch >= 0 and (wanted or again or parted is not None or key not in state.leaders):
            self.leaders.append(LeaderSeen(*key, standing.leader_epoch))
        # The offsets of a partition rise from chunk to chunk: what is read again comes first.
        for number, part in (*((generation, part) for part in again), *((0, part) for part in wanted)):
            size = self._answers.sizes.get(where, 0) * (part[1] - part[0]) // max(1, end - log_start)
            for low, high, share in _cut(*part, size, self._chunk_bytes):
                self.chunks.append(
                    Chunk(topic.name, topic.topic_id, partition.id, low, high, partition.leader, share, number)
                )

    def _again(self, topic: TopicInfo, key: Partition, log_start: int, parted: int | None) -> tuple[int, list[Range]]:
        """Return the number of the generation of a partition that is to be read, and the ranges of its log for it."""
        if self._generations is None:
            return 0, []
        compacted = is_compacted(_configs(topic, self._answers.configs, self._state))
        whole = key not in self._beginnings
        changes = self._generations.changes(self._state, key, log_start, compacted=compacted, whole=whole, fork=parted)
        self.changes += changes
        return to_read(self._state, key, changes)

    def _goes_on(self, key: Partition, parted: int, accounted: Sequence[Range]) -> bool:
        """Note a log that parts from the archive; returns whether it is planned all the same."""
        keeps = self._branch or not cut(self._state.coverage.get(key, ()), parted)[1]
        branch = next_branch(self._state, key[0]) if keeps else ""
        self.forks.append(Fork(*key, parted, accounted[-1][1], branch))
        return keeps


def gaps_of_deleted(
    state: ArchiveState, topics: Iterable[TopicEntry], beginnings: Mapping[Partition, int]
) -> Iterator[Gap]:
    """Yield the holes of topics that were deleted: no run can archive these offsets any more."""
    for topic in topics:
        for number in range(topic.partitions):
            for hole in holes(state, (topic.topic_id, number), beginnings):
                yield Gap(topic.topic_id, number, *hole, REASON_DELETED)


def unheard_of(topic: TopicInfo, state: ArchiveState) -> Iterable[int]:
    """Return the partitions that a topic had before: it never loses one, but a broker may not have heard of it yet."""
    known = state.topics.get(topic.topic_id)
    return range(len(topic.partitions), known.partitions if known is not None else 0)


def _configs(topic: TopicInfo, configs: Mapping[str, Mapping[str, str]], state: ArchiveState) -> Mapping[str, str]:
    known = state.topics.get(topic.topic_id)
    return configs.get(topic.name, known.configs if known is not None else {})


def _open(state: ArchiveState, key: Partition, start: int, end: int, fork: int | None) -> list[Range]:
    """Return the ranges in [start, end) for which the archive does not account; from `fork` on it accounts for nothing.

    No range is empty, whatever brokers have said: a log may start after the fork, and after its end, since both were
    asked for at different moments.
    """
    if start >= end:
        return []
    if fork is None or fork >= end:
        return state.uncovered(*key, start, end)
    below = state.uncovered(*key, start, fork) if start < fork else []
    return [*below, (max(start, fork), end)]


def next_branch(state: ArchiveState, topic_id: str) -> str:
    """Return the id of the branch that comes after those which the topic has."""
    return branch_id(topic_id, len(state.branch_ids(topic_id)) + 1)


def _fork(standing: LogStanding, accounted: Sequence[Range], end: int) -> int | None:
    """Return the first offset at which a log that ends at `end` is not what is archived any more."""
    if standing.known or not accounted or accounted[-1][1] <= end:
        return standing.fork
    return end


def _cut(start: int, end: int, size: int, chunk_bytes: int) -> Iterable[tuple[int, int, int]]:
    """Even ranges of offsets of about `chunk_bytes` each, with their estimated bytes."""
    offsets = end - start
    count = min(max(1, -(-size // chunk_bytes)), max(1, offsets // MIN_CHUNK_OFFSETS))
    for number in range(count):
        low, high = start + offsets * number // count, start + offsets * (number + 1) // count
        yield low, high, size // count


def _old_ends(state: ArchiveState, forks: Iterable[Fork]) -> dict[Partition, list[EpochStart]]:
    """By partition: the last leader epoch of each of its branches, and the offset at which the branch begins."""
    ends = {key: state.old_ends(key) for key in state.branches}
    for fork in forks:
        key = (fork.topic_id, fork.partition)
        ends.setdefault(key, []).append((state.lineage(*key).newest, fork.offset))
    return ends


def _within(
    groups: Iterable[GroupEntry],
    topics: Sequence[TopicInfo],
    ends: Mapping[TopicPartition, int],
    old_ends: Mapping[Partition, Sequence[EpochStart]],
) -> Iterable[GroupEntry]:
    """Positions in the topics of this run, none past the archived end, and none in an old end of a log.

    Positions are read before the ends, but an uncommitted reader may stand inside a transaction that is still open,
    past the last stable offset. What lies there is not archived, so after a restore its position is the end. A group
    that has read an old end, up to records of a leader from then, has read nothing of what lies at these offsets now.
    """
    ids = {topic.name: topic.topic_id for topic in topics}
    for group in groups:
        end = ends.get((group.topic, group.partition))
        if end is None or ids.get(group.topic) != group.topic_id:
            continue
        offset = min(group.offset, end)
        for epoch, start in old_ends.get((group.topic_id, group.partition), ()):
            if 0 <= group.leader_epoch <= epoch:
                offset = min(offset, start)
        yield group if offset == group.offset else replace(group, offset=offset)

"""What a backup run will do: a pure function of the cluster's offsets, the archive's state and the spec.

A plan is made once a run, stored in the archive before the first task, and loaded when the run's driver starts again:
end offsets and chunk bounds of a run never change. A chunk owns the batches whose base offset lies in [start, end), so
any split of a partition archives the same bytes, and it settles all offsets of these batches and none of others; in the
record-shaped formats it owns the records whose offset lies there, so any split archives the same records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry, Partition, Receipt, TopicEntry, branch_id
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, Fork, LeaderSeen, Standing
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range, cut
from logkeep_engine.backup.sight import NOTHING_MISSED, Sight
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.kafka.control import TopicInfo

PLAN_VERSION = 1
CHUNK_BYTES = 120 << 20  # a little less than a segment (128Mi by default), so that a chunk is one
TASK_BYTES = 256 << 20
MIN_CHUNK_OFFSETS = 1000  # a partition whose size is not known is not cut into crumbs
TASKS_PER_SLOT = 2  # with fewer and larger tasks each has several chunks to read at once
MAX_CHUNKS_PER_TASK = 256

REASON_RETENTION = "removed from the cluster before it was archived (retention or DeleteRecords)"
REASON_RECREATED = "the topic was deleted and created again while it was archived"
REASON_TRUNCATED = "the log was cut off below these offsets while it was archived (unclean leader election)"
REASON_DELETED = "the topic was deleted while it was archived"

TopicPartition = tuple[str, int]
ALL_PARTITIONS = -1
"""The number of a topic of which not even the partitions are known."""

_UNCOMPARED = Standing(UNKNOWN, known=False)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Offsets [start, end) of one partition. `leader` is the broker id at plan time, `bytes` an estimate of its
    batches' size.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    leader: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end) of a partition to archive: what is not settled yet of chunk `number` of the plan.

    In Kafka's format a batch that begins below `start` belongs to a piece before, with all its offsets, whatever is
    left of it there. Only the `first` piece that a partition has in this attempt takes the records of such a batch from
    `start` on: all before is settled. Offsets below `done_below` are in a segment that is archived already, in a batch
    that began before `start`. No batch of the planned log has a leader epoch above `leader_epoch`, UNKNOWN if that is
    not known.
    """

    number: int
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    leader: int
    bytes: int
    done_below: int = 0
    first: bool = False
    leader_epoch: int = UNKNOWN

    @property
    def where(self) -> str:
        return f"topic {self.topic!r} partition {self.partition}"


@dataclass(frozen=True, slots=True)
class GoneTopic:
    """A topic that was deleted while the run was planned: every broker says so."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """A run's work. `chunks` are numbered by their place, which is also the number in progress reports.

    `gaps` were found while planning and are committed with the first commit, and so are `leaders`, on whose logs the
    chunks lie. `forks` are where logs do not go on as the archive does; where nothing becomes a branch there is no
    chunk of the partition.
    `uncompared` partitions are archived in part, and nothing says of which leaders. `idle` partitions have nothing new.
    `unavailable` ones gave no answer, and neither did all of a topic with the number ALL_PARTITIONS; `gone` topics were
    deleted. What was selected is in one of these: nothing is left out.
    `sight` is what of the cluster was not selected, or missed.
    `begun` is when the run had begun for the catalog that it was made by (see `archiving.check_beginning`).
    """

    run_id: str
    topics: tuple[TopicEntry, ...]
    chunks: tuple[Chunk, ...] = ()
    gaps: tuple[Gap, ...] = ()
    forks: tuple[Fork, ...] = ()
    leaders: tuple[LeaderSeen, ...] = ()
    uncompared: tuple[TopicPartition, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    idle: int = 0
    unavailable: tuple[TopicPartition, ...] = ()
    gone: tuple[GoneTopic, ...] = ()
    begun: int = 0
    sight: Sight = NOTHING_MISSED

    def extended(self, more: BackupPlan) -> BackupPlan:
        """With what was unavailable and is planned in `more`; the numbers of chunks stay as they are."""
        topics = {topic.topic_id: topic for topic in (*self.topics, *more.topics)}
        return replace(
            self,
            topics=tuple(topics.values()),
            chunks=self.chunks + more.chunks,
            gaps=self.gaps + more.gaps,
            forks=self.forks + more.forks,
            leaders=self.leaders + more.leaders,
            uncompared=self.uncompared + more.uncompared,
            groups=self.groups + more.groups,
            idle=self.idle + more.idle,
            unavailable=more.unavailable,
            gone=self.gone + more.gone,
        )

    @property
    def topic_names(self) -> dict[str, str]:
        """Topic id -> name."""
        return {topic.topic_id: topic.name for topic in self.topics}

    def to_json(self) -> bytes:
        """Chunks are rows with the topic as a number: a plan of 100,000 partitions is a few megabytes."""
        number = {topic.topic_id: index for index, topic in enumerate(self.topics)}
        document = {
            "version": PLAN_VERSION,
            "runId": self.run_id,
            "topics": [asdict(topic) for topic in self.topics],
            "chunks": [[number[c.topic_id], c.partition, c.start, c.end, c.leader, c.bytes] for c in self.chunks],
            "gaps": [asdict(gap) for gap in self.gaps],
            "forks": [asdict(fork) for fork in self.forks],
            "leaders": [[number[item.topic_id], item.partition, item.epoch] for item in self.leaders],
            "uncompared": [list(pair) for pair in self.uncompared],
            "groups": [asdict(group) for group in self.groups],
            "idle": self.idle,
            "unavailable": [list(pair) for pair in self.unavailable],
            "gone": [asdict(topic) for topic in self.gone],
            "begun": self.begun,
            "sight": self.sight.to_json(),
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> BackupPlan:
        """Raises ArchiveMismatch for a plan of another version: that run is finished by the engine that began it.

        One without leaders was made before they were kept; what it has found `diverged` is a fork.
        """
        document: dict[str, Any] = json.loads(data)
        if document.get("version") != PLAN_VERSION:
            raise ArchiveMismatch(
                f"The plan of this run has version {document.get('version')!r}; this engine reads {PLAN_VERSION}.",
                hint="Start a new run.",
            )
        topics = tuple(TopicEntry(**topic) for topic in document["topics"])
        return cls(
            run_id=document["runId"],
            topics=topics,
            chunks=tuple(
                Chunk(topics[topic].name, topics[topic].topic_id, partition, start, end, leader, size)
                for topic, partition, start, end, leader, size in document["chunks"]
            ),
            gaps=tuple(Gap(**gap) for gap in document["gaps"]),
            forks=tuple(
                [Fork(**fork) for fork in document.get("forks", ())]
                + [
                    Fork(gap["topic_id"], gap["partition"], gap["start"], gap["end"])
                    for gap in document.get("diverged", ())
                ]
            ),
            leaders=tuple(
                LeaderSeen(topics[topic].topic_id, partition, epoch)
                for topic, partition, epoch in document.get("leaders", ())
            ),
            uncompared=tuple((name, number) for name, number in document.get("uncompared", ())),
            groups=tuple(GroupEntry(**group) for group in document["groups"]),
            idle=document["idle"],
            unavailable=tuple((name, number) for name, number in document["unavailable"]),
            gone=tuple(GoneTopic(**topic) for topic in document.get("gone", ())),
            begun=document.get("begun", 0),
            sight=Sight.from_json(document.get("sight", {})),
        )


def make_plan(
    run_id: str,
    topics: Sequence[TopicInfo],
    *,
    configs: Mapping[str, Mapping[str, str]],
    earliest: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, int],
    state: ArchiveState,
    standings: Mapping[TopicPartition, Standing] = MappingProxyType({}),
    silent: Collection[TopicPartition] = (),
    among: Collection[TopicPartition] | None = None,
    branch: bool = False,
    beginnings: Mapping[Partition, int] = MappingProxyType({}),
    groups: Iterable[GroupEntry] = (),
    chunk_bytes: int | None = None,
) -> BackupPlan:
    """The plan of a run over `topics`: everything from where the archive of a partition begins to the log's end that
    is not settled yet. What of it lies below the log's start is a gap.

    `earliest` and `ends` are log start and last stable offset per partition; a partition that is missing there is
    unavailable, and so is one that the archive knows and the topic has not. `configs` of a topic that is missing there
    are what they were. Only partitions `among` these are planned, if given. `sizes` are bytes on the leader's disk, 0
    or missing if not known. A partition that the archive does not know starts at its log start; since the archive knows
    topics by id, a recreated topic does too. `standings` say where logs part from the archive, as a log does of which
    nothing is known and which ends below what is archived. With `branch` the old end becomes a branch and the log is
    planned from there, otherwise nothing is planned, unless the archive holds nothing there but gaps. `silent` are
    partitions whose leader did not say it. `beginnings` are partitions whose first offsets an earlier run has left out,
    and where they begin (see `archive.reading.beginnings`). A log start that has moved back adds nothing: what comes
    before the archive's first offset was gone when the archive began, and may be the start of a batch that it has the
    rest of.
    """
    chunks: list[Chunk] = []
    gaps: list[Gap] = []
    forks: list[Fork] = []
    leaders: list[LeaderSeen] = []
    uncompared: list[TopicPartition] = []
    unavailable: list[TopicPartition] = []
    idle = 0
    for topic in topics:
        missing = ((topic.name, number) for number in unheard_of(topic, state))
        unavailable += (where for where in missing if among is None or where in among)
        for partition in topic.partitions:
            where = (topic.name, partition.id)
            if among is not None and where not in among:
                continue
            if where not in earliest or where not in ends or where in silent:
                unavailable.append(where)
                continue
            key = (topic.topic_id, partition.id)
            log_start, end = earliest[where], ends[where]
            settled = state.settled(*key)
            standing = standings.get(where, _UNCOMPARED)
            parted = _fork(standing, settled, end)
            if parted is not None:
                keeps = branch or not cut(state.coverage.get(key, ()), parted)[1]
                fork = Fork(*key, parted, settled[-1][1], next_branch(state, topic.topic_id) if keeps else "")
                forks.append(fork)
                if not keeps:
                    continue
                settled, _ = cut(settled, parted)
            if settled and not standing.known:
                uncompared.append(where)
            start = beginnings.get(key, settled[0][0]) if settled else log_start
            gaps += (Gap(*key, *part, REASON_RETENTION) for part in _open(state, key, start, log_start, parted))
            wanted = _open(state, key, max(start, log_start), end, parted)
            idle += not wanted
            if standing.leader_epoch >= 0 and (wanted or parted is not None or key not in state.leaders):
                leaders.append(LeaderSeen(*key, standing.leader_epoch))
            for part in wanted:
                size = sizes.get(where, 0) * (part[1] - part[0]) // max(1, end - log_start)
                for low, high, share in _cut(*part, size, chunk_bytes or CHUNK_BYTES):
                    chunks.append(Chunk(topic.name, topic.topic_id, partition.id, low, high, partition.leader, share))
    return BackupPlan(
        run_id=run_id,
        topics=tuple(
            TopicEntry(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                replication_factor=topic.replication_factor,
                configs=dict(_configs(topic, configs, state)),
            )
            for topic in topics
        ),
        chunks=tuple(chunks),
        gaps=tuple(gaps),
        forks=tuple(forks),
        leaders=tuple(leaders),
        uncompared=tuple(uncompared),
        groups=tuple(_within(groups, topics, ends, _old_ends(state, forks))),
        idle=idle,
        unavailable=tuple(unavailable),
    )


def unheard_of(topic: TopicInfo, state: ArchiveState) -> Iterable[int]:
    """The partitions that a topic had before: it never loses one, but a broker may not have heard of it yet."""
    known = state.topics.get(topic.topic_id)
    return range(len(topic.partitions), known.partitions if known is not None else 0)


def _configs(topic: TopicInfo, configs: Mapping[str, Mapping[str, str]], state: ArchiveState) -> Mapping[str, str]:
    known = state.topics.get(topic.topic_id)
    return configs.get(topic.name, known.configs if known is not None else {})


def _open(state: ArchiveState, key: Partition, start: int, end: int, fork: int | None) -> list[Range]:
    """The parts of [start, end) that are not settled; from `fork` on nothing is. None is empty, whatever brokers have
    said: a log may start behind the fork, and behind its end, which was asked for at another moment.
    """
    if start >= end:
        return []
    if fork is None or fork >= end:
        return state.uncovered(*key, start, end)
    below = state.uncovered(*key, start, fork) if start < fork else []
    return [*below, (max(start, fork), end)]


def next_branch(state: ArchiveState, topic_id: str) -> str:
    """The id of the branch that comes after those which the topic has."""
    return branch_id(topic_id, len(state.branch_ids(topic_id)) + 1)


def _fork(standing: Standing, settled: Sequence[Range], end: int) -> int | None:
    """The first offset at which a log that ends at `end` is not what is archived any more."""
    if standing.known or not settled or settled[-1][1] <= end:
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
        yield replace(group, offset=offset)


def open_gaps(plan: BackupPlan, state: ArchiveState) -> Iterable[Gap]:
    """What of the plan's gaps is not settled yet: between two attempts at a plan another run may have committed."""
    for gap in plan.gaps:
        for start, end in state.uncovered(gap.topic_id, gap.partition, gap.start, gap.end):
            yield replace(gap, start=start, end=end)


def open_pieces(plan: BackupPlan, state: ArchiveState) -> Iterable[Piece]:
    """What of the plan's chunks is neither archived nor recorded as lost."""
    before: Partition | None = None
    leaders = {(item.topic_id, item.partition): item.epoch for item in plan.leaders}
    for number, chunk in enumerate(plan.chunks):
        key = (chunk.topic_id, chunk.partition)
        for start, end in state.uncovered(*key, chunk.start, chunk.end):
            held = state.held_until(*key, start)
            yield Piece(
                number=number,
                topic=chunk.topic,
                topic_id=chunk.topic_id,
                partition=chunk.partition,
                start=start,
                end=end,
                leader=chunk.leader,
                bytes=chunk.bytes * (end - start) // (chunk.end - chunk.start),
                done_below=held if held > start else 0,
                first=key != before,
                leader_epoch=leaders.get(key, UNKNOWN),
            )
            before = key


def still_open(receipts: Iterable[Receipt], state: ArchiveState) -> list[Receipt]:
    """The receipts without what is settled already, in the archive or by one before them, and without those of which
    nothing is left.

    A batch across the end of a chunk settles offsets of the next one, which has settled them too if it has not seen the
    batch: compaction or retention has removed it between their fetches.
    """
    settled = ArchiveState()

    def parts(item: Coverage | Gap) -> Iterable[Range]:
        key = (item.topic_id, item.partition)
        for part in state.uncovered(*key, item.start, item.end):
            yield from settled.uncovered(*key, *part)

    left: list[Receipt] = []
    for receipt in receipts:
        coverage = tuple(replace(item, start=start, end=end) for item in receipt.coverage for start, end in parts(item))
        gaps = tuple(replace(item, start=start, end=end) for item in receipt.gaps for start, end in parts(item))
        settled.add_facts((), coverage, (), gaps)
        if coverage or gaps:
            left.append(replace(receipt, coverage=coverage, gaps=gaps))
    return left


def pack(pieces: Sequence[Piece], slots: int, *, task_bytes: int = TASK_BYTES) -> list[tuple[Piece, ...]]:
    """Share pieces out to tasks: big ones alone, small ones together, the biggest tasks first.

    A task holds at most `task_bytes` (one piece may be larger) and MAX_CHUNKS_PER_TASK pieces, and there are at least
    TASKS_PER_SLOT tasks for each of `slots` executor cores while there are pieces enough. Pieces of one leader stay
    together, so a task talks to few brokers; a piece of unknown size counts as a small one.
    """
    wanted = max(1, slots) * TASKS_PER_SLOT
    byte_limit = min(task_bytes, sum(piece.bytes for piece in pieces) // wanted)
    count_limit = min(MAX_CHUNKS_PER_TASK, max(1, len(pieces) // wanted))
    tasks: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for piece in sorted(pieces, key=lambda item: (item.leader, item.topic, item.partition, item.start)):
        if current and (size + piece.bytes > byte_limit or len(current) >= count_limit):
            tasks.append(tuple(current))
            current, size = [], 0
        current.append(piece)
        size += piece.bytes
    if current:
        tasks.append(tuple(current))
    return sorted(tasks, key=lambda task: -sum(piece.bytes for piece in task))

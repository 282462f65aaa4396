"""The plan of a backup run: a pure function of the cluster's offsets, the archive's state and the spec.

A plan is made once a run, stored in the archive before the first task, and loaded when the run's driver starts again:
end offsets and chunk bounds of a run never change. A chunk owns the batches whose base offset lies in [start, end), so
any division of a partition archives the same bytes. The chunk accounts for all offsets of these batches, and for none
of others. In the formats of records it owns the records whose offset lies there, so any division archives the same
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from logkeep_engine.archive.catalog.facts import (
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Partition,
    Receipt,
    TopicEntry,
)
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.lineage import UNKNOWN, Fork, LeaderSeen
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import BACKUP_PLAN, row_out, topic_in, topic_out
from logkeep_engine.archive.ranges import Range
from logkeep_engine.backup.model.unselected_topics import NOTHING_MISSED, UnselectedTopics
from logkeep_engine.stored import reading
from logkeep_engine.tasks import Demand

CHUNK_BYTES = 496 << 20  # a little less than a segment (512Mi by default), so that a chunk is one
TASK_BYTES = 1 << 30
TASKS_PER_SLOT = 2  # with fewer and larger tasks each has several chunks to read at once
SMALL_TASK_BYTES = 20 << 20  # a smaller task waits for connections, first answers and the disk more than it works
ONE_SLOT_BYTES = 512 << 20  # up to here a crash undoes little, and who watches does not wait long for a first partition
EXCESS = 16  # a task may have this part of its share besides
MAX_CHUNKS_PER_TASK = 512
UNKNOWN_RECORD_BYTES = 100  # a guess, where the broker does not report the size of a log

REASON_RETENTION = "removed from the cluster before it was archived (retention or DeleteRecords)"
REASON_RECREATED = "the topic was deleted and created again before all of it was archived"
REASON_TRUNCATED = "the log was cut off below these offsets while it was archived (unclean leader election)"
REASON_DELETED = "the topic was deleted before all of it was archived"

TopicPartition = tuple[str, int]
ALL_PARTITIONS = -1
"""The number of a topic of which not even the partitions are known."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Offsets [start, end) of one partition. `leader` is the broker id at plan time, `bytes` an estimate of its
    batches' size. With a `generation` they are read for the passive generation of that number.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    leader: int
    bytes: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end) of a partition to archive: offsets of chunk `number` for which the archive does not account.

    In Kafka's format a batch that begins below `start` belongs to an earlier piece, with all its offsets. Only the
    `first` piece that a partition has in this attempt takes the records of such a batch from `start` on, since the
    archive accounts for all offsets before. Offsets below `done_below` are archived already, in a batch that began
    before `start`. No batch of the planned log has a leader epoch above `leader_epoch`, which may be UNKNOWN.
    `generation` is that of the chunk.
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
    generation: int = 0

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

    `gaps` were found while planning; the first commit notes them, and the `leaders` on whose logs the chunks lie. Gaps
    may be of topics that the archive alone has: they were deleted.
    `forks` are the offsets from which on logs no longer are those of the archive; a partition with a fork has chunks
    only if its old end becomes a branch. `uncompared` partitions have archived offsets, but it is unknown under
    which leaders these were written. `idle` partitions have nothing new. `unavailable` partitions gave no answer; the
    number ALL_PARTITIONS stands for all partitions of a topic. `gone` topics were deleted. Every selected partition is
    in one of these. `sight` are the topics of the cluster that were not selected, or that are missing. `begun` is the
    time at which the run had begun, by the catalog with which the plan was made (see `archiving.check_beginning`).
    `generations` are steps of generations that come before the first chunk.
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
    sight: UnselectedTopics = NOTHING_MISSED
    generations: tuple[GenerationChange, ...] = ()

    def extended(self, more: BackupPlan) -> BackupPlan:
        """Return the plan with all of `more`, which plans what was unavailable. The numbers of chunks stay as they
        are."""
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
            generations=self.generations + more.generations,
        )

    @property
    def branches(self) -> tuple[Fork, ...]:
        """The forks whose old ends become branches."""
        return tuple(fork for fork in self.forks if fork.branch_id)

    @property
    def topic_names(self) -> dict[str, str]:
        """Topic id -> name."""
        return {topic.topic_id: topic.name for topic in self.topics}

    def names_with(self, state: ArchiveState) -> dict[str, str]:
        """Topic id -> name, with the topics that the archive alone has."""
        return {topic.topic_id: topic.name for topic in (*state.topics.values(), *self.topics)}

    def to_json(self) -> bytes:
        """Chunks are rows with the topic as a number: a plan of 100,000 partitions is a few megabytes."""
        number = {topic.topic_id: index for index, topic in enumerate(self.topics)}
        return BACKUP_PLAN.dumps(
            {
                "runId": self.run_id,
                "topics": [topic_out(topic) for topic in self.topics],
                "chunks": [[number[chunk.topic_id], *_numbers(chunk)] for chunk in self.chunks],
                "gaps": [row_out(gap) for gap in self.gaps],
                "forks": [list(astuple(fork)) for fork in self.forks],
                "leaders": [[number[item.topic_id], item.partition, item.epoch] for item in self.leaders],
                "uncompared": [list(pair) for pair in self.uncompared],
                "groups": [row_out(group) for group in self.groups],
                "idle": self.idle,
                "unavailable": [list(pair) for pair in self.unavailable],
                "gone": [[topic.name, topic.topic_id] for topic in self.gone],
                "begun": self.begun,
                "sight": self.sight.to_json(),
                "generations": [list(astuple(item)) for item in self.generations],
            }
        )

    @classmethod
    def from_json(cls, data: bytes, name: str) -> BackupPlan:
        """Return the plan in the object `name`. Raises ArchiveMismatch for a plan of another version: the engine that
        began such a run must finish it. Raises ArchiveDamaged for anything else."""
        with reading(BACKUP_PLAN, data, name, hint="The object was altered: start a run under another id.") as body:
            topics = tuple(map(topic_in, body["topics"]))
            return cls(
                run_id=body["runId"],
                topics=topics,
                chunks=tuple(
                    Chunk(topics[topic].name, topics[topic].topic_id, *numbers) for topic, *numbers in body["chunks"]
                ),
                gaps=tuple(Gap(*row) for row in body["gaps"]),
                forks=tuple(Fork(*row) for row in body["forks"]),
                leaders=tuple(
                    LeaderSeen(topics[topic].topic_id, partition, epoch) for topic, partition, epoch in body["leaders"]
                ),
                uncompared=tuple((topic, number) for topic, number in body["uncompared"]),
                groups=tuple(GroupEntry(*row) for row in body["groups"]),
                idle=body["idle"],
                unavailable=tuple((topic, number) for topic, number in body["unavailable"]),
                gone=tuple(GoneTopic(*row) for row in body["gone"]),
                begun=body["begun"],
                sight=UnselectedTopics.from_json(body["sight"]),
                generations=tuple(map(_change, body["generations"])),
            )


def _numbers(chunk: Chunk) -> tuple[int, ...]:
    return chunk.partition, chunk.start, chunk.end, chunk.leader, chunk.bytes, chunk.generation


def _change(row: Sequence[Any]) -> GenerationChange:
    topic_id, partition, number, step, start, end = row
    return GenerationChange(topic_id, partition, number, GenerationStep(step), start, end)


def open_gaps(plan: BackupPlan, state: ArchiveState) -> Iterable[Gap]:
    """Yield the gaps of the plan for which the archive does not account yet. Another run may have committed some
    between two attempts.
    """
    for gap in plan.gaps:
        for start, end in state.uncovered(gap.topic_id, gap.partition, gap.start, gap.end):
            yield replace(gap, start=start, end=end)


def open_pieces(plan: BackupPlan, state: ArchiveState) -> Iterable[Piece]:
    """Yield the pieces of the plan's chunks for which the archive, or the passive generation that is planned, does not
    account yet."""
    before: tuple[Partition, int] | None = None
    leaders = {(item.topic_id, item.partition): item.epoch for item in plan.leaders}
    for number, chunk in enumerate(plan.chunks):
        key = (chunk.topic_id, chunk.partition)
        passive = passive_of(state, key)
        if chunk.generation and (passive is None or passive.number != chunk.generation):
            continue  # it is active by now, or was dropped
        own = state.of_generation(chunk.generation)
        for start, end in own.uncovered(*key, chunk.start, chunk.end):
            held = own.held_until(*key, start)
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
                first=(key, chunk.generation) != before,
                leader_epoch=leaders.get(key, UNKNOWN),
                generation=chunk.generation,
            )
            before = (key, chunk.generation)


def still_open(receipts: Iterable[Receipt], state: ArchiveState) -> list[Receipt]:
    """Return the receipts without the offsets for which the archive, or an earlier receipt, accounts already. Receipts
    that are empty then are left out.

    A batch across the end of a chunk accounts for offsets of the next chunk. The next chunk accounts for them too if it
    has not seen the batch, because compaction or retention has removed it between the two fetches.
    """
    by_kind = {False: ArchiveState(), True: ArchiveState()}

    def parts(item: Coverage | Gap) -> Iterable[Range]:
        key = (item.topic_id, item.partition)
        for part in own.uncovered(*key, item.start, item.end):
            yield from accounted.uncovered(*key, *part)

    left: list[Receipt] = []
    for receipt in receipts:
        own, accounted = state.of_generation(receipt.generation), by_kind[receipt.generation > 0]
        coverage = tuple(replace(item, start=start, end=end) for item in receipt.coverage for start, end in parts(item))
        gaps = tuple(replace(item, start=start, end=end) for item in receipt.gaps for start, end in parts(item))
        accounted.add_facts((), coverage, (), gaps)
        if coverage or gaps:
            left.append(replace(receipt, coverage=coverage, gaps=gaps))
    return left


def demand_of(pieces: Sequence[Piece], bytes_per_second: int | None) -> Demand:
    """Return how much these pieces move. A piece of unknown size may be a large one that lies in a remote tier."""
    size = sum(piece.bytes or (piece.end - piece.start) * UNKNOWN_RECORD_BYTES for piece in pieces)
    return Demand(len(pieces), size, bytes_per_second)


def pack(pieces: Sequence[Piece], slots: int, *, limited: bool = False) -> list[tuple[Piece, ...]]:
    """Share pieces out to tasks: big ones alone, small ones together, the biggest tasks first.

    A task holds at most TASK_BYTES (one piece may be larger) and MAX_CHUNKS_PER_TASK pieces, and there are at least
    TASKS_PER_SLOT tasks for each of `slots` executor cores while there are pieces enough, or one for each if these
    would have less than SMALL_TASK_BYTES. One core alone gets one for up to ONE_SLOT_BYTES: no other waits for it
    in the end, and between two tasks it waits for the last disk write of one and the first answer of the other. A
    task may have a little more than its share: the partitions of a topic are seldom quite equal, and what does not
    fit would be a task more. A run whose bytes a second are `limited` takes its time with few bytes, which a crash
    should not undo. Pieces of one leader stay together, so a task talks to few brokers; a piece of unknown size
    counts as a small one.
    """
    total = sum(piece.bytes for piece in pieces)
    wanted = max(1, slots) * TASKS_PER_SLOT
    few = total < wanted * SMALL_TASK_BYTES or (slots <= 1 and total <= ONE_SLOT_BYTES)
    if few and not limited and all(piece.bytes for piece in pieces):
        wanted = max(1, slots)
    share = total // wanted
    byte_limit = min(TASK_BYTES, share + share // EXCESS)
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

"""Asks the leaders of thousands of partitions at once, until each has answered or patience ends.

    async with BrokerPool(connection, connection.limits) as pool:
        starts = await Survey(pool).offsets(partitions, EARLIEST)
        starts.found, starts.unknown, starts.silent

A partition is in exactly one of the three: what cannot be known is said, never left out and never guessed. Leaders are
asked for again before each attempt, so that one which died or moved costs a second and not the whole patience.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from logkeep_engine.kafka import queries
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.queries import EpochEnd, Offset, PartitionView, TopicView, Where
from logkeep_engine.kafka.retry import RetriableError, raise_for, refused

T = TypeVar("T")
V = TypeVar("V")

TOPICS_A_REQUEST = 2_000
PARTITIONS_A_REQUEST = 2_000


class _Answer(Protocol):
    @property
    def code(self) -> int:
        """The protocol's error code."""


@dataclass(slots=True)
class Answers(Generic[T]):
    """Answers by topic and partition. `unknown`: brokers say that there is no such topic or partition. `silent`: no
    broker gave a usable answer, with the reason.
    """

    found: dict[Where, T] = field(default_factory=dict)
    unknown: dict[Where, str] = field(default_factory=dict)
    silent: dict[Where, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """Where an epoch ended in the log of the partition's leader: see `queries.EpochEnd`. A broker has answered as the
    leader of `current_epoch`."""

    current_epoch: int
    leader_epoch: int
    end_offset: int


class Survey:
    """Questions through an open `BrokerPool`. `patience`: seconds for one question with its repetitions."""

    def __init__(self, pool: BrokerPool, patience: float | None = None) -> None:
        self.pool = pool
        self.patience = pool.limits.control if patience is None else patience
        self._until = asyncio.get_running_loop().time() + self.patience

    def time_left(self, seconds: float | None = None) -> bool:
        """Return whether this survey is still within its patience, and within its first `seconds`: then an answer that
        may get better is asked for again."""
        less = 0.0 if seconds is None else max(0.0, self.patience - seconds)
        return asyncio.get_running_loop().time() < self._until - less

    # ---- questions

    async def topics(self, names: Sequence[str] | None = None) -> list[TopicView]:
        """These topics, or all, as one broker knows them, by name.

        Raises RetriableError if no broker answers, BrokerRefused.
        """
        if names is None:
            view = await self.pool.describe(None)
            return sorted(view.topics, key=lambda topic: topic.name)
        found: list[TopicView] = []
        for part in in_parts(sorted(set(names)), TOPICS_A_REQUEST):
            found += (await self.pool.describe(part)).topics
        return found

    async def offsets(self, partitions: Iterable[Where], timestamp: int) -> Answers[int]:
        """Offsets at `timestamp`, EARLIEST or LATEST. An answer below 0 is none."""
        answers = await self.led_offsets(partitions, timestamp)
        found = {where: offset for where, (offset, _) in answers.found.items()}
        return Answers(found, answers.unknown, answers.silent)

    async def led_offsets(
        self, partitions: Iterable[Where], timestamp: int, *, committed: bool = False
    ) -> Answers[tuple[int, int]]:
        """Return the same, each with the epoch of the leader that gives it. With `committed` LATEST is the last stable
        offset."""

        def ask(wanted: Mapping[str, Sequence[tuple[int, int, int]]]) -> Call[queries.Offsets]:
            return queries.list_offsets(wanted, committed=committed)

        def read(answer: Offset, leader: PartitionView) -> tuple[int, int]:
            if answer.offset < 0:
                raise RetriableError(f"the leader gives the offset {answer.offset}")
            return answer.offset, leader.leader_epoch

        return await self._ask_leaders(dict.fromkeys(partitions, timestamp), ask, read, "list offsets of")

    async def record_times(self, wanted: Mapping[Where, int]) -> Answers[int | None]:
        """Return the time of the first record that is not older than the time given, both in ms since the epoch; None
        if there is no such record. Records of open transactions count, too."""

        def ask(items: Mapping[str, Sequence[tuple[int, int, int]]]) -> Call[queries.Offsets]:
            return queries.list_offsets(items, committed=False)

        def read(answer: Offset, leader: PartitionView) -> int | None:
            return answer.timestamp if answer.offset >= 0 and answer.timestamp >= 0 else None

        return await self._ask_leaders(wanted, ask, read, "list offsets of")

    async def epoch_ends(self, wanted: Mapping[Where, int | None]) -> Answers[Ended]:
        """Return where these leader epochs ended in the leaders' logs; None asks for the leader's own epoch: the log's
        end."""

        def ask(items: Mapping[str, Sequence[tuple[int, int, int | None]]]) -> Call[queries.EpochEnds]:
            return queries.epoch_ends(
                {
                    topic: [(number, now, now if epoch is None else epoch) for number, now, epoch in parts]
                    for topic, parts in items.items()
                }
            )

        def read(answer: EpochEnd, leader: PartitionView) -> Ended:
            return Ended(leader.leader_epoch, answer.leader_epoch, answer.end_offset)

        return await self._ask_leaders(wanted, ask, read, "ask for the leader epochs of")

    async def registered(self) -> frozenset[int] | None:
        """Return the brokers that the controller knows, also those that are down; None if brokers of this version do
        not report it.

        Raises RetriableError, BrokerRefused.
        """
        node, call = self.pool.any_node(), queries.describe_cluster()
        if not await self.pool.speaks(node, call):
            return None
        answer = await self.pool.ask(node, call)
        if answer.code != Code.NONE:
            raise RetriableError(f"{self.pool.name(node)} says {Code.name_of(answer.code)}")
        return frozenset(answer.fenced)

    # ---- asking

    async def _ask_leaders(
        self,
        wanted: Mapping[Where, V],
        ask: Callable[[Mapping[str, Sequence[tuple[int, int, V]]]], Call[Any]],
        read: Callable[[Any, PartitionView], T],
        what: str,
    ) -> Answers[T]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience
        unknown_since: dict[Where, float] = {}
        answers: Answers[T] = Answers()
        left = dict(wanted)
        pause = self.pool.limits.pause
        while left:
            started = loop.time()
            round_ = _Round(self.pool, left, ask, read, what)
            await round_.perform(await self._leaders({topic for topic, _ in left}))
            for where, value in round_.found.items():
                answers.found[where] = value
                del left[where]
            for where in left:
                if where not in round_.unknown:
                    unknown_since.pop(where, None)  # a topic must be unknown without a break
                elif started - unknown_since.setdefault(where, started) >= self.pool.limits.unknown:
                    answers.unknown[where] = round_.unknown[where]
            for where in answers.unknown:
                left.pop(where, None)
            if left and loop.time() >= until:
                answers.silent = {where: round_.reason(where) for where in left}
                break
            if left:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, self.pool.limits.longest_pause)
        return answers

    async def _leaders(self, topics: Iterable[str]) -> dict[str, TopicView] | RetriableError:
        try:
            return {topic.name: topic for topic in await self.topics(list(topics))}
        except RetriableError as trouble:
            return trouble


@dataclass(slots=True)
class _Round(Generic[V, T]):
    """One attempt to get all answers."""

    pool: BrokerPool
    wanted: Mapping[Where, V]
    ask: Callable[[Mapping[str, Sequence[tuple[int, int, V]]]], Call[Any]]
    read: Callable[[Any, PartitionView], T]
    what: str
    found: dict[Where, T] = field(default_factory=dict)
    unknown: dict[Where, str] = field(default_factory=dict)
    trouble: dict[Where, str] = field(default_factory=dict)
    missing: str = "no broker answers"

    def reason(self, where: Where) -> str:
        """Return why there is no answer."""
        return self.trouble.get(where) or self.unknown.get(where) or self.missing

    async def perform(self, topics: dict[str, TopicView] | RetriableError) -> None:
        if isinstance(topics, RetriableError):
            self.missing = topics.reason
            return
        by_leader: dict[int, list[tuple[Where, PartitionView]]] = {}
        for where in self.wanted:
            leader = self._leader(where, topics.get(where[0]))
            if leader is not None:
                by_leader.setdefault(leader.leader, []).append((where, leader))
        # A leader's requests one after another, leaders at the same time.
        await asyncio.gather(*(self._ask_one(node, items) for node, items in by_leader.items()))

    def _leader(self, where: Where, topic: TopicView | None) -> PartitionView | None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.code
        partition = topic.partitions.get(where[1]) if topic is not None else None
        if code == Code.NONE and partition is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        if code != Code.NONE:
            self._refused(where, code, "")
            return None
        assert partition is not None
        if partition.leader < 0:
            self.trouble[where] = "it has no leader"
            return None
        return partition

    async def _ask_one(self, node: int, items: Sequence[tuple[Where, PartitionView]]) -> None:
        for part in in_parts(items, PARTITIONS_A_REQUEST):
            by_topic: dict[str, list[tuple[int, int, V]]] = {}
            for where, leader in part:
                by_topic.setdefault(where[0], []).append((where[1], leader.leader_epoch, self.wanted[where]))
            try:
                answer = await self.pool.ask(node, self.ask(by_topic))
            except RetriableError as trouble:
                self.trouble |= {where: trouble.reason for where, _ in part}
                continue
            for where, leader in part:
                self._take(where, leader, answer.partitions.get(where))

    def _take(self, where: Where, leader: PartitionView, answer: _Answer | None) -> None:
        if answer is None:
            self.trouble[where] = f"{self.pool.name(leader.leader)} did not include it in its answer"
        elif answer.code != Code.NONE:
            self._refused(where, answer.code, self.pool.name(leader.leader))
        else:
            try:
                self.found[where] = self.read(answer, leader)
            except RetriableError as trouble:
                self.trouble[where] = f"{self.pool.name(leader.leader)}: {trouble.reason}"

    def _refused(self, where: Where, code: int, broker: str) -> None:
        try:
            raise_for(code, *where, self.what, "DESCRIBE", broker)
        except RetriableError as trouble:
            (self.unknown if trouble.gone else self.trouble)[where] = trouble.reason
        else:
            raise refused(code, *where, self.what, broker or "a broker")


def in_parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `most`."""
    iterator = iter(items)
    while part := list(islice(iterator, most)):
        yield part

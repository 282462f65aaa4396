"""Two archives, or an archive and the topics of a live cluster, record by record.

    with LiveSide(connection, topics) as live:
        comparison = RecordComparison(ArchiveSide(source), live)
        for difference in comparison: print(difference)
        comparison.counts

Compared is what a consumer sees with `read_committed`: neither control records nor records of aborted transactions, and
of a log nothing from the first transaction on that nothing has decided; of an archive only such transactions are left
out, as a restore leaves them out. A partition that only one side has counts if it has such a record. Key, value,
headers and timestamp must be equal; offsets only if asked for, since a restore may give others. Without offsets the two
sides are walked in step, and where they part, the next records that are equal again are looked for among a window of
records. Memory: a few blocks a side and the window, whatever the size of the partitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch, CorruptIndex, CorruptSegment, Refused
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.consumed import differing_fields, time_of
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource
from logkeep_engine.toolbox.transactions import outcomes

if TYPE_CHECKING:
    from logkeep_engine.kafka.client import RawClient
    from logkeep_engine.kafka.connection import KafkaConnection

WINDOW = 1000
"""Records of each side among which equal ones are looked for after a difference."""


Partition = tuple[str, int]


class DifferenceKind(StrEnum):
    ONLY_A = "only in A"
    ONLY_B = "only in B"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Difference:
    """`fields` are the parts that differ. Offsets are None where the side has no such record; a difference without any
    is that of a whole partition.
    """

    kind: DifferenceKind
    topic: str
    partition: int
    offset_a: int | None
    offset_b: int | None
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        if self.offset_a is None and self.offset_b is None:
            return f"{where}: the partition is {self.kind}"
        if self.kind is DifferenceKind.ONLY_A:
            return f"{where}: offset {self.offset_a} of A is not in B"
        if self.kind is DifferenceKind.ONLY_B:
            return f"{where}: offset {self.offset_b} of B is not in A"
        return f"{where}: offset {self.offset_a} of A and {self.offset_b} of B differ in {', '.join(self.fields)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "topic": self.topic,
            "partition": self.partition,
            "offsetA": self.offset_a,
            "offsetB": self.offset_b,
            "fields": list(self.fields),
        }


@dataclass(slots=True)
class Counts:
    """Records that were compared; partitions that only one side has count in the fields for partitions."""

    partitions: int = 0
    partitions_only_a: int = 0
    partitions_only_b: int = 0
    equal: int = 0
    different: int = 0
    only_a: int = 0
    only_b: int = 0

    @property
    def same(self) -> bool:
        return not (self.partitions_only_a or self.partitions_only_b or self.different or self.only_a or self.only_b)

    def to_json(self) -> dict[str, int]:
        return {
            "partitions": self.partitions,
            "partitionsOnlyInA": self.partitions_only_a,
            "partitionsOnlyInB": self.partitions_only_b,
            "equal": self.equal,
            "different": self.different,
            "onlyInA": self.only_a,
            "onlyInB": self.only_b,
        }


class Side(Protocol):
    """One of two sides that are compared: partitions by name and number, and their committed records by offset."""

    def partitions(self) -> Sequence[Partition]: ...

    def records(self, topic: str, partition: int) -> Iterator[LogRecord]: ...


class ArchiveSide:
    """An archive, or log folders. If a topic was deleted and made again, this side has the one that a restore would
    take."""

    def __init__(self, source: LogSource) -> None:
        self._state = source.state
        self._partitions: dict[Partition, list[ToolboxSegment]] = {}
        taken = source.taken()
        # A snapshot lies in a folder of its own, and is in the source where the log is gone.
        found = taken.partitions(checkpoints=self._state is not None)
        for log in found:
            other = self._partitions.get((log.topic, log.partition))
            if other and self._state is not None:
                other += found[log]
                other.sort(key=lambda segment: segment.entry.base_offset if segment.entry is not None else -1)
                continue
            if other:
                folders = " and ".join(display(source.storage, folder) for folder in (other[0].folder, log.folder))
                raise Refused(
                    f"partition {log.partition} of topic {log.topic} lies in {folders}.",
                    hint="Name a folder that has each partition once, such as the data folder of one broker.",
                )
            self._partitions[log.topic, log.partition] = found[log]
        self.topics = {topic.name for topic in taken.topics} | {log.topic for log in found}
        """Also those without a segment, which only a catalog knows."""

    def partitions(self) -> Sequence[Partition]:
        return sorted(self._partitions)

    def records(self, topic: str, partition: int) -> Iterator[LogRecord]:
        """Raises ArchiveDamaged where they cannot be read."""
        segments = self._partitions[topic, partition]
        entries = [segment.entry for segment in segments if segment.entry is not None]
        try:
            if self._state is not None and len(entries) == len(segments):
                yield from _archived(segments[0].storage, topic, entries, self._state)
                return
            ended = outcomes(segments, self._state)
            for segment in segments:
                for where, records in segment.placed():
                    if isinstance(where, Batch):
                        if where.header.base_offset >= ended.stable:
                            return
                        if where.header in ended.aborted or where.header in ended.undecided:
                            continue
                    yield from records
        except BatchTooLarge as error:
            raise error.within(f"topic {topic} partition {partition}") from error
        except (CorruptBatch, CorruptSegment, CorruptIndex) as error:
            archived = self._state is not None
            hint = "`logkeep verify` names all damage." if archived else "`logkeep log dump` shows what is left."
            raise ArchiveDamaged(f"topic {topic} partition {partition}: {error.message}", hint=hint) from error


def _archived(
    storage: Storage, topic: str, entries: Sequence[SegmentEntry], state: ArchiveState
) -> Iterator[LogRecord]:
    """The committed records of an archived partition. Raises CorruptSegment at the first damage."""
    reader = open_damaged(storage, topic, entries, state.kept(entries[0].topic_id, entries[0].partition))
    wrong = (damage for damage in reader.transactions.damage if damage.object.endswith(names.TXNINDEX))
    for item in chain(wrong, reader.records()):
        if isinstance(item, Damage):
            raise CorruptSegment(f"{display(storage, item.object.removeprefix(f'{storage.uri}/'))}: {item.what}.")
        yield from item


class LiveSide(AbstractContextManager["LiveSide"]):
    """Topics of a cluster, up to the last stable offset of the moment at which a partition's turn comes."""

    def __init__(self, connection: KafkaConnection, topics: Sequence[str], partitions: Sequence[int] = ()) -> None:
        """`partitions`: only these; empty: all."""
        self._connection = connection
        self._topics = topics
        self._chosen = partitions
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from logkeep_engine.kafka.client import RawClient
        from logkeep_engine.kafka.control import ControlPlane

        with ControlPlane(self._connection) as control:
            wanted = set(self._topics)
            self._partitions = sorted(
                (info.name, partition.id)
                for info in control.topics()
                if info.name in wanted
                for partition in info.partitions
                if not self._chosen or partition.id in self._chosen
            )
        self._runner = self._stack.enter_context(asyncio.Runner())
        self._client: RawClient = RawClient(self._connection)
        self._runner.run(self._client.__aenter__())
        self._stack.callback(lambda: self._runner.run(self._client.__aexit__(None, None, None)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def partitions(self) -> Sequence[Partition]:
        return self._partitions

    def records(self, topic: str, partition: int) -> Iterator[LogRecord]:
        """Raises the errors of the data plane."""
        runs = _committed(self._client, topic, partition)
        try:
            while True:
                found = self._runner.run(_next(runs))
                if found is None:
                    return
                yield from found
        finally:
            self._runner.run(runs.aclose())


async def _next(runs: AsyncGenerator[list[LogRecord], None]) -> list[LogRecord] | None:
    return await anext(runs, None)


async def _committed(client: RawClient, topic: str, partition: int) -> AsyncGenerator[list[LogRecord], None]:
    """The committed records of a partition, a fetch at a time."""
    from logkeep_engine.kafka.committed import CommittedBatches

    start = await client.start_offset(topic, partition)
    end = await client.end_offset(topic, partition, committed=True)
    at = start
    committed = CommittedBatches()
    async with aclosing(client.stream(topic, partition, start, end)) as stream:
        async for fetched in stream:
            found: list[LogRecord] = []
            for headers in committed.of(fetched, end):
                for position, header in headers:
                    if header.next_offset > at:
                        batch = bytes(fetched.data[position : position + header.size])
                        found += [record for record in decode_records(batch, header) if record.offset >= at]
                        at = header.next_offset
            fetched.release()
            yield found


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a comparison. `rename`: topic of A to topic of B. `ignore`: "headers", "timestamp"."""

    offsets: bool = False
    ignore: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    window: int = WINDOW

    def differing(self, one: LogRecord, other: LogRecord) -> tuple[str, ...]:
        """The fields in which two records differ."""
        return differing_fields(one, other, self.ignore)


class RecordComparison(Iterator[Difference]):
    """The differences, found while they are asked for; `counts` are complete at the end."""

    def __init__(self, a: Side, b: Side, rules: Rules | None = None) -> None:
        self.counts = Counts()
        self._rules = rules or Rules()
        self._found = self._compare(a, b)

    @property
    def found(self) -> int:
        """Differences so far."""
        counts = self.counts
        records = counts.different + counts.only_a + counts.only_b
        return records + counts.partitions_only_a + counts.partitions_only_b

    def __next__(self) -> Difference:
        return next(self._found)

    def _compare(self, a: Side, b: Side) -> Iterator[Difference]:
        renamed = {(self._rules.rename.get(topic, topic), number): topic for topic, number in a.partitions()}
        there = set(b.partitions())
        for name, number in sorted({*renamed, *there}):
            topic = renamed.get((name, number), name)
            if (name, number) not in there:
                if next(a.records(topic, number), None) is not None:
                    self.counts.partitions_only_a += 1
                    yield Difference(DifferenceKind.ONLY_A, topic, number, None, None)
            elif (name, number) not in renamed:
                if next(b.records(name, number), None) is not None:
                    self.counts.partitions_only_b += 1
                    yield Difference(DifferenceKind.ONLY_B, name, number, None, None)
            else:
                self.counts.partitions += 1
                one, other = a.records(topic, number), b.records(name, number)
                found = self._by_offset(one, other) if self._rules.offsets else self._in_step(one, other)
                for kind, left, right, fields in found:
                    yield Difference(kind, topic, number, _offset(left), _offset(right), fields)

    def _by_offset(self, one: Iterator[LogRecord], other: Iterator[LogRecord]) -> Iterator[_Found]:
        left, right = next(one, None), next(other, None)
        while left is not None or right is not None:
            if right is None or (left is not None and left.offset < right.offset):
                self.counts.only_a += 1
                yield DifferenceKind.ONLY_A, left, None, ()
                left = next(one, None)
            elif left is None or right.offset < left.offset:
                self.counts.only_b += 1
                yield DifferenceKind.ONLY_B, None, right, ()
                right = next(other, None)
            else:
                yield from self._pair(left, right)
                left, right = next(one, None), next(other, None)

    def _in_step(self, one: Iterator[LogRecord], other: Iterator[LogRecord]) -> Iterator[_Found]:
        ahead_a: deque[LogRecord] = deque()
        ahead_b: deque[LogRecord] = deque()
        while True:
            left, right = _take(ahead_a, one), _take(ahead_b, other)
            if left is None and right is None:
                return
            if left is not None and right is not None and not self._rules.differing(left, right):
                self.counts.equal += 1
                continue
            if left is not None:
                ahead_a.appendleft(left)
            if right is not None:
                ahead_b.appendleft(right)
            skip_a, skip_b = self._apart(ahead_a, one, ahead_b, other)
            # Two records stand for each other, and differ, as long as both sides have one.
            for _ in range(min(skip_a, skip_b)):
                yield from self._pair(ahead_a.popleft(), ahead_b.popleft())
            for _ in range(skip_a - min(skip_a, skip_b)):
                self.counts.only_a += 1
                yield DifferenceKind.ONLY_A, ahead_a.popleft(), None, ()
            for _ in range(skip_b - min(skip_a, skip_b)):
                self.counts.only_b += 1
                yield DifferenceKind.ONLY_B, None, ahead_b.popleft(), ()

    def _apart(
        self,
        ahead_a: deque[LogRecord],
        one: Iterator[LogRecord],
        ahead_b: deque[LogRecord],
        other: Iterator[LogRecord],
    ) -> tuple[int, int]:
        """The numbers of records of each side to pass over until both continue with equal ones; at least one of
        either."""
        _fill(ahead_a, one, self._rules.window)
        _fill(ahead_b, other, self._rules.window)
        where: dict[_Content, int] = {}
        for number, record in enumerate(ahead_b):
            where.setdefault(self._content(record), number)
        best = (len(ahead_a), len(ahead_b))
        nearest = len(ahead_a) + len(ahead_b)
        for number, record in enumerate(ahead_a):
            if number >= nearest:
                break
            found = where.get(self._content(record))
            if found is not None and number + found < nearest:
                best, nearest = (number, found), number + found
        return best

    def _content(self, record: LogRecord) -> _Content:
        headers = () if "headers" in self._rules.ignore else tuple(record.headers)
        return record.key, record.value, headers, None if "timestamp" in self._rules.ignore else time_of(record)

    def _pair(self, left: LogRecord, right: LogRecord) -> Iterator[_Found]:
        fields = self._rules.differing(left, right)
        if fields:
            self.counts.different += 1
            yield DifferenceKind.DIFFERENT, left, right, fields
        else:
            self.counts.equal += 1


_Found = tuple[DifferenceKind, LogRecord | None, LogRecord | None, tuple[str, ...]]
_Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]


def _offset(record: LogRecord | None) -> int | None:
    return None if record is None else record.offset


def _take(ahead: deque[LogRecord], records: Iterator[LogRecord]) -> LogRecord | None:
    return ahead.popleft() if ahead else next(records, None)


def _fill(ahead: deque[LogRecord], records: Iterator[LogRecord], count: int) -> None:
    while len(ahead) < count and (record := next(records, None)) is not None:
        ahead.append(record)

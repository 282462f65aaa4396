"""The stream of batches of one partition, small ones merged. Pure.

A batch costs the broker and both ends of the connection about as much as a hundred records do here, so consecutive
batches of few records go together: a topic whose producers sent single records comes back in seconds, not minutes. So
do batches that have to be built anew anyway.

Which batches go together follows from the archived bytes and the plan alone (see `filter`), never from how they were
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from logkeep_engine.errors import BatchTooLarge
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader
from logkeep_engine.log.compression import surely_fit
from logkeep_engine.log.memory import alone
from logkeep_engine.log.packer import Packer, cut, repacked_size
from logkeep_engine.log.records import unpack
from logkeep_engine.restore.filter import (
    PRODUCER_EPOCH,
    SEQUENCE_SPACE,
    Action,
    Outgoing,
    rebuilt,
    unchanged,
)

# A batch sent alone costs 100 to 200 us (both ends, one core), a record merged about 2 us.
SMALL_RECORDS = 64
SMALL_BYTES = 8 << 10
# The archived bytes of batches that go together. With more bytes a request costs no less a byte, and a reader would
# have to take more at a time than the source's producers gave it.
MERGED_BYTES = 64 << 10
# The unpacked bytes of batches that go together: a bound on memory, whatever the batches were compressed to.
MERGED_UNPACKED = 1 << 20

_CUT_AHEAD = 2 << 20  # bytes to send that are cut from a large batch in one go


class Rule(IntEnum):
    """The rule that finds the bounds of batches. A run that has sent batches by one rule is finished by it, so the plan
    says which; the numbers are those of the plan's formats.
    """

    UNMERGED = 1
    """Every archived batch is a batch of its own; one that is built anew is halved until it fits the topic."""
    BY_STORED_SIZE = 2
    """Small ones go together; what does not fit the topic after compression is halved."""
    BY_UNPACKED_SIZE = 3
    """Small ones go together; where a batch is cut follows from its bytes before compression alone, so that another
    version of a compressor cuts at the same place."""


def packed_limit(max_bytes: int) -> int:
    """The most bytes of packed records that fit a topic with batches of `max_bytes`, whatever compression does."""
    return surely_fit(max_bytes - HEADER_SIZE)


@dataclass(frozen=True, slots=True)
class _Member:
    batch: memoryview
    header: BatchHeader
    action: Action
    packed: bytes | memoryview


class BatchStream:
    """Turns archived batches into those to send. `add` and, at the end, `finish` give them in order.

    `max_bytes` are the bytes of the largest batch that the target topic takes. The first `done` records come without
    data, with source offsets and sizes only.
    """

    def __init__(self, *, producer_id: int, max_bytes: int, done: int = 0, rule: Rule = Rule.BY_UNPACKED_SIZE) -> None:
        self._producer_id = producer_id
        self._max_bytes = max_bytes
        self._done = done
        self._rule = rule
        self._limit = min(MERGED_BYTES, max_bytes)
        by_unpacked = rule is Rule.BY_UNPACKED_SIZE
        self._most = min(MERGED_UNPACKED, packed_limit(max_bytes)) if by_unpacked else MERGED_UNPACKED
        self._index = 0
        self._group: list[_Member] = []
        self._bytes = 0
        self._unpacked = 0

    def add(self, batch: memoryview, header: BatchHeader, action: Action) -> Iterator[Outgoing]:
        """Take a batch whose CRC was checked; returns the batches that are ready then. `action` is RAW or REBUILD.

        A small batch is copied, of a large one the outgoing batch holds a view. Raises CorruptBatch if the records are
        not what the header says, and BatchTooLarge for a batch that must be built anew and cannot be unpacked.
        """
        merge = self._rule is not Rule.UNMERGED
        if action is Action.RAW and not (merge and _is_small(header)):
            yield from self._as_it_is(batch, header)
        elif header.magic < 2 or not merge:
            yield from self.finish()
            yield from self._rebuilt(batch, header)
        elif (member := self._member(batch, header, action)) is not None:
            if not self._fits(member):
                yield from self.finish()
            self._group.append(member)
            self._bytes += header.size
            self._unpacked += self._weight(member)
        elif action is Action.RAW:
            yield from self._as_it_is(batch, header)
        else:
            yield from self.finish()
            yield from self._cut(batch, header)

    def finish(self) -> Iterator[Outgoing]:
        """The batches that were kept back for more to come."""
        group = self._group
        if group:
            self._group = []
            self._bytes = self._unpacked = 0
            yield from self._together(group)

    def _as_it_is(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        yield from self.finish()
        yield self._counted(unchanged(batch, header, index=self._index, **self._sent_by()))

    def _member(self, batch: memoryview, header: BatchHeader, action: Action) -> _Member | None:
        """The batch, unpacked, if it can go with others; None if it unpacks to too much for that."""
        by_stored = self._rule is Rule.BY_STORED_SIZE
        own = memoryview(bytes(batch))
        try:
            # By the older rule a batch that is built anew is a member, however large.
            packed = unpack(own, header, limit=None if by_stored and action is Action.REBUILD else MERGED_UNPACKED)
        except BatchTooLarge:
            if by_stored and action is Action.REBUILD:
                raise
            return None
        member = _Member(own, header, action, packed)
        return member if by_stored or self._weight(member) <= self._most else None

    def _weight(self, member: _Member) -> int:
        size = len(member.packed)
        return size if self._rule is Rule.BY_STORED_SIZE else repacked_size(size, member.header.record_count)

    def _fits(self, member: _Member) -> bool:
        return (
            bool(self._group)
            and self._group[0].header.codec == member.header.codec
            and self._bytes + member.header.size <= self._limit
            and self._unpacked + self._weight(member) <= self._most
        )

    def _together(self, group: Sequence[_Member]) -> Iterator[Outgoing]:
        """One batch; by the older rule, if it is too large, those of halves of the group."""
        first = group[0]
        if len(group) == 1 and first.action is Action.RAW:
            yield self._counted(unchanged(first.batch, first.header, index=self._index, **self._sent_by()))
            return
        built = self._packed(group)
        if self._rule is Rule.BY_UNPACKED_SIZE or built.size <= self._max_bytes:
            yield self._counted(built)
        elif len(group) > 1:
            half = len(group) // 2
            yield from self._together(group[:half])
            yield from self._together(group[half:])
        else:
            yield from self._rebuilt(first.batch, first.header)

    def _cut(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        """The batches for one that is too large to be built anew as a whole.

        It is unpacked again for every few of them, so that it does not lie in memory while these are on their way,
        beside the large batches of all other partitions.
        """
        taken = 0
        while taken < header.record_count:
            with alone():
                some = self._cut_from(batch, header, taken)
            taken += sum(item.count for item in some)
            yield from some

    def _cut_from(self, batch: memoryview, header: BatchHeader, taken: int) -> list[Outgoing]:
        """The next batches after the first `taken` records, some MiB of them."""
        packed = memoryview(unpack(batch, header))
        found: list[Outgoing] = []
        size = passed = 0
        for start, end, count in cut(packed, header, self._most):
            passed += count
            if passed > taken:
                part = header._replace(record_count=count)
                found.append(self._counted(self._packed([_Member(batch, part, Action.REBUILD, packed[start:end])])))
                size += found[-1].weight
                if size > _CUT_AHEAD:
                    break
        return found

    def _packed(self, group: Sequence[_Member]) -> Outgoing:
        packer = Packer()
        rows: list[tuple[int, int]] = []
        append_times = 0
        for member in group:
            for offset, count in packer.add(member.packed, member.header):
                if rows and sum(rows[-1]) == offset:
                    rows[-1] = (rows[-1][0], rows[-1][1] + count)
                else:
                    rows.append((offset, count))
            append_times += member.header.record_count if member.header.is_log_append_time else 0
        data = packer.batch(
            group[0].header.codec,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=self._index % SEQUENCE_SPACE,
        )
        wanted = self._index + packer.count > self._done
        return Outgoing(self._index, packer.count, len(data), (data,) if wanted else None, tuple(rows), append_times)

    def _rebuilt(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        most = self._most if self._rule is Rule.BY_UNPACKED_SIZE else None
        for item in rebuilt(batch, header, index=self._index, max_bytes=self._max_bytes, most=most, **self._sent_by()):
            yield self._counted(item)

    def _counted(self, item: Outgoing) -> Outgoing:
        self._index = item.index + item.count
        return item

    def _sent_by(self) -> dict[str, int]:
        return {"producer_id": self._producer_id, "done": self._done}


def _is_small(header: BatchHeader) -> bool:
    return header.record_count <= SMALL_RECORDS and header.size <= SMALL_BYTES

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

from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.records import Packer, unpack
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
# Archived bytes of what goes together: with more a request costs no less a byte, and a reader would have to take more
# at a time than the source's producers made it.
MERGED_BYTES = 64 << 10
# The same, unpacked: a bound on memory, whatever the batches were compressed to.
MERGED_UNPACKED = 1 << 20


@dataclass(frozen=True, slots=True)
class _Member:
    batch: memoryview
    header: BatchHeader
    action: Action
    packed: bytes | memoryview


class BatchStream:
    """Turns archived batches into those to send. Take what `add` and, at the end, `finish` give, in order.

    `max_bytes` is what the target topic takes; of the first `done` records only source offsets and sizes are wanted.
    With `merge` off every archived batch is a batch of its own, which is how plans of format 1 are carried out.
    """

    def __init__(self, *, producer_id: int, max_bytes: int, done: int = 0, merge: bool = True) -> None:
        self._producer_id = producer_id
        self._max_bytes = max_bytes
        self._done = done
        self._merge = merge
        self._limit = min(MERGED_BYTES, max_bytes)
        self._index = 0
        self._group: list[_Member] = []
        self._bytes = 0
        self._unpacked = 0

    def add(self, batch: memoryview, header: BatchHeader, action: Action) -> Iterator[Outgoing]:
        """What is ready when this batch is known: RAW or REBUILD, its CRC checked.

        A small batch is copied, of a large one the outgoing batch holds a view. Raises CorruptBatch if the records are
        not what the header says.
        """
        if action is Action.RAW and not (self._merge and _is_small(header)):
            yield from self.finish()
            yield self._counted(unchanged(batch, header, index=self._index, **self._sent_by()))
        elif header.magic < 2 or not self._merge:
            yield from self.finish()
            yield from self._rebuilt(batch, header)
        else:
            own = memoryview(bytes(batch))
            member = _Member(own, header, action, unpack(own, header))
            if not self._fits(member):
                yield from self.finish()
            self._group.append(member)
            self._bytes += header.size
            self._unpacked += len(member.packed)

    def finish(self) -> Iterator[Outgoing]:
        """What was kept back for more to come."""
        group = self._group
        if group:
            self._group = []
            self._bytes = self._unpacked = 0
            yield from self._together(group)

    def _fits(self, member: _Member) -> bool:
        return (
            bool(self._group)
            and self._group[0].header.codec == member.header.codec
            and self._bytes + member.header.size <= self._limit
            and self._unpacked + len(member.packed) <= MERGED_UNPACKED
        )

    def _together(self, group: Sequence[_Member]) -> Iterator[Outgoing]:
        """One batch, or if it is too large those of halves of the group."""
        first = group[0]
        if len(group) == 1 and first.action is Action.RAW:
            yield self._counted(unchanged(first.batch, first.header, index=self._index, **self._sent_by()))
            return
        built = self._packed(group)
        if built.size <= self._max_bytes:
            yield self._counted(built)
        elif len(group) > 1:
            half = len(group) // 2
            yield from self._together(group[:half])
            yield from self._together(group[half:])
        else:
            yield from self._rebuilt(first.batch, first.header)

    def _packed(self, group: Sequence[_Member]) -> Outgoing:
        packer = Packer()
        runs: list[tuple[int, int]] = []
        append_times = 0
        for member in group:
            for offset, count in packer.add(member.packed, member.header):
                if runs and sum(runs[-1]) == offset:
                    runs[-1] = (runs[-1][0], runs[-1][1] + count)
                else:
                    runs.append((offset, count))
            append_times += member.header.record_count if member.header.is_log_append_time else 0
        data = packer.batch(
            group[0].header.codec,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=self._index % SEQUENCE_SPACE,
        )
        wanted = self._index + packer.count > self._done
        return Outgoing(self._index, packer.count, len(data), (data,) if wanted else None, tuple(runs), append_times)

    def _rebuilt(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        for item in rebuilt(batch, header, index=self._index, max_bytes=self._max_bytes, **self._sent_by()):
            yield self._counted(item)

    def _counted(self, item: Outgoing) -> Outgoing:
        self._index = item.index + item.count
        return item

    def _sent_by(self) -> dict[str, int]:
        return {"producer_id": self._producer_id, "done": self._done}


def _is_small(header: BatchHeader) -> bool:
    return header.record_count <= SMALL_RECORDS and header.size <= SMALL_BYTES

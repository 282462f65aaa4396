"""The streams of batches that restores make whose plan has an older rule: they are finished as they were begun.

Here bounds depend on what a compressor makes of the batches, so it stays the one that they were begun with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.errors import BatchTooLarge
from logkeep_engine.log.batch import BatchHeader, walk
from logkeep_engine.log.packer import Packer
from logkeep_engine.log.records import unpack
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.filter import (
    PRODUCER_EPOCH,
    SEQUENCE_SPACE,
    Action,
    Outgoing,
    decide,
    rebuilt,
    unchanged,
)
from logkeep_engine.restore.merge import MERGED_BYTES, MERGED_UNPACKED, Rule, is_small


@dataclass(frozen=True, slots=True)
class _Member:
    batch: memoryview
    header: BatchHeader
    action: Action
    packed: bytes | memoryview


class OlderStream:
    """Turns archived batches into those to send by `Rule.UNMERGED` or `Rule.BY_STORED_SIZE`, as `merge.BatchStream`
    does by the newest rule."""

    def __init__(self, *, producer_id: int, max_bytes: int, aborted: Spans, done: int, rule: Rule) -> None:
        self._producer_id = producer_id
        self._max_bytes = max_bytes
        self._aborted = aborted
        self._done = done
        self._merge = rule is not Rule.UNMERGED
        self._limit = min(MERGED_BYTES, max_bytes)
        self._index = 0
        self._group: list[_Member] = []
        self._bytes = 0
        self._unpacked = 0

    def add(self, stretch: memoryview) -> Iterator[Outgoing]:
        """Take batches that lie back to back, whose CRCs were checked; returns the batches that are ready then.

        A small batch is copied, of a large one the outgoing batch holds a view. Raises CorruptBatch if records are not
        what their header says, and BatchTooLarge for a batch that must be built anew and cannot be unpacked.
        """
        for at, header in walk(stretch):
            action = decide(header, self._aborted)
            if action is Action.RAW or action is Action.REBUILD:
                yield from self._add(stretch[at : at + header.size], header, action)

    def _add(self, batch: memoryview, header: BatchHeader, action: Action) -> Iterator[Outgoing]:
        if action is Action.RAW and not (self._merge and is_small(header)):
            yield from self._as_it_is(batch, header)
        elif header.magic < 2 or not self._merge:
            yield from self.finish()
            yield from self._rebuilt(batch, header)
        elif (member := self._member(batch, header, action)) is not None:
            if not self._fits(member):
                yield from self.finish()
            self._group.append(member)
            self._bytes += header.size
            self._unpacked += len(member.packed)
        else:
            yield from self._as_it_is(batch, header)

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
        """The batch, unpacked; None if it unpacks to too much to go with others. One that is built anew is a member,
        however large."""
        own = memoryview(bytes(batch))
        try:
            packed = unpack(own, header, limit=None if action is Action.REBUILD else MERGED_UNPACKED)
        except BatchTooLarge:
            if action is Action.REBUILD:
                raise
            return None
        return _Member(own, header, action, packed)

    def _fits(self, member: _Member) -> bool:
        return (
            bool(self._group)
            and self._group[0].header.codec == member.header.codec
            and self._bytes + member.header.size <= self._limit
            and self._unpacked + len(member.packed) <= MERGED_UNPACKED
        )

    def _together(self, group: Sequence[_Member]) -> Iterator[Outgoing]:
        """One batch, or if it is too large, those of halves of the group."""
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
        append_times = 0
        for member in group:
            packer.add(member.packed, member.header)
            append_times += member.header.record_count if member.header.is_log_append_time else 0
        data = packer.batch(
            group[0].header.codec,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=self._index % SEQUENCE_SPACE,
        )
        wanted = self._index + packer.count > self._done
        return Outgoing(self._index, packer.count, len(data), (data,) if wanted else None, packer.rows, append_times)

    def _rebuilt(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        for item in rebuilt(batch, header, index=self._index, max_bytes=self._max_bytes, **self._sent_by()):
            yield self._counted(item)

    def _counted(self, item: Outgoing) -> Outgoing:
        self._index = item.index + item.count
        return item

    def _sent_by(self) -> dict[str, Any]:
        return {"producer_id": self._producer_id, "done": self._done}

"""The stream of batches of one partition, small ones merged. Pure.

A batch costs the broker and both ends of the connection about as much as a hundred records do here, so consecutive
batches of few records go together: a topic whose producers sent single records comes back in seconds, not minutes. So
do batches that have to be rebuilt anyway.

Which batches go together follows from the archived bytes and the plan alone (see `filter`), never from how they were
read. The kernel finds them and makes them. What it leaves to the code here is rare: old messages, batches that are too
large to be rebuilt as a whole, and data that only a more lenient decompressor reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, parse_header
from logkeep_engine.log.compression import surely_fit
from logkeep_engine.log.memory import alone
from logkeep_engine.log.packer import Made, Merger, repacked_size
from logkeep_engine.log.records import damage_of, unpack
from logkeep_engine.log.transactions import Span, Spans
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.filter import Action, Outgoing, decide, rebuilt, unchanged

# A batch sent alone costs 100 to 200 us (both ends, one core), a record merged well below 1 us.
SMALL_RECORDS = 64
SMALL_BYTES = 8 << 10
# The unpacked bytes of batches that go together: a bound on memory, whatever the batches were compressed to.
MERGED_UNPACKED = 1 << 20
# The archived bytes of batches that go together. With more bytes a request costs no less a byte, and a reader would
# have to take more at a time than the source's producers gave it.
MERGED_BYTES = 64 << 10


def packed_limit(max_bytes: int) -> int:
    """Return the most bytes of packed records that fit a topic with batches of `max_bytes`, whatever compression
    does."""
    return surely_fit(max_bytes - HEADER_SIZE)


class BatchStream:
    """Turns archived batches into those to send. `add` and, at the end, `finish` give them in order.

    Where a batch is cut follows from its bytes before compression alone, so another version of a compressor cuts at the
    same place: a run that continues must send the same batches.

    `max_bytes` are the bytes of the largest batch that the target topic takes. Batches of the transactions `aborted`
    are left out. The first `done` records come without data, with source offsets and sizes only. Records outside of
    `clip` are left out; the transactions `whole` are inside.
    """

    def __init__(
        self,
        *,
        producer_id: int,
        max_bytes: int,
        aborted: Spans,
        done: int = 0,
        clip: Clip | None = None,
        whole: Sequence[Span] = (),
    ) -> None:
        self._clip = clip
        self._producer_id = producer_id
        self._aborted = aborted
        self._done = done
        self._most = min(MERGED_UNPACKED, packed_limit(max_bytes))
        self._merger = Merger(
            producer_id=producer_id,
            small=(SMALL_RECORDS, SMALL_BYTES),
            unpacked=MERGED_UNPACKED,
            limit=min(MERGED_BYTES, max_bytes),
            most=self._most,
            done=done,
            aborted=aborted.rows(),
            clip=None if clip is None else (clip.end, clip.since, clip.before, Spans(whole).rows()),
        )

    def add(self, stretch: memoryview) -> Iterator[Outgoing]:
        """Take batches that lie back to back, whose CRCs were checked; returns the batches that are ready then.

        A small batch is copied, of a large one the outgoing batch holds a view. Raises CorruptBatch if records are not
        what their header says, and BatchTooLarge for a batch that must be rebuilt and cannot be unpacked.
        """
        at, stop = 0, ""
        while stop != "end":
            made, at, stop = self._merger.feed(stretch, at)
            yield from self._outgoing(made, stretch)
            if stop == "damaged":
                raise self._damage()
            if stop == "odd":
                header = parse_header(stretch, at)
                following = at + header.size
                yield from self._by_hand(stretch[at:following], header)
                at = following

    def finish(self) -> Iterator[Outgoing]:
        """Yield the batches that were kept back for more to come."""
        made, whole = self._merger.finish()
        yield from self._outgoing(made)
        if not whole:
            raise self._damage()

    def _damage(self) -> CorruptBatch:
        head, packed = self._merger.damaged()
        return damage_of(packed, parse_header(head))

    def _outgoing(self, made: Sequence[Made], stretch: memoryview | None = None) -> Iterator[Outgoing]:
        """Yield the batches that the kernel has made, of batches in this stretch or before it."""
        for index, count, size, data, source, append_times, at in made:
            pieces: tuple[Buffer, ...] | None = None if data is None else (data,)
            if pieces is not None and at is not None and stretch is not None:
                pieces = (*pieces, stretch[at + HEADER_SIZE : at + size])
            yield Outgoing(index, count, size, pieces, source, append_times)

    def _by_hand(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        """Yield the batches that are ready when this one was taken, which the kernel has left to us."""
        if header.magic < 2:
            yield from self.finish()
            yield from self._rebuilt(batch, header)
            return
        packed = self._unpacked(batch, header)
        if packed is not None:
            made, whole = self._merger.member(batch, packed)
            yield from self._outgoing(made)
            if not whole:
                raise self._damage()
            return
        yield from self.finish()
        if decide(header, self._aborted) is Action.RAW and not self._merger.is_cut(batch):
            index = self._merger.index
            self._merger.passed(header.record_count)
            yield unchanged(batch, header, index=index, producer_id=self._producer_id, done=self._done)
        else:
            yield from self._cut(batch, header)

    def _unpacked(self, batch: memoryview, header: BatchHeader) -> bytes | memoryview | None:
        """Return the packed records, if the batch can go with others; None if it unpacks to too much for that."""
        try:
            packed = unpack(batch, header, limit=MERGED_UNPACKED)
        except BatchTooLarge:
            return None
        return packed if repacked_size(len(packed), header.record_count) <= self._most else None

    def _cut(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        """Yield the batches for one that is too large to be rebuilt as a whole.

        It is unpacked again for every few of them, so that it does not lie in memory while these are on their way,
        next to the large batches of all other partitions.
        """
        taken = 0
        while taken < header.record_count:
            with alone():
                packed = unpack(batch, header)
                made, whole = self._merger.cut(batch, packed, taken)
                damage = None if whole else damage_of(packed, header)
                del packed
            for item in self._outgoing(made):
                taken += item.count
                yield item
            if damage is not None:
                raise damage
            if not made:
                return  # the other records are left out

    def _rebuilt(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        """Yield the batches for one of magic 0 or 1."""
        for item in rebuilt(
            batch,
            header,
            index=self._merger.index,
            producer_id=self._producer_id,
            done=self._done,
            most=self._most,
            clip=self._clip,
        ):
            self._merger.passed(item.count)
            yield item

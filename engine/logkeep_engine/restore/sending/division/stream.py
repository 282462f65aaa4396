"""The streams of batches of one archived partition, one for each partition of the target. Pure.

The batches that a restore without a division would send (`stream.stream_of`) are taken apart, record by record, and
each record goes to the partition that the partitioner chooses for its key. So points, aborted transactions, damage, old
messages and append times are dealt with before, and here is one rule only. Which batches come out follows from the
records and the plan alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import BatchHeader, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.divider import Divider, Share
from logkeep_engine.log.memory import SMALL_BYTES, alone
from logkeep_engine.log.records import damage_of, made_batch, unpack
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.streams.merge import packed_limit

# The bytes of a batch before compression. All pairs of an archived partition have one in the making.
_MOST_BYTES = 256 << 10
_LEAST_BYTES = 4 << 10
_ALL_BYTES = 32 << 20
MOST_RECORDS = 10_000


def most_bytes(targets: int, max_batch_bytes: int) -> int:
    """Return the bytes of a batch before compression, for a topic of this many partitions that takes batches of this
    size. It is part of the rule by which batches are made: the number of the plan stands for it."""
    return min(max(_LEAST_BYTES, min(_MOST_BYTES, _ALL_BYTES // targets)), packed_limit(max_batch_bytes))


class DividedStream:
    """Divides the batches of an archived partition, `archived` for messages, among the partitions of a target whose
    batches have at most `most` bytes before compression. `producer_ids` are those of its outlets, by target partition,
    and the `partitioner` says which record goes where.
    """

    def __init__(
        self,
        archived: str,
        producer_ids: Sequence[int],
        partitioner: Partitioner,
        most: int,
        most_records: int = MOST_RECORDS,
    ) -> None:
        self._archived = archived
        self._producer_ids = producer_ids
        self._index = [0] * len(producer_ids)
        self._divider = Divider(partitioner, len(producer_ids), most, most_records)

    def divided(self, batches: Generator[Outgoing, None, None]) -> Generator[Outgoing, None, None]:
        """Yield the batches, those of each outlet in order. Raises what the stream of `batches` raises, BatchTooLarge
        for a batch that cannot be taken apart, and ArchiveDamaged."""
        with closing(batches) as stream:
            for item in stream:
                yield from self._made(self._fed(item))
        yield from self._made(self._divider.finish())

    def _made(self, shares: Iterable[Share]) -> Iterator[Outgoing]:
        for share in shares:
            outlet, _, count, *_ = share
            yield _batch(share, self._producer_ids[outlet], self._index[outlet])
            self._index[outlet] += count

    def _fed(self, item: Outgoing) -> list[Share]:
        """Return the batches that are full when the records of this one are divided."""
        batch = memoryview(b"".join(item.data or ()))
        header = parse_header(batch)
        try:
            try:
                return _taken(self._divider, unpack(batch, header, limit=SMALL_BYTES), header, item)
            except BatchTooLarge:
                with alone():
                    return _taken(self._divider, unpack(batch, header), header, item)
        except BatchTooLarge as error:
            raise error.within(self._archived) from error
        except CorruptBatch as error:
            raise ArchiveDamaged(
                f"{self._archived}, records from offset {item.source[0][0]} on: {error.message}",
                hint="The batch's CRC holds, so it was archived like this: please report it.",
            ) from error


def _taken(divider: Divider, packed: bytes | memoryview, header: BatchHeader, item: Outgoing) -> list[Share]:
    shares, whole = divider.feed(packed, header, item.source)
    if not whole:
        raise damage_of(packed, header)
    return shares


def _batch(share: Share, producer_id: int, index: int) -> Outgoing:
    """Return the batch of an outlet; `index` is the number of the outlet's records before it."""
    outlet, codec, count, body, first_time, highest_time, source_end = share
    data = made_batch(
        Codec(codec),
        body,
        count=count,
        times=(first_time, highest_time),
        producer_id=producer_id,
        producer_epoch=PRODUCER_EPOCH,
        base_sequence=index % SEQUENCE_SPACE,
    )
    return Outgoing(index, count, len(data), (data,), ((source_end - 1, 1),), 0, outlet)

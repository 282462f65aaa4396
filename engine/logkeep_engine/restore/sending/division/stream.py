"""The streams of batches of one archived partition, one for each partition of the target. Pure.

The batches that a restore without a division would send (`task.stream_of`) are taken apart, record by record, and each
record goes to the partition that the partitioner chooses for its key. So points, aborted transactions, damage, old
messages and append times are dealt with before, and here is one rule only. Which batches come out follows from the
records and the plan alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import BatchHeader, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.divider import Divider, Share
from logkeep_engine.log.memory import SMALL_BYTES, alone
from logkeep_engine.log.records import damage_of, made_batch, unpack
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.sending.task import archived_place, stream_of
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.merge import packed_limit

# The bytes of a batch before compression. All pairs of an archived partition have one in the making.
_MOST_BYTES = 256 << 10
_LEAST_BYTES = 4 << 10
_ALL_BYTES = 32 << 20
_MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """A batch for the target partition `target`."""

    target: int
    batch: Outgoing

    @property
    def weight(self) -> int:
        """The memory that it takes, about."""
        return self.batch.weight


def most_bytes(targets: int, max_batch_bytes: int) -> int:
    """The bytes of a batch before compression, for a topic of so many partitions that takes batches of this size. It
    is part of the rule by which batches are made: a plan of format 6 stands for it."""
    return min(max(_LEAST_BYTES, min(_MOST_BYTES, _ALL_BYTES // targets)), packed_limit(max_batch_bytes))


class DividedStream:
    """The batches of the pairs of an archived partition. `producer_ids` are those of the pairs, by target
    partition, and the `partitioner` says which record goes where.

    `records` and `append_times` count what was taken from the archive so far, `left_out` what was not.
    """

    def __init__(self, task: RestoreTask, producer_ids: Sequence[int], partitioner: Partitioner) -> None:
        self._task = task
        self._producer_ids = producer_ids
        self._index = [0] * len(producer_ids)
        most_records = _MOST_RECORDS if task.batching is None else task.batching.max_records
        most = most_bytes(len(producer_ids), task.max_batch_bytes)
        self._divider = Divider(partitioner, len(producer_ids), most, most_records)
        self.records = 0
        self.append_times = 0
        self.left_out = LeftOut()

    def batches(self) -> Generator[RoutedBatch, None, None]:
        """The batches, those of each pair in order. Raises as `task.stream_of`, BatchTooLarge for a batch that cannot
        be taken apart, and ArchiveDamaged."""
        with closing(stream_of(self._task, 0, self.left_out)) as stream:
            for item in stream:
                self.records += item.count
                self.append_times += item.append_times
                yield from self._made(self._fed(item))
        yield from self._made(self._divider.finish())

    def _made(self, shares: Iterable[Share]) -> Iterator[RoutedBatch]:
        for share in shares:
            target, _, count, *_ = share
            yield RoutedBatch(target, _batch(share, self._producer_ids[target], self._index[target]))
            self._index[target] += count

    def _fed(self, item: Outgoing) -> list[Share]:
        """The batches that are full when the records of this one are divided."""
        batch = memoryview(b"".join(item.data or ()))
        header = parse_header(batch)
        where = archived_place(self._task)
        try:
            try:
                return _taken(self._divider, unpack(batch, header, limit=SMALL_BYTES), header, item)
            except BatchTooLarge:
                with alone():
                    return _taken(self._divider, unpack(batch, header), header, item)
        except BatchTooLarge as error:
            raise error.within(where) from error
        except CorruptBatch as error:
            raise ArchiveDamaged(
                f"{where}, records from offset {item.source[0][0]} on: {error.message}",
                hint="The batch's CRC holds, so it was archived like this: please report it.",
            ) from error


def _taken(divider: Divider, packed: bytes | memoryview, header: BatchHeader, item: Outgoing) -> list[Share]:
    shares, whole = divider.feed(packed, header, item.source)
    if not whole:
        raise damage_of(packed, header)
    return shares


def _batch(share: Share, producer_id: int, index: int) -> Outgoing:
    """The batch of a pair; `index` is the number of the pair's records before it."""
    _, codec, count, body, first_time, highest_time, source_end = share
    data = made_batch(
        Codec(codec),
        body,
        count=count,
        times=(first_time, highest_time),
        producer_id=producer_id,
        producer_epoch=PRODUCER_EPOCH,
        base_sequence=index % SEQUENCE_SPACE,
    )
    return Outgoing(index, count, len(data), (data,), ((source_end - 1, 1),), 0)

"""Decides about each archived batch: it is left out, sent as it is with new producer fields, or rebuilt from its
records (by `merge` together with its neighbours). Pure.

The stream that comes out is a function of the archive's bytes and the plan alone: the same batches, with the same
bounds, in every attempt. That is what lets a task that starts again find its place by a count of records, and what lets
a broker recognise a batch that arrives twice (it compares the first and last sequence; Kafka,
`ProducerStateEntry.findDuplicateBatch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, rewritten_header
from logkeep_engine.log.rows import Rows, listed_rows, packed_batch
from logkeep_engine.log.transactions import Spans, Unseen, unseen
from logkeep_engine.restore.streams.clip import Clip

SEQUENCE_SPACE = 1 << 31  # after 2^31 - 1 comes 0 (Kafka, DefaultRecordBatch.incrementSequence)
PRODUCER_EPOCH = 0  # of each producer id without a transactional id
_ROW_BYTES = 128  # the bytes that a row of `Outgoing.source` takes as an object


class Action(Enum):
    CONTROL = "control batch"  # a transaction marker: the target has no transaction
    ABORTED = "aborted transaction"  # no consumer of committed records ever saw it
    EMPTY = "emptied by compaction"
    RAW = "as it is"
    REBUILD = "rebuilt"


_LEFT_OUT = {Unseen.CONTROL: Action.CONTROL, Unseen.ABORTED: Action.ABORTED, Unseen.EMPTY: Action.EMPTY}


def decide(header: BatchHeader, aborted: Spans) -> Action:
    """Return the action for a batch, by its header.

    A batch is rebuilt if a broker would refuse or change it: last offset delta other than count - 1 (INVALID_RECORD),
    append time (a CreateTime topic clears the attribute and shows the producer's times), magic 0 and 1, a delete
    horizon (its place is the base timestamp).
    """
    hidden = unseen(header, aborted)
    if hidden is not None:
        return _LEFT_OUT[hidden]
    if header.magic < 2 or header.has_gaps or header.is_log_append_time or header.has_delete_horizon:
        return Action.REBUILD
    return Action.RAW


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One batch ready to send.

    `index` is the number of records of the stream before it. `source` has rows (first source offset, count) for its
    records, in order. `data` are its bytes in several buffers, the header first; it is None, and only the `size` is
    known, if the caller said that the batch is already in the target. `append_times` counts the records that had the
    time of the append, which is now their create time. In a divided topic `outlet` is the target partition.
    """

    index: int
    count: int
    size: int
    data: tuple[Buffer, ...] | None
    source: tuple[tuple[int, int], ...]
    append_times: int
    outlet: int = 0

    @property
    def source_end(self) -> int:
        """One past the last source offset."""
        first, count = self.source[-1]
        return first + count

    @property
    def weight(self) -> int:
        """The memory that the batch takes, about."""
        return (self.size if self.data is not None else 0) + _ROW_BYTES * len(self.source)

    @property
    def base_sequence(self) -> int:
        return self.index % SEQUENCE_SPACE


def unchanged(batch: memoryview, header: BatchHeader, *, index: int, producer_id: int, done: int = 0) -> Outgoing:
    """One archived batch whose CRC has been checked, with its records as they are: they are not even copied."""
    count = header.record_count
    data = None
    if index + count > done:
        head = rewritten_header(
            batch,
            header,
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=index % SEQUENCE_SPACE,
        )
        data = (head, batch[HEADER_SIZE:])
    return Outgoing(index, count, header.size, data, ((header.base_offset, count),), 0)


def rebuilt(
    batch: memoryview,
    header: BatchHeader,
    *,
    index: int,
    producer_id: int,
    most: int,
    done: int = 0,
    clip: Clip | None = None,
) -> Iterator[Outgoing]:
    """Yield the batches to send for one archived batch of any magic that is rebuilt: one, or several if one is too
    large.

    `index` is the number of records sent before it. The stream's first `done` records come with source offsets only. It
    is cut so that no batch has more than `most` bytes before compression, unless one record has. Records outside of
    `clip` are left out. Raises CorruptBatch if the records are not what the header says.
    """
    rows = listed_rows(batch, header)
    if clip is not None:
        rows = clip.of_rows(rows)
    for group, built in _groups_of(rows, header, index, producer_id, most):
        yield Outgoing(
            index=index,
            count=len(group),
            size=len(built),
            data=(built,) if index + len(group) > done else None,
            source=tuple(source_rows(group.offsets())),
            append_times=len(group) if header.is_log_append_time else 0,
        )
        index += len(group)


def _groups_of(
    rows: Rows, header: BatchHeader, index: int, producer_id: int, most: int
) -> Iterator[tuple[Rows, bytes]]:
    """Yield the records in groups of at most `most` bytes before compression, unless one record has more."""
    at = 0
    while at < len(rows):
        taken, _ = rows[at:].fitting(most, len(rows))
        group = rows[at : at + max(1, taken)]
        yield group, _encoded(group, header, index + at, producer_id)
        at += len(group)


def _encoded(rows: Rows, header: BatchHeader, index: int, producer_id: int) -> bytes:
    batch, _, _ = packed_batch(
        [rows],
        codec=header.codec,
        producer_id=producer_id,
        producer_epoch=PRODUCER_EPOCH,
        base_sequence=index % SEQUENCE_SPACE,
    )
    return batch


def source_rows(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows (first offset, count) of consecutive offsets; there is at least one offset, and they rise."""
    first, count = offsets[0], len(offsets)
    if offsets[-1] - first == count - 1:
        yield first, count
        return
    count = 0
    for offset in offsets:
        if offset != first + count:
            yield first, count
            first, count = offset, 0
        count += 1
    yield first, count

"""Answers to fetches: batches back to back. Only their lengths and headers are read here."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.log.batch import LOG_OVERHEAD, last_whole

_OFFSET_LENGTH = struct.Struct(">qi")
_PREFIX = 17  # offset, length, leader epoch (or CRC), magic: enough to tell the formats apart
# A length that is less would let the walk stand still, or go back.
_LEAST_LENGTH = 14  # an empty message of magic 0, without offset and length
_LAST_OFFSET_DELTA = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence


@dataclass(frozen=True, slots=True)
class Fetched:
    """The batches at an offset. `data` holds batches back to back; the first may begin before the offset asked for, the
    last may be cut off.

    `next_offset`: where the next fetch begins, one past the last whole batch of `data`; the offset asked for if there
    is none. `aborted`: (producer id, first offset) of the aborted transactions that reach into `data`. `by_id`: the
    topic was asked for by its id, so `data` cannot be another incarnation's. `leader_epoch`: of the leader that
    answered.

    `release` gives the memory of `data` to a later fetch. A caller that never calls it only leaves garbage behind.
    """

    data: memoryview
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    by_id: bool = False
    leader_epoch: int = -1
    frame: AnswerFrame | None = field(default=None, repr=False, compare=False)

    def release(self) -> None:
        """`data` can be read no more; slices of it that are still held stay as they are."""
        self.data.release()
        if self.frame is not None:
            self.frame.release()


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch in the log that a producer id wrote. `next_offset` is one past its last record."""

    base_offset: int
    next_offset: int
    producer_epoch: int
    base_sequence: int
    records: int


def first_batch_bytes(data: memoryview) -> int:
    """Return the size of the first batch."""
    return int(_OFFSET_LENGTH.unpack_from(data)[1]) + _OFFSET_LENGTH.size


def written_batches(data: memoryview, topic: str, partition: int, producer_id: int) -> Iterator[WrittenBatch]:
    """Yield the whole batches of `data` that a producer id wrote, in order."""
    for at, following in _walk(data, topic, partition):
        if data[at + 16] < 2:  # magic: older formats name no producer
            continue
        writer, epoch, sequence = _PRODUCER.unpack_from(data, at + 43)
        if writer == producer_id:
            (records,) = _LAST_OFFSET_DELTA.unpack_from(data, at + 57)  # the number of records, as long as the delta
            yield WrittenBatch(_OFFSET_LENGTH.unpack_from(data, at)[0], following, epoch, sequence, records)


def _walk(data: memoryview, topic: str, partition: int) -> list[tuple[int, int]]:
    """(position, next offset) of the whole batches in `data`.

    Looks at as little as it can: the caller reads the headers once more.
    """
    batches: list[tuple[int, int]] = []
    at, size = 0, len(data)
    while size - at >= _PREFIX:
        offset, length = _OFFSET_LENGTH.unpack_from(data, at)
        if length < _LEAST_LENGTH:
            raise CorruptBatch(
                (
                    f"Topic {topic!r} partition {partition}: the batch at offset {offset} claims to be {length} "
                    "bytes long."
                ),
                hint="The leader's log is damaged; move the leadership to an intact replica.",
            )
        if at + LOG_OVERHEAD + length > size:  # a broker cuts the last batch off where the answer is full
            break
        if data[at + 16] >= 2:
            offset += _LAST_OFFSET_DELTA.unpack_from(data, at + 23)[0]
        # Before magic 2 the offset in front of a compressed set is that of its last message.
        batches.append((at, offset + 1))
        at += LOG_OVERHEAD + length
    return batches


def next_offset(data: memoryview, topic: str, partition: int, asked: int) -> int:
    """One past the last whole batch of `data`; `asked` if there is no data. Raises CorruptBatch."""
    if not data:
        return asked
    batches = _walk(data[last_whole(data) :], topic, partition)
    if not batches or batches[-1][1] <= asked:
        raise CorruptBatch(
            f"Topic {topic!r} partition {partition}: the {len(data)} bytes at offset {asked} hold no complete batch.",
            hint="The leader's log is damaged; move the leadership to an intact replica.",
        )
    return batches[-1][1]

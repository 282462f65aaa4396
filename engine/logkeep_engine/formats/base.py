"""The common ground of the formats that hold records (Records, Avro): records, segments in the making, and losses.

    encoder.append(records)         # as many as fit; the last one may take the segment over its threshold
    facts = encoder.finish()        # what the catalog will say of it

A Kafka batch becomes records by `log/codec.py`; `archive/writing/record_writer.py` brings encoders and storage
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from logkeep_engine.log.consumed import LogRecord

__all__ = [
    "OF_BATCHES",
    "LogRecord",
    "Loss",
    "LossKind",
    "SegmentEncoder",
    "SegmentFacts",
    "TimestampKind",
    "copied_blocks",
]


class TimestampKind(IntEnum):
    """The kind of a record's timestamp, numbered as in the Records format.

    `NONE`: records of magic 0 have none. `CREATE_NULL`: create time whose timestamp is null (-1 in a batch).
    """

    CREATE_NULL = -2
    NONE = -1
    CREATE = 0
    APPEND = 1


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts of a finished segment. Offsets lie in [base_offset, next_offset); times are ms since the epoch, -1 if
    no record has one.

    `blocks` counts the units of the container (Avro blocks; 1 in the Records format). `bytes` is the size of the data
    object, `index_bytes` that of its index object (0: none). `gaps`: offsets are missing.
    `append_time`: a record has log append time. `largest_record`: bytes of key, value and headers of the largest.
    """

    base_offset: int
    next_offset: int
    records: int
    blocks: int
    bytes: int
    index_bytes: int
    min_timestamp: int
    max_timestamp: int
    gaps: bool
    append_time: bool
    largest_record: int


class SegmentEncoder(Protocol):
    """One segment in the making. Offsets of the records it is given must rise."""

    @property
    def size(self) -> int:
        """Bytes of the data object so far, as far as they are known: a block that is not full yet may not count."""
        ...

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        ...

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the segment; returns how many."""
        ...

    def finish(self) -> SegmentFacts:
        """Hand on what is left of the bytes. At least one record was taken."""
        ...


class LossKind(StrEnum):
    """A kind of loss. The first four belong to batches, and every format that holds records loses them."""

    BATCH_BOUNDS = "batch bounds"
    COMPRESSION = "compression"
    PRODUCER = "producer ids and sequences"
    TRANSACTIONS = "transactions"
    TOMBSTONE = "null value"
    HEADER_DUPLICATE = "second header of the same name"
    HEADER_ORDER = "order of headers"
    HEADER_KEY = "header key that is not UTF-8"
    HEADER_NULL = "null value of a header"
    TIMESTAMP_TYPE = "type of the timestamp"
    TIMESTAMP_NULL = "timestamp that is missing"


OF_BATCHES = frozenset({LossKind.BATCH_BOUNDS, LossKind.COMPRESSION, LossKind.PRODUCER, LossKind.TRANSACTIONS})
"""Losses that belong to batches, not to records: said, never refused."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`count` records of a partition carry something that the format cannot hold; the first at `offset`."""

    kind: LossKind
    topic: str
    partition: int
    count: int
    offset: int


def copied_blocks(blocks: Iterable[bytes | memoryview], most: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of at most `most`. They are copies, since the caller may fill a buffer again."""
    for block in blocks:
        view = memoryview(block)
        for at in range(0, len(view), most):
            yield bytes(view[at : at + most])

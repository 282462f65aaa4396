"""Reads a segment of the Records format without the positions of its records."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from logkeep_engine.formats.records import read_blocks
from logkeep_engine.log.consumed import PlainRecord


def read_segment(
    blocks: Iterable[bytes | memoryview], *, start_offset: int = 0, position: int = 0, size: int | None = None
) -> Iterator[Sequence[PlainRecord]]:
    """The records from `start_offset` on: see `read_blocks`."""
    for block in read_blocks(blocks, position=position, size=size):
        records = block.records
        if records[0].offset >= start_offset:
            yield records
        elif records[-1].offset >= start_offset:
            yield records[bisect_left(records, start_offset, key=lambda record: record.offset) :]

"""Batches of empty records, which stand for offsets that hold no record in the source."""

from __future__ import annotations

from functools import lru_cache

from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, Buffer, parse_header, rewritten_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import made_batch
from logkeep_engine.log.varints import pack_varint

MOST_RECORDS = 100_000
"""A batch of this many takes about 60 kB."""

_NO_TIMESTAMP = -1  # a search by time passes such records over, and retention by time does not count them
_EMPTY_RECORD = b"\x01\x01\x00"  # no key, no value, no headers


def padding_batch(count: int, *, producer_id: int, producer_epoch: int, base_sequence: int) -> tuple[Buffer, ...]:
    """Return a transactional batch of `count` records without key, value, headers and time, in pieces that go one after
    the other. `count` is at most MOST_RECORDS.
    """
    batch, header = _template(count) if count == MOST_RECORDS else _made(count)
    head = rewritten_header(
        batch,
        header,
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )
    return head, batch[HEADER_SIZE:]


@lru_cache(maxsize=1)
def _template(count: int) -> tuple[memoryview, BatchHeader]:
    return _made(count)


def _made(count: int) -> tuple[memoryview, BatchHeader]:
    body = bytearray()
    for number in range(count):
        record = bytearray(b"\x00\x00")  # attributes, time
        pack_varint(record, number)
        record += _EMPTY_RECORD
        pack_varint(body, len(record))
        body += record
    times = _NO_TIMESTAMP, _NO_TIMESTAMP
    batch = memoryview(made_batch(Codec.ZSTD, body, count=count, times=times, transactional=True))
    return batch, parse_header(batch)

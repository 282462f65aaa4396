"""Finds record batches in a log, checks them and gives them new offsets. Records stay packed.

All functions take any contiguous buffer of bytes and copy nothing of it.
Give them a `memoryview` where the buffer is large.

Messages of magic 0 and 1 (see `legacy`) pass through as batches of their own: a compressed one is opened to learn its
first offset, so walking them is slow.

Source of facts: apache/kafka `DefaultRecordBatch.java`; KIP-98 (format v2), KIP-534 (delete horizon).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import logkeep_kernel as kernel
from logkeep_kernel import crc32c

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log import legacy
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.legacy import LOG_OVERHEAD
from logkeep_engine.log.varints import INT64_MAX

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "MAX_OFFSET",
    "BatchHeader",
    "Buffer",
    "Codec",
    "Headers",
    "Stretch",
    "check_crc",
    "crc32c",
    "headers_of",
    "last_whole",
    "parse_header",
    "rewritten_header",
    "runs",
    "walk",
    "walk_checked",
    "whole_batches",
    "whole_header",
    "with_append_time",
]

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
"""Bytes of a batch before its records."""

MAX_OFFSET = INT64_MAX

_HEADER = struct.Struct(">qiiBIhiqqqhii")
_SIZE_AND_MAGIC = struct.Struct(">8xi4xB")
_PREFIX = _SIZE_AND_MAGIC.size
"""Bytes that tell a batch's size and magic, in every version of the format."""

_INT32_MAX = 2**31 - 1
_SMALLEST_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_MAGIC = 2

_ATTRIBUTES_AT = 21  # after the CRC of four bytes, which covers all from here on
_CRC = struct.Struct(">I")
_CRC_AT = 17  # after base offset (8), length (4), leader epoch (4) and magic (1)
_BASE_OFFSET = struct.Struct(">q")

_ATTRIBUTES_LOW_AT = _ATTRIBUTES_AT + 1
_CODEC = 0x07  # bits 0 to 2 of a batch's attributes
_APPEND_TIME = 0x08  # bit 3: the broker has set the times
_TRANSACTIONAL = 0x10  # bit 4
_CONTROL = 0x20  # bit 5: markers and the like, not data
_DELETE_HORIZON = 0x40  # bit 6: the first timestamp is the time from which tombstones go (KIP-534)


class BatchHeader(NamedTuple):
    """The fields before the records, in their order on disk. A tuple, since a pass over a log makes one for every
    batch.

    In magic 0 and 1 the fields that did not exist are -1, and `record_count` counts the messages inside.
    """

    base_offset: int
    batch_length: int
    """Bytes after this field; see `size`."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """The time in ms to which the records' timestamp deltas add: the first record's timestamp when the producer sent
    the batch, the delete horizon if `has_delete_horizon`, -1 in an empty batch.
    """
    max_timestamp: int
    """The largest timestamp of the records, ms; the time of the append if `is_log_append_time`. A producer claims it:
    see `whole_header`."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    """Records that are there: compaction may leave fewer than the offsets the batch covers, even none."""

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Raises `CorruptBatch` on a codec that does not exist."""
        code = self.attributes & _CODEC
        if code > Codec.ZSTD:
            raise CorruptBatch(
                f"The batch at offset {self.base_offset} is compressed with codec {code}, which does not exist."
            )
        return Codec(code)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """The log cleaner has set the time at which tombstones and markers of this batch may go; `base_timestamp`
        holds it.
        """
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def has_gaps(self) -> bool:
        """Offsets inside the batch have no record."""
        return self.record_count != self.last_offset_delta + 1


Headers: TypeAlias = "kernel.Headers[BatchHeader]"
"""A sequence of (position, header) of batches that lie back to back. Its methods ask all of them at once."""

Stretch = tuple[memoryview, Headers]
"""A view on batches that lie back to back, and their headers with positions in the view."""

# not by BatchHeader's own constructor, a Python function: one header is made for every batch
_header_of: Callable[[kernel.Fields], BatchHeader] = partial(tuple.__new__, BatchHeader)
_RUN = 16_384  # batches walked at once: the headers of tiny batches take as much memory as the batches
_NO_END = 2**63  # larger than any offset


def headers_of(batches: Iterable[tuple[int, BatchHeader]]) -> Headers:
    """Return the sequence of headers that are known one by one. Raises `ValueError` unless the batches lie back to
    back."""
    return kernel.Headers.of(batches, _header_of)


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the header of the batch at `pos`, as it stands there: take `whole_header` where a time decides. The first
    61 bytes are enough; a message of magic 0 or 1 must be whole.

    Raises `CorruptBatch` when the bytes cannot be the start of a batch.
    """
    left = len(buf) - pos
    if left < _PREFIX:
        raise CorruptBatch(f"A batch is cut short: {left} bytes at position {pos}.")
    length, magic = _SIZE_AND_MAGIC.unpack_from(buf, pos)
    if magic == _MAGIC:
        if left < HEADER_SIZE:
            raise CorruptBatch(
                f"A batch is cut short: {left} bytes at position {pos}, its header alone has {HEADER_SIZE}."
            )
        header: BatchHeader = tuple.__new__(BatchHeader, _HEADER.unpack_from(buf, pos))
        _check_fields(header, pos)
        return header
    _check_size(buf, pos, length, magic)
    return _legacy_header(buf, pos)


def whole_header(batch: Buffer) -> BatchHeader:
    """Return the header of the whole batch at the beginning of `batch`, with the highest time of its records.

    A producer says which that is, and Apache's brokers repair it; others keep what a producer has left unset. So where
    a header cannot be right, since the highest time lies below the first or below zero, the records are looked at. This
    holds for the headers of `runs`, too. A header stays as it is if the records are damaged or unpack to too much.

    Raises as `parse_header`, and `CorruptBatch` for a batch that is cut short.
    """
    for _, header in walk(batch):
        return header
    header = parse_header(batch)
    raise CorruptBatch(f"The batch at offset {header.base_offset} is cut short: {len(batch)} of {header.size} bytes.")


def runs(buf: Buffer, until: int = _NO_END, start: int = 0, *, checked: bool) -> Iterator[Headers]:
    """Yield the headers of every whole batch from `start` on, as `whole_header` has them, many at a time, up to the
    first batch that begins at offset `until` or above; a partial batch at the end is left out. `checked`: each CRC is
    compared.

    Raises `CorruptBatch` where the bytes cannot be a batch, and as `check_crc` does; what was yielded before holds. A
    damaged length that points past the end looks like a partial batch: a caller who knows that the buffer ends with a
    batch must compare.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    at, stop = start, ""
    while stop not in ("end", "until"):
        found, at, stop = kernel.walk(view, at, until, _RUN, checked=checked, make=_header_of)
        if found:
            yield found
        if stop == "odd":
            others, at, wrong = _odd_run(view, at, until, checked=checked)
            if others:
                yield headers_of(others)
            if wrong is not None:
                raise wrong
            if not others:
                return


def _odd_run(
    view: memoryview, at: int, until: int, *, checked: bool
) -> tuple[list[tuple[int, BatchHeader]], int, CorruptBatch | BatchTooLarge | None]:
    """Return the batches at `at` that the kernel leaves: messages of magic 0 and 1. Also the position after them, and
    what is wrong with the batch there (None: nothing, or it is not whole)."""
    others: list[tuple[int, BatchHeader]] = []
    while len(others) < _RUN and len(view) - at >= _PREFIX:
        length, magic = _SIZE_AND_MAGIC.unpack_from(view, at)
        if others and magic == _MAGIC:
            break
        try:
            _check_size(view, at, length, magic)
            if LOG_OVERHEAD + length > len(view) - at:
                break
            header = parse_header(view, at)
            if header.base_offset >= until:
                break
            if checked:
                check_crc(view, at, header)
        except (CorruptBatch, BatchTooLarge) as error:
            return others, at, error
        others.append((at, header))
        at += header.size
    return others, at, None


def walk(buf: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch from `start` on, like `runs`. CRCs are not checked."""
    for headers in runs(buf, start=start, checked=False):
        yield from headers


def walk_checked(buf: Buffer, until: int, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Like `walk`, but with each CRC checked, up to the first batch that begins at offset `until` or above."""
    for headers in runs(buf, until, start, checked=True):
        yield from headers


def last_whole(buf: Buffer) -> int:
    """Return the position of the last whole batch, or of the first one that cannot be, by the lengths alone."""
    return kernel.last_whole(buf)


def whole_batches(buf: Buffer, limit: int) -> int:
    """Bytes of the batches at the start of `buf` that fit into `limit`; of the first one, if it alone is larger.

    Goes by the lengths alone: the batches must have been checked, and all of them must be whole.
    """
    return kernel.whole_batches(buf, limit)


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Compare the batch at `pos` with its checksum. Raises `CorruptBatch` with its base offset and both checksums.

    The checksum does not cover base offset, length, leader epoch and magic: the broker sets them after the producer
    made it.
    """
    view = buf if type(buf) is memoryview else memoryview(buf)
    end = pos + LOG_OVERHEAD + header[1]
    if end > len(view):
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is cut short: {len(view) - pos} of {header.size} bytes."
        )
    if header[3] == _MAGIC:
        expected, found = header[4], crc32c(view[pos + _ATTRIBUTES_AT : end])
    else:
        expected, found = legacy.check_crc(view, pos)
    if expected != found:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} is damaged: its CRC is {expected:#010x}, "
            f"its bytes give {found:#010x}."
        )


def rewritten_header(
    batch: memoryview,
    header: BatchHeader,
    *,
    base_offset: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool | None = False,
    leader_epoch: int = -1,
) -> bytes:
    """Return the first 61 bytes of a batch that a producer may send, for the whole batch of magic 2 with this `header`.

    They are sent in front of `batch[HEADER_SIZE:]`, so no record is copied. Offset, producer fields, bits and CRC are
    made again.

    `transactional=None` keeps the bit. The delete-horizon bit goes, since it is the business of one log's cleaner;
    `base_timestamp` stays, so every record keeps its time. Gaps and the timestamp type stay too: a broker refuses
    gaps, and resets log-append time. The new CRC vouches for whatever is in the batch: check the old one first.
    """
    attributes = header.attributes & ~_DELETE_HORIZON
    if transactional is not None:
        attributes = attributes | _TRANSACTIONAL if transactional else attributes & ~_TRANSACTIONAL
    head = _HEADER.pack(
        base_offset,
        header.batch_length,
        leader_epoch,
        _MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        header.record_count,
    )
    covered = head[_ATTRIBUTES_AT:]
    return head[:_CRC_AT] + _CRC.pack(crc32c(batch[HEADER_SIZE:], crc32c(covered))) + covered


def seal(batch: bytearray) -> None:
    """Set the CRC of a batch of magic 2 that is otherwise ready."""
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))


def with_append_time(batch: bytes | bytearray) -> bytearray:
    """Return the batch of magic 2 with the time of its append, which is its highest time, for that of all its
    records."""
    stamped = bytearray(batch)
    stamped[_ATTRIBUTES_LOW_AT] |= _APPEND_TIME
    seal(stamped)
    return stamped


def pack_header(header: BatchHeader) -> bytes:
    """Return the 61 bytes of a header of magic 2, the CRC as given."""
    return _HEADER.pack(*header)


def _check_size(buf: Buffer, pos: int, length: int, magic: int) -> None:
    (base_offset,) = _BASE_OFFSET.unpack_from(buf, pos)
    if magic > _MAGIC:
        raise CorruptBatch(
            f"The batch at offset {base_offset}, position {pos}, has magic {magic}, which does not exist."
        )
    smallest = _SMALLEST_LENGTH if magic == _MAGIC else legacy.smallest_size(magic)
    if length < smallest:
        raise CorruptBatch(
            f"The batch at offset {base_offset}, position {pos}, has length {length}; "
            f"with magic {magic} it is at least {smallest}."
        )


def _check_fields(header: BatchHeader, pos: int) -> None:
    where = f"The batch at offset {header.base_offset}, position {pos},"
    if header.batch_length < _SMALLEST_LENGTH:
        raise CorruptBatch(f"{where} has length {header.batch_length}, less than the smallest, {_SMALLEST_LENGTH}.")
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"{where} has the negative last offset delta {header.last_offset_delta}.")
    if header.record_count < 0:
        raise CorruptBatch(f"{where} has the negative record count {header.record_count}.")


def _legacy_header(buf: Buffer, pos: int) -> BatchHeader:
    found = legacy.read(memoryview(buf), pos)
    first, last = found.messages[0], found.messages[-1]
    if last.offset < first.offset:
        raise CorruptBatch(f"The message at offset {last.offset} is damaged: offsets inside fall from {first.offset}.")
    # a header holds the distance to its last offset as an int32
    if last.offset - first.offset > _INT32_MAX:
        raise CorruptBatch(f"The message at offset {last.offset} is damaged: offsets inside begin at {first.offset}.")
    return BatchHeader(
        base_offset=first.offset,
        batch_length=found.size - LOG_OVERHEAD,
        leader_epoch=-1,
        magic=found.magic,
        crc=found.crc,
        attributes=found.attributes,
        last_offset_delta=last.offset - first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max(message.timestamp for message in found.messages),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(found.messages),
    )

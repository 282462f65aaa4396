"""Walks over a log in any state: good batches, batches that are damaged, and bytes that are not a batch.

    for item in scan(blocks, size):
        if isinstance(item, Batch): ...     # item.problem tells what is wrong with it, "" if nothing is
        else: ...                           # DamagedBytes: bytes that had to be passed over to find the next batch

`log.recovery` stops where a log ends to be valid; this walker continues to find what is left. Memory: a block, or the
largest batch. If it is unknown how large the batches of a log are, and a length above MAX_BATCH_BYTES is wrong, the
walker holds the rest of the log in memory once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log import legacy
from logkeep_engine.log.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    check_crc,
    parse_header,
    whole_header,
)
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.recovery import misplaced
from logkeep_engine.log.segment import MAX_RELATIVE_OFFSET

MAX_BATCH_BYTES = 128 << 20
"""A length above this is taken for damage, unless the CRC of the batch holds. After the first batch whose CRC does not
hold, and after damage, such a length is always damage: to try each would read the log many times.
"""

_PREFIX = struct.Struct(">qi4xB")  # base offset, length, magic
_MAGIC_AT = 16  # the same place in every version of the format
_MAGIC = 2
_CODEC = 0x07  # bits 0 to 2 of a batch's attributes
_KNOWN_ATTRIBUTES = 0x7F
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch at `position` of the log. `intact`: its CRC holds. `problem` says what is wrong with it: its CRC,
    or its offset, which must rise and be one that the segment can hold; "" if nothing is.
    """

    position: int
    header: BatchHeader
    data: memoryview
    intact: bool
    problem: str


def scan(
    blocks: Iterator[Buffer | DamagedBytes],
    size: int,
    *,
    start: int = 0,
    base_offset: int = 0,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    sure: bool = False,
) -> Iterator[Batch | DamagedBytes]:
    """Yield the batches of a log of `size` bytes, whose bytes from position `start` on are `blocks`. `base_offset` is
    the segment's. `sure`: it is known that no batch is larger than `max_batch_bytes`.
    """
    window = _Window(blocks, start, size, sure=sure)
    expected = base_offset
    while True:
        while not window.ended:
            item = _next(window, expected, base_offset, max_batch_bytes)
            if item is None:
                break
            if isinstance(item, Batch) and item.intact and item.header.last_offset - base_offset <= MAX_RELATIVE_OFFSET:
                expected = item.header.next_offset  # also after one that fell: it is said once
            yield item
        damaged = window.pass_damage()
        if damaged is None:
            return
        yield DamagedBytes(damaged.what, damaged.size, window.position - max(damaged.size, 0), expected)


class _Window:
    """The bytes from `position` on that have been read and not yet looked at; they end at damage, or with the log."""

    def __init__(self, blocks: Iterator[Buffer | DamagedBytes], position: int, size: int, *, sure: bool) -> None:
        self._blocks = blocks
        self._damaged: DamagedBytes | None = None
        self._size: int | None = size
        self._held: bytes | bytearray = b""
        self._start = 0
        self.position = position
        self.ended = False
        self.sure = sure  # a large length is damage

    def __len__(self) -> int:
        return len(self._held) - self._start

    @property
    def left(self) -> int | None:
        """Bytes of the log from `position` on; None: unknown."""
        return None if self._size is None else self._size - self.position

    def view(self, start: int = 0, end: int | None = None) -> memoryview:
        whole = memoryview(self._held).toreadonly()
        return whole[self._start + start : None if end is None else self._start + end]

    def find(self, what: bytes, start: int) -> int:
        found = self._held.find(what, self._start + start)
        return found - self._start if found >= 0 else -1

    def prefix(self, at: int = 0) -> tuple[int, int, int]:
        """Base offset, length and magic of what begins at `at`."""
        base_offset, length, magic = _PREFIX.unpack_from(self._held, self._start + at)
        return base_offset, length, magic

    def fill(self, count: int) -> bool:
        """Have at least `count` bytes; False: this many are not there."""
        if len(self) >= count:
            return True
        held: bytearray | None = None  # grows in place: a large batch is not held twice
        while self._damaged is None and len(self if held is None else held) < count:
            item = next(self._blocks, None)
            if item is None:
                break
            if isinstance(item, DamagedBytes):
                self._damaged = item
            else:
                held = bytearray(self.view()) if held is None else held
                held += item
        if held is not None:
            self._held, self._start = held, 0
        return len(self) >= count

    def drop(self, count: int) -> None:
        self._start += count
        self.position += count

    def pass_damage(self) -> DamagedBytes | None:
        """Continue after the damage at which the bytes end; None: it is the end of the log."""
        damaged, self._damaged = self._damaged, None
        self.ended = False
        if damaged is not None:
            if damaged.size < 0:
                self._size = None
            self.position += max(damaged.size, 0)
        return damaged


def _next(window: _Window, expected: int, base_offset: int, max_batch_bytes: int) -> Batch | DamagedBytes | None:
    if not window.fill(1):
        window.ended = True
        return None
    found = _batch(window, expected, base_offset, max_batch_bytes)
    if isinstance(found, Batch):
        window.drop(found.header.size)
        return found
    return _pass_damage(window, expected, max_batch_bytes, found)


def _batch(window: _Window, expected: int, segment_base: int, max_batch_bytes: int) -> Batch | str:
    """The batch at the window's position, or why there is none."""
    left = window.left
    if not window.fill(_PREFIX.size):
        return f"a batch is cut short: only {len(window)} bytes are left"
    base_offset, length, magic = window.prefix()
    size = length + LOG_OVERHEAD
    smallest = HEADER_SIZE if magic == _MAGIC else legacy.smallest_size(min(magic, 1)) + LOG_OVERHEAD
    if magic > _MAGIC or size < smallest:
        return f"no batch begins there (magic {magic}, length {length})"
    if left is not None and size > left:
        return f"the batch at offset {base_offset} is cut short: {left} of {size} bytes"
    if size > max_batch_bytes and (left is None or window.sure):
        return f"a batch that claims {size} bytes"
    if not window.fill(size):
        return f"the batch at offset {base_offset} is cut short: {len(window)} of {size} bytes"
    data = window.view(0, size)
    problem = ""
    try:
        header = whole_header(data)
        try:
            check_crc(data, 0, header)
        except CorruptBatch as error:
            problem = error.message.rstrip(".")
    except CorruptBatch as error:
        window.sure = window.sure or size > max_batch_bytes
        return error.message.rstrip(".")
    if problem and size > max_batch_bytes:
        window.sure = True
        return f"a batch that claims {size} bytes"
    if problem and not _followed(window, header):
        return problem
    intact = not problem
    if intact:
        problem = misplaced(header, expected, segment_base)
    return Batch(window.position, header, data, intact, problem)


def _followed(window: _Window, header: BatchHeader) -> bool:
    """Does the batch end where the log ends or another one seems to begin? Then its length may be trusted."""
    if not window.fill(header.size + 1):
        return True
    if not window.fill(header.size + _PREFIX.size):
        return False
    base_offset, length, magic = window.prefix(header.size)
    left = window.left
    fits = left is None or header.size + LOG_OVERHEAD + length <= left
    return magic <= _MAGIC and length > 0 and fits and 0 < base_offset - header.base_offset <= _INT32_MAX


def _pass_damage(window: _Window, expected: int, max_batch_bytes: int, what: str) -> DamagedBytes:
    """Look for the next whole batch: where the damaged one says that it ends, then at every byte."""
    position = window.position
    if window.fill(_PREFIX.size):
        size = window.prefix()[1] + LOG_OVERHEAD
        if HEADER_SIZE <= size <= max_batch_bytes and _good(window, size, expected, max_batch_bytes):
            window.drop(size)
            return DamagedBytes(what, size, position, expected)
    at = 1
    while window.fill(at + HEADER_SIZE):
        magic = window.find(b"\x02", at + _MAGIC_AT)
        if magic < 0:
            at = len(window) - _MAGIC_AT
        else:
            at = magic - _MAGIC_AT
            if _good(window, at, expected, max_batch_bytes):
                window.drop(at)
                return DamagedBytes(what, window.position - position, position, expected)
        window.drop(at)
        at = 1
    window.drop(len(window))
    return DamagedBytes(what, window.position - position, position, expected)


def _good(window: _Window, at: int, expected: int, max_batch_bytes: int) -> bool:
    """Is a whole batch of magic 2 at `at`?"""
    left = window.left
    if (left is not None and left < at + HEADER_SIZE) or not window.fill(at + HEADER_SIZE):
        return False
    try:
        header = parse_header(window.view(at, at + HEADER_SIZE))
        if header.magic != _MAGIC or not expected <= header.base_offset <= expected + _INT32_MAX:
            return False
        if header.attributes & ~_KNOWN_ATTRIBUTES or header.attributes & _CODEC > Codec.ZSTD:
            return False
        end = at + header.size
        if header.size > max_batch_bytes or (left is not None and left < end) or not window.fill(end):
            return False
        check_crc(window.view(at), 0, header)
    except CorruptBatch:
        return False
    return True

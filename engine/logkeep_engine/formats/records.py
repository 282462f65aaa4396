"""The Records format, version 1: the published file format of `kafka-backup`, byte for byte.

A segment is the byte 0x01 and then records, one after the other, big-endian:

    offset int64 | timestamp type int32 | timestamp int64, only for types 0 and 1 | key length int32 (-1: null), key |
    value length int32 (-1: null), value | header count int32 | headers: key length int32, key in UTF-8,
    value length int32 (-1: null), value

    encoder = RecordsEncoder(data.write, index.write, limit_bytes)
    for block in read_blocks(iter(lambda: file.read(1 << 20), b""), size=...): ...

Names and the index of a partition are in `records_names`, the index of a segment in `records_index`, the positions of
consumer groups in `records_groups`, the recovery of a segment in `records_recovery`. Nothing in the format
protects the bytes of a record: what is flipped inside a key or a value is not seen here, the catalog's SHA-256 sees it.

The format cannot hold what belongs to batches (`base.OF_BATCHES`). Every record fits as it is: null keys and values,
headers in their order with duplicates and nulls, all types of timestamps. Header keys that are not UTF-8 keep their
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from logkeep_kernel import RecordsSegment, read_records

from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.base import SegmentFacts, copied_blocks
from logkeep_engine.formats.records_names import MAGIC, magic_problem
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.memory import stored_record_most
from logkeep_engine.log.rows import Rows, as_rows

BLOCK_BYTES = 1024 * 1024

_PLACE = struct.Struct(">qi")  # offset, type of the timestamp
_INT32 = struct.Struct(">i")


class RecordBlock(NamedTuple):
    """Records that follow one another, in bytes that lie at `origin` in their file."""

    records: Rows
    origin: int

    @property
    def positions(self) -> list[int]:
        """The file positions of each record, and of the end of the last. The list is made on request:
        a restore does not."""
        return self.records.positions(self.origin)

    @property
    def end(self) -> int:
        """The file position after the last record."""
        return self.records[-1:].positions(self.origin)[-1]


class RecordsEncoder:
    """One segment and its index in the making: a `SegmentEncoder`.

    `data` and `index` are called with the next bytes of the two files, first with version 1's first byte. The record
    that takes the file over `limit_bytes` is the last one taken, so a segment always gets at least one.

    Raises `CorruptSegment` if offsets do not rise.
    """

    def __init__(self, data: Callable[[bytes], object], index: Callable[[bytes], object], limit_bytes: int) -> None:
        self._data = data
        self._index = index
        self._full = False
        self._packer = RecordsSegment(len(MAGIC), limit_bytes)
        data(MAGIC)
        index(MAGIC)

    @property
    def size(self) -> int:
        """Bytes of the segment so far."""
        return self._packer.position

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        return self._full

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the segment; returns how many."""
        rows = as_rows(records)
        packer = self._packer
        at = start
        while at < len(rows) and not self._full:
            taken, why = packer.append(rows, at, BLOCK_BYTES)
            at += taken
            self._full = why == "full"
            if packer.waiting >= BLOCK_BYTES:
                self.hand_on()
            if why == "falls":
                self.hand_on()
                raise CorruptSegment(
                    f"The record at offset {rows[at].offset} comes after offset {packer.last_offset}: offsets must "
                    "rise."
                )
        return at - start

    def finish(self) -> SegmentFacts:
        """Hand on what is left of the bytes, and say what the segment holds. At least one record was taken."""
        count = self._packer.count
        if not count:
            raise ValueError("a segment needs at least one record")
        self.hand_on()
        first, last, lowest, highest, append_time, largest = self._packer.facts()
        return SegmentFacts(
            base_offset=first,
            next_offset=last + 1,
            records=count,
            blocks=1,
            bytes=self._packer.position,
            index_bytes=1 + 24 * count,
            min_timestamp=lowest,
            max_timestamp=highest,
            gaps=last - first + 1 != count,
            append_time=append_time,
            largest_record=largest,
        )

    def hand_on(self) -> None:
        """Hand on the bytes that wait: they gather up to a MiB."""
        data, entries = self._packer.take()
        self._data(data)
        self._index(entries)


def read_blocks(
    blocks: Iterable[bytes | memoryview], *, position: int = 0, size: int | None = None, after: int = -1
) -> Generator[RecordBlock]:
    """The records of a segment with the position of each, in blocks of about a MiB. The first offset must lie after
    `after`.

    `blocks` are the bytes of the file, one block after the other, from file position `position` on: 0, or where a
    record begins (`records_index.position_before`). With `size`, the file's, a length that lies is found before
    anything is read for it. Memory: a few MiB, or twice the largest record.

    Raises `CorruptSegment`, after the records before the damage: another version, a record that is cut short, a length
    or a count that cannot be, an unknown timestamp type, offsets that do not rise, more or fewer bytes than `size`.
    `BatchTooLarge` for a record of more bytes than a task's memory allows.
    """
    source = copied_blocks(blocks, BLOCK_BYTES)
    most = stored_record_most()
    held = b""
    wanted = BLOCK_BYTES
    last = after
    checked = position > 0
    more = True
    short = 0
    while more:
        held, more = _gather(held, source, wanted)
        at = 0
        if not checked:
            problem = magic_problem(held, "segment")
            if problem:
                raise CorruptSegment(problem[0], hint=problem[1])
            checked, at = True, len(MAGIC)
        rows, needed = read_records(held, at, last, len(held))
        found = RecordBlock(rows, position)
        if rows:
            last = rows.last_offset
            yield found
        used = found.end - position
        if needed is None:
            raise _problem_at(held, used, position, last)
        position += used
        held = held[used:]
        if size is not None and held and position + needed > size:
            raise _cut(position, size - position, needed)
        if needed > most:
            raise BatchTooLarge(
                f"The record at position {position} of the segment has {needed} bytes or more, at most {most} are read."
            )
        wanted = max(BLOCK_BYTES, needed)
        short = needed
    if held:
        raise _cut(position, len(held), short)
    if size is not None and position != size:
        raise CorruptSegment(f"The segment has {position} bytes, not {size}.")


def _gather(held: bytes, source: Iterator[bytes], wanted: int) -> tuple[bytes, bool]:
    """`held` and more bytes from `source`, at least `wanted` if there are so many; and whether there may be more."""
    parts = [held]
    have = len(held)
    for block in source:
        parts.append(block)
        have += len(block)
        if have >= wanted:
            return b"".join(parts), True
    return b"".join(parts), False


def _problem_at(data: bytes, at: int, origin: int, last: int) -> CorruptSegment:
    """Return the words for what is at `at`: the kernel found that it is not a record that can be. `origin` is the file
    position of `data`, `last` the offset of the record before."""
    take_int = _INT32.unpack_from
    offset, kind = _PLACE.unpack_from(data, at)
    position = origin + at
    if offset <= last:
        if last < 0:
            return CorruptSegment(f"The record at position {position} has offset {offset}.")
        return CorruptSegment(
            f"The record at position {position} has offset {offset} and follows offset {last}: offsets must rise."
        )
    if kind not in (-2, -1, 0, 1):
        return _corrupt(offset, position, f"the timestamp type {kind}; -2, -1, 0 and 1 exist")
    at += 20 if kind >= 0 else 12
    for what in ("a key", "a value"):
        (length,) = take_int(data, at)
        if length < -1:
            return _corrupt(offset, position, f"{what} of {length} bytes")
        at += 4 + max(length, 0)
    (count,) = take_int(data, at)
    if count < 0:
        return _corrupt(offset, position, f"{count} headers")
    at += 4
    for _ in range(count):
        for what, least in (("a header key", 0), ("a header value", -1)):
            (length,) = take_int(data, at)
            if length < least:
                return _corrupt(offset, position, f"{what} of {length} bytes")
            at += 4 + max(length, 0)
    return _corrupt(offset, position, "lengths that do not fit together")


def _corrupt(offset: int, position: int, what: str) -> CorruptSegment:
    return CorruptSegment(f"The record of offset {offset} at position {position} has {what}.")


def _cut(position: int, have: int, needed: int) -> CorruptSegment:
    return CorruptSegment(
        f"The segment is cut short: the record at position {position} needs at least {needed} bytes and {have} are "
        "left."
    )

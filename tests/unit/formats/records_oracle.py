"""The Records format, written and read in Python: the oracle of what the kernel does."""

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from logkeep_engine.collector import paused
from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.base import SegmentFacts, TimestampKind, copied_blocks
from logkeep_engine.formats.records_index import pack_entries
from logkeep_engine.formats.records_names import MAGIC, magic_problem
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.memory import stored_record_most

BLOCK_BYTES = 1024 * 1024

Headers = tuple[tuple[str, bytes | None], ...]

_TIMED = struct.Struct(">qiqi")  # offset, type, timestamp, key length
_UNTIMED = struct.Struct(">qii")  # offset, type, key length
_INT32 = struct.Struct(">i")
_SMALLEST = 24  # a record without a timestamp, key, value and headers takes 24 bytes
_SHAPES = 1024
_TIMED_BYTES = 32  # a record with a timestamp and no headers takes them beside key and value
_HEADER_BYTES = 8  # a header takes them beside key and value


class OldBlock(NamedTuple):
    """Records that lie after each other. `positions` are the file positions of each, and the end of the last."""

    records: list[PlainRecord]
    positions: list[int]


def pack_record(record: LogRecord) -> bytes:
    """The bytes of one record. Raises ValueError for a record that no version of the format can hold."""
    offset, timestamp, kind = record.offset, record.timestamp, record.timestamp_type
    key, value = record.key, record.value
    if offset < 0:
        raise ValueError(f"a record cannot have offset {offset}")
    key_length = -1 if key is None else len(key)
    if kind is None or (kind == 0 and (timestamp is None or timestamp == -1)):
        code = TimestampKind.NONE if kind is None else TimestampKind.CREATE_NULL
        parts = [_UNTIMED.pack(offset, code, key_length)]
    elif kind in (TimestampKind.CREATE, TimestampKind.APPEND):
        parts = [_TIMED.pack(offset, kind, -1 if timestamp is None else timestamp, key_length)]
    else:
        raise ValueError(f"the record at offset {offset} has the timestamp type {kind}; 0, 1 and None exist")
    parts += (key or b"", _INT32.pack(-1 if value is None else len(value)), value or b"")
    parts += (_INT32.pack(len(record.headers)), _pack_headers(record.headers))
    return b"".join(parts)


class OldEncoder:
    """One segment and its index in the making: a `SegmentEncoder`.

    `data` and `index` are called with the next bytes of the two files, first with version 1's first byte. The record
    that takes the file over `limit_bytes` is the last one taken, so a segment always gets at least one.

    Raises `CorruptSegment` if offsets do not rise.
    """

    def __init__(self, data: Callable[[bytes], object], index: Callable[[bytes], object], limit_bytes: int) -> None:
        self._data = data
        self._index = index
        self._limit = limit_bytes
        self._position = len(MAGIC)
        self._first = self._last = -1
        self._count = 0
        self._min_timestamp: int | None = None
        self._max_timestamp = -1  # also where all are before 1970, as everywhere else
        self._append_time = False
        self._largest = 0
        self._shapes: dict[tuple[int, int], Callable[..., bytes]] = {}
        data(MAGIC)
        index(MAGIC)

    @property
    def size(self) -> int:
        """Bytes of the segment so far."""
        return self._position

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        return self._count > 0 and self._position > self._limit

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the segment; returns how many."""
        at = start
        while at < len(records) and not self.full:
            taken = self._append_rising(records, at)
            if not taken:
                raise CorruptSegment(
                    f"The record at offset {records[at].offset} comes after offset {self._last}: offsets must rise."
                )
            at += taken
        return at - start

    def finish(self) -> SegmentFacts:
        """The facts of the segment. At least one record was taken; the bytes are handed on already."""
        if not self._count:
            raise ValueError("a segment needs at least one record")
        first, last, count = self._first, self._last, self._count
        return SegmentFacts(
            base_offset=first,
            next_offset=last + 1,
            records=count,
            blocks=1,
            bytes=self._position,
            index_bytes=1 + 24 * count,
            min_timestamp=-1 if self._min_timestamp is None else self._min_timestamp,
            max_timestamp=self._max_timestamp,
            gaps=last - first + 1 != count,
            append_time=self._append_time,
            largest_record=self._largest,
        )

    def _append_rising(self, records: Sequence[LogRecord], start: int) -> int:
        """Take records as long as their offsets rise and the segment is not full."""
        shapes = self._shapes
        last = self._last
        position, limit = self._position, self._limit
        packed: list[bytes] = []
        offsets: list[int] = []
        positions = [position]
        timestamps: list[int] = []
        append_time = False
        largest = self._largest
        known_headers: Sequence[tuple[str, bytes | None]] = ()  # those of the record before: they are often the same
        packed_headers = b""
        for record in records[start:] if start else records:
            offset = record.offset
            if offset <= last:
                break
            timestamp, kind, key, value = record.timestamp, record.timestamp_type, record.key, record.value
            headers = record.headers
            if timestamp is None or timestamp == -1 or (kind != 0 and kind != 1):
                whole = pack_record(record)
                content = len(whole) - (_SMALLEST if kind != 1 else _TIMED_BYTES)
            else:
                key_length = -1 if key is None else len(key)
                value_length = -1 if value is None else len(value)
                pack = shapes.get((key_length, value_length)) or self._shape(key_length, value_length)
                whole = pack(offset, kind, timestamp, key_length, key or b"", value_length, value or b"", len(headers))
                if headers:
                    if headers != known_headers:
                        known_headers, packed_headers = headers, _pack_headers(headers)
                    whole += packed_headers
                content = len(whole) - _TIMED_BYTES
                timestamps.append(timestamp)
            if kind:
                append_time = True
            if headers:
                content -= _HEADER_BYTES * len(headers)
            if content > largest:
                largest = content
            packed.append(whole)
            offsets.append(offset)
            position += len(whole)
            positions.append(position)
            last = offset
            if position > limit:
                break
        if packed:
            self._hand_on(packed, offsets, positions)
            self._note_times(timestamps)
            self._largest = largest
            self._append_time = self._append_time or append_time
        return len(packed)

    def _hand_on(self, packed: list[bytes], offsets: list[int], positions: list[int]) -> None:
        entries = pack_entries(offsets, positions)
        data = b"".join(packed)
        self._data(data)
        self._index(entries)
        self._position = positions[-1]
        self._first = self._first if self._count else offsets[0]
        self._last = offsets[-1]
        self._count += len(offsets)

    def _note_times(self, timestamps: list[int]) -> None:
        if timestamps:
            lowest, highest = min(timestamps), max(timestamps)
            self._min_timestamp = lowest if self._min_timestamp is None else min(self._min_timestamp, lowest)
            self._max_timestamp = max(self._max_timestamp, highest)

    def _shape(self, key_length: int, value_length: int) -> Callable[..., bytes]:
        """Packs a timed record without headers in one call. Kept for the lengths that come up again."""
        pack = struct.Struct(f">qiqi{max(key_length, 0)}si{max(value_length, 0)}si").pack
        if len(self._shapes) >= _SHAPES:
            return _pack_timed
        self._shapes[key_length, value_length] = pack
        return pack


def read_old_blocks(
    blocks: Iterable[bytes | memoryview], *, position: int = 0, size: int | None = None, after: int = -1
) -> Generator[OldBlock]:
    """The records of a segment with the position of each, in lists of about a MiB. The first offset must lie after
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
    while more:
        held, more = _gather(held, source, wanted)
        at = 0
        if not checked:
            problem = magic_problem(held, "segment")
            if problem:
                raise CorruptSegment(problem[0], hint=problem[1])
            checked, at = True, len(MAGIC)
        block = OldBlock([], [position + at])
        try:
            needed = _decode(held, at, position, last, block)
        except CorruptSegment:
            if block.records:
                yield block
            raise
        if block.records:
            last = block.records[-1].offset
            yield block
        used = block.positions[-1] - position
        position += used
        held = held[used:]
        if size is not None and held and position + needed > size:
            raise _cut(position, size - position, needed)
        if needed > most:
            raise BatchTooLarge(
                f"The record at position {position} of the segment has {needed} bytes or more, at most {most} are read."
            )
        wanted = max(BLOCK_BYTES, needed)
    if held:
        raise _cut(position, len(held), needed)
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


class _Short(Exception):
    """Raised inside `_decode`: the record continues after the data, up to `end` at least."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def _decode(data: bytes, at: int, origin: int, last: int, into: OldBlock) -> int:
    """Append the whole records of `data` from `at` on; returns how many bytes the next one has at least.

    `origin` is the file position of `data`, `last` the offset of the record before. Most records of a topic have the
    lengths of the one before, so that is tried first: it needs one call for all of a record.
    """
    made: list[tuple[object, ...]] = []
    add, place = made.append, into.positions.append
    total = len(data)
    take_timed, take_int = _TIMED.unpack_from, _INT32.unpack_from
    known = seen = (-2, -2)  # lengths of key and value: of the shape that is tried, of the record before
    known_key = known_value = -2
    known_size = total + 1
    take_known = _TIMED.unpack_from
    known_count, known_bytes = 0, b""  # headers of the record before: they are often the same
    known_headers: Headers = ()
    try:
        with paused():
            # One loop: a function for records of other lengths than the one before would take them 13 to 19 % longer.
            while True:
                if at + known_size <= total:
                    offset, kind, timestamp, key_length, key, value_length, value, count = take_known(data, at)
                    if (
                        key_length == known_key
                        and value_length == known_value
                        and not count
                        and offset > last
                        and timestamp != -1
                        and (kind == 0 or kind == 1)
                    ):
                        add((offset, timestamp, kind, key if key_length >= 0 else None, value, ()))
                        at += known_size
                        place(origin + at)
                        last = offset
                        continue
                if at + _SMALLEST > total:
                    return _SMALLEST
                offset, kind, timestamp, key_length = take_timed(data, at)
                if offset <= last:
                    raise CorruptSegment(
                        f"The record at position {origin + at} has offset {offset} and follows offset {last}: offsets "
                        "must rise."
                        if last >= 0
                        else f"The record at position {origin + at} has offset {offset}."
                    )
                begin = at + 24
                if kind == 0 or kind == 1:
                    if timestamp == -1:
                        timestamp = None
                elif kind == -1 or kind == -2:
                    timestamp = None
                    begin = at + 16
                    (key_length,) = take_int(data, at + 12)
                else:
                    raise _corrupt(offset, origin + at, f"the timestamp type {kind}; -2, -1, 0 and 1 exist")
                end = begin + key_length if key_length > 0 else begin
                if end + 8 > total:
                    _check_length(key_length, "a key", offset, origin + at)
                    raise _Short(end + 8)
                (value_length,) = take_int(data, end)
                start = end + 4
                stop = start + value_length if value_length > 0 else start
                if key_length < -1 or value_length < -1:
                    _check_length(key_length, "a key", offset, origin + at)
                    _check_length(value_length, "a value", offset, origin + at)
                if stop + 4 > total:
                    raise _Short(stop + 4)
                (count,) = take_int(data, stop)
                after = stop + 4
                headers: Headers = ()
                if count:
                    if count == known_count and data.startswith(known_bytes, after):
                        headers, after = known_headers, after + len(known_bytes)
                    else:
                        headers, end_of_headers = _headers(data, after, count, offset, origin + at)
                        known_count, known_headers, known_bytes = count, headers, data[after:end_of_headers]
                        after = end_of_headers
                add(
                    (
                        offset,
                        timestamp,
                        None if kind == -1 else 0 if kind == -2 else kind,
                        data[begin:end] if key_length >= 0 else None,
                        data[start:stop] if value_length >= 0 else None,
                        headers,
                    )
                )
                at = after
                place(origin + at)
                last = offset
                lengths = (key_length, value_length)
                if lengths == seen != known and value_length >= 0:
                    known = lengths
                    known_key, known_value = lengths
                    shape = struct.Struct(f">qiqi{max(key_length, 0)}si{value_length}si")
                    take_known, known_size = shape.unpack_from, shape.size
                seen = lengths
    except _Short as short:
        return short.end - at
    finally:
        into.records.extend(map(tuple.__new__, repeat(PlainRecord), made))


def _headers(data: bytes, at: int, count: int, offset: int, position: int) -> tuple[Headers, int]:
    """The headers at `at`, and where they end."""
    if count < 0:
        raise _corrupt(offset, position, f"{count} headers")
    total = len(data)
    if at + 8 * count > total:
        raise _Short(at + 8 * count)
    take = _INT32.unpack_from
    headers: list[tuple[str, bytes | None]] = []
    for left in range(count - 1, -1, -1):
        (length,) = take(data, at)
        if length < 0:
            raise _corrupt(offset, position, f"a header key of {length} bytes")
        end = at + 4 + length
        if end + 4 + 8 * left > total:
            raise _Short(end + 4 + 8 * left)
        name = data[at + 4 : end].decode("utf-8", "surrogateescape")
        (length,) = take(data, end)
        _check_length(length, "a header value", offset, position)
        at = end + 4 + max(length, 0)
        if at + 8 * left > total:
            raise _Short(at + 8 * left)
        headers.append((name, data[end + 4 : at] if length >= 0 else None))
    return tuple(headers), at


def _check_length(length: int, what: str, offset: int, position: int) -> None:
    if length < -1:
        raise _corrupt(offset, position, f"{what} of {length} bytes")


def _corrupt(offset: int, position: int, what: str) -> CorruptSegment:
    return CorruptSegment(f"The record of offset {offset} at position {position} has {what}.")


def _cut(position: int, have: int, needed: int) -> CorruptSegment:
    return CorruptSegment(
        f"The segment is cut short: the record at position {position} needs at least {needed} bytes and {have} are "
        "left."
    )


def _pack_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Their bytes, without the count."""
    parts: list[bytes] = []
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        length = -1 if content is None else len(content)
        parts += (_INT32.pack(len(encoded)), encoded, _INT32.pack(length), content or b"")
    return b"".join(parts)


def _pack_timed(
    offset: int, kind: int, timestamp: int, key_length: int, key: bytes, value_length: int, value: bytes, count: int
) -> bytes:
    return b"".join(
        (_TIMED.pack(offset, kind, timestamp, key_length), key, _INT32.pack(value_length), value, _INT32.pack(count))
    )

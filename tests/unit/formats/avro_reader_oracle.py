"""Objects of the Avro format, read in Python: the oracle of what the kernel does."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import BinaryIO, TypeGuard

from logkeep_engine.collector import paused
from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.avro_container import AvroBlock, Container
from logkeep_engine.formats.avro_numbers import FIRST, SECOND, Headers, long, sized, unzigzag, varint
from logkeep_engine.formats.avro_schema import TIMESTAMP_TYPES, Shape, shape_of
from logkeep_engine.formats.base import TimestampKind
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.memory import listed_most
from tests.unit.formats.avro_oracle_numbers import KINDS, LOW, LOW_BITS, LOW_MASK, NO_HEADER_LIST

_READ_BYTES = 1024 * 1024
_offset = attrgetter("offset")


def read_old_object(
    source: Iterable[bytes | memoryview] | BinaryIO,
    *,
    topic: str | None = None,
    partition: int | None = None,
    start_offset: int = 0,
    size: int | None = None,
) -> Iterator[list[PlainRecord]]:
    """The records of an object from `start_offset` on, block by block; of either schema.

    `source` is a binary file, or the bytes of one in pieces. `topic` and `partition` are what the records must say;
    without them, what the first record says. With `size`, the file's, a length that lies is reported before anything is
    gathered for it. A record without a timestamp has None. In the published schema the type of a timestamp is taken
    for create time, and an empty value stays empty: nobody can tell whether it was null.

    Blocks that end before `start_offset` are not taken apart. Memory: two blocks and the records of one.

    Raises `CorruptSegment`, after the blocks before the damage: no container file, cut short, altered, another schema,
    records of another topic or partition, offsets that do not rise. `BatchTooLarge` for a block of more bytes or
    records than a task's memory allows.
    """
    pieces = iter(lambda: source.read(_READ_BYTES), b"") if _is_file(source) else source
    container = Container(pieces, size=size)
    shape = shape_of(container.schema)
    prefix = sized(topic.encode()) + long(partition) if topic is not None and partition is not None else b""
    begun = start_offset <= 0
    held: AvroBlock | None = None
    last = before = -1
    for block in container.blocks():
        if not block.record_count:
            _expect_nothing(block)
            continue
        prefix = prefix or _said_by(block)
        if not begun:
            first = _first_offset(block, prefix)
            if first <= before:
                raise _falls(block, first, before)
            if first <= start_offset:
                held, before = block, first
                continue
            begun = True
            if held is not None:
                records = _decode(held, shape, prefix, last)
                last = records[-1].offset
                yield from _wanted(records, start_offset)
        records = _decode(block, shape, prefix, last)
        last = records[-1].offset
        yield from _wanted(records, start_offset)
    if held is not None and not begun:
        yield from _wanted(_decode(held, shape, prefix, last), start_offset)


def _is_file(source: Iterable[bytes | memoryview] | BinaryIO) -> TypeGuard[BinaryIO]:
    return hasattr(source, "read")


def _wanted(records: list[PlainRecord], start_offset: int) -> Iterator[list[PlainRecord]]:
    if records[0].offset >= start_offset:
        yield records
    elif records[-1].offset >= start_offset:
        yield records[bisect_left(records, start_offset, key=_offset) :]


def _decode(block: AvroBlock, shape: Shape, prefix: bytes, last: int) -> list[PlainRecord]:
    """The records of a block; `last` is the offset before it, `prefix` how topic and partition are written."""
    if block.record_count > listed_most():
        raise BatchTooLarge(
            f"The Avro block at position {block.position} has {block.record_count} records, at most {listed_most()} "
            "are taken apart at once."
        )
    try:
        with paused():
            return _decode_all(block, shape, prefix, last)
    except IndexError:
        raise _damaged(block, "a record is cut short") from None
    except UnicodeDecodeError as problem:
        raise _damaged(block, f"the name of a header is not UTF-8: {problem}") from problem


def _decode_all(block: AvroBlock, shape: Shape, prefix: bytes, last: int) -> list[PlainRecord]:
    data, total = block.data, len(block.data)
    low, number_at = LOW, _number_at
    prefix_size = len(prefix)
    key_tag, value_tag, lossless = 2 * shape.key, 2 * shape.value, shape.lossless
    plain_tail = _plain_tail(shape)
    tail_size = len(plain_tail)
    offset_rest = -1
    offset_high = b""
    time_base, time_high, time_size = 0, b"\x00", 3
    rows: list[tuple[object, ...]] = []
    add = rows.append
    at = 0
    # One loop: a call for each key and value would take 5 to 6 % more time.
    for _ in range(block.record_count):
        if not data.startswith(prefix, at):
            raise _of_another(block, at, prefix)
        at += prefix_size
        # The offset that is expected is looked for; most numbers are what they are expected to be.
        number = (last + 1) << 1
        rest = number >> LOW_BITS
        if rest != offset_rest:
            offset_rest, offset_high = rest, varint(rest)
        expected = low[number & LOW_MASK] + offset_high if rest else varint(number)
        if data.startswith(expected, at):
            at += len(expected)
            offset = last + 1
        else:
            number, at = number_at(block, at)
            offset = unzigzag(number)
            if offset <= last:
                raise _falls(block, offset, last)
        last = offset
        if data.startswith(time_high, at + 2) and data[at] > 0x7F and data[at + 1] > 0x7F:
            timestamp = time_base | ((data[at] & 0x7F) | (data[at + 1] & 0x7F) << 7) >> 1
            odd = data[at] & 1
            at += time_size
            if odd:
                timestamp = -1 - timestamp
        else:
            start = at
            number, at = number_at(block, at)
            timestamp = unzigzag(number)
            if at - start > 2:
                time_high, time_size = data[start + 2 : at], at - start
                time_base = number >> LOW_BITS << LOW_BITS - 1
        tag = key_tag
        if tag >= 0:
            tag = data[at]
            at += 1
        if tag == key_tag:
            length = data[at]
            at += 1
            if length > 0x7F:
                length, at = number_at(block, at - 1)
            if length & 1:
                raise _damaged(block, f"the key at offset {offset} has a length below zero")
            start = at
            at += length >> 1
            key = data[start:at]
        else:
            _expect_null(block, tag, offset)
            key = None
        tag = value_tag
        if tag >= 0:
            tag = data[at]
            at += 1
        if tag == value_tag:
            length = data[at]
            at += 1
            if length > 0x7F:
                length, at = number_at(block, at - 1)
            if length & 1:
                raise _damaged(block, f"the value at offset {offset} has a length below zero")
            start = at
            at += length >> 1
            value = data[start:at]
        else:
            _expect_null(block, tag, offset)
            value = None
        if data.startswith(plain_tail, at):
            at += tail_size
            if timestamp != -1:
                add((offset, timestamp, 0, key, value, ()))
            else:
                add((offset, None, 0, key, value, ()))
        else:
            headers, at = _headers_at(block, at, shape.headers, offset)
            kind = TimestampKind.CREATE
            if lossless:
                listed, at = _header_list_at(block, at)
                headers = headers if listed is None else listed
                number, at = number_at(block, at)
                if number & 1 or number >> 1 >= len(_KIND_LIST):
                    raise _damaged(block, f"the record at offset {offset} has timestamp type {unzigzag(number)}")
                kind = _KIND_LIST[number >> 1]
            add((offset, None if timestamp == -1 else timestamp, _TYPES[kind], key, value, headers))
        if at > total:
            raise _damaged(block, f"the record at offset {offset} is cut short")
    if at != total:
        raise _damaged(block, f"{total - at} bytes follow its last record")
    return list(map(PlainRecord._make, rows))


_KIND_LIST = list(TIMESTAMP_TYPES.values())
_TYPES = {
    TimestampKind.CREATE: 0,
    TimestampKind.CREATE_NULL: 0,
    TimestampKind.APPEND: 1,
    TimestampKind.NONE: None,
}


def _plain_tail(shape: Shape) -> bytes:
    """How a record without headers ends, and with create time."""
    no_headers = b"\x00" if shape.headers < 0 else long(1 - shape.headers)
    return no_headers + (NO_HEADER_LIST + KINDS[TimestampKind.CREATE] if shape.lossless else b"")


def _headers_at(block: AvroBlock, at: int, branch: int, offset: int) -> tuple[Headers, int]:
    """The headers in the map at `at`, as they come, and where they end."""
    if branch >= 0:
        number, at = _number_at(block, at)
        if number != branch << 1:
            _expect_null(block, number, offset)
            return (), at
    headers: list[tuple[str, bytes | None]] = []
    while True:
        count, at = _count_at(block, at)
        if not count:
            return headers, at
        for _ in range(count):
            name, at = _bytes_at(block, at)
            value, at = _bytes_at(block, at)
            headers.append((name.decode(), value))


def _header_list_at(block: AvroBlock, at: int) -> tuple[Headers | None, int]:
    number, at = _number_at(block, at)
    if number == FIRST[0]:
        return None, at
    if number != SECOND[0]:
        raise _damaged(block, f"{unzigzag(number)} is not a branch of headerList")
    headers: list[tuple[str, bytes | None]] = []
    while True:
        count, at = _count_at(block, at)
        if not count:
            return headers, at
        for _ in range(count):
            name, at = _bytes_at(block, at)
            tag = block.data[at]
            value, at = _bytes_at(block, at + 1) if tag == FIRST[0] else (None, at + 1)
            if tag not in (FIRST[0], SECOND[0]):
                raise _damaged(block, f"{unzigzag(tag)} is not a branch of a header's value")
            headers.append((name.decode("utf-8", "surrogateescape"), value))


def _count_at(block: AvroBlock, at: int) -> tuple[int, int]:
    """How many items of a map or an array follow: a count below zero has their size in bytes after it."""
    number, at = _number_at(block, at)
    count = unzigzag(number)
    if count < 0:
        _, at = _number_at(block, at)
    if abs(count) > len(block.data) - at:
        raise _damaged(block, f"it claims {abs(count)} headers")
    return abs(count), at


def _bytes_at(block: AvroBlock, at: int) -> tuple[bytes, int]:
    number, at = _number_at(block, at)
    end = at + unzigzag(number)
    if number & 1 or end > len(block.data):
        raise IndexError
    return block.data[at:end], end


def _number_at(block: AvroBlock, at: int) -> tuple[int, int]:
    """The number at `at`, still zigzag, and where it ends."""
    data = block.data
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if number >> 64:
        raise _damaged(block, "a number has more than 64 bits")
    return number, at


def _first_offset(block: AvroBlock, prefix: bytes) -> int:
    try:
        if not block.data.startswith(prefix):
            raise _of_another(block, 0, prefix)
        return unzigzag(_number_at(block, len(prefix))[0])
    except IndexError:
        raise _damaged(block, "a record is cut short") from None


def _said_by(block: AvroBlock) -> bytes:
    """Topic and partition as the first record of a block has them."""
    try:
        _, at = _bytes_at(block, 0)
        _, at = _number_at(block, at)
    except IndexError:
        raise _damaged(block, "a record is cut short") from None
    return block.data[:at]


def _of_another(block: AvroBlock, at: int, prefix: bytes) -> CorruptSegment:
    """The error for a record that says another topic or partition than its object."""
    found, partition, offset = _place_at(block, at)
    wanted, wanted_partition, _ = _place_at(AvroBlock(0, 1, prefix + b"\x00"), 0)
    if (found, partition) == (wanted, wanted_partition):
        return _damaged(block, f"the record at offset {offset} has its topic or partition in an unusual form")
    return CorruptSegment(
        f"The record at offset {offset} is of topic {found}, partition {partition}; the object is one of topic "
        f"{wanted}, partition {wanted_partition}.",
        hint="Every object of the Avro format holds records of one partition.",
    )


def _place_at(block: AvroBlock, at: int) -> tuple[str, int, int]:
    topic, at = _bytes_at(block, at)
    partition, at = _number_at(block, at)
    offset, _ = _number_at(block, at)
    return topic.decode("utf-8", "replace"), unzigzag(partition), unzigzag(offset)


def _expect_null(block: AvroBlock, number: int, offset: int) -> None:
    if number not in (FIRST[0], SECOND[0]):
        raise _damaged(block, f"{unzigzag(number)} is not a branch of a field of the record at offset {offset}")


def _expect_nothing(block: AvroBlock) -> None:
    if block.data:
        raise _damaged(block, f"{len(block.data)} bytes in a block of no records")


def _falls(block: AvroBlock, offset: int, last: int) -> CorruptSegment:
    return _damaged(block, f"the record at offset {offset} follows offset {last}: offsets must rise")


def _damaged(block: AvroBlock, what: str) -> CorruptSegment:
    return CorruptSegment(f"The Avro block at position {block.position} is damaged: {what}.")

"""Objects of the Avro format, read: either schema, block by block, each record checked against what must be true of it.

The kernel takes records apart, not fastavro: an object's bytes are checked as they are read. This module says what is
wrong, and where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, TypeGuard

from logkeep_kernel import read_avro_block

from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.avro_container import AvroBlock, Container
from logkeep_engine.formats.avro_numbers import FIRST, SECOND, Headers, long, sized, unzigzag
from logkeep_engine.formats.avro_schema import TIMESTAMP_TYPES, Shape, shape_of
from logkeep_engine.log.memory import listed_most
from logkeep_engine.log.rows import Rows

_READ_BYTES = 1024 * 1024


def read_object(
    source: Iterable[bytes | memoryview] | BinaryIO,
    *,
    topic: str | None = None,
    partition: int | None = None,
    start_offset: int = 0,
    size: int | None = None,
) -> Iterator[Rows]:
    """Yield the records of an object from `start_offset` on, block by block; of either schema.

    `source` is a binary file, or the bytes of one in pieces. `topic` and `partition` are what the records must say;
    without them, what the first record says. With `size`, the file's, a false length is reported before anything is
    gathered for it. A record without a timestamp has None. In the published schema the type of a timestamp is taken
    for create time, and an empty value stays empty: it is unknown whether it was null.

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
                last = records.last_offset
                yield from _wanted(records, start_offset)
        records = _decode(block, shape, prefix, last)
        last = records.last_offset
        yield from _wanted(records, start_offset)
    if held is not None and not begun:
        yield from _wanted(_decode(held, shape, prefix, last), start_offset)


def _is_file(source: Iterable[bytes | memoryview] | BinaryIO) -> TypeGuard[BinaryIO]:
    return hasattr(source, "read")


def _wanted(rows: Rows, start_offset: int) -> Iterator[Rows]:
    found = rows if rows.first_offset >= start_offset else rows.between(start_offset, rows.last_offset + 1)
    if found:
        yield found


def _decode(block: AvroBlock, shape: Shape, prefix: bytes, last: int) -> Rows:
    """Return the records of a block; `last` is the offset before it, `prefix` how topic and partition are written."""
    if block.record_count > listed_most():
        raise BatchTooLarge(
            f"The Avro block at position {block.position} has {block.record_count} records, at most {listed_most()} "
            "are taken apart at once."
        )
    branches = (shape.key, shape.value, shape.headers, shape.lossless)
    rows = read_avro_block(block.data, block.record_count, prefix, branches, last)
    if rows is None:
        raise _problem_in(block, shape, prefix, last)
    return rows


def _problem_in(block: AvroBlock, shape: Shape, prefix: bytes, last: int) -> CorruptSegment:
    """Return the words for a block in which the kernel found something that cannot be."""
    try:
        _pass_over(block, shape, prefix, last)
    except IndexError:
        return _damaged(block, "a record is cut short")
    except UnicodeDecodeError as problem:
        return _damaged(block, f"the name of a header is not UTF-8: {problem}")
    except CorruptSegment as problem:
        return problem
    return _damaged(block, "its records do not fit together")


def _pass_over(block: AvroBlock, shape: Shape, prefix: bytes, last: int) -> None:
    """Raises what is wrong with the first record that cannot be."""
    data, total = block.data, len(block.data)
    at = 0
    for _ in range(block.record_count):
        if not data.startswith(prefix, at):
            raise _of_another(block, at, prefix)
        number, at = _number_at(block, at + len(prefix))
        offset = unzigzag(number)
        if offset <= last:
            raise _falls(block, offset, last)
        last = offset
        _, at = _number_at(block, at)  # the timestamp
        for name, branch in (("key", shape.key), ("value", shape.value)):
            if branch >= 0:
                tag = data[at]
                at += 1
                if tag != 2 * branch:  # zigzag, as in `_headers_at`
                    _expect_null(block, tag, offset)
                    continue
            length, at = _number_at(block, at)
            if length & 1:  # still zigzag: an odd number is negative
                raise _damaged(block, f"the {name} at offset {offset} has a length below zero")
            at += length >> 1
        _, at = _headers_at(block, at, shape.headers, offset)
        if shape.lossless:
            _, at = _header_list_at(block, at)
            number, at = _number_at(block, at)
            if number & 1 or number >> 1 >= len(TIMESTAMP_TYPES):
                raise _damaged(block, f"the record at offset {offset} has timestamp type {unzigzag(number)}")
        if at > total:
            raise _damaged(block, f"the record at offset {offset} is cut short")
    if at != total:
        raise _damaged(block, f"{total - at} bytes follow its last record")


def _headers_at(block: AvroBlock, at: int, branch: int, offset: int) -> tuple[Headers, int]:
    """Return the headers in the map at `at`, as they come, and where they end."""
    if branch >= 0:
        number, at = _number_at(block, at)
        if number != branch << 1:  # a branch is not negative, so its zigzag form is twice its number
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
    """Return how many items of a map or an array follow: a count below zero has their size in bytes after it."""
    number, at = _number_at(block, at)
    count = unzigzag(number)
    if count < 0:
        _, at = _number_at(block, at)
    if abs(count) > len(block.data) - at:  # an item takes at least one byte
        raise _damaged(block, f"it claims {abs(count)} headers")
    return abs(count), at


def _bytes_at(block: AvroBlock, at: int) -> tuple[bytes, int]:
    number, at = _number_at(block, at)
    end = at + unzigzag(number)
    if number & 1 or end > len(block.data):  # an odd zigzag number is a negative length
        raise IndexError
    return block.data[at:end], end


def _number_at(block: AvroBlock, at: int) -> tuple[int, int]:
    """Return the number at `at`, still zigzag, and where it ends."""
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
    """Return the error for a record that says another topic or partition than its object."""
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

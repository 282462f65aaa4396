"""Avro's numbers, and how the fields of a record are written with them.

Source of facts: the Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.formats.avro_schema import TIMESTAMP_TYPES

Headers = Sequence[tuple[str, bytes | None]]

LOW_BITS = 14
LOW_MASK = (1 << LOW_BITS) - 1
LOW = [bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(1 << LOW_BITS)]
"""The first two bytes of a number that goes on: offsets and times that rise change in these only, most of the time."""

FIRST, SECOND = b"\x00", b"\x02"
"""The branches of a union of two."""

NO_HEADER_LIST = FIRST


def varint(number: int) -> bytes:
    """A number that is in its unsigned form already."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def long(number: int) -> bytes:
    """An int or a long."""
    return varint((number << 1) ^ (number >> 63))


def unzigzag(number: int) -> int:
    """The number behind its unsigned form."""
    return (number >> 1) ^ -(number & 1)


def sized(data: bytes) -> bytes:
    """Bytes or a string with their length before them."""
    return long(len(data)) + data


KINDS = {kind: long(number) for number, kind in enumerate(TIMESTAMP_TYPES.values())}
"""How the field `timestampType` is written."""

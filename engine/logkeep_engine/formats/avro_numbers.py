"""Avro's numbers, and how the fields of a record are written with them.

Source of facts: the Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]]

FIRST, SECOND = b"\x00", b"\x02"
"""The branches of a union of two."""


def varint(number: int) -> bytes:
    """Return a number that is in its unsigned form already."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def long(number: int) -> bytes:
    """Return an int or a long."""
    return varint((number << 1) ^ (number >> 63))  # zigzag: small negative numbers stay short


def unzigzag(number: int) -> int:
    """Return the number that has this unsigned form."""
    return (number >> 1) ^ -(number & 1)  # the lowest bit is the sign


def sized(data: bytes) -> bytes:
    """Bytes or a string with their length before them."""
    return long(len(data)) + data

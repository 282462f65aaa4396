"""The numbers of records: zigzag, seven bits a byte, the lowest first."""

from __future__ import annotations

from logkeep_engine.errors import CorruptBatch

INT64_MAX = 2**63 - 1
_UINT64 = 2**64 - 1
_LONGEST = 10  # 64 bits, 7 a byte


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(zigzag number at `at`, position after it)."""
    number = shift = 0
    for step in range(_LONGEST):
        byte = data[at + step]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # the high bit says that another byte follows
            number &= _UINT64  # ten bytes have room for 70 bits: Java drops those above the 64th
            return (number >> 1) ^ -(number & 1), at + step + 1
        shift += 7
    raise CorruptBatch(f"a number of more than {_LONGEST} bytes at {at}")


def wrap(number: int) -> int:
    """Wrap as Java's long does: the distance of two far timestamps overflows, and back again."""
    return ((number + INT64_MAX + 1) & _UINT64) - INT64_MAX - 1


def pack_varint(out: bytearray, number: int) -> None:
    """Append the number, of at most 64 bits."""
    number = (number << 1) ^ (number >> 63)  # zigzag: small negative numbers stay short
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def long_varint(number: int) -> bytes:
    """Return the number, wrapped where it has more than 64 bits."""
    out = bytearray()
    pack_varint(out, number if -INT64_MAX <= number <= INT64_MAX else wrap(number))
    return bytes(out)

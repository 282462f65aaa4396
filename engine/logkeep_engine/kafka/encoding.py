"""Kafka's wire types, and requests as frames on the wire, without copying what lies in them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from logkeep_engine.kafka.buffers import AnswerFrame

R = TypeVar("R")
T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class VersionMissing(Exception):
    """The broker does not speak the version of a request that this engine sends."""


class Reader:
    """Reads the protocol's types from a frame; slices share its memory.

    Raises struct.error or IndexError at its end.
    """

    __slots__ = ("_at", "_frame", "_view", "kept")

    def __init__(self, frame: AnswerFrame) -> None:
        self._frame = frame
        self._view = frame.view
        self._at = 0
        self.kept = False

    def keep(self) -> AnswerFrame:
        """Return the frame, for an answer that holds a slice; the receiver of the answer releases it."""
        self.kept = True
        return self._frame

    def _take(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return int(value)

    def int8(self) -> int:
        return self._take(_INT8)

    def int16(self) -> int:
        return self._take(_INT16)

    def int32(self) -> int:
        return self._take(INT32)

    def int64(self) -> int:
        return self._take(_INT64)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Several fields at once."""
        values = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return values

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def slice(self, length: int) -> memoryview:
        # Python would give a shorter slice without a word.
        if length > len(self._view) - self._at:
            raise IndexError(f"{length} bytes announced, {len(self._view) - self._at} there")
        part = self._view[self._at : self._at + max(length, 0)]
        self._at += max(length, 0)
        return part

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else str(self.slice(length), "utf-8")

    def string(self) -> str:
        return self.nullable_string() or ""

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(self.slice(16)))

    def array(self, item: Callable[[], T]) -> list[T]:
        """A null array is an empty one."""
        return [item() for _ in range(self.int32())]

    def compact_array(self, item: Callable[[], T]) -> list[T]:
        # Compact lengths are one more than the number of items, since 0 is null (KIP-482).
        return [item() for _ in range(self.uvarint() - 1)]

    def compact_string(self) -> str:
        """A null string is an empty one."""
        return str(self.slice(self.uvarint() - 1), "utf-8")

    def compact_int32s(self) -> tuple[int, ...]:
        count = max(0, self.uvarint() - 1)
        values = struct.unpack_from(f">{count}i", self._view, self._at)
        self._at += 4 * count
        return values

    def tags(self) -> None:
        """Skip tagged fields."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.slice(self.uvarint())


_INT8, _INT16, INT32, _INT64 = (struct.Struct(f">{letter}") for letter in "bhiq")
NO_TAGS = b"\x00"


def pack_string(text: str | None) -> bytes:
    """Return a string or null with its length in two bytes."""
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def pack_array(items: Iterable[bytes]) -> bytes:
    """Packed items after their number."""
    parts = list(items)
    return INT32.pack(len(parts)) + b"".join(parts)


def pack_uvarint(value: int) -> bytes:
    """Return a number that is not negative, seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@dataclass(frozen=True, slots=True, repr=False)
class Call(Generic[R]):
    """One request of a fixed version and how to read its answer. `read` begins after the response's header."""

    api_key: int
    version: int
    body: tuple[Buffer, ...]
    read: Callable[[Reader], R]
    flexible: bool = False

    def __repr__(self) -> str:
        return f"Call(api_key={self.api_key}, version={self.version})"

    def check_version(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """`versions`: lowest and highest by request, as a broker reports them. Raises VersionMissing."""
        lowest, highest = versions.get(self.api_key, (-1, -1))
        if not lowest <= self.version <= highest:
            takes = f"{lowest} to {highest}" if highest >= 0 else "none"
            raise VersionMissing(f"request {self.api_key} version {self.version}, the broker accepts {takes}")

    def encode(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """Return the frame on the wire, in parts; those of the body are not copied."""
        head = struct.pack(">hhi", self.api_key, self.version, correlation_id) + pack_string(client_id)
        if self.flexible:
            head += NO_TAGS
        size = len(head) + sum(len(part) for part in self.body)
        return [INT32.pack(size) + head, *self.body]

    def decode(self, reader: Reader) -> R:
        """Return the answer, from after its correlation id.

        Raises struct.error, IndexError or ValueError if the bytes are something else.
        """
        if self.flexible:
            reader.tags()
        return self.read(reader)

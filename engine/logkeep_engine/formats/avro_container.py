"""Avro container files, read block by block: the header, and blocks checked against their sync markers.

    container = Container(pieces)
    container.schema, container.codec
    for block in container.blocks(): ...   # AvroBlock(position, record_count, data)

Nothing is believed before it is checked: an impossible length is reported before anything is gathered for it. Memory: a
block, packed and unpacked, and no more of it than `memory.block_most()`.

Source of facts: the Avro specification 1.12, "Object Container Files" and "Binary Encoding".
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from logkeep_engine.errors import BatchTooLarge, CorruptBatch, CorruptSegment
from logkeep_engine.formats.avro_numbers import unzigzag
from logkeep_engine.formats.base import copied_blocks
from logkeep_engine.log.compression import Codec, decompress
from logkeep_engine.log.memory import block_most, task_bytes

MAGIC = b"Obj\x01"
SYNC_BYTES = 16  # by the specification of Avro

HEADER_SCHEMA: Final = {
    "type": "record",
    "name": "org.apache.avro.file.Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(MAGIC)}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": SYNC_BYTES}},
    ],
}
"""The header of a container file is an Avro record itself."""

_PIECE = 1024 * 1024
_MAX_HEADER = 1024 * 1024
_MAX_BLOCK = 2**31 - 1  # what Apache Avro's own reader takes
_LONGEST = 10  # bytes of a 64-bit number


class AvroBlock(NamedTuple):
    """One block: its position in the file, how many records it has, and their bytes, decompressed."""

    position: int
    record_count: int
    data: bytes


class Container:
    """A container file whose header was read. `size` is the file's, if it is known.

    Raises `CorruptSegment` for what is not a container file, is cut short, or has a codec that is not known.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview], *, size: int | None = None) -> None:
        self._source = _ByteFeed(pieces, size)
        self._read_magic()
        meta = self._read_meta()
        if "avro.schema" not in meta:
            raise CorruptSegment("The Avro container file has no schema (avro.schema).")
        self.schema = meta["avro.schema"]
        self.codec = meta.get("avro.codec", b"null").decode("utf-8", "replace")
        if self.codec not in _UNPACK:
            raise CorruptSegment(
                f"The Avro container file has the codec {self.codec}; known are {', '.join(sorted(_UNPACK))}."
            )
        self.sync = self._source.take(SYNC_BYTES, "its sync marker")

    def blocks(self) -> Iterator[AvroBlock]:
        """Yield every block, in order. Raises `CorruptSegment` after the blocks before the damage."""
        source = self._source
        while not source.at_end():
            position = source.position
            where = f"the Avro block at position {position}"
            count = source.long(where)
            length = source.long(where)
            if not 0 <= length <= _MAX_BLOCK or count < 0:
                raise CorruptSegment(
                    f"{where[0].upper()}{where[1:]} is damaged: it claims {count} records in {length} bytes."
                )
            source.expect(length, where)
            if length > block_most():
                raise BatchTooLarge(
                    f"{where[0].upper()}{where[1:]} is too large: it has {length} bytes, more than {block_most()}."
                )
            packed = source.take(length, where)
            if source.take(SYNC_BYTES, where) != self.sync:
                raise CorruptSegment(f"{where[0].upper()}{where[1:]} is damaged: no sync marker follows it.")
            data = self._unpack(packed, where)
            if count > len(data):
                raise CorruptSegment(
                    f"{where[0].upper()}{where[1:]} is damaged: it claims {count} records in {len(data)} bytes."
                )
            yield AvroBlock(position, count, data)
        source.expect_end()

    def _read_magic(self) -> None:
        found = self._source.first(len(MAGIC))
        if found == MAGIC:
            return
        if found[:3] == MAGIC[:3] and len(found) == len(MAGIC):
            raise CorruptSegment(
                f"The Avro container file is of version {found[3]}; this version of Logkeep reads version {MAGIC[3]}."
            )
        raise CorruptSegment(f"It is not an Avro container file: it starts with {found.hex() or 'nothing'}.")

    def _read_meta(self) -> dict[str, bytes]:
        source, where = self._source, "its header"
        meta: dict[str, bytes] = {}
        while count := source.long(where):
            # by the specification, a negative count has the size of its part in bytes after it
            if count < 0:
                source.long(where)  # bytes of this part of the map
            for _ in range(abs(count)):
                key = source.take(self._header_length(), where)
                meta[key.decode("utf-8", "replace")] = source.take(self._header_length(), where)
        return meta

    def _header_length(self) -> int:
        length = self._source.long("its header")
        if not 0 <= length <= _MAX_HEADER:
            raise CorruptSegment(
                f"The header of the Avro container file is damaged: it claims a text of {length} bytes."
            )
        return length

    def _unpack(self, packed: bytes, where: str) -> bytes:
        try:
            return _UNPACK[self.codec](packed, block_most())
        except BatchTooLarge as problem:
            raise BatchTooLarge(f"{where[0].upper()}{where[1:]} is too large: {problem.message}.") from problem
        except (CorruptBatch, zlib.error, lzma.LZMAError, OSError, ValueError) as problem:
            text = (
                problem.message if isinstance(problem, CorruptBatch) else f"its {self.codec} data is wrong: {problem}"
            )
            raise CorruptSegment(f"{where[0].upper()}{where[1:]} is damaged: {text}.") from problem


class _ByteFeed:
    """Bytes that come in pieces."""

    def __init__(self, pieces: Iterable[bytes | memoryview], size: int | None) -> None:
        self._pieces = copied_blocks(pieces, _PIECE)
        self._size = size
        self._held = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def at_end(self) -> bool:
        return not self._fill(1)

    def expect_end(self) -> None:
        if self._size is not None and self.position != self._size:
            raise CorruptSegment(f"The Avro container file is cut short: {self.position} of {self._size} bytes.")

    def first(self, size: int) -> bytes:
        """Return the next `size` bytes, or as many as there are."""
        self._fill(size)
        found = self._held[self._at : self._at + size]
        self._at += len(found)
        return found

    def expect(self, size: int, where: str) -> None:
        """Raises CorruptSegment if it is known that there are fewer bytes."""
        if self._size is not None and size > self._size - self.position:
            raise _cut_short(where, size, self._size - self.position)

    def take(self, size: int, where: str) -> bytes:
        self.expect(size, where)
        if not self._fill(size):
            have = len(self._held) - self._at if self._size is None else self._size - self.position
            raise _cut_short(where, size, have)
        found = self._held[self._at : self._at + size]
        self._at += size
        return found

    def long(self, where: str) -> int:
        number = shift = 0
        for _ in range(_LONGEST):
            byte = self.take(1, where)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return unzigzag(number)
            shift += 7
        raise CorruptSegment(f"The Avro container file is damaged: a number in {where} does not end.")

    def _fill(self, size: int) -> bool:
        """Have `size` bytes at hand."""
        have = len(self._held) - self._at
        if have >= size:
            return True
        parts = [self._held[self._at :]]
        self._before += self._at
        self._at = 0
        for piece in self._pieces:
            parts.append(piece)
            have += len(piece)
            if have >= size:
                break
        self._held = b"".join(parts)
        return have >= size


def _cut_short(where: str, size: int, have: int) -> CorruptSegment:
    return CorruptSegment(f"The Avro container file is cut short: {where} needs {size} bytes, {have} are left.")


class _Stream(Protocol):
    """The interface that zlib, bz2 and lzma have in common."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def _unpack_stream(stream: _Stream, packed: bytes, limit: int) -> bytes:
    # one byte more than is allowed shows that there is too much
    data = stream.decompress(packed, limit + 1)
    if len(data) > limit:
        raise BatchTooLarge(f"its {len(packed)} bytes unpack to more than {limit} bytes")
    if not stream.eof:
        raise ValueError("it is cut short")
    return data


def _unpack_xz(packed: bytes, limit: int) -> bytes:
    # the file itself says how large its dictionary is, and liblzma would allocate all of it
    most = task_bytes() // 2
    try:
        return _unpack_stream(lzma.LZMADecompressor(memlimit=most), packed, limit)
    except lzma.LZMAError as problem:
        # Python has no error of its own for this, only the text
        if "limit" in str(problem):
            raise BatchTooLarge(f"its xz data needs a dictionary of more than {most} bytes") from problem
        raise


def _unpack_snappy(packed: bytes, limit: int) -> bytes:
    """Return a raw block and the CRC-32 of what is in it."""
    if len(packed) <= _CRC_BYTES:
        raise ValueError("it is cut short")
    data = decompress(Codec.SNAPPY, memoryview(packed)[:-_CRC_BYTES], limit=limit)
    if zlib.crc32(data) != int.from_bytes(packed[-_CRC_BYTES:], "big"):
        raise ValueError("its CRC-32 does not match")
    return data


def _as_it_is(packed: bytes, limit: int) -> bytes:
    if len(packed) > limit:
        raise BatchTooLarge(f"it has {len(packed)} bytes, more than {limit}")
    return packed


_CRC_BYTES = 4

_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "null": _as_it_is,
    # raw, without the header and checksum of zlib (RFC 1951), as Avro has it
    "deflate": lambda packed, limit: _unpack_stream(zlib.decompressobj(-zlib.MAX_WBITS), packed, limit),
    "snappy": _unpack_snappy,
    "zstandard": lambda packed, limit: decompress(Codec.ZSTD, memoryview(packed), limit=limit),
    "bzip2": lambda packed, limit: _unpack_stream(bz2.BZ2Decompressor(), packed, limit),
    "xz": _unpack_xz,
}

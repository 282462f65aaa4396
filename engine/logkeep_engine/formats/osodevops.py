"""The files of `osodevops/kafka-backup`, read only: its manifest, its segments (version 1), its snapshot of groups.

    <backup id>/manifest.json                                     topics, partitions, segments, gaps
    <backup id>/topics/<topic>/partition=<n>/segment-<offset>.bin[.zst|.lz4]
    <backup id>/consumer-groups-snapshot.json

A segment is a header of 32 bytes, records (compressed as a whole), and a footer of 8. All integers are little-endian:

    "KBAK", version u8, compression u8 (0 none, 1 zstd, 2 lz4 block after its size as u32), 2 bytes of nothing,
    records u64, first offset i64, last offset i64
    per record: length u32 of what follows, timestamp i64, offset i64, key length i32 (-1 null), key, value length i32
    (-1 null), value, header count u16, headers: key length u16, key, value length i32 (-1 null), value
    CRC-32 (IEEE) u32 of everything before it, "BKAE"

The tool adds up to three headers to each record, which tell where it was (`TRACKS`), and writes control records of
transactions as if they were data. The type of a timestamp is not kept: all are read as create times.

Source of facts: osodevops/kafka-backup 0.17.4, `segment/format.rs`, `compression.rs`, `manifest.rs`,
`backup/engine.rs`.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cramjam

from logkeep_engine.contract.nesting import loads
from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.memory import ScratchMemory, whole_segment_most

MANIFEST = "manifest.json"
GROUPS = "consumer-groups-snapshot.json"
TRACKS = ("x-original-offset", "x-original-timestamp", "x-source-cluster")

HEADER_SIZE = 32
FOOTER_SIZE = 8
_HEADER = struct.Struct("<4sBB2xQqq")
_FOOTER = struct.Struct("<I4s")
_MAGIC = b"KBAK"
_MAGIC_END = b"BKAE"
_VERSION = 1
_RECORD = struct.Struct("<Iqqi")  # length of the rest, timestamp, offset, key length
_LENGTH = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")
_SMALLEST_RECORD = 26  # timestamp, offset, key length, value length, header count
_RECORDS_AT_ONCE = 5000
_READ = 1 << 20
_LZ4_MAX_EXPANSION = 256  # a byte of a length adds at most 255 bytes


class ManifestCompression(IntEnum):
    """The compression of a segment's records as a whole."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 32 bytes. `last_offset` is inclusive."""

    compression: ManifestCompression
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ManifestSegment:
    """A segment as the manifest names it. `key` is its path from the storage's root; `last_offset` is inclusive;
    `bytes` is the size of the object, 0 if the manifest does not say."""

    key: str
    first_offset: int
    last_offset: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ManifestGap:
    """Offsets [start, end) that the tool could not read any more."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    number: int
    segments: tuple[ManifestSegment, ...]
    gaps: tuple[ManifestGap, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestTopic:
    """`partitions` is how many the topic had, as far as the tool noted it."""

    name: str
    partition_count: int | None
    partitions: tuple[ManifestPartition, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    backup_id: str
    cluster_id: str
    topics: tuple[ManifestTopic, ...]


@dataclass(frozen=True, slots=True)
class ManifestPosition:
    """The offset that a consumer group had committed."""

    group_id: str
    topic: str
    partition: int
    offset: int


def read_manifest(data: bytes) -> Manifest:
    """`manifest.json`. Keys that are not known are passed over, as the tool does. Raises CorruptSegment."""
    document = _json(data)
    try:
        topics = tuple(_topic(item) for item in document["topics"])
        return Manifest(_text(document["backup_id"]), document.get("source_cluster_id") or "", topics)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptSegment(f"it is not a manifest of a backup: {_reason(error)}") from error


def _topic(item: Mapping[str, Any]) -> ManifestTopic:
    count = item.get("original_partition_count")
    return ManifestTopic(
        _text(item["name"]),
        None if count is None else _number(count, 1),
        tuple(_partition(part) for part in item["partitions"]),
    )


def _partition(item: Mapping[str, Any]) -> ManifestPartition:
    segments = [
        ManifestSegment(
            _text(segment["key"]),
            _number(segment["start_offset"]),
            _number(segment["end_offset"], _number(segment["start_offset"])),
            _number(segment["record_count"], 1),
            _number(segment.get("compressed_size", 0)),
        )
        for segment in item["segments"]
    ]
    gaps = [
        ManifestGap(_number(gap["start_offset"]), _number(gap["end_offset"]), _text(gap["reason"]))
        for gap in item.get("gaps", ())
    ]
    return ManifestPartition(_number(item["partition_id"]), tuple(segments), tuple(gaps))


def read_groups(data: bytes) -> list[ManifestPosition]:
    """`consumer-groups-snapshot.json`. Raises CorruptSegment."""
    document = _json(data)
    try:
        return [
            ManifestPosition(_text(group["group_id"]), topic, _number(int(partition)), _number(offset))
            for group in document["groups"]
            for topic, partitions in group["offsets"].items()
            for partition, offset in partitions.items()
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptSegment(f"it is not a snapshot of consumer groups: {_reason(error)}") from error


def _json(data: bytes) -> dict[str, Any]:
    try:
        document = loads(data)
    except ValueError as error:
        raise CorruptSegment(f"it is not complete JSON ({len(data)} bytes)") from error
    if not isinstance(document, dict):
        raise CorruptSegment("it is not a JSON object")
    return document


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def _number(value: object, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a number from {least} on")
    return value


def _reason(error: Exception) -> str:
    return f"key {error} is missing" if isinstance(error, KeyError) else str(error)


def read_header(data: bytes) -> SegmentHeader:
    """Return the header of a segment. Raises CorruptSegment, which names a version or compression that is not known."""
    if len(data) < HEADER_SIZE:
        raise CorruptSegment(f"it is cut short: {len(data)} bytes, the header alone has {HEADER_SIZE}")
    magic, version, compression, records, first, last = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        if data[:1] == b"[":
            raise CorruptSegment("it is a segment of JSON, as early versions of the tool wrote them")
        raise CorruptSegment(f"it does not begin with KBAK but with {bytes(magic)!r}")
    if version != _VERSION:
        raise CorruptSegment(f"it is of segment version {version}, only version {_VERSION} is known")
    if compression not in list(ManifestCompression):
        raise CorruptSegment(f"it is compressed with method {compression}, only 0, 1 (zstd) and 2 (lz4) are known")
    return SegmentHeader(ManifestCompression(compression), records, first, last)


def read_segment(blocks: Iterable[bytes]) -> Iterator[list[PlainRecord]]:
    """Yield the records of a segment, in lists of bounded size. The object comes in `blocks` of any size.

    Records are handed out before the CRC at the end was seen: what was made of them counts only when this ends without
    CorruptSegment. The headers that the tool added are taken away. Memory: a block and some records; with lz4, which is
    one block, the whole segment.
    """
    body = _Body(blocks)
    header = read_header(body.read(HEADER_SIZE))
    parser = _Parser(header)
    try:
        for data in _unpacked(body, header.compression):
            yield from parser.feed(data)
    except (OSError, cramjam.DecompressionError) as error:
        body.drain()
        body.check()  # flipped bytes are said to be that
        raise CorruptSegment(f"its {header.compression.name.lower()} data cannot be decompressed: {error}") from error
    except CorruptSegment:
        body.drain()
        body.check()
        raise
    body.drain()
    body.check()
    yield from parser.finish()


class _Body(io.RawIOBase):
    """A segment without its footer, as a stream that remembers the CRC of all that passed."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = b""
        self._ended = False
        self._crc = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self._take(len(target))
        target[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end; b"" at the end."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self._take(_READ), b""))
        found = self._take(size)
        while len(found) < size and (more := self._take(size - len(found))):
            found += more
        return found

    def _take(self, size: int) -> bytes:
        while len(self._rest) <= FOOTER_SIZE and not self._ended:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._rest += block
        data = self._rest[: min(size, max(0, len(self._rest) - FOOTER_SIZE))]
        self._rest = self._rest[len(data) :]
        self._crc = zlib.crc32(data, self._crc)
        return data

    def drain(self) -> None:
        while self._take(_READ):
            pass

    def check(self) -> None:
        """After the end. Raises CorruptSegment."""
        if len(self._rest) != FOOTER_SIZE:
            raise CorruptSegment("it is cut short: the footer is missing")
        crc, magic = _FOOTER.unpack(self._rest)
        if magic != _MAGIC_END:
            raise CorruptSegment(f"it is cut short or altered: it ends with {bytes(magic)!r}, not with BKAE")
        if crc != self._crc:
            raise CorruptSegment(f"its CRC-32 is {self._crc:08x}, its footer says {crc:08x}")


def _unpacked(body: _Body, compression: ManifestCompression) -> Iterator[bytes]:
    if compression is ManifestCompression.NONE:
        yield from iter(lambda: body.read(_READ), b"")
    elif compression is ManifestCompression.ZSTD:
        import pyarrow  # takes long, and only this needs it: cramjam has no zstd stream that is read piece by piece

        with pyarrow.CompressedInputStream(pyarrow.PythonFile(body, mode="r"), "zstd") as stream:
            yield from iter(lambda: stream.read(_READ), b"")
    else:
        packed = body.read()
        size = _LENGTH.unpack_from(packed)[0] if len(packed) >= _LENGTH.size else -1
        if not 0 <= size <= len(packed) * _LZ4_MAX_EXPANSION:
            raise CorruptSegment(f"its lz4 block of {len(packed)} bytes claims to hold {size} bytes")
        most = whole_segment_most()
        if size > most:
            raise BatchTooLarge(
                f"its lz4 block of {len(packed)} bytes claims to hold {size} bytes, at most {most} are unpacked"
            )
        out = ScratchMemory(size).space(size)
        cramjam.lz4.decompress_block_into(packed, out)
        yield from (bytes(out[at : at + _READ]) for at in range(0, size, _READ))


class _Parser:
    """Records out of bytes that come in pieces."""

    def __init__(self, header: SegmentHeader) -> None:
        self._header = header
        self._rest = b""
        self._records = 0
        self._last = header.first_offset - 1

    def feed(self, data: bytes) -> Iterator[list[PlainRecord]]:
        """Yield all records that are whole by now."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while True:
            records: list[PlainRecord] = []
            while len(records) < _RECORDS_AT_ONCE and end - at >= _LENGTH.size:
                length = _LENGTH.unpack_from(data, at)[0]
                if length < _SMALLEST_RECORD:
                    raise CorruptSegment(f"record {self._records + len(records)} has a length of {length} bytes")
                if end - at < _LENGTH.size + length:
                    break
                records.append(self._record(data, at, at + _LENGTH.size + length))
                at += _LENGTH.size + length
            if not records:
                break
            self._count(records)
            yield records
        self._rest = data[at:]

    def finish(self) -> Iterator[list[PlainRecord]]:
        """Nothing may be left, and all records must have come."""
        header = self._header
        if self._rest:
            raise CorruptSegment(f"{len(self._rest)} bytes after record {self._records - 1} are not a record")
        if self._records != header.records:
            raise CorruptSegment(f"it holds {self._records} records, its header says {header.records}")
        if self._last != header.last_offset:
            raise CorruptSegment(f"its last record has offset {self._last}, its header says {header.last_offset}")
        yield from ()

    def _count(self, records: list[PlainRecord]) -> None:
        last = self._last
        if self._records == 0 and records[0].offset != self._header.first_offset:
            raise CorruptSegment(
                f"its first record has offset {records[0].offset}, its header says {self._header.first_offset}"
            )
        for record in records:
            if record.offset <= last:
                raise CorruptSegment(f"offset {record.offset} follows offset {last}")
            last = record.offset
        self._last = last
        self._records += len(records)

    def _record(self, data: bytes, at: int, end: int) -> PlainRecord:
        try:
            _, timestamp, offset, length = _RECORD.unpack_from(data, at)
            key, at = _sized(data, at + _RECORD.size, length, end)
            (length,) = _I32.unpack_from(data, at)
            value, at = _sized(data, at + _I32.size, length, end)
            (count,) = _U16.unpack_from(data, at)
            at += _U16.size
            headers: list[tuple[str, bytes | None]] = []
            for _ in range(count):
                (length,) = _U16.unpack_from(data, at)
                name, at = _sized(data, at + _U16.size, length, end)
                (length,) = _I32.unpack_from(data, at)
                content, at = _sized(data, at + _I32.size, length, end)
                headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))
        except struct.error as error:
            raise CorruptSegment(f"a record is cut short after offset {self._last}") from error
        if at != end:
            raise CorruptSegment(f"the record at offset {offset} does not fill its length")
        if headers:
            _strip_tracks(headers, offset, timestamp)
        return PlainRecord(offset, None if timestamp == -1 else timestamp, 0, key, value, headers)


def _sized(data: bytes, at: int, length: int, end: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptSegment(f"a length of {length} bytes, where {end - at} are left of the record")
    return data[at : at + length], at + length


def _strip_tracks(headers: list[tuple[str, bytes | None]], offset: int, timestamp: int) -> None:
    """Take away what the tool added at the end, if it says what the tool would have said of this record."""
    end = len(headers)
    if end and headers[end - 1][0] == TRACKS[2]:
        end -= 1
    ours = [(TRACKS[0], _I64.pack(offset)), (TRACKS[1], _I64.pack(timestamp))]
    if headers[max(0, end - 2) : end] == ours:
        del headers[end - 2 :]

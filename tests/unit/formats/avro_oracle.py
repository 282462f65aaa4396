"""The Avro format, written in Python: the oracle of what the kernel does."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple

from fastavro.write import Writer, schemaless_writer

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.errors import CorruptSegment
from logkeep_engine.formats.avro_container import HEADER_SCHEMA, MAGIC, SYNC_BYTES
from logkeep_engine.formats.avro_numbers import FIRST, SECOND, Headers, long, sized, varint
from logkeep_engine.formats.avro_schema import LOSSLESS, PUBLISHED
from logkeep_engine.formats.base import LogRecord, LossKind, SegmentFacts, TimestampKind
from logkeep_engine.log.compression import Codec, compress
from tests.unit.formats.avro_oracle_numbers import KINDS, LOW, LOW_BITS, LOW_MASK, NO_HEADER_LIST

BLOCK_BYTES = 256 * 1024
"""A block is closed by the record that takes it to this size, before compression. Larger ones hardly pack better."""

_CODECS = {
    AvroCodec.NONE: "null",
    AvroCodec.DEFLATE: "deflate",
    AvroCodec.SNAPPY: "snappy",
    AvroCodec.ZSTANDARD: "zstandard",
}

_NO_HEADERS = SECOND
_LENGTHS = [long(length) for length in range(4096)]
_KEY_LENGTHS = [FIRST + length for length in _LENGTHS]


class OldAvroEncoder:
    """One object in the making: a `SegmentEncoder`.

    `data` is called with the next bytes of the file, block by block. The record that takes the object over
    `limit_bytes` is the last one taken; what is not yet compressed counts as it is, so a compressed object may end a
    little below.
    """

    def __init__(
        self, data: Callable[[bytes], object], limit_bytes: int, topic: str, partition: int, options: FormatOptions
    ) -> None:
        self._data = data
        self._limit = limit_bytes
        self._topic = topic
        self._partition = partition
        self._lossless = options.compatibility is not Compatibility.STRICT
        self._codec = options.codec or AvroCodec.NONE
        self._prefix = sized(topic.encode()) + long(partition)
        self._tails = _tails(self._lossless)
        self._file = BytesIO()
        self._writer: Writer | None = None
        self._written = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._blocks = 0
        self._records = 0
        self._first = self._last = -1
        self._min_timestamp: int | None = None
        self._max_timestamp = -1
        self._append_time = False
        self._largest = 0

    @property
    def size(self) -> int:
        """Bytes of the object so far; those of a block that is not closed count as they are before compression."""
        return self._written + self._pending_bytes

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        return self.size > self._limit

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the object; returns how many.

        Raises `CorruptSegment` if an offset does not rise.
        """
        at = start
        while at < len(records) and not self.full:
            if self._writer is None:
                self._begin(records[at].offset)
            at += self._take(records, at)
            if self._pending_bytes >= BLOCK_BYTES:
                self._close_block()
        return at - start

    def finish(self) -> SegmentFacts:
        """Hand on the last block, and say what the object holds. At least one record was taken."""
        if not self._records:
            raise ValueError("a segment needs at least one record")
        if self._pending:
            self._close_block()
        return SegmentFacts(
            base_offset=self._first,
            next_offset=self._last + 1,
            records=self._records,
            blocks=self._blocks,
            bytes=self._written,
            index_bytes=0,
            min_timestamp=-1 if self._min_timestamp is None else self._min_timestamp,
            max_timestamp=self._max_timestamp,
            gaps=self._last - self._first + 1 != self._records,
            append_time=self._append_time,
            largest_record=self._largest,
        )

    def _begin(self, first_offset: int) -> None:
        self._first = first_offset
        schema = LOSSLESS if self._lossless else PUBLISHED
        codec = _CODECS[self._codec]
        header = {
            "magic": MAGIC,
            "meta": {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()},
            "sync": hashlib.sha256(f"{self._topic}/{self._partition}/{first_offset}".encode()).digest()[:SYNC_BYTES],
        }
        # fastavro would write names in another form than they are published; it continues with a header that is there.
        schemaless_writer(self._file, HEADER_SCHEMA, header)
        self._writer = Writer(self._file, schema)
        if self._codec is AvroCodec.ZSTANDARD:
            self._writer.block_writer = _write_zstandard
        self._hand_on()

    def _take(self, records: Sequence[LogRecord], start: int) -> int:
        """Pack records until the block or the object is full, at least one."""
        prefix, lossless, tails = self._prefix, self._lossless, self._tails
        low, key_lengths = LOW, _KEY_LENGTHS
        many = len(key_lengths)
        last = self._last
        left = min(BLOCK_BYTES - 1, self._limit - self._written) - self._pending_bytes
        value_tag, value_lengths, no_value = (FIRST, key_lengths, SECOND) if lossless else (b"", _LENGTHS, FIRST)
        plain_tail = tails[TimestampKind.CREATE]
        offset_rest = time_rest = -1
        offset_high = time_high = b""
        packed: list[bytes] = []
        used = 0
        lowest, highest = self._min_timestamp, self._max_timestamp
        largest = self._largest
        for record in islice(records, start, None):
            # One loop: a call for each number would take most of the time, and one for each field 6 to 13 % of it.
            offset = record.offset
            if offset <= last:
                raise CorruptSegment(
                    f"The record at offset {offset} comes after offset {last}: offsets of an Avro object must rise."
                )
            last = offset
            timestamp, kind = record.timestamp, record.timestamp_type
            key, value, headers = record.key, record.value, record.headers
            number = offset << 1
            if number > LOW_MASK:
                rest = number >> LOW_BITS
                if rest != offset_rest:
                    offset_rest, offset_high = rest, varint(rest)
                place = low[number & LOW_MASK] + offset_high
            else:
                place = varint(number)
            if timestamp is None:
                timestamp = -1
            if timestamp != -1:
                if lowest is None or timestamp < lowest:
                    lowest = timestamp
                if timestamp > highest:
                    highest = timestamp
            number = timestamp << 1
            if number > LOW_MASK:
                rest = number >> LOW_BITS
                if rest != time_rest:
                    time_rest, time_high = rest, varint(rest)
                time = low[number & LOW_MASK] + time_high
            else:
                time = long(timestamp)
            content = 0
            if key is None:
                key_head, key = SECOND, b""
            else:
                content = len(key)
                key_head = key_lengths[content] if content < many else FIRST + long(content)
            if value is None:
                value_head, value = no_value, b""
            else:
                length = len(value)
                value_head = value_lengths[length] if length < many else value_tag + long(length)
                content += length
            if headers:
                end = _pack_headers(headers, lossless) + (KINDS[kind_of(timestamp, kind)] if lossless else b"")
                content += _header_bytes(headers)
            else:
                end = plain_tail if kind == 0 and timestamp != -1 else tails[kind_of(timestamp, kind)]
            if kind == 1:
                self._append_time = True
            if content > largest:
                largest = content
            whole = b"".join((prefix, place, time, key_head, key, value_head, value, end))
            packed.append(whole)
            used += len(whole)
            if used > left:
                break
        self._pending += packed
        self._pending_bytes += used
        self._records += len(packed)
        self._last, self._largest = last, largest
        self._min_timestamp, self._max_timestamp = lowest, highest
        return len(packed)

    def _close_block(self) -> None:
        assert self._writer is not None
        self._writer.write_block(_Packed(len(self._pending), BytesIO(b"".join(self._pending))))
        self._pending.clear()
        self._pending_bytes = 0
        self._blocks += 1
        self._hand_on()

    def _hand_on(self) -> None:
        data = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        self._written += len(data)
        self._data(data)


def _tails(lossless: bool) -> dict[TimestampKind, bytes]:
    """The bytes that end a record without headers, by the kind of its timestamp."""
    if lossless:
        return {kind: _NO_HEADERS + NO_HEADER_LIST + KINDS[kind] for kind in TimestampKind}
    return dict.fromkeys(TimestampKind, _NO_HEADERS)


class _Packed(NamedTuple):
    """A block in the form that fastavro takes."""

    num_records: int
    bytes_: BytesIO


def _write_zstandard(file: Any, data: bytes, level: int | None) -> None:
    """fastavro's own needs another library than the one that is here already."""
    file.write(sized(compress(Codec.ZSTD, data)))


def kind_of(timestamp: int | None, timestamp_type: int | None) -> TimestampKind:
    """Which of the four a record's timestamp is. Raises ValueError for a type that does not exist."""
    if timestamp_type is None:
        return TimestampKind.NONE
    if timestamp_type == TimestampKind.CREATE and (timestamp is None or timestamp == -1):
        return TimestampKind.CREATE_NULL
    if timestamp_type in (TimestampKind.CREATE, TimestampKind.APPEND):
        return TimestampKind(timestamp_type)
    raise ValueError(f"the timestamp type {timestamp_type} does not exist; 0, 1 and None do")


def _pack_headers(headers: Headers, lossless: bool) -> bytes:
    """The field `headers`, and `headerList` after it."""
    last = {_key(name).decode("utf-8", "replace"): value for name, value in headers}
    entries = b"".join(sized(name.encode()) + sized(value or b"") for name, value in last.items())
    packed = FIRST + long(len(last)) + entries + b"\x00"
    if not lossless:
        return packed
    name, value = headers[0]
    if len(headers) == 1 and value is not None and _is_text(name):
        return packed + NO_HEADER_LIST
    listed = b"".join(
        sized(_key(name)) + (SECOND if value is None else FIRST + sized(value)) for name, value in headers
    )
    return packed + SECOND + long(len(headers)) + listed + b"\x00"


def _header_bytes(headers: Headers) -> int:
    return sum(len(_key(name)) + len(data or b"") for name, data in headers)


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def old_losses(
    records: Sequence[LogRecord], compatibility: Compatibility = Compatibility.STRICT
) -> dict[LossKind, tuple[int, int]]:
    """The losses that the schema causes, each with the number of its records and the offset of the first. The lossless
    schema causes none.
    """
    found: dict[LossKind, tuple[int, int]] = {}
    if compatibility is not Compatibility.STRICT:
        return found
    for record in records:
        if record.value is not None and not record.headers and record.timestamp_type == 0:
            timestamp = record.timestamp
            if timestamp is not None and timestamp != -1:
                continue
        for kind in _lost(record):
            count, first = found.get(kind, (0, record.offset))
            found[kind] = (count + 1, first)
    return found


def _lost(record: LogRecord) -> Iterator[LossKind]:
    if record.value is None:
        yield LossKind.TOMBSTONE
    kind = kind_of(record.timestamp, record.timestamp_type)
    if kind is TimestampKind.CREATE_NULL:
        yield LossKind.TIMESTAMP_NULL
    elif kind is not TimestampKind.CREATE:
        yield LossKind.TIMESTAMP_TYPE
    if not record.headers:
        return
    names = [name for name, _ in record.headers]
    if len(set(names)) < len(names):
        yield LossKind.HEADER_DUPLICATE
    if len(set(names)) > 1:
        yield LossKind.HEADER_ORDER
    if not all(map(_is_text, names)):
        yield LossKind.HEADER_KEY
    if any(value is None for _, value in record.headers):
        yield LossKind.HEADER_NULL

"""The Avro format: container files of one record type, in the published schema or in Logkeep's lossless one.

    encoder = AvroEncoder(data.write, limit_bytes, topic, partition, options)      # a SegmentEncoder
    for records in read_object(iter(lambda: file.read(1 << 20), b"")): ...
    losses(records)                      # what `compatibility: strict` cannot hold of them

What strict writes where the published schema has no room: a null value as no bytes, the last of several headers of one
name, a header's null value as no bytes, U+FFFD for what is not UTF-8 in a header's name, a missing timestamp as -1, and
nothing of a timestamp's type.

The container is written by fastavro, block by block. The kernel packs the records of a block. Equal records in equal
order make equal bytes, however they are handed over: the sync marker comes from topic, partition and first offset.

Reading is in `avro_reader`, schemas are in `avro_schema`, the container's framing in `avro_container`, names in
`avro_names`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from fastavro.write import Writer, schemaless_writer
from logkeep_kernel import AvroBlocks, avro_losses

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.errors import CorruptSegment
from logkeep_engine.formats.avro_container import HEADER_SCHEMA, MAGIC, SYNC_BYTES
from logkeep_engine.formats.avro_numbers import long, sized
from logkeep_engine.formats.avro_reader import read_object
from logkeep_engine.formats.avro_schema import LOSSLESS, PUBLISHED
from logkeep_engine.formats.base import LogRecord, LossKind, SegmentFacts
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.rows import as_rows

__all__ = ["BLOCK_BYTES", "AvroEncoder", "losses", "read_object"]

BLOCK_BYTES = 256 * 1024
"""A block is closed by the record that takes it to this size, before compression. Larger ones hardly pack better."""

_CODECS = {
    AvroCodec.NONE: "null",
    AvroCodec.DEFLATE: "deflate",
    AvroCodec.SNAPPY: "snappy",
    AvroCodec.ZSTANDARD: "zstandard",
}


class AvroEncoder:
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
        self._packer = AvroBlocks(sized(topic.encode()) + long(partition), lossless=self._lossless)
        self._file = BytesIO()
        self._writer: Writer | None = None
        self._written = 0
        self._blocks = 0

    @property
    def size(self) -> int:
        """Bytes of the object so far; those of a block that is not closed count as they are before compression."""
        return self._written + self._packer.waiting

    @property
    def full(self) -> bool:
        """The threshold is passed: no more records are taken."""
        return self.size > self._limit

    def append(self, records: Sequence[LogRecord], start: int = 0) -> int:
        """Take records from index `start` on, up to and including the one that fills the object; returns how many.

        Raises `CorruptSegment` if an offset does not rise.
        """
        rows = as_rows(records)
        packer = self._packer
        at = start
        while at < len(rows) and not self.full:
            if self._writer is None:
                self._begin(rows[at:].first_offset)
            taken, why = packer.append(rows, at, min(BLOCK_BYTES - 1, self._limit - self._written))
            at += taken
            if packer.waiting >= BLOCK_BYTES:
                self._close_block()
            if why == "falls":
                raise CorruptSegment(
                    f"The record at offset {rows[at:].first_offset} comes after offset {packer.last_offset}: offsets "
                    "of an Avro object must rise."
                )
        return at - start

    def finish(self) -> SegmentFacts:
        """Hand on the last block, and say what the object holds. At least one record was taken."""
        count = self._packer.count
        if not count:
            raise ValueError("a segment needs at least one record")
        if self._packer.waiting:
            self._close_block()
        first, last, lowest, highest, append_time, largest = self._packer.facts()
        return SegmentFacts(
            base_offset=first,
            next_offset=last + 1,
            records=count,
            blocks=self._blocks,
            bytes=self._written,
            index_bytes=0,
            min_timestamp=lowest,
            max_timestamp=highest,
            gaps=last - first + 1 != count,
            append_time=append_time,
            largest_record=largest,
        )

    def _begin(self, first_offset: int) -> None:
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

    def _close_block(self) -> None:
        assert self._writer is not None
        data, count = self._packer.take()
        self._writer.write_block(_Packed(count, BytesIO(data)))
        self._blocks += 1
        self._hand_on()

    def _hand_on(self) -> None:
        data = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        self._written += len(data)
        self._data(data)


class _Packed(NamedTuple):
    """A block in the form that fastavro takes."""

    num_records: int
    bytes_: BytesIO


def _write_zstandard(file: Any, data: bytes, level: int | None) -> None:
    """fastavro's own needs another library than the one that is here already."""
    file.write(sized(compress(Codec.ZSTD, data)))


def losses(
    records: Sequence[LogRecord], compatibility: Compatibility = Compatibility.STRICT
) -> dict[LossKind, tuple[int, int]]:
    """Return the losses that the schema causes, each with the number of its records and the offset of the first. The
    lossless schema causes none.
    """
    found: dict[LossKind, tuple[int, int]] = {}
    if compatibility is not Compatibility.STRICT:
        return found
    for name, count, first in avro_losses(as_rows(records)):
        found[LossKind[name]] = (count, first)
    return found

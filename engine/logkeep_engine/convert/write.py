"""This module writes the segments of a chunk in the target's format.

    target = open_target(setting, topic, chunk, attempt, packing)
    target.append(records)
    entries = target.finish()

Only the records and the setting decide where segments and batches end, so that another attempt writes the same. With
`packing` small segments of format Kafka are visible once its packs are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from logkeep_engine.archive.catalog.entry import LAYOUTS, SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import IndexLeft, SegmentFollower
from logkeep_engine.archive.reading.partition import fetched_epoch, open_partition
from logkeep_engine.archive.writing.log_writer import LogSegment, Packing
from logkeep_engine.archive.writing.record_writer import RecordSegments, RecordSink
from logkeep_engine.contract.archive_format import (
    DEFAULT_DIGEST,
    Compression,
    DigestAlgorithm,
    FormatName,
    FormatOptions,
)
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.log.batch import headers_of, parse_header, with_append_time
from logkeep_engine.log.codec import encode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.storage import Storage

BATCH_BYTES = 512 << 10
"""The size of keys, values and headers of a batch that is made from records: well below what every broker takes (1 MB).
"""

BATCH_RECORDS = 10_000

_APPEND_TIME = 1  # Kafka's TimestampType.LOG_APPEND_TIME
_RECORD_OVERHEAD = 20  # more than a record takes in addition to key, value and headers, as a rule
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TargetSetting:
    """The place and the way a run writes. `codec` is that of batches made from records, `compression` that of whole
    segments of format Kafka. `digest` None: a copy keeps that of its source. It pickles without secrets."""

    storage: Storage
    format: FormatName
    epoch: int
    segment_bytes: int
    compression: Compression = Compression.PASSTHROUGH
    codec: Codec = Codec.ZSTD
    options: FormatOptions = field(default_factory=FormatOptions)
    digest: DigestAlgorithm | None = None


class ConvertTarget(Protocol):
    """Writes the segments of one chunk. The offsets of the records must rise."""

    @property
    def size(self) -> int:
        """The bytes of the segments so far."""
        ...

    def append(self, records: Sequence[LogRecord]) -> None: ...

    def finish(self) -> tuple[SegmentEntry, ...]:
        """Close the open segment, if there is one. Returns all entries."""
        ...

    def abort(self) -> None:
        """Drop the open segment. Harmless after `finish`."""
        ...


def open_target(
    setting: TargetSetting, topic: str, chunk: ConvertChunk, attempt: int, packing: Packing | None = None
) -> ConvertTarget:
    """Open the target of a chunk. Nothing is written yet."""
    if setting.format is FormatName.KAFKA:
        return _BatchTarget(setting, topic, chunk, attempt, packing)
    return RecordSegments(
        partial(
            RecordSink,
            setting.storage,
            LAYOUTS[setting.format],
            topic,
            chunk.topic_id,
            chunk.partition,
            setting.epoch,
            attempt,
            setting.segment_bytes,
            setting.options,
            setting.digest or DEFAULT_DIGEST,
        )
    )


class _BatchTarget:
    """Segments of Kafka's batches, made from records.

    A batch has one type of timestamp, and only one timestamp if that is the time of the append. So records with append
    time come back to the batches they were in, as far as can be known.
    """

    def __init__(
        self, setting: TargetSetting, topic: str, chunk: ConvertChunk, attempt: int, packing: Packing | None
    ) -> None:
        self._setting, self._topic, self._chunk, self._attempt = setting, topic, chunk, attempt
        self._packing = packing
        self._batch: list[LogRecord] = []
        self._batch_bytes = 0
        self._batch_time: int | None = None  # the append time of its records
        self._segment: LogSegment | None = None
        self._entries: list[SegmentEntry] = []
        self._closed = 0

    @property
    def size(self) -> int:
        return self._closed + (self._segment.builder.size if self._segment is not None else 0)

    def append(self, records: Sequence[LogRecord]) -> None:
        batch, size = self._batch, self._batch_bytes
        for record in records:
            append_time = _append_time(record)
            if batch and (
                size >= BATCH_BYTES
                or len(batch) >= BATCH_RECORDS
                or append_time != self._batch_time
                # A record has its distance from the base offset in 32 bits.
                or record.offset - batch[0].offset > _INT32_MAX
            ):
                self._write_batch()
                size = 0
            if not batch:
                self._batch_time = append_time
            batch.append(record)
            size += _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
            for name, value in record.headers:
                size += len(name) + len(value or b"")
        self._batch_bytes = size

    def finish(self) -> tuple[SegmentEntry, ...]:
        self._write_batch()
        self._close()
        return tuple(self._entries)

    def abort(self) -> None:
        if self._segment is not None:
            self._segment.abort()
            self._segment = None

    def _write_batch(self) -> None:
        if not self._batch:
            return
        data = self._encoded()
        header = parse_header(data)
        segment = self._segment
        if segment is not None and (
            segment.builder.size + len(data) > self._setting.segment_bytes
            or header.last_offset > segment.builder.last_possible_offset
        ):
            self._close()
            segment = None
        if segment is None:
            segment = self._segment = _open_log(
                self._setting, self._topic, self._chunk, header.base_offset, self._attempt, self._packing
            )
        segment.builder.append(memoryview(data), headers_of([(0, header)]))
        self._batch.clear()

    def _encoded(self) -> bytes | bytearray:
        data = encode_records(self._batch, codec=self._setting.codec, base_offset=self._batch[0].offset)
        return data if self._batch_time is None else with_append_time(data)

    def _close(self) -> None:
        if self._segment is None:
            return
        entry = self._segment.finish()
        self._segment = None
        self._entries.append(entry)
        self._closed += entry.bytes


def _append_time(record: LogRecord) -> int | None:
    """Return the append time of the record. None: it has create time, or none."""
    if record.timestamp_type != _APPEND_TIME:
        return None
    return -1 if record.timestamp is None else record.timestamp  # RecordBatch.NO_TIMESTAMP of Kafka


def _open_log(
    setting: TargetSetting,
    topic: str,
    chunk: ConvertChunk,
    base_offset: int,
    attempt: int,
    packing: Packing | None,
    kept: DigestAlgorithm = DEFAULT_DIGEST,
) -> LogSegment:
    return LogSegment(
        setting.storage,
        setting.compression,
        topic,
        chunk.topic_id,
        chunk.partition,
        base_offset,
        setting.epoch,
        attempt,
        setting.digest or kept,
        packing,
    )


def copy_segment(
    setting: TargetSetting,
    source: Storage,
    topic: str,
    entry: SegmentEntry,
    chunk: ConvertChunk,
    attempt: int,
    packing: Packing | None = None,
) -> SegmentEntry | None:
    """Copy a segment of batches as it is, or a slice of one: the same log, markers included. Only its compression as a
    whole may change, and the algorithm of its digest if the run is given one. None: a slice that compaction has left no
    batch.

    Raises ArchiveDamaged if the source's segment is not what its catalog says.
    """
    reader = open_partition(source, topic, (entry,))
    transactions = list(reader.transaction_index())
    left = IndexLeft(transactions)
    segment = _open_log(setting, topic, chunk, entry.base_offset, attempt, packing, entry.digest.algorithm)
    segment.transactions = SegmentFollower(entry.base_offset, fetched_epoch(source, topic, entry))
    try:
        for stretch, headers in reader.batches():
            segment.builder.append(stretch, headers)
            segment.transactions.note(stretch, headers)
            left.note(headers)
        if not segment.builder.size:
            segment.abort()
            return None
        # A slice has only the transactions of its own batches.
        return segment.finish(transactions if entry.uncut is entry else left.left())
    except BaseException:
        segment.abort()
        raise

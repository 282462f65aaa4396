"""What the catalog says of one segment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from logkeep_engine.archive import names
from logkeep_engine.contract.spec import FormatName

if TYPE_CHECKING:
    from logkeep_engine.log.segment import SegmentSummary


class Layout(IntEnum):
    """Which objects a segment has and how they are named. The numbers are those of the two bits in a packed row.

    `RECORDS_AT_ROOT`: an adopted folder of the Records format, whose topics' folders lie beside `archive.json`.
    """

    KAFKA = 0
    RECORDS = 1
    AVRO = 2
    RECORDS_AT_ROOT = 3


LAYOUTS = {FormatName.KAFKA: Layout.KAFKA, FormatName.RECORDS: Layout.RECORDS, FormatName.AVRO: Layout.AVRO}
"""How the segments of an archive of each format lie where Logkeep writes them."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An immutable object of whole record batches of one partition. Offsets of the batches lie in [base_offset,
    next_offset).

    `records` counts data records (no control records), `bytes` is the size of the `.log` object, `sha256` its hash in
    hex. Times are ms since the epoch: `min_base_timestamp` is the lowest first time of a batch, which may not be the
    lowest time of a record. `codecs` counts batches by codec name. `gaps`: offsets are missing inside or between
    batches. `legacy`: batches of magic 0 or 1. `*_bytes` are the sizes of the index objects; a `.txnindex` of 0 bytes
    has no object. It cannot be rebuilt from the log, so its hash is kept too ("" if it has none). `stored_bytes` is the
    size of the `.log.zst` object that holds the log in seekable zstd; 0: it lies in a `.log` as it is. `bytes` and
    `sha256` are those of the log itself in both cases.

    In the other layouts `bytes` and `sha256` are those of the object with the records, `index_bytes` is the size of the
    `_index` object of the Records format, `batches` counts Avro blocks (1 in the Records format), `max_batch_bytes` is
    an upper bound of what the largest record takes in a batch, `min_base_timestamp` the lowest time of a record, and
    what speaks of batches is empty. `sequence` is the number in the name of an Avro object, with at least
    `sequence_width` digits.
    """

    topic_id: str
    partition: int
    epoch: int
    attempt: int
    base_offset: int
    next_offset: int
    records: int
    batches: int
    bytes: int
    min_base_timestamp: int
    max_timestamp: int
    sha256: str
    codecs: Mapping[str, int] = field(hash=False)
    transactional: bool
    control: bool
    gaps: bool
    append_time: bool
    legacy: bool
    max_batch_bytes: int
    index_bytes: int
    timeindex_bytes: int
    txnindex_bytes: int
    txnindex_sha256: str = ""
    stored_bytes: int = 0
    layout: Layout = Layout.KAFKA
    sequence: int = 0
    sequence_width: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset < self.next_offset or self.batches < 1 or self.bytes < 1 or self.partition < 0:
            raise ValueError(
                f"segment of partition {self.partition} with offsets [{self.base_offset}, {self.next_offset}), "
                f"{self.batches} batches, {self.bytes} bytes"
            )

    @classmethod
    def of(
        cls,
        summary: SegmentSummary,
        *,
        topic_id: str,
        partition: int,
        epoch: int,
        attempt: int,
        stored_bytes: int = 0,
    ) -> Self:
        """The entry of a finished segment."""
        return cls(
            topic_id=topic_id,
            partition=partition,
            epoch=epoch,
            attempt=attempt,
            base_offset=summary.base_offset,
            next_offset=summary.next_offset,
            records=summary.records,
            batches=summary.batches,
            bytes=summary.bytes,
            min_base_timestamp=summary.min_base_timestamp,
            max_timestamp=summary.max_timestamp,
            sha256=summary.sha256,
            codecs=dict(summary.codecs),
            transactional=summary.transactional,
            control=summary.control,
            gaps=summary.gaps,
            append_time=summary.append_time,
            legacy=summary.legacy,
            max_batch_bytes=summary.max_batch_bytes,
            index_bytes=len(summary.index),
            timeindex_bytes=len(summary.timeindex),
            txnindex_bytes=len(summary.txnindex),
            txnindex_sha256=hashlib.sha256(summary.txnindex).hexdigest() if summary.txnindex else "",
            stored_bytes=stored_bytes,
        )

    @property
    def log_suffix(self) -> str:
        """Of the object that holds the log, or the records."""
        if self.layout is not Layout.KAFKA:
            return names.DATA if self.layout is Layout.AVRO else names.RECORDS
        return names.LOG_ZST if self.stored_bytes else names.LOG

    def stem(self, topic: str) -> str:
        """The path of its objects without the suffix; `topic` is the name of `topic_id`."""
        if self.layout is Layout.AVRO:
            return names.avro_stem(topic, self.partition, self.sequence, width=self.sequence_width)
        if self.layout is not Layout.KAFKA:
            root = "" if self.layout is Layout.RECORDS_AT_ROOT else names.TOPICS
            return names.records_stem(topic, self.partition, self.base_offset, root=root)
        return names.segment_stem(topic, self.topic_id, self.partition, self.base_offset, self.epoch, self.attempt)

    def topic_folder(self, topic: str) -> str:
        """Where the objects of its topic lie, with all partitions."""
        if self.layout is Layout.RECORDS_AT_ROOT:
            return f"{topic}/"
        own = f"{self.topic_id}/" if self.layout is Layout.KAFKA else ""
        return f"{names.TOPICS}{topic}/{own}"

    def objects(self, topic: str) -> dict[str, int]:
        """Path and size in bytes of each of its objects."""
        stem = self.stem(topic)
        if self.layout is Layout.AVRO:
            return {stem + names.DATA: self.bytes}
        if self.layout is not Layout.KAFKA:
            return {stem + names.RECORDS: self.bytes, stem + names.RECORDS_INDEX: self.index_bytes}
        sizes = {
            self.log_suffix: self.stored_bytes or self.bytes,
            names.INDEX: self.index_bytes,
            names.TIMEINDEX: self.timeindex_bytes,
            names.TXNINDEX: self.txnindex_bytes,
        }
        return {stem + suffix: size for suffix, size in sizes.items() if size or suffix != names.TXNINDEX}

    def beside(self, topic: str) -> tuple[str, ...]:
        """Paths of objects that may lie beside those: they hold nothing that the log does not."""
        return (self.stem(topic) + names.TXNPARTS,) if self.layout is Layout.KAFKA and self.transactional else ()

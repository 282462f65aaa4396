"""The segments that runs of the model archive: batches as they lie in a log, or the records of a format of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import LAYOUTS, SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import FormatName, FormatOptions
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from tests.model.reference import Batch, Key, Log
from tests.unit.archive.build import write_segment
from tests.unit.log.batches import marker, with_header


@dataclass(frozen=True)
class SegmentPlace:
    """Where the segments of a run come to lie. In `packs` they are visible once these are committed."""

    storage: Storage
    format: FormatName
    epoch: int
    packs: TaskPacks | None = None


def segments_of(
    place: SegmentPlace, topic: TopicEntry, key: Key, log: Log, group: Sequence[Batch], generation: int
) -> list[SegmentEntry]:
    """Write a segment of some batches of a log: none if it would have no record in a format of records."""
    if place.format is FormatName.KAFKA:
        return [_of_batches(place, topic, key, log, group)]
    records = [rec for batch in group for rec in batch.records if rec.visible]
    if not records:
        return []
    layout = LAYOUTS[place.format]
    sink = RecordSink(place.storage, layout, topic.name, *key, place.epoch, 0, 1 << 30, FormatOptions())
    sink.within(generation).append([PlainRecord(rec.offset, rec.time, 0, rec.key, rec.value, ()) for rec in records])
    return [sink.finish()]


def _of_batches(place: SegmentPlace, topic: TopicEntry, key: Key, log: Log, group: Sequence[Batch]) -> SegmentEntry:
    end = group[-1].end
    producers = {batch.producer for batch in group}
    aborted = [
        AbortedTxn(batch.producer, batch.first, min(batch.base, end - 1), batch.first)
        for batch in log.batches
        if batch.marker and not batch.commits and batch.producer in producers
    ]
    return write_segment(
        place.storage,
        list(map(_bytes_of, group)),
        topic=topic,
        partition=key[1],
        epoch=place.epoch,
        aborted=sorted(aborted, key=lambda txn: txn.last_offset),
        packs=place.packs,
    )


def _bytes_of(batch: Batch) -> bytes:
    """A batch as it lies in the log."""
    if batch.marker:
        return with_header(
            marker(batch.base, batch.producer, commit=batch.commits),
            producer_id=batch.producer,
            attributes=0x30,
            base_timestamp=batch.time,
            max_timestamp=batch.time,
        )
    data = encode(
        [Record(rec.offset, rec.time, rec.key, rec.value, ()) for rec in batch.records],
        codec=Codec.LZ4 if batch.base % 2 else Codec.NONE,
        base_offset=batch.base,
        producer_id=batch.producer,
        transactional=batch.producer >= 0,
        leader_epoch=batch.leader,
    )
    if batch.records[-1].offset == batch.end - 1:
        return data
    kept = batch.end - 1 - batch.base  # a cleaner leaves a batch its offsets
    return with_header(data, base_offset=batch.base, producer_id=batch.producer, last_offset_delta=kept)

"""The times of records: from when to when, how well ordered, where a moment lies.

for times in timestamps(source): print(times.partition, times.first, times.last)
for place in places(source, moment): print(place.offset, place.verdict)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import accumulate
from operator import lt
from typing import Any

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.log.codec import decode_slices
from logkeep_engine.log.damage import DamagedBytes, OnDamagedBytes
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment, damage_of
from logkeep_engine.toolbox.source import LogSource

HOUR = 3_600_000
DAY = 24 * HOUR
MAX_BUCKETS = 10_000


class Bucket(StrEnum):
    NONE = "none"
    HOUR = "hour"
    DAY = "day"

    @property
    def milliseconds(self) -> int:
        return {Bucket.NONE: 0, Bucket.HOUR: HOUR, Bucket.DAY: DAY}[self]


@dataclass(slots=True)
class LogTimes:
    """The times of one segment, or of a whole partition (`segment` ""). `folder`: where it lies ("" in an archive).
    Times are ms since the epoch, None if there is none.

    `first` and `last`: the lowest and the highest time. `without`: records without a time. `out_of_order`: records
    whose time is below that of a record before them. `future`: records later than the clock of this machine.
    `buckets`: the first offset of every hour or day (by its start) that has records, in the order of times. `damage`:
    places that could not be read.
    """

    topic: str
    topic_id: str
    partition: int
    segment: str = ""
    records: int = 0
    first: int | None = None
    last: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    without: int = 0
    out_of_order: int = 0
    future: int = 0
    types: dict[str, int] = field(default_factory=dict)
    buckets: dict[int, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    folder: str = ""

    def add(self, other: LogTimes) -> None:
        """Take over what a later segment of the same partition has."""
        if other.records:
            self.first_offset = other.first_offset if self.first_offset is None else self.first_offset
            self.last_offset = other.last_offset
        self.records += other.records
        for name in ("without", "out_of_order", "future"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first = _least(self.first, other.first)
        self.last = _most(self.last, other.last)
        for kind, count in other.types.items():
            self.types[kind] = self.types.get(kind, 0) + count
        for start, offset in other.buckets.items():
            self.buckets.setdefault(start, offset)
        self.damage += other.damage

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"topic": self.topic, "topicId": self.topic_id, "partition": self.partition}
        if self.segment:
            document["segment"] = self.segment
        if self.folder:
            document["folder"] = self.folder
        return document | {
            "records": self.records,
            "firstOffset": self.first_offset,
            "lastOffset": self.last_offset,
            "firstTimestamp": self.first,
            "lastTimestamp": self.last,
            "withoutTimestamp": self.without,
            "outOfOrder": self.out_of_order,
            "inTheFuture": self.future,
            "types": self.types,
            "buckets": [{"start": start, "offset": offset} for start, offset in sorted(self.buckets.items())],
            "damage": self.damage,
        }


@dataclass(frozen=True, slots=True)
class MomentPlace:
    """The place of a moment (ms) in a partition. `offset`: the first record of that time or later, None if all are
    earlier; `timestamp` is that record's. `first` and `last` are the lowest and the highest time of the partition, the
    lowest by what the headers of batches say, both by the catalog of an archive, which counts markers too. `damage`:
    places that could not be read on the way; the record may have lain there.
    """

    topic: str
    topic_id: str
    partition: int
    moment: int
    offset: int | None
    timestamp: int | None
    first: int | None
    last: int | None
    damage: tuple[str, ...] = ()
    folder: str = ""

    @property
    def verdict(self) -> str:
        """Can the partition be brought back as it was at that moment?"""
        if self.first is None or self.last is None:
            return "no record has a time"
        if self.moment > self.last or (self.offset is None and not self.damage):
            return "after the last record"
        return "before the first record" if self.moment < self.first else "inside"

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topicId": self.topic_id,
            "partition": self.partition,
            "moment": self.moment,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "firstTimestamp": self.first,
            "lastTimestamp": self.last,
            "verdict": self.verdict,
            "damage": list(self.damage),
        } | ({"folder": self.folder} if self.folder else {})


def timestamps(source: LogSource, *, bucket: Bucket = Bucket.NONE, per_segment: bool = False) -> Iterator[LogTimes]:
    """Yield the times of every partition, or of every segment; reads all records."""
    now = int(time.time() * 1000)
    for (topic, topic_id, partition, folder), segments in source.partitions().items():
        whole = LogTimes(topic, topic_id, partition, folder=folder)
        latest: int | None = None
        for segment in segments:
            found = _read(segment, bucket.milliseconds, now, latest)
            latest = _most(latest, found.last)
            if per_segment:
                yield found
            else:
                whole.add(found)
        if not per_segment:
            yield whole


def places(source: LogSource, moment: int) -> Iterator[MomentPlace]:
    """Yield the place of `moment` (ms) in every partition. Reads the segments from where their time index says."""
    for (topic, topic_id, partition, folder), segments in source.partitions().items():
        first = last = None
        found: LogRecord | None = None
        damage: dict[str, None] = {}  # in order, each once: a segment may be read twice
        for segment in segments:
            damaged = partial(_note_damage, damage, segment)
            low, high = _bounds(segment, damaged)
            first, last = _least(first, low), _most(last, high)
            if found is None and high is not None and high >= moment:
                found = _first_at(segment, moment, damaged)
        yield MomentPlace(
            topic,
            topic_id,
            partition,
            moment,
            found.offset if found is not None else None,
            found.timestamp if found is not None else None,
            first,
            last,
            tuple(damage),
            folder,
        )


def _read(segment: ToolboxSegment, bucket: int, now: int, latest: int | None) -> LogTimes:
    times = LogTimes(segment.topic, segment.topic_id, segment.partition, segment.name, folder=segment.folder)

    def damaged(damage: DamagedBytes) -> None:
        # The archive's reader says the position itself.
        archived = f"{segment.name}, offset {damage.offset}: {damage.what}"
        times.damage.append(archived if segment.entry is not None else _damage(segment, damage))

    for _, records in segment.found(damaged):
        latest = _note(times, records, bucket, now, latest)
    return times


def _damage(segment: ToolboxSegment, damage: DamagedBytes) -> str:
    return f"{segment.name} at position {damage.position}, offset {damage.offset}: {damage.what}"


def _note_damage(found: dict[str, None], segment: ToolboxSegment, damage: DamagedBytes) -> None:
    found[_damage(segment, damage)] = None


def _note(times: LogTimes, records: Sequence[LogRecord], bucket: int, now: int, latest: int | None) -> int | None:
    """Take note of records that follow one another; returns the latest time so far."""
    if not records:
        return latest
    times.records += len(records)
    times.last_offset = records[-1].offset
    if times.first_offset is None:
        times.first_offset = records[0].offset
    for kind, count in Counter([record.timestamp_type for record in records]).items():
        name = _TYPES[kind]
        times.types[name] = times.types.get(name, 0) + count
    found = [(stamp, record.offset) for record in records if (stamp := _time(record.timestamp)) is not None]
    times.without += len(records) - len(found)
    if not found:
        return latest
    stamps = [stamp for stamp, _ in found]
    low, high = min(stamps), max(stamps)
    times.first, times.last = _least(times.first, low), _most(times.last, high)
    if high > now:
        times.future += sum(stamp > now for stamp in stamps)
    if bucket:
        _fill_buckets(times, found, bucket, one=low // bucket == high // bucket)
    highest = list(accumulate(stamps, max, initial=-1 if latest is None else latest))
    times.out_of_order += sum(map(lt, stamps, highest))
    return highest[-1]


def _fill_buckets(times: LogTimes, found: Sequence[tuple[int, int]], bucket: int, *, one: bool) -> None:
    for stamp, offset in found[:1] if one else found:
        if len(times.buckets) < MAX_BUCKETS:
            times.buckets.setdefault(stamp - stamp % bucket, offset)


_TYPES = {None: "none", -2: "CreateTime", -1: "none", 0: "CreateTime", 1: "LogAppendTime"}


def _bounds(segment: ToolboxSegment, on_damage: OnDamagedBytes) -> tuple[int | None, int | None]:
    """Return the lowest and highest time of a segment's records, by the catalog or the headers where that is enough."""
    low = high = None
    if segment.entry is not None:
        entry = segment.entry
        return _time(entry.times.min_base_timestamp), _time(entry.times.max_timestamp)
    if segment.has_batches:
        for batch in _data(segment.scan(), on_damage):
            header = batch.header
            sure = header.is_log_append_time or header.has_delete_horizon
            low = _least(low, _time(header.max_timestamp if sure else header.base_timestamp))
            high = _most(high, _time(header.max_timestamp))
        return low, high
    for records in segment.records(on_damage=on_damage):
        for record in records:
            timestamp = _time(record.timestamp)
            low, high = _least(low, timestamp), _most(high, timestamp)
    return low, high


def _first_at(segment: ToolboxSegment, moment: int, on_damage: OnDamagedBytes) -> LogRecord | None:
    """Return the first record of that time or later. The time index leads to it; where it leads to none, the latest
    time is that of a marker or of an emptied batch, or the index is wrong: all is read then.
    """
    if not segment.has_batches:
        return _first_of(segment.records(on_damage=on_damage), moment)
    found = _first_of(_late(segment.scan_from_time(moment), moment, on_damage), moment)
    return found or _first_of(_late(segment.scan(), moment, on_damage), moment)


def _first_of(runs: Iterable[Sequence[LogRecord]], moment: int) -> LogRecord | None:
    for records in runs:
        for record in records:
            timestamp = _time(record.timestamp)
            if timestamp is not None and timestamp >= moment:
                return record
    return None


def _late(
    items: Iterable[Batch | DamagedBytes], moment: int, on_damage: OnDamagedBytes
) -> Iterator[Sequence[LogRecord]]:
    """Yield the records of batches that may have one of that time or later."""
    for batch in _data(items, on_damage):
        if batch.header.max_timestamp >= moment:
            try:
                yield from decode_slices(batch.data, batch.header)
            except (BatchTooLarge, CorruptBatch) as error:
                on_damage(damage_of(batch, error.message.rstrip(".")))


def _data(items: Iterable[Batch | DamagedBytes], on_damage: OnDamagedBytes) -> Iterator[Batch]:
    """Yield the good ones of these batches, without control batches and those that compaction has emptied."""
    for item in items:
        if isinstance(item, DamagedBytes):
            on_damage(item)
        elif item.problem:
            on_damage(damage_of(item, item.problem))
        elif not item.header.is_control and item.header.record_count:
            yield item


def _time(timestamp: int | None) -> int | None:
    return None if timestamp is None or timestamp < 0 else timestamp


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _most(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)

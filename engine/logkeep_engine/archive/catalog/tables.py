"""The rows of the catalog's documents: topics, groups, runs and segments, in commits and in checkpoints. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.catalog.documents import NEWER, rows_of, table_of
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    GroupEntry,
    Outcome,
    Partition,
    RunEntry,
    TopicEntry,
)
from logkeep_engine.archive.catalog.packed import HAS_TXNINDEX_SHA256, LAYOUT_BIT, SegmentBatch, pack_facts
from logkeep_engine.errors import ArchiveMismatch

GROUP_COLUMNS = ["groupId", "topic", "topicId", "partition", "offset", "leaderEpoch", "metadata"]
RUN_COLUMNS = [
    "runId",
    "epoch",
    "kind",
    "beginTime",
    "endTime",
    "outcome",
    "message",
    "records",
    "bytes",
    "segments",
    "attempts",
]
_SEGMENT_COLUMNS = [
    "epoch",
    "attempt",
    "baseOffset",
    "nextOffset",
    "records",
    "batches",
    "bytes",
    "minBaseTimestamp",
    "maxTimestamp",
    "sha256",
    "codecs",
    "flags",
    "maxBatchBytes",
    "indexBytes",
    "timeindexBytes",
    "txnindexBytes",
    "txnindexSha256",
]
# Only in tables that have a compressed segment: what has none stays readable to versions that do not know the column.
_STORED = "storedBytes"
# Only in tables that have a segment of another layout than Kafka's: name of the layout, and of an Avro object the
# number in its name and how many digits that has at least.
_LAYOUT = ["layout", "sequence", "sequenceWidth"]
_LAYOUTS = {
    "kafka": Layout.KAFKA,
    "records": Layout.RECORDS,
    "avro": Layout.AVRO,
    "recordsAtRoot": Layout.RECORDS_AT_ROOT,
}
_LAYOUT_NAMES = {layout: name for name, layout in _LAYOUTS.items()}
_FLAGS = ("transactional", "control", "gaps", "appendTime", "legacy")  # in the order of their bits in a packed row


def topic_out(topic: TopicEntry) -> dict[str, Any]:
    """The reverse of `topic_in`."""
    return {
        "name": topic.name,
        "topicId": topic.topic_id,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
        "configs": dict(sorted(topic.configs.items())),
    }


def topic_in(item: dict[str, Any]) -> TopicEntry:
    """Raises KeyError and ValueError for what is not a topic."""
    if len(item) != 5:
        raise ValueError(f"topic with keys {', '.join(item)}")
    return TopicEntry(
        item["name"], item["topicId"], item["partitions"], item["replicationFactor"], dict(item["configs"])
    )


def group_row(item: GroupEntry) -> list[Any]:
    """In the order of GROUP_COLUMNS."""
    return [item.group_id, item.topic, item.topic_id, item.partition, item.offset, item.leader_epoch, item.metadata]


def run_row(run: RunEntry) -> list[Any]:
    """In the order of RUN_COLUMNS."""
    return [
        run.run_id,
        run.epoch,
        run.kind,
        run.begin_time,
        run.end_time,
        run.outcome.value,
        run.message,
        run.records,
        run.bytes,
        run.segments,
        run.attempts,
    ]


def run_in(
    run_id: str,
    epoch: int,
    kind: str,
    begin_time: int,
    end_time: int | None,
    outcome: str,
    message: str,
    records: int,
    size: int,
    segments: int,
    attempts: int,
) -> RunEntry:
    """The run of a row of RUN_COLUMNS."""
    return RunEntry(
        run_id, epoch, kind, begin_time, end_time, Outcome(outcome), message, records, size, segments, attempts
    )


@dataclass(frozen=True, slots=True)
class _Optional:
    """Which of the columns that not every table has a table needs."""

    stored: bool
    layouts: bool

    @classmethod
    def of(cls, segments: Sequence[SegmentEntry]) -> _Optional:
        stored = layouts = False
        for entry in segments:
            stored = stored or entry.stored_bytes > 0
            layouts = layouts or entry.layout is not Layout.KAFKA
        return cls(stored or layouts, layouts)


def segment_columns(stored: bool, layouts: bool = False) -> list[str]:
    """Of a table with or without compressed segments, and segments of other layouts than Kafka's; tables of commits
    have topic id and partition before them."""
    return [*_SEGMENT_COLUMNS, *([_STORED] if stored else []), *(_LAYOUT if layouts else [])]


def _segment_rows(document: dict[str, Any], name: str) -> list[list[Any]]:
    columns = document.get("segments", {}).get("columns", ())
    expected = segment_columns(_STORED in columns, _LAYOUT[0] in columns)
    return rows_of(document, "segments", ["topicId", "partition", *expected], name)


def _segment_row(entry: SegmentEntry, optional: _Optional) -> list[Any]:
    flags = (entry.transactional, entry.control, entry.gaps, entry.append_time, entry.legacy)
    row = [
        entry.epoch,
        entry.attempt,
        entry.base_offset,
        entry.next_offset,
        entry.records,
        entry.batches,
        entry.bytes,
        entry.min_base_timestamp,
        entry.max_timestamp,
        entry.sha256,
        dict(sorted(entry.codecs.items())),
        [name for name, is_set in zip(_FLAGS, flags, strict=True) if is_set],
        entry.max_batch_bytes,
        entry.index_bytes,
        entry.timeindex_bytes,
        entry.txnindex_bytes,
        entry.txnindex_sha256,
    ]
    if optional.stored:
        row.append(entry.stored_bytes)
    if optional.layouts:
        row += [_LAYOUT_NAMES[entry.layout], entry.sequence, entry.sequence_width]
    return row


def segments_out(segments: Sequence[SegmentEntry]) -> dict[str, Any]:
    """The table of a commit's segments."""
    optional = _Optional.of(segments)
    return table_of(
        ["topicId", "partition", *segment_columns(optional.stored, optional.layouts)],
        ([entry.topic_id, entry.partition, *_segment_row(entry, optional)] for entry in segments),
    )


def segments_in(document: dict[str, Any], name: str) -> SegmentBatch:
    """The segments of a commit's document; `name` is the object's, for messages."""
    # A million segments are read as a million rows: none is made an object on its way into the state.
    keys: list[Partition] = []
    rows = bytearray()
    for topic_id, partition, *row in _segment_rows(document, name):
        if not isinstance(topic_id, str) or not isinstance(partition, int) or partition < 0:
            raise ValueError(f"segment of topic id {topic_id!r} partition {partition!r}")
        keys.append((topic_id, partition))
        rows += packed_segment(*row)
    return SegmentBatch(keys, rows)


def packed_segment(
    epoch: int,
    attempt: int,
    base_offset: int,
    next_offset: int,
    records: int,
    batches: int,
    size: int,
    min_base_timestamp: int,
    max_timestamp: int,
    sha256: str,
    codecs: dict[str, int],
    flags: list[str],
    max_batch_bytes: int,
    index_bytes: int,
    timeindex_bytes: int,
    txnindex_bytes: int,
    txnindex_sha256: str,
    stored_bytes: int = 0,
    layout: str = "kafka",
    sequence: int = 0,
    sequence_width: int = 0,
) -> bytes:
    """The packed row of a row of `segment_columns`. Raises TypeError and ValueError for what is not a segment."""
    if not 0 <= base_offset < next_offset or batches < 1 or size < 1:
        raise ValueError(f"segment with offsets [{base_offset}, {next_offset}), {batches} batches, {size} bytes")
    bits = HAS_TXNINDEX_SHA256 if txnindex_sha256 else 0
    for flag in flags:
        bits |= 1 << _FLAGS.index(flag)
    if layout not in _LAYOUTS:
        raise ArchiveMismatch(f"A segment has layout {layout!r}.", hint=NEWER)
    bits |= _LAYOUTS[layout] << LAYOUT_BIT
    avro = _LAYOUTS[layout] is Layout.AVRO
    numbers = (
        base_offset,
        next_offset,
        epoch,
        records,
        batches,
        size,
        min_base_timestamp,
        max_timestamp,
        sequence if avro else stored_bytes,
        attempt,
        max_batch_bytes,
        index_bytes,
        sequence_width if avro else timeindex_bytes,
        txnindex_bytes,
    )
    return pack_facts(numbers, codecs, sha256, txnindex_sha256, bits)

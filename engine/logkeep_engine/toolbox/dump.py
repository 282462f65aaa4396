"""Shows a log row by row: its batches and their records. `dump_files` shows its indexes.

    for row in dump_segment(segment, Options(deep=True)): print("; ".join(row.lines()))

The text of a row is that of Kafka's own tool (`kafka-dump-log.sh`), so that scripts made for its output keep working;
`fields` have the same names. Source of facts: apache/kafka `DumpLogSegments.scala`, `EndTransactionMarker.java`,
`ProducerStateManager.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.contract.patterns import Pattern
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, UndecodableRecord
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records import RecordBlock
from logkeep_engine.log.batch import BatchHeader, parse_header
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.transactions import Spans
from logkeep_engine.toolbox import messages
from logkeep_engine.toolbox.decoders import Decoder, DecoderName, Undecodable, decoder
from logkeep_engine.toolbox.rows import Row, RowKind
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment

_NO_TIMESTAMP = -1
_NO_SEQUENCE = -1
_INT32_MAX = 2**31 - 1
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_END_MARKER = struct.Struct(">hi")  # version, coordinator epoch
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_CONTROL_NAMES = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION", 6: "KRAFT_VOTERS"}
_CONTROL_RECORDS = {
    2: ("LeaderChange", messages.LEADER_CHANGE),
    3: ("SnapshotHeader", messages.SNAPSHOT_HEADER),
    4: ("SnapshotFooter", messages.SNAPSHOT_FOOTER),
    5: ("KRaftVersion", messages.KRAFT_VERSION),
    6: ("KRaftVoters", messages.KRAFT_VOTERS),
}


@dataclass(frozen=True, slots=True)
class Options:
    """`deep`: also records; `data`: with keys, values and headers, decoded. Offsets and times (ms) are inclusive. A
    key's regular expression is searched in its text, and means `deep`.
    """

    deep: bool = False
    data: bool = False
    first_offset: int | None = None
    last_offset: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    key: Pattern | None = None
    key_decoder: Decoder = field(default_factory=lambda: decoder(DecoderName.STRING))
    value_decoder: Decoder = field(default_factory=lambda: decoder(DecoderName.STRING))

    @property
    def timed(self) -> bool:
        return self.from_time is not None or self.to_time is not None

    @property
    def records(self) -> bool:
        return self.deep or self.data or self.key is not None

    def wants(self, record: LogRecord) -> bool:
        """Is the record among those that are asked for?"""
        offset, timestamp = record.offset, record.timestamp
        if self.first_offset is not None and offset < self.first_offset:
            return False
        if self.last_offset is not None and offset > self.last_offset:
            return False
        if self.timed:
            time = _NO_TIMESTAMP if timestamp is None else timestamp
            if (self.from_time is not None and time < self.from_time) or (
                self.to_time is not None and (time > self.to_time or time == _NO_TIMESTAMP)
            ):
                return False
        if self.key is None:
            return True
        return record.key is not None and self.key.occurs_in(record.key.decode("utf-8", "replace"))


def dump_segment(segment: ToolboxSegment, options: Options, aborted: Spans | None = None) -> Iterator[Row]:
    """Yield the rows of a segment, from what is asked for on; what lies before is not read."""
    if not segment.has_batches:
        yield from _dump_records(segment, options)
        return
    for item in _items(segment, options):
        if isinstance(item, DamagedBytes):
            yield damage_row(item, segment)
            continue
        if options.last_offset is not None and item.header.base_offset > options.last_offset:
            return
        yield from _dump_batch(segment, item, options, aborted)


def damage_row(damage: DamagedBytes, segment: ToolboxSegment) -> Row:
    """Bytes that are not what they should be."""
    return Row(
        RowKind.DAMAGE,
        {"file": segment.name, "position": damage.position, "size": damage.size, "offset": damage.offset}
        | {"what": damage.what},
    )


def file_row(segment: ToolboxSegment) -> Row:
    """Return the row above those of a segment."""
    return Row(
        RowKind.FILE,
        {"file": segment.name, "topic": segment.topic, "partition": segment.partition}
        | {"baseOffset": segment.base_offset, "size": segment.size},
    )


def _items(segment: ToolboxSegment, options: Options) -> Iterator[Batch | DamagedBytes]:
    if options.first_offset is not None and options.first_offset > segment.base_offset:
        return segment.scan_from(options.first_offset)
    if options.from_time is not None:
        return segment.scan_from_time(options.from_time)
    return segment.scan()


def _dump_batch(segment: ToolboxSegment, batch: Batch, options: Options, aborted: Spans | None) -> Iterator[Row]:
    header = batch.header
    problem = batch.problem
    records: Sequence[LogRecord] = ()
    decoded = False
    if batch.intact and not _outside(header, options) and (options.records or _must_look_inside(header, options)):
        try:
            records = decode_records(batch.data, header)
            decoded = True
        except (BatchTooLarge, CorruptBatch) as error:
            problem = error.message.rstrip(".")
    elif _outside(header, options):
        return
    wanted = [record for record in records if not (header.is_control and options.key) and options.wants(record)]
    if decoded and not wanted and (options.key is not None or header.record_count):
        return
    row = _batch_row(batch, aborted is not None and header in aborted)
    yield row
    if problem:
        yield damage_row(DamagedBytes(problem, header.size, batch.position, header.base_offset), segment)
    if options.records:
        for record in wanted:
            yield _record_row(record, header, options)


def _outside(header: BatchHeader, options: Options) -> bool:
    """No record of the batch can be asked for."""
    if options.first_offset is not None and header.last_offset < options.first_offset:
        return True
    return options.from_time is not None and header.max_timestamp < options.from_time


def _must_look_inside(header: BatchHeader, options: Options) -> bool:
    """Its header does not tell whether a record has a time that is asked for."""
    if not options.timed or header.is_log_append_time or header.record_count == 0:
        return options.to_time is not None and header.max_timestamp > options.to_time
    if header.has_delete_horizon:
        return True
    first = header.base_timestamp
    return not ((options.from_time or 0) <= first <= (2**63 if options.to_time is None else options.to_time))


def _batch_row(batch: Batch, aborted: bool) -> Row:
    header = batch.header
    codec = _codec_name(header)
    if header.magic < 2:
        fields: dict[str, Any] = {"offset": header.last_offset}
    else:
        fields = {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": _sequence(header, header.last_offset_delta),
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.base_timestamp if header.has_delete_horizon else None,
        }
    fields |= {
        "position": batch.position,
        "timestampType": _timestamp_type(header),
        "timestamp": parse_header(batch.data).max_timestamp,  # as Kafka's tool shows it, right or not
        "size": header.size,
        "magic": header.magic,
        "compresscodec": codec,
        "crc": header.crc,
        "isvalid": batch.intact,
    }
    if aborted:
        fields["aborted"] = True
    return Row(RowKind.BATCH, fields)


def _record_row(record: LogRecord, header: BatchHeader, options: Options) -> Row:
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestampType": _timestamp_type(header),
        "timestamp": _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if header.magic >= 2:
        fields["sequence"] = _sequence(header, record.offset - header.base_offset)
        fields["headerKeys"] = [key for key, _ in record.headers]
    if header.is_control:
        fields |= _control_fields(record)
    elif options.data:
        fields |= _data_fields(record, options)
    return Row(RowKind.RECORD, fields)


def _dump_records(segment: ToolboxSegment, options: Options) -> Iterator[Row]:
    damages: list[DamagedBytes] = []
    for where, records in segment.placed(options.first_offset or 0, damages.append):
        positions = where.positions if isinstance(where, RecordBlock) else []
        for at, record in enumerate(records):
            if options.last_offset is not None and record.offset > options.last_offset:
                return
            if not options.wants(record):
                continue
            fields: dict[str, Any] = {
                "offset": record.offset,
                "timestampType": _TIMESTAMP_TYPES[record.timestamp_type],
                "timestamp": _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
                "keySize": -1 if record.key is None else len(record.key),
                "valueSize": -1 if record.value is None else len(record.value),
                "headerKeys": [key for key, _ in record.headers],
            }
            if positions:
                fields |= {"position": positions[at], "size": positions[at + 1] - positions[at]}
            if options.data:
                fields |= _data_fields(record, options)
            yield Row(RowKind.RECORD, fields)
    for damage in damages:
        yield damage_row(damage, segment)


_TIMESTAMP_TYPES = {
    None: "NoTimestampType",
    -2: "CreateTime",
    -1: "NoTimestampType",
    0: "CreateTime",
    1: "LogAppendTime",
}


def _data_fields(record: LogRecord, options: Options) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if record.headers:
        fields["headers"] = [
            [key, None if value is None else value.decode("utf-8", "replace")] for key, value in record.headers
        ]
    for name, data, decode in (
        ("key", record.key, options.key_decoder),
        ("payload", record.value, options.value_decoder),
    ):
        try:
            fields[name] = None if data is None else decode(data)
        except Undecodable as problem:
            fields[name] = (data or b"").hex()
            fields[f"{name}Problem"] = str(problem)
    return fields


def _control_fields(record: LogRecord) -> dict[str, Any]:
    """Return the fields of a control record."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        return {"problem": "the key of a control record is not version and type"}
    kind = _CONTROL_KEY.unpack_from(record.key)[1]
    value = record.value or b""
    if kind in _MARKERS:
        if len(value) < _END_MARKER.size:
            return {"endTxnMarker": _MARKERS[kind], "problem": "the marker has no coordinator epoch"}
        return {"endTxnMarker": _MARKERS[kind], "coordinatorEpoch": _END_MARKER.unpack_from(value)[1]}
    if kind in _CONTROL_RECORDS:
        name, schema = _CONTROL_RECORDS[kind]
        try:
            return {name: messages.decode(schema, int.from_bytes(value[:2], signed=True), memoryview(value))}
        except UndecodableRecord as error:
            return {"controlType": _CONTROL_NAMES[kind], "controlTypeId": kind, "problem": error.message}
    return {"controlType": _CONTROL_NAMES.get(kind, "UNKNOWN"), "controlTypeId": kind}


def _sequence(header: BatchHeader, delta: int) -> int:
    if header.base_sequence == _NO_SEQUENCE:
        return _NO_SEQUENCE
    sequence = header.base_sequence + delta
    return sequence if sequence <= _INT32_MAX else sequence - _INT32_MAX - 1


def _timestamp_type(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _codec_name(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except CorruptBatch:
        return f"unknown({header.attributes & 0x07})"

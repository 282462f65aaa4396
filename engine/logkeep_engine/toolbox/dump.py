"""What stands in a log: its batches, their records, its indexes, row by row.

    for row in dump_segment(segment, Options(deep=True)): print(row.text())

The text of a row is that of Kafka's own tool (`kafka-dump-log.sh`), so that scripts made for its output go on working;
`fields` have the same names. Source of facts: apache/kafka `DumpLogSegments.scala`, `EndTransactionMarker.java`,
`ProducerStateManager.java`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from crc32c import crc32c

from logkeep_engine.archive import names
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, CorruptIndex, CorruptSegment, Refused, UndecodableRecord
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records import RecordBlock
from logkeep_engine.formats.records_groups import read_consumer_offsets
from logkeep_engine.formats.records_index import read_index
from logkeep_engine.formats.records_names import FileKind, parse_name, read_partition_index
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.segment import read_offset_index, read_time_index, read_txn_index
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox import messages
from logkeep_engine.toolbox.decoders import Decoder, DecoderName, Undecodable, decoder
from logkeep_engine.toolbox.decoders import text as decoded_text
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.source import LEADER_EPOCHS, SNAPSHOT, Segment, display

_NO_TIMESTAMP = -1
_NO_SEQUENCE = -1
_INT32_MAX = 2**31 - 1
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_END_MARKER = struct.Struct(">hi")  # version, coordinator epoch
_PRODUCERS = struct.Struct(">hIi")  # version, CRC-32C of what follows it, entries
_PRODUCER = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_SNAPSHOT_VERSION = 1
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_CONTROL_NAMES = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION", 6: "KRAFT_VOTERS"}
_CONTROL_RECORDS = {
    2: ("LeaderChange", messages.LEADER_CHANGE),
    3: ("SnapshotHeader", messages.SNAPSHOT_HEADER),
    4: ("SnapshotFooter", messages.SNAPSHOT_FOOTER),
    5: ("KRaftVersion", messages.KRAFT_VERSION),
    6: ("KRaftVoters", messages.KRAFT_VOTERS),
}


class RowKind(StrEnum):
    FILE = "file"
    BATCH = "batch"
    RECORD = "record"
    DAMAGE = "damage"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TXN_INDEX = "transaction index"
    RECORDS_INDEX = "records index"
    PARTITION_INDEX = "partition index"
    PRODUCER = "producer"
    LEADER_EPOCH = "leader epoch"
    GROUP_POSITION = "group position"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `fields` can be JSON and are in the order of the text."""

    kind: RowKind
    fields: Mapping[str, Any]

    def text(self) -> str:
        """As Kafka's tool prints it."""
        return _TEXTS[self.kind](self.fields)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind.value, **self.fields}


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
    key: re.Pattern[str] | None = None
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
        return record.key is not None and self.key.search(record.key.decode("utf-8", "replace")) is not None


def dump_segment(segment: Segment, options: Options, aborted: Spans | None = None) -> Iterator[Row]:
    """The rows of a segment, from what is asked for on; what lies before is not read."""
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


def damage_row(damage: DamagedBytes, segment: Segment) -> Row:
    """Bytes that are not what they should be."""
    return Row(
        RowKind.DAMAGE,
        {"file": segment.name, "position": damage.position, "size": damage.size, "offset": damage.offset}
        | {"what": damage.what},
    )


def file_row(segment: Segment) -> Row:
    """What stands above the rows of a segment."""
    return Row(
        RowKind.FILE,
        {"file": segment.name, "topic": segment.topic, "partition": segment.partition}
        | {"baseOffset": segment.base_offset, "size": segment.size},
    )


def _items(segment: Segment, options: Options) -> Iterator[Batch | DamagedBytes]:
    if options.first_offset is not None and options.first_offset > segment.base_offset:
        return segment.scan_from(options.first_offset)
    if options.from_time is not None:
        return segment.scan_from_time(options.from_time)
    return segment.scan()


def _dump_batch(segment: Segment, batch: Batch, options: Options, aborted: Spans | None) -> Iterator[Row]:
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
        "timestamp": header.max_timestamp,
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


def _dump_records(segment: Segment, options: Options) -> Iterator[Row]:
    damages: list[DamagedBytes] = []
    for where, records in segment.placed(options.first_offset or 0, damages.append):
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
            if isinstance(where, RecordBlock):
                fields |= {"position": where.positions[at], "size": where.positions[at + 1] - where.positions[at]}
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
    """What a marker says."""
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


# ---- files beside a log


def dump_file(storage: Storage, path: str, base_offset: int = 0) -> Iterator[Row]:
    """The entries of an index or another file beside a log. `base_offset` is that of its log.

    Raises CorruptIndex if it is not whole or not of a known version, Refused if it is no file of a log.
    """
    name = path.rpartition("/")[2]
    data = storage.read(path)
    try:
        yield from _file_rows(name, data, base_offset)
    except (CorruptIndex, CorruptSegment) as error:
        raise CorruptIndex(f"{display(storage, path)}: {error.message}", hint=error.hint) from error


def _file_rows(name: str, data: bytes, base_offset: int) -> Iterator[Row]:
    file = parse_name(name)
    if name.endswith(names.TIMEINDEX):
        for number, time in enumerate(read_time_index(data, base_offset)):
            if number and time.offset == base_offset:
                return  # the zeros behind the entries of an index that a broker had open
            yield Row(RowKind.TIME_INDEX, {"timestamp": time.timestamp, "offset": time.offset})
    elif name.endswith(names.TXNINDEX):
        for item in read_txn_index(data):
            yield Row(
                RowKind.TXN_INDEX,
                {"version": 0, "producerId": item.producer_id, "firstOffset": item.first_offset}
                | {"lastOffset": item.last_offset, "lastStableOffset": item.last_stable_offset},
            )
    elif name.endswith(names.INDEX):
        for number, entry in enumerate(read_offset_index(data, base_offset)):
            if number and entry.offset == base_offset:
                return
            yield Row(RowKind.OFFSET_INDEX, {"offset": entry.offset, "position": entry.position})
    elif name.endswith(SNAPSHOT):
        yield from _producers(data)
    elif name == LEADER_EPOCHS:
        yield from _leader_epochs(data)
    elif file is not None and file.kind is FileKind.INDEX:
        index = read_index(data)
        for number in range(len(index)):
            offset, position, size = index.entry(number)
            yield Row(RowKind.RECORDS_INDEX, {"offset": offset, "position": position, "size": size})
    elif file is not None and file.kind is FileKind.PARTITION_INDEX:
        for segment in read_partition_index(data):
            yield Row(RowKind.PARTITION_INDEX, {"segment": str(segment), "startOffset": segment.start_offset})
    elif file is not None and file.kind is FileKind.CONSUMER_OFFSETS:
        yield from _group_positions(data)
    else:
        raise Refused(f"{name} is no file of a log.")


def _group_positions(data: bytes) -> Iterator[Row]:
    for group, offset in read_consumer_offsets(data).items():
        yield Row(RowKind.GROUP_POSITION, {"group": group, "offset": offset})


def _leader_epochs(data: bytes) -> Iterator[Row]:
    try:
        version, count, *lines = data.decode().split("\n")
        entries = [tuple(map(int, line.split())) for line in lines if line]
        if int(version) != 0 or int(count) != len(entries):
            raise ValueError(f"version {version}, {count} entries, {len(entries)} found")
        rows = [Row(RowKind.LEADER_EPOCH, {"epoch": epoch, "startOffset": start}) for epoch, start in entries]
    except ValueError as error:
        raise CorruptIndex(f"it is not a checkpoint of leader epochs: {error}") from error
    yield from rows


def _producers(data: bytes) -> Iterator[Row]:
    """A snapshot of the producers' state."""
    if len(data) < _PRODUCERS.size:
        raise CorruptIndex(f"the snapshot of producers is cut short: {len(data)} bytes")
    version, crc, count = _PRODUCERS.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptIndex(f"the snapshot of producers has version {version}; only {_SNAPSHOT_VERSION} is known")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptIndex("the CRC of the snapshot of producers is not that of its bytes")
    if len(data) < _PRODUCERS.size + count * _PRODUCER.size:
        raise CorruptIndex(f"the snapshot of producers is cut short: {len(data)} bytes for {count} entries")
    for fields in _PRODUCER.iter_unpack(data[_PRODUCERS.size :][: count * _PRODUCER.size]):
        producer, epoch, sequence, offset, delta, timestamp, coordinator, first = fields
        row: dict[str, Any] = {
            "producerId": producer,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator,
            "currentTxnFirstOffset": first if first >= 0 else None,
            "lastTimestamp": timestamp,
        }
        if offset >= 0:
            row |= {
                "firstSequence": sequence - delta if sequence >= delta else _INT32_MAX - (delta - sequence) + 1,
                "lastSequence": sequence,
                "lastOffset": offset,
                "offsetDelta": delta,
                "timestamp": timestamp,
            }
        yield Row(RowKind.PRODUCER, row)


# ---- text


def _text_of_file(fields: Mapping[str, Any]) -> str:
    start = f"\nLog starting offset: {fields['baseOffset']}" if "baseOffset" in fields else ""
    return f"Dumping {fields['file']}{start}"


def _text_of_batch(fields: Mapping[str, Any]) -> str:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "timestampType":
            continue
        if name == "timestamp":
            shown[fields["timestampType"]] = value
        elif name == "deleteHorizonMs":
            shown[name] = _optional(value)
        else:
            shown[name] = value
    return _pairs(shown)


def _text_of_record(fields: Mapping[str, Any]) -> str:
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "timestamp":
            shown[fields["timestampType"]] = value
        elif name == "headerKeys":
            shown[name] = f"[{','.join(value)}]"
        elif name == "headers":
            shown[name] = f"[{','.join(f'{key}={header}' for key, header in value)}]"
        elif name == "controlType":
            shown[name] = f"{value}({fields['controlTypeId']})"
        elif name not in ("timestampType", "controlTypeId", "key", "payload", "keyProblem", "payloadProblem"):
            shown[name] = value
    for name in ("key", "payload"):
        if fields.get(name) is not None:
            problem = fields.get(f"{name}Problem")
            shown[name] = f"<{problem}; hex {fields[name]}>" if problem else decoded_text(fields[name])
    line = _pairs({name: value for name, value in shown.items() if not isinstance(value, dict)})
    for name, value in shown.items():
        if isinstance(
            value, dict
        ):  # a control record of the metadata log; Kafka's tool has a colon in some of them only
            colon = ":" if name == "LeaderChange" else ""
            line += f" {name}{colon} {json.dumps(value, separators=(',', ':'))}"
    return f"| {line}"


def _text_of_damage(fields: Mapping[str, Any]) -> str:
    size = f"{fields['size']} invalid bytes" if fields["size"] >= 0 else "invalid bytes"
    where = f" at position {fields['position']}" if fields["position"] >= 0 else ""
    return f"Found {size}{where} of {fields['file']}, offset {fields['offset']}: {fields['what']}"


def _text_of_producer(fields: Mapping[str, Any]) -> str:
    return _pairs({**fields, "currentTxnFirstOffset": _optional(fields["currentTxnFirstOffset"])})


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _pairs(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
    )


_TEXTS = dict.fromkeys(RowKind, _pairs) | {
    RowKind.FILE: _text_of_file,
    RowKind.BATCH: _text_of_batch,
    RowKind.RECORD: _text_of_record,
    RowKind.DAMAGE: _text_of_damage,
    RowKind.PRODUCER: _text_of_producer,
}

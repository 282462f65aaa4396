"""The files next to a log, row by row: indexes, snapshots of producers, checkpoints of leader epochs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.errors import CorruptIndex, CorruptSegment, Refused
from logkeep_engine.formats.records_groups import read_consumer_offsets
from logkeep_engine.formats.records_index import read_index
from logkeep_engine.formats.records_names import FileKind, parse_name, read_partition_index
from logkeep_engine.log.batch import crc32c
from logkeep_engine.log.segment import read_offset_index, read_time_index, read_txn_index
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.rows import Row, RowKind
from logkeep_engine.toolbox.source import LEADER_EPOCHS, SNAPSHOT

_INT32_MAX = 2**31 - 1
_PRODUCERS = struct.Struct(">hIi")  # version, CRC-32C of what follows it, entries
_PRODUCER = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_SNAPSHOT_VERSION = 1


def dump_file(storage: Storage, path: str, base_offset: int = 0) -> Iterator[Row]:
    """Yield the entries of an index or another file next to a log. `base_offset` is that of its log.

    Raises CorruptIndex if it is not whole or not of a known version, Refused if it is not a file of a log.
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
                return  # the zeros after the entries of an index that a broker had open
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
        raise Refused(f"{name} is not a file of a log.")


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
    """Yield a snapshot of the producers' state."""
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

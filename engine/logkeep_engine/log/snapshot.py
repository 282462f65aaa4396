"""The two batches that frame a snapshot (KIP-630): a header in front of its records, and a footer after them.

Both are control batches, each with one control record. They are not part of the log: their offsets are those next to
its batches, -1 for the header of a snapshot that begins at offset 0.

Source of facts: apache/kafka `RecordsSnapshotWriter.java`, `SnapshotHeaderRecord.json`, `SnapshotFooterRecord.json`.
"""

from __future__ import annotations

import struct

from logkeep_engine.log.batch import HEADER_SIZE, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import ControlType, Record, encode, made_batch, sealed

_VERSION = 0
_KEY = struct.Struct(">hh")  # version, type
_HEADER = struct.Struct(">hqB")  # version, time of the last record, no tagged fields
_FOOTER = struct.Struct(">hB")  # version, no tagged fields
_CONTROL = 0x20  # bit 5: markers and the like, not data


def header_batch(base_offset: int, time: int, leader_epoch: int) -> bytes:
    """Return the header of a snapshot whose first batch begins at `base_offset`. `time` (ms) is that of the last record
    in what it was made of."""
    return _framing(base_offset - 1, time, leader_epoch, ControlType.SNAPSHOT_HEADER, _HEADER.pack(_VERSION, time, 0))


def footer_batch(next_offset: int, time: int, leader_epoch: int) -> bytes:
    """Return the footer of a snapshot whose last batch ends below `next_offset`."""
    return _framing(next_offset, time, leader_epoch, ControlType.SNAPSHOT_FOOTER, _FOOTER.pack(_VERSION, 0))


def empty_batch(offset: int, time: int, leader_epoch: int) -> bytes:
    """Return a batch without records, as compaction leaves it."""
    return made_batch(
        Codec.NONE, b"", count=0, times=(-1, time), last_offset_delta=0, base_offset=offset, leader_epoch=leader_epoch
    )


def _framing(offset: int, time: int, leader_epoch: int, kind: ControlType, value: bytes) -> bytes:
    record = Record(0, time, _KEY.pack(_VERSION, kind), value)
    batch = bytearray(encode([record], codec=Codec.NONE, base_offset=0, leader_epoch=leader_epoch))
    header = parse_header(batch)._replace(base_offset=offset, attributes=_CONTROL)
    return sealed(bytes(batch[HEADER_SIZE:]), header)


HEADER_BYTES = len(header_batch(0, 0, 0))
FOOTER_BYTES = len(footer_batch(0, 0, 0))

"""The table at the end of a pack: which segments lie where in it. docs/archive.md has the bytes.

The catalog knows all of that. The table is for people who have lost the catalog, and for an erasure, which must find
what no commit names.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from logkeep_engine.contract.nesting import WRONG, loads
from logkeep_engine.storage import Storage

FORMAT = 1
_MAGIC = b"LOGKPACK"
_FOOTER = Struct("<QII8s")
"""Position and length of the table, its CRC-32, the magic."""


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """The segment that begins at byte `position` of a pack."""

    topic: str
    topic_id: str
    partition: int
    position: int


def table_out(rows: Sequence[dict[str, object]], position: int) -> bytes:
    """Return all that stands after the last segment, which ends at `position`."""
    table = json.dumps({"format": FORMAT, "segments": rows}, separators=(",", ":")).encode()
    return table + _FOOTER.pack(position, len(table), zlib.crc32(table), _MAGIC)


def read_table(storage: Storage, path: str, size: int) -> list[PackedPlace] | None:
    """Return the segments of a pack of `size` bytes by its own table; None if it has no table, or an altered one.
    Raises ObjectMissing."""
    footer = storage.read_range(path, max(0, size - _FOOTER.size), size)
    if len(footer) != _FOOTER.size:
        return None
    position, length, crc, magic = _FOOTER.unpack(footer)
    if magic != _MAGIC or position + length + _FOOTER.size != size:
        return None
    table = storage.read_range(path, position, position + length)
    if zlib.crc32(table) != crc:
        return None
    try:
        body = loads(table)
        if body["format"] != FORMAT:
            return None
        return [
            PackedPlace(str(row["topic"]), str(row["topicId"]), int(row["partition"]), int(row["position"]))
            for row in body["segments"]
        ]
    except WRONG:
        return None

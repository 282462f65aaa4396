"""The positions of consumer groups in a partition, as the Records format keeps them: `consumer_offsets_partition_NNN`.

A JSON object: consumer group to committed offset, the offset of the record that the group reads next. Metadata and
leader epochs of commits have no place in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from logkeep_engine.errors import CorruptSegment
from logkeep_engine.log.batch import MAX_OFFSET


def pack_consumer_offsets(offsets: Mapping[str, int]) -> bytes:
    """Return the bytes of the file, groups in the order of their names. Raises ValueError for what is not an offset."""
    for group, offset in offsets.items():
        if not 0 <= offset <= MAX_OFFSET:
            raise ValueError(f"consumer group {group!r} cannot have committed offset {offset}")
    return json.dumps(offsets, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def read_consumer_offsets(data: bytes) -> dict[str, int]:
    """Consumer group to committed offset. An empty file has none: the original tool makes the file before it has
    anything to write. Raises `CorruptSegment` for everything else that is not an object of non-negative integers.
    """
    if not data:
        return {}
    try:
        found = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:
        raise CorruptSegment(
            f"The consumer offsets are not a JSON object of group and offset: {problem}.",
            hint="Restore the file from a copy, or delete it and continue without these groups.",
        ) from None
    if not isinstance(found, dict):
        raise CorruptSegment(f"The consumer offsets are a JSON {type(found).__name__}, not an object.")
    for group, offset in found.items():
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise CorruptSegment(
                f"The committed offset of consumer group {group!r} is {json.dumps(offset)}, not an offset."
            )
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} appears twice")
    return found

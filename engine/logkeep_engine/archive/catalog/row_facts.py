"""The facts that rows give without an entry for each: there may be a million."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.packed import LAYOUT_AT, PACK_ID, ROW, ROW_BYTES, PackedSegments, PackId, pack
from logkeep_engine.archive.ranges import Range

_CONTENT = struct.Struct(f"<2q{ROW_BYTES - 83}x32s32xB2x")  # offsets, digest, flags
_GAPS, _LEGACY = (1 << list(fields.FLAGS).index(name) for name in ("gaps", "legacy"))
_MERGED = itemgetter(
    *map(fields.at, ("base_offset", "next_offset", "epoch", "bytes", "files.stored_bytes")),
    *map(fields.at, ("files.index_bytes", "files.timeindex_bytes", "files.txnindex_bytes")),
    *(fields.at(path, Layout.PACK) for path in ("files.txnparts_bytes", "first_epoch")),
)


class PackedFacts(NamedTuple):
    """The facts of a row that tell whether it can be merged: its offsets, the bytes of all its files and its pack
    (None: it has objects of its own), the epoch at which its first records were archived, and whether offsets are
    missing in it. Rows of the same `kind` are written alike."""

    start: int
    end: int
    size: int
    pack: PackId | None
    first_epoch: int
    gaps: bool
    legacy: bool
    kind: tuple[bool, int]


def packed_facts(rows: bytes | bytearray) -> Iterator[PackedFacts]:
    """Yield the facts of rows of batches, in their order."""
    for row in ROW.iter_unpack(bytes(rows)):
        base, following, epoch, size, stored, index, times, transactions, parts, first = _MERGED(row)
        is_packed, flags = row[LAYOUT_AT] == Layout.PACK, row[LAYOUT_AT - 1]
        yield PackedFacts(
            base,
            following,
            (stored or size) + index + times + transactions + (parts if is_packed else 0),
            PACK_ID(row) if is_packed else None,
            first or epoch,
            bool(flags & _GAPS),
            bool(flags & _LEGACY),
            (stored > 0, row[-1]),
        )


def content_of(entries: Sequence[SegmentEntry], end: int | None = None) -> tuple[list[Range], list[bytes]]:
    """Return the ranges of the offsets that segments have below `end` (None: of all) without missing any, and, of the
    segments in which offsets are missing, the ranges that count with the digests: neither changes when neighbours are
    merged, or segments copied."""
    dense: list[Range] = []
    others: list[bytes] = []
    packed = entries if isinstance(entries, PackedSegments) else None
    rows = b"".join(map(pack, entries)) if packed is None else bytes(packed.packed)
    for at, row in enumerate(_CONTENT.iter_unpack(rows)):
        start, stop, digest, flags = row
        if packed is None:
            start, stop = entries[at].base_offset, entries[at].next_offset
        elif at in packed.cuts:
            start, stop = packed.cuts[at]
        if end is not None:
            if start >= end:
                continue
            stop = min(stop, end)
        if flags & _GAPS:
            others.append(b"%d-%d %b " % (start, stop, digest))
        elif dense and dense[-1][1] == start:
            dense[-1] = dense[-1][0], stop
        else:
            dense.append((start, stop))
    return dense, others

"""The fields of a segment's entry, each said once: where a commit and a packed row hold it. No I/O.

The tables of commits (`tables`) and the packed rows of checkpoints and of memory (`packed`) follow from `FIELDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby
from struct import calcsize

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.contract.archive_format import DigestAlgorithm

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class FieldKind(StrEnum):
    """The type of a field in a packed row, as Python's `struct` writes it: integers, a digest, the counts of batches
    by codec, bits. A commit has JSON of the same meaning."""

    LONG = "q"
    INT = "I"
    HASH = "32s"
    COUNTS = "5I"
    BITS = "B"


_ANY = frozenset(Layout)
_PACK = frozenset({Layout.PACK})
_KAFKA = _PACK | {Layout.KAFKA}
_INDEXED = _KAFKA | {Layout.RECORDS, Layout.RECORDS_AT_ROOT, Layout.SNAPSHOT}
_AVRO = frozenset({Layout.AVRO})
_NUMBERED = _AVRO | {Layout.RECORDS, Layout.RECORDS_AT_ROOT}
_SNAPSHOT = frozenset({Layout.SNAPSHOT})


@dataclass(frozen=True, slots=True)
class SegmentField:
    """`path` is the attribute of a SegmentEntry, `column` the name in a commit's table, `at` the place in an unpacked
    row. Two fields share a place where no segment has both: `layouts` are those that have the field, and a segment has
    one digest."""

    path: str
    column: str
    kind: FieldKind
    at: int
    layouts: frozenset[Layout] = _ANY


FIELDS = (  # in the order of a commit's columns
    SegmentField("epoch", "epoch", FieldKind.LONG, 2),
    SegmentField("attempt", "attempt", FieldKind.INT, 9),
    SegmentField("base_offset", "baseOffset", FieldKind.LONG, 0),
    SegmentField("next_offset", "nextOffset", FieldKind.LONG, 1),
    SegmentField("records", "records", FieldKind.LONG, 3),
    SegmentField("batches", "batches", FieldKind.LONG, 4),
    SegmentField("bytes", "bytes", FieldKind.LONG, 5),
    SegmentField("times.min_base_timestamp", "minBaseTimestamp", FieldKind.LONG, 6),
    SegmentField("times.max_timestamp", "maxTimestamp", FieldKind.LONG, 7),
    SegmentField("digest.sha256", "sha256", FieldKind.HASH, 25),
    SegmentField("codecs", "codecs", FieldKind.COUNTS, 20),
    SegmentField("flags", "flags", FieldKind.BITS, 27),
    SegmentField("max_batch_bytes", "maxBatchBytes", FieldKind.INT, 10),
    SegmentField("files.index_bytes", "indexBytes", FieldKind.INT, 11, _INDEXED),
    SegmentField("files.timeindex_bytes", "timeindexBytes", FieldKind.INT, 12, _KAFKA),
    SegmentField("files.txnindex_bytes", "txnindexBytes", FieldKind.INT, 13, _KAFKA),
    SegmentField("files.txnindex_sha256", "txnindexSha256", FieldKind.HASH, 26, _KAFKA),
    SegmentField("files.stored_bytes", "storedBytes", FieldKind.LONG, 8, _KAFKA),
    SegmentField("layout", "layout", FieldKind.BITS, 28),
    SegmentField("files.sequence", "sequence", FieldKind.LONG, 8, _AVRO),
    SegmentField("files.sequence_width", "sequenceWidth", FieldKind.INT, 12, _NUMBERED),
    SegmentField("digest.blake3", "blake3", FieldKind.HASH, 25),
    SegmentField("files.end", "snapshotEnd", FieldKind.LONG, 8, _SNAPSHOT),
    SegmentField("files.leader_epoch", "leaderEpoch", FieldKind.INT, 12, _SNAPSHOT),
    SegmentField("files.part", "part", FieldKind.INT, 13, _SNAPSHOT),
    SegmentField("files.generation", "generation", FieldKind.INT, 13, _NUMBERED),
    SegmentField("files.pack_task", "packTask", FieldKind.INT, 14, _PACK),
    SegmentField("files.pack_number", "packNumber", FieldKind.INT, 15, _PACK),
    SegmentField("files.position", "position", FieldKind.INT, 16, _PACK),
    SegmentField("files.txnparts_bytes", "txnpartsBytes", FieldKind.INT, 17, _PACK),
    SegmentField("first_epoch", "firstEpoch", FieldKind.INT, 18),
    SegmentField("last_epoch", "lastEpoch", FieldKind.INT, 19),
)
_EVERY = Layout.PACK
"""A layout that has a field at each place of a row."""
FLAGS = {
    "transactional": "transactional",
    "control": "control",
    "gaps": "gaps",
    "times.append_time": "appendTime",
    "legacy": "legacy",
}
"""The attributes of the column `flags` and their names in a commit, in the order of their bits in a packed row."""
HAS_TXNINDEX_SHA256 = 1 << len(FLAGS)
LAYOUT_NAMES = {
    Layout.KAFKA: "kafka",
    Layout.RECORDS: "records",
    Layout.AVRO: "avro",
    Layout.RECORDS_AT_ROOT: "recordsAtRoot",
    Layout.SNAPSHOT: "snapshot",
    Layout.PACK: "pack",
}
"""The values of the column `layout`."""


def paths() -> list[str]:
    """Return all attributes of a SegmentEntry that the catalog keeps, without topic id, partition and layout."""
    kept = [field.path for field in FIELDS if field.path != "layout"]
    at = kept.index("flags")
    return [*kept[:at], *FLAGS, *kept[at + 1 :]]


def at(path: str, layout: Layout = Layout.KAFKA) -> int:
    """Return the place of a field in an unpacked row."""
    return next(field.at for field in FIELDS if field.path == path and layout in field.layouts)


def numbers(layout: Layout) -> list[SegmentField]:
    """Return the fields of the integers that a packed row begins with, in its order. A layout without a field of its
    own at a place has the field of a pack there, which is 0."""
    found = {
        field.at: field
        for wanted in (_EVERY, layout)
        for field in FIELDS
        if wanted in field.layouts and field.kind in (FieldKind.LONG, FieldKind.INT)
    }
    return [found[place] for place in sorted(found)]


def _row_fields() -> list[SegmentField]:
    """Return the fields of a pack, one for each place of a packed row, in its order."""
    found = {field.at: field for field in reversed(FIELDS) if _EVERY in field.layouts}
    return [found[place] for place in sorted(found)]


def packed_columns() -> list[tuple[str, list[int | None]]]:
    """Return the columns of a commit's table after topic id and partition, for the kernel: the type of those that hold
    a number, the name of others, and where a packed row has it, by layout."""
    kept = _row_fields()
    begins = accumulate((calcsize(f"<{item.kind}") for item in kept), initial=0)
    begin = {item.at: start for item, start in zip(kept, begins, strict=False)}
    own = [numbers(layout) for layout in sorted(Layout)]
    found: list[tuple[str, list[int | None]]] = []
    for item in FIELDS:
        if item.kind in (FieldKind.LONG, FieldKind.INT):
            found.append((item.kind, [begin[item.at] if item in some else None for some in own]))
        else:
            found.append((item.column, [begin[item.at]]))
    return found


def _row_columns() -> tuple[str, ...]:
    def names(field: SegmentField) -> list[str]:
        return [f"codecs.{codec}" for codec in CODECS] if field.kind is FieldKind.COUNTS else [field.column]

    return tuple(name for field in _row_fields() for name in names(field))


def _row_layout() -> str:
    """Return the row as Python's `struct` names it: little-endian without padding, equal integers counted together."""
    layout = "<"
    kinds = [*(kind for field in _row_fields() for kind in _single(field.kind)), FieldKind.BITS]
    for kind, some in groupby(kinds):
        count = len(list(some))
        layout += kind * count if kind is FieldKind.HASH or count == 1 else f"{count}{kind}"
    return layout


def _single(kind: FieldKind) -> list[FieldKind]:
    return [FieldKind.INT] * len(CODECS) if kind is FieldKind.COUNTS else [kind]


ROW_COLUMNS = (*_row_columns(), "digest")
ROW_LAYOUT = _row_layout()
"""The rows of memory and of checkpoints: the last byte is the number of the digest's algorithm, and the column `sha256`
has a digest of that algorithm."""
DIGEST_NUMBERS = {DigestAlgorithm.SHA256: 0, DigestAlgorithm.BLAKE3: 1}

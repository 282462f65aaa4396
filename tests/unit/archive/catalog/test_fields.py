"""The table of a segment's fields: places in a row and columns."""

from dataclasses import fields as fields_of

import pytest

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.entry import FILES, Layout
from logkeep_engine.archive.catalog.fields import FIELDS, FieldKind

COLUMNS = [
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
    "storedBytes",
    "layout",
    "sequence",
    "sequenceWidth",
    "blake3",
    "snapshotEnd",
    "leaderEpoch",
    "part",
    "generation",
    "packTask",
    "packNumber",
    "position",
    "txnpartsBytes",
    "firstEpoch",
    "lastEpoch",
]
ROW = [
    "baseOffset",
    "nextOffset",
    "epoch",
    "records",
    "batches",
    "bytes",
    "minBaseTimestamp",
    "maxTimestamp",
    "storedBytes",
    "attempt",
    "maxBatchBytes",
    "indexBytes",
    "timeindexBytes",
    "txnindexBytes",
    "packTask",
    "packNumber",
    "position",
    "txnpartsBytes",
    "firstEpoch",
    "lastEpoch",
    "codecs.none",
    "codecs.gzip",
    "codecs.snappy",
    "codecs.lz4",
    "codecs.zstd",
    "sha256",
    "txnindexSha256",
    "flags",
    "layout",
]


def test_rows_are_packed_as_checkpoints_say() -> None:
    assert fields.ROW_LAYOUT == "<9q16I32s32s3B"
    assert list(fields.ROW_COLUMNS) == [*ROW, "digest"]


def test_a_commit_has_all_columns() -> None:
    assert [field.column for field in FIELDS] == COLUMNS


@pytest.mark.parametrize("layout", Layout)
def test_no_two_fields_of_a_layout_share_a_place(layout: Layout) -> None:
    own = [field for field in FIELDS if layout in field.layouts and field.kind is not FieldKind.BITS]
    own.remove(next(field for field in own if field.path == "digest.blake3"))  # a segment has one digest
    assert len({field.at for field in own}) == len(own)
    files = [field.path for field in own if field.path.startswith("files.")]
    assert sorted(files) == sorted(f"files.{item.name}" for item in fields_of(FILES[layout]))  # type: ignore[arg-type]

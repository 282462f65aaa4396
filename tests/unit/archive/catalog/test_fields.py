"""The table of a segment's fields: places in a row and columns are those that earlier versions wrote."""

from dataclasses import fields as fields_of

import pytest

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.entry import FILES, Layout
from logkeep_engine.archive.catalog.fields import FIELDS, FieldKind, Since

FIRST = [
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
    "codecs.none",
    "codecs.gzip",
    "codecs.snappy",
    "codecs.lz4",
    "codecs.zstd",
    "sha256",
    "txnindexSha256",
    "flags",
]


def test_rows_are_packed_as_checkpoints_say() -> None:
    assert fields.PLAIN_ROW_LAYOUT == "<9q10I32s32sB"
    assert list(fields.PLAIN_ROW_COLUMNS) == ROW
    assert fields.ROW_LAYOUT == "<9q10I32s32sBB"
    assert list(fields.ROW_COLUMNS) == [*ROW, "digest"]


def test_each_extension_adds_its_columns_at_the_end() -> None:
    assert fields.columns(Since.FIRST) == FIRST
    assert fields.columns(Since.COMPRESSED) == [*FIRST, "storedBytes"]
    assert fields.columns(Since.LAYOUTS) == [*FIRST, "storedBytes", "layout", "sequence", "sequenceWidth"]
    assert fields.columns(Since.DIGESTS) == [*fields.columns(Since.LAYOUTS), "blake3"]


@pytest.mark.parametrize("layout", Layout)
def test_no_two_fields_of_a_layout_share_a_place(layout: Layout) -> None:
    own = [field for field in FIELDS if layout in field.layouts and field.kind is not FieldKind.BITS]
    own.remove(next(field for field in own if field.path == "digest.blake3"))  # a segment has one digest
    assert len({field.at for field in own}) == len(own)
    files = [field.path for field in own if field.path.startswith("files.")]
    assert sorted(files) == sorted(f"files.{item.name}" for item in fields_of(FILES[layout]))  # type: ignore[arg-type]

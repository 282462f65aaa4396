"""Segments of the Records and the Avro format in the catalog: names, documents, and whose archive it is."""

import json
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import commits, documents, tables
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Commit, CommitKind
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.catalog.totals import SegmentBytes, bytes_of, totals_of
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, ORDERS, changed
from tests.unit.archive.catalog.test_state import entry


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


SNAPSHOTS = f"topics/orders/{ORDERS.topic_id}/partition=7/snapshots/0000000001"


def in_layout(layout: Layout, **changes: int) -> SegmentEntry:
    plain = changed(entry(1234, 2000), partition=7, timeindex_bytes=0, txnindex_bytes=0, txnindex_sha256="")
    return changed(plain, layout=layout, **changes)


@pytest.mark.parametrize(
    ("found", "objects"),
    [
        (
            in_layout(Layout.RECORDS, bytes=100, index_bytes=25),
            {
                "topics/orders/segment_partition_007_from_offset_0000001234_records": 100,
                "topics/orders/segment_partition_007_from_offset_0000001234_index": 25,
            },
        ),
        (
            in_layout(Layout.RECORDS_AT_ROOT, bytes=100, index_bytes=25),
            {
                "orders/segment_partition_007_from_offset_0000001234_records": 100,
                "orders/segment_partition_007_from_offset_0000001234_index": 25,
            },
        ),
        (in_layout(Layout.AVRO, bytes=100, sequence=12), {"topics/orders/partition=7/orders+7-12.data": 100}),
        (
            in_layout(Layout.AVRO, bytes=100, sequence=12, sequence_width=10),
            {"topics/orders/partition=7/orders+7-0000000012.data": 100},
        ),
        (
            in_layout(Layout.SNAPSHOT, bytes=100, index_bytes=16, end=5000, leader_epoch=12),
            {
                f"{SNAPSHOTS}/00000000000000005000-0000000012.checkpoint": 100,
                f"{SNAPSHOTS}/00000000000000005000-0000000012.index": 16,
            },
        ),
        (
            in_layout(Layout.SNAPSHOT, bytes=100, index_bytes=0, end=5000, leader_epoch=12, part=3),
            {
                f"{SNAPSHOTS}/00000000000000005000-0000000012.00003.checkpoint": 100,
                f"{SNAPSHOTS}/00000000000000005000-0000000012.00003.index": 0,
            },
        ),
    ],
    ids=["records", "records at root", "avro", "avro, padded", "snapshot", "part of a snapshot"],
)
def test_objects_are_named_as_published(found: SegmentEntry, objects: dict[str, int]) -> None:
    assert found.objects("orders") == objects
    assert found.stem("orders") + found.log_suffix in objects
    assert totals_of(pack(found)).objects == len(objects)
    assert bytes_of(pack(found))[0] == SegmentBytes(100, sum(objects.values()))


@pytest.mark.parametrize("size", [0, 34])
def test_a_transaction_index_is_an_object_if_there_is_one(size: int) -> None:
    found = in_layout(Layout.KAFKA, txnindex_bytes=size)
    assert totals_of(pack(found)).objects == len(found.objects("orders")) == (4 if size else 3)


@pytest.mark.parametrize("layout", [Layout.KAFKA, Layout.PACK])
@pytest.mark.parametrize("stored", [0, 17])
def test_bytes_of_rows_are_those_of_all_objects(layout: Layout, stored: int) -> None:
    sizes = {"index_bytes": 8, "timeindex_bytes": 12, "txnindex_bytes": 34, "stored_bytes": stored}
    found = replace(in_layout(layout, bytes=100, **sizes), epoch=7)
    merged = replace(found, first_epoch=5, last_epoch=7)
    each = SegmentBytes(100, object_bytes(found))
    assert each.objects == (stored or 100) + 54
    assert bytes_of(pack(found) + pack(merged)) == (each + each, SegmentBytes())
    assert bytes_of(pack(found) + pack(merged), {5}) == (each + each, each)
    assert bytes_of(pack(found) + pack(merged), {7}) == (each + each, each)


def test_large_numbers_take_more_digits() -> None:
    stem = names.records_stem("t", 1234, 12345678901)
    assert stem == "topics/t/segment_partition_1234_from_offset_12345678901"


def commit(*segments: SegmentEntry) -> Commit:
    return Commit(3, "id", "token", CommitKind.DATA, "run", 1, 0, segments=segments)


def test_a_commit_brings_every_layout_back() -> None:
    segments = (
        in_layout(Layout.RECORDS),
        replace(in_layout(Layout.RECORDS_AT_ROOT), base_offset=3000, next_offset=3001),
        replace(in_layout(Layout.AVRO, sequence=99, sequence_width=4), base_offset=4000, next_offset=4001),
        replace(in_layout(Layout.KAFKA, stored_bytes=17), base_offset=5000, next_offset=5001),
    )
    assert list(commits.load_commit(commits.dump_commit(commit(*segments)), "c").segments) == list(segments)
    part = replace(in_layout(Layout.SNAPSHOT, end=9, leader_epoch=3, part=1), base_offset=6000, next_offset=6001)
    with_part = [*segments, part]
    assert list(commits.load_commit(commits.dump_commit(commit(*with_part)), "c").segments) == with_part


def test_a_layout_of_a_newer_version_is_refused() -> None:
    document = json.loads(commits.dump_commit(commit(in_layout(Layout.AVRO))))
    at = document["segments"]["columns"].index("layout")
    document["segments"]["rows"][0][at] = "parquet"
    with pytest.raises(ArchiveMismatch, match="A segment has layout 'parquet'"):
        tables.packed_segment(document["segments"]["rows"][0][2:])


def test_an_archive_keeps_its_format(storage: Storage) -> None:
    Archive.create_or_open(storage, CLUSTER, FormatName.RECORDS)
    assert Archive.open(storage).info.segments is FormatName.RECORDS
    with pytest.raises(ArchiveMismatch, match="is of format Records, not Kafka"):
        Archive.create_or_open(storage, CLUSTER)


def test_no_backup_continues_in_an_imported_archive(storage: Storage) -> None:
    Archive.create_or_open(storage, "-", FormatName.AVRO, imported=True)
    assert Archive.open(storage).info.imported
    with pytest.raises(ArchiveMismatch, match="was imported from another tool's files: no backup can continue it"):
        Archive.create_or_open(storage, CLUSTER, FormatName.AVRO)


def test_a_format_that_is_not_known_is_refused(storage: Storage) -> None:
    archive = Archive.create_or_open(storage, CLUSTER)
    document = json.loads(documents.dump_info(archive.info)) | {"segments": "Parquet"}
    with pytest.raises(ArchiveMismatch, match="segments 'Parquet'"):
        documents.load_info(json.dumps(document).encode(), "archive.json")

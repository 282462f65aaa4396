"""Slices of segments behind the door: a batch or a record belongs to the side of a bound on which its offset lies."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.packed import SegmentTable, pack
from logkeep_engine.archive.catalog.row_facts import content_of
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import first_since, open_damaged, open_partition
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import BatchHeader, check_crc
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage
from tests.examples import scaled
from tests.unit.archive.build import ORDERS, write_segment
from tests.unit.log.batches import NOON, batch, marker, with_header

KEY = (ORDERS.topic_id, 0)
END = 32


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> LocalStorage:
    return LocalStorage(tmp_path_factory.mktemp("archive").as_uri())


@pytest.fixture(scope="module")
def entry(storage: LocalStorage) -> SegmentEntry:
    """Batches of all kinds: with append time, of transactions, with offsets left out."""
    batches = [
        batch(0, 5),
        with_header(batch(5, 5, codec=Codec.LZ4), base_offset=5, attributes=0x0B, max_timestamp=NOON + 500),
        batch(10, 4, producer_id=7, transactional=True, base_sequence=40),
        marker(14, 7, commit=True),
        batch(15, 4, producer_id=8, transactional=True),
        marker(19, 8, commit=False),
        batch(20, 12, codec=Codec.ZSTD),
    ]
    return write_segment(storage, batches, aborted=[AbortedTxn(8, 15, 19, 15)])


def records(storage: LocalStorage, *entries: SegmentEntry) -> list[tuple[object, ...]]:
    reader = open_partition(storage, "orders", entries)
    return [
        (one.offset, one.timestamp, one.timestamp_type, one.key, one.value, [*one.headers])
        for some in reader.records()
        for one in some
    ]


def headers(storage: LocalStorage, *entries: SegmentEntry) -> list[tuple[BatchHeader, list[int]]]:
    found = []
    for stretch, some in open_partition(storage, "orders", entries).batches():
        for position, header in some:
            data = stretch[position : position + header.size]
            check_crc(data, 0, header)
            offsets = [] if header.is_control else [one.offset for one in decode_records(data, header)]
            found.append((header, offsets))
    return found


@settings(max_examples=scaled(60), deadline=None)
@given(st.sets(st.integers(1, END - 1), max_size=4))
def test_slices_side_by_side_are_the_whole(storage: LocalStorage, entry: SegmentEntry, bounds: set[int]) -> None:
    edges = [0, *sorted(bounds), END]
    slices = [entry.cut(start, end) for start, end in pairwise(edges)]
    assert records(storage, *slices) == records(storage, entry)
    found = headers(storage, *slices)
    assert [offset for _, offsets in found for offset in offsets] == [
        offset for _, offsets in headers(storage, entry) for offset in offsets
    ]
    for item in slices:
        for header, offsets in headers(storage, item):
            assert item.base_offset <= header.base_offset
            assert header.next_offset <= item.next_offset
            assert not offsets or header.base_offset == offsets[0]
    assert sum(header.is_control for header, _ in found) == 2


def test_a_batch_across_a_bound_keeps_what_it_says_of_its_records(storage: LocalStorage, entry: SegmentEntry) -> None:
    (kept, offsets), *_ = headers(storage, entry.cut(7, 20))
    assert (kept.is_log_append_time, kept.max_timestamp, offsets) == (True, NOON + 500, [7, 8, 9])
    (kept, offsets), *_ = headers(storage, entry.cut(12, 20))
    assert (kept.producer_id, kept.is_transactional, kept.base_offset, offsets) == (7, True, 12, [12, 13])
    (whole, _) = headers(storage, entry)[2]
    assert (whole.base_sequence, kept.base_sequence) == (40, 42)
    assert (kept.producer_epoch, kept.leader_epoch) == (whole.producer_epoch, whole.leader_epoch)


def test_a_slice_has_the_objects_of_its_segment(entry: SegmentEntry) -> None:
    part = entry.cut(3, 9)
    assert (part.base_offset, part.next_offset) == (3, 9)
    assert part.objects("orders") == entry.objects("orders")
    assert part.beside("orders") == entry.beside("orders")
    assert part.uncut is entry
    assert part.cut(0, 5) == entry.cut(3, 5)
    assert pack(part) == pack(entry)
    assert entry.cut(0, END) is entry
    with pytest.raises(ValueError, match="segment of partition 0"):
        entry.cut(END, END + 5)


def test_a_table_hands_out_slices_where_it_is_cut(entry: SegmentEntry) -> None:
    table = SegmentTable()
    table.replace_rows(KEY, pack(entry) * 2, {0: (0, 4), 1: (6, END)})
    assert list(table[KEY]) == [entry.cut(0, 4), entry.cut(6, END)] == [table[KEY][0], table[KEY][1]]
    assert [table[KEY].position(offset) for offset in (0, 1, 6, 7)] == [0, 1, 1, 2]
    assert list(table.copy()[KEY]) == list(table[KEY])
    assert table.copy() == table
    assert content_of(table[KEY]) == content_of(list(table[KEY]))
    table.keep(KEY, [1])
    assert list(table[KEY]) == [entry.cut(6, END)]
    table.replace_rows(KEY, pack(entry))
    assert list(table[KEY]) == [entry]


def test_the_first_record_of_a_time_is_looked_for_in_the_slice(storage: LocalStorage) -> None:
    batches = [batch(0, 4, timestamp=NOON + 100), batch(4, 4, timestamp=NOON), batch(8, 4, timestamp=NOON + 50)]
    entry = write_segment(storage, batches, partition=1)
    assert first_since(storage, "orders", entry, NOON + 20) == 0
    assert first_since(storage, "orders", entry.cut(4, 12), NOON + 20) == 8
    assert first_since(storage, "orders", entry.cut(4, 8), NOON + 20) is None
    assert first_since(storage, "orders", entry.cut(0, 4), NOON + 20) == 0
    assert first_since(storage, "orders", entry.cut(4, 12), NOON + 2000) is None


def damaged(tmp_path: Path) -> tuple[LocalStorage, SegmentEntry]:
    """A segment with a batch [5, 10) whose CRC holds, and whose records do not."""
    storage = LocalStorage(tmp_path.as_uri())
    wrong = with_header(batch(5, 5), base_offset=5, record_count=9)
    return storage, write_segment(storage, [batch(0, 5), wrong, batch(10, 5)])


def test_a_batch_across_a_bound_that_cannot_be_taken_apart_is_damage_of_the_slice(tmp_path: Path) -> None:
    storage, entry = damaged(tmp_path)
    with pytest.raises(ArchiveDamaged, match=r"orders.*The batch at offset 5") as caught:
        list(open_partition(storage, "orders", (entry.cut(7, 15),)).batches())
    assert "archived like this" in caught.value.hint
    found = list(open_damaged(storage, "orders", (entry.cut(7, 15),)).batches())
    assert [item.lost for item in found if isinstance(item, Damage)] == [(7, 10)]
    assert lost_of_records(storage, entry.cut(7, 15)) == [(7, 10)]


def test_damage_beside_a_slice_is_none_of_it(tmp_path: Path) -> None:
    storage, entry = damaged(tmp_path)
    assert lost_of_records(storage, entry.cut(10, 15)) == []
    assert lost_of_records(storage, entry) == [(5, 10)]


def lost_of_records(storage: LocalStorage, *entries: SegmentEntry) -> Sequence[object]:
    found = open_damaged(storage, "orders", entries).records()
    return [item.lost for item in found if isinstance(item, Damage)]


@pytest.mark.parametrize("compression", Compression)
def test_a_slice_of_a_segment_that_lies_in_the_place_of_another_is_damage(
    tmp_path: Path, compression: Compression
) -> None:
    """Objects of two partitions have the same shape: only the digest of the whole tells them apart."""
    storage = LocalStorage(tmp_path.as_uri())
    one, other = (
        write_segment(
            storage, [batch(at, 5, value=value) for at in (0, 5, 10)], partition=number, compression=compression
        )
        for number, value in enumerate((b"a", b"b"))
    )
    before = records(storage, one.cut(5, 10))
    path, its = (tmp_path / (entry.stem("orders") + entry.log_suffix) for entry in (one, other))
    mine = path.read_bytes()
    path.write_bytes(its.read_bytes())
    for part in (one.cut(0, 10), one.cut(5, 10), one.cut(7, 15)):
        reader = open_partition(storage, "orders", (part,))
        with pytest.raises(ArchiveDamaged, match="were altered"):
            list(reader.batches())
        with pytest.raises(ArchiveDamaged, match="were altered"):
            list(reader.records())
        (damage,) = [item for item in open_damaged(storage, "orders", (part,)).batches() if isinstance(item, Damage)]
        assert "were altered" in damage.what
    path.write_bytes(mine)
    assert records(storage, one.cut(5, 10)) == before

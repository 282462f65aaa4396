"""Packs: the bytes, what is found of a segment without and with the catalog, and how few requests they take."""

import hashlib
import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.packed import pack, packs_of
from logkeep_engine.archive.maintenance.segment_check import check_all, missing_or_short
from logkeep_engine.archive.pack_table import read_table, table_out
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import NeighbouringReads, open_damaged, open_partition, read_parts
from logkeep_engine.archive.writing import packs as writing
from logkeep_engine.archive.writing.log_writer import LogSegment, Packing
from logkeep_engine.archive.writing.packs import HeldObject, TaskPacks
from logkeep_engine.contract.archive_format import Compression, DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import headers_of, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import ORDERS, Batch, write_segment
from tests.unit.archive.packing import AUDIT, faults, pack_paths, packed

ID = ORDERS.topic_id


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def batches(start: int, count: int = 2) -> list[bytes]:
    return [Batch(start + 10 * at).encode() for at in range(count)]


def values(storage: LocalStorage, topic: str, entry: object) -> list[bytes | None]:
    found = open_partition(storage, topic, (entry,), aborted=()).records()  # type: ignore[arg-type]
    return [record.value for rows in found for record in rows]


@pytest.mark.parametrize("compression", list(Compression))
def test_segments_of_several_partitions_lie_in_one_object_and_read_as_written(
    storage: LocalStorage, compression: Compression
) -> None:
    packed(
        storage, (ORDERS, 0, batches(0)), (ORDERS, 1, batches(0, 1)), (AUDIT, 0, batches(0)), compression=compression
    )
    assert pack_paths(storage) == ["packs/0000000001-0-0-0.pack"]
    assert storage.list("topics/") == []
    state = Archive.open(storage).load()
    for topic, partition, count in ((ORDERS, 0, 20), (ORDERS, 1, 10), (AUDIT, 0, 20)):
        (entry,) = state.segments[topic.topic_id, partition]
        assert entry.layout is Layout.PACK
        assert bool(entry.files.stored_bytes) is (compression is Compression.ZSTD)
        assert values(storage, topic.name, entry) == [b"value %d" % at for at in range(count)]
        assert list(open_partition(storage, topic.name, (entry,)).batches(5)) != []
    assert faults(storage) == []


def without_audit(data: bytes) -> bytes:
    """The pack with a table that knows no segment of AUDIT."""
    position, _, _, _ = struct.unpack("<QII8s", data[-24:])
    rows = [row for row in json.loads(data[position:-24])["segments"] if row["topic"] != AUDIT.name]
    return data[:position] + table_out(rows, position)


@pytest.mark.parametrize(
    ("altered", "what"),
    [
        (lambda data: data + b"x", "is missing or altered"),
        (lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], "is missing or altered"),
        (lambda data: data[:-1] + b"x", "is missing or altered"),
        (without_audit, "lacks it"),
    ],
)
def test_a_table_that_would_not_serve_without_the_catalog_is_a_fault(
    storage: LocalStorage, altered: Callable[[bytes], bytes], what: str
) -> None:
    packed(storage, (ORDERS, 0, batches(0)), (AUDIT, 0, batches(0)))
    (path,) = pack_paths(storage)
    storage.put(path, altered(storage.read(path)))
    (fault,) = faults(storage)
    topic = "audit" if altered is without_audit else "orders"
    assert fault == f"{storage.uri}/{path} (topic {topic} partition 0 offset 0): the table at its end {what}"


def test_the_catalog_alone_tells_where_the_bytes_of_a_log_lie(storage: LocalStorage) -> None:
    _, entry = packed(storage, (ORDERS, 0, batches(0)), (AUDIT, 0, batches(0)))
    place = entry.place(AUDIT.name, names.LOG)
    data = storage.read(place.path)[place.start : place.end]
    assert data == b"".join(batches(0))
    index = entry.place(AUDIT.name, names.INDEX)
    assert (index.start, index.size) == (place.end, entry.files.index_bytes)


def test_the_table_at_the_end_of_a_pack_tells_what_lies_where(storage: LocalStorage) -> None:
    first, second = packed(storage, (ORDERS, 1, batches(0)), (AUDIT, 0, batches(0)))
    (info,) = storage.list("packs/")
    table = read_table(storage, info.path, info.size)
    assert table is not None
    assert [(item.topic, item.topic_id, item.partition, item.position) for item in table] == [
        ("orders", ORDERS.topic_id, 1, first.files.position),
        ("audit", AUDIT.topic_id, 0, second.files.position),
    ]


@pytest.mark.parametrize("at", [1, 9, 17, 24, 60])
def test_a_table_that_was_altered_is_none(storage: LocalStorage, at: int) -> None:
    packed(storage, (ORDERS, 0, batches(0)))
    (info,) = storage.list("packs/")
    data = bytearray(storage.read(info.path))
    data[-at] ^= 1
    storage.put(info.path, bytes(data))
    assert read_table(storage, info.path, info.size) is None
    assert read_table(storage, info.path, info.size - 1) is None


def test_a_table_of_a_later_format_is_none(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_engine.archive.pack_table.FORMAT", 2)
    packed(storage, (ORDERS, 0, batches(0)))
    monkeypatch.undo()
    (info,) = storage.list("packs/")
    assert read_table(storage, info.path, info.size) is None


def test_a_segment_that_grows_past_the_limit_has_objects_of_its_own(storage: LocalStorage) -> None:
    packs = TaskPacks(storage, 1, 0, 0)
    entries = []
    for below in (1 << 20, len(b"".join(batches(0)))):
        segment = LogSegment(
            storage, Compression.PASSTHROUGH, "orders", ID, 0, 0, 1, 0, DigestAlgorithm.BLAKE3, Packing(packs, below)
        )
        data = b"".join(batches(0))
        segment.builder.append(memoryview(data), headers_of(walk(data)))
        entries.append(segment.finish())
    packs.commit()
    assert [entry.layout for entry in entries] == [Layout.PACK, Layout.KAFKA]
    assert all(check_all(storage, "orders", entry).damage == [] for entry in entries)
    assert len(storage.list("topics/")) == 3


def test_nothing_of_a_pack_is_visible_before_it_is_committed(storage: LocalStorage) -> None:
    packs = TaskPacks(storage, 1, 0, 0)
    write_segment(storage, batches(0), packs=packs)
    assert storage.list() == []
    packs.abort()
    packs.commit()
    assert storage.list() == []


def test_a_full_pack_is_followed_by_the_next(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PACK_BYTES", 300)
    entries = packed(storage, *((ORDERS, number, batches(0)) for number in range(4)))
    assert [entry.files.pack_number for entry in entries] == [0, 1, 2, 3]
    assert len(pack_paths(storage)) == 4
    assert faults(storage) == []


def test_tasks_attempts_and_epochs_have_packs_of_their_own() -> None:
    paths = {names.pack_path(*some) for some in [(1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 0), (2, 0, 0, 0)]}
    assert len(paths) == 5
    assert {names.parse_pack(path) for path in paths} >= {(1, 0, 1, 0), (2, 0, 0, 0)}
    assert names.parse_pack("packs/1-0-0-0.pack") is None
    with pytest.raises(ValueError, match="no pack name"):
        names.pack_path(1, -1, 0, 0)


def test_several_threads_may_append(storage: LocalStorage) -> None:
    packs = TaskPacks(storage, 1, 0, 0)
    entries = []

    def write(number: int) -> None:
        entries.append(write_segment(storage, batches(0), partition=number, packs=packs))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    packs.commit()
    assert len(entries) == 20
    assert all(check_all(storage, "orders", entry).damage == [] for entry in entries)


def test_a_transactional_segment_has_both_of_its_indexes_in_the_pack(storage: LocalStorage) -> None:
    batch = encode(
        [Record(0, 1, b"k", b"v", ())],
        codec=Codec.NONE,
        base_offset=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    packs = TaskPacks(storage, 1, 0, 0)
    segment = LogSegment(
        storage, Compression.PASSTHROUGH, "orders", ID, 0, 0, 1, 0, DigestAlgorithm.BLAKE3, Packing(packs, 1 << 20)
    )
    headers = headers_of(walk(batch))
    segment.builder.append(memoryview(batch), headers)
    segment.transactions.note(memoryview(batch), headers)
    entry = segment.finish([AbortedTxn(7, 0, 0, 0)])
    packs.commit()
    assert entry.files.txnindex_bytes
    assert entry.files.txnindex_sha256
    assert read_parts(storage, "orders", entry)
    assert [txn.producer_id for txn in open_partition(storage, "orders", (entry,)).transaction_index()] == [7]
    assert check_all(storage, "orders", entry).damage == []


def test_rows_of_packs_say_the_same_as_their_entries(storage: LocalStorage) -> None:
    entries = packed(storage, (ORDERS, 0, batches(0)), (ORDERS, 1, batches(0)))
    state = Archive.open(storage).load()
    assert [state.segments[ID, number][0] for number in (0, 1)] == entries
    assert packs_of(b"".join(map(pack, entries))) == {(1, 0, 0, 0)}


# ---- damage


def damaged(storage: LocalStorage, at: int) -> None:
    (path,) = pack_paths(storage)
    data = bytearray(storage.read(path))
    data[at] ^= 1
    storage.put(path, bytes(data))


def test_damage_is_told_of_the_segment_that_has_it_and_of_no_other(storage: LocalStorage) -> None:
    first, second = packed(storage, (ORDERS, 0, batches(0)), (ORDERS, 1, batches(0)))
    damaged(storage, second.files.position + 70)
    assert check_all(storage, "orders", first).damage == []
    found = check_all(storage, "orders", second).damage
    assert found
    assert all(item.object.endswith(f"packs/0000000001-0-0-0.pack:{second.files.position}.log") for item in found)
    with pytest.raises(ArchiveDamaged, match=f"pack:{second.files.position}.log"):
        list(open_partition(storage, "orders", (second,)).batches())


def test_an_altered_index_is_named_with_its_place(storage: LocalStorage) -> None:
    (entry,) = packed(storage, (ORDERS, 0, batches(0)))
    damaged(storage, entry.place("orders", names.TIMEINDEX).start)
    (found,) = check_all(storage, "orders", entry).damage
    assert found.object.endswith("pack:0.timeindex")


@pytest.mark.parametrize("compression", list(Compression))
def test_a_pack_that_was_cut_short_costs_what_lay_behind(storage: LocalStorage, compression: Compression) -> None:
    first, second = packed(storage, (ORDERS, 0, batches(0)), (ORDERS, 1, batches(0)), compression=compression)
    (path,) = pack_paths(storage)
    storage.put(path, storage.read(path)[: second.files.position + 40])
    assert check_all(storage, "orders", first).damage == []
    assert check_all(storage, "orders", second).damage
    items = list(open_damaged(storage, "orders", (second,)).batches())
    assert items
    assert all(isinstance(item, Damage) for item in items)
    assert any("the catalog says" in fault for fault in faults(storage))


def test_a_missing_pack_is_damage_of_all_of_its_segments(storage: LocalStorage) -> None:
    packed(storage, (ORDERS, 0, batches(0)), (ORDERS, 1, batches(0)))
    storage.delete(pack_paths(storage))
    reported = faults(storage)
    assert sum("the object is missing" in fault and ".log" in fault for fault in reported) == 2
    entry = Archive.open(storage).load().segments[ID, 1][0]
    (fault,) = missing_or_short(storage, "orders", entry, {})
    assert fault.object.endswith(f"pack:{entry.files.position}.log")


def test_a_wrong_length_in_the_making_is_refused(storage: LocalStorage) -> None:
    (entry,) = packed(storage, (ORDERS, 0, batches(0)))
    packs = TaskPacks(storage, 2, 0, 0)
    with pytest.raises(ValueError, match=r"\.log of topic orders partition 0 has 3 bytes"):
        packs.take("orders", entry, b"abc", {names.INDEX: b"", names.TIMEINDEX: b""})
    packs.abort()


# ---- requests


class Counting(LocalStorage):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.reads = 0

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        self.reads += 1
        return super().read_range(path, start, end)

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        self.reads += 1
        return super().read_into(path, start, target)


def test_neighbours_are_read_with_few_requests(storage: LocalStorage) -> None:
    entries = packed(storage, *((ORDERS, number, batches(0)) for number in range(200)))
    counting = Counting(storage.uri)
    reads = NeighbouringReads(counting)
    assert all(check_all(reads, "orders", entry).damage == [] for entry in entries)
    assert counting.reads == 1
    counting.reads = 0
    assert all(check_all(counting, "orders", entry).damage == [] for entry in entries)
    assert counting.reads >= 3 * len(entries)


def test_what_is_no_pack_is_read_as_it_was_asked_for(storage: LocalStorage) -> None:
    storage.put("a", b"0123456789")
    reads = NeighbouringReads(storage)
    assert reads.read("a") == b"0123456789"
    assert reads.read_range("a", 2, 4) == b"23"
    storage.put("packs/x", bytes(range(256)) * 8192)
    assert reads.read_range("packs/x", 5, 7) == bytes((5, 6))
    assert len(reads.read_range("packs/x", 0, 2 << 20)) == 2 << 20
    target = bytearray(4)
    assert reads.read_into("packs/x", 256, memoryview(target)) == 4
    assert target == bytes(range(4))


def test_a_held_object_leaves_nothing_when_it_is_dropped(storage: LocalStorage) -> None:
    held = HeldObject(storage, "x", 10)
    held.write(b"12345")
    assert bytes(held.held or b"") == b"12345"
    held.write(b"67890")
    assert held.held is None
    held.abort()
    assert storage.list() == []


def test_digests_are_those_of_the_log(storage: LocalStorage) -> None:
    data = b"".join(batches(0))
    entry = write_segment(storage, batches(0), digest=DigestAlgorithm.SHA256, packs=TaskPacks(storage, 1, 0, 0))
    assert entry.digest.hex == hashlib.sha256(data).hexdigest()
    assert replace(entry).bytes == len(data)

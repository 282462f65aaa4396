"""Segments of the Records and the Avro format in an archive: written once, read strictly, checked to the byte."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.record_check import verify_record_segment
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.writing.record_files import write_consumer_offsets, write_partition_indexes
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import Compatibility, DigestAlgorithm, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.digest import Digest
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced, StorageUnavailable
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records import RecordBlock
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, changed, read_records

BOTH = pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO], ids=["Records", "Avro"])
FORMATS = {Layout.RECORDS: FormatName.RECORDS, Layout.AVRO: FormatName.AVRO}
TIME = 1_700_000_000_000


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}")


def records(*offsets: int, value: bytes = b"value") -> list[PlainRecord]:
    return [PlainRecord(offset, TIME + offset, 0, b"k%d" % offset, value, ()) for offset in offsets]


def sink(
    storage: Storage, layout: Layout, *, epoch: int = 1, limit: int = 1 << 20, options: FormatOptions | None = None
) -> RecordSink:
    return RecordSink(
        storage, layout, "orders", ORDERS.topic_id, 0, epoch, 0, limit, options or FormatOptions()
    )  # fmt: skip


def write(storage: Storage, layout: Layout, content: Sequence[LogRecord], *, epoch: int = 1) -> SegmentEntry:
    out = sink(storage, layout, epoch=epoch)
    assert out.append(content) == len(content)
    return out.finish()


def read(storage: Storage, entry: SegmentEntry, start_offset: int = 0) -> list[LogRecord]:
    return list(itertools.chain.from_iterable(read_records(storage, "orders", entry, start_offset=start_offset)))


def data_path(entry: SegmentEntry) -> str:
    return entry.stem("orders") + entry.log_suffix


@BOTH
def test_what_was_written_is_read_again(storage: Storage, layout: Layout) -> None:
    content = [
        PlainRecord(3, TIME, 0, None, None, ()),
        PlainRecord(4, TIME + 5, 1, b"", b"", (("a", b"1"), ("a", None), ("", b""))),
        PlainRecord(9, None, None, b"k", b"\x00\xff", ()),
        PlainRecord(10, None, 0, b"k", b"v", (("a\udcff", b"not UTF-8"),)),
    ]
    entry = write(storage, layout, content)
    found = [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers)) for r in read(storage, entry)]
    assert found == [tuple(record) for record in content]
    assert (entry.base_offset, entry.next_offset, entry.records, entry.gaps) == (3, 11, 4, True)
    assert entry.times == SegmentTimes(TIME, TIME + 5, append_time=True)
    assert {info.path: info.size for info in storage.list()} == entry.objects("orders")
    assert verify_record_segment(storage, "orders", entry) == []


def test_names_are_those_that_the_formats_publish(storage: Storage) -> None:
    write(storage, Layout.RECORDS, records(5))
    write(storage, Layout.AVRO, records(5))
    assert [info.path for info in storage.list()] == [
        "topics/orders/partition=0/orders+0-00000000000000000005.data",
        "topics/orders/segment_partition_000_from_offset_0000000005_index",
        "topics/orders/segment_partition_000_from_offset_0000000005_records",
    ]


@BOTH
def test_segment_ends_with_the_record_that_passes_the_limit(storage: Storage, layout: Layout) -> None:
    out = sink(storage, layout, limit=100_000)
    content = records(*range(1000), value=bytes(1000))
    taken = out.append(content)
    assert (out.full, out.append(content, taken)) == (True, 0)
    entry = out.finish()
    assert entry.bytes > 100_000
    assert taken == entry.records == entry.next_offset < 1000
    assert verify_record_segment(storage, "orders", entry) == []


@BOTH
@pytest.mark.parametrize("start", [0, 10, 5000, 9999])
def test_reading_begins_at_any_offset(storage: Storage, layout: Layout, start: int) -> None:
    entry = write(storage, layout, records(*range(10, 10_000)))
    assert [record.offset for record in read(storage, entry, start)] == list(range(max(10, start), 10_000))


def test_who_reads_records_makes_no_list_of_where_they_lie(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = write(storage, Layout.RECORDS, records(*range(10, 2000)))
    monkeypatch.setattr(RecordBlock, "positions", property(lambda block: pytest.fail("they are for indexes")))
    assert len(read(storage, entry)) == 1990
    with pytest.raises(pytest.fail.Exception):
        verify_record_segment(storage, "orders", entry)


@BOTH
def test_reading_after_the_end_finds_nothing(storage: Storage, layout: Layout) -> None:
    entry = write(storage, layout, records(1, 2, 5))
    assert [record.offset for record in read(storage, entry, 3)] == [5]
    assert read(storage, entry, 6) == []


@pytest.mark.parametrize("index", [b"", b"\x01", b"\x02" + bytes(24 * 100), None])
def test_reading_does_without_an_index_that_is_of_no_use(storage: Storage, index: bytes | None) -> None:
    entry = write(storage, Layout.RECORDS, records(*range(100)))
    path = entry.stem("orders") + "_index"
    if index is None:
        storage.delete([path])
    else:
        storage.put(path, index)
    assert [record.offset for record in read(storage, entry, 60)] == list(range(60, 100))


@pytest.mark.parametrize("entry_number", range(6))
@pytest.mark.parametrize("altered", [101, 149, 151, 199, 301, 349, 399])
def test_altered_offset_in_the_index_hides_no_record(storage: Storage, entry_number: int, altered: int) -> None:
    offsets = [0, 100, 200, 300, 400, 500]
    entry = write(storage, Layout.RECORDS, records(*offsets))
    path = entry.stem("orders") + "_index"
    index = bytearray(storage.read(path))
    at = 1 + 24 * entry_number
    index[at : at + 8] = altered.to_bytes(8, "big")
    storage.put(path, bytes(index))
    for start in range(0, 501, 50):
        assert [record.offset for record in read(storage, entry, start)] == [o for o in offsets if o >= start]


# ---- objects that are there already


@BOTH
def test_second_attempt_leaves_equal_objects_as_they_are(storage: Storage, layout: Layout, tmp_path: Path) -> None:
    content = records(*range(100))
    first = write(storage, layout, content)
    versions = {path: storage.version(path) for path in first.objects("orders")}
    second = write(storage, layout, content, epoch=4)
    assert second == replace(first, epoch=4)
    assert {path: storage.version(path) for path in second.objects("orders")} == versions
    assert list(tmp_path.rglob(".logkeep-*")) == [], "nothing half done is left"


def begin(storage: Storage, layout: Layout, run_id: str) -> int:
    """Begin a run and leave it, as a kill does; the epoch."""
    with begin_run(Archive.create_or_open(storage, CLUSTER, FORMATS[layout]), run_id, wait=FAST) as writer:
        return writer.epoch


@BOTH
def test_other_content_that_was_never_committed_is_replaced(storage: Storage, layout: Layout) -> None:
    begin(storage, layout, "one")
    write(storage, layout, records(*range(100)))
    epoch = begin(storage, layout, "one")
    entry = write(storage, layout, records(*range(0, 100, 2)), epoch=epoch)
    assert [record.offset for record in read(storage, entry)] == list(range(0, 100, 2))
    assert verify_record_segment(storage, "orders", entry) == []


@BOTH
def test_writer_that_outlived_its_run_replaces_nothing(storage: Storage, layout: Layout) -> None:
    old = begin(storage, layout, "one")
    new = begin(storage, layout, "two")
    entry = write(storage, layout, records(*range(100)), epoch=new)
    zombie = sink(storage, layout, epoch=old)
    zombie.append(records(*range(50)))
    with pytest.raises(ArchiveFenced, match=r"Run two has taken over .* is not replaced by a writer of epoch 1"):
        zombie.finish()
    zombie.abort()
    assert verify_record_segment(storage, "orders", entry) == []


@BOTH
def test_writer_that_looked_before_its_successor_wrote_replaces_nothing(storage: Storage, layout: Layout) -> None:
    old = begin(storage, layout, "one")
    write(storage, layout, records(0, 7), epoch=old)
    zombie = sink(storage, layout, epoch=old)
    zombie.append(records(*range(50)))
    new = begin(storage, layout, "two")
    entry = write(storage, layout, records(*range(100)), epoch=new)
    with pytest.raises(ArchiveFenced):
        zombie.finish()
    assert verify_record_segment(storage, "orders", entry) == []


@BOTH
def test_writer_that_is_overtaken_between_its_looks_replaces_nothing(
    storage: Storage, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that no newer run has begun, and sleeps until one has written."""
    old = begin(storage, layout, "one")
    write(storage, layout, records(0, 7), epoch=old)
    zombie = sink(storage, layout, epoch=old)
    zombie.append(records(*range(50)))
    entries: list[SegmentEntry] = []
    looked = Archive.listing

    def listing(archive: Archive) -> object:
        found = looked(archive)
        monkeypatch.setattr(Archive, "listing", looked)
        new = begin(storage, layout, "two")
        entries.append(write(storage, layout, records(*range(100)), epoch=new))
        return found

    monkeypatch.setattr(Archive, "listing", listing)
    with pytest.raises(StorageUnavailable, match="written by another writer at the same time"):
        zombie.finish()
    assert verify_record_segment(storage, "orders", entries[0]) == []


@BOTH
def test_two_writers_of_the_same_bytes_at_the_same_time_are_both_content(storage: Storage, layout: Layout) -> None:
    sinks = [sink(storage, layout) for _ in range(2)]
    for out in sinks:
        out.append(records(*range(10)))
    one, other = (out.finish() for out in sinks)
    assert one == other
    assert verify_record_segment(storage, "orders", one) == []


@BOTH
def test_segment_that_this_run_has_committed_is_not_replaced(storage: Storage, layout: Layout) -> None:
    archive = Archive.create_or_open(storage, CLUSTER, FORMATS[layout])
    with begin_run(archive, "one", wait=FAST) as writer:
        entry = write(storage, layout, records(*range(10)))
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 0, 10),), (entry,))])
        late = sink(storage, layout)
        late.append(records(*range(0, 10, 2)))
        with pytest.raises(StorageUnavailable, match="another attempt of this task has committed it"):
            late.finish()
    assert verify_record_segment(storage, "orders", entry) == []


@BOTH
@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_after_a_kill_at_any_object_the_next_attempt_ends_the_same(
    storage: Storage, layout: Layout, killed_after: int
) -> None:
    content = records(*range(100))
    entry = write(storage, layout, content)
    kept = {path: storage.read(path) for path in entry.objects("orders")}
    storage.delete(list(kept)[killed_after:])
    write(storage, layout, content, epoch=2)
    assert {info.path: storage.read(info.path) for info in storage.list()} == kept


def test_sink_without_records_leaves_nothing(storage: Storage) -> None:
    out = sink(storage, Layout.RECORDS)
    assert (out.append([]), out.size, out.full) == (0, 0, False)
    out.abort()
    assert storage.list() == []


@BOTH
def test_aborted_sink_leaves_nothing(storage: Storage, layout: Layout, tmp_path: Path) -> None:
    out = sink(storage, layout)
    out.append(records(1))
    out.abort()
    out.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# ---- damage


def flip(storage: Storage, path: str, at: int) -> None:
    data = bytearray(storage.read(path))
    data[at] ^= 0x40
    storage.put(path, bytes(data))


Harm = Callable[[Storage, SegmentEntry], None]


def flipped(at: int) -> Harm:
    return lambda storage, entry: flip(storage, data_path(entry), at)


def cut(storage: Storage, entry: SegmentEntry) -> None:
    storage.put(data_path(entry), storage.read(data_path(entry))[:-7])


def longer(storage: Storage, entry: SegmentEntry) -> None:
    storage.put(data_path(entry), storage.read(data_path(entry)) + b"\x00")


def missing(storage: Storage, entry: SegmentEntry) -> None:
    storage.delete([data_path(entry)])


def newer(storage: Storage, entry: SegmentEntry) -> None:
    data = bytearray(storage.read(data_path(entry)))
    data[0 if entry.layout is Layout.RECORDS else 3] = 2
    storage.put(data_path(entry), bytes(data))


@BOTH
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flipped(-200), "records were altered|is damaged| has |may follow"),
        (cut, "cut short"),
        (longer, "cut short|the catalog says|is damaged"),
        (missing, "the object is missing"),
        (newer, "version 2"),
    ],
)
def test_damaged_object_is_refused_by_name(storage: Storage, layout: Layout, damage: Harm, says: str) -> None:
    entry = write(storage, layout, records(*range(1000)))
    damage(storage, entry)
    with pytest.raises(ArchiveDamaged, match=says) as caught:
        read(storage, entry)
    assert caught.value.message.startswith(f"{storage.uri}/{data_path(entry)} (topic orders partition 0 offset ")
    faults = verify_record_segment(storage, "orders", entry)
    assert len(faults) == 1
    assert faults[0].object == f"{storage.uri}/{data_path(entry)}"


@BOTH
def test_with_on_damage_everything_before_the_damage_is_handed_out(storage: Storage, layout: Layout) -> None:
    entry = write(storage, layout, records(*range(1000)))
    cut(storage, entry)
    lines: list[Damage] = []
    found = [
        record.offset for part in read_records(storage, "orders", entry, on_damage=lines.append) for record in part
    ]
    assert found == list(range(len(found)))
    assert [damage.lost for damage in lines] == [(len(found), 1000)]


def test_altered_value_costs_no_record_but_is_reported(storage: Storage) -> None:
    entry = write(storage, Layout.RECORDS, records(*range(1000)))
    path = data_path(entry)
    flip(storage, path, storage.read(path).index(b"value"))
    lines: list[Damage] = []
    parts = list(read_records(storage, "orders", entry, on_damage=lines.append))
    assert sum(map(len, parts)) == 1000
    (damage,) = lines
    assert "records were altered" in damage.what
    assert damage.lost is None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda storage, path: storage.delete([path]), "the object is missing"),
        (lambda storage, path: storage.put(path, storage.read(path)[:-24]), "2377 bytes, the catalog says 2401"),
        (lambda storage, path: flip(storage, path, 100), "it is not the index of the records"),
        (lambda storage, path: flip(storage, path, 0), "it is not the index of the records"),
    ],
)
def test_index_that_is_not_that_of_the_records_is_a_fault(
    storage: Storage, damage: Callable[[Storage, str], None], says: str
) -> None:
    entry = write(storage, Layout.RECORDS, records(*range(100)))
    path = entry.stem("orders") + "_index"
    damage(storage, path)
    (fault,) = verify_record_segment(storage, "orders", entry)
    assert (fault.object, fault.what) == (f"{storage.uri}/{path}", says)
    assert len(read(storage, entry)) == 100, "the records are whole"


@BOTH
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"records": 99}, "100 records, the catalog says 99"),
        ({"next_offset": 100 + 1}, "end before offset 100, the catalog says 101"),
        ({"next_offset": 99}, "a record with offset 99"),
        ({"digest": Digest(DigestAlgorithm.SHA256, "0" * 64)}, "the catalog says 0000"),
        ({"digest": Digest(DigestAlgorithm.BLAKE3, "0" * 64)}, "its BLAKE3 is "),
        ({"min_base_timestamp": 5}, "the catalog says 5"),
        ({"max_timestamp": 5}, "the catalog says 5"),
        ({"gaps": True}, "gaps is False, the catalog says True"),
        ({"max_batch_bytes": 3}, "the catalog says at most 3"),
    ],
)
def test_catalog_that_says_otherwise_is_a_fault(
    storage: Storage, layout: Layout, change: dict[str, object], says: str
) -> None:
    entry = write(storage, layout, records(*range(100)))
    faults = verify_record_segment(storage, "orders", changed(entry, **change))
    assert any(says in fault.what for fault in faults), faults


def test_strict_avro_object_is_whole_though_it_does_not_tell_append_times(storage: Storage) -> None:
    out = sink(storage, Layout.AVRO, options=FormatOptions(compatibility=Compatibility.STRICT))
    out.append([PlainRecord(0, TIME, 1, b"k", b"v", ())])
    entry = out.finish()
    assert entry.times.append_time
    assert verify_record_segment(storage, "orders", entry) == []


# ---- a whole archive


@BOTH
def test_verify_names_damage_and_what_no_commit_names(storage: Storage, layout: Layout) -> None:
    archive = Archive.create_or_open(storage, CLUSTER, FORMATS[layout])
    with begin_run(archive, "one", wait=FAST) as writer:
        entries = [write(storage, layout, records(*range(start, start + 10))) for start in (0, 10)]
        coverage = (Coverage(ORDERS.topic_id, 0, 0, 20),)
        writer.commit(topics=[ORDERS], receipts=[Receipt(coverage, tuple(entries))])
        write_partition_indexes(storage, writer.state, writer.state.segments)
        write_consumer_offsets(storage, writer.state, writer.state.segments, ())
        writer.end(RunOutcome.SUCCEEDED)
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 20)
    left = write(storage, layout, records(30))
    cut(storage, entries[1])
    report = verify(archive)
    assert report.orphans == sorted(left.objects("orders"))
    assert [fault.object for fault in report.faults] == [f"{storage.uri}/{data_path(entries[1])}"]


def test_adopted_folder_is_verified_where_it_lies(tmp_path: Path) -> None:
    writing = open_uri(f"file://{tmp_path}")
    written = write(writing, Layout.RECORDS, records(*range(10)))
    (tmp_path / "topics" / "orders").rename(tmp_path / "orders")
    (tmp_path / "topics").rmdir()
    (tmp_path / "orders" / "index_partition_000").write_bytes(b"\x01")
    archive = Archive.create_or_open(writing, "-", FormatName.RECORDS, imported=True)
    with begin_run(archive, "one", wait=FAST) as writer:
        entry = changed(written, layout=Layout.RECORDS_AT_ROOT)
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 0, 10),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 10)
    (tmp_path / "orders" / "segment_partition_000_from_offset_0000000099_records").write_bytes(b"\x01")
    assert verify(archive).orphans == ["orders/segment_partition_000_from_offset_0000000099_records"]

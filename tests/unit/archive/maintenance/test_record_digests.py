"""The digests of an archived segment's records: what they know, what they are bound to, and how they are kept."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.maintenance import record_digests
from logkeep_engine.archive.maintenance.kept_digests import DigestsPlace
from logkeep_engine.archive.maintenance.record_digests import RecordTimes, SegmentDigests, digests_of, within
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.digest import Digest
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.rows import RecordDigest, as_rows
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, Batch, changed, write_segment
from tests.unit.archive.writing.test_record_segments import records, write
from tests.unit.log.batches import marker


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def place(storage: Storage) -> DigestsPlace:
    return DigestsPlace(storage, ORDERS.name, ORDERS.topic_id, 0)


def value(*parts: SegmentDigests) -> bytes:
    """The digest of all records."""
    whole = RecordDigest(offsets=False)
    for part in parts:
        for stretch in part.stretches:
            whole.follow(RecordDigest(offsets=False, count=stretch.records, value=stretch.value))
    return whole.value


def of(storage: Storage, *batches: bytes, aborted: Spans | None = None, **more: object) -> SegmentDigests:
    entry = write_segment(storage, batches, **more)  # type: ignore[arg-type]
    return digests_of(storage, "orders", entry, aborted or Spans())


def test_batches_and_segments_make_no_difference_and_records_do(storage: Storage) -> None:
    whole = of(storage, *(Batch(at, 10).encode() for at in range(0, 100, 10)))
    others = [
        of(storage, *(Batch(at, 5, Codec.ZSTD).encode() for at in range(start, start + 50, 5)), epoch=2)
        for start in (0, 50)
    ]
    assert value(*others) == value(whole)
    assert [stretch.records for stretch in whole.stretches] == [100]
    assert (whole.stretches[0].start, whole.stretches[0].end) == (0, 100)
    assert (whole.stretches[0].lowest, whole.stretches[0].highest) == (TIME, TIME + 99)
    assert value(of(storage, Batch(0, 99).encode(), epoch=3)) != value(whole)


def test_stretches_of_records_are_bound_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_digests, "STRETCH_BYTES", 5000)
    builder = record_digests.StretchBuilder(0)
    for offset in range(10):
        builder.add_records(as_rows([PlainRecord(offset, TIME, 0, None, b"x" * 2000, ())]))
    stretches, _ = builder.finish(10)
    assert [(item.start, item.end) for item in stretches] == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_stretches_of_very_small_records_are_bound_by_their_number(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [Batch(at, 10).encode() for at in range(0, 1000, 10)]
    whole = of(storage, *batches)
    monkeypatch.setattr(record_digests, "STRETCH_RECORDS", 100)
    found = of(storage, *batches, epoch=2)
    assert all(100 <= item.records < 200 for item in found.stretches[:-1])
    assert [item.end for item in found.stretches[:-1]] == [item.start for item in found.stretches[1:]]
    assert value(found) == value(whole)
    assert found.times == whole.times


def test_a_segment_has_stretches_with_bounds_that_meet(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [Batch(at, 10).encode() for at in range(0, 100, 10)]
    whole = of(storage, *batches)
    monkeypatch.setattr(record_digests, "STRETCH_BYTES", 1)
    entry = write_segment(storage, batches)
    builder = record_digests.StretchBuilder(0)
    for stretch, headers in open_partition(storage, "orders", (entry,)).batches():
        for number in range(len(headers)):
            builder.add_batches(stretch, headers[number : number + 1], Spans())
    stretches, times = builder.finish(105)
    assert [(item.start, item.end, item.records) for item in stretches] == [
        *((at, at + 10, 10) for at in range(0, 90, 10)),
        (90, 105, 10),
    ]
    assert value(replace(whole, stretches=stretches)) == value(whole)
    assert times == whole.times
    assert sum(count for _, count, _ in times.buckets) == 100


def test_aborted_records_and_markers_are_left_out_and_bind_the_digests(storage: Storage) -> None:
    def transactional(at: int, producer: int) -> bytes:
        record = Record(at, TIME + at, b"key", b"value %d" % at, ())
        return encode([record], codec=Codec.NONE, base_offset=at, producer_id=producer, transactional=True)

    batches = [
        transactional(0, 1),
        transactional(1, 2),
        transactional(2, 1),
        marker(3, 2, commit=False),
        Batch(4, 1).encode(),
    ]
    aborted = Spans.of([AbortedTxn(2, 1, 3, 3)])
    entry = write_segment(storage, batches)
    found = digests_of(storage, "orders", entry, aborted)
    assert found.stretches[0].records == 3
    assert found.aborted == ((2, 1, 3),)
    assert found.fits(entry, aborted)
    assert not found.fits(entry, Spans())
    assert found.fits(entry, Spans.of([AbortedTxn(2, 1, 3, 3), AbortedTxn(9, 5, 8, 8)]))
    everything = digests_of(storage, "orders", entry, Spans())
    assert everything.stretches[0].records == 4
    assert not everything.fits(entry, aborted)


def test_a_segment_with_other_bytes_does_not_fit(storage: Storage) -> None:
    entry = write_segment(storage, [Batch(0).encode()])
    found = digests_of(storage, "orders", entry, Spans())
    assert found.fits(changed(entry, epoch=7, attempt=2), Spans())
    other = Digest(entry.digest.algorithm, "0" * 64)
    assert not found.fits(changed(entry, digest=other), Spans())
    assert not found.fits(changed(entry, next_offset=11), Spans())


@pytest.mark.parametrize("records", [-1, 1])
def test_digests_of_other_numbers_of_records_than_the_catalog_has_do_not_fit(storage: Storage, records: int) -> None:
    entry = write_segment(storage, [Batch(0).encode()])
    found = digests_of(storage, "orders", entry, Spans())
    assert found.fits(entry, Spans())
    assert not found.fits(changed(entry, records=entry.records + records), Spans())
    aborted = Spans.of([AbortedTxn(2, 0, 3, 3)])
    some = replace(found, aborted=within(aborted, entry))
    assert some.aborted
    assert some.fits(changed(entry, records=entry.records + records), aborted) is (records > 0)


def test_records_of_other_formats_have_the_same_digest(storage: Storage) -> None:
    content = records(*range(30))
    digest = RecordDigest(offsets=False)
    digest.note(as_rows(content))
    for layout in (Layout.RECORDS, Layout.AVRO):
        found = digests_of(storage, "orders", write(storage, layout, content), Spans())
        assert (found.stretches[0].value, found.stretches[0].offsets_value) == (digest.value, digest.offsets_value)


def test_a_damaged_segment_has_none(storage: Storage) -> None:
    entry = write_segment(storage, [Batch(0).encode(), Batch(10).encode()])
    path = entry.stem("orders") + ".log"
    data = bytearray(storage.read(path))
    data[-3] ^= 1
    storage.put(path, bytes(data))
    with pytest.raises(ArchiveDamaged):
        digests_of(storage, "orders", entry, Spans())


def test_what_was_kept_is_there_again(storage: Storage) -> None:
    assert place(storage).load() == {}
    found = [
        of(storage, Batch(0).encode(), aborted=Spans([(4, 0, 3)])),
        of(storage, Batch(10).encode(), digest=DigestAlgorithm.SHA256),
    ]
    place(storage).keep(reversed(found))
    assert place(storage).load() == {digests.base_offset: digests for digests in found}
    assert found[0].times == RecordTimes(0, tuple((TIME + at, 1, size) for at, size in _sizes(10)))


def _sizes(count: int) -> list[tuple[int, int]]:
    return [(at, 8 + 1 + len(b"key") + 1 + len(b"value %d" % at) + 1) for at in range(count)]


@pytest.mark.parametrize("change", ["cut", "altered", "other", "empty", "text", "newer"])
def test_an_object_that_was_altered_is_as_good_as_none(
    storage: Storage, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    place(storage).keep([of(storage, Batch(0).encode())])
    path = place(storage).path
    data = storage.read(path)
    changes = {
        "cut": data[:-10],
        "altered": data.replace(b'"next":10', b'"next":11'),
        "other": data.replace(b'"partition":0', b'"partition":1'),
        "empty": b"",
        "text": b"text\n",
        "newer": data.replace(b'"format":1', b'"format":2'),
    }
    assert changes[change] != data
    storage.put(path, changes[change])
    assert place(storage).load() == {}
    assert path in caplog.text

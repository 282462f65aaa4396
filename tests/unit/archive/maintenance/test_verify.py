"""Every damage is found and named: object, topic, partition, offset."""

import random
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Receipt, RemovedSegment, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.catalog_check import check_continuity
from logkeep_engine.archive.maintenance.increments import VerifyCycle
from logkeep_engine.archive.maintenance.leases import RunningReader, running_readers
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.maintenance.verify import VerifyProgress, VerifyReport, verify
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.segments import read_segment
from logkeep_engine.cli import app
from logkeep_engine.errors import ArchiveDamaged, StorageRefused
from logkeep_engine.log.batch import walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage, Storage, open_uri
from tests.unit.archive.build import (
    ORDERS,
    Batch,
    archive_of,
    begin,
    changed,
    chunk,
    transaction_index,
    verify_segment,
    write_segment,
)

ID = ORDERS.topic_id
OTHER = TopicEntry("invoices", "bbbbbbbbbbbbbbbbbbbbbb", 1, 1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def _batches(count: int = 20, codec: Codec = Codec.NONE) -> list[bytes]:
    return [Batch(number * 10, codec=codec).encode() for number in range(count)]


def _log(entry: SegmentEntry) -> str:
    return entry.stem("orders") + names.LOG


def test_segments_that_a_run_removes_meanwhile_are_no_damage_and_others_are(storage: Storage) -> None:
    archive = archive_of(storage, *(chunk(storage, start, start + 10) for start in range(0, 200, 10)))
    lost, *_ = archive.load().segments[ID, 0][18].objects("orders")

    def removing(shown: VerifyProgress) -> None:
        if shown.segments == 1:
            storage.delete([lost])
            with begin(storage, "run-2") as writer:
                writer.end(RunOutcome.SUCCEEDED)
                writer.remove(RemovedSegment(ID, 0, base) for base in range(80, 160, 10))
                purge(writer)

    report = verify(archive, on_progress=removing, workers=1)
    assert [str(fault).partition(" (topic")[0] for fault in report.faults] == [f"{storage.uri}/{lost}"]
    assert report.segments == 20
    cycle = VerifyCycle.load(archive, 30)
    verify(archive, cycle=cycle)  # reads all that is left
    again = verify(archive, cycle=VerifyCycle.load(archive, 30))
    assert [str(fault).partition(" (topic")[0] for fault in again.faults] == [f"{storage.uri}/{lost}"]


def test_the_command_holds_a_lease_as_long_as_it_reads(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_of(storage, chunk(storage, 0, 10))
    seen: list[RunningReader] = []

    def watched(archive: Archive, **options: Any) -> VerifyReport:
        seen.extend(running_readers(storage, int(time.time() * 1000)))
        return verify(archive, **options)

    monkeypatch.setattr("logkeep_engine.archive.maintenance.verify.verify", watched)
    assert CliRunner().invoke(app, ["verify", storage.uri]).exit_code == 0
    assert [(reader.run_id.rpartition("-")[0], reader.commit) for reader in seen] == [("reading.verify", 2)]
    assert list(storage.list("runs/reading.")) == []

    def refused(*_: object) -> None:
        raise StorageRefused("no right to write")

    monkeypatch.setattr(LocalStorage, "put", refused)
    assert CliRunner().invoke(app, ["verify", storage.uri]).exit_code == 0


def _tolerant(
    storage: Storage, entry: SegmentEntry, block: int = 700
) -> tuple[list[int], list[Range | None], list[Damage]]:
    """(offsets of the records that are read, lost ranges, faults)."""
    lost: list[Range | None] = []
    faults: list[Damage] = []

    def note(damage: Damage) -> None:
        faults.append(damage)
        lost.append(damage.lost)

    offsets = [
        record.offset
        for run, headers in read_segment(storage, "orders", entry, on_damage=note, block=block)
        for position, _ in headers
        for record in decode(run, position)
    ]
    return offsets, lost, faults


@pytest.mark.parametrize("block", [61, 100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_whole_segment_is_read_in_runs_of_whole_batches(storage: Storage, block: int, codec: Codec) -> None:
    batches = _batches(codec=codec)
    entry = write_segment(storage, batches)
    runs = list(read_segment(storage, "orders", entry, block=block))
    assert b"".join(bytes(run) for run, _ in runs) == b"".join(batches)
    for run, headers in runs:
        assert [(position, header.base_offset) for position, header in headers] == [
            (position, header.base_offset) for position, header in walk(run)
        ]
    assert verify_segment(storage, "orders", entry) == []


def test_a_flipped_bit_anywhere_is_found(storage: Storage) -> None:
    entry = write_segment(storage, _batches(4))
    data = storage.read(_log(entry))
    rng = random.Random(1)
    for position in [*range(70), *rng.sample(range(len(data)), 60), len(data) - 1]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.randrange(8)
        storage.put(_log(entry), bytes(damaged))
        faults = verify_segment(storage, "orders", entry)
        assert faults, position
        assert faults[0].object == f"{storage.uri}/{_log(entry)}"
        assert (faults[0].topic, faults[0].partition) == ("orders", 0)
        with pytest.raises(ArchiveDamaged):
            list(read_segment(storage, "orders", entry))


@pytest.mark.parametrize("block", [61, 333, 1 << 20])
def test_a_damaged_batch_costs_its_own_offsets_only(storage: Storage, block: int) -> None:
    batches = _batches()
    entry = write_segment(storage, batches)
    data = storage.read(_log(entry))
    start = sum(map(len, batches[:5]))
    bits = {"payload": 150, "length": 11, "magic": 16, "crc": 18, "high base offset": 1}
    for what, position in bits.items():
        damaged = bytearray(data)
        damaged[start + position] ^= 4
        storage.put(_log(entry), bytes(damaged))
        offsets, lost, faults = _tolerant(storage, entry, block)
        assert lost == [(50, 60)], what
        assert offsets == [*range(50), *range(60, 200)], what
        assert faults[0].offset == 50
        assert f"position {start}" in faults[0].what


def test_an_offset_that_still_rises_is_found_by_the_hash(storage: Storage) -> None:
    batches = [Batch(0).encode(), Batch(100).encode()]
    entry = write_segment(storage, batches)
    data = bytearray(storage.read(_log(entry)))
    struct.pack_into(">q", data, len(batches[0]), 90)
    storage.put(_log(entry), bytes(data))
    _, lost, faults = _tolerant(storage, entry)
    assert lost == [(100, 110)]
    assert "its batches end before offset 100, the catalog says 110" in faults[0].what
    struct.pack_into(">q", data, len(batches[0]), 100)
    data[15] ^= 1  # leader epoch
    storage.put(_log(entry), bytes(data))
    offsets, lost, faults = _tolerant(storage, entry)
    assert (len(offsets), lost) == (20, [None])
    assert "leader epochs of batches were altered" in faults[0].what


def test_a_batch_inside_a_record_is_not_mistaken_for_one_of_the_log(storage: Storage) -> None:
    inner = Batch(12, 3).encode()
    outer = encode([Record(10, 5, None, inner, ())], codec=Codec.NONE, base_offset=10)
    entry = write_segment(storage, [Batch(0).encode(), outer, Batch(20).encode()])
    data = bytearray(storage.read(_log(entry)))
    data[len(Batch(0).encode()) + 18] ^= 1  # the outer CRC
    storage.put(_log(entry), bytes(data))
    for block in (64, 1 << 20):
        offsets, lost, _ = _tolerant(storage, entry, block)
        assert (offsets, lost) == ([*range(10), *range(20, 30)], [(10, 20)])


@pytest.mark.parametrize("block", [61, 333, 1 << 20])
def test_a_short_object_loses_its_tail(storage: Storage, block: int) -> None:
    batches = _batches()
    entry = write_segment(storage, batches)
    data = storage.read(_log(entry))
    size = len(batches[-1])
    for cut, first_lost in ((1, 190), (size, 190), (size + 1, 180), (len(data) - 3, 0), (len(data), 0)):
        storage.put(_log(entry), data[: len(data) - cut])
        offsets, lost, faults = _tolerant(storage, entry, block)
        assert (offsets, lost) == (list(range(first_lost)), [(first_lost, 200)])
        assert f"{len(data) - cut} bytes, the catalog says {len(data)}" in faults[0].what


def test_a_missing_object_is_named_and_loses_all(storage: Storage) -> None:
    entry = write_segment(storage, _batches(2))
    storage.delete([_log(entry)])
    with pytest.raises(ArchiveDamaged) as caught:
        list(read_segment(storage, "orders", entry))
    assert str(caught.value) == (
        f"{storage.uri}/topics/orders/{ID}/partition=0/00000000000000000000.0000000001.log "
        "(topic orders partition 0 offset 0): the object is missing. "
        "Restore the object from a copy of the archive. With onDamagedArchive: Skip a restore continues without it."
    )
    assert _tolerant(storage, entry)[:2] == ([], [(0, 20)])


def _whole_batches(storage: Storage, entry: SegmentEntry) -> tuple[set[bytes], list[Range | None]]:
    spans: list[Range | None] = []
    read = {
        bytes(run[position : position + header.size])
        for run, headers in read_segment(
            storage, "orders", entry, on_damage=lambda damage: spans.append(damage.lost), block=512
        )
        for position, header in headers
    }
    return read, spans


def test_random_damage_never_yields_a_batch_that_was_not_there(storage: Storage) -> None:
    entry = write_segment(storage, _batches(30, Codec.LZ4))
    data = storage.read(_log(entry))
    good = {bytes(data[position : position + header.size]) for position, header in walk(data)}
    rng = random.Random(3)
    for _ in range(80):
        damaged = bytearray(data)
        at = rng.randrange(len(data))
        length = rng.randrange(1, 300)
        kind = rng.randrange(3)
        if kind == 0:
            damaged[at : at + length] = rng.randbytes(length)
        elif kind == 1:
            del damaged[at : at + length]
        else:
            damaged[at:at] = rng.randbytes(length)
        if damaged == data:
            continue
        storage.put(_log(entry), bytes(damaged))
        read, spans = _whole_batches(storage, entry)
        assert read <= good
        assert spans
        lost_offsets = {offset for span in spans if span for offset in range(*span)}
        missing = {header.base_offset for batch in good - read for _, header in walk(batch)}
        assert missing <= lost_offsets


FACTS: dict[str, tuple[Callable[[SegmentEntry], SegmentEntry], str]] = {
    "records": (lambda entry: replace(entry, records=19), "records is 20, the catalog says 19"),
    "batches": (lambda entry: replace(entry, batches=3), "batches is 2, the catalog says 3"),
    "max_timestamp": (
        lambda entry: changed(entry, max_timestamp=5),
        "max_timestamp is 1700000000019, the catalog says 5",
    ),
    "codecs": (lambda entry: replace(entry, codecs={"zstd": 2}), "codecs is {'none': 2}, the catalog says {'zstd': 2}"),
    "transactional": (
        lambda entry: replace(entry, transactional=True),
        "transactional is False, the catalog says True",
    ),
    "next_offset": (
        lambda entry: replace(entry, next_offset=25),
        "its batches end before offset 20, the catalog says 25",
    ),
    "bytes": (lambda entry: replace(entry, bytes=entry.bytes + 1), "bytes, the catalog says"),
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_of_the_catalog_that_is_not_so_is_found(storage: Storage, fact: str) -> None:
    change, what = FACTS[fact]
    (fault,) = verify_segment(storage, "orders", change(write_segment(storage, _batches(2))))
    assert what in fault.what


@pytest.mark.parametrize("suffix", [names.INDEX, names.TIMEINDEX])
def test_indexes_must_be_those_of_the_log(storage: Storage, suffix: str) -> None:
    entry = write_segment(storage, _batches(60))
    path = entry.stem("orders") + suffix
    data = storage.read(path)
    assert len(data) >= 12
    for content, what in (
        (data[:-1] + bytes([data[-1] ^ 1]), "it is not the index of the log"),
        (data[:-1], f"{len(data) - 1} bytes, the catalog says {len(data)}"),
        (None, "the object is missing"),
    ):
        if content is None:
            storage.delete([path])
        else:
            storage.put(path, content)
        (fault,) = verify_segment(storage, "orders", entry)
        assert (fault.object, fault.what) == (f"{storage.uri}/{path}", what)


def _marker(offset: int, producer: int, kind: int) -> bytes:
    """An end-transaction marker as a coordinator writes it: key (version, type), value (version, coordinator epoch)."""
    record = Record(offset, 1000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), ())
    batch = bytearray(encode([record], codec=Codec.NONE, base_offset=offset, producer_id=producer, transactional=True))
    batch[22] |= 0x20
    from logkeep_engine.log.batch import seal

    seal(batch)
    return bytes(batch)


def _transaction(offset: int, producer: int) -> bytes:
    records = [Record(offset + at, 1000, b"k", b"v", ()) for at in range(5)]
    return encode(
        records, codec=Codec.NONE, base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True
    )


def test_aborted_transactions_end_with_a_marker_of_their_producer(storage: Storage) -> None:
    batches = [_transaction(0, 7), _transaction(5, 8), _marker(10, 7, 0), _marker(11, 8, 1)]
    good = write_segment(storage, batches, aborted=[AbortedTxn(7, 0, 10, 5)])
    assert verify_segment(storage, "orders", good) == []
    for wrong in (AbortedTxn(8, 0, 10, 5), AbortedTxn(7, 0, 11, 5), AbortedTxn(8, 5, 11, 12)):
        entry = write_segment(storage, batches, aborted=[wrong], attempt=1)
        (fault,) = verify_segment(storage, "orders", entry)
        assert fault.what == f"no transaction of producer {wrong.producer_id} ends there"
        assert fault.offset == wrong.last_offset


def test_an_aborted_transaction_whose_marker_lies_in_a_later_segment_ends_with_its_last_batch(storage: Storage) -> None:
    batches = [_transaction(0, 7), _transaction(5, 8), _marker(10, 8, 1)]
    good = write_segment(storage, batches, aborted=[AbortedTxn(7, 0, 4, 0)])
    assert verify_segment(storage, "orders", good) == []
    other = write_segment(storage, batches, aborted=[AbortedTxn(8, 5, 8, 5)], attempt=1)
    (fault,) = verify_segment(storage, "orders", other)
    assert fault.what == "no transaction of producer 8 ends there"


def test_where_markers_and_indexes_differ_it_is_reported_and_nothing_is_lost(storage: Storage) -> None:
    """One transaction spans two segments, and no index names it; another is named, and was committed."""
    entries = [
        write_segment(storage, [_transaction(0, 7), _transaction(5, 8)], aborted=[AbortedTxn(8, 5, 9, 5)]),
        write_segment(storage, [_marker(10, 7, 0), _marker(11, 8, 1)]),
    ]
    archive = archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, 12),), tuple(entries)))
    report = verify(archive)
    assert report.whole
    what = "topic orders partition 0: the transaction of producer"
    assert report.disagreements == [
        f"{what} 7 with offsets 0 to 10 ends with an ABORT marker, but the transaction index has it as committed: "
        "the marker holds",
        f"{what} 8 with offsets 5 to 11 ends with a COMMIT marker, but the transaction index has it as aborted: "
        "the marker holds",
    ]
    assert report.to_json()["disagreements"] == report.disagreements


def test_an_altered_transaction_index_is_never_used(storage: Storage) -> None:
    entry = write_segment(storage, [_transaction(0, 7), _marker(5, 7, 0)], aborted=[AbortedTxn(7, 0, 5, 6)])
    path = entry.stem("orders") + names.TXNINDEX
    data = bytearray(storage.read(path))
    data[17] = 3  # the first offset, which the log alone does not tell
    storage.put(path, bytes(data))
    with pytest.raises(ArchiveDamaged, match=r"\.txnindex .*: its SHA-256 is not the catalog's"):
        transaction_index(storage, "orders", entry)
    (fault,) = verify_segment(storage, "orders", entry)
    assert fault.what == "its SHA-256 is not the catalog's"
    storage.delete([path])
    (fault,) = verify_segment(storage, "orders", entry)
    assert fault.what == "the object is missing"


def test_a_whole_archive_has_no_faults_and_says_what_it_read(storage: Storage) -> None:
    archive = archive_of(storage, chunk(storage, 0, 50), chunk(storage, 50, 80), chunk(storage, 0, 20, partition=1))
    write_segment(storage, _batches(1), partition=1, attempt=4)
    seen: list[VerifyProgress] = []
    report = verify(archive, on_progress=seen.append, workers=2)
    assert report.whole
    assert (report.segments, report.records, report.objects) == (3, 100, 1 + 3 + 9)
    assert [progress.segments for progress in seen] == [1, 2, 3]
    assert {progress.segments_total for progress in seen} == {3}
    stem = f"topics/orders/{ID}/partition=1/00000000000000000000.0000000001-4"
    assert report.orphans == [f"{stem}.index", f"{stem}.log", f"{stem}.timeindex"]
    assert report.to_json()["whole"] is True


def test_topics_can_be_chosen(storage: Storage) -> None:
    with begin(storage) as writer:
        receipts = [chunk(storage, 0, 10), chunk(storage, 0, 10, topic=OTHER)]
        writer.commit(topics=[ORDERS, OTHER], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    storage.delete([receipts[1].segments[0].stem("invoices") + names.LOG])
    assert verify(Archive.open(storage), topics=lambda name: name == "orders").whole
    (fault,) = verify(Archive.open(storage)).faults
    assert (fault.topic, fault.what) == ("invoices", "the object is missing")


def test_holes_are_faults_and_recorded_gaps_are_not(storage: Storage) -> None:
    with begin(storage) as writer:
        lost = Receipt(gaps=(Gap(ID, 0, 20, 30, "retention"),))
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20), lost, chunk(storage, 30, 40)])
        assert verify(Archive.open(storage)).whole
        writer.commit(receipts=[chunk(storage, 50, 60)])
        (fault,) = verify(Archive.open(storage)).faults
        assert str(fault) == (
            f"{storage.uri}/topics/orders/{ID}/partition=0 (topic orders partition 0 offset 40): "
            "offsets [40, 50) are neither archived nor recorded as lost: a run did not finish, or had onDataLoss: Fail"
        )
        writer.commit(receipts=[Receipt((Coverage(ID, 0, 40, 50),))])
        assert verify(Archive.open(storage)).whole


def test_a_segment_must_begin_inside_its_coverage_however_many_parts_that_has(storage: Storage) -> None:
    """Looked for in all of them, these would take half a minute."""
    one = chunk(storage, 0, 10).segments[0]
    many = 30_000
    starts = [*range(0, 20 * many, 20), 20 * many]
    state = ArchiveState()
    state.add_facts(
        [ORDERS],
        [Coverage(ID, 0, start, start + 10) for start in starts[:-1]],
        [replace(one, base_offset=start, next_offset=start + 10) for start in starts],
        [],
    )
    state.add_facts((), (), [replace(one, base_offset=30, next_offset=40)], ())
    started = time.process_time()
    faults = [*check_continuity(storage, state, {ID: "orders"}, {})]
    assert time.process_time() - started < 10
    outside = [fault.offset for fault in faults if "it begins outside of its coverage" in fault.what]
    assert outside == [30, 20 * many]
    assert len(faults) == len(outside) + many - 1, "the rest are the holes between the parts"


def test_damage_to_the_catalog_is_named(storage: Storage) -> None:
    with begin(storage, checkpoints=CheckpointPolicy(commits=2)) as writer:
        writer.commit(topics=[ORDERS])
        for start in range(0, 40, 10):
            writer.commit(receipts=[chunk(storage, start, start + 10)])
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    assert verify(archive).whole
    first, *_ = (info.path for _, _, info in reversed(archive.listing().checkpoints))
    storage.put(first, storage.read(first)[:-1])
    (fault,) = verify(archive).faults
    assert (fault.object, fault.what) == (f"{storage.uri}/{first}", "its SHA-256 does not match its content")
    # A later checkpoint still knows the segments that a lost commit named: they are checked all the same.
    storage.delete([names.commit_path(2)])
    report = verify(archive)
    assert [fault.what.partition(":")[0] for fault in report.faults] == [
        "its SHA-256 does not match its content",
        "Commit 2 is missing",
    ]
    assert (report.segments, report.records) == (4, 40)
    storage.delete([info.path for _, _, info in archive.listing().checkpoints])
    assert len(verify(archive).faults) == 1
    assert verify(archive).segments == 0


def test_memory_stays_bounded_whatever_the_segment_holds(storage: Storage) -> None:
    """Damage near the front must not make the reader collect the rest of the object."""
    import tracemalloc

    batches = [Batch(number * 100, 100).encode() for number in range(3000)]
    entry = write_segment(storage, batches)
    assert entry.bytes > 5_000_000
    data = bytearray(storage.read(_log(entry)))
    data[30:4_000_000] = bytes(3_999_970)
    storage.put(_log(entry), bytes(data))
    del data, batches
    tracemalloc.start()
    lost: list[Range | None] = []
    for _ in read_segment(storage, "orders", entry, on_damage=lambda damage: lost.append(damage.lost), block=65536):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(lost) == 1
    assert peak < 1_500_000

"""From fetched bytes to segments of records: who owns a record, what is left out, where segments end."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Receipt
from logkeep_engine.backup.model.plan import REASON_RETENTION, Piece
from logkeep_engine.backup.pieces.losses import loses_records, refuse_losses
from logkeep_engine.backup.pieces.records import LossChecker, RecordChunkWriter
from logkeep_engine.backup.pieces.writer import BackupSetting, PieceWriter
from logkeep_engine.contract.archive_format import Compatibility, FormatName, FormatOptions
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, FormatLoss
from logkeep_engine.formats.base import Loss, LossKind
from logkeep_engine.formats.losses import dump_losses, load_losses, merge_losses
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.log.batch import seal
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import SMALL_RECORDS, task_bytes, unpacked_most
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import read_records
from tests.unit.backup.test_chunk_writer import (
    ABORT,
    COMMIT,
    TOPIC_ID,
    assert_committed_in_either_order,
    batch,
    marker,
)
from tests.unit.log import hostile

BOTH = pytest.mark.parametrize("name", [FormatName.RECORDS, FormatName.AVRO])


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}")


def setting(storage: Storage, name: FormatName, limit: int = 1 << 20) -> BackupSetting:
    connection = connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {})
    return BackupSetting(connection, storage, 7, limit, format=name)


def piece(start: int, end: int, done_below: int = 0) -> Piece:
    return Piece(0, "orders", TOPIC_ID, 0, start, end, 1, 1000, done_below)


def writer(
    storage: Storage,
    start: int,
    end: int,
    *,
    name: FormatName = FormatName.RECORDS,
    limit: int = 1 << 20,
    done_below: int = 0,
) -> RecordChunkWriter:
    return RecordChunkWriter(setting(storage, name, limit), piece(start, end, done_below), 0)


def absorb(chunk: PieceWriter, *batches: bytes, aborted: Sequence[tuple[int, int]] = ()) -> None:
    chunk.absorb(memoryview(b"".join(batches)), aborted)


def done(chunk: PieceWriter) -> Receipt:
    receipt = chunk.finish(chunk.piece.end)
    assert receipt is not None
    return receipt


def offsets(storage: Storage, receipt: Receipt) -> list[int]:
    parts = (read_records(storage, "orders", entry) for entry in receipt.segments)
    return [record.offset for part in itertools.chain.from_iterable(parts) for record in part]


def covered(receipt: Receipt) -> list[tuple[int, int]]:
    return [(item.start, item.end) for item in receipt.coverage]


@BOTH
def test_leader_epochs_are_noted_where_the_records_of_the_piece_begin(storage: Storage, name: FormatName) -> None:
    chunk = writer(storage, 5, 40, name=name)
    absorb(chunk, batch(0, leader_epoch=3), batch(10), batch(20, leader_epoch=4), batch(30, leader_epoch=4))
    assert [(item.epoch, item.start) for item in done(chunk).epochs] == [(3, 5), (4, 20)]


@BOTH
def test_records_of_all_batches_are_written(storage: Storage, name: FormatName) -> None:
    chunk = writer(storage, 0, 50, name=name)
    absorb(chunk, batch(0), batch(10, codec=Codec.ZSTD))
    absorb(chunk, batch(20, codec=Codec.LZ4), batch(30, codec=Codec.SNAPPY), batch(40, codec=Codec.GZIP))
    receipt = done(chunk)
    assert offsets(storage, receipt) == list(range(50))
    assert covered(receipt) == [(0, 50)]
    (entry,) = receipt.segments
    assert (entry.epoch, entry.topic_id, entry.records, entry.codecs) == (7, TOPIC_ID, 50, {})
    assert (chunk.records, chunk.bytes, chunk.at) == (50, entry.bytes, 50)


def taken(receipt: Receipt) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.next_offset) for entry in receipt.segments]


@BOTH
@pytest.mark.parametrize("limit", [1, 200, 1 << 20])
def test_neighbours_share_a_batch_between_them_record_by_record(storage: Storage, name: FormatName, limit: int) -> None:
    batches = [batch(0), batch(10), batch(20)]
    first, second = (writer(storage, *part, name=name, limit=limit) for part in ((0, 15), (15, 30)))
    absorb(first, *batches)
    absorb(second, *batches[1:])
    receipts = [done(first), done(second)]
    assert [offsets(storage, receipt) for receipt in receipts] == [list(range(15)), list(range(15, 30))]
    assert [covered(receipt) for receipt in receipts] == [[(0, 15)], [(15, 30)]]
    assert_committed_in_either_order(*receipts)


@BOTH
def test_compacted_batch_whose_records_all_lie_after_the_end_is_the_next_one_s(
    storage: Storage, name: FormatName
) -> None:
    compacted = encode([Record(18, 1_700_000_000_000, b"k", b"v")], codec=Codec.NONE, base_offset=10)
    first, second = writer(storage, 0, 15, name=name), writer(storage, 15, 30, name=name)
    absorb(first, compacted)
    absorb(second, compacted, batch(20))
    receipts = [done(first), done(second)]
    assert [taken(receipt) for receipt in receipts] == [[], [(18, 30)]]
    assert_committed_in_either_order(*receipts)


@pytest.mark.parametrize("removed_before", ["the first", "the second"])
def test_batch_that_compaction_removes_between_neighbours_takes_no_other_records_along(
    storage: Storage, removed_before: str
) -> None:
    batches = {"the first": batch(10), "the second": batch(10)} | {removed_before: b""}
    first, second = writer(storage, 0, 15), writer(storage, 15, 30)
    absorb(first, batch(0), batches["the first"])
    absorb(second, batches["the second"], batch(20))
    receipts = [done(first), done(second)]
    kept = range(15, 20) if removed_before == "the first" else range(10, 15)
    found = [offset for receipt in receipts for offset in offsets(storage, receipt)]
    assert found == [*range(10), *kept, *range(20, 30)]
    assert_committed_in_either_order(*receipts)


def test_aborted_batch_is_left_out_on_both_sides_of_a_bound(storage: Storage) -> None:
    batches = [batch(10, producer=1), marker(20, 1, ABORT), batch(21, 9)]
    first, second = writer(storage, 0, 15), writer(storage, 15, 30)
    absorb(first, batch(0), *batches, aborted=[(1, 10)])
    absorb(second, *batches, aborted=[(1, 10)])
    assert [offsets(storage, done(part)) for part in (first, second)] == [list(range(10)), list(range(21, 30))]


@pytest.mark.parametrize("log_start", [12, 15, 17])
def test_records_deleted_before_the_second_neighbour_fetches_change_nothing_for_it(
    storage: Storage, log_start: int
) -> None:
    first, second = writer(storage, 0, 15), writer(storage, 15, 30)
    absorb(first, batch(0), batch(10))
    second.skip_to(log_start, REASON_RETENTION)
    absorb(second, batch(10), batch(20))
    receipts = [done(first), done(second)]
    start = max(15, log_start)
    assert [offsets(storage, receipt) for receipt in receipts] == [list(range(15)), list(range(start, 30))]
    assert_committed_in_either_order(*receipts)


def test_piece_that_is_done_again_with_other_bounds_leaves_out_what_others_have(storage: Storage) -> None:
    batches = [batch(offset) for offset in range(0, 40, 10)]
    parts = [writer(storage, *bounds) for bounds in ((13, 27), (0, 13), (27, 40))]
    for part in parts:
        absorb(part, *batches)
    receipts = [done(part) for part in parts]
    assert sorted(offset for receipt in receipts for offset in offsets(storage, receipt)) == list(range(40))
    assert_committed_in_either_order(*receipts)


def test_any_split_of_a_partition_gives_the_same_records(tmp_path: Path) -> None:
    batches = [batch(offset, 7) for offset in range(0, 70, 7)]
    for cut in range(1, 70):
        storage = open_uri(f"file://{tmp_path}/{cut}")
        parts = [writer(storage, 0, cut), writer(storage, cut, 70)]
        for part in parts:
            absorb(part, *batches)
        assert [offset for part in parts for offset in offsets(storage, done(part))] == list(range(70))


def test_chunk_without_a_record_is_covered_without_a_segment(storage: Storage) -> None:
    chunk = writer(storage, 3, 12)
    absorb(chunk, batch(0, 3), marker(10, 1, COMMIT), marker(11, 2, ABORT))
    receipt = done(chunk)
    assert (covered(receipt), receipt.segments, storage.list()) == ([(3, 12)], (), [])


def test_log_start_inside_a_batch_keeps_its_records_from_there(storage: Storage) -> None:
    chunk = writer(storage, 4, 20)
    absorb(chunk, batch(0, codec=Codec.ZSTD), batch(10))
    receipt = done(chunk)
    assert offsets(storage, receipt) == list(range(4, 20))
    assert (receipt.segments[0].base_offset, covered(receipt)) == (4, [(4, 20)])


def test_batch_that_an_earlier_segment_holds_is_not_archived_again(storage: Storage) -> None:
    chunk = writer(storage, 4, 20, done_below=10)
    absorb(chunk, batch(0), batch(10))
    assert offsets(storage, done(chunk)) == list(range(10, 20))


def test_gap_ends_segment_and_coverage(storage: Storage) -> None:
    chunk = writer(storage, 0, 60)
    absorb(chunk, batch(0))
    chunk.skip_to(35, REASON_RETENTION)
    absorb(chunk, batch(30), batch(40), batch(50))
    receipt = done(chunk)
    assert covered(receipt) == [(0, 10), (35, 60)]
    assert [(gap.start, gap.end) for gap in receipt.gaps] == [(10, 35)]
    assert [(entry.base_offset, entry.next_offset) for entry in receipt.segments] == [(0, 10), (35, 60)]


@BOTH
def test_segments_end_with_the_record_that_passes_the_limit(storage: Storage, name: FormatName) -> None:
    chunk = writer(storage, 0, 400, name=name, limit=5000)
    for offset in range(0, 400, 100):
        absorb(chunk, batch(offset, 100))
    receipt = done(chunk)
    assert offsets(storage, receipt) == list(range(400))
    *full, last = receipt.segments
    assert len(full) > 1
    assert all(entry.bytes > 5000 for entry in full)
    assert any(entry.base_offset % 100 for entry in full), "in the middle of a batch"
    assert chunk.bytes == sum(entry.bytes for entry in (*full, last))


def test_aborted_records_and_markers_are_left_out(storage: Storage) -> None:
    chunk = writer(storage, 0, 100)
    absorb(
        chunk,
        batch(0, producer=1),
        batch(10, producer=2),
        marker(20, 1, ABORT),
        marker(21, 2, COMMIT),
        batch(22, producer=1),
        marker(32, 1, COMMIT),
        batch(33, producer=1),
        marker(43, 1, ABORT),
        batch(44),
        aborted=[(1, 0), (1, 33)],
    )
    receipt = done(chunk)
    assert offsets(storage, receipt) == [*range(10, 20), *range(22, 32), *range(44, 54)]
    assert all(entry.gaps and not entry.transactional and not entry.control for entry in receipt.segments)


def test_transaction_that_was_aborted_after_the_chunk_is_left_out(storage: Storage) -> None:
    chunk = writer(storage, 50, 70)
    absorb(chunk, batch(50, producer=1), batch(60, producer=2), aborted=[(1, 12)])
    assert offsets(storage, done(chunk)) == list(range(60, 70))


def test_a_marker_after_a_gap_says_nothing_of_what_lies_before_it(storage: Storage) -> None:
    """The marker of its transaction, and the beginning of another one, may have been in the gap."""
    chunk = writer(storage, 0, 100)
    absorb(chunk, batch(0, producer=1), batch(10, producer=2), aborted=[(1, 0)])
    chunk.skip_to(50, REASON_RETENTION)
    absorb(chunk, marker(50, 1, COMMIT), marker(51, 2, ABORT), batch(52))
    assert (chunk.must_restart, chunk.undecided, chunk.disagreements) == (False, frozenset(), ())
    assert offsets(storage, done(chunk)) == [*range(10, 20), *range(52, 62)]


def test_damaged_batch_keeps_what_lies_before_it(storage: Storage) -> None:
    damaged = bytearray(batch(20))
    damaged[-1] ^= 1
    chunk = writer(storage, 0, 40)
    with pytest.raises(CorruptBatch, match="offset 20"):
        absorb(chunk, batch(0), batch(10), bytes(damaged), batch(30))
    assert chunk.at == 20
    absorb(chunk, batch(20), batch(30))
    assert offsets(storage, done(chunk)) == list(range(40))


def test_batch_whose_records_do_not_rise_is_damage(storage: Storage) -> None:
    """Its CRC is right: a producer that is wrong has made it, and no broker has looked."""
    twisted = bytearray(encode([Record(0, 0, b"a", b"b"), Record(1, 0, b"a", b"b")], codec=Codec.NONE, base_offset=0))
    twisted[61 + 3] = 4  # the first record's offset delta: 2
    seal(twisted)
    chunk = writer(storage, 0, 10)
    with pytest.raises(CorruptBatch, match="do not have rising offsets from 0 to 1"):
        absorb(chunk, bytes(twisted))
    assert (chunk.at, storage.list()) == (0, [])


def test_batch_that_cannot_be_taken_apart_is_damage(storage: Storage) -> None:
    broken = bytearray(batch(0, codec=Codec.ZSTD))
    broken[70] ^= 0xFF
    seal(broken)
    chunk = writer(storage, 0, 10)
    with pytest.raises(CorruptBatch, match="offset 0"):
        absorb(chunk, bytes(broken))


def test_batch_that_overlaps_the_one_before_is_damage(storage: Storage) -> None:
    chunk = writer(storage, 0, 40)
    with pytest.raises(CorruptBatch, match="offset 15 reaches past offset 19"):
        absorb(chunk, batch(0), batch(10), batch(15))


HOSTILE = pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])


@BOTH
@HOSTILE
def test_batch_that_unpacks_to_too_much_is_refused_and_what_lies_before_it_is_kept(
    storage: Storage, name: FormatName, codec: Codec
) -> None:
    chunk = writer(storage, 0, 30, name=name)
    bomb = hostile.zeros(codec, base_offset=10)

    def refused() -> None:
        with pytest.raises(BatchTooLarge, match="The batch at offset 10 is too large to be unpacked"):
            absorb(chunk, batch(0), bomb, batch(11))

    assert hostile.peak_of(refused) < unpacked_most() + (8 << 20)
    assert chunk.at == 10
    receipt = chunk.finish(chunk.at)
    assert receipt is not None
    assert (offsets(storage, receipt), covered(receipt)) == (list(range(10)), [(0, 10)])


@BOTH
def test_batch_that_just_fits_is_archived_alone_whatever_else_continues(storage: Storage, name: FormatName) -> None:
    size = unpacked_most() - 100
    bomb = hostile.zeros(Codec.ZSTD, size, base_offset=10)
    chunks = [writer(storage, 0, 20 + at, name=name) for at in range(4)]

    def absorbed() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda chunk: absorb(chunk, batch(0), bomb, batch(11)), chunks))

    assert hostile.peak_of(absorbed) < task_bytes()
    for other in chunks[1:]:
        other.abort()
    receipt = done(chunks[0])
    values = [
        record.value or b""
        for entry in receipt.segments
        for part in read_records(storage, "orders", entry)
        for record in part
    ]
    assert [len(value) for value in values].count(size) == 1


@BOTH
def test_very_many_records_of_a_batch_are_never_there_at_once(storage: Storage, name: FormatName) -> None:
    count = 3 * SMALL_RECORDS
    chunk = writer(storage, 5, count + 100, name=name, limit=64 << 20)
    bomb = hostile.many(Codec.ZSTD, count)
    assert hostile.peak_of(lambda: absorb(chunk, bomb)) < 16 << 20
    receipt = done(chunk)
    assert (chunk.records, sum(entry.records for entry in receipt.segments)) == (count - 5, count - 5)


def test_large_batch_that_is_damaged_inside_leaves_nothing_of_itself(storage: Storage) -> None:
    whole = hostile.many(Codec.ZSTD, SMALL_RECORDS + 100, base_offset=10)
    damaged = bytearray(whole)
    damaged[57:61] = (SMALL_RECORDS + 101).to_bytes(4, "big")
    seal(damaged)
    chunk = writer(storage, 0, SMALL_RECORDS + 200)
    with pytest.raises(CorruptBatch, match="offset 10 is damaged"):
        absorb(chunk, batch(0), bytes(damaged))
    absorb(chunk, whole)
    assert offsets(storage, done(chunk)) == list(range(SMALL_RECORDS + 110))


def test_abort_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    chunk = writer(storage, 0, 30)
    absorb(chunk, batch(0))
    chunk.abort()
    absorb(chunk, batch(10))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_later_attempts_write_the_same_objects(storage: Storage) -> None:
    seen = []
    for attempt in (0, 1):
        chunk = RecordChunkWriter(setting(storage, FormatName.RECORDS), piece(0, 10), attempt)
        absorb(chunk, batch(0))
        done(chunk)
        seen.append({info.path: storage.read(info.path) for info in storage.list()})
    assert seen[0] == seen[1]


# ---- what a format cannot hold


def test_checker_counts_what_would_be_lost_and_writes_nothing(storage: Storage) -> None:
    values = [b"v", None, b"v", None, b"v"]
    records = [Record(5 + at, 1_700_000_000_000, b"k", value) for at, value in enumerate(values)]
    checker = LossChecker(setting(storage, FormatName.AVRO), piece(0, 20), 0)
    absorb(checker, encode(records, codec=Codec.NONE, base_offset=5))
    absorb(checker, encode([Record(10, 1, b"k", None)], codec=Codec.NONE, base_offset=10))
    checker.finish(20)
    assert checker.at == 20
    assert checker.losses == (Loss(LossKind.TOMBSTONE, "orders", 0, 3, 6),)
    assert storage.list() == []


def test_checkers_of_neighbours_count_every_record_once(storage: Storage) -> None:
    tombstones = encode([Record(10 + at, 1, b"k", None) for at in range(10)], codec=Codec.NONE, base_offset=10)
    found: list[Loss] = []
    for bounds in ((0, 15), (15, 30)):
        checker = LossChecker(setting(storage, FormatName.AVRO), piece(*bounds), 0)
        absorb(checker, tombstones)
        found += checker.losses
    assert [(loss.count, loss.offset) for loss in found] == [(5, 10), (5, 15)]


def test_checker_does_not_count_what_is_left_out_anyway(storage: Storage) -> None:
    aborted = encode([Record(0, 1, b"k", None)], codec=Codec.NONE, base_offset=0, producer_id=1, transactional=True)
    checker = LossChecker(setting(storage, FormatName.AVRO), piece(0, 20), 0)
    absorb(checker, aborted, marker(1, 1, ABORT), aborted=[(1, 0)])
    assert checker.losses == ()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (FormatName.KAFKA, FormatOptions(), False),
        (FormatName.RECORDS, FormatOptions(), False),
        (FormatName.AVRO, FormatOptions(), False),
        (FormatName.AVRO, FormatOptions(compatibility=Compatibility.LOSSLESS), False),
        (FormatName.AVRO, FormatOptions(compatibility=Compatibility.STRICT), True),
    ],
)
def test_only_strict_avro_is_looked_through(name: FormatName, options: FormatOptions, expected: bool) -> None:
    assert loses_records(name, options) is expected


LOSSES = (
    Loss(LossKind.TOMBSTONE, "orders", 1, 2, 7),
    Loss(LossKind.TIMESTAMP_TYPE, "orders", 0, 1, 30),
    Loss(LossKind.TOMBSTONE, "orders", 1, 5, 3),
)


def test_losses_are_one_fact_for_each_partition_and_kind_and_survive_their_file() -> None:
    merged = merge_losses(LOSSES)
    assert merged == (
        Loss(LossKind.TIMESTAMP_TYPE, "orders", 0, 1, 30),
        Loss(LossKind.TOMBSTONE, "orders", 1, 7, 3),
    )
    assert load_losses(dump_losses(merged)) == merged


def test_loss_that_is_not_allowed_is_refused_saying_what_where_and_how_often() -> None:
    spec = {
        "cluster": {"bootstrapServers": ["localhost:1"]},
        "topics": {"include": [".*"]},
        "storage": {"uri": "file:///archive"},
        "format": "Avro",
        "formatOptions": {"compatibility": "strict"},
    }
    with pytest.raises(FormatLoss) as caught:
        refuse_losses(merge_losses(LOSSES), parse_backup(spec))
    assert str(caught.value) == (
        "Format Avro cannot hold what 8 records carry: type of the timestamp in topic 'orders' partition 0, 1 record "
        "from offset 30 on; null value in topic 'orders' partition 1, 7 records from offset 3 on. Nothing was written. "
        "Use formatOptions.compatibility: lossless or format: Kafka, exclude the topic, or accept the loss with "
        "formatOptions.allowLoss: true."
    )
    allowed = {**spec, "formatOptions": {"compatibility": "strict", "allowLoss": True}}
    refuse_losses(merge_losses(LOSSES), parse_backup(allowed))

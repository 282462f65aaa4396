"""From fetched bytes to segments: who owns a batch, where segments end, what is written when the log moves."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, TopicEntry
from logkeep_engine.archive.catalog.receipts import ReceiptCheck
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import REASON_RETENTION, BackupPlan, Chunk, Piece, open_pieces, still_open
from logkeep_engine.backup.pieces.batches import ChunkWriter, trim
from logkeep_engine.backup.pieces.task import _archive
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.errors import CorruptBatch, LogDiverged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.fetched import Fetched
from logkeep_engine.limits import UNLIMITED
from logkeep_engine.log.batch import check_crc, parse_header, seal, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.segment import AbortedTxn, read_txn_index
from logkeep_engine.storage import Storage, open_uri

TOPIC_ID = "a" * 22
ABORT, COMMIT = 0, 1


def batch(
    offset: int, count: int = 10, *, producer: int = -1, codec: Codec = Codec.NONE, leader_epoch: int = -1
) -> bytes:
    records = [Record(offset + n, 1_700_000_000_000 + n, b"k", b"v%d" % (offset + n), ()) for n in range(count)]
    return encode(
        records,
        codec=codec,
        base_offset=offset,
        producer_id=producer,
        transactional=producer >= 0,
        leader_epoch=leader_epoch,
    )


def marker(offset: int, producer: int, kind: int) -> bytes:
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    data = bytearray(
        encode(
            [Record(offset, 1_700_000_000_000, key, b"\x00" * 6, ())],
            codec=Codec.NONE,
            base_offset=offset,
            producer_id=producer,
            transactional=True,
        )
    )
    data[22] |= 0x20
    seal(data)
    return bytes(data)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}")


def writer(
    storage: Storage,
    start: int,
    end: int,
    *,
    limit: int = 1 << 20,
    attempt: int = 0,
    done_below: int = 0,
    first: bool = False,
    leader_epoch: int = -1,
) -> ChunkWriter:
    connection = connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {})
    piece = Piece(0, "orders", TOPIC_ID, 0, start, end, 1, 1000, done_below, first, leader_epoch)
    return ChunkWriter(BackupSetting(connection, storage, 7, limit), piece, attempt)


def absorb(chunk: ChunkWriter, *batches: bytes, aborted: Sequence[tuple[int, int]] = ()) -> None:
    chunk.absorb(memoryview(b"".join(batches)), aborted)


def done(chunk: ChunkWriter) -> Receipt:
    receipt = chunk.finish(chunk.piece.end)
    assert receipt is not None
    return receipt


def written(storage: Storage, receipt: Receipt) -> bytes:
    return b"".join(storage.read(entry.stem("orders") + names.LOG) for entry in receipt.segments)


def covered(receipt: Receipt) -> list[tuple[int, int]]:
    return [(item.start, item.end) for item in receipt.coverage]


def assert_committed_in_either_order(*receipts: Receipt) -> None:
    for order in itertools.permutations(receipts):
        state = ArchiveState()
        state.add_facts([TopicEntry("orders", TOPIC_ID, 1, 1)], (), (), ())
        for receipt in order:
            assert ReceiptCheck(state, ()).why_not(receipt, 7) is None
            state.add_facts((), receipt.coverage, receipt.segments, receipt.gaps)


def test_batches_are_written_as_they_are(storage: Storage) -> None:
    chunk = writer(storage, 0, 30)
    absorb(chunk, batch(0), batch(10))
    absorb(chunk, batch(20))
    receipt = done(chunk)
    assert written(storage, receipt) == batch(0) + batch(10) + batch(20)
    assert covered(receipt) == [(0, 30)]
    assert (chunk.records, chunk.at) == (30, 30)
    assert {info.path.rsplit("/", 1)[1] for info in storage.list()} == {
        f"00000000000000000000.0000000007{suffix}" for suffix in (".log", ".index", ".timeindex")
    }


def test_neighbours_share_a_batch_between_them_by_its_base_offset(storage: Storage) -> None:
    batches = [batch(0), batch(10), batch(20)]
    first, second = writer(storage, 0, 15), writer(storage, 15, 30)
    absorb(first, *batches)
    absorb(second, *batches[1:])
    receipts = [done(first), done(second)]
    assert [written(storage, receipt) for receipt in receipts] == [batches[0] + batches[1], batches[2]]
    assert [covered(receipt) for receipt in receipts] == [[(0, 20)], [(20, 30)]]
    assert_committed_in_either_order(*receipts)


def test_chunk_inside_one_batch_settles_nothing(storage: Storage) -> None:
    chunk = writer(storage, 3, 7)
    absorb(chunk, batch(0))
    assert chunk.finish(7) is None


def test_offsets_that_compaction_left_empty_at_a_bound_are_settled_on_its_two_sides(storage: Storage) -> None:
    first, second = writer(storage, 0, 15), writer(storage, 15, 30)
    absorb(first, batch(0))
    absorb(second, batch(20))
    assert [covered(done(chunk)) for chunk in (first, second)] == [[(0, 15)], [(15, 30)]]


def test_log_start_inside_a_batch_keeps_its_records_from_there(storage: Storage) -> None:
    chunk = writer(storage, 4, 20, first=True)
    absorb(chunk, batch(0, codec=Codec.ZSTD), batch(10))
    receipt = done(chunk)
    log = written(storage, receipt)
    assert [r.offset for at, _ in walk(log) for r in decode(log, at)] == list(range(4, 20))
    assert log.endswith(batch(10))
    assert (receipt.segments[0].base_offset, covered(receipt)) == (4, [(4, 20)])


@dataclass(frozen=True)
class Log:
    """The log that a task finds."""

    batches: tuple[bytes, ...] = (batch(0), batch(10), batch(20))
    start: int = 0

    def read(self, chunk: ChunkWriter) -> None:
        chunk.skip_to(self.start, REASON_RETENTION)
        if chunk.at < chunk.piece.end:
            absorb(chunk, *(data for data in self.batches if parse_header(data).next_offset > chunk.at))
            chunk.reach_end()


def archive(storage: Storage, bounds: Sequence[int], logs: Sequence[Log], now: Log, *, backwards: bool) -> ArchiveState:
    """A run over chunks with these bounds: the task of each finds its own of `logs`, receipts come in the order of
    the chunks or backwards, and what is left is done again with the log as it is `now`.
    """
    chunks = tuple(Chunk("orders", TOPIC_ID, 0, start, end, 1, 1000) for start, end in itertools.pairwise(bounds))
    plan = BackupPlan("run", (), chunks)
    state = ArchiveState()
    state.add_facts([TopicEntry("orders", TOPIC_ID, 1, 1)], (), (), ())
    for attempt in itertools.count():
        pieces = list(open_pieces(plan, state))
        if not pieces:
            return state
        receipts = []
        for piece in pieces:
            chunk = ChunkWriter(writer(storage, 0, 1)._setting, piece, attempt)
            (now if attempt else logs[piece.number]).read(chunk)
            receipts.append(chunk.finish(piece.end))
        arrived = [receipt for receipt in receipts if receipt is not None]
        for receipt in still_open(arrived[::-1] if backwards else arrived, state):
            assert ReceiptCheck(state, ()).why_not(receipt, 7) is None
            state.add_facts((), receipt.coverage, receipt.segments, receipt.gaps)
    raise AssertionError


def kept(storage: Storage, state: ArchiveState) -> list[int]:
    logs = [storage.read(entry.stem("orders") + names.LOG) for entry in state.segments.get((TOPIC_ID, 0), ())]
    return [record.offset for log in logs for at, _ in walk(log) for record in decode(log, at)]


def lost(state: ArchiveState) -> set[int]:
    return {offset for gap in state.gaps.get((TOPIC_ID, 0), ()) for offset in range(gap.start, gap.end)}


BOUNDS = pytest.mark.parametrize("bounds", [(0, 15, 30), (0, 12, 15, 30)])


@BOUNDS
@pytest.mark.parametrize("log_start", [12, 15, 17, 25])
def test_log_start_that_moves_while_a_run_continues_costs_what_lies_below_it(
    storage: Storage, bounds: tuple[int, ...], log_start: int
) -> None:
    """DeleteRecords, also into the batch across a bound: some tasks have fetched before, others find the log of
    after."""
    before, after = Log(), Log(start=log_start)
    for number, logs in enumerate(itertools.product([before, after], repeat=len(bounds) - 1)):
        first = range(logs[0].start, 20)
        second = range(max(20, logs[-1].start), 30)
        gone = set(range(30)) - {*first, *second}
        for backwards in (False, True):
            folder = open_uri(f"{storage.uri}/{number}-{backwards}")
            state = archive(folder, bounds, logs, after, backwards=backwards)
            assert kept(folder, state) == [*first, *second]
            reported = lost(state)
            assert reported >= gone
            # A batch that was recorded as lost before the receipt of the chunk that has it still came stays so.
            assert reported <= gone | set(range(10, 20))
            assert backwards or reported == gone


@BOUNDS
def test_batch_across_a_bound_that_compaction_removes_while_a_run_continues_leaves_no_hole(
    storage: Storage, bounds: tuple[int, ...]
) -> None:
    before, after = Log(), Log((batch(0), batch(20)))
    for number, logs in enumerate(itertools.product([before, after], repeat=len(bounds) - 1)):
        for backwards in (False, True):
            folder = open_uri(f"{storage.uri}/{number}-{backwards}")
            state = archive(folder, bounds, logs, after, backwards=backwards)
            assert kept(folder, state) == [*range(10), *(range(10, 20) if logs[0] is before else ()), *range(20, 30)]
            assert (state.coverage[TOPIC_ID, 0], lost(state)) == ([(0, 30)], set())


def test_hole_of_a_chunk_that_failed_has_all_of_the_batch_across_its_end(storage: Storage) -> None:
    chunks = tuple(Chunk("orders", TOPIC_ID, 0, start, start + 15, 1, 1000) for start in (0, 15))
    state = ArchiveState()
    state.add_facts([TopicEntry("orders", TOPIC_ID, 1, 1)], (), (), ())
    second = writer(storage, 15, 30)
    Log().read(second)
    receipt = done(second)
    state.add_facts((), receipt.coverage, receipt.segments, ())
    pieces = list(open_pieces(BackupPlan("run", (), chunks), state))
    assert [(piece.start, piece.end, piece.first) for piece in pieces] == [(0, 15, True), (15, 20, False)]
    receipts = []
    for piece in pieces:
        chunk = ChunkWriter(second._setting, piece, 1)
        Log().read(chunk)
        receipts.append(chunk.finish(piece.end))
    assert receipts[1] is None
    assert receipts[0] is not None
    assert written(storage, receipts[0]) == batch(0) + batch(10)
    assert covered(receipts[0]) == [(0, 20)]


def test_hole_of_an_older_archive_whose_end_is_settled_already_is_archived_once(storage: Storage) -> None:
    """There the catalog accounts for all offsets of a chunk, also for those of a batch across its start."""
    state = ArchiveState()
    topic = TopicEntry("orders", TOPIC_ID, 1, 1)
    state.add_facts([topic], [Coverage(TOPIC_ID, 0, 15, 30)], (), ())
    (piece,) = open_pieces(BackupPlan("run", (), (Chunk("orders", TOPIC_ID, 0, 0, 15, 1, 1000),)), state)
    chunk = ChunkWriter(writer(storage, 0, 1)._setting, piece, 0)
    Log().read(chunk)
    (receipt,) = still_open([done(chunk)], state)
    assert ReceiptCheck(state, ()).why_not(receipt, 7) is None
    assert covered(receipt) == [(0, 15)]
    assert written(storage, receipt) == batch(0) + batch(10)


def test_batch_that_an_earlier_segment_holds_is_not_archived_again(storage: Storage) -> None:
    chunk = writer(storage, 4, 20, done_below=10)
    assert chunk.at == 10
    absorb(chunk, batch(0), batch(10))
    receipt = done(chunk)
    assert written(storage, receipt) == batch(10)
    assert covered(receipt) == [(4, 20)]


def test_gap_ends_segment_and_coverage(storage: Storage) -> None:
    chunk = writer(storage, 0, 60)
    absorb(chunk, batch(0))
    chunk.skip_to(35, REASON_RETENTION)
    absorb(chunk, batch(30), batch(40), batch(50))
    receipt = done(chunk)
    assert covered(receipt) == [(0, 10), (35, 60)]
    assert [(gap.start, gap.end, gap.reason) for gap in receipt.gaps] == [(10, 35, REASON_RETENTION)]
    assert [(entry.base_offset, entry.next_offset) for entry in receipt.segments] == [(0, 10), (35, 60)]


def test_gap_never_reaches_past_the_chunk(storage: Storage) -> None:
    chunk = writer(storage, 0, 20)
    chunk.skip_to(500, REASON_RETENTION)
    receipt = done(chunk)
    assert ([(gap.start, gap.end) for gap in receipt.gaps], receipt.coverage) == ([(0, 20)], ())


def test_segment_ends_before_the_batch_that_would_make_it_too_large(storage: Storage) -> None:
    size = len(batch(10))
    chunk = writer(storage, 10, 60, limit=2 * size)
    absorb(chunk, *(batch(offset) for offset in range(10, 60, 10)))
    receipt = done(chunk)
    assert [(entry.base_offset, entry.bytes) for entry in receipt.segments] == [
        (10, 2 * size),
        (30, 2 * size),
        (50, size),
    ]


def test_batch_larger_than_a_segment_has_one_of_its_own(storage: Storage) -> None:
    chunk = writer(storage, 0, 1020, limit=500)
    absorb(chunk, batch(0), batch(10, 1000), batch(1010))
    receipt = done(chunk)
    assert [entry.base_offset for entry in receipt.segments] == [0, 10, 1010]


def test_segment_ends_where_offsets_no_longer_fit_into_its_index(storage: Storage) -> None:
    chunk = writer(storage, 0, 2**33)
    absorb(chunk, batch(0), batch(2**31 - 10), batch(2**32))
    receipt = done(chunk)
    assert [entry.base_offset for entry in receipt.segments] == [0, 2**32]
    assert covered(receipt) == [(0, 2**33)]


def test_damaged_batch_keeps_what_lies_before_it(storage: Storage) -> None:
    damaged = bytearray(batch(20))
    damaged[-1] ^= 1
    chunk = writer(storage, 0, 40)
    with pytest.raises(CorruptBatch, match="offset 20"):
        absorb(chunk, batch(0), batch(10), bytes(damaged), batch(30))
    assert chunk.at == 20
    receipt = chunk.finish(chunk.at)
    assert receipt is not None
    assert covered(receipt) == [(0, 20)]
    assert written(storage, receipt) == batch(0) + batch(10)


def test_after_a_damaged_answer_the_same_batches_come_again(storage: Storage) -> None:
    damaged = bytearray(batch(10))
    damaged[-1] ^= 1
    chunk = writer(storage, 0, 30)
    with pytest.raises(CorruptBatch):
        absorb(chunk, batch(0), bytes(damaged))
    absorb(chunk, batch(10), batch(20))
    assert written(storage, done(chunk)) == batch(0) + batch(10) + batch(20)


def test_batch_that_overlaps_the_one_before_is_damage(storage: Storage) -> None:
    chunk = writer(storage, 0, 40)
    with pytest.raises(CorruptBatch, match="offset 15 reaches past offset 19"):
        absorb(chunk, batch(0), batch(10), batch(15))


def test_nothing_at_all_is_covered(storage: Storage) -> None:
    chunk = writer(storage, 0, 30)
    chunk.reach_end()
    receipt = done(chunk)
    assert (covered(receipt), receipt.segments, storage.list()) == ([(0, 30)], (), [])


def test_abort_leaves_no_log(storage: Storage) -> None:
    chunk = writer(storage, 0, 30)
    absorb(chunk, batch(0))
    chunk.abort()
    absorb(chunk, batch(10))
    assert storage.list() == []


def test_later_attempts_write_other_objects(storage: Storage) -> None:
    for attempt in (0, 1):
        chunk = writer(storage, 0, 10, attempt=attempt)
        absorb(chunk, batch(0))
        done(chunk)
    assert [info.path.rsplit("/", 1)[1] for info in storage.list() if info.path.endswith(".log")] == [
        "00000000000000000000.0000000007-1.log",
        "00000000000000000000.0000000007.log",
    ]


def epochs(receipt: Receipt) -> list[tuple[int, int]]:
    return [(item.epoch, item.start) for item in receipt.epochs]


def test_leader_epochs_are_noted_where_they_begin(storage: Storage) -> None:
    """Over several answers, in a batch that is cut at the log's start, and not for old batches, which have none."""
    chunk = writer(storage, 5, 80, first=True, leader_epoch=9)
    absorb(chunk, batch(0, leader_epoch=3), batch(10, leader_epoch=3))
    absorb(chunk, batch(20, leader_epoch=3), batch(30, leader_epoch=4), batch(40))
    absorb(chunk, batch(50, leader_epoch=4), batch(60, leader_epoch=9))
    assert epochs(done(chunk)) == [(3, 5), (4, 30), (4, 50), (9, 60)]


def test_batch_of_a_later_leader_than_the_planned_log_had_is_refused(storage: Storage) -> None:
    chunk = writer(storage, 0, 80, leader_epoch=4)
    absorb(chunk, batch(0, leader_epoch=3), batch(10, leader_epoch=4))
    with pytest.raises(LogDiverged, match=r"'orders' partition 0 was cut off.* offset 20 is of epoch 5"):
        absorb(chunk, batch(20, leader_epoch=5))


def test_piece_of_a_log_that_was_cut_off_settles_nothing(storage: Storage) -> None:
    log = b"".join([batch(0, leader_epoch=4), batch(10, leader_epoch=5)])

    class Client:
        def stream(self, *_: object, **__: object) -> AsyncGenerator[Fetched, None]:
            async def one() -> AsyncGenerator[Fetched, None]:
                yield Fetched(memoryview(log), 20, 20, 20, 0, by_id=True)

            return one()

    chunk = writer(storage, 0, 20, leader_epoch=4)
    found = asyncio.run(_archive(cast(RawClient, Client()), chunk, UNLIMITED, 1000))
    assert (found.receipt, type(found.failure)) == (None, LogDiverged)


def transactions(storage: Storage, receipt: Receipt) -> list[list[tuple[int, int, int]]]:
    """Per segment (producer, first, last)."""
    found: list[list[AbortedTxn]] = [
        read_txn_index(storage.read(entry.stem("orders") + names.TXNINDEX)) if entry.files.txnindex_bytes else []
        for entry in receipt.segments
    ]
    return [[(txn.producer_id, txn.first_offset, txn.last_offset) for txn in segment] for segment in found]


def test_aborted_transactions_are_indexed_with_their_markers(storage: Storage) -> None:
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
        aborted=[(1, 0), (1, 33)],
    )
    assert transactions(storage, done(chunk)) == [[(1, 0, 20), (1, 33, 43)]]


def test_transaction_that_began_before_the_chunk_has_its_true_first_offset(storage: Storage) -> None:
    chunk = writer(storage, 50, 100)
    absorb(chunk, batch(50, producer=1), marker(60, 1, ABORT), aborted=[(1, 12)])
    assert transactions(storage, done(chunk)) == [[(1, 12, 60)]]


def test_aborted_records_are_known_in_every_segment_that_has_some(storage: Storage) -> None:
    size = len(batch(10, producer=1))
    chunk = writer(storage, 0, 30, limit=size)
    absorb(chunk, batch(0, producer=1), batch(10, producer=1), batch(20, producer=2), aborted=[(1, 0)])
    assert transactions(storage, done(chunk)) == [[(1, 0, 9)], [(1, 0, 19)], []]


def test_what_the_lists_leave_out_is_indexed_by_the_markers(storage: Storage) -> None:
    size = len(batch(10, producer=1))
    chunk = writer(storage, 0, 50, limit=size)
    absorb(chunk, batch(0, producer=1), batch(10, producer=2))
    absorb(chunk, marker(20, 1, ABORT), marker(21, 2, COMMIT), batch(22, producer=1), marker(32, 1, ABORT))
    found = transactions(storage, done(chunk))
    assert list(itertools.chain.from_iterable(found)) == [(1, 0, 20), (1, 22, 32)]
    assert [str(item) for item in chunk.disagreements] == [
        (
            f"the broker did not name the transaction of producer 1 with offsets {span} as aborted, but its ABORT "
            "marker does"
        )
        for span in ("0 to 20", "22 to 32")
    ]


def test_what_the_lists_name_and_a_marker_commits_is_not_indexed(storage: Storage) -> None:
    chunk = writer(storage, 0, 50)
    absorb(chunk, batch(0, producer=1), marker(10, 1, COMMIT), batch(11), aborted=[(1, 0)])
    assert transactions(storage, done(chunk)) == [[]]
    assert [str(item) for item in chunk.disagreements] == [
        "the broker named the transaction of producer 1 with offsets 0 to 10 as aborted, but its COMMIT marker does not"
    ]


def test_empty_aborted_transaction_is_not_indexed(storage: Storage) -> None:
    chunk = writer(storage, 0, 1)
    absorb(chunk, marker(0, 1, ABORT))
    assert transactions(storage, done(chunk)) == [[]]


def test_trimmed_batch_keeps_what_it_was() -> None:
    records = [Record(100 + n, 1_700_000_000_000 + n, b"k%d" % n, None, ((b"h", b"x"),)) for n in range(10)]
    original = bytearray(
        encode(
            records, codec=Codec.LZ4, base_offset=100, producer_id=9, producer_epoch=2, base_sequence=2**31 - 3,
            transactional=True, leader_epoch=5,
        )
    )  # fmt: skip
    trimmed = trim(memoryview(original), 106)
    assert trimmed is not None
    header = parse_header(trimmed)
    check_crc(trimmed, 0, header)
    assert decode(trimmed) == records[6:]
    assert (header.base_offset, header.codec, header.producer_id, header.producer_epoch) == (106, Codec.LZ4, 9, 2)
    assert (header.base_sequence, header.is_transactional, header.leader_epoch) == (3, True, 5)


def test_trimmed_batch_keeps_its_append_time() -> None:
    original = bytearray(batch(0))
    original[22] |= 0x08
    seal(original)
    trimmed = trim(memoryview(original), 5)
    assert trimmed is not None
    assert parse_header(trimmed).is_log_append_time
    assert [record.timestamp for record in decode(trimmed)] == [parse_header(original).max_timestamp] * 5


def test_trimming_everything_leaves_no_batch() -> None:
    assert trim(memoryview(batch(0)), 10) is None


@dataclass(frozen=True)
class Answers:
    """A client with one answer. A real broker asks to be read by name only if it has followers in other racks."""

    fetched: Fetched

    async def stream(self, *_: object, **__: object) -> AsyncGenerator[Fetched, None]:
        yield self.fetched


@pytest.mark.parametrize("by_id", [True, False])
def test_it_is_told_whether_a_topic_was_read_by_name(storage: Storage, by_id: bool) -> None:
    answer = Fetched(memoryview(batch(0)), 10, 10, 10, 0, by_id=by_id)
    done = asyncio.run(_archive(cast(RawClient, Answers(answer)), writer(storage, 0, 10), UNLIMITED, 1 << 20))
    assert done.by_name is not by_id
    assert done.receipt is not None
    assert [segment.records for segment in done.receipt.segments] == [10]

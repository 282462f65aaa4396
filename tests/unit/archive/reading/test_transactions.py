"""How transactions ended, by markers and indexes, held against the truth of logs that are made up.

The log is made first, with the true end of each transaction. Then it is cut into pieces and segments as a backup does,
by the backup's own writer, with lists of aborted transactions of which some entries are missing; then some of it is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.maintenance.segment_check import check_segment
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.outcomes import aborted_in, segment_transactions
from logkeep_engine.archive.reading.transactions import fold
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.batches import ChunkWriter
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import LocalStorage, Storage
from tests.examples import number
from tests.unit.archive.build import transaction_index, verify_segment, write_segment
from tests.unit.log.batches import batch, marker
from tests.unit.log.made_logs import Log, make_log

TOPIC_ID = "a" * 22
KEPT: Sequence[Range] = [(0, 1 << 40)]
SEEDS = number(15, deep=300)


def archive(storage: Storage, log: Log, random: Random, listed: Callable[[int, int, int], bool]) -> list[SegmentEntry]:
    """The log as several pieces of one or two runs write it. `listed(producer, first, at)`: the fetch at this offset
    names the transaction."""
    bounds = sorted({0, log.end, *(random.randrange(log.end) for _ in range(random.randint(0, 3)))})
    connection = connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {})
    second_run = random.choice(bounds)
    entries: list[SegmentEntry] = []
    for start, end in pairwise(bounds):
        setting = BackupSetting(
            connection, storage, 1 if start < second_run else 2, random.choice([1, 300, 1000, 1 << 20])
        )
        writer = ChunkWriter(setting, Piece(0, "orders", TOPIC_ID, 0, start, end, 1, 1000), 0)
        mine = [item for item in log.items if start <= item.offset < end]
        while mine:
            fetch, mine = mine[: (count := random.randint(1, 10))], mine[count:]
            low, high = fetch[0].offset, fetch[-1].next_offset
            named = [item for item in log.named(low, high) if listed(*item, low)]
            writer.absorb(memoryview(b"".join(item.data for item in fetch)), named)
        receipt = writer.finish(end)
        entries += receipt.segments if receipt is not None else ()
    return entries


def seen(log: Log, entries: Sequence[SegmentEntry], aborted: Sequence[AbortedTxn]) -> dict[int, set[bool]]:
    """The transactions with batches in the segments, and whether a reader takes the batches of each for aborted."""
    spans, found = Spans.of(aborted), dict[int, set[bool]]()
    for item in log.items:
        there = any(entry.base_offset <= item.offset < entry.next_offset for entry in entries)
        if there and item.transaction >= 0:
            found.setdefault(item.transaction, set()).add(parse_header(item.data) in spans)
    return found


def truth(log: Log, numbers: Sequence[int]) -> dict[int, set[bool]]:
    return {number: {log.aborted[number]} for number in numbers}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path.as_uri())


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_where_the_markers_are_archived_no_list_is_needed(storage: Storage, seed: int) -> None:
    random = Random(seed)
    log = make_log(random)
    missed = {key for key in log.first if random.random() < 0.6}
    first = {(log.producers[key], log.first[key]) for key in missed}
    entries = archive(storage, log, random, lambda producer, offset, at: (producer, offset) not in first)
    aborted, outcomes = aborted_in(storage, "orders", entries, KEPT)
    found = seen(log, entries, aborted)
    assert found == truth(log, list(found))
    assert outcomes.undecided == ()
    for entry in entries:
        assert verify_segment(storage, "orders", entry) == []
        # A pass over the log says one thing, and the objects beside it may say another.
        assert segment_transactions(storage, "orders", entry) == check_segment(storage, "orders", entry).transactions
    for item in outcomes.disagreements:
        assert item.aborted
        assert (item.producer_id, item.first_offset) in first


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_lists_that_come_and_go_from_fetch_to_fetch_change_nothing(storage: Storage, seed: int) -> None:
    random = Random(seed)
    log = make_log(random)
    entries = archive(storage, log, random, lambda producer, offset, at: Random(seed + at + offset).random() < 0.5)
    found = seen(log, entries, aborted_in(storage, "orders", entries, KEPT)[0])
    assert found == truth(log, list(found))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_list_that_names_what_was_committed_is_overruled(storage: Storage, seed: int) -> None:
    random = Random(seed)
    log = make_log(random)
    lie = replace(log, aborted=dict.fromkeys(log.aborted, True))
    entries = archive(storage, lie, random, lambda producer, offset, at: True)
    found = seen(log, entries, aborted_in(storage, "orders", entries, KEPT)[0])
    assert found == truth(log, list(found))
    for entry in entries:
        assert verify_segment(storage, "orders", entry) == []


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_where_markers_are_not_archived_the_index_decides(storage: Storage, seed: int) -> None:
    """A run failed: any of the segments are missing, at the end or in between."""
    random = Random(seed)
    log = make_log(random)
    entries = archive(storage, log, random, lambda producer, offset, at: True)
    left = [entry for entry in entries if random.random() < 0.6]
    kept = [(entry.base_offset, entry.next_offset) for entry in left]
    aborted, outcomes = aborted_in(storage, "orders", left, kept)
    found = seen(log, left, aborted)
    assert found == truth(log, list(found))
    assert outcomes.undecided == ()
    assert outcomes.disagreements == ()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_taken_for_what_it_is_not_without_index_and_marker(storage: Storage, seed: int) -> None:
    """Segments are missing, and indexes of others are lost: what it is unknown is left out, and said."""
    random = Random(seed)
    log = make_log(random)
    entries = [
        entry for entry in archive(storage, log, random, lambda producer, offset, at: True) if random.random() < 0.7
    ]
    index: list[AbortedTxn] = []
    said: list[SegmentTransactions] = []
    for entry in entries:
        if entry.files.txnindex_bytes and random.random() < 0.5:
            storage.delete([entry.stem("orders") + names.TXNINDEX])
        else:
            index += transaction_index(storage, "orders", entry)
        transactions = check_segment(storage, "orders", entry).transactions
        assert transactions is not None
        said.append(transactions)
    outcomes = fold(said, [(entry.base_offset, entry.next_offset) for entry in entries])
    unknown, aborted = Spans.of(outcomes.undecided), Spans.of(outcomes.aborted(index))
    for item in log.items:
        header = parse_header(item.data)
        there = any(entry.base_offset <= item.offset < entry.next_offset for entry in entries)
        if there and item.transaction >= 0:
            assert (header in aborted) is (header in unknown or log.aborted[item.transaction])


def written(storage: Storage, *logs: Sequence[bytes], epochs: Sequence[int] = ()) -> list[SegmentEntry]:
    """Segments whose `.txnparts` are gone, with empty indexes."""
    return [
        write_segment(storage, log, epoch=epoch, compression=Compression.ZSTD)
        for log, epoch in zip(logs, epochs or [1] * len(logs), strict=True)
    ]


def data(offset: int, producer: int = 7) -> bytes:
    return batch(offset, producer_id=producer, transactional=True)


def spans(found: Sequence[AbortedTxn]) -> list[tuple[int, int]]:
    return [(txn.first_offset, txn.last_offset) for txn in found]


def test_a_marker_decides_where_an_index_is_empty(storage: Storage) -> None:
    ends = [marker(3, 7, commit=False), marker(4, 8, commit=True)]
    entries = written(storage, [data(0), data(1, 8)], [data(2)], ends)
    aborted, outcomes = aborted_in(storage, "orders", entries, KEPT)
    assert spans(aborted) == [(0, 3)]
    assert [str(item) for item in outcomes.disagreements] == [
        "the transaction of producer 7 with offsets 0 to 3 ends with an ABORT marker, but the transaction index has it "
        "as committed: the marker holds"
    ]


@pytest.mark.parametrize(
    ("kept", "known"),
    [
        ([(0, 7)], [(0, 5)]),  # compaction has removed 1 to 4
        ([(0, 1), (5, 7)], []),
        ([(0, 3), (4, 7)], []),
        ([], []),
    ],
)
def test_a_marker_after_a_hole_decides_nothing_before_it(
    storage: Storage, kept: list[Range], known: list[tuple[int, int]]
) -> None:
    entries = written(storage, [data(0)], [marker(5, 7, commit=False), batch(6)])
    assert spans(aborted_in(storage, "orders", entries, kept)[0]) == known


@pytest.mark.parametrize(("epochs", "known"), [((1, 1), [(0, 6)]), ((1, 2), [(5, 6)])])
def test_compaction_between_two_runs_may_have_taken_a_marker_and_a_beginning(
    storage: Storage, epochs: tuple[int, int], known: list[tuple[int, int]]
) -> None:
    """The records of offset 0 were committed, perhaps, by a marker at offset 2 that had gone when the rest was read."""
    entries = written(storage, [data(0)], [batch(1), data(5), marker(6, 7, commit=False)], epochs=epochs)
    assert spans(aborted_in(storage, "orders", entries, KEPT)[0]) == known
    dense = written(
        storage, [data(0)], [batch(1), *map(batch, range(2, 5)), data(5), marker(6, 7, commit=False)], epochs=epochs
    )
    assert spans(aborted_in(storage, "orders", dense, KEPT)[0]) == [(0, 6)]


def test_an_object_that_saves_reading_is_not_believed_when_it_was_altered(storage: Storage) -> None:
    log = make_log(Random(1))
    first, *_ = archive(storage, log, Random(3), lambda producer, offset, at: True)
    path = first.stem("orders") + names.TXNPARTS
    whole = storage.read(path)
    said = segment_transactions(storage, "orders", first)
    for altered in (whole[:-1], whole.replace(b'"epoch":1', b'"epoch":3'), b"{}", b"[]", b""):
        storage.put(path, altered)
        assert segment_transactions(storage, "orders", first) == said
        (fault,) = verify_segment(storage, "orders", first)
        assert fault.what == "it differs from the log; it can be deleted, since the log holds the same"
    storage.delete([path])
    assert segment_transactions(storage, "orders", first) == said
    assert verify_segment(storage, "orders", first) == []

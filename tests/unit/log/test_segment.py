"""Segments and their indexes, by the rules of Kafka's `LogSegment`."""

import struct

import pytest

from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import Codec, headers_of, parse_header, walk
from logkeep_engine.log.segment import (
    AbortedTxn,
    OffsetEntry,
    SegmentBuilder,
    SegmentSummary,
    TimeEntry,
    find_offset,
    find_time,
    read_offset_index,
    read_time_index,
    read_txn_index,
)
from logkeep_engine.log.transactions import TransactionTracker
from tests.unit.log.batches import NOON, batch, build_indexes, marker, with_header
from tests.unit.log.test_records import GOLDEN


def build(*batches: bytes, base_offset: int = 0, interval: int = 4096) -> tuple[SegmentSummary, bytes]:
    written = bytearray()
    builder = SegmentBuilder(base_offset, written.extend, index_interval_bytes=interval)
    run = b"".join(batches)
    builder.append(memoryview(run), headers_of(walk(run)))
    return builder.finish(), bytes(written)


def test_summary_says_what_the_segment_holds() -> None:
    log = [batch(100, 3), batch(103, 2, codec=Codec.ZSTD, timestamp=NOON - 50), batch(105, codec=Codec.ZSTD)]
    summary, written = build(*log, base_offset=100)
    assert written == b"".join(log)
    assert summary == SegmentSummary(
        base_offset=100,
        next_offset=106,
        records=6,
        batches=3,
        bytes=len(written),
        min_base_timestamp=NOON - 50,
        max_timestamp=NOON + 2,
        codecs={"none": 1, "zstd": 2},
        transactional=False,
        control=False,
        gaps=False,
        append_time=False,
        legacy=False,
        max_batch_bytes=max(map(len, log)),
        index=b"",
        timeindex=struct.pack(">qi", NOON + 2, 2),
        txnindex=b"",
    )


def test_summary_does_not_depend_on_how_the_runs_were_cut() -> None:
    log = [batch(i * 3, 3, timestamp=NOON + i % 7, value=bytes(i * 10)) for i in range(40)]
    whole, _ = build(*log, interval=500)
    written = bytearray()
    builder = SegmentBuilder(0, written.extend, index_interval_bytes=500)
    held = b"".join(log)
    for start, end in ((0, 1), (1, 17), (17, 17), (17, 40)):
        run_start, run_end = len(b"".join(log[:start])), len(b"".join(log[:end]))
        run = memoryview(held)[run_start:run_end]
        builder.append(run, headers_of(entry for entry in walk(held, run_start) if entry[0] < run_end))
        assert (builder.size, builder.next_offset) == (run_end, end * 3)
    assert builder.finish() == whole


def test_empty_segment_is_possible() -> None:
    summary = SegmentBuilder(9, lambda _: None).finish()
    assert (summary.base_offset, summary.next_offset, summary.bytes, summary.batches) == (9, 9, 0, 0)
    assert (summary.min_base_timestamp, summary.max_timestamp, summary.max_batch_bytes) == (-1, -1, 0)
    assert summary.index == summary.timeindex == summary.txnindex == b""
    assert not summary.gaps


def test_control_records_do_not_count_as_records() -> None:
    summary, _ = build(batch(0, 2, producer_id=5, transactional=True), marker(2, 5, commit=True))
    assert (summary.records, summary.batches, summary.transactional, summary.control) == (2, 2, True, True)
    assert not summary.gaps


@pytest.mark.parametrize(
    ("log", "gaps"),
    [
        ([batch(0, 2), batch(2)], False),
        ([batch(0, 2), batch(3)], True),
        ([batch(1)], True),
        ([with_header(batch(0, 2), last_offset_delta=5), batch(6)], True),
    ],
)
def test_offsets_without_a_record_are_gaps(log: list[bytes], gaps: bool) -> None:
    assert build(*log)[0].gaps is gaps


def test_times_are_those_a_consumer_sees() -> None:
    appended = with_header(batch(0, 2, timestamp=5), attributes=0x08, max_timestamp=NOON)
    summary, _ = build(appended)
    assert (summary.append_time, summary.min_base_timestamp, summary.max_timestamp) == (True, NOON, NOON)
    cleaned = with_header(batch(0, 2), attributes=0x40, base_timestamp=NOON + 10**9)
    assert build(cleaned)[0].min_base_timestamp == NOON + 1
    emptied = batch(5)[:8] + struct.pack(">i", 49) + batch(5)[12:61]
    emptied = with_header(emptied, record_count=0, base_timestamp=-1)
    assert build(batch(0), emptied)[0].min_base_timestamp == NOON


def test_old_messages_are_marked_as_legacy() -> None:
    summary, _ = build(bytes.fromhex(GOLDEN["magic1-lz4-append"]), base_offset=41)
    assert (summary.legacy, summary.append_time, summary.records, summary.next_offset) == (True, True, 4, 45)
    assert (summary.gaps, summary.codecs, summary.control, summary.transactional) == (False, {"lz4": 1}, False, False)


def test_index_entry_comes_with_the_first_batch_after_more_than_an_interval() -> None:
    log = [batch(1000 + i) for i in range(7)]
    size = len(log[0])
    exact, _ = build(*log, base_offset=1000, interval=2 * size)
    # Two batches are not more than the interval: the third passes it, so that the fourth (position 3) is indexed.
    assert read_offset_index(exact.index, 1000) == [OffsetEntry(1003, 3 * size), OffsetEntry(1006, 6 * size)]
    less, _ = build(*log, base_offset=1000, interval=2 * size - 1)
    assert [entry.offset for entry in read_offset_index(less.index, 1000)] == [1002, 1004, 1006]
    assert exact.index[:8] == struct.pack(">ii", 3, 3 * size)


def test_time_index_holds_rising_maxima_and_one_at_the_end() -> None:
    times = [5, 9, 7, 9, 8, 12, 11]
    log = [batch(i, timestamp=NOON + time) for i, time in enumerate(times)]
    summary, _ = build(*log, interval=1)
    assert read_time_index(summary.timeindex) == [(NOON + 9, 1), (NOON + 12, 5)]
    sparse, _ = build(*log, interval=10_000)
    assert sparse.index == b""
    assert read_time_index(sparse.timeindex) == [TimeEntry(NOON + 12, 5)]


def test_records_without_a_time_leave_the_time_index_empty() -> None:
    assert build(batch(0, timestamp=-1), interval=1)[0].timeindex == b""


def test_indexes_can_be_made_again_from_the_log() -> None:
    log = b"".join(batch(50 + i * 4, 4, timestamp=NOON + i * 37 % 11) for i in range(60))
    summary, _ = build(log, base_offset=50, interval=300)
    index, timeindex = build_indexes(log, 50, index_interval_bytes=300)
    assert (index, timeindex) == (summary.index, summary.timeindex)
    assert len(index) > 8 * 10


def test_aborted_transactions_are_written_in_marker_order() -> None:
    builder = SegmentBuilder(10, lambda _: None)
    entries = [AbortedTxn(7, 3, 12, 13), AbortedTxn(8, 11, 14, 15)]
    for entry in entries:
        builder.add_aborted(entry)
    for late in (AbortedTxn(9, 1, 14, 15), AbortedTxn(9, 1, 13, 15)):
        with pytest.raises(ValueError, match="out of order"):
            builder.add_aborted(late)
    written = builder.finish().txnindex
    assert written[:34] == struct.pack(">hqqqq", 0, 7, 3, 12, 13)
    assert read_txn_index(written) == entries
    with pytest.raises(ValueError, match="below the segment"):
        SegmentBuilder(10, lambda _: None).add_aborted(AbortedTxn(1, 2, 9, 10))


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(CorruptBatch, match="offset 1 follows offset 1"):
        build(batch(0, 2), batch(1))
    with pytest.raises(CorruptBatch, match="offset 4 follows offset 4"):
        build(batch(4), base_offset=5)


def test_headers_must_describe_the_run() -> None:
    run = memoryview(batch(0) + batch(1) + batch(2))
    entries = headers_of(walk(run))
    for wrong_run, wrong in ((run, entries[:2]), (run[:-1], entries), (run, entries[:0])):
        with pytest.raises(ValueError, match=f"{len(wrong_run)} bytes with headers of {wrong.size}"):
            SegmentBuilder(0, lambda _: None).append(wrong_run, wrong)
    with pytest.raises(
        ValueError, match=f"offset 2 is at {2 * len(run) // 3}, its predecessor ends at {len(run) // 3}"
    ):
        headers_of([entries[0], entries[2]])


def test_codec_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="codec"):
        build(with_header(batch(0), attributes=5))


def test_far_offsets_need_another_segment() -> None:
    builder = SegmentBuilder(0, lambda _: None)
    near, far = batch(2**31 - 1), batch(2**31)
    assert builder.last_possible_offset == parse_header(near).last_offset
    with pytest.raises(ValueError, match="too far"):
        builder.append(memoryview(far), headers_of(walk(far)))
    assert builder.bytes_left == 2**31 - 1
    builder.append(memoryview(near), headers_of(walk(near)))
    assert builder.bytes_left == 2**31 - 1 - len(near)


def test_partial_or_unknown_index_entries_are_refused() -> None:
    for read, size in ((read_offset_index, 8), (read_time_index, 12), (read_txn_index, 34)):
        assert read(b"") == []
        with pytest.raises(CorruptIndex, match=f"multiple of {size}"):
            read(bytes(size + 1))
    with pytest.raises(CorruptIndex, match="version 1"):
        read_txn_index(struct.pack(">hqqqq", 1, 0, 0, 0, 0))


def test_tracker_finds_aborted_transactions_and_the_last_stable_offset() -> None:
    log = b"".join(
        [
            batch(0, producer_id=1, transactional=True),
            batch(1, producer_id=2, transactional=True),
            batch(2, producer_id=9),  # idempotent, in no transaction
            batch(3, producer_id=1, transactional=True),
            marker(4, 1, commit=False),
            marker(5, 3, commit=False),  # wrote nothing to this partition
            marker(6, 2, commit=True),
            batch(7, producer_id=1, transactional=True),
            marker(8, 1, commit=False),
            batch(9, producer_id=4, transactional=True),
        ]
    )
    tracker = TransactionTracker()
    found = [tracker.observe(log, pos, header) for pos, header in walk(log)]
    assert [txn for txn in found if txn] == [AbortedTxn(1, 0, 4, 1), AbortedTxn(1, 7, 8, 9)]
    assert tracker.open_transactions == {4: 9}


def test_tracker_takes_over_what_was_open() -> None:
    tracker = TransactionTracker({1: 80, 2: 90})
    log = marker(100, 1, commit=False)
    assert tracker.observe(log, 0, parse_header(log)) == AbortedTxn(1, 80, 100, 90)


def test_an_index_is_searched_without_being_read_whole() -> None:
    times = [NOON, NOON + 500, NOON + 400, NOON + 900]
    summary, _ = build(
        *(batch(1000 + 10 * at, 10, timestamp=times[at % 4] + at) for at in range(60)), base_offset=1000, interval=500
    )
    offsets, moments = read_offset_index(summary.index, 1000), read_time_index(summary.timeindex, 1000)
    assert len(offsets) > 10
    assert len(moments) > 5
    for offset in range(990, 1610):
        below = [entry for entry in offsets if entry.offset <= offset]
        assert find_offset(summary.index, 1000, offset) == (below[-1] if below else None)
    for time in range(NOON - 5, NOON + 1000):
        before = [entry for entry in moments if entry.timestamp < time]
        assert find_time(summary.timeindex, 1000, time) == (before[-1] if before else None)
    assert find_offset(b"", 0, 5) is None
    assert find_time(b"", 0, 5) is None
    with pytest.raises(CorruptIndex):
        find_offset(summary.index[:-1], 1000, 1)
    with pytest.raises(CorruptIndex):
        find_time(summary.timeindex[:-1], 1000, 1)

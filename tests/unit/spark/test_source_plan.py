"""Which reads of an archive a read needs, from the catalog's facts alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql.datasource import EqualTo

from logkeep_engine.archive.catalog.entry import KafkaFiles, Layout, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.digest import Digest
from logkeep_engine.errors import NoTopicMatches
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source_options import SourceOptions, WantedRecords
from logkeep_engine.spark.source_plan import SegmentRead, plan
from tests.unit.archive.build import changed

ORDERS = TopicEntry("orders", "AAAAAAAAAAAAAAAAAAAAAQ", 2, 1)
OLD_ORDERS = TopicEntry("orders", "AAAAAAAAAAAAAAAAAAAAAA", 3, 1)
PAYMENTS = TopicEntry("payments", "AAAAAAAAAAAAAAAAAAAAAg", 1, 1)
ALL = SourceOptions("file:///archive")
MIB = 1 << 20


def segment(base: int, topic: TopicEntry = ORDERS, partition: int = 0, **changes: object) -> SegmentEntry:
    """100 offsets, whose times are those offsets."""
    entry = SegmentEntry(
        topic_id=topic.topic_id,
        partition=partition,
        epoch=1,
        attempt=0,
        base_offset=base,
        next_offset=base + 100,
        records=100,
        batches=10,
        bytes=10 * MIB,
        digest=Digest.of(b""),
        codecs={"none": 10},
        max_batch_bytes=MIB,
        times=SegmentTimes(base, base + 99),
        files=KafkaFiles(index_bytes=8, timeindex_bytes=12),
    )
    return changed(entry, **changes)


def state(*entries: SegmentEntry) -> ArchiveState:
    found = ArchiveState()
    found.add_facts([OLD_ORDERS, PAYMENTS, ORDERS], (), entries, ())
    return found


def nothing_aborted(topic: TopicEntry, entries: Sequence[SegmentEntry]) -> Sequence[AbortedTxn]:
    raise AssertionError("no transaction index is read where there are no transactions")


def no_gaps(topic: TopicEntry, entry: SegmentEntry, time: int) -> bool:
    raise AssertionError("no segment is looked into where the catalog knows its times")


def groups(
    found: ArchiveState, options: SourceOptions = ALL, wanted: WantedRecords | None = None
) -> list[list[SegmentRead]]:
    return plan(found, options, wanted or WantedRecords(), nothing_aborted, no_gaps)


def reads(found: ArchiveState, options: SourceOptions = ALL, wanted: WantedRecords | None = None) -> list[SegmentRead]:
    return [read for group in groups(found, options, wanted) for read in group]


def ranges(found: list[SegmentRead]) -> list[tuple[str, int, int, int]]:
    return [(read.topic, read.entry.partition, read.start, read.end) for read in found]


THREE = state(segment(0), segment(100), segment(200), segment(0, partition=1), segment(0, PAYMENTS))


def test_everything_is_read_in_order_and_of_a_recreated_topic_the_newest() -> None:
    archive = state(segment(0, PAYMENTS), segment(100), segment(0), segment(0, OLD_ORDERS), segment(0, partition=1))
    found = reads(archive)
    assert ranges(found) == [
        ("orders", 0, 0, 100),
        ("orders", 0, 100, 200),
        ("orders", 1, 0, 100),
        ("payments", 0, 0, 100),
    ]
    assert {read.entry.topic_id for read in found} == {ORDERS.topic_id, PAYMENTS.topic_id}


def test_of_a_recreated_topic_without_records_the_one_before_is_read() -> None:
    archive = state(segment(0, OLD_ORDERS))
    archive.add_facts([ORDERS], (), (), ())
    assert [read.entry.topic_id for read in reads(archive)] == [OLD_ORDERS.topic_id]


def test_an_older_incarnation_is_read_by_its_id() -> None:
    archive = state(segment(0), segment(0, OLD_ORDERS, partition=2))
    found = reads(archive, replace(ALL, topic_id=OLD_ORDERS.topic_id, topics=("orders",)))
    assert [(read.entry.topic_id, read.entry.partition) for read in found] == [(OLD_ORDERS.topic_id, 2)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (replace(ALL, topics=("payments",)), {("payments", 0)}),
        (replace(ALL, topic_pattern="o.*"), {("orders", 0), ("orders", 1)}),
        (replace(ALL, partitions=((1, 5),)), {("orders", 1)}),
        (replace(ALL, topics=("orders", "payments"), partitions=((0, 1),)), {("orders", 0), ("payments", 0)}),
    ],
)
def test_options_choose_topics_and_partitions(options: SourceOptions, expected: set[tuple[str, int]]) -> None:
    assert {item[:2] for item in ranges(reads(THREE, options))} == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (replace(ALL, topics=("orders", "refunds")), "Option topics: .* no topic refunds. It has orders, payments"),
        (replace(ALL, topic_pattern="rd"), "Option topicPattern: no topic of the archive matches 'rd' as a whole"),
        (replace(ALL, topic_id="BBBBBBBBBBBBBBBBBBBBBQ"), "Option topicId: .* BBBBBBBBBBBBBBBBBBBBBQ. It has orders: "),
        (replace(ALL, topic_id=ORDERS.topic_id, topics=("payments",)), "is the id of topic orders, which is not asked"),
        (replace(ALL, topic_id=ORDERS.topic_id, topic_pattern="p.*"), "is the id of topic orders, which is not asked"),
    ],
)
def test_topics_that_are_not_there_are_refused(options: SourceOptions, complaint: str) -> None:
    with pytest.raises(NoTopicMatches, match=complaint):
        reads(THREE, options)


def test_offsets_leave_the_segments_and_the_parts_of_them_that_are_wanted() -> None:
    options = replace(ALL, topics=("orders",), partitions=((0, 1),), starting_offset=150, ending_offset=250)
    assert ranges(reads(THREE, options)) == [("orders", 0, 150, 200), ("orders", 0, 200, 250)]
    assert ranges(reads(THREE, options, WantedRecords(start=190, end=200))) == [("orders", 0, 190, 200)]
    assert reads(THREE, options, WantedRecords(start=700)) == []


def test_starting_timestamp_begins_in_the_first_segment_that_has_it_and_takes_all_after_it() -> None:
    archive = state(segment(0), segment(100), segment(200, max_timestamp=5), segment(300))
    found = reads(archive, replace(ALL, starting_timestamp=150))
    assert [(read.start, read.first_time) for read in found] == [(100, 150), (200, None), (300, None)]
    assert reads(archive, replace(ALL, starting_timestamp=1000)) == []


def test_ending_timestamp_ends_in_the_first_segment_that_has_it() -> None:
    found = reads(THREE, replace(ALL, topics=("orders",), ending_timestamp=150))
    assert [(read.entry.partition, read.end, read.end_time) for read in found] == [
        (0, 100, None),
        (0, 200, 150),
        (1, 100, None),
    ]
    both = reads(THREE, replace(ALL, partitions=((0, 1),), starting_timestamp=110, ending_timestamp=120))
    assert [(read.start, read.first_time, read.end_time) for read in both] == [(100, 110, 120)]


def test_an_end_time_before_the_start_time_s_segment_leaves_nothing() -> None:
    archive = state(segment(0, max_timestamp=500), segment(100))
    assert [read.end_time for read in reads(archive, replace(ALL, starting_timestamp=5, ending_timestamp=9))] == [9]
    found = reads(archive, replace(ALL, starting_timestamp=600, ending_timestamp=700))
    assert found == []


def test_a_time_of_a_compacted_segment_is_looked_for_since_an_emptied_batch_may_have_it() -> None:
    asked: list[tuple[int, int]] = []

    def holds(topic: TopicEntry, entry: SegmentEntry, time: int) -> bool:
        asked.append((entry.base_offset, time))
        return entry.base_offset != 100

    archive = state(segment(0, gaps=True), segment(100, gaps=True), segment(200), segment(300, gaps=True))
    options = replace(ALL, starting_timestamp=150)
    (found,) = plan(archive, options, WantedRecords(), nothing_aborted, holds)
    assert [(read.start, read.first_time) for read in found] == [(200, 150), (300, None)]
    options = replace(ALL, starting_timestamp=50, ending_timestamp=150)
    (found,) = plan(archive, options, WantedRecords(), nothing_aborted, holds)
    assert [(read.start, read.first_time, read.end_time) for read in found] == [
        (0, 50, None),
        (100, None, None),
        (200, None, 150),
    ]
    assert asked == [(100, 150), (0, 50), (100, 150)]
    records = state(*(segment(base, gaps=True, layout=Layout.RECORDS) for base in (0, 100)))
    assert [read.start for read in reads(records, options)] == [0, 100]


def test_times_are_not_looked_for_after_the_wanted_offsets() -> None:
    archive = state(segment(0), segment(100, gaps=True))
    assert reads(archive, replace(ALL, starting_timestamp=150), WantedRecords(end=100)) == []


def test_segments_that_lie_before_the_wanted_offsets_still_say_where_a_time_is() -> None:
    """The log's first record of a time may be older than the first that is wanted."""
    archive = state(segment(0, max_timestamp=500), segment(100), segment(200))
    found = reads(archive, replace(ALL, starting_timestamp=150), WantedRecords(start=100))
    assert [(read.start, read.first_time) for read in found] == [(100, None), (200, None)]
    assert reads(archive, replace(ALL, ending_timestamp=150), WantedRecords(start=100)) == []


def test_filters_on_topic_and_partition_leave_segments_out() -> None:
    wanted, _ = WantedRecords().narrowed(EqualTo(("topic",), "orders"))
    wanted, _ = wanted.narrowed(EqualTo(("partition",), 1))
    assert ranges(reads(THREE, ALL, wanted)) == [("orders", 1, 0, 100)]
    nowhere, _ = WantedRecords().narrowed(EqualTo(("topic",), "refunds"))
    assert reads(THREE, ALL, nowhere) == []


def test_segments_that_are_older_than_a_filter_on_the_time_are_left_out() -> None:
    found = reads(THREE, replace(ALL, partitions=((0, 1),)), WantedRecords(since=150))
    assert [(read.topic, read.start, read.since) for read in found] == [("orders", 100, 150), ("orders", 200, 150)]


def test_younger_segments_are_left_out_only_where_the_lowest_time_is_known() -> None:
    """A batch may hold a record that is older than its first."""
    until = WantedRecords(until=150)
    assert [read.start for read in reads(state(segment(100), segment(200)), ALL, until)] == [100, 200]
    for layout in (Layout.RECORDS, Layout.AVRO):
        archive = state(segment(100, layout=layout), segment(200, layout=layout))
        assert [read.start for read in reads(archive, ALL, until)] == [100]


def test_segments_of_nothing_but_markers_are_left_out() -> None:
    assert reads(state(segment(0, records=0, control=True), segment(100))) == reads(state(segment(100)))


def test_neighbours_share_a_spark_partition_up_to_its_size() -> None:
    """A segment counts with what it takes to open it; one that is larger has a partition of its own."""
    archive = state(*(segment(100 * number) for number in range(7)), segment(700, bytes=500 * MIB), segment(800))
    found = groups(archive, replace(ALL, max_partition_bytes=32 * MIB))
    assert [[read.start for read in group] for group in found] == [
        [0, 100],
        [200, 300],
        [400, 500],
        [600],
        [700],
        [800],
    ]
    assert len(groups(archive, replace(ALL, max_partition_bytes=128 * MIB))) == 3
    compressed = state(*(segment(100 * number, stored_bytes=MIB) for number in range(7)))
    assert len(groups(compressed, replace(ALL, max_partition_bytes=32 * MIB))) == 1


@pytest.mark.parametrize(("wanted", "found"), [(1, 1), (2, 2), (3, 4), (8, 8), (100, 8)])
def test_more_spark_partitions_are_made_where_more_are_wanted(wanted: int, found: int) -> None:
    """Segments stay whole, so there are never more than those."""
    archive = state(*(segment(100 * number, bytes=8 * MIB) for number in range(8)))
    options = replace(ALL, max_partition_bytes=1 << 40, min_partitions=wanted)
    assert len(groups(archive, options)) == found
    assert reads(archive, options) == reads(archive)


def test_a_wanted_number_of_spark_partitions_makes_none_larger() -> None:
    archive = state(*(segment(100 * number) for number in range(8)))
    small = replace(ALL, max_partition_bytes=32 * MIB)
    assert groups(archive, replace(small, min_partitions=1)) == groups(archive, small)
    assert groups(archive, replace(small, min_partitions=100, starting_offset=5000)) == []


def test_aborted_transactions_reach_the_pieces_that_hold_records_of_them() -> None:
    asked: list[tuple[str, list[int]]] = []
    across, inside, later = AbortedTxn(1, 150, 210, 150), AbortedTxn(2, 120, 130, 120), AbortedTxn(3, 310, 320, 310)

    def aborted(topic: TopicEntry, entries: Sequence[SegmentEntry]) -> Sequence[AbortedTxn]:
        asked.append((topic.name, [entry.base_offset for entry in entries]))
        return [later, across, inside]

    archive = state(*(segment(base, transactional=True) for base in (0, 100, 200, 300)), segment(0, PAYMENTS))
    options = replace(ALL, starting_offset=100)
    found = [read for group in plan(archive, options, WantedRecords(end=300), aborted, no_gaps) for read in group]
    assert asked == [("orders", [100, 200, 300])]
    assert [(read.start, read.aborted) for read in found] == [(100, (inside, across)), (200, (across,))]

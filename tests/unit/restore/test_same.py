"""How far a partition reaches whose records keep their offsets, and how batches are taken apart at gaps."""

from dataclasses import replace

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.padding import MOST_RECORDS, padding_batch
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.restore.model.offset_map import OffsetPlace
from logkeep_engine.restore.model.plan import NEEDS_PRODUCER_ID, NO_TASK, PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.model.topics import plan_topic
from logkeep_engine.restore.positions.moves import translate
from logkeep_engine.restore.sending.padding import sizes_for
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.same import (
    MOST_IN_FRONT,
    MOST_INSIDE,
    Extent,
    Extents,
    Filling,
    describe_filling,
    filling_of,
    refuse_far,
    without_gaps,
)
from tests.unit.restore.test_plan import entry, topic

ID = f"{1:022d}"


def state(
    *covered: tuple[int, int], gaps: tuple[tuple[int, int], ...] = (), positions: tuple[int, ...] = ()
) -> ArchiveState:
    found = ArchiveState()
    found.add_facts((), [Coverage(ID, 0, *part) for part in covered], (), [Gap(ID, 0, *part, "r") for part in gaps])
    found.groups = tuple(GroupEntry("g", "orders", ID, 0, offset, -1, "") for offset in positions)
    return found


class TestExtent:
    def test_from_the_first_to_the_last_archived_offset(self) -> None:
        assert Extents(state((40, 90))).of(ID, 0) == Extent(40, 90)

    def test_a_gap_at_the_front_is_not_made_and_one_at_the_end_is(self) -> None:
        assert Extents(state((40, 90), gaps=((0, 40), (90, 95)))).of(ID, 0) == Extent(40, 95)

    def test_what_retention_took_from_the_archive_is_not_made(self) -> None:
        found = state((0, 90))
        found.removed[ID, 0] = [(0, 30)]
        assert Extents(found).of(ID, 0) == Extent(30, 90)

    def test_where_nothing_is_left_the_log_is_empty_at_its_end(self) -> None:
        found = state((0, 90))
        found.removed[ID, 0] = [(0, 90)]
        assert Extents(found).of(ID, 0) == Extent(90, 90)

    def test_where_nothing_was_ever_archived_the_positions_of_groups_tell(self) -> None:
        assert Extents(state(positions=(7, 9, 3))).of(ID, 0) == Extent(9, 9)
        assert Extents(state()).of(ID, 0) == Extent(0, 0)

    def test_a_log_that_starts_too_late_is_refused(self) -> None:
        refuse_far("t", 0, Extent(MOST_IN_FRONT, MOST_IN_FRONT), Filling(MOST_IN_FRONT, 0))
        with pytest.raises(TargetUnsuitable, match=f"topic t partition 3 starts at offset {MOST_IN_FRONT + 1}: "):
            refuse_far("t", 3, Extent(MOST_IN_FRONT + 1, MOST_IN_FRONT + 2), Filling(MOST_IN_FRONT + 1, 0))


class TestFilling:
    def test_what_holds_no_record_is_in_front_or_inside(self) -> None:
        segments = [
            entry(base_offset=40, next_offset=60, records=10),
            entry(base_offset=60, next_offset=95, records=20),
        ]
        assert filling_of(Extent(40, 100), segments) == Filling(40, 30)
        assert filling_of(Extent(40, 70), segments) == Filling(40, 10), "up to a point in the second segment"
        assert filling_of(Extent(9, 9), []) == Filling(9, 0)

    def test_too_much_inside_is_refused_by_name(self) -> None:
        extent = Extent(5, MOST_INSIDE + 10)
        refuse_far("t", 0, extent, Filling(5, MOST_INSIDE))
        with pytest.raises(TargetUnsuitable, match=f"topic t partition 1 has at least {MOST_INSIDE + 1} offsets"):
            refuse_far("t", 1, extent, Filling(5, MOST_INSIDE + 1))

    def test_much_is_reported_with_the_time_and_the_room_it_takes(self) -> None:
        assert describe_filling({("t", 0): Filling(1, 2_000_000)}) == []
        (text,) = describe_filling({("t", 0): Filling(0, 1_000_000_000), ("u", 3): Filling(8_000_000_000, 0)})
        assert text.startswith("at least 9000000000 offsets hold no record and must be filled")
        assert "8000000000 of them in topic u partition 3" in text
        assert "up to 250 minutes (measured: 600000 a second), and some 572 MiB of padding stay" in text


class TestPlan:
    def test_an_empty_partition_has_a_task_where_its_log_does_not_end_at_0(self) -> None:
        extents = {0: Extent(3, 8), 1: Extent(0, 0), 2: Extent(5, 5)}
        plan = plan_topic(
            Choice(topic("orders", partitions=3), "copy"),
            {0: [entry()], 1: [], 2: []},
            existing=None,
            end_offsets={},
            extents=extents,
        )
        assert plan.partitions == (
            PartitionPlan(0, NEEDS_PRODUCER_ID, 0, 3, 8),
            PartitionPlan(1, NO_TASK, 0, 0, 0),
            PartitionPlan(2, NEEDS_PRODUCER_ID, 0, 5, 5),
        )
        assert [part.extent for part in plan.partitions] == list(extents.values())
        whole = RestorePlan("r", "d", "a", 1, "c", (plan,))
        assert RestorePlan.from_json(whole.to_json(), "plan") == whole

    def test_without_it_a_plan_has_no_offsets_of_the_target(self) -> None:
        plan = plan_topic(Choice(topic("orders"), "copy"), {0: [entry()]}, existing=None, end_offsets={})
        assert [part.extent for part in plan.partitions] == [None, None]


@pytest.mark.parametrize(
    ("position", "offset", "place", "beyond"),
    [
        (2, 3, OffsetPlace.GAP, False),
        (3, 3, OffsetPlace.RECORD, False),
        (5, 5, OffsetPlace.RECORD, False),
        (8, 8, OffsetPlace.RECORD, False),
        (9, 8, OffsetPlace.GAP, True),
    ],
)
def test_a_position_stays_what_it_is_without_a_look_at_the_map(
    position: int, offset: int, place: OffsetPlace, beyond: bool
) -> None:
    plan = TopicPlan("orders", ID, "copy", True, 1, 1, 1000, (PartitionPlan(0, 71, 0, 3, 8),))
    entries = [GroupEntry("g", "orders", ID, 0, position, 4, "note")]
    (move,) = translate(entries, [plan], lambda *where: pytest.fail(f"{where}"), lambda *_: 8)
    assert (move.offset, move.place, move.beyond) == (offset, place, beyond)


@pytest.mark.parametrize(
    ("gap", "sizes"),
    [
        (1, []),
        (2, [1]),
        (100, [99]),
        (MOST_RECORDS + 1, [MOST_RECORDS]),
        (MOST_RECORDS + 2, [MOST_RECORDS, 1]),
        (10**9, [MOST_RECORDS] * 16),
    ],
)
def test_a_transaction_and_its_marker_never_fill_more_than_the_gap(gap: int, sizes: list[int]) -> None:
    assert sizes_for(gap) == sizes
    assert sum(sizes) + 1 <= gap


@pytest.mark.parametrize("count", [1, 200, MOST_RECORDS])
def test_padding_is_a_whole_batch_of_empty_records_without_time(count: int) -> None:
    batch = b"".join(padding_batch(count, producer_id=7, producer_epoch=3, base_sequence=11))
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.record_count, header.last_offset_delta, header.is_transactional) == (count, count - 1, True)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    records = decode(batch)
    assert len(records) == count
    assert {(record.key, record.value, tuple(record.headers), record.timestamp) for record in records} == {
        (None, None, (), -1)
    }
    assert len(batch) < 1000 + count


class TestWithoutGaps:
    ROWS = ((10, 3), (20, 1), (30, 2))

    def item(self) -> Outgoing:
        records = [Record(number, 1000 + number, b"k%d" % number, b"v", ()) for number in range(6)]
        batch = encode(records, base_offset=0, codec=Codec.LZ4, producer_id=7, producer_epoch=0, base_sequence=100)
        return Outgoing(100, 6, len(batch), (batch,), self.ROWS, 4)

    def test_a_batch_is_taken_apart_at_its_gaps(self) -> None:
        parts = list(without_gaps([self.item()], 7))
        assert [part.source for part in parts] == [((10, 3),), ((20, 1),), ((30, 2),)]
        assert [(part.index, part.count, part.append_times) for part in parts] == [
            (100, 3, 3),
            (103, 1, 1),
            (104, 2, 0),
        ]
        keys = []
        for part in parts:
            batch = b"".join(part.data or ())
            header = parse_header(batch)
            check_crc(batch, 0, header)
            assert (header.producer_id, header.base_sequence, header.codec) == (7, part.index, Codec.LZ4)
            assert (header.record_count, header.last_offset_delta, part.size) == (
                part.count,
                part.count - 1,
                len(batch),
            )
            keys += [(record.key, record.timestamp) for record in decode(batch)]
        assert keys == [(b"k%d" % number, 1000 + number) for number in range(6)]

    def test_one_without_gaps_stays_the_same_object(self) -> None:
        whole = replace(self.item(), source=((10, 6),))
        assert next(iter(without_gaps([whole], 7))) is whole

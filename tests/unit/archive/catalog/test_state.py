"""The state that commits add up to: ranges, what is left to do, what a receipt may say."""

import random
import re
from itertools import pairwise

import pytest

from logkeep_engine.archive.catalog.entry import KafkaFiles, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Receipt
from logkeep_engine.archive.catalog.receipts import ReceiptCheck
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import add_range
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.digest import Digest
from tests.unit.archive.build import ORDERS

ID = ORDERS.topic_id
SHA256_DIGEST = Digest(DigestAlgorithm.SHA256, "0" * 64)
BLAKE3_DIGEST = Digest(DigestAlgorithm.BLAKE3, "1" * 64)


def entry(
    base: int, following: int, *, epoch: int = 1, partition: int = 0, digest: Digest = SHA256_DIGEST
) -> SegmentEntry:
    return SegmentEntry(
        topic_id=ID,
        partition=partition,
        epoch=epoch,
        attempt=0,
        base_offset=base,
        next_offset=following,
        records=following - base,
        batches=1,
        bytes=100,
        digest=digest,
        codecs={"none": 1},
        max_batch_bytes=100,
        times=SegmentTimes(1, 2),
        files=KafkaFiles(timeindex_bytes=12),
    )


def state(*covered: tuple[int, int], gaps: tuple[tuple[int, int], ...] = ()) -> ArchiveState:
    made = ArchiveState()
    made.add_facts(
        [ORDERS],
        [Coverage(ID, 0, start, end) for start, end in covered],
        [entry(start, end) for start, end in covered],
        [Gap(ID, 0, start, end, "retention") for start, end in gaps],
    )
    return made


def test_merged_ranges_are_those_of_a_set_of_offsets() -> None:
    rng = random.Random(7)
    for _ in range(300):
        ranges: list[tuple[int, int]] = []
        offsets: set[int] = set()
        for _ in range(rng.randrange(12)):
            start = rng.randrange(40)
            end = start + rng.randrange(1, 8)
            add_range(ranges, start, end)
            offsets |= set(range(start, end))
        assert {offset for start, end in ranges for offset in range(start, end)} == offsets
        assert all(one[1] < other[0] for one, other in pairwise(ranges))


def test_next_offset_is_where_the_first_hole_begins() -> None:
    assert state().next_offset(ID, 0) is None
    assert state((10, 20), (20, 30)).next_offset(ID, 0) == 30
    assert state((10, 20), (25, 30)).next_offset(ID, 0) == 20
    assert state((10, 20), (25, 30), gaps=((20, 25),)).next_offset(ID, 0) == 30
    assert state((10, 20), gaps=((5, 10),)).next_offset(ID, 0) == 20
    assert state(gaps=((5, 10),)).next_offset(ID, 0) == 10
    assert state((10, 20)).next_offset(ID, 1) is None


def test_uncovered_is_what_is_left_of_a_range() -> None:
    known = state((10, 20), (30, 40), gaps=((40, 45),))
    assert known.uncovered(ID, 0, 0, 50) == [(0, 10), (20, 30), (45, 50)]
    assert known.uncovered(ID, 0, 15, 35) == [(20, 30)]
    assert known.uncovered(ID, 0, 12, 18) == []
    assert known.uncovered(ID, 0, 40, 45) == []
    assert known.uncovered(ID, 0, 25, 15) == [], "a range that ends before it begins"
    assert known.uncovered(ID, 1, 3, 4) == [(3, 4)]


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        (Receipt(), "it accounts for no offsets"),
        (Receipt((Coverage(ID, 0, 15, 25),)), r"\[15, 25\): an earlier commit accounts for some of them"),
        (Receipt((Coverage("b" * 22, 0, 0, 1),)), "no commit names the topic"),
        (Receipt((Coverage(ID, 0, 20, 30), Coverage(ID, 0, 29, 31))), r"\[29, 31\) twice in one receipt"),
        (Receipt((Coverage(ID, 0, 20, 30),), gaps=(Gap(ID, 0, 25, 26, "x"),)), r"\[25, 26\) twice in one receipt"),
        (Receipt((Coverage(ID, 0, 20, 30),), (entry(20, 30, epoch=2),)), "written at epoch 2, not 1"),
        (Receipt((Coverage(ID, 0, 20, 30),), (entry(30, 31),)), "does not begin inside the receipt's coverage"),
        (Receipt((Coverage(ID, 0, 20, 30),), (entry(20, 30, partition=1),)), "does not begin inside"),
        (Receipt((Coverage(ID, 0, 20, 30),), (entry(20, 25), entry(24, 30))), r"24 overlaps segment \[20, 25\)"),
        (Receipt((Coverage(ID, 0, 20, 30),), (entry(22, 30), entry(20, 23))), r"20 overlaps segment \[22, 30\)"),
    ],
)
def test_a_receipt_that_cannot_be_is_told_why(receipt: Receipt, why: str) -> None:
    found = ReceiptCheck(state((10, 20)), ()).why_not(receipt, 1)
    assert found is not None
    assert re.search(why, found), found


def test_a_receipt_may_be_without_segments_and_its_last_batch_may_reach_over_the_end() -> None:
    known = state((10, 20))
    assert ReceiptCheck(known, ()).why_not(Receipt((Coverage(ID, 0, 20, 30),)), 1) is None
    assert ReceiptCheck(known, ()).why_not(Receipt((Coverage(ID, 0, 20, 30),), (entry(20, 33),)), 1) is None
    assert ReceiptCheck(known, ()).why_not(Receipt(gaps=(Gap(ID, 0, 0, 10, "retention"),)), 1) is None


def test_a_segment_may_not_begin_before_the_end_of_the_one_before() -> None:
    known = ArchiveState()
    known.add_facts([ORDERS], [Coverage(ID, 0, 10, 20)], [entry(10, 23)], [])
    why = ReceiptCheck(known, ()).why_not(Receipt((Coverage(ID, 0, 20, 30),), (entry(22, 30),)), 1)
    assert why == f"topic id {ID} partition 0 segment 22 overlaps segment [10, 23)"


def test_facts_check_themselves() -> None:
    for start, end in ((5, 5), (6, 5), (-1, 5)):
        with pytest.raises(ValueError, match="is not a range of offsets"):
            Coverage(ID, 0, start, end)
    with pytest.raises(ValueError, match=r"offsets \[5, 5\)"):
        entry(5, 5)


def test_what_is_left_of_a_range_is_what_a_set_of_offsets_leaves() -> None:
    rng = random.Random(5)
    for _ in range(300):
        known, settled = ArchiveState(), set[int]()
        for _ in range(rng.randrange(10)):
            start = rng.randrange(40)
            end = start + rng.randrange(1, 6)
            if settled.isdisjoint(range(start, end)):
                lost = rng.random() < 0.5
                known.add_facts(
                    (), () if lost else [Coverage(ID, 0, start, end)], (), [Gap(ID, 0, start, end, "x")] if lost else ()
                )
                settled |= set(range(start, end))
        start = rng.randrange(40)
        end = start + rng.randrange(1, 10)
        left = known.uncovered(ID, 0, start, end)
        assert [offset for low, high in left for offset in range(low, high)] == sorted({*range(start, end)} - settled)
        assert all(one[1] < other[0] for one, other in pairwise(left))
        lost_there = [gap for gap in known.gaps.get((ID, 0), ()) if gap.start < end and start < gap.end]
        assert known.gaps_in(ID, 0, start, end) == lost_there


def test_the_segment_before_an_offset_is_found() -> None:
    known = state((10, 20), (20, 33), (40, 50))
    bases = [
        None if (found := known.last_before(ID, 0, at)) is None else found.base_offset for at in (10, 11, 20, 40, 99)
    ]
    assert bases == [None, 10, 10, 20, 40]
    assert known.last_before(ID, 1, 99) is None


def test_receipts_are_checked_as_if_those_before_were_committed() -> None:
    known = state((10, 20))
    check = ReceiptCheck(known, ())
    first = Receipt((Coverage(ID, 0, 20, 30),), (entry(20, 33),))
    assert (check.holds(first), check.why_not(first, 1)) == (False, None)
    check.add(first)
    assert check.holds(Receipt((Coverage(ID, 0, 15, 25),)))
    assert check.why_not(Receipt((Coverage(ID, 0, 25, 35),)), 1) is not None
    assert "32 overlaps segment [20, 33)" in str(
        check.why_not(Receipt((Coverage(ID, 0, 30, 40),), (entry(32, 40),)), 1)
    )
    assert known.same_facts(state((10, 20)))
    other = ReceiptCheck(ArchiveState(), [ORDERS])
    assert other.why_not(first, 1) is None

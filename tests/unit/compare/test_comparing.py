"""Comparing a target with the digests of an archive: stretches are cut where they end, and records are aligned."""

import random
import time
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.maintenance.record_digests import StretchDigest
from logkeep_engine.compare.aligning import AHEAD, Alignment, Difference, DifferenceKind, ListedRecords, align
from logkeep_engine.compare.stretches import StretchComparison
from logkeep_engine.log.batch import headers_of, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord, differing_fields
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.rows import RecordDigest, as_rows
from tests.examples import scaled

TIME = 1_700_000_000_000


def record(number: int, offset: int | None = None, value: bytes | None = None) -> PlainRecord:
    content = b"v%d" % number if value is None else value
    return PlainRecord(number if offset is None else offset, TIME + number, 0, b"k", content, ())


def listed(*records: PlainRecord) -> ListedRecords:
    return ListedRecords([as_rows(records)] if records else [])


def numbered(*numbers: int, start: int = 0) -> list[PlainRecord]:
    """Records with these contents, at offsets that follow one another."""
    return [record(number, offset) for offset, number in enumerate(numbers, start)]


def digests(*parts: Sequence[PlainRecord]) -> list[StretchDigest]:
    found, at = [], 0
    for part in parts:
        digest = RecordDigest(offsets=False)
        digest.note(as_rows(part))
        found.append(StretchDigest.of(at, at + len(part), digest))
        at += len(part)
    return found


def compared(
    expected: Sequence[StretchDigest], target: Sequence[PlainRecord], sizes: Sequence[int], *, offsets: bool = False
) -> StretchComparison:
    """The target in batches of these sizes, one stretch of them at a time, until a stretch differs."""
    comparison = StretchComparison(expected, 0, offsets=offsets)
    at = 0
    for size in [*sizes, len(target)]:
        part = [Record(r.offset, r.timestamp or 0, r.key, r.value, ()) for r in target[at : at + size]]
        if not part:
            break
        data = encode(part, codec=Codec.ZSTD, base_offset=part[0].offset)
        if not comparison.feed(memoryview(data), headers_of(walk(data))):
            break
        at += size
    return comparison


class TestStretches:
    @given(st.lists(st.integers(1, 9), min_size=1), st.lists(st.integers(1, 9)))
    @settings(max_examples=scaled(100), deadline=None)
    def test_bounds_of_batches_make_no_difference(self, stretches: list[int], batches: list[int]) -> None:
        records = [record(number) for number in range(sum(stretches))]
        parts, at = [], 0
        for size in stretches:
            parts.append(records[at : at + size])
            at += size
        comparison = compared(digests(*parts), records, batches, offsets=True)
        assert comparison.is_whole
        assert (comparison.records, comparison.extra, comparison.missing) == (len(records), 0, 0)
        assert sum(count for _, count, _ in comparison.times.buckets) == len(records)

    @given(st.integers(0, 99), st.lists(st.integers(1, 30)))
    @settings(max_examples=scaled(50), deadline=None)
    def test_the_first_stretch_that_differs_is_found(self, at: int, batches: list[int]) -> None:
        records = [record(number) for number in range(100)]
        expected = digests(*(records[start : start + 10] for start in range(0, 100, 10)))
        records[at] = record(at, value=b"other")
        comparison = compared(expected, records, batches)
        assert not comparison.is_whole
        assert comparison.stretch is not None
        assert (comparison.at, comparison.stretch.start, comparison.began) == (at // 10, at // 10 * 10, at // 10 * 10)

    def test_the_order_of_records_counts(self) -> None:
        assert compared(digests(numbered(1, 2, 3)), numbered(1, 2, 3), []).is_whole
        assert not compared(digests(numbered(1, 2, 3)), numbered(2, 1, 3), []).is_whole

    def test_offsets_count_if_they_must_be_the_same(self) -> None:
        moved = numbered(1, 2, start=7)
        assert compared(digests(numbered(1, 2)), moved, []).is_whole
        assert not compared(digests(numbered(1, 2)), moved, [], offsets=True).is_whole

    def test_a_target_that_ends_too_early_or_too_late(self) -> None:
        short = compared(digests(numbered(0, 1), numbered(2, 3)), numbered(0, 1, 2), [])
        assert (short.is_whole, short.at, short.began, short.missing) == (False, 1, 2, 2)
        long = compared(digests(numbered(0, 1)), numbered(0, 1, 2, 3), [3])
        assert (long.is_whole, long.extra, long.extra_from) == (True, 2, 2)

    def test_it_continues_after_a_stretch_that_was_passed_over(self) -> None:
        target = numbered(0, 9, 2, 3)
        comparison = compared(digests(numbered(0, 1), numbered(2, 3)), target, [2])
        assert comparison.at == 0
        passed = RecordDigest(offsets=False)
        passed.note(as_rows(target[:2]))
        comparison.passed(passed, 2)
        data = encode(
            [Record(r.offset, r.timestamp or 0, r.key, r.value, ()) for r in target], codec=Codec.NONE, base_offset=0
        )
        assert comparison.feed(memoryview(data), headers_of(walk(data)))
        assert comparison.is_whole
        assert comparison.records == 4


def aligned(archived: ListedRecords, target: ListedRecords, records: int, *, offsets: bool = False) -> Alignment:
    return align(archived, target, records, most=1000, offsets=offsets)


Row = tuple[str, int | None, int | None, int]


def rows(found: Sequence[Difference]) -> list[Row]:
    return [(item.kind.value, item.source_offset, item.target_offset, item.records) for item in found]


class TestAlignment:
    @pytest.mark.parametrize("target", [(0, 1), (0, 1, 9)])
    @pytest.mark.parametrize("pair_up", [True, False])
    def test_no_more_records_are_aligned_than_there_are(self, target: tuple[int, ...], pair_up: bool) -> None:
        found = align(listed(*numbered(0, 1)), listed(*numbered(*target)), 3, most=20, pair_up=pair_up)
        assert (found.differences, found.taken, found.apart) == ((), 2, None)

    @pytest.mark.parametrize(
        ("target", "expected", "taken"),
        [
            ((0, 1, 2, 3, 4, 5), [], 4),
            ((0, 9, 2, 3, 4, 5), [("Changed", 1, 1, 1)], 4),
            ((0, 2, 1, 3, 4, 5), [("Swapped", 1, 1, 1)], 4),
            ((0, 2, 3, 4, 5), [("Lost", 1, None, 1)], 3),
            ((3, 4, 5), [("Lost", 0, None, 3)], 1),
            ((0, 1, 2, 4, 5), [("Lost", 3, None, 1)], 3),
            ((0, 1, 1, 2, 3, 4, 5), [("Twice", None, 2, 1)], 5),
            ((0, 1, 8, 9, 2, 3, 4), [("Added", None, 2, 2)], 6),
            ((8, 9, 2, 3, 4), [("Changed", 0, 0, 1), ("Changed", 1, 1, 1)], 4),
            ((0, 1), [("Lost", 2, None, 2)], 2),
            ((), [("Lost", 0, None, 4)], 0),
        ],
    )
    def test_what_differs_is_named(self, target: tuple[int, ...], expected: list[Row], taken: int) -> None:
        archived = listed(*numbered(0, 1, 2, 3, 4, 5))  # the last two belong to the next stretch
        found = aligned(archived, listed(*numbered(*target)), 4)
        assert rows(found.differences) == expected
        assert found.taken == taken

    def test_the_fields_that_differ_are_named(self) -> None:
        one = PlainRecord(0, TIME, 0, b"k", b"v", (("a", b"1"), ("b", None)))
        others = {
            ("key",): one._replace(key=None),
            ("value",): one._replace(value=b""),
            ("headers",): one._replace(headers=(("b", None), ("a", b"1"))),
            ("timestamp",): one._replace(timestamp=TIME + 1),
            ("key", "value"): one._replace(key=b"x", value=None),
        }
        for fields, other in others.items():
            assert differing_fields(one, other) == fields
            assert differing_fields(one, other, fields) == ()
        assert differing_fields(one._replace(timestamp=-1), one._replace(timestamp=None)) == ()

    def test_records_at_other_offsets_are_named_if_these_count(self) -> None:
        found = aligned(listed(*numbered(0, 1)), listed(*numbered(0, 1, start=5)), 2, offsets=True)
        assert rows(found.differences) == [("Moved", 0, 5, 1), ("Moved", 1, 6, 1)]

    @given(st.integers(0, 2**32), st.integers(1, 6))
    @settings(max_examples=scaled(50), deadline=None)
    def test_the_differences_account_for_all_records(self, seed: int, changes: int) -> None:
        chance = random.Random(seed)
        target = list(range(60))
        for _ in range(changes):
            at = chance.randrange(len(target))
            match chance.randrange(3):
                case 0:
                    del target[at]
                case 1:
                    target.insert(at, 1000 + at)
                case _:
                    target[at] = 2000 + at
        found = aligned(listed(*numbered(*range(60))), listed(*numbered(*target)), 60)
        lost = sum(item.records for item in found.differences if item.kind is DifferenceKind.LOST)
        more = sum(
            item.records for item in found.differences if item.kind in (DifferenceKind.ADDED, DifferenceKind.TWICE)
        )
        assert 60 - lost + more == found.taken <= len(target)

    @pytest.mark.parametrize("count", [1, AHEAD - 1, 5 * AHEAD])
    def test_behind_many_records_of_one_side_the_rest_is_found_again(self, count: int) -> None:
        records = 6 * AHEAD
        all_of_them, fewer = listed(*numbered(*range(records + AHEAD))), listed(*numbered(*range(count, records)))
        assert rows(aligned(all_of_them, fewer, records).differences) == [("Lost", 0, None, count)]
        more = listed(*numbered(*range(-count, records + AHEAD)))
        found = aligned(all_of_them, more, records)
        assert rows(found.differences) == [("Added", None, 0, count)]
        assert found.taken == records + count

    def test_changed_records_take_no_others_with_them(self) -> None:
        archived = listed(*numbered(0, 1, 2, 3, 4))  # the last belongs to the next stretch
        assert rows(aligned(archived, listed(*numbered(7, 8, 9, 6, 5)), 4).differences) == [
            ("Changed", at, at, 1) for at in range(4)
        ]
        assert rows(aligned(archived, listed(*numbered(0, 1, 2, 8, 9)), 4).differences) == [("Changed", 3, 3, 1)]

    def test_no_more_than_so_many_are_named(self) -> None:
        archived, target = listed(*numbered(*range(50))), listed(*numbered(*range(100, 150)))
        apart = align(archived, target, 50, most=20, pair_up=False)
        assert (apart.differences, apart.taken, apart.apart) == ((), 0, 0)
        found = align(archived, target, 50, most=20)
        assert len(found.differences) == 20

    def test_a_stretch_of_which_every_other_record_has_changed_is_aligned_at_once(self) -> None:
        count = 1 << 17
        archived = listed(*numbered(*range(count)))
        target = listed(*numbered(*(number if number % 2 else -number - 1 for number in range(count))))
        began = time.process_time()
        found = align(archived, target, count, most=count)
        assert len(found.differences) == count // 2
        assert time.process_time() - began < 30, "it would take minutes if each difference looked at a thousand records"

    def test_what_is_listed_keeps_no_record(self) -> None:
        records = [record(number, value=b"x" * (1 << 20)) for number in range(8)]
        tracemalloc.start()
        try:
            found = ListedRecords(as_rows([one]) for one in records)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(found) == 8
        assert kept < 1 << 20

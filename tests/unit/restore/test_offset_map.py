"""The offset map: joining two sequences of runs, the file, and translating through it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.restore.model.offset_map import (
    HEADER_MAX_BYTES,
    OffsetMap,
    OffsetMapBuilder,
    OffsetPlace,
    OutletSummary,
    PartitionSummary,
    map_blocks,
    read_offset_map,
    read_summary,
)


def summary(records: int, target_end: int = 0) -> PartitionSummary:
    return PartitionSummary("a", "i" * 22, 3, "b", records, 99, (OutletSummary(3, records, 0, target_end),), 2)


def made(sources: list[tuple[int, int]], targets: list[tuple[int | None, int]], end: int = 0) -> OffsetMap:
    with OffsetMapBuilder() as builder:
        for offset, count in sources:
            builder.source(offset, count)
        for target, count in targets:
            if target is None:
                builder.gone(count)
            else:
                builder.target(target, count)
        return read_offset_map(b"".join(map_blocks(summary(sum(count for _, count in sources), end), builder)), "map")


def test_rows_merge_where_both_sides_continue() -> None:
    rows = made([(0, 10), (10, 5), (20, 5)], [(100, 12), (112, 8)]).rows
    assert rows == [(0, 100, 15), (20, 115, 5)]


def test_a_hole_on_either_side_cuts_a_row() -> None:
    assert made([(0, 4), (6, 4)], [(0, 2), (7, 6)]).rows == [(0, 0, 2), (2, 7, 2), (6, 9, 4)]


def test_records_that_the_target_has_lost_have_no_row() -> None:
    assert made([(0, 10)], [(0, 3), (None, 4), (50, 3)]).rows == [(0, 0, 3), (7, 50, 3)]


@pytest.mark.parametrize(
    ("sources", "rows", "translated"),
    [
        ([(5, 1), (5, 1), (6, 1)], [(5, 0, 1), (6, 2, 1)], {5: 0, 6: 2}),
        ([(6, 1), (5, 1), (7, 1)], [(6, 0, 1), (7, 2, 1)], {5: 0, 6: 0, 7: 2}),
        ([(0, 3), (1, 4)], [(0, 0, 3), (3, 5, 2)], {1: 1, 2: 2, 3: 5, 4: 6}),
    ],
)
def test_where_source_offsets_do_not_rise_no_record_is_passed_over(
    sources: list[tuple[int, int]], rows: list[tuple[int, int, int]], translated: dict[int, int]
) -> None:
    found = made(sources, [(0, sum(count for _, count in sources))])
    assert found.rows == rows
    assert {offset: found.find(offset).target for offset in translated} == translated


def test_an_empty_map() -> None:
    assert made([], []).rows == []


def test_both_sides_must_end_together() -> None:
    with OffsetMapBuilder() as builder:
        builder.source(0, 3)
        builder.target(0, 2)
        with pytest.raises(AssertionError, match="3 source records, 2 target records"):
            b"".join(map_blocks(summary(3), builder))


def test_translate_gives_the_next_record_to_read() -> None:
    found = made([(10, 5), (20, 5)], [(0, 10)], end=10)
    positions = {0: 0, 10: 0, 14: 4, 15: 5, 19: 5, 20: 5, 24: 9, 25: 10, 99: 10}
    assert {offset: found.find(offset).target for offset in positions} == positions


def test_find_tells_whether_there_is_a_record() -> None:
    found = made([(10, 5), (20, 5)], [(0, 10)], end=10)
    places = {
        0: OffsetPlace.GAP,
        10: OffsetPlace.RECORD,
        14: OffsetPlace.RECORD,
        15: OffsetPlace.GAP,
        24: OffsetPlace.RECORD,
        25: OffsetPlace.END,
    }
    assert {offset: found.find(offset)[1] for offset in places} == places
    assert made([], [], end=7).find(3) == (7, OffsetPlace.END, None)


def test_a_map_of_many_rows_is_read_whole() -> None:
    sources = [(at, 1) for at in range(0, 400_000, 2)]
    found = made(sources, [(1_000_000, 200_000)])
    assert found.rows == [(at, 1_000_000 + at // 2, 1) for at in range(0, 400_000, 2)]


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=20)


@given(runs, runs, st.integers(0, 100))
def test_any_two_sequences_join_record_by_record(
    left: list[tuple[int, int]], right: list[tuple[int, int]], at: int
) -> None:
    def offsets(steps: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
        position = at
        found: list[tuple[int, int]] = []
        flat: list[int] = []
        for gap, count in steps:
            position += gap
            found.append((position, count))
            flat += range(position, position + count)
            position += count
        return found, flat

    source, source_flat = offsets(left)
    target, target_flat = offsets(right)
    count = min(len(source_flat), len(target_flat))
    source = [(offset, 1) for offset in source_flat[:count]]
    target = [(offset, 1) for offset in target_flat[:count]]
    found = made(source, list(target))
    flat = [(s + i, t + i) for s, t, n in found.rows for i in range(n)]
    assert flat == list(zip(source_flat[:count], target_flat[:count], strict=True))
    assert all(found.find(s).target == t for s, t in flat)


def test_the_summary_is_read_from_the_first_bytes() -> None:
    with OffsetMapBuilder() as builder:
        for at in range(0, 40_000, 2):
            builder.source(at, 1)
            builder.target(at // 2, 1)
        data = b"".join(map_blocks(summary(20_000, 20_000), builder))
    assert len(data) > HEADER_MAX_BYTES
    assert read_summary(data[:HEADER_MAX_BYTES], "map") == summary(20_000, 20_000)
    assert json.loads(data)["rows"][:2] == [[0, 0, 1], [2, 1, 1]]


def test_other_formats_and_damage_are_refused() -> None:
    with OffsetMapBuilder() as builder:
        builder.source(0, 1)
        builder.target(0, 1)
        data = b"".join(map_blocks(summary(1), builder))
    with pytest.raises(ArchiveMismatch, match="map: offset map of format 2"):
        read_offset_map(data.replace(b'"format":1', b'"format":2'), "map")
    cut_row, odd_row = data.replace(b"[0,0,1]", b"[0,0]"), data.replace(b"[0,0,1]", b'["a",0,1]')
    for wrong in (data[:-4], b"[]", data.replace(b'"records":1', b'"records":0'), cut_row, odd_row):
        with pytest.raises(ArchiveDamaged, match="map: "):
            read_offset_map(wrong, "map")
    with pytest.raises(ArchiveDamaged, match="not an offset map"):
        read_summary(b"x" * 100, "map")

"""Which pieces a conversion is cut into, and what its stored plan holds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.archive.model import ArchiveState, Coverage, Gap, GroupEntry
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.convert.plan import (
    ConvertPlan,
    Piece,
    check_covers,
    cut,
    make_plan,
    open_pieces,
    owned,
    segments_of,
)
from logkeep_engine.convert.source import ForeignSegment, Source, held_ranges
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import ORDERS

KEY = (ORDERS.topic_id, 0)


def segment(base: int, end: int, size: int = 10) -> ForeignSegment:
    return ForeignSegment(f"segment-{base}", base, end, end - base, size)


def source_of(*segments: ForeignSegment, partition: int = 0, start: int = 0, end: int = 100) -> Source:
    key = (ORDERS.topic_id, partition)
    return Source(
        storage=LocalStorage("file:///source"),
        identity="the source",
        format=FormatName.KAFKA,
        cluster_id="cluster",
        imported=False,
        topics=(ORDERS,),
        segments={key: segments},
        coverage={key: [(start, end)]},
        gaps=(Gap(*key, end, end + 5, "retention"),),
        groups=(GroupEntry("g", "orders", ORDERS.topic_id, partition, 7, 1, "m"),),
    )


def plan_of(source: Source, state: ArchiveState | None = None, piece_bytes: int = 20) -> ConvertPlan:
    return make_plan("run-1", source, "Records", {"segmentBytes": "1"}, state or ArchiveState(), piece_bytes)


class TestCut:
    def test_pieces_are_whole_segments_until_they_are_large_enough(self) -> None:
        segments = [segment(at, at + 10) for at in range(0, 50, 10)]
        assert cut(segments, 0, 55, 20) == [(0, 20, 20), (20, 40, 20), (40, 55, 10)]

    def test_coverage_without_segments_is_one_piece(self) -> None:
        assert cut([], 5, 9, 20) == [(5, 9, 0)]

    def test_a_piece_begins_where_a_segment_begins_even_behind_a_gap(self) -> None:
        assert cut([segment(3, 10, 30), segment(20, 30, 30)], 0, 40, 20) == [(0, 20, 30), (20, 40, 30)]

    @given(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 40)), max_size=30), st.integers(1, 60)
    )
    def test_every_offset_and_every_segment_is_in_one_piece(
        self, drawn: list[tuple[int, int, int]], piece_bytes: int
    ) -> None:
        segments, at = [], 0
        for gap, length, size in drawn:
            segments.append(segment(at + gap, at + gap + length, size))
            at += gap + length
        end = at + 3
        pieces = cut(segments, 0, end, piece_bytes)
        assert [pieces[0][0], *(piece[1] for piece in pieces)] == [0, *(piece[0] for piece in pieces[1:]), end]
        found = [item for start, stop, _ in pieces for item in owned(segments, start, stop)]
        assert found == segments
        assert [size for _, _, size in pieces] == [
            sum(item.bytes for item in owned(segments, start, stop)) for start, stop, _ in pieces
        ]


class TestPlan:
    def test_pieces_of_all_partitions_are_numbered_one_after_another(self) -> None:
        segments = [segment(at, at + 10) for at in range(0, 100, 10)]
        source = source_of(*segments)
        other = (ORDERS.topic_id, 1)
        source = replace(
            source,
            segments={**source.segments, other: segments},
            coverage={**source.coverage, other: [(0, 100), (200, 210)]},
        )
        plan = plan_of(source)
        assert [piece.number for piece in plan.pieces] == list(range(11))
        assert plan.pieces[0] == Piece(0, *KEY, 0, 20, 20)
        assert plan.pieces[-1] == Piece(10, *other, 200, 210, 0)
        assert segments_of(source, plan.pieces)[6] == tuple(segments[2:4])

    def test_what_the_target_has_is_left_out(self) -> None:
        source = source_of(*(segment(at, at + 10) for at in range(0, 100, 10)))
        state = ArchiveState()
        state.add_facts([ORDERS], [Coverage(*KEY, 0, 60)], [], [Gap(*KEY, 100, 105, "retention")])
        plan = plan_of(source, state, piece_bytes=1000)
        assert plan.pieces == (Piece(0, *KEY, 60, 100, 40),)
        assert plan.gaps == ()

    def test_pieces_that_are_done_are_not_open(self) -> None:
        plan = plan_of(source_of(*(segment(at, at + 10) for at in range(0, 100, 10))))
        state = ArchiveState()
        state.add_facts([ORDERS], [Coverage(*KEY, 0, 20), Coverage(*KEY, 40, 60)], [], [])
        assert [piece.start for piece in open_pieces(plan, state)] == [20, 60, 80]

    def test_the_stored_plan_is_the_plan(self) -> None:
        plan = plan_of(source_of(segment(0, 10)))
        assert ConvertPlan.from_json(plan.to_json(), "plan") == plan

    @pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}', b"[]"])
    def test_what_is_no_plan_is_named(self, data: bytes) -> None:
        with pytest.raises(ArchiveDamaged, match=r"runs/x/convert-plan\.json is no plan of a conversion"):
            ConvertPlan.from_json(data, "runs/x/convert-plan.json")

    def test_a_plan_of_a_newer_version_is_refused(self) -> None:
        with pytest.raises(ArchiveMismatch, match="plan format 2, not 1"):
            ConvertPlan.from_json(b'{"format": 2}', "plan")

    def test_a_source_that_holds_less_than_planned_is_refused(self) -> None:
        plan = plan_of(source_of(segment(0, 10)))
        check_covers(source_of(segment(0, 10), end=120), plan)
        with pytest.raises(ArchiveMismatch, match="no longer holds offsets 0 to 99 of topic 'orders' partition 0"):
            check_covers(source_of(segment(0, 10), start=1), plan)


class TestHeldRanges:
    @pytest.mark.parametrize(
        ("removed", "held"),
        [
            ([], [(10, 50)]),
            ([(10, 20)], [(20, 50)]),
            ([(0, 20), (30, 40)], [(20, 30), (40, 50)]),
            ([(40, 60)], [(10, 40)]),
            ([(10, 50)], []),
        ],
    )
    def test_what_retention_removed_is_not_held(
        self, removed: list[tuple[int, int]], held: list[tuple[int, int]]
    ) -> None:
        state = ArchiveState()
        state.coverage[KEY] = [(10, 50)]
        state.removed[KEY] = removed
        assert held_ranges(state).get(KEY, []) == held

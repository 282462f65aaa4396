"""Which chunks a conversion is cut into, and what its stored plan holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.convert.lineage import Leaders
from logkeep_engine.convert.plan import (
    ConvertChunk,
    ConvertPlan,
    SeenSegment,
    check_additions,
    check_covers,
    clipped,
    cut,
    make_plan,
    open_chunks,
    segments_of,
)
from logkeep_engine.convert.source import ConvertSource, ForeignSegment, ForeignSlice, held_ranges, removed_gaps
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import ORDERS

KEY = (ORDERS.topic_id, 0)


def segment(base: int, end: int, size: int = 10) -> ForeignSegment:
    return ForeignSegment(f"segment-{base}", base, end, end - base, size)


def source_of(*segments: ForeignSegment, partition: int = 0, start: int = 0, end: int = 100) -> ConvertSource:
    key = (ORDERS.topic_id, partition)
    return ConvertSource(
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


def plan_of(
    source: ConvertSource, state: ArchiveState | None = None, chunk_bytes: int = 20, target: str = "Records"
) -> ConvertPlan:
    return make_plan("run-1", source, target, {"segmentBytes": "1"}, state or ArchiveState(), chunk_bytes)


class TestCut:
    def test_chunks_are_whole_segments_until_they_are_large_enough(self) -> None:
        segments = [segment(at, at + 10) for at in range(0, 50, 10)]
        assert cut(segments, 0, 55, 20) == [(0, 20, 20), (20, 40, 20), (40, 55, 10)]

    def test_coverage_without_segments_is_one_chunk(self) -> None:
        assert cut([], 5, 9, 20) == [(5, 9, 0)]

    def test_a_chunk_begins_where_a_segment_begins_even_after_a_gap(self) -> None:
        assert cut([segment(3, 10, 30), segment(20, 30, 30)], 0, 40, 20) == [(0, 20, 30), (20, 40, 30)]

    @given(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 40)), max_size=30), st.integers(1, 60)
    )
    def test_every_offset_and_every_segment_is_in_one_chunk(
        self, drawn: list[tuple[int, int, int]], chunk_bytes: int
    ) -> None:
        segments, at = [], 0
        for gap, length, size in drawn:
            segments.append(segment(at + gap, at + gap + length, size))
            at += gap + length
        end = at + 3
        chunks = cut(segments, 0, end, chunk_bytes)
        assert [chunks[0][0], *(chunk[1] for chunk in chunks)] == [0, *(chunk[0] for chunk in chunks[1:]), end]
        found = [item for start, stop, _ in chunks for item in clipped(segments, start, stop)]
        assert found == segments
        assert [size for _, _, size in chunks] == [
            sum(item.bytes for item in clipped(segments, start, stop)) for start, stop, _ in chunks
        ]


class TestPlan:
    def test_chunks_of_all_partitions_are_numbered_one_after_another(self) -> None:
        segments = [segment(at, at + 10) for at in range(0, 100, 10)]
        source = source_of(*segments)
        other = (ORDERS.topic_id, 1)
        source = replace(
            source,
            segments={**source.segments, other: segments},
            coverage={**source.coverage, other: [(0, 100), (200, 210)]},
        )
        plan = plan_of(source)
        assert [chunk.number for chunk in plan.chunks] == list(range(11))
        assert plan.chunks[0] == ConvertChunk(0, *KEY, 0, 20, 20)
        assert plan.chunks[-1] == ConvertChunk(10, *other, 200, 210, 0)
        assert segments_of(source, plan.chunks)[6] == tuple(segments[2:4])

    def test_what_the_target_has_is_left_out(self) -> None:
        source = source_of(*(segment(at, at + 10) for at in range(0, 100, 10)))
        state = ArchiveState()
        state.add_facts([ORDERS], [Coverage(*KEY, 0, 60)], [], [Gap(*KEY, 100, 105, "retention")])
        plan = plan_of(source, state, chunk_bytes=1000)
        assert plan.chunks == (ConvertChunk(0, *KEY, 60, 100, 40),)
        assert plan.gaps == ()

    def test_of_a_gap_is_planned_what_the_target_has_not_settled(self) -> None:
        source = replace(source_of(), gaps=(Gap(*KEY, 100, 150, "retention"),))
        state = ArchiveState()
        state.add_facts([ORDERS], [Coverage(*KEY, 0, 110)], [], [Gap(*KEY, 120, 130, "retention")])
        assert [(gap.start, gap.end) for gap in plan_of(source, state).gaps] == [(110, 120), (130, 150)]

    def test_chunks_that_are_done_are_not_open(self) -> None:
        plan = plan_of(source_of(*(segment(at, at + 10) for at in range(0, 100, 10))))
        state = ArchiveState()
        state.add_facts([ORDERS], [Coverage(*KEY, 0, 20), Coverage(*KEY, 40, 60)], [], [])
        assert [chunk.start for chunk in open_chunks(plan, state)] == [20, 60, 80]

    @pytest.mark.parametrize("catalogued", [True, False])
    def test_the_stored_plan_is_the_plan(self, catalogued: bool) -> None:
        plan = plan_of(replace(source_of(segment(0, 10)), catalogued=catalogued))
        assert ConvertPlan.from_json(plan.to_json(), "plan") == plan
        assert plan.seen == ({} if catalogued else {KEY: (SeenSegment(0, 10, 10),)})

    @pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}', b"[]"])
    def test_what_is_no_plan_is_named(self, data: bytes) -> None:
        with pytest.raises(ArchiveDamaged, match=r"runs/x/convert-plan\.json: not a plan of a conversion"):
            ConvertPlan.from_json(data, "runs/x/convert-plan.json")

    def test_a_plan_of_a_newer_version_is_refused(self) -> None:
        with pytest.raises(ArchiveMismatch, match="plan of a conversion of format 2; this version reads 1"):
            ConvertPlan.from_json(b'{"format": 2}', "plan")

    def test_a_source_that_holds_less_than_planned_is_refused(self) -> None:
        plan = plan_of(source_of(segment(0, 10)))
        check_covers(source_of(segment(0, 10), end=120), plan)
        with pytest.raises(ArchiveMismatch, match="no longer holds offsets 0 to 99 of topic 'orders' partition 0"):
            check_covers(source_of(segment(0, 10), start=1), plan)

    def test_a_log_that_was_cut_off_since_is_reported(self) -> None:
        plan = plan_of(source_of(segment(0, 10)))
        now = replace(source_of(segment(0, 10), end=50), leaders={KEY: Leaders(2, (), ((1, 50),))})
        with pytest.raises(ArchiveMismatch) as error:
            check_covers(now, plan)
        assert "Its log was cut off in the cluster at offset 50, or retention has removed them" in error.value.hint


def folder_of(*segments: ForeignSegment) -> ConvertSource:
    """A source without a catalog."""
    end = segments[-1].next_offset
    source = source_of(*segments, start=segments[0].base_offset, end=end)
    return replace(source, catalogued=False, gaps=())


def covered(*ranges: tuple[int, int]) -> ArchiveState:
    state = ArchiveState()
    state.add_facts([ORDERS], [Coverage(*KEY, *item) for item in ranges], [], [])
    return state


class TestSourcesWithoutCatalog:
    def test_of_a_segment_that_has_grown_its_end_is_planned(self) -> None:
        source = folder_of(segment(0, 100), segment(100, 250), segment(250, 260))
        plan = plan_of(source, covered((0, 200)), chunk_bytes=1)
        assert plan.chunks == (ConvertChunk(0, *KEY, 200, 250, 10), ConvertChunk(1, *KEY, 250, 260, 10))
        assert segments_of(source, plan.chunks) == {
            0: (ForeignSlice(segment(100, 250), 200, 250),),
            1: (segment(250, 260),),
        }

    def test_of_a_segment_that_grows_while_a_run_is_interrupted_the_planned_part_is_converted(self) -> None:
        plan = plan_of(folder_of(segment(0, 100)))
        (parts,) = segments_of(folder_of(segment(0, 150), segment(150, 160)), plan.chunks).values()
        assert parts == (ForeignSlice(segment(0, 150), 0, 100),)
        assert (parts[0].base_offset, parts[0].next_offset, parts[0].bytes) == (0, 100, 10)

    @pytest.mark.parametrize("target", ["Kafka", "Avro"])
    def test_of_a_segment_that_reaches_over_the_end_of_what_is_there_the_rest_is_planned(self, target: str) -> None:
        source = source_of(segment(0, 103), segment(105, 200), end=200)
        plan = plan_of(source, covered((0, 100)), target=target)
        assert segments_of(source, plan.chunks) == {0: (ForeignSlice(segment(0, 103), 100, 200), segment(105, 200))}

    @pytest.mark.parametrize(
        ("start", "end", "found"),
        [
            (0, 30, [segment(0, 10), segment(10, 20), segment(20, 30)]),
            (10, 20, [segment(10, 20)]),
            (5, 6, [ForeignSlice(segment(0, 10), 5, 6)]),
            (15, 25, [ForeignSlice(segment(10, 20), 15, 25), ForeignSlice(segment(20, 30), 15, 25)]),
            (30, 40, []),
        ],
    )
    def test_what_of_segments_lies_in_a_range(self, start: int, end: int, found: list[object]) -> None:
        assert list(clipped([segment(at, at + 10) for at in (0, 10, 20)], start, end)) == found

    @pytest.mark.parametrize(
        "now",
        [
            [segment(0, 10), segment(20, 30)],
            [segment(0, 10), segment(20, 40), segment(40, 50)],
            [segment(20, 30)],
            [segment(-5, 0), segment(0, 10), segment(20, 30)],
        ],
        ids=["same", "grown", "fewer", "before"],
    )
    def test_what_was_seen_or_lies_outside_is_taken(self, now: list[ForeignSegment]) -> None:
        before = plan_of(folder_of(segment(0, 10), segment(20, 30)))
        check_additions(folder_of(*now), [before], covered((0, 30)))

    @pytest.mark.parametrize(
        ("now", "late"),
        [
            ([segment(0, 10), segment(10, 20), segment(20, 30)], "segment-10 holds offsets 10 to 19"),
            ([segment(0, 15), segment(20, 30)], "segment-0 holds offsets 10 to 14"),
            ([segment(0, 10), segment(20, 25)], "segment-20 holds offsets 20 to 24"),
            ([segment(0, 10), replace(segment(20, 30), records=4)], "segment-20 holds offsets 20 to 29"),
            ([segment(0, 10), replace(segment(20, 40), records=4)], "segment-20 holds offsets 20 to 39"),
        ],
        ids=["between", "grown over the next", "shorter", "other", "longer with fewer"],
    )
    def test_what_lies_where_the_target_has_been_is_refused_by_name(self, now: list[ForeignSegment], late: str) -> None:
        before = plan_of(folder_of(segment(0, 10), segment(20, 30)))
        with pytest.raises(ArchiveMismatch, match=f"{late} of topic 'orders' partition 0") as caught:
            check_additions(folder_of(*now), [before], covered((0, 30)))
        assert "Import into a new folder" in (caught.value.hint or "")

    def test_the_last_plan_that_saw_the_partition_counts(self) -> None:
        """A segment is late again if it lay there when a run was killed, and did not when another run converted that
        range."""
        other = replace(plan_of(folder_of(segment(0, 5))), seen={(ORDERS.topic_id, 1): (SeenSegment(0, 5, 5),)})
        plans = [other, plan_of(folder_of(segment(0, 10))), plan_of(folder_of(segment(0, 10), segment(10, 20)))]
        check_additions(folder_of(segment(0, 10)), plans, covered((0, 20)))
        with pytest.raises(ArchiveMismatch, match="segment-10 holds offsets 10 to 19"):
            check_additions(folder_of(segment(0, 10), segment(10, 20)), plans, covered((0, 20)))

    def test_plans_before_one_that_saw_all_partitions_are_not_read(self) -> None:
        """Each has all segments of its time: with them, the hundredth import would take as long as the ninety-nine."""
        last, older = plan_of(folder_of(segment(0, 10))), plan_of(folder_of(segment(0, 5)))
        plans = iter([last, older])
        check_additions(folder_of(segment(0, 10)), plans, covered((0, 10)))
        assert next(plans) is older

    def test_without_a_plan_nothing_is_taken_for_seen(self) -> None:
        with pytest.raises(ArchiveMismatch, match="segment-0 holds offsets 0 to 9"):
            check_additions(folder_of(segment(0, 10)), [], covered((0, 10)))
        check_additions(folder_of(segment(0, 10)), [], ArchiveState())
        check_additions(source_of(segment(0, 10)), [], covered((0, 10)))

    def test_what_comes_between_the_chunks_of_a_run_is_not_taken_into_them(self) -> None:
        plan = plan_of(folder_of(segment(0, 10), segment(20, 30)))
        now = folder_of(segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40))
        with pytest.raises(ArchiveMismatch, match="segment-10 holds offsets 10 to 19"):
            check_additions(now, [plan], ArchiveState(), plan.chunks)

    def test_a_segment_that_is_gone_from_between_others_is_missed(self) -> None:
        plan = plan_of(folder_of(segment(0, 10), segment(10, 20), segment(20, 30)))
        with pytest.raises(ArchiveMismatch, match="no longer holds offsets 10 to 19 of topic 'orders' partition 0"):
            check_covers(folder_of(segment(0, 10), segment(20, 30)), plan)
        later = plan_of(folder_of(segment(0, 10), segment(10, 20), segment(20, 30)), covered((0, 20)))
        check_covers(folder_of(segment(0, 10), segment(20, 30)), later)


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

    def test_what_was_removed_is_lost_to_the_new_archive(self) -> None:
        """Removed ranges become one range, across the offsets that lie between them."""
        state = ArchiveState()
        state.coverage[KEY] = [(10, 50), (60, 100)]
        state.removed[KEY] = [(10, 20), (40, 80)]
        assert [(gap.start, gap.end) for gap in removed_gaps(state)] == [(10, 20), (40, 50), (60, 80)]

"""Kept points, holds and snapshots keep some of what is too old or too much."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import RemovedSegment, RunEntry, RunOutcome, branch_id
from logkeep_engine.archive.catalog.generations import NextGeneration, PassiveGeneration
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts, Rereading
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retention import (
    COMPACTED,
    MAX_AGE,
    MAX_BYTES,
    NO_POINT,
    TRANSACTIONS,
    UNLIMITED,
    WITHIN,
    RetentionDecision,
    RetentionLimits,
    expired,
    judged,
)
from logkeep_engine.archive.maintenance.retention_items import NEEDED, Item
from logkeep_engine.contract.names import ERASURE
from tests.unit.archive.build import ORDERS, changed
from tests.unit.archive.maintenance.test_retention import AUDIT, ID, STATE, at

DAY = 86_400_000
START = 20_000 * DAY
"""The day 0 of these tests: midnight in UTC."""


def day(number: float) -> int:
    return int(START + number * DAY)


def daily(days: int, topic_id: str = ID, *, state: ArchiveState | None = None) -> ArchiveState:
    """An archive with a run at the noon of each day, which archives a segment of ten offsets of that day."""
    found = state or ArchiveState()
    found.add_facts([ORDERS, AUDIT, STATE], (), [of_day(number, topic_id) for number in range(days)], ())
    found.epoch = days
    for number in range(days):
        run = RunEntry(f"run-{number}", number + 1, "KafkaBackup", day(number), day(number + 0.5), RunOutcome.SUCCEEDED)
        found.runs[run.run_id] = run
    return found


def of_day(number: int, topic_id: str = ID) -> SegmentEntry:
    return at(number * 10, day(number + 0.5), topic_id=topic_id, epoch=number + 1)


def of_archive(state: ArchiveState, limits: RetentionLimits, now: float, keep: KeepRules) -> list[RetentionDecision]:
    return judged(state, limits, day(now), keep)


def gone(state: ArchiveState, now: float, *, age: int | None = None, size: int | None = None, **keep: int) -> list[int]:
    """The first offsets of segments that go, divided by ten: the day of each."""
    limits = RetentionLimits(None if age is None else age * DAY, size)
    found = expired(state, limits, day(now), KeepRules(**keep))
    return sorted(item.segment.base_offset // 10 for item in found if isinstance(item.segment, RemovedSegment))


def why(judgements: Iterable[RetentionDecision]) -> dict[int, str]:
    return {item.offset // 10: why for item, _, why in judgements}


def outcome(judgements: Sequence[RetentionDecision]) -> list[tuple[int, int, bool, str]]:
    return [(item.offset, item.time, goes, why) for item, goes, why in judgements]


def test_a_segment_that_an_erasure_has_rewritten_is_as_old_as_it_was() -> None:
    state = daily(10)
    before = outcome(of_archive(state, RetentionLimits(3 * DAY), 9.5, KeepRules(runs=3)))
    state.runs["erase"] = RunEntry("erase", 11, ERASURE, day(9.5), day(9.5), RunOutcome.SUCCEEDED)
    rewritten = (replace(old, epoch=11, first_epoch=old.epoch, last_epoch=old.epoch) for old in map(of_day, range(10)))
    state.segments.replace_rows((ID, 0), b"".join(map(pack, rewritten)))
    assert outcome(of_archive(state, RetentionLimits(3 * DAY), 9.5, KeepRules(runs=3))) == before


def test_a_kept_point_keeps_what_was_not_too_old_when_its_run_ended() -> None:
    state = daily(10)
    assert gone(state, 9.5, age=3) == [0, 1, 2, 3, 4, 5]
    assert gone(state, 9.5, age=3, runs=3) == [0, 1, 2, 3]
    assert gone(state, 9.5, age=3, runs=100) == []
    reasons = why(of_archive(state, RetentionLimits(3 * DAY), 9.5, KeepRules(runs=3)))
    assert reasons[3] == MAX_AGE
    assert reasons[4] == reasons[5].replace("run-8", "run-7") == "run run-7 (keepRuns)"
    assert reasons[6] == WITHIN


def test_what_nothing_limits_is_not_said_to_be_within_limits() -> None:
    found = of_archive(daily(3), RetentionLimits(None, None), 2.5, KeepRules())
    assert set(why(found).values()) == {UNLIMITED}
    assert not any(goes for _, goes, _ in found)


def test_an_old_point_keeps_its_window_and_nothing_between_it_and_the_next() -> None:
    state = daily(60)
    found = set(range(60)) - set(gone(state, 59.5, age=2, monthly=2))
    month_end = next(number for number in range(58, 0, -1) if (day(number) // DAY) in (20_029, 20_059))
    assert {57, 58, 59} <= found
    assert {month_end - 1, month_end} <= found | {month_end - 1, month_end}
    assert len(found) < 10


def test_by_size_a_kept_point_keeps_what_was_not_too_much_when_its_run_ended() -> None:
    state = daily(10)  # each segment has 100 bytes
    assert gone(state, 9.5, size=300) == [0, 1, 2, 3, 4, 5, 6]
    assert gone(state, 9.5, size=300, runs=2) == [0, 1, 2, 3, 4, 5]
    assert gone(state, 9.5, size=300, age=2, runs=2) == [0, 1, 2, 3, 4, 5]
    assert MAX_BYTES in why(of_archive(state, RetentionLimits(None, 300), 9.5, KeepRules())).values()


def test_without_limits_points_keep_all_of_topics_that_are_not_only_compacted() -> None:
    assert gone(daily(10), 9.5, runs=1) == []


def test_what_follows_transactions_that_a_point_keeps_stays_with_them() -> None:
    state = daily(3)
    state.segments.remove((ID, 0), {0, 10})
    first = replace(of_day(0), transactional=True)
    late = changed(of_day(1), max_timestamp=day(0.45))  # its records are as old as those before it
    state.segments.add(first)
    state.segments.add(late)
    state.retention_holds = (Hold(HoldKind.RUN, "run-0", HoldOrigin.SPEC),)
    reasons = why(of_archive(state, RetentionLimits(DAY // 2), 2.5, KeepRules()))
    assert reasons == {0: "run run-0 (hold)", 1: TRANSACTIONS, 2: WITHIN}


def test_nothing_goes_of_a_topic_or_a_run_with_a_hold() -> None:
    state = daily(5, AUDIT.topic_id, state=daily(5))
    assert gone(state, 100, age=1) == sorted([*range(5)] * 2)
    state.retention_holds = (Hold(HoldKind.TOPIC, "aud.*", HoldOrigin.SPEC),)
    found = expired(state, RetentionLimits(DAY), day(100))
    assert {item.segment.topic_id for item in found} == {ID}
    state.retention_holds = (Hold(HoldKind.RUN, "run-2", HoldOrigin.COMMAND),)
    assert gone(state, 100, age=1) == [3, 3, 4, 4]
    assert gone(state, 100, size=1) == [3, 3, 4, 4]


def test_a_hold_on_a_part_of_a_name_holds_nothing_else() -> None:
    state = daily(2)
    state.retention_holds = (Hold(HoldKind.TOPIC, "ord", HoldOrigin.SPEC),)
    assert gone(state, 100, age=1) == [0, 1]


# ---- topics that are only compacted

KEY = (STATE.topic_id, 0)


def snapshot(end: int, epoch: int) -> HeldSnapshot:
    segment = at(0, 5, topic_id=STATE.topic_id, epoch=epoch)
    part = changed(replace(segment, next_offset=end), layout=Layout.SNAPSHOT, end=end, leader_epoch=0, part=0)
    return HeldSnapshot.of(SnapshotEntry(*KEY, end, 0, 5, (part,)))


def compacted(days: int, *with_snapshot: int) -> ArchiveState:
    """The same of a topic that is only compacted; the runs of some days have made snapshots."""
    state = daily(days, STATE.topic_id)
    state.snapshots[KEY] = [snapshot((number + 1) * 10, number + 1) for number in with_snapshot]
    return state


def snapshots_gone(state: ArchiveState, now: float, *, age: int | None = None, **keep: int) -> list[int]:
    found = expired(state, RetentionLimits(None if age is None else age * DAY), day(now), KeepRules(**keep))
    return [item.segment.end // 10 - 1 for item in found if isinstance(item.segment, RemovedSnapshot)]


def test_without_a_snapshot_nothing_of_a_compacted_topic_goes() -> None:
    state = compacted(10)
    assert gone(state, 100, age=1, size=1, runs=1) == []
    assert set(why(of_archive(state, RetentionLimits(DAY), 100, KeepRules())).values()) == {COMPACTED}


def test_by_age_the_log_goes_below_a_snapshot_that_is_older() -> None:
    state = compacted(10, 2, 5, 8)
    assert gone(state, 9.5, age=2) == [0, 1, 2, 3, 4, 5]
    assert snapshots_gone(state, 9.5, age=2) == [2]
    assert gone(state, 9.5, age=5) == [0, 1, 2]
    assert snapshots_gone(state, 9.5, age=5) == []
    assert gone(state, 9.5, age=20) == snapshots_gone(state, 9.5, age=20) == []


def test_the_newest_snapshot_never_goes() -> None:
    state = compacted(10, 3)
    assert gone(state, 1000, age=1, runs=0) == [0, 1, 2, 3]
    assert snapshots_gone(state, 1000, age=1) == []


def test_kept_points_keep_the_snapshots_with_which_they_begin_and_the_log_after_the_oldest() -> None:
    state = compacted(10, *range(10))
    assert gone(state, 9.5, runs=3) == list(range(8))
    assert snapshots_gone(state, 9.5, runs=3) == list(range(7))
    state = compacted(10, 2, 5, 8)
    assert gone(state, 9.5, runs=3) == [0, 1, 2, 3, 4, 5]
    assert snapshots_gone(state, 9.5, runs=3) == [2]
    reasons = {
        (item.is_snapshot, item.offset): why for item, _, why in of_archive(state, RetentionLimits(), 9.5, KeepRules(3))
    }
    assert (reasons[False, 0], reasons[False, 60], reasons[True, 30]) == (NO_POINT, COMPACTED, NO_POINT)
    assert reasons[True, 60] == reasons[True, 90] == NEEDED


def test_snapshots_between_kept_points_go_and_the_log_between_them_stays() -> None:
    state = compacted(10, *range(10))
    state.retention_holds = ()
    state.runs = {name: run for name, run in state.runs.items() if name in ("run-2", "run-9")}
    assert gone(state, 9.5, runs=2) == [0, 1, 2]
    assert snapshots_gone(state, 9.5, runs=2) == [0, 1, 3, 4, 5, 6, 7, 8]


def test_points_keep_the_snapshot_at_their_end_that_a_later_run_has_made_when_the_log_below_is_gone() -> None:
    """Nothing was new, and so all that the archive has of the partition is younger than the point."""
    state = compacted(7)
    state.runs["run-7"] = replace(state.runs["run-6"], run_id="run-7", epoch=8, end_time=day(7.5))
    state.snapshots[KEY] = [snapshot(70, 8)]
    assert gone(state, 7.5, runs=2) == list(range(7))
    state = compacted(10)
    state.segments.replace_rows(KEY, b"".join(map(pack, list(state.segments[KEY])[8:])))
    state.removed[KEY] = [(0, 70)]
    state.snapshots[KEY] = [snapshot(70, 8), snapshot(100, 10)]
    state.runs = {name: run for name, run in state.runs.items() if name in ("run-6", "run-9")}
    assert snapshots_gone(state, 9.5, runs=2) == snapshots_gone(state, 9.5, age=0, runs=2) == []
    assert gone(state, 9.5, runs=2) == []
    assert snapshots_gone(state, 9.5, runs=1) == [6]
    assert gone(state, 9.5, runs=1) == [8, 9]


def test_a_point_before_the_first_snapshot_keeps_the_whole_log() -> None:
    state = compacted(10, 5, 8)
    assert gone(state, 9.5, runs=7) == []
    assert gone(state, 9.5, runs=5) == [0, 1, 2, 3, 4, 5]


def test_a_hold_on_a_run_keeps_what_lies_below_its_snapshot_too() -> None:
    state = compacted(10, *range(10))
    state.retention_holds = (Hold(HoldKind.RUN, "run-4", HoldOrigin.SPEC),)
    assert gone(state, 9.5, age=1) == snapshots_gone(state, 9.5, age=1)[5:] == []


def cut_off(state: ArchiveState, offset: int) -> None:
    """The log of the partition was cut off, and nothing has come since."""
    old = HeldLine(Line(), state.held(KEY), branch_id=branch_id(KEY[0], 1))
    state.lines[KEY] = [old, HeldLine(Line(0, offset), PartitionFacts(), 10)]
    state.show(KEY)


def test_the_floor_of_a_log_that_was_cut_off_is_one_of_the_branch_too() -> None:
    state = compacted(10, *range(10))
    cut_off(state, 50)
    assert gone(state, 9.5, age=1, runs=1) == [0, 1, 2, 3, 4]
    assert snapshots_gone(state, 9.5, age=1, runs=1) == [0, 1, 2, 3]
    assert {item.line for item, goes, _ in of_archive(state, RetentionLimits(), 9.5, KeepRules(1)) if goes} == {0}


def test_what_was_read_again_goes_with_the_last_point_of_before() -> None:
    state = compacted(10, 2, 5)
    old = HeldLine(Line(), state.held(KEY))
    front = [at(base, day(7), topic_id=KEY[0], epoch=8) for base in (0, 20)]
    again = PartitionFacts(b"".join(map(pack, front)), [(0, 40)])
    state.lines[KEY] = [old, HeldLine(Line(0, 0, 40, again=True), again, 8, again=Rereading(2, day(7), day(8), 80))]
    state.show(KEY)
    assert gone(state, 9.5, runs=4) == snapshots_gone(state, 9.5, runs=4) == []
    assert {(item.line, item.offset) for item in going(state, KeepRules(3))} == {(0, at) for at in (0, 10, 20, 30, 60)}
    assert {(item.line, item.offset) for item in going(state, KeepRules())} == {(0, at) for at in (0, 10, 20, 30, 60)}
    state.retention_holds = (Hold(HoldKind.RUN, "run-4", HoldOrigin.SPEC),)
    assert [item.offset for item in going(state, KeepRules())] == [60], "the snapshot was made later"


def going(state: ArchiveState, keep: KeepRules) -> list[Item]:
    return [item for item, goes, _ in of_archive(state, RetentionLimits(), 9.5, keep) if goes]


def test_the_log_with_which_a_generation_continues_that_is_being_read_stays() -> None:
    """A snapshot that stands for it goes when the generation becomes active, and with it the only record of keys."""
    state = compacted(10, 2, 5, 8)
    state.next_generations[KEY] = NextGeneration(2, PassiveGeneration(2, day(3), 0, 40))
    assert gone(state, 9.5, age=2) == [0, 1, 2]
    state.snapshots[KEY].pop(0)
    assert gone(state, 9.5, age=2) == gone(state, 9.5, runs=1) == []
    del state.next_generations[KEY]
    assert gone(state, 9.5, age=2) == [0, 1, 2, 3, 4, 5]


def test_the_log_that_a_point_of_before_the_active_generation_has_stays() -> None:
    """Snapshots that were made since have what the new generation has, and not what the point had."""
    state = compacted(10, 2, 5, 8)
    state.lines[KEY] = [HeldLine(Line(), state.held(KEY)), HeldLine(Line(0, 0, 0, again=True), PartitionFacts(), 8)]
    state.lines[KEY][-1].again = Rereading(2, day(7), day(8), 80)
    assert gone(state, 9.5, runs=3) == [0, 1, 2, 3, 4, 5]
    assert gone(state, 9.5, runs=4) == gone(state, 9.5, runs=4, age=1) == []


@pytest.mark.parametrize("policy", ["compact,delete", "delete"])
def test_points_of_a_time_when_the_topic_was_compacted_only_keep_all_that_they_have(policy: str) -> None:
    """The oldest record may be the last of its key, whatever the topic's policy is now."""
    state = compacted(10, 2, 8)
    now = replace(STATE, configs={"cleanup.policy": policy})
    state.topics[STATE.topic_id] = replace(now, compacted_until=8)  # run-8 is the first that has found it so
    assert gone(state, 9.5, age=1, runs=5) == snapshots_gone(state, 9.5, age=1, runs=5) == []
    assert gone(state, 9.5, size=1, runs=5) == [8, 9]
    assert 2 in gone(state, 9.5, age=1, runs=2)
    state.topics[STATE.topic_id] = now
    assert gone(state, 9.5, age=1, runs=5) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["compact,delete", "delete"])
def test_a_topic_that_also_deletes_goes_by_age_and_keeps_the_snapshots_of_points(policy: str) -> None:
    state = compacted(10, 2, 5, 8)
    state.topics[STATE.topic_id] = replace(STATE, configs={"cleanup.policy": policy})
    assert gone(state, 9.5, age=2) == [0, 1, 2, 3, 4, 5, 6]
    assert snapshots_gone(state, 9.5, age=2) == [2, 5]
    assert snapshots_gone(state, 9.5, runs=3) == [2]

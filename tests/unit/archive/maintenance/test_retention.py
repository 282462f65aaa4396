"""Which segments retention finds too old or too much, and how the state remembers what was removed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from logkeep_engine.archive.catalog import checkpoint, commits
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Commit, CommitKind, Coverage, RemovedSegment, RunEntry, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retention import Expired, RetentionLimits, expired, judged
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from tests.unit.archive.build import ORDERS, changed
from tests.unit.archive.catalog.test_state import entry

ID = ORDERS.topic_id
AUDIT = replace(ORDERS, name="audit", topic_id="b" * 22)
STATE = replace(ORDERS, name="state", topic_id="c" * 22, configs={"cleanup.policy": "compact"})
NOW = 1_000_000


def at(base: int, time: int, *, size: int = 100, topic_id: str = ID, epoch: int = 1) -> SegmentEntry:
    """A segment of ten offsets whose newest record is of `time`, `size` bytes large with its index."""
    found = changed(entry(base, base + 10, epoch=epoch), topic_id=topic_id, max_timestamp=time, min_base_timestamp=0)
    return changed(found, bytes=size - 20, index_bytes=8, timeindex_bytes=12)


def holding(*entries: SegmentEntry) -> ArchiveState:
    state = ArchiveState()
    coverage = [Coverage(item.topic_id, item.partition, item.base_offset, item.next_offset) for item in entries]
    state.add_facts([ORDERS, AUDIT, STATE], coverage, entries, ())
    state.epoch = 1
    state.runs["run-1"] = RunEntry("run-1", 1, "KafkaBackup", 10)
    return state


def gone(state: ArchiveState, *, age: int | None = None, size: int | None = None) -> list[tuple[str, int]]:
    found = expired(state, RetentionLimits(age, size), NOW)
    names = {topic_id: topic.name for topic_id, topic in state.topics.items()}
    gone = [item.segment for item in found if isinstance(item.segment, RemovedSegment)]
    return [(names[item.topic_id], item.base_offset) for item in gone]


def test_without_a_limit_everything_stays() -> None:
    assert gone(holding(at(0, 1), at(10, 2))) == []


def test_by_age_a_segment_goes_when_its_newest_record_is_older() -> None:
    state = holding(at(0, NOW - 101), at(10, NOW - 100), at(20, NOW - 99))
    assert gone(state, age=100) == [("orders", 0)]
    assert gone(state, age=98) == [("orders", 0), ("orders", 10), ("orders", 20)]
    assert gone(state, age=101) == []


def test_each_segment_goes_by_its_own_newest_record_wherever_it_stands() -> None:
    assert gone(holding(at(0, NOW), at(10, 5), at(20, NOW)), age=100) == [("orders", 10)]


def test_a_time_in_the_future_keeps_a_segment() -> None:
    assert gone(holding(at(0, NOW * 1000)), age=1) == []


def transactional(entry: SegmentEntry) -> SegmentEntry:
    return replace(entry, transactional=True)


def test_what_follows_a_segment_with_transactions_in_its_partition_goes_after_it() -> None:
    marker, plain = transactional(at(10, 5)), at(20, 6)
    others = [at(0, 7, topic_id=AUDIT.topic_id), at(0, 5, topic_id=STATE.topic_id)]
    assert gone(holding(transactional(at(0, NOW)), marker, plain, *others), age=100) == [("audit", 0)]
    assert gone(holding(transactional(at(0, 8)), marker, plain, *others), age=100) == [
        ("audit", 0),
        *(("orders", base) for base in (0, 10, 20)),
    ]
    assert gone(holding(at(0, NOW), marker, plain, *others), age=100) == [("orders", 10), ("orders", 20), ("audit", 0)]


def test_by_size_too_what_follows_a_segment_with_transactions_goes_after_it() -> None:
    state = holding(transactional(at(0, 50)), transactional(at(10, 20)), at(20, 30), at(0, 40, topic_id=AUDIT.topic_id))
    assert gone(state, size=399) == [("audit", 0)]
    assert gone(state, size=299) == [("audit", 0), ("orders", 0)]
    assert gone(state, size=199) == [("audit", 0), ("orders", 0), ("orders", 10)]


@pytest.mark.parametrize("limits", [{"age": NOW - 2}, {"size": 200}, {"age": NOW - 1, "size": 100}])
def test_wherever_a_removal_ends_what_follows_transactions_is_kept_with_them(limits: dict[str, int]) -> None:
    for times in product((-1, 0, 1, 2, NOW * 1000), repeat=3):
        for flags in product((False, True), repeat=3):
            entries = [replace(at(base * 10, times[base]), transactional=flags[base]) for base in range(3)]
            bases = [base // 10 for _, base in gone(holding(*entries), **limits)]
            for at_once, base in enumerate(bases):
                before = {earlier for earlier in range(base) if flags[earlier]}
                assert before <= set(bases[:at_once]), (times, flags, bases)


def test_by_size_the_oldest_go_whatever_topic_they_are_of() -> None:
    state = holding(at(0, 30), at(10, 50), at(0, 20, topic_id=AUDIT.topic_id), at(10, 40, topic_id=AUDIT.topic_id))
    assert gone(state, size=400) == []
    assert gone(state, size=399) == [("audit", 0)]
    assert gone(state, size=200) == [("audit", 0), ("orders", 0)]
    assert gone(state, size=199) == [("audit", 0), ("orders", 0), ("audit", 10)]


def test_by_size_a_segment_is_as_old_as_the_run_that_archived_it_whatever_its_records_say() -> None:
    ahead = [at(base, NOW * 1000, topic_id=AUDIT.topic_id, epoch=1 + base // 10) for base in (0, 10, 20)]
    state = holding(at(0, NOW - 1, epoch=3), *ahead)
    state.runs = {
        f"run-{epoch}": RunEntry(f"run-{epoch}", epoch, "KafkaBackup", 0, NOW - 900 + 300 * epoch, RunOutcome.SUCCEEDED)
        for epoch in (1, 2, 3)
    }
    assert gone(state, size=300) == [("audit", 0)]
    assert gone(state, size=100) == [("audit", 0), ("audit", 10), ("orders", 0)]
    assert gone(state, size=100, age=1) == [("audit", 0), ("audit", 10), ("orders", 0)]
    assert gone(state, age=1) == []


def test_both_limits_hold() -> None:
    state = holding(at(0, NOW - 500), at(10, NOW - 300), at(20, NOW - 100))
    assert gone(state, age=200, size=1000) == [("orders", 0), ("orders", 10)]
    assert gone(state, age=400, size=100) == [("orders", 0), ("orders", 10)]


def test_the_size_of_a_segment_is_that_of_all_its_objects() -> None:
    assert object_bytes(changed(at(0, 1), txnindex_bytes=34)) == 134
    assert object_bytes(changed(at(0, 1), stored_bytes=30)) == 50
    found = expired(holding(at(0, 1, size=150)), RetentionLimits(max_age=5), NOW)
    assert found == [Expired(RemovedSegment(ID, 0, 0), 150)]


def test_topics_that_are_only_compacted_are_neither_removed_nor_counted() -> None:
    state = holding(at(0, 1, topic_id=STATE.topic_id), at(10, 1, topic_id=STATE.topic_id), at(0, 2))
    assert gone(state, age=5) == [("orders", 0)]
    assert gone(state, size=100) == []


@pytest.mark.parametrize(
    ("policy", "only"),
    [("compact", True), ("delete", False), ("compact,delete", False), ("delete, compact", False), ("", False)],
)
def test_a_topic_is_compacted_only_if_its_policy_says_nothing_of_delete(policy: str, only: bool) -> None:
    assert replace(ORDERS, configs={"cleanup.policy": policy}).is_compacted_only is only
    assert not replace(ORDERS, configs={}).is_compacted_only


def test_a_segment_without_times_is_as_old_as_the_end_of_the_run_that_archived_it() -> None:
    state = holding(at(0, -1, epoch=1), at(10, -1, epoch=2), at(20, -1, epoch=3), at(30, -1, epoch=4))
    # Attempts 1 and 2 are of one run; another took ends at epoch 3 and continues; epoch 4 is not known.
    state.runs = {
        "a": RunEntry("a", 2, "KafkaBackup", 0, NOW - 300, RunOutcome.SUCCEEDED),
        "b": RunEntry("b", 3, "KafkaBackup", NOW - 200),
    }
    assert gone(state, age=299) == [("orders", 0), ("orders", 10)]
    assert gone(state, age=300) == []


def remove(state: ArchiveState, *bases: int, purged: bool = True) -> None:
    """Remove them in one commit of run-1."""
    state.apply(
        Commit(
            number=state.commit + 1,
            archive_id="a",
            token="t",
            kind=CommitKind.DATA,
            run_id="run-1",
            epoch=1,
            time=5,
            removed=tuple(RemovedSegment(ID, 0, base) for base in bases),
            purged=tuple(item.commit for item in state.unpurged) if purged else (),
        )
    )


def unpurged(state: ArchiveState) -> list[tuple[int, list[int]]]:
    """The commit of each removal whose objects may be there still, and the base offsets of its segments."""
    return [(item.commit, [entry.base_offset for entry in item.segments[ID, 0]]) for item in state.unpurged]


def test_removed_offsets_stay_settled_and_are_remembered() -> None:
    state = holding(at(0, 1), at(10, 1), at(20, 1))
    remove(state, 0, 10)
    assert [item.base_offset for item in state.segments[ID, 0]] == [20]
    assert (state.coverage[ID, 0], state.removed[ID, 0]) == ([(0, 30)], [(0, 20)])
    assert (state.accounted_for(ID, 0), state.uncovered(ID, 0, 0, 40)) == ([(0, 30)], [(30, 40)])
    assert unpurged(state) == [(0, [0, 10])]
    remove(state, 20)
    assert (dict(state.segments), state.removed[ID, 0]) == ({}, [(0, 30)])
    assert unpurged(state) == [(1, [20])]
    assert state.partitions() == [(ID, 0)]


def test_removed_ranges_are_one_across_offsets_without_a_segment_but_not_across_what_is_kept_or_open() -> None:
    state = holding(at(0, 1), at(20, 1), at(40, 1), at(60, 1))
    state.add_facts((), [Coverage(ID, 0, 10, 20), Coverage(ID, 0, 30, 40)], (), ())  # [50, 60) is not archived
    remove(state, 0, 40)
    assert state.removed[ID, 0] == [(0, 10), (40, 50)]
    remove(state, 60)
    assert state.removed[ID, 0] == [(0, 10), (40, 50), (60, 70)]
    remove(state, 20)
    assert state.removed[ID, 0] == [(0, 50), (60, 70)]


def test_a_segment_that_reached_into_what_follows_is_known_when_it_is_removed() -> None:
    state = holding(at(0, 1), replace(at(10, 1), next_offset=25))
    assert [state.held_until(ID, 0, offset) for offset in (0, 10, 20, 30)] == [0, 10, 25, 25]
    remove(state, 10)
    assert [state.held_until(ID, 0, offset) for offset in (0, 10, 20, 30)] == [0, 10, 25, 25]
    remove(state, 0)
    assert [state.held_until(ID, 0, offset) for offset in (0, 20, 30)] == [0, 25, 25]
    assert state.held_until(ID, 1, 30) == 0


def test_only_what_was_removed_between_segments_that_are_left_is_missing_in_the_middle() -> None:
    state = holding(at(0, 1), at(10, 1), at(20, 1), at(30, 1), at(40, 1))
    remove(state, 0, 20, 40)
    assert state.removed_between(ID, 0) == [(20, 30)]
    remove(state, 10, 30)
    assert (state.removed[ID, 0], state.removed_between(ID, 0)) == ([(0, 50)], [])


def test_a_segment_that_is_not_there_cannot_be_removed() -> None:
    state = holding(at(0, 1))
    with pytest.raises(ValueError, match=f"there is no segment 5 of topic id {ID} partition 0 to remove"):
        remove(state, 5)
    with pytest.raises(ValueError, match="there is no segment 0"):
        remove(holding(at(10, 1)), 0, 10)
    assert [item.base_offset for item in state.segments[ID, 0]] == [0]


def test_a_state_with_removed_segments_survives_a_checkpoint() -> None:
    state = holding(at(0, 1), at(10, 1), at(20, 1), at(0, 1, topic_id=AUDIT.topic_id))
    remove(state, 0)
    remove(state, 10, purged=False)
    _, found = checkpoint.load(checkpoint.dump(state, "a"), "c")
    assert found.same_facts(state)
    assert unpurged(found) == [(0, [0]), (1, [10])]
    assert found.removed == {(ID, 0): [(0, 20)]}
    changes: list[Callable[[ArchiveState], object]] = [
        lambda one: one.removed.clear(),
        lambda one: one.unpurged[1].segments.remove((ID, 0), {10}),
        lambda one: setattr(one, "unpurged", one.unpurged[1:]),
        lambda one: setattr(one, "unpurged", (replace(one.unpurged[0], time=6), one.unpurged[1])),
    ]
    for change in changes:
        _, other = checkpoint.load(checkpoint.dump(state, "a"), "c")
        change(other)
        assert not other.same_facts(state)


def test_a_commit_says_what_it_removes_only_if_it_does() -> None:
    state = holding(at(0, 1))
    plain = Commit(0, "a", "t", CommitKind.DATA, "run-1", 1, 5)
    assert b"removed" not in commits.dump_commit(plain)
    removing = replace(plain, removed=(RemovedSegment(ID, 0, 0), RemovedSegment(ID, 3, 7)), purged=(8, 9))
    data = commits.dump_commit(removing)
    columns = '"columns":["topicId","partition","line","baseOffset"]'
    assert f'"removed":{{{columns},"rows":[["{ID}",0,0,0],["{ID}",3,0,7]]}}'.encode() in data
    assert b'"purged":[8,9],' in data
    assert commits.load_commit(data, "c") == removing
    assert state.removed == {}


def test_nothing_goes_of_topics_that_are_spared_and_their_bytes_do_not_count() -> None:
    audit = [at(base, 1 + base, topic_id=AUDIT.topic_id) for base in (0, 10)]
    state = holding(at(0, 1), at(10, 2), at(20, NOW), *audit)
    spared = {AUDIT.topic_id}

    def left(age: int | None, size: int | None) -> list[tuple[str, int]]:
        found = expired(state, RetentionLimits(age, size), NOW, spared=spared)
        assert {item.segment.topic_id for item in found} <= {ID}
        return [(item.segment.topic_id, item.bytes) for item in found]

    assert left(100, None) == [(ID, 100), (ID, 100)]
    assert left(None, 300) == [], "500 bytes are there, 300 of topics of which something may go"
    assert left(None, 200) == [(ID, 100)]
    assert left(100, 1) == [(ID, 100)] * 3
    why = {one.item.topic_id: one.why for one in judged(state, RetentionLimits(100), NOW, spared=spared)}
    assert why[AUDIT.topic_id] == "spec.topics does not choose it"
    assert len(expired(state, RetentionLimits(100), NOW)) == 4


def test_a_spared_compacted_topic_keeps_its_snapshots_and_what_they_stand_for() -> None:
    state = holding(at(0, 1, topic_id=STATE.topic_id), at(10, 1))
    rules = KeepRules(runs=1)
    found = judged(state, RetentionLimits(), NOW, rules, {STATE.topic_id})
    assert {one.why for one in found if one.item.topic_id == STATE.topic_id} == {"compacted"}
    assert not [one for one in found if one.goes]

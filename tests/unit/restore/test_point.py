"""Which state of an archive, which offsets and which positions of groups a point stands for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    GroupEntry,
    Receipt,
    RemovedSegment,
    RunOutcome,
    branch_id,
)
from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.history.compacted import first_exact
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.errors import BrokerUnavailable, SpecError
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.restore.model import point as points
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.model.selection import Choice, with_branches
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, TIME, begin, chunk, reread, write_segment
from tests.unit.backup.compacted_topic import CompactedTopic, last_values, spec_of
from tests.unit.erasure.erasing import erased
from tests.unit.log.batches import NOON, batch, marker

KEY = (ORDERS.topic_id, 0)


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def group(offset: int, partition: int = 0, name: str = "readers") -> GroupEntry:
    return GroupEntry(name, ORDERS.name, ORDERS.topic_id, partition, offset)


def run(storage: Storage, run_id: str, start: int, end: int, *groups: GroupEntry, failed: bool = False) -> int:
    """A run that archives [start, end) of partition 0; returns the time (ms) of its end."""
    archive = Archive.create_or_open(storage, CLUSTER)
    with begin_run(archive, run_id, wait=FAST) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, end, epoch=writer.epoch)])
        if failed:
            error = BrokerUnavailable("gone")
            writer.give_up(error, error.message)
        else:
            writer.end(RunOutcome.SUCCEEDED, groups=groups)
    return archive.read_commit(archive.load().commit).time


def point(**fields: Any) -> PointSpec:
    return PointSpec.model_validate(fields)


def offsets(*ends: tuple[int, int]) -> PointSpec:
    return point(offsets=[{"topic": "orders", "partition": partition, "offset": offset} for partition, offset in ends])


def seen(storage: Storage, wanted: PointSpec) -> ArchiveState:
    archive = Archive.open(storage)
    state = points.choose(archive, wanted).state
    made = points.plan_point(archive, state, [ORDERS], wanted)
    return points.state_at_point(archive, state, wanted, made.plan)


def held(state: ArchiveState) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.next_offset) for entry in state.segments.get(KEY, ())]


def test_a_run_is_the_state_at_its_end(storage: Storage) -> None:
    run(storage, "one", 0, 10, group(3))
    run(storage, "two", 10, 20, group(12))
    run(storage, "broken", 20, 30, failed=True)
    assert held(seen(storage, point(run="one"))) == [(0, 10)]
    assert seen(storage, point(run="one")).groups == (group(3),)
    assert held(seen(storage, point(run="two"))) == [(0, 10), (10, 20)]
    with pytest.raises(SpecError, match="run broken is Failed, so the archive has no state at its end"):
        seen(storage, point(run="broken"))
    with pytest.raises(SpecError, match="no run 'three'") as refused:
        seen(storage, point(run="three"))
    assert "one, two" in refused.value.hint


def test_what_retention_has_removed_since_is_not_in_the_state_of_a_run(storage: Storage) -> None:
    run(storage, "one", 0, 10)
    run(storage, "two", 10, 20)
    run(storage, "three", 20, 30)
    with begin_run(Archive.open(storage), "four", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0)])
        writer.purged([writer.state.commit])
    state = seen(storage, point(run="two"))
    assert held(state) == [(10, 20)]
    assert state.removed[KEY] == [(0, 10)]
    assert state.kept(*KEY) == [(10, 20)]
    # A later start of the run has the same, whatever is removed after that.
    archive = Archive.open(storage)
    plan = points.plan_point(archive, state, [ORDERS], point(run="two")).plan
    assert plan is not None
    with begin_run(archive, "five", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 10)])
    again = points.state_at_point(archive, points.choose(archive, point(run="two")).state, point(run="two"), plan)
    assert held(again) == [(10, 20)]


def remove_front(storage: Storage) -> None:
    """Retention removes what another generation has taken the place of."""
    with begin(storage, "retention") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0, 0)])


def test_what_was_erased_since_a_generation_is_there_as_the_erasure_has_left_it(storage: Storage) -> None:
    """The restore keeps the catalog up to the commit before the removal. It does not take segments from there."""
    run(storage, "one", 0, 10)
    other = replace(ORDERS, name="other", topic_id="b" * 21 + "_")
    with begin_run(Archive.open(storage), "two", wait=FAST) as writer:
        writer.commit(topics=[other], receipts=[chunk(storage, 0, 20, epoch=writer.epoch, topic=other)])
        writer.end(RunOutcome.SUCCEEDED)
    reread(storage, "three", 10)
    remove_front(storage)
    archive = Archive.open(storage)
    (gone,) = archive.load().segments[other.topic_id, 0]
    with begin_run(archive, "erasure-one", kind="Erasure", wait=FAST) as writer:
        left = chunk(storage, 0, 20, epoch=writer.epoch, topic=other).segments[0]
        writer.exchange([Exchange(gone, left)])
        writer.end(RunOutcome.SUCCEEDED)
    state = points.choose(archive, point(run="two")).state
    plan = points.plan_point(archive, state, [ORDERS, other], point(run="two")).plan
    assert plan is not None
    assert archive.load().commit > plan.seen
    found = points.state_at_point(archive, state, point(run="two"), plan)
    assert [entry.epoch for entry in found.segments[other.topic_id, 0]] == [left.epoch]
    assert [entry.epoch for entry in found.segments[KEY]] == [1]


def test_what_was_deleted_since_a_generation_is_not_in_the_state_of_a_run(storage: Storage) -> None:
    run(storage, "one", 0, 10)
    with begin_run(Archive.open(storage), "two", wait=FAST) as writer:
        receipts = [chunk(storage, at, at + 10, partition=1, epoch=writer.epoch) for at in (0, 10)]
        writer.commit(receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    reread(storage, "three", 10)
    with begin_run(Archive.open(storage), "four", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ORDERS.topic_id, 1, 0)])
        writer.purged([writer.state.commit])
    state = seen(storage, point(run="two"))
    assert [entry.epoch for entry in state.segments[KEY]] == [1], "the generation before is there"
    assert [entry.base_offset for entry in state.segments[ORDERS.topic_id, 1]] == [10]
    assert state.removed[ORDERS.topic_id, 1] == [(0, 10)]


def test_a_later_start_has_what_the_plan_had_whatever_was_deleted_before_and_after_it(storage: Storage) -> None:
    other = replace(ORDERS, name="audit", topic_id="b" * 22)
    run(storage, "one", 0, 20)
    with begin(storage, "two") as writer:
        receipts = [chunk(storage, at, at + 10, topic=other, epoch=writer.epoch) for at in (0, 10, 20)]
        writer.commit(topics=[other], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    reread(storage, "three", 20)

    def delete(run_id: str, base: int) -> None:
        with begin(storage, run_id) as writer:
            writer.end(RunOutcome.SUCCEEDED)
            writer.remove([RemovedSegment(other.topic_id, 0, base)])
            purge(writer, topic_ids={other.topic_id})

    remove_front(storage)
    delete("four", 0)
    archive, wanted = Archive.open(storage), point(run="two")
    state = points.choose(archive, wanted).state
    plan = points.plan_point(archive, state, [ORDERS, other], wanted).plan
    assert plan is not None
    assert plan.seen < plan.newest, "the line of before is removed, and its objects are there still"
    first = points.state_at_point(archive, state, wanted, plan).segments
    delete("five", 10)
    again = points.state_at_point(archive, points.choose(archive, wanted).state, wanted, plan).segments
    assert [entry.base_offset for entry in first[other.topic_id, 0]] == [10, 20]
    assert again == first


def test_a_log_that_was_cut_off_later_is_still_the_one_of_the_run(storage: Storage) -> None:
    run(storage, "one", 0, 10)
    run(storage, "two", 10, 30)
    with begin_run(Archive.open(storage), "three", wait=FAST) as writer:
        writer.branch([Branching(*KEY, branch_id(ORDERS.topic_id, 1), 20)])
        writer.commit(receipts=[chunk(storage, 20, 50, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    state = seen(storage, point(run="two"))
    assert held(state) == [(0, 10), (10, 30)]
    assert [entry.epoch for entry in state.segments[KEY]] == [1, 2]


def test_positions_of_a_point_are_those_in_the_branch_that_is_restored(storage: Storage) -> None:
    """A group has read on in the later log: in the one of before, records after the fork would be passed over."""
    run(storage, "one", 0, 10, group(3))
    run(storage, "two", 10, 40, group(12))
    branch = branch_id(ORDERS.topic_id, 1)
    with begin_run(Archive.open(storage), "three", wait=FAST) as writer:
        writer.branch([Branching(*KEY, branch, 20)])
        writer.commit(receipts=[chunk(storage, 20, 50, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED, groups=[group(35)])
    archive = Archive.open(storage)
    chosen = {"orders": branch}
    for wanted in (point(asOf=iso(TIME * 2)), point(timestamp=iso(TIME * 2)), point(window={"to": iso(TIME * 2)})):
        state = with_branches(points.choose(archive, wanted).state, chosen)
        assert state.groups == (group(20),)
        plan = points.plan_point(archive, state, [ORDERS], wanted).plan
        assert points.state_at_point(archive, state, wanted, plan).groups == (group(20),)


def test_an_end_is_where_a_broker_would_find_the_time(storage: Storage) -> None:
    run(storage, "one", 0, 20)
    run(storage, "two", 20, 40)
    archive = Archive.open(storage)
    state = archive.load()
    for time, end in {-1: 0, 0: 0, 1: 1, 15: 15, 20: 20, 39: 39, 40: None}.items():
        found = points.ends_as_of(storage, state, [ORDERS], TIME + time)
        assert found == ({} if end is None else {KEY: end})
    assert held(seen(storage, point(asOf=iso(TIME + 15)))) == [(0, 20)]
    assert held(seen(storage, point(asOf=iso(TIME + 20)))) == [(0, 20)]
    assert held(seen(storage, point(asOf=iso(TIME + 21)))) == [(0, 20), (20, 40)]


def test_of_segments_only_those_that_cannot_hold_a_time_are_left_out(storage: Storage) -> None:
    for start in (0, 20, 40):
        run(storage, f"run-{start}", start, start + 20)
    # A batch may hold a record that is older than its first.
    assert held(seen(storage, point(timestamp=iso(TIME + 10)))) == [(0, 20), (20, 40), (40, 60)]
    assert held(seen(storage, point(window={"from": iso(TIME + 39)}))) == [(20, 40), (40, 60)]
    assert held(seen(storage, point(window={"from": iso(TIME + 40)}))) == [(40, 60)]


def test_groups_are_those_of_the_last_run_that_had_ended(storage: Storage) -> None:
    one = run(storage, "one", 0, 10, group(3), group(4, name="others"))
    two = run(storage, "two", 10, 20, group(12))
    expected: Mapping[int, Sequence[GroupEntry]] = {
        one - 1: (),
        one: (group(3), group(4, name="others")),
        two - 1: (group(3), group(4, name="others")),
        two: (group(12),),
    }
    if one == two:
        pytest.skip("both ended within a millisecond")
    for time, groups in expected.items():
        for wanted in (point(asOf=iso(time)), point(timestamp=iso(time)), point(window={"to": iso(time)})):
            assert seen(storage, wanted).groups == groups
    assert seen(storage, point(window={"from": iso(one)})).groups == (group(12),)


def test_positions_at_offsets_are_the_newest_that_do_not_lie_behind(storage: Storage) -> None:
    run(storage, "one", 0, 10, group(3), group(5, 1))
    run(storage, "two", 10, 20, group(12), group(8, 1), group(15, name="late"))
    assert seen(storage, offsets((0, 12))).groups == (group(12), group(8, 1))
    assert seen(storage, offsets((0, 11))).groups == (group(3), group(8, 1))
    assert seen(storage, offsets((0, 2))).groups == (group(8, 1),)
    assert seen(storage, offsets((0, 20))).groups == (group(12), group(8, 1), group(15, name="late"))


def test_offsets_that_the_archive_does_not_have_are_refused(storage: Storage) -> None:
    run(storage, "one", 0, 10)
    assert held(seen(storage, offsets((0, 0), (1, 0)))) == []
    for wanted, message in {
        offsets((0, 11)): "topic orders partition 0: offset 11 is after the archived end 10",
        offsets((1, 1)): "topic orders partition 1: offset 1 is after the archived end 0",
        offsets((2, 0)): r"the archived topic has 2 partitions\. They are 0 to 1",
        point(offsets=[{"topic": "other", "partition": 0, "offset": 0}]): "topic 'other' is not restored",
    }.items():
        with pytest.raises(SpecError, match=message):
            seen(storage, wanted)


def test_an_incarnation_of_after_the_point_is_not_taken(storage: Storage) -> None:
    newer = replace(ORDERS, topic_id="b" * 22)
    archive = Archive.create_or_open(storage, CLUSTER)
    with begin_run(archive, "one", wait=FAST) as writer:
        old, new = chunk(storage, 0, 10), chunk(storage, 100, 110, topic=newer)
        writer.commit(topics=[ORDERS, newer], receipts=[old, new])
        writer.end(RunOutcome.SUCCEEDED)
    state = archive.load()
    for time, shown in {50: [True, False], 101: [True, True], 0: [False, False]}.items():
        for kind in ("timestamp", "asOf"):
            sees = points.sees_at(storage, state, point(**{kind: iso(TIME + time)}))
            assert [sees(ORDERS), sees(newer)] == shown


def test_an_incarnation_whose_first_record_is_of_after_the_point_has_none_in_the_order_of_the_archive(
    storage: Storage,
) -> None:
    """Its second record is older, and lies after the end of the point."""
    batches = [
        encode([Record(at, TIME + time, b"key", b"value", ())], codec=Codec.NONE, base_offset=at)
        for at, time in ((0, 500), (1, 100))
    ]
    archive = Archive.create_or_open(storage, CLUSTER)
    with begin_run(archive, "one", wait=FAST) as writer:
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(*KEY, 0, 2),), (write_segment(storage, batches),))])
        writer.end(RunOutcome.SUCCEEDED)
    wanted = iso(TIME + 300)
    for kind, shown in (("timestamp", True), ("asOf", False)):
        assert points.sees_at(storage, archive.load(), point(**{kind: wanted}))(ORDERS) is shown


@pytest.mark.parametrize("removed", [False, True], ids=["log whole", "log removed"])
def test_a_snapshot_of_after_the_point_does_not_hide_the_incarnation_that_had_records(
    storage: Storage, removed: bool
) -> None:
    older = replace(ORDERS, topic_id="b" * 22)
    topic = CompactedTopic(storage)
    with topic.begin("one") as writer:
        writer.commit(topics=[older], receipts=[chunk(storage, 0, 10, topic=older, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    topic.write([(b"k", b"early")])
    topic.write([(b"k", b"late")])
    topic.back_up("two")
    with topic.begin("three") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        if removed:
            writer.remove([RemovedSegment(*KEY, 0)])
    spec = parse_restore(
        {
            "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
            "source": {"storage": {"uri": storage.uri, "volume": {"claimName": "c"}}},
            "point": {"asOf": iso(NOON + 1)},
        }
    )
    archive = Archive.open(storage)
    archived, selection = points.choose_topics(archive, points.choose(archive, spec.point).state, spec)
    topics = [choice.source for choice in selection.choices]
    assert [item.topic_id for item in topics] == [ORDERS.topic_id]
    if removed:
        with pytest.raises(SpecError, match="retention has removed the log, and its state is kept at offset 2"):
            points.plan_point(archive, archived, topics, spec.point)
    else:
        assert points.plan_point(archive, archived, topics, spec.point).plan == PointPlan(archived.commit, {KEY: 1})


def test_points_below_the_snapshot_of_a_topic_that_deletes_too_are_refused(storage: Storage) -> None:
    topic = CompactedTopic(storage, configs={"cleanup.policy": "compact,delete"})
    for run_id, value in (("one", b"v1"), ("two", b"v2"), ("three", b"v3")):
        topic.write([(b"k%d" % number, value) for number in range(5)])
        topic.back_up(run_id)
    with topic.begin("four") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove(
            [RemovedSegment(*KEY, base) for base in (0, 5, 10)], [RemovedSnapshot(*KEY, end) for end in (5, 10)]
        )
    with pytest.raises(SpecError, match="retention has removed the log, and its state is kept at offset 15 and later"):
        topic.seen(point={"asOf": iso(NOON + 5)})
    for wanted in ({"run": "one"}, {"timestamp": iso(NOON + 5)}):
        with pytest.raises(SpecError, match="retention has removed the log, and its state is kept"):
            topic.seen(point=wanted)
    with pytest.raises(SpecError, match="retention has removed the log, and its state is kept"):
        topic.seen(end=7)
    assert topic.consumed() == last_values((record.key, record.value) for record in topic.restored())
    assert len(topic.restored(15)) == 5


@pytest.mark.parametrize("kept", ["Snapshot", "Log"])
def test_a_point_before_the_end_of_the_first_backup_is_refused_where_records_were_compacted_before(
    storage: Storage, kept: str
) -> None:
    limits = spec_of(storage.uri, **({} if kept == "Snapshot" else {"compactedTopics": "Log", "snapshots": None}))
    topic = CompactedTopic(storage)
    topic.write([(b"a", b"1")])
    topic.end += 2  # overwritten before the backup came
    topic.write([(b"b", b"1")])
    topic.back_up("one", limits)
    topic.end += 1  # overwritten before the second backup came
    topic.write([(b"a", b"2")])
    topic.back_up("two", limits)
    text = "partition 0 is compacted, and generation 1 of it is exact from offset 4 on, not at "
    for end in (1, 3):
        with pytest.raises(SpecError, match=f"{text}offset {end}: records are missing there"):
            topic.seen(end=end)
    for wanted in ({"asOf": iso(NOON + 1)}, {"timestamp": iso(NOON + 1)}):
        with pytest.raises(SpecError, match=text):
            topic.seen(point=wanted)
    for wanted in ({"asOf": iso(NOON + 4)}, {"timestamp": iso(NOON + 5)}):
        with pytest.raises(SpecError, match="from offset 4 on is exact from offset 6 on"):
            topic.seen(point=wanted)
    for wanted in ({"run": "one"}, {"asOf": iso(NOON + 6)}, {"timestamp": iso(NOON + 6)}):
        assert topic.seen(point=wanted).segments[KEY]
    assert len(topic.restored(4)) == 2
    with pytest.raises(SpecError, match="from offset 4 on is exact from offset 6 on, not at offset 5"):
        topic.seen(end=5)
    assert len(topic.restored(6)) == (2 if kept == "Snapshot" else 3)
    found = first_exact(Archive.open(storage).load(), KEY)
    assert found is not None
    assert found.offset == 4


def test_whether_what_an_erasure_has_rewritten_had_been_compacted_before_is_unknown(storage: Storage) -> None:
    topic = CompactedTopic(storage)
    topic.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    topic.back_up("one", spec_of(storage.uri, compactedTopics="Log", snapshots=None))
    assert [record.key for record in topic.restored(2)] == [b"a", b"b"]
    assert erased(storage, b"b").outcome == "Succeeded"
    with pytest.raises(SpecError, match=r"exact from offset 3 on, not at offset 2: .*, or were erased since"):
        topic.restored(2)
    assert [record.key for record in topic.restored(3)] == [b"a", b"c"]
    for before_all in ({"asOf": iso(NOON - 1)}, {"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]}):
        seen = topic.seen(point=before_all)
        assert seen.segments.get(KEY, ()) == (), "below the first record no record can be missing"


def test_before_a_first_record_that_was_erased_something_may_have_been_overwritten(storage: Storage) -> None:
    topic = CompactedTopic(storage)
    topic.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    topic.back_up("one", spec_of(storage.uri, compactedTopics="Log", snapshots=None))
    assert erased(storage, b"a").outcome == "Succeeded"
    with pytest.raises(SpecError, match=r"exact from offset 3 on, not at offset 1: .*, or were erased since"):
        topic.seen(point={"asOf": iso(NOON - 1)})
    assert topic.seen(point={"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]}).segments.get(KEY, ()) == ()
    assert [record.key for record in topic.restored(3)] == [b"b", b"c"]


def archive_transactions(storage: Storage) -> Archive:
    """A run that archives a transaction of three records in each of two partitions."""
    archive = Archive.create_or_open(storage, CLUSTER)
    with begin_run(archive, "one", wait=FAST) as writer:
        receipts = []
        for partition in range(2):
            data = [batch(0, 3, producer_id=1, transactional=True, base_sequence=0), marker(3, 1, commit=True)]
            entry = write_segment(storage, data, partition=partition)
            receipts.append(Receipt((Coverage(ORDERS.topic_id, partition, 0, 4),), (entry,)))
        writer.commit(topics=[ORDERS], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    return archive


def test_that_partitions_decide_alone_is_reported_where_several_have_transactions(storage: Storage) -> None:
    archive = archive_transactions(storage)
    state = archive.load()
    for wanted, reported in (
        (point(timestamp=iso(TIME)), 1),
        (point(window={"from": iso(TIME)}), 1),
        (offsets((0, 2)), 1),
        (point(asOf=iso(TIME)), 0),
        (point(run="one"), 0),
    ):
        warnings = points.plan_point(archive, state, [ORDERS], wanted).warnings
        assert ["2 partitions hold transactions" in warning for warning in warnings] == [True] * reported
    alone = replace(ORDERS, partitions=1)
    assert points.plan_point(archive, state, [alone], point(timestamp=iso(TIME))).warnings == ()


def test_losses_after_the_point_are_none_of_the_restore() -> None:
    plan = PointPlan(0, {KEY: 15})
    facts = [LossFact(topic="orders", partition=0, start=start, end=start + 10, reason="r") for start in (0, 10, 20)]
    found = points.within(
        plan, [Choice(ORDERS, "orders")], [*facts, LossFact(topic="orders", partition=1, start=20, end=30, reason="r")]
    )
    assert [(fact.partition, fact.start, fact.end) for fact in found] == [(0, 0, 10), (0, 10, 15), (1, 20, 30)]

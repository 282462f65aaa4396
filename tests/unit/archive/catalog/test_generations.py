"""Generations of compacted partitions: read aside, made active by one commit, dropped whole."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import AvroFiles, Layout, RecordsFiles
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    PassiveFacts,
    Receipt,
    RemovedSegment,
    RunOutcome,
    branch_id,
)
from logkeep_engine.archive.catalog.generations import (
    NOWHERE,
    Generation,
    PassiveGeneration,
    generation_of,
    unread,
)
from logkeep_engine.archive.catalog.lineage import LeaderEpoch
from logkeep_engine.archive.catalog.packed import ROW_BYTES
from logkeep_engine.archive.catalog.receipts import ReceiptCheck
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import all_unpurged
from logkeep_engine.archive.history.earlier import last_with_generations, without_gone
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.names import without_generation
from logkeep_engine.errors import ReceiptRefused
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, changed, chunk
from tests.unit.archive.catalog.test_branches import archive, begun, bounds, commit
from tests.unit.archive.catalog.test_snapshots import reloaded, snapshot
from tests.unit.archive.catalog.test_state import entry

ID = ORDERS.topic_id
KEY = (ID, 0)
BEGIN, ACTIVATE, DROP, DUE = GenerationStep


def change(state: ArchiveState, number: int, step: GenerationStep, start: int = 0, end: int = 0) -> None:
    commit(state, generations=(GenerationChange(*KEY, number, step, start, end),))


def read(state: ArchiveState, start: int, end: int, size: int = 10) -> None:
    """Segments of the generation that is being read."""
    found = tuple(entry(at, min(at + size, end)) for at in range(start, end, size))
    commit(state, passive=PassiveFacts((Coverage(*KEY, start, end),), found, (LeaderEpoch(*KEY, 7, start),)))


def unpurged(state: ArchiveState) -> list[tuple[int, int]]:
    return [(item.base_offset, item.next_offset) for item in all_unpurged(state.unpurged).get(KEY, ())]


def hundred() -> ArchiveState:
    """100 archived offsets, and a second generation that has begun."""
    state = begun()
    archive(state, 0, 100, 1)
    change(state, 2, BEGIN, 0, 100)
    return state


def test_what_is_archived_without_generations_is_the_first_one() -> None:
    state = begun()
    assert generation_of(state, KEY) == Generation(0)
    archive(state, 0, 100, 1)
    assert generation_of(state, KEY) == Generation(1, last=1)


def test_a_checkpoint_has_generations_where_it_has_no_other_new_fact() -> None:
    state = hundred()
    read(state, 0, 60)
    assert not state.unpurged
    found = checkpoint.load(checkpoint.dump(state, "a"), "c")[1]
    assert found.same_facts(state)
    assert found.generations == state.generations != {}


def test_nobody_sees_a_passive_generation_before_it_is_active() -> None:
    state = hundred()
    before = bounds(state)
    read(state, 0, 60, 20)
    archive(state, 100, 120, 1)
    assert bounds(state) == [*before, (100, 110), (110, 120)]
    assert state.coverage[KEY] == [(0, 120)]
    passive = state.generations[KEY].passive
    assert passive == PassiveGeneration(2, 0, 0, 100)
    assert unread(state, KEY, passive) == [(60, 100)]


def test_one_commit_makes_a_whole_generation_active_and_leaves_the_old_one_on_its_line() -> None:
    state = hundred()
    archive(state, 100, 120, 1)
    read(state, 30, 100, 35)
    read(state, 0, 30, 30)
    change(state, 2, ACTIVATE, 0, 120)
    assert bounds(state) == [(0, 30), (30, 65), (65, 100), (100, 110), (110, 120)]
    assert state.coverage[KEY] == [(0, 120)]
    old, new = state.own_facts(KEY)
    assert (unpurged(state), len(old.rows), len(new.rows)) == ([], 12 * ROW_BYTES, 3 * ROW_BYTES)
    assert state.generations[KEY] == Generation(2, 0, 0, 120, 2, epoch=1)
    assert not state.of_generation(2).segments
    assert state.epochs[KEY] == [(1, 0)], "the log has the leaders that it had"


def test_a_point_that_begins_with_a_snapshot_is_there_as_long_as_the_snapshots_objects() -> None:
    """Retention had removed the log below the snapshot, and a new generation takes the place of that."""
    state = begun()
    archive(state, 0, 100, 1)
    commit(state, snapshots=(snapshot(100, 40),))
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in range(0, 100, 10)))
    change(state, 2, BEGIN, 0, 100)
    archive(state, 100, 120, 1)
    point = reloaded(state)
    read(state, 0, 100)
    change(state, 2, ACTIVATE, 0, 120)
    assert (bounds(point), KEY in state.snapshots) == ([(100, 110), (110, 120)], False)
    assert last_with_generations(point, state) == (state.commit, [])
    assert without_gone(point, state, state).snapshots == point.snapshots
    before = reloaded(state)
    commit(state, removed_snapshots=(RemovedSnapshot(*KEY, 100, 0),))
    assert last_with_generations(point, state) == (before.commit, [])
    assert without_gone(point, before, state).snapshots == point.snapshots
    commit(state, purged=tuple(item.commit for item in state.unpurged))
    assert last_with_generations(point, state) == (state.commit, [KEY])


def test_a_generation_of_a_log_that_begins_later_has_nothing_below() -> None:
    state = begun()
    archive(state, 0, 100, 1)
    commit(state, gaps=(Gap(*KEY, 100, 110, "gone"),))
    archive(state, 110, 120, 1)
    change(state, 2, BEGIN, 40, 120)
    commit(state, passive=PassiveFacts((Coverage(*KEY, 40, 120),)))
    change(state, 2, ACTIVATE, 40, 120)
    assert bounds(state) == []
    assert (state.coverage[KEY], state.gaps) == ([(40, 120)], {})
    archive(state, 120, 130, 1)
    assert bounds(state) == [(120, 130)]


def test_a_dropped_generation_leaves_objects_to_delete_and_its_number_is_never_used_again() -> None:
    state = hundred()
    read(state, 0, 20)
    change(state, 2, DROP)
    assert unpurged(state) == [(0, 10), (10, 20)]
    assert state.generations[KEY] == Generation(1, last=2)
    with pytest.raises(ValueError, match=r"generation 2 of .*: there was one with this number"):
        change(state, 2, BEGIN, 0, 100)
    change(state, 3, BEGIN, 0, 100)


@pytest.mark.parametrize(
    ("number", "step", "what"),
    [
        (3, BEGIN, "generation 2 is being read"),
        (2, ACTIVATE, r"lacks offsets \[60, 100\)"),
        (3, ACTIVATE, "is not being read"),
        (1, DROP, "is not being read"),
        (2, DUE, "is not the active one, which is 1"),
    ],
)
def test_steps_that_cannot_follow_are_refused(number: int, step: GenerationStep, what: str) -> None:
    state = hundred()
    read(state, 0, 60)
    with pytest.raises(ValueError, match=what):
        change(state, number, step, 0, 100)


def test_a_generation_that_does_not_end_where_the_other_continues_is_not_made_active() -> None:
    state = begun()
    archive(state, 0, 100, 1)
    change(state, 2, BEGIN, 0, 95)
    read(state, 0, 95, 95)
    with pytest.raises(ValueError, match="does not end where the active one continues, at offset 95"):
        change(state, 2, ACTIVATE, 0, 100)


@pytest.mark.parametrize("offset", [50, 100, 110])
def test_a_log_that_was_cut_off_ends_a_generation_that_is_being_read(offset: int) -> None:
    """Wherever it was cut off: what has taken the place of records that were not read may lie after."""
    state = hundred()
    archive(state, 100, 120, 1)
    read(state, 0, 20)
    cut_off(state, 1, offset)
    assert state.generations[KEY].passive is None
    assert unpurged(state) == [(0, 10), (10, 20)]
    with pytest.raises(ValueError, match=r"generation 2 of .* is not being read"):
        change(state, 2, ACTIVATE, 0, 120)


def cut_off(state: ArchiveState, number: int, offset: int) -> None:
    commit(state, branchings=(Branching(*KEY, branch_id(ID, number), offset),))


def activated(*, gaps: bool) -> ArchiveState:
    """Generation 2 of 100 offsets, exact from offset 120 on."""
    state = hundred()
    archive(state, 100, 120, 1)
    found = (entry(0, 50), changed(entry(50, 100), gaps=gaps))
    commit(state, passive=PassiveFacts((Coverage(*KEY, 0, 100),), found))
    change(state, 2, ACTIVATE, 0, 120)
    return state


@pytest.mark.parametrize(
    ("offset", "gaps", "exact"),
    [(110, True, NOWHERE), (50, True, 120), (110, False, 120), (120, True, 120)],
)
def test_a_generation_whose_log_was_cut_off_below_its_exact_offset_is_exact_nowhere(
    offset: int, gaps: bool, exact: int
) -> None:
    """Unless nothing was missing below."""
    state = activated(gaps=gaps)
    cut_off(state, 1, offset)
    archive(state, offset, 200, 2)
    cut_off(state, 2, 195)
    assert state.generations[KEY].exact_from == exact
    assert state.with_branch(ID, branch_id(ID, 1)).generations[KEY].exact_from == 120, "the branch has what went"
    assert state.with_branch(ID, branch_id(ID, 2)).generations[KEY].exact_from == exact
    _, loaded = checkpoint.load(checkpoint.dump(state, "a"), "c")
    assert loaded.same_facts(state)
    assert loaded.generations == state.generations


def random_history(random: Random) -> ArchiveState:
    """Appends, readings, activations and drops in any order. Whatever was done, one whole generation is there."""
    state, end, last = begun(), 0, 0
    for _ in range(random.randrange(4, 20)):
        known = generation_of(state, KEY)
        if random.random() < 0.4 or not end:
            more = random.randrange(1, 40)
            archive(state, end, end + more, 1)
            end += more
        elif known.passive is None:
            last = known.last + 1
            change(state, last, BEGIN, 0, end)
        elif left := unread(state, KEY, known.passive):
            if random.random() < 0.2:
                change(state, *random.choice([(known.passive.number, DROP), (known.number, DUE)]))
            else:
                start, stop = random.choice(left)
                read(state, start, random.randrange(start + 1, stop + 1))
        else:
            change(state, known.passive.number, ACTIVATE, 0, end)
        ranges = bounds(state)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == end
        assert all(before[1] == after[0] for before, after in pairwise(ranges))
        assert state.coverage[KEY] == [(0, end)]
    return state


@pytest.mark.parametrize("seed", range(30))
def test_a_whole_generation_is_there_after_every_commit_and_checkpoints_hold_both(seed: int) -> None:
    state = random_history(Random(seed))
    _, loaded = checkpoint.load(checkpoint.dump(state, "a"), "c")
    assert loaded.same_facts(state)
    if state.generations:
        assert not loaded.same_facts(begun())
    for known in state.generations.values():
        if known.passive is not None:
            loaded.of_generation(known.passive.number).add_facts((), [Coverage(*KEY, 10**6, 10**6 + 1)], (), ())
            assert not loaded.same_facts(state)


def test_receipts_of_a_generation_are_checked_by_what_is_read_of_it() -> None:
    state = hundred()
    read(state, 0, 20)
    check = ReceiptCheck(state, ())
    segment = replace(entry(20, 30), epoch=1)
    good = Receipt((Coverage(*KEY, 20, 30),), (segment,), generation=2)
    assert check.why_not(good, 1) is None
    assert not check.holds(good)
    check.add(good)
    assert check.holds(good)
    assert check.why_not(Receipt((Coverage(*KEY, 20, 30),)), 1) is not None, "the active one has them"
    assert "generation 3 is not being read" in str(check.why_not(replace(good, generation=3), 1))
    beyond = Receipt((Coverage(*KEY, 90, 110),), generation=2)
    assert "are not in generation 2, [0, 100)" in str(check.why_not(beyond, 1))
    lost = Receipt(gaps=(Gap(*KEY, 40, 50, "gone"),), generation=2)
    assert "has no gaps" in str(check.why_not(lost, 1))


@pytest.mark.parametrize(
    ("layout", "stem"),
    [
        (Layout.RECORDS, "topics/orders/generation=3/segment_partition_000_from_offset_0000000010"),
        (Layout.AVRO, "topics/orders/partition=0/generation=3/orders+0-00000000000000000010"),
    ],
)
def test_names_without_an_epoch_have_the_folder_of_their_generation(layout: Layout, stem: str) -> None:
    facts = {"sequence": 10, "sequence_width": 20} if layout is Layout.AVRO else {}
    plain = changed(entry(10, 20), layout=layout, generation=0, **facts)
    found = changed(plain, generation=3)
    assert isinstance(found.files, (RecordsFiles, AvroFiles))
    assert found.stem("orders") == stem
    assert without_generation(stem) == (plain.stem("orders"), 3)
    assert without_generation(plain.stem("orders")) == (plain.stem("orders"), 0)
    state = begun()
    commit(state, coverage=(Coverage(*KEY, 0, 20),), segments=(found,))
    assert list(state.segments[KEY]) == [found]
    _, loaded = checkpoint.load(checkpoint.dump(state, "a"), "c")
    assert list(loaded.segments[KEY]) == [found]


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_a_writer_reads_a_generation_beside_the_log_and_verify_sees_both(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "run-2") as writer:
        writer.change_generations([GenerationChange(*KEY, 2, BEGIN, 0, 100)])
        again = replace(chunk(storage, 0, 60, epoch=2), generation=2)
        done = writer.commit(receipts=[again, chunk(storage, 100, 120, epoch=2)])
        assert done.number is not None
        assert writer.commit(receipts=[again]).number is None, "it is there already"
        with pytest.raises(ValueError, match=r"lacks offsets \[60, 100\)"):
            writer.change_generations([GenerationChange(*KEY, 2, ACTIVATE, 0, 120)])
        with pytest.raises(ReceiptRefused, match="generation 5 is not being read"):
            writer.commit(receipts=[replace(chunk(storage, 60, 100, epoch=2), generation=5)])
        writer.commit(receipts=[replace(chunk(storage, 60, 100, epoch=2), generation=2)])
        writer.change_generations([])
        report = verify(Archive.open(storage))
        assert (report.faults, report.orphans, report.segments) == ([], [], 4)
        writer.change_generations([GenerationChange(*KEY, 2, ACTIVATE, 0, 120)])
        writer.end(RunOutcome.SUCCEEDED)
    state = Archive.open(storage).load()
    assert [item.epoch for item in state.segments[KEY]] == [2, 2, 2]
    assert state.runs["run-2"].records == 120
    assert verify(Archive.open(storage)).faults == []


def test_a_generation_may_begin_in_the_commit_that_drops_another(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.change_generations([GenerationChange(*KEY, 2, BEGIN, 0, 100)])
        again = [GenerationChange(*KEY, 2, DROP), GenerationChange(*KEY, 3, BEGIN, 40, 100)]
        writer.change_generations(again)
        passive = writer.state.generations[KEY].passive
        assert passive is not None
        assert (passive.number, passive.start, passive.end) == (3, 40, 100)
        with pytest.raises(ValueError, match="generation 3 is being read"):
            writer.change_generations([GenerationChange(*KEY, 4, BEGIN, 0, 100)])
        commit = writer.state.commit
        drop = GenerationChange(*KEY, 3, DROP)
        with pytest.raises(ValueError, match=r"generation 2 of .*: there was one with this number"):
            writer.change_generations([drop, GenerationChange(*KEY, 2, BEGIN, 0, 100)])
        with pytest.raises(ValueError, match="generation 4 is being read"):
            writer.change_generations([drop, *(GenerationChange(*KEY, number, BEGIN, 0, 100) for number in (4, 5))])
        with pytest.raises(ValueError, match="needs its own commit"):
            writer.change_generations(
                [drop, GenerationChange(*KEY, 4, BEGIN, 0, 0), GenerationChange(*KEY, 4, ACTIVATE)]
            )
        assert writer.state.commit == commit, "nothing was committed that cannot follow"


def test_inspect_tells_generations_and_how_much_of_the_next_one_is_read(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.change_generations([GenerationChange(*KEY, 2, BEGIN, 10, 100)])
        writer.commit(receipts=[replace(chunk(storage, 40, 60, attempt=1), generation=2)])
    archive = Archive.open(storage)
    shown = describe(archive.info, archive.load()).topics[0].partitions[0].to_json()["generation"]
    assert (shown["number"], shown["exact"], shown["sinceTime"]) == (1, -1, "")
    passive = shown["passive"]
    assert (passive["number"], passive["start"], passive["end"], passive["read"]) == (2, 10, 100, 20)
    assert passive["beganTime"].startswith("20")


def test_verify_names_damage_of_a_generation_that_is_being_read(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        writer.change_generations([GenerationChange(*KEY, 2, BEGIN, 0, 100)])
        again = chunk(storage, 0, 60, attempt=1)
        writer.commit(receipts=[replace(again, generation=2)])
        path = next(iter(again.segments[0].objects(ORDERS.name)))
        storage.put(path, storage.read(path)[:-1] + b"x")
        assert [path in str(fault) for fault in verify(Archive.open(storage)).faults] == [True]

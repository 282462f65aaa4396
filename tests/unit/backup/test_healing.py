"""Stale keys are healed by another generation: when it is due, what it replaces, and what a kill leaves."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    PassiveFacts,
    RemovedSegment,
    RunOutcome,
    branch_id,
)
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.reading.view import choose
from logkeep_engine.backup.planning.generations import GenerationPolicy, activation
from logkeep_engine.backup.reconcile.comparing import ComparedKeys
from logkeep_engine.backup.reconcile.report import CHANGED, FIRST, WRONG, ReconcileReport, make_due, why_not
from logkeep_engine.backup.reconcile.task import ReconciledPartition
from logkeep_engine.backup.run.snapshots import due
from logkeep_engine.contract.compacted import Snapshots
from logkeep_engine.contract.names import RECONCILIATION
from logkeep_engine.log.key_comparison import KeyCounts
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.catalog.test_branches import archive, begun, commit
from tests.unit.archive.catalog.test_snapshots import snapshot
from tests.unit.archive.catalog.test_state import entry

KEY = (ORDERS.topic_id, 0)
COMPACTED = replace(ORDERS, configs={"cleanup.policy": "compact"})
BEGIN, DROP, DUE = GenerationStep.BEGIN, GenerationStep.DROP, GenerationStep.DUE


def hundred(*, stale: bool = True) -> ArchiveState:
    state = begun()
    commit(state, topics=(COMPACTED,))
    archive(state, 0, 100, 1)
    if stale:
        commit(state, generations=(GenerationChange(*KEY, 1, DUE),))
    return state


def steps(state: ArchiveState, cycle: int | None = None, log_start: int = 0, **facts: Any) -> list[GenerationChange]:
    return GenerationPolicy(cycle, 50).changes(state, KEY, log_start, **{"compacted": True, "whole": True, **facts})


def due_steps(state: ArchiveState, **facts: bool) -> list[tuple[GenerationStep, int]]:
    return [(item.step, item.number) for item in steps(state, **facts)]


def reloaded(state: ArchiveState) -> ArchiveState:
    return checkpoint.load(checkpoint.dump(state, "a"), "c")[1]


def heal(state: ArchiveState) -> None:
    """A run reads another generation, of the same segments in a later epoch, and makes it active."""
    commit(state, generations=tuple(steps(state)))
    front = tuple(entry(at, at + 10, epoch=3) for at in range(0, 100, 10))
    commit(state, passive=PassiveFacts((Coverage(*KEY, 0, 100),), front))
    commit(state, generations=(activation(state, KEY),))


def compared(stale: int = 2, missing: int = 0) -> ReconcileReport:
    keys = ComparedKeys(KeyCounts(keys=9, stale=stale, missing=missing), 0, 100, (0, 4)[:stale], (), 1)
    item = ReconciledPartition(ORDERS.name, *KEY, 100, keys)
    return ReconcileReport(
        "compare", "archive", "cluster", 1.0, 2.0, (item,), document="s3://b/runs/compare/reconcile.json"
    )


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_a_generation_is_due_without_a_cycle_once_stale_keys_were_found() -> None:
    assert due_steps(hundred(stale=False)) == []
    for state in (hundred(), reloaded(hundred())):
        assert due_steps(state) == [(BEGIN, 2)]
        assert [(item.start, item.end) for item in steps(state)] == [(0, 100)]
        assert due_steps(state, whole=False) == []
        assert due_steps(state, compacted=False) == [(BEGIN, 2)], "also if it is not compacted any more"
        assert [item.step for item in steps(state, 1 << 40)] == [BEGIN], "nor does it wait for the cycle"


def test_it_stays_due_until_it_is_active_and_is_read_on_by_later_runs() -> None:
    state = hundred()
    commit(state, generations=tuple(steps(state)))
    assert generation_of(state, KEY).due
    assert due_steps(state) == [], "it is being read"
    assert [item.step for item in steps(state, log_start=10)] == [DROP, BEGIN]
    commit(state, generations=(GenerationChange(*KEY, 2, DROP),))
    assert due_steps(state) == [(BEGIN, 3)]
    heal(state)
    assert (generation_of(state, KEY).number, generation_of(state, KEY).due, due_steps(state)) == (3, False, [])


def test_it_waits_until_a_hole_is_filled_since_nothing_after_it_would_be_read_again() -> None:
    state = hundred()
    archive(state, 120, 150, 1)
    assert due_steps(state) == []
    archive(state, 100, 120, 1)
    assert [(item.start, item.end) for item in steps(state)] == [(0, 150)]


def test_one_that_is_being_read_goes_since_it_may_have_the_stale_key_too() -> None:
    state = hundred(stale=False)
    commit(state, generations=tuple(steps(state, 0)))
    commit(state, passive=PassiveFacts((Coverage(*KEY, 0, 10),), (entry(0, 10, epoch=3),)))
    commit(state, generations=(GenerationChange(*KEY, 1, DUE),))
    assert generation_of(state, KEY).passive is None
    assert not state.of_generation(2).accounted_for(*KEY)
    assert due_steps(state) == [(BEGIN, 3)]


def test_snapshots_of_what_had_the_stale_key_go_with_it_and_the_next_is_made_of_the_new_front() -> None:
    state = hundred()
    commit(state, snapshots=(snapshot(60, 25), snapshot(100)))
    heal(state)
    assert KEY not in state.snapshots
    seen = with_snapshots(state)
    assert {item.epoch for item in seen.segments[KEY]} == {3}
    (work,) = due(state, Snapshots.model_validate({"maxRecordBytesBetweenSnapshots": "1"}), [])
    assert (work.last, {item.epoch for item in work.dirty}, work.end) == (None, {3}, 100)


def test_partitions_that_cannot_have_another_generation_are_reported() -> None:
    state = hundred(stale=False)
    assert why_not(state, state, KEY) == ""
    assert why_not(ArchiveState(), state, KEY) == FIRST
    other = hundred()
    heal(other)
    assert why_not(other, state, KEY) == CHANGED
    commit(state, branchings=(Branching(*KEY, branch_id(KEY[0], 1), 50),))
    assert why_not(state, state, KEY) == ""


def test_a_commit_after_the_end_of_the_backup_says_that_it_is_due_and_the_report_says_so(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[COMPACTED], receipts=[chunk(storage, 0, 100)])
        writer.end(RunOutcome.SUCCEEDED)
        commits = writer.state.commit
        report = make_due(writer, compared(), writer.state)
        make_due(writer, compared(), writer.state)  # as the next start of a run that was killed here
        assert writer.state.commit == commits + 1, "it is due once"
        with pytest.raises(ValueError, match="has ended"):
            writer.change_generations([GenerationChange(*KEY, 2, BEGIN, 0, 100)])
    assert "the next backup reads 1 partition again" in report.message
    assert report.to_json()["partitions"][0]["healing"] == "Due"
    state = Archive.open(storage).load()
    assert due_steps(state) == [(BEGIN, 2)]
    chosen = choose(Archive.open(storage))
    assert chosen.finished
    assert chosen.state.commit == state.commit, "it is no new point, and hides none"
    shown = describe(Archive.open(storage).info, state).topics[0].partitions[0].to_json()["generation"]
    assert shown["due"]


def test_records_that_the_archive_must_have_are_no_stale_keys_and_keep_it_as_it_is(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[COMPACTED], receipts=[chunk(storage, 0, 100)])
        writer.end(RunOutcome.SUCCEEDED)
        report = make_due(writer, compared(missing=1), writer.state)
        assert report.to_json()["partitions"][0]["healing"] == WRONG
        assert f"not healed: topic {ORDERS.name} partition 0: {WRONG}" in report.message
        assert make_due(writer, compared(stale=0), writer.state).healing == {}
        assert not generation_of(writer.state, KEY).due


def test_a_run_of_its_own_is_no_point_and_survives_a_kill_before_and_after_its_commit(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[COMPACTED], receipts=[chunk(storage, 0, 100)])
        end = writer.end(RunOutcome.SUCCEEDED)
    found = Archive.open(storage)
    begin_run(found, "compare", kind=RECONCILIATION).close()  # killed before the commit
    assert due_steps(found.load()) == []
    killed = begin_run(found, "compare", kind=RECONCILIATION)
    make_due(killed, compared(), killed.state)
    killed.close()
    assert due_steps(found.load()) == [(BEGIN, 2)]
    with begin_run(found, "compare", kind=RECONCILIATION) as writer:
        make_due(writer, compared(), writer.state)
        writer.end(RunOutcome.SUCCEEDED)
    chosen = choose(found)
    assert chosen.finished
    assert chosen.state.accounted_for(*KEY) == [(0, 100)]
    assert [run.run_id for run in chosen.state.runs.values() if not run.is_maintenance] == ["run-1"]
    assert found.load().commit > end


def test_every_state_of_the_archive_on_the_way_is_whole() -> None:
    state = hundred()
    heal(state)
    rows = state.segments[KEY]
    assert all(before.next_offset == after.base_offset for before, after in pairwise(rows))
    assert state.same_facts(reloaded(state))


@pytest.mark.parametrize(("fork", "end"), [(50, 50), (110, 110)])
def test_a_log_that_was_cut_off_above_what_is_removed_is_read_again_in_the_same_run(fork: int, end: int) -> None:
    """The snapshot stands for keys of the log of before, and what it stands for is gone."""
    state = begun()
    commit(state, topics=(COMPACTED,))
    archive(state, 0, 100, 1)
    commit(state, gaps=(Gap(*KEY, 100, 105, "gone"),))
    archive(state, 105, 120, 1)
    whole = steps(state, fork=fork)
    commit(state, removed=(RemovedSegment(*KEY, 0),))
    assert (whole, steps(state, fork=fork)) == ([], [GenerationChange(*KEY, 2, BEGIN, 0, end)])
    assert steps(state, log_start=fork, fork=fork) == [], "there is nothing left to read again"
    assert steps(state, fork=fork, whole=False) == []
    assert len(steps(state, fork=fork, compacted=False)) == 1, "it was compacted when the snapshot was made"
    commit(state, generations=(GenerationChange(*KEY, 2, BEGIN, 0, 100),))
    assert steps(state, fork=fork) == [
        GenerationChange(*KEY, 2, DROP),
        GenerationChange(*KEY, 3, BEGIN, 0, end),
    ]

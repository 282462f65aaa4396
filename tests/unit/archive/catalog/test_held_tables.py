"""Every table of segments that an archive has is found, with its kind."""

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    GenerationChange,
    GenerationStep,
    PassiveFacts,
    RemovedSegment,
    branch_id,
)
from logkeep_engine.archive.catalog.held_tables import TableKind, held_tables, removed_tables
from logkeep_engine.archive.catalog.packed import ROW_BYTES
from logkeep_engine.archive.catalog.state import ArchiveState
from tests.unit.archive.build import ORDERS
from tests.unit.archive.catalog.test_branches import archive, begun, commit
from tests.unit.archive.catalog.test_snapshots import snapshot
from tests.unit.archive.catalog.test_state import entry

KEY = (ORDERS.topic_id, 0)


def test_each_kind_is_found_and_nothing_is_found_twice() -> None:
    state = begun()
    archive(state, 0, 40, 1)
    archive(state, 40, 60, 1)
    commit(state, snapshots=(snapshot(40),))
    commit(state, snapshots=(snapshot(60),))
    commit(state, branchings=(Branching(*KEY, branch_id(KEY[0], 1), 40),))
    commit(state, removed=(RemovedSegment(*KEY, 0),))
    commit(state, generations=(GenerationChange(*KEY, 2, GenerationStep.BEGIN, 10, 40),))
    commit(state, passive=PassiveFacts((Coverage(*KEY, 10, 20),), (entry(10, 20),)))
    held, removed = [*held_tables(state)], [*removed_tables(state)]
    assert [table.kind for table in (*held, *removed)] == [*TableKind]
    assert {table.key for table in (*held, *removed)} == {KEY}
    # A checkpoint has all that an archive has.
    rows = checkpoint.rows_of(state, KEY)
    assert sum(len(table.segments) for table in (*held, *removed)) == len(rows) // ROW_BYTES


def test_an_empty_archive_has_none() -> None:
    state = ArchiveState()
    assert not [*held_tables(state), *removed_tables(state)]
    assert state.passive is None

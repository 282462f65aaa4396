"""Points at which a generation of a compacted topic is not exact are refused."""

import pytest

from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    GenerationChange,
    GenerationStep,
    PassiveFacts,
    branch_id,
)
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import SpecError
from logkeep_engine.restore.model.inexact import exact_nowhere, refuse_inexact
from tests.unit.archive.build import ORDERS, changed
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit
from tests.unit.archive.catalog.test_state import entry


def reread(*, gaps: bool) -> ArchiveState:
    """Generation 2 of 100 offsets, exact from offset 100 on; its records have times up to 5000."""
    state = begun()
    archive(state, 0, 100, 1)
    commit(state, generations=(GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, 100),))
    found = changed(entry(0, 100), gaps=gaps, min_base_timestamp=1000, max_timestamp=5000)
    commit(state, passive=PassiveFacts((Coverage(*KEY, 0, 100),), (found,)))
    commit(state, generations=(GenerationChange(*KEY, 2, GenerationStep.ACTIVATE, 0, 100),))
    return state


@pytest.mark.parametrize(
    ("end", "before", "where"),
    [
        (50, None, "offset 50"),
        (None, 5000, "1970-01-01T00:00:05"),
        (None, 1, "1970-01-01T00:00:00.001"),
        (100, None, None),
        (0, None, None),
        (None, 5001, None),
        (None, None, None),
    ],
)
def test_a_point_where_records_are_missing_is_refused(end: int | None, before: int | None, where: str | None) -> None:
    state, ends = reread(gaps=True), {} if end is None else {KEY: end}
    refuse_inexact(reread(gaps=False), [ORDERS], ends, before)  # nothing is missing
    if where is None:
        refuse_inexact(state, [ORDERS], ends, before)
        return
    with pytest.raises(SpecError, match=f"exact from offset 100 on, not at {where}"):
        refuse_inexact(state, [ORDERS], ends, before)


def test_a_log_that_was_cut_off_below_the_exact_offset_has_no_exact_point_but_in_its_branch() -> None:
    state, branch = reread(gaps=True), branch_id(ORDERS.topic_id, 1)
    archive(state, 100, 120, 1)
    commit(state, generations=(GenerationChange(*KEY, 3, GenerationStep.BEGIN, 0, 0),))
    commit(state, generations=(GenerationChange(*KEY, 3, GenerationStep.ACTIVATE, 0, 120),))
    assert list(exact_nowhere(state, [ORDERS])) == []
    commit(state, branchings=(Branching(*KEY, branch, 110),))
    archive(state, 110, 150, 2)
    with pytest.raises(SpecError, match="no point of it is exact: its log was cut off below offset 120") as refused:
        refuse_inexact(state, [ORDERS], {KEY: 140})
    assert "spec.source.topicIds" in refused.value.hint
    assert len(list(exact_nowhere(state, [ORDERS]))) == 1, "who restores the newest state is told"
    before = state.with_branch(ORDERS.topic_id, branch)
    refuse_inexact(before, [ORDERS], {KEY: 120})
    with pytest.raises(SpecError, match="exact from offset 120 on, not at offset 119"):
        refuse_inexact(before, [ORDERS], {KEY: 119})

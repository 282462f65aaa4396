"""Points at which a generation of a compacted topic is not exact are refused."""

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, GenerationChange, GenerationStep, PassiveFacts
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import SpecError
from logkeep_engine.restore.exact import refuse_inexact
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

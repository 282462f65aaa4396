"""The restore of one partition, as far as it follows from the plan alone."""

import pytest

from logkeep_engine.restore.streams.records import Batching
from tests.unit.restore.tasks import NOWHERE, task_of
from tests.unit.restore.test_plan import entry


@pytest.mark.parametrize(
    ("sizes", "small"),
    [([(1 << 20, 16)], True), ([(1 << 20, 15)], False), ([(1 << 20, 1), (1 << 20, 31)], True), ([], True)],
)
def test_batches_that_are_small_on_average_share_a_connection(sizes: list[tuple[int, int]], small: bool) -> None:
    segments = [entry(bytes=size, batches=batches) for size, batches in sizes]
    assert task_of(NOWHERE, *segments).small is small
    assert not task_of(NOWHERE, *segments, batching=Batching()).small

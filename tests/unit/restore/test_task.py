"""The restore of one partition, as far as it follows from the plan alone."""

import pytest

from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.sending.attempt import RestoreTask
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.storage import open_uri
from tests.unit.restore.test_plan import entry


@pytest.mark.parametrize(
    ("sizes", "small"),
    [([(1 << 20, 16)], True), ([(1 << 20, 15)], False), ([(1 << 20, 1), (1 << 20, 31)], True), ([], True)],
)
def test_batches_that_are_small_on_average_share_a_connection(sizes: list[tuple[int, int]], small: bool) -> None:
    assert task(sizes, None).small is small
    assert not task(sizes, Batching()).small


def task(sizes: list[tuple[int, int]], batching: Batching | None) -> RestoreTask:
    """A task for segments of so many bytes in so many batches."""
    storage = open_uri("file:///nonexistent")
    return RestoreTask(
        number=0,
        storage=storage,
        state=storage,
        run_id="restore-1",
        connection=KafkaConnection(("localhost:1",)),
        source="orders",
        topic_id="",
        partition=0,
        target="orders",
        created=True,
        fresh=True,
        max_batch_bytes=1 << 20,
        producer_id=7,
        start=0,
        segments=tuple(entry(bytes=size, batches=batches) for size, batches in sizes),
        survey=None,
        map_path="map.json",
        batching=batching,
    )

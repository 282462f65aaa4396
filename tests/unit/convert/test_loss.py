"""Conversions add up what is lost."""

import time

import pytest

from logkeep_engine.convert.loss import LossReport
from logkeep_engine.formats.base import Loss, LossKind
from tests.examples import number


def test_losses_are_added_by_partition_and_kind_and_come_in_their_order() -> None:
    report = LossReport([Loss(LossKind.COMPRESSION, "b", 0, 2, 30)])
    report.add([Loss(LossKind.COMPRESSION, "b", 0, 3, 10), Loss(LossKind.BATCH_BOUNDS, "b", 0, 1, 10)])
    report.add([Loss(LossKind.BATCH_BOUNDS, "a", 10, 1, 5)])
    report.add([Loss(LossKind.BATCH_BOUNDS, "a", 2, 1, 7)])
    assert report.losses == (
        Loss(LossKind.BATCH_BOUNDS, "a", 2, 1, 7),
        Loss(LossKind.BATCH_BOUNDS, "a", 10, 1, 5),
        Loss(LossKind.BATCH_BOUNDS, "b", 0, 1, 10),
        Loss(LossKind.COMPRESSION, "b", 0, 5, 10),
    )
    assert LossReport.from_json(report.to_json()).losses == report.losses


@pytest.mark.deep
def test_a_chunk_more_does_not_take_longer_for_all_partitions_before_it() -> None:
    """If it did, 5,000 would take minutes, and 100,000 a day."""
    count = number(2000, deep=5000)
    report = LossReport()
    started = time.process_time()
    for partition in range(count):
        report.add([Loss(kind, "orders", partition, 1, 0) for kind in LossKind])
    assert len(report.losses) == count * len(LossKind)
    assert time.process_time() - started < count / 500

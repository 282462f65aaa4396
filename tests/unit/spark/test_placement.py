"""Where the tasks of a run are worked on, from what the plan moves."""

from pathlib import Path

import pytest

from logkeep_engine.backup.model.plan import UNKNOWN_RECORD_BYTES, Piece, demand_of
from logkeep_engine.contract.running import DriverSpec, ExecutorSpec, SparkSpec
from logkeep_engine.spark.conf import EXECUTOR_IDLE_SECONDS
from logkeep_engine.spark.job_session import (
    EXECUTOR_WAIT_SECONDS,
    IN_DRIVER_BYTES,
    SLOT_BYTES,
    SLOT_BYTES_PER_SECOND,
    Placement,
    place,
)
from logkeep_engine.tasks import Demand

GIB = 1 << 30
MIB = 1 << 20


def spark() -> SparkSpec:
    return SparkSpec(executor=ExecutorSpec(instances=4, cores=2, memory="4Gi"))


def test_work_up_to_the_threshold_is_done_by_the_driver() -> None:
    assert place(Demand(9, IN_DRIVER_BYTES), spark()) == Placement(0, 1)
    assert place(Demand(9, IN_DRIVER_BYTES + 1), spark()).executors > 0


@pytest.mark.parametrize(
    ("demand", "executors"),
    [
        (Demand(100, IN_DRIVER_BYTES + 1), 3),  # five slots of 256 MiB
        (Demand(2, 500 * GIB), 1),  # two chunks keep two slots busy
        (Demand(3, 500 * GIB), 2),
        (Demand(10_000, 500 * GIB), 4),  # executor.instances
        (Demand(1, 500 * GIB), 1),
    ],
)
def test_there_are_as_many_executors_as_the_chunks_need(demand: Demand, executors: int) -> None:
    assert place(demand, spark()) == Placement(executors, executors * 2)


def test_a_limit_on_bytes_per_second_needs_no_more_than_move_them() -> None:
    much = Demand(10_000, 500 * GIB, SLOT_BYTES_PER_SECOND)
    assert place(much, spark()) == Placement(0, 1)
    assert place(Demand(10_000, 500 * GIB, SLOT_BYTES_PER_SECOND + 1), spark()) == Placement(1, 2)
    assert place(Demand(10_000, 500 * GIB, 5 * SLOT_BYTES_PER_SECOND), spark()) == Placement(3, 6)
    assert place(Demand(10_000, 500 * GIB, 1000 * SLOT_BYTES_PER_SECOND), spark()) == Placement(4, 8)


@pytest.mark.parametrize(
    ("cores", "memory", "slots"),
    [(1, "768Mi", 1), (4, "768Mi", 1), (4, "1Gi", 1), (4, "1280Mi", 2), (4, "8Gi", 4), (1, "8Gi", 1)],
)
def test_the_driver_works_on_no_more_tasks_than_its_memory_holds(cores: int, memory: str, slots: int) -> None:
    assert DriverSpec(cores=cores, memory=memory).slots == slots
    assert place(Demand(1, 1), SparkSpec(driver=DriverSpec(cores=cores, memory=memory))) == Placement(0, slots)


def test_a_driver_whose_memory_may_not_hold_a_task_leaves_the_work_to_executors() -> None:
    wide = spark().model_copy(update={"conf": {"spark.executorEnv.LOGKEEP_TASK_MEMORY": "1Gi"}})
    assert place(Demand(1, 1), wide) == Placement(1, 2)
    assert place(Demand(10_000, 500 * GIB), wide) == Placement(4, 8)


def piece(start: int, end: int, size: int) -> Piece:
    return Piece(0, "orders", "a" * 22, 0, start, end, 1, size)


def test_a_piece_of_unknown_size_counts_by_its_records() -> None:
    found = demand_of([piece(0, 10, 5 * MIB), piece(10, 1010, 0)], 7)
    assert found == Demand(2, 5 * MIB + 1000 * UNKNOWN_RECORD_BYTES, 7)


def test_the_documentation_says_the_numbers_of_the_code() -> None:
    sizing = (Path(__file__).parents[3] / "docs/guides/size-a-run.md").read_text().partition("## Sizing")[2]
    sizing = " ".join(sizing.partition("\n## ")[0].split())
    driver, executor = SparkSpec().driver, SparkSpec().executor
    for said in (
        f"Up to {IN_DRIVER_BYTES // GIB} GiB, or a `limits.bytesPerSecond` of up to {SLOT_BYTES_PER_SECOND // MIB}Mi",
        f"one task slot for each {SLOT_BYTES // MIB} MiB",
        f"nothing to do for {EXECUTOR_IDLE_SECONDS} seconds is removed",
        f"A driver requests {driver.core_request}, ",
        f"and {driver.memory}, ",
        f"one core and {executor.memory}",
    ):
        assert said in sizing
    assert (executor.instances, executor.cores, EXECUTOR_WAIT_SECONDS) == (2, 1, 300)  # told in words

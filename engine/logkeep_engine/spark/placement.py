"""Where the tasks of a run are worked on: in the driver itself, or by executors, and by how many.

A pure function of what the plan moves. An executor pod must be scheduled, pull its image and start a JVM before it
moves the first byte, which costs more CPU than a task needs for a gigabyte.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.names import ENV_TASK_MEMORY
from logkeep_engine.contract.running import SparkSpec
from logkeep_engine.tasks import Demand

IN_DRIVER_BYTES = 1 << 30  # work up to this size is done by the driver
SLOT_BYTES = 256 << 20  # a task slot that would move less is not worth its start
_TASK_MEMORY = f"spark.executorEnv.{ENV_TASK_MEMORY}"
SLOT_BYTES_PER_SECOND = 32 << 20  # what a slot moves at least, also on a quarter of a core


@dataclass(frozen=True, slots=True)
class Placement:
    """`executors` is the number of executor pods, 0 if the driver does the work itself. `slots` tasks run at once."""

    executors: int
    slots: int


def driver_can(spark: SparkSpec) -> bool:
    """Return whether the driver's memory holds a task. It does, unless tasks were given more memory than they need."""
    return _TASK_MEMORY not in spark.conf


def least(spark: SparkSpec) -> Placement:
    """Return the smallest placement: the driver does the work itself, if it can."""
    return Placement(0, spark.driver.slots) if driver_can(spark) else Placement(1, spark.executor.cores)


def place(demand: Demand, spark: SparkSpec) -> Placement:
    """Choose for a part of a run. Executors are as many as its chunks keep busy, up to `executor.instances`."""
    slots = min(demand.chunks, -(-demand.bytes // SLOT_BYTES))
    rate = demand.bytes_per_second
    if rate is not None:
        slots = min(slots, -(-rate // SLOT_BYTES_PER_SECOND))
    enough = rate is not None and rate <= spark.driver.slots * SLOT_BYTES_PER_SECOND
    if demand.bytes <= IN_DRIVER_BYTES or enough:
        return least(spark)
    executor = spark.executor
    executors = max(1, min(executor.instances, -(-slots // executor.cores)))
    return Placement(executors, executors * executor.cores)

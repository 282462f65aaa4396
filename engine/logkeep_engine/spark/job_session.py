"""Where the work of a run in a Job's pod is done: chosen when the plan says how much there is to do.

A run with nothing to do starts nothing. Little work is done in processes next to the driver, without Spark. More gets
executors. If none of them comes to run, because the cluster has no room or a quota refuses them, the driver gives up
waiting and does the work itself: slowly, but no run waits for ever for room that other runs wait for, too. A driver
that cannot do the work ends instead, as if it were interrupted, and its Job starts it again: what it requested may be
the room that the executors of another run need.
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from logkeep_engine import interrupt
from logkeep_engine.contract.names import ENV_POD_NAME, ENV_TASK_MEMORY
from logkeep_engine.contract.running import SparkSpec
from logkeep_engine.contract.spark_keys import is_for_spark
from logkeep_engine.spark.conf import executors_conf, kubernetes_conf
from logkeep_engine.spark.in_driver import InDriver
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.session import Session
from logkeep_engine.tasks import Demand, TaskRunner

log = logging.getLogger(__name__)

# ---- placement

# Where the tasks of a run are worked on: in the driver itself, or by executors, and by how many.
#
# A pure function of what the plan moves. An executor pod must be scheduled, pull its image and start a JVM before it
# moves the first byte, which costs more CPU than a task needs for a gigabyte.


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


# Longer than a cluster autoscaler needs for a node.
EXECUTOR_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.2


class JobSession:
    """One session after another, as the parts of a run need them.

    with JobSession(spec.spark, spark_conf, environ, nursery, s3=True, placed=reporter.executors) as session:
        run_backup(..., session.runner, ..., expect=session.expect)

    `placed` gets the number of executors whenever it is chosen. The `nursery` makes the processes of tasks that the
    driver does itself.
    """

    def __init__(
        self,
        spark: SparkSpec,
        conf: Mapping[str, str],
        environ: MutableMapping[str, str],
        nursery: Nursery,
        *,
        s3: bool,
        placed: Callable[[int], None],
        wait_seconds: float = EXECUTOR_WAIT_SECONDS,
    ) -> None:
        self._spark = spark
        self._conf = dict(conf)
        self._on_cluster = kubernetes_conf(conf, environ)  # what the environment lacks is said at once
        self._environ = environ
        self._nursery = nursery
        self._s3 = s3
        self._placed = placed
        self._wait_seconds = wait_seconds
        self._open = contextlib.ExitStack()
        self._session: Session | InDriver | None = None
        self._placement = least(spark)
        self._number = 0
        self._alone = False
        self._waits = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def expect(self, demand: Demand) -> int:
        """Make ready for a part of the run. Returns how many tasks will run at once.

        Executors that are there stay for a part that could do with fewer: those that have nothing to do go anyway. If
        all have gone, this part gets what it needs on its own.
        """
        wanted = least(self._spark) if self._alone else place(demand, self._spark)
        if self._session is None or wanted.executors > self._placement.executors or self._has_lost_executors():
            self._begin(wanted)
        return self._placement.slots

    def runner(self) -> TaskRunner:
        """Return the task runner for what was expected last. Raises SparkFailed if Spark cannot start."""
        if self._session is None:
            self._begin(least(self._spark))
        elif self._has_lost_executors():
            self._begin(self._placement)
        if self._waits and not self._executor_came(self._current()):
            if not driver_can(self._spark):
                log.warning("no executor has started: the driver ends to make room for others, and starts again")
                raise KeyboardInterrupt
            log.warning(
                "no executor has started within %.0f s: the driver does the work itself, with %d tasks at once",
                self._wait_seconds, self._spark.driver.slots,
            )  # fmt: skip
            self._alone = True
            self._begin(least(self._spark))
        self._waits = False
        return self._current().runner()

    def without_effect(self) -> list[str]:
        """Return the keys of `spark.conf` that are for Spark, if the driver did all work itself and started none."""
        if self._session is None or self._number:
            return []
        return sorted(filter(is_for_spark, self._spark.conf))

    def _has_lost_executors(self) -> bool:
        """Return whether executors had come and none is left. Spark would ask for others when it has tasks, which would
        wait for ever if the room is taken. The executors of a new session are waited for as the first ones were."""
        if self._session is None or self._waits or not self._placement.executors:
            return False
        return not self._session.has_executor()

    def _begin(self, placement: Placement) -> None:
        self._open.close()
        self._placement = placement
        self._waits = placement.executors > 0
        self._placed(placement.executors)
        if placement.executors:
            log.info("the work is done by %d executors", placement.executors)
            self._number += 1
            conf = executors_conf(self._on_cluster, placement.executors, self._number)
            self._session = self._open.enter_context(Session(conf, environ=self._environ, s3=self._s3))
        else:
            log.info("the driver does the work itself, with %d tasks at once", placement.slots)
            self._session = self._open.enter_context(InDriver(self._nursery, placement.slots, self._conf))

    def _current(self) -> Session | InDriver:
        assert self._session is not None
        return self._session

    def _executor_came(self, session: Session | InDriver) -> bool:
        """Wait for the first executor. The others join in when they come."""
        until = time.monotonic() + self._patience()
        while not session.has_executor():
            if time.monotonic() >= until:
                return False
            interrupt.check()
            time.sleep(_POLL_SECONDS)
        return True

    def _patience(self) -> float:
        """Return how long to wait. Drivers that end must not do so together: each pod waits up to twice as long as
        others."""
        if driver_can(self._spark):
            return self._wait_seconds
        return self._wait_seconds * (1 + zlib.crc32(self._environ[ENV_POD_NAME].encode()) / 2**32)

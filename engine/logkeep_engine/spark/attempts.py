"""One attempt at a task, wherever it is made: what it reports to the driver, and whether it is tried again.

An error that trying again cannot change is handed over as a value: raised in the task, it would be tried again. The
same holds for the last attempt of any other error, so that its class and message survive.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import LogkeepError, TaskFailed
from logkeep_engine.limits import Budget, RunLimits
from logkeep_engine.spark.link import DriverEndpoint, TaskLink
from logkeep_engine.tasks import TaskContext

_OF_PANICS = "pyo3_runtime"
"""The module of PyO3's PanicException, which cannot be imported."""

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True)
class Done:
    """The task has come to its end, and this is its value."""

    index: int
    value: Any


@dataclass(frozen=True)
class Failed:
    """The task has failed for good. `trace` is the traceback of its last attempt."""

    index: int
    error: LogkeepError
    trace: str


Outcome = Done | Failed


def attempted(
    function: Callable[[W, TaskContext], R],
    endpoint: DriverEndpoint,
    index: int,
    item: W,
    attempt: int,
    max_failures: int,
) -> Outcome:
    """Make an attempt, the `attempt`th from 0. Raises the error of one that is followed by another."""
    context = TaskLink(attempt, endpoint)
    try:
        return Done(index, _without_panic(function, item, context))
    except LogkeepError as error:
        if error.exit_code == ExitCode.FAILED and attempt + 1 < max_failures:
            raise
        return Failed(index, error, traceback.format_exc())
    except Exception as error:
        if attempt + 1 < max_failures:
            raise
        wrapped = TaskFailed(f"{type(error).__name__}: {error}", hint="The driver's log has the traceback.")
        return Failed(index, wrapped, traceback.format_exc())
    finally:
        context.close()


def _without_panic(function: Callable[[W, TaskContext], R], item: W, context: TaskContext) -> R:
    """Do the work. A panic of compiled code, which PyO3 raises as no `Exception`, becomes one."""
    try:
        return function(item, context)
    except BaseException as error:
        if type(error).__module__ != _OF_PANICS:
            raise
        raise RuntimeError(f"compiled code has panicked: {error}") from error


class Budgets:
    """The budget for all jobs of a run: bytes that one job has used up are not given to the next."""

    def __init__(self) -> None:
        self._budget: Budget | None = None

    def of(self, limits: RunLimits) -> Budget | None:
        """Return the budget for these limits, None if they bound no bytes."""
        rate = limits.bytes_per_second
        if rate is None:
            return None
        if self._budget is None or self._budget.rate != rate:
            self._budget = Budget(rate)
        return self._budget

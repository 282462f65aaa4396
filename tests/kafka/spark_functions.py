"""Functions that tests of the task runner send to Python workers."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logkeep_engine.errors import BrokerUnavailable, StorageRefused
from logkeep_engine.tasks import PartitionUpdate, TaskContext


def double(item: int, context: TaskContext) -> int:
    return 2 * item


def doubled_and_reported(item: int, context: TaskContext) -> int:
    context.report([PartitionUpdate("orders", item, item, item, 1, 1)])
    return 2 * item


def waits_for(item: str, context: TaskContext) -> bool:
    """Ends when there is a file of this name, if any is named; False if it has not come in a minute."""
    until = time.monotonic() + 60
    while item and not Path(item).exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not item or Path(item).exists()


def slow_for_odd(item: int, context: TaskContext) -> int:
    if item % 2:
        time.sleep(10)
    return item


def refused(item: int, context: TaskContext) -> int:
    """Leaves a file a call; `item` 0 is refused for good."""
    if item == 0:
        raise StorageRefused("Bucket b: no.", hint="Ask for access.")
    time.sleep(90)
    return item


def unavailable_until(item: tuple[str, int], context: TaskContext) -> int:
    """Succeeds on the attempt that `item` names, and leaves a line a call in a file."""
    file, works_at = item
    with Path(file).open("a") as out:
        out.write(f"{context.attempt}\n")
    if context.attempt < works_at:
        raise BrokerUnavailable(f"Attempt {context.attempt}: nobody there.", hint="Look.")
    return context.attempt


def broken(item: int, context: TaskContext) -> int:
    return {"a": 1}["b"] if item == 1 else item


def dies(item: int, context: TaskContext) -> int:
    if item == 1:
        os._exit(3)
    return item


def killed_at_first(function: Callable[[Any, TaskContext], Any], marker: str, item: Any, context: TaskContext) -> Any:
    """Does the work; then the first attempt's process is killed before anybody hears of it. Leaves a file at
    `marker`."""
    result = function(item, context)
    if context.attempt == 0:
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def reports(item: tuple[int, str], context: TaskContext) -> int:
    """Ends when there is the file that `item` names: what is on its way when the job ends may be lost."""
    number, arrived = item
    for at in range(1, 4):
        context.report([PartitionUpdate("orders", number, number, at, at * 10, at * 100)])
        time.sleep(0.1)
    waits_for(arrived, context)
    return number


def paced(item: int, context: TaskContext) -> int:
    """Moves `item` bytes as the run's limits let it; an odd number of bytes kills its first worker half-way."""

    async def move() -> None:
        async with context.throttle.reading(1):
            await context.throttle.pace(item // 2)
            if item % 2 and context.attempt == 0:
                os._exit(3)
            await context.throttle.pace(item - item // 2)

    asyncio.run(move())
    return item

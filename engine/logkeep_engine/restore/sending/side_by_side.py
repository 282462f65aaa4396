"""Several partitions of one cluster on their way at once: they share connections, an event loop, a pool of threads, and
a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from logkeep_engine.kafka.client import RawClient
from logkeep_engine.restore.claim.fence import TaskFence
from logkeep_engine.restore.model.offset_map import PartitionSummary
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.tasks import TaskContext, TaskProgress

_THREADS = 8
_MEMORY = 128 << 20
"""The bytes that the partitions may take together: blocks that were read, and batches made ready."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that the partitions of a task share."""

    client: RawClient
    pool: ThreadPoolExecutor
    progress: TaskProgress
    context: TaskContext
    fence: TaskFence


def side_by_side(
    tasks: Sequence[RestoreTask],
    context: TaskContext,
    restore: Callable[[RestoreTask, Shared], Coroutine[Any, Any, PartitionSummary]],
) -> tuple[PartitionSummary, ...]:
    """Return the summaries of all partitions. `restore` brings one that no earlier attempt has finished. Raises the
    first error of any partition, and RestoreBusy if another run has taken over this one.
    """

    async def everything(pool: ThreadPoolExecutor) -> tuple[PartitionSummary, ...]:
        budget = MemoryBudget(_MEMORY)
        async with RawClient(tasks[0].connection) as client:
            shared = Shared(client, pool, TaskProgress(context), context, TaskFence(tasks[0].state, pool))
            client.only_while(shared.fence.check)

            async def one(task: RestoreTask) -> PartitionSummary:
                async with budget.taken(task.memory):
                    await shared.fence.check()
                    known = None
                    if context.attempt:
                        known = await asyncio.get_running_loop().run_in_executor(pool, task.finished)
                    return await restore(task, shared) if known is None else known

            running = [asyncio.create_task(one(task)) for task in tasks]
            try:
                return tuple(await asyncio.gather(*running))
            finally:
                await stopped(running)

    with ThreadPoolExecutor(min(_THREADS, 2 * len(tasks)), thread_name_prefix="logkeep-restore") as pool:
        return asyncio.run(everything(pool))


async def stopped(running: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these, and wait until all have ended. Their errors are dropped."""
    waiting = list(running)
    for item in waiting:
        item.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


class MemoryBudget:
    """A number of bytes that partitions share, in the order in which they ask."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._given_back = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until this many bytes are left, and take them. A partition that asks for more than all gets all."""
        size = min(size, self._size)
        async with self._given_back:
            await self._given_back.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            async with self._given_back:
                self._given_back.notify_all()

"""Batches between whoever makes them and whoever sends them."""

import asyncio

import pytest

from logkeep_engine.kafka.batch_queue import Batch, BatchQueue


async def take_all(queue: BatchQueue, found: list[Batch]) -> None:
    while not queue.over:
        if queue.ready:
            found.append(queue.ready.popleft())
        else:
            await queue.wait(None)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 1000])
def test_all_batches_come_in_order(count: int) -> None:
    async def main() -> None:
        queue, found = BatchQueue(), list[Batch]()
        taking = asyncio.create_task(take_all(queue, found))
        for number in range(count):
            queue.put(b"%d" % number)
            if number % 3 == 0:
                await asyncio.sleep(0)
        queue.end()
        queue.end()
        await asyncio.wait_for(taking, 30)
        assert found == [b"%d" % number for number in range(count)]

    asyncio.run(main())


def test_waiting_ends_when_the_other_is_done() -> None:
    async def main() -> None:
        queue = BatchQueue()
        other = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(other.set_result, None)
        await asyncio.wait_for(queue.wait(other), 30)
        assert not queue.ready
        queue.put(b"after")  # nobody waits any more
        assert not queue.over

    asyncio.run(main())

"""The connection of `produce_many`, which is opened while the first batch is made."""

import asyncio
from typing import Any, cast

from logkeep_engine.kafka.batch_queue import BatchQueue
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.produce import Producer, _Sent, _Target
from logkeep_engine.kafka.retry import RetriableError
from tests.unit.log.batches import batch


class Broker(Producer):
    """Acknowledges every batch at once, at offset 0, 1, 2."""

    def __init__(self) -> None:
        self.sent = 0
        self.steps: list[str] = []

    async def _open(self, target: Any) -> None:
        self.steps.append("open")

    async def _send(self, target: Any, guard: Any, batch: Any, *_: Any, **__: Any) -> _Sent:
        self.steps.append("send")
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(self.sent)
        self.sent += 1
        return _Sent(target, batch, answer)


def test_the_connection_is_opened_while_the_first_batch_is_made() -> None:
    async def main() -> None:
        broker, queue = Broker(), BatchQueue()

        async def make() -> None:
            await asyncio.sleep(0.05)
            queue.put(batch(0, producer_id=9, base_sequence=0))
            queue.end()

        making = asyncio.create_task(make())
        assert [offset async for offset in broker.produce_many("topic", 0, queue, floor=0)] == [0]
        assert broker.steps == ["open", "send"]
        await making

    asyncio.run(main())


def test_a_connection_that_cannot_be_opened_is_reported_when_a_batch_is_sent() -> None:
    class Unreachable:
        async def leader(self, *_: Any, **__: Any) -> Any:
            raise RetriableError("nobody is there")

    async def main() -> None:
        broker = Broker()
        broker._pool = cast(BrokerPool, Unreachable())
        await Producer._open(broker, cast(Any, _Target("topic", 0, 1000)))

    asyncio.run(main())

"""The batches that `produce_many` takes ahead, and those that cannot be made."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from logkeep_engine.kafka.produce import Producer, _Sent
from tests.unit.log.batches import batch


class Broker(Producer):
    """Acknowledges every batch at once, at offset 0, 1, 2."""

    def __init__(self) -> None:
        self.sent = 0

    async def _send(self, target: Any, guard: Any, batch: Any, *_: Any, **__: Any) -> _Sent:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(self.sent)
        self.sent += 1
        return _Sent(target, batch, answer)


class Panic(BaseException):
    """The error of compiled code that finds a mistake of its own (PyO3's PanicException)."""


@pytest.mark.parametrize("error", [ValueError("broken"), Panic(), asyncio.CancelledError()], ids=repr)
def test_batches_that_could_not_be_made_are_no_end(error: BaseException) -> None:
    async def batches() -> AsyncIterator[bytes]:
        for number in range(7):
            yield batch(0, producer_id=9, base_sequence=number)
        raise error

    async def main() -> None:
        broker = Broker()
        with pytest.raises(type(error)):
            async for _ in broker.produce_many("topic", 0, batches(), floor=0):
                pass
        assert broker.sent == 7

    asyncio.run(main())

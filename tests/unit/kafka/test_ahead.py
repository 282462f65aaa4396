"""Items are taken ahead, in order and not without end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from logkeep_engine.kafka.ahead import Ahead


class Source:
    """Numbers up to `last`, and then an end or an error. It counts what it has given."""

    def __init__(self, last: int, error: BaseException | None = None) -> None:
        self.given = 0
        self._last = last
        self._error = error

    async def items(self) -> AsyncIterator[int]:
        for number in range(self._last):
            self.given += 1
            yield number
        if self._error is not None:
            raise self._error


async def take_all(ahead: Ahead[int], found: list[int]) -> None:
    while not ahead.over:
        if ahead.ready:
            found.append(ahead.take())
        elif ahead.error is not None:
            raise ahead.error
        else:
            await ahead.wait(None)
    await ahead.stop()


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 1000])
def test_all_items_come_in_order(count: int) -> None:
    async def main() -> None:
        found: list[int] = []
        await take_all(Ahead(Source(count).items(), 5), found)
        assert found == list(range(count))

    asyncio.run(main())


def test_no_more_are_taken_than_asked_for() -> None:
    async def main() -> None:
        source = Source(1000)
        ahead = Ahead(source.items(), 5)
        await ahead.wait(None)
        assert (list(ahead.ready), source.given) == ([0, 1, 2, 3, 4], 5)
        for number in range(20):
            assert ahead.take() == number
            await asyncio.sleep(0)
            assert source.given <= number + 1 + 5
            assert ahead.ready
        await ahead.stop()
        given = source.given
        await asyncio.sleep(0)
        assert source.given == given

    asyncio.run(main())


def test_an_error_comes_behind_the_items_before_it() -> None:
    async def main() -> None:
        ahead = Ahead(Source(7, ValueError("broken")).items(), 5)
        found: list[int] = []
        with pytest.raises(ValueError, match="broken"):
            await take_all(ahead, found)
        assert found == list(range(7))
        assert not ahead.over

    asyncio.run(main())


class Panic(BaseException):
    """The error of compiled code that finds a mistake of its own (PyO3's PanicException)."""


@pytest.mark.parametrize("error", [Panic(), asyncio.CancelledError(), GeneratorExit()])
def test_what_is_no_exception_does_not_look_like_the_end(error: BaseException) -> None:
    async def main() -> None:
        ahead = Ahead(Source(3, error).items(), 5)
        found: list[int] = []
        with pytest.raises(type(error)):
            await take_all(ahead, found)
        assert found == [0, 1, 2]
        assert not ahead.over
        await ahead.stop()

    asyncio.run(main())


def test_waiting_ends_when_the_other_is_done() -> None:
    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    async def main() -> None:
        ahead = Ahead(never(), 5)
        other = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(other.set_result, None)
        await asyncio.wait_for(ahead.wait(other), 30)
        assert not ahead.ready
        await ahead.stop()
        assert ahead.ended

    asyncio.run(main())

"""A connection against a server that speaks as a broker does, or as no broker should.

What a real broker says is tested with the client; here it is what real brokers cannot be made to do.
"""

import asyncio
import gc
import struct
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.encoding import Call, Reader, VersionMissing
from logkeep_engine.kafka.wire import Wire, open_wire
from tests.kafka.raw import run

VERSIONS = {1: (4, 17), 18: (0, 4)}
ECHO = 1
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def echo(text: bytes = b"", *more: bytes | memoryview) -> Call[bytes]:
    """A request whose answer is what the server sends after the correlation id."""

    def answer(read: Reader) -> bytes:
        return bytes(read.slice(read.int32()))

    return Call(ECHO, 4, (text, *more), answer)


async def read_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Correlation id and body of the next request."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    data = await reader.readexactly(size)
    _, _, correlation_id, name = struct.unpack_from(">hhih", data)
    return correlation_id, data[10 + name :]


def frame(correlation_id: int, data: bytes) -> bytes:
    body = struct.pack(">ii", correlation_id, len(data)) + data
    return struct.pack(">i", len(body)) + body


@asynccontextmanager
async def connected(
    behaviour: Behaviour, *, patience: float = 20, buffers: Buffers | None = None
) -> AsyncIterator[Wire]:
    """A wire to a server that tells its versions and then behaves as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await read_request(reader)
        text = b"".join(struct.pack(">hhh", key, *versions) for key, versions in VERSIONS.items())
        body = struct.pack(">ihi", correlation_id, 0, len(VERSIONS)) + text
        writer.write(struct.pack(">i", len(body)) + body)
        try:
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        wire = await open_wire(
            *server.sockets[0].getsockname()[:2],
            buffers=buffers or Buffers(),
            client_id="test",
            patience=patience,
        )
        try:
            yield wire
        finally:
            await wire.close()


async def echoing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        correlation_id, body = await read_request(reader)
        writer.write(frame(correlation_id, body))
        await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_many_requests_are_under_way_and_each_gets_its_answer() -> None:
    async def work() -> None:
        async with connected(echoing) as wire:
            texts = [b"%d" % number * (number * 997 % 5000) for number in range(300)]
            answers = [wire.send(echo(text)) for text in texts]
            assert await asyncio.gather(*answers) == texts

    run(work())


def test_large_requests_and_answers_arrive_whole() -> None:
    async def work() -> None:
        buffers = Buffers()
        async with connected(echoing, buffers=buffers) as wire:
            for size in (1 << 20, 5 << 20, 3_333_333):
                batch = bytes(range(256)) * (size // 256)
                assert await wire.send(echo(b"head", batch, b"", memoryview(batch), b"tail")) == (
                    b"head" + batch + batch + b"tail"
                )

    run(work())


def test_answer_that_comes_byte_by_byte_is_put_together() -> None:
    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            correlation_id, body = await read_request(reader)
            for byte in frame(correlation_id, body):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.001)

    async def work() -> None:
        async with connected(dripping) as wire:
            assert await asyncio.gather(*[wire.send(echo(text)) for text in (b"one", b"two")]) == [b"one", b"two"]

    run(work())


def test_answers_that_are_given_up_do_not_disturb_the_next() -> None:
    async def work() -> None:
        async with connected(echoing) as wire:
            first, second = wire.send(echo(b"x" * 1_000_000)), wire.send(echo(b"second"))
            first.cancel()
            assert await second == b"second"

    run(work())


def test_silence_fails_everything_under_way_and_closes() -> None:
    async def work() -> None:
        async with connected(silent, patience=0.2) as wire:
            answers = [wire.send(echo(b"a")), wire.send(echo(b"b"))]
            for result in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(result, TimeoutError)
            assert not wire.connected()
            with pytest.raises(ConnectionError, match="the connection was closed"):
                wire.send(echo(b"c"))

    run(work())


def test_patience_is_for_one_answer_and_not_for_the_line() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            correlation_id, body = await read_request(reader)
            await asyncio.sleep(0.6)
            writer.write(frame(correlation_id, body))

    async def work() -> None:
        async with connected(slow, patience=3) as wire:
            assert wire.idle_for() < 3
            answers = [wire.send(echo(b"%d" % number)) for number in range(6)]
            assert wire.idle_for() == 0
            assert await asyncio.gather(*answers) == [b"%d" % number for number in range(6)]
            await asyncio.sleep(3.2)  # nothing is awaited, so nobody loses patience
            assert wire.idle_for() > 3
            assert await wire.send(echo(b"again")) == b"again"

    run(work())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (frame(4711, b"x"), "answer 4711 came instead of"),
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", 3), "an answer of 3 bytes"),
        (struct.pack(">i", 2**31 - 1), "an answer of 2147483647 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of 1213486160 bytes"),
    ],
)
def test_answer_that_makes_no_sense_closes_the_connection(answer: bytes, says: str) -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async def work() -> None:
        async with connected(wrong) as wire:
            with pytest.raises(ConnectionError, match=says):
                await wire.send(echo(b"x"))
            assert not wire.connected()

    run(work())


def test_answer_that_ends_early_fails_alone() -> None:
    async def short_then_right(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await read_request(reader)
        writer.write(struct.pack(">iii", 8, correlation_id, 1000))
        await echoing(reader, writer)

    async def work() -> None:
        async with connected(short_then_right) as wire:
            with pytest.raises(ConnectionError, match="an answer cannot be read: 1000 bytes announced, 0 there"):
                await wire.send(echo(b"x"))
            assert await wire.send(echo(b"y")) == b"y"

    run(work())


def test_answer_that_nobody_asked_for_closes_the_connection() -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(frame(1, b"hello"))
        await reader.read()

    async def work() -> None:
        async with connected(talkative) as wire:
            await asyncio.wait_for(wire.closed, 30)
            assert not wire.connected()

    run(work())


def test_connection_that_breaks_in_an_answer_fails_what_is_under_way() -> None:
    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await read_request(reader)
        writer.write(frame(correlation_id, b"x" * 100_000)[:50_000])
        await writer.drain()

    async def work() -> None:
        async with connected(breaking) as wire:
            answers = [wire.send(echo(b"a")), wire.send(echo(b"b"))]
            for result in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(result, ConnectionError)
            assert not wire.connected()

    run(work())


def test_version_that_the_broker_lacks_is_not_sent() -> None:
    async def work() -> None:
        async with connected(echoing) as wire:
            with pytest.raises(VersionMissing, match="request 1 version 3, the broker accepts 4 to 17"):
                wire.send(Call(ECHO, 3, (b"",), lambda read: None))
            assert await wire.send(echo(b"fine")) == b"fine"

    run(work())


def test_fetched_memory_is_used_again_when_it_is_released() -> None:
    records = b"r" * 1_000_000
    head = struct.pack(">ihi", 0, 0, 0) + struct.pack(">ih", 1, 1) + b"t"
    head += struct.pack(">iihqqqii", 1, 0, 0, 9, 9, 0, 0, len(records))

    async def fetching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            correlation_id, _ = await read_request(reader)
            body = struct.pack(">i", correlation_id) + head + records
            writer.write(struct.pack(">i", len(body)) + body)

    async def work() -> None:
        buffers = Buffers()
        call = protocol.fetch("t", None, 0, 0, 0, max_bytes=1, max_wait_ms=0, min_bytes=1, committed=True)
        async with connected(fetching, buffers=buffers) as wire:
            memory = set()
            for _ in range(5):
                answer = await wire.send(call)
                assert answer.records == records
                memory.add(id(answer.records.obj))
                answer.records.release()
                assert answer.frame is not None
                answer.frame.release()
                assert buffers.idle == 1
            assert len(memory) == 1

    run(work())


def test_connection_leaves_no_warning_behind() -> None:
    async def work() -> None:
        async with connected(echoing) as wire:
            assert await wire.send(echo(b"x")) == b"x"
            gc.collect()
            assert await wire.send(echo(b"y")) == b"y"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(work())
        gc.collect()
